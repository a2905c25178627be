"""`ClusterController`: one of the controllers of a cluster. It has no state of its own.

The part that may lead starts first and needs the coordination service alone: it assigns the containers in which the
controller's own tables are.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import AsyncExitStack
from functools import partial

from penstock.client.settings import ClientSettings
from penstock.client.statistics.wire_scale_advice import WireScaleAdvisor
from penstock.client.transport.connection_pool import ConnectionPool
from penstock.client.transport.wire_segments import WireSegments
from penstock.controller.cluster.directory import ClusterDirectory
from penstock.controller.cluster.leader import ClusterLeader
from penstock.controller.metadata.segments_store import SegmentsMetadataStore
from penstock.controller.ownership.zookeeper_coordinator import ZooKeeperCoordinator
from penstock.controller.retry import with_several_stores
from penstock.controller.service import ControllerService
from penstock.controller.settings import ControllerSettings
from penstock.model.cluster_nodes import ClusterIdentity, Endpoint, SecurityMark
from penstock.model.errors import InvalidArgumentError, PenstockError
from penstock.model.segments import Segments
from penstock.operations.controller_metrics import ControllerMetrics
from penstock.operations.group_lag import GroupLags
from penstock.operations.health import Health, Status
from penstock.runtime.coordination import CoordinationService
from penstock.runtime.descriptors import descriptor_limit, share_descriptors
from penstock.runtime.kept_session import KeptSession
from penstock.runtime.runtime import Runtime, real_runtime
from penstock.runtime.waits import cancel_and_wait
from penstock.security.audit_log import AuditLog
from penstock.security.server_security import ServerSecurity
from penstock.security.tokens import MasterTokens
from penstock.server.audit import audit_path, start_audit, with_audit
from penstock.server.caller_checks import call_guard
from penstock.server.cluster.control import SessionControl
from penstock.server.cluster.identity import cluster_settings, read_identity, wait_for_session
from penstock.server.cluster.machine import ControllerFront, LocalMachine, Machine
from penstock.server.cluster.operations import start_operations
from penstock.server.cluster.security import (
    check_marks,
    keep_announced,
    open_cluster_security,
    other_processes,
    security_mark,
)
from penstock.server.cluster.store import other_endpoints
from penstock.server.cluster_settings import Listener, check_reachable
from penstock.server.settings import StandaloneSettings

_log = logging.getLogger(__name__)

#: Pause after the controller's tables could not be reached.
_RETRY_S = 0.5


class ClusterController:
    """See the module. `settings`: with the place of the cluster.

    `runtime`, closed by `stop`, `machine`: the real ones by default.

    Attributes:
        endpoints: given to clients, by listener.
        leader: its part that may lead.
        service: its part that serves clients; None until the tables are reached.
        security: None before it is read, and without TLS and authentication.
    """

    def __init__(
        self, settings: StandaloneSettings, runtime: Runtime | None = None, machine: Machine | None = None
    ) -> None:
        self._machine = machine or LocalMachine()
        self.service: ControllerService | None = None
        self.settings: StandaloneSettings = settings
        self.runtime: Runtime = runtime if runtime is not None else real_runtime(settings.blocking_thread_count_max)
        self.endpoints: dict[str, Endpoint] = {}
        self.leader: ClusterLeader | None = None
        self._is_serving = False
        self._segments: Segments | None = None
        self._listeners: list[tuple[Listener, int]] = []
        self.security: ServerSecurity | None = None
        self._audit: AuditLog | None = None
        self._mark: SecurityMark | None = None
        self._stops = AsyncExitStack()

    @property
    def name(self) -> str:
        """Name of this controller, for people."""
        return self.settings.cluster.name or self._machine.name

    async def start(self) -> None:
        """Find the cluster, run for the leadership, and serve clients as soon as the tables can be reached.

        Waits for segment stores without a limit, and reports that. Raises `CoordinationError`, `ClusterMismatchError`,
        `ControllerUnavailableError` (a port is in use).
        """
        try:
            await self._start()
        except BaseException:
            await self.stop()
            raise

    async def _start(self) -> None:
        self._stops.push_async_callback(self.runtime.work.close)
        security = open_cluster_security(self.settings, self.runtime, self._stops, has_controller=True)
        self.security = security
        operations = await start_operations(
            self.settings, self.runtime, self._stops, self._health, tls=None if security is None else security.tls
        )
        path = audit_path(self.settings, has_default=self.settings.security.has_auth)
        self._audit = await start_audit(path, self.settings, self.runtime, self._stops)
        service = self._machine.coordination(self.settings.cluster)
        identity = await self._join(service)
        settings = self.settings
        sessions = KeptSession(service, f"controller {self.name}")
        self._run(sessions.run())
        self.leader = ClusterLeader(service, self.name, self.runtime.rng, settings.cluster.leader)
        self._run(self.leader.run())
        directory = ClusterDirectory(sessions, identity.container_count, poll_s=settings.cluster.poll_s)
        self._run(directory.run())
        await directory.is_known.wait()
        self.service = controller = await self._start_service(service, directory, identity)
        control = SessionControl(service, self.runtime, settings.cluster.coordination.open_timeout_s)
        for front in await self._serve(controller, directory, control):
            if operations is not None:
                operations.collectors.append(ControllerMetrics(front, controller, self._audit).collect)
                assert self._segments is not None, "made with the service"
                lags = GroupLags(controller, self._segments, settings.operations.groups_max)
                lags.start()
                self._stops.push_async_callback(lags.stop)
                operations.collectors.append(lags.collect)
                operations = None  # All listeners have one controller: it is counted once.
        self._is_serving = True

    def _health(self) -> Health:
        if not self._is_serving:
            return Health(Status.STARTING)
        children = {}
        if self.security is not None:
            children["security"] = Health(problem=self.security.problem)
        return with_audit(Health(children=children), self._audit)

    async def _join(self, service: CoordinationService) -> ClusterIdentity:
        """Read the identity, and choose the ports, which are announced before they are listened on."""
        settings = self.settings
        session = await wait_for_session(service, settings.cluster.connect_timeout_s)
        try:
            identity = await read_identity(session, service.place)
            self.settings = settings = cluster_settings(settings, identity, service.place)
            self._mark = security_mark(self.security, identity.cluster_id)
            for listener in settings.cluster.listeners_on(settings.host, settings.controller_port, settings.advertise):
                port = listener.port or self._machine.unused_port(listener.host)
                self._listeners.append((listener, port))
                self.endpoints[listener.name] = listener.endpoint(
                    port, self._machine.name, has_tls=settings.security.has_tls
                )  # fmt: skip
            check_reachable(self.endpoints, await other_endpoints(session, ""))
            check_marks(self._mark, await other_processes(session, ""), service.place)
        finally:
            await session.close()
        return identity

    async def _start_service(
        self, service: CoordinationService, directory: ClusterDirectory, identity: ClusterIdentity
    ) -> ControllerService:
        """Start the controller, once its tables can be reached."""
        watch = self.settings.store_processes
        # Bounds waits for a store that hangs, or that no packet reaches, by the time that its detection takes.
        detection_s = min(watch.health_timeout_s, self.settings.cluster.session_timeout_s)
        client = ClientSettings(
            request_timeout_s=2 * watch.health_timeout_s,
            keepalive_interval_s=detection_s / 2,
            retry_time_max_s=watch.retry_time_max_s,
        )
        locator = directory.locator(self.settings.cluster.internal_listener)
        security = self.security
        has_tokens = security is not None and security.signer is not None
        pool = ConnectionPool(
            locator.resolve,
            client,
            ssl_context=None if security is None else security.peer_tls,
            tokens=None if security is None or security.signer is None else MasterTokens(security.signer),
        )
        self._stops.push_async_callback(pool.close)
        # With authentication, each request has a token from the pool.
        token = "" if has_tokens else identity.cluster_id
        segments = WireSegments(pool, client, self.runtime.rng, token=token, waits_for_space=False)
        self._segments = segments
        coordinator = ZooKeeperCoordinator(service, self.endpoints, self._mark)
        settings = with_several_stores(self.settings.controller)
        problem = ""
        while True:
            controller = ControllerService(
                metadata=SegmentsMetadataStore(segments, settings),
                segments=segments,
                locator=locator,
                runtime=self.runtime,
                settings=settings,
                advisor=WireScaleAdvisor(pool, locator.container_count),
                coordinator=coordinator,
            )
            try:
                await controller.start()
            except InvalidArgumentError:
                raise
            except PenstockError as error:
                if str(error) != problem:
                    problem = str(error)
                    _log.warning("controller %s waits for its tables: %s", self.name, error)
                await controller.stop()
                await asyncio.sleep(_RETRY_S)
            else:
                self._stops.push_async_callback(controller.stop)
                await self._check_others(service)
                if security is not None:
                    self._run(keep_announced(security, identity.cluster_id, coordinator.announce))
                return controller

    async def _check_others(self, service: CoordinationService) -> None:
        """Raise `ClusterMismatchError` if other processes are secured in another way. This one is announced."""
        session = await wait_for_session(service, self.settings.cluster.connect_timeout_s)
        try:
            check_marks(self._mark, await other_processes(session, ""), service.place)
        finally:
            await session.close()

    async def _serve(
        self, controller: ControllerService, directory: ClusterDirectory, control: SessionControl
    ) -> list[ControllerFront]:
        """Listen for clients: one server for each listener, as a call does not show which address was called."""
        fronts: list[ControllerFront] = []
        settings: ControllerSettings = controller.settings
        budget = share_descriptors(
            descriptor_limit(), self.settings.descriptors, has_segment_store=False, has_controller=True
        )
        for listener, port in self._listeners:
            name, own = listener.name, self.endpoints[listener.name]
            front = self._machine.open_front(
                controller,
                listener.host,
                port,
                published_host=own.host,
                published_port=own.port,
                settings=settings,
                connections_max=budget.controller_connections // len(self._listeners),
                controllers=partial(directory.controllers, name),
                locator=directory.locator(name),
                cluster=control,
                guard=call_guard(self.security),
                audit=self._audit,
                credentials=None if self.security is None else self.security.grpc_credentials(),
                certificate_port=None if self.security is None else self.security.certificate_port(port),
            )
            await front.start()
            self._stops.push_async_callback(front.stop)
            fronts.append(front)
        return fronts

    def _run(self, work: object) -> None:
        assert asyncio.iscoroutine(work)
        task = asyncio.get_running_loop().create_task(work)
        self._stops.push_async_callback(cancel_and_wait, task)

    async def stop(self) -> None:
        """Stop accepting calls, finish the accepted ones, leave the cluster. Idempotent."""
        await self._stops.aclose()
