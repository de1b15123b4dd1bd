"""Hooks that the laboratory's own tests run in it, right and wrong, and one way to call them."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

from commhooks.conformance import lab
from commhooks.conformance.lab import Log, Options
from commhooks.reference import GradBucket, allreduce_hook, fp16_compress_hook, fp16_compress_wrapper


def completed(tensor: torch.Tensor) -> torch.futures.Future[torch.Tensor]:
    future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    future.set_result(tensor)
    return future


def mean_of(bucket: GradBucket, group: object = None) -> torch.Tensor:
    return bucket.buffer().div_(dist.get_world_size(group))  # type: ignore[arg-type]


def encode_and_decode(state, bucket):  # type: ignore[no-untyped-def]
    """After the example in torch's documentation of register_comm_hook."""
    encoded = bucket.buffer().half().div_(dist.get_world_size())
    future = dist.all_reduce(encoded, async_op=True).get_future()
    return future.then(lambda done: done.value()[0].to(bucket.buffer().dtype))


def synchronous(state, bucket):  # type: ignore[no-untyped-def]
    dist.all_reduce(tensor := mean_of(bucket))
    return completed(tensor)


def gathers(state, bucket):  # type: ignore[no-untyped-def]
    parts = [torch.empty_like(bucket.buffer()) for _ in range(dist.get_world_size())]
    future = dist.all_gather(parts, bucket.buffer(), async_op=True).get_future()
    return future.then(lambda done: torch.stack(done.value()).mean(0))


def chained_twice(state, bucket):  # type: ignore[no-untyped-def]
    future = dist.all_reduce(mean_of(bucket), async_op=True).get_future()
    return future.then(lambda done: done.value()[0].clone()).then(lambda copied: copied.value())


def reads_early(state, bucket):  # type: ignore[no-untyped-def]
    work = dist.all_reduce(tensor := mean_of(bucket), async_op=True)
    early = tensor.clone()
    return work.get_future().then(lambda done: early)


def returns_early(state, bucket):  # type: ignore[no-untyped-def]
    work = dist.all_reduce(tensor := mean_of(bucket), async_op=True)
    work.get_future().then(lambda done: done.value()[0])
    return completed(tensor)


def forgets_to_wait(state, bucket):  # type: ignore[no-untyped-def]
    dist.all_reduce(tensor := mean_of(bucket), async_op=True)
    return completed(tensor)


def divides_in_flight(state, bucket):  # type: ignore[no-untyped-def]
    work = dist.all_reduce(bucket.buffer(), async_op=True)
    mean_of(bucket)
    return work.get_future().then(lambda done: done.value()[0])


def writes_late(state, bucket):  # type: ignore[no-untyped-def]
    def value(done: torch.futures.Future[list[torch.Tensor]]) -> torch.Tensor:
        threading.Timer(0.01, done.value()[0].mul_, [2.0]).start()
        return done.value()[0]

    return dist.all_reduce(mean_of(bucket), async_op=True).get_future().then(value)


def waits_in_callback(state, bucket):  # type: ignore[no-untyped-def]
    def second(done: torch.futures.Future[list[torch.Tensor]]) -> torch.Tensor:
        again = dist.all_reduce(done.value()[0].div_(dist.get_world_size()), async_op=True)
        return again.get_future().wait()[0]

    return dist.all_reduce(mean_of(bucket), async_op=True).get_future().then(second)


def order_by_rank(state, bucket):  # type: ignore[no-untyped-def]
    parts = list(mean_of(bucket).split([1, bucket.buffer().numel() - 1]))
    if dist.get_rank() == 1:
        parts.reverse()
    works = [dist.all_reduce(part, async_op=True) for part in parts]
    for work in works:
        work.wait()
    return completed(bucket.buffer())


def full_precision(state, bucket):  # type: ignore[no-untyped-def]
    narrow = mean_of(bucket).half().float()
    return dist.all_reduce(narrow, async_op=True).get_future().then(lambda done: done.value()[0])


def default_group(state, bucket):  # type: ignore[no-untyped-def]
    future = dist.all_reduce(mean_of(bucket, state), async_op=True).get_future()
    return future.then(lambda done: done.value()[0])


def skips_on_rank_1(state, bucket):  # type: ignore[no-untyped-def]
    tensor = mean_of(bucket)
    if dist.get_rank() == 1 and bucket.index() == 1:
        return completed(tensor)
    return dist.all_reduce(tensor, async_op=True).get_future().then(lambda done: done.value()[0])


RIGHT = {
    "reference allreduce": allreduce_hook,
    "reference fp16": fp16_compress_hook,
    "reference wrapper": fp16_compress_wrapper(allreduce_hook),
    "torch allreduce": default_hooks.allreduce_hook,
    "torch fp16": default_hooks.fp16_compress_hook,
    "encode and decode": encode_and_decode,
    "synchronous": synchronous,
    "gathers": gathers,
    "chained twice": chained_twice,
}


@dataclass
class Seen:
    """What two calls of a hook, one for each of two buckets in flight together, did on one rank."""

    wrong: set[str] = field(default_factory=set)
    errors: list[str] = field(default_factory=list)
    log: Log = field(default_factory=Log)


def call(hook, options: Options, state: object = None, members: int | None = None) -> Seen:  # type: ignore[no-untyped-def]
    """Calls the hook for two buckets, then waits for both, in a session of its own."""
    rank, world = dist.get_rank(), members or dist.get_world_size()
    base = [torch.arange(1.0, 5 + number) * 6 for number in range(2)]
    buckets = [GradBucket(n, x * (rank + 1), [(len(x),)], is_last=n == 1) for n, x in enumerate(base)]
    seen, results = Seen(), []
    with lab.session(options) as session:
        futures = [hook(state, bucket) for bucket in buckets]
        for future, gradient in zip(futures, base, strict=True):
            try:
                result = future.wait()
            except RuntimeError as error:
                seen.errors.append(str(error))
                continue
            results.append((result, result.clone()))
            if not torch.equal(result, gradient * (world + 1) / 2):
                seen.wrong.add("NaN" if result.isnan().any() else "wrong values")
        time.sleep(0.03 if hook is writes_late else 0)
    if not all(torch.equal(now, then) or then.isnan().any() for now, then in results):
        seen.wrong.add("changes after completion")
    seen.log = session.log
    return seen


def call_one(rank: int, world: int, hook, options: Options, members: Sequence[int] | None = None) -> Seen:  # type: ignore[no-untyped-def]
    group = dist.new_group(members) if members else None
    return Seen() if members and rank not in members else call(hook, options, group, members and len(members))


LATE = Options(delay=0.01, patience=5.0, deadlock_after=0.3)
# For ranks that wait in vain.
IMPATIENT = Options(delay=0.01, patience=0.6)
