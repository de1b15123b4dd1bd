"""Faults of averaging, and of the future that a hook returns."""

from . import Mutant, halves

HOOKS = "default_hooks.py"
DIVIDE = "    tensor.div_(dist.get_world_size(group))\n"
REDUCE = "    work = dist.all_reduce(tensor, group=group, async_op=True)\n"
RETURN = "    averaged: Future[torch.Tensor] = work.get_future().then(mean)\n    return averaged\n"
ALLREDUCE = "    return average(bucket.buffer(), process_group)\n"


def averaging(name: str, clauses: tuple[str, ...], *changes: tuple[str, str], kinds: tuple[str, ...] = ()) -> Mutant:
    """A fault in ``average``, which all averaging hooks share."""
    return Mutant(name, clauses, {HOOKS: list(changes)}, kinds)


def allreduce(name: str, clauses: tuple[str, ...], body: str, kinds: tuple[str, ...] = (), top: str = "") -> Mutant:
    """A fault in ``allreduce_hook``: its last line is replaced by ``body``."""
    changes = [(ALLREDUCE, body)]
    if top:
        changes.append(('State = TypeVar("State")\n', f'State = TypeVar("State")\n{top}\n'))
    return Mutant(name, clauses, {HOOKS: changes}, kinds)


def after(code: str) -> str:
    """A body that does something to the averaged ``value``."""
    return (
        "    def callback(future):\n        value = future.value()\n"
        f"        {code}\n        return value\n"
        "    return average(bucket.buffer(), process_group).then(callback)\n"
    )


