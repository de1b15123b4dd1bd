"""Which checks are run with what: the rows of parameters of a check, and what it needs."""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from commhooks.adapters import DTYPES, Description
from commhooks.adapters.adapter import POWERSGD_HOOKS
from commhooks.conformance.marks import HALVES, Half

# The arguments of a check that the plugin fills, in the order in which they stand in a check's id.
ARGUMENTS = ("implementation", "hook", "half", "dtype", "world_size")


@dataclass(frozen=True)
class Choice:
    """What a run can choose from for one implementation.

    Attributes:
        implementation: The text of ``--impl``.
        description: What the implementation says about itself.
        world_sizes: Sizes of the worlds.
        clauses: Ids of the clauses to check.
        searching: Whether many random examples are tried.
    """

    implementation: str
    description: Description
    world_sizes: Sequence[int]
    clauses: Collection[str]
    searching: bool = False


def rows(check: pytest.Item, names: Sequence[str], choice: Choice) -> list[tuple[object, ...]]:
    """The rows of values for the arguments ``names`` of a check; none if the check does not concern the implementation.

    Args:
        check: The check, or its definition.
        names: Those of ``ARGUMENTS`` that it takes.
        choice: What there is to choose from.
    """
    description = choice.description
    if description.hook is not None and check.get_closest_marker("every_hook") is None:
        return []
    if description.hook is None and check.get_closest_marker("one_hook") is not None:
        return []
    denied = mark(check, "denied")
    if set(denied) & description.capabilities:
        return []
    stateful = check.get_closest_marker("stateful") is not None
    smallest, largest, searched = mark(check, "worlds", (1, None, None))
    if choice.searching and searched is not None:
        largest = searched
    sizes = [size for size in choice.world_sizes if smallest <= size <= (largest or size)]
    values: dict[str, Sequence[object]] = {
        "implementation": [choice.implementation],
        "hook": [hook for hook in hooks(description, stateful) if _suits(check, hook, description)],
        "half": HALVES,
        "dtype": [dtype for dtype in DTYPES if dtype not in description.capabilities]
        if "dtype" in denied
        else mark(check, "dtypes", DTYPES),
        "world_size": sizes,
    }
    return [
        row
        for row in itertools.product(*(values[name] for name in names))
        if set(clause_ids(check, dict(zip(names, row, strict=True)))) & set(choice.clauses)
    ]


def hooks(description: Description, stateful: bool = False) -> list[str]:
    """The hooks that the clauses of every hook are checked with: each one, and each wrapper around allreduce_hook.

    With ``stateful`` both PowerSGD hooks are among them.
    """
    if description.hook is not None:
        return [description.hook]
    plain = ["allreduce_hook", *(half.hook for half in HALVES), "noop_hook"]
    plain += POWERSGD_HOOKS if stateful else []
    return [*plain, *(f"{half.wrapper}(allreduce_hook)" for half in HALVES)]


def parameters_of(item: pytest.Item) -> dict[str, Any]:
    """The arguments of a check that the plugin has filled."""
    return item.callspec.params  # type: ignore[attr-defined, no-any-return]


def clauses_of(item: pytest.Item) -> list[str]:
    """The ids of the clauses that a check verifies with its parameters."""
    return clause_ids(item, parameters_of(item))


def clause_ids(check: pytest.Item, parameters: Mapping[str, object]) -> list[str]:
    """The ids of the clauses that a check verifies with these parameters."""
    return [_formatted(clause, parameters) for clause in mark(check, "clauses")]


def lacking(check: pytest.Item, parameters: Mapping[str, object], description: Description) -> list[str]:
    """What a check needs with these parameters and the implementation does not offer."""
    wanted = [name for need in mark(check, "needs") for name in _names(_formatted(need, parameters))]
    wanted += _names(str(parameters.get("hook", "")))
    wanted += [] if "dtype" in mark(check, "denied") else _names(str(parameters.get("dtype", "")))
    wanted += ["PowerSGDState"] if set(POWERSGD_HOOKS) & set(wanted) else []
    known = {*description.capabilities, description.hook}
    return [name for name in dict.fromkeys(wanted) if name not in known]


def mark(check: pytest.Item, name: str, default: tuple[Any, ...] = ()) -> tuple[Any, ...]:
    """The arguments of a mark, or the default where the check does not have it."""
    found = check.get_closest_marker(name)
    return default if found is None else found.args


def _suits(check: pytest.Item, hook: str, description: Description) -> bool:
    """Whether a check is for hooks that say such things of themselves."""
    said = set(description.claims) | ({"local"} if "noop_hook" in _names(hook) else set())
    wanted = set(mark(check, "claims"))
    return (not wanted or bool(wanted & said)) and not set(mark(check, "unless")) & said


def _formatted(text: str, parameters: Mapping[str, object]) -> str:
    half = parameters.get("half")
    return text.format(half=half) if isinstance(half, Half) else text


def _names(expression: str) -> list[str]:
    """The names in an expression such as ``fp16_compress_wrapper(noop_hook)``."""
    return [name for name in re.split(r"[()]", expression) if name]
