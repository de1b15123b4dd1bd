"""The hooks that average the gradients over the ranks, in full and in half precision.

Every hook here follows the same three steps: bring the bucket into the dtype that travels, let
``average`` take the mean over the process group, and give the result back in the bucket's own dtype.
"""

# No `from __future__ import annotations` here: DistributedDataParallel.register_comm_hook compares the annotation
# of `bucket` with the class dist.GradBucket, and refuses a string. Any bucket with its methods will do.

from collections.abc import Callable
from typing import TypeVar

import torch
import torch.distributed as dist
from torch.futures import Future

State = TypeVar("State")
Hook = Callable[[State, dist.GradBucket], Future[torch.Tensor]]


def average(tensor: torch.Tensor, group: dist.ProcessGroup | None) -> Future[torch.Tensor]:
    """Takes the mean of ``tensor`` over the ranks of ``group`` (None: the world), in place.

    Each rank divides before the sum is taken. So the mean of values near the end of the dtype's range
    stays finite; the price is that values at the small end lose bits.

    Args:
        tensor: Any shape, dtype and device that the backend can reduce; the same on every rank. Overwritten.
        group: The process group, or None for the world group.

    Returns:
        A future of ``tensor``, complete when the mean is in it.
    """
    group = group if group is not None else dist.group.WORLD
    tensor.div_(dist.get_world_size(group))
    work = dist.all_reduce(tensor, group=group, async_op=True)

    def mean(reduced: Future[list[torch.Tensor]]) -> torch.Tensor:
        reduced.value()  # raises if the collective failed; for a complex tensor it is a real view
        return tensor

    averaged: Future[torch.Tensor] = work.get_future().then(mean)
    return averaged


def allreduce_hook(process_group: dist.ProcessGroup | None, bucket: dist.GradBucket) -> Future[torch.Tensor]:
    """Averages the bucket over the ranks, as data-parallel training does without a hook.

    Steps:
        1. Divide the buffer by the number of ranks in the group.
        2. Allreduce it with SUM.

    Args:
        process_group: The ranks to average over; None means the world group.
        bucket: Its buffer is overwritten with the result.

    Returns:
        A future of the buffer: shape ``(n,)`` and the bucket's dtype.

    Clauses:
        ALLREDUCE-MEAN (MUST, 1.11): The result is the mean of the buffers over the ranks, within the rounding of
            one division and of a sum in any order.
        ALLREDUCE-EXACT (SHOULD, 1.11): For up to 4 ranks the result is, bit for bit, one that some order of summation
            gives, with the division before or after.
        ALLREDUCE-ONE-RANK (MUST, 1.11): With one rank the result equals the buffer, bit for bit.
        ALLREDUCE-AS-DDP (SHOULD, 1.11): The result is what DistributedDataParallel computes without a hook: the same
            bits for one or two ranks, within the rounding of two orders of summation for more.
        ALLREDUCE-NONE-IS-WORLD (MUST, 1.11): The state None gives the same result as the world group.
        ALLREDUCE-GROUP (MUST, 1.11): With a subgroup as state the mean is taken over its members alone, the divisor
            is its size, and a rank outside it neither takes part nor changes.
        ALLREDUCE-NONFINITE (MUST, 1.11): An infinity or NaN on any rank gives what IEEE arithmetic makes of
            the sum, on every rank, and leaves all other elements alone.
        ALLREDUCE-NO-OVERFLOW (SHOULD, 1.11): The mean of values up to 0.95 of the dtype's largest number is finite,
            although their sum is not.
        ALLREDUCE-WIRE (MUST, 1.11): Every step sends the bucket once, in its own dtype, and nothing else.
        ALLREDUCE-SIGNED-ZERO (MAY, 1.11): The mean of negative zeros may be a zero of either sign.

    Example:
        With one rank the mean is the buffer itself.

        >>> bucket = GradBucket(0, torch.tensor([1.0, -2.0]), [(2,)], is_last=True)
        >>> allreduce_hook(None, bucket).wait()
        tensor([ 1., -2.])

    Source:
        https://docs.pytorch.org/docs/1.11/ddp_comm_hooks.html (allreduce_hook)
    """
    return average(bucket.buffer(), process_group)


