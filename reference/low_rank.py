"""One step of PowerSGD: which gradients it compresses, and how the mean of these becomes a product of thin matrices.

``powersgd.py`` says what the hooks do; the numbers of steps are those of ``powerSGD_hook``.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from .default_hooks import average

if TYPE_CHECKING:
    import torch.distributed as dist

    from .powersgd import PowerSGDState


@dataclass
class _Stack:
    """The gradients that are worked on as one batch. They are one alone unless tensors are batched.

    M, P and Q of a stack have three dimensions: the place in the stack, rows, columns.
    """

    gradients: list[torch.Tensor]
    rows: int
    columns: int
    rank: int

    @property
    def M_shape(self) -> tuple[int, int, int]:
        return len(self.gradients), self.rows, self.columns

    @property
    def P_shape(self) -> tuple[int, int, int]:
        return len(self.gradients), self.rows, self.rank

    @property
    def Q_shape(self) -> tuple[int, int, int]:
        return len(self.gradients), self.columns, self.rank


@dataclass
class Memory:
    """What one bucket carries to the next step: flat tensors, in which the stacks follow each other.

    ``drawn_Qs`` is the last Q that was drawn, and ``Qs`` the Q of the last step.
    """

    layout: list[tuple[int, ...]]
    rng: np.random.Generator
    errors: torch.Tensor | None = None
    drawn_Qs: torch.Tensor | None = None
    Qs: torch.Tensor | None = None


def approximate_mean(state: PowerSGDState, bucket: dist.GradBucket, gradients: list[torch.Tensor]) -> int:
    """Replaces each gradient by P Q^T, the approximation of its mean over the ranks (steps 3.1 to 3.7).

    Args:
        state: The settings, and the memory of the bucket.
        bucket: The bucket of the gradients.
        gradients: With two or more dimensions and one or more elements each, those of the same matrix shape side by
            side.

    Returns:
        The number of elements sent.
    """
    if not gradients:
        return 0
    stacks = _stack_gradients(state, gradients)
    memory = _recall(state, bucket, gradients[0])
    Ms = _matrices(state, memory, stacks)

    # 3.1
    if memory.Qs is None or memory.drawn_Qs is None or not state.warm_start:
        drawn = torch.from_numpy(memory.rng.standard_normal(sum(math.prod(stack.Q_shape) for stack in stacks)))
        memory.Qs = memory.drawn_Qs = drawn.to(gradients[0].dtype).to(gradients[0].device)
    # No column is zero here. Epsilon would only make the columns of small gradients smaller, in every step again.
    Qs = [
        _orthogonalize(_revive(Q, drawn_Q), epsilon=0)
        for Q, drawn_Q in zip(_split_Qs(memory.Qs, stacks), _split_Qs(memory.drawn_Qs, stacks), strict=True)
    ]
    # 3.2
    P_batch = gradients[0].new_empty(sum(math.prod(stack.P_shape) for stack in stacks))
    Ps = split(P_batch, [stack.P_shape for stack in stacks])
    for M, P, Q in zip(Ms, Ps, Qs, strict=True):
        torch.bmm(M, Q, out=P)
    # 3.3
    average(P_batch, state.process_group).wait()
    # 3.4
    Ps = [_orthogonalize(P, state.orthogonalization_epsilon) for P in Ps]
    # 3.5
    Q_batch = torch.empty_like(memory.Qs)
    Qs = _split_Qs(Q_batch, stacks)
    for M, P, Q in zip(Ms, Ps, Qs, strict=True):
        torch.bmm(M.mT, P, out=Q)
    # 3.6
    average(Q_batch, state.process_group).wait()
    memory.Qs = Q_batch
    # 3.7
    for stack, M, P, Q in zip(stacks, Ms, Ps, Qs, strict=True):
        for place, gradient in enumerate(stack.gradients):
            _write_product(P[place], Q[place], gradient)
            if state.use_error_feedback:
                M[place].sub_(gradient.flatten(1))
    return P_batch.numel() + Q_batch.numel()


def is_worth_compressing(state: PowerSGDState, gradient: torch.Tensor) -> bool:
    if gradient.dim() < 2:
        return False
    rows, columns = matrix_shape(gradient)
    compressed_numel = (rows + columns) * _approximation_rank(state, gradient)
    return compressed_numel * state.min_compression_rate < rows * columns


def matrix_shape(gradient: torch.Tensor) -> tuple[int, int]:
    return gradient.shape[0], math.prod(gradient.shape[1:])


def _approximation_rank(state: PowerSGDState, gradient: torch.Tensor) -> int:
    return min(state.matrix_approximation_rank, *matrix_shape(gradient))


def _stack_gradients(state: PowerSGDState, gradients: list[torch.Tensor]) -> list[_Stack]:
    if state.batch_tensors_with_same_shape:
        groups = [list(same_shape) for _, same_shape in itertools.groupby(gradients, key=matrix_shape)]
    else:
        groups = [[gradient] for gradient in gradients]
    return [_Stack(group, *matrix_shape(group[0]), _approximation_rank(state, group[0])) for group in groups]


def _recall(state: PowerSGDState, bucket: dist.GradBucket, like: torch.Tensor) -> Memory:
    """The memory of the bucket, on the device and in the dtype of ``like``; a new one if the bucket has changed.

    The comparison is of the shapes of all gradients in their order, so that no gradient gets the error of another.
    """
    index, layout = bucket.index(), [tuple(gradient.shape) for gradient in bucket.gradients()]
    if index not in state._memories:
        state._memories[index] = Memory(layout, np.random.default_rng([state.random_seed, index]))
    memory = state._memories[index]
    if memory.layout != layout:
        memory = state._memories[index] = Memory(layout, memory.rng)
    for name in ("errors", "drawn_Qs", "Qs"):
        tensor = getattr(memory, name)
        if tensor is not None:
            setattr(memory, name, tensor.to(like))
    return memory


def _matrices(state: PowerSGDState, memory: Memory, stacks: list[_Stack]) -> list[torch.Tensor]:
    """M of each stack: the gradients, with error feedback plus the errors, which become M in place."""
    if not state.use_error_feedback:
        gradients = [[gradient.flatten(1) for gradient in stack.gradients] for stack in stacks]
        return [one[0].unsqueeze(0) if len(one) == 1 else torch.stack(one) for one in gradients]
    if memory.errors is None:
        numel = sum(math.prod(stack.M_shape) for stack in stacks)
        memory.errors = stacks[0].gradients[0].new_zeros(numel)
    # An error that is not finite is that of a non-finite step. It would spoil all later ones.
    memory.errors.nan_to_num_(nan=0.0, posinf=0.0, neginf=0.0)
    Ms = split(memory.errors, [stack.M_shape for stack in stacks])
    for M, stack in zip(Ms, stacks, strict=True):
        for matrix, gradient in zip(M, stack.gradients, strict=True):
            matrix.add_(gradient.flatten(1))
    return Ms


def split(batch: torch.Tensor, shapes: Sequence[Sequence[int]]) -> list[torch.Tensor]:
    parts = torch.split(batch, [math.prod(shape) for shape in shapes])
    return [part.view(shape) for part, shape in zip(parts, shapes, strict=True)]


def _split_Qs(batch: torch.Tensor, stacks: list[_Stack]) -> list[torch.Tensor]:
    """Views of Q in a batch that holds each Q column by column, which makes M^T P many times faster on CPU."""
    transposed_shapes = [(len(stack.gradients), stack.rank, stack.columns) for stack in stacks]
    return [transposed.mT for transposed in split(batch, transposed_shapes)]


def _revive(Q: torch.Tensor, drawn_Q: torch.Tensor) -> torch.Tensor:
    """Replaces the columns of Q that are zero or not finite, which lead nowhere, by those that were drawn."""
    largest = Q.abs().amax(dim=-2, keepdim=True)
    return torch.where((largest > 0) & largest.isfinite(), Q, drawn_Q)


def _orthogonalize(matrices: torch.Tensor, epsilon: float) -> torch.Tensor:
    """Gives the columns of each matrix the length 1, at right angles to each other, and leaves their span.

    A column in which nothing is left after the earlier ones becomes an arbitrary direction, with epsilon a shorter
    or zero one. The half types have no QR decomposition, so that is done in float32.

    Args:
        matrices: Shape (number, n, r) with n >= r.
        epsilon: Added to the length that each column is divided by.
    """
    directions: torch.Tensor
    directions, triangles = torch.linalg.qr(matrices.float() if matrices.dtype != torch.float64 else matrices)
    if epsilon > 0:
        lengths = triangles.diagonal(dim1=-2, dim2=-1).abs().unsqueeze(-2)
        directions = directions * (lengths / (lengths + epsilon))
    return directions.to(matrices.dtype)


def _write_product(P: torch.Tensor, Q: torch.Tensor, gradient: torch.Tensor) -> None:
    if gradient.is_contiguous():
        torch.mm(P, Q.mT, out=gradient.view(len(P), -1))
    else:
        gradient.copy_((P @ Q.mT).view(gradient.shape))
