"""Small reports made by hand, for tests of what is drawn from reports."""

from __future__ import annotations

from collections.abc import Sequence

from commhooks.conformance.cells import Cell, Failure, ImplementationResult, State, Traffic
from commhooks.conformance.clauses import Clause
from commhooks.conformance.report.document import Report

MARKUP = "<script>document.title = 'taken over'</script><img src=x onerror=\"document.title = 'taken over'\">"

CLAUSES = {
    clause.id: clause
    for clause in (
        Clause("ALPHA-MEAN", "MUST", "1.11", "The result is the mean.", "default_hooks.allreduce_hook"),
        Clause("ALPHA-DTYPE", "MUST", "1.12", "The dtype stays.", "default_hooks.fp16_compress_hook"),
        Clause("BETA-NICE", "SHOULD", "1.11", "It is finite.", "powersgd.powerSGD_hook"),
        Clause("BETA-TRAFFIC", "MAY", "1.11", "It sends what it likes.", "every hook"),
    )
}

VALUE = Failure(
    "value",
    "rank 0, element 3 of 8: found 2.0, expected 1.0\nand more",
    expected="1.0",
    found="2.0",
    bound="1e-07",
    excess="1e+07 times the bound",
    details="what the ranks were doing",
    script="repro/alpha-mean.py",
)
SCRIPT = "# A script.\n\n\nprint('the failure shows')\n"


def cell(
    clause: str, state: State = "pass", failure: Failure | None = None, reason: str = "", **configuration: str
) -> Cell:
    """A cell of a world of two ranks, unless the configuration says otherwise."""
    places = {"world_size": "2", "device": "cpu", "backend": "gloo", **configuration}
    return Cell(clause, f"test_some.test_{clause.lower()}", places, state, reason, failure, 0.25)


def cells() -> list[Cell]:
    """Cells in every state."""
    return [
        *(
            cell("ALPHA-MEAN", dtype=dtype, world_size=size)
            for dtype in ("float32", "float16")
            for size in ("1", "2", "3")
        ),
        cell("ALPHA-MEAN", "fail", VALUE, dtype="bfloat16"),
        cell("ALPHA-DTYPE", "deviation", Failure("dtype", "it is float16", script=""), "It stays in float16."),
        cell("BETA-NICE", "not run", reason="needs 2 CUDA devices"),
        cell("BETA-NICE", "unsupported", reason="does not offer powerSGD_hook", dtype="float64"),
        Cell(
            "BETA-TRAFFIC",
            "test_some.test_traffic",
            {"hook": "fp16_compress_hook", "world_size": "2", "device": "cpu", "backend": "lab"},
            "pass",
            "two allreduces",
            traffic=Traffic(1, 192, 384),
        ),
    ]


def result(name: str = "some", own: Sequence[Cell] | None = None, version: str = "1.0") -> ImplementationResult:
    """The result of an implementation, with cells in every state unless others are given."""
    return ImplementationResult(
        name, f"{name}.hooks", version, "torch 2.13.0", "3.11.7", "cpu", "gloo",
        cells() if own is None else list(own), [], {"repro/alpha-mean.py": SCRIPT},
    )  # fmt: skip


def report(*results: ImplementationResult, clause_set: str = "0123456789ab", started: bool = True) -> Report:
    """A report of some results."""
    times = ("2026-01-02T03:04:05Z", 12.5) if started else ("", 0.0)
    return Report("0.1.0", "", 0, (1, 2, 3), clause_set, dict(CLAUSES), list(results or [result()]), *times)


def large(implementations: int, number: int) -> Report:
    """A report of many implementations with so many cells each, a few of which fail."""
    clauses = {
        f"BIG-C{n}": Clause(f"BIG-C{n}", "MUST", "1.11", f"It holds in case {n}.", "every hook") for n in range(200)
    }
    results = []
    for place in range(implementations):
        own = [
            cell(
                f"BIG-C{n % 200}",
                "fail" if n % 97 == 0 else "pass",
                VALUE if n % 97 == 0 else None,
                dtype=("float16", "float32", "float64", "bfloat16")[n // 800 % 4],
                world_size=str(n // 200 % 4 + 1),
                case=f"case {n // 3200}",
            )
            for n in range(number)
        ]
        results.append(result(f"implementation{place}", own))
    return Report("0.1.0", "", 0, (1, 2, 3, 4), "0123456789ab", clauses, results, "2026-01-02T03:04:05Z", 12.5)