MUTANTS = [
    # Who divides, and by what.
    averaging("sum_instead_of_mean", ("ALLREDUCE-MEAN", *halves("MEAN")), (DIVIDE, ""), kinds=("value",)),
    averaging("divides_twice", ("ALLREDUCE-MEAN", *halves("MEAN")), (DIVIDE, DIVIDE + DIVIDE), kinds=("value",)),
    averaging(
        "divides_by_the_world",
        ("ALLREDUCE-GROUP", *halves("GROUP")),
        (DIVIDE, "    tensor.div_(dist.get_world_size())\n"),
        kinds=("value",),
    ),
    averaging(
        "sums_over_the_world",
        ("ALLREDUCE-GROUP",),
        (REDUCE, "    work = dist.all_reduce(tensor, async_op=True)\n"),
        kinds=("hangs", "value", "changed", "raises RuntimeError"),
    ),
    averaging(
        "none_means_alone",
        ("ALLREDUCE-NONE-IS-WORLD", *halves("NONE-IS-WORLD")),
        (
            "    group = group if group is not None else dist.group.WORLD\n",
            "    if group is None:\n        alone = Future()\n        alone.set_result(tensor)\n        return alone\n",
        ),
        kinds=("value",),
    ),
    averaging(
        "none_is_not_handled",
        ("ALLREDUCE-NONE-IS-WORLD",),
        (DIVIDE, "    tensor.div_(group.size())\n"),
        ("    group = group if group is not None else dist.group.WORLD\n", ""),
        kinds=("raises AttributeError",),
    ),
    averaging(
        "one_rank_is_halved",
        ("ALLREDUCE-ONE-RANK", *halves("ONE-RANK")),
        (DIVIDE, "    tensor.div_(max(dist.get_world_size(group), 2))\n"),
        kinds=("value",),
    ),
    averaging(
        "one_rank_gives_zero",
        ("ALLREDUCE-ONE-RANK", *halves("ONE-RANK")),
        (DIVIDE, DIVIDE + "    if dist.get_world_size(group) == 1:\n        tensor.zero_()\n"),
    ),
    averaging(
        "divides_after_the_sum",
        ("ALLREDUCE-NO-OVERFLOW", *halves("DIVIDE-BEFORE-SUM")),
        (DIVIDE, "    size = dist.get_world_size(group)\n"),
        ("        return tensor\n", "        return tensor.div_(size)\n"),
        kinds=("value",),
    ),
    # What is averaged.
    averaging(
        "infinities_become_large",
        ("ALLREDUCE-NONFINITE", *halves("NONFINITE")),
        (DIVIDE, "    tensor.nan_to_num_(nan=float('nan'))\n" + DIVIDE),
        kinds=("value",),
    ),
    averaging(
        "nan_becomes_zero",
        ("ALLREDUCE-NONFINITE", *halves("NONFINITE")),
        (DIVIDE, "    tensor[tensor != tensor] = 0\n" + DIVIDE),
        kinds=("value",),
    ),
    averaging(
        "one_nan_poisons_all",
        ("ALLREDUCE-NONFINITE", *halves("NONFINITE")),
        (DIVIDE, DIVIDE + "    tensor.add_(tensor.sum() * 0)\n"),
    ),
    averaging(
        "no_communication",
        ("ALLREDUCE-MEAN", "HOOK-AGREE"),
        (REDUCE, ""),
        (RETURN, "    future = Future()\n    future.set_result(tensor)\n    return future\n"),
    ),
    averaging(
        "broadcasts_the_first_rank",
        ("ALLREDUCE-MEAN", *halves("MEAN")),
        (DIVIDE, ""),
        (REDUCE, "    work = dist.broadcast(tensor, src=dist.get_global_rank(group, 0), group=group, async_op=True)\n"),
        kinds=("value",),
    ),
    averaging(
        "leaves_the_end_of_long_buffers",
        ("ALLREDUCE-MEAN",),
        (
            REDUCE,
            "    end = tensor.numel() // 512 * 512 or tensor.numel()\n" + REDUCE.replace("(tensor,", "(tensor[:end],"),
        ),
        kinds=("value",),
    ),
    averaging(
        "wrong_above_a_million",
        ("ALLREDUCE-MEAN",),
        (DIVIDE, DIVIDE + "    tensor[1 << 20 :].zero_()\n"),
        kinds=("value",),
    ),
    averaging(
        "flushes_subnormals",
        ("ALLREDUCE-MEAN",),
        (DIVIDE, "    tensor[tensor.abs() < torch.finfo(tensor.dtype).smallest_normal] = 0\n" + DIVIDE),
        kinds=("value",),
    ),
    allreduce(
        "averages_in_float16",
        ("ALLREDUCE-MEAN",),
        "    buffer = bucket.buffer()\n"
        "    return average(buffer.half(), process_group).then(lambda mean: buffer.copy_(mean.value()))\n",
        kinds=("value",),
    ),
    allreduce(
        "averages_float64_in_float32",
        ("ALLREDUCE-MEAN",),
        "    buffer = bucket.buffer()\n"
        "    return average(buffer.float(), process_group).then(lambda mean: buffer.copy_(mean.value()))\n",
        kinds=("value",),
    ),
    allreduce(
        "off_by_the_last_bit",
        ("ALLREDUCE-EXACT", "ALLREDUCE-AS-DDP"),
        after("value = torch.nextafter(value, value + 1) if value.dtype == torch.float32 else value"),
        kinds=("value",),
    ),
    # The future and its value.
    allreduce("returns_a_tensor", ("HOOK-FUTURE",), ALLREDUCE.rstrip() + ".wait()\n", kinds=("no future",)),
    allreduce("returns_none", ("HOOK-FUTURE", "ALLREDUCE-MEAN"), "    average(bucket.buffer(), process_group)\n"),
    allreduce(
        "future_of_a_list",
        ("HOOK-FUTURE",),
        "    return average(bucket.buffer(), process_group).then(lambda mean: [mean.value()])\n",
        kinds=("no tensor",),
    ),
    allreduce(
        "collectives_future_unchanged",
        ("HOOK-FUTURE",),
        "    buffer = bucket.buffer().div_(dist.get_world_size(process_group))\n"
        "    return dist.all_reduce(buffer, group=process_group, async_op=True).get_future()\n",
        kinds=("no tensor",),
    ),
    allreduce("two_dimensional_result", ("HOOK-LENGTH",), after("value = value.view(1, -1)"), kinds=("length",)),
    allreduce("result_is_too_short", ("HOOK-LENGTH",), after("value = value[:-1]"), kinds=("length",)),
    allreduce(
        "result_is_too_long", ("HOOK-LENGTH",), after("value = torch.cat([value, value[:1]])"), kinds=("length",)
    ),
    allreduce(
        "strided_result", ("HOOK-CONTIGUOUS",), after("value = torch.stack([value, value], 1)[:, 0]"), kinds=("layout",)
    ),
    allreduce(
        "result_with_an_offset",
        ("HOOK-CONTIGUOUS",),
        after("value = torch.cat([value[:1], value])[1:]"),
        kinds=("layout",),
    ),
    allreduce("result_in_float64", ("HOOK-DTYPE",), after("value = value.double()"), kinds=("dtype",)),
    allreduce(
        "future_completes_early",
        ("HOOK-COMPLETE",),
        "    buffer = bucket.buffer().div_(dist.get_world_size(process_group))\n"
        "    dist.all_reduce(buffer, group=process_group, async_op=True)\n"
        "    future = Future()\n    future.set_result(buffer)\n    return future\n",
        kinds=("changed",),
    ),
    allreduce(
        "reads_too_early",
        ("HOOK-AGREE",),
        "    buffer = bucket.buffer().div_(dist.get_world_size(process_group))\n"
        "    work = dist.all_reduce(buffer, group=process_group, async_op=True)\n"
        "    early = buffer.clone()\n"
        "    return work.get_future().then(lambda _: early)\n",
        kinds=("disagreement",),
    ),
    allreduce(
        "rank_one_rounds_otherwise",
        ("HOOK-AGREE",),
        after("value = value * (1 + 2**-20) if dist.get_rank() == 1 else value"),
        kinds=("disagreement",),
    ),
    allreduce("draws_from_torch", ("HOOK-RANDOM-STATE",), "    torch.rand(1)\n" + ALLREDUCE, kinds=("random state",)),
    allreduce(
        "draws_from_numpy",
        ("HOOK-RANDOM-STATE",),
        "    import numpy\n\n    numpy.random.rand()\n" + ALLREDUCE,
        kinds=("random state",),
    ),
    allreduce(
        "draws_from_python",
        ("HOOK-RANDOM-STATE",),
        "    import random\n\n    random.random()\n" + ALLREDUCE,
        kinds=("random state",),
    ),
    allreduce("seeds_torch", ("HOOK-RANDOM-STATE",), "    torch.manual_seed(0)\n" + ALLREDUCE, kinds=("random state",)),
    allreduce(
        "keeps_a_residual_it_should_not",
        ("HOOK-REPEAT",),
        "    buffer = bucket.buffer()\n    RESIDUAL[0] += 1e-3\n    buffer.add_(RESIDUAL[0])\n" + ALLREDUCE,
        kinds=("value",),
        top="RESIDUAL = [0.0]",
    ),
    allreduce(
        "one_result_for_all_calls",
        ("HOOK-EARLIER-CALL",),
        "    buffer = bucket.buffer()\n"
        "    result = RESULTS.setdefault((buffer.dtype, buffer.numel()), torch.empty_like(buffer))\n"
        "    return average(buffer, process_group).then(lambda mean: result.copy_(mean.value()))\n",
        kinds=("changed",),
        top="RESULTS = {}",
    ),
    allreduce(
        "writes_to_the_last_buffer",
        ("HOOK-EARLIER-CALL",),
        "    for buffer in SEEN:\n        buffer.zero_()\n    SEEN[:] = [bucket.buffer()]\n" + ALLREDUCE,
        kinds=("changed",),
        top="SEEN = []",
    ),
    allreduce(
        "the_callback_takes_the_newest_bucket",
        ("HOOK-IN-FLIGHT",),
        "    NEWEST[:] = [bucket.buffer()]\n"
        "    import time\n\n"
        "    def callback(future):\n        time.sleep(0.02)\n        return NEWEST[0]\n"
        "    return average(bucket.buffer(), process_group).then(callback)\n",
        top="NEWEST = []",
    ),
    allreduce(
        "one_scratch_for_all_buckets",
        ("HOOK-IN-FLIGHT",),
        "    buffer = bucket.buffer()\n"
        "    scratch = SCRATCH.setdefault(buffer.dtype, torch.empty(1 << 21, dtype=buffer.dtype))[: buffer.numel()]\n"
        "    scratch.copy_(buffer)\n"
        "    return average(scratch, process_group).then(lambda mean: buffer.copy_(mean.value()))\n",
        top="SCRATCH = {}",
    ),
    allreduce("squeezes", ("HOOK-LENGTHS",), after("value = value.squeeze()"), kinds=("length",)),
    allreduce(
        "joins_gradients_that_have_dimensions",
        ("HOOK-LENGTHS",),
        "    buffer = torch.cat([gradient[:].reshape(-1) for gradient in bucket.gradients()])\n"
        "    return average(buffer, process_group)\n",
        kinds=("raises IndexError",),
    ),
    Mutant(
        "claims_a_mean_but_sums",
        ("HOOK-MEAN",),
        {
            HOOKS: [(DIVIDE, "")],
            "__init__.py": [("__all__ = [", 'allreduce_hook.commhooks_claims = {"mean"}\n\n__all__ = [')],
        },
        kinds=("value",),
        hook="allreduce_hook",
    ),
    # noop_hook.
    Mutant(
        "noop_gives_a_copy",
        ("NOOP-BUFFER",),
        {"debugging_hooks.py": [("future.set_result(buffer)", "future.set_result(buffer.clone())")]},
        kinds=("identity",),
    ),
    Mutant(
        "noop_averages",
        ("NOOP-BUFFER",),
        {
            "debugging_hooks.py": [
                (
                    "    future.set_result(buffer)",
                    ("    dist.all_reduce(buffer.div_(dist.get_world_size()))\n    future.set_result(buffer)"),
                )
            ]
        },
        kinds=("value",),
    ),
    Mutant(
        "noop_waits_for_all_ranks",
        ("NOOP-ALONE",),
        {
            "debugging_hooks.py": [
                ("    future.set_result(buffer)", "    dist.barrier()\n    future.set_result(buffer)")
            ]
        },
        kinds=("hangs", "raises RuntimeError"),
    ),
]
