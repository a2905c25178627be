"""`Exporter`: the events of a stream as rows of a table, each once, in commits that carry the stream cut they end at.

A batch is what lies between two cuts. It is written into files that nobody reads yet; one commit makes them a part of
the table and says, in the same step, at which cut they end. That commit is made on condition that the latest one ended
where this batch begins. So whoever comes, after a crash or beside another exporter, asks the table how far it is.
Failure by failure: ``docs/jobs.md``.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from penstock.jobs.rows import POSITION_COLUMNS, RowShape
from penstock.model.errors import InvalidArgumentError
from penstock.model.segments import Buffer
from penstock.model.stream_cuts import StreamCut
from penstock.spark.batches import Place, record_batches
from penstock.spark.offsets import Cut
from penstock.spark.planner import ByteRange, Losses, StreamView, advance, ranges_between

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A file that is durable, by its place as the target names it."""

    place: str
    row_count: int


@dataclass(frozen=True, slots=True)
class WrittenBatch:
    """Files that are durable, and that nobody reads until they are committed.

    Attributes:
        before: the cut of the commit that it goes behind; None: it is to be the first.
        start, end: what lies between them is in the files, and nothing else.
        files: their places, as the target names them; none: nothing but the cut moves.
    """

    id: str
    before: StreamCut | None
    start: StreamCut
    end: StreamCut
    files: tuple[str, ...]
    row_count: int


class FileMaker(Protocol):
    """Writes files of one batch. A value: it may be pickled and used in other processes, several times."""

    def write(self, rows: Iterable[pa.RecordBatch]) -> WrittenFile:
        """Write rows into a file of a name of its own, and make it durable. What fails leaves nothing that is read."""


class ExportTarget(Protocol):
    """A table that a stream is exported to. One thread uses it."""

    def latest(self) -> StreamCut | None:
        """Return the cut that the latest commit of this stream ends at; None: there is none yet."""

    def new_files(self, batch_id: str, start: StreamCut, end: StreamCut) -> FileMaker:
        """Return what writes the files of a batch that goes behind what `latest` has returned."""

    def commit(self, batch: WrittenBatch) -> bool:
        """Make a batch part of the table, if the latest commit still ends at `batch.before`.

        False: it does not, another exporter was first; the files are removed. A reply that is lost is looked up.

        Raises:
            OutcomeUnknownError: it could not be found out in time. What comes next finds it done, or does it.
        """

    def discard(self, batch: WrittenBatch) -> None:
        """Remove the files of a batch that will never be committed."""


class ExportSource(StreamView, Protocol):
    """A stream, as `penstock.spark.store.StoredStream`."""

    scope: str
    stream: str

    def read(self, segment: int, start: int, end: int) -> Iterator[Buffer]:
        """Yield the bytes of a range."""

    def segment_name(self, segment: int) -> str:
        """Return a segment's full name."""

    def tail(self) -> dict[int, int]:
        """Return the cut behind the last event acknowledged so far."""

    def is_sealed(self) -> bool:
        """Say whether the stream takes no more events."""


class RangeWriter(Protocol):
    """Writes the events of ranges into files."""

    def write(self, ranges: Sequence[ByteRange], files: FileMaker) -> Sequence[WrittenFile]:
        """Write all of them, and return when their files are durable."""


class HereWriter:
    """Writes them in this process, one after the other, into one file."""

    def __init__(self, source: ExportSource, shape: RowShape) -> None:
        self._source = source
        self._shape = shape

    def write(self, ranges: Sequence[ByteRange], files: FileMaker) -> Sequence[WrittenFile]:
        """See `RangeWriter.write`."""
        return [files.write(rows_of(self._source, self._shape, ranges))]


@dataclass(slots=True)
class ExportReport:
    """What a run of an export has done.

    Attributes:
        cut: where the table is; None: nothing was ever exported.
        row_count, length_bytes, commit_count: of this run's own commits; bytes as in the stream.
        overtaken_count: batches that another exporter was first with.
    """

    cut: StreamCut | None = None
    row_count: int = 0
    length_bytes: int = 0
    commit_count: int = 0
    overtaken_count: int = 0


