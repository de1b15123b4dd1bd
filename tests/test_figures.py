"""The numbers behind the figures of the documentation say what its pages say, and the drawings can be shown."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree

import numpy as np
import pytest

DOCS = Path(__file__).resolve().parents[1] / "docs"
sys.path[:0] = [str(DOCS), str(DOCS / "_ext")]

pytest.importorskip("matplotlib", reason="the figures need matplotlib, of the extra 'docs'")

import figures  # noqa: E402  the path to it is set above

ROUNDING = 1e-6
"""What float32 may add to an error that the theorem on warm start bounds in exact arithmetic."""


def module(name: str) -> ModuleType:
    """The module of a figure."""
    return importlib.import_module(f"figures.{name}")


@pytest.fixture(scope="module")
def numbers() -> dict[str, object]:
    """What each figure shows, computed once."""
    return {name: module(name).compute() for name in figures.NAMES}


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_no_error_is_above_the_bound(numbers: dict[str, object], dtype: str) -> None:
    """In each dtype, order of summation and world size the largest error is at most the bound, and is no zero."""
    for order, ratios in numbers["error_against_bound"].by_dtype[dtype].items():  # type: ignore[attr-defined]
        assert len(ratios) == len(module("error_against_bound").WORLD_SIZES), order
        assert all(0.0 < ratio <= 1.0 for ratio in ratios), order


def test_bound_is_nearly_reached(numbers: dict[str, object]) -> None:
    """For powers of two the chain's error on stalling gradients is (W - 1) / W of the bound, while W u is small."""
    ratios = numbers["error_against_bound"].by_dtype["float32"]["chain, stalling gradients"]  # type: ignore[attr-defined]
    for size, ratio in zip(module("error_against_bound").WORLD_SIZES, ratios, strict=True):
        if size & (size - 1) == 0:
            assert ratio == pytest.approx((size - 1) / size, rel=1e-4)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_wide_accumulator_and_shallow_trees_are_better(numbers: dict[str, object], dtype: str) -> None:
    """With many ranks the float32 accumulator errs least, then the pairwise sum, then the chain."""
    last = {name: ratios[-1] for name, ratios in numbers["error_against_bound"].by_dtype[dtype].items()}  # type: ignore[attr-defined]
    assert last["float32 accumulator"] < last["pairwise"] < last["chain"]


def test_window_of_the_half_types(numbers: dict[str, object]) -> None:
    """float16 overflows from 2^16 on and loses all below 2^-24; bfloat16 goes to the end, with 8 times the error."""
    errors = numbers["half_range"]
    exponents = np.array(errors.exponents)  # type: ignore[attr-defined]
    float16, bfloat16 = errors.found["float16"], errors.found["bfloat16"]  # type: ignore[attr-defined]
    assert (np.isinf(float16) == (exponents >= 16)).all()
    assert (float16[exponents < -24] == 1.0).all()
    assert np.isfinite(bfloat16).all()
    assert (bfloat16[exponents < -133] == 1.0).all()
    ordinary = exponents == 0
    assert bfloat16[ordinary] / float16[ordinary] == pytest.approx(8, rel=0.1)
    # From 2^-13 on the shares are normal numbers; with the subnormals there are 39 octaves in which something is left.
    assert (float16[(exponents >= -13) & (exponents < 16)] <= 2.0**-11).all()
    assert ((float16 < 1.0) & np.isfinite(float16)).sum() == 39


@pytest.mark.parametrize("half", ["float16", "bfloat16"])
def test_compressed_errors_keep_to_the_bound(numbers: dict[str, object], half: str) -> None:
    """Where the result is finite the largest relative error is below the largest relative bound."""
    errors = numbers["half_range"]
    found, bound = errors.found[half], errors.bound[half]  # type: ignore[attr-defined]
    finite = np.isfinite(found)
    assert (found[finite] <= bound[finite]).all()


def test_warm_start_converges_as_proved(numbers: dict[str, object]) -> None:
    """With warm start alone no error is above the one before or the ceiling, or below the best, which it reaches."""
    convergence = numbers["powersgd_convergence"]
    powersgd = module("powersgd_convergence")
    errors = np.array(convergence.single[powersgd.WARM])  # type: ignore[attr-defined]
    assert (np.diff(errors) <= ROUNDING).all()
    assert (errors <= np.array(convergence.ceiling) + ROUNDING).all()  # type: ignore[attr-defined]
    assert (errors >= 1.0 - ROUNDING).all()
    assert errors[5] == pytest.approx(1.0, abs=1e-3)
    assert convergence.ceiling[9] == pytest.approx(1.0, abs=1e-2)  # type: ignore[attr-defined]


