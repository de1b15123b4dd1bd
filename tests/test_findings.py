"""What the laboratory found, in words: logs side by side, and errors that went through callbacks."""

from __future__ import annotations

from commhooks.conformance.findings import first_difference
from commhooks.conformance.laboratory_expectations import readable


def test_ranks_that_did_the_same_share_a_column() -> None:
    """The collectives before the last few are counted, and the lines of code are named."""
    logs = [[*(f"allreduce {number}" for number in range(12)), "reduce", "more"] for _ in range(3)]
    logs.insert(1, [*logs[0][:12], "broadcast", "less"])
    places = [[f"hooks.py:{number}" for number in range(14)] for _ in logs]
    assert first_difference(logs, [4, 5, 6, 7], places) == "\n".join(
        [
            "       ranks 4 6 7   rank 5",
            "      … 4 more, alike on all ranks",
            *(f"  {number:3}  {f'allreduce {number}':12}  {f'allreduce {number}'}" for number in range(4, 12)),
            ">  12  reduce        broadcast",
            "      ranks 4 6 7 started number 12 at hooks.py:12",
            "      rank 5 started number 12 at hooks.py:12",
        ]
    )


def test_a_rank_that_started_nothing() -> None:
    """What one rank lacks has no line of code."""
    assert first_difference([["a", "b"], ["a"]], None, [["x:1", "x:2"], ["x:1"]]) == "\n".join(
        [
            "       rank 0  rank 1",
            "    0  a       a",
            ">   1  b       (nothing)",
            "      rank 0 started number 1 at x:2",
        ]
    )
    assert first_difference([["a"], ["a"]]) is None


def test_errors_that_went_through_callbacks() -> None:
    """torch's words for each callback and its stacks are left out; the hook's own line is named."""
    through = "Got the following error when running the callback: "
    stacks = (
        "\n\nAt:\n  /a/commhooks/conformance/lab/work.py(133): finish\n  /b/my_hooks.py(12): decode\n"
        "  /usr/lib/python3/threading.py(982): run\n"
    )
    text = f"{through}RuntimeError: {through}KeyError: 'scale'{stacks}{stacks}"
    assert readable(text) == "in a callback, KeyError: 'scale' (my_hooks.py:12 in decode)"
    assert readable("plain") == "plain"
    assert readable("") == "(no text)"
