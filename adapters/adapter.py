"""What an implementation must let the suite do with it.

An adapter is loaded in the interpreter that runs the ranks, before the ranks are forked, and then lives in every rank.
The suite itself never sees the implementation: it asks ranks to run programs, and those call the adapter. So the
implementation may use any framework, and its own tensors; only plain data (numpy arrays, numbers, text) leaves a rank.

To check a module with the standard names, or one hook, no adapter has to be written: see ``standard_module.py`` and
``one_hook.py``. To check anything that keeps torch's tensors and process groups, derive from ``TorchAdapter``. For a
framework with its own tensors, derive from ``Adapter``.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.generic]
Tensor = TypeVar("Tensor")

DTYPES = ("float16", "bfloat16", "float32", "float64")
HOOKS = ("allreduce_hook", "fp16_compress_hook", "bf16_compress_hook", "noop_hook")
WRAPPERS = ("fp16_compress_wrapper", "bf16_compress_wrapper")
POWERSGD_HOOKS = ("powerSGD_hook", "batched_powerSGD_hook")

# What an implementation can offer. A check says which of these it needs; one that an implementation does not offer ends
# its cells as `unsupported`.
CAPABILITIES = {
    "GradBucket": "its own bucket class, or torch's",
    "GradBucket.constructor": "GradBucket(index, buffer, parameters, is_last) can be called",
    **{name: f"{name}(state, bucket)" for name in HOOKS},
    **{name: f"{name}(hook) gives a hook" for name in WRAPPERS},
    **{name: f"{name}(state, bucket), with a PowerSGDState" for name in POWERSGD_HOOKS},
    "PowerSGDState": "PowerSGDState(process_group, matrix_approximation_rank=1, …) can be called",
    "PowerSGDState.batch_tensors_with_same_shape": "its constructor takes that argument, which came with 1.12",
    "PowerSGDState.pickle": "it can be pickled with a process group in it, which came with 1.13",
    **{name: f"buckets of {name}" for name in DTYPES},
    "subgroups": "a hook's state can be a process group of some of the ranks",
    "subnormals": "subnormal numbers are kept, not flushed to zero",
    "ddp": "it comes with a DistributedDataParallel that averages without a hook",
    "DistributedDataParallel": "hooks can be registered with a DistributedDataParallel, its own or its framework's",
    "DistributedDataParallel.compile": "its framework has torch.compile",
    "DistributedDataParallel.built_in": "_register_builtin_comm_hook registers hooks of the framework's own",
    "DistributedDataParallel.mixed_precision": "its constructor takes that argument",
}


class Bucket(Protocol[Tensor]):
    """The six methods that a hook may call on a bucket."""

    def index(self) -> int:
        """The bucket's place among the buckets."""

    def is_last(self) -> bool:
        """Whether this is the last bucket."""

    def buffer(self) -> Tensor:
        """The flat tensor."""

    def gradients(self) -> list[Tensor]:
        """Views of the flat tensor, one for each parameter."""

    def parameters(self) -> list[Tensor]:
        """The parameters."""

    def set_buffer(self, buffer: Tensor) -> None:
        """Replaces the flat tensor."""


Hook = Callable[[object, Bucket[Tensor]], object]


@dataclass(frozen=True)
class Place:
    """Where a rank finds itself.

    Attributes:
        rank: From 0 to ``world_size - 1``.
        world_size: Number of ranks.
        device: Device type, such as "cpu" or "cuda".
        backend: Backend of the process group, such as "gloo" or "nccl".
        store: How the ranks meet: ``file:///path``, or ``tcp://host:port/prefix`` of a store that already runs.
        timeout: Seconds that a collective may take before the backend gives up.
    """

    rank: int
    world_size: int
    device: str
    backend: str
    store: str
    timeout: float


@dataclass(frozen=True)
class TensorFacts:
    """What a check may ask about a tensor besides its values.

    Attributes:
        dtype: A name of ``DTYPES``, or the framework's own name for another dtype.
        shape: Lengths of the dimensions.
        stride: Elements from one entry to the next, for each dimension.
        contiguous: Whether the elements lie in row-major order without gaps.
        storage_offset: Elements between the start of the storage and the first element.
        address: A number that is the same for two tensors that start at the same memory.
    """

    dtype: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    contiguous: bool
    storage_offset: int
    address: int


