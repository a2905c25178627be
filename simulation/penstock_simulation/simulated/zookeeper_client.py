"""`SimulatedSession`: the `CoordinationStore` of a host in a simulation, connected to a `SimulatedZooKeeper`.

A connection delivers messages in order. A message on a cut link is lost, and so is everything after it in its
direction; the client notices that by the silence, two thirds of its timeout later, and connects to another server.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar, cast

from penstock.model.errors.coordination import (
    CoordinationError,
    CoordinationOutcomeUnknownError,
    CoordinationUnavailableError,
    SessionExpiredError,
)
from penstock.runtime.coordination import (
    ANY_VERSION,
    Children,
    CoordinationSettings,
    CreateNode,
    DeleteNode,
    Node,
    NodeChange,
    Session,
    SetNode,
    check_content,
    check_path,
)
from penstock.runtime.coordination_session import SessionState
from penstock_simulation.simulated.loop import SimulatedLoop
from penstock_simulation.simulated.zookeeper import Server, SimulatedZooKeeper
from penstock_simulation.simulated.zookeeper_tree import Watched

T = TypeVar("T")

#: Pings in one timeout, and the part of the timeout after which a silent connection is given up.
_PINGS_PER_TIMEOUT = 3
_SILENCE_OF_TIMEOUT = 2 / 3
_RECONNECT_DELAY_S_MAX = 0.2


class SimulatedCoordination:
    """`CoordinationService` of one host. `rng`: choices of its clients, of servers for example."""

    def __init__(
        self,
        ensemble: SimulatedZooKeeper,
        host: str,
        rng: random.Random,
        settings: CoordinationSettings | None = None,
    ) -> None:
        self._ensemble = ensemble
        self._host = host
        self._rng = rng
        self._settings = settings or CoordinationSettings()

    @property
    def place(self) -> str:
        """See `CoordinationService.place`."""
        return "simulated"

    async def open_session(self, *, makes_root: bool = False) -> SimulatedSession:
        """See `CoordinationService.open_session`. The root is always there."""
        session = SimulatedSession(self._ensemble, self._host, self._rng, self._settings)
        try:
            await session.wait_until_open()
        except BaseException:
            await session.close()
            raise
        return session


@dataclass(slots=True)
class _Request:
    """A request on its way. `run`: executes it at the server; `is_change`: through the leader."""

    answer: asyncio.Future[object]
    run: Callable[[Server, _Connection], object]
    is_change: bool


class _Connection:
    """A client's connection to one server, seen from both sides."""

    def __init__(self, client: SimulatedSession, server: Server, ensemble: SimulatedZooKeeper, host: str) -> None:
        self.host = host
        self.session_id = client.session_id
        self.server = server
        #: The client takes what comes.
        self.is_open: bool = True
        self._client = client
        self._ensemble = ensemble
        self._loop = asyncio.get_running_loop()
        self._process = self._loop.current if isinstance(self._loop, SimulatedLoop) else None
        self._arrival_s = {True: 0.0, False: 0.0}
        self._is_broken = {True: False, False: False}
        self._queue: deque[_Request] = deque()
        self._is_busy = False

    # -- both directions ----------------------------------------------------------------------------------------

    def send(self, event: Callable[[], None], *, to_server: bool) -> None:
        """Have `event` happen at the other end, after what was sent before; or never, if the link is cut."""
        now_s = self._loop.time()
        arrival_s = max(self._arrival_s[to_server], now_s + self._ensemble.latency_s())
        self._arrival_s[to_server] = arrival_s
        self._ensemble.at(arrival_s - now_s, lambda: self._arrive(event, to_server))

    def _arrive(self, event: Callable[[], None], to_server: bool) -> None:
        is_way_open = self._ensemble.reaches if to_server else self._ensemble.is_reached
        if not is_way_open(self.host, self.server.number):
            self._is_broken[to_server] = True
        if self._is_broken[to_server]:
            return
        if to_server:
            event()
        elif self._process is not None:
            cast(SimulatedLoop, self._loop).post(self._process, self._take, event)
        else:
            self._take(event)

    def _take(self, event: Callable[[], None]) -> None:
        if self.is_open:
            event()

    # -- at the server ------------------------------------------------------------------------------------------

    def arrived(self, request: _Request) -> None:
        """Execute a request after the earlier ones of this connection."""
        if not self.server.is_up or self not in self.server.connections:
            return
        if self._ensemble.leader is not None:
            self._ensemble.touch(self.session_id)
        self._queue.append(request)
        self._next()

    def _next(self) -> None:
        if self._is_busy or not self._queue:
            return
        self._is_busy = True
        request = self._queue.popleft()
        if request.is_change:
            self._ensemble.at(self._ensemble.latency_s(), lambda: self._change(request))
        else:
            self._finish(request, self._result(request))

    def _result(self, request: _Request) -> object:
        try:
            return request.run(self.server, self)
        except CoordinationError as error:
            return error

    def _change(self, request: _Request) -> None:
        ensemble = self._ensemble
        is_current = ensemble.connection_of.get(self.session_id, self) is self
        if ensemble.leader is None or self not in self.server.connections or not is_current:
            return  # Never answered: the connection is closed.
        result = self._result(request)
        if isinstance(result, CoordinationError):
            self._finish(request, result)
        elif ensemble.loses_reply(self.host):
            self.server.drop(self)
            self.closed()
        else:
            self.server.when_applied(ensemble.leader.tree.zxid, lambda: self._finish(request, result))

    def _finish(self, request: _Request, result: object) -> None:
        zxid = self.server.tree.zxid
        self.send(lambda: self._client.answered(request.answer, result, zxid), to_server=False)
        self._is_busy = False
        self._next()

    # -- what the server does by itself -------------------------------------------------------------------------

    def closed(self) -> None:
        """See `Connection.closed`."""
        self.send(lambda: self._client.dropped(self), to_server=False)

    def expired(self) -> None:
        """See `Connection.expired`."""
        self.send(self._client.expired_by_server, to_server=False)

    def fired(self, watched: Watched) -> None:
        """See `Connection.fired`."""
        self.send(lambda: self._client.watch_fired(watched), to_server=False)


