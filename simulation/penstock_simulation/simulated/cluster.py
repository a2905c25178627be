"""`SimulatedCluster`: segment stores, a controller and clients on simulated hosts, running the production code.

Container `i` of `n` stores starts at store ``i % n``. Either each segment store has its own disk for both tiers and
keeps its containers, or all stores have both tiers on one shared file system (`has_shared_storage`) and containers move
between stores (`Assignment.give`). The controller runs on the first store's host with direct calls (`is_combined`, as
in standalone), or on its own host over the wire protocol. Several controllers have one host each and learn about each
other from the coordination service on a further host (`coordination`). Clients are the production client; only gRPC is
replaced (see `controller_calls`). With several controllers each client calls one, and the next when that one does not
answer.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from typing import Protocol, cast

from penstock.client.client import Client
from penstock.client.controller.controller import ControllerClient, ControllerStub
from penstock.client.settings import ClientSettings
from penstock.client.statistics.wire_scale_advice import WireScaleAdvisor
from penstock.client.transport.connection_pool import ConnectionPool
from penstock.client.transport.wire_segments import WireSegments
from penstock.controller.metadata.segments_store import SegmentsMetadataStore
from penstock.controller.ownership.coordinator import Coordinator
from penstock.controller.service import ControllerService
from penstock.controller.settings import ControllerSettings
from penstock.model.scale_advice import ScaleAdvisor
from penstock.model.segments import Segments
from penstock.runtime.client_security import ClientSecurity, Credentials, SessionCredentials
from penstock.runtime.runtime import Runtime
from penstock.segmentstore.scale_advisor import StoreScaleAdvisor
from penstock.segmentstore.server import SegmentStoreServer
from penstock.segmentstore.settings import CacheSettings, SegmentStoreSettings
from penstock.segmentstore.store import SegmentStore
from penstock.segmentstore.tier1.durable_log import DurableLogFactory
from penstock.segmentstore.tier1.local_log_factory import LocalLogFactory
from penstock.segmentstore.tier1.log_owner import LogOwner
from penstock.segmentstore.tier1.log_settings import LocalLogSettings
from penstock.segmentstore.tier2.chunk_storage import ChunkStorage
from penstock.segmentstore.tier2.directory import DirectoryChunkStorage, DirectoryChunkStorageSettings
from penstock.segmentstore.tier2.hdfs_storage import HdfsChunkStorage
from penstock.segmentstore.tier2.hdfs_storage_settings import HdfsStorageSettings
from penstock.segmentstore.tier2.object_storage import ObjectChunkStorage
from penstock.segmentstore.tier2.object_storage_settings import ObjectStorageSettings
from penstock.server.cluster_settings import ClusterSettings as ProcessClusterSettings
from penstock.server.data_directory import DataDirectory
from penstock.server.directory_watch import DirectoryWatch
from penstock.server.settings import StoreProcessSettings
from penstock_simulation.chunk_faults import ChunkFaults, FaultyChunkStorage
from penstock_simulation.simulated.assignment import SEGMENT_STORE_PORT, Assignment
from penstock_simulation.simulated.controller_calls import serve_controller, simulated_stub
from penstock_simulation.simulated.coordination import CoordinationServer, CoordinationSettings, Sessions
from penstock_simulation.simulated.coordination_client import SimulatedCoordinator
from penstock_simulation.simulated.disk_faults import NO_FAULTS, DiskFaults
from penstock_simulation.simulated.errors import HostDownError
from penstock_simulation.simulated.files import FileFaults, SimulatedFiles, SimulatedFileSystem
from penstock_simulation.simulated.host import Death, Host
from penstock_simulation.simulated.late_requests import LateRequests, LateRequestSettings
from penstock_simulation.simulated.log_objects import BucketLogSettings, LogPlace
from penstock_simulation.simulated.objects import ObjectFaults, SimulatedBucket, SimulatedObjects
from penstock_simulation.simulated.remote_requests import WayToService
from penstock_simulation.simulated.security import (
    WORKER,
    WORKER_PASSWORD,
    ProcessSecurity,
    SecurityFiles,
    SimulatedSecuritySettings,
)
from penstock_simulation.simulated.shared_disk import SharedDisk
from penstock_simulation.simulated.simulation import Simulation
from penstock_simulation.simulated.zookeeper import ZooKeeperSettings

CONTROLLER_PORT = 9090
COORDINATOR_PORT = 2181
DATA_DIRECTORY = "/data"
#: Path of the shared storage, for stores that share it.
_SHARED_CLUSTER_ID = "00000000-0000-4000-8000-000000000000"
_KIB = 1024
#: Short, so that calls end during faults.
_FILE_SETTINGS = HdfsStorageSettings(lease_timeout_s=6.0)
#: Time between two checks of the lock of a data directory.
_WATCH_INTERVAL_S = 1.0
#: Polling interval of the driver, in virtual time.
_POLL_S = 0.01


@dataclass(frozen=True, slots=True)
class MemberClusterSettings:
    """A cluster of several machines.

    Attributes:
        cluster: settings of all of its processes.
        zookeeper: of the coordination service.
        lease_s: ownership lease of the cluster.
        object_storage: of long-term storage.
        processes: how parents watch their stores.
        operation_s: CPU time of one operation of a container, for moves for load; 0: none.
    """

    cluster: ProcessClusterSettings = field(default_factory=ProcessClusterSettings)
    zookeeper: ZooKeeperSettings = field(default_factory=ZooKeeperSettings)
    lease_s: float = 4.0
    object_storage: ObjectStorageSettings = field(default_factory=ObjectStorageSettings)
    processes: StoreProcessSettings = field(default_factory=StoreProcessSettings)
    operation_s: float = 0.0


@dataclass(frozen=True, slots=True)
class ClusterSettings:
    """Configuration of a simulated cluster. Sizes are small, so that events that usually take gigabytes happen early.

    Attributes:
        store_count: segment stores.
        is_combined: the controller is in the first store's process.
        controller_count: controllers; several are never combined.
        has_shared_storage: both tiers are on a file system that all stores have mounted, so containers can move.
            restart_delay_s: a server whose program fails is restarted after this.
            disk_faults: faults of the stores' disks outside of planned faults.
            chunk_faults: faults of long-term storage, in addition to those of its disk; None for none.
            remote_faults: long-term storage is a service with these faults, which outlives its stores: a bucket, or
                files of HDFS; None: it is a directory.
        late_requests: requests of the controller that arrive late; None for none.
            is_scaling_by_load: the controller polls the stores for their loads.
        watches_directories: stores check that they hold the locks of their data directories, as servers do.
        bucket_log: the logs are in a bucket; None: in directories.
        members: stores and controllers are processes of a cluster of several machines, see `MemberCluster`; None: an
            assignment that each of them knows at once.
        security: callers need accounts, and requests to stores need tokens; None: everybody may do everything.
        segment_store, durable_log, long_term_storage, controller, client: settings of the parts.
            coordination: settings of the service through which several controllers learn about each other.
    """

    store_count: int = 1
    is_combined: bool = True
    controller_count: int = 1
    has_shared_storage: bool = False
    restart_delay_s: float = 1.0
    disk_faults: DiskFaults = NO_FAULTS
    chunk_faults: ChunkFaults | None = None
    remote_faults: ObjectFaults | FileFaults | None = None
    late_requests: LateRequestSettings | None = None
    is_scaling_by_load: bool = False
    watches_directories: bool = False
    bucket_log: BucketLogSettings | None = None
    members: MemberClusterSettings | None = None
    security: SimulatedSecuritySettings | None = None
    segment_store: SegmentStoreSettings = field(
        default_factory=lambda: SegmentStoreSettings(container_count=2, cache=CacheSettings(bytes_max=32 * _KIB * _KIB))
    )
    durable_log: LocalLogSettings = field(
        default_factory=lambda: LocalLogSettings(
            file_length_bytes=1024 * _KIB,
            first_file_length_bytes=128 * _KIB,
            zero_chunk_length_bytes=128 * _KIB,
            reserve_file_count=1,
        )
    )
    long_term_storage: DirectoryChunkStorageSettings = field(default_factory=DirectoryChunkStorageSettings)
    controller: ControllerSettings = field(default_factory=ControllerSettings)
    coordination: CoordinationSettings = field(default_factory=CoordinationSettings)
    client: ClientSettings = field(default_factory=ClientSettings)


class MemberNames(Protocol):
    """The controllers that are members, as the coordination service has them."""

    @property
    def names(self) -> frozenset[str]:
        """The members."""


@dataclass(slots=True)
class RunningServers:
    """The contents of a server's process, for observers.

    `life`: number of the process; `stops`: stops it cleanly; `lost`: raises when its data directory is lost.
    """

    life: int
    stops: AsyncExitStack
    store: SegmentStore | None = None
    server: SegmentStoreServer | None = None
    controller: ControllerService | None = None
    is_ready: bool = False
    lost: Awaitable[None] | None = None
    security: ProcessSecurity | None = None


async def _raise_when_lost(watch: DirectoryWatch) -> None:
    raise await watch.lost()


class SimulatedCluster:
    """See the module. Hosts start when it is made; `ready` waits for them.

    ::

        with Simulation(seed) as simulation:
            cluster = SimulatedCluster(simulation)
            client_host = cluster.add_client("client-1")

            async def write() -> None:
                async with cluster.client(client_host) as client: ...

            async def scenario() -> None:
                await cluster.ready()
                await client_host.run(write())

            simulation.run(scenario)

    Attributes:
        stores: hosts of the segment stores, ``store-1`` and so on.
        controllers: hosts of the controllers; `controller` is the first.
        coordinator: host of the coordination service; None with one controller.
            sessions: members of the controllers, as the coordination service has them.
        clients: hosts made by `add_client`.
    """

    def __init__(self, simulation: Simulation, settings: ClusterSettings | None = None) -> None:
        self.simulation = simulation
        settings = settings or ClusterSettings()
        self.settings: ClusterSettings = settings
        names = tuple(f"store-{number}" for number in range(1, settings.store_count + 1))
        self.locator: Assignment = Assignment(names, settings.segment_store.container_count)
        #: The file system with both tiers, if the stores share them.
        self.shared_disk: SharedDisk | None = None
        if settings.has_shared_storage:
            self.shared_disk = SharedDisk(simulation, "file server", settings.disk_faults)
        self._servers: dict[str, RunningServers] = {}
        #: None: everybody may do everything.
        self.security_files: SecurityFiles | None = None
        if settings.security is not None:
            self.security_files = SecurityFiles(simulation.rng("security"))
        #: Long-term storages so far, one per life of a store, if they have faults.
        self.faulty_chunks: list[FaultyChunkStorage] = []
        #: Buckets and file systems by host, or the shared one, and their clients so far, one per life of a store.
        self.buckets: defaultdict[str, SimulatedBucket] = defaultdict(SimulatedBucket)
        self.file_systems: defaultdict[str, SimulatedFileSystem] = defaultdict(SimulatedFileSystem)
        self.remote_clients: list[SimulatedObjects | SimulatedFiles] = []
        #: Outcomes of late requests, over all lives of the controller.
        self.late_request_counts: Counter[str] = Counter()
        #: By host of a controller, for its present life.
        self._late_requests: dict[str, LateRequests] = {}
        #: The bucket with the logs; None: they are in directories.
        self.log_place: LogPlace | None = None
        if settings.bucket_log is not None:
            self.log_place = LogPlace(simulation, settings.bucket_log, settings.segment_store.container_count)
        self._refuses = True
        self._is_healed = False
        self.stores: list[Host] = self._add_stores(names)
        trace = simulation.trace
        self.sessions: Sessions = Sessions(lambda what: trace.add(simulation.loop.now_s, f"coordinator: {what}"))
        #: The controllers that are members.
        self.member_names: MemberNames = self.sessions
        self.coordinator: Host | None = None
        self.controllers: list[Host] = self._add_controllers()
        self._client_count = 0
        self.clients: list[Host] = []

    def _add_stores(self, names: Sequence[str]) -> list[Host]:
        return [self._add_server(name, self._run_store) for name in names]

    def _add_controllers(self) -> list[Host]:
        settings = self.settings
        if settings.controller_count > 1:
            self.coordinator = self._add_server("coordinator", self._run_coordinator)
            numbers = range(1, settings.controller_count + 1)
            return [self._add_server(f"controller-{number}", self._run_controller) for number in numbers]
        return self.stores[:1] if settings.is_combined else [self._add_server("controller", self._run_controller)]

    @property
    def controller(self) -> Host:
        """Host of the first controller."""
        return self.controllers[0]

    @property
    def servers(self) -> list[Host]:
        """Every host with servers."""
        hosts = [*self.stores, *self.controllers, *([] if self.coordinator is None else [self.coordinator])]
        return list(dict.fromkeys(hosts))

    def _add_server(self, name: str, main: Callable[[Host], Awaitable[None]]) -> Host:
        async def run(host: Host) -> None:
            self._servers[name] = RunningServers(host.life, AsyncExitStack(), security=self._security(host))
            await main(host)
            self._servers[name].is_ready = True
            await (self._servers[name].lost or asyncio.get_running_loop().create_future())

        settings = self.settings
        return self.simulation.host(
            name, run, disk_faults=settings.disk_faults, restart_delay_s=settings.restart_delay_s
        )

    def _security(self, host: Host) -> ProcessSecurity | None:
        """Return the security of a process that begins on `host`."""
        if self.settings.security is None or self.security_files is None or host is self.coordinator:
            return None
        security = ProcessSecurity(host, self.security_files, self.settings.security)
        security.follow()
        return security

    def have_read(self, version: int) -> bool:
        """Return whether every running process has read this version of the security files, or a later one."""
        running = [self._current(host) for host in self.servers]
        found = [servers.security for servers in running if servers is not None and servers.security is not None]
        return all(security.version >= version for security in found)

    # -- programs -----------------------------------------------------------------------------------------------

    async def _run_store(self, host: Host) -> None:
        settings, runtime = self.settings, host.runtime
        servers = self._servers[host.name]
        count = settings.segment_store.container_count
        directory = DataDirectory(DATA_DIRECTORY, runtime)
        identity = await runtime.work.run(directory.open, count)
        servers.stops.callback(directory.close)
        if settings.watches_directories:
            watch = DirectoryWatch(directory, runtime, _WATCH_INTERVAL_S, lambda directory: None)
            watch.start()
            servers.lost = asyncio.create_task(_raise_when_lost(watch))
        tiers = runtime
        if self.shared_disk is not None:
            tiers = Runtime(
                disk=self.shared_disk.mounted(host),
                work=runtime.work,
                rng=runtime.rng,
                wall_clock_ms=runtime.wall_clock_ms,
                monotonic_s=runtime.monotonic_s,
            )
        cluster_id = identity.cluster_id if self.shared_disk is None else _SHARED_CLUSTER_ID
        store = SegmentStore(
            logs=self._logs(host, directory, tiers, cluster_id),
            chunks=self._chunks(host, self._long_term_storage(host, directory, tiers)),
            cluster_id=cluster_id,
            runtime=runtime,
            settings=settings.segment_store,
            cache_directory=directory.cache(0),
            container_ids=self.container_ids(host),
        )
        await store.start()
        # The assignment may have changed during the await.
        store.set_assignment(self.container_ids(host))
        servers.store = store
        servers.stops.push_async_callback(store.stop)
        # Stores with disks of their own have ids of their own; the controllers send one token to all.
        security = servers.security
        access = None if security is None else security.token_access()
        server = SegmentStoreServer(store, controller_token=_SHARED_CLUSTER_ID, access=access)
        await server.start("0.0.0.0", SEGMENT_STORE_PORT)
        servers.server = server
        servers.stops.push_async_callback(server.stop)
        if host in self.controllers:
            segments: Segments = store if settings.store_count == 1 else self._wire_segments(host)
            await self._start_controller(host, segments)

    def _logs(self, host: Host, directory: DataDirectory, tiers: Runtime, cluster_id: str) -> DurableLogFactory:
        if self.log_place is not None:
            logs = self.log_place.factory(host, self._place(host), cluster_id)
            lost = asyncio.get_running_loop().create_future()
            logs.on_taken_over = lambda error: None if lost.done() else lost.set_exception(error)
            self._servers[host.name].lost = lost
            return logs
        return LocalLogFactory(
            directory.tier1,
            tiers,
            self.settings.durable_log,
            # On a shared disk a store cannot know that the other stores are alive.
            owner=LogOwner(tiers.random_id(), lambda token: self.shared_disk is not None, directory.check_held),
            cluster_id=cluster_id,
            made_logs_directory=directory.made_logs,
        )

    def _place(self, host: Host) -> str:
        """Return the name of the bucket of a store; a common one, if the stores share their storage."""
        return host.name if self.shared_disk is None else ""

    def second_logs(self, host: Host, store: SegmentStore) -> DurableLogFactory:
        """Return the logs of a store as a second process opens them. Call it on `host`."""
        if self.log_place is None:
            return store._logs
        return self.log_place.factory(host, self._place(host), store.cluster_id)

    def _long_term_storage(self, host: Host, directory: DataDirectory, tiers: Runtime) -> ChunkStorage:
        faults = self.settings.remote_faults
        if faults is None:
            return DirectoryChunkStorage(directory.tier2, tiers, self.settings.long_term_storage)
        place = self._place(host)
        kind = "objects" if isinstance(faults, ObjectFaults) else "files"
        rng = self.simulation.rng(f"{kind} of {host.name}, store {len(self.remote_clients)}")
        way = WayToService(self.simulation.loop, host.stalls, host.losses)
        chunks: ChunkStorage
        if isinstance(faults, ObjectFaults):
            objects = SimulatedObjects(self.buckets[place], rng, faults, way)
            self.remote_clients.append(objects)
            chunks = ObjectChunkStorage(objects, tiers.rng)
        else:
            files = SimulatedFiles(self.file_systems[place], rng, faults, way)
            self.remote_clients.append(files)
            chunks = HdfsChunkStorage(files, tiers.rng, "/penstock", _FILE_SETTINGS)
        if self._is_healed:
            self.remote_clients[-1].heal()
        return chunks

    def _chunks(self, host: Host, chunks: ChunkStorage) -> ChunkStorage:
        if self.settings.chunk_faults is None:
            return chunks
        rng = self.simulation.rng(f"chunks of {host.name}, store {len(self.faulty_chunks)}")
        faults = ChunkFaults() if self._is_healed else self.settings.chunk_faults
        if not self._refuses:
            faults = replace(faults, refused_prefixes=())
        faulty = FaultyChunkStorage(chunks, rng, faults)
        self.faulty_chunks.append(faulty)
        return faulty

    def heal(self) -> None:
        """End all faults of long-term storage and of the logs' bucket, and all late requests."""
        self._is_healed = True
        for late in self._late_requests.values():
            late.is_healed = True
        for faulty in self.faulty_chunks:
            faulty.faults = ChunkFaults()
        for remote in self.remote_clients:
            remote.heal()
        if self.log_place is not None:
            self.log_place.heal()

    def refuse_no_longer(self) -> None:
        """Make long-term storage accept the segments that it has refused; other faults remain."""
        self._refuses = False
        for faulty in self.faulty_chunks:
            faulty.faults = replace(faulty.faults, refused_prefixes=())

    async def _run_coordinator(self, host: Host) -> None:
        server = CoordinationServer(self.sessions, self.settings.coordination)
        await server.start(None, COORDINATOR_PORT)
        self._servers[host.name].stops.callback(server.stop)

    async def _run_controller(self, host: Host) -> None:
        await self._start_controller(host, self._wire_segments(host))

    def _wire_segments(self, host: Host) -> WireSegments:
        pool = self._pool(host)
        # With tokens, those of the pool are sent.
        settings, token = self.settings.client, "" if self.security_files is not None else _SHARED_CLUSTER_ID
        return WireSegments(pool, settings, host.runtime.rng, token=token, waits_for_space=False)

    def _advisor(self, host: Host) -> ScaleAdvisor:
        store = self._servers[host.name].store
        if store is not None and self.settings.store_count == 1:
            return StoreScaleAdvisor(store)
        return WireScaleAdvisor(self._pool(host), self.locator.container_count)

    def _pool(self, host: Host) -> ConnectionPool:
        """Return connections of a server's process to the stores, until it stops."""
        servers = self._servers[host.name]
        tokens = None if servers.security is None else servers.security.tokens
        pool = ConnectionPool(self.locator.endpoint_of_segment, self.settings.client, tokens=tokens)
        servers.stops.push_async_callback(pool.close)
        return pool

    async def _start_controller(self, host: Host, segments: Segments) -> None:
        settings = self.settings.controller
        servers = self._servers[host.name]
        if self.settings.late_requests is not None:
            rng = self.simulation.rng(f"late requests of {host.name}.{host.life}")
            late = LateRequests(segments, rng, self.settings.late_requests, self.late_request_counts)
            late.is_healed = self._is_healed
            self._late_requests[host.name] = late
            segments = cast(Segments, late)
        coordinator: Coordinator | None = None
        if self.coordinator is not None:
            coordinator = SimulatedCoordinator(self.coordinator.name, COORDINATOR_PORT, self.settings.coordination)
        service = ControllerService(
            metadata=SegmentsMetadataStore(segments, settings),
            segments=segments,
            locator=self.locator,
            runtime=host.runtime,
            settings=settings,
            advisor=self._advisor(host) if self.settings.is_scaling_by_load else None,
            coordinator=coordinator,
        )
        await service.start()
        servers.controller = service
        servers.stops.push_async_callback(service.stop)
        guard = None if servers.security is None else servers.security.guard()
        listener = await serve_controller(service, host.name, CONTROLLER_PORT, guard)
        servers.stops.callback(listener.close)

    # -- observing and steering ---------------------------------------------------------------------------------

    async def ready(self, timeout_s: float = 120.0) -> None:
        """Wait until all servers are up and serving. For the driver. Raises `HostDownError` after `timeout_s`."""
        hosts = self.servers
        deadline_s = self.simulation.loop.now_s + timeout_s
        while not all(self.is_ready(host) for host in hosts):
            if self.simulation.loop.now_s >= deadline_s:
                late = [f"{host.name} ({host.failures[-1:]})" for host in hosts if not self.is_ready(host)]
                raise HostDownError(f"not ready after {timeout_s:g} s: {', '.join(late)}")
            await asyncio.sleep(_POLL_S)

    async def settled(self) -> str:
        """Wait until every container is where it stays, after the end of all faults. Return a problem, or nothing."""
        return ""

    def is_ready(self, host: Host) -> bool:
        """Return whether a server has finished its start."""
        servers = self._current(host)
        return servers is not None and servers.is_ready

    def store(self, host: Host) -> SegmentStore | None:
        """Return the store in a host's process. For inspection; call its methods on its host only."""
        servers = self._current(host)
        return None if servers is None else servers.store

    def container_ids(self, host: Host) -> list[int]:
        """Return the containers assigned to a store."""
        return self.locator.containers_of(host.name)

    async def tell(self, host: Host) -> None:
        """Notify a store of its assigned containers. Run it on `host`."""
        if (store := self.store(host)) is not None:
            store.set_assignment(self.container_ids(host))

    def server(self, host: Host) -> SegmentStoreServer | None:
        """Return the TCP front in a host's process. For inspection."""
        servers = self._current(host)
        return None if servers is None else servers.server

    def controller_service(self, host: Host | None = None) -> ControllerService | None:
        """Return the controller in a host's process (None: the first). For inspection; call it on its host only."""
        servers = self._current(host or self.controller)
        return None if servers is None else servers.controller

    def _current(self, host: Host) -> RunningServers | None:
        """Return the contents of the host's present process; None while it is down or has just started."""
        servers = self._servers.get(host.name)
        return servers if servers is not None and host.is_up and servers.life == host.life else None

    async def shut_down(self, host: Host) -> None:
        """Stop a server cleanly, as SIGTERM does. For the driver. Raises `HostDownError`."""
        servers = self._current(host)
        if servers is None:
            raise HostDownError(f"{host.name} is down")
        await host.run(servers.stops.aclose())
        host.crash(Death.KILL)

    @property
    def server_names(self) -> list[str]:
        """Names of the hosts with servers, for fault plans."""
        return [host.name for host in self.servers]

    # -- clients ------------------------------------------------------------------------------------------------

    def add_client(self, name: str) -> Host:
        """Add a host for client code. Run that with `Host.run`."""
        host = self.simulation.host(name)
        self.clients.append(host)
        return host

    def client(self, host: Host, settings: ClientSettings | None = None) -> Client:
        """Return a client for code that runs on `host`; use it there, as an async context manager."""
        settings = settings or self.settings.client
        security = ClientSecurity(Credentials(WORKER, WORKER_PASSWORD) if self.security_files is not None else None)
        stub, address = self.stub(settings, security.credentials)
        controller = ControllerClient(stub, settings, host.runtime.rng, address=address)
        return Client(address, settings, runtime=host.runtime, controller=controller, security=security)

    def stub(
        self, settings: ClientSettings, credentials: Credentials | SessionCredentials | None
    ) -> tuple[ControllerStub, str]:
        """Return the calls of the controllers for a client with these credentials, and the address. Each client starts
        with a different controller.
        """
        names = [controller.name for controller in self.controllers]
        at = self._client_count % len(names)
        self._client_count += 1
        names = names[at:] + names[:at]
        header = "" if credentials is None else credentials.header()
        stub = simulated_stub(
            names[0], CONTROLLER_PORT, names[1:], keepalive_interval_s=settings.keepalive_interval_s, header=header
        )
        return stub, "tcp://" + ",".join(f"{name}:{CONTROLLER_PORT}" for name in names)
