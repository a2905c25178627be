"""`StoreChild`: one of several segment stores of a server, in a child process of that server.

Messages: `store_messages`. The child acts on behalf of its parent, which holds the data directory's lock: it inherits
the lock, refuses to run without it, and exits at once when the parent exits. A lock that the parent had to take again
arrives over a socket; until then the child claims no log.
"""

from __future__ import annotations

import asyncio
import ctypes
import logging
import os
import signal
import socket
import ssl
import sys
from collections.abc import Collection
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, BinaryIO, NoReturn

from penstock.model.errors import PenstockError
from penstock.operations.health import Health, Status
from penstock.operations.process_metrics import ProcessMetrics
from penstock.operations.store_health import store_health
from penstock.operations.store_metrics import StoreMetrics
from penstock.runtime.descriptors import descriptor_limit, share_descriptors
from penstock.runtime.runtime import Runtime, real_runtime
from penstock.runtime.settings import settings_from
from penstock.runtime.version import penstock_version
from penstock.security.audit_log import AuditLog
from penstock.security.secrets_directory import security_paths
from penstock.security.server_security import open_security
from penstock.segmentstore.admin_server import AdminServer, allow_all
from penstock.segmentstore.request_audit import RequestAudit
from penstock.segmentstore.server import SegmentStoreServer
from penstock.segmentstore.store import SegmentStore
from penstock.segmentstore.token_access import TokenAccess
from penstock.server.audit import audit_path, start_audit, with_audit
from penstock.server.data_directory import DataDirectory
from penstock.server.errors import DataDirectoryError, StoreProcessError
from penstock.server.long_term_storage import open_long_term_storage, segment_store_settings
from penstock.server.settings import StandaloneSettings
from penstock.server.store_processes.messages import (
    LINE_BYTES_MAX,
    Message,
    Order,
    Ready,
    Refusal,
    State,
    decode_health_check,
    encode_message,
    failures_of,
    shortened,
)

if TYPE_CHECKING:
    from penstock.operations.endpoint import OperationsEndpoint

logger: logging.Logger = logging.getLogger(__name__)

#: Linux: the signal that a process gets when its parent dies, however that happens and even while it is stopped.
_PR_SET_PDEATHSIG = 1
#: Exit code of a child whose parent has exited.
EXIT_PARENT_GONE = 3


