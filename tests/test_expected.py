"""Rounding, the mean, infinities and NaN, and the witnesses, each against an independent computation."""

import doctest
import importlib
import subprocess
import sys
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
import torch

from commhooks.conformance.expected import (
    FLOAT_TYPES,
    WITNESSES,
    Witness,
    classify,
    compressed_mean_class,
    deviation,
    exact_set,
    float_type,
    ieee_mean_class,
    in_exact_set,
    is_representable,
    mean,
    round_to,
    same_value,
    witnesses_for,
)

TORCH_TYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32, "float64": torch.float64}
HALF_TYPES = ("float16", "bfloat16")
MODULES = ("rounding", "nonfinite", "mean", "bounds", "exact", "witnesses")


@pytest.mark.parametrize("module", MODULES)
def test_docstring_examples_run(module: str) -> None:
    result = doctest.testmod(importlib.import_module(f"commhooks.conformance.expected.{module}"))
    assert result.attempted > 0
    assert result.failed == 0


def test_neither_torch_nor_the_reference_is_imported() -> None:
    program = (
        "import sys, commhooks.conformance.expected;"
        "print([name for name in sys.modules if name == 'torch' or name.startswith('commhooks.reference')])"
    )
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout == "[]\n"


@pytest.mark.parametrize("dtype", TORCH_TYPES)
def test_constants_agree_with_torch(dtype: str) -> None:
    kind, info = float_type(dtype), torch.finfo(TORCH_TYPES[dtype])
    assert (kind.largest, kind.smallest_normal) == (info.max, info.smallest_normal)
    assert kind.unit_roundoff == info.eps / 2
    assert kind.smallest_subnormal == info.smallest_normal * info.eps


def test_literal_constants() -> None:
    roundoffs = {name: kind.unit_roundoff for name, kind in FLOAT_TYPES.items()}
    etas = {name: kind.eta for name, kind in FLOAT_TYPES.items()}
    assert roundoffs == {"float16": 2**-11, "bfloat16": 2**-8, "float32": 2**-24, "float64": 2**-53}
    assert etas == {"float16": 2**-25, "bfloat16": 2**-134, "float32": 2**-150, "float64": 2**-1074}


def test_an_unknown_type_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown dtype 'half'"):
        float_type("half")


def all_half_numbers(dtype: str) -> np.ndarray:
    """All 65536 patterns of a half type, as float64."""
    patterns = torch.arange(-(2**15), 2**15).to(torch.int16)
    return patterns.view(TORCH_TYPES[dtype]).to(torch.float64).numpy()


@pytest.mark.parametrize("dtype", HALF_TYPES)
def test_all_half_numbers_stay_as_they_are(dtype: str) -> None:
    numbers = all_half_numbers(dtype)
    assert is_representable(numbers, dtype).all()
    assert (np.signbit(round_to(numbers, dtype)) == np.signbit(numbers))[~np.isnan(numbers)].all()


@pytest.mark.parametrize("dtype", HALF_TYPES)
def test_around_all_half_numbers_and_ties_rounding_agrees_with_torch(dtype: str) -> None:
    numbers = np.sort(all_half_numbers(dtype))
    numbers = numbers[np.isfinite(numbers)]
    largest = float_type(dtype).largest
    tie_to_infinity = largest * (1 + float_type(dtype).unit_roundoff / (2 - 2 * float_type(dtype).unit_roundoff))
    ties = np.concatenate([(numbers[1:] + numbers[:-1]) / 2, [tie_to_infinity, -tie_to_infinity]])
    points = np.concatenate([numbers, ties]).astype(np.float32)
    around = np.concatenate(
        [points, np.nextafter(points, np.float32(np.inf)), np.nextafter(points, -np.float32(np.inf))]
    )
    by_torch = torch.from_numpy(around).to(TORCH_TYPES[dtype]).to(torch.float64).numpy()
    rounded = round_to(around, dtype)
    assert (rounded == by_torch).all()
    assert (np.signbit(rounded) == np.signbit(by_torch)).all()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_rounding_from_float64_takes_the_nearest_in_one_step(dtype: str) -> None:
    """Just beside a tie: a detour by float32 would see the tie itself."""
    random = np.random.default_rng(0)
    kind = float_type(dtype)
    exponents = random.integers(int(np.log2(kind.smallest_subnormal)) - 2, int(np.log2(kind.largest)) - 1, 3000)
    number = round_to(random.uniform(1, 2, 3000) * 2.0**exponents, dtype)
    spacing = np.maximum(2.0 ** np.floor(np.log2(np.maximum(number, kind.smallest_normal))), kind.smallest_normal)
    spacing *= 2 * kind.unit_roundoff
    tie = number + spacing / 2
    assert (round_to(np.nextafter(tie, -np.inf), dtype) == number).all()
    assert (round_to(np.nextafter(tie, np.inf), dtype) == number + spacing).all()
    to_even = round_to(tie, dtype)
    assert ((to_even == number) | (to_even == number + spacing)).all()
    assert ((to_even / spacing) % 2 == 0).all()


