"""`ZooKeeper`: the coordination service in production, by kazoo.

kazoo runs its connection and its callbacks in threads; everything reaches the event loop by `call_soon_threadsafe`,
in order. Rules, each from a measured or reported behaviour of kazoo:

- Nothing is called from a listener or a watch: a request that waits there deadlocks.
- kazoo retries nothing: an unknown outcome is the caller's.
- kazoo reports the end of a session only after it has reached a server again, so `heard_s` is kept here.
- After the end of a session kazoo would open another one by itself. The handler refuses to connect from then on, and
  the client is thrown away: no request is ever sent in a session that its caller does not know.
- Connecting to one silent host may take a third of the session's timeout divided by the number of hosts; kazoo gives
  it the whole timeout, which costs the session while other hosts are well.
- A server that starts may accept a connection and neither answer nor close it. The answer to the connect request is
  awaited for the same share; kazoo waits for the whole timeout of the session, which ends then.
- kazoo notices a silent server only while no requests are sent: each one counts as a ping whose answer is not awaited.
  So the silence is measured here, and the connection dropped after two thirds of the session's timeout.
- Requests are refused while kazoo is disconnected: it would queue them without a bound, and send them later.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from penstock.model.errors.coordination import (
    CoordinationError,
    CoordinationOutcomeUnknownError,
    CoordinationUnavailableError,
    NodeExistsError,
    SessionExpiredError,
)
from penstock.runtime.coordination import (
    ANY_VERSION,
    CheckNode,
    Children,
    CoordinationAccess,
    CoordinationPlace,
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
from penstock.runtime.kazoo_client import drop_connection, started_client
from penstock.runtime.zookeeper_errors import is_lost, refused_change, translated

if TYPE_CHECKING:
    from kazoo.interfaces import IAsyncResult
    from kazoo.protocol.states import ZnodeStat

_log = logging.getLogger(__name__)

#: Requests by which `heard_s` is kept current, in one timeout.
_BEATS_PER_TIMEOUT = 3
#: How often it is checked whether a beat is due, per beat.
_POLLS_PER_BEAT = 4


class ZooKeeper:
    """`CoordinationService` of the ZooKeeper servers at `place`."""

    def __init__(
        self,
        place: CoordinationPlace,
        settings: CoordinationSettings | None = None,
        access: CoordinationAccess | None = None,
    ) -> None:
        self._place = place
        self._settings = settings or CoordinationSettings()
        self._access = access or CoordinationAccess()

    @property
    def place(self) -> str:
        """See `CoordinationService.place`."""
        return str(self._place)

    async def open_session(self, *, makes_root: bool = False) -> ZooKeeperSession:
        """See `CoordinationService.open_session`."""
        session = ZooKeeperSession(self._place, self._settings, self._access)
        try:
            await session.wait_until_open()
            if makes_root:
                await session.make_root()
        except BaseException:
            await session.close()
            raise
        return session


class ZooKeeperSession(SessionState):
    """`CoordinationStore` by a kazoo client of its own. Made by `ZooKeeper.open_session`."""

    def __init__(self, place: CoordinationPlace, settings: CoordinationSettings, access: CoordinationAccess) -> None:
        super().__init__(str(place), settings.session_timeout_s)
        self._place = place
        self._settings = settings
        self._in_progress = 0
        #: When the last request was sent that this connection has answered, or the connection was made.
        self._alive_s = self._heard_s
        self._failure: CoordinationError | None = None
        self._stopping: asyncio.Future[None] | None = None
        #: Set in kazoo's thread as soon as the session has ended; its handler connects no more.
        self._is_over = threading.Event()
        self._client = started_client(place, settings, access, self._is_over, _PostedEvents(self))
        self._beats = self._loop.create_task(self._beat(), name=f"session at {place.servers}")

    async def wait_until_open(self) -> None:
        """Wait for the session. Raises `CoordinationUnavailableError`, `CoordinationRefusedError`."""
        timeout_s = self._settings.open_timeout_s
        try:
            async with asyncio.timeout(timeout_s):
                if await self.session_changed(Session.SUSPENDED) is Session.CONNECTED:
                    return
        except TimeoutError:
            pass
        if self._failure is not None:
            raise self._failure
        raise CoordinationUnavailableError(
            f"no server of ZooKeeper at {self._place} opened a session within {timeout_s:g} s: "
            "check that the addresses are right, and that most of its servers run"
        )

    async def make_root(self) -> None:
        """Create the root of all paths unless it exists."""
        path = ""
        for part in self._place.root.split("/")[1:]:
            path += f"/{part}"
            try:
                await self._ask(f"create {path}", path, self._create_request(path, b""), is_change=True)
            except NodeExistsError:
                continue

    # -- requests -----------------------------------------------------------------------------------------------

    async def get(self, path: str) -> Node:
        """See `CoordinationStore.get`."""
        full = self._full(path)
        content, stat = await self._ask(f"read {path}", path, lambda: self._client.get_async(full))
        return _node(content, stat)

    async def children(self, path: str) -> Children:
        """See `CoordinationStore.children`."""
        full = self._full(path)
        names, stat = await self._ask(
            f"list {path}", path, lambda: self._client.get_children_async(full, include_data=True)
        )
        return Children(frozenset(names), stat.pzxid)

    async def create(
        self, path: str, content: bytes = b"", *, is_ephemeral: bool = False, is_sequential: bool = False
    ) -> str:
        """See `CoordinationStore.create`."""
        request = self._create_request(self._full(path), content, is_ephemeral, is_sequential)
        made: str = await self._ask(f"create {path}", path, request, is_change=True)
        return made.removeprefix(self._place.root)

    async def set(self, path: str, content: bytes, version: int = ANY_VERSION) -> int:
        """See `CoordinationStore.set`."""
        full = self._full(path)
        check_content(path, content)
        stat = await self._ask(
            f"set {path}", path, lambda: self._client.set_async(full, content, version), is_change=True
        )
        return int(stat.version)

    async def delete(self, path: str, version: int = ANY_VERSION) -> None:
        """See `CoordinationStore.delete`."""
        full = self._full(path)
        await self._ask(f"delete {path}", path, lambda: self._client.delete_async(full, version), is_change=True)

    async def multi(self, changes: Sequence[NodeChange]) -> None:
        """See `CoordinationStore.multi`."""
        if not changes:
            return
        transaction = self._client.transaction()
        for change in changes:
            full = self._full(change.path)
            match change:
                case CreateNode():
                    check_content(change.path, change.content)
                    transaction.create(full, change.content, ephemeral=change.is_ephemeral)
                case SetNode():
                    check_content(change.path, change.content)
                    transaction.set_data(full, change.content, change.version)
                case DeleteNode():
                    transaction.delete(full, change.version)
                case CheckNode():
                    transaction.check(full, change.version)
        what = f"change {', '.join(change.path for change in changes)} at once"
        results = await self._ask(what, changes[0].path, transaction.commit_async, is_change=True)
        refusal = refused_change(changes, results, what)
        if refusal is not None:
            raise refusal

    async def changed(self, path: str, seen: Node | Children | None) -> None:
        """See `CoordinationStore.changed`."""
        full = self._full(path)
        is_children = isinstance(seen, Children)
        await self._wait_until_changed(
            path, seen, lambda fire: self._ask_watched(path, full, is_children, fire), self._post
        )

    async def _ask_watched(self, path: str, full: str, is_children: bool, fire: Callable[[object], None]) -> int | None:
        if is_children:
            _, stat = await self._ask(
                f"watch {path}", path,
                lambda: self._client.get_children_async(full, watch=fire, include_data=True),
            )  # fmt: skip
            return int(stat.pzxid)
        stat = await self._ask(f"watch {path}", path, lambda: self._client.exists_async(full, watch=fire))
        return None if stat is None else int(stat.mzxid)

    def _create_request(
        self, full: str, content: bytes, is_ephemeral: bool = False, is_sequential: bool = False
    ) -> Callable[[], IAsyncResult]:
        check_content(full, content)
        return lambda: self._client.create_async(full, content, ephemeral=is_ephemeral, sequence=is_sequential)

    async def _ask(self, what: str, path: str, submit: Callable[[], IAsyncResult], *, is_change: bool = False) -> Any:
        """Submit a request, and return kazoo's result, which has no type. `what`, `path`: for messages."""
        self._demand_connected(what)
        if self._in_progress >= self._settings.requests_max:
            raise CoordinationUnavailableError(
                f"cannot {what}: {self._in_progress} requests to ZooKeeper are in progress already"
            )
        answer: asyncio.Future[Any] = self._loop.create_future()

        def answered(result: IAsyncResult) -> None:
            self._post(_settle, answer, result)

        sent_s = self._loop.time()
        self._in_progress += 1
        self._request_count += 1
        try:
            submit().rawlink(answered)
            async with asyncio.timeout(self._settings.request_timeout_s):
                value = await answer
        except TimeoutError:
            raise self._lost(what, f"no answer in {self._settings.request_timeout_s:g} s", is_change) from None
        except Exception as error:
            if is_lost(error):
                raise self._lost(what, repr(error), is_change) from error
            raised = translated(error, what, path, is_change)
            if isinstance(raised, SessionExpiredError):
                self._is_over.set()
                self._set_session(Session.EXPIRED)
            else:
                self._answered(sent_s)
            raise raised from error
        finally:
            self._in_progress -= 1
        self._answered(sent_s)
        return value

    def _answered(self, sent_s: float) -> None:
        self._heard_s = max(self._heard_s, sent_s)
        self._alive_s = max(self._alive_s, sent_s)

    def _lost(self, what: str, why: str, is_change: bool) -> CoordinationError:
        if is_change:
            return CoordinationOutcomeUnknownError(f"{what} at {self._place}: {why}; it may have been done")
        return CoordinationUnavailableError(f"cannot {what} at {self._place}: {why}")

    def _full(self, path: str) -> str:
        check_path(path)
        return (self._place.root or "/") if path == "/" else self._place.root + path

    async def _beat(self) -> None:
        """Keep `heard_s` current, and give up a connection whose server is silent."""
        while self._session is not Session.EXPIRED:
            interval_s = self._timeout_s / _BEATS_PER_TIMEOUT
            quiet_s = self._loop.time() - self._alive_s
            if self._session is Session.CONNECTED and quiet_s >= 2 * interval_s:
                self._drop_connection(quiet_s)
            elif self._session is Session.CONNECTED and quiet_s >= interval_s:
                try:
                    # `sync` goes through the leader, unlike a read.
                    async with asyncio.timeout(interval_s):
                        await self._ask("send a sign of life", "/", lambda: self._client.sync_async("/"))
                except (TimeoutError, CoordinationError) as error:
                    _log.info("no sign of life of %s: %s", self._place, error)
            await asyncio.sleep(interval_s / _POLLS_PER_BEAT)

    def _drop_connection(self, quiet_s: float) -> None:
        _log.warning("ZooKeeper at %s has been silent for %.1f s: connecting again", self._place, quiet_s)
        self._alive_s = self._loop.time()
        drop_connection(self._client)

    # -- kazoo --------------------------------------------------------------------------------------------------

    def _post(self, callback: Callable[..., None], *args: object) -> None:
        """Call a function in the event loop; from kazoo's threads."""
        try:
            self._loop.call_soon_threadsafe(callback, *args)
        except RuntimeError:  # The loop is closed: nothing waits for this any more.
            _log.debug("an event of ZooKeeper came after the end of the event loop")

    def _connected(self, session_id: int, timeout_s: float) -> None:
        if self._session is Session.EXPIRED:
            return
        self._session_id = session_id
        self._timeout_s = timeout_s
        # When the connect request was sent is not known, so `heard_s` waits for the next request.
        self._alive_s = self._loop.time()
        self._set_session(Session.CONNECTED)

    def _suspended(self) -> None:
        self._set_session(Session.SUSPENDED)

    def _ended(self, is_refused: bool) -> None:
        if is_refused:
            self._failure = translated(
                PermissionError("the servers refuse the credentials"), "open a session", "/", False
            )
        self._set_session(Session.EXPIRED)

    def _set_session(self, session: Session) -> bool:
        has_changed = super()._set_session(session)
        if has_changed and session is Session.EXPIRED:
            self._throw_away()
        return has_changed

    def _throw_away(self) -> None:
        """Stop kazoo's threads, in a thread: it waits for them."""
        if self._stopping is not None:
            return
        self._beats.cancel()
        stopping = self._stopping = self._loop.create_future()

        def stopped() -> None:
            if not stopping.done():
                stopping.set_result(None)

        def stop() -> None:
            try:
                self._client.stop()
                self._client.close()
            except Exception:  # noqa: BLE001  # kazoo names no errors of this; the client is not used again
                _log.warning("kazoo did not stop cleanly", exc_info=True)
            self._post(stopped)

        threading.Thread(target=stop, name="zookeeper-close", daemon=True).start()

    async def close(self) -> None:
        """See `CoordinationStore.close`."""
        self._is_closed = True
        self._throw_away()
        self._set_session(Session.EXPIRED)
        assert self._stopping is not None
        await asyncio.wait((self._stopping,), timeout=self._settings.close_timeout_s)


class _PostedEvents:
    """`SessionEvents` of a session, each handled in its event loop."""

    def __init__(self, session: ZooKeeperSession) -> None:
        self._session = session

    def connected(self, session_id: int, timeout_s: float) -> None:
        """See `SessionEvents.connected`."""
        self._session._post(self._session._connected, session_id, timeout_s)

    def suspended(self) -> None:
        """See `SessionEvents.suspended`."""
        self._session._post(self._session._suspended)

    def ended(self, is_refused: bool) -> None:
        """See `SessionEvents.ended`."""
        self._session._post(self._session._ended, is_refused)


def _settle(answer: asyncio.Future[Any], result: IAsyncResult) -> None:
    if answer.done():
        return
    if result.exception is not None:
        answer.set_exception(result.exception)
    else:
        answer.set_result(result.value)


def _node(content: bytes, stat: ZnodeStat) -> Node:
    return Node(content, stat.version, stat.mzxid, stat.ephemeralOwner, stat.czxid)
