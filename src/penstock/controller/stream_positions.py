"""Where stream cuts are in a stream's history: reads what `stream_cuts` needs, page by page.

Others have their turn between any two steps, so that ten thousand segments hold nobody up for long.
Each call reads the history between the first and the last epoch of the cuts that it is given, and nothing else: how
many epochs a stream has does not matter.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from operator import attrgetter

from penstock.controller.metadata.records import HISTORY_CHUNK_EPOCHS, EpochRecord, SegmentRecord, TruncationRecord
from penstock.controller.metadata.stream_tables import StreamTables
from penstock.controller.stream_cuts import (
    Between,
    Change,
    Position,
    PositionFold,
    ValidityFold,
    are_in_same_segments,
    epoch_bounds,
)

#: Segments that are looked at before others have their turn: some milliseconds of work.
_SEGMENTS_PER_TURN = 1000
#: Orders segments by id.
_BY_ID = attrgetter("creation_epoch", "number")


async def _in_turns(take: Callable[[Sequence[SegmentRecord]], None], segments: Sequence[SegmentRecord]) -> None:
    """Let an epoch's segments be taken, some at a time."""
    for start in range(0, len(segments), _SEGMENTS_PER_TURN):
        await asyncio.sleep(0)
        take(segments[start : start + _SEGMENTS_PER_TURN])


class _Window:
    """The history from one epoch to another. What is short is read once, however often it is asked for."""

    def __init__(self, tables: StreamTables, first: EpochRecord, last_epoch: int) -> None:
        self._tables = tables
        self.first = first
        self._last_epoch = last_epoch
        self._pages: list[Sequence[Change]] | None = None

    async def pages(self) -> AsyncIterator[Sequence[Change]]:
        """Yield what changed behind the first epoch."""
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
    return _Window(tables, await tables.need_epoch(first_epoch), last_epoch)


async def _window_of_cut(tables: StreamTables, cut: Mapping[int, int]) -> _Window:
    """Return the epochs from the first to the last of a cut's span.

    If its segments were created far apart, when they ended is asked for: one that is never split lives in all epochs.
    """
    oldest, newest = epoch_bounds(cut)
    if not _is_short(oldest, newest):
        ends = await tables.sealed_epochs(sorted(cut))
        oldest = min(newest, *(ends.get(segment, newest + 1) - 1 for segment in cut))
    return await _window(tables, oldest, newest)


async def _position_in(window: _Window, cut: Mapping[int, int]) -> Position:
    fold = PositionFold(cut)
    await _in_turns(fold.begin, window.first.segments)
    async for page in window.pages():
        fold.add(page)
    position = fold.position()
    await asyncio.sleep(0)
    return position


async def position_of(tables: StreamTables, cut: Mapping[int, int]) -> Position:
    """Find the position of a cut. Raises `InvalidArgumentError` for a segment that the stream never had.

    2 reads; 1 more per history chunk that its span touches, and per segment if it spans more than two of them.
    """
    return await _position_in(await _window_of_cut(tables, cut), cut)


async def valid_position_of(tables: StreamTables, cut: Mapping[int, int]) -> Position | None:
    """As `position_of`; None if readers cannot have come there, see `ValidityFold`, and for an epoch yet to come."""
    if epoch_bounds(cut)[1] > (await tables.current_epoch()).epoch:
        return None
    window = await _window_of_cut(tables, cut)
    position = await _position_in(window, cut)
    validity = ValidityFold(position)
    await asyncio.sleep(0)
    if validity.is_valid:
        await _in_turns(validity.begin, window.first.segments)
        async for page in window.pages():
            if validity.is_valid:
                validity.add(page)
    return position if validity.is_valid else None


async def position_of_span(tables: StreamTables, cut: Mapping[int, int], span: Mapping[int, int]) -> Position:
    """Find the position of a cut whose span is on record; without a span it is where the stream began at first."""
    if not span:
        return at_epoch(await tables.need_epoch(0))
    window = await _window(tables, min(span.values()), max(span.values()))
    return Position(cut, (await _position_in(window, span)).records, span)


async def beginning_of(tables: StreamTables, truncation: TruncationRecord) -> Position:
    """Find where the stream begins."""
    return await position_of_span(tables, truncation.stream_cut, truncation.span)


def at_epoch(epoch: EpochRecord) -> Position:
    """Return the position at the beginning of all segments of an epoch."""
    records: dict[int, SegmentRecord] = {segment.id: segment for segment in epoch.segments}
    return Position(dict.fromkeys(records, 0), records, dict.fromkeys(records, epoch.epoch))


async def segments_between(
    tables: StreamTables, starts: Sequence[Position], end: Position
) -> AsyncIterator[list[SegmentRecord]]:
    """Yield every segment not strictly before one of `starts` and not strictly after `end`, by id, in pages.

    1 read, and 1 per history chunk from the latest of the starts to the end; none if all are in the same segments.
    """
    if all(are_in_same_segments(start, end) for start in starts):
        yield sorted(end.records.values(), key=_BY_ID)
        return
    between = Between(starts, [end])
    # The end may lie before it: one that is never split is still between.
    first_epoch = max(start.first_epoch for start in starts)
    first = await tables.need_epoch(first_epoch)
    found: list[SegmentRecord] = []
    await _in_turns(lambda segments: found.extend(filter(between.has, segments)), first.segments)
    yield sorted(found, key=_BY_ID)
    async for page in tables.changes(first_epoch, end.last_epoch):
        created = (segment for change in page for segment in change.created)
        yield sorted(filter(between.has, created), key=_BY_ID)
