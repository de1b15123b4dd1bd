"""How data-parallel training puts parameters into buckets, and what it keeps for each bucket."""

from collections.abc import Mapping, Sequence

import torch
from torch import nn

from .bucket import GradBucket

MEBIBYTE = 2**20


def assign_to_buckets(
    parameters: Sequence[nn.Parameter],
    order: Sequence[int],
    sparse: frozenset[int],
    first_cap: float,
    cap: float,
) -> list[list[int]]:
    """Puts parameters into buckets, in the given order.

    A bucket takes parameters until it has reached its cap, so it exceeds the cap by less than its last
    parameter. Parameters of different dtypes or devices cannot share a flat tensor: each kind fills buckets
    of its own, and its first bucket has a cap of its own. A sparse gradient is a tensor by itself.

    Args:
        parameters: The parameters of the model.
        order: Places in ``parameters``: the order in which gradients are expected to become ready.
        sparse: Places of the parameters whose gradients are sparse.
        first_cap: Cap in bytes of the first bucket of each dtype and device.
        cap: Cap in bytes of all others.

    Returns:
        The buckets as lists of places in ``parameters``. They are sorted by their last parameter's place in
        ``order``: by the time at which they become ready.

    Example:
        Four parameters of 4 bytes each, last first, in buckets of 8 bytes.

        >>> parameters = [torch.nn.Parameter(torch.ones(1)) for _ in range(4)]
        >>> assign_to_buckets(parameters, [3, 2, 1, 0], frozenset(), first_cap=4, cap=8)
        [[3], [2, 1], [0]]
    """
    full: list[list[int]] = []
    filling: dict[tuple[torch.dtype, torch.device], list[int]] = {}
    caps: dict[tuple[torch.dtype, torch.device], float] = {}
    for place in order:
        if place in sparse:
            full.append([place])
            continue
        kind = (parameters[place].dtype, parameters[place].device)
        bucket = filling.setdefault(kind, [])
        bucket.append(place)
        if sum(_bytes(parameters[member]) for member in bucket) >= caps.setdefault(kind, first_cap):
            full.append(filling.pop(kind))
            caps[kind] = cap
    turn = {place: turn for turn, place in enumerate(order)}
    return sorted(full + list(filling.values()), key=lambda bucket: turn[bucket[-1]])


def _bytes(parameter: nn.Parameter) -> int:
    return parameter.numel() * parameter.element_size()


def sparse_parameters(module: nn.Module, parameters: Sequence[nn.Parameter]) -> frozenset[int]:
    """The places of the parameters whose gradients will be sparse: the weights of embeddings made with sparse=True."""
    weights = {
        id(layer.weight)
        for layer in module.modules()
        if isinstance(layer, nn.Embedding | nn.EmbeddingBag) and layer.sparse
    }
    return frozenset(place for place, parameter in enumerate(parameters) if id(parameter) in weights)


class BucketStorage:
    """The memory of one bucket, used again in every backward pass.

    Args:
        members: The bucket's parameters by their place in the model, in the bucket's order.
        names: Their names, for messages.
        is_sparse: Whether this is the bucket of one sparse gradient, which has no flat buffer.
        as_view: Whether ``.grad`` of each parameter shall be the view of the buffer itself.

    Attributes:
        members: As given.
    """

    def __init__(
        self, members: Mapping[int, nn.Parameter], names: Sequence[str], is_sparse: bool, as_view: bool
    ) -> None:
        self.members = members
        self._names = dict(zip(members, names, strict=True))
        self._is_sparse = is_sparse
        self._as_view = as_view
        first, *_ = members.values()
        numel = 0 if is_sparse else sum(parameter.numel() for parameter in members.values())
        self._buffer = torch.zeros(numel, dtype=first.dtype, device=first.device)
        # GradBucket decides where in the buffer each gradient lies, for the hook and for us.
        views = [] if is_sparse else GradBucket(0, self._buffer, list(members.values()), False).gradients()
        self._views = dict(zip(members, views, strict=False))

    def copy_in(self, place: int) -> None:
        """Copies one gradient into the buffer; a parameter without a gradient contributes zeros."""
        parameter = self.members[place]
        gradient = parameter.grad
        if gradient is not None and gradient.is_sparse != self._is_sparse:
            raise RuntimeError(
                f"the gradient of {self._names[place]} is {_kind(gradient.is_sparse)}, expected a "
                f"{_kind(self._is_sparse)} one: only weights of nn.Embedding(sparse=True) and "
                "nn.EmbeddingBag(sparse=True) that nothing else uses have sparse gradients"
            )
        if self._is_sparse:
            # A copy, so that a hook may work in place without touching .grad, as with a flat buffer.
            self._buffer = (
                torch.zeros_like(parameter, layout=torch.sparse_coo) if gradient is None else gradient.clone()
            )
            return
        view = self._views[place]
        if gradient is None:
            view.zero_()
            return
        if gradient.data_ptr() != view.data_ptr():
            view.copy_(gradient)
        if self._as_view:
            parameter.grad = view

    def for_hook(self, index: int, is_last: bool) -> GradBucket:
        """A new GradBucket around the buffer. New, so nothing that a hook puts into one reaches the next pass."""
        return GradBucket(index, self._buffer, list(self.members.values()), is_last)

    def copy_out(self, result: torch.Tensor, unused: frozenset[int]) -> None:
        """Gives each parameter its part of ``result``, except those that no rank has used."""
        if self._is_sparse:
            for place, parameter in self.members.items():
                if place not in unused:
                    parameter.grad = result.detach()
            return
        if result.data_ptr() != self._buffer.data_ptr():
            self._buffer.copy_(result)
        for place, parameter in self.members.items():
            if place not in unused:
                self._set_gradient(parameter, self._views[place])

    def _set_gradient(self, parameter: nn.Parameter, view: torch.Tensor) -> None:
        if self._as_view:
            parameter.grad = view
        elif parameter.grad is None:
            parameter.grad = view.clone()
        else:
            parameter.grad.copy_(view)


def _kind(is_sparse: bool) -> str:
    return "sparse" if is_sparse else "dense"
