"""`SharedWrites`: concurrent writes of records of one table share a request."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from penstock.controller.container_waits import waiting_for
from penstock.controller.locks import StreamLocks
from penstock.controller.metadata.store import MetadataStore, Write
from penstock.model.errors import MetadataConflictError, OutcomeUnknownError, PenstockError


@dataclass(eq=False, slots=True)
class _Asked:
    """A write, and its outcome: the new version or an error, or neither yet."""

    write: Write
    version: int | None = None
    error: PenstockError | None = None

    @property
    def is_done(self) -> bool:
        return self.version is not None or self.error is not None


class SharedWrites:
    """Writes requested while a write of the same table is in progress share the next request, whatever they require.

    At most `writes_max` share one request. If the condition of one fails, each of the writes is repeated separately.
    Each waiter is a call in progress, so the queue is as long as there are such calls.
    """

    def __init__(self, store: MetadataStore, writes_max: int) -> None:
        self._store = store
        self._writes_max = writes_max
        self._locks = StreamLocks()
        self._asked: dict[str, list[_Asked]] = {}

    async def put(self, table: str, write: Write) -> int:
        """Make one write; return the new version. Errors as of `MetadataStore.put`.

        If it is cancelled, it may have been applied, and the outcome of the writes in the same request is unknown.
        """
        mine = _Asked(write)
        self._asked.setdefault(table, []).append(mine)
        try:
            with waiting_for(table):
                async with self._locks.hold(table):
                    while not mine.is_done:
                        await self._write(table, self._next(table))
        finally:
            if not mine.is_done and mine in self._asked.get(table, ()):
                self._forget(table, [mine])
        if mine.error is not None:
            raise mine.error
        assert mine.version is not None
        return mine.version

    def _next(self, table: str) -> list[_Asked]:
        """Take the next writes out of the queue, at most one per key."""
        taken: dict[str, _Asked] = {}
        for asked in self._asked[table]:
            if len(taken) == self._writes_max:
                break
            taken.setdefault(asked.write.key, asked)
        self._forget(table, list(taken.values()))
        return list(taken.values())

    def _forget(self, table: str, gone: list[_Asked]) -> None:
        left = [asked for asked in self._asked[table] if asked not in gone]
        if left:
            self._asked[table] = left
        else:
            del self._asked[table]

    async def _write(self, table: str, batch: list[_Asked]) -> None:
        try:
            versions = await self._store.put(table, [asked.write for asked in batch])
        except PenstockError as error:
            if len(batch) > 1 and isinstance(error, MetadataConflictError):
                await asyncio.gather(*(self._write(table, [asked]) for asked in batch))
                return
            for asked in batch:
                asked.error = error
        except BaseException:
            for asked in batch:
                if not asked.is_done:
                    asked.error = OutcomeUnknownError(f"a write to {table} was interrupted when its caller ended")
            raise
        else:
            for asked, version in zip(batch, versions, strict=True):
                asked.version = version
