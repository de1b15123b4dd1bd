"""Writes a script for each failure that shows it again, with literal inputs and without the suite.

The script is put together from the sources that the failed check ran: the programs, and the methods of ``TorchAdapter``
that they call. So it needs torch and numpy, and the implementation; one that has an adapter of its own needs commhooks.
"""

from __future__ import annotations

import ast
import base64
import functools
import inspect
import re
import textwrap
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np

from commhooks.adapters import Adapter, Place, TensorFacts, TorchAdapter
from commhooks.conformance.cells import ClauseFailure, Failure
from commhooks.conformance.clauses import Clause
from commhooks.conformance.inputs import PERIOD
from commhooks.conformance.world import Implementation, Program
from commhooks.conformance.world.channel import Array, Plain

FOLDER = "repro"
MARKER = "# Reproduction script of the conformance suite for DDP communication hooks."
# Longer arrays are written as a repeated pattern if they are one, as those of ``inputs`` are, and compressed if not.
WRITTEN_OUT = 1024

DRIVER_METHODS = (
    "__init__", "join", "group", "barrier", "tensor", "array", "write", "facts", "is_tensor", "is_future", "wait",
    "completed", "random_state", "set_random_state", "watch_collectives", "parameter", "bucket",
    "gradient_without_hook", "framework", "data_parallel", "_wrapper",
)  # fmt: skip


def remove_scripts(report: Path) -> None:
    """Removes the scripts that an earlier run left in the report's folder."""
    for path in (report / FOLDER).glob("*.py"):
        with path.open(encoding="utf-8", errors="replace") as file:
            ours = file.readline().rstrip() == MARKER
        if ours:
            path.unlink()


def write_script(
    failure: Failure,
    error: BaseException,
    programs: Sequence[Program],
    implementation: Implementation,
    clauses: Sequence[Clause],
    configuration: Mapping[str, str],
    report: Path,
) -> Failure:
    """Writes the script of a failure and gives the failure with the script's path in it.

    Without a program there is nothing to run again, and the failure stays as it is.
    """
    if not programs:
        return failure
    place, holds = (error.place, error.holds) if isinstance(error, ClauseFailure) else ("", "")
    text = script_text(failure, place, holds, programs, implementation, clauses, configuration)
    words = [clauses[0].id, implementation.name, *(f"{key} {value}" for key, value in configuration.items())]
    words = [word for word in words if not word.startswith(("device", "backend"))]
    name = re.sub(r"[^a-z0-9]+", "-", " ".join(words).lower().replace("world_size ", "w")).strip("-")[:120]
    path = report / FOLDER / f"{name}.py"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return replace(failure, script=path.relative_to(report).as_posix())


def script_text(
    failure: Failure,
    place: str,
    holds: str,
    programs: Sequence[Program],
    implementation: Implementation,
    clauses: Sequence[Clause],
    configuration: Mapping[str, str],
) -> str:
    """The whole script."""
    description = implementation.description
    settings = implementation.settings
    runs = [f"    ({program.function.__name__}, ARGUMENTS_{number}),\n" for number, program in enumerate(programs)]
    verdict = {"PLACE": place or "None", "HOLDS": holds or "True", "EXPECTED": repr(failure.expected)}
    parts = [
        MARKER,
        _docstring(failure, implementation, clauses, configuration),
        IMPORTS,
        f"WORLD_SIZE = {len(programs[0].each)}\nDEVICE = {settings.device!r}\nBACKEND = {programs[0].backend!r}\n"
        f"TIME_LIMIT = {settings.timeout!r}  # seconds for each program",
        *([LABORATORY] if programs[0].backend == "lab" else []),
        "# ---- What the ranks are given: for each program, the arguments of each rank.",
        *(f"ARGUMENTS_{number} = {_literal(program.each)}" for number, program in enumerate(programs)),
        "# ---- What a rank does.",
        *_program_sources(programs),
        "# ---- How a rank drives the implementation.",
        *(_driver(implementation) if description.places else [_foreign_driver(implementation)]),
        "# ---- The run, and the verdict.",
        f"PROGRAMS = [\n{''.join(runs)}]",
        re.sub("|".join(verdict), lambda match: verdict[match[0]], MAIN),
    ]
    return "\n\n\n".join(part.strip("\n") for part in parts) + "\n"


