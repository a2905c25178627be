"""`DemoCluster`: ZooKeeper, segment stores and controllers of a demonstration, and what ZooKeeper says of them."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from penstock.demo.errors import DemoCommandError
from penstock.demo.processes import DemoProcess
from penstock.demo.settings import DemoSettings, free_ports
from penstock.demo.zookeeper import ZooKeeperServer
from penstock.model.cluster_nodes import HeldPhase
from penstock.model.errors.coordination import CoordinationError
from penstock.runtime.coordination import Session
from penstock.runtime.kept_session import KeptSession
from penstock.runtime.objects import DIRECTORY_SCHEME, ObjectPlace
from penstock.runtime.runtime import Runtime, real_runtime
from penstock.runtime.settings import load_settings
from penstock.server.cluster.administration import ClusterAdministration, ClusterStatus, planned
from penstock.server.cluster.identity import open_coordination
from penstock.server.cluster.initialisation import init_cluster
from penstock.server.settings import StandaloneSettings

_POLL_S = 0.25
#: A store hands its containers over when it is asked to stop; that is given this time.
_DRAIN_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class ContainerState:
    """Who has a container, by ZooKeeper. `holder`: the store; empty: none. `phase`: empty if there is no holder."""

    owner: str
    holder: str
    phase: str
    epoch: int = 0

    @property
    def is_served(self) -> bool:
        """Whether the store that it belongs to says that it serves it."""
        return self.phase == HeldPhase.SERVING and self.holder == self.owner


class DemoCluster:
    """See the module.

    Attributes:
        settings: see there.
        stores, controllers: processes by their names, ``store-1``, ..., ``controller-1``, ...
        zookeeper: its process; None if it was running before.
        containers: their states as they were read last.
        drained: names of drained stores.
        live: names of stores whose sessions live.
        leader: name of the controller that leads; empty: none.
        problem: why ZooKeeper is not read; empty: it is.
        place: of the cluster in ZooKeeper.
        ended_epochs: epochs of containers whose processes were ended: ZooKeeper may still list them as serving.
    """

    def __init__(self, settings: DemoSettings) -> None:
        self.settings: DemoSettings = settings
        self.stores: dict[str, DemoProcess] = {}
        self.controllers: dict[str, DemoProcess] = {}
        self.zookeeper: DemoProcess | None = None
        self.containers: Sequence[ContainerState] = ()
        self.drained: frozenset[str] = frozenset()
        self.live: frozenset[str] = frozenset()
        self.leader: str = ""
        self.problem: str = ""
        self.ended_epochs: dict[int, int] = {}
        self._poll_count = 0
        #: Moves that will follow from what was read last.
        self._planned_count = 0
        self._runtime: Runtime = real_runtime(1)
        self._controller_ports = free_ports(settings.controllers)
        self._sessions: KeptSession | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self.place: str = ""

    @property
    def uri(self) -> str:
        """Address of all controllers, for clients."""
        return "tcp://" + ",".join(f"127.0.0.1:{port}" for port in self._controller_ports)

    @property
    def is_served(self) -> bool:
        """Whether all containers are served, by processes that run and whose sessions live."""
        return bool(self.containers) and not self.problem and all(map(self._is_served, range(len(self.containers))))

    async def settled(self) -> None:
        """Wait until all containers are served, and none will move: by two polls from now on, or later ones."""
        first = self._poll_count + 2
        while self._poll_count < first or not self.is_served or self._planned_count:  # noqa: ASYNC110  # it is polled
            await asyncio.sleep(_POLL_S / 4)

    def _is_served(self, number: int) -> bool:
        each = self.containers[number]
        process = self.stores.get(each.holder)
        is_running = process is not None and process.is_running and not process.is_suspended
        is_new = each.epoch > self.ended_epochs.get(number, 0)
        return each.is_served and each.holder in self.live and is_running and is_new

    def note_end(self, name: str) -> None:
        """Note that the process of a store ends now: what it serves is not served until it was opened again."""
        for number, each in enumerate(self.containers):
            if each.holder == name:
                self.ended_epochs[number] = each.epoch

    async def start(self) -> None:
        """Start everything, and wait until all containers are served. Raises `PenstockError`."""
        settings = self.settings
        config = settings.write()
        address = settings.zookeeper
        if not address:
            (port,) = free_ports(1)
            server = ZooKeeperServer(settings.directory, port)
            self.zookeeper = server.process
            await server.start()
            address = f"127.0.0.1:{port}"
        self.place = f"{address.rstrip('/')}/{settings.name}"
        own = load_settings(StandaloneSettings, file=config, environment={}, flags={"cluster.zookeeper": self.place})
        # It closes its runtime.
        await init_cluster(
            own, containers=settings.containers, log=settings.log, tier2=settings.tier2, lease_s=4.0,
            adopts=False, is_dry=False, runtime=real_runtime(1),
        )  # fmt: skip
        common = ("--zookeeper", self.place, "--config", str(config), "--json", "--log-level", "info")
        program = (sys.executable, "-m", "penstock")
        for number in range(1, settings.stores + 1):
            name = f"store-{number}"
            arguments = (*program, "segment-store", "--name", name, "--port", "0", *common)
            self.stores[name] = DemoProcess(name, arguments, settings.directory)
        for number, port in enumerate(self._controller_ports, 1):
            name = f"controller-{number}"
            arguments = (*program, "controller", "--name", name, "--port", str(port), *common)
            self.controllers[name] = DemoProcess(name, arguments, settings.directory)
        loop = asyncio.get_running_loop()
        self._sessions = KeptSession(open_coordination(own.cluster), "the demonstration")
        self._tasks = [loop.create_task(self._sessions.run()), loop.create_task(self._observe())]
        processes = [*self.stores.values(), *self.controllers.values()]
        for process in processes:
            await process.start()
        await asyncio.gather(*(process.ready() for process in processes))
        while not self.is_served:  # noqa: ASYNC110  # the state is polled anyway
            await asyncio.sleep(_POLL_S)

    def process(self, name: str) -> DemoProcess:
        """Return a process by its name. Raises `DemoCommandError`."""
        if name == "zookeeper":
            if self.zookeeper is None:
                raise DemoCommandError("this ZooKeeper was running before: the demonstration does not touch it")
            return self.zookeeper
        found = self.stores.get(name) or self.controllers.get(name)
        if found is None:
            names = ", ".join([*self.stores, *self.controllers])
            raise DemoCommandError(f"there is no {name}: there are {names} and zookeeper")
        return found

    async def drain(self, name: str, *, is_over: bool) -> int:
        """Drain a store, or end that; return how many containers move. Raises `PenstockError`."""
        admin = await self._administration()
        moves = await (admin.undrain(name, is_dry=False) if is_over else admin.drain(name, is_dry=False))
        return len(moves)

    async def stop(self) -> None:
        """End everything, in order where that is quick, and delete what was written to a bucket."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        processes = [*self.stores.values(), *self.controllers.values()]
        for process in processes:
            if process.is_suspended:
                process.resume()
            # Twice: the last one that stops has no store to hand its containers over to.
            process.send(signal.SIGTERM)
            process.signal_children(signal.SIGTERM)
        await asyncio.gather(*(process.terminate(10.0) for process in processes))
        if self.zookeeper is not None:
            await self.zookeeper.kill()
        if self.settings.bucket:
            await self._delete_objects()
        await self._runtime.work.close()

    def kill(self) -> None:
        """End everything at once. Waits for nothing."""
        for process in [*self.stores.values(), *self.controllers.values(), *filter(None, [self.zookeeper])]:
            process.signal_all(signal.SIGKILL)

    async def _administration(self) -> ClusterAdministration:
        assert self._sessions is not None
        store = self._sessions.store
        if store is None or store.session is not Session.CONNECTED:
            raise DemoCommandError("ZooKeeper is not reached")
        return ClusterAdministration(store, self.place, self._runtime, "the demonstration")

    async def _observe(self) -> None:
        while True:
            try:
                self._note(await (await self._administration()).status())
                self.problem = ""
            except (CoordinationError, DemoCommandError) as error:
                self.problem = str(error)
            await asyncio.sleep(_POLL_S)

    def _note(self, found: ClusterStatus) -> None:
        view = found.view
        self.leader = found.leader
        self.live = frozenset(view.hosts)
        self.drained = view.drains
        self._planned_count = len(planned(view, drains=view.drains))
        self._poll_count += 1
        self.containers = [
            ContainerState(owner, "", "")
            if (held := view.held.get(number)) is None
            else ContainerState(owner, held.owner, str(held.phase), held.epoch)
            for number, owner in enumerate(view.assignment.owners)
        ]

    async def _delete_objects(self) -> None:
        place = ObjectPlace.parse(self.settings.place)
        if place.scheme == DIRECTORY_SCHEME:
            return
        objects = self._runtime.open_objects(place, StandaloneSettings().object_storage.store)
        with suppress(CoordinationError):
            async for page in objects.list(place.prefix):
                await objects.delete_many([info.key for info in page])
        await objects.close()
