"""Mutants: the reference with one fault put in on purpose, and the clauses whose checks have to find it.

To add one, write a ``Mutant`` into the table of the file it belongs to. ``tests/test_mutants.py`` builds them all as
modules, runs the suite on them and looks at the clauses they name.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

REFERENCE = Path(__file__).resolve().parents[2] / "reference"


@dataclass(frozen=True)
class Mutant:
    """The reference with one fault.

    Attributes:
        name: An identifier, unique among the mutants.
        clauses: The clauses whose checks have to fail.
        replacements: By file of the reference the texts to replace, each of which has to be there exactly once, and
            what to put in their place.
        kinds: Kinds of failure, such as "value", one of which each clause has to fail with; empty allows any.
        hook: Name of the one hook to check, where the mutant stands for a hook that somebody wrote.
    """

    name: str
    clauses: tuple[str, ...]
    replacements: dict[str, list[tuple[str, str]]]
    kinds: tuple[str, ...] = ()
    hook: str = ""

    @property
    def module(self) -> str:
        """Name of the module that ``build`` writes."""
        return f"mutant_{self.name}"

    @property
    def implementation(self) -> str:
        """The text for ``--impl``."""
        return f"{self.module}:{self.hook}" if self.hook else self.module

    def build(self, folder: Path) -> None:
        """Writes the mutated reference as a package into a folder.

        Raises:
            ValueError: A text to replace is not there exactly once: the reference has changed.
        """
        package = folder / self.module
        shutil.copytree(REFERENCE, package, ignore=shutil.ignore_patterns("__pycache__"))
        for file, changes in self.replacements.items():
            path = package / file
            text = path.read_text(encoding="utf-8")
            for old, new in changes:
                if text.count(old) != 1:
                    raise ValueError(f"{self.name}: {file} has {text.count(old)} times, not once:\n{old}")
                text = text.replace(old, new)
            path.write_text(text, encoding="utf-8")


def halves(*clauses: str) -> tuple[str, ...]:
    """The clauses of both half types: "MEAN" stands for FP16-MEAN and BF16-MEAN."""
    return tuple(f"{half}-{clause}" for clause in clauses for half in ("FP16", "BF16"))
