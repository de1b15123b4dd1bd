"""Takes out of a text what differs between two runs that found the same, or says nothing about what was found."""

from __future__ import annotations

import re
from pathlib import Path

PACKAGES = Path(__file__).resolve().parents[2]
LONGEST = 2000
# Which ranks hang, and how far each has come, is a matter of luck.
HANGS = re.compile(r"rank \d+ (did not finish [^\n]*? within [\d.]+ s)\b")
NOISE = (
    # Where files lie, the numbers of threads, and the time in a line of a log.
    (re.compile(re.escape(f"{PACKAGES}/")), "commhooks/"),
    (re.compile(r"[^\s\"']*/(?:site|dist)-packages/"), ""),
    (re.compile(r"[^\s\"']*/lib/python3\.\d+/"), ""),
    (re.compile(r"\b[Tt]hread 0x[0-9a-f]+"), "thread"),
    (re.compile(r"\b[IWEF]\d{4} \d\d:\d\d:\d\d\.\d+ \d+ "), ""),
    (re.compile(r"(\[?127\.0\.0\.1\]?):\d+"), r"\1"),
    # How the suite came to run the program.
    (re.compile(r'\n +(?:File ")?commhooks/conformance/world/[^\n]*'), ""),
)


def without_noise(text: str) -> str:
    """The text without it."""
    for pattern, replacement in NOISE:
        text = pattern.sub(replacement, text)
    return text


def without_luck(text: str) -> str:
    """A message about ranks that hang without which they were and what they were doing then."""
    found = HANGS.search(text)
    return text if found is None else f"a rank {found[1]}"


def shortened(text: str, longest: int = LONGEST) -> str:
    """The beginning and the end of a long text, which say most."""
    return text if len(text) <= longest else f"{text[: longest // 2]}\n…\n{text[-longest // 2 :]}"
