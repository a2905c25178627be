"""`KeptSession`: a session with a coordination service that is replaced by another one when it has ended."""

from __future__ import annotations

import asyncio
import logging

from penstock.model.errors.coordination import CoordinationError
from penstock.runtime.coordination import CoordinationService, CoordinationStore, Session

_log = logging.getLogger(__name__)


class KeptSession:
    """See the module. `retry_s`: pause after a session could not be opened."""

    def __init__(self, service: CoordinationService, what: str, retry_s: float = 0.5) -> None:
        self._service = service
        self._what = what
        self._retry_s = retry_s
        self._store: CoordinationStore | None = None
        self._changed = asyncio.Event()
        self._problem = ""

    @property
    def store(self) -> CoordinationStore | None:
        """The present session, in any state; None while another one is being opened."""
        return self._store

    @property
    def problem(self) -> str:
        """Why there is no session that is CONNECTED, for messages; empty if there is one."""
        if self._store is not None and self._store.session is Session.CONNECTED:
            return ""
        return self._problem or f"no server of the coordination service at {self._service.place} is reached"

    async def connected(self) -> CoordinationStore:
        """Wait for a session that is CONNECTED, and return it."""
        while True:
            store = self._store
            if store is None:
                self._changed.clear()
                await self._changed.wait()
            elif (seen := store.session) is Session.CONNECTED:
                return store
            elif seen is Session.EXPIRED:
                self._changed.clear()
                await self._changed.wait()
            else:
                await store.session_changed(seen)

    async def run(self) -> None:
        """Keep a session open until cancelled; then end it."""
        while True:
            try:
                store = await self._service.open_session()
            except CoordinationError as error:
                if str(error) != self._problem:
                    _log.warning("%s has no session: %s", self._what, error)
                self._problem = str(error)
                await asyncio.sleep(self._retry_s)
                continue
            self._problem = ""
            self._store = store
            self._changed.set()
            try:
                while (seen := store.session) is not Session.EXPIRED:
                    await store.session_changed(seen)
                _log.warning("%s: session %#x has ended, another one is opened", self._what, store.session_id)
            finally:
                self._store = None
                await store.close()
