"""Right hooks that average, as different people would write them."""

import concurrent.futures
import functools
import threading

import numpy as np
import torch
import torch.distributed as dist
from hook_marks import claims, completed, made_by
from torch.futures import Future


@claims("mean")
def out_of_place(state, bucket):
    mean = bucket.buffer() / dist.get_world_size()
    return dist.all_reduce(mean, async_op=True).get_future().then(lambda future: future.value()[0])


@claims("mean")
def divides_in_the_callback(state, bucket):
    future = dist.all_reduce(bucket.buffer(), async_op=True).get_future()
    return future.then(lambda reduced: reduced.value()[0].div_(dist.get_world_size()))


@claims("mean", "subgroups")
def a_chain_of_three(group, bucket):
    size = dist.get_world_size(group)
    future = dist.all_reduce(bucket.buffer(), group=group, async_op=True).get_future()
    divided = future.then(lambda done: done.value()[0] / size)
    cloned = divided.then(lambda done: done.value().clone())
    return cloned.then(lambda done: bucket.buffer().copy_(done.value()))


@claims("mean")
def part_by_part(state, bucket):
    """All parts are under way at once, and collect_all waits for them."""
    buffer = bucket.buffer().div_(dist.get_world_size())
    parts = buffer.split(max(1, buffer.numel() // 3))
    futures = [dist.all_reduce(part, async_op=True).get_future() for part in parts]

    def together(done):
        for future in done.value():
            future.wait()
        return buffer

    return torch.futures.collect_all(futures).then(together)


@claims("mean")
def one_parameter_after_the_other(state, bucket):
    works = [dist.all_reduce(gradient, async_op=True) for gradient in bucket.gradients() if gradient.numel()]
    for work in works:
        work.wait()
    return completed(bucket.buffer().div_(dist.get_world_size()))


@claims("mean")
def in_double_precision(state, bucket):
    buffer = bucket.buffer()
    wide = buffer.double() / dist.get_world_size()
    return dist.all_reduce(wide, async_op=True).get_future().then(lambda done: done.value()[0].to(buffer.dtype))


@claims("mean")
def coalesced(state, bucket):
    buffer = bucket.buffer()
    future = dist.all_reduce_coalesced(list(buffer.chunk(2)), async_op=True)
    return future.then(lambda done: [done.value(), buffer.div_(dist.get_world_size())][1])


@claims("mean")
def under_a_coalescing_manager(state, bucket):
    buffer = bucket.buffer().div_(dist.get_world_size())
    with dist.distributed_c10d._coalescing_manager(async_ops=True) as works:
        for part in buffer.chunk(2):
            dist.all_reduce(part)
    works.wait()
    return completed(buffer)


@claims("mean")
def around_the_ring(state, bucket):
    """Adds up along a ring of neighbours, and sends the mean around once more."""
    rank, world, buffer = dist.get_rank(), dist.get_world_size(), bucket.buffer()
    if world == 1:
        return completed(buffer)
    received = torch.empty_like(buffer)
    if rank > 0:
        dist.recv(received, rank - 1)
        buffer.add_(received)
    dist.send(buffer, (rank + 1) % world)
    if rank == 0:
        dist.recv(buffer, world - 1)
        buffer.div_(world)
    dist.broadcast(buffer, src=0)
    return completed(buffer)


@claims("mean")
def everyone_adds_a_part(state, bucket):
    """Each rank gets its part of everybody's buffer, adds, and gives the sum to everybody."""
    world, buffer = dist.get_world_size(), bucket.buffer()
    length = -(-buffer.numel() // world)
    padded = torch.zeros(length * world, dtype=buffer.dtype)
    padded[: buffer.numel()] = buffer / world
    parts = torch.empty_like(padded)
    dist.all_to_all_single(parts, padded)
    work = dist.all_gather_into_tensor(padded, parts.view(world, length).sum(0), async_op=True)
    return work.get_future().then(lambda done: [done.value(), padded[: buffer.numel()].clone()][1])


@claims("mean")
def by_gathering_and_scattering(state, bucket):
    rank, world, buffer = dist.get_rank(), dist.get_world_size(), bucket.buffer()
    gathered = [torch.empty_like(buffer) for _ in range(world)] if rank == 0 else None
    dist.gather(buffer, gathered, dst=0)
    mean = torch.stack(gathered).mean(0) if rank == 0 else None
    dist.scatter(buffer, [mean] * world if rank == 0 else None, src=0)
    return completed(buffer)


@claims("mean")
def with_numpy(state, bucket):
    """The parts of the ranks travel as objects."""
    parts = [None] * dist.get_world_size()
    dist.all_gather_object(parts, bucket.buffer().double().numpy())
    return completed(torch.from_numpy(np.mean(parts, axis=0)).to(bucket.buffer().dtype))


@claims("mean")
def replaces_the_buffer(state, bucket):
    bucket.set_buffer(bucket.buffer() / dist.get_world_size())
    buffer = bucket.buffer()
    return dist.all_reduce(buffer, async_op=True).get_future().then(lambda done: done.value()[0])


@claims("mean")
def completes_its_own_future(state, bucket):
    """Errors are handed on too."""
    result = Future()

    def done(future):
        try:
            result.set_result(future.value()[0].div_(dist.get_world_size()))
        except RuntimeError as error:
            result.set_exception(error)

    dist.all_reduce(bucket.buffer(), async_op=True).get_future().add_done_callback(done)
    return result


@claims("mean")
def waits_on_a_thread(state, bucket):
    """Starts the collective in the hook; a thread waits for it."""
    work, result = dist.all_reduce(bucket.buffer(), async_op=True), Future()

    def wait():
        try:
            work.wait()
            result.set_result(bucket.buffer().div_(dist.get_world_size()))
        except RuntimeError as error:
            result.set_exception(error)

    threading.Thread(target=wait, daemon=True).start()
    return result


@claims("mean")
@made_by(lambda group: concurrent.futures.ThreadPoolExecutor(1))
def on_one_worker(pool, bucket):
    """One thread starts the collectives, in the order in which the buckets come."""
    result = Future()

    def work():
        try:
            dist.all_reduce(bucket.buffer())
            result.set_result(bucket.buffer().div_(dist.get_world_size()))
        except RuntimeError as error:
            result.set_exception(error)

    pool.submit(work)
    return result


@claims("mean")
def functional(state, bucket):
    import torch.distributed._functional_collectives as collectives

    reduced = collectives.all_reduce(bucket.buffer(), "sum", dist.group.WORLD)
    return completed(collectives.wait_tensor(reduced) / dist.get_world_size())


class Averager:
    """A hook that is a bound method, with the group that it made for itself."""

    def __init__(self, group):
        self.group = dist.new_group(dist.get_process_group_ranks(group))
        self.steps = 0

    def step(self, bucket):
        self.steps += bucket.is_last()
        buffer = bucket.buffer() / self.group.size()
        return dist.all_reduce(buffer, group=self.group, async_op=True).get_future().then(lambda done: done.value()[0])


@claims("mean")
@made_by(Averager)
def in_a_group_of_its_own(averager, bucket):
    return averager.step(bucket)


@claims("mean")
@made_by(lambda group: {})
def reuses_its_buffers(kept, bucket):
    """One buffer for each place of a bucket, made once, that is sent and given back in every step."""
    buffer = kept.get(bucket.index())
    if buffer is None or buffer.shape != bucket.buffer().shape or buffer.dtype != bucket.buffer().dtype:
        buffer = kept[bucket.index()] = torch.empty_like(bucket.buffer())
    torch.div(bucket.buffer(), dist.get_world_size(), out=buffer)
    return dist.all_reduce(buffer, async_op=True).get_future().then(lambda done: done.value()[0])


def two_levels(group):
    """Groups of neighbouring pairs, and one of the first of each pair."""
    ranks = dist.get_process_group_ranks(group)
    pairs = [ranks[place : place + 2] for place in range(0, len(ranks), 2)]
    made = [dist.new_group(pair) for pair in pairs]
    heads = dist.new_group([pair[0] for pair in pairs])
    own = next(place for place, pair in enumerate(pairs) if dist.get_rank() in pair)
    return made[own], pairs[own][0], heads


@claims("mean")
@made_by(two_levels)
def in_two_levels(state, bucket):
    """Reduces in each pair, then between the first of all pairs, and sends the result back."""
    pair, head, heads = state
    buffer = bucket.buffer().div_(dist.get_world_size())
    dist.reduce(buffer, dst=head, group=pair)
    if dist.get_rank() == head:
        dist.all_reduce(buffer, group=heads)
    dist.broadcast(buffer, src=head, group=pair)
    return completed(buffer)


@claims("mean")
@functools.partial
def a_partial(state, bucket):
    return out_of_place(state, bucket)


a_partial.__name__ = a_partial.__qualname__ = "a_partial"  # DistributedDataParallel asks for them


class Callable:
    commhooks_claims = frozenset({"mean"})

    def __init__(self):
        self.__name__ = self.__qualname__ = "a_callable_object"

    def __call__(self, state, bucket):
        return out_of_place(state, bucket)


a_callable_object = Callable()
