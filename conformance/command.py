"""The command ``commhooks``: runs the installed suite, and works with the reports it makes."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import NoReturn

import pytest

from commhooks.conformance import clause_list
from commhooks.conformance.clauses import LEVELS
from commhooks.conformance.report.diff import differences
from commhooks.conformance.report.diff_text import as_markdown, as_text
from commhooks.conformance.report.document import ReportError, read_report
from commhooks.conformance.report.folder import REPORT, redraw
from commhooks.conformance.report.matrix import expect_same_clauses, write_matrix

GOOD, WORSE, USAGE_ERROR = 0, 1, 4

EPILOG = "The exit status is 4 where a command makes no sense or a file cannot be read or written."
DIFF_STATUS = "The exit status is 1 if something got worse, 0 if nothing did, 4 if the reports cannot be compared."


class Parser(argparse.ArgumentParser):
    """A parser whose errors end with the status that pytest has for them."""

    def error(self, message: str) -> NoReturn:
        """Says what is wrong and how the command is used."""
        self.print_usage(sys.stderr)
        self.exit(USAGE_ERROR, f"{self.prog}: error: {message}\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command and gives its exit status."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given[:1] == ["check"]:
        return check(given[1:])
    options = _parser().parse_args(given)
    try:
        return int(options.run(options))
    except (ReportError, clause_list.NoSuchClause, OSError) as error:
        print(f"commhooks {options.command}: error: {error}", file=sys.stderr)
        return USAGE_ERROR


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
                "--noconftest",
                "--import-mode=importlib",
                "-p",
                "no:cacheprovider",
                "--pyargs",
                "commhooks.conformance",
                *arguments,
            ]
        )
    )


def _parser() -> Parser:
    parser = Parser(prog="commhooks", description="Conformance of DDP communication hooks.", epilog=EPILOG)
    parser.add_argument("--version", action="version", version=f"commhooks {metadata.version('commhooks')}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND", parser_class=Parser)
    commands.add_parser(
        "check",
        add_help=False,
        help="check an implementation: commhooks check --impl=IMPL [options of the suite and of pytest]; "
        "commhooks check --help lists them",
    )
    _add_page(commands.add_parser("page", help="draw the page and the badges of a report again", epilog=EPILOG))
    _add_matrix(commands.add_parser("matrix", help="draw one page of several reports", epilog=EPILOG))
    _add_diff(commands.add_parser("diff", help="say what changed between two runs", epilog=DIFF_STATUS))
    _add_clauses(commands.add_parser("clauses", help="list the clauses, or show one", epilog=EPILOG))
    return parser


def _add_page(parser: argparse.ArgumentParser) -> None:
    parser.description = "Draws index.html and the badges from a report, beside it or in another folder."
    parser.add_argument("report", type=_report, metavar="REPORT", help="a report.json, or the folder that has it")
    parser.add_argument("-o", "--output", type=Path, metavar="DIR", help="folder (default: that of the report)")
    parser.set_defaults(run=_page)


def _add_matrix(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Draws one page of several reports: clauses against implementations, and all that each report says. The "
        "reports must be of one set of clauses, and each of another implementation, version, device or backend."
    )
    parser.add_argument(
        "reports", type=_report, nargs="+", metavar="REPORT", help="a report.json, or the folder that has it"
    )
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="DIR", help="folder of the page")
    parser.set_defaults(run=_matrix)


def _add_diff(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Says what changed from one run of an implementation to another. A cell got worse if it passed before and "
        "does not any more, or fails where it deviated or was not run; so did a run with a failure or a stale record "
        "that was not there before."
    )
    parser.add_argument("before", type=_report, metavar="BEFORE", help="report.json of the first run, or its folder")
    parser.add_argument("after", type=_report, metavar="AFTER", help="report.json of the second run, or its folder")
    parser.add_argument("--markdown", action="store_true", help="write Markdown, for a pull request")
    parser.set_defaults(run=_diff)


def _add_clauses(parser: argparse.ArgumentParser) -> None:
    parser.description = "Lists the clauses of the specification; with an ID shows that clause and its checks."
    parser.add_argument(
        "id", nargs="?", metavar="ID", help="id of a clause, such as ALLREDUCE-MEAN, or the beginning of several: DDP-"
    )
    parser.add_argument("--level", action="append", choices=LEVELS, default=[], help="clauses of this level only")
    parser.add_argument(
        "--since", type=_version, metavar="VERSION", help="clauses that came with this version or later"
    )
    parser.add_argument("--json", action="store_true", help="write JSON, with the checks of each clause")
    parser.set_defaults(run=_clauses)


def _page(options: argparse.Namespace) -> int:
    report = read_report(options.report)
    print(redraw(report, options.output or options.report.parent))
    return GOOD


def _matrix(options: argparse.Namespace) -> int:
    print(write_matrix(options.reports, options.output))
    return GOOD


def _diff(options: argparse.Namespace) -> int:
    before, after = read_report(options.before), read_report(options.after)
    expect_same_clauses(options.before, before, options.after, after)
    found = differences(before, after)
    write = as_markdown if options.markdown else as_text
    print("\n\n".join(write(difference) for difference in found))
    return WORSE if any(difference.got_worse for difference in found) else GOOD


def _clauses(options: argparse.Namespace) -> int:
    clauses = clause_list.chosen(options.level, options.since)
    begun = clause_list.beginning_with(clauses, options.id)
    if options.id is None or begun:
        clauses = begun or clauses
        print(clause_list.as_json(clauses) if options.json else clause_list.as_lines(clauses))
        return GOOD
    clause = clause_list.find(options.id)
    print(clause_list.as_json([clause]) if options.json else clause_list.as_text(clause))
    return GOOD


def _report(text: str) -> Path:
    path = Path(text)
    return path / REPORT if path.is_dir() else path


def _version(text: str) -> str:
    if not all(part.isdecimal() for part in text.split(".")):
        raise argparse.ArgumentTypeError(f"expected a version such as 1.12, got {text!r}")
    return text


if __name__ == "__main__":
    sys.exit(main())
