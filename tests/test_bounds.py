"""The bounds and the exact sets against right and wrong averages, simulated with torch's own arithmetic."""

import itertools
from collections.abc import Callable, Iterator
from fractions import Fraction

import numpy as np
import pytest
import torch

from commhooks.conformance.expected import (
    compressed_mean_bound,
    deviation,
    exact_set,
    float_type,
    in_exact_set,
    mean,
    mean_bound,
    round_to,
    within_compressed_bound,
    within_mean_bound,
)

# The tensors are small: more threads only wait for each other.
torch.set_num_threads(1)

TORCH_TYPES = {
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float32": torch.float32,
    "float64": torch.float64,
}
WIDER = {
    torch.float16: torch.float32,
    torch.bfloat16: torch.float32,
    torch.float32: torch.float64,
    torch.float64: torch.float64,
}
HALF_TYPES = ("float16", "bfloat16")
WORLD_SIZES = (1, 2, 3, 4, 5, 6, 7, 8, 16, 64, 1024)

Tensors = list[torch.Tensor]
Sum = Callable[[Tensors], torch.Tensor]


def chain(parts: Tensors) -> torch.Tensor:
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total


def reversed_chain(parts: Tensors) -> torch.Tensor:
    return chain(parts[::-1])


def halving(parts: Tensors) -> torch.Tensor:
    while len(parts) > 1:
        pairs = [a + b for a, b in zip(parts[0::2], parts[1::2], strict=False)]
        parts = pairs + parts[len(pairs) * 2 :]
    return parts[0]


def ring(parts: Tensors) -> torch.Tensor:
    """Each chunk's chain starts at another rank."""
    count = min(len(parts), 8)
    chunks = [part.tensor_split(count) for part in parts]
    orders = [
        parts_of_chunk[start:] + parts_of_chunk[:start]
        for start, parts_of_chunk in enumerate(map(list, zip(*chunks, strict=True)))
    ]
    return torch.cat([chain(order) for order in orders])


def wide_chain(parts: Tensors) -> torch.Tensor:
    narrow = parts[0].dtype
    return chain([part.to(WIDER[narrow]) for part in parts]).to(narrow)


def wide_pairs(parts: Tensors) -> torch.Tensor:
    """Two neighbours meet in the wider type, the rest in the type itself, as between and within machines."""
    pairs = [wide_chain(parts[start : start + 2]) for start in range(0, len(parts), 2)]
    return chain(pairs)


SUMS: tuple[Sum, ...] = (chain, reversed_chain, halving, ring, wide_chain, wide_pairs)
FEW_SUMS: tuple[Sum, ...] = (chain, halving, wide_chain)


def sums_for(world_size: int) -> tuple[Sum, ...]:
    return SUMS if world_size <= 16 else FEW_SUMS


def all_trees(parts: Tensors) -> Iterator[torch.Tensor]:
    """Joins any two of the partial sums, then goes on."""
    if len(parts) == 1:
        yield parts[0]
    for i, j in itertools.combinations(range(len(parts)), 2):
        rest = [part for k, part in enumerate(parts) if k not in (i, j)]
        yield from all_trees([*rest, parts[i] + parts[j]])


def divide(x: torch.Tensor, divisor: float) -> torch.Tensor:
    return x / divisor


def multiply_by_rounded_reciprocal(x: torch.Tensor, divisor: float) -> torch.Tensor:
    return x * torch.tensor(1 / divisor, dtype=x.dtype)


def multiply_by_wide_reciprocal(x: torch.Tensor, divisor: float) -> torch.Tensor:
    wide = WIDER[x.dtype]
    return (x.to(wide) * torch.tensor(1 / divisor, dtype=wide)).to(x.dtype)


DIVISIONS = (divide, multiply_by_rounded_reciprocal, multiply_by_wide_reciprocal)


def divide_first(x: torch.Tensor) -> Iterator[torch.Tensor]:
    """All simulated hooks that divide before they sum; x has shape (W, n)."""
    world_size = len(x)
    for division in DIVISIONS:
        shares = list(division(x, world_size))
        for take_sum in sums_for(world_size):
            yield take_sum(shares)
        if world_size <= 4:
            yield from all_trees(shares)
    wide = x.to(WIDER[x.dtype])
    for wide_shares in (wide / world_size, wide * torch.tensor(1 / world_size, dtype=wide.dtype)):
        for take_sum in (chain, halving):
            yield take_sum(list(wide_shares)).to(x.dtype)
        # The first rank sends its rounded share, the others add their unrounded ones.
        total = wide_shares[0].to(x.dtype)
        for share in wide_shares[1:]:
            total = (total.to(wide.dtype) + share).to(x.dtype)
        yield total


