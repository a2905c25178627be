"""`Demo`: a running demonstration. It executes commands, notes what happens, and reports it in lines or records."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from dataclasses import dataclass

from penstock.demo.cluster import ContainerState, DemoCluster
from penstock.demo.commands import HELP, DemoCommand, Verb
from penstock.demo.errors import DemoCommandError, DemoLoadError
from penstock.demo.load import DemoLoad
from penstock.demo.settings import DemoSettings
from penstock.model.errors import PenstockError

#: Segments of the stream of the load: for each container there are some, as a rule.
_SEGMENTS_PER_CONTAINER = 2
_POLL_S = 0.1
_SERVED_TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True)
class DemoEvent:
    """Something that happened. `kind`: for programs; `text`: for people; `fields`: besides `t_s`, the time."""

    kind: str
    t_s: float
    text: str
    fields: dict[str, object]


#: What the marks of the picture mean.
LEGEND = "#: serves   o: opens   c: closes   .: is awaited   ?: its process is gone, its session lives"
#: Receives what happens.
Report = Callable[[DemoEvent], None]


class Demo:
    """See the module.

    Attributes:
        cluster, load: its parts.
        is_ready: whether everything runs.
    """

    def __init__(self, settings: DemoSettings, report: Report) -> None:
        self.cluster: DemoCluster = DemoCluster(settings)
        self.load: DemoLoad = DemoLoad(self.cluster.uri, settings.containers, settings.events_per_s)
        self.is_ready: bool = False
        self._report = report
        self._began_s = asyncio.get_running_loop().time()
        self._watching: asyncio.Task[None] | None = None
        #: The owners that served, by container, as they were reported.
        self._served_by: dict[int, str] = {}
        #: Whether containers were not served, and it was not reported yet that they are again.
        self._is_unserved = False
        #: Whether a command waits for that, and reports it.
        self._is_awaited = False
        self._known: dict[str, str] = {}
        self._has_told_error = False

    @property
    def t_s(self) -> float:
        """Time since the beginning."""
        return asyncio.get_running_loop().time() - self._began_s

    async def start(self) -> None:
        """Start everything. Raises `PenstockError`."""
        settings = self.cluster.settings
        self._say(
            "starting",
            f"starting ZooKeeper, {settings.stores} stores and {settings.controllers} controllers; log and data in "
            f"{settings.place}",
            directory=str(settings.directory), place=settings.place,
        )  # fmt: skip
        await self.cluster.start()
        await self.load.start(_SEGMENTS_PER_CONTAINER * settings.containers)
        while self.load.written < len(self.load.lanes):  # counts of another task
            if self.load.error is not None:
                raise DemoLoadError(f"the load does not begin: {self.load.error}") from self.load.error
            await asyncio.sleep(_POLL_S)
        self.load.begin_measurement()
        self._known = self.process_states()
        self._served_by = {number: each.holder for number, each in enumerate(self.cluster.containers)}
        self.is_ready = True
        self._say(
            "ready",
            f"ready: {settings.containers} containers are served, {settings.events_per_s:g} events/s are written and "
            f"read; clients may connect to {self.cluster.uri}",
            uri=self.cluster.uri, zookeeper=self.cluster.place,
        )  # fmt: skip
        self._watching = asyncio.get_running_loop().create_task(self._watch())

    async def execute(self, command: DemoCommand) -> None:
        """Execute a command. Raises `DemoCommandError`, and `PenstockError` of the cluster."""
        self._say("command", f"> {command}", command=str(command))
        verb = command.verb
        if verb is Verb.WAIT:
            await asyncio.sleep(command.wait_s)
        elif verb is Verb.SERVED:
            await self._until_served()
        elif verb is Verb.STATUS:
            self._tell_status()
        elif verb is Verb.HELP:
            for text in HELP.values():
                self._say("help", text)
        elif verb in (Verb.DRAIN, Verb.UNDRAIN):
            self.load.begin_measurement()
            count = await self.cluster.drain(command.target, is_over=verb is Verb.UNDRAIN)
            self._say("moves", f"{count} containers move", moves=count)
        elif verb is not Verb.QUIT:
            self.load.begin_measurement()
            await self._signal(command)

    async def _signal(self, command: DemoCommand) -> None:
        process = self.cluster.process(command.target)
        if command.verb is Verb.START:
            if process.is_running:
                raise DemoCommandError(f"{process.name} runs")
            await process.start()
            if process is not self.cluster.zookeeper:
                await process.ready()
            return
        if not process.is_running:
            raise DemoCommandError(f"{process.name} does not run: start it")
        if command.verb in (Verb.KILL, Verb.CRASH):
            self.cluster.note_end(process.name)
        match command.verb:
            case Verb.KILL:
                await process.kill()
            case Verb.CRASH:
                process.signal_children(signal.SIGKILL)
            case Verb.STOP:
                process.suspend()
            case Verb.CONT:
                process.resume()
            case _:
                await process.terminate(60.0)

    async def _until_served(self) -> None:
        self._is_awaited = True
        try:
            async with asyncio.timeout(_SERVED_TIMEOUT_S):
                await self.cluster.settled()
                while not self._is_writing():  # noqa: ASYNC110  # times of another task
                    await asyncio.sleep(_POLL_S)
            self._watch_containers()
        except TimeoutError:
            raise DemoCommandError(f"not all containers are served after {_SERVED_TIMEOUT_S:g} s") from None
        finally:
            self._is_awaited = False
        self._tell_served()

    def _tell_served(self) -> None:
        self._is_unserved = False
        gap_s = self.load.gap_s
        self._say(
            "all_served",
            f"all containers are served; the longest time without an acknowledgement was {gap_s:.1f} s",
            gap_s=round(gap_s, 2),
        )

    def _is_writing(self) -> bool:
        now_s = asyncio.get_running_loop().time()
        return all(lane.waiting_s(now_s) < 2.0 for lane in self.load.lanes)

    async def finish(self) -> None:
        """Stop the load, check every event, and report it. Raises `DemoLoadError`."""
        longest_s = self.load.longest_gap_s
        await self._end_watch()
        await self.load.stop()
        load = self.load
        self._say(
            "result",
            f"{load.written} events were written and acknowledged, {load.read} were read: none is lost, doubled or out "
            f"of order; the longest time without an acknowledgement was {longest_s:.1f} s",
            written=load.written, read=load.read, longest_gap_s=round(longest_s, 2),
        )  # fmt: skip

    async def stop(self) -> None:
        """End everything. Raises nothing."""
        await self._end_watch()
        try:
            async with asyncio.timeout(5.0):
                await self.load.cancel()
        except (TimeoutError, PenstockError):
            pass  # Nothing is checked any more.
        finally:
            await self.cluster.stop()
            self._say("stopped", "everything has ended")

    async def _end_watch(self) -> None:
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)

    def say_error(self, message: str) -> None:
        """Report that a command was refused."""
        self._say("error", f"error: {message}", message=message)

    # -- what happens -------------------------------------------------------------------------------------------

    async def _watch(self) -> None:
        while True:
            self._watch_processes()
            self._watch_containers()
            if self.load.error is not None and not self._has_told_error:
                self._has_told_error = True
                self.say_error(f"the load has ended: {self.load.error}")
            await asyncio.sleep(_POLL_S)

    def process_states(self) -> dict[str, str]:
        """Return the state of each process: running, suspended or ended."""
        cluster = self.cluster
        processes = {**cluster.stores, **cluster.controllers}
        if cluster.zookeeper is not None:
            processes["zookeeper"] = cluster.zookeeper
        return {
            name: "suspended" if each.is_suspended else "running" if each.is_running else "ended"
            for name, each in processes.items()
        }

    def _watch_processes(self) -> None:
        states = self.process_states()
        for name, state in states.items():
            if state != self._known.get(name):
                self._say("process", f"{name} is {state}", name=name, state=state)
        self._known = states

    def _watch_containers(self) -> None:
        cluster = self.cluster
        for number, each in enumerate(cluster.containers):
            before = self._served_by.get(number, "")
            if each.is_served and each.holder in cluster.live and each.holder != before:
                self._say(
                    "served", f"container {number}: {before or 'none'} -> {each.holder}",
                    container=number, source=before, store=each.holder,
                )  # fmt: skip
                self._served_by[number] = each.holder
        if not (cluster.is_served and self._is_writing()):
            self._is_unserved = True
        elif self._is_unserved and not self._is_awaited:
            self._tell_served()

    def _tell_status(self) -> None:
        for line in self.lines():
            self._say("line", line)
        self._say("status", "", **self.fields())

    def fields(self) -> dict[str, object]:
        """Return the state, for programs."""
        cluster = self.cluster
        return {
            "processes": self.process_states(),
            "leader": cluster.leader,
            "drained": sorted(cluster.drained),
            "containers": [
                {"owner": each.owner, "holder": each.holder, "phase": each.phase} for each in cluster.containers
            ],
            "written": self.load.written,
            "read": self.load.read,
            "gap_s": round(self.load.gap_s, 2),
        }

    def lines(self) -> list[str]:
        """Return the state, for people: which store has which container."""
        cluster, states = self.cluster, self.process_states()
        numbers = range(len(cluster.containers))
        head = f"{'':14}{'':12}" + "".join(f"{number:>5}" for number in numbers)
        rows = [head]
        for name in cluster.stores:
            state = "drained" if states[name] == "running" and name in cluster.drained else states[name]
            cells = "".join(f"{_mark(name, each, states[name] == 'running'):>5}" for each in cluster.containers)
            rows.append(f"{name:14}{state:12}{cells}")
        for name in cluster.controllers:
            rows.append(f"{name:14}{states[name]:12}{'  leads' if name == cluster.leader else ''}")
        rows.append(
            f"written {self.load.written}, read {self.load.read}; longest time without an acknowledgement since the "
            f"last command: {self.load.gap_s:.1f} s"
        )
        if cluster.problem:
            rows.append(f"ZooKeeper: {cluster.problem}")
        return rows

    def _say(self, kind: str, text: str, **fields: object) -> None:
        self._report(DemoEvent(kind, round(self.t_s, 2), text, fields))


def _mark(store: str, container: ContainerState, is_running: bool) -> str:
    """Return how a container is shown in the row of a store: see `LEGEND`."""
    if container.holder == store:
        return {"serving": "#", "opening": "o", "closing": "c"}[container.phase] if is_running else "?"
    return "." if container.owner == store else ""
