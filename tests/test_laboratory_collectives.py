"""Every collective of the laboratory gives what gloo gives."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from lab_ranks import on_ranks, values

from commhooks.conformance import lab
from commhooks.conformance.lab import Options


def collectives(rank: int, world: int, dtype: torch.dtype, group: dist.ProcessGroup | None) -> Iterator:  # type: ignore[type-arg]
    """Calls every collective; gives its name, its work and the tensors that hold its result."""

    def own(count: int = 4, more: int = 0) -> torch.Tensor:
        return (torch.arange(count) + 10 * rank + more + 1).to(dtype)

    def empty(count: int = 4) -> torch.Tensor:
        return torch.zeros(count, dtype=dtype)

    on = {"group": group, "async_op": True}
    last = world - 1
    for name in ("SUM", "PRODUCT", "MIN", "MAX"):
        yield f"all_reduce {name}", dist.all_reduce(x := own(), op=getattr(dist.ReduceOp, name), **on), [x]
    yield "all_reduce 2-D", dist.all_reduce(x := own(6).view(2, 3), **on), [x]
    yield "all_reduce transposed", dist.all_reduce(x := own(6).view(2, 3).t(), **on), [x]
    yield "all_reduce 0-D", dist.all_reduce(x := own(1)[0], **on), [x]
    yield "all_reduce empty", dist.all_reduce(x := own(0), **on), [x]
    yield "all_reduce_coalesced", dist.all_reduce_coalesced(both := [own(), own(3, 5)], **on), both
    yield "broadcast", dist.broadcast(x := own(), group_src=last, **on), [x]
    yield "reduce", dist.reduce(x := own(), group_dst=last, **on), [x] if rank == last else []
    each = [empty() for _ in range(world)]
    yield "all_gather", dist.all_gather(each, own(), **on), each
    yield "all_gather_into_tensor", dist.all_gather_into_tensor(x := empty(4 * world), own(), **on), [x]
    lists = [[empty(), empty(2)] for _ in range(world)]
    yield "all_gather_coalesced", dist.all_gather_coalesced(lists, [own(), own(2, 3)], **on), [*itertools.chain(*lists)]
    each = [empty() for _ in range(world)] if rank == 0 else []
    yield "gather", dist.gather(own(), each or None, group_dst=0, **on), each
    given = [own(more=10 * place) for place in range(world)]
    yield "scatter", dist.scatter(x := empty(), given if rank == 0 else None, group_src=0, **on), [x]
    yield "reduce_scatter", dist.reduce_scatter(x := empty(), given, **on), [x]
    yield "reduce_scatter_tensor", dist.reduce_scatter_tensor(x := empty(), own(4 * world), **on), [x]
    each = [empty() for _ in range(world)]
    yield "all_to_all", dist.all_to_all(each, given, **on), each
    yield "all_to_all_single", dist.all_to_all_single(x := empty(2 * world), own(2 * world), **on), [x]
    sizes = [place + 1 for place in range(world)]
    uneven = empty(world * (rank + 1))
    work = dist.all_to_all_single(uneven, own(sum(sizes)), [rank + 1] * world, sizes, **on)
    yield "all_to_all_single uneven", work, [uneven]
    yield "barrier", dist.barrier(**on), []
    for source in (0, None):
        x = own()
        if rank == 0:
            yield "isend", dist.isend(x, group=group, group_dst=1, tag=3), []
        elif rank == 1:
            kwargs = {} if source is None else {"group_src": source}
            yield f"irecv {source}", dist.irecv(x, group=group, tag=3, **kwargs), [x]


def compare_with_gloo(rank: int, world: int) -> list[str]:
    """The names of collectives whose results differ from gloo's, under several options."""
    gloo = dist.new_group(backend="gloo")
    wrong = []
    for seed, dtype in enumerate((torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int64)):
        with lab.session(Options.drawn(seed)):
            theirs = [(name, work.wait(), results) for name, work, results in collectives(rank, world, dtype, gloo)]
            ours = [(name, work.wait(), results) for name, work, results in collectives(rank, world, dtype, None)]
        for (name, _, expected), (_, _, found) in zip(theirs, ours, strict=True):
            if len(expected) != len(found) or not all(map(torch.equal, expected, found)):
                wrong.append(f"{name} {dtype}: {expected} {found}")
    return wrong


@pytest.mark.parametrize("world", [2, 3])
def test_collectives_agree_with_gloo(world: int, tmp_path: Path) -> None:
    """Every collective gives what gloo gives, for values whose results are exact."""
    assert values(on_ranks(world, tmp_path, compare_with_gloo)) == [[]] * world


def use_the_rest(rank: int, world: int) -> list[object]:
    """Objects, coalescing, point-to-point batches, direct calls, futures of gloo's shape, and what is missing."""
    objects: list[object] = [None] * world
    dist.all_gather_object(objects, rank)
    with dist.distributed_c10d._coalescing_manager(async_ops=True) as both:
        one, two = torch.ones(2), torch.full((2,), 2.0)
        dist.all_reduce(one)
        dist.all_reduce(two)
    both.wait()
    to, source = torch.full((1,), float(rank)), torch.zeros(1)
    batch = [dist.P2POp(dist.isend, to, (rank + 1) % world), dist.P2POp(dist.irecv, source, (rank - 1) % world)]
    for work in dist.batch_isend_irecv(batch):
        work.wait()
    work = dist.group.WORLD.allreduce([x := torch.ones(2)])
    future = work.get_future()
    chained = future.then(lambda done: done.value()[0] * 10)
    work.wait()
    shapes = [future.done(), work.is_completed(), work.is_success(), work.exception(), work.result()[0] is x]
    with pytest.raises(NotImplementedError, match="has no split_group"):
        dist.group.WORLD.split_group([0])
    with pytest.raises(ValueError, match=r"takes dense tensors on the CPU, got torch\.sparse_coo"):
        dist.all_reduce(torch.ones(2).to_sparse())
    return [objects, one.tolist(), two.tolist(), source.item(), chained.wait().tolist(), shapes]


def test_the_rest_of_the_api(tmp_path: Path) -> None:
    """Works and futures behave like those of a real backend."""
    works = [True, True, True, None, True]
    expected = [[0, 1], [2.0, 2.0], [4.0, 4.0]]
    found = values(on_ranks(2, tmp_path, use_the_rest))
    assert found == [[*expected, other, [20.0, 20.0], works] for other in (1.0, 0.0)]
