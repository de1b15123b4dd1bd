"""Any module that has the hooks under their standard names: torch's own, a fork, a vendor's port, a single file."""

from __future__ import annotations

import importlib
import inspect
from types import ModuleType
from typing import TYPE_CHECKING

from .adapter import (
    CAPABILITIES,
    DTYPES,
    HOOKS,
    POWERSGD_HOOKS,
    WRAPPERS,
    Array,
    Bucket,
    Description,
    UnusableImplementation,
)
from .torch_adapter import TorchAdapter

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

# torch keeps its hooks in these submodules of torch.distributed.algorithms.ddp_comm_hooks; a port may do the same.
SUBMODULES = ("default_hooks", "debugging_hooks", "powerSGD_hook")

# A module may say what it offers, and what it does not: commhooks_capabilities = ["allreduce_hook", "float32"].
DECLARATION = "commhooks_capabilities"

# Set on a module that was loaded from the path of a file.
LOADED_FROM_PATH = "__commhooks_loaded_from_path__"

_CALLABLE_NAMES = (*HOOKS, *WRAPPERS, *POWERSGD_HOOKS, "PowerSGDState")
_NAMES = ("GradBucket", "DistributedDataParallel", *_CALLABLE_NAMES)


class StandardModule(TorchAdapter):
    """Checks the hooks and wrappers that a module has under their standard names.

    What the module has is what it offers. To be held to more, or to less (no float64, say), it may declare a list
    ``commhooks_capabilities``; then that list counts, and what it names must be there.

    A class ``GradBucket`` of the module's own is used for its buckets if it can be built from index, buffer,
    parameters and is_last; otherwise its hooks get torch's bucket.

    Args:
        module: The module, already imported.
        name: What reports call it.
        version: Its version; by default the module's ``__version__``, or that of its top package.
    """

    def __init__(self, module: ModuleType, name: str, version: str | None = None) -> None:
        super().__init__()
        self._module = module
        self._name = name
        self._version = version if version is not None else _version(module)
        self._places = [module, *_submodules(module)]

    def named(self, name: str) -> object:
        """Looks a name up in the module, then in its submodules of torch's layout."""
        import torch.distributed as dist

        place = self._place(name)
        if place is not None:
            return getattr(place, name)
        if name == "GradBucket" and self._uses_torch_bucket():
            return dist.GradBucket
        raise AttributeError(f"{self._module.__name__} has no {name}; looked in {self._where()}")

    def describe(self) -> Description:
        """Offers what the module has, or what it declares."""
        import torch

        offered = {name for name in _CALLABLE_NAMES if self._has(name)}
        if not offered and not self._has("GradBucket"):
            raise UnusableImplementation(
                f"{self._where()} has none of the standard names; looked for GradBucket, " + ", ".join(_CALLABLE_NAMES)
            )
        declared = getattr(self._module, DECLARATION, None)
        if declared is not None:
            capabilities = _declared(declared, self._module.__name__)
        else:
            capabilities = offered | self._powersgd_extras() | self._wrapper_extras() | set(DTYPES)
            capabilities |= {"subgroups", "subnormals", "ddp", "DistributedDataParallel"}
            if self._own_bucket() is not None:
                capabilities |= {"GradBucket", "GradBucket.constructor"}
            elif self._is_torch():
                capabilities |= {"GradBucket"}
        return Description(
            name=self._name,
            module=self._module.__name__,
            version=self._version,
            framework=f"torch {torch.__version__}",
            capabilities=frozenset(capabilities),
            places={name: place.__name__ for name in _NAMES if (place := self._place(name)) is not None},
            file=file_of(self._module),
            own_bucket=self._own_bucket() is not None,
        )

    def bucket(
        self, index: int, values: Array, parameters: Sequence[torch.Tensor], is_last: bool
    ) -> Bucket[torch.Tensor]:
        """A bucket of the module's own class, or torch's."""
        own = self._own_bucket()
        if own is None:
            return super().bucket(index, values, parameters, is_last)
        dtype = self.facts(parameters[0]).dtype
        made: Bucket[torch.Tensor] = own(
            index=index, buffer=self.tensor(values, dtype), parameters=list(parameters), is_last=is_last
        )
        return made

    def _powersgd_extras(self) -> set[str]:
        """What later versions of the documentation brought to PowerSGDState, where the module's own has it."""
        state = self.named("PowerSGDState") if self._has("PowerSGDState") else None
        if not isinstance(state, type):
            return set()
        found = set()
        if "batch_tensors_with_same_shape" in inspect.signature(state).parameters:
            found.add("PowerSGDState.batch_tensors_with_same_shape")
        pickling = {"__getstate__", "__reduce__", "__reduce_ex__"}
        if any(pickling & set(vars(base)) for base in state.__mro__ if base is not object):
            found.add("PowerSGDState.pickle")
        return found

    def _wrapper_extras(self) -> set[str]:
        """What some versions and wrappers of data-parallel training can do besides."""
        import torch

        wrapper = self._wrapper()
        found = {"compile"} if hasattr(torch, "compile") else set()
        if hasattr(wrapper, "_register_builtin_comm_hook"):
            found.add("built_in")
        if "mixed_precision" in inspect.signature(wrapper).parameters:
            found.add("mixed_precision")
        return {f"DistributedDataParallel.{name}" for name in found}

    def _has(self, name: str) -> bool:
        return self._place(name) is not None

    def _place(self, name: str) -> ModuleType | None:
        # torch has a submodule of the same name as its powerSGD_hook.
        missing: list[ModuleType] = []
        return next(
            (place for place in self._places if not isinstance(getattr(place, name, missing), ModuleType | list)), None
        )

    def _where(self) -> str:
        return ", ".join(place.__name__ for place in self._places)

    def _is_torch(self) -> bool:
        return self._module.__name__.startswith("torch.distributed.")

    def _uses_torch_bucket(self) -> bool:
        return self._own_bucket() is None

    def _own_bucket(self) -> type | None:
        """The module's own bucket class, unless it is torch's, imported for an annotation."""
        import torch.distributed as dist

        found = next((vars(place)["GradBucket"] for place in self._places if "GradBucket" in vars(place)), None)
        if not isinstance(found, type) or found is dist.GradBucket:
            return None
        try:
            inspect.signature(found).bind(index=0, buffer=None, parameters=[], is_last=True)
        except (TypeError, ValueError):
            return None
        return found


