"""`PendingQueue`: what of one segment is durable in the log and not yet in long-term storage, in order.

Each piece has the sequence number of the first record that holds it: the log may not be cut behind that. Numbers grow
along the queue, except where bytes were *carried forward*: stated again by a later record, so that the log may be cut
before it (docs/log-length.md).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

from penstock.segmentstore.container.reads.cache import Cache

#: A segment, of which nothing is asked here.
S = TypeVar("S")

#: Greater than every sequence number.
NO_NUMBER = 1 << 63
_NEVER = float("inf")


@dataclass(slots=True, eq=False)
class PendingAppend:
    """Durable bytes `[start, end)` that wait for the storage writer.

    `sequence_number` is that of the record of the first of them; `operation_count` records were needed for all.
    `is_carried`: they were stated again by later records.
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

    The bytes wait with the source, or storage has them there. Of what was in memory alone some may be in the target's
    storage already (`SegmentFlusher`).
    """

    sequence_number: int
    source: S
    start: int
    end: int


@dataclass(slots=True, eq=False)
class PendingSeal:
    """A durable seal that waits for the storage writer. Keeps no log: it is found again in any checkpoint."""

    sequence_number: int


@dataclass(slots=True, eq=False)
class PendingTruncate:
    """A durable truncation that waits for the storage writer, `since_s`: the first of those that it stands for."""

    sequence_number: int
    offset: int
    since_s: float


PendingStorage = PendingAppend | PendingMerge[S] | PendingSeal | PendingTruncate


class Backlog:
    """What all segments of a container have pending.

    Attributes:
        byte_count: appended bytes that long-term storage lacks. Those of a merge count for its source.
        operation_count: operations that it lacks.
    """

    __slots__ = ("_cache", "byte_count", "operation_count")

    def __init__(self, cache: Cache) -> None:
        self.byte_count: int = 0
        self.operation_count: int = 0
        self._cache = cache

    def add(self, byte_count: int, operation_count: int) -> None:
        """Count what comes, or goes if negative."""
        self.byte_count += byte_count
        self.operation_count += operation_count
        self._cache.lacking_bytes += byte_count

    def close(self) -> None:
        """Take everything out: the container gives its memory back."""
        self.add(-self.byte_count, -self.operation_count)


class PendingQueue(Generic[S]):
    """The pieces of one segment, oldest first; counts itself into the `backlog` of its container.

    Invariant: `byte_count` is the length of all appends in here, of which `flushed` has taken what storage has.

    Attributes:
        byte_count: appended bytes that wait.
        truncated_since_s: since when a truncation waits, by the loop's clock; infinity if none does.
        merged_since_s: the same of merges, or of an earlier one that is done.
        is_carried: some piece was carried forward, so that numbers need not grow along the queue.
    """

    __slots__ = (
        "_backlog", "_is_last_whole", "_merge_count", "_pieces", "byte_count", "is_carried", "merged_since_s",
        "truncated_since_s",
    )  # fmt: skip

    def __init__(self, backlog: Backlog) -> None:
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

    # What comes in.

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
        """Let what comes from now on be pieces of its own, with their own numbers.

        What joined a piece that is being flushed would keep the log from that one's beginning on, flush after flush.
        """
        self._is_last_whole = True

    def note_seal(self, sequence_number: int) -> None:
        """Add a seal."""
        self._pieces.append(PendingSeal(sequence_number))
        self._backlog.add(0, 1)

    def note_merge(self, sequence_number: int, source: S, start: int, end: int, now_s: float) -> None:
        """Add a merge of `source` into `[start, end)`, the end of what was added before."""
        self._insert_merge(len(self._pieces), PendingMerge(sequence_number, source, start, end), now_s)

    def _insert_merge(self, at: int, piece: PendingMerge[S], now_s: float) -> None:
        self._pieces.insert(at, piece)
        self._merge_count += 1
        self.merged_since_s = min(self.merged_since_s, now_s)
        self._backlog.add(0, 1)

    def note_truncate(self, sequence_number: int, offset: int, now_s: float) -> None:
        """Add a truncation at `offset`. It takes the place of one right before it, which it goes beyond."""
        pieces = self._pieces
        last = pieces[-1] if pieces else None
        if type(last) is PendingTruncate:
            # Another object: the one that is being done, or stated again, keeps its number and its offset.
            pieces[-1] = PendingTruncate(sequence_number, max(last.offset, offset), last.since_s)
            return
        self.truncated_since_s = min(self.truncated_since_s, now_s)
        pieces.append(PendingTruncate(sequence_number, offset, now_s))
        self._backlog.add(0, 1)

    # What goes out.

    def run_end(self, end_max: int) -> int:
        """Return where the appends end that the queue begins with, one right behind the other; at most `end_max`."""
        end = 0
        for piece in self._pieces:
            if type(piece) is not PendingAppend or (end and piece.start != end):
                break
            end = piece.end
            if end >= end_max:
                return end_max
        return end

    def flushed(self, storage_length: int) -> None:
        """Take the appends out that storage has, as far as nothing else stands before them."""
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
        """Take the first piece out."""
        piece = self._pieces.popleft()
        self._uncount(piece)
        if not self._pieces:
            self.is_carried = False
        return piece

    def remove(self, piece: PendingStorage[S]) -> None:
        """Take a piece out, wherever it is."""
        self._pieces.remove(piece)
        self._uncount(piece)

    def clear(self) -> None:
        """Take everything out: the segment is gone, or storage has all of it."""
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

    # What it keeps of the log.

    def first_number(self) -> int:
        """Return the lowest sequence number that the log must not lose; `NO_NUMBER` if there is none."""
        if self.is_carried:
            return min(
                (piece.sequence_number for piece in self._pieces if type(piece) is not PendingSeal), default=NO_NUMBER
            )
        return next((piece.sequence_number for piece in self._pieces if type(piece) is not PendingSeal), NO_NUMBER)

    def first_unflushed(self, storage_length: int) -> int:
        """Return the first number once what storage has is taken out: `flushed` and `first_number` in one."""
        if self._pieces and not self.is_carried:
            first = self._pieces[0]
            if type(first) is PendingAppend and first.start >= storage_length:
                return first.sequence_number  # Nearly always, and there may be very many segments to ask.
        self.flushed(storage_length)
        return self.first_number()

    def waits_since_s(self) -> float:
        """Return when the first append came that waits at the head, in the loop's time; infinity if there is none."""
        first = self._pieces[0] if self._pieces else None
        return first.since_s if type(first) is PendingAppend else _NEVER

    def before(self, sequence_number: int) -> Iterator[PendingStorage[S]]:
        """Iterate over the pieces that keep the log from being cut at `sequence_number`."""
        return (
            piece
            for piece in self._pieces
            if piece.sequence_number < sequence_number and type(piece) is not PendingSeal
        )

    def restate(self, sequence_number: int, start: int, end: int, now_s: float, piece_max: int) -> None:
        """Let durable bytes `[start, end)`, which storage lacks, be those of a later record.

        Whatever the queue had of them before goes; what it did not have, because the log was cut, comes in. They
        join bytes before them that were carried forward, up to a length of `piece_max`.
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
        """Let a merge be that of a later record; say whether the queue had it before."""
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
