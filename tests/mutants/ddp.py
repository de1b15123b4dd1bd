"""Faults of data-parallel training: buckets, modes, registration, and what becomes of results."""

from . import Mutant

DDP, REDUCER, BUCKETING, REGISTRATION = "ddp.py", "reducer.py", "bucketing.py", "registration.py"
FOR_HOOK = "            bucket = self._buckets[index].for_hook(index, is_last=index == len(self._buckets) - 1)\n"
CALL = "            future = check_future(self._hook, self._hook(self._state, bucket))\n"
AVERAGE = "    return allreduce_hook(group, bucket)"
COPY_OUT = "            storage.copy_out(result, unused)\n"
NEW_BUCKET = "        return GradBucket(index, self._buffer, list(self.members.values()), is_last)\n"
# As a framework does that keeps its buckets, and whose hooks put another buffer into them.
KEPT = (
    "        if not hasattr(self, 'kept'):\n"
    "            self.kept = GradBucket(index, self._buffer, list(self.members.values()), is_last)\n"
    "        return self.kept\n"
)
REGISTER = "        self._state = state\n        self._hook = hook\n"


def mutant(
    name: str, clauses: tuple[str, ...], file: str, *changes: tuple[str, str], kinds: tuple[str, ...] = ()
) -> Mutant:
    """A fault in one file."""
    return Mutant(f"ddp_{name}", clauses, {file: list(changes)}, kinds)


