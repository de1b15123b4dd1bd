"""Faults that show when buckets are laid out anew, when numbers are not finite, while a hook waits, and over time."""

from . import Mutant
from .allreduce import ALLREDUCE, HOOKS, allreduce
from .lab import CHAIN, DONE, MEAN, START

COUNTER = """
class Counter:
    def __init__(self, group):
        self.count = 0

    def __reduce__(self):
        return Counter, (None,)
"""

MUTANTS = [
    allreduce(
        "a_residual_by_index",
        ("HOOK-REBUILT",),
        "    buffer = bucket.buffer()\n"
        "    buffer.add_(LEFT.setdefault((process_group, bucket.index()), torch.zeros_like(buffer)))\n" + ALLREDUCE,
        kinds=("raises RuntimeError",),
        top="LEFT = {}",
    ),
    allreduce(
        "counts_the_buckets_once",
        ("HOOK-REBUILT",),
        "    COUNTS.setdefault(process_group, []).append(bucket.index()) if bucket.is_last() else None\n"
        "    if bucket.index() > COUNTS.get(process_group, [bucket.index()])[0]:\n"
        "        raise IndexError('no such bucket')\n" + ALLREDUCE,
        kinds=("raises IndexError",),
        top="COUNTS = {}",
    ),
    allreduce(
        "skips_what_is_not_finite",
        ("HOOK-NONFINITE",),
        f"{MEAN}    if not buffer.isfinite().all():\n        return Future_of(buffer)\n{START}{CHAIN}",
        kinds=("order",),
        top="\n\ndef Future_of(buffer):\n    future = Future()\n    future.set_result(buffer)\n    return future\n\n",
    ),
    allreduce(
        "raises_where_it_is_not_finite",
        ("HOOK-NONFINITE",),
        f"    finite = bool(bucket.buffer().isfinite().all())\n{MEAN}{START}    work.wait()\n"
        f"    if not finite:\n        raise FloatingPointError('not finite')\n{DONE}",
        kinds=("one-sided",),
    ),
    allreduce(
        "mends_its_own_part",
        ("HOOK-NONFINITE",),
        f"    holes = ~bucket.buffer().isfinite()\n{MEAN}{START}    work.wait()\n    buffer[holes] = 0.0\n{DONE}",
        kinds=("disagreement",),
    ),
    allreduce(
        "sleeps_with_the_lock",
        ("HOOK-LETS-RUN",),
        "    import ctypes\n\n"
        f"{MEAN}{START}    while not work.is_completed():\n        ctypes.PyDLL(None).usleep(60_000)\n{DONE}",
        kinds=("stalled",),
    ),
    allreduce(
        "spins_in_c",
        ("HOOK-IDLE",),
        f"{MEAN}{START}    while not work.is_completed():\n        torch.ones(100_000).sum()\n{DONE}",
        kinds=("busy",),
    ),
    allreduce(
        "keeps_every_bucket",
        ("HOOK-MEMORY",),
        "    SEEN.append(bucket)\n" + ALLREDUCE,
        kinds=("grows",),
        top="SEEN = []",
    ),
    allreduce(
        "keeps_every_future",
        ("HOOK-MEMORY",),
        f"{MEAN}    buffer = buffer.clone()\n{START}    SEEN.append(work.get_future())\n{CHAIN}",
        kinds=("grows",),
        top="SEEN = []",
    ),
    allreduce(
        "leaks_a_quarter_in_numpy",
        ("HOOK-MEMORY",),
        "    SEEN.append(bucket.buffer()[::4].double().numpy())\n" + ALLREDUCE,
        kinds=("grows",),
        top="SEEN = []",
    ),
    Mutant(
        "guesses_in_a_dtype_that_it_denies",
        ("HOOK-DENIED",),
        {
            HOOKS: [
                (
                    ALLREDUCE,
                    f"    if bucket.buffer().dtype == torch.float64:\n        bucket.buffer().round_()\n{ALLREDUCE}",
                )
            ],
            "__init__.py": [
                ("__all__ = [", 'commhooks_capabilities = ["allreduce_hook", "float32", "subgroups"]\n\n__all__ = [')
            ],
        },
        kinds=("value",),
    ),
    Mutant(
        "divides_by_the_world_where_it_denies_groups",
        ("HOOK-DENIED",),
        {
            HOOKS: [
                (
                    ALLREDUCE,
                    "    share = dist.get_world_size(process_group) / dist.get_world_size()\n"
                    f"    bucket.buffer().mul_(share)\n{ALLREDUCE}",
                )
            ],
            "__init__.py": [("__all__ = [", 'commhooks_capabilities = ["allreduce_hook", "float32"]\n\n__all__ = [')],
        },
        kinds=("value",),
    ),
    Mutant(
        "mends_the_mean",
        ("HOOK-HIDES-NOTHING",),
        {
            HOOKS: [(ALLREDUCE, f"    bucket.buffer().nan_to_num_()\n{ALLREDUCE}")],
            "__init__.py": [("__all__ = [", 'allreduce_hook.commhooks_claims = {"mean"}\n\n__all__ = [')],
        },
        kinds=("hidden",),
        hook="allreduce_hook",
    ),
    Mutant(
        "forgets_its_counter_when_it_is_pickled",
        ("HOOK-RESUMES",),
        {
            HOOKS: [
                ('State = TypeVar("State")\n', f'State = TypeVar("State")\n{COUNTER}'),
                (
                    ALLREDUCE,
                    "    process_group.count += 1\n    return average(bucket.buffer() * process_group.count, None)\n",
                ),
            ],
            "__init__.py": [
                (
                    "__all__ = [",
                    'allreduce_hook.commhooks_claims = {"pickle"}\n'
                    "allreduce_hook.commhooks_state = default_hooks.Counter\n\n__all__ = [",
                ),
                ("from .bucket import", "from . import default_hooks\nfrom .bucket import"),
            ],
        },
        kinds=("value",),
        hook="allreduce_hook",
    ),
]
