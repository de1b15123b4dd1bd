"""The parts of a reproduction script that are the same in each, but for a few words in capitals."""

from __future__ import annotations

# Modules of the standard library that programs and drivers use.
MODULES = (
    "base64",
    "contextlib",
    "ctypes",
    "functools",
    "gc",
    "hashlib",
    "importlib",
    "importlib.util",
    "inspect",
    "logging",
    "multiprocessing",
    "os",
    "pickle",
    "queue",
    "random",
    "re",
    "sys",
    "tempfile",
    "threading",
    "time",
    "traceback",
    "warnings",
    "weakref",
    "zlib",
)

PREAMBLE = """
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

# A part of its own: all else of the last parts is the same in every script.
JUDGE = """
def judge(results: list) -> int:
    found = PLACE
    holds = bool(HOLDS)
    print("expected:", EXPECTED)
    print("found:   ", found)
    print("the clause holds here" if holds else "the failure shows")
    return 0 if holds else 1
"""

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
    return judge(results)


if __name__ == "__main__":
    sys.exit(main())
"""