class StoreChild:
    """Runs one segment store. `output` receives its answers; `runtime`: the real one by default, closed by `stop`."""

    def __init__(self, order: Order, output: BinaryIO, runtime: Runtime | None = None) -> None:
        self.settings: StandaloneSettings = settings_from(
            StandaloneSettings, order.settings, "the settings given by the parent process"
        )
        self._order = order
        self._output = output
        self._runtime = runtime if runtime is not None else real_runtime(self.settings.blocking_thread_count_max)
        self._assigned: Collection[int] = order.containers
        self._living = frozenset(order.living)
        self._store: SegmentStore | None = None
        self._audit: AuditLog | None = None
        self._stops = AsyncExitStack()

    async def start(self) -> None:
        """Recover the first containers, listen, and report it. Errors are reported, too, and leave nothing running.

        Raises `DataDirectoryError` without the lock, and what a segment store's start raises.
        """
        try:
            await self._start()
        except BaseException as error:
            if isinstance(error, (PenstockError, OSError)):
                self._say(Refusal(type(error).__name__, str(error)))
            await self.stop()
            raise

    async def _start(self) -> None:
        settings, runtime = self.settings, self._runtime
        self._stops.push_async_callback(runtime.work.close)
        directory = DataDirectory(settings.data_dir, runtime)
        directory.check_lock(self._order.lock_descriptor)
        self._stops.callback(directory.close)
        if self._order.lock_socket >= 0:
            self._receive_locks(directory, self._order.lock_socket)
        identity = await runtime.work.run(directory.identity)
        access, tls = await self._open_security()
        operations = await self._start_operations(tls)
        store = self._store = SegmentStore(
            logs=directory.logs(
                identity,
                settings.durable_log,
                token=bytes.fromhex(self._order.owner),
                may_live=lambda token: token.hex() in self._living,
            ),
            chunks=open_long_term_storage(settings, directory, runtime),
            cluster_id=identity.cluster_id,
            runtime=runtime,
            settings=segment_store_settings(settings),
            container_ids=self._order.containers,
            cache_directory=directory.cache(self._order.store),
        )
        metrics = StoreMetrics(store, settings.operations.streams_max)
        if operations is not None:
            # Before the start, which may take long.
            operations.collectors.append(metrics.collect)
        await store.start()
        self._stops.push_async_callback(store.stop)
        budget = share_descriptors(
            descriptor_limit(), settings.descriptors, has_segment_store=True, has_controller=False
        )
        server = SegmentStoreServer(
            store, settings=settings.segment_store.connection.within(budget), access=access, tls=tls
        )
        await server.start(settings.host, self._order.port)
        self._stops.push_async_callback(server.stop)
        metrics.server = server
        # The administrator's port of store n is the configured one plus n.
        administrators = settings.segment_store.admin
        port = administrators.port + self._order.store if administrators.port else 0
        admin = AdminServer(
            store,
            settings=replace(administrators, port=port),
            authorise=allow_all if access is None else access.require_server,
            tls=tls,
        )
        await admin.start()
        self._stops.push_async_callback(admin.stop)
        self._say(Ready(server.port, failures_of(store.failures)))

    async def _open_security(self) -> tuple[TokenAccess | None, ssl.SSLContext | None]:
        """Read the files of encryption and authentication, if enabled. The parent process has made missing ones."""
        settings = self.settings.security
        if not (settings.has_tls or settings.has_auth):
            return None, None
        paths = security_paths(settings, self.settings.data_dir)
        security = open_security(settings, paths, self._runtime.work, self._wall_clock_s, has_controller=False)
        security.start()
        self._stops.push_async_callback(security.stop)
        if security.verifier is None:
            return None, security.tls
        audit = await start_audit(
            audit_path(self.settings, has_default=settings.makes_missing_files, store=f"store-{self._order.store}"),
            self.settings, self._runtime, self._stops,
        )  # fmt: skip
        self._audit = audit
        recorder = None if audit is None else RequestAudit(audit)
        access = TokenAccess(
            security.verifier, self._wall_clock_s, recorder, needs_certificate=settings.requires_certificates
        )
        return access, security.tls

    def _wall_clock_s(self) -> float:
        return self._runtime.wall_clock_ms() / 1000

    async def _start_operations(self, tls: ssl.SSLContext | None) -> OperationsEndpoint | None:
        """Serve health and metrics, if enabled. The port of store n is the configured one plus 1 plus n."""
        settings = self.settings.operations
        if not settings.is_enabled:
            return None
        # Only now: a server without this port does not load an HTTP library.
        from penstock.operations.endpoint import OperationsEndpoint

        endpoint = OperationsEndpoint(
            settings, health=self._health, work=self._runtime.work, tls=tls if settings.tls else None
        )
        port = settings.port + 1 + self._order.store if settings.port else 0
        await endpoint.start(settings.host or self.settings.host, port)
        self._stops.push_async_callback(endpoint.stop)
        process = ProcessMetrics(self._runtime.resident_bytes, self._runtime.wall_clock_ms() / 1000, penstock_version())
        process.start()
        self._stops.push_async_callback(process.stop)
        endpoint.collectors.append(process.collect)
        return endpoint

    def _health(self) -> Health:
        if self._store is None:
            return Health(Status.STARTING)
        return with_audit(store_health(self._store), self._audit)

    def _receive_locks(self, directory: DataDirectory, descriptor: int) -> None:
        """Adopt each lock that the parent sends."""
        loop = asyncio.get_running_loop()
        connection = socket.socket(fileno=descriptor)
        connection.setblocking(False)
        os.set_inheritable(descriptor, False)

        def receive() -> None:
            data, found, _, _ = socket.recv_fds(connection, 1, 1)
            if not data:
                loop.remove_reader(connection)  # The parent has exited, which ends this process, too.
            for lock in found:
                try:
                    directory.check_lock(lock)
                except DataDirectoryError as error:
                    # The file was removed again. The parent detects that, and takes the lock again or exits.
                    logger.warning("a lock sent by the parent process was not accepted: %s", error)
                    os.close(lock)
                else:
                    logger.info("received the data directory's lock from the parent process again")

        loop.add_reader(connection, receive)
        self._stops.callback(connection.close)
        self._stops.callback(loop.remove_reader, connection)

    def answer(self, line: bytes) -> None:
        """Apply a health check and answer it. Raises `ProtocolError`."""
        check = decode_health_check(line)
        store = self._store
        assert store is not None, "health checks follow the start"
        self._living = frozenset(check.living)
        store.set_assignment(check.containers)
        self._say(
            State(
                check.number,
                tuple(container.id for container in store.containers),
                tuple(store.held),
                failures_of(store.failures),
                shortened(store.storage_problem),
                shortened(store.full_disk),
            )
        )

    async def stop(self) -> None:
        """Accept no more requests, finish the accepted ones, stop."""
        await self._stops.aclose()

    def _say(self, message: Message) -> None:
        self._output.write(encode_message(message))
        self._output.flush()


