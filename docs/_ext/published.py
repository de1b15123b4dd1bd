"""Keeps published clause ids: they are part of the outer contract, and reports and links name them.

``docs/published_clauses.txt`` has a line for each: id, level and the version that brought it. The build stops when one
of them has disappeared or says something else. A test fails for a clause that is not in the file; to publish new ones:

    python docs/_ext/published.py
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from commhooks.conformance.clauses import Clause, all_clauses

PUBLISHED = Path(__file__).resolve().parent.parent / "published_clauses.txt"
HEADER = """\
# Every clause id that was ever published, with its level and the version of the documented API that brought it.
# An id stays, with the same meaning. Add new ones with: python docs/_ext/published.py
"""


def read_published(text: str) -> dict[str, tuple[str, str]]:
    """Level and version of each published id.

    Raises:
        ValueError: A line is not "ID LEVEL VERSION", or an id stands there twice.
    """
    published: dict[str, tuple[str, str]] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        words = line.split()
        if len(words) != 3:
            raise ValueError(f"line {number} must be 'ID LEVEL VERSION', found {line!r}")
        if words[0] in published:
            raise ValueError(f"line {number} has {words[0]}, which stands there already")
        published[words[0]] = (words[1], words[2])
    return published


def broken_promises(published: Mapping[str, tuple[str, str]], clauses: Mapping[str, Clause]) -> list[str]:
    """What is wrong with the clauses, in a sentence for each: ids that disappeared or changed."""
    found = []
    for identifier, (level, since) in published.items():
        clause = clauses.get(identifier)
        if clause is None:
            found.append(f"{identifier} was published and has disappeared from the reference")
        elif (clause.level, clause.since) != (level, since):
            found.append(
                f"{identifier} was published as ({level}, {since}) and is ({clause.level}, {clause.since}) in "
                f"{clause.source}; a clause that means something else needs another id"
            )
    return found


def unpublished(published: Mapping[str, tuple[str, str]], clauses: Mapping[str, Clause]) -> list[str]:
    """The ids that are not published yet."""
    return [identifier for identifier in clauses if identifier not in published]


def publish(path: Path, clauses: Mapping[str, Clause]) -> list[str]:
    """Adds the clauses that are missing from the file, and gives their ids.

    Raises:
        ValueError: The file is malformed, or a published clause disappeared or changed. Nothing is written then.
    """
    text = path.read_text(encoding="utf-8") if path.exists() else HEADER
    published = read_published(text)
    broken = broken_promises(published, clauses)
    if broken:
        raise ValueError("\n".join(broken))
    added = unpublished(published, clauses)
    lines = [f"{name} {clauses[name].level} {clauses[name].since}\n" for name in added]
    path.write_text(text + "".join(lines), encoding="utf-8")
    return added


if __name__ == "__main__":
    try:
        names = publish(PUBLISHED, all_clauses())
    except ValueError as error:
        raise SystemExit(f"{PUBLISHED.name}: {error}") from None
    print(f"{len(names)} added to {PUBLISHED.name}", *names, sep="\n")
