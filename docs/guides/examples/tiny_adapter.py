from collections.abc import Sequence

import numpy as np
import tiny

from commhooks.adapters import Adapter, Description, Place, TensorFacts

OFFERED = {"GradBucket", "allreduce_hook", "fp16_compress_hook", "subgroups", "subnormals"}
DTYPES = {"float16", "float32", "float64"}


class TinyAdapter(Adapter[tiny.Tensor]):
    """Drives the hooks of tiny. The suite calls nothing of tiny but through here."""

    def describe(self) -> Description:
        return Description(
            name="tiny",
            module="tiny",
            version="0.1",
            framework=f"numpy {np.__version__}",
            capabilities=frozenset(OFFERED | DTYPES),
            own_bucket=True,
        )

    def obstacle(self, device: str, backend: str, world_size: int) -> str | None:
        if device != "cpu" or backend != "folder":
            raise ValueError(f"tiny knows the device cpu and the backend folder, got {device} and {backend}")
        return None

    def default_backend(self, device: str) -> str:
        return "folder"

    def join(self, place: Place) -> None:
        self.place = place
        self.folder = place.store.removeprefix("file://") + ".ranks"
        self.groups: dict[tuple[int, ...], tiny.Group] = {}
        tiny.WORLD = self.group(range(place.world_size))

    def group(self, ranks: Sequence[int]) -> tiny.Group:
        key = tuple(ranks)
        if key not in self.groups:
            name = "-".join(map(str, key))
            self.groups[key] = tiny.Group(f"{self.folder}/{name}", key, self.place.rank)
        return self.groups[key]

    def barrier(self) -> None:
        tiny.WORLD.all_gather(np.zeros(1))

    def tensor(self, values: np.ndarray, dtype: str) -> tiny.Tensor:
        return tiny.Tensor(np.array(values, dtype))

    def array(self, tensor: tiny.Tensor) -> np.ndarray:
        return tensor.array.copy()

    def write(self, tensor: tiny.Tensor, values: np.ndarray) -> None:
        tensor.array[...] = values

    def facts(self, tensor: tiny.Tensor) -> TensorFacts:
        array = tensor.array
        return TensorFacts(
            dtype=array.dtype.name,
            shape=array.shape,
            stride=tuple(step // array.itemsize for step in array.strides),
            contiguous=array.flags.c_contiguous,
            storage_offset=0,
            address=array.ctypes.data,
        )

    def is_tensor(self, value: object) -> bool:
        return isinstance(value, tiny.Tensor)

    def is_future(self, value: object) -> bool:
        return isinstance(value, tiny.Future)

    def wait(self, future: object) -> object:
        return future.result()

    def completed(self, tensor: tiny.Tensor) -> tiny.Future:
        return tiny.Future(tensor)

    def random_state(self) -> bytes:
        return b""

    def parameter(self, shape: Sequence[int], dtype: str, channels_last: bool = False) -> tiny.Tensor:
        return tiny.Tensor(np.zeros(shape, dtype))

    def bucket(
        self, index: int, values: np.ndarray, parameters: Sequence[tiny.Tensor], is_last: bool
    ) -> tiny.GradBucket:
        dtype = parameters[0].array.dtype.name
        return tiny.GradBucket(index, self.tensor(values, dtype), list(parameters), is_last)

    def named(self, name: str) -> object:
        return getattr(tiny, name)