@dataclass(frozen=True)
class Description:
    """What an adapter says about its implementation, before any rank starts.

    Attributes:
        name: What reports call it, such as "torch".
        module: Where the code was found, such as "torch.distributed.algorithms.ddp_comm_hooks".
        version: Version of the implementation, such as "2.13.0+cpu"; empty if it has none.
        framework: Framework and version that its tensors belong to, such as "torch 2.13.0+cpu".
        capabilities: What it offers, and so what is checked: names of ``CAPABILITIES``.
        hook: The name of the one hook to check, where it offers one hook instead of the standard ones.
        claims: What that one hook claims: "mean" (it averages), "sum" (it adds), "local" (ranks may differ), "random"
            (two calls may differ), "subgroups" (its state can be a process group of some of the ranks), "lossy" (it
            averages within ``error``), "pickle" (its state can be pickled).
        error: For a hook that claims "lossy", by how much it may miss the mean, as a share of the bucket's largest
            gradient on any rank.
        places: For each offered name the module it was found in, for scripts that work without the adapter. Empty if
            the implementation can be driven by its adapter only.
        file: Path of the implementation, where it is a single file.
        own_bucket: Whether its hooks get a bucket of its own class ``GradBucket``.
    """

    name: str
    module: str
    version: str
    framework: str
    capabilities: frozenset[str]
    hook: str | None = None
    claims: frozenset[str] = field(default_factory=frozenset)
    error: float = 0.0
    places: dict[str, str] = field(default_factory=dict)
    file: str | None = None
    own_bucket: bool = False


class UnusableImplementation(Exception):
    """The implementation cannot be checked at all; the message says what was looked for and found."""


