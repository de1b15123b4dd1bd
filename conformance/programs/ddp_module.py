"""A model under data-parallel training, used as any module is."""

from __future__ import annotations

from typing import Any, TypeVar

from commhooks.adapters import Adapter
from commhooks.conformance.programs.given_model import flat_values

T = TypeVar("T")
Record = dict[str, Any]


def use_as_module(adapter: Adapter[T]) -> Record:
    """Calls a wrapped model with arguments of several kinds, in train and in eval mode, and saves and loads its state.

    The model has one parameter of three elements, whose gradient on rank i is what it is called with, 2 i + 1.

    Returns:
        ``seen``: the arguments that the model got, and ``returned``: what the caller got, both as text. ``modes``:
        training of wrapper and model after eval() and after train(). ``gradients``: after a step in eval mode, and
        after one behind load_state_dict(). ``loaded``: values of parameter and buffer of another wrapper that has
        loaded them; they are 5 and 6.
    """
    torch = adapter.framework()
    place = adapter.place
    group = adapter.group(range(place.world_size))
    seen: list[str] = []

    class Model(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self, value: float) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.full((3,), value))
            self.register_buffer("count", torch.tensor(int(value) + 1))

        def forward(self, x: Any, *more: object, factor: float = 1.0, **named: object) -> dict[str, Any]:
            seen.append(repr((more, factor, named)))
            return {"out": [(self.weight * x * factor).sum()], "text": "as it is"}

    def a_step(wrapped: Any, x: float) -> Any:
        weight = next(wrapped.module.parameters())
        weight.grad = None
        returned = wrapped(torch.tensor(x, device=adapter.device), 3, "word", factor=2.0, other=None)
        returned["out"][0].backward()
        gradients.append(flat_values(adapter, weight.grad))
        return returned

    gradients: list[Any] = []
    wrapped, other = (adapter.data_parallel(Model(value), 10.0, process_group=group) for value in (5.0, 0.0))
    wrapped.eval()
    modes = [wrapped.training, wrapped.module.training]
    returned = a_step(wrapped, place.rank + 0.5)
    wrapped.train()
    modes += [wrapped.training, wrapped.module.training]
    other.load_state_dict(wrapped.state_dict())
    loaded = [flat_values(adapter, one) for one in (*other.module.parameters(), *other.module.buffers())]
    a_step(other, place.rank + 0.5)
    adapter.barrier()
    return {
        "seen": seen[0],
        "returned": f"{list(returned)} {type(returned['out']).__name__} {returned['text']}",
        "modes": modes,
        "gradients": gradients,
        "loaded": loaded,
    }
