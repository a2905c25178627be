"""The mark stream ``_MARK<stream>`` of a stream: it holds the watermarks; Java's readers open it with the stream.

It is part of its stream and has no records of its own, which would double the cost of a stream. It has one segment,
created with the first segments of the stream and deleted with them. Requests about it are answered from the stream's
records. The segment has the number of the stream's first one, so each incarnation of a stream name has another.

Earlier releases let a client create a stream with such a name. It has records of its own, and shares its segment with
the stream that it is named after: records are read before anything is derived.

Source: controller-api 6 and 9.6.
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock.controller.metadata.records import EpochRecord, SegmentRecord, StreamState
from penstock.controller.metadata.stream_tables import StreamTables
from penstock.model.errors import NoSuchStreamError
from penstock.model.names import MARK_STREAM_PREFIX, segment_name
from penstock.model.policies import Scaling, StreamConfig

#: The configuration of a mark stream.
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
        record: its record: all keys, from the beginning of the stream that it belongs to.
    """

    stream: str
    name: str
    record: SegmentRecord


def mark_segment(scope: str, stream: str, first_epoch: EpochRecord) -> MarkSegment | None:
    """Return the mark segment of a stream, given the stream's epoch 0; None for an internal stream."""
    mark = mark_stream_of(stream)
    if mark is None:
        return None
    first = min(first_epoch.segments, key=lambda segment: segment.id)
    record = SegmentRecord(first.number, first.creation_epoch, first.created_ms, 0.0, 1.0)
    return MarkSegment(mark, segment_name(scope, mark, record.id), record)


async def read_mark_segment(tables: StreamTables) -> MarkSegment:
    """Read which segment holds a stream's marks. One request. Raises `NoSuchStreamError`, also for an internal stream.

    The mark segment of a sealed stream remains, unsealed: readers read it until the stream is deleted.
    """
    state, _, first_epoch = await tables.beginning()
    found = mark_segment(tables.scope, tables.stream, first_epoch)
    if state is StreamState.CREATING or found is None:
        raise NoSuchStreamError(f"stream {tables.name} has no marks: it is internal, or not completely created")
    return found
