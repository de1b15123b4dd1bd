"""``report.json``: everything a run found out, in the form that ``schema.json`` describes.

It is the only source of the page, the badges, the matrix and the comparison of two runs. But for ``times``, two runs of
one implementation give the same text.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NoReturn

import jsonschema

from commhooks.conformance.cells import ImplementationResult
from commhooks.conformance.clauses import Clause
from commhooks.conformance.report.entries import EntryError, to_cells, to_entries
from commhooks.conformance.report.pieces import to_pieces, to_scripts

FORMAT = 2
SCHEMA = Path(__file__).with_name("schema.json")
# A run of ten implementations is a tenth of this.
LARGEST = 64 * 2**20
LINE = 500

FACTS = ("name", "module", "version", "framework", "python", "device", "backend")


class ReportError(Exception):
    """A report cannot be read; the message says what is wrong with it."""


@dataclass(frozen=True)
class Report:
    """What a run found out.

    Attributes:
        suite: Version of the suite.
        spec: Version of the documented API that the clauses were limited to; empty if they were not.
        search: Number of random examples of each check that can use them; 0 for the fixed ones.
        world_sizes: Sizes of the worlds.
        clause_set: Digest of the clauses. Only reports of the same one can be compared.
        clauses: The clauses by id.
        implementations: What was found out about each; the failures of the cells name only scripts that the report has.
        started: When the run started, UTC; empty if the times were left out.
        seconds: How long it took.
    """

    suite: str
    spec: str
    search: int
    world_sizes: tuple[int, ...]
    clause_set: str
    clauses: dict[str, Clause]
    implementations: list[ImplementationResult]
    started: str = ""
    seconds: float = 0.0


def write_report(report: Report, path: Path, times: bool = True) -> None:
    """Writes a report to a file; without ``times`` two runs that found the same give the same file.

    Raises:
        OSError: The file cannot be written.
    """
    path.write_text(layout(to_plain(report, times)) + "\n", encoding="utf-8")


def read_report(path: Path) -> Report:
    """Reads a report and checks it against the schema.

    Raises:
        ReportError: It is not JSON, of another format, does not match the schema or contradicts itself.
    """
    try:
        size = path.stat().st_size
        if size > LARGEST:
            raise ReportError(f"{path} has {size:,} bytes; a report has at most {LARGEST:,}")
        content = json.loads(path.read_text(encoding="utf-8"), parse_constant=_no_number)
    except (OSError, ValueError) as error:
        raise ReportError(f"{path} is no readable report: {error}") from None
    except RecursionError:
        raise ReportError(f"{path} is no readable report: it is nested too deeply") from None
    if isinstance(content, dict) and content.get("format") != FORMAT:
        raise ReportError(_other_format(path, content.get("format")))
    try:
        jsonschema.validate(content, json.loads(SCHEMA.read_text(encoding="utf-8")))
    except jsonschema.ValidationError as error:
        raise ReportError(
            f"{path} does not match the schema, at {error.json_path}: {_shortened(error.message)}"
        ) from None
    try:
        return from_plain(content)
    except EntryError as error:
        raise ReportError(f"{path} contradicts itself: {error}") from None


def to_plain(report: Report, times: bool = True) -> dict[str, Any]:
    """The content of ``report.json``."""
    pieces, scripts = to_pieces([result.scripts for result in report.implementations])
    implementations, milliseconds = [], []
    for result, own in zip(report.implementations, scripts, strict=True):
        entries, took = to_entries(result.cells)
        facts = {name: getattr(result, name) for name in FACTS}
        implementations.append({**facts, "stale": result.stale, "entries": entries, "scripts": own})
        milliseconds.append([[round(1000 * run) for run in runs] for runs in took])
    content = {
        "format": FORMAT,
        "suite": report.suite,
        "spec": report.spec,
        "search": report.search,
        "world_sizes": list(report.world_sizes),
        "clause_set": report.clause_set,
        "clauses": [asdict(clause) for clause in report.clauses.values()],
        "implementations": implementations,
        "pieces": pieces,
    }
    if times and report.started:
        total = round(report.seconds, 3)
        content["times"] = {"started": report.started, "seconds": total, "milliseconds": milliseconds}
    return content


def from_plain(content: dict[str, Any]) -> Report:
    """The report with that content, which matches the schema.

    Raises:
        EntryError: Its parts do not go together.
    """
    clauses = {clause["id"]: Clause(**clause) for clause in content["clauses"]}
    times = content.get("times", {})
    implementations = content["implementations"]
    took = times.get("milliseconds", [None] * len(implementations))
    if len(took) != len(implementations):
        raise EntryError(f"there are times of {len(took)} implementations, but {len(implementations)} implementations")
    results = []
    for fields, milliseconds in zip(implementations, took, strict=True):
        unknown = {clause for entry in fields["entries"] for clause in entry["clauses"]} - set(clauses)
        if unknown:
            raise EntryError(f"{fields['name']} has cells of {', '.join(sorted(unknown))}, which is no clause of it")
        try:
            scripts = to_scripts(content["pieces"], fields["scripts"])
        except IndexError:
            raise EntryError(f"a script of {fields['name']} has a part that is not among the pieces") from None
        facts = {name: fields[name] for name in FACTS}
        seconds = None if milliseconds is None else [[run / 1000 for run in runs] for runs in milliseconds]
        cells = to_cells(fields["entries"], seconds)
        results.append(ImplementationResult(**facts, cells=cells, stale=fields["stale"], scripts=scripts))
    return Report(
        suite=content["suite"],
        spec=content["spec"],
        search=content["search"],
        world_sizes=tuple(content["world_sizes"]),
        clause_set=content["clause_set"],
        clauses=clauses,
        implementations=results,
        started=times.get("started", ""),
        seconds=times.get("seconds", 0.0),
    )


def layout(value: object) -> str:
    """JSON in which what fits is one line, so that the file is short and a difference of two files can be read."""
    return "\n".join(_lines(value, 0))


def _lines(value: object, depth: int, key: str = "", comma: str = "") -> Iterator[str]:
    space = " " * depth
    text = json.dumps(value, ensure_ascii=False)
    if len(text) < LINE or not isinstance(value, dict | list) or _is_record(value):
        yield f"{space}{key}{text}{comma}"
        return
    yield f"{space}{key}{'{' if isinstance(value, dict) else '['}"
    items: Sequence[tuple[str, object]] = (
        [(f"{json.dumps(name, ensure_ascii=False)}: ", item) for name, item in value.items()]
        if isinstance(value, dict)
        else [("", item) for item in value]
    )
    for number, (name, item) in enumerate(items, 1):
        yield from _lines(item, depth + 1, name, "," if number < len(items) else "")
    yield f"{space}{'}' if isinstance(value, dict) else ']'}{comma}"


def _is_record(value: object) -> bool:
    """Whether it is an object without objects or lists in it, such as a clause: a line of its own, be it long."""
    return isinstance(value, dict) and not any(isinstance(item, dict | list) for item in value.values())


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is no number in JSON")


def _other_format(path: Path, found: object) -> str:
    newer = isinstance(found, int | float) and math.isfinite(found) and found > FORMAT
    advice = "a later version of commhooks reads it" if newer else "run the suite again to get one"
    return f"{path} has format {found!r}; this version of commhooks reads format {FORMAT}: {advice}"


def _shortened(text: str) -> str:
    return text if len(text) <= 300 else f"{text[:150]} … {text[-150:]}"