def divide_last(x: torch.Tensor) -> Iterator[torch.Tensor]:
    """All simulated hooks that divide after the sum, or by a power of two first and by the rest last."""
    world_size = len(x)
    for division in DIVISIONS:
        for take_sum in sums_for(world_size):
            yield division(take_sum(list(x)), world_size)
            if world_size > 2:
                yield division(take_sum(list(divide(x, 2))), world_size / 2)
    wide = x.to(WIDER[x.dtype])
    yield (chain(list(wide)) / world_size).to(x.dtype)


def as_tensor(x: np.ndarray, dtype: str) -> torch.Tensor:
    return torch.from_numpy(x).to(TORCH_TYPES[dtype])


def as_array(result: torch.Tensor) -> np.ndarray:
    return result.to(torch.float64).numpy()


def inputs(dtype: str, world_size: int) -> np.ndarray:
    """Draws float64 arrays of numbers of the type: ordinary, mixed, cancelling, subnormal and near the end."""
    kind = float_type(dtype)
    random = np.random.default_rng(world_size)
    n = 60 if world_size <= 4 else 20 if world_size <= 16 else 8
    shape = (world_size, n)
    ordinary = random.standard_normal(shape)
    low, high = np.log2(kind.smallest_subnormal), np.log2(kind.largest)
    mixed = ordinary * 2.0 ** random.integers(int(low), int(high) - 3, shape)
    cancelling = np.where(np.arange(world_size)[:, None] % 2, -1, 1) * (1 + ordinary / 64)
    subnormal = random.integers(-40, 41, shape) * kind.smallest_subnormal
    near_end = random.choice([-1.0, 1.0], n) * random.uniform(0.5, 1.0, shape) * kind.largest
    same_sign = random.uniform(1.0, 2.0, shape)
    special = random.choice([0.0, -0.0, 1.0, -1.0, kind.largest, -kind.largest, kind.smallest_normal], shape)
    return round_to(np.hstack([ordinary, mixed, cancelling, subnormal, near_end, same_sign, special]), dtype)


def finer_inputs(dtype: str, wire: str, world_size: int) -> np.ndarray:
    """Draws inputs of a type at the scales that matter for the wire type, more finely than the wire type has them."""
    x = inputs(wire, world_size)
    return round_to(x * np.random.default_rng(1).uniform(1 - 2.0**-9, 1 + 2.0**-9, x.shape), dtype)


@pytest.mark.parametrize("world_size", WORLD_SIZES)
@pytest.mark.parametrize("dtype", TORCH_TYPES)
def test_right_averages_are_within_the_bound_and_in_the_set(dtype: str, world_size: int) -> None:
    x = inputs(dtype, world_size)
    tensors = as_tensor(x, dtype)
    for order, results in (("first", divide_first(tensors)), ("either", divide_last(tensors))):
        right = exact_set(x, dtype, divide=order) if world_size <= 4 else None
        for result in map(as_array, results):
            assert within_mean_bound(result, x, dtype, divide=order).all()
            assert right is None or found_in(right, result).all()


@pytest.mark.parametrize("world_size", WORLD_SIZES)
@pytest.mark.parametrize(
    ("dtype", "wire"),
    [
        ("float32", "float16"),
        ("float32", "bfloat16"),
        ("float64", "float16"),
        ("float64", "bfloat16"),
        ("bfloat16", "float16"),
        ("float16", "bfloat16"),
        ("float16", "float16"),
    ],
)
def test_right_compressed_averages_are_within_the_bound_and_in_the_set(dtype: str, wire: str, world_size: int) -> None:
    x = finer_inputs(dtype, wire, world_size)
    sent = as_tensor(x, dtype).to(TORCH_TYPES[wire])
    right = exact_set(x, dtype, wire=wire) if world_size <= 4 else None
    for mean_sent in divide_first(sent):
        result = as_array(mean_sent.to(TORCH_TYPES[dtype]))
        assert within_compressed_bound(result, x, dtype, wire).all()
        assert right is None or found_in(right, result).all()


def found_in(candidates: np.ndarray, result: np.ndarray) -> np.ndarray:
    return ((candidates == result) | (np.isnan(candidates) & np.isnan(result))).any(axis=0)