def test_rounding_from_float64_agrees_with_numpy_for_float16() -> None:
    values = np.frombuffer(np.random.default_rng(0).bytes(8 * 100_000), dtype=np.float64)
    scaled = np.random.default_rng(1).standard_normal(100_000) * 2.0 ** np.random.default_rng(2).integers(
        -28, 17, 100_000
    )
    for array in (values, scaled):
        with np.errstate(over="ignore", invalid="ignore"):
            by_numpy = array.astype(np.float16).astype(np.float64)
        assert same_value(round_to(array, "float16"), by_numpy).all()


def test_rounding_keeps_shape_zero_signs_and_what_is_not_finite() -> None:
    for dtype in FLOAT_TYPES:
        rounded = round_to(np.array([[-0.0, np.inf], [-np.inf, np.nan]]), dtype)
        assert rounded.shape == (2, 2)
        assert np.signbit(rounded[0, 0])
        assert same_value(rounded, np.array([[0.0, np.inf], [-np.inf, np.nan]])).all()


def test_what_is_not_of_the_type_is_told() -> None:
    values = np.array([257.0, 65536.0, 0.1, 2.0**-150, 256.0])
    assert is_representable(values, "bfloat16").tolist() == [False, True, False, False, True]
    assert is_representable(values, "float16").tolist() == [True, False, False, False, True]
    assert is_representable(values, "float32").tolist() == [True, True, False, False, True]
    assert is_representable(values, "float64").all()


def exact_mean(column: np.ndarray) -> Fraction:
    return sum(map(Fraction, column.tolist()), Fraction(0)) / len(column)


def hard_sums(world_size: int) -> np.ndarray:
    """Draws float64 inputs that cancel, underflow and come near overflow; shape (W, 150)."""
    random = np.random.default_rng(world_size)
    mixed = random.standard_normal((world_size, 50)) * 2.0 ** random.integers(-300, 300, (world_size, 50))
    cancelling = random.standard_normal((world_size, 50))
    cancelling[-1] = -cancelling[:-1].sum(axis=0) * (1 + 2.0**-50)
    ends = random.choice([5e-324, -5e-324, 1e-310, 1.7e308, -1.7e308], (world_size, 50))
    return np.hstack([mixed, cancelling, ends])


@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 7, 64])
def test_mean_agrees_with_fractions(world_size: int) -> None:
    x = hard_sums(world_size)
    for found, column in zip(mean(x).tolist(), x.T, strict=True):
        right = exact_mean(column)
        magnitude = exact_mean(np.abs(column))
        assert abs(Fraction(found) - right) <= abs(right) / 2**52 + magnitude / 2**80 + Fraction(5e-324)


@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 7, 64])
def test_deviation_agrees_with_fractions(world_size: int) -> None:
    x = hard_sums(world_size)
    means = mean(x)
    for found in (means, np.nextafter(means, np.inf), means * (1 + 2.0**-30), np.zeros_like(means)):
        for measured, value, column in zip(deviation(found, x).tolist(), found.tolist(), x.T, strict=True):
            right = abs(Fraction(value) - exact_mean(column))
            magnitude = exact_mean(np.abs(column))
            assert abs(Fraction(measured) - right) <= right / 2**40 + magnitude / 2**80 + Fraction(5e-324)


def test_deviation_is_never_nan() -> None:
    finite, infinite, nan = [1.0, 1.0], [np.inf, 1.0], [np.inf, -np.inf]
    x = np.array([finite, finite, infinite, infinite, infinite, nan, nan]).T
    found = np.array([1e100, np.nan, np.inf, -np.inf, 1.0, np.nan, np.inf])
    assert deviation(found, x).tolist() == [1e100, np.inf, 0.0, np.inf, np.inf, 0.0, np.inf]


def test_what_is_not_finite_is_what_ieee_sums_give() -> None:
    choices = np.array([1.0, -2.0, np.inf, -np.inf, np.nan])
    x = np.array(np.meshgrid(choices, choices, choices)).reshape(3, -1)
    with np.errstate(invalid="ignore"):
        assert (ieee_mean_class(x) == classify(x.sum(axis=0))).all()
        assert same_value(mean(x), x.sum(axis=0))[classify(x.sum(axis=0)) != "finite"].all()


