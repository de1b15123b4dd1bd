"""The process group: what each collective gives, overwrites and computes.

The methods have the names and arguments by which ``torch.distributed`` and torch's C++ call a process group.
"""

# The stubs of torch list every short form of a call as an overload; here one method takes them all.
# mypy: disable-error-code="override, assignment"

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Store

from . import messages, sums
from .arguments import Tensors, elements_in, first, listed, reduction_of, root_of, split_as
from .issuing import Arrived, Issuer, Laboratory
from .work import LabWork, WorkOfMany


class LabProcessGroup(dist.ProcessGroup):
    """A process group of the laboratory.

    Args:
        laboratory: What the rank's groups share.
        store: Where the ranks of the group meet.
        rank: The rank in the group.
        ranks: The group's ranks, numbered as in the world.
        timeout: How long a collective may take.
    """

    def __init__(
        self, laboratory: Laboratory, store: Store, rank: int, ranks: tuple[int, ...], timeout: timedelta
    ) -> None:
        super().__init__(rank, len(ranks))  # type: ignore[call-arg]
        self._place = rank
        self._size = len(ranks)
        self._issuer = Issuer(laboratory, store, rank, ranks, timeout.total_seconds())
        self._name = ""
        laboratory.recorder.made_group(ranks)

    def getBackendName(self) -> str:
        """The name under which the laboratory is registered."""
        return "lab"

    @property
    def group_name(self) -> str:
        """The name that torch gave the group."""
        return self._name

    def _set_group_name(self, name: str) -> None:
        self._name = name

    def _set_group_desc(self, desc: str) -> None:
        pass  # torch keeps it in its backends, and this group has none

    @property
    def _device_types(self) -> list[torch.device]:
        return [torch.device("cpu")]

    def shutdown(self) -> None:
        """Ends the thread that moves data."""
        self._issuer.transport.close()

    def barrier(self, opts: object = None, timeout: object = None) -> LabWork:
        """Completes when all ranks have started it."""
        return self._issuer.issue("barrier", [], [], lambda got: [])

    def allreduce(self, tensors: Tensors, opts: object = None, timeout: object = None) -> LabWork:
        """Reduces each tensor over the ranks, in place."""
        return self._allreduce("allreduce", listed(tensors), opts)

    def allreduce_coalesced(self, tensors: Tensors, opts: object = None) -> LabWork:
        """Reduces each tensor over the ranks, in place."""
        return self._allreduce("allreduce_coalesced", listed(tensors), opts)

    def _allreduce(self, operation: str, tensors: Sequence[torch.Tensor], opts: object) -> LabWork:
        reduce_op = reduction_of(opts)
        reduce = self._reduction(reduce_op)

        def compute(got: Arrived) -> Sequence[torch.Tensor]:
            return split_as(reduce(got.payloads, got.sequence), tensors)

        return self._issuer.issue(operation, tensors, tensors, compute, reduce_op=reduce_op)

    def broadcast(self, tensors: Tensors, opts: object = None, timeout: object = None) -> LabWork:
        """Overwrites the tensor on all ranks with the root's. The root's own can be read all the time."""
        tensors, root = listed(tensors), root_of(opts)
        is_root = root == self._place
        return self._issuer.issue(
            "broadcast",
            tensors if is_root else [],
            [] if is_root else tensors,
            lambda got: [] if is_root else split_as(got.payloads[root], tensors),
            value=tensors,
            root=root,
            elements=elements_in(tensors),
        )

    def reduce(
        self, tensors: Tensors, opts: object = None, op: object = dist.ReduceOp.SUM, timeout: object = None
    ) -> LabWork:
        """Reduces over the ranks, in place on the root. The others keep what they gave."""
        tensors, root = listed(tensors), root_of(opts)
        reduce_op = reduction_of(op if isinstance(opts, int) else opts)
        reduce = self._reduction(reduce_op)
        is_root = root == self._place
        return self._issuer.issue(
            "reduce",
            tensors,
            tensors if is_root else [],
            lambda got: split_as(reduce(got.payloads, got.sequence), tensors) if is_root else [],
            value=tensors,
            reduce_op=reduce_op,
            root=root,
        )

    def allgather(
        self, output_tensors: Sequence[Tensors], input_tensors: Tensors, opts: object = None, timeout: object = None
    ) -> LabWork:
        """Gives every rank the tensors of all ranks, one output for each rank."""
        outputs, inputs = first(output_tensors), listed(input_tensors)
        return self._issuer.issue("allgather", inputs, outputs, lambda got: got.payloads)

    def allgather_coalesced(
        self, output_lists: Sequence[Sequence[torch.Tensor]], input_list: Sequence[torch.Tensor], opts: object = None
    ) -> LabWork:
        """Gives every rank several tensors of all ranks, one list of outputs for each rank."""
        outputs = [output for outputs in output_lists for output in outputs]

        def compute(got: Arrived) -> Sequence[torch.Tensor]:
            return [part for payload in got.payloads for part in split_as(payload, input_list)]

        return self._issuer.issue("allgather_coalesced", input_list, outputs, compute)

    def all_gather_single(self, output: torch.Tensor, input: torch.Tensor, opts: object = None) -> LabWork:
        """Gives every rank the tensors of all ranks, in one output."""
        return self._issuer.issue("all_gather_single", [input], [output], lambda got: [torch.cat(got.payloads)])

    def all_gather_single_coalesced(
        self, output_lists: Sequence[torch.Tensor], input_list: Sequence[torch.Tensor], opts: object = None
    ) -> LabWork:
        """Gives every rank several tensors of all ranks, one output for each of the tensors."""

        def compute(got: Arrived) -> Sequence[torch.Tensor]:
            parts = [split_as(payload, input_list) for payload in got.payloads]
            return [torch.cat(one) for one in zip(*parts, strict=True)]

        return self._issuer.issue("all_gather_single_coalesced", input_list, output_lists, compute)

    def gather(
        self, output_tensors: Sequence[Tensors], input_tensors: Tensors, opts: object = None, timeout: object = None
    ) -> LabWork:
        """Gives the root the tensors of all ranks."""
        root = root_of(opts)
        is_root = root == self._place
        outputs = first(output_tensors) if is_root else []
        return self._issuer.issue(
            "gather", listed(input_tensors), outputs, lambda got: got.payloads if is_root else [], root=root
        )

    def scatter(
        self, output_tensors: Tensors, input_tensors: Sequence[Tensors], opts: object = None, timeout: object = None
    ) -> LabWork:
        """Gives each rank one of the root's tensors."""
        outputs, root = listed(output_tensors), root_of(opts)
        given = first(input_tensors) if root == self._place else []
        return self._issuer.issue(
            "scatter",
            given,
            outputs,
            lambda got: [got.payloads[root].chunk(self._size)[self._place]],
            root=root,
            elements=elements_in(outputs),
        )

    def reduce_scatter(
        self,
        output_tensors: Tensors,
        input_tensors: Sequence[Tensors],
        opts: object = None,
        op: object = None,
        timeout: object = None,
    ) -> LabWork:
        """Reduces as many tensors as there are ranks, and gives each rank one of the results."""
        return self._reduce_scatter("reduce_scatter", listed(output_tensors), first(input_tensors), op or opts)

    def reduce_scatter_single(self, output: torch.Tensor, input: torch.Tensor, opts: object = None) -> LabWork:
        """Reduces one tensor, and gives each rank its part of the result."""
        return self._reduce_scatter("reduce_scatter_single", [output], [input], opts)

    def _reduce_scatter(
        self, operation: str, outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor], opts: object
    ) -> LabWork:
        reduce_op = reduction_of(opts)
        reduce = self._reduction(reduce_op)

        def compute(got: Arrived) -> Sequence[torch.Tensor]:
            return [reduce([payload.view(self._size, -1)[self._place] for payload in got.payloads], got.sequence)]

        return self._issuer.issue(operation, inputs, outputs, compute, reduce_op=reduce_op)

    def reduce_scatter_single_coalesced(
        self, output_tensors: Sequence[torch.Tensor], input_tensors: Sequence[torch.Tensor], opts: object = None
    ) -> LabWork:
        """Reduces several tensors, and gives each rank its part of each."""
        reduce_op = reduction_of(opts)
        reduce = self._reduction(reduce_op)

        def compute(got: Arrived) -> Sequence[torch.Tensor]:
            parts = [split_as(payload, input_tensors) for payload in got.payloads]
            own = [[part.view(self._size, -1)[self._place] for part in one] for one in zip(*parts, strict=True)]
            return [reduce(one, got.sequence) for one in own]

        operation = "reduce_scatter_single_coalesced"
        return self._issuer.issue(operation, input_tensors, output_tensors, compute, reduce_op=reduce_op)

    def alltoall(
        self, output_tensors: Sequence[torch.Tensor], input_tensors: Sequence[torch.Tensor], opts: object = None
    ) -> LabWork:
        """Gives each rank one of the tensors, and gets one of each rank."""
        sizes = tuple(tensor.numel() for tensor in input_tensors)
        return self._issuer.issue("alltoall", input_tensors, output_tensors, self._own_parts, splits=sizes)

    def all_to_all_single(
        self,
        output: torch.Tensor,
        input: torch.Tensor,
        output_split_sizes: Sequence[int] = (),
        input_split_sizes: Sequence[int] = (),
        opts: object = None,
    ) -> LabWork:
        """Gives each rank some rows of one tensor, and gets some of each rank; without sizes equally many."""
        rows = list(input_split_sizes) or [input.size(0) // self._size] * self._size
        width = input.numel() // max(input.size(0), 1)

        def compute(got: Arrived) -> Sequence[torch.Tensor]:
            return [torch.cat(self._own_parts(got))]

        sizes = tuple(width * count for count in rows)
        return self._issuer.issue("all_to_all_single", [input], [output], compute, splits=sizes)

    def _own_parts(self, got: Arrived) -> list[torch.Tensor]:
        return [
            torch.split(payload, list(sizes))[self._place]
            for payload, sizes in zip(got.payloads, got.splits, strict=True)
        ]

    def send(self, tensors: Sequence[torch.Tensor], dst: int, tag: int = 0) -> LabWork:
        """Sends a tensor to a rank of the group."""
        return messages.send(self._issuer, tensors[0], dst, tag)

    def recv(self, tensors: Sequence[torch.Tensor], src: int, tag: int = 0) -> LabWork:
        """Receives a tensor from a rank of the group."""
        return messages.receive(self._issuer, tensors[0], src, tag)

    def recv_anysource(self, tensors: Sequence[torch.Tensor], tag: int = 0) -> LabWork:
        """Receives a tensor from any rank of the group."""
        return messages.receive(self._issuer, tensors[0], None, tag)

    def _start_coalescing(self, device: torch.device) -> None:
        self._issuer.coalescing = []

    def _end_coalescing(self, device: torch.device) -> WorkOfMany:
        works, self._issuer.coalescing = self._issuer.coalescing or [], None
        return WorkOfMany(works)

    # The names of earlier versions of torch, by which programs still call a process group.
    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced
    alltoall_base = all_to_all_single

    def _reduction(self, reduce_op: str) -> Callable[[Sequence[torch.Tensor], int], torch.Tensor]:
        if reduce_op not in sums.OPERATIONS:
            raise ValueError(f"the laboratory cannot reduce with {reduce_op}; it knows {', '.join(sums.OPERATIONS)}")
        options = self._issuer.laboratory.options
        seed = f"tree/{options.seed}/{self._issuer.ranks}"
        return lambda inputs, sequence: sums.reduce(
            inputs, reduce_op, options.summation, options.precision, f"{seed}/{sequence}"
        )


def _missing(name: str) -> Callable[..., object]:
    def missing(*arguments: object, **options: object) -> object:
        raise NotImplementedError(f"the laboratory's process group has no {name}")

    return missing


for _name in ("split_group", "merge_remote_group", "allreduce_sparse", "_reduce_oop"):
    setattr(LabProcessGroup, _name, _missing(_name))
