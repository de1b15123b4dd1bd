"""The command ``commhooks``: runs the installed suite."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs ``commhooks check --impl=IMPL [pytest options]`` and gives pytest's exit status.

    0 when every cell passed or is accounted for, 1 when something failed, 4 when the command makes no sense.
    """
    parser = argparse.ArgumentParser(prog="commhooks", description="Conformance of DDP communication hooks.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    commands.add_parser(
        "check",
        add_help=False,
        help="check an implementation: commhooks check --impl=IMPL [options of the suite and of pytest]; "
        "commhooks check --help lists them",
    )
    _, rest = parser.parse_known_args(arguments)
    return check(rest)


def check(arguments: Sequence[str]) -> int:
    """Runs the checks as installed, without the settings of the project the user happens to be in."""
    return int(
        pytest.main(
            [
                "-p",
                "commhooks.conformance.plugin",
                "-c",
                str(Path(__file__).with_name("pytest.ini")),
                "--rootdir=.",
                "--import-mode=importlib",
                "-p",
                "no:cacheprovider",
                "--pyargs",
                "commhooks.conformance",
                *arguments,
            ]
        )
    )


if __name__ == "__main__":
    sys.exit(main())
