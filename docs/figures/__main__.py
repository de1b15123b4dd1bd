"""``python -m figures FOLDER``."""

from __future__ import annotations

import sys
from pathlib import Path

from . import draw_all

if __name__ == "__main__":
    draw_all(Path(sys.argv[1] if len(sys.argv) > 1 else "."))
