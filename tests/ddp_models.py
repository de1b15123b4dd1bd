"""Models and inputs to try data-parallel training with."""

from __future__ import annotations

import torch
from torch import nn


class Embedded(nn.Module):
    def __init__(self, sparse: bool) -> None:
        super().__init__()
        self.embedding = nn.Embedding(20, 6, sparse=sparse)
        self.linear = nn.Linear(6, 3)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return self.linear(self.embedding(rows))


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(5, 5)
        self.second = nn.Linear(5, 5)
        self.second.weight = self.first.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x).tanh())


class MixedDtypes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.in_single, self.in_double, self.in_half = (
            nn.Linear(5, 5),
            nn.Linear(5, 5).double(),
            nn.Linear(5, 5).bfloat16(),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.in_half(self.in_double(self.in_single(x).double()).bfloat16())


class OddShapes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(0.5))
        self.empty = nn.Parameter(torch.empty(0, 4))
        self.lone_empty = nn.Parameter(torch.empty(0, 4, dtype=torch.float64))
        self.transposed = nn.Parameter(torch.randn(4, 5).t())
        self.linear = nn.Linear(5, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        nothing = self.empty.sum() + self.lone_empty.sum()
        return self.linear(x + (x @ self.transposed).mean() * self.scale) + nothing


class Complex(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(5, 3, dtype=torch.complex64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.view_as_real((x * 1j + x.square()) @ self.weight)


class Branches(nn.Module):
    """Uses a different layer on each rank, and never the last one."""

    def __init__(self) -> None:
        super().__init__()
        self.of_rank = nn.ModuleList([nn.Linear(3, 3, bias=False) for _ in range(2)])
        self.shared = nn.Linear(3, 3, bias=False)
        self.never = nn.Linear(3, 3, bias=False)

    def forward(self, x: torch.Tensor, branch: int) -> torch.Tensor:
        return self.shared(self.of_rank[branch](x))


class OrderByRank(nn.Module):
    """Applies its layers in another order than that of their definition, and on rank 1 in a third one."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(30, 30) for _ in range(4)])
        self.order = [2, 0, 3, 1] if rank == 0 else [1, 3, 0, 2]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.order:
            x = self.layers[layer](x)
        return x


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(40, 60), nn.ReLU(), nn.Linear(60, 60), nn.ReLU(), nn.Linear(60, 7))


def conv() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 3), nn.Flatten(), nn.Linear(100, 5)
    )


def small() -> nn.Module:
    return nn.Linear(3, 2, bias=False)


def inputs_of(shape: tuple[int, ...], step: int, rank: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(100 * step + rank))


def rows_of(step: int, rank: int) -> torch.Tensor:
    return torch.randint(20, (8,), generator=torch.Generator().manual_seed(100 * step + rank))
