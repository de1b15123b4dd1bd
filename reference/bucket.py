"""The bucket that data-parallel training hands to a communication hook."""

from collections.abc import Sequence

import torch


class GradBucket:
    """One bucket of gradients: a flat tensor, and the parameters whose gradients lie in it.

    Data-parallel training copies the gradients of several parameters into one flat tensor, so that one
    collective moves them all. The hook gets that tensor with ``buffer()`` and sees the single gradients
    in it with ``gradients()``.

    Args:
        index: Place of this bucket among the buckets of the model, from 0, in the order in which they are
            handed to the hook.
        buffer: The flat tensor, one-dimensional and contiguous, of any floating-point or complex dtype on any
            device. A sparse buffer (the gradient of one sparse parameter) is allowed too.
        parameters: The parameters whose gradients the buffer holds, in order, or just their shapes. The
            numbers of elements add up to the buffer's length.
        is_last: Whether this is the last bucket of the backward pass.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: ``index`` is negative, ``buffer`` is not flat and contiguous, or ``parameters`` does
            not add up to the length of ``buffer``. The message names the argument.

    Clauses:
        BUCKET-ARGUMENTS (SHOULD, 1.11): A constructor refuses wrong arguments with a TypeError or ValueError that
            names the argument.

    Example:
        >>> bucket = GradBucket(0, torch.arange(6.0), [(2, 2), (2,)], is_last=True)
        >>> bucket.gradients()
        [tensor([[0., 1.],
                [2., 3.]]), tensor([4., 5.])]
        >>> bucket.gradients()[1].fill_(7.0)
        tensor([7., 7.])
        >>> bucket.buffer()
        tensor([0., 1., 2., 3., 7., 7.])

    Source:
        https://docs.pytorch.org/docs/1.11/ddp_comm_hooks.html (torch.distributed.GradBucket)
    """

    def __init__(
        self,
        index: int,
        buffer: torch.Tensor,
        parameters: Sequence[torch.Tensor | Sequence[int]],
        is_last: bool,
    ) -> None:
        if not isinstance(index, int) or isinstance(index, bool):
            raise TypeError(f"index must be an int, got {type(index).__name__}")
        if index < 0:
            raise ValueError(f"index must be 0 or more, got {index}")
        if not isinstance(is_last, bool):
            raise TypeError(f"is_last must be a bool, got {type(is_last).__name__}")
        _check_flat("buffer", buffer)

        self._index = index
        self._is_last = is_last
        self._buffer = buffer
        self._parameters = _as_parameters(parameters, buffer)

        numel = sum(parameter.numel() for parameter in self._parameters)
        if numel != buffer.numel():
            raise ValueError(
                f"parameters must have as many elements as buffer: {numel} found, {buffer.numel()} expected"
            )

    def index(self) -> int:
        """The bucket's place in the order in which buckets are handed to the hook, from 0.

        Clauses:
            BUCKET-INDEX (MUST, 1.11): index() is an int, the place of the bucket among the buckets of the model,
                from 0.
        """
        return self._index

    def is_last(self) -> bool:
        """Whether this bucket is the last one handed to the hook in this backward pass.

        Clauses:
            BUCKET-IS-LAST (MUST, 1.11): is_last() is a bool, true for the bucket with the highest index and for no
                other.
        """
        return self._is_last

    def buffer(self) -> torch.Tensor:
        """The flat tensor with all gradients of the bucket, not divided by anything yet.

        Clauses:
            BUCKET-BUFFER (MUST, 1.11): buffer() is a one-dimensional contiguous tensor with one element for each
                element of the parameters, and is the same memory at every call.
        """
        return self._buffer

    def gradients(self) -> list[torch.Tensor]:
        """The gradient of each parameter, as views of ``buffer()``. Empty for a sparse buffer.

        A parameter that is dense in memory, whatever the order of its dimensions (``channels_last``, say),
        lies in the buffer as it lies in its own memory, so its view has its strides. Any other
        parameter lies there in row-major order.

        Clauses:
            BUCKET-GRADIENT-SHAPES (MUST, 1.11): gradients() has one tensor for each parameter, in the order of
                parameters(), with the parameter's shape and the buffer's dtype.
            BUCKET-GRADIENT-VIEWS (MUST, 1.11): The gradients are views: a value written to one shows in buffer(), and
                a value written to buffer() shows in them.
            BUCKET-GRADIENT-COVER (MUST, 1.11): The gradients follow each other in buffer() and cover each element of
                it once.
            BUCKET-LAYOUT (SHOULD, 1.11): The gradient of a parameter that is dense in memory has the parameter's
                strides, channels_last for one.
        """
        if self._buffer.is_sparse:
            return []
        views, start = [], 0
        for parameter in self._parameters:
            part = self._buffer[start : start + parameter.numel()]
            views.append(_view_like(part, parameter))
            start += parameter.numel()
        return views

    def parameters(self) -> list[torch.Tensor]:
        """The model's parameters whose gradients lie in this bucket, in order.

        A bucket built from shapes has stand-ins that take no memory.

        Clauses:
            BUCKET-PARAMETERS (MUST, 1.11): parameters() has the very parameters of the bucket, in the order of their
                gradients.
        """
        return list(self._parameters)

    def set_buffer(self, buffer: torch.Tensor) -> None:
        """Replaces the flat tensor; ``gradients()`` are views of the new one from then on.

        Args:
            buffer: A flat tensor of the same length. Its dtype may differ, which is how a wrapper compresses.

        Raises:
            TypeError: ``buffer`` is not a tensor.
            ValueError: ``buffer`` is not flat and contiguous, or of another length.

        Clauses:
            BUCKET-SET-BUFFER (MUST, 1.11): After set_buffer(t), buffer() is t itself, also when its dtype is another
                one.
            BUCKET-SET-GRADIENTS (MUST, 1.11): After set_buffer(t), gradients() are views of t in its dtype.

        Example:
            >>> bucket = GradBucket(0, torch.zeros(2), [(2,)], is_last=True)
            >>> bucket.set_buffer(torch.ones(2, dtype=torch.float16))
            >>> bucket.gradients()
            [tensor([1., 1.], dtype=torch.float16)]
        """
        _check_flat("buffer", buffer)
        if buffer.numel() != self._buffer.numel():
            raise ValueError(
                f"buffer must have {self._buffer.numel()} elements like the one it replaces, got {buffer.numel()}"
            )
        self._buffer = buffer


