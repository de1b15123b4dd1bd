"""Small texts that all that is drawn from a report needs."""

from __future__ import annotations


def count(number: int, noun: str) -> str:
    """A number with its noun: "1 cell", "2 cells"."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def printable(text: str) -> str:
    """The first line of a text, without what would control a terminal."""
    line = (text.splitlines() or [""])[0]
    return "".join(letter if letter.isprintable() else "�" for letter in line)