def fp16_compress_hook(process_group: dist.ProcessGroup | None, bucket: dist.GradBucket) -> Future[torch.Tensor]:
    """Averages the bucket in float16, which halves the traffic of float32 gradients.

    float16 has 11 significant bits and ends at 65504. A larger gradient becomes infinite even if the
    mean would fit, because the cast comes first.

    Steps:
        1. Cast the buffer to float16.
        2. Divide by the number of ranks in the group.
        3. Allreduce with SUM, in float16.
        4. Cast the result back to the buffer's dtype.

    Args:
        process_group: The ranks to average over; None means the world group.
        bucket: Its buffer is overwritten with the result.

    Returns:
        A future of the buffer: shape ``(n,)`` and the bucket's dtype.

    Clauses:
        FP16-CAST-FIRST (MUST, 1.11): The buffer is cast to float16 before it is divided, so a value beyond
            float16's range becomes infinite even if its mean would fit.
        FP16-DIVIDE-BEFORE-SUM (MUST, 1.11): The division comes before the sum, so the mean of values whose sum is
            beyond float16's range is finite: 60000 on every rank gives 60000.
        FP16-UNDERFLOW (MAY, 1.11): A share of at most half of float16's smallest number may vanish or be kept: 6e-8
            on both of two ranks gives 0, or 6e-8 as float16.
        FP16-MEAN (MUST, 1.11): The result is the mean over the ranks, within the rounding of one cast to float16, one
            division and a sum in float16 in any order.
        FP16-EXACT (SHOULD, 1.11): For up to 4 ranks the result is, bit for bit, one that cast, division and some
            order of summation give; for two ranks and normal numbers there is one.
        FP16-WIRE (MUST, 1.11): Every element of the result is a float16 number.
        FP16-SENDS (MUST, 1.11): Every step sends the bucket once, in float16, and nothing else.
        FP16-DTYPE (MUST, 1.11): The result has the dtype of the bucket's buffer.
        FP16-ONE-RANK (MUST, 1.11): With one rank the result is the buffer cast to float16 and back.
        FP16-SAME-TYPE (MUST, 1.11): On a float16 bucket the hook equals allreduce_hook, bit for bit.
        FP16-NONE-IS-WORLD (MUST, 1.11): The state None gives the same result as the world group.
        FP16-GROUP (MUST, 1.11): With a subgroup as state the mean is taken over its members alone, the divisor is
            its size, and a rank outside it neither takes part nor changes.
        FP16-NONFINITE (MUST, 1.11): An infinity or NaN on any rank gives what IEEE arithmetic makes of the sum, on
            every rank, and leaves all other elements alone.

    Example:
        >>> bucket = GradBucket(0, torch.tensor([0.1, 65504.0, 1e5]), [(3,)], is_last=True)
        >>> fp16_compress_hook(None, bucket).wait().tolist()
        [0.0999755859375, 65504.0, inf]

    Source:
        https://docs.pytorch.org/docs/1.11/ddp_comm_hooks.html (fp16_compress_hook)
    """
    return _average_compressed(torch.float16, process_group, bucket)


