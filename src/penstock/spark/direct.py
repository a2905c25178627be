"""Direct reads: which partitions read chunks of long-term storage themselves, by which layout, and the result.

The driver requests layouts when a query is planned, for all segments at once and with a short time limit; a partition
carries its part of one, or the reason why it has none. The task logs the result to the logger `penstock.spark.reads`,
one line for each partition. See docs/direct-reads.md.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from penstock.model.errors import PenstockError
from penstock.spark.options import DIRECT_ALWAYS, DIRECT_AUTO, DIRECT_NEVER, SourceOptions
from penstock.spark.planner import ByteRange

if TYPE_CHECKING:
    from penstock.client.reading.direct_reads import DirectReads
    from penstock.client.transport.chunk_layouts import SegmentLayout

#: Logs the result of each partition. At INFO even if no level is configured: Spark can show it in a table.
_log = logging.getLogger("penstock.spark.reads")
_log.setLevel(logging.INFO)

#: For less than this of a segment, a layout costs more than it saves (`directReads` = `auto`).
AUTO_BYTES_MIN = 8 * 1024 * 1024


class LayoutView(Protocol):
    """The requests for layouts of one stream; see `StoredStream`."""

    def segment_name(self, segment: int) -> str:
        """Return the full name of a segment."""

    def layouts(self, ranges: Sequence[ByteRange], lease_s: float) -> Sequence[SegmentLayout | PenstockError]:
        """Return the leased layout of each range, or why it is unknown."""

    def give_back(self, layout: SegmentLayout) -> None:
        """End the lease of a layout."""


@dataclass(frozen=True, slots=True)
class DirectPlan:
    """The plan that a partition carries.

    Attributes:
        layout: the chunks of its bytes, as far as long-term storage had them when it was planned; None: see `reason`.
        reason: why it reads through the store.
        is_sole: no other partition shares the lease: the task returns it after it has read everything.
    """

    layout: SegmentLayout | None
    reason: str = ""
    is_sole: bool = False


def plan_direct(stream: LayoutView, options: SourceOptions, pieces: Sequence[ByteRange]) -> list[DirectPlan]:
    """Return a plan for each of `pieces`. Errors become the reason in a plan, and are never raised."""
    if options.direct_reads == DIRECT_NEVER:
        return [DirectPlan(None, "directReads is never")] * len(pieces)
    bytes_min = AUTO_BYTES_MIN if options.direct_reads == DIRECT_AUTO else 1
    wanted: dict[int, ByteRange] = {}
    counts = Counter(piece.segment for piece in pieces)
    for piece in pieces:
        known = wanted.get(piece.segment, piece)
        wanted[piece.segment] = ByteRange(piece.segment, min(known.start, piece.start), max(known.end, piece.end))
    asked = [each for each in wanted.values() if each.length >= bytes_min]
    answers = dict(zip((each.segment for each in asked), stream.layouts(asked, options.layout_lease_s), strict=True))
    plans: list[DirectPlan] = []
    for piece in pieces:
        answer = answers.get(piece.segment)
        if answer is None:
            plans.append(DirectPlan(None, f"fewer than {bytes_min} bytes of its segment (directReads is auto)"))
        elif isinstance(answer, PenstockError):
            plans.append(DirectPlan(None, f"no layout of its chunks: {type(answer).__name__}: {answer}"))
        elif answer.end <= piece.start:
            plans.append(DirectPlan(None, "it was not in long-term storage when the query was planned"))
        else:
            plans.append(DirectPlan(answer.clipped(piece.start, piece.end), is_sole=counts[piece.segment] == 1))
    return plans


def shared_layouts(plans: Sequence[DirectPlan]) -> list[SegmentLayout]:
    """Return one layout for each lease shared by several partitions; none of these returns it."""
    found = {
        layout.lease: layout
        for plan in plans
        if (layout := plan.layout) is not None and layout.lease is not None and not plan.is_sole
    }
    return list(found.values())


class DirectPart:
    """One task's read of a range: the bytes read so far by each path, and the rest of the plan."""

    def __init__(self, plan: DirectPlan, options: SourceOptions) -> None:
        #: The layout in use; None once it turned out to be unusable.
        self.layout: SegmentLayout | None = plan.layout
        self.place: str = options.storage_place
        self.is_required: bool = options.direct_reads == DIRECT_ALWAYS
        #: Bytes returned so far.
        self.read_bytes: int = 0
        self._plan = plan
        self._direct_bytes = 0
        self._reason = plan.reason

    def note(self, reads: DirectReads) -> None:
        """Add the byte counts of a reader that has ended."""
        self._direct_bytes += reads.direct_bytes
        if reads.problem is not None:
            self.layout = None
            self._reason = f"{type(reads.problem).__name__}: {reads.problem}"

    def finish(self, stream: LayoutView, wanted: ByteRange) -> None:
        """Log the result; return the lease, if no other partition shares it."""
        layout = self._plan.layout
        if layout is not None and self._plan.is_sole:
            stream.give_back(layout)
        reason, store_bytes = self._reason, max(self.read_bytes - self._direct_bytes, 0)
        if not reason and store_bytes:
            reason = "the rest was not in long-term storage when the query was planned"
        _log.log(
            logging.WARNING if layout is not None and self._reason else logging.INFO,
            "bytes [%d, %d) of segment %s: %d read directly%s, %d through the store%s",
            wanted.start,
            wanted.end,
            stream.segment_name(wanted.segment),
            self._direct_bytes,
            f" from {self.place or layout.storage.place}" if layout is not None and self._direct_bytes else "",
            store_bytes,
            f" ({reason})" if reason else "",
        )
