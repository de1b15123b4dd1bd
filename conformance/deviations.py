"""What is known to be wrong with an implementation: read from a TOML file, compared with what a run finds.

    implementation = "torch"

    [[deviation]]
    clause = "FP16-WRAPPER-DTYPE"
    where = { dtype = ["float32", "float64"] }
    how = "dtype"
    reason = "The wrapper returns the half-precision tensor; data-parallel training casts it afterwards."
    advice = "Outside data-parallel training, cast the result to the bucket's dtype yourself."
    link = "https://…"
    versions = ">=1.10"

A recorded deviation is run like everything else. Every cell that matches ``clause`` and ``where`` has to fail in the
way ``how`` says. One that passes, fails in another way or is nowhere to be found means that the record is stale.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

FOLDER = Path(__file__).resolve().parent.parent / "adapters" / "deviations"
KEYS = ("clause", "where", "how", "reason", "advice", "link", "versions")
PLACES = ("world_size", "device", "backend", "dtype", "hook", "half", "case")


class DeviationsError(Exception):
    """A file of deviations cannot be used; the message is meant for the user."""


@dataclass(frozen=True, eq=False)
class Deviation:
    """One recorded deviation.

    Attributes:
        clause: Id of the clause.
        where: Configurations it applies to: for some of ``PLACES`` the values, as text. Empty: everywhere.
        how: Kinds of failure, any of which is the recorded one.
        reason: A sentence.
        advice: What a user of the implementation should do about it, in a sentence; may be empty.
        link: Where to read more; may be empty.
        versions: Versions of the implementation it applies to, such as ">=1.10"; may be empty.
    """

    clause: str
    where: dict[str, tuple[str, ...]]
    how: tuple[str, ...]
    reason: str
    advice: str = ""
    link: str = ""
    versions: str = ""

    def matches(self, clause: str, configuration: Mapping[str, str]) -> bool:
        """Whether a cell is one that this record speaks of."""
        return clause == self.clause and all(configuration.get(key) in values for key, values in self.where.items())

    def applies_to(self, version: str) -> bool:
        """Whether the record speaks of that version of the implementation."""
        if not self.versions:
            return True
        try:
            return SpecifierSet(self.versions).contains(Version(version), prereleases=True)
        except InvalidVersion:
            return True


def deviations_of(implementation: str, chosen: Path | None) -> Path | None:
    """The file to use: the chosen one, or the one that comes with the suite for an implementation of that name."""
    if chosen is not None:
        return chosen
    known = FOLDER / f"{implementation}.toml"
    return known if implementation.isidentifier() and known.is_file() else None


def read_deviations(path: Path, clauses: Mapping[str, object]) -> list[Deviation]:
    """Reads a file of deviations.

    Raises:
        DeviationsError: The file cannot be read, is not TOML, or has an entry that is not in the form above or names
            a clause that does not exist.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DeviationsError(f"--deviations={path} cannot be read: {error}") from None
    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise DeviationsError(f"{path} is not valid TOML: {error}") from None
    unknown = set(content) - {"implementation", "deviation"}
    if unknown:
        raise DeviationsError(f"{path} has {sorted(unknown)}; expected 'implementation' and [[deviation]] entries")
    entries = content.get("deviation", [])
    if not isinstance(entries, list):
        raise DeviationsError(f"{path}: deviations are written as [[deviation]], one for each")
    return [_deviation(entry, f"{path}, deviation {number}", clauses) for number, entry in enumerate(entries, 1)]


def _deviation(entry: object, place: str, clauses: Mapping[str, object]) -> Deviation:
    if not isinstance(entry, dict):
        raise DeviationsError(f"{place} must be a table, found {entry!r}")
    unknown = set(entry) - set(KEYS)
    if unknown:
        raise DeviationsError(f"{place} has unknown keys {sorted(unknown)}; known are {', '.join(KEYS)}")
    for key in ("clause", "how", "reason"):
        if not entry.get(key):
            raise DeviationsError(f"{place} has no {key!r}")
    clause = entry["clause"]
    if clause not in clauses:
        near = [known for known in clauses if known.split("-")[0] == str(clause).split("-")[0]]
        hint = f"; clauses that begin alike: {', '.join(near)}" if near else ""
        raise DeviationsError(f"{place} names the clause {clause!r}, which does not exist{hint}")
    where = entry.get("where", {})
    if not isinstance(where, dict) or set(where) - set(PLACES):
        raise DeviationsError(f"{place}: 'where' must be a table with some of {', '.join(PLACES)}, found {where!r}")
    try:
        SpecifierSet(entry.get("versions", ""))
    except InvalidSpecifier:
        raise DeviationsError(f"{place}: versions must read like '>=1.10,<3', found {entry['versions']!r}") from None
    return Deviation(
        clause=str(clause),
        where={key: _texts(value) for key, value in where.items()},
        how=_texts(entry["how"]),
        reason=str(entry["reason"]),
        advice=str(entry.get("advice", "")),
        link=str(entry.get("link", "")),
        versions=str(entry.get("versions", "")),
    )


def _texts(value: object) -> tuple[str, ...]:
    return tuple(map(str, value)) if isinstance(value, list) else (str(value),)
