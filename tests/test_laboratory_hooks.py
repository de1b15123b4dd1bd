"""The laboratory changes nothing for right hooks, and each wrong one fails for its own reason."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest
from lab_hooks import (
    IMPATIENT,
    LATE,
    RIGHT,
    call,
    call_one,
    default_group,
    divides_in_flight,
    forgets_to_wait,
    full_precision,
    order_by_rank,
    reads_early,
    returns_early,
    skips_on_rank_1,
    waits_in_callback,
    writes_late,
)
from lab_ranks import on_ranks, values

from commhooks.conformance import lab
from commhooks.conformance.lab import Options
from commhooks.reference import allreduce_hook, fp16_compress_hook


def call_right_hooks(rank: int, world: int, seeds: int) -> list[str]:
    complaints = []
    for (name, hook), seed in itertools.product(RIGHT.items(), range(seeds)):
        seen = call(hook, Options.drawn(seed))
        if seen.wrong or seen.errors or seen.log.findings:
            complaints.append(f"{name}, seed {seed}: {seen}")
    return complaints


@pytest.mark.parametrize(("world", "seeds"), [(1, 3), (2, 15), (3, 8)])
def test_right_hooks_pass(world: int, seeds: int, tmp_path: Path) -> None:
    """Right hooks give the exact mean, and no finding, under all options that are drawn."""
    assert values(on_ranks(world, tmp_path, call_right_hooks, seeds)) == [[]] * world


@pytest.mark.parametrize(
    ("hook", "wrong", "kind"),
    [
        (reads_early, "NaN", None),
        (returns_early, "NaN", None),
        (forgets_to_wait, "NaN", lab.UNWAITED),
        (divides_in_flight, "wrong values", lab.WRITTEN),
        (writes_late, "changes after completion", None),
        (waits_in_callback, None, lab.BLOCKS),
    ],
)
def test_wrong_hooks_fail(hook: Callable[..., object], wrong: str | None, kind: str | None, tmp_path: Path) -> None:
    """Each wrong hook fails for its own reason."""
    for seen in values(on_ranks(2, tmp_path, call_one, hook, LATE)):
        assert seen.wrong == ({wrong} if wrong else set()) or seen.wrong == {wrong, "changes after completion"}
        assert {finding.kind for finding in seen.log.findings} == ({kind} if kind else set())
        assert seen.errors == []


def test_waiting_in_a_callback_deadlocks_on_one_thread(tmp_path: Path) -> None:
    """With one thread for callbacks it is a deadlock, and the message names the line and what to do."""
    options = Options(callback_threads="one", deadlock_after=0.3)
    for seen in values(on_ranks(2, tmp_path, call_one, waits_in_callback, options)):
        (text,) = seen.log.found(lab.DEADLOCK)
        assert "a callback of number 0, allreduce sum float32[4] in (0, 1), waits for a future at lab_hooks.py:" in text
        assert "in second" in text
        assert "must not block on a collective inside a callback" in text
        assert any(text in error for error in seen.errors)
        assert [entry.callback_of for entry in seen.log.entries] == [None, None, 0]


def test_order_that_depends_on_rank(tmp_path: Path) -> None:
    """The first collective that differs fails at once on both ranks, and says what each had issued."""
    texts = [end.error for end in on_ranks(2, tmp_path, call_one, order_by_rank, LATE)]
    for text in texts:
        assert "issued different collectives as their number 0 there: rank 0: allreduce sum float32[1]" in text


def test_full_precision_on_the_wire(tmp_path: Path) -> None:
    """The values are right, so only the log shows it; a compressing hook sends half the bytes."""
    for hook, dtype in ((full_precision, "float32"), (fp16_compress_hook, "float16")):
        for seen in values(on_ranks(2, tmp_path, call_one, hook, LATE)):
            assert (seen.wrong, [(entry.dtype, entry.elements) for entry in seen.log.entries]) == (
                set(),
                [(dtype, 4), (dtype, 5)],
            )


def test_default_group_under_a_subgroup(tmp_path: Path) -> None:
    """The log has the wrong group, and the collective fails in bounded time; the right hook stays in its group."""
    members = [0, 1]
    for seen in values(on_ranks(3, tmp_path, call_one, default_group, IMPATIENT, members))[:2]:
        assert {entry.group for entry in seen.log.entries} == {(0, 1, 2)}
        assert "some rank did not take part within 0.6 s" in seen.errors[0]
    for seen in values(on_ranks(3, tmp_path, call_one, allreduce_hook, LATE, members))[:2]:
        assert (seen.wrong, {entry.group for entry in seen.log.entries}) == (set(), {(0, 1)})


def test_a_skipped_collective(tmp_path: Path) -> None:
    """The waiting rank fails in bounded time, and the logs side by side show where they part."""
    first, second = values(on_ranks(2, tmp_path, call_one, skips_on_rank_1, IMPATIENT))
    assert len(first.errors) == 1
    assert second.errors == []
    texts = [[entry.text for entry in seen.log.entries] for seen in (first, second)]
    assert lab.first_difference(texts) == (
        "       rank 0                              rank 1\n"
        "    0  allreduce sum float32[4] in (0, 1)  allreduce sum float32[4] in (0, 1)\n"
        ">   1  allreduce sum float32[5] in (0, 1)  (nothing)"
    )
    assert lab.first_difference([texts[0], texts[0]]) is None
