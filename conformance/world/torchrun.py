"""Ranks that torchrun has started: one of them runs pytest, the others lend their place.

    torchrun --nnodes=2 --nproc-per-node=8 -m pytest conformance --impl=… --device=cuda --backend=nccl

Each process that torchrun starts becomes the place of one rank. Process 0 runs pytest and tells the others, through
torchrun's own store, where it listens; they start a launcher that connects to it and serve until it closes.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from . import bootstrap

if TYPE_CHECKING:
    import torch.distributed as dist

ADDRESS, TOKEN = "commhooks/address", "commhooks/token"


@dataclass(frozen=True)
class Torchrun:
    """What torchrun told this process.

    Attributes:
        rank: Number of the process.
        size: Number of processes.
        local_size: Number of processes on this machine.
        host: Where torchrun's store is; process 0 runs there too.
        port: Port of the store.
    """

    rank: int
    size: int
    local_size: int
    host: str
    port: int

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Torchrun | None:
        """What the environment says, or None where torchrun did not start this process."""
        if "TORCHELASTIC_RUN_ID" not in environment:
            return None
        return cls(
            rank=int(environment["RANK"]),
            size=int(environment["WORLD_SIZE"]),
            local_size=int(environment["LOCAL_WORLD_SIZE"]),
            host=environment["MASTER_ADDR"],
            port=int(environment["MASTER_PORT"]),
        )

    @property
    def store(self) -> str:
        """torchrun's store, in the form of ``Place.store``; a world adds its own prefix."""
        return f"tcp://{self.host}:{self.port}"

    def publish(self, address: str, token: str) -> None:
        """Tells the other processes where process 0 listens."""
        store = self._connect()
        store.set(TOKEN, token)
        store.set(ADDRESS, address)

    def serve(self, python: str) -> int:
        """Lends this process's place to process 0 until that has finished; gives the exit status."""
        store = self._connect()
        address, token = store.get(ADDRESS).decode(), store.get(TOKEN).decode()
        return subprocess.call([python, bootstrap.__file__, address, token, str(self.rank)], env=environment(self))

    def _connect(self) -> dist.TCPStore:
        import torch.distributed as dist

        return dist.TCPStore(self.host, self.port, is_master=False)


def environment(torchrun: Torchrun | None) -> dict[str, str]:
    """The user's environment for launchers; on one machine gloo is pointed at the loopback device.

    A host name may not resolve, and then gloo finds no device by itself.
    """
    import socket

    found = dict(os.environ)
    names = [name for _, name in socket.if_nameindex()]
    loopback = next((name for name in ("lo", "lo0") if name in names), None)
    if loopback is not None and (torchrun is None or torchrun.local_size == torchrun.size):
        found.setdefault("GLOO_SOCKET_IFNAME", loopback)
    return found
