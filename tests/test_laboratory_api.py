"""Whatever of torch.distributed a hook may call works in the laboratory as with gloo, or is refused by its name."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from lab_ranks import on_ranks, values
from test_laboratory_collectives import collectives

from commhooks.conformance import lab
from commhooks.conformance.lab import Options

# What torch.distributed has for communication begins like this.
COMMUNICATES = ("all_", "barrier", "batch_", "broadcast", "gather", "irecv", "isend", "monitored", "recv", "reduce")
COMMUNICATES += ("scatter", "send")
# No function, or one that gloo lacks too.
OTHERS = {"reduce_op"}
# Says "monitored_barrier is only implemented for GLOO backend".
REFUSED = {"monitored_barrier"}


def calls(rank: int, world: int, group: dist.ProcessGroup | None) -> dict[str, Callable[[], object]]:
    """By name a call of everything that is not among ``collectives``; the rank and the world are those of the group."""
    import torch.distributed._functional_collectives as functional
    import torch.distributed.nn as nn

    to, source = (rank + 1) % world, (rank - 1) % world
    group = group or dist.group.WORLD
    wait = functional.wait_tensor

    def own(count: int = 4) -> torch.Tensor:
        return torch.arange(count) + 10.0 * rank

    def objects(operation: Callable[[list[object]], object], count: int = 2) -> Callable[[], object]:
        def call() -> object:
            found: list[object] = [f"rank {rank}"] * count
            operation(found)
            return found

        return call

    def coalesced(operation: Callable[[torch.Tensor, torch.Tensor], object], factor: int) -> Callable[[], object]:
        def call() -> object:
            outputs, inputs = [torch.zeros(4), torch.zeros(2 * world)], [own(4 * factor), own(2 * world * factor)]
            if factor == 1:
                outputs = [torch.zeros(4 * world), torch.zeros(2 * world * world)]
            with dist.distributed_c10d._coalescing_manager(group, async_ops=True) as works:
                for output, given in zip(outputs, inputs, strict=True):
                    operation(output, given)
            works.wait()
            return outputs

        return call

    def message() -> object:
        received = torch.zeros(4)
        operations = [
            dist.P2POp(dist.isend, own(), group=group, group_peer=to),
            dist.P2POp(dist.irecv, received, group=group, group_peer=source),
        ]
        for work in dist.batch_isend_irecv(operations):
            work.wait()
        return received

    def there_and_back(send: Callable[[], object], receive: Callable[[], object]) -> Callable[[], object]:
        return lambda: send() if rank == 0 else receive() if rank == 1 else None

    received, found = torch.zeros(4), [None, None]
    return {
        "all_gather_object": objects(lambda given: dist.all_gather_object(given, rank, group=group), world),
        "gather_object": objects(
            lambda given: dist.gather_object(rank, given if rank == 0 else None, group=group, group_dst=0), world
        ),
        "broadcast_object_list": objects(lambda given: dist.broadcast_object_list(given, group=group, group_src=0)),
        "scatter_object_list": objects(
            lambda given: dist.scatter_object_list(
                given, list(range(world)) if rank == 0 else None, group=group, group_src=0
            ),
            1,
        ),
        "send, recv": there_and_back(
            lambda: dist.send(own(), group=group, group_dst=1),
            lambda: [dist.recv(received, group=group, group_src=0), received],
        ),
        "send_object_list, recv_object_list": there_and_back(
            lambda: dist.send_object_list(["a", {"b": 1}], group=group, group_dst=1),
            lambda: [dist.recv_object_list(found, group=group, group_src=0), found],
        ),
        "batch_isend_irecv": message,
        "all_gather_single": lambda: dist.all_gather_single(torch.zeros(4 * world), own(), group=group),
        "reduce_scatter_single": lambda: dist.reduce_scatter_single(torch.zeros(4), own(4 * world), group=group),
        "all_gather_into_tensor, coalesced": coalesced(
            lambda output, given: dist.all_gather_into_tensor(output, given, group=group), 1
        ),
        "reduce_scatter_tensor, coalesced": coalesced(
            lambda output, given: dist.reduce_scatter_tensor(output, given, group=group), world
        ),
        "functional all_reduce": lambda: wait(functional.all_reduce(own(), "sum", group)),
        "functional all_reduce, used at once": lambda: functional.all_reduce(own(), "sum", group) + 1,
        "functional broadcast": lambda: wait(functional.broadcast(own(), 0, group)),
        "functional all_gather_tensor": lambda: wait(functional.all_gather_tensor(own(), 0, group)),
        "functional reduce_scatter_tensor": lambda: wait(
            functional.reduce_scatter_tensor(own(4 * world), "sum", 0, group)
        ),
        "functional all_to_all_single": lambda: wait(functional.all_to_all_single(own(2 * world), None, None, group)),
        "functional all_reduce_coalesced": lambda: [
            wait(one) for one in functional.all_reduce_coalesced([own(), own(2)], "sum", group)
        ],
        "functional all_gather_into_tensor_coalesced": lambda: [
            wait(one) for one in functional.all_gather_into_tensor_coalesced([own(), own(2)], group)
        ],
        "nn.all_reduce": lambda: nn.all_reduce(own(), group=group),
        "nn.all_gather": lambda: nn.all_gather(own(), group=group),
        "_broadcast_coalesced": lambda: _broadcast_coalesced(group, [own(), own(2)]),
    }


def _broadcast_coalesced(group: dist.ProcessGroup, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """What DistributedDataParallel sends parameters and buffers with."""
    dist._broadcast_coalesced(group, tensors, 1024, 0)
    return tensors


def compare_with_gloo(rank: int, world: int, members: Sequence[int]) -> list[str]:
    """The names of calls whose results differ from gloo's, in a group of some ranks."""
    warnings.simplefilter("ignore")
    groups = [dist.new_group(list(members), backend=backend) for backend in ("gloo", "lab")]
    if rank not in members:
        return []
    wrong = []
    place = members.index(rank)
    with lab.session(Options(delay=0.002)):
        theirs, ours = (calls(place, len(members), group) for group in groups)
        for name in theirs:
            expected, found = (str(_call(table[name])) for table in (theirs, ours))
            if expected != found and not expected.startswith("refused"):
                wrong.append(f"{name}: gloo {expected}, the laboratory {found}")
    return wrong


