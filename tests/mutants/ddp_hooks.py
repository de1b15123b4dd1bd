"""Faults of data-parallel training: which hooks it takes, and what it does with what they give back."""

from .ddp import BUCKETING, COPY_OUT, DDP, REDUCER, REGISTRATION, mutant

CALL = "            future = check_future(self._hook, self._hook(self._state, bucket))\n"
REGISTER = "        self._state = state\n        self._hook = hook\n"
# As torch's wrapper has them.
BUILT_IN = """
    def _register_builtin_comm_hook(self, kind: Any) -> None:
        hook = {"ALLREDUCE": allreduce_hook, "FP16_COMPRESS": fp16_compress_hook}[kind.name]
        self._reducer.register(self.process_group, hook)

    def register_comm_hook("""
IMPORT = "from .bucketing import sparse_parameters\n"
IMPORTS = f"from .default_hooks import allreduce_hook, fp16_compress_hook\n{IMPORT}"

MUTANTS = [
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
    mutant(
        "results_are_ignored",
        ("DDP-HOOK-RESULT",),
        BUCKETING,
        ("            self._buffer.copy_(result)\n", "            pass\n"),
        kinds=("value",),
    ),
    mutant(
        "large_results_are_ignored",
        ("DDP-HOOK-RESULT",),
        REDUCER,
        (COPY_OUT, "            storage.copy_out(result, unused) if result.numel() < 2**18 else None\n"),
        kinds=("value",),
    ),
    mutant(
        "results_become_finite",
        ("DDP-HOOK-RESULT",),
        REDUCER,
        (COPY_OUT, "            storage.copy_out(result if result.is_sparse else result.nan_to_num(), unused)\n"),
        kinds=("value",),
    ),
    mutant(
        "infinite_results_are_ignored",
        ("DDP-HOOK-RESULT",),
        REDUCER,
        (
            COPY_OUT,
            "            storage.copy_out(result, unused) if result.is_sparse or result.isfinite().all() else None\n",
        ),
        kinds=("value",),
    ),
    mutant(
        "results_become_single",
        ("DDP-HOOK-RESULT",),
        REDUCER,
        (COPY_OUT, "            storage.copy_out(result if result.is_complex() else result.float(), unused)\n"),
        kinds=("value",),
    ),
    mutant(
        "hooks_are_recorded",
        ("DDP-HOOK-NO-GRAD",),
        REDUCER,
        (CALL, f"            with torch.enable_grad():\n    {CALL}"),
        kinds=("grad mode",),
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
    mutant(
        "results_are_kept",
        ("DDP-MEMORY",),
        REDUCER,
        (COPY_OUT, f"{COPY_OUT}            self._kept = result.clone()\n"),
        kinds=("memory",),
    ),
    # Hooks that are built in.
    mutant(
        "built_in_hooks_sum",
        ("DDP-BUILT-IN",),
        DDP,
        ("\n    def register_comm_hook(", BUILT_IN.replace('"ALLREDUCE": allreduce_hook', '"ALLREDUCE": _sum')),
        (IMPORT, IMPORTS),
        (
            "\ndef _check_same_model(",
            "\ndef _sum(group: Any, bucket: Any) -> Any:\n"
            "    mean = allreduce_hook(group, bucket)\n"
            "    return mean.then(lambda done: done.value().mul_(dist.get_world_size(group)))\n\n\n"
            "def _check_same_model(",
        ),
        kinds=("value",),
    ),
    mutant(
        "a_built_in_hook_wins",
        ("DDP-BUILT-IN-ONCE",),
        DDP,
        (
            "\n    def register_comm_hook(",
            BUILT_IN.replace("self._reducer.register(self.process_group, hook)", "self._reducer._hook = hook"),
        ),
        (IMPORT, IMPORTS),
        kinds=("error",),
    ),
]
