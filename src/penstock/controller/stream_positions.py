"""Positions of stream cuts in a stream's history: reads the input of `stream_cuts`, page by page.

Other tasks run between any two steps, so that ten thousand segments do not block the event loop for long.
Each call reads only the history between the first and the last epoch of its cuts: the cost does not depend on the
number of epochs of a stream.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from operator import attrgetter

from penstock.controller.metadata.records import HISTORY_CHUNK_EPOCHS, EpochRecord, SegmentRecord, TruncationRecord
from penstock.controller.metadata.stream_tables import StreamTables
from penstock.controller.steps import in_turns, pages
from penstock.controller.stream_cuts import (
    Between,
    Change,
    Position,
    PositionFold,
    ValidityFold,
    are_in_same_segments,
    epoch_bounds,
)

#: Orders segments by id.
_BY_ID = attrgetter("creation_epoch", "number")


class _Window:
    """The history between two epochs. A short one is read only once."""

    def __init__(self, tables: StreamTables, first: EpochRecord, last_epoch: int) -> None:
        self._tables = tables
        self.first = first
        self._last_epoch = last_epoch
        self._pages: list[Sequence[Change]] | None = None

    async def pages(self) -> AsyncIterator[Sequence[Change]]:
        """Yield the changes after the first epoch."""
        if self._pages is not None:
            for page in self._pages:
                yield page
            return
        pages: list[Sequence[Change]] | None = [] if _is_short(self.first.epoch, self._last_epoch) else None
        async for page in self._tables.changes(self.first.epoch, self._last_epoch):
            if pages is not None:
                pages.append(page)
            yield page
        self._pages = pages


def _is_short(first_epoch: int, last_epoch: int) -> bool:
    return last_epoch // HISTORY_CHUNK_EPOCHS - first_epoch // HISTORY_CHUNK_EPOCHS <= 1


async def _window(tables: StreamTables, first_epoch: int, last_epoch: int) -> _Window:
    window = _Window(tables, await tables.need_epoch(first_epoch), last_epoch)
    await asyncio.sleep(0)  # A record of ten thousand segments takes some milliseconds to read.
    return window


async def _window_of_cut(tables: StreamTables, cut: Mapping[int, int]) -> _Window:
    """Return the epochs from the first to the last of a cut's span.

    If its segments were created far apart, their ends are read: a segment that is never split lives in all epochs.
    """
    oldest, newest = epoch_bounds(cut)
    if not _is_short(oldest, newest):
        ends = await tables.sealed_epochs(sorted(cut))
        oldest = min(newest, *(ends.get(segment, newest + 1) - 1 for segment in cut))
    return await _window(tables, oldest, newest)


async def _position_in(window: _Window, cut: Mapping[int, int]) -> Position:
    fold = PositionFold(cut)
    await in_turns(fold.begin(window.first.segments))
    async for page in window.pages():
        await in_turns(fold.add(page))
    return await in_turns(fold.position())


async def position_of(tables: StreamTables, cut: Mapping[int, int]) -> Position:
    """Find the position of a cut. Raises `InvalidArgumentError` for a segment that the stream never had.

    2 reads; 1 more per history chunk that its span touches, and per segment if it spans more than two of them.
    """
    return await _position_in(await _window_of_cut(tables, cut), cut)


async def valid_position_of(tables: StreamTables, cut: Mapping[int, int]) -> Position | None:
    """As `position_of`; None if readers cannot have reached it, see `ValidityFold`, and for a future epoch."""
    if epoch_bounds(cut)[1] > (await tables.current_epoch()).epoch:
        return None
    window = await _window_of_cut(tables, cut)
    position = await _position_in(window, cut)
    validity = ValidityFold(position)
    await in_turns(validity.prepare())
    if validity.is_valid:
        await in_turns(validity.begin(window.first.segments))
        async for page in window.pages():
            if validity.is_valid:
                await in_turns(validity.add(page))
    return position if validity.is_valid else None


async def position_of_span(tables: StreamTables, cut: Mapping[int, int], span: Mapping[int, int]) -> Position:
    """Find the position of a cut with a recorded span; an empty span means the original beginning of the stream."""
    if not span:
        return at_epoch(await tables.need_epoch(0))
    window = await _window(tables, min(span.values()), max(span.values()))
    return Position(cut, (await _position_in(window, span)).records, span)


async def beginning_of(tables: StreamTables, truncation: TruncationRecord) -> Position:
    """Find the beginning of the stream."""
    return await position_of_span(tables, truncation.stream_cut, truncation.span)


def at_epoch(epoch: EpochRecord) -> Position:
    """Return the position at the start of all segments of an epoch."""
    records: dict[int, SegmentRecord] = {segment.id: segment for segment in epoch.segments}
    return Position(dict.fromkeys(records, 0), records, dict.fromkeys(records, epoch.epoch))


async def segments_between(
    tables: StreamTables, starts: Sequence[Position], end: Position
) -> AsyncIterator[list[SegmentRecord]]:
    """Yield every segment not strictly before one of `starts` and not strictly after `end`, by id, in pages.

    Other tasks run after each page. 1 read, and 1 per history chunk from the latest of the starts to the end; none if
    all are in the same segments.
    """
    for start in starts:
        if not await in_turns(are_in_same_segments(start, end)):
            break
    else:
        async for page in _by_id(end.records.values()):
            yield page
        return
    between = await in_turns(Between.of(starts, [end]))
    # The end may lie before it: a segment that is never split is still between.
    first_epoch = max(start.first_epoch for start in starts)
    first = await tables.need_epoch(first_epoch)
    found: list[SegmentRecord] = []
    for segments in pages(first.segments):
        await asyncio.sleep(0)
        found.extend(filter(between.has, segments))
    async for page in _by_id(found):
        yield page
    async for changes in tables.changes(first_epoch, end.last_epoch):
        found = []
        for segments in pages(segment for change in changes for segment in change.created):
            await asyncio.sleep(0)
            found.extend(filter(between.has, segments))
        async for page in _by_id(found):
            yield page


async def _by_id(segments: Iterable[SegmentRecord]) -> AsyncIterator[list[SegmentRecord]]:
    """Yield segments by id in pages; other tasks run before each page."""
    for page in pages(sorted(segments, key=_BY_ID)):
        await asyncio.sleep(0)
        yield page
