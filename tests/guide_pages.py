"""The commands and files of a guide, read from its page, and whether what it shows is what happens."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

GUIDES = Path(__file__).resolve().parents[1] / "docs" / "guides"

# A number, with the unit's fraction and thousands: timings and counts differ from run to run.
_NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?")


class GuideError(AssertionError):
    """A guide shows something that is not so; the message is the page, the command, and both outputs."""


@dataclass
class Command:
    """One command of a page.

    Attributes:
        text: What is typed after the prompt, continuation lines joined.
        shown: The lines that the page shows as its output.
        status: The exit status that the page shows by ``echo $?`` after it; 0 where it shows none.
    """

    text: str
    shown: list[str] = field(default_factory=list)
    status: int = 0


def commands(page: Path) -> list[Command]:
    """The commands in the ``console`` blocks of a page, in order."""
    return [command for block in _blocks(page, "code-block:: console") for command in _commands(block)]


def files(page: Path) -> list[Path]:
    """The files that a page shows with ``literalinclude``, and those that it shows the difference to."""
    text = page.read_text(encoding="utf-8")
    return [
        page.parent / name for name in re.findall(r"^ *(?:\.\. literalinclude::|:diff:) (\S+)$", text, re.MULTILINE)
    ]


def check_output(page: Path, command: Command, output: str, status: int) -> None:
    """Compares what a command printed with what the page shows of it.

    Each shown line has to be among the printed ones, in this order. Numbers may differ; "…" stands for anything.

    Raises:
        GuideError: The exit status is another, or a line is not there.
    """
    printed = iter(output.splitlines())
    for line in command.shown:
        pattern = _pattern(line)
        if not any(pattern.fullmatch(_normal(other)) for other in printed):
            raise GuideError(f"{page.name}: $ {command.text}\nshows the line\n{line}\nbut printed\n{output}")
    if status != command.status:
        raise GuideError(f"{page.name}: $ {command.text}\nended with {status}, not {command.status}\n{output}")


def _blocks(page: Path, directive: str) -> Iterator[list[str]]:
    """The contents of the blocks of one directive, without their indentation and options."""
    lines = iter(page.read_text(encoding="utf-8").splitlines())
    for line in lines:
        if line.strip() != f".. {directive}":
            continue
        outer = len(line) - len(line.lstrip())
        block: list[str] = []
        for inner in lines:
            if inner.strip() and len(inner) - len(inner.lstrip()) <= outer:
                break
            block.append(inner[outer + 3 :])
        yield [text for text in block if text.strip() and not re.match(r":[\w-]+:", text)]


def _commands(block: Sequence[str]) -> list[Command]:
    found: list[Command] = []
    for line in block:
        if line.startswith("$ "):
            found.append(Command(line[2:]))
        elif line.startswith("> ") and found and not found[-1].shown:
            found[-1].text = found[-1].text.removesuffix("\\") + line[2:]
        elif found:
            found[-1].shown.append(line)
        else:
            raise GuideError(f"a console block begins with {line!r}, not with a prompt")
    kept: list[Command] = []
    for command in found:
        if command.text == "echo $?":
            kept[-1].status = int(command.shown[0])
        else:
            kept.append(command)
    return kept


def _normal(line: str) -> str:
    return " ".join(_NUMBER.sub("0", line).split())


def _pattern(line: str) -> re.Pattern[str]:
    return re.compile(".*".join(re.escape(part) for part in _normal(line).split("…")))
