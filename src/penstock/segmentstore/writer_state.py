"""`WriterState`: the state of one writer on one connection."""

from __future__ import annotations

from penstock.model.names import is_mark_segment, is_written_for_readers
from penstock.segmentstore.container.container import SegmentContainer
from penstock.segmentstore.container.segment import Segment


class WriterState:
    """One writer on one connection.

    After a refused append (`is_failed`) nothing more is accepted until the writer is set up again. A writer that got
    WrongHost receives no acknowledgements before that either: the reply to the set-up says what is durable. Invariants:
    `acknowledged <= stored`; `stored` is the last number accepted from here, which the segment's own attribute equals
    unless another connection writes with the same id.
    """

    __slots__ = (
        "acknowledged",
        "container",
        "durable",
        "durable_length",
        "in_flight",
        "is_failed",
        "is_of_marks",
        "is_reset",
        "is_urgent",
        "last_seen",
        "request_id",
        "segment",
        "stored",
        "writer_id",
    )

    def __init__(
        self, writer_id: bytes, container: SegmentContainer, segment: Segment, stored: int, request_id: int
    ) -> None:
        self.writer_id: bytes = writer_id
        self.container: SegmentContainer = container
        self.segment: Segment = segment
        self.stored: int = stored
        self.acknowledged: int = stored
        self.last_seen: int = 0
        self.durable: int = stored
        self.durable_length: int = 0
        self.request_id: int = request_id
        self.in_flight: int = 0
        self.is_failed: bool = False
        self.is_reset: bool = False
        self.is_urgent: bool = is_written_for_readers(segment.name)
        #: Watermarks are appended only conditionally: a writer that does not know the segment's end must not append.
        self.is_of_marks: bool = is_mark_segment(segment.name)
