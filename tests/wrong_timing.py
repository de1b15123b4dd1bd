"""Hooks with one mistake each in which collective comes next, or in how they wait."""

import contextlib
import ctypes
import threading
import time

import torch
import torch.distributed as dist
from hook_marks import claims, completed, made_by
from right_averages import out_of_place


def mean_of(tensor):
    dist.all_reduce(tensor.div_(dist.get_world_size()))


@claims("mean")
def skips_what_is_not_finite(state, bucket):
    """Other ranks do not know, and wait."""
    if bucket.buffer().isfinite().all():
        mean_of(bucket.buffer())
    return completed(bucket.buffer())


@claims()
def raises_for_what_is_not_finite(state, bucket):
    mean = bucket.buffer() / dist.get_world_size()
    future = dist.all_reduce(mean, async_op=True).get_future()
    future.wait()
    if not bucket.buffer().isfinite().all():
        raise FloatingPointError("gradients are not finite")
    return completed(mean)


@claims()
@made_by(lambda group: {"at": time.monotonic()})
def half_precision_when_it_is_slow(state, bucket):
    """Each rank measures for itself."""
    before, state["at"] = state["at"], time.monotonic()
    buffer = bucket.buffer()
    sent = buffer.half() if state["at"] - before > 0.015 else buffer.clone()
    return dist.all_reduce(sent, async_op=True).get_future().then(lambda done: done.value()[0].to(buffer.dtype))


@claims("mean")
@made_by(lambda group: [])
def waits_for_what_comes_first(under_way, bucket):
    """Sends a bucket's second half when the first half of any bucket has arrived."""
    buffer = bucket.buffer().div_(dist.get_world_size())
    first, second = buffer.chunk(2) if buffer.numel() > 1 else (buffer, buffer[:0])
    under_way.append((dist.all_reduce(first, async_op=True), second))
    result = torch.futures.Future()

    def send(future):
        future.value()
        dist.all_reduce(second, async_op=True).get_future().then(lambda done: result.set_result(buffer))

    under_way[-1][0].get_future().add_done_callback(send)
    return result


@claims()
def large_ones_only(state, bucket):
    """How many elements are above the threshold differs between ranks."""
    buffer = bucket.buffer()
    chosen = buffer.abs().gt(buffer.abs().mean()).nonzero()[:, 0]
    gathered = [torch.empty_like(chosen) for _ in range(dist.get_world_size())]
    dist.all_gather(gathered, chosen)
    return completed(torch.zeros_like(buffer).index_fill_(0, torch.cat(gathered), 1.0))


@claims("mean")
def each_rank_sends_its_own(state, bucket):
    """Everybody is the root of its own broadcast."""
    total = torch.zeros_like(bucket.buffer())
    for _ in range(dist.get_world_size()):
        dist.broadcast(copy := bucket.buffer().clone(), src=dist.get_rank())
        total += copy
    return completed(total / dist.get_world_size())


@claims("mean")
def only_the_root_calls(state, bucket):
    buffer = bucket.buffer().div_(dist.get_world_size())
    dist.reduce(buffer, dst=0)
    if dist.get_rank() == 0:
        dist.broadcast(buffer, src=0)
    return completed(buffer)


@claims("mean")
def a_norm_now_and_then(state, bucket):
    """Only the first rank wants to see it."""
    mean_of(bucket.buffer())
    if dist.get_rank() == 0 and bucket.is_last():
        dist.all_reduce(bucket.buffer().norm())
    return completed(bucket.buffer())


@claims("local")
def everybody_sends_first(state, bucket):
    """Where a send waits for its receiver, all wait for each other."""
    rank, world, buffer = dist.get_rank(), dist.get_world_size(), bucket.buffer()
    received = torch.empty_like(buffer)
    dist.send(buffer, (rank + 1) % world)
    dist.recv(received, (rank - 1) % world)
    return completed((buffer + received) / 2)


# --- Waiting ---


@claims("mean")
def writes_when_it_is_over(state, bucket):
    """A thread scales the result; nobody waits for it."""
    buffer = bucket.buffer()

    def scale():
        time.sleep(0.005)
        buffer.div_(dist.get_world_size())

    def callback(done):
        threading.Thread(target=scale, daemon=True).start()
        return done.value()[0]

    return dist.all_reduce(buffer, async_op=True).get_future().then(callback)


@claims("mean")
def sleeps_and_hopes(state, bucket):
    buffer = bucket.buffer().div_(dist.get_world_size())
    dist.all_reduce(buffer, async_op=True)
    time.sleep(0.002)
    return completed(buffer)


@claims("mean")
@made_by(lambda group: [])
def waits_for_another_bucket_inside(earlier, bucket):
    """A callback waits for the bucket before."""
    before = earlier[:]
    future = out_of_place(None, bucket)

    def callback(done):
        for other in before:
            other.wait()
        return done.value()

    earlier[:] = [future]
    return future.then(callback)


@claims("mean")
def ignores_the_error(state, bucket):
    buffer = bucket.buffer().div_(dist.get_world_size())
    with contextlib.suppress(RuntimeError):
        dist.all_reduce(buffer)
    return completed(buffer)


@claims("mean")
def holds_the_lock(state, bucket):
    """Waits in C code that does not let the interpreter lock go."""
    work = dist.all_reduce(bucket.buffer().div_(dist.get_world_size()), async_op=True)
    while not work.is_completed():
        ctypes.PyDLL(None).usleep(50_000)
    return completed(bucket.buffer())


@claims("mean")
def in_the_order_of_a_set(state, bucket):
    """Python orders a set of texts by hashes that it draws anew for each process that is started."""
    buffer = bucket.buffer().div_(dist.get_world_size())
    names = ["first", "second", "third", "fourth", "fifth", "sixth"]
    parts = dict(zip(names, buffer.tensor_split([1, 3, 6, 10, 15]), strict=True))
    for name in set(parts):
        dist.all_reduce(parts[name])
    return completed(buffer)
