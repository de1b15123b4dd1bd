"""The finite set of results that right hooks can give for up to four ranks.

The order of summation is free, and so are a few other choices. Every combination of these counts as right:

* the sum: any binary tree over the ranks (15 for four), each partial sum rounded to the type T or kept in the wider
  type (float32 for the half types, float64 for float32), the root rounded to T. That covers chains, rings, recursive
  halving and trees, accumulators of any extent, and NCCL's fused multiply-add;
* the division by W: a true division, or a multiplication by the reciprocal rounded to T (NCCL's average) or to the
  wider type (torch on CUDA); per rank with the share rounded to T or kept wide;
* where the documents leave it open (``divide="either"``): the division last, or split into a power of two first and
  the rest last, as FSDP does.

For float64 there is no wider type here, so those choices fall away; the fused multiply-add of three ranks stays.
"""

from itertools import combinations, permutations

import numpy as np

from .bounds import check_divide
from .nonfinite import by_rank
from .rounding import (
    BoolArray,
    Float64Array,
    FloatArray,
    casts,
    float_type,
    round_to,
    same_value,
    sum_of_three,
    sum_to_odd,
    two_product,
)

MAX_WORLD_SIZE = 4
"""The number of trees, and with it the size of the sets, grows like a factorial."""


def exact_set(x: FloatArray, dtype: str, *, divide: str = "first", wire: str | None = None) -> Float64Array:
    """Enumerates all results that a right averaging or compressing hook can give.

    Args:
        x: Shape ``(W, n)``, 1 <= W <= 4: row i is what rank i holds, numbers of type ``dtype``.
        dtype: The type of the buffers, and in which the hook averages if it does not compress.
        divide: "first", or "either" if the hook may divide last too.
        wire: The type in which a compressing hook averages, after the cast; None for a hook that does not compress.
            Compressing hooks divide first.

    Returns:
        Float64, shape ``(K, n)``: column j has the results for element j, in no useful order and some repeated.

    Raises:
        ValueError: More than 4 ranks, an unknown dtype, or ``divide="either"`` with a wire type.

    Example:
        With 7/3 rounded to bfloat16 the sum of three is a little too large; kept in float32 it is 7 again.

        >>> sorted(exact_set(np.full((3, 1), 7.0), "bfloat16")[:, 0].tolist())
        [7.0, 7.03125]
    """
    return _deduplicated(_all_results(x, dtype, divide, wire))


def in_exact_set(
    found: FloatArray, x: FloatArray, dtype: str, *, divide: str = "first", wire: str | None = None
) -> BoolArray:
    """Tells which elements of a result are in `exact_set`, by value: +0 equals -0 and NaN equals NaN.

    Args:
        found: Shape ``(n,)``: a hook's result.
        x: As for `exact_set`.
        dtype: As for `exact_set`.
        divide: As for `exact_set`.
        wire: As for `exact_set`.

    Returns:
        Bool, shape ``(n,)``.

    Example:
        >>> in_exact_set(np.array([2.0, 2.5]), np.array([[1.0, 1.0], [3.0, 3.0]]), "bfloat16").tolist()
        [True, False]
    """
    candidates = _all_results(x, dtype, divide, wire)
    return np.asarray(same_value(candidates, np.asarray(found, dtype=np.float64)).any(axis=0))


def _all_results(x: FloatArray, dtype: str, divide: str, wire: str | None) -> Float64Array:
    ranks = _few_ranks(x)
    check_divide(divide)
    if wire is None:
        return _mean_results(ranks, dtype, divide)
    if divide != "first":
        raise ValueError(f"divide is {divide!r} with wire {wire!r}: a compressing hook divides first")
    results = [_mean_results(sent, wire, divide) for sent in casts(ranks, dtype, wire)]
    return round_to(np.concatenate(results), dtype)


def _few_ranks(x: FloatArray) -> Float64Array:
    ranks = by_rank(x)
    if len(ranks) > MAX_WORLD_SIZE:
        raise ValueError(f"x has {len(ranks)} rows: exact sets are enumerated for 1 to {MAX_WORLD_SIZE} ranks")
    return ranks


def _mean_results(ranks: Float64Array, dtype: str, divide: str) -> Float64Array:
    """All means in one type, shape (K, n)."""
    world_size = len(ranks)
    if world_size == 1:
        return ranks
    results = [round_to(_all_sums(shares, dtype), dtype) for shares in _quotients(ranks, world_size, dtype)]
    if divide == "either":
        sums = _deduplicated(_all_sums(ranks[:, None], dtype))
        results += [last[:, 0] for last in _quotients(sums, world_size, dtype)]
        if world_size > 2:
            sums_of_halves = _deduplicated(_all_sums(round_to(ranks / 2, dtype)[:, None], dtype))
            results += [last[:, 0] for last in _quotients(sums_of_halves, world_size / 2, dtype)]
    if dtype == "float64" and world_size == 3:
        results.append(_fused_float64_means_of_three(ranks))
    return np.concatenate(results)


