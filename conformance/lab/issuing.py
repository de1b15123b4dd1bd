"""How a process group of the laboratory issues a collective."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch._C._distributed_c10d import Store

from commhooks.conformance.findings import WRITTEN

from .completion import Completer
from .log import Entry, Recorder
from .options import Options
from .poison import fill, same_bits, untouched
from .transport import DTYPES, Call, Transport
from .work import Callback, LabWork, user_code


@dataclass(frozen=True)
class Arrived:
    """What a collective has to compute its outputs from.

    Attributes:
        payloads: What each rank of the group gave, as one flat tensor.
        splits: For each rank, how many of its elements are for each rank, where that may differ.
        sequence: The collective's number in its group.
    """

    payloads: list[torch.Tensor]
    splits: list[tuple[int, ...]]
    sequence: int


Compute = Callable[[Arrived], Sequence[torch.Tensor]]


class Laboratory:
    """What all process groups of a rank share.

    Args:
        rank: The rank's number in the world.
        recorder: Its log.
        timeout: Seconds that a collective may take.
    """

    def __init__(self, rank: int, recorder: Recorder, timeout: float) -> None:
        self.rank = rank
        self.recorder = recorder
        self.options = Options()
        self.completer = Completer(rank, recorder, timeout)
        self.session = 0

    def begin(self, options: Options) -> None:
        """Goes on with other options and a new log, once nothing is under way."""
        self.completer.begin(options)
        self.options = options
        self.recorder.clear()
        self.session += 1


class Issuer:
    """Issues collectives in one group.

    Args:
        laboratory: What the rank's groups share.
        store: Where the ranks of the group meet.
        rank: The rank in the group.
        ranks: The group's ranks, numbered as in the world.
        timeout: Seconds that a collective may take.
    """

    def __init__(self, laboratory: Laboratory, store: Store, rank: int, ranks: tuple[int, ...], timeout: float) -> None:
        self.laboratory = laboratory
        self.rank = rank
        self.ranks = ranks
        self.timeout = timeout
        self.transport = Transport(store, rank, len(ranks), ranks, timeout)
        self.coalescing: list[LabWork] | None = None
        self._lock = threading.Lock()
        self._session = -1
        self.sequence = 0

    @property
    def patience(self) -> float:
        """Seconds that a collective waits for the other ranks."""
        patience = self.laboratory.options.patience
        return self.timeout if patience is None else min(patience, self.timeout)

    def issue(
        self,
        operation: str,
        given: Sequence[torch.Tensor],
        outputs: Sequence[torch.Tensor],
        compute: Compute,
        *,
        value: Sequence[torch.Tensor] | None = None,
        reduce_op: str = "",
        root: int = -1,
        elements: int | None = None,
        splits: tuple[int, ...] = (),
    ) -> LabWork:
        """Starts a collective.

        Args:
            operation: A name of ``transport.OPERATIONS``.
            given: What this rank gives.
            outputs: What is overwritten on this rank.
            compute: Makes the outputs' elements from what all ranks gave.
            value: What the work's future holds, if not the outputs.
            reduce_op: A name of ``transport.REDUCE_OPS``.
            root: The root in the group, or -1.
            elements: What must be the same on all ranks, if not the number of elements given.
            splits: How many elements are for each rank, if that may differ.
        """
        everything = [*given, *outputs]
        refuse_what_it_cannot(operation, everything)
        self.be_slow()
        laboratory = self.laboratory
        payload = _flat(given, everything)
        snapshot = Snapshot(given, outputs, payload)
        with self._lock:
            if self._session != laboratory.session:
                self._session, self.sequence = laboratory.session, 0
            sequence = self.sequence
            self.sequence += 1
            entry = self.write_down(operation, given, everything, sequence, reduce_op, root, elements)
            work = LabWork(entry, outputs if value is None else value, laboratory.recorder)
            laboratory.completer.issued()
            if laboratory.options.fill:
                for output in outputs:
                    fill(output)
            filled = laboratory.options.fill

            def received(payloads: list[torch.Tensor], all_splits: list[tuple[int, ...]]) -> None:
                try:
                    results = compute(Arrived(payloads, all_splits, sequence))
                except Exception as error:
                    failed(f"{entry.text}: {type(error).__name__}: {error}")
                    return

                def deliver() -> None:
                    self.look_at_tensors(entry, outputs if filled else (), snapshot)
                    for output, result in zip(outputs, results, strict=True):
                        output.data.copy_(result.view(output.shape))

                laboratory.completer.arrived(work, deliver, None, self)

            def failed(reason: str) -> None:
                laboratory.completer.arrived(work, lambda: None, reason, self)

            compared = payload.numel() if elements is None else elements
            call = Call(operation, payload, reduce_op, root, compared, splits)
            self.transport.submit(call, sequence, self.patience, received, failed)
            if self.coalescing is not None:
                self.coalescing.append(work)
        return work

    def be_slow(self) -> None:
        """Waits, if this rank is slow to issue what comes next."""
        laboratory = self.laboratory
        pause = laboratory.options.slowness(laboratory.rank, laboratory.recorder.issued)
        if pause:
            time.sleep(pause)

    def write_down(
        self,
        operation: str,
        given: Sequence[torch.Tensor],
        everything: Sequence[torch.Tensor],
        sequence: int,
        reduce_op: str,
        root: int,
        elements: int | None,
    ) -> Entry:
        """Enters what comes next in the log."""
        callback = Callback.current()
        number_given = sum(tensor.numel() for tensor in given)
        shown = number_given if elements is None else elements
        if not given and elements is None:
            shown = sum(tensor.numel() for tensor in everything)
        return self.laboratory.recorder.issue(
            lambda number: Entry(
                number=number,
                group=self.ranks,
                sequence=sequence,
                operation=operation,
                dtype=str(everything[0].dtype).removeprefix("torch.") if everything else "",
                elements=shown,
                bytes=sum(tensor.numel() * tensor.element_size() for tensor in given),
                reduce_op=reduce_op,
                peer=self.ranks[root] if root >= 0 else None,
                thread=threading.current_thread().name,
                callback_of=callback.entry.number if callback is not None else None,
                place=user_code(),
            )
        )

    def look_at_tensors(self, entry: Entry, filled: Sequence[torch.Tensor], snapshot: Snapshot | None) -> None:
        """Looks, before it completes, whether somebody wrote to its tensors, of which some outputs are ``filled``."""
        found = self.laboratory.recorder.find
        if not all(untouched(output) for output in filled):
            found(WRITTEN, f"number {entry.number}, {entry.text}: its output was written to before it had completed")
        if snapshot is not None and snapshot.changed():
            found(WRITTEN, f"number {entry.number}, {entry.text}: its input was written to before it had completed")


class Snapshot:
    """The inputs of a collective as they were when it was issued, leaving out those that it overwrites itself."""

    def __init__(self, given: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor], payload: torch.Tensor) -> None:
        own = {output.untyped_storage().data_ptr() for output in outputs}
        parts = torch.split(payload, [tensor.numel() for tensor in given]) if given else ()
        self._pairs = [
            (tensor, part)
            for tensor, part in zip(given, parts, strict=True)
            if tensor.untyped_storage().data_ptr() not in own
        ]

    def changed(self) -> bool:
        """Whether somebody wrote to an input since."""
        return not all(same_bits(tensor, part) for tensor, part in self._pairs)


def _flat(given: Sequence[torch.Tensor], everything: Sequence[torch.Tensor]) -> torch.Tensor:
    if not given:
        return torch.empty(0, dtype=everything[0].dtype if everything else torch.uint8)
    return torch.cat([tensor.detach().reshape(-1) for tensor in given])


def refuse_what_it_cannot(operation: str, tensors: Sequence[torch.Tensor]) -> None:
    """Raises ValueError for tensors that the laboratory cannot move."""
    for tensor in tensors:
        if tensor.layout != torch.strided or tensor.device.type != "cpu":
            raise ValueError(
                f"the laboratory's {operation} takes dense tensors on the CPU, got {tensor.layout} on {tensor.device}"
            )
        if tensor.dtype not in DTYPES:
            raise ValueError(f"the laboratory's {operation} cannot move {tensor.dtype}")
    dtypes = {tensor.dtype for tensor in tensors}
    if len(dtypes) > 1:
        raise ValueError(f"{operation} takes tensors of one dtype, got {', '.join(sorted(map(str, dtypes)))}")
