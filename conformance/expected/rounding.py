"""The floating types as numbers, and rounding into them.

Everything here is arithmetic on float64 arrays: a value of any of the four types is held exactly by a float64, so
an operation "in float16" is the operation in float64 followed by `round_to`. Two facts make that right.

* Innocuous double rounding (Figueroa, 1995): a sum, product or quotient of two numbers of p bits that is first
  rounded to q >= 2p + 2 bits and then to p bits is the number that one rounding gives. It covers bfloat16 (8 bits)
  and float16 (11) by way of float32 (24), and float32 by way of float64 (53).
* Round to odd (Boldo and Melquiond, 2008): where the operands have more than p bits the first rounding must leave a
  trace of what it cut. `rounded_sum` does that, and gives fused multiply-add as well.
"""

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

FloatArray: TypeAlias = npt.NDArray[np.float16] | npt.NDArray[np.float32] | npt.NDArray[np.float64]
Float64Array: TypeAlias = npt.NDArray[np.float64]
BoolArray: TypeAlias = npt.NDArray[np.bool_]

_EXPONENT_BITS = np.int64(0x7FF0_0000_0000_0000)


@dataclass(frozen=True)
class FloatType:
    """The numbers that describe a binary floating type.

    Attributes:
        name: "float16", "bfloat16", "float32" or "float64".
        significant_bits: Bits of a normal number's significand, the leading one included.
        smallest_exponent: The smallest normal number is 2 to this power.
        largest: The largest finite number.
        carrier: The name of the numpy type that its arrays have.
        wider: The name of the type that implementations compute or accumulate in instead; float64 has none wider.
    """

    name: str
    significant_bits: int
    smallest_exponent: int
    largest: float
    carrier: str
    wider: str

    @property
    def unit_roundoff(self) -> float:
        """The largest relative error of a rounding to a normal number: 2^-24 for float32."""
        return 2.0**-self.significant_bits

    @property
    def smallest_normal(self) -> float:
        """The smallest positive number with all significant bits: 2^-126 for float32."""
        return 2.0**self.smallest_exponent

    @property
    def smallest_subnormal(self) -> float:
        """The smallest positive number: 2^-149 for float32."""
        return 2.0 ** (self.smallest_exponent - self.significant_bits + 1)

    @property
    def eta(self) -> float:
        """The largest error of a rounding to a subnormal number: 2^-150 for float32.

        For float64 it is 2^-1075, which no float64 holds; the value is 2^-1074 then, so that a bound stays a bound.
        """
        return self.smallest_subnormal / 2 or self.smallest_subnormal


FLOAT_TYPES = {
    kind.name: kind
    for kind in (
        FloatType("float16", 11, -14, 65504.0, carrier="float16", wider="float32"),
        FloatType("bfloat16", 8, -126, float.fromhex("0x1.fep127"), carrier="float32", wider="float32"),
        FloatType("float32", 24, -126, float.fromhex("0x1.fffffep127"), carrier="float32", wider="float64"),
        FloatType("float64", 53, -1022, float.fromhex("0x1.fffffffffffffp1023"), carrier="float64", wider="float64"),
    )
}


def float_type(dtype: str) -> FloatType:
    """Looks a floating type up by its name.

    Raises:
        ValueError: The name is none of the four.

    Example:
        >>> float_type("bfloat16").unit_roundoff
        0.00390625
    """
    if dtype not in FLOAT_TYPES:
        raise ValueError(f"unknown dtype {dtype!r}: expected one of {', '.join(FLOAT_TYPES)}")
    return FLOAT_TYPES[dtype]


