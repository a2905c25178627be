"""`Exporter`: the events of a stream as rows of a table, each exactly once, in commits that contain their end cut.

A batch is the range between two cuts. It is written into files that readers do not see yet. One commit makes them a
part of the table and atomically stores the cut at which they end and the identity of the stream. The commit is
conditional: the latest commit must have ended where this batch begins. So an exporter that starts after a crash, or
runs concurrently with another one, reads its position from the table. Failure by failure: ``docs/jobs.md``.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from penstock.jobs.errors import StreamRecreatedError
from penstock.jobs.identities import checked_after_failure
from penstock.jobs.rows import POSITION_COLUMNS, RowShape
from penstock.model.errors import InvalidArgumentError
from penstock.model.segments import Buffer
from penstock.model.stream_cuts import StreamCut
from penstock.spark.batches import RangeProgress, record_batches
from penstock.spark.offsets import Cut
from penstock.spark.planner import ByteRange, Losses, StreamView, advance, ranges_between

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A durable file, by its path in the target."""

    place: str
    row_count: int


@dataclass(frozen=True, slots=True)
class TablePosition:
    """The position of a table in its stream.

    Attributes:
        cut: the end of its latest commit.
        identity: of the stream that the cut belongs to; None: unknown, as in exports of earlier versions.
    """

    cut: StreamCut
    identity: str | None


@dataclass(frozen=True, slots=True)
class WrittenBatch:
    """Durable files that readers do not see until they are committed.

    Attributes:
        before: the position of the commit that it follows; None: it is the first.
        start, end: the files contain exactly the events between these cuts.
        files: their paths in the target; none: only the cut moves.
        identity: of the stream; None: unknown.
    """

    id: str
    before: TablePosition | None
    start: StreamCut
    end: StreamCut
    files: tuple[str, ...]
    row_count: int
    identity: str | None = None

    @property
    def after(self) -> TablePosition:
        """The position of the table after the batch is committed."""
        return TablePosition(self.end, self.identity)


class FileMaker(Protocol):
    """Writes files of one batch. May be pickled and used in other processes, several times."""

    def write(self, rows: Iterable[pa.RecordBatch]) -> WrittenFile:
        """Write rows into a file with a unique name, and make it durable. A failed write leaves nothing readable."""


class ExportTarget(Protocol):
    """A table that a stream is exported to. One thread uses it."""

    def latest(self) -> TablePosition | None:
        """Return the end of the latest commit of this stream; None: there is none yet."""

    def new_files(self, batch_id: str, start: StreamCut, end: StreamCut) -> FileMaker:
        """Return the writer for the files of a batch that follows the position returned by `latest`."""

    def commit(self, batch: WrittenBatch) -> bool:
        """Make a batch part of the table, if the latest commit still ends at `batch.before`.

        False: it does not, because another exporter was first; the files are removed. After a lost reply the table is
        read.

        Raises:
            OutcomeUnknownError: the result is unknown. The next run finds the batch committed, or exports it.
        """

    def discard(self, batch: WrittenBatch) -> None:
        """Remove the files of a batch that will never be committed."""


class ExportSource(StreamView, Protocol):
    """A stream, as in `penstock.spark.store.StoredStream`."""

    scope: str
    stream: str

    def read(self, segment: int, start: int, end: int) -> Iterator[Buffer]:
        """Yield the bytes of a range."""

    def segment_name(self, segment: int) -> str:
        """Return a segment's full name."""

    def tail(self) -> dict[int, int]:
        """Return the cut after the last acknowledged event."""

    def is_sealed(self) -> bool:
        """Return whether the stream is sealed."""

    def identity(self) -> str | None:
        """Return the identity of the stream with this name now; None: the controller does not support identities."""


class RangeWriter(Protocol):
    """Writes the events of ranges into files."""

    def write(self, ranges: Sequence[ByteRange], files: FileMaker) -> Sequence[WrittenFile]:
        """Write all of them, and return when their files are durable."""


class HereWriter:
    """Writes them in this process, sequentially, into one file."""

    def __init__(self, source: ExportSource, shape: RowShape) -> None:
        self._source = source
        self._shape = shape

    def write(self, ranges: Sequence[ByteRange], files: FileMaker) -> Sequence[WrittenFile]:
        """See `RangeWriter.write`."""
        return [files.write(rows_of(self._source, self._shape, ranges))]


@dataclass(slots=True)
class ExportReport:
    """The result of an export run.

    Attributes:
        cut: the position of the table; None: nothing was ever exported.
        row_count, length_bytes, commit_count: of this run's own commits; bytes as in the stream.
        overtaken_count: batches that another exporter committed first.
    """

    cut: StreamCut | None = None
    row_count: int = 0
    length_bytes: int = 0
    commit_count: int = 0
    overtaken_count: int = 0