class SimulatedSession(SessionState):
    """See the module. Made by `SimulatedCoordination.open_session`."""

    def __init__(
        self, ensemble: SimulatedZooKeeper, host: str, rng: random.Random, settings: CoordinationSettings
    ) -> None:
        super().__init__("simulated", settings.session_timeout_s)
        self._ensemble = ensemble
        self._host = host
        self._rng = rng
        self._settings = settings
        self._connection: _Connection | None = None
        #: Set while there is no connection.
        self._lost = asyncio.Event()
        self._received_s = 0.0
        self._ping_at_s = 0.0
        self._seen_zxid = 0
        self._in_progress: set[asyncio.Future[object]] = set()
        self._fires: dict[Watched, Callable[[object], None]] = {}
        self._life = self._loop.create_task(self._live(), name=f"session of {host}")

    async def wait_until_open(self) -> None:
        """Wait for the session. Raises `CoordinationUnavailableError`."""
        try:
            async with asyncio.timeout(self._settings.open_timeout_s):
                await self.session_changed(Session.SUSPENDED)
        except TimeoutError:
            raise CoordinationUnavailableError("no simulated server opened a session in time") from None

    # -- requests -----------------------------------------------------------------------------------------------

    async def get(self, path: str) -> Node:
        """See `CoordinationStore.get`."""
        check_path(path)
        return await self._ask(f"read {path}", lambda server, _: server.tree.get(path))

    async def children(self, path: str) -> Children:
        """See `CoordinationStore.children`."""
        check_path(path)
        return await self._ask(f"list {path}", lambda server, _: server.tree.children(path))

    async def create(
        self, path: str, content: bytes = b"", *, is_ephemeral: bool = False, is_sequential: bool = False
    ) -> str:
        """See `CoordinationStore.create`."""
        changes = (CreateNode(path, content, is_ephemeral),)
        return await self._change(f"create {path}", changes, is_sequential=is_sequential)

    async def set(self, path: str, content: bytes, version: int = ANY_VERSION) -> int:
        """See `CoordinationStore.set`."""
        changed = SetNode(path, content, version)
        _check((changed,))

        def run(_: Server, connection: _Connection) -> int:
            self._ensemble.change(connection.session_id, (changed,))
            assert self._ensemble.leader is not None
            return self._ensemble.leader.tree.get(path).version

        return await self._ask(f"set {path}", run, is_change=True)

    async def delete(self, path: str, version: int = ANY_VERSION) -> None:
        """See `CoordinationStore.delete`."""
        await self._change(f"delete {path}", (DeleteNode(path, version),))

    async def multi(self, changes: Sequence[NodeChange]) -> None:
        """See `CoordinationStore.multi`."""
        if changes:
            await self._change(f"change {', '.join(change.path for change in changes)} at once", changes)

    async def changed(self, path: str, seen: Node | Children | None) -> None:
        """See `CoordinationStore.changed`."""
        check_path(path)
        watched = path, isinstance(seen, Children)

        def run(server: Server, connection: _Connection) -> int | None:
            if watched[1]:
                zxid = server.tree.children(path).zxid
            else:
                node = server.tree.nodes.get(path)
                zxid = -1 if node is None else node.zxid
            server.watch(watched, connection)
            return zxid

        async def read(fire: Callable[[object], None]) -> int | None:
            self._fires[watched] = fire
            zxid = await self._ask(f"watch {path}", run)
            return None if zxid == -1 else zxid

        await self._wait_until_changed(path, seen, read, lambda callback: callback())

    async def _change(self, what: str, changes: Sequence[NodeChange], *, is_sequential: bool = False) -> str:
        _check(changes)

        def run(_: Server, connection: _Connection) -> str:
            return self._ensemble.change(connection.session_id, changes, is_sequential)[1]

        return await self._ask(what, run, is_change=True)

    async def _ask(self, what: str, run: Callable[[Server, _Connection], T], *, is_change: bool = False) -> T:
        self._demand_connected(what)
        connection = self._connection
        assert connection is not None
        if len(self._in_progress) >= self._settings.requests_max:
            raise CoordinationUnavailableError(f"cannot {what}: {len(self._in_progress)} requests are in progress")
        answer: asyncio.Future[object] = self._loop.create_future()
        sent_s = self._loop.time()
        self._request_count += 1
        self._in_progress.add(answer)
        request = _Request(answer, run, is_change)
        connection.send(lambda: connection.arrived(request), to_server=True)
        try:
            async with asyncio.timeout(self._settings.request_timeout_s):
                value = await answer
        except (TimeoutError, ConnectionError) as error:
            if is_change:
                raise CoordinationOutcomeUnknownError(f"{what}: no answer; it may have been done") from error
            raise CoordinationUnavailableError(f"cannot {what}: no answer") from error
        except SessionExpiredError:
            self.expired_by_server()
            raise
        finally:
            self._in_progress.discard(answer)
            if answer.done() and not answer.cancelled():
                answer.exception()
        self._heard_s = max(self._heard_s, sent_s)
        return cast(T, value)

    # -- called by a connection, in this host's process ---------------------------------------------------------

    def answered(self, answer: asyncio.Future[object], result: object, zxid: int) -> None:
        """Take an answer."""
        self._received_s = self._loop.time()
        self._seen_zxid = max(self._seen_zxid, zxid)
        if answer.done():
            return
        if isinstance(result, CoordinationError):
            answer.set_exception(result)
        else:
            answer.set_result(result)

    def dropped(self, connection: _Connection) -> None:
        """Take note that a connection was closed."""
        connection.is_open = False
        if connection is not self._connection:
            return
        self._connection = None
        self._lost.set()
        self._fires.clear()
        self._set_session(Session.SUSPENDED)
        for answer in self._in_progress:
            if not answer.done():
                answer.set_exception(ConnectionResetError("the connection to the simulated server is lost"))

    def watch_fired(self, watched: Watched) -> None:
        """Take note that a watch has fired."""
        self._received_s = self._loop.time()
        fire = self._fires.pop(watched, None)
        if fire is not None:
            fire(None)

    def expired_by_server(self) -> None:
        """Take note that the session has ended."""
        self._set_session(Session.EXPIRED)
        self._end()

    # -- life ---------------------------------------------------------------------------------------------------

    async def _live(self) -> None:
        """Keep the session connected, and give signs of life."""
        while self._session is not Session.EXPIRED:
            connection = self._connection
            if connection is None:
                await self._connect()
                continue
            now_s = self._loop.time()
            silent_at_s = self._received_s + self._timeout_s * _SILENCE_OF_TIMEOUT
            if now_s >= silent_at_s:
                connection.send(partial(connection.server.drop, connection), to_server=True)
                self.dropped(connection)
                continue
            if now_s >= self._ping_at_s:
                self._ping_at_s = now_s + self._timeout_s / _PINGS_PER_TIMEOUT
                self._ping(connection)
            try:
                async with asyncio.timeout_at(min(silent_at_s, self._ping_at_s)):
                    await self._lost.wait()
            except TimeoutError:
                continue

    def _ping(self, connection: _Connection) -> None:
        answer: asyncio.Future[object] = self._loop.create_future()
        sent_s = self._loop.time()

        def answered(_: asyncio.Future[object]) -> None:
            if not answer.cancelled() and answer.exception() is None:
                self._heard_s = max(self._heard_s, sent_s)

        answer.add_done_callback(answered)
        self._request_count += 1
        request = _Request(answer, lambda server, _: None, False)
        connection.send(lambda: connection.arrived(request), to_server=True)

    async def _connect(self) -> None:
        servers = list(self._ensemble.servers)
        self._rng.shuffle(servers)
        for server in servers:
            accepted: asyncio.Future[int | None] = self._loop.create_future()
            connection = _Connection(self, server, self._ensemble, self._host)

            def arrive(connection: _Connection = connection, accepted: asyncio.Future[int | None] = accepted) -> None:
                self._arrive_at(connection, accepted)

            connection.send(arrive, to_server=True)
            try:
                async with asyncio.timeout(self._timeout_s / (3 * len(servers))):
                    session_id = await accepted
            except TimeoutError:
                connection.is_open = False
                continue
            if session_id is None:
                connection.is_open = False
                continue
            if session_id == 0:
                self.expired_by_server()
                return
            self._session_id = connection.session_id = session_id
            self._connection = connection
            self._lost.clear()
            self._received_s = self._loop.time()
            self._set_session(Session.CONNECTED)
            return
        await asyncio.sleep(self._rng.uniform(0, _RECONNECT_DELAY_S_MAX))

    def _arrive_at(self, connection: _Connection, accepted: asyncio.Future[int | None]) -> None:
        """At the server: accept a connection, or not. Answers with the session's number, 0 if it has ended."""
        ensemble = self._ensemble
        session_id: int | None = None
        if ensemble.accepts(connection.server, self._seen_zxid):
            if self._session_id == 0:
                session_id = ensemble.begin_session(self._timeout_s)
            else:
                session_id = self._session_id if ensemble.touch(self._session_id) else 0
            if session_id:
                connection.session_id = session_id
                connection.server.connections.append(connection)
                ensemble.connection_of[session_id] = connection

        def answer() -> None:
            if not accepted.done():
                accepted.set_result(session_id)

        connection.send(answer, to_server=False)

    def _end(self) -> None:
        if self._connection is not None:
            self._connection.is_open = False
            self._connection = None
        for answer in self._in_progress:
            if not answer.done():
                answer.set_exception(ConnectionResetError("the session has ended"))
        if self._life is not asyncio.current_task():
            self._life.cancel()

    async def close(self) -> None:
        """See `CoordinationStore.close`."""
        if self._session is Session.CONNECTED:

            def run(_: Server, connection: _Connection) -> None:
                self._ensemble.close_session(connection.session_id)

            try:
                async with asyncio.timeout(self._settings.close_timeout_s):
                    await self._ask("end the session", run, is_change=True)
            except (TimeoutError, CoordinationError):
                pass  # It ends at its timeout.
        self._set_session(Session.EXPIRED)
        self._end()


def _check(changes: Sequence[NodeChange]) -> None:
    for change in changes:
        check_path(change.path)
        if isinstance(change, CreateNode | SetNode):
            check_content(change.path, change.content)