def _docstring(
    failure: Failure, implementation: Implementation, clauses: Sequence[Clause], configuration: Mapping[str, str]
) -> str:
    description = implementation.description
    lines = []
    for clause in clauses:
        lines += textwrap.wrap(f"{clause.id} ({clause.level}, {clause.since}): {clause.text}", 110)
    lines += [
        "",
        f"Implementation: {description.name} {description.version} ({description.module}), {description.framework}",
        "Configuration:  " + ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in configuration.items()),
        f"Failure:        {failure.kind}",
        *failure.message.splitlines(),
        "",
        "Run it with python. It exits with 1 if the failure shows, and with 0 if it does not.",
    ]
    text = "\n".join(lines).replace("\\", "\\\\").replace('"""', "'''")
    return f'"""{text}\n"""'


def _program_sources(programs: Sequence[Program]) -> list[str]:
    """The programs, and what else of their modules they use, once each."""
    parts: dict[str, None] = {}
    for program in programs:
        parts.update(dict.fromkeys(_sources(program.function)))
    return list(parts)


@functools.cache
def _sources(function: Callable[..., object]) -> tuple[str, ...]:
    """The source of a function, after those of the functions of its module that it uses."""
    module = inspect.getmodule(function)
    assert module is not None
    return tuple(inspect.getsource(getattr(module, name)) for name in _used(module, function.__name__, {}))


def _used(module: ModuleType, name: str, order: dict[str, None]) -> dict[str, None]:
    """Names of the functions of a module that one of them uses, itself the last."""
    own = {
        other
        for other, value in vars(module).items()
        if inspect.isfunction(value) and value.__module__ == module.__name__
    }
    tree = ast.parse(textwrap.dedent(inspect.getsource(getattr(module, name))))
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id in own and node.id != name and node.id not in order:
            _used(module, node.id, order)
    order[name] = None
    return order


def _driver(implementation: Implementation) -> Iterator[str]:
    description = implementation.description
    yield from _torch_driver()
    if description.file is not None:
        module = next(iter(description.places.values()))
        yield LOAD_FILE.replace("PATH", repr(description.file)).replace("NAME", repr(module))
    own = [f"PLACES = {description.places!r}", NAMED]
    if description.own_bucket:
        own.append(OWN_BUCKET)
    if description.hook is not None:
        own.append(OWN_STATE)
    body = "\n".join(textwrap.indent(part.strip("\n") + "\n", "    ") for part in own)
    yield f"class Implementation(Driver):\n{body}"


@functools.cache
def _torch_driver() -> tuple[str, ...]:
    """What ``TorchAdapter`` does for programs, as a class without bases."""
    methods = [inspect.getsource(method) for method in (Adapter.hook, Adapter.state)]
    methods += [inspect.getsource(vars(TorchAdapter)[name]) for name in DRIVER_METHODS]
    driver = "class Driver:\n" + "\n".join(methods).replace("super().__init__()\n", "")
    return inspect.getsource(Place), inspect.getsource(TensorFacts), driver


def _foreign_driver(implementation: Implementation) -> str:
    return (
        "from commhooks.adapters import Place\nfrom commhooks.adapters.loading import load\n\n\n"
        f"def Implementation():\n    return load({implementation.text!r})"
    )


def _literal(value: Plain | Sequence[Mapping[str, Plain]], indent: str = "") -> str:
    inner = indent + "    "
    if isinstance(value, np.ndarray):
        return array_literal(value)
    if isinstance(value, Mapping):
        items = "".join(f"{inner}{key!r}: {_literal(item, inner)},\n" for key, item in value.items())
        return f"{{\n{items}{indent}}}" if value else "{}"
    if isinstance(value, list | tuple):
        if all(item is None or isinstance(item, bool | int | float | str) for item in value):
            return repr(list(value))
        items = "".join(f"{inner}{_literal(item, inner)},\n" for item in value)
        return f"[\n{items}{indent}]"
    return repr(value)


