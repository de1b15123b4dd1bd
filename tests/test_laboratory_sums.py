"""The laboratory's sums and options: they are what they say."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator

import pytest
import torch

from commhooks.conformance.lab import Options, sums


def test_orders_of_summation() -> None:
    """Each order gives its own bits, where rounding tells them apart."""
    terms = [torch.tensor([value] * 4) for value in (1e8, 1.0, -1e8, 1.0)]
    total = {order: sums.reduce(terms, summation=order).tolist() for order in ("rank", "reversed", "ring", "pairwise")}
    assert total == {
        "rank": [1.0] * 4,
        "reversed": [0.0] * 4,
        "pairwise": [0.0] * 4,
        "ring": [0.0, 1.0, 0.0, 1.0],
    }


def test_trees_are_all_drawn() -> None:
    """Over many seeds a tree gives exactly the results that binary trees over the ranks can give."""
    numbers = (3.0, 2049.0, -2047.0, 0.25)
    terms = [torch.tensor([value], dtype=torch.float16) for value in numbers]

    def trees(leaves: tuple[torch.Tensor, ...]) -> Iterator[torch.Tensor]:
        if len(leaves) == 1:
            yield leaves[0]
        for size in range(1, len(leaves)):
            for left, right in itertools.product(trees(leaves[:size]), trees(leaves[size:])):
                yield left + right

    possible = {tree.item() for order in itertools.permutations(terms) for tree in trees(order)}
    drawn = {sums.reduce(terms, summation="tree", seed=str(seed)).item() for seed in range(300)}
    assert drawn == possible
    assert len(possible) > 3


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_wide_sum_rounds_once(dtype: torch.dtype) -> None:
    """A sum in float64 is rounded once, where the way by float32 would round twice."""
    step = torch.finfo(dtype).eps
    terms = [torch.tensor([value], dtype=torch.float64) for value in (1.0, step / 2, step * 2.0**-30)]
    exact = terms[0] + terms[1] + terms[2]
    assert exact.to(dtype).item() == 1.0  # torch's cast rounds to float32 first, then down to even
    assert sums.rounded(exact, dtype).item() == 1.0 + step
    assert sums.rounded(-exact, dtype).item() == -1.0 - step
    special = torch.tensor([float("inf"), float("-inf"), 1e300, 0.0, -0.0, 1e-300], dtype=torch.float64)
    assert torch.equal(sums.rounded(special, dtype), special.float().to(dtype))


def test_precisions_and_operations() -> None:
    """The sum in the own type rounds each time; all operations of torch but PREMUL_SUM work."""
    terms = [torch.tensor([value], dtype=torch.float16) for value in (2048.0, 1.0, 1.0)]
    assert sums.reduce(terms, precision="own").item() == 2048.0
    assert sums.reduce(terms, precision="float32").item() == 2050.0
    whole = [torch.tensor([value]) for value in (6, 3)]
    found = {name: sums.reduce(whole, name).item() for name in sums.OPERATIONS}
    assert found == {"sum": 9, "avg": 4, "product": 18, "min": 3, "max": 6, "band": 2, "bor": 7, "bxor": 5}
    with pytest.raises(ValueError, match="cannot reduce with premul_sum"):
        sums.reduce(whole, "premul_sum")


def test_options_are_plain_data() -> None:
    """Options survive JSON, are drawn the same again, and refuse what they do not know."""
    options = Options.drawn(5, fail_at=3)
    assert Options.from_plain(json.loads(json.dumps(options.plain()))) == options == Options.drawn(5, fail_at=3)
    with pytest.raises(ValueError, match="summation is 'heap'; it must be one of rank, "):
        Options(summation="heap")
    with pytest.raises(ValueError, match="unknown options of the laboratory: colour"):
        Options.from_plain({"colour": 1})
