"""PowerSGD: the mean of each gradient matrix, as a product of two thin matrices that travel in its place.

A gradient ``M`` of n rows and m columns is approximated by ``P Q^T`` of low rank: P has n rows, Q has m rows, and both
have r columns, so (n + m) r elements travel instead of n m. One step of power iteration finds them. ``P = MQ`` and
``Q = M^T P`` are linear in M: the mean over the ranks of either is that of the mean gradient, so two ordinary
allreduces do all of it. The names M, P and Q are those of the paper.

What the approximation leaves out is not lost. Each rank keeps it as its *error* and adds it to its next gradient
(error feedback), and each step begins with the Q of the step before (warm start), so the power iteration goes on from
step to step.

Every collective is waited for in the hook itself, never in a callback. So all ranks issue the same collectives in the
same order, however many buckets there are. The ranks agree bit for bit because each computes the same from the same
means; that takes the same processor and linear algebra library on every rank.
"""

# No `from __future__ import annotations` here: DistributedDataParallel.register_comm_hook compares the annotation
# of `bucket` with the class dist.GradBucket, and refuses a string. Any bucket with its methods will do.

import logging
import math

import torch
import torch.distributed as dist
from torch.futures import Future

from .debugging_hooks import noop_hook
from .default_hooks import allreduce_hook, average
from .low_rank import Memory, approximate_mean, is_worth_compressing, matrix_shape, split

logger = logging.getLogger(__name__)

SUPPORTED_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