def bf16_compress_hook(process_group: dist.ProcessGroup | None, bucket: dist.GradBucket) -> Future[torch.Tensor]:
    """Averages the bucket in bfloat16, which halves the traffic of float32 gradients.

    bfloat16 has the range of float32, but only 8 significant bits.

    Steps:
        1. Cast the buffer to bfloat16.
        2. Divide by the number of ranks in the group.
        3. Allreduce with SUM, in bfloat16.
        4. Cast the result back to the buffer's dtype.

    Args:
        process_group: The ranks to average over; None means the world group.
        bucket: Its buffer is overwritten with the result.

    Returns:
        A future of the buffer: shape ``(n,)`` and the bucket's dtype.

    Clauses:
        BF16-CAST-FIRST (MUST, 1.11): The buffer is cast to bfloat16 before it is divided, so a value beyond
            bfloat16's range becomes infinite even if its mean would fit.
        BF16-DIVIDE-BEFORE-SUM (MUST, 1.11): The division comes before the sum, so the mean of values whose sum is
            beyond bfloat16's range is finite: 3e38 on every rank gives 3e38 rounded to bfloat16.
        BF16-UNDERFLOW (MAY, 1.11): A share of at most half of bfloat16's smallest number may vanish or be kept: 9e-41
            on both of two ranks gives 0, or 9e-41 as bfloat16.
        BF16-MEAN (MUST, 1.11): The result is the mean over the ranks, within the rounding of one cast to bfloat16, one
            division and a sum in bfloat16 in any order.
        BF16-EXACT (SHOULD, 1.11): For up to 4 ranks the result is, bit for bit, one that cast, division and some
            order of summation give; for two ranks and normal numbers there is one.
        BF16-WIRE (MUST, 1.11): Every element of the result is a bfloat16 number.
        BF16-SENDS (MUST, 1.11): Every step sends the bucket once, in bfloat16, and nothing else.
        BF16-DTYPE (MUST, 1.11): The result has the dtype of the bucket's buffer.
        BF16-ONE-RANK (MUST, 1.11): With one rank the result is the buffer cast to bfloat16 and back.
        BF16-SAME-TYPE (MUST, 1.11): On a bfloat16 bucket the hook equals allreduce_hook, bit for bit.
        BF16-NONE-IS-WORLD (MUST, 1.11): The state None gives the same result as the world group.
        BF16-GROUP (MUST, 1.11): With a subgroup as state the mean is taken over its members alone, the divisor is
            its size, and a rank outside it neither takes part nor changes.
        BF16-NONFINITE (MUST, 1.11): An infinity or NaN on any rank gives what IEEE arithmetic makes of the sum, on
            every rank, and leaves all other elements alone.

    Example:
        >>> bucket = GradBucket(0, torch.tensor([0.1, 257.0, 1e5]), [(3,)], is_last=True)
        >>> bf16_compress_hook(None, bucket).wait().tolist()
        [0.10009765625, 256.0, 99840.0]

    Source:
        https://docs.pytorch.org/docs/1.11/ddp_comm_hooks.html (bf16_compress_hook)
    """
    return _average_compressed(torch.bfloat16, process_group, bucket)


def _average_compressed(
    dtype: torch.dtype, process_group: dist.ProcessGroup | None, bucket: dist.GradBucket
) -> Future[torch.Tensor]:
    buffer = bucket.buffer()
    _check_real(buffer)
    compressed = buffer.to(dtype)
    return average(compressed, process_group).then(lambda mean: buffer.copy_(mean.value()))


def _check_real(buffer: torch.Tensor) -> None:
    """Refuses complex buffers: a cast to a half-precision type would drop the imaginary parts."""
    if buffer.is_complex():
        raise TypeError(f"the bucket must have a real dtype to be compressed, got {buffer.dtype}")


