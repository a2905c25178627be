"""The TCP server of a segment store: listens, and holds the state shared by its connections.

Replies that wait for slow readers are also bounded over all connections: they are views of cached blocks, and keep them
alive after eviction. They do not count as cache use, otherwise readers that read nothing could stop all writers.

Source: wire-protocol 1.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections import deque
from collections.abc import Coroutine
from typing import TYPE_CHECKING

from penstock.runtime.sockets import bound_receive_buffers, detect_dead_peers, dual_stack_socket
from penstock.runtime.waits import cancel_and_wait
from penstock.segmentstore.connection import Connection
from penstock.segmentstore.connection_access import UnprovenConnections
from penstock.segmentstore.container_host import UNNAMED_CLUSTER
from penstock.segmentstore.host_transients import HostTransients
from penstock.segmentstore.ingest_budget import IngestBudget
from penstock.segmentstore.ingest_window import WINDOW_BYTES_LEAST
from penstock.segmentstore.mark_guard import MarkGuard
from penstock.segmentstore.settings import ConnectionSettings
from penstock.segmentstore.store import SegmentStore
from penstock.segmentstore.writer_budget import WriterBudget

if TYPE_CHECKING:
    from penstock.runtime.tls_listener import TlsListener
    from penstock.segmentstore.token_access import TokenAccess

logger: logging.Logger = logging.getLogger(__name__)

#: Receive buffers: minimum and maximum length; of n connections each may take an eighth of an nth part of the budget.
#: They are not counted in it. The maximum holds all data that the kernel may hold for a connection (twice
#: `receive_buffer_bytes`): all bytes of a writer in one read are one append, and longer appends cost less per byte.
_RECEIVE_LENGTH_MIN = 16 * 1024
_RECEIVE_LENGTH_MAX = 512 * 1024
_RECEIVE_SHARE_DIVISOR = 8
#: The windows of all active connections together are at least this fraction of the budget.
_WINDOWS_SHARE_DIVISOR = 16
#: Part of `connections_max` that may be without a complete TLS handshake, besides the connections themselves.
_WAITING_SHARE_DIVISOR = 4


class SegmentStoreServer:
    """Listens for clients of a segment store.

    `controller_token`: that of the controllers, see `MarkGuard`. None: the cluster's id, if it has one. `access` checks
    the tokens of requests; None: every client may do everything. `tls`: the context of encrypted connections; None:
    connections are not encrypted.
    """

    def __init__(
        self,
        store: SegmentStore,
        *,
        settings: ConnectionSettings | None = None,
        controller_token: str | None = None,
        access: TokenAccess | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.access: TokenAccess | None = access
        self._tls = tls
        self.store = store
        self.settings: ConnectionSettings = settings if settings is not None else store.settings.connection
        if access is not None:
            controller_token = ""  # `access` permits changes of marks to controllers alone.
        elif controller_token is None:
            controller_token = "" if store.cluster_id == UNNAMED_CLUSTER else store.cluster_id
        self.unproven: UnprovenConnections = UnprovenConnections(self.settings.connections_max)
        self.mark_guard: MarkGuard = MarkGuard(controller_token)
        self.loop: asyncio.AbstractEventLoop
        self.connections: dict[Connection, None] = {}
        self._servers: list[asyncio.Server | TlsListener] = []
        self._background: set[asyncio.Task[None]] = set()
        self._all_closed = asyncio.Event()
        self.is_stopping: bool = False
        self.port: int = 0
        #: Port of the last `start`.
        self.last_port: int = 0
        #: Number of connections refused because of the limit.
        self.refused_count: int = 0
        self._refusal_logged_at_s = float("-inf")
        self._to_flush: deque[Connection] = deque()
        self._flush_is_scheduled = False
        #: Incoming data held by all connections together.
        self.budget: IngestBudget = IngestBudget(self.settings.ingest_bytes_max, self.settings.unacknowledged_bytes_max)
        #: Memory of the writers of all connections.
        self.writers: WriterBudget = WriterBudget(self.settings.writers_bytes_max, self.settings.writer_bytes_max)
        #: Transient segments of each client host.
        self.transients: HostTransients = HostTransients(store)
        #: Bytes of replies that wait for slow readers, over all connections.
        self.slow_reply_bytes = 0

    @property
    def has_too_many_slow_replies(self) -> bool:
        """Whether slow readers hold the maximum memory."""
        return self.slow_reply_bytes > self.settings.slow_replies_bytes_max

    @property
    def sync_s(self) -> float:
        """Recent duration of a sync, of the slowest log."""
        return max((container.pipeline.sync_s for container in self.store.containers), default=0.0)

    @property
    def receive_length(self) -> int:
        """Maximum length of the receive buffer of a further connection: short if there are very many."""
        share = self.settings.ingest_bytes_max // (_RECEIVE_SHARE_DIVISOR * (len(self.connections) + 1))
        return max(_RECEIVE_LENGTH_MIN, min(_RECEIVE_LENGTH_MAX, share))

    @property
    def window_bytes_min(self) -> int:
        """Minimum bytes in flight that each connection may have.

        A value for one connection is too much for each of a hundred: an append would wait for those of all.
        """
        share = self.settings.ingest_bytes_max // (_WINDOWS_SHARE_DIVISOR * max(self.budget.busy_count, 1))
        return min(self.settings.ingest_window_bytes_min, max(share, WINDOW_BYTES_LEAST))

    async def start(self, host: str, port: int) -> None:
        """Listen on `host`:`port`; 0 takes a free port, given by `last_port` then. Raises `OSError` if it is taken.

        Call it again to listen on a further address; `port` is that of the first.
        """
        self.loop = asyncio.get_running_loop()
        self.store.on_durable = self._flush_due
        if self._tls is not None:
            await self._start_encrypted(host, port, self._tls)
            return
        backlog, listener = self.settings.accept_backlog, dual_stack_socket(host, port)
        if listener is None:
            server = await self.loop.create_server(
                lambda: Connection(self), host, port, backlog=backlog, start_serving=False
            )
        else:
            server = await self.loop.create_server(
                lambda: Connection(self), sock=listener, backlog=backlog, start_serving=False
            )
        self._servers.append(server)
        bound_receive_buffers(server, self.settings.receive_buffer_bytes)
        detect_dead_peers(server, self.settings.dead_peers)
        await server.start_serving()
        self.last_port = int(server.sockets[0].getsockname()[1])
        self.port = self.port or self.last_port

    async def _start_encrypted(self, host: str, port: int, tls: ssl.SSLContext) -> None:
        from penstock.runtime.tls_listener import HandshakeSettings, TlsListener

        bounds = HandshakeSettings(waiting_max=max(self.settings.connections_max // _WAITING_SHARE_DIVISOR, 1))
        listener = TlsListener(tls, lambda: Connection(self), bounds, work=self.store.runtime.work)
        self._servers.append(listener)
        await listener.bind(host, port)
        bound_receive_buffers(listener, self.settings.receive_buffer_bytes)
        detect_dead_peers(listener, self.settings.dead_peers)
        listener.listen(self.settings.accept_backlog)
        self.last_port = int(listener.sockets[0].getsockname()[1])
        self.port = self.port or self.last_port

    def flush_later(self, connection: Connection) -> None:
        """See `ConnectionHost.flush_later`."""
        self._to_flush.append(connection)
        if not self._flush_is_scheduled:
            self._flush_is_scheduled = True
            self.loop.call_soon(self._flush)

    def _flush_due(self) -> None:
        """Send what is due now, not at the end of the turn: turns of a busy loop are long, and clients wait."""
        if self._flush_is_scheduled:
            self._flush()  # The scheduled call finds nothing left.

    def _flush(self) -> None:
        """Flush every connection that is due, in one call of the loop for all of them."""
        self._flush_is_scheduled = False
        connections = self._to_flush
        try:
            for _ in range(len(connections)):
                connections.popleft().flush()
        finally:
            if connections and not self._flush_is_scheduled:
                self._flush_is_scheduled = True
                self.loop.call_soon(self._flush)

    def spawn(self, coroutine: Coroutine[None, None, None]) -> None:
        """Run a job that outlives its connection."""
        task = self.loop.create_task(coroutine)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    def refuse(self, transport: asyncio.Transport) -> None:
        """Close a connection beyond the limit. Logged at most once a second, since many may arrive at once."""
        transport.abort()
        self.refused_count += 1
        now_s = self.loop.time()
        if now_s >= self._refusal_logged_at_s + 1.0:
            self._refusal_logged_at_s = now_s
            logger.warning(
                "refused a connection, the %dth: %d are open already (connection.connections_max, or the limit of "
                "descriptors)",
                self.refused_count,
                len(self.connections),
            )

    def close_unanswered(self, reason: str) -> None:
        """Close the connections with requests, other than reads, that are not answered yet.

        The outcome of these requests is unknown. The clients connect again, perhaps to another store.
        """
        for connection in list(self.connections):
            if connection.has_unanswered:
                connection.abort(reason)

    def forget(self, connection: Connection) -> None:
        """Remove a closed connection."""
        self.connections.pop(connection, None)
        if not self.connections:
            self._all_closed.set()

    async def stop(self) -> None:
        """Accept no more connections and close all of them; replies already queued are sent first."""
        self.is_stopping = True
        for server in self._servers:
            server.close()
        for connection in list(self.connections):
            connection.abort("the server stops")
        if self.connections:
            self._all_closed.clear()
            try:
                await asyncio.wait_for(self._all_closed.wait(), 2 * self.settings.drain_timeout_s)
            except TimeoutError:
                logger.warning("%d connections did not close in time", len(self.connections))
        await cancel_and_wait(*self._background)
