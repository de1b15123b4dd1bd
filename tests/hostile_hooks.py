"""Hooks that do their worst to the ranks, and one that is right."""

import os
import signal
import sys
import time

import numpy as np
import torch
import torch.distributed as dist
from torch.futures import Future

from commhooks.reference import allreduce_hook


def right(state: object, bucket: dist.GradBucket) -> Future[torch.Tensor]:
    return allreduce_hook(state, bucket)


def hangs_in_python(state: object, bucket: dist.GradBucket) -> None:
    while True:
        time.sleep(0.1)


def hangs_on_one_rank(state: object, bucket: dist.GradBucket) -> Future[torch.Tensor]:
    while dist.get_rank() == 1:
        pass
    return allreduce_hook(state, bucket)


def skips_the_collective_on_one_rank(state: object, bucket: dist.GradBucket) -> Future[torch.Tensor]:
    if dist.get_rank() == 1:
        future = Future()
        future.set_result(bucket.buffer())
        return future
    return allreduce_hook(state, bucket)


def never_completes(state: object, bucket: dist.GradBucket) -> Future[torch.Tensor]:
    return Future()


def dies_by_signal(state: object, bucket: dist.GradBucket) -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


def dies_on_one_rank(state: object, bucket: dist.GradBucket) -> Future[torch.Tensor]:
    if dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return allreduce_hook(state, bucket)


def leaves(state: object, bucket: dist.GradBucket) -> None:
    sys.exit(3)


def exits_at_once(state: object, bucket: dist.GradBucket) -> None:
    os._exit(5)


def raises(state: object, bucket: dist.GradBucket) -> None:
    raise LookupError("no gradients today")


def raises_on_one_rank(state: object, bucket: dist.GradBucket) -> Future[torch.Tensor]:
    if dist.get_rank() == 1:
        raise LookupError("rank 1 has had enough")
    return allreduce_hook(state, bucket)


def raises_in_a_callback(state: object, bucket: dist.GradBucket) -> Future[torch.Tensor]:
    def callback(future: Future[torch.Tensor]) -> torch.Tensor:
        raise LookupError("too late")

    return allreduce_hook(state, bucket).then(callback)


def prints_without_end(state: object, bucket: dist.GradBucket) -> None:
    while True:
        print("still here " * 1000)


def returns_none(state: object, bucket: dist.GradBucket) -> None:
    return None


def returns_text(state: object, bucket: dist.GradBucket) -> str:
    return "done"


def returns_a_list_in_a_future(state: object, bucket: dist.GradBucket) -> Future[list[torch.Tensor]]:
    future = Future()
    future.set_result([bucket.buffer()])
    return future


def allocates_without_end(state: object, bucket: dist.GradBucket) -> None:
    kept = []
    while True:
        kept.append(np.empty(1 << 28, np.uint8))
