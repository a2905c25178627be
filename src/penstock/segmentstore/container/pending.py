"""`PendingQueue`: durable operations of one segment that are not yet in long-term storage, in order.

Each piece has the sequence number of the first record that holds it: the log may not be truncated after that record.
Numbers are ascending in the queue, except for bytes that were *carried forward*: logged again by a later record, so
that the log can be truncated before it (docs/log-length.md).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

from penstock.segmentstore.container.reads.cache import Cache

#: A segment; this module uses none of its attributes.
S = TypeVar("S")

#: Greater than every sequence number.
NO_NUMBER = 1 << 63
_NEVER = float("inf")


@dataclass(slots=True, eq=False)
class PendingAppend:
    """Durable bytes `[start, end)` that wait for the storage writer.

    `sequence_number` is that of the first record with any of them; `operation_count` records hold all of them.
    `is_carried`: the bytes were logged again by later records.
    """

    sequence_number: int
    start: int
    end: int
    since_s: float
    operation_count: int = 1
    is_carried: bool = False


@dataclass(slots=True, eq=False)
class PendingMerge(Generic[S]):
    """A durable merge of `source` into `[start, end)` that waits for the storage writer.

    The bytes are pending in the source, or storage has them there. Some of the bytes that were only in memory may
    already be in the target's storage (`SegmentFlusher`).
    """

    sequence_number: int
    source: S
    start: int
    end: int


@dataclass(slots=True, eq=False)
class PendingSeal:
    """A durable seal that waits for the storage writer. Does not pin the log: every checkpoint contains it."""

    sequence_number: int


@dataclass(slots=True, eq=False)
class PendingTruncate:
    """A durable truncation that waits for the storage writer. `since_s`: time of the first truncation in it."""

    sequence_number: int
    offset: int
    since_s: float


PendingStorage = PendingAppend | PendingMerge[S] | PendingSeal | PendingTruncate


class Backlog:
    """The pending totals of all segments of a container.

    Attributes:
        byte_count: appended bytes that long-term storage does not have. Those of a merge count for its source.
        operation_count: operations that it does not have.
        urgent: the part of segments whose writes continue when those of users wait.
    """

    __slots__ = ("_cache", "byte_count", "operation_count", "urgent")

    def __init__(self, cache: Cache) -> None:
        self.byte_count: int = 0
        self.operation_count: int = 0
        self._cache = cache
        self.urgent: UrgentBacklog = UrgentBacklog(self, cache)

    def add(self, byte_count: int, operation_count: int) -> None:
        """Add to the totals; negative values subtract."""
        self.byte_count += byte_count
        self.operation_count += operation_count
        self._cache.lacking_bytes += byte_count

    def close(self) -> None:
        """Reset the totals: the container releases its memory."""
        self.urgent.close()
        self.add(-self.byte_count, -self.operation_count)


class UrgentBacklog:
    """The part of a container's backlog of the segments that readers need, which have room of their own.

    Attributes:
        byte_count, operation_count: as in `Backlog`, which includes them.
    """

    __slots__ = ("_cache", "_whole", "byte_count", "operation_count")

    def __init__(self, whole: Backlog, cache: Cache) -> None:
        self.byte_count: int = 0
        self.operation_count: int = 0
        self._whole = whole
        self._cache = cache

    def add(self, byte_count: int, operation_count: int) -> None:
        """See `Backlog.add`."""
        self.byte_count += byte_count
        self.operation_count += operation_count
        self._cache.urgent_lacking_bytes += byte_count
        self._whole.add(byte_count, operation_count)

    def close(self) -> None:
        """See `Backlog.close`."""
        self.add(-self.byte_count, -self.operation_count)


class PendingQueue(Generic[S]):
    """The pieces of one segment, oldest first; maintains the totals in its container's `backlog`.

    Invariant: `byte_count` is the total length of the appends in the queue; `flushed` removes stored ones.

    Attributes:
        byte_count: pending appended bytes.
        truncated_since_s: loop time of the first pending truncation; infinity if there is none.
        merged_since_s: the same for merges; may be the time of an earlier merge that is done.
        is_carried: some piece was carried forward, so that numbers may not be ascending.
    """

    __slots__ = (
        "_backlog", "_is_last_whole", "_merge_count", "_pieces", "byte_count", "is_carried", "merged_since_s",
        "truncated_since_s",
    )  # fmt: skip

    def __init__(self, backlog: Backlog | UrgentBacklog) -> None:
        self._backlog = backlog
        self._pieces: deque[PendingStorage[S]] = deque()
        self._is_last_whole = False
        self.byte_count: int = 0
        self.truncated_since_s: float = _NEVER
        self.merged_since_s: float = _NEVER
        self._merge_count = 0
        self.is_carried: bool = False

    def __len__(self) -> int:
        return len(self._pieces)

    def __bool__(self) -> bool:
        return bool(self._pieces)

    def __iter__(self) -> Iterator[PendingStorage[S]]:
        return iter(self._pieces)

    def __getitem__(self, index: int) -> PendingStorage[S]:
        return self._pieces[index]

    # Additions.

    def note_append(self, sequence_number: int, start: int, end: int, now_s: float, piece_max: int) -> None:
        """Add durable bytes `[start, end)`; they join the last piece up to a length of `piece_max`."""
        length = end - start
        self.byte_count += length
        self._backlog.add(length, 1)
        pieces = self._pieces
        if pieces and not self._is_last_whole:
            last = pieces[-1]
            if type(last) is PendingAppend and last.end == start and end - last.start <= piece_max:
                last.end = end
                last.operation_count += 1
                return
        self._is_last_whole = False
        pieces.append(PendingAppend(sequence_number, start, end, now_s))

    def begin_flush(self) -> None:
        """Start new pieces, with their own numbers, for all later additions.

        Data joined to a piece being flushed would pin the log from the beginning of that piece, flush after flush.
        """
        self._is_last_whole = True

    def note_seal(self, sequence_number: int) -> None:
        """Add a seal."""
        self._pieces.append(PendingSeal(sequence_number))
        self._backlog.add(0, 1)

    def note_merge(self, sequence_number: int, source: S, start: int, end: int, now_s: float) -> None:
        """Add a merge of `source` into `[start, end)`, which follows the previous pieces."""
        self._insert_merge(len(self._pieces), PendingMerge(sequence_number, source, start, end), now_s)

    def _insert_merge(self, at: int, piece: PendingMerge[S], now_s: float) -> None:
        self._pieces.insert(at, piece)
        self._merge_count += 1
        self.merged_since_s = min(self.merged_since_s, now_s)
        self._backlog.add(0, 1)

    def note_truncate(self, sequence_number: int, offset: int, now_s: float) -> None:
        """Add a truncation at `offset`. Replaces a truncation directly before it, at a lower offset."""
        pieces = self._pieces
        last = pieces[-1] if pieces else None
        if type(last) is PendingTruncate:
            # A new object: a piece being processed or logged again keeps its number and its offset.
            pieces[-1] = PendingTruncate(sequence_number, max(last.offset, offset), last.since_s)
            return
        self.truncated_since_s = min(self.truncated_since_s, now_s)
        pieces.append(PendingTruncate(sequence_number, offset, now_s))
        self._backlog.add(0, 1)

    # Removals.

    def run_end(self, end_max: int) -> int:
        """Return the end of the contiguous appends at the head of the queue; at most `end_max`."""
        end = 0
        for piece in self._pieces:
            if type(piece) is not PendingAppend or (end and piece.start != end):
                break
            end = piece.end
            if end >= end_max:
                return end_max
        return end

    def flushed(self, storage_length: int) -> None:
        """Remove the appends that storage has from the head of the queue."""
        pieces = self._pieces
        while pieces:
            piece = pieces[0]
            if type(piece) is not PendingAppend:
                return
            if piece.end > storage_length:
                if storage_length > piece.start:
                    self._count(piece.start - storage_length, 0)
                    piece.start = storage_length
                return
            self.popleft()

    def popleft(self) -> PendingStorage[S]:
        """Remove and return the first piece."""
        piece = self._pieces.popleft()
        self._uncount(piece)
        if not self._pieces:
            self.is_carried = False
        return piece

    def remove(self, piece: PendingStorage[S]) -> None:
        """Remove a piece at any position."""
        self._pieces.remove(piece)
        self._uncount(piece)

    def clear(self) -> None:
        """Remove all pieces: the segment is gone, or storage has all of it."""
        while self._pieces:
            self.popleft()

    def _uncount(self, piece: PendingStorage[S]) -> None:
        if type(piece) is PendingAppend:
            self._count(piece.start - piece.end, -piece.operation_count)
            return
        self._count(0, -1)
        if type(piece) is PendingMerge:
            self._merge_count -= 1
            if not self._merge_count:
                self.merged_since_s = _NEVER
        if type(piece) is PendingTruncate:
            self.truncated_since_s = min(
                (waiting.since_s for waiting in self._pieces if type(waiting) is PendingTruncate), default=_NEVER
            )

    def _count(self, byte_count: int, operation_count: int) -> None:
        self.byte_count += byte_count
        self._backlog.add(byte_count, operation_count)

    # Effect on the log.

    def first_number(self) -> int:
        """Return the lowest sequence number that must remain in the log; `NO_NUMBER` if there is none."""
        if self.is_carried:
            return min(
                (piece.sequence_number for piece in self._pieces if type(piece) is not PendingSeal), default=NO_NUMBER
            )
        return next((piece.sequence_number for piece in self._pieces if type(piece) is not PendingSeal), NO_NUMBER)

    def first_unflushed(self, storage_length: int) -> int:
        """Remove stored appends and return the first number: `flushed` and `first_number` in one call."""
        if self._pieces and not self.is_carried:
            first = self._pieces[0]
            if type(first) is PendingAppend and first.start >= storage_length:
                return first.sequence_number  # The usual case; there may be very many segments.
        self.flushed(storage_length)
        return self.first_number()

    def waits_since_s(self) -> float:
        """Return the loop time of the first pending append if it is at the head; infinity otherwise."""
        first = self._pieces[0] if self._pieces else None
        return first.since_s if type(first) is PendingAppend else _NEVER

    def before(self, sequence_number: int) -> Iterator[PendingStorage[S]]:
        """Iterate over the pieces that prevent truncation of the log at `sequence_number`."""
        return (
            piece
            for piece in self._pieces
            if piece.sequence_number < sequence_number and type(piece) is not PendingSeal
        )

    def rewrite(self, sequence_number: int, start: int, end: int, now_s: float, piece_max: int) -> None:
        """Assign durable bytes `[start, end)`, which storage does not have, to a later record.

        Removes their previous pieces; adds bytes that were missing because the log was truncated. They join carried
        bytes before them, up to a length of `piece_max`.
        """
        kept: deque[PendingStorage[S]] = deque()
        operation_count = 0
        at = 0
        for piece in list(self._pieces):
            if type(piece) is not PendingAppend or piece.end <= start or piece.start >= end:
                kept.append(piece)
                if isinstance(piece, (PendingAppend, PendingMerge)) and piece.end <= start:
                    at = len(kept)
                continue
            now_s = min(now_s, piece.since_s)
            self._uncount(piece)
            if piece.start < start:
                kept.append(PendingAppend(piece.sequence_number, piece.start, start, piece.since_s))
                self._count(start - piece.start, 1)
                at = len(kept)
            if piece.end > end:
                piece.start = end
                kept.append(piece)
                self._count(piece.end - end, piece.operation_count)
            else:
                operation_count += piece.operation_count
        operation_count = max(operation_count, 1)
        self._count(end - start, operation_count)
        before = kept[at - 1] if at else None
        if (
            type(before) is PendingAppend
            and before.is_carried
            and before.end == start
            and end - before.start <= piece_max
        ):
            before.end = end
            before.operation_count += operation_count
        else:
            kept.insert(at, PendingAppend(sequence_number, start, end, now_s, operation_count, is_carried=True))
        self._pieces = kept
        self.is_carried = True

    def restate_merge(self, sequence_number: int, source: S, start: int, end: int, now_s: float) -> bool:
        """Assign a merge to a later record; return whether the queue had it before."""
        at = 0
        for index, piece in enumerate(self._pieces):
            if isinstance(piece, PendingMerge) and piece.source is source:
                piece.sequence_number = max(piece.sequence_number, sequence_number)
                self.is_carried = True
                return True
            if isinstance(piece, (PendingAppend, PendingMerge)) and piece.end <= start:
                at = index + 1
        self._insert_merge(at, PendingMerge(sequence_number, source, start, end), now_s)
        self.is_carried = True
        return False
