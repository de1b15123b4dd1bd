"""Runs cases, with their assertions, on two ranks: one pair of processes for all, so a case costs milliseconds."""

from __future__ import annotations

import datetime
import multiprocessing
import pickle
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
import torch.distributed as dist

SECONDS = 40
Case = Callable[[int], None]


def run_on_two_ranks(cases: Mapping[str, Case], folder: Path) -> dict[str, str]:
    """Runs all cases one after the other on two ranks; gives what went wrong on either rank, by case."""
    context = multiprocessing.get_context("fork")
    ranks = [context.Process(target=_run_cases, args=(rank, cases, folder), daemon=True) for rank in range(2)]
    for process in ranks:
        process.start()
    deadline = time.monotonic() + SECONDS
    for process in ranks:
        process.join(max(0.0, deadline - time.monotonic()))
        if process.is_alive():
            process.kill()
    faults: dict[str, str] = {}
    for rank in range(2):
        outcomes = {path.stem: pickle.loads(path.read_bytes()) for path in folder.glob(f"{rank}/*.pickle")}
        for name in cases:
            fault = outcomes.get(name, "the rank died or ran out of time")
            if fault is not None:
                faults[name] = f"{faults.get(name, '')}rank {rank}: {fault}\n"
    return faults


def _run_cases(rank: int, cases: Mapping[str, Case], folder: Path) -> None:
    torch.set_num_threads(1)
    store = dist.FileStore(str(folder / "store"), 2)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2, timeout=datetime.timedelta(seconds=10))
    (folder / str(rank)).mkdir()
    for name, case in cases.items():
        torch.manual_seed(0)
        fault = None
        try:
            case(rank)
        except BaseException:
            fault = traceback.format_exc()
        (folder / str(rank) / f"{name}.pickle").write_bytes(pickle.dumps(fault))
    dist.destroy_process_group()
