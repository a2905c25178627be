"""`ClusterStore`: one segment store of a cluster, in a child process of `StoreHost`."""

from __future__ import annotations

import asyncio
import logging
import signal
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import BinaryIO

from penstock.model.cluster_nodes import Endpoint, HostNode, SecurityMark
from penstock.model.errors import InvalidArgumentError, PenstockError
from penstock.operations.health import Health, Status
from penstock.operations.store_health import store_health
from penstock.operations.store_metrics import StoreMetrics
from penstock.runtime.coordination import CoordinationService, CoordinationStore
from penstock.runtime.descriptors import DescriptorBudget, descriptor_limit, share_descriptors
from penstock.runtime.java_machine import start_java
from penstock.runtime.ledgers import LedgerClientSettings, LedgerPlace
from penstock.runtime.objects import ObjectPlace
from penstock.runtime.runtime import Runtime, real_runtime
from penstock.runtime.settings import settings_from
from penstock.runtime.version import penstock_version
from penstock.runtime.waits import cancel_and_wait
from penstock.security.audit_log import AuditLog
from penstock.security.server_security import ServerSecurity
from penstock.segmentstore.admin_server import AdminServer, allow_all
from penstock.segmentstore.cluster.containers import StoreContainers
from penstock.segmentstore.cluster.ends import KnownEnds
from penstock.segmentstore.cluster.loads import StoreLoads
from penstock.segmentstore.cluster.member import ClusterMember
from penstock.segmentstore.server import SegmentStoreServer
from penstock.segmentstore.settings import AdminSettings
from penstock.segmentstore.store import SegmentStore
from penstock.segmentstore.tier1.bookkeeper.factory import BookKeeperLogFactory
from penstock.segmentstore.tier1.durable_log import DurableLogFactory
from penstock.segmentstore.tier1.log_owner import LogOwner
from penstock.segmentstore.tier1.object_log.factory import ObjectLogFactory
from penstock.segmentstore.tier1.object_log.log_bucket import LogBucket
from penstock.segmentstore.tier1.object_log.server_claim import claim_for_cluster, claim_identity
from penstock.server.audit import audit_path, start_audit, with_audit
from penstock.server.caller_checks import token_access
from penstock.server.cluster.identity import demand_log, wait_for_session
from penstock.server.cluster.machine import LocalMachine, Machine
from penstock.server.cluster.messages import Beat, MemberOrder, MemberReady
from penstock.server.cluster.operations import start_operations
from penstock.server.cluster.security import (
    check_marks,
    keep_announced,
    open_cluster_security,
    other_processes,
    security_mark,
)
from penstock.server.cluster_settings import Listener, check_reachable
from penstock.server.data_directory import DataDirectory
from penstock.server.errors import ClusterMismatchError
from penstock.server.long_term_storage import open_long_term_storage, segment_store_settings
from penstock.server.settings import StandaloneSettings
from penstock.server.store_processes.child import EXIT_PARENT_GONE, exit_at_once
from penstock.server.store_processes.messages import Message, Refusal, encode_message

logger: logging.Logger = logging.getLogger(__name__)

#: How often the parent gets a sign of life.
BEAT_S = 1.0