@pytest.mark.parametrize("world_size", [2, 3, 4, 8])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_mean_bound_rejects_just_above_and_accepts_just_below(dtype: str, world_size: int) -> None:
    x = inputs(dtype, world_size)
    assert_sharp(lambda found: within_mean_bound(found, x, dtype), mean(x), mean_bound(x, dtype))


@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("wire", HALF_TYPES)
def test_compressed_bound_rejects_just_above_and_accepts_just_below(wire: str, world_size: int) -> None:
    x = np.random.default_rng(0).standard_normal((world_size, 300)).astype(np.float32)
    bound = compressed_mean_bound(x, "float32", wire)
    assert_sharp(lambda found: deviation(found, x) <= bound, mean(x), bound)


def assert_sharp(accepts: Callable[[np.ndarray], np.ndarray], exact: np.ndarray, bound: np.ndarray) -> None:
    assert (bound > 0).all()
    for sign in (-1, 1):
        assert accepts(exact + sign * bound * (1 - 1e-6)).all()
        assert not accepts(exact + sign * bound * (1 + 1e-6)).any()


def test_float64_bound_rejects_just_above_and_accepts_just_below() -> None:
    # With three times 2^52 as mean, found values one unit apart are a quarter of the bound apart.
    x = np.full((4, 1), 2.0**53)
    bound = float(mean_bound(x, "float64")[0])
    assert bound == pytest.approx(4.0)
    found = 2.0**53 + np.array([-5.0, -4.0, 4.0, 6.0])
    assert [within_mean_bound(np.array([value]), x, "float64").item() for value in found] == [False, True, True, False]


def test_one_rank_is_the_identity() -> None:
    x = inputs("float32", 1)
    assert (mean_bound(x, "float32") == 0).all()
    assert within_mean_bound(x[0], x, "float32").all()
    assert not within_mean_bound(np.nextafter(x[0], np.inf), x, "float32").any()
    assert (exact_set(x, "float32") == x).all()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_mean_bound_is_not_vacuous_for_two_ranks(dtype: str) -> None:
    assert worst_share_of_mean_bound(dtype, 2) > 0.4


@pytest.mark.parametrize("wire", HALF_TYPES)
def test_compressed_bound_is_not_vacuous_for_two_ranks(wire: str) -> None:
    assert worst_share_of_compressed_bound(wire, 2) > 0.4


def worst_share_of_mean_bound(dtype: str, world_size: int) -> float:
    x = round_to(1 + np.random.default_rng(0).exponential(0.1, (world_size, 4000)), dtype)
    results = divide_first(as_tensor(x, dtype))
    return max((deviation(as_array(result), x) / mean_bound(x, dtype)).max() for result in results)


def worst_share_of_compressed_bound(wire: str, world_size: int) -> float:
    x = round_to(1 + np.random.default_rng(0).exponential(0.1, (world_size, 4000)), "float32")
    results = divide_first(as_tensor(x, "float32").to(TORCH_TYPES[wire]))
    bound = compressed_mean_bound(x, "float32", wire)
    return max((deviation(as_array(result), x) / bound).max() for result in results)


@pytest.mark.parametrize("wire", HALF_TYPES)
def test_compressed_bound_is_not_vacuous_for_subnormal_numbers(wire: str) -> None:
    smallest = float_type(wire).smallest_subnormal
    x = round_to(np.random.default_rng(0).uniform(0, 6, (2, 4000)) * smallest, "float32")
    result = as_array(chain(list(as_tensor(x, "float32").to(TORCH_TYPES[wire]) / 2)))
    assert (deviation(result, x) / compressed_mean_bound(x, "float32", wire)).max() > 0.9


def test_a_rounded_reciprocal_comes_near_the_bound_without_its_factor() -> None:
    """Here nearly all roundings are as large as they get, and all down."""
    x = np.array([[3.04296875], [2.962890625], [0.0029010772705078125]])
    result = as_array(chain(list(multiply_by_rounded_reciprocal(as_tensor(x, "float16"), 3))))
    assert 0.99 < deviation(result, x).item() / (((1 + 2**-11) ** 3 - 1) * np.abs(x).mean()) < 1
    assert 0.7 < deviation(result, x).item() / mean_bound(x, "float16").item() < 0.8


