"""The adapter of everything that uses torch's tensors, futures and process groups.

torch is imported in the methods, because adapters are also imported where only another framework is installed.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from . import torch_collectives
from .adapter import Adapter, Array, Bucket, Place, TensorFacts

if TYPE_CHECKING:
    import torch


class TorchAdapter(Adapter["torch.Tensor"]):
    """Drives hooks written for torch. A subclass says which: ``describe`` and ``named``."""

    device: torch.device
    place: Place

    def __init__(self) -> None:
        self._groups: dict[tuple[int, ...], object] = {}

    def on_collective(self, note: Callable[[str], None]) -> None:
        """Sends the notes of ``torch_collectives`` to the rank's log."""
        torch_collectives.send_notes_to(note)

    def obstacle(self, device: str, backend: str, world_size: int) -> str | None:
        """Names what the machine lacks: devices of that type, or a backend in this build of torch."""
        import torch
        import torch.distributed as dist

        try:
            torch.device(device)
        except RuntimeError as error:
            raise ValueError(f"unknown device {device!r}: {str(error).splitlines()[0]}") from None
        if backend not in dist.Backend.backend_list:
            raise ValueError(f"unknown backend {backend!r}: this torch knows {', '.join(dist.Backend.backend_list)}")
        if not dist.is_backend_available(backend):
            return f"needs the {backend} backend, which this build of torch {torch.__version__} lacks"
        capable = dist.Backend.backend_capability.get(backend, [device])
        if device not in capable:
            return f"needs a backend for {device}; {backend} serves {', '.join(capable)}"
        if device == "cpu":
            return None
        module = getattr(torch, device, None)
        found = module.device_count() if module is not None and module.is_available() else 0
        # gloo copies through the host, so its ranks can share a device; every other backend wants one for each rank.
        needed = 1 if backend == "gloo" else world_size
        if found < needed:
            return f"needs {needed} {device.upper()} device{'s' if needed > 1 else ''}, found {found}"
        return None

    def laboratory_obstacle(self, device: str) -> str | None:
        """The laboratory moves tensors of the CPU only."""
        return None if device == "cpu" else f"the laboratory's process group serves the CPU, not {device}"

    def default_backend(self, device: str) -> str:
        """gloo for the CPU, the backend that torch registers for the device otherwise."""
        import torch.distributed as dist

        return str(dist.Backend.default_device_backend_map.get(device, "gloo"))

    def join(self, place: Place) -> None:
        """Initialises the default process group, with one thread for each rank."""
        import torch
        import torch.distributed as dist

        self.place = place
        torch.set_num_threads(1)
        self.device = torch.device("cpu")
        if place.device != "cpu":
            module = getattr(torch, place.device)
            self.device = torch.device(place.device, place.rank % module.device_count())
            module.set_device(self.device)

        scheme, _, where = place.store.partition("://")
        store: dist.Store
        if scheme == "file":
            store = dist.FileStore(where, place.world_size)
        else:
            address, _, prefix = where.partition("/")
            host, _, port = address.rpartition(":")
            store = dist.PrefixStore(prefix, dist.TCPStore(host, int(port), is_master=False))
        dist.init_process_group(
            place.backend,
            store=store,
            rank=place.rank,
            world_size=place.world_size,
            timeout=timedelta(seconds=place.timeout),
        )

    def group(self, ranks: Sequence[int]) -> object:
        """A new group, or the one made earlier for the same ranks."""
        import torch.distributed as dist

        if len(ranks) == self.place.world_size:
            return dist.group.WORLD
        key = tuple(ranks)
        if key not in self._groups:
            self._groups[key] = dist.new_group(list(ranks))
        return self._groups[key]

    def barrier(self) -> None:
        """torch's barrier on the world group."""
        import torch.distributed as dist

        dist.barrier()

    def tensor(self, values: Array, dtype: str) -> torch.Tensor:
        """Copies an array to the rank's device."""
        import torch

        return torch.tensor(values, dtype=getattr(torch, dtype), device=self.device)

    def array(self, tensor: torch.Tensor) -> Array:
        """Copies a tensor to the host."""
        import torch

        host = tensor.detach().to("cpu")
        host = host.float() if host.dtype == torch.bfloat16 else host
        copied: Array = host.contiguous().numpy().copy()
        return copied

    def write(self, tensor: torch.Tensor, values: Array) -> None:
        """Copies an array into a tensor."""
        import torch

        tensor.copy_(torch.tensor(values))

    def facts(self, tensor: torch.Tensor) -> TensorFacts:
        """What torch says about a tensor."""
        return TensorFacts(
            dtype=str(tensor.dtype).removeprefix("torch."),
            shape=tuple(tensor.shape),
            stride=tuple(tensor.stride()),
            contiguous=tensor.is_contiguous(),
            storage_offset=int(tensor.storage_offset()),
            address=tensor.data_ptr(),
        )

    def is_tensor(self, value: object) -> bool:
        """Whether it is a torch.Tensor."""
        import torch

        return isinstance(value, torch.Tensor)

    def is_future(self, value: object) -> bool:
        """Whether it is a torch.futures.Future, or the future of a collective, which is its base class."""
        import torch

        return isinstance(value, torch.futures.Future | torch._C.Future)

    def wait(self, future: object) -> object:
        """Waits as DistributedDataParallel does at the end of a backward pass."""
        return future.wait()  # type: ignore[attr-defined]

    def completed(self, tensor: torch.Tensor) -> object:
        """A completed torch.futures.Future."""
        import torch

        future: torch.futures.Future[torch.Tensor] = torch.futures.Future(
            devices=[] if tensor.device.type == "cpu" else [tensor.device]
        )
        future.set_result(tensor)
        return future

    def random_state(self) -> bytes:
        """The state of torch's default generators."""
        import torch

        state = bytes(torch.get_rng_state().numpy().tobytes())
        if self.device.type != "cpu":
            state += bytes(getattr(torch, self.device.type).get_rng_state(self.device).numpy().tobytes())
        return state

    def set_random_state(self, seed: int) -> None:
        """Seeds torch's default generators."""
        import torch

        torch.manual_seed(seed)

    def device_memory(self) -> int:
        """What torch says about an accelerator; 0 on the CPU."""
        import torch

        return 0 if self.device.type == "cpu" else int(getattr(torch, self.device.type).memory_allocated(self.device))

    def watch_collectives(self) -> list[str] | None:
        """The notes of ``torch_collectives``; a script without the suite sees none."""
        try:
            from commhooks.adapters import torch_collectives
        except ImportError:
            return None
        torch_collectives.install()
        return torch_collectives.watch()

    def parameter(self, shape: Sequence[int], dtype: str, channels_last: bool = False) -> torch.Tensor:
        """A torch.nn.Parameter of zeros."""
        import torch

        values = torch.zeros(tuple(shape), dtype=getattr(torch, dtype), device=self.device)
        if channels_last:
            values = values.to(memory_format=torch.channels_last)
        return torch.nn.Parameter(values)

    def bucket(
        self, index: int, values: Array, parameters: Sequence[torch.Tensor], is_last: bool
    ) -> Bucket[torch.Tensor]:
        """torch's own GradBucket, which only its reducer can make.

        The reducer gets one more bucket for each place before this one, and one behind it unless it is the last.
        """
        import torch
        import torch.distributed as dist

        fillers = [torch.nn.Parameter(torch.zeros(1, device=self.device)) for _ in range(index + (not is_last))]
        everything = [*parameters, *fillers]
        own = list(range(len(parameters)))
        single = [[place] for place in range(len(parameters), len(everything))]
        assignment = [*single[:index], own, *single[index:]]
        group = dist.group.WORLD
        assert group is not None, "join() was not called"
        reducer = dist.Reducer(everything, assignment, [1 << 30] * len(assignment), group)
        bucket: Bucket[torch.Tensor] = reducer._get_zeros_like_grad_buckets()[index]
        self.write(bucket.buffer(), values)
        return bucket

    def prepare(self, compiler: bool) -> None:
        """Imports the compiler, which torch's DistributedDataParallel asks for its settings in any case."""
        import torch

        if compiler or self._wrapper() is torch.nn.parallel.DistributedDataParallel:
            import torch._dynamo

    def framework(self) -> Any:
        """Gives torch."""
        import torch

        return torch

    def data_parallel(self, module: Any, seconds: float, **options: Any) -> Any:
        """A module under the implementation's own DistributedDataParallel, or torch's if it has none."""
        wrapper = self._wrapper()
        if "hook_timeout" in inspect.signature(wrapper).parameters:
            options["hook_timeout"] = seconds
        return wrapper(module.to(self.device), **options)

    def _wrapper(self) -> Any:
        import torch

        try:
            return self.named("DistributedDataParallel")
        except (AttributeError, KeyError):
            return torch.nn.parallel.DistributedDataParallel

    def gradient_without_hook(self, values: Array, dtype: str) -> Array:
        """One backward pass under the reducer of torch's DistributedDataParallel, with ``values`` as local gradient.

        The reducer is the part of DistributedDataParallel that averages.
        """
        import torch.distributed as dist

        group = dist.group.WORLD
        assert group is not None, "join() was not called"
        weight = self.parameter(values.shape, dtype)
        reducer = dist.Reducer([weight], [[0]], [1 << 30], group)
        reducer.prepare_for_forward()
        loss = (weight * self.tensor(values, dtype)).sum()
        reducer.prepare_for_backward([])
        loss.backward()  # type: ignore[no-untyped-call]
        assert weight.grad is not None
        return self.array(weight.grad)
