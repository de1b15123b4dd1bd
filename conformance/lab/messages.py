"""How a process group of the laboratory sends and receives."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from .issuing import Issuer, Snapshot, refuse_what_it_cannot
from .poison import fill
from .work import LabWork

_ADVICE = (
    "A send waits for its receiver, so ranks that all send first wait for each other for ever: let one of them receive "
    "first, or use isend and irecv, or batch_isend_irecv."
)


def send(issuer: Issuer, tensor: torch.Tensor, to: int, tag: int) -> LabWork:
    """Starts to send; the rank and the tag are the group's.

    It completes when the other rank receives, as gloo has it too.
    """
    refuse_what_it_cannot("send", [tensor])
    issuer.be_slow()
    payload = tensor.detach().reshape(-1).clone()
    snapshot = Snapshot([tensor], [], payload)
    entry = issuer.write_down("send", [tensor], [tensor], -1, "", to, None)
    work = LabWork(entry, [tensor], issuer.laboratory.recorder)
    moving = issuer.transport.gloo.send([payload], to, tag)  # type: ignore[attr-defined]
    issuer.laboratory.completer.issued()
    _when_moved(issuer, work, moving, lambda: issuer.look_at_tensors(entry, [], snapshot))
    return work


def receive(issuer: Issuer, tensor: torch.Tensor, source: int | None, tag: int) -> LabWork:
    """Starts to receive, from any rank if ``source`` is None."""
    refuse_what_it_cannot("recv", [tensor])
    issuer.be_slow()
    arriving = torch.empty(tensor.shape, dtype=tensor.dtype)
    entry = issuer.write_down("recv", [], [tensor], -1, "", -1 if source is None else source, None)
    work = LabWork(entry, [tensor], issuer.laboratory.recorder)
    filled = issuer.laboratory.options.fill
    gloo: Any = issuer.transport.gloo
    moving = gloo.recv_anysource([arriving], tag) if source is None else gloo.recv([arriving], source, tag)

    issuer.laboratory.completer.issued()
    if filled:
        fill(tensor)

    def deliver() -> None:
        issuer.look_at_tensors(entry, [tensor] if filled else [], None)
        work.source = moving._source_rank() if source is None else source
        tensor.data.copy_(arriving)

    _when_moved(issuer, work, moving, deliver)
    return work


def _when_moved(issuer: Issuer, work: LabWork, moving: dist.Work, deliver: Callable[[], None]) -> None:
    patience = issuer.patience

    def wait() -> None:
        error = None
        try:
            moving.wait(timedelta(seconds=patience))
        except Exception as failure:
            error = (
                f"{work.entry.text}: the other rank did not take part within {patience:g} s, or is gone "
                f"({str(failure).splitlines()[0]}). {_ADVICE}"
            )
        issuer.laboratory.completer.arrived(work, deliver, error, work)

    if issuer.coalescing is not None:
        issuer.coalescing.append(work)
    threading.Thread(target=wait, name=f"lab-{work.entry.operation}", daemon=True).start()
