"""`MemberCluster`: a simulated cluster of several machines, with the processes of `penstock.server.cluster`.

Each segment store has a host for its process, ``store-1``, and one for the process's parent, ``parent-1``, which starts
it. Controllers have a host each. They find each other in a simulated ZooKeeper; logs and long-term storage are in
buckets. The hosts of one machine lose their power together (`Machines`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import BinaryIO, TypeVar, cast

from penstock.administration.object_log_administration import ObjectLogAdministration, object_logs
from penstock.controller.service import ControllerService
from penstock.model.cluster_nodes import (
    ASSIGNMENT_PATH,
    CONTROLLERS_PATH,
    HOSTS_PATH,
    AssignmentNode,
    HostNode,
    HostState,
    NodeContent,
    decode_node,
    split_host_node_name,
)
from penstock.model.errors.coordination import CoordinationError, NoSuchNodeError
from penstock.model.routing import container_of
from penstock.runtime.objects import ObjectPlace, ObjectStore, ObjectStoreSettings
from penstock.runtime.runtime import Runtime
from penstock.segmentstore.container.container import SegmentContainer
from penstock.segmentstore.server import SegmentStoreServer
from penstock.segmentstore.store import SegmentStore
from penstock.server.cluster.administration import ClusterAdministration
from penstock.server.cluster.controller import ClusterController
from penstock.server.cluster.identity import wait_for_session
from penstock.server.cluster.initialisation import init_cluster
from penstock.server.cluster.messages import MemberOrder, decode_member_order
from penstock.server.cluster.store import ClusterStore, serve_member
from penstock.server.cluster.store_host import StoreHost
from penstock.server.settings import CACHE_BYTES_MIN, StandaloneSettings
from penstock_simulation.simulated.assignment import SEGMENT_STORE_PORT
from penstock_simulation.simulated.cluster import (
    CONTROLLER_PORT,
    ClusterSettings,
    MemberClusterSettings,
    RunningServers,
    SimulatedCluster,
)
from penstock_simulation.simulated.errors import HostDownError
from penstock_simulation.simulated.host import Death, Host
from penstock_simulation.simulated.host_files import HostFiles
from penstock_simulation.simulated.member_machine import SimulatedChild, SimulatedMachine
from penstock_simulation.simulated.objects import ObjectFaults, SimulatedBucket, SimulatedObjects
from penstock_simulation.simulated.operation_costs import OperationCosts
from penstock_simulation.simulated.remote_requests import WayToService
from penstock_simulation.simulated.simulation import Simulation
from penstock_simulation.simulated.zookeeper import SimulatedZooKeeper
from penstock_simulation.simulated.zookeeper_tree import NodeTree

C = TypeVar("C", bound=NodeContent)
T = TypeVar("T")

LOG_URL = "s3://log/log"
DATA_URL = "s3://data/data"
#: Where servers of ZooKeeper are, for settings; the simulated one has no address.
_ZOOKEEPER = "zookeeper:2181/penstock"
#: It makes the cluster, and needs no account.
_ADMINISTRATOR = "administrator"
_POLL_S = 0.05
_MAKE_POLLS_MAX = 2000
#: Longest time after the end of all faults until every container is served where it stays.
SETTLE_S = 90.0


class MemberLocator:
    """The assignment of a cluster, as its coordination service has it. For observers and workloads."""

    def __init__(self, cluster: MemberCluster, container_count: int) -> None:
        self._cluster = cluster
        self.container_count: int = container_count

    def owner(self, container_id: int) -> str:
        """Return the store that has a container; empty: none."""
        assignment = self._cluster.assignment
        return "" if assignment is None else assignment.owners[container_id]

    def containers_of(self, store: str) -> list[int]:
        """Return the containers that a store has."""
        return [number for number in range(self.container_count) if self.owner(number) == store]

    async def endpoint_of_segment(self, segment: str) -> tuple[str, int]:
        """Return host and port of a segment, given by its full name."""
        return self.owner(container_of(segment, self.container_count)), SEGMENT_STORE_PORT


class ListedMembers:
    """`MemberNames` of a `MemberCluster`."""

    def __init__(self, cluster: MemberCluster) -> None:
        self._cluster = cluster

    @property
    def names(self) -> frozenset[str]:
        """The members."""
        return frozenset(self._cluster.names(CONTROLLERS_PATH))


class MemberCluster(SimulatedCluster):
    """See the module.

    Attributes:
        ensemble: the coordination service.
        parents: hosts of the parents of stores, in the order of `stores`.
        administrator: host from which the cluster is made and administered.
    """

    ensemble: SimulatedZooKeeper
    parents: list[Host]
    administrator: Host

    def __init__(self, simulation: Simulation, settings: ClusterSettings) -> None:
        super().__init__(simulation, settings)
        self.locator = MemberLocator(self, settings.segment_store.container_count)  # type: ignore[assignment]  # a view
        self.member_names = ListedMembers(self)
        #: The security files of each machine; None: everybody may do everything.
        self.host_files: HostFiles | None = None
        if self.security_files is not None and settings.security is not None:
            loop = simulation.loop
            self.host_files = HostFiles(
                self.security_files,
                settings.security,
                [host.name for host in (*self.stores, *self.controllers)],
                simulation.rng("copies of security files"),
                lambda delay_s, event: loop.at(loop.now_s + delay_s, event),
            )

    @property
    def member_settings(self) -> MemberClusterSettings:
        """Settings of a cluster of this kind."""
        assert self.settings.members is not None
        return self.settings.members

    def _add_stores(self, names: Sequence[str]) -> list[Host]:
        simulation = self.simulation
        self.ensemble = SimulatedZooKeeper(simulation.rng("zookeeper"), self.member_settings.zookeeper)
        self._is_made = False
        self._children: dict[str, SimulatedChild] = {}
        self._processes: dict[str, tuple[int, ClusterStore | ClusterController]] = {}
        self.administrator = simulation.host(_ADMINISTRATOR, self._administrate)
        stores = [simulation.host(name, self._run_child) for name in names]
        self.parents = [self._add_server(f"parent-{name.removeprefix('store-')}", self._run_parent) for name in names]
        return stores

    def _add_controllers(self) -> list[Host]:
        numbers = range(1, self.settings.controller_count + 1)
        return [self._add_server(f"controller-{number}", self._run_member_controller) for number in numbers]

    @property
    def servers(self) -> list[Host]:
        """See `SimulatedCluster.servers`."""
        return [*self.stores, *self.parents, *self.controllers]

    def _security(self, host: Host) -> None:
        """See `SimulatedCluster._security`: processes of a cluster read the files of their machine by themselves."""

    def have_read(self, version: int) -> bool:
        """See `SimulatedCluster.have_read`. Each machine has got the files, too."""
        if self.host_files is None or not self.host_files.have(version):
            return False
        running = [self.process(host) for host in (*self.stores, *self.controllers)]
        found = [process.security for process in running if process is not None and process.security is not None]
        return all(security.is_current for security in found)

    # -- programs -----------------------------------------------------------------------------------------------

    def _process_settings(self, name: str) -> StandaloneSettings:
        """Return the settings of one process, as its operator writes them."""
        members, store = self.member_settings, self.settings.segment_store
        assert self.settings.bucket_log is not None
        cache = replace(store.cache, bytes_max=max(store.cache.bytes_max, CACHE_BYTES_MIN))
        settings = StandaloneSettings(
            host="0.0.0.0",
            controller_port=CONTROLLER_PORT,
            segment_store_port=SEGMENT_STORE_PORT,
            segment_store=replace(store, cache=cache, disk_cache=replace(store.disk_cache, bytes_max=0)),
            controller=self.settings.controller,
            object_log=self.settings.bucket_log.log,
            object_storage=members.object_storage,
            store_processes=members.processes,
            cluster=replace(members.cluster, zookeeper=_ZOOKEEPER, name=name),
        )
        if self.host_files is None or name == _ADMINISTRATOR:
            return settings
        security, data_dir = self.host_files.settings_of(name)
        return replace(settings, security=security, data_dir=data_dir)

    def _runtime(self, host: Host) -> Runtime:
        runtime = host.runtime

        def open_objects(place: ObjectPlace, settings: ObjectStoreSettings) -> ObjectStore:
            if str(place) == LOG_URL:
                assert self.log_place is not None
                return self.log_place.objects(host, "")
            number = len(self.remote_clients)
            rng = self.simulation.rng(f"objects of {host.name}, process {number}")
            way = WayToService(self.simulation.loop, host.stalls, host.losses)
            faults = self.settings.remote_faults
            assert isinstance(faults, ObjectFaults)
            objects = SimulatedObjects(self.buckets[""], rng, faults, way)
            if self._is_healed:
                objects.heal()
            self.remote_clients.append(objects)
            return objects

        return Runtime(
            disk=runtime.disk,
            work=runtime.work,
            rng=runtime.rng,
            wall_clock_ms=runtime.wall_clock_ms,
            monotonic_s=runtime.monotonic_s,
            open_objects=open_objects,
            cpu_s=OperationCosts(lambda: self._served_by(host), self.member_settings.operation_s).cpu_s,
        )

    def _machine(self, host: Host, *, has_children: bool = False) -> SimulatedMachine:
        rng = self.simulation.rng(f"coordination of {host.process.name}")
        return SimulatedMachine(host, self.ensemble, rng, self._begin_child if has_children else None)

    async def _administrate(self, host: Host) -> None:
        """Make the cluster, again until that succeeds, and stay up for administrators."""
        while not self._is_made:
            try:
                await init_cluster(
                    self._process_settings(_ADMINISTRATOR),
                    containers=self.settings.segment_store.container_count,
                    log=LOG_URL,
                    tier2=DATA_URL,
                    lease_s=self.member_settings.lease_s,
                    adopts=False,
                    is_dry=False,
                    runtime=self._runtime(host),
                    machine=self._machine(host),
                )
            except CoordinationError:
                await asyncio.sleep(_POLL_S)
            else:
                self._is_made = True
        await asyncio.get_running_loop().create_future()

    async def _wait_until_made(self) -> None:
        for _ in range(_MAKE_POLLS_MAX):
            if self._is_made:
                return
            await asyncio.sleep(_POLL_S)
        raise HostDownError("the cluster was not made")

    async def _run_parent(self, host: Host) -> None:
        await self._wait_until_made()
        name = host.name.replace("parent", "store")
        stores = StoreHost(self._process_settings(name), self._runtime(host), self._machine(host, has_children=True))
        self._servers[host.name].stops.push_async_callback(stores.stop)
        await stores.start()

    def _begin_child(self, order: MemberOrder) -> SimulatedChild:
        host = self.simulation.hosts[order.name]
        if host.is_up:
            raise OSError(f"{order.name}: the ports are in use by an earlier process")
        loop = self.simulation.loop
        child = self._children[host.name] = SimulatedChild(host, loop.current, loop, order)

        def start() -> None:
            if self._children.get(host.name) is child and not host.is_up:
                host.restart()
                child.started()

        loop.at(loop.now_s, start)
        return child

    async def _run_child(self, host: Host) -> None:
        child = self._children.get(host.name)
        if child is None or child.is_begun or not child.is_started:
            return  # Only a parent starts it.
        child.is_begun = True
        machine, order = self._machine(host), decode_member_order(child.order)
        member = ClusterStore(order, cast(BinaryIO, child), self._runtime(host), machine)
        self._processes[host.name] = host.life, member
        self._servers[host.name] = RunningServers(host.life, AsyncExitStack())
        try:
            is_clean = await serve_member(member, child.asked_to_stop, child.asked_again)
        except Exception:
            child.clean_code = 1
            raise
        child.clean_code = 0 if is_clean else 1

    async def _run_member_controller(self, host: Host) -> None:
        await self._wait_until_made()
        controller = ClusterController(self._process_settings(host.name), self._runtime(host), self._machine(host))
        self._processes[host.name] = host.life, controller
        self._servers[host.name].stops.push_async_callback(controller.stop)
        await controller.start()

    @property
    def has_faulty_buckets(self) -> bool:
        """Whether requests to a bucket fail without a planned fault."""
        log, data = self.settings.bucket_log, self.settings.remote_faults
        assert log is not None
        assert data is not None
        return any(rate for _, rate in (*log.faults.rates, *data.rates))

    # -- observing ----------------------------------------------------------------------------------------------

    @property
    def tree(self) -> NodeTree:
        """The newest state of the coordination service."""
        return max((server.tree for server in self.ensemble.servers), key=lambda tree: tree.zxid)

    def names(self, path: str) -> frozenset[str]:
        """Return the children of a node of the coordination service; none if there is no such node."""
        try:
            return self.tree.children(path).names
        except NoSuchNodeError:
            return frozenset()

    def content(self, kind: type[C], path: str) -> C | None:
        """Return the content of a node; None: there is no such node."""
        try:
            return decode_node(kind, path, self.tree.get(path).content)
        except NoSuchNodeError:
            return None

    @property
    def assignment(self) -> AssignmentNode | None:
        """The present assignment."""
        return self.content(AssignmentNode, ASSIGNMENT_PATH)

    @property
    def live_stores(self) -> frozenset[str]:
        """Names of the stores that are announced."""
        return frozenset(split_host_node_name(each)[0] for each in self.names(HOSTS_PATH))

    def process(self, host: Host) -> ClusterStore | ClusterController | None:
        """Return the store or controller in a host's present process."""
        life, found = self._processes.get(host.name, (0, None))
        return found if host.is_up and life == host.life else None

    def member(self, host: Host) -> ClusterStore | None:
        """Return the store in a host's present process."""
        found = self.process(host)
        return found if isinstance(found, ClusterStore) else None

    def store(self, host: Host) -> SegmentStore | None:
        """See `SimulatedCluster.store`."""
        member = self.member(host)
        return None if member is None else member.segment_store

    def server(self, host: Host) -> SegmentStoreServer | None:
        """See `SimulatedCluster.server`."""
        member = self.member(host)
        return None if member is None else member.server

    def controller_service(self, host: Host | None = None) -> ControllerService | None:
        """See `SimulatedCluster.controller_service`."""
        found = self.process(host or self.controller)
        return found.service if isinstance(found, ClusterController) else None

    def is_ready(self, host: Host) -> bool:
        """See `SimulatedCluster.is_ready`."""
        if host not in self.stores:
            return super().is_ready(host)
        member = self.member(host)
        return member is not None and member.member is not None and member.member.announced.is_set()

    def container_ids(self, host: Host) -> list[int]:
        """See `SimulatedCluster.container_ids`."""
        return self.locator.containers_of(host.name)

    def served(self) -> Iterator[tuple[int, int, Host]]:
        """Yield each container that runs at a store, its epoch and the store's host."""
        for host in self.stores:
            store = self.store(host)
            if store is not None:
                for container_id, container in store.monitor.running.items():
                    yield container_id, container.epoch, host

    def _served_by(self, host: Host) -> Sequence[SegmentContainer]:
        store = self.store(host) if host in self.stores else None
        return () if store is None else store.containers

    async def settled(self) -> str:
        """See `SimulatedCluster.settled`."""
        for _ in range(round(SETTLE_S / _POLL_S)):
            if not self._unsettled():
                return ""
            await asyncio.sleep(_POLL_S)
        return self._unsettled()

    def _unsettled(self) -> str:
        assignment = self.assignment
        if assignment is None:
            return "there is no assignment"
        running = {container_id: host.name for container_id, _, host in self.served()}
        for container_id, owner in enumerate(assignment.owners):
            if running.get(container_id) != owner:
                return f"container {container_id} belongs to {owner!r} and runs at {running.get(container_id)}"
        counts = [list(assignment.owners).count(host.name) for host in self.stores]
        if max(counts) - min(counts) > 1:
            return f"the containers are not evened out: {assignment.owners}"
        # The leader takes the containers of a store that was impaired for long enough, also while its log recovers.
        for name in sorted(self.names(HOSTS_PATH)):
            host = self.content(HostNode, f"{HOSTS_PATH}/{name}")
            if host is not None and host.state is not HostState.UP:
                return f"store {name} is {host.state}"
        return ""

    # -- steering -----------------------------------------------------------------------------------------------

    def heal(self) -> None:
        """See `SimulatedCluster.heal`; the coordination service is whole again, too."""
        super().heal()
        ensemble = self.ensemble
        ensemble.settings = replace(ensemble.settings, lost_reply_rate=0.0)
        for host in self.simulation.hosts.values():
            ensemble.mend(host.name)
        for server in ensemble.servers:
            ensemble.start(server.number)
            if server is not ensemble.leader:
                ensemble.release(server.number)

    async def shut_down(self, host: Host) -> None:
        """See `SimulatedCluster.shut_down`: a store is stopped by its parent."""
        if host in self.stores:
            host = self.parents[self.stores.index(host)]
        servers = self._current(host)
        if servers is None:
            raise HostDownError(f"{host.name} is down")
        await host.run(servers.stops.aclose())
        host.crash(Death.KILL)

    async def administer(self, act: Callable[[ClusterAdministration], Awaitable[T]]) -> T:
        """Return what `act` returns. Call it on the administrator's host. Raises `CoordinationError`."""
        host = self.administrator
        settings = self._process_settings(host.name)
        service = self._machine(host).coordination(settings.cluster)
        session = await wait_for_session(service, settings.cluster.connect_timeout_s)
        try:
            return await act(ClusterAdministration(session, service.place, host.runtime, "administrator"))
        finally:
            await session.close()

    @asynccontextmanager
    async def logs(self) -> AsyncIterator[ObjectLogAdministration]:
        """Open the logs, as an operator does. Use them on the administrator's host. Raises as `object_logs`."""
        host = self.administrator
        async with object_logs(LOG_URL, self._process_settings(host.name), self._runtime(host)) as logs:
            yield logs

    @property
    def log_bucket(self) -> tuple[str, SimulatedBucket]:
        """The prefix of the logs in their bucket, and the bucket."""
        assert self.log_place is not None
        return ObjectPlace.parse(LOG_URL).prefix, self.log_place.bucket("")


def make_cluster(simulation: Simulation, settings: ClusterSettings) -> SimulatedCluster:
    """Return a cluster of the kind that the settings describe."""
    return (SimulatedCluster if settings.members is None else MemberCluster)(simulation, settings)
