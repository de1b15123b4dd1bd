"""How far from the mean a right hook's result may be: proved bounds, and whether a result keeps to them.

The bounds hold for every order of summation, with the division first, last or split, done as a division or as a
multiplication by a rounded reciprocal, in the type itself or in a wider one. The proofs stand in the docstrings of
`mean_bound` and `compressed_mean_bound`; nothing is tuned.
"""

import numpy as np

from .mean import deviation
from .nonfinite import by_rank, classify, ieee_mean_class
from .rounding import BoolArray, Float64Array, FloatArray, casts, float_type, round_to, same_value

# Computing a bound takes at most W + 20 roundings of 2^-53 each; this factor keeps the result above the true bound.
_ROUNDED_UP = 1 + 2.0**-40


def mean_bound(x: FloatArray, dtype: str) -> Float64Array:
    """Bounds |result - mean| for a hook that averages in one type.

    The bound is ((1 + u)^k - 1) * mean|x_i| + (W + 1) * eta * (1 + u)^k, with k = W if W is a power of two and
    k = W + 1 otherwise. For W = 1 it is 0: the mean of one rank is its own buffer. Where an intermediate result may
    overflow (`may_overflow`) it holds for finite results.

    Proof. Write T for the type, u_w for the unit roundoff of the wider type that some operations may use, and follow
    one x_i to the result. It is divided (once, or by f < W first and by W/f last, f a power of two) and passes at
    most W - 1 additions. An operation in T multiplies it by 1 + d, |d| <= u, or, where the result is subnormal, adds
    at most eta; never both, and a sum of numbers of T has no error where it is subnormal.

    1. Main term, all in T. The W - 1 additions and the division make W factors. A reciprocal of W that was rounded
       first makes one more, unless W is a power of two: then it is exact. So k factors at most, and the sum over i of
       |x_i|/W times ((1 + u)^k - 1) bounds the error.
    2. Main term, some steps wider. A wider step rounded to T at once is one rounding in T if its operands are in T
       (innocuous double rounding; for powers of two the division is exact in the wider type). So more than k factors
       1 + u never arise, and k of them only if nothing stays wide. Otherwise at most k - 1 of them remain, with at
       most W + 1 factors 1 + u_w, which make no more than the missing 1 + u because W <= 4096.
    3. Underflow. The share of a rank adds eta once: at its own rounding, or, if it stays wide, where a sum with it is
       first rounded to T, after at most u * eta in the wider type (nothing if W is a power of two). The additions
       multiply that by at most (1 + u)^(W - 1), and the wider steps by one more 1 + u, as in step 2. That makes
       W * eta * (1 + u)^k for all ranks. Dividing last adds eta only once, splitting f * eta + eta <= W * eta. The
       (W + 1)-th eta is left over; the cast of `compressed_mean_bound` takes it. []

    Args:
        x: Shape ``(W, n)``, 1 <= W <= 4096: row i is what rank i holds, numbers of type ``dtype``.
        dtype: The type in which the hook averages.

    Returns:
        Float64, shape ``(n,)``, in the unit of ``x``; 0 where an input is not finite, so that
        ``deviation(found, x) <= mean_bound(x, dtype)`` is right there too.

    Example:
        2 * ((1 + 2^-11)^2 - 1), and three times 2^-25:

        >>> float(mean_bound(np.array([[1.0], [3.0]]), "float16")[0])
        0.0019536913314599507
    """
    ranks = by_rank(x)
    if len(ranks) == 1:
        return np.zeros(ranks.shape[1])
    return _bound(ranks, dtype, _averaging_factors(len(ranks)), len(ranks) + 1)


def compressed_mean_bound(x: FloatArray, dtype: str, wire: str) -> Float64Array:
    """Bounds |result - mean| for a hook that casts to the wire type, averages there and casts back.

    It is `mean_bound` in the wire type with k + 1 instead of k. For W = 1 only the cast is left: u * |x| + eta.

    Proof. The cast multiplies x_i by 1 + d or adds at most eta, never both. The first makes one factor more in steps
    1 and 2 there. The second adds up to the mean of W errors of at most eta, hence to eta, times the later factors:
    the (W + 1)-th eta, which was left. A cast from float64 by way of float32 rounds twice; it has the factor
    1 + 2^-24 and an underflow error of u * eta more, for which the inputs are taken as that much larger. A cast back
    into a type that does not hold all wire numbers, such as from float16 to bfloat16, rounds once more: at most
    u * (mean|x_i| + bound) + eta of that type. If the types are the same neither cast rounds. []

    Args:
        x: Shape ``(W, n)``, 1 <= W <= 4096: row i is what rank i holds, numbers of type ``dtype``.
        dtype: The type of the buffers.
        wire: The type in which the hook averages.

    Returns:
        Float64, shape ``(n,)``, in the unit of ``x``; 0 where an input is not finite. Where a cast makes a finite
        input infinite, `compressed_mean_class` says what has to come out instead.

    Example:
        >>> float(compressed_mean_bound(np.array([[1.0], [3.0]]), "float32", "float16")[0])
        0.0029312077823062783
    """
    ranks = by_rank(x)
    if wire == dtype:
        return mean_bound(x, dtype)
    factors, underflows = (_averaging_factors(len(ranks)) + 1, len(ranks) + 1) if len(ranks) > 1 else (1, 1)
    twice = 1 + 2.0**-24 if dtype == "float64" and wire in ("float16", "bfloat16") else 1.0
    finite = np.isfinite(ranks).all(axis=0)
    magnitude = _mean_magnitude(np.where(finite, ranks, 0.0))
    bound = twice * _bound(ranks, wire, factors, underflows) + (twice - 1) * magnitude
    if _holds_all(dtype, wire):
        return bound
    back = float_type(dtype)
    rounding_back = back.unit_roundoff * (magnitude + bound) + back.eta
    return np.where(finite, (bound + rounding_back) * _ROUNDED_UP, 0.0)


