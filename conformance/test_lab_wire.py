"""In the laboratory: what crosses the wire."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from commhooks.conformance import inputs
from commhooks.conformance.cells import ClauseFailure, Traffic
from commhooks.conformance.laboratory import Seen, call_in_lab
from commhooks.conformance.laboratory_expectations import expect_no_error
from commhooks.conformance.marks import Half, clauses, dtypes, every_hook, needs, stateful, worlds
from commhooks.conformance.world import World

# Divides by the numbers of ranks and whatever a hook may fill up to, so that nobody has to fill up.
LENGTH = 96
# Large enough for a compressing hook to show what it saves.
LAYER = [[64, 64], [64]]
DTYPE_BYTES = 4
# Enough for what a hook does every tenth step only.
STEPS = 11


@clauses("ALLREDUCE-WIRE")
@needs("allreduce_hook")
@worlds(2, 2)
def test_allreduce(lab: World, dtype: str) -> None:
    """The bucket is sent once, in its own dtype, be it with one collective, with several or in parts."""
    _expect_sent_once(_some_steps(lab, "allreduce_hook", dtype), dtype)


@clauses("{half.prefix}-SENDS")
@needs("{half.hook}")
@dtypes("float32")
@worlds(2, 2)
def test_compress(lab: World, half: Half, dtype: str) -> None:
    """The bucket is sent once, in the half type."""
    _expect_sent_once(_some_steps(lab, half.hook, dtype), half.dtype)


@clauses("{half.prefix}-WRAPPER-SENDS")
@needs("{half.wrapper}", "allreduce_hook")
@dtypes("float32")
@worlds(2, 2)
def test_wrapper(lab: World, half: Half, dtype: str) -> None:
    """The wrapped allreduce_hook sends the bucket once, in the half type."""
    _expect_sent_once(_some_steps(lab, f"{half.wrapper}(allreduce_hook)", dtype), half.dtype)


@clauses("NOOP-SILENT")
@needs("noop_hook")
@dtypes("float32")
@worlds(2, 2)
def test_noop(lab: World, dtype: str) -> None:
    """Nothing is sent."""
    seen = _some_steps(lab, "noop_hook", dtype)
    for rank in range(lab.size):
        _expect(seen, rank, not seen.log(rank), "no collective", "not found")


@every_hook
@stateful
@clauses("HOOK-TRAFFIC")
@dtypes("float32")
@worlds(2, 3)
def test_traffic(lab: World, hook: str, dtype: str, note: Callable[[Traffic], None]) -> None:
    """Reports the collectives and bytes of a step of one bucket, a layer's weight and bias, after two such steps."""
    length = inputs.numel(LAYER)
    steps = [[inputs.spread(lab.size, length, dtype, seed=step, reach=4)] for step in range(3)]
    seen = call_in_lab(lab, hook, dtype, steps, shapes=[[LAYER]] * len(steps))
    expect_no_error(seen)
    last = seen.log(0)[seen.results[0]["steps"][-1][0] :]
    sent = sum(int(entry["bytes"]) for entry in last)
    note(Traffic(collectives=len(last), bytes=sent, plain_bytes=length * DTYPE_BYTES))


def _some_steps(lab: World, hook: str, dtype: str) -> Seen:
    steps = [[inputs.spread(lab.size, LENGTH, dtype, seed=step, reach=4)] for step in range(STEPS)]
    seen = call_in_lab(lab, hook, dtype, steps, shapes=[[[[LENGTH]]]] * STEPS)
    expect_no_error(seen)
    return seen


def _expect_sent_once(seen: Seen, dtype: str) -> None:
    """Expects in each step the bucket in that dtype, once: in any of the ways to make an allreduce."""
    part = LENGTH // len(seen.results)
    ways = {(LENGTH, 0), (LENGTH, part), (LENGTH, LENGTH), (0, LENGTH), (0, LENGTH + part)}
    for rank, result in enumerate(seen.results):
        bounds = [*(step[0] for step in result["steps"]), len(result["entries"])]
        for step in range(STEPS):
            entries = seen.log(rank)[bounds[step] : bounds[step + 1]]
            sent = (_elements(entries, reduces=True), _elements(entries, reduces=False))
            right = sent in ways and {entry["dtype"] for entry in entries} == {dtype}
            holds = f"found == ['allreduce sum {dtype}[{LENGTH}]']"
            _expect(seen, rank, right, f"{dtype}[{LENGTH}], once", holds, step, bounds)


def _elements(entries: Sequence[Mapping[str, Any]], reduces: bool) -> int:
    return sum(int(entry["elements"]) for entry in entries if bool(entry["reduce_op"]) == reduces)


def _expect(
    seen: Seen, rank: int, right: bool, expected: str, holds: str, step: int = 0, bounds: Sequence[int] = ()
) -> None:
    if right:
        return
    window = f"[{bounds[step]}:{bounds[step + 1]}]" if bounds else ""
    entries = seen.log(rank)[bounds[step] : bounds[step + 1]] if bounds else seen.log(rank)
    found = ", ".join(str(entry["text"]) for entry in entries) or "nothing"
    raise ClauseFailure(
        "wire",
        f"rank {rank}, step {step}: of a bucket of {LENGTH} elements {seen.hook} gave the collectives: {found}",
        expected=expected,
        found=found,
        place=f"[entry['text'].partition(' in ')[0] for entry in {seen.place(rank, 'entries')}{window}]",
        holds=holds,
    )
