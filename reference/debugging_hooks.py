"""A hook that leaves the gradients as they are."""

import torch
import torch.distributed as dist
from torch.futures import Future


def noop_hook(_: object, bucket: dist.GradBucket) -> Future[torch.Tensor]:
    """Gives each rank its own gradients back, without communication.

    It shows how long a step takes when communication costs nothing, and it is the way to leave the averaging to
    somebody else, to local SGD for one. The ranks' gradients differ afterwards.

    Args:
        _: Ignored.
        bucket: Its buffer is returned.

    Returns:
        A completed future of the buffer itself.

    Clauses:
        NOOP-BUFFER (MUST, 1.11): The result is the bucket's buffer itself, with the values it had.
        NOOP-SILENT (MUST, 1.11): No step starts a collective.
        NOOP-ALONE (MUST, 1.11): There is no communication: one rank can call the hook while the others do not.

    Example:
        >>> bucket = GradBucket(0, torch.tensor([1.0, 2.0]), [(2,)], is_last=True)
        >>> noop_hook(None, bucket).value() is bucket.buffer()
        True

    Source:
        https://docs.pytorch.org/docs/1.11/ddp_comm_hooks.html (noop_hook)
    """
    buffer = bucket.buffer()
    # A future has to know the accelerator whose stream its value was written on; the CPU has none.
    devices: list[int | str | torch.device] = [] if buffer.device.type == "cpu" else [buffer.device]
    future: Future[torch.Tensor] = Future(devices=devices)
    future.set_result(buffer)
    return future
