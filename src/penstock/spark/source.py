"""The Spark source: a batch reader and a stream reader, both in Arrow.

Partitions are byte ranges of segments. The stream reader lives in one driver-side process as long as its query; the
readers in tasks are copies, which hold only options.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
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
    NoSuchStreamError,
    PenstockError,
    SegmentTruncatedError,
    UnsupportedOperationError,
)
from penstock.model.names import split_scoped_name
from penstock.model.stream_cuts import EARLIEST, LATEST, is_cut_text
from penstock.model.times import is_time
from penstock.spark.direct import DirectPart, DirectPlan, plan_direct, shared_layouts
from penstock.spark.offsets import Cut, Cuts, Offset, QueryPosition, cuts_from_text, from_text
from penstock.spark.options import SourceOptions
from penstock.spark.planner import (
    ByteRange,
    Losses,
    advance,
    check_ranges,
    kept,
    ranges_between,
    split_ranges,
)
from penstock.spark.sharing import Claims

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.client.transport.chunk_layouts import SegmentLayout
    from penstock.spark.store import StoredStream
    from penstock.spark.stream_set import QueriedStreams, StreamSet

_log = logging.getLogger(__name__)

T = TypeVar("T")

#: Maximum number of attempts of a plan when more data are truncated meanwhile.
PLAN_ATTEMPTS_MAX = 5

#: Maximum number of concurrent lookups of event boundaries in a plan.
LOOKUPS_AT_ONCE = 16

#: Maximum number of micro-batches whose leases of chunks are remembered; other leases expire.
LEASED_BATCHES_MAX = 64

#: Pravega's connector's name of the open end of a stream: the head as a start, the tail as an end.
UNBOUNDED = "unbounded"


class SegmentRangePartition(InputPartition):
    """One task's work: a byte range of one segment of `stream` (``scope/stream``), and how to read it."""

    def __init__(self, stream: str, byte_range: ByteRange, direct: DirectPlan) -> None:
        super().__init__((stream, byte_range))
        self.stream = stream
        self.byte_range = byte_range
        self.direct = direct


def _resolve(
    stream: StoredStream, text: str | None, default: str, unbounded: str, *, is_end: bool = False
) -> dict[int, int]:
    """Resolve an option's text to a cut. `is_end`: an end, which must not exclude events before a given time."""
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


def _cuts(
    options: SourceOptions, streams: QueriedStreams, text: str, unbounded: str, names: Sequence[str], *, is_end: bool
) -> dict[str, Cut]:
    """Resolve an option's text to cuts of those streams that exist.

    A cut's text need not name all streams: those that it does not name are read whole.
    """
    from penstock.spark.store import StoredStream

    text = text.strip()
    given: dict[str, dict[int, int]] = {}
    if options.only is None and is_cut_text(text):
        given = cuts_from_text(text, names)
        text = LATEST[0] if is_end else EARLIEST[0]
    others = [name for name in names if name not in given]
    if (unbounded if text.lower() == UNBOUNDED else text.lower()) in LATEST:
        return given | streams.tails(others, whole_transactions=options.has_whole_transactions)
    found: dict[str, Cut] = {**given}
    for name in others:
        stream = StoredStream(options.store, *split_scoped_name(name))
        try:
            found[name] = _resolve(stream, text, text, unbounded, is_end=is_end)
        except NoSuchStreamError:
            continue
    return found


def _check_named(streams: QueriedStreams, found: Container[str], names: Sequence[str]) -> None:
    """Raise `NoSuchStreamError` for a named stream that does not exist; those found by a pattern may be missing."""
    for name in names:
        if name not in found and streams.is_named(name):
            raise NoSuchStreamError(f"stream {name} does not exist")


