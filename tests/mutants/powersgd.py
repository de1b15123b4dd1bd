"""Faults of PowerSGD."""

from __future__ import annotations

from . import REFERENCE, Mutant

FILES = ("powersgd.py", "low_rank.py")
DRAW = "    if memory.Qs is None or memory.drawn_Qs is None or not state.warm_start:\n"
DRAWN = (
    "        drawn = torch.from_numpy(memory.rng.standard_normal(sum(math.prod(stack.Q_shape) for stack in stacks)))\n"
)
AVERAGE_P = "    average(P_batch, state.process_group).wait()\n"
AVERAGE_Q = "    average(Q_batch, state.process_group).wait()\n"
ORTHOGONALIZE_P = "    Ps = [_orthogonalize(P, state.orthogonalization_epsilon) for P in Ps]\n"
ERROR = "                M[place].sub_(gradient.flatten(1))\n"
ADD_ERROR = "            matrix.add_(gradient.flatten(1))\n"
ERRORS_FINITE = "    memory.errors.nan_to_num_(nan=0.0, posinf=0.0, neginf=0.0)\n"
WORTH = "    return compressed_numel * state.min_compression_rate < rows * columns\n"
GETSTATE = '        return {name: value for name, value in self.__dict__.items() if name != "process_group"}\n'
SETSTATE = "        self.__dict__.update(state)\n"
COUNT_BEFORE = "    state._numel_before += bucket.buffer().numel()\n"
COUNT_SENT = "    state._numel_sent += others_numel + matrices_sent\n"
COMPRESSING = "        return self.iter >= self.start_powerSGD_iter and not buffer.is_sparse\n"
LAST = "        if not bucket.is_last():\n            return\n"
LOG = (
    "        if compressed_steps >= 0 and compressed_steps % self.compression_stats_logging_frequency == 0:\n"
    "            logger.info(\n"
)
REVIVE = "    return torch.where((largest > 0) & largest.isfinite(), Q, drawn_Q)\n"
LAYOUT = "    if memory.layout != layout:\n"
SQUARE = "    square[:numel] = buffer\n"
PADDING = "        errors[numel:] = 0\n"
RNG = "np.random.default_rng([state.random_seed, index])"
START_CHECK = "        if (use_error_feedback or warm_start) and start_powerSGD_iter <= 1:\n"
VECTOR = "    if gradient.dim() < 2:\n        return False\n"
EMPTY_OTHERS = "    if others_numel > 0:\n        others_mean"
RANK = "    return min(state.matrix_approximation_rank, *matrix_shape(gradient))\n"


def fault(
    name: str, ends: str, *changes: tuple[str, str], kinds: tuple[str, ...] = (), others: tuple[str, ...] = ()
) -> Mutant:
    """A fault in the files of PowerSGD.

    Args:
        name: Its name.
        ends: The clauses that have to notice it, without "PSGD-" and separated by spaces.
        changes: Texts of the files, and what to put in their place.
        kinds: Kinds of failure, one of which each clause has to fail with.
        others: More clauses.
    """
    replacements: dict[str, list[tuple[str, str]]] = {}
    for old, new in changes:
        file = next((file for file in FILES if old in (REFERENCE / file).read_text(encoding="utf-8")), FILES[0])
        replacements.setdefault(file, []).append((old, new))
    return Mutant(f"psgd_{name}", (*(f"PSGD-{end}" for end in ends.split()), *others), replacements, kinds)


