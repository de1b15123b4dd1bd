"""Faults that only show when collectives are late or reordered, fail, or are written down."""

from . import Mutant, halves
from .allreduce import ALLREDUCE, HOOKS, REDUCE, allreduce, averaging
from .compress import CAST, SET

MEAN = "    buffer = bucket.buffer().div_(dist.get_world_size(process_group))\n"
START = "    work = dist.all_reduce(buffer, group=process_group, async_op=True)\n"
CHAIN = "    return work.get_future().then(lambda done: done.value()[0])\n"
GROUP = "    group = process_group or dist.group.WORLD\n"
DONE = "    future = Future()\n    future.set_result(buffer)\n    return future\n"


def second(code: str) -> str:
    """A body whose callback does something with the averaged ``value`` that needs a further collective."""
    return (
        f"{GROUP}\n    def callback(future):\n        value = future.value()\n"
        f"        {code}\n        return value\n"
        "    return average(bucket.buffer(), process_group).then(callback)\n"
    )


MUTANTS = [
    # Too early, too late.
    allreduce(
        "copies_before_it_has_arrived",
        ("HOOK-LATE",),
        f"{MEAN}{START}    early = buffer.clone()\n    return work.get_future().then(lambda done: early)\n",
        kinds=("unfinished",),
    ),
    allreduce("returns_before_it_has_arrived", ("HOOK-LATE",), f"{MEAN}{START}{DONE}", kinds=("unfinished",)),
    allreduce(
        "hopes_that_it_has_arrived",
        ("HOOK-LATE",),
        f"    import time\n\n{MEAN}{START}    time.sleep(0.002)\n{DONE}",
        kinds=("unfinished",),
    ),
    allreduce(
        "the_slow_rank_is_left_out",
        ("HOOK-LATE",),
        "    import time\n\n    keep = bucket.buffer().clone()\n"
        f"{MEAN}{START}    time.sleep(0.005)\n"
        "    late = not work.is_completed()\n"
        "    return work.get_future().then(lambda done: keep if late else done.value()[0])\n",
        kinds=("value",),
    ),
    allreduce(
        "writes_after_completion",
        ("HOOK-COMPLETE",),
        "    import threading\n\n"
        f"{MEAN}{START}"
        "    def callback(done):\n"
        "        threading.Timer(0.005, buffer.mul_, [2.0]).start()\n"
        "        return done.value()[0]\n"
        "    return work.get_future().then(callback)\n",
        kinds=("changed",),
    ),
    allreduce(
        "divides_while_it_is_under_way",
        ("HOOK-HANDS-OFF",),
        f"    buffer = bucket.buffer()\n{START}    buffer.div_(dist.get_world_size(process_group))\n{CHAIN}",
        kinds=("written",),
    ),
    allreduce(
        "clears_what_is_being_gathered",
        ("HOOK-HANDS-OFF",),
        f"{GROUP}    buffer = bucket.buffer()\n"
        "    parts = [torch.empty_like(buffer) for _ in range(group.size())]\n"
        "    work = dist.all_gather(parts, buffer, group=group, async_op=True)\n"
        "    buffer.zero_()\n"
        "    return work.get_future().then(lambda done: buffer.copy_(torch.stack(done.value()).mean(0)))\n",
        kinds=("written",),
    ),
    allreduce("nobody_waits", ("HOOK-WAITED",), f"{MEAN}{START}{DONE}", kinds=("unwaited",)),
    allreduce(
        "forgets_the_second_half",
        ("HOOK-WAITED",),
        f"{MEAN}"
        "    halves = buffer.split(buffer.numel() // 2 + 1)\n"
        "    works = [dist.all_reduce(half, group=process_group, async_op=True) for half in halves]\n"
        "    return works[0].get_future().then(lambda done: buffer)\n",
        kinds=("unwaited",),
    ),
    allreduce(
        "asks_again_and_again",
        ("HOOK-IDLE",),
        f"{MEAN}{START}    while not work.is_completed():\n        pass\n{DONE}",
        kinds=("busy",),
    ),
    # Order.
    allreduce(
        "the_last_one_stands_for_all",
        ("HOOK-ANY-ORDER",),
        f"{MEAN}"
        "    halves = buffer.split(buffer.numel() // 2 + 1)\n"
        "    works = [dist.all_reduce(half, group=process_group, async_op=True) for half in halves]\n"
        "    return works[-1].get_future().then(lambda done: buffer)\n",
        kinds=("unfinished",),
    ),
    allreduce(
        "counts_completions",
        ("HOOK-ANY-ORDER",),
        f"{MEAN}    WAITING.append(buffer)\n{START}"
        "    return work.get_future().then(lambda done: [done.value(), buffer.copy_(WAITING.pop(0))][1])\n",
        top="WAITING = []",
    ),
    allreduce(
        "order_by_rank",
        ("HOOK-ORDER",),
        f"{MEAN}"
        "    halves = list(buffer.split(buffer.numel() // 2 + 1))\n"
        "    if dist.get_rank() == 1:\n        halves.reverse()\n"
        "    for half in halves:\n        dist.all_reduce(half, group=process_group)\n"
        f"{DONE}",
        kinds=("order",),
    ),
    allreduce(
        "order_by_hash",
        ("HOOK-ORDER",),
        "    import random\n\n"
        f"{MEAN}"
        "    parts = buffer.split(buffer.numel() // 8 + 1)\n"
        "    order = sorted(range(len(parts)), key=lambda place: hash((place, float(parts[place][0]))))\n"
        "    parts = [parts[place][: place + 1] for place in order]\n"
        "    for part in parts:\n        dist.all_reduce(part, group=process_group)\n"
        f"{DONE}",
        kinds=("order",),
    ),
    allreduce(
        "order_by_readiness",
        ("HOOK-ORDER",),
        f"{GROUP}{MEAN}{START}"
        "    again = Future()\n\n"
        "    def callback(done):\n"
        "        more = dist.all_reduce(done.value()[0].div_(group.size()), group=group, async_op=True)\n"
        "        more.get_future().then(lambda last: again.set_result(last.value()[0]))\n"
        "    work.get_future().then(callback)\n"
        "    return again\n",
        kinds=("order",),
    ),
    allreduce(
        "one_rank_skips_a_bucket",
        ("HOOK-ORDER",),
        f"{MEAN}    if dist.get_rank() == 1 and bucket.index() == 1:\n        return Future_of(buffer)\n{START}{CHAIN}",
        kinds=("order",),
        top="\n\ndef Future_of(buffer):\n    future = Future()\n    future.set_result(buffer)\n    return future\n\n",
    ),
    allreduce(
        "one_rank_sends_its_norm_too",
        ("HOOK-ORDER",),
        f"{MEAN}"
        "    if dist.get_rank() == 0:\n"
        "        dist.all_reduce(buffer[:1].abs(), group=process_group)\n"
        f"{START}{CHAIN}",
        kinds=("order",),
    ),
    # Callbacks.
    allreduce(
        "waits_in_a_callback",
        ("HOOK-NO-BLOCKING",),
        second("dist.all_reduce(value.div_(group.size()), group=group, async_op=True).get_future().wait()"),
        kinds=("blocks",),
    ),
    allreduce(
        "waits_for_the_work_in_a_callback",
        ("HOOK-NO-BLOCKING",),
        second("dist.all_reduce(value.div_(group.size()), group=group)"),
        kinds=("blocks",),
    ),
    allreduce("barrier_in_a_callback", ("HOOK-NO-BLOCKING",), second("dist.barrier(group)"), kinds=("blocks",)),
    # Groups.
    averaging(
        "the_world_under_a_subgroup",
        ("HOOK-GROUP",),
        (REDUCE, REDUCE.replace("group=group", "group=dist.group.WORLD")),
        kinds=("group",),
    ),
    allreduce(
        "a_barrier_of_the_world", ("HOOK-GROUP",), f"    dist.barrier(async_op=True)\n{ALLREDUCE}", kinds=("group",)
    ),
    allreduce(
        "a_group_for_every_step",
        ("HOOK-NO-NEW-GROUP",),
        "    group = dist.new_group() if process_group is dist.group.WORLD else process_group\n"
        "    return average(bucket.buffer(), group)\n",
        kinds=("new group",),
    ),
    # Errors.
    averaging(
        "does_not_look_at_the_error",
        ("HOOK-FAILS",),
        ("        reduced.value()  # raises if the collective failed; for a complex tensor it is a real view\n", ""),
        kinds=("swallowed",),
    ),
    allreduce(
        "takes_the_gradients_if_it_fails",
        ("HOOK-FAILS",),
        "    keep = bucket.buffer().clone()\n"
        f"{MEAN}{START}"
        "    def callback(done):\n"
        "        try:\n            return done.value()[0]\n"
        "        except RuntimeError:\n            return keep\n"
        "    return work.get_future().then(callback)\n",
        kinds=("swallowed",),
    ),
    allreduce(
        "never_completes_if_it_fails",
        ("HOOK-FAILS",),
        f"{MEAN}{START}"
        "    future = Future()\n"
        "    work.get_future().then(lambda done: future.set_result(done.value()[0]))\n"
        "    return future\n",
        kinds=("hangs",),
    ),
    # The wire.
    allreduce(
        "sends_float64",
        ("ALLREDUCE-WIRE",),
        "    buffer = bucket.buffer()\n"
        "    wide = average(buffer.double(), process_group)\n"
        "    return wide.then(lambda mean: buffer.copy_(mean.value()))\n",
        kinds=("wire",),
    ),
    allreduce(
        "gathers_everything",
        ("ALLREDUCE-WIRE",),
        f"{GROUP}    buffer = bucket.buffer()\n"
        "    parts = [torch.empty_like(buffer) for _ in range(group.size())]\n"
        "    work = dist.all_gather(parts, buffer.clone(), group=group, async_op=True)\n"
        "    second = dist.all_reduce(torch.zeros(1, dtype=buffer.dtype), group=group, async_op=True)\n"
        "    second.wait()\n"
        "    return work.get_future().then(lambda done: buffer.copy_(torch.stack(done.value()).mean(0)))\n",
        kinds=("wire",),
    ),
    allreduce(
        "one_more_every_tenth_step",
        ("ALLREDUCE-WIRE",),
        "    STEPS[0] += 1\n"
        "    if STEPS[0] % 10 == 0:\n"
        "        dist.all_reduce(torch.zeros(80, dtype=bucket.buffer().dtype), group=process_group)\n"
        f"{ALLREDUCE}",
        kinds=("wire",),
        top="STEPS = [0]",
    ),
    allreduce(
        "a_barrier_before_it", ("ALLREDUCE-WIRE",), f"    dist.barrier(process_group)\n{ALLREDUCE}", kinds=("wire",)
    ),
    Mutant(
        "sends_what_was_cast_back",
        halves("SENDS"),
        {HOOKS: [(CAST, "    compressed = buffer.to(dtype).to(buffer.dtype)\n")]},
        kinds=("wire",),
    ),
    Mutant(
        "sends_the_original_as_well",
        halves("SENDS"),
        {
            HOOKS: [
                (CAST, CAST + "    dist.all_reduce(buffer.clone(), group=process_group)\n"),
            ]
        },
        kinds=("wire",),
    ),
    Mutant(
        "wraps_without_a_cast",
        halves("WRAPPER-SENDS"),
        {HOOKS: [(SET, "        bucket.set_buffer(own_buffer.to(dtype).to(own_buffer.dtype))\n")]},
        kinds=("wire",),
    ),
    Mutant(
        "noop_counts_the_ranks",
        ("NOOP-SILENT",),
        {
            "debugging_hooks.py": [
                (
                    "    future.set_result(buffer)",
                    "    dist.all_reduce(torch.ones(1), async_op=True).wait()\n    future.set_result(buffer)",
                )
            ]
        },
        kinds=("wire",),
    ),
    # Claims.
    Mutant(
        "claims_a_sum_but_averages",
        ("HOOK-SUM",),
        {"__init__.py": [("__all__ = [", 'allreduce_hook.commhooks_claims = {"sum"}\n\n__all__ = [')]},
        kinds=("value",),
        hook="allreduce_hook",
    ),
    Mutant(
        "claims_to_lose_less_than_it_does",
        ("HOOK-LOSSY",),
        {"__init__.py": [("__all__ = [", "fp16_compress_hook.commhooks_error = 1e-6\n\n__all__ = [")]},
        kinds=("value",),
        hook="fp16_compress_hook",
    ),
]
