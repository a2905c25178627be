"""`SalvageReport`: the operations and bytes that the salvage of a damaged log kept and lost."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from penstock.segmentstore.tier1.damaged_log import LostRange

#: Maximum number of byte ranges listed in a report; further ranges are only counted.
LISTED_MAX = 10_000


@dataclass(slots=True)
class SegmentLoss:
    """The loss of one segment.

    Attributes:
        start, end: offsets in the segment: ``[start, end)`` is lost, and the segment now ends at `start`.
        event_count: events known to have been in that range.
        is_exact: the loss is known exactly: the log shows the segment's length and events after the last damage.
        is_whole: the whole segment is lost, because its creation was lost.
    """

    id: int
    name: str
    start: int
    end: int
    event_count: int = 0
    is_exact: bool = False
    is_whole: bool = False


@dataclass(slots=True)
class SalvageReport:
    """The result of the salvage of a container's log.

    Attributes:
        lost: damaged or missing byte ranges of log files, in order; the first `LISTED_MAX` of `lost_count`.
        lost_operation_count: operations whose records were in those ranges; None if the log does not show it.
        kept_operation_count: operations in the new log.
        dropped: intact operations that depend on lost ones, by kind.
        segments: segments that lost bytes, by id.
        base: what the new log begins with: `log`, or the name of an image; empty if nothing can be salvaged.
        is_truth_known: whether the log shows, after the last damage, the lengths of all segments.
    """

    container_id: int
    lost: list[LostRange] = field(default_factory=list)
    lost_count: int = 0
    lost_operation_count: int | None = 0
    kept_operation_count: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    segments: dict[int, SegmentLoss] = field(default_factory=dict)
    base: str = ""
    is_truth_known: bool = False

    @property
    def is_intact(self) -> bool:
        """Whether no byte of the log is damaged or missing."""
        return not self.lost_count

    @property
    def loses_nothing(self) -> bool:
        """Whether the new log has all operations of the damaged one."""
        return bool(self.base) and self.lost_operation_count == 0 and not self.dropped and not self.segments

    def note_lost(self, lost: LostRange) -> None:
        """Record a damaged range of a file."""
        self.lost_count += 1
        if len(self.lost) < LISTED_MAX:
            self.lost.append(lost)

    def note_operations(self, count: int | None) -> None:
        """Record that `count` records of operations were lost; None: the log does not show how many."""
        if count is None or self.lost_operation_count is None:
            self.lost_operation_count = None
        else:
            self.lost_operation_count += count

    def loss_of(self, segment_id: int, name: str, start: int) -> SegmentLoss:
        """Return the entry of a segment that lost its bytes from `start` on; create it if necessary."""
        found = self.segments.get(segment_id)
        if found is None:
            found = self.segments[segment_id] = SegmentLoss(segment_id, name, start, start)
        return found
