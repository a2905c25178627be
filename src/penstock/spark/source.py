"""The Spark source: a batch reader and a stream reader, both in Arrow.

Partitions are byte ranges of segments. The stream reader lives in one driver-side process as long as its query; the
readers that tasks use are copies, which hold options and nothing else.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeVar

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from penstock.model.errors import (
    InvalidArgumentError,
    NoSuchSegmentError,
    SegmentTruncatedError,
    UnsupportedOperationError,
)
from penstock.model.stream_cuts import EARLIEST, LATEST
from penstock.model.times import is_time
from penstock.spark.direct import DirectPart, DirectPlan, plan_direct, shared_layouts
from penstock.spark.offsets import Cut, Offset, from_offset, from_text, lost_bytes, to_offset
from penstock.spark.options import SourceOptions
from penstock.spark.planner import ByteRange, Losses, advance, check_ranges, ranges_between, split_ranges

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.client.chunk_layouts import SegmentLayout
    from penstock.spark.store import StoredStream

_log = logging.getLogger(__name__)

T = TypeVar("T")

#: How often in a row a plan may find that more was truncated while it was made.
PLAN_ATTEMPTS_MAX = 5

#: Micro-batches whose leases of chunks are remembered; those of others end by themselves.
LEASED_BATCHES_MAX = 64

#: What Pravega's connector calls the open end of a stream: the head as a start, the tail as an end.
UNBOUNDED = "unbounded"


class SegmentRangePartition(InputPartition):
    """One task's work: a byte range of one segment, and how it is read."""

    def __init__(self, byte_range: ByteRange, direct: DirectPlan) -> None:
        super().__init__(byte_range)
        self.byte_range = byte_range
        self.direct = direct


def _stored_stream(options: SourceOptions) -> StoredStream:
    # Here and not above: this module is imported in every planner, most of which never touch the store.
    from penstock.spark.store import StoredStream

    return StoredStream(options.store, options.scope, options.stream)


def _resolve(
    stream: StoredStream, text: str | None, default: str, unbounded: str, *, is_end: bool = False
) -> dict[int, int]:
    """Return the cut that an option's text means. `is_end`: of the end, before which a time leaves nothing out."""
    choice = (text or default).strip()
    lowered = choice.lower()
    if lowered == UNBOUNDED:
        lowered = unbounded
    if lowered in EARLIEST:
        return stream.head()
    if lowered in LATEST:
        return stream.tail()
    if is_time(choice):
        return stream.at_time(choice, is_end=is_end)
    return from_text(choice, stream.scope, stream.stream)


def _planned(options: SourceOptions, plan: Callable[[Losses | None], T]) -> tuple[T, Losses]:
    """Return a plan and what it passes because it is gone: always nothing where that is an error.

    Raises `SegmentTruncatedError`, `NoSuchSegmentError`: there is something, and that is an error.
    """
    if options.fails_on_loss:
        return plan(None), Losses()
    for attempt in range(PLAN_ATTEMPTS_MAX):
        losses = Losses()
        try:
            return plan(losses), losses
        except (SegmentTruncatedError, NoSuchSegmentError):
            # More was truncated between two looks of the plan.
            if attempt == PLAN_ATTEMPTS_MAX - 1:
                raise
    raise AssertionError("unreachable")


def _report(stream: StoredStream, losses: Losses) -> None:
    if losses:
        _log.warning("stream %s: data loss, passed as failOnDataLoss is false: %s", stream.name, losses)


def _partitions(
    stream: StoredStream, options: SourceOptions, start: Cut, end: Cut, *, is_checked: bool
) -> list[SegmentRangePartition]:
    def plan(losses: Losses | None) -> list[ByteRange]:
        ranges = ranges_between(stream, start, end, losses)
        if losses is not None:
            # Of a segment that the walk had looked at more may be gone by now.
            ranges = [kept for kept in (stream.kept(each, losses) for each in ranges) if kept.length]
        if is_checked:
            check_ranges(stream, ranges)
        return split_ranges(
            stream, ranges, bytes_max=options.partition_bytes_max, count_min=options.partition_count_min
        )

    pieces, losses = _planned(options, plan)
    _report(stream, losses)
    plans = plan_direct(stream, options, pieces)
    return [SegmentRangePartition(piece, plan) for piece, plan in zip(pieces, plans, strict=True)]