def fp16_compress_wrapper(hook: Hook[State]) -> Hook[State]:
    """Makes any hook see, and send, its bucket in float16.

    Steps:
        1. Cast the buffer to float16 and put it into the bucket.
        2. Call the inner hook with the state and that bucket.
        3. When its future completes, put the bucket's own buffer back and cast the result into it.

    Args:
        hook: The inner hook, with the state it expects.

    Returns:
        A hook with the same state. Its future has the buffer: shape ``(n,)`` and the bucket's own dtype.

    Clauses:
        FP16-WRAPPER-IDENTITY (MUST, 1.11): fp16_compress_wrapper(allreduce_hook) equals fp16_compress_hook, bit for
            bit.
        FP16-WRAPPER-INNER (MUST, 1.11): The inner hook sees a bucket whose buffer and gradients are the float16 cast
            of the gradients, and gets the state itself.
        FP16-WRAPPER-SENDS (MUST, 1.11): Around allreduce_hook every step sends the bucket once, in float16, and
            nothing else.
        FP16-WRAPPER-DTYPE (MUST, 1.11): The result has the dtype that the bucket's buffer had before.
        FP16-WRAPPER-NOOP (MUST, 1.11): Around noop_hook the result is the rank's own buffer, cast to float16 and back.
        FP16-WRAPPER-NEST (SHOULD, 1.11): Around another wrapper the result is that of both casts, the outer first.
        FP16-WRAPPER-REUSE (SHOULD, 1.11): A bucket that is used again for the next step gives that step's result, and
            has its own buffer again after each.

    Example:
        >>> bucket = GradBucket(0, torch.tensor([0.1, 1e5]), [(2,)], is_last=True)
        >>> fp16_compress_wrapper(allreduce_hook)(None, bucket).wait().tolist()
        [0.0999755859375, inf]

    Source:
        https://docs.pytorch.org/docs/1.11/ddp_comm_hooks.html (fp16_compress_wrapper)
    """
    return _compress_wrapper(torch.float16, hook)


def bf16_compress_wrapper(hook: Hook[State]) -> Hook[State]:
    """Makes any hook see, and send, its bucket in bfloat16.

    Steps:
        1. Cast the buffer to bfloat16 and put it into the bucket.
        2. Call the inner hook with the state and that bucket.
        3. When its future completes, put the bucket's own buffer back and cast the result into it.

    Args:
        hook: The inner hook, with the state it expects.

    Returns:
        A hook with the same state. Its future has the buffer: shape ``(n,)`` and the bucket's own dtype.

    Clauses:
        BF16-WRAPPER-IDENTITY (MUST, 1.11): bf16_compress_wrapper(allreduce_hook) equals bf16_compress_hook, bit for
            bit.
        BF16-WRAPPER-INNER (MUST, 1.11): The inner hook sees a bucket whose buffer and gradients are the bfloat16 cast
            of the gradients, and gets the state itself.
        BF16-WRAPPER-SENDS (MUST, 1.11): Around allreduce_hook every step sends the bucket once, in bfloat16, and
            nothing else.
        BF16-WRAPPER-DTYPE (MUST, 1.11): The result has the dtype that the bucket's buffer had before.
        BF16-WRAPPER-NOOP (MUST, 1.11): Around noop_hook the result is the rank's own buffer, cast to bfloat16 and back.
        BF16-WRAPPER-NEST (SHOULD, 1.11): Around another wrapper the result is that of both casts, the outer first.
        BF16-WRAPPER-REUSE (SHOULD, 1.11): A bucket that is used again for the next step gives that step's result, and
            has its own buffer again after each.

    Example:
        >>> bucket = GradBucket(0, torch.tensor([0.1, 257.0]), [(2,)], is_last=True)
        >>> bf16_compress_wrapper(allreduce_hook)(None, bucket).wait().tolist()
        [0.10009765625, 256.0]

    Source:
        https://docs.pytorch.org/docs/1.11/ddp_comm_hooks.html (bf16_compress_wrapper)
    """
    return _compress_wrapper(torch.bfloat16, hook)


def _compress_wrapper(dtype: torch.dtype, hook: Hook[State]) -> Hook[State]:
    def compressed_hook(state: State, bucket: dist.GradBucket) -> Future[torch.Tensor]:
        own_buffer = bucket.buffer()
        _check_real(own_buffer)
        bucket.set_buffer(own_buffer.to(dtype))

        def decompress(result: Future[torch.Tensor]) -> torch.Tensor:
            # The bucket gets its own buffer back only now: the inner hook's callbacks may still look at it.
            bucket.set_buffer(own_buffer)
            return own_buffer.copy_(result.value())

        try:
            return hook(state, bucket).then(decompress)
        except BaseException:
            bucket.set_buffer(own_buffer)
            raise

    return compressed_hook
