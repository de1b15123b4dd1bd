"""How cells end where deviations are recorded."""

from __future__ import annotations

from pathlib import Path

import pytest

from commhooks.conformance.accounting import Account
from commhooks.conformance.cells import Failure, ImplementationResult
from commhooks.conformance.clauses import all_clauses
from commhooks.conformance.deviations import FOLDER, Deviation, deviations_of, read_deviations
from commhooks.conformance.report.scores import clause_states

WRONG_DTYPE = Failure("dtype", "the dtype is float16")
RECORD = Deviation("FP16-WRAPPER-DTYPE", {"dtype": ("float32", "float64")}, ("dtype",), "it stays float16")


@pytest.fixture
def account() -> Account:
    """An account with one recorded deviation."""
    result = ImplementationResult("some", "some.module", "1.0", "torch", "3.11", "cpu", "gloo")
    return Account(result, [RECORD])


def test_recorded_failure_deviates(account: Account) -> None:
    """A failure as recorded is a deviation with the reason of the record."""
    state = account.failed(["FP16-WRAPPER-DTYPE"], "check", {"dtype": "float32"}, WRONG_DTYPE, 0.1)
    assert state == "deviation"
    assert account.result.cells[0].reason == "it stays float16"
    account.close(complete=True, clauses=all_clauses())
    assert account.result.stale == []


def test_failure_elsewhere_fails(account: Account) -> None:
    """Where the record does not apply, the same failure counts."""
    assert account.failed(["FP16-WRAPPER-DTYPE"], "check", {"dtype": "float16"}, WRONG_DTYPE, 0.1) == "fail"
    assert account.failed(["FP16-DTYPE"], "check", {"dtype": "float32"}, WRONG_DTYPE, 0.1) == "fail"


def test_failure_of_another_kind_fails(account: Account) -> None:
    """A record does not excuse a failure of another kind, and the message says which kind is recorded."""
    other = Failure("raises ValueError", "no")
    assert account.failed(["FP16-WRAPPER-DTYPE"], "check", {"dtype": "float32"}, other, 0.1) == "fail"
    failure = account.result.cells[0].failure
    assert failure is not None
    assert "'dtype'" in failure.message


def test_pass_where_a_deviation_is_recorded_fails(account: Account) -> None:
    """A recorded deviation that passes is a stale record."""
    assert account.passed(["FP16-WRAPPER-DTYPE"], "check", {"dtype": "float32"}, 0.1) == "fail"
    failure = account.result.cells[0].failure
    assert failure is not None
    assert failure.kind == "stale record"


def test_record_that_matches_nothing_is_stale(account: Account) -> None:
    """Only a complete run can say that a record matches nothing."""
    account.passed(["FP16-DTYPE"], "check", {"dtype": "float32"}, 0.1)
    account.close(complete=False, clauses=all_clauses())
    assert account.result.stale == []
    account.close(complete=True, clauses=all_clauses())
    assert len(account.result.stale) == 1
    assert "FP16-WRAPPER-DTYPE" in account.result.stale[0]


def test_record_of_what_is_not_checked_is_not_stale() -> None:
    """A run that leaves the clause out, or that is on another device, says nothing about its record."""
    result = ImplementationResult("some", "some.module", "1.0", "torch", "3.11", "cpu", "gloo")
    on_cuda = Deviation("FP16-DTYPE", {"device": ("cuda",)}, ("dtype",), "it stays float16")
    account = Account(result, [RECORD, on_cuda])
    account.close(complete=True, clauses=["FP16-DTYPE"])
    assert result.stale == []


def test_record_of_cells_that_did_not_run_is_not_stale(account: Account) -> None:
    """A record whose cells could not run says nothing about itself."""
    account.left_out(["FP16-WRAPPER-DTYPE"], "check", {"dtype": "float32"}, "not run", "no device")
    account.close(complete=True, clauses=all_clauses())
    assert account.result.stale == []


def test_every_clause_of_a_check_gets_a_cell(account: Account) -> None:
    """A check of two clauses enters two cells; one that fails there is a failure although the other deviates."""
    clauses = ["FP16-WRAPPER-DTYPE", "FP16-DTYPE"]
    assert account.failed(clauses, "check", {"dtype": "float32"}, WRONG_DTYPE, 0.1) == "fail"
    assert [cell.state for cell in account.result.cells] == ["deviation", "fail"]


def test_states_of_clauses(account: Account) -> None:
    """A clause is in the worst state of its cells; a pass counts more than a cell that was left out."""
    account.passed(["A-B"], "check", {"world_size": "1"}, 0.1)
    account.left_out(["A-B"], "check", {"world_size": "2"}, "not run", "no device")
    account.left_out(["C-D"], "check", {"world_size": "2"}, "unsupported", "does not offer it")
    assert clause_states(account.result.cells) == {"A-B": "pass", "C-D": "unsupported"}


def test_versions() -> None:
    """A record applies to the versions it names; local labels and pre-releases count as their version."""
    record = Deviation("A-B", {}, ("value",), "x", versions=">=1.9,<3")
    assert record.applies_to("2.13.0+cpu")
    assert record.applies_to("2.14.0.dev20260101")
    assert not record.applies_to("1.8.1")
    assert record.applies_to("unknown")


def test_shipped_records_can_be_read() -> None:
    """Every file that comes with the suite is valid, and each entry says why in a sentence."""
    files = sorted(FOLDER.glob("*.toml"))
    assert files
    for path in files:
        for deviation in read_deviations(path, all_clauses()):
            assert deviation.reason.endswith("."), (path.name, deviation.clause)


def test_file_by_name() -> None:
    """An implementation finds its file by name; a chosen file goes before it, and a path is no name."""
    assert deviations_of("torch", None) == FOLDER / "torch.toml"
    assert deviations_of("torch", Path("mine.toml")) == Path("mine.toml")
    assert deviations_of("../torch", None) is None
    assert deviations_of("vendor", None) is None
