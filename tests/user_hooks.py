"""Hooks as people write them, right and wrong, each in the way that is common for it.

Some say of themselves what they claim, and how their state is made: see ``commhooks.adapters.one_hook``.
"""

import torch
import torch.distributed as dist
from torch.futures import Future


def completed(tensor):
    future = Future()
    future.set_result(tensor)
    return future


def mean_over_world(tensor):
    return tensor.div_(dist.get_world_size())


# --- Right ---------------------------------------------------------------------------------------------------------


def encode_and_decode(state, bucket):
    """Encodes before the allreduce and decodes in a callback."""
    encoded = mean_over_world(bucket.buffer().half())

    def decode(future):
        return future.value()[0].to(bucket.buffer().dtype)

    return dist.all_reduce(encoded, async_op=True).get_future().then(decode)


def averages(group, bucket):
    group = group or dist.group.WORLD
    scaled = bucket.buffer().div_(group.size())
    return dist.all_reduce(scaled, group=group, async_op=True).get_future().then(lambda future: future.value()[0])


averages.commhooks_claims = {"mean", "subgroups"}


def sums(state, bucket):
    future = dist.all_reduce(bucket.buffer(), async_op=True).get_future()
    return future.then(lambda reduced: reduced.value()[0])


sums.commhooks_claims = {"sum"}


def synchronous(state, bucket):
    """Waits in the hook, and gives a future that is complete from the start."""
    dist.all_reduce(mean_over_world(bucket.buffer()))
    return completed(bucket.buffer())


synchronous.commhooks_claims = {"mean"}


def gathers(state, bucket):
    parts = [torch.empty_like(bucket.buffer()) for _ in range(dist.get_world_size())]
    future = dist.all_gather(parts, bucket.buffer(), async_op=True).get_future()
    return future.then(lambda done: torch.stack(parts).sum(0).div_(len(parts)) if done.value() else None)


gathers.commhooks_claims = {"mean"}


