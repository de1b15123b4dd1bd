"""The adapter of TensorPlay, a framework with torch's interface and its own tensors.

TensorPlay is imported in the methods: it is needed in the ranks' interpreter only. ``--impl=tensorplay`` with
``--impl-python`` runs it in an environment of its own.
"""

from __future__ import annotations

import importlib
import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from .adapter import DTYPES, HOOKS, POWERSGD_HOOKS, WRAPPERS, Adapter, Array, Bucket, Description, Place, TensorFacts

HOOKS_MODULE = "tensorplay.distributed.algorithms.ddp_comm_hooks"
PLACES = ("default_hooks", "debugging_hooks", "powerSGD_hook")


class TensorPlay(Adapter[Any]):
    """Drives TensorPlay's hooks on the CPU, with its own buckets.

    Its DistributedDataParallel is not offered: the models of those checks need operations that TensorPlay lacks, and
    a check that cannot build its model says nothing about data-parallel training.
    """

    def __init__(self) -> None:
        import tensorplay

        self._framework: Any = tensorplay
        self._distributed: Any = importlib.import_module("tensorplay.distributed")
        self._groups: dict[tuple[int, ...], object] = {}

    def describe(self) -> Description:
        """Offers what TensorPlay has under the standard names."""
        version = str(self._framework.__version__)
        names = (*HOOKS, *WRAPPERS, *POWERSGD_HOOKS, "PowerSGDState")
        capabilities = {name for name in names if self._has(name)}
        capabilities |= {"GradBucket", "subgroups", *DTYPES}
        capabilities |= {"PowerSGDState.batch_tensors_with_same_shape", "PowerSGDState.pickle"}
        return Description("tensorplay", HOOKS_MODULE, version, f"tensorplay {version}", frozenset(capabilities))

    def obstacle(self, device: str, backend: str, world_size: int) -> str | None:
        """Names what this adapter or the machine lacks: it runs on the CPU with gloo."""
        if backend not in ("gloo", "nccl"):
            raise ValueError(f"unknown backend {backend!r}: the adapter of tensorplay knows gloo")
        if device not in ("cpu", "cuda"):
            raise ValueError(f"unknown device {device!r}: the adapter of tensorplay knows cpu")
        if device != "cpu" or backend != "gloo":
            return f"the adapter of tensorplay runs on cpu with gloo, not on {device} with {backend}"
        return None if self._distributed.is_gloo_available() else "this build of tensorplay lacks gloo"

    def default_backend(self, device: str) -> str:
        """gloo for the CPU, NCCL otherwise."""
        return "gloo" if device == "cpu" else "nccl"

    def join(self, place: Place) -> None:
        """Initialises the default process group, through a file or torchrun's address."""
        self.place = place
        self.device = self._framework.device("cpu")
        scheme, _, where = place.store.partition("://")
        if scheme != "file":
            raise NotImplementedError("the adapter of tensorplay does not run under torchrun")
        store = self._distributed.FileStore(where, place.world_size)
        self._distributed.init_process_group(place.backend, store=store, rank=place.rank, world_size=place.world_size)

    def group(self, ranks: Sequence[int]) -> object:
        """A new group, or the one made earlier for the same ranks."""
        if len(ranks) == self.place.world_size:
            return self._distributed.GroupMember.WORLD
        key = tuple(ranks)
        if key not in self._groups:
            self._groups[key] = self._distributed.new_group(list(ranks))
        return self._groups[key]

    def barrier(self) -> None:
        """TensorPlay's barrier on the world group."""
        self._distributed.barrier()

    def tensor(self, values: Array, dtype: str) -> Any:
        """Copies an array: TensorPlay's tensor would share its memory."""
        return self._framework.tensor(np.array(values), dtype=getattr(self._framework, dtype)).clone()

    def array(self, tensor: Any) -> Array:
        """Copies a tensor: TensorPlay's array would share its memory. bfloat16 comes as float32."""
        copied: Array = np.array(tensor.detach().contiguous().numpy(), copy=True)
        return copied

    def write(self, tensor: Any, values: Array) -> None:
        """Copies an array into a tensor."""
        with self._framework.no_grad():
            tensor.copy_(self.tensor(values, self.facts(tensor).dtype))

    def facts(self, tensor: Any) -> TensorFacts:
        """What TensorPlay says about a tensor."""
        return TensorFacts(
            dtype=str(tensor.dtype).rpartition(".")[2],
            shape=tuple(map(int, tensor.shape)),
            stride=tuple(map(int, tensor.stride())),
            contiguous=bool(tensor.is_contiguous()),
            storage_offset=int(tensor.storage_offset()),
            address=int(tensor.data_ptr()),
        )

    def is_tensor(self, value: object) -> bool:
        """Whether it is a tensor of TensorPlay."""
        return isinstance(value, importlib.import_module("tensorplay._C").TensorBase)

    def is_future(self, value: object) -> bool:
        """Whether it is a future of TensorPlay."""
        return isinstance(value, self._framework.Future)

    def wait(self, future: object) -> object:
        """Waits for the future, which also runs its callbacks."""
        return future.wait()  # type: ignore[attr-defined]

    def completed(self, tensor: Any) -> object:
        """A completed future."""
        future = self._framework.Future()
        future.set_result(tensor)
        return future

    def random_state(self) -> bytes:
        """The state of TensorPlay's default generator."""
        return bytes(self._framework.get_rng_state().numpy().tobytes())

    def set_random_state(self, seed: int) -> None:
        """Seeds TensorPlay's default generator."""
        self._framework.manual_seed(seed)

    def parameter(self, shape: Sequence[int], dtype: str, channels_last: bool = False) -> Any:
        """A parameter of zeros."""
        values = self._framework.zeros(*shape, dtype=getattr(self._framework, dtype))
        if channels_last:
            values = values.to(memory_format=self._framework.channels_last)
        return self._framework.nn.Parameter(values)

    def bucket(self, index: int, values: Array, parameters: Sequence[Any], is_last: bool) -> Bucket[Any]:
        """TensorPlay's GradBucket, laid out as its reducer does."""
        sizes = [tuple(map(int, parameter.shape)) for parameter in parameters]
        lengths = [math.prod(size) for size in sizes]
        offsets = [0, *itertools.accumulate(lengths)][: len(lengths)]
        buffer = self.tensor(values, self.facts(parameters[0]).dtype)
        total = index + 1 if is_last else index + 2
        made: Bucket[Any] = self._distributed.GradBucket(
            index, buffer, offsets, lengths, sizes, list(parameters), num_total_buckets=total
        )
        return made

    def named(self, name: str) -> object:
        """Looks a name up in the modules that TensorPlay keeps it in."""
        if name == "GradBucket":
            return self._distributed.GradBucket
        for place in PLACES:
            module = importlib.import_module(f"{HOOKS_MODULE}.{place}")
            if hasattr(module, name):
                return getattr(module, name)
        raise AttributeError(f"{HOOKS_MODULE} has no {name}; looked in {', '.join(PLACES)}")

    def _has(self, name: str) -> bool:
        try:
            self.named(name)
        except AttributeError:
            return False
        return True
