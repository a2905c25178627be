"""The segments of a stream at one moment, and the segment of each routing key.

Pure values: the controller returns them, the writer routes by them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from penstock.model.errors import ProtocolError
from penstock.model.names import SegmentId, segment_name


@dataclass(frozen=True, slots=True)
class SegmentRange:
    """A segment of a stream and the key range `[key_low, key_high)` it takes."""

    scope: str
    stream: str
    segment_id: SegmentId
    key_low: float
    key_high: float

    @property
    def name(self) -> str:
        """The segment's full name on the segment store."""
        return segment_name(self.scope, self.stream, self.segment_id)


@dataclass(frozen=True, slots=True)
class Successor:
    """A segment that follows sealed ones; it may be read once all of `predecessors` are read to their end."""

    segment: SegmentRange
    predecessors: tuple[SegmentId, ...]


class SegmentSource(Protocol):
    """The source of a writer's segments: a stream, or a transaction on it."""

    @property
    def name(self) -> str:
        """The target of the writes, for messages."""

    async def segments(self) -> Sequence[SegmentRange]:
        """Return the segments that take events now; none means that the stream is sealed."""

    async def successors(self, sealed: SegmentRange) -> Sequence[SegmentRange]:
        """Return the segments that replace a sealed one; none means that the stream is sealed."""

    def segment_name(self, segment: SegmentRange) -> str:
        """Return the full name of the segment to append to."""


class SegmentMap:
    """Key ranges that cover [0, 1) without a gap, sorted.

    Raises `ProtocolError` when they do not cover it.
    """

    __slots__ = ("_bounds", "segments")

    def __init__(self, segments: Iterable[SegmentRange]) -> None:
        #: The segments, by key range.
        self.segments: Sequence[SegmentRange] = sorted(segments, key=lambda segment: segment.key_low)
        reached = 0.0
        for segment in self.segments:
            if abs(segment.key_low - reached) > 1e-9 or segment.key_high <= segment.key_low:
                raise ProtocolError(
                    f"{segment.scope}/{segment.stream}: the segments' key ranges do not cover [0, 1): segment "
                    f"{segment.segment_id} takes [{segment.key_low}, {segment.key_high}), expected from {reached}"
                )
            reached = segment.key_high
        if self.segments and reached < 1.0:
            raise ProtocolError(
                f"{self.segments[-1].scope}/{self.segments[-1].stream}: the last key range ends at {reached}, not 1.0"
            )
        self._bounds = [segment.key_high for segment in self.segments]

    def __len__(self) -> int:
        return len(self.segments)

    def index_of(self, key_hash: float) -> int:
        """Return the index in `segments` of the one that takes `key_hash`, in [0, 1).

        The smallest upper bound that is not below the hash wins, as in Pravega's clients.
        """
        return min(bisect_left(self._bounds, key_hash), len(self._bounds) - 1)

    def segment_of(self, key_hash: float) -> SegmentRange:
        """Return the segment that takes `key_hash`, in [0, 1)."""
        return self.segments[self.index_of(key_hash)]

    def replace(self, sealed: SegmentId, successors: Iterable[SegmentRange]) -> SegmentMap:
        """Return the map after `sealed` was replaced by `successors`, each clipped to the range of `sealed`.

        A successor of a merge also covers ranges of neighbours. Those keep their part until they are found sealed
        themselves, because they may still hold events that must be stored before newer ones of the same keys go to the
        successor.
        """
        new = list(successors)
        result = []
        for segment in self.segments:
            if segment.segment_id != sealed:
                result.append(segment)
                continue
            for other in new:
                low, high = max(segment.key_low, other.key_low), min(segment.key_high, other.key_high)
                if low < high:
                    result.append(SegmentRange(other.scope, other.stream, other.segment_id, low, high))
        return SegmentMap(result)
