"""`Standalone`: segment store and controller assembled in one process, with local or in-memory tiers.

The controller calls the store directly; clients use TCP. With several segment stores each is a process of its own, see
`store_processes`, and the controller uses TCP, too. Start to stop:

1. lock the data directory, recover every container, listen for segment store clients;
2. start the controller (its metadata are in the store), then listen for its clients;
3. stop in the opposite order, so that accepted requests finish while the parts that they need still run.
"""

from __future__ import annotations

import asyncio
import datetime
import logging
import os
import socket
import ssl
import tempfile
from collections.abc import Awaitable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING

from penstock.controller.grpc.server import GrpcServer
from penstock.controller.locator import AssignedLocator, ContainerLocator, SingleStoreLocator
from penstock.controller.metadata.layout import SYSTEM_TABLES
from penstock.controller.metadata.segments_store import SegmentsMetadataStore
from penstock.controller.retry import with_several_stores
from penstock.controller.service import ControllerService
from penstock.controller.settings import ControllerSettings
from penstock.model.errors import (
    ControllerUnavailableError,
    DataDirectoryInUseError,
    DataDirectoryLostError,
    LogFencedError,
    LogTakenOverError,
    StorageIdentityError,
)
from penstock.model.routing import container_of
from penstock.model.scale_advice import ScaleAdvisor
from penstock.model.segments import Segments
from penstock.operations.health import Health, Status
from penstock.operations.store_health import store_health
from penstock.runtime.descriptors import descriptor_limit, share_descriptors
from penstock.runtime.runtime import Runtime, real_runtime
from penstock.runtime.version import penstock_version
from penstock.segmentstore.admin_server import AdminServer, allow_all
from penstock.segmentstore.layout_settings import LayoutMode
from penstock.segmentstore.scale_advisor import StoreScaleAdvisor
from penstock.segmentstore.server import SegmentStoreServer
from penstock.segmentstore.store import SegmentStore
from penstock.segmentstore.tier1.durable_log import DurableLogFactory
from penstock.segmentstore.tier2.chunk_storage import ChunkStorage
from penstock.segmentstore.tier2.storage_guard import GuardedChunkStorage
from penstock.server.audit import audit_path, start_audit, with_audit
from penstock.server.caller_checks import call_guard, port_security, token_access
from penstock.server.data_directory import DataDirectory, Identity
from penstock.server.directory_watch import DirectoryWatch
from penstock.server.errors import DataDirectoryError, PortInUseError, StoreProcessError, StoreRefusedError
from penstock.server.long_term_storage import open_long_term_storage, segment_store_settings
from penstock.server.settings import StandaloneSettings

# Imported where they are used: parts that only some servers have. tests/test_modules_of_a_server.py names them.
if TYPE_CHECKING:
    from penstock.client.settings import ClientSettings
    from penstock.client.transport.connection_pool import ConnectionPool
    from penstock.operations.endpoint import OperationsEndpoint
    from penstock.operations.group_lag import GroupLags
    from penstock.operations.store_metrics import StoreMetrics
    from penstock.security.audit_log import AuditLog
    from penstock.security.server_security import ServerSecurity
    from penstock.segmentstore.token_access import TokenAccess
    from penstock.server.store_processes.processes import StoreProcesses

logger: logging.Logger = logging.getLogger(__name__)

_LOCK_RETRY_DELAY_S = 0.05


@dataclass(frozen=True, slots=True)
class RunningStore:
    """A segment store of a server: ``host:port`` given to clients, its process, and its assigned containers."""

    address: str
    pid: int
    containers: tuple[int, ...]


