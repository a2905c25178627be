"""`Announcements`: work that was begun, who has to finish it, and who must not any more.

The announcement of a piece of work is its lock and its fence. There is one row per name; it is written on condition
that there is none, passes to another owner by compare-and-set, and is removed on condition that it is still the
remover's. What arrives late does nothing: a removal or a take-over has a version that is gone, and a request to
announce also writes the fence of the name's bucket, whose version has moved on since.

Why it is safe, case by case: ``docs/controller.md``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from penstock.controller.errors import WorkElsewhereError
from penstock.controller.locks import StreamLocks
from penstock.controller.metadata import layout
from penstock.controller.metadata.records import AnnouncementFence, PendingWork
from penstock.controller.metadata.scope_records import PendingChildWork
from penstock.controller.metadata.typed import Tables, Versioned
from penstock.controller.retry import delay_s
from penstock.controller.settings import ControllerSettings
from penstock.model.checksum import crc32c
from penstock.model.errors import MetadataConflictError, OutcomeUnknownError
from penstock.model.segments import VERSION_ABSENT

W = TypeVar("W", PendingWork, PendingChildWork)
_logger = logging.getLogger(__name__)

#: Rows that all announcements of a table share as fences; few enough to be read in passing, enough not to be a queue.
FENCE_COUNT = 64


@dataclass(frozen=True, slots=True)
class Announcement(Generic[W]):
    """An announcement that this controller owns, and the version of its row: proof of the ownership."""

    key: str
    work: W
    version: int


class Announcements(Generic[W]):
    """The announcements of one table, as the controller `host` sees them.

    A host's name sorts behind those of all controllers that started before it.
    """

    def __init__(self, tables: Tables, table: str, kind: type[W], settings: ControllerSettings) -> None:
        self._tables = tables
        self._table = table
        self._kind: type[W] = kind
        self._settings = settings
        self._locks = StreamLocks()
        #: Keys of announcements that are this controller's, or may be, as far as it knows.
        self._unfinished: set[str] = set()

    def is_unfinished(self, key: str) -> bool:
        """Say whether this controller has announced something there, or taken it over, and not withdrawn it."""
        return key in self._unfinished

    async def announce(self, key: str, work: W) -> Announcement[W] | None:
        """Announce `work`; return None when something else is announced there.

        Raises `OutcomeUnknownError` when even repeated attempts have shown nothing: `is_unfinished` is true then.
        """
        fence = layout.fence_key(crc32c(key.encode(), 0) % FENCE_COUNT)
        async with self._locks.hold(fence):
            attempt = 1
            while True:
                found, version = await self._look(key, fence)
                if found is not None:
                    # After a lost reply it may be this very announcement.
                    if found.record.work_id != work.work_id:
                        self._unfinished.discard(key)
                        return None
                    return Announcement(key, found.record, found.version)
                count = AnnouncementFence(1 if version is None else version.record.count + 1)
                expected = VERSION_ABSENT if version is None else version.version
                self._unfinished.add(key)
                try:
                    written = await self._tables.put_all(
                        self._table, [(key, work, VERSION_ABSENT), (fence, count, expected)]
                    )
                except (MetadataConflictError, OutcomeUnknownError):
                    if attempt == self._settings.conflict_attempts_max:
                        raise
                    await asyncio.sleep(delay_s(self._settings, attempt))
                    attempt += 1
                else:
                    return Announcement(key, work, written[0])

    async def _look(self, key: str, fence: str) -> tuple[Versioned[W] | None, Versioned[AnnouncementFence] | None]:
        row, fence_row = await self._tables.get_rows(self._table, [key, fence])
        return (
            self._tables.decoded(self._table, row, self._kind),
            self._tables.decoded(self._table, fence_row, AnnouncementFence),
        )

    async def claim(self, key: str, host: str) -> Announcement[W] | None:
        """Return what is announced, as `host`'s own; None if nothing is.

        What belongs to an earlier controller is taken over: whatever that one still does on condition of its version
        fails from then on. Raises `WorkElsewhereError` for work of a controller that has started later.
        """
        for _ in range(self._settings.conflict_attempts_max):
            found = await self._tables.get(self._table, key, self._kind)
            if found is None:
                self._unfinished.discard(key)
                return None
            if found.record.host == host:
                self._unfinished.add(key)
                return Announcement(key, found.record, found.version)
            if found.record.host > host:
                self._unfinished.discard(key)
                raise WorkElsewhereError(
                    f"{key}: a controller that started later ({found.record.host}) is at work on it; ask that one"
                )
            taken = replace(found.record, host=host)
            try:
                version = await self._tables.put(self._table, key, taken, version=found.version)
            except (MetadataConflictError, OutcomeUnknownError):
                continue
            _logger.info("%s: took over what controller %s had begun", key, found.record.host)
            self._unfinished.add(key)
            return Announcement(key, taken, version)
        raise MetadataConflictError(f"{key}: what is announced keeps changing; try again")

    async def confirm(self, announcement: Announcement[W]) -> None:
        """Raise `MetadataConflictError` unless the announcement is still there and still this controller's."""
        found = await self._tables.get(self._table, announcement.key, self._kind)
        if found is None or found.version != announcement.version:
            self._unfinished.discard(announcement.key)
            raise MetadataConflictError(f"{announcement.key}: another controller has taken this work over")

    async def withdraw(self, announcement: Announcement[W]) -> None:
        """Note that the work is finished. One that is not this controller's any more is left alone."""
        key, attempt = announcement.key, 1
        while True:
            try:
                await self._tables.remove_version(self._table, key, announcement.version)
            except MetadataConflictError:
                _logger.debug("%s: the announcement was withdrawn or taken over before", key)
            except OutcomeUnknownError:
                # Asked again it is a conflict at worst: its version never comes back.
                if attempt == self._settings.attempts_max:
                    raise
                await asyncio.sleep(delay_s(self._settings, attempt))
                attempt += 1
                continue
            self._unfinished.discard(key)
            return

    async def keys(self) -> AsyncIterator[str]:
        """Yield the key of everything that is announced."""
        async for row in self._tables.walk_rows(self._table):
            if "/" in row.key:
                yield row.key
