"""`StreamQueries`: reads streams' configurations and their current and past segments. It changes nothing.

Source: controller-api 9.4, 9.11 and 9.13.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from penstock.controller import epochs as epoch_changes
from penstock.controller.errors import HalfCreatedStreamError, UnknownCutSegmentError
from penstock.controller.metadata.catalog import Catalog
from penstock.controller.metadata.history_records import HistoryEntry
from penstock.controller.metadata.records import EpochRecord, SegmentRecord, StreamState
from penstock.controller.metadata.stream_tables import StreamTables
from penstock.controller.steps import in_turns, pages
from penstock.controller.stream_cuts import Between, epoch_bounds, is_equal_or_after
from penstock.controller.stream_positions import (
    at_epoch,
    beginning_of,
    position_of,
    segments_between,
    valid_position_of,
)
from penstock.controller.watermarks.mark_streams import MARK_CONFIGURATION, marked_stream, read_mark_segment
from penstock.controller.workflows.scale_stream import ScaleStatus, scale_status
from penstock.model.errors import InvalidArgumentError, NoSuchStreamError
from penstock.model.policies import StreamConfig

T = TypeVar("T")

#: Bounds of one page of history: epochs, and segments that they end and create.
HISTORY_EPOCHS_MAX = 1000
HISTORY_SEGMENTS_PER_PAGE = 20_000


@dataclass(frozen=True, slots=True)
class SegmentPosition:
    """A segment and an offset in bytes in it."""

    segment: int
    offset: int


@dataclass(frozen=True, slots=True)
class HistoryPage:
    """Successive epochs of a stream, oldest first; the first one with all of its segments as created."""

    entries: Sequence[HistoryEntry]
    current_epoch: int
    is_sealed: bool


class StreamQueries:
    """Reads streams. Every call raises `NoSuchStreamError`, and `InvalidArgumentError` for an empty name."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog

    async def on_stream(self, scope: str, stream: str, action: Callable[[StreamTables], Awaitable[T]]) -> T:
        """Run `action` on a stream's records. It is called again if the stream was deleted and recreated meanwhile."""
        check_not_empty(scope, stream)
        return await self._catalog.on_stream(scope, stream, action)

    async def _on_stream_or_marked(
        self,
        scope: str,
        stream: str,
        read: Callable[[StreamTables], Awaitable[T]],
        read_marked: Callable[[StreamTables], Awaitable[T]],
    ) -> T:
        """`read` a stream; for a mark stream without records, answer from the stream that it belongs to."""
        try:
            return await self.on_stream(scope, stream, read)
        except NoSuchStreamError:
            marked = marked_stream(stream)
            if marked is None:
                raise
        return await self.on_stream(scope, marked, read_marked)

    async def exists(self, scope: str, stream: str) -> bool:
        """Say whether a stream has a configuration."""
        try:
            await self.configuration(scope, stream)
        except NoSuchStreamError:
            return False
        return True

    async def configuration(self, scope: str, stream: str) -> StreamConfig:
        """Return a stream's configuration. Raises `NoSuchStreamError`."""

        async def read(tables: StreamTables) -> StreamConfig:
            return (await tables.configuration()).record.configuration

        async def read_marked(tables: StreamTables) -> StreamConfig:
            await read_mark_segment(tables)
            return MARK_CONFIGURATION

        return await self._on_stream_or_marked(scope, stream, read, read_marked)

    async def identity(self, scope: str, stream: str) -> str:
        """Return the identity of the stream that has this name now: a UUID assigned at creation.

        Scaling, updates, sealing and truncation do not change it, and it is never reused. A mark stream has the
        identity of the stream that it belongs to. Raises `NoSuchStreamError`, also while the stream is being created.
        """

        async def read(tables: StreamTables) -> str:
            # The cached id may belong to a stream that another controller has deleted. Its tables show that.
            if (await tables.state()).record.state is StreamState.CREATING:
                raise NoSuchStreamError(f"stream {scope}/{stream} is not completely created")
            return tables.stream_id

        return await self._on_stream_or_marked(scope, stream, read, read)

    async def scale_status(self, scope: str, stream: str, epoch: int) -> ScaleStatus:
        """Return the status of the scale that began in `epoch`. Raises `NoSuchStreamError`."""
        return await self.on_stream(scope, stream, lambda tables: scale_status(tables, epoch))

    # Segments.

    async def current_segments(self, scope: str, stream: str) -> tuple[SegmentRecord, ...]:
        """Return the segments that accept events now, by key; none for a sealed stream.

        Raises `HalfCreatedStreamError` while the stream is being created.
        """

        async def read(tables: StreamTables) -> tuple[SegmentRecord, ...]:
            state, epoch = await tables.state_and_current_epoch()
            if state is StreamState.CREATING:
                raise HalfCreatedStreamError(f"stream {scope}/{stream} is not completely created; try again")
            return () if state is StreamState.SEALED else epoch.segments

        async def read_marked(tables: StreamTables) -> tuple[SegmentRecord, ...]:
            return ((await read_mark_segment(tables)).record,)

        return await self._on_stream_or_marked(scope, stream, read, read_marked)

    async def epoch_segments(self, scope: str, stream: str, epoch: int) -> tuple[SegmentRecord, ...]:
        """Return the segments of an epoch, by key."""
        if epoch < 0:
            raise InvalidArgumentError(f"epoch {epoch}: use 0 or more")

        async def read(tables: StreamTables) -> tuple[SegmentRecord, ...]:
            found = await tables.epoch(epoch)
            if found is None:
                raise NoSuchStreamError(f"stream {scope}/{stream} has no epoch {epoch}")
            return found.segments

        return await self.on_stream(scope, stream, read)

    async def segments_at(self, scope: str, stream: str, time_ms: int) -> list[SegmentRecord]:
        """Return the segments that accepted events at a time, in milliseconds of the wall clock, by key.

        For a time before the stream's creation: those of its first epoch. Truncated segments are omitted.
        """

        async def read(tables: StreamTables) -> list[SegmentRecord]:
            epoch = await tables.need_epoch(await tables.epoch_at(time_ms))
            beginning = await beginning_of(tables, (await tables.truncation()).record)
            within = await in_turns(Between.of([beginning], []))
            found: list[SegmentRecord] = []
            for segments in pages(epoch.segments):
                await asyncio.sleep(0)
                found.extend(filter(within.has, segments))
            return found

        return await self.on_stream(scope, stream, read)

    async def epochs(self, scope: str, stream: str, from_ms: int, to_ms: int, limit: int) -> list[EpochRecord]:
        """Return the epochs that were current at some time from `from_ms` to `to_ms`, the first `limit` of them.

        Empty when the end lies before the start. To continue, pass the next epoch's time as `from_ms`. The splits and
        merges of a scale are the difference from the previous epoch.
        """

        async def read(tables: StreamTables) -> list[EpochRecord]:
            if to_ms < from_ms or limit < 1:
                return []
            first = await tables.epoch_at(from_ms)
            return await tables.epochs(first, min(await tables.epoch_at(to_ms), first + limit - 1))

        return await self.on_stream(scope, stream, read)

    async def history(self, scope: str, stream: str, before: int | None, limit: int) -> HistoryPage:
        """Return the latest `limit` epochs, of those before `before` if that is given.

        There may be fewer, so that a reply stays small, but there is at least one. Raises `InvalidArgumentError` for a
        limit or an epoch below 1.
        """
        if limit < 1 or (before is not None and before < 1):
            raise InvalidArgumentError(f"history of {scope}/{stream}: {limit} epochs before {before}: use 1 or more")

        async def read(tables: StreamTables) -> HistoryPage:
            state, current = await tables.state_and_current_epoch()
            last = current.epoch if before is None else min(before - 1, current.epoch)
            first = max(0, last + 1 - min(limit, HISTORY_EPOCHS_MAX))
            while True:
                entries = await _history_entries(tables, first, last)
                if entries is not None:
                    return HistoryPage(entries, current.epoch, state is StreamState.SEALED)
                first = (first + last + 1) // 2

        async def read_marked(tables: StreamTables) -> HistoryPage:
            segment = (await read_mark_segment(tables)).record
            return HistoryPage([HistoryEntry(0, 0, (), (segment,), segment.created_ms)], 0, False)

        return await self._on_stream_or_marked(scope, stream, read, read_marked)

    async def head(self, scope: str, stream: str) -> list[SegmentPosition]:
        """Return the start of the stream."""

        async def read(tables: StreamTables) -> list[SegmentPosition]:
            state, truncation, first = await tables.beginning()
            if state is StreamState.CREATING:
                # Its segments may not exist yet: a reader would take them for deleted.
                raise NoSuchStreamError(f"stream {scope}/{stream} is not completely created")
            if truncation.stream_cut:
                return [SegmentPosition(segment, offset) for segment, offset in truncation.stream_cut.items()]
            return [SegmentPosition(segment.id, 0) for segment in first.segments]

        return await self.on_stream(scope, stream, read)

    async def successors(self, scope: str, stream: str, segment: int) -> list[epoch_changes.Successor]:
        """Return the segments that follow a sealed one; none if no successor is recorded.

        That is the case for an active segment, the last segments of a sealed stream, and an unknown segment.
        """

        async def read(tables: StreamTables) -> list[epoch_changes.Successor]:
            sealed_epoch = await tables.sealed_epoch(segment)
            if sealed_epoch is None:
                return []
            this, before = await tables.epoch_pair(sealed_epoch)
            origin = None if before is None else before.segment(segment)
            if this is None or before is None or origin is None:
                raise NoSuchStreamError(f"stream {scope}/{stream} has no records of the end of segment {segment}")
            return await in_turns(epoch_changes.successors(origin, this, before))

        return await self.on_stream(scope, stream, read)

    async def segments_between(
        self, scope: str, stream: str, start: Mapping[int, int], end: Mapping[int, int]
    ) -> list[SegmentRecord]:
        """Return the segments between two stream cuts, by id. An empty cut means that end of the stream."""
        if not start and not end:
            raise InvalidArgumentError("both stream cuts are empty")

        async def read(tables: StreamTables) -> list[SegmentRecord]:
            current = await tables.current_epoch()
            newest = max(epoch_bounds(cut)[1] for cut in (start, end) if cut)
            if newest > current.epoch:
                raise InvalidArgumentError(
                    f"the stream cuts reach to epoch {newest}, {scope}/{stream} is in {current.epoch}"
                )
            # Truncated data is excluded even if the cut includes it.
            starts = [await beginning_of(tables, (await tables.truncation()).record)]
            if start:
                starts.append(await position_of(tables, start))
            until = await position_of(tables, end) if end else at_epoch(current)
            if start and end and not await in_turns(is_equal_or_after(until, starts[-1])):
                raise InvalidArgumentError("the end of the range is before its start")
            return [found async for page in segments_between(tables, starts, until) for found in page]

        return await self.on_stream(scope, stream, read)

    async def is_segment_valid(self, scope: str, stream: str, segment: int) -> bool:
        """Say whether the segment accepts events now; False for a missing or incomplete stream."""
        check_not_empty(scope, stream)
        try:
            return any(found.id == segment for found in await self.current_segments(scope, stream))
        except (NoSuchStreamError, HalfCreatedStreamError):
            return False

    async def is_stream_cut_valid(self, scope: str, stream: str, cut: Mapping[int, int]) -> bool:
        """Say whether a cut covers the stream's keys exactly once. Raises `InvalidArgumentError` for an empty one."""
        epoch_bounds(cut)

        async def read(tables: StreamTables) -> bool:
            try:
                return await valid_position_of(tables, cut) is not None
            except UnknownCutSegmentError:
                # A segment that the stream never had: clients repeat a call that fails, but not one that says no.
                return False

        return await self.on_stream(scope, stream, read)


async def _history_entries(tables: StreamTables, first: int, last: int) -> list[HistoryEntry] | None:
    """Return the epochs from `first` to `last`, the first one with all of its segments.

    None if they are too large for a reply, unless it is a single epoch.
    """
    epoch = await tables.need_epoch(first)
    found = [HistoryEntry(first, epoch.reference_epoch, (), epoch.segments, epoch.created_ms)]
    times = {entry.epoch: entry async for entry in tables.history(first, last)}
    count = len(epoch.segments)
    async for page in tables.changes(first, last):
        for change in page:
            entry = times[change.epoch]
            sealed, created = tuple(change.sealed), tuple(change.created)
            found.append(HistoryEntry(change.epoch, entry.reference_epoch, sealed, created, entry.created_ms))
            count += len(sealed) + len(created)
        if count > HISTORY_SEGMENTS_PER_PAGE and first < last:
            return None
    return found


def check_not_empty(scope: str, stream: str) -> None:
    """Raise `InvalidArgumentError` if one of the names is empty."""
    if not scope or not stream:
        raise InvalidArgumentError(f"scope {scope!r}, stream {stream!r}: neither may be empty")
