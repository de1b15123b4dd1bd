"""Right hooks that compress, choose or carry something on, each with the claims that it can keep."""

import dataclasses

import right_averages
import torch
import torch.distributed as dist
from hook_marks import claims, completed, made_by, misses_by


@claims()
def signs_by_majority(state, bucket):
    """Sends signs, and takes the sign of their sum, times the mean magnitude."""
    buffer = bucket.buffer()
    scale = buffer.abs().mean().div(dist.get_world_size())
    works = [dist.all_reduce(scale, async_op=True), dist.all_reduce(signs := buffer.sign(), async_op=True)]
    for work in works:
        work.wait()
    return completed(torch.sign(signs).mul_(scale))


@claims()
@misses_by(1 / 127)
def eight_bits(state, bucket):
    """Agrees on a scale first, waits, and sends integers of that scale."""
    buffer = bucket.buffer()
    scale = buffer.abs().max().float()
    dist.all_reduce(scale, op=dist.ReduceOp.MAX)
    step = torch.clamp(scale / 127, min=1e-30)
    rounded = torch.clamp((buffer.float() / step).round(), -127, 127).to(torch.int32)
    world = dist.get_world_size()
    future = dist.all_reduce(rounded, async_op=True).get_future()
    return future.then(lambda done: (done.value()[0].float() * step / world).to(buffer.dtype))


@dataclasses.dataclass
class Kept:
    """What was not sent, for each place of a bucket."""

    group: object
    residuals: dict = dataclasses.field(default_factory=dict)

    def add_to(self, bucket):
        residual = self.residuals.get(bucket.index())
        same = residual is not None and residual.shape == bucket.buffer().shape
        return bucket.buffer() + residual.to(bucket.buffer().dtype) if same else bucket.buffer().clone()


@claims("subgroups")
@misses_by(1.0)
@made_by(Kept)
def the_largest_only(kept, bucket):
    """Gathers a tenth of each rank's elements, with their places, and keeps the rest for the next step."""
    wanted = kept.add_to(bucket)
    count, size = max(1, wanted.numel() // 10), dist.get_world_size(kept.group)
    places = wanted.abs().topk(count).indices
    values = wanted[places]
    kept.residuals[bucket.index()] = wanted.index_fill(0, places, 0)
    all_places = [torch.empty_like(places) for _ in range(size)]
    all_values = [torch.empty_like(values) for _ in range(size)]
    futures = [
        dist.all_gather(outputs, own, group=kept.group, async_op=True).get_future()
        for outputs, own in ((all_places, places), (all_values, values))
    ]

    def decode(done):
        for future in done.value():
            future.value()
        result = torch.zeros_like(wanted)
        for where, what in zip(all_places, all_values, strict=True):
            result.index_add_(0, where, what / size)
        return result

    return torch.futures.collect_all(futures).then(decode)


class Steps:
    """Counts the passes, not the buckets."""

    def __init__(self, group):
        self.group = group
        self.passes = 0

    def next(self, bucket):
        number = self.passes
        self.passes += bucket.is_last()
        return number


@claims()
@made_by(Steps)
def some_at_random(steps, bucket):
    """All ranks draw the same elements, from the number of the step and of the bucket."""
    draw = torch.Generator().manual_seed(1000 * steps.next(bucket) + bucket.index())
    buffer = bucket.buffer()
    chosen = torch.randperm(buffer.numel(), generator=draw)[: max(1, buffer.numel() // 4)]
    sent = buffer[chosen] / dist.get_world_size()
    future = dist.all_reduce(sent, async_op=True).get_future()
    return future.then(lambda done: torch.zeros_like(buffer).index_copy_(0, chosen, done.value()[0]))


@claims("local")
@made_by(Steps)
def every_other_step(steps, bucket):
    """Local steps in between."""
    if steps.next(bucket) % 2 == 1:
        return completed(bucket.buffer())
    return right_averages.divides_in_the_callback(None, bucket)


@claims("mean")
@made_by(Steps)
def wide_first_then_half(steps, bucket):
    """In the first step as it is, then in a wider type that all ranks choose by the number of the step."""
    return (
        right_averages.out_of_place(None, bucket)
        if steps.next(bucket) < 1
        else right_averages.in_double_precision(None, bucket)
    )


@claims("pickle")
@made_by(lambda group: {"momentum": {}})
def with_momentum(state, bucket):
    momentum = state["momentum"].get(bucket.index())
    if momentum is None or momentum.shape != bucket.buffer().shape:
        momentum = torch.zeros_like(bucket.buffer())
    state["momentum"][bucket.index()] = momentum = momentum * 0.9 + bucket.buffer()
    sent = momentum / dist.get_world_size()
    return dist.all_reduce(sent, async_op=True).get_future().then(lambda done: done.value()[0])


@claims()
def clips_by_the_norm(state, bucket):
    """Waits for the norm over all ranks before it scales."""
    buffer = bucket.buffer().div_(dist.get_world_size())
    square = buffer.float().square().sum()
    dist.all_reduce(square)
    buffer.div_(torch.clamp(square.sqrt(), min=1.0))
    return dist.all_reduce(buffer, async_op=True).get_future().then(lambda done: done.value()[0])


@claims("local")
@made_by(lambda group: {})
def one_step_behind(under_way, bucket):
    """Gives the mean of the step before, while that of this step is under way on a copy; at first its own gradient."""
    copy = bucket.buffer() / dist.get_world_size()
    before = under_way.get(bucket.index())
    under_way[bucket.index()] = dist.all_reduce(copy, async_op=True).get_future()
    if before is None:
        return completed(bucket.buffer())
    mean = before.wait()[0]
    return completed(mean if mean.shape == copy.shape else bucket.buffer())


@claims("mean")
def says_when_it_is_done(state, bucket):
    """Adds up how many elements all ranks sent, with the last bucket of a pass."""
    if bucket.is_last():
        dist.all_reduce(torch.tensor([bucket.buffer().numel()]))
    dist.barrier()
    return right_averages.out_of_place(state, bucket)
