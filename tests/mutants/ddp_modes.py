"""Faults of data-parallel training: its modes, and passes that are not one forward and one backward."""

from . import Mutant
from .ddp import BUCKETING, COPY_OUT, DDP, FOR_HOOK, REDUCER, mutant

MUTANTS = [
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
        "gradients_are_always_views",
        ("DDP-GRAD-KEPT",),
        BUCKETING,
        ("            parameter.grad.copy_(view)\n", "            parameter.grad = view\n"),
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
    mutant(
        "no_sync_is_ignored",
        ("DDP-NO-SYNC",),
        DDP,
        ("        self._synchronise = False\n", "        self._synchronise = True\n"),
    ),
    mutant(
        "no_sync_ends_with_an_inner_one",
        ("DDP-NO-SYNC",),
        DDP,
        ("            self._synchronise = before\n", "            self._synchronise = True\n"),
        kinds=("calls",),
    ),
    mutant(
        "no_sync_stays_on_after_an_error",
        ("DDP-NO-SYNC",),
        DDP,
        (
            "        try:\n            yield\n        finally:\n            self._synchronise = before\n",
            "        yield\n        self._synchronise = before\n",
        ),
        kinds=("calls",),
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
    mutant(
        "unused_parameters_get_zeros_in_views",
        ("DDP-MODES",),
        REDUCER,
        (
            "self._unused_everywhere() if self._find_unused else frozenset()",
            "self._unused_everywhere() if self._find_unused and not self._as_view else frozenset()",
        ),
        kinds=("presence",),
    ),
    # Compiled, and in other dtypes.
    mutant(
        "compiled_models_are_not_synchronised",
        ("DDP-COMPILED",),
        DDP,
        (
            "        if not torch.is_grad_enabled():\n",
            "        if not torch.is_grad_enabled() or hasattr(self.module, '_orig_mod'):\n",
        ),
        kinds=("parameters",),
    ),
    Mutant(
        "ddp_buckets_have_the_dtype_of_autocast",
        ("DDP-AUTOCAST",),
        {
            DDP: [
                (
                    "        self._reducer.rebuild_buckets_once()\n",
                    "        self._reducer.rebuild_buckets_once()\n"
                    "        self._reducer.casts = torch.is_autocast_enabled('cpu')\n",
                )
            ],
            REDUCER: [
                (
                    FOR_HOOK,
                    f"{FOR_HOOK}"
                    "            if self.casts:\n                bucket.set_buffer(bucket.buffer().bfloat16())\n",
                )
            ],
        },
        kinds=("dtype",),
    ),
    Mutant(
        "ddp_mixed_precision_halves_the_result",
        ("DDP-MIXED-PRECISION",),
        {
            DDP: [
                (
                    "        static_graph: bool = False,\n",
                    "        static_graph: bool = False,\n        mixed_precision: object = None,\n",
                ),
                (
                    "        self.module = module\n",
                    "        self.module = module\n        Reducer.factor = 0.5 if mixed_precision else 1.0\n",
                ),
            ],
            REDUCER: [(COPY_OUT, "            storage.copy_out(result * self.factor, unused)\n")],
        },
        kinds=("value",),
    ),
    mutant(
        "adds_a_constant",
        ("DDP-LOSS-SCALE",),
        REDUCER,
        (COPY_OUT, "            storage.copy_out(result + 2**-20, unused)\n"),
        kinds=("value",),
    ),
]