class ClusterStore:
    """See the module. `output` receives its messages. `runtime`, closed by `stop`, `machine`: the real ones by default.

    Attributes:
        order: what the parent has written.
        segment_store, server, member: its parts, for observers; None before the start has reached them.
        security: the same; also None without TLS and authentication.
    """

    def __init__(
        self,
        order: MemberOrder,
        output: BinaryIO,
        runtime: Runtime | None = None,
        machine: Machine | None = None,
    ) -> None:
        self.settings: StandaloneSettings = settings_from(
            StandaloneSettings, order.settings, "the settings given by the parent process"
        )
        self.order = order
        self._output = output
        self._machine = machine or LocalMachine()
        self._runtime = runtime if runtime is not None else real_runtime(self.settings.blocking_thread_count_max)
        self.segment_store: SegmentStore | None = None
        self._audit: AuditLog | None = None
        self.server: SegmentStoreServer | None = None
        self.member: ClusterMember | None = None
        self.security: ServerSecurity | None = None
        self._stops = AsyncExitStack()

    async def start(self) -> None:
        """Listen, join the cluster, and report it. Errors are reported, too, and leave nothing running."""
        try:
            await self._start()
        except BaseException as error:
            if isinstance(error, (PenstockError, OSError)):
                self._say(Refusal(type(error).__name__, str(error)))
            await self.stop()
            raise

    async def _start(self) -> None:
        settings, runtime, order = self.settings, self._runtime, self.order
        self._stops.push_async_callback(runtime.work.close)
        security = self.security = open_cluster_security(settings, runtime, self._stops, has_controller=False)
        operations = await start_operations(
            settings, runtime, self._stops, self._health,
            port_offset=order.port_offset, tls=None if security is None else security.tls,
        )  # fmt: skip
        ends = KnownEnds()
        store = self.segment_store = SegmentStore(
            logs=await self._open_logs(ends),
            # No data directory: log and long-term storage are elsewhere.
            chunks=open_long_term_storage(settings, DataDirectory(settings.data_dir, runtime), runtime),
            cluster_id=order.cluster_id,
            runtime=runtime,
            settings=segment_store_settings(settings),
            container_ids=(),
        )
        await store.start()
        self._stops.push_async_callback(store.stop)
        budget = share_descriptors(
            descriptor_limit(), settings.descriptors, has_segment_store=True, has_controller=False
        )
        endpoints = await self._listen(store, budget, security)
        if operations is not None:
            assert self.server is not None
            metrics = StoreMetrics(store, settings.operations.streams_max)
            metrics.server = self.server
            operations.collectors.append(metrics.collect)
        await self._join(store, endpoints, ends, security)
        self._say(MemberReady(endpoints))

    async def _listen(
        self, store: SegmentStore, budget: DescriptorBudget, security: ServerSecurity | None
    ) -> dict[str, Endpoint]:
        """Listen for clients and administrators; return what is given to clients, by listener."""
        path = audit_path(self.settings, has_default=self.settings.security.has_auth, store=self.order.name)
        audit = self._audit = await start_audit(path, self.settings, self._runtime, self._stops)
        tls = None if security is None else security.tls
        access = token_access(security, self._runtime, audit)
        limits = self.settings.segment_store.connection.within(budget)
        server = self.server = SegmentStoreServer(store, settings=limits, access=access, tls=tls)
        self._stops.push_async_callback(server.stop)
        endpoints: dict[str, Endpoint] = {}
        for listener in self._listeners():
            await server.start(listener.host, listener.port)
            endpoints[listener.name] = listener.endpoint(server.last_port, self._machine.name, has_tls=tls is not None)
        admin = AdminServer(
            store,
            settings=self._admin_settings(),
            authorise=allow_all if access is None else access.require_server,
            tls=tls,
        )
        await admin.start()
        self._stops.push_async_callback(admin.stop)
        return endpoints

    async def _join(
        self, store: SegmentStore, endpoints: dict[str, Endpoint], ends: KnownEnds, security: ServerSecurity | None
    ) -> None:
        """Join the cluster. Raises `ClusterMismatchError` if its other processes are secured in another way."""
        settings, order = self.settings, self.order
        service = self._machine.coordination(settings.cluster)
        mark = security_mark(security, order.cluster_id)
        check_reachable(endpoints, await self._check_others(service, mark))
        assert self.server is not None
        host = HostNode(endpoints=endpoints, zone=settings.cluster.zone, version=penstock_version(), security=mark)
        self.member = member = ClusterMember(
            service,
            StoreContainers(store, self.server),
            name=order.name,
            incarnation=order.incarnation,
            host=host,
            ends=ends,
            settings=settings.cluster.member,
            wall_clock_ms=self._runtime.wall_clock_ms,
            loads=StoreLoads(store),
        )
        member.start()
        await member.announced.wait()
        await self._check_others(service, mark)
        if security is None:
            return

        async def announce(mark: SecurityMark | None) -> None:
            member.announce_security(mark)

        task = asyncio.get_running_loop().create_task(keep_announced(security, order.cluster_id, announce))
        self._stops.push_async_callback(cancel_and_wait, task)

    async def _check_others(self, service: CoordinationService, mark: SecurityMark | None) -> list[Endpoint]:
        """Return the addresses of the other processes. Raises `ClusterMismatchError` if they are secured otherwise."""
        session = await wait_for_session(service, self.settings.cluster.connect_timeout_s)
        try:
            others = await other_processes(session, self.order.name)
        finally:
            await session.close()
        check_marks(mark, others, service.place)
        return [each for node in others.values() for each in node.endpoints.values()]

    async def _open_logs(self, ends: KnownEnds) -> DurableLogFactory:
        settings, runtime, order = self.settings, self._runtime, self.order
        owner = LogOwner(bytes.fromhex(order.incarnation), ends.may_live)
        if settings.is_log_in_ledgers:
            client = LedgerClientSettings(
                settings.bookkeeper.password,
                settings.bookkeeper.request_timeout_s,
                settings.bookkeeper.in_flight_bytes_max,
                is_rehearsed=True,
            )
            return BookKeeperLogFactory(
                runtime.open_ledgers(LedgerPlace.parse(settings.log), client, runtime.work),
                self._machine.coordination(settings.cluster),
                runtime,
                settings.bookkeeper,
                cluster_id=order.cluster_id,
                container_count=settings.segment_store.container_count,
                owner=owner,
            )
        place = ObjectPlace.parse(settings.log)
        objects = runtime.open_objects(place, settings.object_storage.store)
        count = settings.segment_store.container_count
        bucket = LogBucket(objects, settings.object_log, prefix=place.prefix)
        service = self._machine.coordination(settings.cluster)
        await demand_log(bucket, service, settings.cluster.connect_timeout_s)
        identity = await claim_identity(bucket, runtime, order.cluster_id, count)
        if identity.cluster_id != order.cluster_id:
            raise ClusterMismatchError(
                f"the log in {bucket.place} belongs to cluster {identity.cluster_id}, not to this one, "
                f"{order.cluster_id}: a cluster that has lost its ZooKeeper is made again with penstock cluster init "
                "--adopt"
            )
        await claim_for_cluster(bucket, runtime, settings.cluster.zookeeper)
        return ObjectLogFactory(
            objects,
            runtime,
            settings.object_log,
            prefix=place.prefix,
            cluster_id=identity.cluster_id,
            container_count=count,
            owner=owner,
        )

    def _listeners(self) -> list[Listener]:
        settings, offset = self.settings, self.order.port_offset
        found = settings.cluster.listeners_on(settings.host, settings.segment_store_port, settings.advertise)
        return [
            replace(
                each,
                port=each.port + offset if each.port else 0,
                advertised_port=each.advertised_port + offset if each.advertised_port else 0,
            )
            for each in found
        ]

    def _admin_settings(self) -> AdminSettings:
        admin = self.settings.segment_store.admin
        return replace(admin, port=admin.port + self.order.port_offset if admin.port else 0)

    def _health(self) -> Health:
        if self.segment_store is None or self.member is None or not self.member.announced.is_set():
            return Health(Status.STARTING)
        member = Health(problem=self.member.problem or self.member.coordination_problem or self.member.impaired)
        found = Health(children={"store": store_health(self.segment_store), "cluster": member})
        return with_audit(found, self._audit)

    async def drain(self) -> None:
        """Hand the containers over to other stores."""
        if self.member is not None:
            await self.member.drain()

    async def stop(self) -> None:
        """Release what is left, leave the cluster, and stop."""
        if self.member is not None:
            await self.member.stop()
        await self._stops.aclose()

    def beat(self) -> None:
        """Tell the parent that this process is well."""
        self._say(Beat())

    def _say(self, message: Message) -> None:
        self._output.write(encode_message(message))
        self._output.flush()