def _call(function: Callable[[], object]) -> object:
    try:
        return function()
    except Exception as error:
        return f"refused: {type(error).__name__}: {str(error).splitlines()[0]}"


@pytest.mark.parametrize(("world", "members"), [(2, [0, 1]), (3, [0, 2])])
def test_calls_agree_with_gloo(world: int, members: list[int], tmp_path: Path) -> None:
    """Objects, messages, coalesced and functional forms give what gloo gives, in the default group's ranks or some."""
    assert values(on_ranks(world, tmp_path, compare_with_gloo, members)) == [[]] * world


def name_what_was_called(rank: int, world: int) -> list[str]:
    names = [name for name, work, _ in collectives(rank, world, torch.float32, None) if work.wait() or True]
    return [*names, *calls(rank, world, None)]


def test_nothing_of_torch_is_missing(tmp_path: Path) -> None:
    """Each function of torch.distributed that communicates is among those compared with gloo, or refused by name."""
    named = [name for names in values(on_ranks(2, tmp_path, name_what_was_called)) for name in names]
    called = set(" ".join(named).replace(",", "").split())
    there = {name for name in dist.distributed_c10d.__all__ if name.startswith(COMMUNICATES)} - OTHERS
    assert there - called == REFUSED


def refuse(rank: int, world: int) -> str:
    with pytest.raises(ValueError, match="monitored_barrier is only implemented for GLOO"):
        dist.monitored_barrier()
    with pytest.raises(ValueError, match=r"the laboratory's allreduce cannot move torch\.float8_e4m3fn"):
        dist.all_reduce(torch.zeros(2, dtype=torch.float8_e4m3fn))
    with pytest.raises(ValueError, match="the laboratory cannot reduce with premul_sum; it knows sum, avg, product"):
        dist.all_reduce(torch.zeros(2), op=dist._make_nccl_premul_sum(2.0))
    return "refused"


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    """What gloo or the laboratory cannot do raises at once, with its name, on the rank that asks."""
    assert values(on_ranks(2, tmp_path, refuse)) == ["refused"] * 2
