"""Every command and file of the guides does what the guides say."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from guide_pages import GUIDES, Command, GuideError, check_output, commands, files
from suite import ROOT

PAGES = sorted(path for path in GUIDES.glob("*.rst") if path.name != "index.rst")

# These guides work in a checkout, of which they get a copy; all others in an empty folder.
IN_A_CHECKOUT = {"write-a-clause.rst", "run-on-gpus.rst"}
CHECKOUT = ("reference", "adapters", "conformance", "bench", "tests", "docs", "pyproject.toml")
PACKAGES = ("reference", "adapters", "conformance", "bench")


@pytest.fixture
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Where a guide's reader is: a folder with the files that the page shows, in a copy of the checkout or not."""
    page: Path = request.getfixturevalue("page")
    work = tmp_path / "work"
    work.mkdir()
    if page.name in IN_A_CHECKOUT:
        for name in CHECKOUT:
            source = ROOT / name
            if source.is_dir():
                shutil.copytree(source, work / name, ignore=shutil.ignore_patterns("__pycache__", "_build"))
            else:
                shutil.copy(source, work / name)
        # The copy is what `commhooks` means here, whatever is installed.
        (tmp_path / "site" / "commhooks").mkdir(parents=True)
        for name in PACKAGES:
            (tmp_path / "site" / "commhooks" / name).symlink_to(work / name)
    for path in files(page):
        shutil.copy(path, work / path.name)
    return work


def environment(folder: Path) -> Mapping[str, str]:
    """The variables of a shell in which the environment is active and no pager or colour is in the way."""
    own = {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(folder.parent / "site"),
        "COLUMNS": "200",
        "NO_COLOR": "1",
    }
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTEST_ADDOPTS", "FORCE_COLOR")}
    return {**kept, **own}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_guide(page: Path, folder: Path) -> None:
    """Each command of the page ends with the status, and prints the lines, that the page shows."""
    if page.name == "run-on-gpus.rst" and torch.cuda.is_available():
        pytest.skip("the page shows what a machine without a GPU says")
    found = commands(page)
    assert found, f"{page.name} shows no command"
    for command in found:
        done = subprocess.run(
            ["bash", "-c", command.text],
            cwd=folder,
            env=environment(folder),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=300,
            check=False,
        )
        check_output(page, command, done.stdout, done.returncode)


def test_every_example_is_shown() -> None:
    """No file of the examples is left that no guide shows."""
    shown = {path.resolve() for page in PAGES for path in files(page)}
    assert {path.resolve() for path in (GUIDES / "examples").iterdir() if path.is_file()} == shown


def test_own_framework_needs_no_torch() -> None:
    """The example's adapter can be loaded by an interpreter that has no torch; what needs torch says so."""
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from commhooks.adapters.loading import load\n"
        "from commhooks.adapters import UnusableImplementation\n"
        "print(load('tiny_adapter.py:TinyAdapter').describe().name)\n"
        "for text in ('torch', 'reference', 'tiny.py'):\n"
        "    try:\n        load(text)\n"
        "    except UnusableImplementation as error:\n        print(error)\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=GUIDES / "examples", capture_output=True, text=True, check=False
    )
    lines = run.stdout.splitlines()
    assert lines[:1] == ["tiny"], run.stdout + run.stderr
    assert [line.split(" needs ")[0] for line in lines[1:]] == ["--impl=torch", "--impl=reference", "--impl=tiny.py"]
    assert all("torch, which" in line for line in lines[1:])


PAGE = """A page
======

.. code-block:: console

   $ run --this \\
   > and that
   3 cells in 1.5 s
   … found inf, expected finite
   $ echo $?
   1

Text.

.. literalinclude:: examples/my_hook.py
   :caption: my_hook.py
"""
PRINTED = "noise\n1,234 cells in 99 s\n\nrank 0: found inf, expected   finite\n"


@pytest.fixture
def made_page(tmp_path: Path) -> Path:
    """A page with one command and one file."""
    page = tmp_path / "page.rst"
    page.write_text(PAGE, encoding="utf-8")
    return page


def test_commands_and_files_are_read(made_page: Path) -> None:
    """Continued lines are joined, and the status is that of ``echo $?``."""
    expected = Command("run --this and that", ["3 cells in 1.5 s", "… found inf, expected finite"], 1)
    assert commands(made_page) == [expected]
    assert files(made_page) == [made_page.parent / "examples" / "my_hook.py"]


def test_numbers_and_spaces_may_differ(made_page: Path) -> None:
    """Other numbers, other spaces and other lines in between are no contradiction."""
    check_output(made_page, commands(made_page)[0], PRINTED, 1)


@pytest.mark.parametrize(
    ("printed", "status", "message"),
    [
        (PRINTED, 0, "ended with 0, not 1"),
        (PRINTED.replace("inf", "nan"), 1, "shows the line\n… found inf"),
        ("rank 0: found inf, expected finite\n3 cells in 1 s\n", 1, "shows the line\n… found inf"),
        ("3 cells in 1 s, and more\n", 1, "shows the line\n3 cells"),
    ],
)
def test_contradictions_are_found(made_page: Path, printed: str, status: int, message: str) -> None:
    """Another status, another text, another order, and a line that only begins like the shown one."""
    with pytest.raises(GuideError, match=message.replace("…", ".").replace("\n", r"\n")):
        check_output(made_page, commands(made_page)[0], printed, status)


def test_block_without_a_prompt_is_refused(made_page: Path) -> None:
    """Output that belongs to no command is a mistake in the page."""
    made_page.write_text(PAGE.replace("$ run", "run"), encoding="utf-8")
    with pytest.raises(GuideError, match="not with a prompt"):
        commands(made_page)