async def other_endpoints(store: CoordinationStore, name: str) -> list[Endpoint]:
    """Return the addresses of all processes of the cluster but those of this name."""
    return [each for node in (await other_processes(store, name)).values() for each in node.endpoints.values()]


def start_java_for(order: MemberOrder) -> None:
    """Start the Java virtual machine if the log of `order` needs it. In the main thread, before the event loop.

    Raises `InvalidArgumentError`, which says what to install.
    """
    settings = settings_from(StandaloneSettings, order.settings, "the settings given by the parent process")
    if settings.is_log_in_ledgers:
        log = settings.bookkeeper
        start_java(f"the log in {settings.log}", log.jars, heap_mb=log.heap_mb, direct_mb=log.direct_mb)


async def run_member(order: MemberOrder, source: BinaryIO, output: BinaryIO) -> bool:
    """Run the segment store of `order` until SIGTERM, drain it, and return whether it stopped cleanly.

    `source`: its end means that the parent has exited; then this process exits at once. A second SIGTERM skips the
    drain. SIGINT is ignored: Ctrl-C in a terminal goes to all processes, and the parent stops its children.
    """
    loop = asyncio.get_running_loop()
    asked_to_stop, asked_again = asyncio.Event(), asyncio.Event()

    def on_signal() -> None:
        (asked_again if asked_to_stop.is_set() else asked_to_stop).set()

    loop.add_signal_handler(signal.SIGTERM, on_signal)
    loop.add_signal_handler(signal.SIGINT, lambda: None)
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), source)
    try:
        store = ClusterStore(order, output)
    except PenstockError as error:
        output.write(encode_message(Refusal(type(error).__name__, str(error))))
        output.flush()
        raise
    watching = loop.create_task(_watch_parent(reader))
    try:
        return await serve_member(store, asked_to_stop, asked_again)
    finally:
        watching.cancel()


