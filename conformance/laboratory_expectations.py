"""What a check expects of what the laboratory saw, and what it says to whoever wrote the hook."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from commhooks.conformance.cells import ClauseFailure
from commhooks.conformance.expectations import advising, expect_same
from commhooks.conformance.laboratory import Seen, difference

DIFFERENT = "the ranks started different collectives:"
ADVICE = (
    "On a cluster they would wait for each other for ever, or mix up each other's data. Let nothing that differs "
    "between ranks decide which collective comes next: not the rank, a hash, the time, what has completed, or the "
    "gradients' values."
)
# torch writes it for each callback that an error goes through.
IN_A_CALLBACK = re.compile(r"^((RuntimeError: )?Got the following error when running the callback: )+")


def expect_no_error(seen: Seen) -> None:
    """Expects that no rank raised, and that every call gave a tensor."""
    for rank, result in enumerate(seen.results):
        if result["error"]:
            raise ClauseFailure(
                f"raises {result['error']}",
                f"rank {rank} raised {result['error']}: {readable(result['text'])}{_logs_of(seen)}",
                expected="no error",
                found=result["error"],
                place=seen.place(rank, "error"),
                holds="found == ''",
            )
        if result["failed"]:
            raise ClauseFailure(
                "swallowed",
                f"rank {rank}: {len(result['failed'])} collectives failed, and the hook gave a result without an error",
                expected="no collective fails",
                found=f"{len(result['failed'])} failed",
                place=seen.place(rank, "failed"),
                holds="not found",
            )
    for calls in seen.calls:
        for call in calls:
            call.require_tensor()


def expect_finite(seen: Seen) -> None:
    """Expects no NaN, which the gradients do not have, but tensors of unfinished collectives do."""
    expect_no_error(seen)
    for calls in seen.calls:
        for call in calls:
            bad = np.isnan(call.values)
            if bad.any():
                element = int(np.argmax(bad))
                raise ClauseFailure(
                    "unfinished",
                    f"rank {call.rank}: {int(bad.sum())} of {bad.size} elements are NaN, which no gradient is: a "
                    "tensor was read before the collective that writes it was complete. Wait for the work or its "
                    "future, or go on in a callback.",
                    expected="numbers",
                    found="NaN",
                    place=f'{call.place}["values"].ravel()[{element}]',
                    holds="found == found",
                )


def expect_as_at_leisure(seen: Seen, at_leisure: Seen, when: str) -> None:
    """Expects finite results that have the same bits as those of an undisturbed session."""
    expect_finite(at_leisure)
    expect_finite(seen)
    with advising("Nothing may depend on when a collective completes: not on the time, nor on which of them is first."):
        expect_same(seen, at_leisure, f"a run without {when}")


def expect_nothing_found(seen: Seen, kind: str, advice: str, *kinds: str) -> None:
    """Expects no finding of some kinds.

    Args:
        seen: What happened.
        kind: What the failure is called.
        advice: What to do, for whoever wrote the hook.
        kinds: Kinds of findings of the laboratory.
    """
    for rank, text in seen.findings(*kinds):
        raise ClauseFailure(
            kind,
            f"rank {rank}: {text}. {advice}",
            expected="nothing of the kind",
            found=text,
            place=f'[one for one in {seen.place(rank, "findings")} if one["kind"] in {kinds!r}]',
            holds="not found",
        )


def expect_same_collectives(seen: Seen) -> None:
    """Expects that all ranks of a group started the same collectives in the same order."""
    found = difference(seen)
    if found is not None:
        rows = f"[[entry['text'] for entry in result['entries']] for result in results[{seen.program}]]"
        raise ClauseFailure(
            "order",
            f"{DIFFERENT}\n{found}\n{ADVICE}",
            expected="the same collectives in the same order on every rank",
            found="different ones",
            place=rows,
            holds="all(row == found[0] for row in found)",
        )


def _logs_of(seen: Seen) -> str:
    """The ranks' collectives side by side where they differ, which explains most errors; nothing otherwise."""
    found = difference(seen)
    return "" if found is None else f"\n{DIFFERENT}\n{found}\n{ADVICE}"


def readable(text: str) -> str:
    """The text of an error without what torch adds to it for each callback that it goes through."""
    message = IN_A_CALLBACK.sub("in a callback, ", text.partition("\n\nAt:\n")[0]) or "(no text)"
    frames: list[tuple[str, str, str]] = re.findall(r"^  (\S+)\((\d+)\): (\S+)$", text, re.MULTILINE)
    of_hook = [frame for frame in frames if not re.search(r"/(conformance/lab|threading\.py|torch/futures)", frame[0])]
    if not of_hook:
        return message
    path, line, name = of_hook[0]
    return f"{message} ({Path(path).name}:{line} in {name})"


def expect_collectives_among(seen: Seen, members: Sequence[int]) -> None:
    """Expects that a hook with a process group of some ranks started none in a group that has other ranks."""
    for rank in members:
        for entry in seen.log(rank):
            if not set(entry["group"]) <= set(members):
                raise ClauseFailure(
                    "group",
                    f"rank {rank}: the hook was given the group of the ranks {members} and started {entry['text']}. "
                    "Give each collective group=…, and dist.get_world_size the group too.",
                    expected=f"collectives among {members}",
                    found=str(entry["text"]),
                    place=f"[set(entry['group']) for entry in {seen.place(rank, 'entries')}]",
                    holds=f"all(group <= set({members}) for group in found)",
                )
