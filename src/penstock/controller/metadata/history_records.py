"""The history of a stream's epochs: the change of each epoch, and the final lengths of segments.

None of these records grows with a stream's age; their number does. Sizes: ``docs/metadata-scale.md``.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import msgspec

from penstock.controller.metadata.packing import ColumnReader, PackedRecord, float64s, int32s, int64s
from penstock.controller.metadata.records import SegmentRecord

#: A change of more segments than this is not repeated in the history: it is only in its epoch's own record.
HISTORY_SEGMENTS_MAX = 8

#: first epoch, epochs, sealed segments, created segments
_CHUNK_HEADER = struct.Struct(">iIII")
#: number of sizes
_SIZES_HEADER = struct.Struct(">I")


@dataclass(frozen=True, slots=True)
class HistoryEntry:
    """The change at one epoch: ids of ended segments, and new segments.

    Both are empty for duplicates and large changes: these are in the epochs' own records.
    """

    epoch: int
    reference_epoch: int
    sealed: tuple[int, ...]
    created: tuple[SegmentRecord, ...]
    created_ms: int


@dataclass(frozen=True, slots=True)
class HistoryChunk(PackedRecord):
    """Successive history entries starting with `first_epoch`, column by column.

    `sealed_counts` and `created_counts` are a byte per epoch; a created segment has the epoch and time of its entry.
    """

    kind_number = 3

    first_epoch: int
    reference_epochs: bytes = b""
    times: bytes = b""
    sealed_counts: bytes = b""
    created_counts: bytes = b""
    sealed: bytes = b""
    numbers: bytes = b""
    key_starts: bytes = b""
    key_ends: bytes = b""

    @classmethod
    def of(cls, entries: Sequence[HistoryEntry]) -> HistoryChunk:
        """Return a chunk of these entries, at least one."""
        return cls(entries[0].epoch).followed_by(entries)

    @property
    def next_epoch(self) -> int:
        """The epoch of the next entry to add."""
        return self.first_epoch + len(self.sealed_counts)

    def followed_by(self, entries: Sequence[HistoryEntry]) -> HistoryChunk:
        """Return the chunk with these entries appended. Raises `ValueError` if an epoch is skipped."""
        if [entry.epoch for entry in entries] != list(range(self.next_epoch, self.next_epoch + len(entries))):
            raise ValueError(f"epoch {self.next_epoch} comes next, not {[entry.epoch for entry in entries]}")
        created = [segment for entry in entries for segment in entry.created]
        return HistoryChunk(
            self.first_epoch,
            self.reference_epochs + int32s([entry.reference_epoch for entry in entries]),
            self.times + int64s([entry.created_ms for entry in entries]),
            self.sealed_counts + bytes([len(entry.sealed) for entry in entries]),
            self.created_counts + bytes([len(entry.created) for entry in entries]),
            self.sealed + int64s([segment for entry in entries for segment in entry.sealed]),
            self.numbers + int32s([segment.number for segment in created]),
            self.key_starts + float64s([segment.key_start for segment in created]),
            self.key_ends + float64s([segment.key_end for segment in created]),
        )

    def entries(self) -> Iterator[HistoryEntry]:
        """Return the entries in order."""
        count, sealed_count, created_count = len(self.sealed_counts), len(self.sealed) // 8, len(self.numbers) // 4
        references, times = ColumnReader(self.reference_epochs).int32s(count), ColumnReader(self.times).int64s(count)
        sealed = ColumnReader(self.sealed).int64s(sealed_count)
        numbers = ColumnReader(self.numbers).int32s(created_count)
        starts, ends = ColumnReader(self.key_starts), ColumnReader(self.key_ends)
        key_starts, key_ends = starts.float64s(created_count), ends.float64s(created_count)
        sealed_at = created_at = 0
        for index in range(count):
            epoch, time_ms = self.first_epoch + index, times[index]
            sealed_until = sealed_at + self.sealed_counts[index]
            created_until = created_at + self.created_counts[index]
            created = tuple(
                SegmentRecord(numbers[at], epoch, time_ms, key_starts[at], key_ends[at])
                for at in range(created_at, created_until)
            )
            yield HistoryEntry(epoch, references[index], tuple(sealed[sealed_at:sealed_until]), created, time_ms)
            sealed_at, created_at = sealed_until, created_until

    def packed(self) -> bytes:
        """See `PackedRecord.packed`."""
        counts = len(self.sealed_counts), len(self.sealed) // 8, len(self.numbers) // 4
        columns = (
            self.reference_epochs, self.times, self.sealed_counts, self.created_counts,
            self.sealed, self.numbers, self.key_starts, self.key_ends,
        )  # fmt: skip
        return b"".join((_CHUNK_HEADER.pack(self.first_epoch, *counts), *columns))

    @classmethod
    def unpacked(cls, payload: bytes) -> HistoryChunk:
        """See `PackedRecord.unpacked`."""
        reader = ColumnReader(payload)
        first_epoch, count, sealed_count, created_count = reader.header(_CHUNK_HEADER)
        found = cls(
            first_epoch,
            reader.take(4 * count), reader.take(8 * count), reader.take(count), reader.take(count),
            reader.take(8 * sealed_count),
            reader.take(4 * created_count), reader.take(8 * created_count), reader.take(8 * created_count),
        )  # fmt: skip
        reader.end()
        if (sum(found.sealed_counts), sum(found.created_counts)) != (sealed_count, created_count):
            raise ValueError("the counts of the epochs are not those of the chunk")
        return found

    @classmethod
    def from_fields(cls, payload: bytes) -> HistoryChunk:
        """Read a chunk of version 1, which had complete sealed segments, and large changes of the first epoch."""
        entries = msgspec.msgpack.decode(payload, type=_ChunkOfVersion1).entries
        return cls.of([entry.now() for entry in entries])


class _EntryOfVersion1(msgspec.Struct):
    epoch: int
    reference_epoch: int
    sealed: tuple[SegmentRecord, ...]
    created: tuple[SegmentRecord, ...]
    created_ms: int

    def now(self) -> HistoryEntry:
        sealed, created = tuple(segment.id for segment in self.sealed), self.created
        if len(sealed) + len(created) > HISTORY_SEGMENTS_MAX:
            sealed, created = (), ()
        return HistoryEntry(self.epoch, self.reference_epoch, sealed, created, self.created_ms)


class _ChunkOfVersion1(msgspec.Struct):
    entries: tuple[_EntryOfVersion1, ...]


@dataclass(frozen=True, slots=True)
class TimeIndexNode(PackedRecord):
    """Times in milliseconds, ascending, as a column: of epochs in a leaf, of leaves' first epochs in a root."""

    kind_number = 6

    times: bytes = b""

    @classmethod
    def of(cls, times_ms: Iterable[int]) -> TimeIndexNode:
        """Return a node with these times."""
        return cls(int64s(times_ms))

    @property
    def count(self) -> int:
        """Number of times in the node."""
        return len(self.times) // 8

    def find(self, time_ms: int) -> int:
        """Return the index of the last time that is not after `time_ms`; -1 if all are."""
        return bisect_right(ColumnReader(self.times).int64s(self.count), time_ms) - 1

    def packed(self) -> bytes:
        """See `PackedRecord.packed`."""
        return self.times

    @classmethod
    def unpacked(cls, payload: bytes) -> TimeIndexNode:
        """See `PackedRecord.unpacked`."""
        if len(payload) % 8:
            raise ValueError(f"{len(payload)} bytes are not a column of int64")
        return cls(payload)


@dataclass(frozen=True, slots=True)
class SealedSizes(PackedRecord):
    """Length in bytes at sealing, by segment id. The first value written for a segment is kept."""

    kind_number = 4

    sizes: dict[int, int] = field(default_factory=dict)

    def packed(self) -> bytes:
        """See `PackedRecord.packed`."""
        return _SIZES_HEADER.pack(len(self.sizes)) + int64s(self.sizes) + int64s(self.sizes.values())

    @classmethod
    def unpacked(cls, payload: bytes) -> SealedSizes:
        """See `PackedRecord.unpacked`."""
        reader = ColumnReader(payload)
        (count,) = reader.header(_SIZES_HEADER)
        segments, sizes = reader.int64s(count), reader.int64s(count)
        reader.end()
        return cls(dict(zip(segments, sizes, strict=True)))