class Standalone:
    """One server. Start it once; after `stop` create a new one.

    `runtime`: the real one by default; it is closed by `stop`.
    """

    def __init__(self, settings: StandaloneSettings, runtime: Runtime | None = None) -> None:
        self.settings = settings
        self.runtime: Runtime = runtime if runtime is not None else real_runtime(settings.blocking_thread_count_max)
        #: The segment store of this process; None when there are several.
        self.store: SegmentStore | None = None
        #: The segment stores in child processes.
        self.processes: StoreProcesses | None = None
        #: Where the (first) segment store listens.
        self.segment_store_port: int = 0
        self.controller_port: int = 0
        #: The controller, and the gRPC server of it, once it serves.
        self.service: ControllerService | None = None
        self.front: GrpcServer | None = None
        #: Encryption and authentication, if enabled.
        self.security: ServerSecurity | None = None
        #: The log of changes and refusals, if enabled.
        self.audit: AuditLog | None = None
        #: The password of the administrator, if this start has made the account.
        self.new_password: str | None = None
        #: Health and metrics of this process, if enabled.
        self.operations: OperationsEndpoint | None = None
        self.group_lags: GroupLags | None = None
        #: Whether this start has initialized the data directory, which was empty.
        self.is_new_store: bool = False
        #: Monitors the data directory, once it is open.
        self._watch: DirectoryWatch | None = None
        self._is_watched = asyncio.Event()
        #: Set when another server has taken the log in a bucket over; and the error that says so.
        self._is_taken_over = asyncio.Event()
        self._takeover: LogTakenOverError | None = None
        # Stops the started parts in reverse order; all of them, even if one fails.
        self._stops = AsyncExitStack()

    @property
    def controller_uri(self) -> str:
        """The address that clients connect to."""
        scheme = "tls" if self.settings.security.has_tls else "tcp"
        return f"{scheme}://{_authority(self.settings.advertised_host, self.controller_port)}"

    @property
    def segment_store_address(self) -> str:
        """``host:port`` that the controller gives to clients."""
        return _authority(self.settings.advertised_host, self.segment_store_port)

    @property
    def segment_stores(self) -> Sequence[RunningStore]:
        """All segment stores, by number."""
        if self.processes is not None:
            return [
                RunningStore(
                    _authority(self.settings.advertised_host, store.port),
                    store.pid,
                    tuple(self.processes.containers_of(store)),
                )
                for store in self.processes.stores
            ]
        all_containers = tuple(range(self.settings.segment_store.container_count))
        return [RunningStore(self.segment_store_address, os.getpid(), all_containers)]

    @property
    def failures(self) -> dict[int, str]:
        """Why containers are offline, by their ids."""
        if self.processes is not None:
            return {container_id: failure.message for container_id, failure in self.processes.failures.items()}
        failures = {} if self.store is None else self.store.failures
        return {container_id: str(error) for container_id, error in sorted(failures.items())}

    @property
    def health(self) -> Health:
        """The health of all parts of this server."""
        if self.processes is not None:
            from penstock.server.store_processes.health import processes_health

            stores = processes_health(self.processes)
        elif self.store is not None:
            stores = Health(children={"0": store_health(self.store)})
        else:
            stores = Health(Status.STARTING)
        controller = Health(Status.UP if self.controller_port else Status.STARTING)
        children = {"controller": controller, "stores": stores}
        return with_audit(Health(children=children), self.audit)

    @property
    def data_description(self) -> str:
        """Where the data are, for messages."""
        if self.settings.is_memory:
            return "memory"
        first = self.settings.log or self.settings.data_dir
        return first + (f" and {self.settings.tier2}" if self.settings.tier2 else "")

    async def start(self) -> None:
        """Start everything; return when clients are served.

        A container with corrupt data stays offline and is reported in `failures`; the rest serves, if the
        controller's own tables are not in it. After an error nothing is left running.

        Raises:
            DataDirectoryInUseError, DataDirectoryError: see `DataDirectory.open`.
            StorageIdentityError: long-term storage belongs to another cluster. A missing one is waited for.
            StorageRefusedError: a new cluster's long-term storage, or the bucket of the log, refuses all requests.
            LogTakenOverError: another server has started on the same log in a bucket at the same time.
            PortInUseError: a port cannot be listened on.
            CorruptionError, LogDisabledError: a container that holds tables of the controller cannot be served.
            StoreProcessError: the same, or any other error, in a segment store with a process of its own.
        """
        try:
            await self._start()
        except StorageIdentityError as error:
            await self.stop()
            if self.settings.log or not self.settings.is_object_storage:
                raise
            raise StorageIdentityError(
                error.place,
                f"{error.reason}. The log of this server is in {self.settings.data_dir}; if that of the other cluster "
                "is in a bucket, name it with --log",
            ) from error
        except BaseException:
            await self.stop()
            raise

    async def _start(self) -> None:
        settings = self.settings
        self._stops.push_async_callback(self.runtime.work.close)
        if not settings.operations.tls:
            # First, so that a recovery can be observed.
            self.operations = await self._start_operations(None)
        segments: Segments
        locator: ContainerLocator
        advisor: ScaleAdvisor
        if settings.segment_stores == 1:
            store, locator = await self._start_store()
            segments, advisor = store, StoreScaleAdvisor(store)
        else:
            from penstock.client.statistics.wire_scale_advice import WireScaleAdvisor
            from penstock.client.transport.wire_segments import WireSegments

            pool, client, locator, cluster_id = await self._start_processes()
            # With authentication, each request has a token from the pool.
            token = "" if self._has_auth else cluster_id
            segments = WireSegments(pool, client, self.runtime.rng, token=token, waits_for_space=False)
            advisor = WireScaleAdvisor(pool, locator.container_count)
        several = settings.segment_stores > 1
        controller = with_several_stores(settings.controller) if several else settings.controller
        service = ControllerService(
            metadata=SegmentsMetadataStore(segments, controller),
            segments=segments,
            locator=locator,
            runtime=self.runtime,
            settings=controller,
            advisor=advisor,
        )
        await service.start()
        self._stops.push_async_callback(service.stop)
        front = await self._serve_calls(service, controller)
        if self.operations is not None:
            # Only now: a server without metrics does not load the code of reader groups.
            from penstock.operations.controller_metrics import ControllerMetrics
            from penstock.operations.group_lag import GroupLags

            self.operations.collectors.append(ControllerMetrics(front, service, self.audit).collect)
            self.group_lags = lags = GroupLags(service, segments, settings.operations.groups_max)
            lags.start()
            self._stops.push_async_callback(lags.stop)
            self.operations.collectors.append(lags.collect)

    async def _serve_calls(self, service: ControllerService, controller: ControllerSettings) -> GrpcServer:
        """Listen for the clients of the controller."""
        settings = self.settings
        budget = share_descriptors(
            descriptor_limit(), settings.descriptors, has_segment_store=self.store is not None, has_controller=True
        )
        credentials, certificate_port = port_security(self.security, settings.controller_port)
        front = GrpcServer(
            service,
            settings.host,
            settings.controller_port,
            published_host=settings.advertised_host,
            settings=controller,
            connections_max=budget.controller_connections,
            guard=call_guard(self.security),
            audit=await self._start_audit(),
            credentials=credentials,
            certificate_port=certificate_port,
        )
        await _listen("controller", settings.host, settings.controller_port, front.start())
        self._stops.push_async_callback(front.stop)
        self.controller_port, self.service, self.front = front.port, service, front
        return front

    async def _start_operations(self, tls: ssl.SSLContext | None) -> OperationsEndpoint | None:
        """Serve health and metrics, if enabled."""
        settings = self.settings.operations
        if not settings.is_enabled:
            return None
        # Only now: a server without this port does not load an HTTP library.
        from penstock.operations.endpoint import OperationsEndpoint
        from penstock.operations.process_metrics import ProcessMetrics

        endpoint = OperationsEndpoint(settings, health=lambda: self.health, work=self.runtime.work, tls=tls)
        host = settings.host or self.settings.host
        await _listen("metrics", host, settings.port, endpoint.start(host, settings.port))
        self._stops.push_async_callback(endpoint.stop)
        process = ProcessMetrics(self.runtime.resident_bytes, self.runtime.wall_clock_ms() / 1000, penstock_version())
        process.start()
        self._stops.push_async_callback(process.stop)
        endpoint.collectors.append(process.collect)
        return endpoint

    async def _start_store(self) -> tuple[SegmentStore, SingleStoreLocator]:
        """Run the one segment store in this process."""
        settings = self.settings
        logs, chunks, cluster_id = await self._open_tiers()
        access, tls = await self._open_security()
        store = SegmentStore(
            logs=logs,
            chunks=chunks,
            cluster_id=cluster_id,
            runtime=self.runtime,
            settings=segment_store_settings(settings),
            cache_directory=""
            if settings.is_memory or settings.log
            else DataDirectory(settings.data_dir, self.runtime).cache(0),
        )
        self.store = store
        metrics: StoreMetrics | None = None
        if self.operations is not None:
            from penstock.operations.store_metrics import StoreMetrics

            # Before the start, which may take long.
            metrics = StoreMetrics(store, settings.operations.streams_max)
            self.operations.collectors.append(metrics.collect)
        try:
            await store.start()
        except LogFencedError as error:
            from penstock.segmentstore.tier1.object_log.factory import ObjectLogFactory

            if isinstance(logs, ObjectLogFactory):
                await logs.process.check_may_open()  # Raises the error that says by which server.
            raise error
        self._stops.push_async_callback(store.stop)

        budget = share_descriptors(
            descriptor_limit(), settings.descriptors, has_segment_store=True, has_controller=True
        )
        server = SegmentStoreServer(
            store, settings=settings.segment_store.connection.within(budget), access=access, tls=tls
        )
        await _listen(
            "segment store",
            settings.host,
            settings.segment_store_port,
            server.start(settings.host, settings.segment_store_port),
        )
        self._stops.push_async_callback(server.stop)
        self.segment_store_port = server.port
        if metrics is not None:
            metrics.server = server
        admin = AdminServer(store, authorise=allow_all if access is None else access.require_server, tls=tls)
        await admin.start()
        self._stops.push_async_callback(admin.stop)
        for container_id in self._controller_containers():
            if (failure := store.failures.get(container_id)) is not None:
                raise failure
        return store, SingleStoreLocator(
            settings.advertised_host, server.port, container_count=settings.segment_store.container_count
        )

    async def _open_security(self) -> tuple[TokenAccess | None, ssl.SSLContext | None]:
        """Read the files of encryption and authentication, if enabled. The data directory is open."""
        settings = self.settings.security
        if not (settings.has_tls or settings.has_auth):
            return None, None
        from penstock.security.secrets_directory import make_missing_files, security_paths
        from penstock.security.server_security import open_security

        data_dir = self.settings.data_dir
        if self.settings.is_memory:
            data_dir = self._stops.enter_context(tempfile.TemporaryDirectory(prefix="penstock-"))
        paths = security_paths(settings, data_dir)
        if settings.makes_missing_files:
            hosts = ("localhost", socket.gethostname(), self.settings.advertised_host, "127.0.0.1", "::1")
            names = dict.fromkeys(hosts)
            now = datetime.datetime.fromtimestamp(self.runtime.wall_clock_ms() / 1000, datetime.UTC)
            make = partial(make_missing_files, needs_token_key=not settings.token_key)
            self.new_password = await self.runtime.work.run(make, paths, tuple(names), os.urandom, now)
        wall_clock_ms = self.runtime.wall_clock_ms
        self.security = security = open_security(settings, paths, self.runtime.work, lambda: wall_clock_ms() / 1000)
        security.start()
        self._stops.push_async_callback(security.stop)
        if self.settings.operations.tls:
            self.operations = await self._start_operations(security.tls)
        if security.verifier is None:
            return None, security.tls
        return token_access(security, self.runtime, await self._start_audit()), security.tls

    @property
    def _has_auth(self) -> bool:
        return self.settings.security.has_auth

    async def _start_audit(self) -> AuditLog | None:
        """Start the audit log, if it is enabled and not started yet."""
        if self.audit is None:
            security = self.security
            path = audit_path(self.settings, has_default=False)
            if path is None and security is not None and self.settings.security.makes_missing_files:
                path = security.paths.audit_log
            self.audit = await start_audit(path, self.settings, self.runtime, self._stops)
        return self.audit

    def _log_start(self) -> None:
        """Log the start once the data are claimed: a start that is refused before is one error and no log."""
        settings = self.settings
        where = "memory" if settings.is_memory else settings.log or os.path.abspath(settings.data_dir)
        logger.info("starting penstock %s, pid %d, data in %s", penstock_version(), os.getpid(), where)

    async def _start_processes(self) -> tuple[ConnectionPool, ClientSettings, AssignedLocator, str]:
        """Run the segment stores in child processes, which share this one's data directory.

        Also return the cluster's id.
        """
        from penstock.client.settings import ClientSettings
        from penstock.client.transport.connection_pool import ConnectionPool
        from penstock.security.tokens import MasterTokens
        from penstock.server.store_processes.processes import StoreProcesses

        settings = self.settings
        directory = DataDirectory(settings.data_dir, self.runtime)
        identity = await self._open_directory(directory, wait_s=settings.store_processes.lock_wait_s_max)
        await self._wait_for_storage(directory, identity)
        await self._open_security()
        processes = StoreProcesses(settings, directory.lock_descriptor, self.runtime)
        self.processes = processes
        self._stops.push_async_callback(processes.stop)
        try:
            await processes.start()
        except StoreRefusedError as error:
            if error.kind == "OSError":
                raise PortInUseError(
                    f"{error}; stop what uses the port, or choose others with --segment-store-port (0: any free ones)"
                ) from error
            raise
        self.segment_store_port = processes.stores[0].port
        for container_id in self._controller_containers():
            if (failure := processes.failures.get(container_id)) is not None:
                raise StoreProcessError(
                    f"container {container_id} holds tables of the controller and is offline: {failure.message}"
                )
        watch = settings.store_processes
        # Bounds waits for a store that hangs by the time that its detection takes.
        client = ClientSettings(
            request_timeout_s=2 * watch.health_timeout_s,
            keepalive_interval_s=watch.health_timeout_s,
            retry_time_max_s=watch.retry_time_max_s,
        )
        security = self.security
        pool = ConnectionPool(
            processes.locator.resolve_locally,
            client,
            ssl_context=None if security is None else security.peer_tls,
            tokens=None if security is None or security.signer is None else MasterTokens(security.signer),
        )
        self._stops.push_async_callback(pool.close)
        return pool, client, processes.locator, identity.cluster_id

    def _controller_containers(self) -> Sequence[int]:
        """Return the containers whose failure fails the start at once, instead of after many retries."""
        count = self.settings.segment_store.container_count
        return sorted({container_of(table, count) for table in SYSTEM_TABLES})

    async def _open_tiers(self) -> tuple[DurableLogFactory, ChunkStorage, str]:
        """Return the logs, long-term storage, and the id of the cluster that both belong to."""
        if self.settings.is_memory:
            from penstock.segmentstore.tier1.memory_log import MemoryLogFactory
            from penstock.segmentstore.tier2.memory import MemoryChunkStorage

            self._log_start()
            return MemoryLogFactory(self.runtime), MemoryChunkStorage(), "memory"
        directory = DataDirectory(self.settings.data_dir, self.runtime)
        if self.settings.log:
            return await self._open_object_log(directory)
        identity = await self._open_directory(directory)
        return (
            directory.logs(identity, self.settings.durable_log),
            open_long_term_storage(self.settings, directory, self.runtime),
            identity.cluster_id,
        )

    async def _open_object_log(self, directory: DataDirectory) -> tuple[DurableLogFactory, ChunkStorage, str]:
        """Return the logs in a bucket, long-term storage, and the cluster's id. Nothing is kept in `directory`."""
        from penstock.server.bucket_log import open_bucket_log

        settings, runtime = self.settings, self.runtime
        if await runtime.work.run(directory.is_used):
            raise DataDirectoryError(
                f"{directory.root} was made with a log of its own, which is not the log in {settings.log}: start "
                "without --log, or name another --data-dir"
            )
        chunks = open_long_term_storage(settings, directory, runtime)
        try:
            opened = await open_bucket_log(settings, runtime, chunks)
        except BaseException:
            await chunks.close()
            raise
        self.is_new_store = opened.is_new
        self._log_start()
        opened.logs.on_taken_over = self._note_taken_over
        return opened.logs, chunks, opened.cluster_id

    def _note_taken_over(self, error: LogTakenOverError) -> None:
        self._takeover = error
        self._is_taken_over.set()

    async def _wait_for_storage(self, directory: DataDirectory, identity: Identity) -> None:
        """Wait for long-term storage before processes are started, because their start has a time limit."""
        settings = self.settings
        guard = GuardedChunkStorage(
            open_long_term_storage(settings, directory, self.runtime),
            cluster_id=identity.cluster_id,
            settings=settings.segment_store.storage_guard,
            may_be_older=settings.segment_store.container.layout.mode is LayoutMode.LAYOUT_UPGRADE,
        )
        try:
            await guard.claim_when_there(directory.logs(identity, settings.durable_log).has_logs)
        finally:
            await guard.close()

    async def _open_directory(self, directory: DataDirectory, wait_s: float = 0.0) -> Identity:
        deadline_s = asyncio.get_running_loop().time() + wait_s
        while True:
            try:
                identity = await self.runtime.work.run(directory.open, self.settings.segment_store.container_count)
            except DataDirectoryInUseError:
                # The child processes of a killed server hold the lock until they have exited.
                if asyncio.get_running_loop().time() >= deadline_s:
                    raise
                await asyncio.sleep(_LOCK_RETRY_DELAY_S)
            else:
                break
        self._stops.callback(directory.close)
        self.is_new_store = directory.is_new
        self._log_start()
        self._watch = DirectoryWatch(directory, self.runtime, self.settings.lock_check_interval_s, self._share_lock)
        self._watch.start()
        self._stops.push_async_callback(self._watch.stop)
        self._is_watched.set()
        return identity

    def _share_lock(self, directory: DataDirectory) -> None:
        if self.processes is not None:
            self.processes.share_lock(directory.lock_descriptor)

    async def taken_over(self) -> LogTakenOverError:
        """Wait until another server has taken the log in a bucket over, and return the error that says so.

        The process must exit: all of its containers have ended or end now. It acknowledges nothing any more.
        """
        await self._is_taken_over.wait()
        assert self._takeover is not None
        return self._takeover

    async def lost_directory(self) -> DataDirectoryLostError:
        """Wait until this server no longer holds its data directory, and return why. From then on it claims no log.

        The process must exit at once: another server may run on the directory, or another directory may be in its
        place, in which this process must not write. Acknowledged writes are synced.
        """
        await self._is_watched.wait()
        assert self._watch is not None
        return await self._watch.lost()

    async def stop(self) -> None:
        """Stop accepting requests, finish the accepted ones, stop all parts. Idempotent.

        Every part is stopped, even when one before could not stop cleanly; then its error is raised.
        """
        await self._stops.aclose()

    async def __aenter__(self) -> Standalone:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()


async def _listen(what: str, host: str, port: int, start: Awaitable[None]) -> None:
    try:
        await start
    except (OSError, ControllerUnavailableError) as error:
        # The controller's error repeats the address.
        reason = error.__cause__ if isinstance(error, ControllerUnavailableError) and error.__cause__ else error
        raise PortInUseError(
            f"the {what} cannot listen on {_authority(host, port)}: {reason}; stop what uses the port, or choose "
            f"another with --{what.replace(' ', '-')}-port (0: any free one)"
        ) from error


def _authority(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
