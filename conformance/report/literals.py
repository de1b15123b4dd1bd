"""Plain data as Python source, for scripts that need nothing but numpy to have it again."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Mapping, Sequence

import numpy as np

from commhooks.conformance.inputs import PERIOD
from commhooks.conformance.world.channel import Array, Plain

# Arrays up to this length are written where they stand; longer ones get a name, since many are given several times.
IN_PLACE = 8
# Longer arrays are written as a repeated pattern if they are one, as those of ``inputs`` are, and compressed if not.
WRITTEN_OUT = 96
# What fits is written in one line.
LINE = 110


class Literals:
    """Writes values as expressions, and remembers the arrays that these name."""

    def __init__(self) -> None:
        self._names: dict[tuple[bytes, str, tuple[int, ...]], str] = {}
        self.definitions: list[str] = []

    def expression(self, value: Plain | Sequence[Mapping[str, Plain]], indent: str = "") -> str:
        """An expression that makes the value again."""
        inner = indent + "    "
        line = self._in_one_line(value)
        if len(line) <= LINE:
            return line
        if isinstance(value, Mapping):
            items = "".join(f"{inner}{key!r}: {self.expression(item, inner)},\n" for key, item in value.items())
            return f"{{\n{items}{indent}}}"
        if isinstance(value, list | tuple) and any(
            isinstance(item, np.ndarray | Mapping | list | tuple) for item in value
        ):
            items = "".join(f"{inner}{self.expression(item, inner)},\n" for item in value)
            return f"[\n{items}{indent}]"
        return line

    def _in_one_line(self, value: Plain | Sequence[Mapping[str, Plain]]) -> str:
        if isinstance(value, np.ndarray):
            return array_literal(value) if value.size <= IN_PLACE else self._name(value)
        if isinstance(value, Mapping):
            return f"{{{', '.join(f'{key!r}: {self._in_one_line(item)}' for key, item in value.items())}}}"
        if isinstance(value, list | tuple):
            return f"[{', '.join(map(self._in_one_line, value))}]"
        return repr(value)

    def _name(self, array: Array) -> str:
        key = (np.ascontiguousarray(array).tobytes(), array.dtype.name, array.shape)
        if key not in self._names:
            self._names[key] = f"VALUES_{len(self._names)}"
            self.definitions.append(f"{self._names[key]} = {array_literal(array)}")
        return self._names[key]


def array_literal(array: Array) -> str:
    """An expression that makes the array again, bit for bit but for the payload of NaN."""
    if array.size <= WRITTEN_OUT:
        shape = f".reshape({array.shape})" if array.ndim != 1 else ""
        return f"np.array([{', '.join(map(_number, array.ravel()))}], {array.dtype.name!r}){shape}"
    for period in (1, PERIOD):
        if array.ndim == 1 and array.size > period and np.array_equal(array[period:], array[:-period], equal_nan=True):
            return f"np.resize({array_literal(array[:period])}, {array.size})"
    packed = base64.b64encode(zlib.compress(np.ascontiguousarray(array).tobytes(), 9)).decode()
    shape = f".reshape({array.shape})" if array.ndim != 1 else ""
    return f"np.frombuffer(zlib.decompress(base64.b64decode({packed!r})), {array.dtype.name!r}){shape}"


def _number(value: np.generic) -> str:
    """The shortest text that gives the number again in its own type; "0.1" and not "0.10000000149011612"."""
    short = str(value)
    exact = repr(value.item())
    return short if isinstance(value, np.floating) and type(value)(float(short)) == value else exact