def _read(options: SourceOptions, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    # An empty plan reaches batch readers as one partition without a value.
    if not isinstance(partition, SegmentRangePartition):
        return
    from penstock.spark.batches import Place, record_batches

    stream, wanted = _stored_stream(options), partition.byte_range
    part = DirectPart(partition.direct, options)
    while wanted.length:
        place = Place(wanted.start)
        try:
            yield from record_batches(
                stream.read(wanted.segment, wanted.start, wanted.end, part),
                scope=options.scope,
                stream=options.stream,
                segment=wanted.segment,
                segment_name=stream.segment_name(wanted.segment),
                place=place,
                columns=options.columns,
            )
            break
        except (SegmentTruncatedError, NoSuchSegmentError):
            if options.fails_on_loss:
                raise
            losses = Losses()
            wanted = stream.kept(ByteRange(wanted.segment, place.at, wanted.end), losses)
            if not losses:
                raise
            _report(stream, losses)
    part.finish(stream, partition.byte_range)


class PenstockBatchReader(DataSourceReader):
    """Reads a stream from one cut to another, both fixed when the query is planned."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        """Plan the ranges between the cuts of the options; by default all that the stream holds now."""
        stream = _stored_stream(self._options)
        start = _resolve(stream, self._options.start, EARLIEST[0], EARLIEST[0])
        end = _resolve(stream, self._options.end, LATEST[0], LATEST[0], is_end=True)
        return _partitions(stream, self._options, start, end, is_checked=True)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield a partition's events in order."""
        return _read(self._options, partition)


class PenstockStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Follows a stream by cuts. Offsets are as in `penstock.spark.offsets`."""

    def __init__(self, options: SourceOptions, clock: Callable[[], float] = time.monotonic) -> None:
        self._options = options
        self._clock = clock
        # The end of an AvailableNow run: what comes later, scale events too, is not there for it.
        self._frozen_end: dict[int, int] | None = None
        self._has_planned = False
        #: When the micro-batch before was planned: the first one waits for nothing.
        self._batch_s = float("-inf")
        #: Micro-batches that may not be done yet, by their ends, with the leases of chunks that their tasks share.
        self._leased: deque[tuple[Offset, list[SegmentLayout]]] = deque(maxlen=LEASED_BATCHES_MAX)

    def initialOffset(self) -> Offset:
        """Return where a new query starts: `startingStreamCut`, by default the tail."""
        stream = _stored_stream(self._options)
        return self._offset(_resolve(stream, self._options.start, LATEST[0], EARLIEST[0]))

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the limit set by `maxBytesPerTrigger` or `maxEventsPerTrigger`; with both, that of bytes."""
        bytes_max, events_max = self._options.trigger_bytes_max, self._options.trigger_events_max
        if bytes_max is not None:
            return ReadMaxBytes(bytes_max)
        return ReadAllAvailable() if events_max is None else ReadMaxRows(events_max)

    def prepareForTriggerAvailableNow(self) -> None:
        """Freeze the end of this run at the present tail."""
        self._frozen_end = self._end(_stored_stream(self._options))

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        """Return the end of the next micro-batch: at most `limit` past `start`, on event boundaries.

        Returns `start` itself when there is nothing new, or less than is worth a micro-batch yet.
        """
        bytes_max = limit.max_bytes if isinstance(limit, ReadMaxBytes) else None
        # Spark hands one limit on; it asks for all that is there where the options are not to count.
        events_max = limit.max_rows if isinstance(limit, ReadMaxRows) else self._options.trigger_events_max
        if isinstance(limit, ReadAllAvailable):
            events_max = None
        elif not isinstance(limit, (ReadMaxBytes, ReadMaxRows)):
            raise UnsupportedOperationError(
                f"the penstock source limits batches by bytes and by events; Spark asked for {limit!r}"
            )
        stream = _stored_stream(self._options)
        end = self._frozen_end if self._frozen_end is not None else self._end(stream)
        begin = self._cut(start)
        if self._frozen_end is None and self._is_to_wait(stream, begin, end):
            return start

        def plan(losses: Losses | None) -> dict[int, int]:
            return advance(stream, begin, end, bytes_max, losses, events_max=events_max)

        cut, losses = _planned(self._options, plan)
        if cut != begin:
            self._batch_s = self._clock()
        # What it was is said when the batch is planned; here it is asked for again and again.
        return self._offset(cut, lost_bytes(start) + losses.byte_count)

    def reportLatestOffset(self) -> Offset | None:
        """Return the stream's tail, for the progress report."""
        return self._offset(self._end(_stored_stream(self._options)))

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """Plan the ranges of one micro-batch. A replay after a restart covers the same bytes."""
        # The first batch may come from a checkpoint, or from cuts given by hand; later ones end at a tail seen here.
        is_checked, self._has_planned = not self._has_planned, True
        stream = _stored_stream(self._options)
        partitions = _partitions(stream, self._options, self._cut(start), self._cut(end), is_checked=is_checked)
        if shared := shared_layouts([each.direct for each in partitions]):
            self._leased.append((end, shared))
        return partitions

    def commit(self, end: Offset) -> None:
        """Give the leases of chunks back that were shared in micro-batches up to `end`, which are done."""
        if any(planned == end for planned, _ in self._leased):
            while self._leased:
                planned, layouts = self._leased.popleft()
                for layout in layouts:
                    _stored_stream(self._options).give_back(layout)
                if planned == end:
                    break

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield a partition's events in order."""
        return _read(self._options, partition)

    def stop(self) -> None:
        """Close this process's connections to the store."""
        from penstock.spark.store import close_clients

        close_clients()

    def _is_to_wait(self, stream: StoredStream, begin: Cut, end: Cut) -> bool:
        """Say whether there is less than `minBytesPerTrigger`, and time for more to come."""
        left_s = self._batch_s + self._options.trigger_delay_s_max - self._clock()
        if not self._options.trigger_bytes_min or left_s <= 0:
            return False
        ranges, _ = _planned(self._options, lambda losses: ranges_between(stream, begin, end, losses))
        return sum(each.length for each in ranges) < self._options.trigger_bytes_min

    def _end(self, stream: StoredStream) -> dict[int, int]:
        return _resolve(stream, self._options.end, LATEST[0], LATEST[0], is_end=True)

    def _offset(self, cut: Cut, lost_byte_count: int = 0) -> Offset:
        return to_offset(self._options.scope, self._options.stream, cut, lost_byte_count)

    def _cut(self, offset: Offset) -> dict[int, int]:
        return from_offset(offset, self._options.scope, self._options.stream)


def check_batch_start(options: SourceOptions) -> None:
    """Refuse a batch read that starts at the tail: it would always be empty.

    Raises:
        InvalidArgumentError: `startingStreamCut` is `latest`.
    """
    if (options.start or "").strip().lower() in LATEST:
        raise InvalidArgumentError(
            "option 'startingStreamCut' is 'latest', which leaves a batch read nothing to read: "
            "use 'earliest' or a stream cut"
        )