def file_of(module: ModuleType) -> str | None:
    """The path of a module that was loaded from a file by its path, and so cannot be imported by its name."""
    path = getattr(module, "__file__", None)
    return path if getattr(module, LOADED_FROM_PATH, False) else None


def _submodules(module: ModuleType) -> list[ModuleType]:
    if not hasattr(module, "__path__"):
        return []
    found = []
    for name in SUBMODULES:
        full_name = f"{module.__name__}.{name}"
        try:
            found.append(importlib.import_module(full_name))
        except ModuleNotFoundError as error:
            # A submodule that is there but needs something that is not is the user's to know.
            if error.name != full_name:
                raise
    return found


def _version(module: ModuleType) -> str:
    top = importlib.import_module(module.__name__.partition(".")[0])
    return str(getattr(module, "__version__", getattr(top, "__version__", "")))


def _declared(declared: object, module: str) -> set[str]:
    if isinstance(declared, str) or not all(isinstance(name, str) for name in declared):  # type: ignore[attr-defined]
        raise UnusableImplementation(f"{module}.{DECLARATION} must be a list of names, got {declared!r}")
    names: set[str] = set(declared)  # type: ignore[call-overload]
    unknown = names - set(CAPABILITIES)
    if unknown:
        raise UnusableImplementation(
            f"{module}.{DECLARATION} names {', '.join(sorted(unknown))}; known are {', '.join(CAPABILITIES)}"
        )
    return names