def may_overflow(x: FloatArray, dtype: str, *, divide: str = "first") -> BoolArray:
    """Tells where a right hook may give an infinity or NaN although the inputs are finite.

    With the division first, every partial sum is at most the mean of magnitudes plus its bound. That may still pass
    the largest number: three times 65504 in float16 gives infinity, since 65504 / 3 is rounded up. With the division
    last, partial sums are up to W times as large.

    Args:
        x: Shape ``(W, n)``; elements that are not finite are left out.
        dtype: The type in which the sum is taken.
        divide: "first", or "either" if a hook may divide last.

    Returns:
        Bool, shape ``(n,)``. True may be said without need, False never wrongly.
    """
    ranks = by_rank(x)
    check_divide(divide)
    if len(ranks) == 1:
        return np.zeros(ranks.shape[1], dtype=np.bool_)
    kept = np.where(np.isfinite(ranks), ranks, 0.0)
    count = len(ranks) if divide == "either" else 1
    with np.errstate(over="ignore"):
        largest_partial = count * (_mean_magnitude(kept) + compressed_mean_bound(kept, "float64", dtype))
    return largest_partial > float_type(dtype).largest


def within_mean_bound(found: FloatArray, x: FloatArray, dtype: str, *, divide: str = "first") -> BoolArray:
    """Tells which elements of a result an averaging hook may give, infinities and NaN included.

    Args:
        found: Shape ``(n,)``: a hook's result.
        x: Shape ``(W, n)``: row i is what rank i holds, numbers of type ``dtype``.
        dtype: The type in which the hook averages.
        divide: "first", or "either" if the hook may divide last and so overflow where the mean does not.

    Returns:
        Bool, shape ``(n,)``.
    """
    near = deviation(found, x) <= mean_bound(x, dtype)
    return near | (~np.isfinite(np.asarray(found, dtype=np.float64)) & may_overflow(x, dtype, divide=divide))


def within_compressed_bound(found: FloatArray, x: FloatArray, dtype: str, wire: str) -> BoolArray:
    """Tells which elements of a result a compressing hook may give, infinities and NaN included.

    Args:
        found: Shape ``(n,)``: a hook's result.
        x: Shape ``(W, n)``: row i is what rank i holds, numbers of type ``dtype``.
        dtype: The type of the buffers.
        wire: The type in which the hook averages.

    Returns:
        Bool, shape ``(n,)``.
    """
    ranks, result = by_rank(x), np.asarray(found, dtype=np.float64)
    accepted = np.zeros(result.shape, dtype=np.bool_)
    for sent in casts(ranks, dtype, wire):
        if len(ranks) == 1:
            accepted |= same_value(result, round_to(sent[0], dtype))
            continue
        expected = ieee_mean_class(sent)
        near = (expected == "finite") & (deviation(result, x) <= compressed_mean_bound(x, dtype, wire))
        overflow = may_overflow(sent, wire)
        if not _holds_all(dtype, wire):
            overflow |= may_overflow(sent, dtype)
        not_finite = ~np.isfinite(result)
        accepted |= near | (not_finite & ((classify(result) == expected) | overflow))
    return accepted


def check_divide(divide: str) -> None:
    if divide not in ("first", "either"):
        raise ValueError(f'divide is {divide!r}: expected "first" or "either"')


def _averaging_factors(world_size: int) -> int:
    is_power_of_two = world_size & (world_size - 1) == 0
    return world_size if is_power_of_two else world_size + 1


def _holds_all(dtype: str, wire: str) -> bool:
    kind, sent = float_type(dtype), float_type(wire)
    return kind.significant_bits >= sent.significant_bits and kind.smallest_exponent <= sent.smallest_exponent


def _mean_magnitude(ranks: Float64Array) -> Float64Array:
    return np.asarray((np.abs(ranks) / len(ranks)).sum(axis=0))


def _bound(ranks: Float64Array, dtype: str, factors: int, underflows: int) -> Float64Array:
    kind = float_type(dtype)
    growth = np.expm1(factors * np.log1p(kind.unit_roundoff))
    finite = np.isfinite(ranks).all(axis=0)
    magnitude = _mean_magnitude(np.where(finite, ranks, 0.0))
    return np.where(finite, (growth * magnitude + underflows * kind.eta * (1 + growth)) * _ROUNDED_UP, 0.0)
