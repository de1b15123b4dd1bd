"""What the laboratory does to a run: one frozen record of plain data, and the seeded draws made from it."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Mapping
from dataclasses import dataclass

CALLBACK_THREADS = ("each", "one")
COMPLETION_ORDERS = ("issued", "reversed", "random")
FAILURES = ("error", "never")
PRECISIONS = ("own", "float32", "float64")
SUMMATIONS = ("rank", "reversed", "tree", "ring", "pairwise")

_CHOICES = {
    "callback_threads": CALLBACK_THREADS,
    "completion_order": COMPLETION_ORDERS,
    "fail_how": FAILURES,
    "precision": PRECISIONS,
    "summation": SUMMATIONS,
}
_SECONDS = ("delay", "hold", "slow_by", "patience", "deadlock_after")
_NUMBERS = ("slow_at", "fail_at")

Value = int | float | str | bool | None


@dataclass(frozen=True)
class Options:
    """How the laboratory behaves. All draws are made from ``seed``, so the same options give the same behaviour.

    A collective's number counts what one rank issued in all groups since the session began, from 0.

    Attributes:
        seed: Of everything drawn below.
        delay: A completion comes late by a time drawn between 0 and this many seconds, on each rank by its own.
        fill: Until a collective completes, its outputs hold signalling NaNs (integers: a bit pattern).
        completion_order: The order in which a rank's completions are handed out: "issued" (in each group, as real
            backends do), "reversed", or "random", drawn by each rank.
        hold: With another order than "issued", completions are held back until this many seconds have passed without a
            new collective, so that there are several to choose from; or until somebody waits in Python for a collective
            or a future, since then no more are to come. Nothing is held longer than 20 times that.
        callback_threads: "each": every completion has its own thread, so a callback may block. "one": all callbacks
            of a rank run on one thread, as in backends with few threads; one that blocks on a collective deadlocks, and
            the laboratory says so and fails what is under way.
        summation: The order of a sum: "rank" ((x0 + x1) + x2), "reversed", "tree" (any binary tree over the ranks,
            drawn each time), "ring" (each chunk starts at another rank) or "pairwise" ((x0 + x1) + (x2 + x3)).
        precision: "own": rounded to the tensor's dtype after each addition. "float32" and "float64": added in that
            type, or in the tensor's own if that is wider, and rounded once.
        slow_rank: The rank that is slow, by its number in the world; None for nobody.
        slow_at: The number of the collective before which it is slow; None: before about one in four, drawn.
        slow_by: Seconds by which it is slow.
        fail_at: The number of the collective that fails; None for none.
        fail_rank: The rank on which it fails, by its number in the world; None for all. The others get the result.
        fail_how: "error", or "never": it never completes.
        patience: Seconds that a collective waits for ranks that have not started it; None: the process group's timeout.
        deadlock_after: Seconds after which a completion thread that waits inside a callback, while other completions
            wait for it, is called a deadlock; one that does not return for another reason gets 40 times as long.
    """

    seed: int = 0
    delay: float = 0.0
    fill: bool = True
    completion_order: str = "issued"
    hold: float = 0.001
    callback_threads: str = "each"
    summation: str = "rank"
    precision: str = "own"
    slow_rank: int | None = None
    slow_at: int | None = None
    slow_by: float = 0.0
    fail_at: int | None = None
    fail_rank: int | None = None
    fail_how: str = "error"
    patience: float | None = None
    deadlock_after: float = 1.0

    def __post_init__(self) -> None:
        """Refuses what it does not know.

        Raises:
            ValueError: It names the option, what was found and what is allowed.
        """
        for name, allowed in _CHOICES.items():
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name} is {getattr(self, name)!r}; it must be one of {', '.join(allowed)}")
        for name in (*_SECONDS, *_NUMBERS):
            value = getattr(self, name)
            if value is not None and value < 0:
                raise ValueError(f"{name} is {value!r}; it must not be negative")

    @classmethod
    def drawn(cls, seed: int, **fixed: Value) -> Options:
        """Draws everything that must not change what a right hook computes.

        Args:
            seed: The options, and all that they draw in turn, follow from it.
            fixed: Options that are not drawn.
        """
        draw = random.Random(f"options/{seed}")
        drawn: dict[str, Value] = {
            "delay": draw.choice([0.0, 0.0005, 0.003]),
            "completion_order": draw.choice(COMPLETION_ORDERS),
            "callback_threads": draw.choice(CALLBACK_THREADS),
            "summation": draw.choice(SUMMATIONS),
            "precision": draw.choice(PRECISIONS),
            "slow_rank": draw.choice([None, 0, 1, 2, 3]),
            "slow_by": 0.003,
        }
        return cls.from_plain({"seed": seed, **drawn, **fixed})

    @classmethod
    def from_plain(cls, plain: Mapping[str, Value]) -> Options:
        """The options that ``plain()`` gave, or some of them; the rest keep their defaults."""
        unknown = set(plain) - {field.name for field in dataclasses.fields(cls)}
        if unknown:
            raise ValueError(f"unknown options of the laboratory: {', '.join(sorted(unknown))}")
        return cls(**plain)  # type: ignore[arg-type]

    def plain(self) -> dict[str, Value]:
        """The options as plain data, fit for JSON."""
        return dataclasses.asdict(self)

    def lateness(self, rank: int, number: int) -> float:
        """Seconds by which a rank's collective completes late."""
        return self.delay * random.Random(f"delay/{self.seed}/{rank}/{number}").random() if self.delay else 0.0

    def slowness(self, rank: int, number: int) -> float:
        """Seconds by which a rank is slow to issue a collective."""
        if rank != self.slow_rank or not self.slow_by:
            return 0.0
        chosen = random.Random(f"slow/{self.seed}/{number}").random() < 0.25 if self.slow_at is None else False
        return self.slow_by if chosen or number == self.slow_at else 0.0

    def turn(self, rank: int, number: int) -> float:
        """A completion with a smaller turn is handed out first."""
        if self.completion_order == "random":
            return random.Random(f"order/{self.seed}/{rank}/{number}").random()
        return -number if self.completion_order == "reversed" else number

    def fails(self, rank: int, number: int) -> bool:
        """Whether a rank's collective is the one that fails."""
        return number == self.fail_at and self.fail_rank in (None, rank)