def _check_flat(name: str, tensor: torch.Tensor) -> None:
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"{name} must be a torch.Tensor, got {type(tensor).__name__}")
    if tensor.is_sparse:
        return
    if tensor.dim() != 1:
        raise ValueError(f"{name} must have one dimension, got shape {tuple(tensor.shape)}")
    if not tensor.is_contiguous():
        raise ValueError(f"{name} must be contiguous, got stride {tensor.stride()}")


def _as_parameters(parameters: Sequence[torch.Tensor | Sequence[int]], buffer: torch.Tensor) -> list[torch.Tensor]:
    if isinstance(parameters, torch.Tensor | str) or not isinstance(parameters, Sequence):
        raise TypeError(f"parameters must be a sequence of tensors or shapes, got {type(parameters).__name__}")
    return [_as_parameter(place, parameter, buffer) for place, parameter in enumerate(parameters)]


def _as_parameter(place: int, parameter: torch.Tensor | Sequence[int], buffer: torch.Tensor) -> torch.Tensor:
    if isinstance(parameter, torch.Tensor):
        return parameter
    try:
        shape = torch.Size(parameter)
    except TypeError:
        raise TypeError(f"parameters[{place}] must be a tensor or a shape, got {parameter!r}") from None
    if any(length < 0 for length in shape):
        raise ValueError(f"parameters[{place}] must have lengths of 0 or more, got {tuple(shape)}")
    return torch.zeros((), dtype=buffer.dtype, device=buffer.device).expand(shape)


def _view_like(part: torch.Tensor, parameter: torch.Tensor) -> torch.Tensor:
    """Views the flat ``part`` with the shape of ``parameter``, and with its strides where it is dense."""
    dense_stride = torch.empty_like(parameter, device="meta").stride()
    if dense_stride == parameter.stride():
        return part.as_strided(parameter.shape, dense_stride)
    return part.view(parameter.shape)