def _planned(options: SourceOptions, plan: Callable[[Losses | None], T]) -> tuple[T, Losses]:
    """Return a plan and the missing data that it skips, which are always none where missing data are an error.

    Raises `SegmentTruncatedError`, `NoSuchSegmentError`: data are missing, and that is an error.
    """
    if options.fails_on_loss:
        return plan(None), Losses()
    for attempt in range(PLAN_ATTEMPTS_MAX):
        losses = Losses()
        try:
            return plan(losses), losses
        except (SegmentTruncatedError, NoSuchSegmentError, NoSuchStreamError):
            # More data were truncated or deleted during the plan.
            if attempt == PLAN_ATTEMPTS_MAX - 1:
                raise
    raise AssertionError("unreachable")


def _report(streams: str, losses: Losses) -> None:
    if losses:
        _log.warning("stream %s: data loss, ignored because failOnDataLoss is false: %s", streams, losses)


def _partitions(options: SourceOptions, start: Cuts, end: Cuts, *, is_checked: bool) -> list[SegmentRangePartition]:
    """Plan the ranges between two places in the streams of `end`, each of which has a start."""
    from penstock.spark.stream_set import StreamSet

    streams = StreamSet(options.store, end)

    def plan(losses: Losses | None) -> list[ByteRange]:
        ends = end if losses is None else _still_there(streams, end, losses)
        begins = streams.merge({name: start[name] for name in ends})
        ranges = ranges_between(streams, begins, streams.merge(ends), losses)
        if losses is not None:
            # More of an already planned segment may be truncated by now.
            ranges = [left for left in kept(streams, ranges, losses) if left.length]
        if is_checked:
            check_ranges(streams, ranges)
        return split_ranges(
            streams, ranges, bytes_max=options.partition_bytes_max, count_min=options.partition_count_min
        )

    pieces, losses = _planned(options, plan)
    _report(streams.name, losses)
    partitions: list[SegmentRangePartition] = []
    for piece, direct in zip(pieces, plan_direct(streams, options, pieces), strict=True):
        stream, segment = streams.stream_of(piece.segment)
        partitions.append(SegmentRangePartition(stream.name, ByteRange(segment, piece.start, piece.end), direct))
    return partitions


def _still_there(streams: StreamSet, cuts: Cuts, losses: Losses) -> Cuts:
    """Return the cuts of streams that still exist; record the others, including recreated ones."""
    found: dict[str, Cut] = {}
    for name, cut in cuts.items():
        try:
            is_there = streams.is_of_now(name, cut)
        except NoSuchStreamError:
            is_there = False
        if is_there:
            found[name] = cut
        else:
            losses.streams.append(name)
    return found


