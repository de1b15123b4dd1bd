"""The controller's side of the launcher: start it, have it fork servers, let all processes in."""

from __future__ import annotations

import itertools
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from commhooks.adapters import UnusableImplementation

from . import bootstrap
from .channel import Channel, ChannelClosed, Plain
from .torchrun import Torchrun, environment

# Ranks that wait are not free: a thread of each looks around a hundred times a second.
STANDING = 4


class Resting(Protocol):
    """What keeps ranks, and can do without them for a while."""

    def rest(self) -> None:
        """Ends the ranks; the next use starts new ones."""


class Launcher:
    """The process that servers are forked from, and the door through which all processes reach the controller.

    Under torchrun there is one launcher for each process that torchrun has started, and so a server for each rank.

    Args:
        python: Interpreter that runs the implementations.
        start_timeout: Seconds that it may take to start.
        torchrun: What torchrun told this process, or None where torchrun did not start it.

    Raises:
        UnusableImplementation: The interpreter cannot be run, or ends at once.
    """

    def __init__(
        self, python: str = sys.executable, start_timeout: float = 120.0, torchrun: Torchrun | None = None
    ) -> None:
        self.torchrun = torchrun
        self.folder = Path(tempfile.mkdtemp(prefix="commhooks-"))
        self.worlds = itertools.count(1)
        self.doors = Doors(self.folder / "controller" if torchrun is None else torchrun.host)
        self._channels: dict[int, Channel] = {}
        self._standing: list[Resting] = []
        self._output = self.folder / "output"
        arguments = [python, bootstrap.__file__, self.doors.address, self.doors.token, "0"]
        try:
            with self._output.open("wb") as output:
                self._process = subprocess.Popen(
                    arguments,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    env=environment(torchrun),
                )
        except OSError as error:
            self.doors.close()
            shutil.rmtree(self.folder, ignore_errors=True)
            raise UnusableImplementation(f"--impl-python={python} cannot be run: {error}") from None
        try:
            if torchrun is not None:
                torchrun.publish(self.doors.address, self.doors.token)
            self._channels = self._accept(time.monotonic() + start_timeout)
        except TimeoutError:
            output_text = self.output()
            self.close()
            raise UnusableImplementation(f"{python} did not start to import anything:\n{output_text}") from None

    @property
    def nodes(self) -> int:
        """Number of launchers."""
        return 1 if self.torchrun is None else self.torchrun.size

    def launch(self, implementation: str, timeout: float) -> tuple[list[Channel], dict[str, Plain]]:
        """Starts a server for each launcher; gives their channels, and what the first found on importing.

        Raises:
            UnusableImplementation: A server ended, did not answer in time, or cannot use the implementation.
        """
        try:
            for channel in self._channels.values():
                channel.send({"implementation": implementation})
                channel.receive()
            servers = self._accept(time.monotonic() + timeout)
            answers = [servers[node].receive(timeout) for node in range(self.nodes)]
        except (ChannelClosed, TimeoutError) as error:
            raise UnusableImplementation(
                f"--impl={implementation}: importing it ended or stopped the interpreter ({error})\n{self.output()}"
            ) from None
        unusable = next((answer for answer in answers if "unusable" in answer), None)
        if unusable is not None:
            for server in servers.values():
                server.close()
            raise UnusableImplementation(str(unusable["unusable"]))
        return [servers[node] for node in range(self.nodes)], answers[0]

    def used(self, owner: Resting) -> None:
        """Notes that the ranks of ``owner`` are used; those that were not for the longest time end."""
        if self._standing and self._standing[-1] is owner:
            return
        self._standing = [*(other for other in self._standing if other is not owner), owner]
        while len(self._standing) > STANDING:
            self._standing.pop(0).rest()

    def output(self) -> str:
        """The end of what launcher and servers printed."""
        return self._output.read_text(errors="replace")[-2000:].strip()

    def close(self) -> None:
        """Ends the launchers; servers end with their own connections."""
        for channel in self._channels.values():
            channel.close()
        self.doors.close()
        try:
            self._process.wait(5.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _accept(self, deadline: float) -> dict[int, Channel]:
        """Waits for one process of each node."""
        found: dict[int, Channel] = {}
        while len(found) < self.nodes:
            channel, hello = self.doors.accept(deadline, alive=lambda: self._process.poll() is None)
            found[int(hello["node"])] = channel  # type: ignore[arg-type]
        return found


class Doors:
    """Where the launchers, the servers and the ranks connect to the controller.

    Args:
        place: Path of a socket on this machine, or the name by which other machines reach this one.
    """

    def __init__(self, place: Path | str) -> None:
        self.token = secrets.token_hex(16)
        if isinstance(place, Path):
            self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self._listener.bind(str(place))
            self.address = f"unix:{place}"
        else:
            self._listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
            self._listener.bind(("", 0))
            self.address = f"tcp:{place}:{self._listener.getsockname()[1]}"
        self._listener.listen(256)

    def accept(self, deadline: float, alive: Callable[[], bool] = lambda: True) -> tuple[Channel, dict[str, Plain]]:
        """Waits for a process that knows the token.

        Raises:
            TimeoutError: None came before the deadline, or ``alive`` says that none will come.
        """
        while alive():
            left = deadline - time.monotonic()
            if left <= 0:
                break
            self._listener.settimeout(min(left, 0.2))
            try:
                connection, _ = self._listener.accept()
            except TimeoutError:
                continue
            if connection.family == socket.AF_INET:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            channel = Channel(connection)
            try:
                hello = channel.receive(timeout=max(left, 1.0))
            except ChannelClosed:
                channel.close()
                continue
            if hello.get("token") == self.token:
                return channel, hello
            channel.close()
        raise TimeoutError("no process connected in time")

    def close(self) -> None:
        """Stops listening."""
        self._listener.close()
