"""The stream cuts recorded for retention: the time of each, and the amount of data before it.

Cuts are numbered from 0 in the order in which they were recorded. `RetentionSet` holds the range of existing cuts and
has a fixed size; times and sizes are in chunks of `RETENTION_CHUNK_CUTS` cuts, the cuts themselves in one record each.
Sizes: ``docs/metadata-scale.md``.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

from penstock.controller.metadata.packing import ColumnReader, PackedRecord, int64s

if TYPE_CHECKING:
    from array import array

#: Time of the newest cut of a stream without any recorded cut.
TIME_NONE = -(1 << 63)

#: first cut, next cut, cleared cut, time and size of the newest
_SET = struct.Struct(">qqqqq")
#: first cut, number of cuts
_CHUNK_HEADER = struct.Struct(">qI")
#: recorded_ms, size_bytes, number of segments
_CUT_HEADER = struct.Struct(">qqI")


@dataclass(frozen=True, slots=True)
class RetentionEntry:
    """A recorded cut: its time, and the total bytes that the stream had held before it over its life."""

    recorded_ms: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class RetentionSet(PackedRecord):
    """The existing cuts: from `first` to before `next_cut`. Cuts before `cleared` are completely removed.

    `newest` is the last recorded cut, even if it has been removed since.
    """

    kind_number = 7

    first: int = 0
    next_cut: int = 0
    cleared: int = 0
    newest: RetentionEntry = field(default_factory=lambda: RetentionEntry(TIME_NONE, 0))

    def packed(self) -> bytes:
        """See `PackedRecord.packed`."""
        return _SET.pack(self.first, self.next_cut, self.cleared, self.newest.recorded_ms, self.newest.size_bytes)

    @classmethod
    def unpacked(cls, payload: bytes) -> RetentionSet:
        """See `PackedRecord.unpacked`."""
        first, next_cut, cleared, recorded_ms, size_bytes = _SET.unpack(payload)
        if not 0 <= cleared <= first <= next_cut:
            raise ValueError(f"cuts from {first} to {next_cut}, cleared to {cleared}")
        return cls(first, next_cut, cleared, RetentionEntry(recorded_ms, size_bytes))

    @classmethod
    def from_fields(cls, payload: bytes) -> RetentionSet:
        """Read a set of version 1; releases of that time only wrote empty ones."""
        if msgspec.msgpack.decode(payload, type=_SetOfVersion1).entries:
            raise ValueError("a set of version 1 has cuts, which no release has written")
        return cls()


class _SetOfVersion1(msgspec.Struct):
    entries: tuple[object, ...]


@dataclass(frozen=True, slots=True)
class RetentionChunk(PackedRecord):
    """Times and sizes of successive cuts, as columns. Both ascend for the cuts in the set."""

    kind_number = 8

    first: int
    times: bytes
    sizes: bytes

    @classmethod
    def of(cls, first: int, entries: Sequence[RetentionEntry]) -> RetentionChunk:
        """Return the chunk whose first cut has this number."""
        times = int64s(entry.recorded_ms for entry in entries)
        return cls(first, times, int64s(entry.size_bytes for entry in entries))

    @property
    def next_cut(self) -> int:
        """The number of the cut after the last one of the chunk."""
        return self.first + len(self.times) // 8

    def followed_by(self, entry: RetentionEntry) -> RetentionChunk:
        """Return the chunk with one more cut."""
        times, sizes = int64s([entry.recorded_ms]), int64s([entry.size_bytes])
        return RetentionChunk(self.first, self.times + times, self.sizes + sizes)

    def _columns(self) -> tuple[array[int], array[int]]:
        count = len(self.times) // 8
        return ColumnReader(self.times).int64s(count), ColumnReader(self.sizes).int64s(count)

    def entries(self, first: int, until: int) -> list[RetentionEntry]:
        """Return the chunk's entries with a number in `[first, until)`."""
        times, sizes = self._columns()
        part = slice(max(0, first - self.first), max(0, until - self.first))
        return [RetentionEntry(*each) for each in zip(times[part], sizes[part], strict=True)]

    def count_until(self, first: int, *, time_ms: int | None = None, size_bytes: int | None = None) -> int:
        """Return the number of the first cut that was recorded after a time, or has more than a size before it.

        Only cuts from number `first` on are compared: removed ones may have times of a fast clock.
        """
        times, sizes = self._columns()
        start = min(max(0, first - self.first), len(times))
        if time_ms is not None:
            return self.first + bisect_right(times, time_ms, start)
        if size_bytes is not None:
            return self.first + bisect_right(sizes, size_bytes, start)
        raise AssertionError("a time or a size is asked for")

    def packed(self) -> bytes:
        """See `PackedRecord.packed`."""
        return _CHUNK_HEADER.pack(self.first, len(self.times) // 8) + self.times + self.sizes

    @classmethod
    def unpacked(cls, payload: bytes) -> RetentionChunk:
        """See `PackedRecord.unpacked`."""
        reader = ColumnReader(payload)
        first, count = reader.header(_CHUNK_HEADER)
        chunk = cls(first, reader.take(8 * count), reader.take(8 * count))
        reader.end()
        return chunk


@dataclass(frozen=True, slots=True)
class StreamCutRecord(PackedRecord):
    """One recorded cut."""

    kind_number = 9

    recorded_ms: int
    size_bytes: int
    stream_cut: dict[int, int]

    @property
    def entry(self) -> RetentionEntry:
        """The cut's entry in its chunk."""
        return RetentionEntry(self.recorded_ms, self.size_bytes)

    def packed(self) -> bytes:
        """See `PackedRecord.packed`."""
        header = _CUT_HEADER.pack(self.recorded_ms, self.size_bytes, len(self.stream_cut))
        return header + int64s(self.stream_cut) + int64s(self.stream_cut.values())

    @classmethod
    def unpacked(cls, payload: bytes) -> StreamCutRecord:
        """See `PackedRecord.unpacked`."""
        reader = ColumnReader(payload)
        recorded_ms, size_bytes, count = reader.header(_CUT_HEADER)
        segments, offsets = reader.int64s(count), reader.int64s(count)
        reader.end()
        return cls(recorded_ms, size_bytes, dict(zip(segments, offsets, strict=True)))