def _read(options: SourceOptions, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    # An empty plan reaches batch readers as one partition without a value.
    if not isinstance(partition, SegmentRangePartition):
        return
    from penstock.spark.batches import RangeProgress, as_declared, record_batches
    from penstock.spark.decoding import EventDecoder, raw_columns
    from penstock.spark.store import StoredStream
    from penstock.spark.worker_memory import freeze_loaded

    stream, wanted = StoredStream(options.store, *split_scoped_name(partition.stream)), partition.byte_range
    part = DirectPart(partition.direct, options)
    decoder, columns = None, options.columns
    if options.decoding is not None and options.value_type is not None:
        decoder, columns = EventDecoder(options.decoding, options.value_type), raw_columns(options.columns)
    while wanted.length:
        progress = RangeProgress(wanted.start)
        try:
            batches = record_batches(
                stream.read(wanted.segment, wanted.start, wanted.end, part),
                scope=stream.scope,
                stream=stream.stream,
                segment=wanted.segment,
                segment_name=stream.segment_name(wanted.segment),
                place=progress,
                columns=columns,
            )
            if decoder is not None:
                batches = decoder.decoded(batches, options.columns, stream.segment_name(wanted.segment))
            yield from as_declared(batches, options.declared) if options.declared else batches
            break
        except (SegmentTruncatedError, NoSuchSegmentError):
            if options.fails_on_loss:
                raise
            losses = Losses()
            (wanted,) = kept(stream, [ByteRange(wanted.segment, progress.at, wanted.end)], losses)
            if not losses:
                raise
            _report(stream.name, losses)
    part.finish(stream, partition.byte_range)
    freeze_loaded("source")


class PenstockBatchReader(DataSourceReader):
    """Reads streams from one cut to another, both fixed when the query is planned."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        """Plan the ranges between the cuts of the options; by default all data that the streams hold now."""
        from penstock.spark.stream_set import QueriedStreams

        options = self._options
        streams = QueriedStreams(options, time.monotonic)
        names = streams.names()
        start = _cuts(options, streams, options.start or EARLIEST[0], EARLIEST[0], names, is_end=False)
        end = _cuts(options, streams, options.end or LATEST[0], LATEST[0], names, is_end=True)
        _check_named(streams, start.keys() & end.keys(), names)
        # Streams found by a pattern may be deleted in between.
        return _partitions(options, start, {name: end[name] for name in end if name in start}, is_checked=True)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield a partition's events in order."""
        return _read(self._options, partition)


class PenstockStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Follows streams by cuts. For offsets see `penstock.spark.offsets`."""

    def __init__(self, options: SourceOptions, clock: Callable[[], float] = time.monotonic) -> None:
        self._options = options
        self._clock = clock
        # Created on first use: the reader is copied to every task.
        self._streams: QueriedStreams | None = None
        # The end of an AvailableNow run: later events, scale events and streams are ignored.
        self._frozen_ends: Cuts | None = None
        #: The offset of a new query, resolved once: Spark requests it before each plan and each run of the first batch.
        self._initial: Offset | None = None
        #: The end of the query, once known, if option `until` is a time.
        self._until: dict[str, Cut] = {}
        self._has_planned = False
        #: The claims of segments under limits, and the streams of these segments.
        self._claims = Claims()
        self._claiming: frozenset[str] = frozenset()
        #: When the previous micro-batch was planned; the first one does not wait.
        self._batch_s = float("-inf")
        #: Micro-batches that may still run, by their ends, with the leases of chunks shared by their tasks.
        self._leased: deque[tuple[Offset, list[SegmentLayout]]] = deque(maxlen=LEASED_BATCHES_MAX)

    def initialOffset(self) -> Offset:
        """Return where a new query starts: `startingStreamCut`, by default the tail.

        Spark calls this several times until the first micro-batch is committed, also after a restart, where the result
        may differ. So the offset carries its cuts as `since`, and the end of the first micro-batch repeats them: see
        `penstock.spark.offsets`.
        """
        if self._initial is None:
            options, streams = self._options, self._queried()
            names = streams.names()
            cuts = _cuts(options, streams, options.start or LATEST[0], EARLIEST[0], names, is_end=False)
            _check_named(streams, cuts, names)
            self._initial = QueryPosition(cuts, since=cuts, subscriber=self._number("")).to_offset(options.only)
            if self._frozen_ends is not None:
                # Spark freezes the end of a run first. A start at the current tail would lie after that end.
                self._frozen_ends = self._ends(())
        return self._initial

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the limit set by `maxBytesPerTrigger` or `maxEventsPerTrigger`; with both, that of bytes."""
        bytes_max, events_max = self._options.trigger_bytes_max, self._options.trigger_events_max
        if bytes_max is not None:
            return ReadMaxBytes(bytes_max)
        return ReadAllAvailable() if events_max is None else ReadMaxRows(events_max)

    def prepareForTriggerAvailableNow(self) -> None:
        """Freeze the end of this run at the current tails."""
        self._frozen_ends = self._ends(())

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        """Return the end of the next micro-batch: at most `limit` past `start`, on event boundaries.

        New streams begin with this micro-batch. Returns `start` itself when there are no new data, or too few for
        a micro-batch yet.
        """
        bytes_max = limit.max_bytes if isinstance(limit, ReadMaxBytes) else None
        # Spark passes a single limit; it requests everything where the options must not apply.
        events_max = limit.max_rows if isinstance(limit, ReadMaxRows) else self._options.trigger_events_max
        if isinstance(limit, ReadAllAvailable):
            events_max = None
        elif not isinstance(limit, (ReadMaxBytes, ReadMaxRows)):
            raise UnsupportedOperationError(
                f"the penstock source limits batches by bytes and by events; Spark asked for {limit!r}"
            )
        place = QueryPosition.of(start, self._options.only)
        self._until.update(place.until)
        ends = self._ends(place.cuts) if self._frozen_ends is None else self._frozen_ends
        ends = {name: self._until.get(name, end) for name, end in ends.items()}
        if self._frozen_ends is None and self._is_to_wait(place, ends):
            return start

        def plan(losses: Losses | None) -> QueryPosition:
            streams, begins, new = self._begins(place, ends, losses)
            unread = {name: cut for name, cut in place.unread().items() if name in begins}
            if self._claiming != frozenset(ends):
                # Keys of segments are unique among the streams of one plan.
                self._claims, self._claiming = Claims(), frozenset(ends)
            with ThreadPoolExecutor(LOOKUPS_AT_ONCE) as pool:
                cut = advance(
                    streams,
                    streams.merge(begins),
                    streams.merge({name: ends[name] for name in begins}),
                    bytes_max,
                    losses,
                    events_max=events_max,
                    claims=self._claims,
                    each=pool.map,
                )
            return QueryPosition(streams.split(cut), unread | new)

        found, losses = _planned(self._options, plan)
        if found.cuts == place.cuts and not losses.byte_count:
            return start
        self._batch_s = self._clock()
        until = {name: cut for name, cut in self._until.items() if name in found.cuts}
        # Losses are logged when the batch is planned, because this method is called repeatedly. But missing streams
        # are no longer in the offset then, so they are logged here.
        _report(", ".join(losses.streams), Losses(streams=losses.streams))
        lost_byte_count = place.lost_byte_count + losses.byte_count
        number = self._number(place.subscriber)
        return QueryPosition(found.cuts, found.since, until, lost_byte_count, number).to_offset(self._options.only)

    def reportLatestOffset(self) -> Offset | None:
        """Return the streams' tails, for the progress report."""
        return QueryPosition(self._ends(())).to_offset(self._options.only)

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """Plan the ranges of one micro-batch. A replay after a restart covers the same bytes."""
        # The first batch may come from a checkpoint, or from cuts given by the user; later ones end at a tail read
        # here.
        is_checked, self._has_planned = not self._has_planned, True
        begin, place = QueryPosition.of(start, self._options.only), QueryPosition.of(end, self._options.only)
        begins = {**begin.cuts, **place.since}
        if self._options.subscriber is not None and place.subscriber and (is_checked or place.since):
            from penstock.spark.subscription import hold

            held = {name: begins[name] for name in place.cuts}
            hold(self._options.store, f"{self._options.subscriber}-{place.subscriber}", held)
        partitions = _partitions(self._options, begins, place.cuts, is_checked=is_checked)
        if shared := shared_layouts([each.direct for each in partitions]):
            self._leased.append((end, shared))
        return partitions

    def commit(self, end: Offset) -> None:
        """Release everything before `end`. Spark calls this one batch late.

        Returns leases of chunks shared in micro-batches up to `end`. If the query is a subscriber, retention may remove
        the data before `end`; failures of that are repaired by the next batch.
        """
        self._give_back(end)
        place = QueryPosition.of(end, self._options.only)
        if self._options.subscriber is None or not place.subscriber:
            return
        from penstock.spark.subscription import release

        group = f"{self._options.subscriber}-{place.subscriber}"
        try:
            release(self._options.store, group, place.cuts)
        except PenstockError as error:
            _log.warning("the position of subscriber %s could not be published yet: %s", group, error)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield a partition's events in order."""
        return _read(self._options, partition)

    def stop(self) -> None:
        """Close this process's connections to the store."""
        from penstock.spark.store import close_clients

        close_clients()

    def _give_back(self, end: Offset) -> None:
        from penstock.spark.store import give_back

        if any(planned == end for planned, _ in self._leased):
            while self._leased:
                planned, layouts = self._leased.popleft()
                for layout in layouts:
                    give_back(self._options.store, layout)
                if planned == end:
                    break

    def _number(self, known: str) -> str:
        """Return the number of the query's subscriber: `known` if it has one; "" if it has no subscriber."""
        from penstock.spark.subscription import new_number

        return "" if self._options.subscriber is None else known or new_number()

    def _queried(self) -> QueriedStreams:
        from penstock.spark.stream_set import QueriedStreams

        if self._streams is None:
            self._streams = QueriedStreams(self._options, self._clock)
        return self._streams

    def _ends(self, known: Iterable[str]) -> dict[str, Cut]:
        """Return the current end of the query in each existing stream: those that it reads, including those `known`.

        Raises `NoSuchStreamError`: a named stream that is not known does not exist.
        """
        options, streams = self._options, self._queried()
        names = streams.names()
        wanted = sorted({*names, *filter(streams.is_wanted, known)})
        text = (options.end or LATEST[0]).strip()
        if is_time(text):
            new = [name for name in wanted if name not in self._until]
            self._until.update(_cuts(options, streams, text, LATEST[0], new, is_end=True))
            ends = {name: self._until[name] for name in wanted if name in self._until}
        else:
            ends = _cuts(options, streams, text, LATEST[0], wanted, is_end=True)
        _check_named(streams, {*ends, *known}, names)
        return ends

    def _begins(
        self, place: QueryPosition, ends: Cuts, losses: Losses | None
    ) -> tuple[StreamSet, dict[str, Cut], dict[str, Cut]]:
        """Return the streams of a micro-batch, with its start in each, and those of these that are new with it.

        Raises `NoSuchStreamError`: a stream of the query no longer exists, and there is no `losses`.
        """
        from penstock.spark.stream_set import StreamSet

        only, streams = self._options.only, StreamSet(self._options.store, ends)
        for name in place.cuts.keys() - ends.keys():
            if not self._queried().is_wanted(name):
                _log.warning("stream %s: the query no longer reads it: option 'stream' changed", name)
            elif only is not None or losses is None:
                raise NoSuchStreamError(f"stream {name} no longer exists: its unread data is lost")
            else:
                losses.streams.append(name)
        begins: Cuts = {name: place.cuts[name] for name in ends if name in place.cuts}
        if losses is not None:
            begins = _still_there(streams, begins, losses)
        new = [name for name in ends if name not in begins]
        since = _cuts(self._options, self._queried(), EARLIEST[0], EARLIEST[0], new, is_end=False)
        if only is not None:
            _check_named(self._queried(), {*begins, *since}, list(ends))
        return streams, {**begins, **since}, since

    def _is_to_wait(self, place: QueryPosition, ends: Cuts) -> bool:
        """Return whether there are fewer bytes than `minBytesPerTrigger`, and time to wait for more."""
        left_s = self._batch_s + self._options.trigger_delay_s_max - self._clock()
        if not self._options.trigger_bytes_min or left_s <= 0:
            return False

        def plan(losses: Losses | None) -> list[ByteRange]:
            streams, begins, _ = self._begins(place, ends, losses)
            joined_ends = streams.merge({name: ends[name] for name in begins})
            return ranges_between(streams, streams.merge(begins), joined_ends, losses)

        ranges, _ = _planned(self._options, plan)
        return sum(each.length for each in ranges) < self._options.trigger_bytes_min


def check_batch_start(options: SourceOptions) -> None:
    """Refuse a batch read that starts at the tail, because it would always be empty.

    Raises:
        InvalidArgumentError: `startingStreamCut` is `latest`.
    """
    if (options.start or "").strip().lower() in LATEST:
        raise InvalidArgumentError(
            "option 'startingStreamCut' is 'latest', which leaves a batch read nothing to read: "
            "use 'earliest' or a stream cut"
        )