async def serve_member(store: ClusterStore, asked_to_stop: asyncio.Event, asked_again: asyncio.Event) -> bool:
    """Start a store, serve until the first event, drain until the second one, stop; return whether that was in order.

    Raises what the start raises.
    """
    start = asyncio.get_running_loop().create_task(store.start())
    await _first(start, asked_to_stop)
    if not start.done():
        start.cancel()
        await asyncio.wait((start,))
        return True
    start.result()
    return await _serve(store, asked_to_stop, asked_again)


async def _serve(store: ClusterStore, asked_to_stop: asyncio.Event, asked_again: asyncio.Event) -> bool:
    """Serve until the first event, drain until the second one, stop; return whether that was in order."""
    loop = asyncio.get_running_loop()
    beating = loop.create_task(_beat(store))
    try:
        await asked_to_stop.wait()
        drain = loop.create_task(store.drain())
        await _first(drain, asked_again)
        await cancel_and_wait(drain)
        async with asyncio.timeout(store.settings.stop_timeout_s):
            await store.stop()
    except (TimeoutError, PenstockError) as error:
        logger.warning("shutdown failed: %r", error)
        return False
    finally:
        beating.cancel()
    return True


async def _first(task: asyncio.Task[None], event: asyncio.Event) -> None:
    """Wait until a task is done, or an event is set."""
    waiting = asyncio.get_running_loop().create_task(event.wait())
    try:
        await asyncio.wait((task, waiting), return_when=asyncio.FIRST_COMPLETED)
    finally:
        waiting.cancel()


async def _watch_parent(reader: asyncio.StreamReader) -> None:
    while await reader.read(1024):
        pass
    logger.warning("the parent process has exited: exiting immediately")
    exit_at_once(EXIT_PARENT_GONE)


async def _beat(store: ClusterStore) -> None:
    while True:
        await asyncio.sleep(BEAT_S)
        store.beat()


def store_names(name: str, count: int) -> list[str]:
    """Return the names of the stores of a parent: ``name`` for the only one, else ``name-0``, ``name-1``, ..."""
    if count < 1:
        raise InvalidArgumentError(f"{count} processes: there is at least one")
    return [name] if count == 1 else [f"{name}-{number}" for number in range(count)]
