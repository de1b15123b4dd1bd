"""Numbers that the pages on the bounds quote are those that the code gives."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from commhooks.conformance.expected import exact_set, float_type, may_overflow, mean_bound, round_to

NUMBERS = Path(__file__).resolve().parents[1] / "docs" / "numbers"


def rows(page: str, header: str) -> Iterator[list[str]]:
    """The rows of the table of a page whose first cell in the first row is ``header``, as texts of their cells."""
    text = (NUMBERS / page).read_text(encoding="utf-8")
    table = text[text.index(f"   * - {header}\n") :]
    table = table[: re.search(r"\n\S", table).start()]  # type: ignore[union-attr]
    for row in table.split("   * - ")[2:]:
        yield [" ".join(cell.split()) for cell in re.split(r"\n     - ", row)]


def power(text: str) -> float:
    """The number that a power of two, a decimal number with a power of ten, or a plain number shows."""
    inner = text.removeprefix(":math:").strip("`")
    if match := re.fullmatch(r"2\^\{(-?\d+)\}", inner):
        return 2.0 ** int(match[1])
    if match := re.fullmatch(r"([\d.]+) \\cdot 10\^\{(\d+)\}", inner):
        return float(f"{match[1]}e{match[2]}")
    return float(inner)


def test_table_of_types() -> None:
    """Unit roundoff, smallest normal number, eta and the largest number of each type."""
    found = list(rows("index.rst", "type"))
    assert [row[0] for row in found] == ["``float32``", "``float16``", "``bfloat16``"]
    for name, *cells in found:
        kind = float_type(name.strip("`"))
        roundoff, smallest, eta, largest = map(power, cells)
        assert (roundoff, smallest, eta) == (kind.unit_roundoff, kind.smallest_normal, kind.eta), name
        assert largest == pytest.approx(kind.largest, rel=5e-5), name


def test_table_of_witnesses() -> None:
    """What the fault gives is in no exact set, and what is called right is all of it."""
    found = list(rows("exact.rst", "fault"))
    assert len(found) == 6
    for fault, gradients, faulty, right in found:
        wire = "bfloat16" if "bfloat16" in fault else "float16"
        x = np.array([[float(one)] for one in gradients.split(", ")])
        allowed = {float(one) for one in exact_set(x, "float32", wire=wire).ravel()}
        quoted = {float(one.replace("infinity", "inf")) for one in re.split(r" or ", right.split(":")[0])}
        assert allowed == quoted, fault
        assert float(faulty) not in allowed, fault


def test_numbers_in_the_text_on_overflow() -> None:
    """Where casts become infinite, and what three times the largest float16 number can give."""
    text = (NUMBERS / "mean.rst").read_text(encoding="utf-8")
    assert r"65520 = 65504 + 16" in text
    assert round_to(np.array([65520.0, np.nextafter(65520.0, 0)]), "float16").tolist() == [np.inf, 65504.0]
    assert r"3.3962 \cdot 10^{38}" in text
    assert round_to(np.array([3.3962e38, 3.3961e38]), "bfloat16").tolist()[0] == np.inf
    assert np.isfinite(round_to(np.array([3.3961e38]), "bfloat16")).all()
    three = np.full((3, 1), 65504.0)
    assert sorted(set(exact_set(three, "float16", wire="float16").ravel())) == [65472.0, 65504.0, np.inf]
    assert may_overflow(three, "float16").all()
    assert not may_overflow(np.full((8, 1), 60000.0), "float16").any()


@pytest.mark.parametrize("world_size", [2, 3, 4, 5, 8, 100])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_formula_of_the_mean(dtype: str, world_size: int) -> None:
    """The bound in the code is that of Theorem 1, with k = W for powers of two and W + 1 otherwise."""
    kind = float_type(dtype)
    x = round_to(np.random.default_rng(world_size).standard_normal((world_size, 50)), dtype)
    k = world_size if world_size in (2, 4, 8) else world_size + 1
    growth = (1 + kind.unit_roundoff) ** k
    expected = (growth - 1) * np.abs(x).mean(axis=0) + (world_size + 1) * kind.eta * growth
    assert mean_bound(x, dtype) == pytest.approx(expected, rel=1e-8)


@pytest.mark.parametrize(
    ("world_size", "divide"), [(2, "first"), (2, "either"), (3, "first"), (3, "either"), (4, "first"), (4, "either")]
)
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_size_of_the_sets(dtype: str, world_size: int, divide: str) -> None:
    """One value for two ranks; for three and four about 2 on average, and at most 4 for nearly all gradients."""
    generator = np.random.default_rng(0)
    shape = (world_size, 400)
    x = round_to(generator.uniform(1.0, 2.0, shape) * 2.0 ** generator.integers(-3, 4, shape), dtype)
    sizes = [len(np.unique(column)) for column in exact_set(x, dtype, divide=divide).T]
    if world_size == 2:
        assert max(sizes) == 1
    else:
        assert 1.5 < np.mean(sizes) < 2.5
        assert np.quantile(sizes, 0.99) <= 4
