"""Moves data over gloo, one collective after another, and checks that all ranks issued the same one."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import AllgatherOptions, Store

# Operations in which ranks may give different numbers of elements.
UNEVEN = ("alltoall", "all_to_all_single")
OPERATIONS = (
    "barrier",
    "allreduce",
    "allreduce_coalesced",
    "broadcast",
    "reduce",
    "allgather",
    "allgather_coalesced",
    "all_gather_single",
    "all_gather_single_coalesced",
    "gather",
    "scatter",
    "reduce_scatter",
    "reduce_scatter_single",
    "reduce_scatter_single_coalesced",
    *UNEVEN,
)
REDUCE_OPS = ("", "sum", "avg", "product", "min", "max", "band", "bor", "bxor", "premul_sum")
DTYPES = [getattr(torch, name) for name in (
    "uint8", "bool", "float32", "float64", "float16", "bfloat16", "int8", "int16", "int32", "int64",
    "complex64", "complex128", "complex32",
)]  # fmt: skip


@dataclass(frozen=True)
class Call:
    """A collective as one rank issued it.

    Attributes:
        operation: A name of ``OPERATIONS``.
        payload: What the rank gives, as one flat tensor.
        reduce_op: A name of ``REDUCE_OPS``.
        root: The root in the group, or -1.
        elements: What must be the same on all ranks, unless the operation is uneven.
        splits: For an uneven operation, how many elements are for each rank of the group.
    """

    operation: str
    payload: torch.Tensor
    reduce_op: str = ""
    root: int = -1
    elements: int = 0
    splits: tuple[int, ...] = ()

    def header(self, sequence: int, size: int) -> torch.Tensor:
        """The call as numbers, for the other ranks to compare."""
        splits = self.splits or (0,) * size
        facts = [
            OPERATIONS.index(self.operation),
            DTYPES.index(self.payload.dtype),
            REDUCE_OPS.index(self.reduce_op),
            self.root,
            self.elements,
            sequence,
            self.payload.numel(),
        ]
        return torch.tensor([*facts, *splits])


Received = Callable[[list[torch.Tensor], list[tuple[int, ...]]], None]
Failed = Callable[[str], None]


@dataclass
class _Job:
    call: Call
    sequence: int
    patience: float
    received: Received
    failed: Failed


@dataclass
class Transport:
    """A gloo process group and the thread that uses it.

    Args:
        store: Where the ranks meet.
        rank: The rank in the group.
        size: Number of ranks.
        ranks: Their numbers in the world, for messages.
        timeout: Seconds gloo waits.
    """

    store: Store
    rank: int
    size: int
    ranks: tuple[int, ...]
    timeout: float
    _jobs: queue.SimpleQueue[_Job | None] = field(default_factory=queue.SimpleQueue)

    def __post_init__(self) -> None:
        """Connects the ranks."""
        self.gloo = dist.ProcessGroupGloo(self.store, self.rank, self.size, timedelta(seconds=self.timeout))
        threading.Thread(target=self._move, name=f"lab-mover-{self.ranks}", daemon=True).start()

    def submit(self, call: Call, sequence: int, patience: float, received: Received, failed: Failed) -> None:
        """Queues a collective. ``received`` gets what each rank gave, and its splits; or ``failed`` a reason."""
        self._jobs.put(_Job(call, sequence, patience, received, failed))

    def close(self) -> None:
        """Ends the thread when it has moved what is queued."""
        self._jobs.put(None)

    def _move(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                headers = self._gather(job.call.header(job.sequence, self.size), job.patience)
                difference = self._difference(headers, job.sequence)
                if difference is None:
                    payloads = self._payloads(job, [int(header[6]) for header in headers])
            except RuntimeError as error:
                job.failed(
                    f"{self._say(job.call.header(job.sequence, self.size))} in {self.ranks} failed on rank "
                    f"{self.ranks[self.rank]}: some rank did not take part within {job.patience:g} s, or is gone "
                    f"({str(error).splitlines()[0]})"
                )
                continue
            if difference is not None:
                job.failed(difference)
                continue
            job.received(payloads, [tuple(header[7:].tolist()) for header in headers])

    def _payloads(self, job: _Job, lengths: list[int]) -> list[torch.Tensor]:
        """What each rank gave. Ranks that give less are filled up on the way, because gloo wants equal lengths."""
        payload = job.call.payload
        longest = max(lengths)
        if longest == 0:
            return [payload.new_empty(0) for _ in lengths]
        size = longest * payload.element_size()
        sent = payload.view(torch.uint8) if payload.numel() else payload.new_empty(0, dtype=torch.uint8)
        if sent.numel() < size:
            sent = torch.cat([sent, sent.new_zeros(size - sent.numel())])
        gathered = self._gather(sent, job.patience)
        return [whole.view(payload.dtype)[:length] for whole, length in zip(gathered, lengths, strict=True)]

    def _gather(self, tensor: torch.Tensor, patience: float) -> list[torch.Tensor]:
        outputs = [torch.empty_like(tensor) for _ in range(self.size)]
        options = AllgatherOptions()
        options.timeout = timedelta(seconds=patience)
        self.gloo.allgather([outputs], [tensor], options).wait()  # type: ignore[attr-defined]
        return outputs

    def _difference(self, headers: Sequence[torch.Tensor], sequence: int) -> str | None:
        """Says what each rank issued if it is not the same on all."""
        uneven = OPERATIONS[int(headers[0][0])] in UNEVEN
        compared = [tuple(header[:4].tolist()) if uneven else tuple(header[:6].tolist()) for header in headers]
        if len(set(compared)) == 1:
            return None
        says = "; ".join(f"rank {rank}: {self._say(header)}" for rank, header in zip(self.ranks, headers, strict=True))
        return f"the ranks of {self.ranks} issued different collectives as their number {sequence} there: {says}"

    def _say(self, header: torch.Tensor) -> str:
        operation, dtype, reduce_op, root, elements, sequence, _ = header[:7].tolist()
        root_text = f" root {self.ranks[root]}" if root >= 0 else ""
        name = str(DTYPES[dtype]).removeprefix("torch.")
        words = f"{OPERATIONS[operation]} {REDUCE_OPS[reduce_op]}".rstrip() + root_text
        return words if operation == 0 else f"{words} {name}[{elements}] (number {sequence})"
