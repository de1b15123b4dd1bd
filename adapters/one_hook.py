"""One hook that somebody wrote."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable
from types import ModuleType

from .adapter import DTYPES, Description, UnusableImplementation
from .standard_module import file_of
from .torch_adapter import TorchAdapter

CLAIMS = ("mean", "sum", "local", "random", "subgroups", "pickle")


class OneHook(TorchAdapter):
    """Checks one function ``hook(state, bucket)`` for what every hook must keep.

    The module may say four more things about the hook, as attributes of the function or as its own globals:

    - ``commhooks_state(process_group)``: makes the hook's state. By default the state is the process group, or None.
    - ``commhooks_claims``: a set of "mean" or "sum" (it averages or adds, so its result is checked too), "subgroups"
      (its state is made from the process group to use, so one of some of the ranks is tried), "pickle" (its state can
      be pickled, and training goes on with the copy as with the state itself, which is tried), "local" (the ranks'
      results may differ, so their agreement is not checked) and "random" (two calls may differ, so repetition is not).
    - ``commhooks_error``: a number, for a hook that averages with a loss: by how much the first result may miss the
      mean, as a share of the largest gradient of the bucket on any rank. Without it, and without "mean" or "sum",
      nothing is said about the result's values, and none are checked.
    - ``commhooks_dtypes``: a set of the dtypes of buckets that it is for, of "float16", "bfloat16", "float32" and
      "float64"; by default all. Buckets of the others it should refuse, which is tried.

    Args:
        function: The hook.
        module: The module it was found in.
        name: What reports call it.
    """

    def __init__(self, function: object, module: ModuleType, name: str) -> None:
        super().__init__()
        self._function = function
        self._module = module
        self._name = name
        self._hook_name = name.rpartition(":")[2]

    def describe(self) -> Description:
        """Offers this one hook, on the dtypes that it is for."""
        import torch

        _check_is_hook(self._function, self._name)
        claims = self._said("commhooks_claims", ())
        if isinstance(claims, str) or not set(claims) <= set(CLAIMS):  # type: ignore[call-overload]
            raise UnusableImplementation(
                f"commhooks_claims of {self._name} must be a set of {', '.join(CLAIMS)}, got {claims!r}"
            )
        said = set(claims)  # type: ignore[call-overload]
        error = self._said("commhooks_error", None)
        if error is not None:
            if not isinstance(error, int | float) or isinstance(error, bool) or not 0 < error < math.inf:
                raise UnusableImplementation(
                    f"commhooks_error of {self._name} must be a finite number above 0, got {error!r}"
                )
            said.add("lossy")
        return Description(
            name=self._name,
            module=self._module.__name__,
            version=str(getattr(self._module, "__version__", "")),
            framework=f"torch {torch.__version__}",
            capabilities=frozenset({*self._dtypes(), "subnormals", "DistributedDataParallel", *(said & {"subgroups"})}),
            hook=self._hook_name,
            claims=frozenset(said),
            error=0.0 if error is None else float(error),
            places={self._hook_name: self._module.__name__},
            file=file_of(self._module),
        )

    def named(self, name: str) -> object:
        """The hook itself; nothing else is offered."""
        if name == self._hook_name:
            return self._function
        raise AttributeError(f"{self._name} is one hook and has no {name}")

    def state(self, hook: str, group: object) -> object:
        """The state that the module's ``commhooks_state`` makes, or the process group."""
        make: Callable[[object], object] | None = self._said("commhooks_state", None)  # type: ignore[assignment]
        return group if make is None else make(group)

    def _dtypes(self) -> set[str]:
        said = self._said("commhooks_dtypes", DTYPES)
        names = set() if isinstance(said, str) or not isinstance(said, Iterable) else {str(name) for name in said}
        if not names or not names <= set(DTYPES):
            raise UnusableImplementation(
                f"commhooks_dtypes of {self._name} must be a set of {', '.join(DTYPES)}, got {said!r}"
            )
        return names

    def _said(self, attribute: str, default: object) -> object:
        return getattr(self._function, attribute, getattr(self._module, attribute, default))


def _check_is_hook(function: object, name: str) -> None:
    if not callable(function):
        raise UnusableImplementation(f"{name} is a {type(function).__name__}; a hook is a function (state, bucket)")
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return
    try:
        signature.bind(None, None)
    except TypeError:
        raise UnusableImplementation(f"{name}{signature} cannot be called as hook(state, bucket)") from None