class PowerSGDState:
    """The settings of PowerSGD, and what it carries from one step to the next.

    One state belongs to one model: its buckets are told apart by their index. A step is one backward pass.

    Args:
        process_group: The ranks to average over; None means the world group.
        matrix_approximation_rank: The approximation rank r, 1 or more: the number of columns of P and Q. A matrix with
            fewer rows or columns lowers it to their number. 1 or 2 is usual.
        start_powerSGD_iter: How many steps average without compression first. Data-parallel training lays its buckets
            out anew after its first iteration; error feedback and warm start need a layout that stays, hence 2 or more.
        min_compression_rate: How many times fewer elements P and Q must have than M, for M to be compressed.
        use_error_feedback: Whether each rank adds to its gradient what the last approximation left out.
        warm_start: Whether a step begins with the Q of the step before. Otherwise Q is drawn for each step.
        orthogonalization_epsilon: Added to the length that a column of P is divided by, 0 or more. It is not needed
            here, since nothing is divided by zero without it; columns of about its size or less become shorter than 1,
            so 0 is more accurate.
        random_seed: Seed of the generators of Q, 0 or more; the same on every rank. Each bucket has a generator of its
            own, seeded with this and the bucket's index.
        compression_stats_logging_frequency: How many steps lie between two log records of the statistics, 1 or more.
        batch_tensors_with_same_shape: Whether matrices of the same shape are multiplied and orthogonalized as one
            batch: fewer and larger operations for the same result. Without error feedback it copies the gradients.

    Attributes:
        iter: The number of steps so far.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: An argument is out of its range, or the first compressed step is too early for error feedback or
            warm start. The message names the argument.

    Clauses:
        PSGD-DEFAULTS (MUST, 1.11): Without arguments the rank is 1, the start 1000, the minimum rate 2, error feedback
            and warm start are on, epsilon and seed are 0, and the statistics are logged every 10000 steps.
        PSGD-BATCH-DEFAULT (MUST, 1.12): Without the argument, batch_tensors_with_same_shape is off.
        PSGD-ARGUMENTS (SHOULD, 1.11): The constructor refuses a wrong type with a TypeError and a value out of range
            with a ValueError, and the message names the argument.
        PSGD-START-REFUSED (MUST, 1.11): start_powerSGD_iter of 0 or 1 with error feedback or warm start is a
            ValueError.
        PSGD-START-ALLOWED (MUST, 1.11): start_powerSGD_iter of 0 or 1 with both off is accepted.
        PSGD-VANILLA (MUST, 1.11): In the steps before start_powerSGD_iter, counted from 0, both hooks equal
            allreduce_hook bit for bit.
        PSGD-START (MUST, 1.11): From step start_powerSGD_iter on, counted from 0, matrices are compressed.
        PSGD-STEP (MUST, 1.11): A step is counted once for each backward pass, with its last bucket, whatever the
            number of buckets.
        PSGD-SEED-RANKS (MUST, 1.11): Q is the same on all ranks with the same seed, whatever the global random state
            of each.
        PSGD-SEED-GLOBAL (MUST, 1.11): The global random states of Python, NumPy and PyTorch are as before the call.
        PSGD-SEED-REPEAT (SHOULD, 1.11): Two states with the same seed give the same bits.
        PSGD-SEED-OTHER (SHOULD, 1.11): Another random_seed gives another first approximation.
        PSGD-BATCH-SAME (MUST, 1.12): With batch_tensors_with_same_shape the result is what it would be without from
            the same Q, within the rounding of the matrix products.
        PSGD-PICKLE (MUST, 1.13): A state can be pickled and unpickled, in mid-run too, with a subgroup as well.
        PSGD-PICKLE-GROUP (MUST, 1.13): The process group is left out, and the loaded state has the default group.
        PSGD-PICKLE-SETTINGS (MUST, 1.13): The loaded state has the settings, the step and the statistics of the saved
            one.
        PSGD-PICKLE-RESUME (MUST, 1.13): A run that goes on from a loaded state equals the unbroken run bit for bit,
            with warm start and without, with error feedback and without.
        PSGD-BOUNDED (SHOULD, 1.11): The state does not grow with the number of steps.

    Example:
        >>> state = PowerSGDState(None, matrix_approximation_rank=2, start_powerSGD_iter=10)
        >>> state.compression_stats()
        (0, 0, 0)
        >>> PowerSGDState(None, start_powerSGD_iter=1)
        Traceback (most recent call last):
            ...
        ValueError: start_powerSGD_iter must be 2 or more with use_error_feedback or warm_start, got 1

    Source:
        https://docs.pytorch.org/docs/1.13/ddp_comm_hooks.html (PowerSGDState, and its checkpointing)
    """

    def __init__(
        self,
        process_group: dist.ProcessGroup | None,
        matrix_approximation_rank: int = 1,
        start_powerSGD_iter: int = 1000,
        min_compression_rate: float = 2,
        use_error_feedback: bool = True,
        warm_start: bool = True,
        orthogonalization_epsilon: float = 0,
        random_seed: int = 0,
        compression_stats_logging_frequency: int = 10000,
        batch_tensors_with_same_shape: bool = False,
    ) -> None:
        _check_group(process_group)
        _check_int("matrix_approximation_rank", matrix_approximation_rank, least=1)
        _check_int("start_powerSGD_iter", start_powerSGD_iter, least=0)
        _check_number("min_compression_rate", min_compression_rate)
        _check_bool("use_error_feedback", use_error_feedback)
        _check_bool("warm_start", warm_start)
        _check_number("orthogonalization_epsilon", orthogonalization_epsilon)
        _check_int("random_seed", random_seed, least=0)
        _check_int("compression_stats_logging_frequency", compression_stats_logging_frequency, least=1)
        _check_bool("batch_tensors_with_same_shape", batch_tensors_with_same_shape)
        if (use_error_feedback or warm_start) and start_powerSGD_iter <= 1:
            raise ValueError(
                "start_powerSGD_iter must be 2 or more with use_error_feedback or warm_start, "
                f"got {start_powerSGD_iter}"
            )

        self.process_group = process_group
        self.matrix_approximation_rank = matrix_approximation_rank
        self.start_powerSGD_iter = start_powerSGD_iter
        self.min_compression_rate = min_compression_rate
        self.use_error_feedback = use_error_feedback
        self.warm_start = warm_start
        self.orthogonalization_epsilon = orthogonalization_epsilon
        self.random_seed = random_seed
        self.compression_stats_logging_frequency = compression_stats_logging_frequency
        self.batch_tensors_with_same_shape = batch_tensors_with_same_shape

        self.iter = 0
        self._memories: dict[int, Memory] = {}
        self._numel_before = 0
        self._numel_sent = 0

    def compression_stats(self) -> tuple[float, int, int]:
        """How much was saved so far, on one rank.

        Returns:
            The compression rate, that is, the second number divided by the third, or 0 before compression starts;
            the number of elements that the buckets of all compressed steps held; the number of elements sent for them.

        Clauses:
            PSGD-STATS-NONE (MUST, 1.11): Before the first compressed step all three numbers are 0.
            PSGD-STATS-COUNT (MUST, 1.11): The second number counts all elements of the gradients in all compressed
                steps; the third counts the elements of P and Q for a compressed matrix and all elements of any other
                gradient.
            PSGD-STATS-RATE (MUST, 1.11): The first number is the second divided by the third.
            PSGD-STATS-LOG (SHOULD, 1.11): The statistics are logged with level INFO at the last bucket of the first
                compressed step, and of every compression_stats_logging_frequency-th step after it.
        """
        rate = self._numel_before / self._numel_sent if self._numel_sent > 0 else 0
        return rate, self._numel_before, self._numel_sent

    def __getstate__(self) -> dict[str, object]:
        """Everything but the process group, which exists in this process only."""
        if self.process_group is not None:
            logger.warning("A process group cannot be pickled: the loaded state will have the default group.")
        return {name: value for name, value in self.__dict__.items() if name != "process_group"}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        self.process_group = dist.group.WORLD  # None before there is one, which means the same

    def _is_compressing(self, bucket: dist.GradBucket) -> bool:
        buffer = bucket.buffer()
        if buffer.dtype not in SUPPORTED_DTYPES:
            raise TypeError(f"bucket must have a buffer in one of {SUPPORTED_DTYPES}, got {buffer.dtype}")
        return self.iter >= self.start_powerSGD_iter and not buffer.is_sparse

    def _count_step(self, bucket: dist.GradBucket) -> None:
        if not bucket.is_last():
            return
        compressed_steps = self.iter - self.start_powerSGD_iter
        if compressed_steps >= 0 and compressed_steps % self.compression_stats_logging_frequency == 0:
            logger.info(
                "Step %d: compression rate %g (%d elements before compression, %d after)",
                self.iter,
                *self.compression_stats(),
            )
        self.iter += 1