@pytest.mark.parametrize("wire", HALF_TYPES)
def test_after_the_cast_what_is_beyond_the_range_is_infinite(wire: str) -> None:
    choices = np.array([1.0, 60000.0, 65520.0, 3.4e38, -3.4e38], dtype=np.float32)
    x = np.array(np.meshgrid(choices, choices, choices)).reshape(3, -1)
    sent = torch.from_numpy(x).to(TORCH_TYPES[wire])
    by_torch = (sent / 3).sum(0).to(torch.float64).numpy()
    assert (compressed_mean_class(x, wire) == classify(by_torch)).all()


@pytest.mark.parametrize("wire", HALF_TYPES)
def test_two_ranks_have_one_compressed_result_for_normal_numbers(wire: str) -> None:
    random = np.random.default_rng(0)
    scale = 2.0 ** random.integers(-12, 14, (2, 5000))
    x = (random.choice([-1, 1], (2, 5000)) * random.uniform(1, 2, (2, 5000)) * scale).astype(np.float32)
    assert exact_set(x, "float32", wire=wire).shape == (1, 5000)


def test_zeros_of_either_sign_and_nans_are_the_same() -> None:
    x = np.array([[-0.0, np.nan], [-0.0, 1.0]])
    assert in_exact_set(np.array([0.0, np.nan]), x, "float32").all()
    assert not in_exact_set(np.array([np.nan, 1.0]), x, "float32").any()


def test_dividing_last_is_right_only_where_it_is_left_open() -> None:
    x, overflown = np.full((2, 1), 40000.0), np.array([np.inf])
    assert in_exact_set(overflown, x, "float16", divide="either").all()
    assert not in_exact_set(overflown, x, "float16").any()


def test_exact_sets_refuse_what_they_do_not_hold() -> None:
    with pytest.raises(ValueError, match="1 to 4 ranks"):
        exact_set(np.zeros((5, 1)), "float32")
    with pytest.raises(ValueError, match="divides first"):
        exact_set(np.zeros((2, 1)), "float32", wire="float16", divide="either")
    with pytest.raises(ValueError, match='expected "first" or "either"'):
        exact_set(np.zeros((2, 1)), "float32", divide="last")


def chain(parts: torch.Tensor) -> torch.Tensor:
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total


def cut_bits(x: torch.Tensor, wire: str) -> torch.Tensor:
    dropped = 16 if wire == "bfloat16" else 13
    return ((x.view(torch.int32) >> dropped) << dropped).view(torch.float32).to(TORCH_TYPES[wire])


def round_half_up(x: torch.Tensor, wire: str) -> torch.Tensor:
    dropped = 16 if wire == "bfloat16" else 13
    return cut_bits((x.view(torch.int32) + (1 << (dropped - 1))).view(torch.float32), wire)


FAULTY_HOOKS: dict[str, Callable[[torch.Tensor, str], torch.Tensor]] = {
    "divides in float32, then casts": lambda x, wire: chain((x / len(x)).to(TORCH_TYPES[wire])),
    "averages in float32, then casts": lambda x, wire: (chain(x) / len(x)).to(TORCH_TYPES[wire]),
    "averages in float32 and does not cast": lambda x, wire: chain(x) / len(x),
    "casts by cutting bits off": lambda x, wire: chain(cut_bits(x, wire) / len(x)),
    "casts with ties rounded away from zero": lambda x, wire: chain(round_half_up(x, wire) / len(x)),
}


@pytest.mark.parametrize(
    "witness", WITNESSES, ids=lambda witness: f"{witness.fault}-{witness.wire}-{witness.gradients}"
)
def test_each_witness_tells_its_fault_from_a_right_hook(witness: Witness) -> None:
    x = torch.from_numpy(witness.x)
    right = chain(x.to(TORCH_TYPES[witness.wire]) / len(x)).to(torch.float64).numpy()
    faulty = FAULTY_HOOKS[witness.fault](x, witness.wire).to(torch.float64).numpy()
    assert faulty.tolist() == [witness.faulty]
    assert np.float32(witness.gradients).astype(np.float64).tolist() == witness.x[:, 0].astype(np.float64).tolist()
    assert in_exact_set(right, witness.x, "float32", wire=witness.wire).all()
    assert not in_exact_set(faulty, witness.x, "float32", wire=witness.wire).any()


@pytest.mark.parametrize("wire", HALF_TYPES)
def test_each_fault_has_a_witness(wire: str) -> None:
    found = {(len(w.gradients), w.fault) for world_size in (2, 3, 4) for w in witnesses_for(wire, world_size)}
    assert {fault for _, fault in found} == set(FAULTY_HOOKS)
    assert {world_size for world_size, fault in found if fault == "averages in float32, then casts"} == {2, 3, 4}
    assert (3, "divides in float32, then casts") in found
