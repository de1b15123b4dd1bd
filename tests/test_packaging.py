"""The suite as people install it: a wheel in a fresh environment, outside the checkout."""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from commhooks.conformance.report.document import read_report

ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Installed:
    """A fresh environment with the wheel in it, and an empty folder to work in."""

    python: Path
    wheel: Path
    folder: Path

    def run(self, *arguments: str, expected: int = 0) -> str:
        """Runs a program of the environment and gives what it prints."""
        program = str(self.python.with_name(arguments[0]))
        done = subprocess.run(
            [program, *arguments[1:]], cwd=self.folder, capture_output=True, text=True, timeout=300, check=False
        )
        assert done.returncode == expected, done.stdout[-4000:] + done.stderr[-4000:]
        return done.stdout + done.stderr


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """Builds the wheel and installs it; what it depends on is taken from this environment, to save a gigabyte."""
    folder = tmp_path_factory.mktemp("installed")
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder / "dist"), str(ROOT)]
    subprocess.run(build, check=True, capture_output=True, text=True)
    (wheel,) = (folder / "dist").glob("*.whl")
    venv.create(folder / "venv", with_pip=True)
    python = folder / "venv" / "bin" / "python"
    subprocess.run([str(python), "-m", "pip", "install", "-q", "--no-deps", str(wheel)], check=True)
    code = "import sysconfig; print(sysconfig.get_paths()['purelib'])"
    packages = subprocess.run([str(python), "-c", code], check=True, capture_output=True, text=True).stdout.strip()
    # A plain path in a .pth file: the editable install of this checkout is not followed from there.
    Path(packages, "dependencies.pth").write_text(f"{sysconfig.get_paths()['purelib']}\n", encoding="utf-8")
    (folder / "work").mkdir()
    return Installed(python, wheel, folder / "work")


def test_wheel_has_all_files(installed: Installed) -> None:
    """Every Python file of the packages, the data files and py.typed are in the wheel, and no tests of the project."""
    names = set(zipfile.ZipFile(installed.wheel).namelist())
    for package in ("reference", "adapters", "conformance", "bench"):
        for path in (ROOT / package).rglob("*"):
            if path.suffix in (".py", ".toml", ".json", ".ini", ".html", ".css", ".js") or path.name == "py.typed":
                assert f"commhooks/{path.relative_to(ROOT).as_posix()}" in names
    assert not any(name.startswith(("tests/", "commhooks/tests")) for name in names)


def test_the_wheel_is_what_runs(installed: Installed) -> None:
    """The environment has the wheel's copy, not this checkout."""
    output = installed.run("python", "-c", "import commhooks.reference; print(commhooks.reference.__file__)")
    assert str(installed.python.parents[1]) in output


def test_check_works_outside_the_checkout(installed: Installed) -> None:
    """`commhooks check` runs the checks on torch and leaves a valid report, whatever the project around it says."""
    (installed.folder / "tests").mkdir()
    (installed.folder / "tests" / "conftest.py").write_text("pytest_plugins = ['no_such_plugin']\n")
    (installed.folder / "pyproject.toml").write_text("[tool.pytest.ini_options]\naddopts = '--no-such-option'\n")
    output = installed.run("commhooks", "check", "--impl=torch", "--world-size=1,2", "-q", "-k", "test_noop")
    shutil.rmtree(installed.folder / "tests")
    assert "cells in" in output
    report = read_report(installed.folder / "report" / "report.json")
    assert {cell.state for cell in report.implementations[0].cells} == {"pass"}


def test_one_hook_in_five_lines(installed: Installed) -> None:
    """A user's own hook in a file of theirs is checked, and a fault in it is found and can be shown again."""
    (installed.folder / "my_hooks.py").write_text(
        "import torch.distributed as dist\n\n\n"
        "def my_hook(state, bucket):\n"
        "    work = dist.all_reduce(bucket.buffer(), async_op=True)\n"
        "    return work.get_future()\n"
    )
    output = installed.run(
        "commhooks", "check", "--impl=my_hooks:my_hook", "--world-size=2", "-q", "-k", "test_future", expected=1
    )
    assert "HOOK-FUTURE" in output
    scripts = sorted((installed.folder / "report" / "repro").glob("hook-future-*.py"))
    assert scripts
    shown = installed.run("python", str(scripts[0]), expected=1)
    assert "the failure shows" in shown


def test_usage_error(installed: Installed) -> None:
    """A wrong implementation is a usage error for the command too."""
    assert "no module named 'nowhere'" in installed.run("commhooks", "check", "--impl=nowhere", expected=4)


def test_nothing_in_other_peoples_runs(installed: Installed) -> None:
    """Where commhooks is installed, pytest has none of its options, and collects none of its checks."""
    help_text = installed.run("python", "-m", "pytest", "--help", "-c", "/dev/null")
    assert "--impl" not in help_text
    (installed.folder / "test_mine.py").write_text("def test_mine(): pass\n")
    output = installed.run(
        "python", "-m", "pytest", "-c", "/dev/null", "--rootdir=.", "-p", "no:cacheprovider", "test_mine.py"
    )
    assert "1 passed" in output


def test_types(installed: Installed) -> None:
    """The built packages pass mypy's strict checks."""
    command = [sys.executable, "-m", "mypy", "--config-file", str(ROOT / "pyproject.toml"), "--python-executable"]
    packages = [f"commhooks.{name}" for name in ("reference", "adapters", "conformance", "bench")]
    arguments = [argument for package in packages for argument in ("-p", package)]
    done = subprocess.run(
        [*command, str(installed.python), *arguments], cwd=installed.folder, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
