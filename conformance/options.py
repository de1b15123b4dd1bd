"""The options of a run, and what they mean."""

from __future__ import annotations

import shutil
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from commhooks.conformance.clauses import version
from commhooks.conformance.world import RankSettings

USUAL_WORLD_SIZES = (1, 2, 3, 4)


@dataclass(frozen=True)
class Options:
    """What the user asked for.

    Attributes:
        implementations: Texts of ``--impl``.
        python: Interpreter that runs the ranks.
        ranks: How ranks are run.
        world_sizes: Sizes of the worlds.
        spec: Version of the documented API; later clauses are left out. None takes all.
        report: Folder of the report.
        deviations: A file of recorded deviations, or None for those that come with the suite.
        search: Number of random examples for each check that can use them; 0 for the fixed ones.
    """

    implementations: tuple[str, ...]
    python: str
    ranks: RankSettings
    world_sizes: tuple[int, ...]
    spec: str | None
    report: Path
    deviations: Path | None
    search: int

    @property
    def usual_world_sizes(self) -> bool:
        """Whether the sizes that are usual are among those of this run."""
        return set(USUAL_WORLD_SIZES) <= set(self.world_sizes)


def add_options(parser: pytest.Parser) -> None:
    """Adds the options to pytest's command line."""
    usual = ",".join(map(str, USUAL_WORLD_SIZES))
    group = parser.getgroup("commhooks", "conformance of DDP communication hooks")
    group.addoption(
        "--impl",
        action="append",
        default=[],
        metavar="IMPL",
        help="implementation to check: reference, torch, package.module, package.module:name, path/to/file.py[:name]; "
        "may be given several times. The suite imports and runs it",
    )
    group.addoption("--impl-python", metavar="PYTHON", help="interpreter that runs the ranks (default: this one)")
    group.addoption("--world-size", default=usual, metavar="LIST", help=f"sizes of the worlds (default: {usual})")
    group.addoption("--device", default="cpu", help="device type the ranks use (default: cpu)")
    group.addoption("--backend", help="backend of the process group (default: gloo on cpu, nccl on cuda)")
    group.addoption("--spec", metavar="VERSION", help="leave out clauses that the documentation brought later")
    group.addoption("--report", default="report", metavar="DIR", help="folder of the report (default: report)")
    group.addoption("--deviations", metavar="FILE", help="recorded deviations (default: those the suite comes with)")
    group.addoption(
        "--search", type=int, default=0, metavar="N", help="try N random examples in place of the fixed ones"
    )
    group.addoption(
        "--rank-timeout", type=float, default=15.0, metavar="SECONDS", help="limit for one program (default: 15)"
    )
    group.addoption("--rank-memory", type=float, metavar="GIB", help="address space a rank may use (default: no limit)")


def read_options(config: pytest.Config) -> Options:
    """Checks the options of the command line.

    Raises:
        pytest.UsageError: One is missing or makes no sense; the message says what was found and what is expected.
    """
    texts = tuple(dict.fromkeys(config.getoption("--impl")))
    if not texts:
        raise pytest.UsageError(
            "--impl is missing: it names the implementation to check.\n"
            "Try --impl=torch, --impl=package.module, or --impl=path/to/file.py"
        )
    python = config.getoption("--impl-python") or sys.executable
    if shutil.which(python) is None:
        raise pytest.UsageError(f"--impl-python={python} is no program that can be run")
    timeout = config.getoption("--rank-timeout")
    if not timeout > 0:
        raise pytest.UsageError(f"--rank-timeout must be more than 0 seconds, got {timeout:g}")
    memory = config.getoption("--rank-memory")
    if memory is not None and not memory > 0:
        raise pytest.UsageError(f"--rank-memory must be more than 0 GiB, got {memory:g}")
    search = config.getoption("--search")
    if search < 0:
        raise pytest.UsageError(f"--search must be 0 or more, got {search}")
    spec = config.getoption("--spec")
    if spec is not None:
        try:
            version(spec)
        except ValueError:
            raise pytest.UsageError(f"--spec must be a version such as 1.11, got {spec!r}") from None
    deviations = config.getoption("--deviations")
    return Options(
        implementations=texts,
        python=python,
        ranks=RankSettings(
            device=config.getoption("--device"),
            backend=config.getoption("--backend"),
            timeout=timeout,
            memory=None if memory is None else int(memory * 2**30),
        ),
        world_sizes=_world_sizes(config.getoption("--world-size")),
        spec=spec,
        report=_report_folder(config.getoption("--report")),
        deviations=None if deviations is None else Path(deviations),
        search=search,
    )


def _report_folder(text: str) -> Path:
    """The folder of the report: one that can be written, or made; better said before the run than after it."""
    folder = Path(text)
    place = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not place.is_dir():
        raise pytest.UsageError(f"--report={text} cannot be a folder: {place} is a file")
    try:
        tempfile.TemporaryFile(dir=place).close()
    except OSError as error:
        raise pytest.UsageError(f"--report={text} cannot be written: {place}: {error.strerror or error}") from None
    return folder


def _world_sizes(text: str) -> tuple[int, ...]:
    try:
        sizes = tuple(dict.fromkeys(int(part) for part in text.split(",")))
    except ValueError:
        sizes = ()
    if not sizes or any(size < 1 for size in sizes):
        raise pytest.UsageError(f"--world-size must be whole numbers from 1, such as 1,2,4; got {text!r}")
    return sizes