MUTANTS = [
    # How it starts.
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
        "ranks_keep_a_little_of_their_own",
        ("DDP-AGREE",),
        REDUCER,
        (COPY_OUT, "            storage.copy_out(result * (1 + dist.get_rank() * 2**-7), unused)\n"),
        kinds=("value",),
    ),
    # Buckets over the steps.
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
    # Unused parameters.
    mutant(
        "unused_parameters_have_stale_values",
        ("DDP-UNUSED-LOCALLY",),
        BUCKETING,
        ("            view.zero_()\n            return\n", "            return\n"),
        kinds=("value",),
    ),
    mutant(
        "unused_parameters_keep_their_own_gradient",
        ("DDP-UNUSED-LOCALLY",),
        REDUCER,
        (
            "enumerate(ranks_with_gradient.tolist()) if ranks == 0)\n",
            "enumerate(int(p.grad is not None) for p in self._parameters) if ranks == 0)\n",
        ),
    ),
    mutant(
        "unused_parameters_get_zeros",
        ("DDP-UNUSED-EVERYWHERE",),
        REDUCER,
        ("self._unused_everywhere() if self._find_unused else frozenset()", "frozenset()"),
        kinds=("presence",),
    ),
    mutant(
        "unfinished_passes_are_ignored",
        ("DDP-UNUSED-REFUSED",),
        REDUCER,
        (
            "        if self._pass is not None and self._pass.ready:\n            missing",
            "        if False:\n            missing",
        ),
        kinds=("error",),
    ),
    # Views and layouts.
    mutant(
        "views_are_copies",
        ("DDP-VIEW",),
        REDUCER,
        ("                as_view=self._as_view,\n", "                as_view=False,\n"),
        kinds=("memory",),
    ),
    mutant(
        "views_come_after_the_first_step_only",
        ("DDP-VIEW",),
        BUCKETING,
        (
            "            view.copy_(gradient)\n        if self._as_view:\n",
            "            view.copy_(gradient)\n            return\n        if self._as_view:\n",
        ),
        kinds=("memory",),
    ),
    mutant(
        "views_keep_the_local_gradient",
        ("DDP-VIEW-SAME",),
        BUCKETING,
        (
            "        if result.data_ptr() != self._buffer.data_ptr():\n",
            "        if result.data_ptr() != self._buffer.data_ptr() and not self._as_view:\n",
        ),
        kinds=("value",),
    ),
    mutant(
        "gradients_have_row_major_strides",
        ("DDP-GRAD-LAYOUT",),
        "bucket.py",
        (
            "            views.append(_view_like(part, parameter))\n",
            "            views.append(part.view(parameter.shape))\n",
        ),
        (
            "        return self._is_last\n",
            "        for parameter in self._parameters:\n"
            "            parameter.grad = None\n"
            "        return self._is_last\n",
        ),
        kinds=("strides",),
    ),
    mutant(
        "sparse_gradients_become_dense",
        ("DDP-SPARSE",),
        BUCKETING,
        (
            "                    parameter.grad = result.detach()\n",
            "                    parameter.grad = result.detach().to_dense()\n",
        ),
        kinds=("sparse",),
    ),
    # Passes.
    mutant(
        "no_sync_is_ignored",
        ("DDP-NO-SYNC",),
        DDP,
        ("        self._synchronise = False\n", "        self._synchronise = True\n"),
    ),
    mutant(
        "no_sync_looks_at_the_backward_pass",
        ("DDP-NO-SYNC-FORWARD",),
        DDP,
        (
            "        before = self._synchronise\n        self._synchronise = False\n",
            "        before = self._synchronise\n"
            "        self._synchronise = False\n"
            "        self._reducer.expect_no_backward()\n",
        ),
        kinds=("calls",),
    ),
    mutant(
        "accumulated_gradients_are_not_sent",
        ("DDP-NO-SYNC-ACCUMULATED",),
        DDP,
        (
            "            self._reducer.expect_no_backward()\n            return self.module(*inputs, **kwargs)\n",
            "            self._reducer.expect_no_backward()\n            self._drop = True\n"
            "            return self.module(*inputs, **kwargs)\n"
            "        if self.__dict__.pop('_drop', False):\n            self.zero_grad()\n",
        ),
        kinds=("value",),
    ),
    mutant(
        "each_forward_pass_calls_the_hook",
        ("DDP-TWO-FORWARDS",),
        REDUCER,
        (
            "        self._pass = _Pass([set(bucket.members) for bucket in self._buckets], unreachable)\n",
            "        if self._pass is None:\n"
            "            self._pass = _Pass([set(bucket.members) for bucket in self._buckets], unreachable)\n"
            "        else:\n            self._pass = None\n",
        ),
    ),
    mutant(
        "models_share_the_pass_under_way",
        ("DDP-TWO-MODELS",),
        REDUCER,
        ("        self._pass: _Pass | None = None\n", "        type(self)._pass = None\n"),
        ("        self._pass = _Pass([", "        type(self)._pass = _Pass(["),
        kinds=("value", "raises RuntimeError"),
    ),
    mutant(
        "models_live_for_ever",
        ("DDP-LIFETIME",),
        DDP,
        (
            "        self._reducer.register(state, hook)\n",
            "        self._reducer.register(state, hook)\n        _KEPT.append(self)\n",
        ),
        ('State = TypeVar("State")\n', 'State = TypeVar("State")\n_KEPT = []\n'),
        kinds=("lifetime",),
    ),
    # Registration.
    mutant(
        "anything_can_be_registered",
        ("DDP-REGISTER-CALLABLE", "DDP-REGISTER-BUCKET-TYPE", "DDP-REGISTER-RETURN-TYPE"),
        DDP,
        ("        check_hook(hook)\n", ""),
        kinds=("error", "raises TypeError"),
    ),
    mutant(
        "wrong_annotations_are_type_errors",
        ("DDP-REGISTER-BUCKET-TYPE", "DDP-REGISTER-RETURN-TYPE"),
        DDP,
        (
            "        check_hook(hook)\n",
            "        try:\n"
            "            check_hook(hook)\n"
            "        except ValueError as error:\n"
            "            raise TypeError(str(error)) from None\n",
        ),
        kinds=("error",),
    ),
    mutant(
        "annotations_are_required",
        ("DDP-REGISTER-UNANNOTATED",),
        REGISTRATION,
        ("    if annotation in (inspect.Parameter.empty, Any, object)", "    if annotation in (Any, object)"),
        kinds=("error",),
    ),
    mutant(
        "the_second_hook_wins",
        ("DDP-REGISTER-ONCE",),
        REDUCER,
        ("        if self._hook is not average:\n", "        if False:\n"),
        kinds=("error",),
    ),
    mutant(
        "the_second_hook_wins_after_the_error",
        ("DDP-REGISTER-ONCE",),
        REDUCER,
        (
            "        if self._hook is not average:\n",
            "        if self._hook is not average:\n            self._hook = hook\n",
        ),
        kinds=("calls",),
    ),
    mutant(
        "the_state_is_copied",
        ("DDP-HOOK-STATE",),
        REDUCER,
        (
            REGISTER,
            "        self._state = dict(state) if isinstance(state, dict) else state\n        self._hook = hook\n",
        ),
        kinds=("state",),
    ),
    # Results.
    mutant(
        "results_are_ignored",
        ("DDP-HOOK-RESULT",),
        BUCKETING,
        ("            self._buffer.copy_(result)\n", "            pass\n"),
        kinds=("value",),
    ),
    mutant(
        "only_results_that_are_there_are_used",
        ("DDP-HOOK-AWAITED",),
        REDUCER,
        (
            "            wait_for_result(self._hook, future, bucket, given, self._timeout)\n",
            "            future.wait() if future.done() else given\n",
        ),
        kinds=("value",),
    ),
    mutant(
        "exceptions_change_their_type",
        ("DDP-HOOK-RAISES",),
        REDUCER,
        (
            CALL,
            "            try:\n                future = check_future(self._hook, self._hook(self._state, bucket))\n"
            "            except Exception as error:\n"
            "                raise RuntimeError('the hook failed') from error\n",
        ),
        kinds=("error",),
    ),
    mutant(
        "exceptions_are_swallowed",
        ("DDP-HOOK-RAISES",),
        REDUCER,
        (
            CALL,
            "            try:\n                future = check_future(self._hook, self._hook(self._state, bucket))\n"
            "            except Exception:\n"
            "                future = Future()\n"
            "                future.set_result(given)\n",
        ),
        kinds=("no error",),
    ),
]