def _quotients(values: Float64Array, divisor: float, dtype: str) -> list[Float64Array]:
    """Divides in each of the right ways; two entries per value, shape (..., 2, n): rounded to T, and kept wide.

    The float64 product and quotient are exact, or rounded innocuously, for the narrower types.
    """
    wider = float_type(dtype).wider
    reciprocal = round_to(np.array(1 / divisor), dtype)
    wide_reciprocal = round_to(np.array(1 / divisor), wider)
    unrounded = [
        round_to(values / divisor, wider),
        # Kept exact, not rounded to the wider type: a fused multiply-add has the whole product.
        values * reciprocal,
        round_to(values * wide_reciprocal, wider),
    ]
    if np.frexp(divisor)[0] == 0.5:
        # The reciprocal of a power of two is exact, and the three are one.
        del unrounded[1:]
    return [np.stack([round_to(wide, dtype), wide], axis=-2) for wide in unrounded]


def _fused_float64_means_of_three(ranks: Float64Array) -> Float64Array:
    """Multiplies by 1/3 and adds along a chain, with one rounding for both in each step or in one of them.

    No float64 holds the product, so the trees cannot have it as a leaf as for the narrower types. For 2 and 4 ranks
    the product is exact, for normal numbers. Chains with fusion in no step are among the trees.
    """
    products, errors = two_product(ranks, np.full(ranks.shape, 1 / 3))
    results = []
    for i, j, k in permutations(range(3)):
        fused = sum_of_three(products[j], errors[j], products[i])
        results += [fused + products[k]]
        results += [sum_of_three(products[k], errors[k], pair) for pair in (fused, products[i] + products[j])]
    return np.stack(results)


def _all_sums(leaves: Float64Array, dtype: str) -> Float64Array:
    """Sums in every tree, each partial sum rounded to T or kept wide.

    Args:
        leaves: Shape ``(W, choices, n)``: what each rank contributes.
        dtype: Name of T.

    Returns:
        Shape ``(K, n)``.
    """
    everyone = frozenset(range(len(leaves)))
    sums = {frozenset([rank]): _deduplicated(leaves[rank]) for rank in everyone}
    for size in range(2, len(leaves) + 1):
        for group in combinations(sorted(everyone), size):
            parts = [(sums[left], sums[right]) for left, right in _splits(group)]
            found = np.concatenate([_sums_of_two(*pair, dtype) for pair in parts])
            sums[frozenset(group)] = found if size == len(leaves) else _deduplicated(found)
    return sums[everyone]


def _splits(group: tuple[int, ...]) -> list[tuple[frozenset[int], frozenset[int]]]:
    """The ways to cut a group of ranks into two; the first rank stays left, so that each comes once."""
    first, *rest = group
    lefts = [frozenset([first, *chosen]) for size in range(len(rest)) for chosen in combinations(rest, size)]
    return [(left, frozenset(group) - left) for left in lefts]


def _sums_of_two(left: Float64Array, right: Float64Array, dtype: str) -> Float64Array:
    """Adds each of the left values to each of the right ones, (K, n) and (L, n), in T and in the wider type."""
    a, b = left[:, None], right[None, :]
    with np.errstate(over="ignore", invalid="ignore"):
        plain = (a + b).reshape(-1, left.shape[1])
    if dtype == "float64":
        return plain
    traced = sum_to_odd(a, b).reshape(plain.shape)
    wider = float_type(dtype).wider
    return np.concatenate([round_to(traced, dtype), plain if wider == "float64" else round_to(traced, wider)])


def _deduplicated(candidates: Float64Array) -> Float64Array:
    """Drops what is repeated within a column. Columns that need fewer rows than the longest one repeat a value."""
    if len(candidates) < 2:
        return candidates
    ordered = np.sort(candidates, axis=0)
    is_new = np.ones(ordered.shape, dtype=np.bool_)
    is_new[1:] = ~same_value(ordered[1:], ordered[:-1])
    different = np.count_nonzero(is_new, axis=0)
    # NaN sorts last, behind the values that stay.
    kept = np.sort(np.where(is_new, ordered, np.nan), axis=0)[: different.max(initial=1)]
    return np.where(np.arange(len(kept))[:, None] < different, kept, ordered[0])
