"""The parts of a reproduction script: literal inputs, and the driver of the implementation."""

from __future__ import annotations

import ast
import base64
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from commhooks.conformance import inputs, programs
from commhooks.conformance.report import driver
from commhooks.conformance.report.literals import IN_PLACE, WRITTEN_OUT, Literals, array_literal
from commhooks.conformance.report.pieces import to_pieces, to_scripts

RANDOM = np.random.default_rng(0)
NAMES = {"np": np, "zlib": zlib, "base64": base64, "inf": np.inf, "nan": np.nan}


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, np.ndarray):
        return bool(one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes())
    if isinstance(one, dict):
        return list(one) == list(other) and all(_same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(_same, one, other))
    return bool(one == other and type(one) is type(other))


@pytest.mark.parametrize(
    "array",
    [
        np.array([0.1, -0.0, 1e-45, 3.4e38, np.inf, -np.inf, 16777217.0], "float32"),
        np.array([0.1, 5e-324, -1.7e308], "float64"),
        np.array([0.1, 6e-8, 65504], "float16"),
        np.array([True, False]),
        np.arange(12, dtype="int64").reshape(3, 4),
        RANDOM.standard_normal(WRITTEN_OUT).astype("float32"),
        RANDOM.standard_normal(WRITTEN_OUT + 1).astype("float32"),
        RANDOM.standard_normal((7, 30)),
        np.zeros(2000, "float32"),
        inputs.spread(2, inputs.PERIOD, "float32")[0],
        inputs.spread(2, 2 * inputs.PERIOD + 3, "float32")[0],
        np.zeros((0, 3), "float32"),
    ],
    ids=lambda array: f"{array.dtype}{list(array.shape)}",
)
def test_arrays_are_written_bit_for_bit(array: np.ndarray[Any, Any]) -> None:
    """The expression of an array gives it again: dtype, shape, and every bit."""
    text = array_literal(array)
    assert _same(eval(text, dict(NAMES)), array)
    assert len(text) < 60 + 12 * max(array.size, 1) * (2 if array.dtype == np.float64 else 1)


def test_numbers_are_short() -> None:
    """A number is written as short as its own type allows."""
    assert array_literal(np.array([0.1, 1 / 3], "float32")) == "np.array([0.1, 0.33333334], 'float32')"
    assert "nan" in array_literal(np.array([np.nan], "float32"))


def test_values_are_written_again() -> None:
    """Nested values come back; an array that is given twice is written once, and what fits is one line."""
    long = RANDOM.standard_normal(IN_PLACE + 1).astype("float32")
    value: Any = [
        {"hook": "a", "steps": [[{"values": long, "shapes": [[3, 3]]}, {"values": long.copy(), "shapes": []}]] * 3},
        {"hook": "b", "flag": True, "none": None, "short": long[:2], "empty": {}},
    ]
    literals = Literals()
    text = literals.expression(value)
    assert len(literals.definitions) == 1
    names: dict[str, Any] = dict(NAMES)
    exec("\n".join(literals.definitions), names)
    assert _same(eval(text, names), value)
    assert "{'values': VALUES_0, 'shapes': [[3, 3]]}" in text
    assert max(map(len, text.splitlines())) < 130


def test_driver_has_what_a_program_calls() -> None:
    """A driver has the methods that a program names, those that these call, and no other."""

    def names(text: str) -> set[str]:
        return {source.partition("def ")[2].partition("(")[0] for source in driver._used_methods(text)}

    small = names("adapter.facts(tensor)")
    assert {"__init__", "join", "facts"} <= small
    assert "data_parallel" not in small
    assert "write" in names("adapter.bucket(0, values, parameters, True)"), "bucket() calls write()"
    assert not any("@abstractmethod" in source for source in driver._methods().values())


def test_scripts_share_their_parts() -> None:
    """Parts that two scripts have in common are kept once, and both scripts come back."""
    scripts = [{"a": "1\n\n\n2\n\n\n3", "b": "1\n\n\n4"}, {"c": "2"}]
    pieces, numbers = to_pieces(scripts)
    assert pieces == ["1", "2", "3", "4"]
    assert [to_scripts(pieces, one) for one in numbers] == scripts


def test_programs_have_no_constants() -> None:
    """A script takes over the functions and classes that a program uses, so a constant beside them would be missing."""
    for path in Path(programs.__path__[0]).glob("*.py"):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.Assign | ast.AnnAssign):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                assert {ast.unparse(target) for target in targets} <= {"T", "Record"}, f"{path.name}:{node.lineno}"
