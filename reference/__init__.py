"""The specification of DDP communication hooks, as readable code.

A communication hook is a function ``hook(state, bucket)`` that replaces the gradient allreduce of data-parallel
training. It gets the gradients of one bucket and returns a future of the tensor to be used in their place. Start with
``default_hooks.py``. The numbered clauses in the docstrings are what ``pytest conformance`` checks; levels are those
of RFC 2119, and the version is that of the PyTorch documentation which brought the behaviour.

What every hook keeps, whoever wrote it:

Clauses:
    HOOK-FUTURE (MUST, 1.11): A hook returns a future, and the future's value is one tensor.
    HOOK-LENGTH (MUST, 1.11): The value has one dimension and as many elements as the bucket's buffer.
    HOOK-CONTIGUOUS (MUST, 1.11): The value is contiguous and starts where its storage starts, because data-parallel
        training takes views of that storage.
    HOOK-DTYPE (SHOULD, 1.11): The value has the dtype that the bucket's buffer had when the hook was called.
    HOOK-COMPLETE (MUST, 1.11): When the future is complete, so is the value: nobody writes to it afterwards.
    HOOK-AGREE (MUST, 1.11): A hook that communicates gives every rank of the group the same bits.
    HOOK-RANDOM-STATE (SHOULD, 1.11): The global random states of Python, NumPy and the framework are as before the
        call.
    HOOK-REPEAT (SHOULD, 1.11): The same gradients and a fresh state give the same bits again.
    HOOK-EARLIER-CALL (MUST, 1.11): A call leaves the buffers and results of the pass's earlier, completed calls alone.
    HOOK-IN-FLIGHT (MUST, 1.11): With two buckets under way at once, each gets the result that it gets alone.
    HOOK-LENGTHS (MUST, 1.11): A hook works for a bucket of any length from one element on, with 0-dimensional and
        empty parameters in it.
    HOOK-IN-DDP (MUST, 1.11): Inside data-parallel training a hook that averages gives in every step the gradients of
        the joined batch, wherever its dtype holds them exactly, and noop_hook the rank's own.
    HOOK-KINDS (SHOULD, 1.11): Inside data-parallel training a hook that averages gives the mean of sparse and of
        complex gradients too, or refuses them with an error.
    HOOK-TRAINS (SHOULD, 1.11): A small model trained with a hook that communicates learns about as well as in one
        process on the joined batch, and its parameters are the same bits on all ranks to the end.
    HOOK-MEAN (MUST, 1.11): A hook that claims to average gives the mean over the ranks, within the rounding of one
        division and of a sum in any order in the bucket's dtype.
    HOOK-SUM (MUST, 1.11): A hook that claims to sum gives the sum over the ranks, within the rounding of a sum in any
        order in the bucket's dtype.
    HOOK-LOSSY (MUST, 1.11): A hook that claims to average with a loss misses the mean, in its first step, by no more
        than the claimed share of the bucket's largest gradient on any rank.
    HOOK-LATE (MUST, 1.11): However late collectives complete, and whichever rank is slow, the result is the same bits:
        nothing is read before the collective that writes it is complete.
    HOOK-ANY-ORDER (MUST, 1.11): With several buckets under way the results are the same bits in whatever order
        collectives complete, also where that order differs between ranks.
    HOOK-HANDS-OFF (MUST, 1.11): Until a collective is complete, nobody writes to the tensors that it reads or writes.
    HOOK-WAITED (SHOULD, 1.11): Every collective is waited for, or its future is asked for; otherwise nobody learns
        that it failed.
    HOOK-ORDER (MUST, 1.11): All ranks of a group start the same collectives in the same order, in whatever order
        collectives complete.
    HOOK-NO-BLOCKING (MUST, 1.11): No callback waits for a collective that is not complete: where callbacks share a
        thread it would wait for ever.
    HOOK-GROUP (MUST, 1.11): A hook whose state is a process group starts no collective in a group with other ranks.
    HOOK-NO-NEW-GROUP (MUST, 1.11): After its first step a hook makes no process group: each is there to the end of
        the program, and its making waits for all ranks.
    HOOK-IDLE (SHOULD, 1.11): While a hook waits for a slow rank, it leaves the processor to others.
    HOOK-LETS-RUN (SHOULD, 1.11): While a hook waits for a slow rank, other Python threads run: it does not hold the
        interpreter lock.
    HOOK-MEMORY (SHOULD, 1.11): The memory that a hook and its state keep does not grow from step to step: buckets and
        results of earlier steps are let go.
    HOOK-REBUILT (MUST, 1.11): When buckets are laid out anew after the first step, in another number and with other
        lengths, a hook goes on with the new ones.
    HOOK-RESUMES (MUST, 1.11): With a pickled copy of its state, a hook that claims to allow that goes on with the same
        bits as with the state itself.
    HOOK-NONFINITE (MUST, 1.11): With an infinity or NaN on one rank, all ranks start the same collectives, and either
        all raise or all have numbers that are not finite at the same places.
    HOOK-HIDES-NOTHING (SHOULD, 1.11): A hook that claims to average or to add gives no finite number where a gradient
        on some rank is not finite, so that training can notice it.
    HOOK-FAILS (MUST, 1.11): When a collective fails on every rank, the hook or its future raises on every rank, unless
        the hook gets the same result in another way.
    HOOK-DENIED (SHOULD, 1.11): What an implementation says that it does not offer, such as a dtype or process groups
        of some of the ranks, it refuses with an error on every rank, or does rightly: it gives no wrong numbers, and
        lets no rank wait for ever.
    HOOK-CLAIMS (MAY, 1.11): A hook may do more than it claims, and claim more freedom than it uses; both are reported.
    HOOK-TRAFFIC (MAY, 1.11): How many collectives and bytes a step takes is up to the hook; it is reported.
"""

from .bucket import GradBucket
from .ddp import DistributedDataParallel
from .debugging_hooks import noop_hook
from .default_hooks import (
    allreduce_hook,
    bf16_compress_hook,
    bf16_compress_wrapper,
    fp16_compress_hook,
    fp16_compress_wrapper,
)
from .powersgd import PowerSGDState, batched_powerSGD_hook, powerSGD_hook

__all__ = [
    "DistributedDataParallel",
    "GradBucket",
    "PowerSGDState",
    "allreduce_hook",
    "batched_powerSGD_hook",
    "bf16_compress_hook",
    "bf16_compress_wrapper",
    "fp16_compress_hook",
    "fp16_compress_wrapper",
    "noop_hook",
    "powerSGD_hook",
]
