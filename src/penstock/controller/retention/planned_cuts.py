"""`PlannedCuts`: the recorded cuts of a stream, and one more that an inspection would record now.

With it the effect of an inspection can be determined without changing anything.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from penstock.controller.metadata.retention_records import RetentionEntry, StreamCutRecord
from penstock.controller.metadata.retention_tables import RetentionTables


class PlannedCuts:
    """See the module. `planned` is later, and not smaller, than all recorded cuts; None: there is none."""

    def __init__(self, recorded: RetentionTables, planned: StreamCutRecord | None) -> None:
        self._recorded = recorded
        self._planned = planned

    async def newest(self) -> RetentionEntry | None:
        """See `RetentionTables.newest`."""
        return await self._recorded.newest() if self._planned is None else self._planned.entry

    async def last_recorded_until(self, time_ms: int) -> RetentionEntry | None:
        """See `RetentionTables.last_recorded_until`."""
        if self._planned is not None and self._planned.recorded_ms <= time_ms:
            return self._planned.entry
        return await self._recorded.last_recorded_until(time_ms)

    async def last_with_at_most(self, size_bytes: int) -> RetentionEntry | None:
        """See `RetentionTables.last_with_at_most`."""
        if self._planned is not None and self._planned.size_bytes <= size_bytes:
            return self._planned.entry
        return await self._recorded.last_with_at_most(size_bytes)

    async def first_behind_time(self, time_ms: int) -> RetentionEntry | None:
        """See `RetentionTables.first_behind`."""
        found = await self._recorded.first_behind(time_ms=time_ms)
        if found is None and self._planned is not None and self._planned.recorded_ms > time_ms:
            return self._planned.entry
        return found

    async def first_behind_size(self, size_bytes: int) -> RetentionEntry | None:
        """See `RetentionTables.first_behind`."""
        found = await self._recorded.first_behind(size_bytes=size_bytes)
        if found is None and self._planned is not None and self._planned.size_bytes > size_bytes:
            return self._planned.entry
        return found

    async def last_that(self, holds: Callable[[StreamCutRecord], Awaitable[bool]]) -> StreamCutRecord | None:
        """See `RetentionTables.last_that`."""
        if self._planned is not None and await holds(self._planned):
            return self._planned
        return await self._recorded.last_that(holds)

    async def cut_of(self, entry: RetentionEntry) -> StreamCutRecord | None:
        """See `RetentionTables.cut_of`."""
        if self._planned is not None and entry == self._planned.entry:
            return self._planned
        return await self._recorded.cut_of(entry)
