"""The process that the ranks of one implementation are forked from.

It is itself forked from the launcher, imports the implementation once, and from then on a new rank costs a fork.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Mapping
from dataclasses import asdict

from commhooks.adapters import Adapter, Place, UnusableImplementation
from commhooks.adapters.loading import load

from .channel import Channel, ChannelClosed, Plain, connect
from .rank import RankOrder, serve


def serve_implementation(controller: str, token: str, node: str, implementation: str) -> None:
    """Connects to the controller and does what it asks until the connection closes; then ends all ranks."""
    channel = Channel(connect(controller))
    channel.send({"token": token, "role": "server", "node": int(node)})
    server = Server(channel)
    try:
        channel.send(server.load(implementation))
        while True:
            channel.send(server.handle(channel.receive()))
    except ChannelClosed:
        server.end_ranks()


class Server:
    """Forks ranks, looks after them, and tells how they ended."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._adapter: Adapter | None = None  # type: ignore[type-arg]
        self._ranks: dict[int, RankOrder] = {}
        self._ended: dict[int, int] = {}
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def load(self, implementation: str) -> dict[str, Plain]:
        """Imports the implementation and describes it, or says why it cannot be used."""
        try:
            self._adapter = load(implementation)
            description = asdict(self._adapter.describe())
        except UnusableImplementation as error:
            return {"unusable": str(error)}
        except Exception as error:
            # An adapter's own describe() failed; the user needs the whole story.
            return {"unusable": f"--impl={implementation}: {error}\n{traceback.format_exc()}"}
        description["capabilities"] = sorted(description["capabilities"])
        description["claims"] = sorted(description["claims"])
        _keep_imports()
        python = ".".join(map(str, sys.version_info[:3]))
        return {"description": description, "python": python}

    def handle(self, request: Mapping[str, Plain]) -> dict[str, Plain]:
        """Carries one request out."""
        match request:
            case {"do": "obstacle", "device": str(device), "backend": backend, "world_size": int(size)}:
                return self._in_a_child(device, backend if isinstance(backend, str) else None, size)
            case {"do": "laboratory", "device": str(device)}:
                assert self._adapter is not None
                return {"obstacle": self._adapter.laboratory_obstacle(device)}
            case {"do": "prepare", "compiler": bool(compiler)}:
                return self._prepare(compiler)
            case {"do": "fork", "order": Mapping() as order}:
                return {"pid": self._fork(order)}
            case {"do": "diagnose", "pid": int(pid)}:
                return self._diagnose(pid)
            case {"do": "end", "pids": list(pids), "patience": float(patience)}:
                return {"statuses": [self._end(pid, patience) for pid in pids if isinstance(pid, int)]}
        raise ValueError(f"unknown request {request!r}")

    def end_ranks(self) -> None:
        """Kills what is still running."""
        for pid in list(self._ranks):
            self._end(pid)

    def _prepare(self, compiler: bool) -> dict[str, Plain]:
        assert self._adapter is not None
        try:
            self._adapter.prepare(compiler)
        except Exception:
            return {"fault": traceback.format_exc()}
        _keep_imports()
        return {"fault": ""}

    def _fork(self, fields: Mapping[str, Plain]) -> int:
        assert self._adapter is not None
        place = fields["place"]
        assert isinstance(place, Mapping)
        # On another machine than the controller's its folder is not there; then this server has its own.
        folder = fields["folder"] if os.path.isdir(str(fields["folder"])) else self._own_folder()
        order = RankOrder(**{**fields, "place": Place(**place), "folder": folder})  # type: ignore[arg-type]
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid == 0:
            code = 70
            try:
                self._channel.close()
                serve(self._adapter, order)
            except SystemExit as leaving:
                code = leaving.code if isinstance(leaving.code, int) else 0 if leaving.code is None else 1
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)
        self._ranks[pid] = order
        return pid

    def _own_folder(self) -> str:
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="commhooks-")
        return self._folder.name

    def _diagnose(self, pid: int) -> dict[str, Plain]:
        """The Python stacks of a rank, and the collectives that its current program started."""
        order = self._ranks[pid]
        before = _size(order.stack)
        os.kill(pid, signal.SIGUSR1)
        deadline = time.monotonic() + 2.0
        while _size(order.stack) == before and time.monotonic() < deadline:
            time.sleep(0.005)
        time.sleep(0.02)
        collectives = order.log.read_text(errors="replace").splitlines() if order.log.exists() else []
        return {"stack": order.stack.read_text(errors="replace")[before:], "collectives": collectives[-1000:]}

    def _end(self, pid: int, patience: float = 0.0) -> int:
        """Kills a rank unless it ends by itself within ``patience`` seconds.

        Returns:
            Its exit status, or the negative number of the signal that ended it.
        """
        if pid in self._ended:
            return self._ended[pid]
        done, status = _wait(pid, patience)
        if not done:
            os.kill(pid, signal.SIGKILL)
            status = os.waitpid(pid, 0)[1]
        self._ended[pid] = os.waitstatus_to_exitcode(status)
        del self._ranks[pid]
        return self._ended[pid]

    def _in_a_child(self, device: str, backend: str | None, world_size: int) -> dict[str, Plain]:
        """Asks the adapter in a child, since a process that has initialised a device cannot fork ranks for it."""
        assert self._adapter is not None
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                try:
                    chosen = backend or self._adapter.default_backend(device)
                    obstacle = self._adapter.obstacle(device, chosen, world_size)
                    answer = f"{chosen}\n{'' if obstacle is None else 'obstacle'}\n{obstacle}"
                except ValueError as error:
                    answer = f"\nunknown\n{error}"
                except BaseException as error:
                    answer = f"\nunknown\n{type(error).__name__}: {error}"
                os.write(write, answer.encode())
            finally:
                os._exit(0)
        os.close(write)
        with os.fdopen(read) as pipe:
            chosen, kind, text = [*pipe.read().split("\n", 2), "", "", ""][:3]
        os.waitpid(pid, 0)
        return {"backend": chosen, "kind": kind, "text": text}


def _keep_imports() -> None:
    """Spares the garbage collector of each rank what was imported: it stays, and a look at it would copy its pages."""
    gc.collect()
    gc.freeze()


def _size(path: os.PathLike[str]) -> int:
    return os.stat(path).st_size if os.path.exists(path) else 0


def _wait(pid: int, seconds: float) -> tuple[bool, int]:
    deadline = time.monotonic() + seconds
    while True:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return True, status
        if time.monotonic() >= deadline:
            return False, 0
        time.sleep(0.005)
