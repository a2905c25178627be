"""The results of readers: `Event`, and `EventBatch` for code that processes many events at a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from penstock.client.common.arrow import import_arrow

if TYPE_CHECKING:
    import pyarrow as pa


#: Bytes of a payload that `repr` shows, for example in a notebook.
_SHOWN_BYTES_MAX = 64


def _shown(data: bytes) -> str:
    if len(data) <= _SHOWN_BYTES_MAX:
        return repr(data)
    return f"{data[:_SHOWN_BYTES_MAX]!r}... ({len(data)} bytes)"


class Event(NamedTuple):
    """One event and its place.

    Attributes:
        data: the payload.
        segment_id: 64-bit segment id.
        offset: byte in the segment where the event's header starts.
        stream: ``scope/stream``.
        position: byte in the segment where the next event starts.
        redelivery_count: number of failed readers that may have had this event before, as far as the group knows: 0 for
            an event that is delivered for the first time. After a crash only the events next in line are counted, and
            those that had been returned when positions were stored last.
    """

    data: bytes
    segment_id: int
    offset: int
    stream: str
    position: int
    redelivery_count: int = 0

    @property
    def segment(self) -> int:
        """`segment_id` under its first name."""
        return self.segment_id

    def __repr__(self) -> str:
        count = f", redelivery_count={self.redelivery_count}" if self.redelivery_count else ""
        return f"<Event: {_shown(self.data)}, {self.stream}, segment {self.segment_id} at byte {self.offset}{count}>"


@dataclass(frozen=True, slots=True)
class EventBatch:
    """Consecutive events of one segment.

    Attributes:
        stream: ``scope/stream``.
        segment_id: 64-bit segment id.
        events: the payloads.
        offsets: where each event's header starts, and last where the next event starts: one more than `events`.
        redelivery_count: of all these events, see `Event`.
    """

    stream: str
    segment_id: int
    events: list[bytes]
    offsets: list[int]
    redelivery_count: int = 0

    @property
    def segment(self) -> int:
        """`segment_id` under its first name."""
        return self.segment_id

    @property
    def position(self) -> int:
        """Byte in the segment where the event after these starts."""
        return self.offsets[-1]

    def __repr__(self) -> str:
        first = f"; the first is {_shown(self.events[0])}" if self.events else ""
        return (
            f"<EventBatch: {len(self.events)} events of {self.stream}, segment {self.segment_id}, "
            f"bytes [{self.offsets[0]}, {self.offsets[-1]}){first}>"
        )

    def __len__(self) -> int:
        return len(self.events)

    def to_arrow(self) -> pa.RecordBatch:
        """Return ``columns: event: binary, segment_id: int64, offset: int64``. Needs ``penstock[arrow]``."""
        pyarrow, numpy = import_arrow()
        count = len(self.events)
        return pyarrow.RecordBatch.from_arrays(
            [
                pyarrow.array(self.events, pyarrow.binary()),
                pyarrow.array(numpy.full(count, self.segment_id, dtype=numpy.int64)),
                # numpy converts a list of numbers in half the time that pyarrow takes.
                pyarrow.array(numpy.fromiter(self.offsets, dtype=numpy.int64, count=count)),
            ],
            names=["event", "segment_id", "offset"],
        )


class EventChunk:
    """A run of events between segment and application, with the application's progress.

    `[0, unfinished)` are done, `[unfinished, following)` were returned last, the rest is still to come. The reader's
    task reads it while another thread may be advancing it; each field is one word.
    """

    __slots__ = (
        "events", "following", "is_revoked", "offsets", "redelivery_count", "segment", "segment_id", "stream",
        "unfinished",
    )  # fmt: skip

    def __init__(
        self,
        segment: str,
        segment_id: int,
        stream: str,
        events: list[bytes],
        offsets: list[int],
        redelivery_count: int = 0,
    ) -> None:
        self.segment: str = segment
        self.segment_id: int = segment_id
        self.stream: str = stream
        self.events: list[bytes] = events
        self.offsets: list[int] = offsets
        self.redelivery_count: int = redelivery_count
        self.unfinished: int = 0
        self.following: int = 0
        #: The segment was reassigned to another reader: no more events may be returned.
        self.is_revoked: bool = False

    @property
    def is_used_up(self) -> bool:
        """True when every event was returned, or none may be returned any more."""
        return self.is_revoked or self.following >= len(self.events)

    @property
    def safe_offset(self) -> int:
        """Where to resume after a crash: before the events returned last."""
        return self.offsets[self.unfinished]

    @property
    def next_offset(self) -> int:
        """Where to resume when all events returned are done."""
        return self.offsets[self.following]

    def hand_out(self) -> Event:
        """Return the next event; those before it count as done."""
        index = self.following
        self.unfinished = index
        self.following = index + 1
        offsets = self.offsets
        return Event(
            self.events[index], self.segment_id, offsets[index], self.stream, offsets[index + 1], self.redelivery_count
        )

    def hand_out_many(self, bytes_max: int) -> EventBatch:
        """Return the next events up to `bytes_max` framed bytes, at least one."""
        start = self.following
        limit = self.offsets[start] + bytes_max
        end = len(self.events)
        if self.offsets[end] > limit:
            end = start + 1
            while self.offsets[end + 1] <= limit:
                end += 1
        self.unfinished, self.following = start, end
        return EventBatch(
            self.stream, self.segment_id, self.events[start:end], self.offsets[start : end + 1], self.redelivery_count
        )
