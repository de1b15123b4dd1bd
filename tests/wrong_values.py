"""Hooks with one mistake in values or state each, and the claims that people would make of them."""

import threading

import torch
import torch.distributed as dist
from hook_marks import claims, completed, made_by, misses_by
from right_averages import out_of_place
from right_codecs import Steps


@claims("mean")
def averages_twice(state, bucket):
    world = dist.get_world_size()
    future = dist.all_reduce(bucket.buffer().div_(world), async_op=True).get_future()
    return future.then(lambda done: done.value()[0].div_(world))


@claims()
@misses_by(0.01)
def four_bits_and_calls_it_eight(state, bucket):
    buffer = bucket.buffer()
    scale = buffer.abs().max().float()
    dist.all_reduce(scale, op=dist.ReduceOp.MAX)
    step = torch.clamp(scale / 7, min=1e-30)
    rounded = (buffer.float() / step).round()
    future = dist.all_reduce(rounded, async_op=True).get_future()
    return future.then(lambda done: (done.value()[0] * step / dist.get_world_size()).to(buffer.dtype))


@claims("mean")
def forgets_to_write_back(state, bucket):
    sent = bucket.buffer().double() / dist.get_world_size()
    return dist.all_reduce(sent, async_op=True).get_future().then(lambda done: [done.value(), bucket.buffer()][1])


@claims("mean", "subgroups")
def divides_by_the_world(group, bucket):
    buffer = bucket.buffer().div_(dist.get_world_size())
    return dist.all_reduce(buffer, group=group, async_op=True).get_future().then(lambda done: done.value()[0])


@claims("mean")
@made_by(lambda group: {})
def gives_the_step_before(kept, bucket):
    """The mean is kept in the state, and given back one step late."""
    dist.all_reduce(now := bucket.buffer() / dist.get_world_size())
    mean = kept.get(bucket.index(), now)
    kept[bucket.index()] = now
    return completed(mean if mean.shape == now.shape else now)


@claims("mean")
def reduces_to_the_first_rank(state, bucket):
    """All other ranks are left with what the backend used on the way."""
    buffer = bucket.buffer().div_(dist.get_world_size())
    return dist.reduce(buffer, dst=0, async_op=True).get_future().then(lambda done: [done.value(), buffer][1])


@claims()
def gives_the_padding_too(state, bucket):
    buffer = bucket.buffer()
    padded = torch.cat([buffer, buffer.new_zeros(-len(buffer) % 128 or 128)]).div_(dist.get_world_size())
    return dist.all_reduce(padded, async_op=True).get_future().then(lambda done: done.value()[0])


@claims()
def gives_the_list(state, bucket):
    return dist.all_reduce(bucket.buffer(), async_op=True).get_future()


@claims()
def gives_nothing(state, bucket):
    dist.all_reduce(bucket.buffer().div_(dist.get_world_size()))


@claims("mean")
def one_scratch_for_all(state, bucket):
    """Every bucket of that length is copied to the same memory."""
    buffer = bucket.buffer()
    scratch = SCRATCH.setdefault((buffer.shape, buffer.dtype), torch.empty_like(buffer))
    scratch.copy_(buffer).div_(dist.get_world_size())
    dist.all_reduce(scratch)
    return completed(scratch)


SCRATCH = {}


@claims()
def seeds_the_global_generator(state, bucket):
    torch.manual_seed(bucket.index())
    chosen = torch.randperm(bucket.buffer().numel())[:1]
    dist.all_reduce(sent := bucket.buffer()[chosen])
    return completed(torch.zeros_like(bucket.buffer()).index_copy_(0, chosen, sent))


# --- State ---


@claims()
@made_by(lambda group: {})
def residuals_by_tensor(residuals, bucket):
    """The tensor is another object in each step, so no residual is ever found again."""
    wanted = bucket.buffer() + residuals.get(bucket.buffer(), 0)
    sent = wanted.bfloat16()
    residuals[bucket.buffer()] = wanted - sent.float()
    future = dist.all_reduce(sent.div_(dist.get_world_size()), async_op=True).get_future()
    return future.then(lambda done: done.value()[0].to(wanted.dtype))


@claims()
@made_by(lambda group: {})
def residuals_by_index(residuals, bucket):
    """Buckets are laid out anew after the first step, and then a residual has another length."""
    wanted = bucket.buffer() + residuals.get(bucket.index(), 0)
    sent = wanted.bfloat16()
    residuals[bucket.index()] = wanted - sent.to(wanted.dtype)
    future = dist.all_reduce(sent.div_(dist.get_world_size()), async_op=True).get_future()
    return future.then(lambda done: done.value()[0].to(wanted.dtype))


@claims("mean")
@made_by(lambda group: [])
def keeps_every_bucket(kept, bucket):
    kept.append(bucket)
    return out_of_place(None, bucket)


@claims("mean")
@made_by(lambda group: [])
def keeps_every_result(kept, bucket):
    """For a plot of norms, say."""
    future = out_of_place(None, bucket)
    kept.append(future)
    return future


@claims("mean")
@made_by(lambda group: [])
def keeps_copies_in_numpy(kept, bucket):
    kept.append(bucket.buffer().numpy().copy())
    return out_of_place(None, bucket)


@claims("mean")
@made_by(Steps)
def makes_a_group_when_it_first_compresses(steps, bucket):
    if steps.next(bucket) == 1:
        steps.group = dist.new_group()
    buffer = bucket.buffer() / dist.get_world_size()
    return dist.all_reduce(buffer, group=steps.group, async_op=True).get_future().then(lambda done: done.value()[0])


class Forgetful:
    """Leaves its residuals out when it is pickled, to save room."""

    def __init__(self, group):
        self.residuals = {}

    def __getstate__(self):
        return {"residuals": {}}