class Exporter:
    """See the module.

    Args:
        writer: reads ranges and writes their files: `HereWriter`, or one that runs elsewhere.
        start: where the first batch begins, if the table has none yet.
        batch_bytes: approximate maximum of bytes of the stream in one commit.
        identity: of the stream that `start` belongs to; None: unknown.
    """

    def __init__(
        self, source: ExportSource, target: ExportTarget, writer: RangeWriter, start: StreamCut, *, batch_bytes: int,
        identity: str | None = None,
    ) -> None:  # fmt: skip
        if batch_bytes < 1:
            raise InvalidArgumentError(f"a batch of {batch_bytes} bytes cannot hold an event: give a larger size")
        self._source = source
        self._target = target
        self._writer = writer
        self._start = start
        self._batch_bytes = batch_bytes
        self._identity = identity
        self.report: ExportReport = ExportReport()

    def position(self) -> StreamCut:
        """Return where the next batch begins. Raises `StreamRecreatedError`."""
        before = self._target.latest()
        self._check_identity(before)
        return self._start if before is None else before.cut

    def left_bytes(self, end: StreamCut) -> int:
        """Return how many bytes of the stream before `end` the table lacks. Raises `StreamRecreatedError`."""
        begin = self.position()
        if self._is_past(begin, end):
            return 0
        return sum(each.length for each in ranges_between(self._source, _reached(begin), _reached(end)))

    def run_to(self, end: StreamCut, note: Callable[[ExportReport], None]) -> None:
        """Commit batches until the table contains everything before `end`; call `note` after each.

        Raises:
            SegmentTruncatedError, NoSuchSegmentError: events were truncated before they were exported.
            StreamRecreatedError: the stream of the table was deleted, and another one has its name.
        """
        while self._step(end):
            note(self.report)

    def follow(self, interval_s: float, note: Callable[[ExportReport], None]) -> None:
        """Commit new events every `interval_s`, without a pause while it lags, until the stream is sealed."""
        while True:
            due_s = time.monotonic() + interval_s
            # Read before the tail: the tail of a sealed stream is its end.
            is_sealed = self._source.is_sealed()
            self.run_to(self._named(self._source.tail()), note)
            if is_sealed:
                return
            time.sleep(max(due_s - time.monotonic(), 0.0))

    def _step(self, end: StreamCut) -> bool:
        """Commit one batch; False: there is nothing left before `end`."""
        before = self._target.latest()
        self._check_identity(before)
        start = self._start if before is None else before.cut
        self.report.cut = None if before is None else before.cut
        if self._is_past(start, end):
            self._check_is_of_stream(start)
            return False
        batch_id = uuid.uuid4().hex
        with checked_after_failure(lambda: self._check_identity(before)):
            cut = advance(self._source, _reached(start), _reached(end), self._batch_bytes)
            ranges = ranges_between(self._source, _reached(start), cut)
            if not ranges:
                # Only segments sealed while empty were passed. The next batch passes them again.
                return False
            after = self._named(cut)
            files = self._writer.write(ranges, self._target.new_files(batch_id, start, after))
        row_count = sum(each.row_count for each in files)
        known = self._identity or (None if before is None else before.identity)
        places = tuple(each.place for each in files)
        written = WrittenBatch(batch_id, before, start, after, places, row_count, known)
        try:
            # Identities are never reused: the stream was the same during the whole read.
            self._check_identity(before)
        except StreamRecreatedError:
            self._target.discard(written)
            raise
        if not self._target.commit(written):
            self.report.overtaken_count += 1
            return True
        self.report.cut = written.end
        self.report.row_count += written.row_count
        self.report.length_bytes += sum(each.length for each in ranges)
        self.report.commit_count += 1
        return True

    def _check_identity(self, before: TablePosition | None) -> None:
        """Refuse a stream other than that of the table, or than that of `start`."""
        found = self._source.identity()
        expected = self._identity
        if before is not None and before.identity is not None:
            expected = before.identity
        if None in (found, expected) or found == expected:
            return
        if before is None:
            raise StreamRecreatedError(
                f"stream {self._source.name} was deleted and created again while this export started: run it again"
            )
        raise StreamRecreatedError(
            f"the table holds {self._source.name} up to {before.cut.to_text()}, but that stream was deleted, and "
            f"another stream has its name now (identity {found} instead of {expected}): export that stream to another "
            "directory or table"
        )

    def _is_past(self, cut: StreamCut, end: StreamCut) -> bool:
        """Return whether a cut lies at `end` or after it, as after another run with a later end."""
        at, limit = _reached(cut), _reached(end)
        if at == limit:
            return True
        try:
            # The ranges between them are not read.
            ranges_between(self._source, limit, at, Losses())
        except InvalidArgumentError:
            return False
        return True

    def _check_is_of_stream(self, cut: StreamCut) -> None:
        """Refuse a cut after the end of the stream, where identities are unknown: the stream is another one."""
        at, tail = _reached(cut), self._source.tail()
        if at.keys() == tail.keys() and any(at[segment] > tail[segment] for segment in at):
            raise StreamRecreatedError(
                f"the table holds {self._source.name} up to {cut.to_text()}, after the end of the stream: the stream "
                "was deleted and created again; export it to another directory or table"
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
            place=RangeProgress(each.start),
            columns=("event", *POSITION_COLUMNS),
        )
        for batch in batches:
            yield shape.rows(batch)


def _reached(cut: StreamCut) -> dict[int, int]:
    """Return the positions of a cut without those not reached yet: the walk adds them when it gets there."""
    return {segment: offset for segment, offset in cut.positions.items() if offset >= 0}
