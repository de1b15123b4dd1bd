"""Faults of data-parallel training: the buckets that a hook gets, over the steps."""

from . import Mutant
from .ddp import BUCKETING, DDP, FOR_HOOK, REDUCER, mutant

NEW_BUCKET = "        return GradBucket(index, self._buffer, list(self.members.values()), is_last)\n"
# As a framework does that keeps its buckets, and whose hooks put another buffer into them.
KEPT = (
    "        if not hasattr(self, 'kept'):\n"
    "            self.kept = GradBucket(index, self._buffer, list(self.members.values()), is_last)\n"
    "        return self.kept\n"
)

MUTANTS = [
    mutant(
        "a_parameter_is_in_no_bucket",
        ("DDP-BUCKET-ONCE",),
        DDP,
        (
            "        self.broadcast_buffers = broadcast_buffers\n",
            "        self.broadcast_buffers = broadcast_buffers\n"
            "        trained = dict(list(trained.items())[1:] or trained)\n",
        ),
        kinds=("parameters",),
    ),
    mutant(
        "wrong_order",
        ("DDP-BUCKET-ORDER",),
        REDUCER,
        (FOR_HOOK, FOR_HOOK.replace("for_hook(index,", "for_hook(len(self._buckets) - 1 - index,")),
        kinds=("order",),
    ),
    mutant(
        "first_is_last",
        ("DDP-BUCKET-LAST",),
        REDUCER,
        (FOR_HOOK, FOR_HOOK.replace("is_last=index == len(self._buckets) - 1", "is_last=index == 0")),
        kinds=("last",),
    ),
    mutant(
        "parameters_are_copies",
        ("DDP-BUCKET-PARAMETERS",),
        BUCKETING,
        (NEW_BUCKET, NEW_BUCKET.replace("list(self.members.values())", "[p.detach() for p in self.members.values()]")),
        kinds=("parameters",),
    ),
    mutant(
        "gradients_are_read_in_row_major_order",
        ("DDP-BUCKET-GRADIENTS",),
        BUCKETING,
        (
            NEW_BUCKET,
            NEW_BUCKET.replace("return GradBucket", "bucket = GradBucket")
            + "        parts = self._buffer.split([p.numel() for p in self.members.values()])\n"
            "        rows = [part.view(p.shape) for part, p in zip(parts, self.members.values())]\n"
            "        bucket.gradients = lambda: rows\n        return bucket\n",
        ),
        kinds=("value",),
    ),
    mutant(
        "gradients_are_those_of_others",
        ("DDP-BUCKET-GRADIENTS", "DDP-BUCKET-CONTENTS"),
        BUCKETING,
        (NEW_BUCKET, NEW_BUCKET.replace("list(self.members.values())", "list(self.members.values())[::-1]")),
    ),
    mutant(
        "each_rank_has_its_own_order",
        ("DDP-BUCKET-SAME-ORDER",),
        REDUCER,
        ("        broadcast_from_first([order], self._group)\n", ""),
        kinds=("parameters",),
    ),
    mutant(
        "dtypes_share_a_bucket",
        ("DDP-BUCKET-KINDS",),
        BUCKETING,
        (
            "        kind = (parameters[place].dtype, parameters[place].device)\n",
            "        kind = (torch.float32, parameters[place].device)\n",
        ),
        kinds=("dtype",),
    ),
    mutant(
        "buckets_have_no_cap",
        ("DDP-BUCKET-CAP",),
        BUCKETING,
        (">= caps.setdefault(kind, first_cap):", ">= 4 * caps.setdefault(kind, first_cap):"),
        kinds=("size",),
    ),
    mutant(
        "rebuilds_in_every_step",
        ("DDP-REBUILD-ONCE",),
        REDUCER,
        (
            "        if self._first_order is None:\n            self._first_order = current.ready\n",
            "        self._first_order = current.ready\n",
        ),
        ("        self._is_rebuilt = True\n", ""),
        kinds=("parameters",),
    ),
    mutant(
        "rebuild_is_ignored",
        ("DDP-REBUILD-ORDER",),
        REDUCER,
        ("        self._buckets = self._build_buckets(order.tolist())\n", ""),
        kinds=("order",),
    ),
    mutant(
        "a_stale_bucket_is_used_again",
        ("DDP-BUCKET-FRESH",),
        BUCKETING,
        (NEW_BUCKET, KEPT),
        kinds=("value", "raises RuntimeError"),
    ),
    Mutant(
        "ddp_wrappers_see_the_first_steps_gradients",
        ("HOOK-IN-DDP",),
        {
            BUCKETING: [(NEW_BUCKET, KEPT)],
            "default_hooks.py": [
                (
                    "            bucket.set_buffer(own_buffer)\n            return own_buffer.copy_(result.value())\n",
                    "            return result.value().to(torch.float32)\n",
                )
            ],
        },
        kinds=("value", "raises RuntimeError"),
    ),
]
