"""Makes the inventories of intersphinx from text files, so that a build needs no network.

A line of ``docs/inventories/NAME.txt`` has a role, an object's name and its place in the other documentation.
"""

from __future__ import annotations

import os
import zlib
from pathlib import Path


def write_inventory(text: Path, inventory: Path) -> None:
    """Writes an inventory in the form (version 2) that intersphinx reads.

    Raises:
        ValueError: A line is not "role name place".
    """
    entries = []
    for number, line in enumerate(text.read_text(encoding="utf-8").splitlines(), 1):
        if not line or line.startswith("#"):
            continue
        words = line.split(" ")
        if len(words) != 3 or ":" not in words[0]:
            raise ValueError(f"{text.name}, line {number}: expected 'domain:role name place', found {line!r}")
        role, name, place = words
        entries.append(f"{name} {role} 1 {place} -\n")
    header = (
        f"# Sphinx inventory version 2\n# Project: {text.stem}\n# Version: \n# The remainder is compressed with zlib.\n"
    )
    inventory.parent.mkdir(parents=True, exist_ok=True)
    # Another build may read it at the same time.
    own = inventory.with_suffix(f".{os.getpid()}")
    own.write_bytes(header.encode() + zlib.compress("".join(entries).encode()))
    own.replace(inventory)
