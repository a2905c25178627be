"""`RecordStore`: reads and changes records of logs in the coordination service, each change with a known outcome.

A change without an answer is neither a success nor a failure, and may be made later. Each change here is conditional on
the version that was read, and carries a nonce. It is repeated until the node shows whether it was made.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass

from penstock.model.errors import LogClosedError, StorageConflictError
from penstock.model.errors.coordination import (
    CoordinationOutcomeUnknownError,
    CoordinationUnavailableError,
    NodeExistsError,
    NodeVersionError,
    NoSuchNodeError,
    SessionExpiredError,
)
from penstock.runtime.coordination import CheckNode, CoordinationService, ensure_node, parent_of
from penstock.runtime.kept_session import KeptSession
from penstock.segmentstore.tier1.bookkeeper.log_record import LogRecord, record_path

_log = logging.getLogger(__name__)

#: No version: the node does not exist.
_ABSENT = -1
#: Errors after which a request is repeated. Other ones are not expected to pass.
_PASSING = (CoordinationUnavailableError, CoordinationOutcomeUnknownError, SessionExpiredError)


@dataclass(frozen=True, slots=True)
class StoredLogRecord:
    """A record, and the version of its node."""

    record: LogRecord
    version: int


class RecordStore:
    """The records of one cluster. `cluster_id`: records of another cluster are refused; empty accepts any.

    Call `start` in the loop that uses it, and `close` at the end. Requests wait while no server is reached.
    """

    def __init__(self, service: CoordinationService, cluster_id: str, retry_s: float) -> None:
        self.cluster_id: str = cluster_id
        self._service = service
        self._retry_s = retry_s
        self._sessions = KeptSession(service, "the log in BookKeeper", retry_s)
        self._running: asyncio.Task[None] | None = None
        self._is_closed = False

    @property
    def place(self) -> str:
        """The coordination service, for messages."""
        return self._service.place

    @property
    def problem(self) -> str:
        """Why the coordination service is not reached; empty: it is, or was not needed yet."""
        return self._sessions.problem if self._running is not None else ""

    def start(self) -> None:
        """Keep a session open from now on. Does nothing if it does already."""
        if self._is_closed:
            raise LogClosedError("the log in BookKeeper is closed")
        if self._running is None:
            self._running = asyncio.get_running_loop().create_task(self._sessions.run(), name="session of the logs")

    async def close(self) -> None:
        """End the session. Idempotent."""
        self._is_closed = True
        if self._running is not None:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)

    async def read(self, container_id: int) -> StoredLogRecord | None:
        """Return a container's record; None if it was never opened. It may be out of date: a change finds out.

        Raises `CorruptionError`, `LaterVersionError`, `LogIdentityError`, `CoordinationRefusedError`.
        """
        self.start()
        path = record_path(container_id)
        while True:
            store = await self._sessions.connected()
            try:
                node = await store.get(path)
            except NoSuchNodeError:
                return None
            except _PASSING as error:
                await self._pause("a read of a record", error)
                continue
            return StoredLogRecord(LogRecord.decode(node.content, path, container_id, self.cluster_id), node.version)

    async def change(self, before: StoredLogRecord | None, record: LogRecord) -> StoredLogRecord:
        """Replace a record if it is still as it was read (None: absent). `record` has a new nonce.

        Returns when the outcome is certain. Raises `StorageConflictError` if another process has changed it.
        """
        self.start()
        path, content = record_path(record.container_id), record.encode()
        expected = _ABSENT if before is None else before.version
        while True:
            store = await self._sessions.connected()
            try:
                if before is None:
                    await ensure_node(store, parent_of(path))
                    await store.create(path, content)
                    return StoredLogRecord(record, 0)
                return StoredLogRecord(record, await store.set(path, content, before.version))
            except (NodeVersionError, NodeExistsError):
                pass  # Perhaps by this change, if its first answer was lost.
            except NoSuchNodeError as error:
                raise StorageConflictError(path, f"the record is missing in {self.place}") from error
            except _PASSING as error:
                await self._pause("a change of a record", error)
            found = await self.read(record.container_id)
            version = _ABSENT if found is None else found.version
            if found is not None and found.record.nonce == record.nonce:
                return found
            if version > expected:
                raise StorageConflictError(path, "another process has changed the record of the log meanwhile")
            # Not made, or not made yet, or a server that lags has answered: the same condition holds once at most.

    async def check(self, stored: StoredLogRecord) -> bool:
        """Return whether the record is still this one, by a request that the quorum of the service answers.

        Raises `CoordinationError` at once if it is not known.
        """
        self.start()
        store = self._sessions.store
        if store is None:
            raise CoordinationUnavailableError(self._sessions.problem)
        try:
            await store.multi([CheckNode(record_path(stored.record.container_id), stored.version)])
        except (NodeVersionError, NoSuchNodeError):
            return False
        return True

    async def _pause(self, what: str, error: Exception) -> None:
        _log.info("%s in %s is repeated: %s", what, self.place, error)
        await asyncio.sleep(self._retry_s)
