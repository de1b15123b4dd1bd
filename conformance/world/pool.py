"""Worlds of ranks, as the controller sees them: start one, run a program in it, replace it when it breaks."""

from __future__ import annotations

import contextlib
import hashlib
import os
import selectors
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from commhooks.adapters import Description, Place, UnusableImplementation

from .channel import Channel, ChannelClosed, Plain, pack
from .failure import RankFailure, RankReport, ended
from .launching import Launcher
from .rank import RankOrder

# Once one rank has failed, its peers may be waiting for it. They get this long to show that they are not.
GRACE = 1.0
# A program that did not finish so often is not tried again: the rest of the run is worth more than a fourth proof.
MAX_HANGS = 3
# What a rank prints is kept from the end.
OUTPUT_KEPT = 16_384


@dataclass(frozen=True)
class RankSettings:
    """How ranks are run.

    Attributes:
        device: Device type.
        backend: Backend of the process group, or None for the framework's choice for that device.
        timeout: Seconds that one program may take.
        start_timeout: Seconds that a server or a new world may take to start.
        memory: Bytes of address space a rank may use, or None.
    """

    device: str = "cpu"
    backend: str | None = None
    timeout: float = 15.0
    start_timeout: float = 120.0
    memory: int | None = None


class TooManyHangs(Exception):
    """A program was not run because it did not finish several times before."""


class Program:
    """A program and its arguments, as run; what a reproduction script is made from."""

    def __init__(self, program: Callable[..., object], each: list[dict[str, Plain]], backend: str) -> None:
        self.function = program
        self.each = each
        self.backend = backend

    @property
    def name(self) -> str:
        """``module:function``, by which a rank finds the program."""
        return f"{self.function.__module__}:{self.function.__qualname__}"

    @property
    def fingerprint(self) -> str:
        """A digest of the program and its arguments."""
        header, blobs = pack({"program": self.name, "each": self.each})
        return hashlib.sha256(b"".join([header, *blobs])).hexdigest()

    @property
    def title(self) -> str:
        """A short name for messages: the function, and the hook where it has one."""
        hook = self.each[0].get("hook")
        return f"{self.function.__name__}({hook})" if hook else self.function.__name__


class Implementation:
    """An implementation under test: its server, and its worlds.

    Args:
        text: The text of ``--impl``.
        settings: How its ranks are run.
        launcher: Where its server is forked from.

    Raises:
        UnusableImplementation: It cannot be imported or offers nothing to check.
    """

    def __init__(self, text: str, settings: RankSettings, launcher: Launcher) -> None:
        self.text = text
        self.settings = settings
        self._launcher = launcher
        self._worlds: dict[tuple[int, str], World] = {}
        self._servers, answer = launcher.launch(text, settings.start_timeout)
        fields = answer["description"]
        assert isinstance(fields, dict)
        self.python = str(answer["python"])
        for name in ("capabilities", "claims"):
            fields[name] = frozenset(fields[name])
        self.description = Description(**fields)
        self._obstacles: dict[int, str | None] = {}
        # How often a program did not finish in time, by its title.
        self.hangs: Counter[str] = Counter()
        # Results of programs that several checks look at, by what ``World.run`` makes of the program.
        self.shared: dict[tuple[int, str, str] | None, list[Any]] = {}
        self.backend = settings.backend or ""
        self._prepared: set[bool] = set()

    @property
    def name(self) -> str:
        """What reports call it."""
        return self.description.name

    def obstacle(self, world_size: int) -> str | None:
        """What the machine lacks for a world of that size, or None.

        Raises:
            UnusableImplementation: The device or the backend is unknown.
        """
        torchrun = self._launcher.torchrun
        if torchrun is not None and world_size > torchrun.size:
            return f"needs {world_size} ranks, torchrun started {torchrun.size}"
        if world_size not in self._obstacles:
            here = world_size if torchrun is None else min(world_size, torchrun.local_size)
            wanted = {"device": self.settings.device, "backend": self.settings.backend, "world_size": here}
            answer = self.ask_server({"do": "obstacle", **wanted})
            if answer["kind"] == "unknown":
                raise UnusableImplementation(str(answer["text"]))
            self.backend = str(answer["backend"])
            self._obstacles[world_size] = str(answer["text"]) if answer["kind"] == "obstacle" else None
        return self._obstacles[world_size]

    def laboratory_obstacle(self) -> str | None:
        """Why its ranks cannot meet in the laboratory, or None."""
        obstacle = self.ask_server({"do": "laboratory", "device": self.settings.device})["obstacle"]
        return None if obstacle is None else str(obstacle)

    def world(self, size: int, backend: str | None = None) -> World:
        """The standing world of that size; a new one if there is none or the last one broke.

        Args:
            size: Number of ranks.
            backend: Backend of the process group: "lab", or None for the one that was chosen for the run.
        """
        key = (size, backend or self.backend)
        self._launcher.used(self)
        world = self._worlds.get(key)
        if world is None or world.broken:
            world = World(self, size, next(self._launcher.worlds), key[1])
            self._worlds[key] = world
        return world

    def prepare(self, compiler: bool = False) -> None:
        """Has the server import what data-parallel training needs; worlds that were forked before it end.

        Args:
            compiler: It also imports what compiles a model.

        Raises:
            RuntimeError: That failed.
        """
        if self._prepared >= {compiler}:
            return
        self._prepared |= {False, compiler}
        for server in range(len(self._servers)):
            fault = self.ask_server({"do": "prepare", "compiler": compiler}, server)["fault"]
            if fault:
                raise RuntimeError(f"{self.name} could not be prepared for data-parallel training\n{fault}")
        for world in self._worlds.values():
            if not world.broken:
                world.close()

    def rest(self) -> None:
        """Ends all ranks; the next use of a world starts new ones."""
        for world in self._worlds.values():
            if not world.broken:
                world.close()
        self._worlds.clear()

    def close(self) -> None:
        """Ends all ranks and the server."""
        self.rest()
        for server in self._servers:
            server.close()

    def ask_server(self, request: Mapping[str, Plain], rank: int = 0) -> dict[str, Plain]:
        """Sends a request to the server that forks the given rank, and waits for its answer."""
        server = self._servers[rank % len(self._servers)]
        try:
            server.send(request)
            return server.receive()
        except ChannelClosed:
            raise RuntimeError(f"the process that ranks are forked from is gone\n{self._launcher.output()}") from None

    def order(self, world: int, place: Place) -> RankOrder:
        """What a new rank is told."""
        doors = self._launcher.doors
        return RankOrder(world, place, doors.address, doors.token, str(self._launcher.folder), self.settings.memory)

    def accept(self, world: int, size: int) -> tuple[dict[int, Channel], dict[int, Channel]]:
        """Waits until every rank of a new world has connected; gives their channels and their outputs."""
        channels: dict[int, Channel] = {}
        outputs: dict[int, Channel] = {}
        deadline = time.monotonic() + self.settings.start_timeout
        while len(channels) < size or len(outputs) < size:
            channel, hello = self._launcher.doors.accept(deadline)
            if hello.get("world") != world:
                channel.close()
                continue
            kept = channels if hello["role"] == "rank" else outputs
            kept[int(hello["rank"])] = channel  # type: ignore[arg-type]
        return channels, outputs

    def store(self, world: int) -> str:
        """Where the ranks of a world meet."""
        name = f"world{world}.store"
        if self._launcher.torchrun is not None:
            return f"{self._launcher.torchrun.store}/{name}"
        return f"file://{self._launcher.folder / name}"


