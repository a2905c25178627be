"""`Exporter`: the events of a stream as rows of a table, each once, in commits that carry the stream cut they end at.

A batch is what lies between two cuts. It is written into files that readers do not see yet. One commit makes them a
part of the table and stores, in the same step, the cut at which they end and the identity of the stream. That commit is
made on condition that the latest one ended where this batch begins. So an exporter that starts after a crash, or runs
beside another one, reads from the table how far it is. Failure by failure: ``docs/jobs.md``.
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
class TablePosition:
    """How far a table is.

    Attributes:
        cut: where its latest commit ends.
        identity: of the stream that the cut belongs to; None: unknown, as in exports of earlier versions.
    """

    cut: StreamCut
    identity: str | None


@dataclass(frozen=True, slots=True)
class WrittenBatch:
    """Files that are durable, and that readers do not see until they are committed.

    Attributes:
        before: the position of the commit that it follows; None: it is the first.
        start, end: what lies between them is in the files, and nothing else.
        files: their places, as the target names them; none: nothing but the cut moves.
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
        """Where the table is when the batch is committed."""
        return TablePosition(self.end, self.identity)


class FileMaker(Protocol):
    """Writes files of one batch. A value: it may be pickled and used in other processes, several times."""

    def write(self, rows: Iterable[pa.RecordBatch]) -> WrittenFile:
        """Write rows into a file of a name of its own, and make it durable. What fails leaves nothing that is read."""


class ExportTarget(Protocol):
    """A table that a stream is exported to. One thread uses it."""

    def latest(self) -> TablePosition | None:
        """Return where the latest commit of this stream ends; None: there is none yet."""

    def new_files(self, batch_id: str, start: StreamCut, end: StreamCut) -> FileMaker:
        """Return what writes the files of a batch that goes behind what `latest` has returned."""

    def commit(self, batch: WrittenBatch) -> bool:
        """Make a batch part of the table, if the latest commit still ends at `batch.before`.

        False: it does not, another exporter was first; the files are removed. After a lost reply the table is read.

        Raises:
            OutcomeUnknownError: the result is unknown. The next run finds the batch committed, or exports it.
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
        """Return whether the stream takes no more events."""

    def identity(self) -> str | None:
        """Return the identity of the stream that has the name now; None: the controller has no identities."""


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
        identity: of the stream that `start` belongs to; None: unknown.
    """

    def __init__(
        self, source: ExportSource, target: ExportTarget, writer: RangeWriter, start: StreamCut, *, batch_bytes: int,
        identity: str | None = None,
    ) -> None:  # fmt: skip
        if batch_bytes < 1:
            raise InvalidArgumentError(f"a batch of {batch_bytes} bytes holds nothing: give more")
        self._source = source
        self._target = target
        self._writer = writer
        self._start = start
        self._batch_bytes = batch_bytes
        self._identity = identity
        self.report: ExportReport = ExportReport()

    def left_bytes(self, end: StreamCut) -> int:
        """Return how much of the stream the table lacks up to `end`. Raises `StreamRecreatedError`."""
        before = self._target.latest()
        self._check_identity(before)
        begin = self._start if before is None else before.cut
        if self._is_past(begin, end):
            return 0
        return sum(each.length for each in ranges_between(self._source, _reached(begin), _reached(end)))

    def run_to(self, end: StreamCut, note: Callable[[ExportReport], None]) -> None:
        """Commit batches until the table holds all before `end`; call `note` after each.

        Raises:
            SegmentTruncatedError, NoSuchSegmentError: events were truncated before they were exported.
            StreamRecreatedError: the stream that the table holds was deleted, and another one has its name.
        """
        while self._step(end):
            note(self.report)

    def follow(self, interval_s: float, note: Callable[[ExportReport], None]) -> None:
        """Commit new events every `interval_s`, without a pause while it lags, until the stream is sealed."""
        while True:
            due_s = time.monotonic() + interval_s
            # Before the tail: the tail of a sealed stream is its end.
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
                # Only segments without events were passed, which were sealed empty. The next batch passes them again.
                return False
            after = self._named(cut)
            files = self._writer.write(ranges, self._target.new_files(batch_id, start, after))
        row_count = sum(each.row_count for each in files)
        known = self._identity or (None if before is None else before.identity)
        places = tuple(each.place for each in files)
        written = WrittenBatch(batch_id, before, start, after, places, row_count, known)
        try:
            # Identities are never used again: the stream was the same one all the time that it was read.
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
        """Refuse a stream that is not the one that the table holds, or that `start` belongs to."""
        found = self._source.identity()
        expected = self._identity
        if before is not None and before.identity is not None:
            expected = before.identity
        if None in (found, expected) or found == expected:
            return
        if before is None:
            raise StreamRecreatedError(
                f"stream {self._source.name} was deleted and created again while this export began: run it again"
            )
        raise StreamRecreatedError(
            f"the table holds {self._source.name} up to {before.cut.to_text()}, but that stream was deleted, and "
            f"another stream has its name now (identity {found} instead of {expected}): export that stream to another "
            "directory or table"
        )

    def _is_past(self, cut: StreamCut, end: StreamCut) -> bool:
        """Return whether a cut lies at `end` or after it, as after another run that went further."""
        at, limit = _reached(cut), _reached(end)
        if at == limit:
            return True
        try:
            # Nothing of the ranges between them is read.
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
            place=Place(each.start),
            columns=("event", *POSITION_COLUMNS),
        )
        for batch in batches:
            yield shape.rows(batch)


def _reached(cut: StreamCut) -> dict[int, int]:
    """Return the positions of a cut but those that are not reached yet: a walk comes to them by itself."""
    return {segment: offset for segment, offset in cut.positions.items() if offset >= 0}
