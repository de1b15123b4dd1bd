"""The form of clauses, and that clauses and checks belong together."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from commhooks.conformance.checks import all_checks
from commhooks.conformance.clauses import ClauseError, all_clauses, fingerprint, parse_clauses, read_clauses, version

CONFORMANCE = Path(__file__).resolve().parents[1] / "conformance"

DOCSTRING = """Does something.

    Clauses:
        SOME-THING (MUST, 1.11): It is so
            and so.

        OTHER-THING-2 (MAY, 1.12): It may be so.

    Example:
        NOT-A-CLAUSE (MUST, 1.11): This is outside the block.
"""


def test_clauses_are_read() -> None:
    """A clause may go on in indented lines, and the block ends with its indentation."""
    first, second = parse_clauses(DOCSTRING, "somewhere")
    assert (first.id, first.level, first.since, first.text) == ("SOME-THING", "MUST", "1.11", "It is so and so.")
    assert (second.id, second.level, second.since) == ("OTHER-THING-2", "MAY", "1.12")


@pytest.mark.parametrize(
    "line",
    ["SOME-THING: no level", "SOME-THING (MIGHT, 1.11): odd level", "lower-case (MUST, 1.11): odd id", "some prose"],
)
def test_malformed_clause_is_an_error(line: str) -> None:
    """A line that looks like a clause but is none is reported with its text and its place."""
    with pytest.raises(ClauseError, match="somewhere: expected"):
        parse_clauses(f"Clauses:\n    {line}\n", "somewhere")


def test_empty_block_is_an_error() -> None:
    """A block without clauses is a mistake of indentation, not a place without clauses."""
    with pytest.raises(ClauseError, match="nothing indented"):
        parse_clauses("Clauses:\nSOME-THING (MUST, 1.11): Not indented.", "somewhere")


def test_an_id_is_used_once(tmp_path: Path) -> None:
    """Two clauses of one id are an error that names both places."""
    for name in ("one", "two"):
        text = f'"""Title.\n\nClauses:\n    SOME-THING (MUST, 1.11): In {name}.\n"""\n'
        (tmp_path / f"{name}.py").write_text(text, encoding="utf-8")
    with pytest.raises(ClauseError, match="SOME-THING is used twice: in one and two"):
        read_clauses(tmp_path)


def test_fingerprint_depends_on_the_text() -> None:
    """Another wording is another set of clauses."""
    one = {clause.id: clause for clause in parse_clauses(DOCSTRING, "x")}
    other = {clause.id: clause for clause in parse_clauses(DOCSTRING.replace("and so", "and not so"), "x")}
    assert fingerprint(one) != fingerprint(other)


def test_versions_compare_as_versions() -> None:
    """1.9 comes before 1.11."""
    assert version("1.9") < version("1.11")


def test_every_clause_has_a_check() -> None:
    """No clause is without a check, and no check names a clause that does not exist."""
    assert {clause for check in all_checks().values() for clause in check.clauses} == set(all_clauses())


def test_every_check_says_what_it_checks() -> None:
    """Every test function of the suite is a check: it names its clauses and has a docstring of one sentence."""
    functions = [
        f"{path.stem}.{name}"
        for path in sorted(CONFORMANCE.glob("test_*.py"))
        for name in re.findall(r"^\s*(?:async )?def (test_\w+)", path.read_text(encoding="utf-8"), re.MULTILINE)
    ]
    assert list(all_checks()) == functions