MUTANTS = [
    # The constructor.
    fault(
        "default_rank",
        "DEFAULTS",
        ("        matrix_approximation_rank: int = 1,\n", "        matrix_approximation_rank: int = 2,\n"),
    ),
    fault(
        "default_start",
        "DEFAULTS",
        ("        start_powerSGD_iter: int = 1000,\n", "        start_powerSGD_iter: int = 10,\n"),
    ),
    fault(
        "default_batching",
        "BATCH-DEFAULT",
        (
            "        batch_tensors_with_same_shape: bool = False,\n",
            "        batch_tensors_with_same_shape: bool = True,\n",
        ),
    ),
    fault(
        "no_argument_check",
        "ARGUMENTS",
        ('        _check_bool("warm_start", warm_start)\n', ""),
    ),
    fault(
        "start_rule_ignores_warm_start",
        "START-REFUSED",
        (START_CHECK, "        if (use_error_feedback) and start_powerSGD_iter <= 1:\n"),
    ),
    fault(
        "start_rule_is_for_0",
        "START-REFUSED",
        (START_CHECK, "        if (use_error_feedback or warm_start) and start_powerSGD_iter <= 0:\n"),
    ),
    fault(
        "start_rule_is_for_all",
        "START-ALLOWED",
        (START_CHECK, "        if start_powerSGD_iter <= 1:\n"),
    ),
    fault(
        "start_rule_is_for_2",
        "START-ALLOWED",
        (START_CHECK, "        if (use_error_feedback or warm_start) and start_powerSGD_iter <= 2:\n"),
    ),
    # Steps.
    fault(
        "starts_early",
        "VANILLA START",
        (COMPRESSING, "        return self.iter + 1 >= self.start_powerSGD_iter and not buffer.is_sparse\n"),
    ),
    fault(
        "starts_late",
        "START",
        (COMPRESSING, "        return self.iter > self.start_powerSGD_iter and not buffer.is_sparse\n"),
    ),
    fault(
        "steps_by_bucket",
        "STEP",
        (LAST, ""),
        kinds=("value",),
    ),
    fault(
        "steps_at_first_bucket",
        "STEP",
        (LAST, ("        if bucket.index() > 0:\n            return\n")),
    ),
    fault(
        "steps_not_before_compression",
        "START",
        (
            (
                "        state._count_step(bucket)\n"
                "        return allreduce_hook(state.process_group, bucket)\n"
                "\n"
                "    matrices: list[torch.Tensor] = []\n"
                "    others: list[torch.Tensor] = []\n"
            ),
            (
                "        return allreduce_hook(state.process_group, bucket)\n"
                "\n"
                "    matrices: list[torch.Tensor] = []\n"
                "    others: list[torch.Tensor] = []\n"
            ),
        ),
    ),
    fault(
        "vanilla_rounds",
        "VANILLA",
        (
            (
                "        state._count_step(bucket)\n"
                "        return allreduce_hook(state.process_group, bucket)\n"
                "\n"
                "    matrices: list[torch.Tensor] = []\n"
                "    others: list[torch.Tensor] = []\n"
            ),
            (
                "        state._count_step(bucket)\n"
                "        bucket.buffer().mul_(3).div_(3)\n"
                "        return allreduce_hook(state.process_group, bucket)\n"
                "\n"
                "    matrices: list[torch.Tensor] = []\n"
                "    others: list[torch.Tensor] = []\n"
            ),
        ),
    ),
    # Where Q comes from.
    fault(
        "seed_by_rank",
        "SEED-RANKS",
        (RNG, "np.random.default_rng([state.random_seed, index, dist.get_rank()])"),
    ),
    fault(
        "seed_is_global_generator",
        "SEED-RANKS SEED-GLOBAL",
        (DRAWN, "        drawn = torch.randn(sum(math.prod(stack.Q_shape) for stack in stacks)).double()\n"),
    ),
    fault(
        "seeds_globally",
        "SEED-GLOBAL",
        (DRAWN, "        torch.manual_seed(state.random_seed)\n" + DRAWN),
    ),
    fault(
        "seed_is_random",
        "SEED-REPEAT",
        (RNG, "np.random.default_rng(int(torch.initial_seed() % 1000))"),
    ),
    fault(
        "seed_is_ignored",
        "SEED-OTHER",
        (RNG, "np.random.default_rng([0, index])"),
    ),
    fault(
        "same_draw_in_all_buckets",
        "DRAW",
        (RNG, "np.random.default_rng(state.random_seed)"),
    ),
    fault(
        "same_draw_for_all_matrices",
        "DRAW",
        (
            DRAWN,
            (
                "        widths = [math.prod(stack.Q_shape) for stack in stacks]\n"
                "        longest = memory.rng.standard_normal(max(widths))\n"
                "        drawn = torch.from_numpy(np.concatenate([longest[:width] for width in widths]))\n"
            ),
        ),
    ),
    fault(
        "same_draw_in_all_steps",
        "WARM-OFF",
        (
            DRAWN,
            (
                "        drawn = torch.from_numpy(np.random.default_rng([state.random_seed, "
                "bucket.index()]).standard_normal(sum(math.prod(stack.Q_shape) for stack in stacks)))\n"
            ),
        ),
    ),
    fault(
        "warm_start_always",
        "WARM-OFF",
        (DRAW, "    if memory.Qs is None or memory.drawn_Qs is None:\n"),
    ),
    fault(
        "warm_start_redraws",
        "WARM WARM-CONVERGES MEAN BATCHED-SQUARE",
        (DRAW, "    if True:\n"),
    ),
    fault(
        "warm_start_from_the_drawn",
        "WARM WARM-CONVERGES",
        ("    memory.Qs = Q_batch\n", ""),
    ),
    # The approximation.
    fault(
        "sum_of_Q",
        "PROJECTION EXACT MEAN MATRIX STRIDES",
        (AVERAGE_Q, AVERAGE_Q + "    Q_batch.mul_(dist.get_world_size(state.process_group))\n"),
    ),
    fault(
        "local_Q",
        "EXACT MEAN",
        (AVERAGE_Q, "    average(Q_batch.clone(), state.process_group).wait()\n"),
    ),
    fault(
        "local_P",
        "PROJECTION MEAN",
        (AVERAGE_P, "    average(P_batch.clone(), state.process_group).wait()\n"),
    ),
    fault(
        "no_orthogonalization",
        "PROJECTION EXACT RANK-CAP DTYPE",
        (ORTHOGONALIZE_P, ""),
    ),
    fault(
        "orthogonalizes_only_lengths",
        "PROJECTION RANK-CAP",
        (ORTHOGONALIZE_P, "    Ps = [P / P.norm(dim=-2, keepdim=True) for P in Ps]\n"),
    ),
    fault(
        "one_column_too_few",
        "EXACT",
        (ORTHOGONALIZE_P, ORTHOGONALIZE_P + ("    for P in Ps:\n        P[..., -1] = 0\n")),
    ),
    fault(
        "keeps_the_gradient_too",
        "RANK BATCHED-COMPRESSES",
        (
            "        torch.mm(P, Q.mT, out=gradient.view(len(P), -1))\n",
            "        gradient.view(len(P), -1).mul_(0.01).add_(P @ Q.mT)\n",
        ),
    ),
    fault(
        "rank_one_too_many",
        "RANK STATS-COUNT WIRE",
        (RANK, "    return min(state.matrix_approximation_rank + 1, *matrix_shape(gradient))\n"),
    ),
    fault(
        "rank_is_at_most_3",
        "RANK-CAP",
        (RANK, "    return min(state.matrix_approximation_rank, 3)\n"),
    ),
    fault(
        "absolute_epsilon",
        "SCALE",
        ("        directions = directions * (lengths / (lengths + epsilon))\n", "        pass\n"),
        ("    directions: torch.Tensor\n", ("    directions: torch.Tensor\n    epsilon = epsilon or 1e-4\n")),
        (
            "    return directions.to(matrices.dtype)\n",
            (
                "    lengths = triangles.diagonal(dim1=-2, dim2=-1).abs().unsqueeze(-2)\n"
                "    return (directions * (lengths / (lengths + epsilon))).to(matrices.dtype)\n"
            ),
        ),
    ),
    fault(
        "epsilon_times_1e6",
        "EPSILON-SMALL",
        (ORTHOGONALIZE_P, "    Ps = [_orthogonalize(P, 1e6 * state.orthogonalization_epsilon) for P in Ps]\n"),
    ),
    fault(
        "convolutions_are_averaged",
        "MATRIX",
        (VECTOR, VECTOR.replace("< 2", "!= 2")),
        kinds=("rank",),
    ),
    fault(
        "strided_result_is_lost",
        "STRIDES",
        (
            "        gradient.copy_((P @ Q.mT).view(gradient.shape))\n",
            "        gradient.contiguous().copy_((P @ Q.mT).view(gradient.shape))\n",
        ),
    ),
    fault(
        "batch_takes_the_first_for_all",
        "BATCH-SAME",
        (
            "            _write_product(P[place], Q[place], gradient)\n",
            "            _write_product(P[0], Q[0], gradient)\n",
        ),
    ),
    # Error feedback.
    fault(
        "no_feedback",
        "FEEDBACK BUCKETS BATCHED-FEEDBACK",
        (("    if not state.use_error_feedback:\n        gradients"), ("    if True:\n        gradients")),
        (("            if state.use_error_feedback:\n                M[place].sub_(gradient.flatten(1))\n"), ""),
    ),
    fault(
        "feedback_always",
        "FEEDBACK-OFF",
        (("    if not state.use_error_feedback:\n        gradients"), ("    if False:\n        gradients")),
        ("            if state.use_error_feedback:\n", "            if True:\n"),
    ),
    fault(
        "feedback_doubled",
        "FEEDBACK BATCHED-FEEDBACK",
        (ERROR, ERROR + "                M[place].mul_(2)\n"),
    ),
    fault(
        "feedback_of_wrong_sign",
        "FEEDBACK BATCHED-FEEDBACK",
        (ERROR, ERROR + "                M[place].neg_()\n"),
    ),
    fault(
        "feedback_never_read",
        "FEEDBACK BATCHED-FEEDBACK",
        (ADD_ERROR, "            matrix.copy_(gradient.flatten(1))\n"),
    ),
    fault(
        "feedback_not_reduced",
        "FEEDBACK",
        (ERROR, "                M[place].sub_(gradient.flatten(1) / 2)\n"),
    ),
    fault(
        "buckets_share_their_memory",
        "BUCKETS",
        ("    index, layout = bucket.index(), [", "    index, layout = 0, ["),
    ),
    fault(
        "layout_is_not_compared",
        "RELAYOUT",
        (LAYOUT, "    if len(memory.layout) != len(layout):\n"),
    ),
    # What is not compressed.
    fault(
        "others_are_summed",
        "UNCOMPRESSED EMPTY GROUP",
        ("            gradient.copy_(mean)\n", "            gradient.copy_(mean * dist.get_world_size())\n"),
    ),
    fault(
        "others_get_feedback",
        "UNCOMPRESSED",
        ("            gradient.copy_(mean)\n", "            gradient.copy_(mean + 0.01 * mean.abs().max())\n"),
    ),
    fault(
        "vectors_are_matrices",
        "VECTOR",
        (
            "    for gradient in bucket.gradients():\n        (matrices if",
            "    for gradient in bucket.gradients():\n"
            "        gradient = gradient.unsqueeze(1) if gradient.dim() == 1 else gradient\n"
            "        (matrices if",
        ),
        kinds=("count",),
    ),
    fault(
        "threshold_not_strict",
        "THRESHOLD",
        (WORTH, "    return compressed_numel * state.min_compression_rate <= rows * columns\n"),
    ),
    fault(
        "threshold_upside_down",
        "THRESHOLD",
        (WORTH, "    return compressed_numel * state.min_compression_rate > rows * columns\n"),
    ),
    fault(
        "threshold_without_rank",
        "THRESHOLD",
        (
            "    compressed_numel = (rows + columns) * _approximation_rank(state, gradient)\n",
            "    compressed_numel = rows + columns\n",
        ),
    ),
    # Edges.
    fault(
        "zero_is_divided_by",
        "ZERO ZERO-RECOVERS",
        (
            ORTHOGONALIZE_P,
            (
                "    Ps = [_orthogonalize(P, state.orthogonalization_epsilon) + 0 * (P / (P.norm(dim=-2, keepdim=True) "
                "+ state.orthogonalization_epsilon)) for P in Ps]\n"
            ),
        ),
    ),
    fault(
        "epsilon_is_left_out",
        "EPSILON",
        (ORTHOGONALIZE_P, "    Ps = [_orthogonalize(P, 0) + 0 * (P / P.norm(dim=-2, keepdim=True)) for P in Ps]\n"),
    ),
    fault(
        "zero_Q_stays",
        "ZERO-RECOVERS",
        (REVIVE, "    return Q if Q.abs().max() > 0 else 0 * Q\n"),
        (
            "    return directions.to(matrices.dtype)\n",
            (
                "    return (directions * (triangles.diagonal(dim1=-2, dim2=-1).abs().unsqueeze(-2) > "
                "0)).to(matrices.dtype)\n"
            ),
        ),
    ),
    fault(
        "divides_by_each_element",
        "ZERO-COLUMNS",
        (
            "            _write_product(P[place], Q[place], gradient)\n",
            (
                "            _write_product(P[place], Q[place], gradient)\n"
                "            gradient.add_(0 * M[place].view(gradient.shape).reciprocal())\n"
            ),
        ),
    ),
    fault(
        "nonfinite_is_hidden",
        "NONFINITE BATCHED-NONFINITE",
        (AVERAGE_P, ("    for M in Ms:\n        M.nan_to_num_(0.0, 0.0, 0.0)\n") + AVERAGE_P),
        (
            ("    for M, P, Q in zip(Ms, Ps, Qs, strict=True):\n        torch.bmm(M, Q, out=P)\n    # 3.3\n"),
            (
                "    for M, P, Q in zip(Ms, Ps, Qs, strict=True):\n"
                "        torch.bmm(M.nan_to_num(0.0, 0.0, 0.0), Q, out=P)\n"
                "    # 3.3\n"
            ),
        ),
    ),
    fault(
        "nonfinite_stays",
        "NONFINITE-RECOVERS",
        (ERRORS_FINITE, ""),
    ),
    fault(
        "unusual_gradients_raise",
        "EMPTY",
        (VECTOR, "    gradient.view(gradient.shape[0], -1)\n" + VECTOR),
    ),
    fault(
        "half_is_not_kept",
        "DTYPE",
        (
            (
                "    return noop_hook(None, bucket)  # all is done: the result is in the buffer\n"
                "\n"
                "\n"
                "def batched_powerSGD_hook"
            ),
            (
                "    bucket.set_buffer(bucket.buffer().float())\n"
                "    return noop_hook(None, bucket)\n"
                "\n"
                "\n"
                "def batched_powerSGD_hook"
            ),
        ),
    ),
    # Groups.
    fault(
        "group_is_ignored",
        "GROUP",
        (AVERAGE_P, "    average(P_batch, None).wait()\n"),
    ),
    fault(
        "divides_by_the_world",
        "GROUP",
        (AVERAGE_Q, AVERAGE_Q + "    Q_batch.mul_(dist.get_world_size(state.process_group) / dist.get_world_size())\n"),
    ),
    fault(
        "none_is_this_rank",
        "NONE-IS-WORLD",
        (AVERAGE_Q, ("    if state.process_group is not None:\n    ") + AVERAGE_Q),
    ),
    # Statistics.
    fault(
        "stats_before_compression",
        "STATS-NONE",
        (COMPRESSING, "        self._numel_before += buffer.numel()\n" + COMPRESSING),
    ),
    fault(
        "stats_without_others",
        "STATS-COUNT",
        (COUNT_SENT, "    state._numel_sent += matrices_sent\n"),
    ),
    fault(
        "stats_of_matrices_only",
        "STATS-COUNT",
        (COUNT_BEFORE, "    state._numel_before += sum(matrix.numel() for matrix in matrices)\n"),
    ),
    fault(
        "stats_count_P_only",
        "STATS-COUNT BATCHED-STATS",
        ("    return P_batch.numel() + Q_batch.numel()\n", "    return P_batch.numel()\n"),
    ),
    fault(
        "stats_of_the_last_step",
        "STATS-COUNT",
        (COUNT_SENT, "    state._numel_sent = others_numel + matrices_sent\n"),
    ),
    fault(
        "rate_upside_down",
        "STATS-RATE",
        (
            "        rate = self._numel_before / self._numel_sent if",
            "        rate = self._numel_sent / self._numel_before if",
        ),
    ),
    fault(
        "log_in_every_step",
        "STATS-LOG",
        (LOG, ("        if compressed_steps >= 0 and compressed_steps >= 0:\n            logger.info(\n")),
    ),
    fault(
        "log_is_late",
        "STATS-LOG",
        (LOG, LOG.replace("frequency == 0", "frequency == 1")),
    ),
    fault(
        "log_at_debug",
        "STATS-LOG",
        (LOG, LOG.replace("logger.info", "logger.debug")),
    ),
    # Pickling.
    fault(
        "pickles_the_group",
        "PICKLE",
        (GETSTATE, "        return dict(self.__dict__)\n"),
        (
            ("        if self.process_group is not None:\n            logger.warning("),
            ("        if False:\n            logger.warning("),
        ),
    ),
    fault(
        "loaded_group_is_this_rank",
        "PICKLE-GROUP",
        (
            "        self.process_group = dist.group.WORLD  # None before there is one, which means the same\n",
            (
                "        self.process_group = [dist.new_group([rank]) for rank in "
                "range(dist.get_world_size())][dist.get_rank()]\n"
            ),
        ),
    ),
    fault(
        "pickle_forgets_the_step",
        "PICKLE-SETTINGS",
        (SETSTATE, SETSTATE + "        self.iter = 0\n"),
    ),
    fault(
        "pickle_forgets_the_statistics",
        "PICKLE-SETTINGS",
        (SETSTATE, SETSTATE + "        self._numel_sent = 0\n"),
    ),
    fault(
        "pickle_forgets_the_rank",
        "PICKLE-SETTINGS",
        (SETSTATE, SETSTATE + "        self.matrix_approximation_rank = 1\n"),
    ),
    fault(
        "pickle_forgets_the_frequency",
        "PICKLE-SETTINGS",
        (SETSTATE, SETSTATE + "        self.compression_stats_logging_frequency = 10000\n"),
    ),
    fault(
        "pickle_forgets_the_rate",
        "PICKLE-SETTINGS",
        (SETSTATE, SETSTATE + "        self.min_compression_rate = 100\n"),
    ),
    fault(
        "pickle_forgets_epsilon",
        "PICKLE-SETTINGS",
        (SETSTATE, SETSTATE + "        self.orthogonalization_epsilon = 0\n"),
    ),
    fault(
        "pickle_forgets_the_errors",
        "PICKLE-RESUME",
        (SETSTATE, SETSTATE + ("        for memory in self._memories.values():\n            memory.errors = None\n")),
    ),
    fault(
        "pickle_forgets_Q",
        "PICKLE-RESUME",
        (SETSTATE, SETSTATE + ("        for memory in self._memories.values():\n            memory.Qs = None\n")),
    ),
    fault(
        "pickle_forgets_the_generator",
        "PICKLE-RESUME",
        (
            SETSTATE,
            SETSTATE
            + (
                "        for index, memory in self._memories.items():\n"
                "            memory.rng = np.random.default_rng([self.random_seed, index])\n"
            ),
        ),
    ),
    fault(
        "history_grows",
        "BOUNDED",
        (COUNT_BEFORE, COUNT_BEFORE + "    state._history = [*getattr(state, '_history', []), state.iter]\n"),
    ),
    # The wire.
    fault(
        "each_P_alone",
        "WIRE",
        (
            AVERAGE_P,
            (
                "    for part in P_batch.split(1 + P_batch.numel() // 2):\n"
                "        average(part, state.process_group).wait()\n"
            ),
        ),
    ),
    fault(
        "sends_full_precision",
        "WIRE BATCHED-WIRE",
        (
            AVERAGE_P,
            (
                "    P_batch.copy_(average(P_batch.float() if P_batch.dtype == torch.float16 else P_batch.double(), "
                "state.process_group).wait())\n"
            ),
        ),
    ),
    fault(
        "sends_the_matrix_too",
        "WIRE BATCHED-WIRE",
        (AVERAGE_P, AVERAGE_P + "    average(gradients[0].flatten().clone(), state.process_group).wait()\n"),
    ),
    fault(
        "sends_empty_batches",
        "WIRE-EMPTY",
        (
            EMPTY_OTHERS,
            ("    if others_numel == 0:\n        average(bucket.buffer().new_empty(0), state.process_group).wait()\n")
            + EMPTY_OTHERS,
        ),
    ),
    fault(
        "waits_in_a_callback",
        "NO-NESTED-WAIT",
        ("def powerSGD_hook(state", "def _now(state"),
        (
            "def batched_powerSGD_hook(",
            (
                "def powerSGD_hook(state: PowerSGDState, bucket: dist.GradBucket) -> Future[torch.Tensor]:\n"
                "    first = dist.all_reduce(torch.zeros(1), async_op=True).get_future()\n"
                "    return first.then(lambda _: _now(state, bucket).wait())\n"
                "\n"
                "\n"
                "def batched_powerSGD_hook("
            ),
        ),
        kinds=("hangs", "raises RuntimeError", "dies of SIGABRT", "value", "projection"),
        others=("HOOK-IN-FLIGHT",),
    ),
    # The batched hook.
    fault(
        "batched_raises",
        "BATCHED-COMPRESSES BATCHED-EXACT",
        (SQUARE, "    raise AssertionError\n"),
    ),
    fault(
        "batched_square_by_columns",
        "BATCHED-SQUARE",
        ("[square.view(side, side)]", "[square.view(side, side).t().contiguous()]"),
    ),
    fault(
        "batched_square_is_larger",
        "BATCHED-STATS BATCHED-WIRE",
        ("    side = math.isqrt(max(numel - 1, 0)) + 1\n", "    side = math.isqrt(max(numel - 1, 0)) + 2\n"),
    ),
    fault(
        "batched_asks_for_the_rate",
        "BATCHED-ALWAYS",
        (
            "    square = buffer.new_zeros(side * side)\n",
            (
                "    if 2 * side * state.matrix_approximation_rank * state.min_compression_rate >= numel:\n"
                "        state._count_step(bucket)\n"
                "        return allreduce_hook(state.process_group, bucket)\n"
                "    square = buffer.new_zeros(side * side)\n"
            ),
        ),
    ),
    fault(
        "batched_padding_is_carried",
        "BATCHED-PADDING",
        (PADDING, "        pass\n"),
    ),
    fault(
        "batched_cuts_too_much",
        "BATCHED-EXACT",
        ("    buffer.copy_(square[:numel])\n", "    buffer[1:].copy_(square[1:numel])\n"),
    ),
    # Tensors batched by their shape.
    fault(
        "batched_matrices_swap_their_errors",
        "FEEDBACK",
        (ERROR, ERROR + "        if state.use_error_feedback:\n            M.copy_(M.flip(0))\n"),
        kinds=("projection",),
    ),
    fault(
        "convolutions_are_not_batched",
        "FEEDBACK",
        (
            "        groups = [list(same_shape) for",
            "        if any(gradient.dim() > 2 for gradient in gradients):\n            raise RuntimeError('batch')\n"
            "        groups = [list(same_shape) for",
        ),
        kinds=("raises RuntimeError",),
    ),
    fault(
        "each_stack_sends_its_own",
        "WIRE",
        (
            AVERAGE_P,
            "    for sent in Ps if state.batch_tensors_with_same_shape else [P_batch]:\n"
            "        average(sent, state.process_group).wait()\n",
        ),
        kinds=("wire",),
    ),
    # Where only some buckets, dtypes or hooks show it.
    fault(
        "nan_of_one_matrix_drops_all_errors",
        "NONFINITE",
        (ERRORS_FINITE, "    if not memory.errors.isfinite().all():\n        memory.errors.zero_()\n"),
    ),
    fault(
        "steps_without_matrices_do_not_count",
        "STATS-LOG",
        (
            COUNT_SENT + "    state._count_step(bucket)\n",
            COUNT_SENT + "    if matrices:\n        state._count_step(bucket)\n",
        ),
        kinds=("log",),
    ),
    fault(
        "batched_hook_does_not_log",
        "STATS-LOG",
        (
            "    state._numel_sent += numel_sent\n    state._count_step(bucket)\n",
            "    state._numel_sent += numel_sent\n    state.iter += bucket.is_last()\n",
        ),
        kinds=("log",),
    ),
    fault(
        "batched_hook_is_single_precision",
        "BATCHED-EXACT",
        (
            "    square = buffer.new_zeros(side * side)\n",
            "    single = torch.float32 if buffer.dtype == torch.float64 else buffer.dtype\n"
            "    square = buffer.new_zeros(side * side, dtype=single)\n",
        ),
    ),
]
