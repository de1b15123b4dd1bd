"""Hooks with one mistake each fail the clause that they break, with a message that says what to do."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from suite import Finished, run_suite

FILES = [Path(__file__).with_name(name) for name in ("wrong_values.py", "wrong_timing.py")]

# For each hook a clause that it does not keep, the kind of failure if it is always the same, and words that help.
WRONG = {
    "averages_twice": ("HOOK-MEAN", "value", "divided twice"),
    "four_bits_and_calls_it_eight": ("HOOK-LOSSY", "value", "elements are wrong"),
    "forgets_to_write_back": ("HOOK-MEAN", "value", "what was reduced has to be given back"),
    "divides_by_the_world": ("HOOK-MEAN", "value", "elements are wrong"),
    "gives_the_step_before": ("HOOK-IN-DDP", "value", "in step 2"),
    "reduces_to_the_first_rank": ("HOOK-AGREE", "disagreement", "rank 1"),
    "skips_its_zeros": ("HOOK-AGREE", "hangs", "skips_its_zeros"),
    "one_scratch_for_a_length": ("HOOK-IN-FLIGHT", "value", "compared with alone"),
    "averages_the_second_bucket": ("HOOK-SUM", "value", "This is bucket 1 of its pass"),
    "never_resets_its_sum": ("HOOK-SUM", "value", "This is step 1, counted from 0"),
    "divides_the_first_bucket_only": ("HOOK-LOSSY", "value", "This is bucket 1 of its pass"),
    "divides_by_the_largest": ("HOOK-LOSSY", "value", "found nan, expected 0.0"),
    "adds_in_eight_bits": ("HOOK-LOSSY", "value", "elements are wrong"),
    "keeps_one_element_for_itself": ("HOOK-LENGTHS", "value", "It looks like the rank's own gradients"),
    "rounds_up_for_two_ranks": ("HOOK-MEAN", "value", "elements are wrong"),
    "skips_every_fiftieth_step": ("HOOK-MEAN", "value", "This is step 49, counted from 0"),
    "forgets_the_rest": ("HOOK-AGREE", "disagreement", "In a long bucket every element counts"),
    "seeds_and_does_not_draw": ("HOOK-RANDOM-STATE", "random state", "Draw from a generator of the hook's own"),
    "gives_the_padding_too": ("HOOK-LENGTH", "length", "shape is [128], expected [12]"),
    "gives_the_list": ("HOOK-FUTURE", "no tensor", "value()[0]"),
    "gives_nothing": ("HOOK-FUTURE", "no future", "a return statement may be missing"),
    "one_scratch_for_all": ("HOOK-EARLIER-CALL", "changed", "in the result of an earlier call"),
    "seeds_the_global_generator": ("HOOK-RANDOM-STATE", "random state", "Draw from a generator of the hook's own"),
    "residuals_by_tensor": ("HOOK-MEMORY", "grows", "results and futures of earlier steps go"),
    "residuals_by_index": ("HOOK-REBUILT", "raises RuntimeError", "made anew when the bucket has another length"),
    "keeps_every_bucket": ("HOOK-MEMORY", "grows", "a list or a dictionary that only grows"),
    "keeps_every_result": ("HOOK-MEMORY", "grows", "results and futures of earlier steps go"),
    "keeps_copies_in_numpy": ("HOOK-MEMORY", "grows", "results and futures of earlier steps go"),
    "makes_a_group_when_it_first_compresses": ("HOOK-NO-NEW-GROUP", "new group", "Make groups once"),
    "forgets_its_residuals": ("HOOK-RESUMES", "value", "residuals, counters, generators"),
    "has_a_lock_in_its_state": ("HOOK-RESUMES", "raises TypeError", "The state was pickled"),
    "skips_what_is_not_finite": ("HOOK-NONFINITE", "order", "or the gradients' values"),
    "raises_for_what_is_not_finite": ("HOOK-NONFINITE", "one-sided", "something that they all have"),
    "half_precision_when_it_is_slow": ("HOOK-LATE", "", "the time"),
    "waits_for_what_comes_first": ("HOOK-ORDER", "order", "what has completed"),
    "large_ones_only": ("HOOK-ORDER", "order", "or the gradients' values"),
    "each_rank_sends_its_own": ("HOOK-ORDER", "order", "broadcast 1"),
    "only_the_root_calls": ("HOOK-ORDER", "order", "started number 1 at wrong_timing.py:"),
    "a_norm_now_and_then": ("HOOK-ORDER", "order", "in a_norm_now_and_then"),
    "everybody_sends_first": ("HOOK-LATE", "raises DistBackendError", "batch_isend_irecv"),
    "writes_when_it_is_over": ("HOOK-COMPLETE", "changed", "after the future was complete"),
    "sleeps_and_hopes": ("HOOK-LATE", "unfinished", "Wait for the work or its future"),
    "waits_for_another_bucket_inside": ("HOOK-NO-BLOCKING", "blocks", "Wait in the hook itself"),
    "ignores_the_error": ("HOOK-FAILS", "swallowed", "let the error go on"),
    "holds_the_lock": ("HOOK-LETS-RUN", "stalled", "interpreter lock"),
}
NEED_THREE_RANKS = {"adds_in_eight_bits", "rounds_up_for_two_ranks"}


def implementation(name: str) -> str:
    """The text for ``--impl`` of a hook."""
    (file,) = (file for file in FILES if f"def {name}(" in file.read_text())
    return f"{file}:{name}"


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Finished]:
    """Runs over all of them, each with the checks of its own clause; two sizes of worlds, side by side."""
    # Made here: pytest's factory is not for several threads.
    folders = {size: tmp_path_factory.mktemp(f"wrong_hooks_{size}") for size in (2, 3)}

    def run(size: int) -> Finished:
        names = [name for name in WRONG if (name in NEED_THREE_RANKS) == (size == 3)]
        wanted = {implementation(name): [WRONG[name][0]] for name in names}
        return run_suite(
            *(f"--impl={text}" for text in wanted),
            f"--world-size={size}",
            "--rank-timeout=8",
            "-p",
            "only_clauses",
            folder=folders[size],
            environment={"PYTHONPATH": str(FILES[0].parent), "COMMHOOKS_CLAUSES": json.dumps(wanted)},
        )

    with ThreadPoolExecutor() as pool:
        two, three = pool.map(run, folders)
    return {name: three if name in NEED_THREE_RANKS else two for name in WRONG}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_hook_fails(name: str, finished: dict[str, Finished]) -> None:
    """The clause fails for the reason that it should, and the message says what to do."""
    clause, kind, words = WRONG[name]
    cells = finished[name].implementation(implementation(name)).cells
    failures = [cell.failure for cell in cells if cell.clause == clause and cell.failure is not None]
    alike = [failure for failure in failures if failure.kind == kind or not kind]
    assert alike, failures
    assert any(words in failure.message for failure in alike), failures