def powerSGD_hook(state: PowerSGDState, bucket: dist.GradBucket) -> Future[torch.Tensor]:
    """Averages the bucket over the ranks, its large matrices by their low-rank approximation.

    B below is what is approximated: the mean over the ranks of M, where M is the gradient, with error feedback plus
    the rank's error. The error is then M minus the result. What a clause says of matrices holds within the rounding of
    the matrix products in the bucket's dtype, unless it says bit for bit.

    Steps:
        1. Divide the gradients into those to be compressed, and all others. A gradient of two or more dimensions is
           seen as a matrix of (first dimension, all others); it is compressed if
           (rows + columns) * rank * min_compression_rate < rows * columns.
        2. The others:
            2.1. Copy them into one batch and average it.
            2.2. Copy the means back.
        3. The matrices M to be compressed:
            3.1. Take Q from the step before, or draw it from a standard normal distribution, and orthogonalize it.
            3.2. Compute P = MQ for each.
            3.3. Average all P as one batch.
            3.4. Orthogonalize each P.
            3.5. Compute Q = M^T P for each.
            3.6. Average all Q as one batch.
            3.7. The result is P Q^T for each.

    Before step ``start_powerSGD_iter``, and for a sparse bucket, it is ``allreduce_hook``. P and Q have the dtype of
    the bucket, on the wire and in the products. An element of Q can be larger than those of M, by the square root of
    the number of rows, so float16 overflows earlier than without compression. Orthogonalization is done in float32
    for the half types, for which there is no QR decomposition.

    An infinity or NaN makes the whole matrix non-finite on all ranks. With it the rank's error is lost: the next step
    begins with an error of zero, and with the first Q.

    Args:
        state: The settings, and what is carried from step to step. Updated.
        bucket: Its buffer is overwritten with the result.

    Returns:
        A completed future of the buffer: shape ``(n,)`` and the bucket's dtype.

    Raises:
        TypeError: The bucket's dtype is not float16, bfloat16, float32 or float64.

    Clauses:
        PSGD-PROJECTION (MUST, 1.11): With epsilon 0 a compressed matrix becomes the orthogonal projection of the
            columns of B onto the space that the result's own columns span.
        PSGD-RANK (MUST, 1.11): The result for a compressed matrix has at most matrix_approximation_rank non-zero
            singular values, so its error is never below that of the best approximation of that rank.
        PSGD-EXACT (MUST, 1.11): If the rank of B is at most the approximation rank, the result equals B, whatever the
            ranks of the single gradients.
        PSGD-RANK-CAP (MUST, 1.11): An approximation rank above the number of rows or columns works like that number,
            so the result equals B.
        PSGD-MEAN (MUST, 1.11): W ranks give what one rank gives on the mean of their gradients.
        PSGD-SCALE (SHOULD, 1.11): Gradients scaled by a power of two, epsilon being 0 and no number leaving the normal
            range, give the result scaled by it, bit for bit.
        PSGD-FEEDBACK (MUST, 1.11): With error feedback B is the sum of all mean gradients since compression started
            minus the sum of all earlier results.
        PSGD-FEEDBACK-OFF (MUST, 1.11): Without error feedback B is the mean gradient.
        PSGD-WARM (MUST, 1.11): With warm start and an earlier result of full approximation rank, the result is the
            projection of B onto B times the row space of that earlier result.
        PSGD-WARM-CONVERGES (MUST, 1.11): With warm start, no error feedback and a constant gradient, the error falls
            from step to step to that of the best approximation.
        PSGD-WARM-OFF (MUST, 1.11): Without warm start Q is drawn anew in each compressed step, so a constant gradient
            gives another result in each.
        PSGD-DRAW (SHOULD, 1.11): Two matrices in one bucket have different first Qs, and so have two buckets.
        PSGD-UNCOMPRESSED (MUST, 1.11): A gradient that is not compressed is averaged: within the rounding of one
            division and a sum in any order. Error feedback adds nothing to it, or what cancels in the mean.
        PSGD-VECTOR (MUST, 1.11): A vector is never compressed, whatever min_compression_rate.
        PSGD-THRESHOLD (MUST, 1.11): A matrix is compressed if (rows + columns) * rank * min_compression_rate is below
            rows * columns, and not if it is equal or above.
        PSGD-MATRIX (MUST, 1.11): A gradient with more than two dimensions gives what the matrix of its first and its
            joined other dimensions gives.
        PSGD-STRIDES (SHOULD, 1.11): A gradient whose memory is in another order, channels_last for one, gives what it
            gives in row-major order.
        PSGD-EPSILON (MUST, 1.11): With a positive epsilon an all-zero gradient gives zeros.
        PSGD-EPSILON-SMALL (SHOULD, 1.11): If all singular values of B are 1 or more, an epsilon of 1e-8 gives what
            epsilon 0 gives, within rounding.
        PSGD-ZERO (SHOULD, 1.11): With epsilon 0 as well, an all-zero gradient on all ranks gives zeros.
        PSGD-ZERO-RECOVERS (SHOULD, 1.11): After all-zero gradients, from the first compressed step on or later, the
            gradients that follow are approximated again, at the latest in their second step.
        PSGD-ZERO-COLUMNS (SHOULD, 1.11): Zero rows or columns in M, or zeros on some ranks only, give a finite result.
        PSGD-NONFINITE (SHOULD, 1.11): An infinity or NaN in a compressed matrix on any rank makes the result for that
            matrix non-finite on all ranks, and leaves all others alone.
        PSGD-NONFINITE-RECOVERS (SHOULD, 1.11): The step after a non-finite one is finite again if the gradients are,
            and B begins there again with the gradient alone.
        PSGD-DTYPE (MUST, 1.11): float16, bfloat16, float32 and float64 buckets give a result in their dtype, which
            under a compression wrapper is that of the wrapper.
        PSGD-EMPTY (SHOULD, 1.11): Buckets with 0-dimensional and empty gradients work, and so do buckets in which all
            gradients or none are compressed.
        PSGD-BUCKETS (SHOULD, 1.11): What a bucket becomes does not depend on the other buckets of the step: it has its
            own error and Q.
        PSGD-RELAYOUT (SHOULD, 1.11): When the shapes in a bucket change, its error and Q begin anew.
        PSGD-GROUP (MUST, 1.11): With a subgroup in the state the mean is taken over its members alone, the divisor is
            its size, and a rank outside it neither takes part nor changes.
        PSGD-NONE-IS-WORLD (MUST, 1.11): The process group None gives the same result as the world group.
        PSGD-WIRE (MUST, 1.11): A compressed step has one allreduce of all uncompressed gradients, one of all P and one
            of all Q for each bucket, in the bucket's dtype, and no other collective.
        PSGD-WIRE-EMPTY (SHOULD, 1.11): A batch with no elements is not sent.
        PSGD-NO-NESTED-WAIT (SHOULD, 1.11): Any number of buckets makes progress on any backend, because no callback
            waits for a collective.

    Example:
        With one rank a matrix of rank 1 is its own approximation; 8 and 4 elements travel instead of 32.

        >>> state = PowerSGDState(None, start_powerSGD_iter=0, use_error_feedback=False, warm_start=False)
        >>> matrix = torch.outer(torch.arange(8.0), torch.tensor([1.0, 2.0, -1.0, 3.0]))
        >>> bucket = GradBucket(0, matrix.flatten(), [(8, 4)], is_last=True)
        >>> powerSGD_hook(state, bucket).wait().view(8, 4)[7].round(decimals=4)
        tensor([ 7., 14., -7., 21.])
        >>> state.compression_stats()[1:]
        (32, 12)

    Source:
        https://docs.pytorch.org/docs/1.11/ddp_comm_hooks.html (powerSGD_hook); Vogels et al., "PowerSGD: Practical
        Low-Rank Gradient Compression for Distributed Optimization" (arXiv 1905.13727), algorithms 1 and 2
    """
    if not state._is_compressing(bucket):
        state._count_step(bucket)
        return allreduce_hook(state.process_group, bucket)

    matrices: list[torch.Tensor] = []
    others: list[torch.Tensor] = []
    for gradient in bucket.gradients():
        (matrices if is_worth_compressing(state, gradient) else others).append(gradient)
    matrices.sort(key=matrix_shape)  # so that those of the same shape lie side by side, batched or not

    others_numel = sum(gradient.numel() for gradient in others)
    if others_numel > 0:
        others_mean = average(torch.cat([gradient.flatten() for gradient in others]), state.process_group)
    matrices_sent = approximate_mean(state, bucket, matrices)
    if others_numel > 0:
        means = split(others_mean.wait(), [gradient.shape for gradient in others])
        for gradient, mean in zip(others, means, strict=True):
            gradient.copy_(mean)

    state._numel_before += bucket.buffer().numel()
    state._numel_sent += others_numel + matrices_sent
    state._count_step(bucket)
    return noop_hook(None, bucket)  # all is done: the result is in the buffer