class Adapter(ABC, Generic[Tensor]):
    """Drives one implementation inside a rank.

    All methods but ``describe`` and ``obstacle`` are called in a rank, after ``join``.

    Attributes:
        place: Where this rank finds itself; set by ``join``.
        device: The rank's device, as the framework names it; set by ``join``.
    """

    place: Place
    device: Any

    @abstractmethod
    def describe(self) -> Description:
        """Says what is checked and what it offers. Called before the ranks are forked."""

    @abstractmethod
    def obstacle(self, device: str, backend: str, world_size: int) -> str | None:
        """Says what this machine lacks to run such a world ("needs 2 CUDA devices, found 0"), or None.

        Called in a process of its own, so it may initialise a device.

        Raises:
            ValueError: The device or backend is one that the framework does not know.
        """

    def laboratory_obstacle(self, device: str) -> str | None:
        """Says why the ranks cannot meet in the laboratory, the suite's own process group for torch, or None.

        Where they can, ``join`` gets a place whose backend is "lab", which is registered with torch by then.
        """
        return "needs torch's tensors and process groups, which the laboratory replaces"

    @abstractmethod
    def default_backend(self, device: str) -> str:
        """The backend for a device type where the user named none, such as "gloo" for "cpu"."""

    def on_collective(self, note: Callable[[str], None]) -> None:
        """Has ``note`` called with a short text at the start of each collective, as far as that can be seen.

        It serves the diagnosis of a rank that waits for ever. Called once in each rank.
        """

    @abstractmethod
    def join(self, place: Place) -> None:
        """Joins the process group of all ranks and chooses this rank's device."""

    @abstractmethod
    def group(self, ranks: Sequence[int]) -> object:
        """The process group of some ranks, all ranks for the world group. Every rank calls it alike.

        A rank that is not a member gets a value that it never hands to a hook.
        """

    @abstractmethod
    def barrier(self) -> None:
        """Waits until every rank of the world is here."""

    @abstractmethod
    def tensor(self, values: Array, dtype: str) -> Tensor:
        """A tensor of its own memory on the rank's device; ``values`` has its shape (bfloat16 comes as float32)."""

    @abstractmethod
    def array(self, tensor: Tensor) -> Array:
        """A copy of the values, in row-major order; bfloat16 goes as float32."""

    @abstractmethod
    def write(self, tensor: Tensor, values: Array) -> None:
        """Overwrites the values of ``tensor`` in place."""

    @abstractmethod
    def facts(self, tensor: Tensor) -> TensorFacts:
        """What there is to say about a tensor besides its values."""

    @abstractmethod
    def is_tensor(self, value: object) -> bool:
        """Whether ``value`` is a tensor of the framework."""

    @abstractmethod
    def is_future(self, value: object) -> bool:
        """Whether ``value`` is a future of the framework."""

    @abstractmethod
    def wait(self, future: object) -> object:
        """Waits for the future and gives its value."""

    @abstractmethod
    def completed(self, tensor: Tensor) -> object:
        """A completed future of ``tensor``."""

    @abstractmethod
    def random_state(self) -> bytes:
        """The framework's global random state, of the rank's device too."""

    @abstractmethod
    def parameter(self, shape: Sequence[int], dtype: str, channels_last: bool = False) -> Tensor:
        """A parameter of a model, on the rank's device, of zeros."""

    @abstractmethod
    def bucket(self, index: int, values: Array, parameters: Sequence[Tensor], is_last: bool) -> Bucket[Tensor]:
        """A bucket as the implementation's data-parallel training makes it, with ``values`` in its buffer.

        Its dtype is that of the parameters.
        """

    @abstractmethod
    def named(self, name: str) -> object:
        """The implementation's hook, wrapper or class of that name.

        Raises:
            AttributeError: It has no such name.
        """

    def hook(self, expression: str, **inner: Hook[Tensor]) -> Hook[Tensor]:
        """The hook that an expression such as ``fp16_compress_wrapper(allreduce_hook)`` stands for.

        Args:
            expression: A hook's name, or a wrapper's name with an expression in parentheses.
            inner: Hooks of the caller's that the expression may name.
        """
        wrapped = re.fullmatch(r"(\w+)\((.+)\)", expression)
        if wrapped is None:
            return inner[expression] if expression in inner else self.named(expression)  # type: ignore[return-value]
        wrapper: Callable[[Hook[Tensor]], Hook[Tensor]] = self.named(wrapped[1])  # type: ignore[assignment]
        return wrapper(self.hook(wrapped[2], **inner))

    def state(self, hook: str, group: object) -> object:
        """The state to hand to a hook: a PowerSGDState that compresses early, or the process group itself, or None."""
        if "powerSGD_hook" in hook:
            make: Callable[..., object] = self.named("PowerSGDState")  # type: ignore[assignment]
            return make(group, matrix_approximation_rank=1, start_powerSGD_iter=2)
        return group

    def set_random_state(self, seed: int) -> None:
        """Seeds the framework's global random state; by default there is none to seed."""

    def device_memory(self) -> int:
        """Bytes of the rank's device that are in use, beside those that the process has on the host; by default 0."""
        return 0

    def watch_collectives(self) -> list[str] | None:
        """A list that grows by a line, such as ``all_reduce float32[512]``, with each collective that starts.

        A second call ends the first list. None if collectives cannot be seen.
        """
        return None

    def prepare(self, compiler: bool) -> None:
        """Imports what ``data_parallel`` needs, if that takes long, and with ``compiler`` what compiles a model.

        Called before ranks are forked.
        """

    def framework(self) -> Any:
        """The module that has the framework under torch's names (``nn``, ``no_grad``, ``futures``): torch itself.

        Needed with the capability "DistributedDataParallel" only.
        """
        raise NotImplementedError(f"{type(self).__name__} offers no 'DistributedDataParallel'")

    def data_parallel(self, module: Any, seconds: float, **options: Any) -> Any:
        """A module wrapped by the DistributedDataParallel that the implementation's hooks run in.

        Needed with the capability "DistributedDataParallel" only.

        Args:
            module: A module of the framework.
            seconds: How long it may wait for a hook's result, where it can be told.
            options: Arguments under the names that torch's wrapper has for them.
        """
        raise NotImplementedError(f"{type(self).__name__} offers no 'DistributedDataParallel'")

    def gradient_without_hook(self, values: Array, dtype: str) -> Array:
        """What the implementation's DistributedDataParallel gives for one parameter with that local gradient.

        Needed with the capability "ddp" only.
        """
        raise NotImplementedError(f"{type(self).__name__} offers no 'ddp'")