def scatters_and_gathers(state, bucket):
    """The two halves of an allreduce, on a copy that is filled up to equal parts; waits between them."""
    world, buffer = dist.get_world_size(), bucket.buffer()
    part = -(-buffer.numel() // world)
    padded = buffer.new_zeros(part * world)
    padded[: buffer.numel()] = buffer / world
    own = buffer.new_empty(part)
    dist.reduce_scatter_tensor(own, padded)
    work = dist.all_gather_into_tensor(padded, own, async_op=True)
    return work.get_future().then(lambda done: [done.wait(), buffer.copy_(padded[: buffer.numel()])][1])


scatters_and_gathers.commhooks_claims = {"mean"}


def by_way_of_the_first_rank(state, bucket):
    buffer = mean_over_world(bucket.buffer())
    dist.reduce(buffer, dst=0)
    work = dist.broadcast(buffer, src=0, async_op=True)
    work.wait()
    return completed(buffer)


by_way_of_the_first_rank.commhooks_claims = {"mean"}


class Residuals:
    """What each bucket has lost to rounding so far, by its index."""

    def __init__(self, group):
        self.group = group
        self.lost = {}


def keeps_what_it_lost(state, bucket):
    buffer = bucket.buffer()
    lost = state.lost.get(bucket.index())
    # Buckets are laid out anew after the first step.
    wanted = buffer + lost if lost is not None and lost.shape == buffer.shape else buffer.clone()
    sent = wanted.bfloat16()
    state.lost[bucket.index()] = wanted - sent.to(buffer.dtype)
    work = dist.all_reduce(sent.div_(dist.get_world_size(state.group)), group=state.group, async_op=True)
    return work.get_future().then(lambda done: buffer.copy_(done.value()[0]))


keeps_what_it_lost.commhooks_state = Residuals
keeps_what_it_lost.commhooks_claims = {"subgroups"}


def dithers(state, bucket):
    """Adds noise of its own to what it sends, so no two calls are alike; all ranks get the same sum."""
    generator = torch.Generator()
    generator.seed()
    noise = torch.rand(bucket.buffer().shape, generator=generator).to(bucket.buffer().dtype)
    noisy = mean_over_world(bucket.buffer().add_(noise, alpha=1e-3))
    return dist.all_reduce(noisy, async_op=True).get_future().then(lambda future: future.value()[0])


dithers.commhooks_claims = {"random"}


def gossips(state, bucket):
    """Averages with both neighbours only, so the ranks differ."""
    rank, world, buffer = dist.get_rank(), dist.get_world_size(), bucket.buffer()
    left, right = torch.empty_like(buffer), torch.empty_like(buffer)
    works = [
        dist.irecv(left, (rank - 1) % world, tag=1),
        dist.irecv(right, (rank + 1) % world, tag=2),
        dist.isend(buffer, (rank + 1) % world, tag=1),
        dist.isend(buffer, (rank - 1) % world, tag=2),
    ]
    for work in works:
        work.wait()
    return completed((buffer + left + right) / 3)


gossips.commhooks_claims = {"local"}


def does_more_than_it_claims(state, bucket):
    return averages(state, bucket)


does_more_than_it_claims.commhooks_claims = {"local", "random"}


def is_for_wide_types(state, bucket):
    if bucket.buffer().dtype.itemsize < 8:
        raise TypeError(f"buckets have to be of float64, got {bucket.buffer().dtype}")
    return averages(state, bucket)


is_for_wide_types.commhooks_claims = {"mean"}
is_for_wide_types.commhooks_dtypes = {"float64"}


# --- Wrong ---------------------------------------------------------------------------------------------------------


def does_not_wait(state, bucket):
    dist.all_reduce(mean_over_world(bucket.buffer()), async_op=True)
    return completed(bucket.buffer())


def uses_the_tensor_at_once(state, bucket):
    encoded = mean_over_world(bucket.buffer().half())
    work = dist.all_reduce(encoded, async_op=True)
    decoded = encoded.to(bucket.buffer().dtype)
    return work.get_future().then(lambda future: decoded)


def divides_too_early(state, bucket):
    future = dist.all_reduce(bucket.buffer(), async_op=True).get_future()
    mean_over_world(bucket.buffer())
    return future.then(lambda reduced: reduced.value()[0])


def closes_over_a_loop_variable(state, bucket):
    """Each callback was meant to divide its own part; all of them divide the last."""
    buffer = bucket.buffer()
    futures = []
    for part in buffer.split(buffer.numel() // 2 + 1):
        work = dist.all_reduce(part, async_op=True)
        futures.append(work.get_future().then(lambda reduced: [reduced.value(), mean_over_world(part)][1]))  # noqa: B023
    return torch.futures.collect_all(futures).then(lambda done: [done.value(), buffer][1])


closes_over_a_loop_variable.commhooks_claims = {"mean"}


def future_of_a_future(state, bucket):
    """Sends the remainder after the rounded part, and gives the future of it from inside the callback."""
    rounded = mean_over_world(bucket.buffer()).half()
    rest = bucket.buffer() - rounded.to(bucket.buffer().dtype)

    def second(future):
        whole = rest + future.value()[0].to(rest.dtype)
        return dist.all_reduce(whole, async_op=True).get_future()

    return dist.all_reduce(rounded, async_op=True).get_future().then(second)


def waits_inside(state, bucket):
    """The usual way out of a future of a future."""

    def second(future):
        return dist.all_reduce(future.value()[0].div_(2), async_op=True).get_future().wait()[0]

    return dist.all_reduce(mean_over_world(bucket.buffer()), async_op=True).get_future().then(second)


def sends_the_norm_inside(state, bucket):
    def callback(future):
        norm = future.value()[0].norm()
        dist.all_reduce(norm)
        return future.value()[0]

    return dist.all_reduce(mean_over_world(bucket.buffer()), async_op=True).get_future().then(callback)


def forgets_the_group(group, bucket):
    scaled = bucket.buffer().div_(dist.get_world_size(group))
    return dist.all_reduce(scaled, async_op=True).get_future().then(lambda future: future.value()[0])


forgets_the_group.commhooks_claims = {"mean", "subgroups"}


def rounds_what_it_is_not_for(state, bucket):
    """Not for float32, but it takes such buckets, and loses most of each number."""
    buffer = bucket.buffer()
    if buffer.dtype == torch.float32:
        buffer.copy_(buffer.bfloat16())
    return averages(state, bucket)


rounds_what_it_is_not_for.commhooks_claims = {"mean"}
rounds_what_it_is_not_for.commhooks_dtypes = {"float64"}


def refuses_on_one_rank(state, bucket):
    if bucket.buffer().dtype == torch.float32 and dist.get_rank() == 1:
        raise TypeError("buckets have to be of float64")
    return averages(state, bucket)


refuses_on_one_rank.commhooks_dtypes = {"float64"}


def replaces_nan(state, bucket):
    return averages(state, bucket).then(lambda future: future.value().nan_to_num())


replaces_nan.commhooks_claims = {"mean"}


def skips_zeros(state, bucket):
    """Saves a collective where this rank has nothing to say, which others do not know."""
    buffer = mean_over_world(bucket.buffer())
    if dist.get_rank() == 1 and not buffer[::2].gt(1e3).any():
        return completed(buffer)
    return dist.all_reduce(buffer, async_op=True).get_future().then(lambda future: future.value()[0])


def largest_part_first(state, bucket):
    """The gradients' own values decide the order, and they differ between ranks."""
    buffer = mean_over_world(bucket.buffer())
    parts = [buffer[:3], buffer[3:10], buffer[10:]]
    for part in sorted(parts, key=lambda part: float(part.sum())):
        dist.all_reduce(part)
    return completed(buffer)


def makes_a_group_each_time(state, bucket):
    group = dist.new_group()
    buffer = mean_over_world(bucket.buffer())
    return dist.all_reduce(buffer, group=group, async_op=True).get_future().then(lambda future: future.value()[0])


def does_not_look(state, bucket):
    buffer = mean_over_world(bucket.buffer())
    return dist.all_reduce(buffer, async_op=True).get_future().then(lambda _: buffer)


def waits_for_the_last_only(state, bucket):
    """Right where collectives complete in order, as on one CUDA stream."""
    buffer = mean_over_world(bucket.buffer())
    for part in buffer.split(buffer.numel() // 3 + 1):
        work = dist.all_reduce(part, async_op=True)
    return work.get_future().then(lambda future: [future.value(), buffer][1])


def polls(state, bucket):
    buffer = mean_over_world(bucket.buffer())
    work = dist.all_reduce(buffer, async_op=True)
    while not work.is_completed():
        pass
    return completed(buffer)


def adds_instead(state, bucket):
    return sums(state, bucket)


adds_instead.commhooks_claims = {"mean"}