def array_literal(array: Array) -> str:
    """An expression that makes the array again, bit for bit but for the payload of NaN."""
    if array.size <= WRITTEN_OUT:
        shape = f".reshape({array.shape})" if array.ndim != 1 else ""
        return f"np.array({array.ravel().tolist()!r}, {array.dtype.name!r}){shape}"
    for period in (1, PERIOD):
        if array.ndim == 1 and np.array_equal(array[period:], array[:-period], equal_nan=True):
            return f"np.resize({array_literal(array[:period])}, {array.size})"
    packed = base64.b64encode(zlib.compress(np.ascontiguousarray(array).tobytes(), 9)).decode()
    return f"np.frombuffer(zlib.decompress(base64.b64decode({packed!r})), {array.dtype.name!r}).reshape({array.shape})"


IMPORTS = """
from __future__ import annotations

import base64
import contextlib
import functools
import gc
import hashlib
import importlib
import importlib.util
import inspect
import logging
import multiprocessing
import os
import pickle
import queue
import random
import re
import sys
import tempfile
import threading
import time
import traceback
import warnings
import weakref
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta

import numpy as np

inf, nan = np.inf, np.nan
os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
sys.path.insert(0, os.getcwd())  # where the implementation may lie
"""

LABORATORY = """
# The process group is the laboratory of the suite, so this script needs commhooks.
from commhooks.conformance import lab

lab.register()
"""

LOAD_FILE = """
def load_file(path: str, name: str) -> None:
    sys.path.insert(0, os.path.dirname(os.path.abspath(path)))
    spec = importlib.util.spec_from_file_location(name, path)
    sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules[name])


load_file(PATH, NAME)
"""

NAMED = """
def named(self, name: str) -> object:
    return getattr(importlib.import_module(self.PLACES[name]), name)
"""

OWN_BUCKET = '''
def bucket(self, index, values, parameters, is_last):
    """A bucket of the implementation's own class."""
    buffer = self.tensor(values, self.facts(parameters[0]).dtype)
    return self.named("GradBucket")(index=index, buffer=buffer, parameters=list(parameters), is_last=is_last)
'''

OWN_STATE = '''
def state(self, hook: str, group: object) -> object:
    """What the function or its module makes with commhooks_state, or the process group."""
    module = importlib.import_module(self.PLACES[hook])
    make = getattr(self.named(hook), "commhooks_state", getattr(module, "commhooks_state", None))
    return group if make is None else make(group)
'''

MAIN = """
def rank_main(rank: int, store: str, answers: multiprocessing.Queue) -> None:
    try:
        implementation = Implementation()
        implementation.join(Place(rank, WORLD_SIZE, DEVICE, BACKEND, f"file://{store}", 3600.0))
        for number, (program, each) in enumerate(PROGRAMS):
            answers.put((number, rank, program(implementation, **each[rank])))
    except Exception:
        traceback.print_exc()
        answers.put((None, rank, None))


def main() -> int:
    context = multiprocessing.get_context("fork")
    answers = context.Queue()
    store = os.path.join(tempfile.mkdtemp(), "store")
    ranks = [context.Process(target=rank_main, args=(rank, store, answers), daemon=True) for rank in range(WORLD_SIZE)]
    for process in ranks:
        process.start()
    results = [[None] * WORLD_SIZE for _ in PROGRAMS]
    missing = len(PROGRAMS) * WORLD_SIZE
    deadline = time.monotonic() + 30.0 + TIME_LIMIT * len(PROGRAMS)
    failed = False
    while missing and not failed:
        try:
            number, rank, result = answers.get(timeout=0.2)
        except queue.Empty:
            codes = {rank: process.exitcode for rank, process in enumerate(ranks)}
            ended = [f"rank {rank} ended with {code}" for rank, code in codes.items() if code]
            late = time.monotonic() > deadline
            if ended or late:
                print("; ".join(ended) or f"the ranks did not finish within {TIME_LIMIT} s for each program")
                failed = True
            continue
        if number is None:
            print(f"rank {rank} raised, see above")
            failed = True
        else:
            results[number][rank] = result
            missing -= 1
    for process in ranks:
        process.kill()
    if failed:
        return 1
    found = PLACE
    holds = bool(HOLDS)
    print("expected:", EXPECTED)
    print("found:   ", found)
    print("the clause holds here" if holds else "the failure shows")
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
"""