@claims("pickle")
@made_by(Forgetful)
def forgets_its_residuals(state, bucket):
    buffer = bucket.buffer()
    lost = state.residuals.get(bucket.index())
    wanted = buffer + lost if lost is not None and lost.shape == buffer.shape else buffer.clone()
    sent = wanted.bfloat16()
    state.residuals[bucket.index()] = wanted - sent.to(buffer.dtype)
    future = dist.all_reduce(sent.div_(dist.get_world_size()), async_op=True).get_future()
    return future.then(lambda done: done.value()[0].to(buffer.dtype))


@claims("mean", "pickle")
@made_by(lambda group: {"group": group, "lock": threading.Lock()})
def has_a_lock_in_its_state(state, bucket):
    return out_of_place(None, bucket)


@claims("mean")
def skips_its_zeros(state, bucket):
    """A rank that has nothing to give does not take part."""
    buffer = bucket.buffer()
    if not buffer.any():
        return completed(buffer)
    dist.all_reduce(buffer.div_(dist.get_world_size()))
    return completed(buffer)


@claims("mean")
def forgets_the_rest(state, bucket):
    """What does not fit into its scratch stays the rank's own."""
    buffer = bucket.buffer().div_(dist.get_world_size())
    part = buffer[:65536].clone()
    dist.all_reduce(part)
    buffer[: len(part)] = part
    return completed(buffer)


@claims("mean")
def seeds_and_does_not_draw(state, bucket):
    torch.manual_seed(99 + bucket.index())
    buffer = bucket.buffer().div_(dist.get_world_size())
    return dist.all_reduce(buffer, async_op=True).get_future().then(lambda done: done.value()[0])


@claims("mean")
@made_by(lambda group: {})
def one_scratch_for_a_length(kept, bucket):
    """Two buckets of the same length under way at once share it."""
    buffer = bucket.buffer()
    scratch = kept.setdefault((buffer.numel(), buffer.dtype), torch.empty_like(buffer))
    torch.div(buffer, dist.get_world_size(), out=scratch)
    future = dist.all_reduce(scratch, async_op=True).get_future()
    return future.then(lambda done: buffer.copy_(done.value()[0]))


@claims("sum")
def averages_the_second_bucket(state, bucket):
    buffer = bucket.buffer()
    if bucket.index() > 0:
        buffer.div_(dist.get_world_size())
    return dist.all_reduce(buffer, async_op=True).get_future().then(lambda done: done.value()[0])


@claims("sum")
@made_by(lambda group: {})
def never_resets_its_sum(kept, bucket):
    buffer = bucket.buffer()
    before = kept.get(bucket.index())
    dist.all_reduce(buffer)
    if before is not None and before.shape == buffer.shape:
        buffer.add_(before)
    kept[bucket.index()] = buffer.clone()
    return completed(buffer)


@claims()
@misses_by(0.01)
def divides_the_first_bucket_only(state, bucket):
    buffer = bucket.buffer()
    if bucket.index() == 0:
        buffer.div_(dist.get_world_size())
    return dist.all_reduce(buffer, async_op=True).get_future().then(lambda done: done.value()[0])


@claims()
@misses_by(0.01)
def divides_by_the_largest(state, bucket):
    """NaN where all gradients are zero."""
    buffer = bucket.buffer()
    largest = buffer.abs().max().float()
    dist.all_reduce(largest, op=dist.ReduceOp.MAX)
    rounded = (buffer.float() / (largest / 127)).round()
    future = dist.all_reduce(rounded, async_op=True).get_future()
    return future.then(lambda done: (done.value()[0] * (largest / 127) / dist.get_world_size()).to(buffer.dtype))


@claims()
@misses_by(0.03)
def adds_in_eight_bits(state, bucket):
    """Room for the sum of two ranks."""
    buffer, world = bucket.buffer(), dist.get_world_size()
    largest = buffer.abs().max().float()
    dist.all_reduce(largest, op=dist.ReduceOp.MAX)
    scale = torch.clamp(largest / 63, min=1e-30)
    parts = [torch.empty(buffer.shape, dtype=torch.int8) for _ in range(world)]
    dist.all_gather(parts, (buffer.float() / scale).round().to(torch.int8))
    total = parts[0].clone()
    for part in parts[1:]:
        total += part
    return completed((total.float() * scale / world).to(buffer.dtype))


@claims("mean")
def keeps_one_element_for_itself(state, bucket):
    buffer = bucket.buffer()
    if buffer.numel() == 1:
        return completed(buffer)
    buffer.div_(dist.get_world_size())
    return dist.all_reduce(buffer, async_op=True).get_future().then(lambda done: done.value()[0])


@claims("mean")
def rounds_up_for_two_ranks(state, bucket):
    """Cuts the bucket into parts of (n + 1) // W elements; for three ranks some are left."""
    buffer, world = bucket.buffer(), dist.get_world_size()
    part = max((buffer.numel() + 1) // world, 1)
    mean = torch.zeros_like(buffer)
    for start in range(0, min(part * world, buffer.numel()), part):
        piece = buffer[start : start + part] / world
        dist.all_reduce(piece)
        mean[start : start + part] = piece
    return completed(mean)


@claims("mean")
@made_by(lambda group: {"step": 0})
def skips_every_fiftieth_step(kept, bucket):
    """Local SGD by the way, which all ranks agree on; a mean it is not."""
    kept["step"] += bucket.is_last()
    buffer = bucket.buffer()
    if kept["step"] % 50 == 0:
        return completed(buffer)
    buffer.div_(dist.get_world_size())
    return dist.all_reduce(buffer, async_op=True).get_future().then(lambda done: done.value()[0])
