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
    HOOK-EARLIER-CALL (MUST, 1.11): A call leaves the buffers and results of earlier, completed calls alone.
    HOOK-IN-FLIGHT (MUST, 1.11): With two buckets under way at once, each gets the result that it gets alone.
    HOOK-LENGTHS (MUST, 1.11): A hook works for a bucket of any length from one element on, with 0-dimensional and
        empty parameters in it.
    HOOK-MEAN (MUST, 1.11): A hook that claims to average gives the mean over the ranks, within the rounding of one
        division and of a sum in any order in the bucket's dtype.
"""

from .bucket import GradBucket
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
