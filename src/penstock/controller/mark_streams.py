"""The mark stream ``_MARK<stream>`` of a stream: what holds its watermarks, and Java's readers open beside it.

It is a part of its stream, not a stream with records of its own, which would double what a stream costs: one segment
that is made with the first segments of the stream and deleted with them. What is asked about it is answered from the
stream's records. The segment has the number of the stream's first one, so each life of a name has another.

Earlier releases let a client create a stream of such a name. It has records of its own, and shares its segment with the
stream that it is named after: records are read before anything is derived.

Source: controller API specification, sections 6 and 9.6.
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock.controller.metadata.records import EpochRecord, SegmentRecord, StreamState
from penstock.controller.metadata.stream_tables import StreamTables
from penstock.model.errors import NoSuchStreamError
from penstock.model.names import MARK_STREAM_PREFIX, segment_name
from penstock.model.policies import Scaling, StreamConfig

#: How a mark stream is made.
MARK_CONFIGURATION = StreamConfig(Scaling.fixed(1))


def marked_stream(name: str) -> str | None:
    """Return the stream that a mark stream of this name belongs to; None for any other name.

    Internal streams, whose names begin with an underscore, have none.
    """
    stream = name.removeprefix(MARK_STREAM_PREFIX)
    return stream if stream != name and mark_stream_of(stream) is not None else None


def mark_stream_of(stream: str) -> str | None:
    """Return the name of a stream's mark stream; None for an internal stream, which has none."""
    return MARK_STREAM_PREFIX + stream if stream and not stream.startswith("_") else None


@dataclass(frozen=True, slots=True)
class MarkSegment:
    """The only segment of a mark stream.

    Attributes:
        stream: the mark stream's name.
        name: the segment's full name.
        record: what is said of it: all keys, from the beginning of the stream that it belongs to.
    """

    stream: str
    name: str
    record: SegmentRecord


def mark_segment(scope: str, stream: str, first_epoch: EpochRecord) -> MarkSegment | None:
    """Return the segment of a stream's marks, given the stream's epoch 0; None for an internal stream."""
    mark = mark_stream_of(stream)
    if mark is None:
        return None
    first = min(first_epoch.segments, key=lambda segment: segment.id)
    record = SegmentRecord(first.number, first.creation_epoch, first.created_ms, 0.0, 1.0)
    return MarkSegment(mark, segment_name(scope, mark, record.id), record)


async def read_mark_segment(tables: StreamTables) -> MarkSegment:
    """Read which segment holds a stream's marks. One request. Raises `NoSuchStreamError`, also for an internal stream.

    A sealed stream has its segment of marks still, and it is not sealed: readers look into it until the stream is gone.
    """
    state, _, first_epoch = await tables.beginning()
    found = mark_segment(tables.scope, tables.stream, first_epoch)
    if state is StreamState.CREATING or found is None:
        raise NoSuchStreamError(f"stream {tables.name} has no marks: it is internal, or not completely created")
    return found