def round_to(array: FloatArray, dtype: str) -> Float64Array:
    """Rounds to the nearest number of a type, ties to even, in one step.

    As a cast does: beyond the largest number comes infinity, small numbers become subnormal or zero, the sign of
    zero stays, NaN stays NaN.

    Args:
        array: Any shape; float16, float32 or float64.
        dtype: Name of the type to round into.

    Returns:
        The rounded numbers as float64, which holds all of them exactly; same shape.

    Example:
        >>> round_to(np.array([257.0, 259.0, 8e-41, 3.4e38]), "bfloat16").tolist()
        [256.0, 260.0, 9.183549615799121e-41, inf]
    """
    values = np.asarray(array, dtype=np.float64)
    kind = float_type(dtype)
    if dtype == "float64":
        return values
    if dtype == "float32":
        with np.errstate(over="ignore"):
            return values.astype(np.float32).astype(np.float64)
    # The distance between neighbours: from the power of two below the value (its exponent bits alone), but never less
    # than that of the subnormals. Scaling by it and back is exact, so np.rint is the only rounding.
    power_below = (np.ascontiguousarray(values).view(np.int64) & _EXPONENT_BITS).view(np.float64).reshape(values.shape)
    spacing = np.clip(power_below, kind.smallest_normal, 2.0**1000) * 2.0 ** (1 - kind.significant_bits)
    with np.errstate(invalid="ignore", over="ignore"):  # a signalling NaN; a number near the end of float64's range
        rounded = np.rint(values / spacing) * spacing
    return np.where(np.abs(rounded) > kind.largest, np.copysign(np.inf, values), rounded)


def is_representable(array: FloatArray, dtype: str) -> BoolArray:
    """Tells which elements are numbers of the type; infinities and NaN are.

    Example:
        >>> is_representable(np.array([256.0, 257.0, np.nan]), "bfloat16").tolist()
        [True, False, True]
    """
    return same_value(np.asarray(array, dtype=np.float64), round_to(array, dtype))


def same_value(left: Float64Array, right: Float64Array) -> BoolArray:
    """Compares by value: +0 equals -0, and NaN equals NaN. The shapes broadcast."""
    return np.asarray((left == right) | (np.isnan(left) & np.isnan(right)))


def casts(x: FloatArray, dtype: str, wire: str) -> list[Float64Array]:
    """The right casts of an array from one type into another.

    There is one, rounded to nearest even. Only from float64 into a half type there is a second: torch, and others,
    have no direct conversion and go through float32, which rounds twice.

    Args:
        x: Any shape, numbers of type ``dtype``.
        dtype: The type of the numbers.
        wire: The type to cast into.

    Returns:
        One or two float64 arrays of the same shape.
    """
    direct = round_to(x, wire)
    if dtype == "float64" and wire in ("float16", "bfloat16"):
        return [direct, round_to(round_to(x, "float32"), wire)]
    return [direct]


def two_sum(a: Float64Array, b: Float64Array) -> tuple[Float64Array, Float64Array]:
    """The float64 sum and its rounding error: ``a + b`` is exactly the sum of the two results (Knuth's TwoSum)."""
    total = a + b
    b_part = total - a
    return total, (a - (total - b_part)) + (b - b_part)


def sum_to_odd(a: Float64Array, b: Float64Array) -> Float64Array:
    """The float64 sum, of its two neighbours the one with an odd last bit unless it is exact.

    Rounding that to a type of at most 51 bits gives what rounding the exact sum gives.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        total, error = two_sum(a, b)
    flat_total, flat_error = total.reshape(-1), error.reshape(-1)
    inexact = np.flatnonzero(flat_error)
    rounded, direction = flat_total[inexact], np.copysign(np.inf, flat_error[inexact])
    even = np.isfinite(rounded) & ((rounded.view(np.int64) & 1) == 0)
    flat_total[inexact[even]] = np.nextafter(rounded[even], direction[even])
    return flat_total.reshape(total.shape)


def two_product(a: Float64Array, b: Float64Array) -> tuple[Float64Array, Float64Array]:
    """The float64 product and its rounding error (Dekker); 0 for the error where a factor is beyond 2^996.

    The error is exact unless it is subnormal.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        product = a * b
        (a_high, a_low), (b_high, b_low) = _halves(a), _halves(b)
        error = ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low
    return product, np.where(np.isfinite(error), error, 0.0)


def sum_of_three(large: Float64Array, small: Float64Array, other: Float64Array) -> Float64Array:
    """Sums three numbers with one rounding; ``small`` must be the rounding error of ``large`` (Boldo and Melquiond)."""
    with np.errstate(over="ignore", invalid="ignore"):
        upper, lowest = two_sum(other, small)
        total, lower = two_sum(large, upper)
        return np.where(np.isfinite(total), total + sum_to_odd(lowest, lower), total)


def _halves(a: Float64Array) -> tuple[Float64Array, Float64Array]:
    shifted = a * (2.0**27 + 1)
    high = shifted - (shifted - a)
    return high, a - high
