"""`Watermarks`: makes watermarks of the times that writers note, in a cycle over the streams that have such times.

What it knows of the past is in the segment of watermarks; here it is only remembered since when a writer is behind. Two
controllers may look at one stream at once: each step is conditional. See ``docs/watermarks.md``.

Source: controller internals specification, section 15.2 (PeriodicWatermarking).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field

from penstock.controller.buckets import Buckets
from penstock.controller.mark_log import MarkLog, MarkLogEnd
from penstock.controller.mark_streams import read_mark_segment
from penstock.controller.metadata.marked_streams import ListedStream
from penstock.controller.metadata.records import SegmentRecord, WriterMark
from penstock.controller.metadata.stream_tables import StreamTables
from penstock.controller.stream_positions import beginning_of, position_of
from penstock.controller.watermark_rules import (
    greatest_offsets,
    is_at_or_before,
    make_watermark,
    records_of,
    sort_writers,
)
from penstock.controller.workflows.context import WorkflowContext
from penstock.controller.writer_marks import all_marks, forget_marks
from penstock.model.errors import InvalidArgumentError, NoSuchStreamError, OutcomeUnknownError, PenstockError
from penstock.model.names import segment_epoch
from penstock.runtime.bulk import for_each

_logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _Seen:
    """What is remembered of one stream: since when writers are behind; the head whose watermarks were looked at."""

    behind_since_s: Mapping[str, float] = field(default_factory=dict)
    head: Mapping[int, int] = field(default_factory=dict)
    problem: str = ""


class Watermarks:
    """See the module. `run` it as a task; it goes on whatever a stream or a store does.

    Of all streams it looks at those in this controller's `buckets`.
    """

    def __init__(self, context: WorkflowContext, buckets: Buckets) -> None:
        self._context = context
        self._buckets = buckets
        self._settings = context.settings.watermarks
        self._seen: dict[tuple[str, str], _Seen] = {}

    async def run(self) -> None:
        """Make watermarks for ever."""
        is_failing = False
        while True:
            await asyncio.sleep(self._settings.interval_s)
            try:
                await self.cycle()
            except PenstockError as error:
                # Said when it begins and when it ends: a store may be away for days.
                if not is_failing:
                    _logger.warning("no watermarks are made, it is tried again: %s", error)
                is_failing = True
            else:
                if is_failing:
                    _logger.info("watermarks are made again")
                is_failing = False

    async def cycle(self) -> None:
        """Look at each stream once. Raises what the list of streams cannot be read for, and nothing of a stream."""
        listed = [each async for each in self._context.marked.all() if self._buckets.owned(each.scope, each.stream)]
        self._seen = {
            (each.scope, each.stream): self._seen.get((each.scope, each.stream)) or _Seen() for each in listed
        }
        results = await for_each(listed, self._look, self._settings.streams_at_once)
        for each, result in zip(listed, results, strict=True):
            self._note_problem(each, str(result) if isinstance(result, PenstockError) else "")

    def _note_problem(self, listed: ListedStream, problem: str) -> None:
        """Say what is wrong with a stream when it begins and when it ends."""
        seen = self._seen[listed.scope, listed.stream]
        if problem and not seen.problem:
            _logger.warning("stream %s/%s gets no watermark: %s", listed.scope, listed.stream, problem)
        elif seen.problem and not problem:
            _logger.info("stream %s/%s gets watermarks again", listed.scope, listed.stream)
        seen.problem = problem

    async def _look(self, listed: ListedStream) -> None:
        async def look(tables: StreamTables) -> None:
            await self._look_at(tables, listed, self._seen[listed.scope, listed.stream])

        try:
            async with asyncio.timeout(self._settings.stream_timeout_s):
                await self._context.catalog.on_stream(listed.scope, listed.stream, look)
        except TimeoutError as error:
            raise OutcomeUnknownError(
                f"the look at stream {listed.scope}/{listed.stream} has not ended within "
                f"{self._settings.stream_timeout_s:g} s (watermarks.stream_timeout_s)"
            ) from error
        except NoSuchStreamError:
            await self._context.marked.remove(listed)

    async def _look_at(self, tables: StreamTables, listed: ListedStream, seen: _Seen) -> None:
        found = await all_marks(tables)
        if not found:
            # A writer that comes from now on makes another version of the entry, which stays.
            await self._context.marked.remove(listed)
            return
        policy = (await tables.configuration()).record.configuration
        log = MarkLog(self._context.segments, (await read_mark_segment(tables)).name)
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
        """Make a watermark, if there is to be one; return the writers whose positions are none of the stream."""
        strangers: set[str] = set()
        try:
            records = await _records(tables, greatest_offsets(participating.values(), None))
        except InvalidArgumentError:
            records = {}
            for writer, mark in participating.items():
                try:
                    records |= await _records(tables, mark.position)
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
        """Forget watermarks that nobody can come to: the next one, too, is not behind the stream's head."""
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
    """Return what is on record of a position's segments. Raises `InvalidArgumentError` if one never was the stream's.

    A writer learns of an epoch after its record was written: one that is not there is none.
    """
    newest = segment_epoch(max(position))
    if await tables.epoch(newest) is None:
        raise InvalidArgumentError(f"stream {tables.name} has no epoch {newest}")
    return (await position_of(tables, dict.fromkeys(position, 0))).records
