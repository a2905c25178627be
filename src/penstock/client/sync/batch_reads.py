"""The blocking `BatchReader`. Generated from `penstock.client.reading.batch_reads`: do not edit.

`python -m penstock_tools.generate_sync` regenerates it; see ``docs/sync-client.md``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from penstock.client.common.arrow import ArrowRecordBatch
from penstock.client.reading import batch_reads as aio
from penstock.client.reading.batch_reads import BatchRange
from penstock.client.reading.event import Event, EventBatch
from penstock.client.sync.handle import Handle
from penstock.model.stream_cuts import StreamCut


class BatchReader(Handle[aio.BatchReader]):
    """See the module. Made by `Client.batch`; any number of ranges may be read at once.

    Its ranges do not change: events that come later are after its end.
    """

    @property
    def ranges(self) -> Sequence[BatchRange]:
        """The ranges to read, by segment id and offset; none are empty."""
        return self._part.ranges

    @property
    def start(self) -> StreamCut | None:
        """The cut at which it starts; None if ranges were given."""
        return self._part.start

    @property
    def end(self) -> StreamCut | None:
        """The cut at which it ends, where a later batch begins. None if ranges were given."""
        return self._part.end

    def read(self, part: BatchRange) -> Iterator[EventBatch]:
        """Iterate over the events of a range in order, some hundreds of KiB at a time.

        Raises `SegmentTruncatedError` or `NoSuchSegmentError` if they no longer exist, `CorruptionError`, and
        `InvalidArgumentError` for a range that does not end at the end of an event.
        """
        return self._portal.iterate(self._part.read(part))

    def events(self, part: BatchRange) -> Iterator[Event]:
        """Iterate over the events of a range one by one; see `read`."""
        for batch in self.read(part):
            for event, offset, position in zip(batch.events, batch.offsets, batch.offsets[1:], strict=False):
                yield Event(event, batch.segment_id, offset, batch.stream, position)

    def arrow(self, part: BatchRange) -> Iterator[ArrowRecordBatch]:
        """As `read`, in Arrow: ``columns: event: binary, segment_id: int64, offset: int64``. Needs ``penstock[arrow]``.

        No Python per event.
        """
        return self._portal.iterate(self._part.arrow(part))

    def read_all(self, range_count: int | None = None) -> Iterator[EventBatch]:
        """Read `range_count` ranges at the same time (None: `batch_range_count_max`); iterate over events as they come.

        Events of one range are in order. Raises as `read`, for the first range that fails.
        """
        return self._portal.iterate(self._part.read_all(range_count))