@pytest.mark.parametrize(("world_size", "factors"), [(2, 2), (3, 4), (4, 4), (7, 8), (8, 8)])
def test_the_number_of_factors(world_size: int, factors: int) -> None:
    """A world size that is no power of two has one more for the reciprocal, and a cast has one more."""
    ones = np.ones((world_size, 1))
    growth, growth_with_cast = (1 + 2.0**-8) ** factors - 1, (1 + 2.0**-8) ** (factors + 1) - 1
    assert mean_bound(ones, "bfloat16").item() == pytest.approx(growth, rel=1e-11)
    assert compressed_mean_bound(ones, "float32", "bfloat16").item() == pytest.approx(growth_with_cast, rel=1e-11)
    zeros, underflows = np.zeros((world_size, 1)), (world_size + 1) * 2.0**-134
    assert mean_bound(zeros, "bfloat16").item() == pytest.approx(underflows * (1 + growth), rel=1e-11)


WRONG_AVERAGES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "sum": lambda x: x.sum(0),
    "divides by W - 1": lambda x: chain(list(x / (len(x) - 1))),
    "divides by W + 1": lambda x: chain(list(x / (len(x) + 1))),
    "divides twice": lambda x: chain(list(x / len(x))) / len(x),
    "own buffer": lambda x: x[0],
    "leaves a rank out": lambda x: chain(list(x[:-1] / len(x))),
    "sums in bfloat16": lambda x: chain(list((x / len(x)).to(torch.bfloat16))).to(x.dtype),
    "sums in float16": lambda x: chain(list((x / len(x)).to(torch.float16))).to(x.dtype),
}


@pytest.mark.parametrize("world_size", [2, 3, 4, 8])
@pytest.mark.parametrize("fault", WRONG_AVERAGES)
def test_wrong_averages_leave_the_bound_and_the_set(fault: str, world_size: int) -> None:
    x = round_to(np.random.default_rng(0).standard_normal((world_size, 100)), "float32")
    result = as_array(WRONG_AVERAGES[fault](as_tensor(x, "float32")))
    assert np.mean(~within_mean_bound(result, x, "float32")) > 0.9
    if world_size <= 4:
        assert np.mean(~in_exact_set(result, x, "float32", divide="either")) > 0.9


@pytest.mark.parametrize("wire", HALF_TYPES)
def test_overflow_is_rejected_where_dividing_first_prevents_it(wire: str) -> None:
    x = round_to(np.full((4, 1), float_type(wire).largest * 0.9), wire)
    overflown = as_array(chain(list(as_tensor(x, wire))) / 4)
    assert np.isinf(overflown).all()
    assert not within_compressed_bound(overflown, x, "float32", wire).any()
    assert not in_exact_set(overflown, x, "float32", wire=wire).any()
    assert within_mean_bound(overflown, x, wire, divide="either").all()


def test_three_times_the_largest_float16_overflows_rightly() -> None:
    x = np.full((3, 1), 65504.0)
    result = as_array(chain(list(as_tensor(x, "float16") / 3)))
    assert result.tolist() == [np.inf]
    assert within_mean_bound(result, x, "float16").all()
    assert in_exact_set(result, x, "float16").all()


def test_rounding_twice_from_float64_is_accepted() -> None:
    """By way of float32 the value becomes a tie and goes down to even; in one step it goes up."""
    x = np.full((2, 1), 2049 + 2.0**-20)
    for right in (2048.0, 2050.0):
        assert in_exact_set(np.array([right]), x, "float64", wire="float16").all()
        assert within_compressed_bound(np.array([right]), x, "float64", "float16").all()


def test_a_fused_multiply_add_in_float64_is_accepted() -> None:
    """The product of 1/3 is added unrounded: the exact value decides, here computed from integers."""
    x = np.random.default_rng(0).uniform(1, 2, (3, 200))
    reciprocal = Fraction(1 / 3)
    result = x[0] * (1 / 3)
    for row in x[1:]:
        fused = [
            float(Fraction(a) * reciprocal + Fraction(b)) for a, b in zip(row.tolist(), result.tolist(), strict=True)
        ]
        result = np.array(fused)
    assert in_exact_set(result, x, "float64").all()
    assert within_mean_bound(result, x, "float64").all()


@pytest.mark.parametrize(("shape", "message"), [((3,), "expected"), ((0, 3), "expected"), ((4097, 1), "4096")])
def test_a_wrong_shape_is_refused(shape: tuple[int, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        mean_bound(np.zeros(shape), "float32")
