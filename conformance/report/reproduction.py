"""Writes a script for each failure that shows it again, with literal inputs and without the suite.

The script is put together from the sources that the failed check ran: the programs, and the methods of ``TorchAdapter``
that they call. So it needs torch and numpy, and the implementation; one that has an adapter of its own needs commhooks.
"""

from __future__ import annotations

import ast
import functools
import inspect
import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from commhooks.conformance.cells import ClauseFailure, Failure
from commhooks.conformance.clauses import Clause
from commhooks.conformance.report.driver import driver
from commhooks.conformance.report.literals import Literals
from commhooks.conformance.report.noise import shortened, without_luck, without_noise
from commhooks.conformance.report.script_parts import JUDGE, LABORATORY, MAIN, MODULES, PREAMBLE
from commhooks.conformance.world import Implementation, Program

Function = Callable[..., object]

FOLDER = "repro"
PROGRAMS = "commhooks.conformance.programs."
MARKER = "# Reproduction script of the conformance suite for DDP communication hooks."


def remove_scripts(report: Path) -> None:
    """Removes the scripts that an earlier run left in the report's folder."""
    for path in (report / FOLDER).glob("*.py"):
        with path.open(encoding="utf-8", errors="replace") as file:
            ours = file.readline().rstrip() == MARKER
        if ours:
            path.unlink()


def write_script(
    failure: Failure,
    error: BaseException,
    programs: Sequence[Program],
    implementation: Implementation,
    clauses: Sequence[Clause],
    configuration: Mapping[str, str],
    report: Path,
) -> Failure:
    """Writes the script of a failure and gives the failure with the script's path in it.

    Without a program there is nothing to run again, and the failure stays as it is; a script that cannot be made or
    written costs the script only.
    """
    if not programs:
        return failure
    place, holds = (error.place, error.holds) if isinstance(error, ClauseFailure) else ("", "")
    words = [clauses[0].id, implementation.name, *(f"{key} {value}" for key, value in configuration.items())]
    words = [word for word in words if not word.startswith(("device", "backend"))]
    name = re.sub(r"[^a-z0-9]+", "-", " ".join(words).lower().replace("world_size ", "w")).strip("-")[:120]
    path = report / FOLDER / f"{name}.py"
    try:
        text = script_text(failure, place, holds, programs, implementation, clauses, configuration)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except Exception as error:
        lost = f"There is no script of this failure: {type(error).__name__}: {error}"
        return replace(failure, details=f"{failure.details}\n{lost}".lstrip())
    return replace(failure, script=path.relative_to(report).as_posix())


def script_text(
    failure: Failure,
    place: str,
    holds: str,
    programs: Sequence[Program],
    implementation: Implementation,
    clauses: Sequence[Clause],
    configuration: Mapping[str, str],
) -> str:
    """The whole script."""
    settings = implementation.settings
    sources = _program_sources(programs)
    runs = [f"    ({program.function.__name__}, ARGUMENTS_{number}),\n" for number, program in enumerate(programs)]
    verdict = {"PLACE": place or "None", "HOLDS": holds or "True", "EXPECTED": repr(failure.expected)}
    docstring = _docstring(failure, implementation, clauses, configuration)
    literals = Literals()
    arguments = [f"ARGUMENTS_{n} = {literals.expression(program.each)}" for n, program in enumerate(programs)]
    parts = [
        f"WORLD_SIZE = {len(programs[0].each)}\nDEVICE = {settings.device!r}\nBACKEND = {programs[0].backend!r}\n"
        f"TIME_LIMIT = {settings.timeout!r}  # seconds for each program",
        *([LABORATORY] if programs[0].backend == "lab" else []),
        "# ---- What the ranks are given: for each program, the arguments of each rank.",
        *literals.definitions,
        *arguments,
        "# ---- What a rank does.",
        *sources,
        "# ---- How a rank drives the implementation.",
        *driver(implementation, sources),
        "# ---- The run, and the verdict.",
        f"PROGRAMS = [\n{''.join(runs)}]",
        re.sub("|".join(verdict), lambda match: verdict[match[0]], JUDGE),
        MAIN,
    ]
    parts = [part.strip("\n") for part in parts]
    return "\n\n\n".join([MARKER, docstring, _imports(parts), *parts]) + "\n"


def _imports(parts: Sequence[str]) -> str:
    """The imports that the other parts of a script need."""
    text = "\n".join([PREAMBLE, *parts])
    # A name before a dot; of most scripts the larger part are numbers.
    names = set(re.findall(r"(?<![\w.])[a-z]\w*(?=\.)", text)) | (
        {"importlib.util"} if "importlib.util." in text else set()
    )
    lines = [f"import {module}" for module in MODULES if module in names]
    return "\n".join(["from __future__ import annotations\n", *lines, PREAMBLE.strip("\n")])


def _docstring(
    failure: Failure, implementation: Implementation, clauses: Sequence[Clause], configuration: Mapping[str, str]
) -> str:
    description = implementation.description
    lines = []
    for clause in clauses:
        lines += textwrap.wrap(f"{clause.id} ({clause.level}, {clause.since}): {clause.text}", 110)
    lines += [
        "",
        f"Implementation: {description.name} {description.version} ({description.module}), {description.framework}",
        "Configuration:  " + ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in configuration.items()),
        f"Failure:        {failure.kind}",
        *shortened(without_luck(without_noise(failure.message))).splitlines(),
        "",
        "Run it with python. It exits with 1 if the failure shows, and with 0 if it does not.",
    ]
    text = "\n".join(lines).replace("\\", "\\\\").replace('"""', "'''")
    return f'"""{text}\n"""'


def _program_sources(programs: Sequence[Program]) -> list[str]:
    """The programs, and what else of their modules they use, once each."""
    parts: dict[str, None] = {}
    for program in programs:
        parts.update(dict.fromkeys(_sources(program.function)))
    return list(parts)


@functools.cache
def _sources(function: Function) -> tuple[str, ...]:
    """The source of a function, after those of the functions that it uses: of its module, and of other programs'."""
    return tuple(inspect.getsource(used) for used in _used(function, {}))


def _used(function: Function, order: dict[Function, None]) -> dict[Function, None]:
    """The functions and classes of the programs' modules that one of them uses, itself the last.

    One of another module has to be imported by its own name, which the script defines.
    """
    known = vars(inspect.getmodule(function))
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    for node in ast.walk(tree):
        other = known.get(node.id) if isinstance(node, ast.Name) else None
        is_ours = inspect.isroutine(other) or inspect.isclass(other)
        if other is not None and is_ours and other.__module__.startswith(PROGRAMS) and other not in {function, *order}:
            _used(other, order)
    order[function] = None
    return order
