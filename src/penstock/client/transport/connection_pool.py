"""`ConnectionPool`: few connections to many segment stores, shared within one client.

Each segment store gets one connection per `Purpose`, so that acknowledgements don't queue behind bulk reads. The home
of a segment is resolved once and cached until a request finds it wrong, or until its address does not answer: then the
homes of all segments of that address are resolved again, because their requests would wait for silence one by one.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from enum import Enum
from functools import partial

from penstock.client.common.deadline import context_without_deadline, current_deadline
from penstock.client.common.telemetry import telemetry_of_process
from penstock.client.common.waits import Waits
from penstock.client.settings import ClientSettings
from penstock.client.transport.delegation_tokens import STATISTICS_SEGMENT, FixedToken, Tokens
from penstock.client.transport.store_states import StoreStates
from penstock.model.errors import ConnectionLostError
from penstock.wire.connection import WireConnection, open_connection

#: Full segment name -> (host, port) of the segment store that serves it.
Resolver = Callable[[str], Awaitable[tuple[str, int]]]


class Purpose(Enum):
    """The traffic of a connection."""

    APPEND = "append"
    READ = "read"
    REQUEST = "request"
    #: Separate: servers other than Penstock's close it, which must not affect other traffic.
    STATISTICS = "statistics"
    #: Likewise: earlier releases of the store close it, too.
    LAYOUTS = "layouts"


#: Those that only a failure closes.
_COUNTED = (Purpose.APPEND, Purpose.READ, Purpose.REQUEST)


class _Address:
    """Host and port of a store, shared by its cached segments, so that all are forgotten in one step."""

    __slots__ = ("endpoint", "is_current")

    def __init__(self, endpoint: tuple[str, int]) -> None:
        self.endpoint = endpoint
        self.is_current = True


class ConnectionPool:
    """Connections by segment. Bounded by one per `Purpose` and segment store; use within one event loop."""

    def __init__(
        self,
        resolver: Resolver,
        settings: ClientSettings,
        *,
        ssl_context: ssl.SSLContext | None = None,
        waits: Waits | None = None,
        tokens: Tokens | None = None,
        controller: str = "",
    ) -> None:
        #: Tokens of requests; `connection` prepares that of its segment.
        self.tokens: Tokens = tokens or FixedToken()
        #: Where users of this pool register their waits; None: they are not reported, as in a server.
        self.waits: Waits | None = waits
        #: Why segment stores hold writes.
        self.store_states: StoreStates = StoreStates(
            self._statistics_connection, settings, lambda: self.tokens.of(STATISTICS_SEGMENT)
        )
        self._resolver = resolver
        self._settings = settings
        self._ssl_context = ssl_context
        #: By segment; those that are not current count as missing.
        self._homes: dict[str, _Address] = {}
        #: The current ones.
        self._addresses: dict[tuple[str, int], _Address] = {}
        self._connections: dict[tuple[str, int, Purpose], WireConnection] = {}
        self._opening: dict[tuple[str, int, Purpose], asyncio.Task[WireConnection]] = {}
        #: Endpoints that were reached: a later failure to resolve their names is an outage, not a wrong setting.
        self._reached: set[tuple[str, int]] = set()
        #: Connections that were open once: a further one replaces a lost one.
        self._opened: set[tuple[str, int, Purpose]] = set()
        self._is_closed = False
        #: URI of the cluster, for reports; empty: not known.
        self.controller: str = controller
        self._telemetry = telemetry_of_process(controller)

    async def connection(self, segment: str, purpose: Purpose) -> WireConnection:
        """Return an open connection to the segment store that serves `segment`.

        Raises `ConnectionLostError` if it cannot be reached: no request was sent, a retry is safe.
        """
        endpoint = await self.endpoint(segment)
        await self.tokens.prepare(STATISTICS_SEGMENT if purpose is Purpose.STATISTICS else segment)
        key = (*endpoint, purpose)
        connection = self._connections.get(key)
        if connection is not None and connection.is_open:
            return connection
        opening = self._opening.get(key)
        if opening is None:
            # Other callers may wait for it too: the first caller's deadline must not bound it.
            opening = asyncio.get_running_loop().create_task(
                self._open(key),
                name=f"connect to {endpoint[0]}:{endpoint[1]}",
                context=context_without_deadline(),
            )
            # All waiting callers may have been cancelled before it fails.
            opening.add_done_callback(lambda task: None if task.cancelled() else task.exception())
            self._opening[key] = opening
        try:
            # Shielded: other callers may wait for the same connection.
            deadline = current_deadline()
            async with asyncio.timeout_at(None if deadline is None else deadline.at_s):
                return await asyncio.shield(opening)
        except TimeoutError as error:
            raise ConnectionLostError(
                f"{segment}: no connection to {endpoint[0]}:{endpoint[1]} in the remaining time"
            ) from error
        except ConnectionLostError:
            self.forget(segment)
            raise

    async def endpoint(self, segment: str) -> tuple[str, int]:
        """Return host and port of the segment store that serves `segment`, from the cache if possible."""
        if self._is_closed:
            raise ConnectionLostError(f"{segment}: the client is closed")
        endpoint = self.known_endpoint(segment)
        if endpoint is None:
            endpoint = await self._resolver(segment)
            # Stores that come back at other addresses leave the earlier ones.
            if max(len(self._homes), len(self._addresses)) >= self._settings.endpoint_count_max:
                self._homes.clear()
                self._addresses.clear()
            self._homes[segment] = self._addresses.setdefault(endpoint, _Address(endpoint))
        return endpoint

    def known_endpoint(self, segment: str) -> tuple[str, int] | None:
        """Return the cached result of `endpoint`, None if a request would be needed."""
        home = self._homes.get(segment)
        return home.endpoint if home is not None and home.is_current else None

    def forget(self, segment: str) -> None:
        """Query the resolver again next time: the segment was not at its cached home."""
        self._homes.pop(segment, None)

    def forget_address(self, endpoint: tuple[str, int]) -> None:
        """Query the resolver again for all segments of a store that does not answer: they may have moved."""
        address = self._addresses.pop(endpoint, None)
        if address is not None:
            address.is_current = False

    async def close(self) -> None:
        """Close all connections; everything that waits on them fails."""
        self._is_closed = True
        await self.store_states.close()
        for task in list(self._opening.values()):
            task.cancel()
            await asyncio.wait([task])
        connections, self._connections = self._connections, {}
        await asyncio.gather(*(connection.close() for connection in connections.values()))

    async def _statistics_connection(self, segment: str) -> WireConnection:
        return await self.connection(segment, Purpose.STATISTICS)

    async def _open(self, key: tuple[str, int, Purpose]) -> WireConnection:
        try:
            connection = await open_connection(
                key[0], key[1], settings=self._settings.connection(), ssl_context=self._ssl_context
            )
            if len(self._reached) >= self._settings.endpoint_count_max:
                self._reached.clear()
            self._reached.add(key[:2])
            # Lost connections are dropped now, so stores that no longer exist leave none.
            self._connections = {other: value for other, value in self._connections.items() if value.is_open}
            self._connections[key] = connection
            connection.on_silence = partial(self.forget_address, key[:2])
            self._count_reconnect(key)
            return connection
        except ConnectionLostError as error:
            self.forget_address(key[:2])
            if key[:2] in self._reached:
                error.unresolved_host = ""
                raise
            # The reason may be the server's setting, which its clients cannot see.
            advised = ConnectionLostError(
                f"{error}. The server gave this address to this client: if clients cannot reach it, start the server "
                "with --advertise and a host name or address that they can reach"
            )
            advised.unresolved_host = error.unresolved_host
            raise advised from error
        finally:
            del self._opening[key]

    def _count_reconnect(self, key: tuple[str, int, Purpose]) -> None:
        if key in self._opened:
            if self._telemetry is not None and key[2] in _COUNTED:
                self._telemetry.reconnected(key[0], key[1])
            return
        if len(self._opened) >= self._settings.endpoint_count_max:
            self._opened.clear()
        self._opened.add(key)
