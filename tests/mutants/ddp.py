"""Faults of data-parallel training: how it starts, and the mean that it takes without a hook."""

from . import Mutant

DDP, REDUCER, BUCKETING, REGISTRATION = "ddp.py", "reducer.py", "bucketing.py", "registration.py"
FOR_HOOK = "            bucket = self._buckets[index].for_hook(index, is_last=index == len(self._buckets) - 1)\n"
AVERAGE = "    return allreduce_hook(group, bucket)"
COPY_OUT = "            storage.copy_out(result, unused)\n"


def mutant(
    name: str, clauses: tuple[str, ...], file: str, *changes: tuple[str, str], kinds: tuple[str, ...] = ()
) -> Mutant:
    """A fault in one file."""
    return Mutant(f"ddp_{name}", clauses, {file: list(changes)}, kinds)


MUTANTS = [
    mutant(
        "parameters_are_not_broadcast",
        ("DDP-BROADCAST",),
        DDP,
        ("        broadcast_from_first(module.parameters(), group)\n", ""),
        kinds=("value",),
    ),
    mutant(
        "frozen_parameters_are_not_broadcast",
        ("DDP-BROADCAST",),
        DDP,
        (
            "        broadcast_from_first(module.parameters(), group)\n",
            "        broadcast_from_first(trained.values(), group)\n",
        ),
        kinds=("value",),
    ),
    mutant(
        "buffers_are_not_broadcast_at_first",
        ("DDP-BROADCAST",),
        DDP,
        ("        broadcast_from_first(module.buffers(), group)\n", ""),
        kinds=("value",),
    ),
    mutant(
        "buffers_stay_as_they_are",
        ("DDP-BROADCAST-BUFFERS",),
        DDP,
        ("        if self.broadcast_buffers:\n", "        if False:\n"),
        kinds=("value",),
    ),
    mutant(
        "buffers_are_always_broadcast",
        ("DDP-BROADCAST-BUFFERS",),
        DDP,
        ("        if self.broadcast_buffers:\n", "        if True:\n"),
        kinds=("value",),
    ),
    mutant(
        "a_model_without_parameters_is_a_value_error",
        ("DDP-NO-PARAMETERS",),
        DDP,
        ('raise RuntimeError("module must have a parameter', 'raise ValueError("module must have a parameter'),
        kinds=("error",),
    ),
    mutant(
        "parameters_have_another_prefix",
        ("DDP-STATE-DICT",),
        DDP,
        ("        self.module = module\n", "        self.module = module\n        self.add_module('again', module)\n"),
        kinds=("names",),
    ),
    mutant(
        "buffers_are_broadcast_once",
        ("DDP-BROADCAST-BUFFERS",),
        DDP,
        (
            "        if self.broadcast_buffers:\n",
            "        if self.broadcast_buffers and not hasattr(self, 'seen'):\n            self.seen = True\n",
        ),
        kinds=("value",),
    ),
    mutant(
        "whole_numbers_are_not_broadcast",
        ("DDP-BROADCAST-BUFFERS",),
        REDUCER,
        (
            "    tensors = list(tensors)\n",
            "    tensors = [one for one in tensors if one.is_floating_point()]\n",
        ),
        kinds=("value",),
    ),
    # A module like any other.
    mutant(
        "keyword_arguments_are_dropped",
        ("DDP-ARGUMENTS",),
        DDP,
        ("        outputs = self.module(*inputs, **kwargs)\n", "        outputs = self.module(*inputs)\n"),
        kinds=("seen",),
    ),
    mutant(
        "eval_mode_is_not_synchronised",
        ("DDP-EVAL",),
        DDP,
        ("        if not self._synchronise:\n", "        if not self._synchronise or not self.training:\n"),
        kinds=("value",),
    ),
    mutant(
        "eval_stays_with_the_wrapper",
        ("DDP-EVAL",),
        DDP,
        (
            "    @contextlib.contextmanager\n    def no_sync(",
            "    def train(self, mode: bool = True) -> Any:\n"
            "        self.training = mode\n        return self\n\n"
            "    @contextlib.contextmanager\n    def no_sync(",
        ),
        kinds=("modes",),
    ),
    mutant(
        "parameters_are_not_loaded",
        ("DDP-LOAD-STATE-DICT",),
        DDP,
        (
            "        self.module = module\n",
            "        self.module = module\n"
            "        own = lambda _, entries, *more: entries.update(self.state_dict())\n"
            "        self.register_load_state_dict_pre_hook(own)\n",
        ),
        kinds=("value",),
    ),
    # The mean.
    mutant(
        "sums",
        ("DDP-MEAN",),
        REDUCER,
        (AVERAGE, f"{AVERAGE}.then(lambda mean: mean.value().mul_(dist.get_world_size(group)))"),
        kinds=("value",),
    ),
    mutant(
        "divides_the_result_again",
        ("DDP-MEAN", "DDP-HOOK-RESULT", "HOOK-IN-DDP"),
        REDUCER,
        (COPY_OUT, "            storage.copy_out(result / dist.get_world_size(self._group), unused)\n"),
        kinds=("value",),
    ),
    mutant(
        "divides_before_the_hook_too",
        ("DDP-BUCKET-CONTENTS", "HOOK-IN-DDP"),
        REDUCER,
        (
            "            given = bucket.buffer()  # A hook may put another buffer into the bucket.\n",
            "            given = bucket.buffer().div_(dist.get_world_size(self._group))\n",
        ),
        kinds=("value",),
    ),
    mutant(
        "divides_by_the_world",
        ("DDP-GROUP",),
        REDUCER,
        (
            AVERAGE,
            f"{AVERAGE}.then(lambda mean: mean.value().mul_(dist.get_world_size(group) / dist.get_world_size()))",
        ),
        kinds=("value",),
    ),
    mutant(
        "without_a_group_each_rank_is_alone",
        ("DDP-GROUP",),
        DDP,
        (
            "is not None else dist.group.WORLD\n",
            "is not None else dist.new_group([dist.get_rank()], use_local_synchronization=True)\n",
        ),
        kinds=("value",),
    ),
    mutant(
        "ranks_keep_a_little_of_their_own",
        ("DDP-AGREE",),
        REDUCER,
        (COPY_OUT, "            storage.copy_out(result * (1 + dist.get_rank() * 2**-7), unused)\n"),
        kinds=("value",),
    ),
]