class Exporter:
    """See the module.

    Args:
        writer: reads ranges and writes their files: `HereWriter`, or one that has others do it.
        start: where the first batch begins, if the table has none yet.
        batch_bytes: about how much of the stream goes into one commit, at most.
    """

    def __init__(
        self, source: ExportSource, target: ExportTarget, writer: RangeWriter, start: StreamCut, *, batch_bytes: int
    ) -> None:
        if batch_bytes < 1:
            raise InvalidArgumentError(f"a batch of {batch_bytes} bytes holds nothing: give more")
        self._source = source
        self._target = target
        self._writer = writer
        self._start = start
        self._batch_bytes = batch_bytes
        self.report: ExportReport = ExportReport()

    def left_bytes(self, end: StreamCut) -> int:
        """Return how much of the stream the table lacks up to `end`."""
        begin = self._target.latest() or self._start
        if self._is_past(begin, end):
            return 0
        return sum(each.length for each in ranges_between(self._source, _reached(begin), _reached(end)))

    def run_to(self, end: StreamCut, note: Callable[[ExportReport], None]) -> None:
        """Commit batches until the table holds what lies before `end`; `note` what is done behind each.

        Raises `SegmentTruncatedError` or `NoSuchSegmentError` for what was truncated before it was exported.
        """
        while self._step(end):
            note(self.report)

    def follow(self, interval_s: float, note: Callable[[ExportReport], None]) -> None:
        """Commit what there is every `interval_s`, while it lags without a pause, until the stream is sealed."""
        while True:
            due_s = time.monotonic() + interval_s
            # First: once it is, the tail is the end.
            is_sealed = self._source.is_sealed()
            self.run_to(self._named(self._source.tail()), note)
            if is_sealed:
                return
            time.sleep(max(due_s - time.monotonic(), 0.0))

    def _step(self, end: StreamCut) -> bool:
        """Commit one batch; False: there is nothing left before `end`."""
        before = self._target.latest()
        start = before or self._start
        self.report.cut = before
        if self._is_past(start, end):
            self._check_is_of_stream(start)
            return False
        cut = advance(self._source, _reached(start), _reached(end), self._batch_bytes)
        ranges = ranges_between(self._source, _reached(start), cut)
        if not ranges:
            # Only what has no events was passed: segments that were sealed empty. The next batch passes it again.
            return False
        batch_id, after = uuid.uuid4().hex, self._named(cut)
        files = self._writer.write(ranges, self._target.new_files(batch_id, start, after))
        row_count = sum(each.row_count for each in files)
        written = WrittenBatch(batch_id, before, start, after, tuple(each.place for each in files), row_count)
        if not self._target.commit(written):
            self.report.overtaken_count += 1
            return True
        self.report.cut = written.end
        self.report.row_count += written.row_count
        self.report.length_bytes += sum(each.length for each in ranges)
        self.report.commit_count += 1
        return True

    def _is_past(self, cut: StreamCut, end: StreamCut) -> bool:
        """Say whether a cut lies at `end` or behind it, as where another run went further than this one is to go."""
        at, limit = _reached(cut), _reached(end)
        if at == limit:
            return True
        try:
            # Of what lies between nothing is read.
            ranges_between(self._source, limit, at, Losses())
        except InvalidArgumentError:
            return False
        return True

    def _check_is_of_stream(self, cut: StreamCut) -> None:
        """Refuse a cut behind the end of the stream: nothing would come until the stream has grown past it."""
        at, tail = _reached(cut), self._source.tail()
        if at.keys() == tail.keys() and any(at[segment] > tail[segment] for segment in at):
            raise InvalidArgumentError(
                f"the table holds {self._source.name} up to {cut.to_text()}, behind the end of the stream: it was "
                "deleted and created again; export it to another table"
            )

    def _named(self, cut: Cut) -> StreamCut:
        return StreamCut(self._source.scope, self._source.stream, cut)


def rows_of(source: ExportSource, shape: RowShape, ranges: Iterable[ByteRange]) -> Iterator[pa.RecordBatch]:
    """Yield the events of some ranges as rows, in their order."""
    for each in ranges:
        batches = record_batches(
            source.read(each.segment, each.start, each.end),
            scope=source.scope,
            stream=source.stream,
            segment=each.segment,
            segment_name=source.segment_name(each.segment),
            place=Place(each.start),
            columns=("event", *POSITION_COLUMNS),
        )
        for batch in batches:
            yield shape.rows(batch)


def _reached(cut: StreamCut) -> dict[int, int]:
    """Return the positions of a cut but those that are not reached yet: a walk comes to them by itself."""
    return {segment: offset for segment, offset in cut.positions.items() if offset >= 0}
