"""`Watermarks`: makes watermarks from the times that writers note, in a cycle over the streams that have such times.

All other state is in the segment of watermarks; only the times since when writers lag are kept in memory. Two
controllers may inspect one stream at once: each step is conditional. See ``docs/watermarks.md``.

Source: controller-internals 15.2 (PeriodicWatermarking).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field

from penstock.controller.metadata.catalog import Catalog
from penstock.controller.metadata.listed_streams import ListedStream
from penstock.controller.metadata.marked_streams import MarkedStreams
from penstock.controller.metadata.records import SegmentRecord, WriterMark
from penstock.controller.metadata.stream_tables import StreamTables
from penstock.controller.ownership.buckets import Buckets
from penstock.controller.segment_requests import SegmentRequests
from penstock.controller.settings import WatermarkSettings
from penstock.controller.stream_positions import beginning_of, position_of
from penstock.controller.stream_scanner import CyclePace, StreamScanner
from penstock.controller.watermarks.mark_log import MarkLog, MarkLogEnd
from penstock.controller.watermarks.mark_streams import read_mark_segment
from penstock.controller.watermarks.watermark_rules import (
    greatest_offsets,
    is_at_or_before,
    make_watermark,
    records_of,
    sort_writers,
)
from penstock.controller.watermarks.writer_marks import all_marks, forget_marks
from penstock.model.errors import InvalidArgumentError
from penstock.model.names import segment_epoch

_logger = logging.getLogger(__name__)


class _RollUnderWayError(Exception):
    """A mark lies in an epoch that is about to be recorded: the stream is inspected again in the next cycle."""


@dataclass(slots=True)
class _Seen:
    """State kept for one stream: since when writers lag; the head for which watermarks were last truncated."""

    behind_since_s: Mapping[str, float] = field(default_factory=dict)
    head: Mapping[int, int] = field(default_factory=dict)


class Watermarks:
    """See the module. `run` it as a task; it continues whatever error a stream or a store causes.

    It inspects the streams in this controller's `buckets`.
    """

    def __init__(
        self,
        catalog: Catalog,
        marked: MarkedStreams,
        segments: SegmentRequests,
        buckets: Buckets,
        settings: WatermarkSettings,
    ) -> None:
        self._marked = marked
        self._segments = segments
        self._settings = settings
        pace = CyclePace(
            settings.interval_s, settings.streams_at_once, settings.stream_timeout_s, "watermarks.stream_timeout_s"
        )
        self._cycle = StreamScanner("watermarks", catalog, marked, buckets, pace, _Seen, self._inspect)

    async def run(self) -> None:
        """Make watermarks until cancelled."""
        await self._cycle.run()

    async def cycle(self) -> None:
        """Inspect each stream once. Raises errors of reading the list of streams, not those of a stream."""
        await self._cycle.once()

    async def _inspect(self, tables: StreamTables, listed: ListedStream, seen: _Seen) -> None:
        found = await all_marks(tables)
        if not found:
            # A writer that arrives from now on changes the version of the entry, so the entry is not removed.
            await self._marked.remove(listed)
            return
        policy = (await tables.configuration()).record.configuration
        log = MarkLog(self._segments, (await read_mark_segment(tables)).name)
        end = await log.end()
        writers = sort_writers(
            {writer: mark.record for writer, mark in found.items()},
            end.last,
            seen.behind_since_s,
            asyncio.get_running_loop().time(),
            policy.timestamp_aggregation_timeout_ms / 1000,
        )
        seen.behind_since_s = writers.awaited
        useless = set(writers.gone)
        if writers.is_due:
            useless |= await self._make(tables, log, end, writers.participating)
        await forget_marks(tables, {writer: mark for writer, mark in found.items() if writer in useless})
        await self._truncate(tables, log, end, seen)

    async def _make(
        self, tables: StreamTables, log: MarkLog, end: MarkLogEnd, participating: Mapping[str, WriterMark]
    ) -> set[str]:
        """Make a watermark if one is due; return the writers whose positions are not in the stream."""
        strangers: set[str] = set()
        records: dict[int, SegmentRecord] = {}
        try:
            records.update(await _records(tables, greatest_offsets(participating.values(), None)))
        except _RollUnderWayError:
            return strangers
        except InvalidArgumentError:
            for writer, mark in participating.items():
                try:
                    records.update(await _records(tables, mark.position))
                except _RollUnderWayError:
                    return strangers
                except InvalidArgumentError as error:
                    strangers.add(writer)
                    _logger.warning("the mark of writer %s on %s is removed: %s", writer, tables.name, error)
        marks = [mark for writer, mark in participating.items() if writer not in strangers]
        if not marks:
            return strangers
        newest = max(segment_epoch(segment) for segment in {**records, **records_of(end.last)})
        made = make_watermark(marks, end.last, records, await tables.need_epoch(newest))
        if made is not None and await log.append(end, made):
            _logger.debug("stream %s: watermark from %d to %d", tables.name, made.lower_bound, made.upper_bound)
        return strangers

    async def _truncate(self, tables: StreamTables, log: MarkLog, end: MarkLogEnd, seen: _Seen) -> None:
        """Truncate watermarks that no reader needs: those whose successor is not after the stream's head either."""
        truncation = (await tables.truncation()).record
        head = truncation.stream_cut
        if not head or head == seen.head:
            return
        position = await beginning_of(tables, truncation)
        limit = min(end.length, end.start_offset + self._settings.truncation_bytes_max)
        passed = end.start_offset
        is_done = limit == end.length
        async for offset, watermark in log.entries(end.start_offset, limit):
            if not is_at_or_before(watermark, head, position.records):
                is_done = True
                break
            passed = offset
        if passed > end.start_offset:
            await log.truncate(passed)
        if is_done:
            seen.head = head


async def _records(tables: StreamTables, position: Mapping[int, int]) -> Mapping[int, SegmentRecord]:
    """Return the records of a position's segments. Raises `InvalidArgumentError` if one never was in the stream.

    A writer learns of an epoch only after its record was written, so a missing epoch does not exist. The exception is a
    rolling commit, which notes times in an epoch that it has not recorded yet: this raises `_RollUnderWayError`.
    """
    newest = segment_epoch(max(position))
    if await tables.epoch(newest) is None:
        active = (await tables.commit_view()).committing.record.active_epoch
        if active is not None and newest == active + 1:
            raise _RollUnderWayError
        # The roll may have ended after the first read: then the epoch exists.
        if await tables.epoch(newest) is None:
            raise InvalidArgumentError(f"stream {tables.name} has no epoch {newest}")
    return (await position_of(tables, dict.fromkeys(position, 0))).records
