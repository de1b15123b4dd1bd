"""What became of a check, as cells of the account."""

from __future__ import annotations

import pytest

from commhooks.conformance import selection
from commhooks.conformance.cells import ClauseFailure, Failure, NotRun, State, Traffic, Unsupported
from commhooks.conformance.report import reproduction, terminal
from commhooks.conformance.run import Run
from commhooks.conformance.world import RankFailure, TooManyHangs, World

NOTES = pytest.StashKey[list[str | Traffic]]()


def enter(item: pytest.Item, call: pytest.CallInfo[None], run: Run) -> tuple[State, str]:
    """Enters the cells of a check that has ended.

    Returns:
        The state that the check ended in, and what is to be said about it.
    """
    parameters = selection.parameters_of(item)
    account = run.accounts[parameters["implementation"]]
    clauses = [clause for clause in selection.clauses_of(item) if clause in run.clauses]
    check = f"{item.path.stem}.{item.originalname}"  # type: ignore[attr-defined]
    result = account.result
    configuration = {
        **{name: str(value) for name, value in parameters.items() if name != "implementation"},
        "device": result.device,
        "backend": "lab" if "lab" in item.fixturenames else result.backend,  # type: ignore[attr-defined]
    }
    if call.excinfo is None:
        notes = item.stash.get(NOTES, [])
        noted = "; ".join(entry for entry in notes if isinstance(entry, str))
        traffic = next((entry for entry in notes if isinstance(entry, Traffic)), None)
        state = account.passed(clauses, check, configuration, call.duration, noted, traffic)
        return state, "" if state == "pass" else account.result.cells[-1].failure.message  # type: ignore[union-attr]
    error = call.excinfo.value
    if isinstance(error, Unsupported):
        return account.left_out(clauses, check, configuration, "unsupported", str(error)), str(error)
    if isinstance(error, NotRun | TooManyHangs):
        return account.left_out(clauses, check, configuration, "not run", str(error)), str(error)

    failure = _failure(call.excinfo)
    implementation = run.implementations[parameters["implementation"]]
    world = item.funcargs.get("world", item.funcargs.get("lab"))  # type: ignore[attr-defined]
    bound = [run.clauses[name] for name in clauses]
    if isinstance(world, World):
        failure = reproduction.write_script(
            failure, error, world.programs, implementation, bound, configuration, run.options.report
        )
    state = account.failed(clauses, check, configuration, failure, call.duration)
    shown = account.result.cells[-1].failure or failure
    return state, terminal.failure_text(shown, bound, configuration, run.options.report)


def _failure(caught: pytest.ExceptionInfo[BaseException]) -> Failure:
    error = caught.value
    if isinstance(error, ClauseFailure):
        return Failure(error.kind, error.message, error.expected, error.found, error.bound, error.excess)
    if isinstance(error, RankFailure):
        return Failure(
            error.kind, error.summary(), expected="every rank finishes", found=error.kind, details=error.details()
        )
    return Failure(
        kind=f"suite error: {type(error).__name__}",
        message=f"the check itself failed: {error}",
        details=str(caught.getrepr(style="short")),
    )
