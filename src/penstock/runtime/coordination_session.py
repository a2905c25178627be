"""`SessionState`: what all implementations of `CoordinationStore` have in common: the session's state, and waits."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from penstock.model.errors.coordination import CoordinationUnavailableError, NoSuchNodeError, SessionExpiredError
from penstock.runtime.coordination import Children, Node, Session
from penstock.runtime.coordination_watches import Post, Watches

_log = logging.getLogger(__name__)

#: Pause after a watch could not be set although the session is CONNECTED.
_WATCH_RETRY_S = 0.1


class SessionState:
    """See the module. `place`: the service, for messages; `timeout_s`: the requested timeout of the session."""

    def __init__(self, place: str, timeout_s: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._place_text = place
        self._session = Session.SUSPENDED
        self._session_id = 0
        self._timeout_s = timeout_s
        self._heard_s = self._loop.time()
        self._request_count = 0
        #: Whether this process has ended the session; otherwise the service has.
        self._is_closed = False
        self._watches = Watches()
        self._state_waiters: set[asyncio.Future[None]] = set()

    @property
    def session(self) -> Session:
        """See `CoordinationStore.session`."""
        return self._session

    @property
    def session_id(self) -> int:
        """See `CoordinationStore.session_id`."""
        return self._session_id

    @property
    def session_timeout_s(self) -> float:
        """See `CoordinationStore.session_timeout_s`."""
        return self._timeout_s

    @property
    def heard_s(self) -> float:
        """See `CoordinationStore.heard_s`."""
        return self._heard_s

    @property
    def request_count(self) -> int:
        """See `CoordinationStore.request_count`."""
        return self._request_count

    async def session_changed(self, seen: Session) -> Session:
        """See `CoordinationStore.session_changed`."""
        while self._session is seen and self._session is not Session.EXPIRED:
            waiter: asyncio.Future[None] = self._loop.create_future()
            self._state_waiters.add(waiter)
            try:
                await waiter
            finally:
                self._state_waiters.discard(waiter)
        return self._session

    async def _wait_until_changed(
        self,
        path: str,
        seen: Node | Children | None,
        watched: Callable[[Callable[[object], None]], Awaitable[int | None]],
        post: Post,
    ) -> None:
        """Implement `CoordinationStore.changed`.

        `watched`: returns the zxid of the node or of its children, None if it is absent, and sets a watch that calls
        its argument. `post`: runs a callback in the event loop.
        """
        seen_zxid = None if seen is None else seen.zxid
        with self._watches.waiting(path, isinstance(seen, Children), post) as (watch, waiter):
            while self._session is Session.CONNECTED:
                try:
                    zxid = await watched(watch.fire)
                except NoSuchNodeError:
                    return  # Children were seen of it, so it was deleted.
                except CoordinationUnavailableError:
                    await asyncio.sleep(_WATCH_RETRY_S)
                    continue
                if zxid != seen_zxid:
                    return
                break
            if self._session is not Session.EXPIRED:
                await waiter
        while self._session is Session.SUSPENDED:
            await self.session_changed(Session.SUSPENDED)
        if self._session is Session.EXPIRED:
            raise self._expired()

    def _set_session(self, session: Session) -> bool:
        """Enter a state, and end all waits. Return whether the state was another one."""
        if self._session in (session, Session.EXPIRED):
            return False
        state = "closed" if self._is_closed and session is Session.EXPIRED else session.value
        _log.info("session %#x at %s is %s", self._session_id, self._place_text, state)
        self._session = session
        for waiter in self._state_waiters:
            if not waiter.done():
                waiter.set_result(None)
        self._watches.fire_all()
        return True

    def _demand_connected(self, what: str) -> None:
        if self._session is Session.EXPIRED:
            raise self._expired()
        if self._session is Session.SUSPENDED:
            raise CoordinationUnavailableError(f"cannot {what}: no server at {self._place_text} is reached")

    def _expired(self) -> SessionExpiredError:
        return SessionExpiredError(f"session {self._session_id:#x} at {self._place_text} has ended: open another one")
