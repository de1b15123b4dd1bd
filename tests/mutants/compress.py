"""Faults of the compress hooks and wrappers."""

from . import Mutant, halves
from .allreduce import HOOKS

CAST = "    compressed = buffer.to(dtype)\n"
BACK = "    return average(compressed, process_group).then(lambda mean: buffer.copy_(mean.value()))\n"
SET = "        bucket.set_buffer(own_buffer.to(dtype))\n"
RESTORE = "            bucket.set_buffer(own_buffer)\n            return own_buffer.copy_(result.value())\n"


def compress(name: str, clauses: tuple[str, ...], *changes: tuple[str, str], kinds: tuple[str, ...] = ()) -> Mutant:
    """A fault in what the compress hooks or the wrappers share."""
    return Mutant(name, clauses, {HOOKS: list(changes)}, kinds)


MUTANTS = [
    compress(
        "divides_before_the_cast",
        halves("CAST-FIRST", "EXACT"),
        (CAST, "    compressed = (buffer / dist.get_world_size(process_group)).to(dtype)\n"),
        (
            BACK,
            (
                "    work = dist.all_reduce(compressed, group=process_group, async_op=True)\n"
                "    return work.get_future().then(lambda mean: buffer.copy_(mean.value()[0]))\n"
            ),
        ),
        kinds=("value",),
    ),
    compress(
        "clamps_to_the_range",
        halves("CAST-FIRST"),
        (CAST, "    compressed = buffer.clamp(torch.finfo(dtype).min, torch.finfo(dtype).max).to(dtype)\n"),
        kinds=("value",),
    ),
    compress(
        "sends_full_precision",
        halves("WIRE"),
        (CAST, "    compressed = buffer.clone()\n"),
        kinds=("value",),
    ),
    compress(
        "averages_in_float32_then_casts",
        halves("EXACT"),
        (CAST, "    compressed = buffer.clone()\n"),
        (
            BACK,
            ("    return average(compressed, process_group).then(lambda mean: buffer.copy_(mean.value().to(dtype)))\n"),
        ),
        kinds=("value",),
    ),
    compress(
        "cuts_bits_off",
        ("BF16-EXACT",),
        (
            CAST,
            (
                "    compressed = buffer.to(dtype)\n"
                "    if buffer.dtype == torch.float32:\n"
                "        compressed = (buffer.view(torch.int32) & -65536).view(torch.float32).to(dtype)\n"
            ),
        ),
        kinds=("value",),
    ),
    compress(
        "rounds_ties_away",
        ("FP16-EXACT",),
        (
            CAST,
            (
                "    compressed = buffer.to(dtype)\n"
                "    if buffer.dtype == torch.float32:\n"
                "        compressed = (buffer * (1 + 2**-20)).to(dtype)\n"
            ),
        ),
        kinds=("value",),
    ),
    compress(
        "does_not_cast_back",
        halves("DTYPE", "WRAPPER-DTYPE"),
        (BACK, "    return average(compressed, process_group)\n"),
        (RESTORE, "            bucket.set_buffer(own_buffer)\n            return result.value()\n"),
        kinds=("dtype",),
    ),
    compress(
        "fp16_sends_bfloat16",
        ("FP16-MEAN", "FP16-EXACT"),
        (
            "    return _average_compressed(torch.float16, process_group, bucket)\n",
            "    return _average_compressed(torch.bfloat16, process_group, bucket)\n",
        ),
        kinds=("value",),
    ),
    compress(
        "bf16_sends_float16",
        ("BF16-WIRE", "BF16-DIVIDE-BEFORE-SUM"),
        (
            "    return _average_compressed(torch.bfloat16, process_group, bucket)\n",
            "    return _average_compressed(torch.float16, process_group, bucket)\n",
        ),
        kinds=("value",),
    ),
    compress(
        "half_buckets_are_not_averaged",
        halves("SAME-TYPE"),
        (
            CAST,
            (
                "    if buffer.dtype == dtype:\n        future = Future()\n        future.set_result(buffer)\n"
                "        return future\n" + CAST
            ),
        ),
        kinds=("value",),
    ),
    compress(
        "half_buckets_are_an_error",
        halves("SAME-TYPE"),
        (CAST, "    assert buffer.dtype != dtype, 'already compressed'\n" + CAST),
        kinds=("raises AssertionError",),
    ),
    compress(
        "wrapper_does_not_compress", halves("WRAPPER-IDENTITY", "WRAPPER-INNER"), (SET, ""), kinds=("value", "dtype")
    ),
    compress(
        "wrapper_compresses_the_result_only",
        halves("WRAPPER-IDENTITY"),
        (SET, ""),
        (RESTORE, "            return own_buffer.copy_(result.value().to(dtype))\n"),
        kinds=("value",),
    ),
    compress(
        "wrapper_drops_the_state",
        halves("WRAPPER-INNER"),
        (
            "            return hook(state, bucket).then(decompress)\n",
            "            return hook(None, bucket).then(decompress)\n",
        ),
        kinds=("state",),
    ),
    compress(
        "wrapper_averages_too",
        halves("WRAPPER-NOOP"),
        (
            RESTORE,
            (
                "            bucket.set_buffer(own_buffer)\n"
                "            dist.all_reduce(own_buffer.copy_(result.value()).div_(dist.get_world_size()))\n"
                "            return own_buffer\n"
            ),
        ),
        kinds=("value",),
    ),
    compress(
        "wrapper_leaves_its_copy_in_the_bucket",
        halves("WRAPPER-REUSE"),
        (RESTORE, "            return own_buffer.copy_(result.value())\n"),
        kinds=("bucket",),
    ),
    compress(
        "wrapper_keeps_the_first_steps_copy",
        halves("WRAPPER-REUSE"),
        (
            SET,
            (
                "        if not hasattr(bucket, 'kept'):\n            bucket.kept = own_buffer.to(dtype)\n"
                "        bucket.set_buffer(bucket.kept)\n"
            ),
        ),
        kinds=("value",),
    ),
    compress(
        "wrapper_skips_what_is_half_already",
        halves("WRAPPER-NEST"),
        (SET, ("        if own_buffer.element_size() == 2:\n            return hook(state, bucket)\n" + SET)),
        kinds=("value",),
    ),
    compress(
        "wrapper_shows_old_gradients",
        halves("WRAPPER-INNER"),
        (SET, "        views = bucket.gradients()\n" + SET + "        bucket.gradients = lambda: views\n"),
        kinds=("dtype",),
    ),
]
