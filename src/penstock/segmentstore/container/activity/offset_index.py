"""`OffsetIndexes`: borders between the appends of a segment, kept in a companion segment ``<segment>#index``.

An index segment is an ascending sequence of 24-byte entries: offset after an append, number of events before it,
milliseconds since the epoch, each 8 bytes big endian. About one entry is written per `index_entry_bytes` of data, in
the background and best effort: lost entries only make answers coarser.

Ids, which only grow, tell which segment an index belongs to: an index is younger than its segment. An older index was
left by an earlier segment of that name, in a crash between the two deletions, and counts as missing; it is replaced
when the next entry is written. Hence:

| Crash between | State afterwards |
|---|---|
| creation of the index and its first entry | an empty index, equivalent to none |
| deletion of a segment and of its index | an old index; removed by a repeated deletion or by a new segment |
| truncation of a segment and of its index | entries before the start, which no answer uses |

Source: wire-protocol 4.5, segment-store 9.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from penstock.model.errors import (
    InvalidArgumentError,
    NoSuchSegmentError,
    PenstockError,
    SegmentExistsError,
    SegmentSealedError,
    SegmentTruncatedError,
    UnreadableDataError,
)
from penstock.model.names import has_index_segment, index_segment_name
from penstock.model.segments import Buffer
from penstock.segmentstore.container.activity.activity import Border
from penstock.segmentstore.container.segment import Segment, SegmentFlags

logger: logging.Logger = logging.getLogger(__name__)

ENTRY = struct.Struct(">qqq")
#: Maximum number of borders written in one append.
_ENTRIES_MAX = 4096


class IndexHost(Protocol):
    """The interface of the container that offset indexes need."""

    async def create(self, name: str, *, flags: SegmentFlags) -> Segment:
        """See `SegmentContainer.create`."""

    async def delete(self, name: str) -> None:
        """See `SegmentContainer.delete`."""

    async def seal(self, name: str) -> None:
        """See `SegmentContainer.seal`."""

    async def truncate(self, name: str, offset: int) -> None:
        """See `SegmentContainer.truncate`."""


class OffsetIndexes:
    """The index segments of one container.

    `find` loads a segment into memory or raises `NoSuchSegmentError`; `append` accepts bytes and returns an awaitable
    of their durability; `read` reads exactly the given range.
    """

    def __init__(
        self,
        host: IndexHost,
        *,
        find: Callable[[str], Awaitable[Segment]],
        append: Callable[[Segment, Buffer], Awaitable[None]],
        read: Callable[[Segment, int, int], Awaitable[bytes]],
        entry_bytes: int,
    ) -> None:
        self._host = host
        self._find = find
        self._append = append
        self._read = read
        self._entry_bytes = entry_bytes

    def may_have_one(self, segment: Segment) -> bool:
        """Return whether a segment may have an index segment; cheap, for segments that never have one."""
        return (
            segment.length >= self._entry_bytes > 0
            and not (segment.is_table or segment.is_system)
            and has_index_segment(segment.name)
        )

    async def _index(self, segment: Segment) -> Segment | None:
        """Return the index of a segment if there is one. `segment` may already be deleted."""
        try:
            index = await self._find(index_segment_name(segment.name))
        except NoSuchSegmentError:
            return None
        return index if index.id > segment.id else None

    # Writing.

    async def last_offset(self, segment: Segment) -> int:
        """Return the offset of the last entry, 0 if there are none."""
        index = await self._index(segment)
        if index is None or index.length <= index.start_offset:
            return 0
        with index.in_use():
            offset, _, _ = await self._entry(index, index.length // ENTRY.size - 1)
        return offset

    async def write(self, segment: Segment, borders: Sequence[Border]) -> None:
        """Append entries, creating the index if there is none. Raises what the container raises.

        Does nothing if the segment is gone or its index is sealed.
        """
        index = await self._index(segment)
        if index is None:
            index = await self._create(segment)
        if index is None or _is_gone(segment) or index.is_sealed:
            return
        # Accepted in this turn of the loop, after the appends that the entries describe: durable after them.
        await self._append(index, b"".join(ENTRY.pack(*border) for border in borders[:_ENTRIES_MAX]))

    async def _create(self, segment: Segment) -> Segment | None:
        name = index_segment_name(segment.name)
        try:
            await self._host.delete(name)
        except NoSuchSegmentError:
            pass  # The usual case: there is no old index.
        if _is_gone(segment):
            return None
        try:
            index = await self._host.create(name, flags=SegmentFlags.NONE)
        except SegmentExistsError:
            return await self._index(segment)
        if _is_gone(segment):
            await self._host.delete(name)  # The segment's deletion may have found no index yet.
            return None
        return index

    # Changes that follow those of the segment.

    async def sealed(self, segment: Segment) -> None:
        """Seal the index of a segment that was sealed; best effort."""
        await self._follow(segment, lambda index: self._host.seal(index.name))

    async def truncated(self, segment: Segment) -> None:
        """Drop the entries before the start of a segment that was truncated; best effort."""

        async def truncate(index: Segment) -> None:
            first = await self._search(index, segment.start_offset)
            if first * ENTRY.size > index.start_offset:
                await self._host.truncate(index.name, first * ENTRY.size)

        await self._follow(segment, truncate)

    async def _follow(self, segment: Segment, change: Callable[[Segment], Awaitable[None]]) -> None:
        if not self.may_have_one(segment):
            return
        try:
            index = await self._index(segment)
            if index is not None:
                with index.in_use():
                    await change(index)
        except (NoSuchSegmentError, SegmentSealedError, SegmentTruncatedError):
            pass  # Already changed by another call.
        except UnreadableDataError as error:
            logger.error("index of %s: %s", segment.name, error)
        except PenstockError as error:
            logger.warning("index of %s was not changed: %s", segment.name, error)

    async def deleted(self, name: str) -> None:
        """Delete the index of a deleted segment; no error if there is none. Raises what a deletion raises."""
        if self._entry_bytes <= 0 or not has_index_segment(name):
            return
        try:
            await self._host.delete(index_segment_name(name))
        except NoSuchSegmentError:
            pass  # Most segments are too short to have one.

    # Reading.

    async def locate(self, segment: Segment, offset: int, *, before: bool) -> int:
        """See `Segments.locate_offset`. Only durable bytes are considered."""
        start, length = segment.durable_start_offset, segment.durable_length
        if offset < 0:
            raise InvalidArgumentError(f"{segment.name}: no offset {offset}")
        if offset < start:
            raise SegmentTruncatedError(segment.name, start_offset=start, offset=offset)
        if offset == start or offset >= length:
            return min(offset, length)
        found = await self._nearest(segment, offset, before=before) if self.may_have_one(segment) else None
        if found is not None and start <= found <= length:
            return found
        return start if before else length

    async def _nearest(self, segment: Segment, offset: int, *, before: bool) -> int | None:
        try:
            index = await self._index(segment)
            if index is None:
                return None
            with index.in_use():
                at = await self._search(index, offset + 1 if before else offset) - before
                if not index.start_offset <= at * ENTRY.size < index.durable_length // ENTRY.size * ENTRY.size:
                    return None
                return (await self._entry(index, at))[0]
        except (NoSuchSegmentError, SegmentTruncatedError):
            return None  # Deleted meanwhile; same as no index.

    async def _search(self, index: Segment, offset: int) -> int:
        """Return the number of the first entry at or after `offset`; one past the last if there is none."""
        low, high = -(-index.start_offset // ENTRY.size), index.durable_length // ENTRY.size
        while low < high:
            middle = (low + high) // 2
            if (await self._entry(index, middle))[0] < offset:
                low = middle + 1
            else:
                high = middle
        return low

    async def _entry(self, index: Segment, number: int) -> Border:
        offset, events, time_ms = ENTRY.unpack(await self._read(index, number * ENTRY.size, ENTRY.size))
        return offset, events, time_ms


def _is_gone(segment: Segment) -> bool:
    return segment.is_deleted or segment.is_merged
