"""Runs cases, with their assertions, on two ranks: one pair of processes for all, so a case costs milliseconds."""

from __future__ import annotations

import importlib
import pickle
import traceback
from collections.abc import Callable
from pathlib import Path

import torch
from ranks import on_ranks

Case = Callable[[int], None]


def run_on_two_ranks(module: str, folder: Path) -> dict[str, str]:
    """Runs the ``CASES`` of a module one after the other on two ranks; gives what went wrong on either, by case."""
    faults: dict[str, str] = {}
    ends = on_ranks(2, folder, _run_cases, module, folder)
    for rank, end in enumerate(ends):
        outcomes = {path.stem: pickle.loads(path.read_bytes()) for path in folder.glob(f"{rank}/*.pickle")}
        for name in importlib.import_module(module).CASES:
            fault = outcomes.get(name, f"not run: {end.error}")
            if fault is not None:
                faults[name] = f"{faults.get(name, '')}rank {rank}: {fault}\n"
    return faults


def _run_cases(rank: int, world: int, module: str, folder: Path) -> None:
    (folder / str(rank)).mkdir()
    for name, case in importlib.import_module(module).CASES.items():
        torch.manual_seed(0)
        fault = None
        try:
            case(rank)
        except BaseException:
            fault = traceback.format_exc()
        (folder / str(rank) / f"{name}.pickle").write_bytes(pickle.dumps(fault))