class World:
    """``size`` ranks with a process group, that run one program after another.

    Args:
        implementation: Whose server forks the ranks.
        size: Number of ranks.
        number: Number of this world in the run.
        backend: Backend of the process group.

    Raises:
        RankFailure: The ranks could not form a process group.
    """

    def __init__(self, implementation: Implementation, size: int, number: int, backend: str) -> None:
        self._implementation = implementation
        self.size = size
        self.backend = backend
        self.broken = False
        self.programs: list[Program] = []
        settings = implementation.settings
        places = [
            Place(rank, size, settings.device, backend, implementation.store(number), 3600.0) for rank in range(size)
        ]
        self._pids = []
        for place in places:
            order = asdict(implementation.order(number, place))
            answer = implementation.ask_server({"do": "fork", "order": order}, place.rank)
            self._pids.append(int(answer["pid"]))  # type: ignore[arg-type]
        self._channels, self._outputs = implementation.accept(number, size)
        self._printed = [b""] * size
        self._collect(Program(join_process_group, [{}] * size, backend), settings.start_timeout)

    def run(
        self,
        program: Callable[..., object],
        *,
        each: Sequence[Mapping[str, Plain]] | None = None,
        limit: float | None = None,
        longer: float = 1.0,
        attempts: int = MAX_HANGS,
        shared: bool = False,
        **arguments: Plain,
    ) -> list[Any]:
        """Runs a program on every rank.

        Args:
            program: A function of ``commhooks.conformance.programs``.
            each: Arguments that differ by rank.
            limit: Seconds it may take, where that is less than the limit of the settings.
            longer: How many times the limit of the settings it may take, where it has much more to do than others.
            attempts: How often it may fail to finish before it is not tried again.
            shared: Checks of several clauses look at the same run; the program is run for the first of them only.
            arguments: Arguments that are the same on every rank.

        Returns:
            What the program returned, by rank: plain data, whose form the program knows.

        Raises:
            RankFailure: A rank raised, ended or did not answer in time. The world is broken then.
        """
        each = each if each is not None else [{}] * self.size
        if len(each) != self.size:
            raise ValueError(f"each must have one entry for each of {self.size} ranks, got {len(each)}")
        started = Program(program, [{**arguments, **own} for own in each], self.backend)
        self.programs.append(started)
        key = (self.size, self.backend, started.fingerprint) if shared else None
        if key in self._implementation.shared:
            return self._implementation.shared[key]
        hangs = self._implementation.hangs[started.title]
        if hangs >= attempts:
            times = "once" if hangs == 1 else f"{hangs} times"
            raise TooManyHangs(f"{started.title} did not finish within its time limit {times} before")
        for rank, channel in self._channels.items():
            with contextlib.suppress(ChannelClosed):  # a rank that ended since the last program is found below
                channel.send({"program": started.name, "arguments": started.each[rank]})
        timeout = self._implementation.settings.timeout * longer
        results = self._collect(started, timeout if limit is None else min(limit, timeout))
        if key is not None:
            self._implementation.shared[key] = results
        return results

    @property
    def patience(self) -> float:
        """Seconds that a program may take."""
        return self._implementation.settings.timeout

    def count_hang(self) -> None:
        """Counts the last program as one that did not finish, although it ended its waiting itself."""
        self._implementation.hangs[self.programs[-1].title] += 1

    def close(self) -> None:
        """Ends the ranks."""
        self._end(range(self.size), patience=0.0)
        for channel in (*self._channels.values(), *self._outputs.values()):
            channel.close()
        self.broken = True

    def _collect(self, program: Program, limit: float) -> list[Any]:
        answers: dict[int, dict[str, Plain]] = {}
        deadline = time.monotonic() + limit
        gone: list[int] = []
        with selectors.DefaultSelector() as selector:
            for rank in range(self.size):
                selector.register(self._channels[rank].fileno(), selectors.EVENT_READ, ("answer", rank))
                selector.register(self._outputs[rank].fileno(), selectors.EVENT_READ, ("output", rank))
            while len(answers) + len(gone) < self.size:
                left = deadline - time.monotonic()
                if left <= 0:
                    break
                for key, _ in selector.select(left):
                    kind, rank = key.data
                    if kind == "output":
                        if not self._keep_output(rank):
                            selector.unregister(key.fileobj)
                        continue
                    try:
                        answers[rank] = self._channels[rank].receive()
                    except ChannelClosed:
                        selector.unregister(key.fileobj)
                        if rank in answers:  # it ended after its answer; the next program will notice
                            continue
                        gone.append(rank)
                    if rank in gone or "error" in answers[rank]:
                        deadline = min(deadline, time.monotonic() + GRACE)
        if gone or len(answers) < self.size or any("error" in answer for answer in answers.values()):
            failure = RankFailure(program.title, self._diagnose(answers, gone), limit)
            self.close()
            if failure.kind == "hangs":
                self._implementation.hangs[program.title] += 1
            raise failure
        return [answers[rank]["result"] for rank in range(self.size)]

    def _diagnose(self, answers: Mapping[int, Mapping[str, Plain]], gone: Sequence[int]) -> list[RankReport]:
        statuses = dict(zip(gone, self._end(gone, 2.0), strict=True))
        order = {rank: place for place, rank in enumerate([*gone, *answers])}
        reports = []
        for rank in range(self.size):
            output = self._printed[rank].decode(errors="replace")
            if rank in gone:
                reports.append(RankReport(rank, "ended", ended(statuses[rank]), output=output, order=order[rank]))
                continue
            state = self._implementation.ask_server({"do": "diagnose", "pid": self._pids[rank]}, rank)
            collectives = tuple(map(str, state["collectives"]))  # type: ignore[arg-type]
            if rank not in answers:
                reports.append(RankReport(rank, "waiting", "hangs", "", str(state["stack"]), collectives, output))
            elif "error" in answers[rank]:
                answer = answers[rank]
                kind, text, trace = (str(answer[name]) for name in ("error", "text", "traceback"))
                raised = f"raises {kind}"
                reports.append(RankReport(rank, "raised", raised, text, trace, collectives, output, order[rank]))
            else:
                reports.append(RankReport(rank, "finished", collectives=collectives))
        return reports

    def _keep_output(self, rank: int) -> bool:
        data = os.read(self._outputs[rank].fileno(), 1 << 16)
        self._printed[rank] = (self._printed[rank] + data)[-OUTPUT_KEPT:]
        return bool(data)

    def _end(self, ranks: Sequence[int], patience: float) -> list[int]:
        """Ends ranks, unless they end by themselves within ``patience`` seconds; gives their exit statuses."""
        if self.broken:
            return [0] * len(ranks)
        statuses = []
        for rank in ranks:
            request: dict[str, Plain] = {"do": "end", "pids": [self._pids[rank]], "patience": patience}
            with contextlib.suppress(RuntimeError):  # the server is gone, and its ranks with it
                statuses.append(int(self._implementation.ask_server(request, rank)["statuses"][0]))  # type: ignore[arg-type, index]
        return statuses + [0] * (len(ranks) - len(statuses))


def join_process_group() -> None:
    """Stands for the first thing every rank does, in messages."""