def test_no_error_is_below_the_best(numbers: dict[str, object]) -> None:
    """The first result, which approximates the gradient alone, is no better than the best matrix of its rank."""
    for name, errors in numbers["powersgd_convergence"].single.items():  # type: ignore[attr-defined]
        assert errors[0] >= 1.0, name


def test_error_feedback_loses_nothing(numbers: dict[str, object]) -> None:
    """With error feedback the mean of all results comes as near as an error over the number of steps; else it stays."""
    convergence = numbers["powersgd_convergence"]
    powersgd = module("powersgd_convergence")
    for name in (powersgd.BOTH, powersgd.FEEDBACK):
        assert convergence.so_far[name][-1] < 0.25, name  # type: ignore[attr-defined]
        assert max(convergence.single[name]) > 2.0, name  # type: ignore[attr-defined]
    for name in (powersgd.WARM, powersgd.NEITHER):
        assert convergence.so_far[name][-1] > 0.95, name  # type: ignore[attr-defined]


def test_bytes_are_those_of_the_table(numbers: dict[str, object]) -> None:
    """Each hook sends the elements that the table on the page counts, in the dtype that it names."""
    wire = module("bytes_on_the_wire")
    sent = numbers["bytes_on_the_wire"]
    for name, (hook, rank) in wire.HOOKS.items():
        dtype = next((half for text, half in (("fp16", "float16"), ("bf16", "bfloat16")) if text in hook), "float32")
        for label, shape in wire.SHAPES.items():
            found = sent.collectives[name][label]  # type: ignore[attr-defined]
            assert found == [f"{dtype}[{count}]" for count in _elements(hook, rank, shape)], (name, label)
            size = 4 if dtype == "float32" else 2
            share = sum(_elements(hook, rank, shape)) * size / (4 * int(np.prod(shape)))
            assert sent.shares[name][label] == share, (name, label)  # type: ignore[attr-defined]


def _elements(hook: str, rank: int, shape: tuple[int, ...]) -> list[int]:
    """The table of the page, in its own words: what each collective of a step carries."""
    numel = int(np.prod(shape))
    if hook == "noop_hook":
        return []
    if hook == "batched_powerSGD_hook":
        return [int(np.ceil(np.sqrt(numel))) * rank] * 2
    if not rank or len(shape) == 1:
        return [numel]
    return [shape[0] * rank, numel // shape[0] * rank]


@pytest.mark.parametrize("name", figures.NAMES)
def test_drawing_fits_into_a_page(name: str, numbers: dict[str, object]) -> None:
    """The SVG is well-formed, has no ids of other figures, no colour that a dark page would swallow, no fixed size."""
    drawn = figures.as_svg(module(name).draw(numbers[name]), name)
    root = ElementTree.fromstring(drawn)
    assert "width" not in root.attrib
    assert "height" not in root.attrib
    assert "viewBox" in root.attrib
    ids = [element.attrib["id"] for element in root.iter() if "id" in element.attrib]
    assert ids
    assert all(one.startswith(f"{name}-") for one in ids)
    assert len(ids) == len(set(ids))
    assert "currentColor" in drawn
    assert "#000000" not in drawn


def test_same_drawing_every_time(numbers: dict[str, object]) -> None:
    """Drawn twice, a figure has the same bytes: no date, no random ids."""
    name = "error_against_bound"
    one, other = (figures.as_svg(module(name).draw(numbers[name]), name) for _ in range(2))
    assert one == other


def test_unknown_figure_is_refused() -> None:
    """The error names the figure and those that there are."""
    with pytest.raises(ValueError, match=r"no figure 'nothing'; there are error_against_bound, half_range"):
        figures.svg("nothing")


def test_formulas_become_mathml() -> None:
    """A formula is translated without a script; one that cannot be is named in the error."""
    mathml = pytest.importorskip("mathml", reason="the formulas need Sphinx, of the extra 'docs'")
    assert "<msup><mi>u</mi><mn>2</mn></msup>" in mathml.to_mathml("u^2", block=False).replace("\n", "").replace(
        " ", ""
    )
    bars = mathml.to_mathml(r"\lVert B \rVert", block=True)
    assert bars.index('form="prefix"') < bars.index('form="postfix"')
    with pytest.raises(ValueError, match=r"nosuchcommand"):
        mathml.to_mathml(r"\nosuchcommand", block=False)
