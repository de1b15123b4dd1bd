"""Lets a virtual environment use the torch of the interpreter that runs this script, if it has one.

``python share_torch.py PATH/TO/VENV/bin/python`` leaves a .pth file in the environment that names the folder torch lies
in. Nothing is copied, and nothing in that folder is changed.
"""

import importlib.util
import subprocess
import sys
from pathlib import Path


def main(python: str) -> None:
    """Writes the .pth file, or nothing where there is no torch to share."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return
    code = "import sysconfig; print(sysconfig.get_paths()['purelib'])"
    packages = subprocess.run([python, "-c", code], check=True, capture_output=True, text=True).stdout.strip()
    Path(packages, "existing_torch.pth").write_text(f"{Path(spec.origin).parents[1]}\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1])