async def run_child(order: Order, source: BinaryIO, output: BinaryIO) -> bool:
    """Run the segment store of `order` until SIGTERM; return whether it stopped cleanly.

    `source`: the stream of health checks; at its end the process exits at once, with `EXIT_PARENT_GONE`. SIGINT is
    ignored: Ctrl-C in a terminal goes to all processes, and the parent stops its children cleanly.
    """
    loop = asyncio.get_running_loop()
    asked_to_stop = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, asked_to_stop.set)
    loop.add_signal_handler(signal.SIGINT, lambda: None)
    reader = asyncio.StreamReader(LINE_BYTES_MAX)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), source)
    try:
        child = StoreChild(order, output)
    except PenstockError as error:
        output.write(encode_message(Refusal(type(error).__name__, str(error))))
        output.flush()
        raise
    is_started = asyncio.Event()

    async def converse() -> None:
        while True:
            line = await reader.readline()
            if not line.endswith(b"\n"):
                logger.warning("the parent process has exited: exiting immediately")
                # As after kill -9, which may have ended the parent: acknowledged writes are synced.
                exit_at_once(EXIT_PARENT_GONE)
            await is_started.wait()
            child.answer(line)

    conversation = loop.create_task(converse())
    start = loop.create_task(child.start())
    stop_asked = loop.create_task(asked_to_stop.wait())
    try:
        await asyncio.wait((start, stop_asked), return_when=asyncio.FIRST_COMPLETED)
        if not start.done():
            start.cancel()
            await asyncio.wait((start,))
            return True
        start.result()
        is_started.set()
        await asyncio.wait((conversation, stop_asked), return_when=asyncio.FIRST_COMPLETED)
        if conversation.done():
            conversation.result()
    finally:
        stop_asked.cancel()
    try:
        async with asyncio.timeout(child.settings.stop_timeout_s):
            await child.stop()
    except (TimeoutError, PenstockError) as error:
        logger.warning("shutdown failed: %r", error)
        return False
    return True


def exit_at_once(code: int) -> NoReturn:
    """End this process without any further step. Acknowledged writes are synced."""
    os._exit(code)


def end_with_parent(parent_pid: int) -> None:
    """Have the kernel kill this process when its parent exits, where supported; `run_child` detects it in any case.

    Raises `StoreProcessError` if the parent has exited already.
    """
    if sys.platform == "linux":
        prctl = getattr(ctypes.CDLL(None), "prctl", None)
        if prctl is not None:
            prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:
        raise StoreProcessError(f"the parent process {parent_pid} has exited: a segment store does not run without it")