def batched_powerSGD_hook(state: PowerSGDState, bucket: dist.GradBucket) -> Future[torch.Tensor]:
    """Averages the bucket over the ranks by the low-rank approximation of all of it as one square matrix.

    It is faster than ``powerSGD_hook`` and mixes unrelated gradients, vectors included, in one matrix. So it is
    usually less accurate. ``min_compression_rate`` and ``batch_tensors_with_same_shape`` have no effect on it.

    Steps:
        1. See the flat buffer as a square matrix M, padded with zeros at its end.
        2. Take Q from the step before, or draw it from a standard normal distribution, and orthogonalize it.
        3. Compute P = MQ.
        4. Average P.
        5. Orthogonalize P.
        6. Compute Q = M^T P.
        7. Average Q.
        8. The result is P Q^T, cut to the length of the buffer.

    The padding is zero in every step: what the approximation puts there is cut off and is no error.

    Args:
        state: The settings, and what is carried from step to step. Updated.
        bucket: Its buffer is overwritten with the result.

    Returns:
        A completed future of the buffer: shape ``(n,)`` and the bucket's dtype.

    Raises:
        TypeError: The bucket's dtype is not float16, bfloat16, float32 or float64.

    Clauses:
        PSGD-BATCHED-COMPRESSES (MUST, 1.11): The hook gives a result in compressed steps too.
        PSGD-BATCHED-SQUARE (MUST, 1.11): Without error feedback the result is what powerSGD_hook gives for the
            smallest square matrix that holds the buffer, row by row, and then zeros.
        PSGD-BATCHED-ALWAYS (MUST, 1.11): A bucket is compressed whatever min_compression_rate, with vectors in it or
            not.
        PSGD-BATCHED-PADDING (SHOULD, 1.11): The padding is zero in every step, with error feedback as well.
        PSGD-BATCHED-EXACT (MUST, 1.11): If the rank of the padded B is at most the approximation rank, the result
            equals B.
        PSGD-BATCHED-FEEDBACK (MUST, 1.11): With error feedback B is the sum of all mean buffers since compression
            started minus the sum of all earlier results.
        PSGD-BATCHED-STATS (SHOULD, 1.11): A bucket of n elements and a square of s rows counts as n elements before
            compression and 2 * s * rank after.
        PSGD-BATCHED-WIRE (MUST, 1.11): A compressed step has one allreduce of P and one of Q for each bucket, of
            s * rank elements each in the bucket's dtype, and no other collective.
        PSGD-BATCHED-NONFINITE (SHOULD, 1.11): An infinity or NaN on any rank makes the whole result non-finite on all
            ranks, and the next step is finite again if the gradients are.

    Example:
        Ten equal elements, seen as a matrix of 4 rows, have rank 2.

        >>> state = PowerSGDState(None, 2, start_powerSGD_iter=0, use_error_feedback=False, warm_start=False)
        >>> bucket = GradBucket(0, torch.ones(10), [(10,)], is_last=True)
        >>> batched_powerSGD_hook(state, bucket).wait().round(decimals=4)
        tensor([1., 1., 1., 1., 1., 1., 1., 1., 1., 1.])
        >>> state.compression_stats()[1:]
        (10, 16)

    Source:
        https://docs.pytorch.org/docs/1.11/ddp_comm_hooks.html (batched_powerSGD_hook)
    """
    if not state._is_compressing(bucket):
        state._count_step(bucket)
        return allreduce_hook(state.process_group, bucket)

    buffer = bucket.buffer()
    numel = buffer.numel()
    side = math.isqrt(max(numel - 1, 0)) + 1
    square = buffer.new_zeros(side * side)
    square[:numel] = buffer
    numel_sent = approximate_mean(state, bucket, [square.view(side, side)])
    buffer.copy_(square[:numel])
    errors = state._memories[bucket.index()].errors
    if errors is not None:
        errors[numel:] = 0

    state._numel_before += numel
    state._numel_sent += numel_sent
    state._count_step(bucket)
    return noop_hook(None, bucket)  # all is done: the result is in the buffer


def _check_group(group: object) -> None:
    # A rank outside a subgroup holds a stand-in for it, and may build a state that it will not use.
    if (
        group is not None
        and not isinstance(group, dist.ProcessGroup)
        and group is not dist.GroupMember.NON_GROUP_MEMBER
    ):
        raise TypeError(f"process_group must be a ProcessGroup or None, got {type(group).__name__}")


def _check_int(name: str, value: object, least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{name} must be an int, got {type(value).__name__}")
    if value < least:
        raise ValueError(f"{name} must be {least} or more, got {value}")


def _check_number(name: str, value: object) -> None:
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise TypeError(f"{name} must be a number, got {type(value).__name__}")
    if not (math.isfinite(value) and value >= 0):
        raise ValueError(f"{name} must be finite and 0 or more, got {value}")


def _check_bool(name: str, value: object) -> None:
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be a bool, got {type(value).__name__}")
