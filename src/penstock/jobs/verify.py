"""`Verifier`: checks whether every chunk of a stream exists, with the recorded length and the written bytes.

For a running server. The server returns the chunks of a segment, with the checksum of every block; the chunks are read
from long-term storage and not through the store. No lease is taken: a chunk that differs from its layout may have been
truncated, joined with others, or deleted since. So after a problem the server is asked again, and the chunk is damaged
only if the records still refer to it. Failure by failure: ``docs/jobs.md``.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol

from penstock.jobs.chunk_sums import Finding, PartResult, sum_parts, told_range
from penstock.model.errors import (
    NoSuchSegmentError,
    OutcomeUnknownError,
    PenstockError,
    SegmentTruncatedError,
    StorageUnavailableError,
)
from penstock.spark.options import StoreSettings
from penstock.spark.store import client_of, kept_segments, layouts_of

if TYPE_CHECKING:
    from penstock.client.transport.chunk_layouts import SegmentLayout


class PartSums(Protocol):
    """Sums parts of chunks."""

    #: Number of tasks that sum concurrently.
    task_count: int

    def run(self, parts: Sequence[SegmentLayout]) -> Sequence[PartResult]:
        """Return the state of each of `parts`, in their order."""


class ChunkSource(Protocol):
    """A server, as the source of chunk layouts.

    Attributes:
        outage_s_max, retry_interval_s: see `StoreSettings`.
    """

    outage_s_max: float
    retry_interval_s: float

    def segments(self, stream: str) -> Iterator[tuple[str, int, int]]:
        """Yield the segments of a stream: full name, first byte that is kept, length. Raises `NoSuchStreamError`."""

    def layouts(self, ranges: Sequence[tuple[str, int, int]]) -> Sequence[SegmentLayout | PenstockError]:
        """Return the chunks of each range of a segment, as far as known, or why they are unknown."""


class StoredChunks:
    """A server, reached by `StoreSettings`."""

    def __init__(self, store: StoreSettings) -> None:
        self._store = store
        self.outage_s_max: float = store.outage_s_max
        self.retry_interval_s: float = store.retry_interval_s

    def segments(self, stream: str) -> Iterator[tuple[str, int, int]]:
        """See `ChunkSource.segments`."""
        for segment, info in kept_segments(client_of(self._store), stream):
            yield segment.name, info.start_offset, info.length

    def layouts(self, ranges: Sequence[tuple[str, int, int]]) -> Sequence[SegmentLayout | PenstockError]:
        """See `ChunkSource.layouts`."""
        return layouts_of(self._store, ranges, 0.0, "")


class HereSums:
    """Sums them in this process."""

    task_count: int = 1

    def __init__(self, store: StoreSettings, place: str = "") -> None:
        self._store = store
        self._place = place

    def run(self, parts: Sequence[SegmentLayout]) -> Sequence[PartResult]:
        """See `PartSums.run`."""
        return sum_parts(self._store, self._place, parts)


@dataclass(frozen=True, slots=True)
class VerifySettings:
    """Bounds of a verification.

    Attributes:
        part_bytes: the longest piece of a chunk that is summed by itself; whole blocks, one at least.
        round_bytes: approximate number of bytes given to each task before results are awaited, ...
        round_part_count_max: ... and maximum number of parts, of all tasks together.
        segments_at_once: segments whose chunks are requested at the same time.
        check_count_max: maximum number of checks of bytes whose chunks change each time.
        problems_max: problems reported one by one; further ones are only counted.
    """

    part_bytes: int = 64 * 1024 * 1024
    round_bytes: int = 512 * 1024 * 1024
    round_part_count_max: int = 4096
    segments_at_once: int = 32
    check_count_max: int = 5
    problems_max: int = 1000


@dataclass(frozen=True, slots=True)
class ChunkProblem:
    """A problem of a chunk.

    Attributes:
        kind: a `Finding`.
        length_bytes: of the chunk, as in the store's record.
        offset: in the chunk.
    """

    kind: str
    segment: str
    chunk: str
    length_bytes: int
    offset: int
    message: str


@dataclass(slots=True)
class VerifyReport:
    """The results of a verification so far.

    Attributes:
        chunk_count, checked_bytes: chunks checked, and bytes of them read and compared.
        unflushed_bytes: of these segments, not in long-term storage yet.
        replaced_count: parts that differed from their layout because the segment had other chunks by then, or none.
        problem_count: all of them; `problems` has the first.
        unknowns: segments with an undetermined result, and why; the first of `unknown_count`.
    """

    segment_count: int = 0
    chunk_count: int = 0
    checked_bytes: int = 0
    unflushed_bytes: int = 0
    replaced_count: int = 0
    problem_count: int = 0
    problems: list[ChunkProblem] = field(default_factory=list)
    unknown_count: int = 0
    unknowns: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Range:
    """Bytes of a segment whose chunks have to be requested.

    Attributes:
        check_count: how often they were checked already.
        suspect, result: the chunk that they were in, and its problem.
    """

    segment: str
    start: int
    end: int
    check_count: int = 0
    suspect: str = ""
    result: PartResult | None = None


@dataclass(frozen=True, slots=True)
class _Part:
    layout: SegmentLayout
    check_count: int


class Verifier:
    """See the module. `add` streams, then `run`."""

    def __init__(self, source: ChunkSource, sums: PartSums, settings: VerifySettings | None = None) -> None:
        self._source = source
        self._sums = sums
        self._settings = settings or VerifySettings()
        self._ranges: deque[_Range] = deque()
        self._parts: list[_Part] = []
        #: The latest counted chunk, and the latest reported problem: parts come in order.
        self._counted = ""
        self._told = ("", "")
        self.report: VerifyReport = VerifyReport()

    def add(self, stream: str) -> int:
        """Add the segments of ``scope/stream`` as they are now. Return their bytes, flushed or not.

        Raises `NoSuchStreamError`, and the errors of requests to a server.
        """
        total = 0
        for segment, start, end in self._source.segments(stream):
            self.report.segment_count += 1
            if end > start:
                self._ranges.append(_Range(segment, start, end))
                total += end - start
        return total

    def run(self, note: Callable[[VerifyReport], None]) -> None:
        """Check every chunk; call `note` with the results so far after each round.

        Raises:
            StorageUnavailableError: long-term storage was unavailable for longer than the longest outage. The state of
                chunks that are not in the report is unknown.
            PenstockError: the server was unavailable for as long, or tasks have failed after all retries.
        """
        while self._ranges:
            while ranges := self._next():
                for wanted, answer in zip(ranges, self._ask(ranges), strict=True):
                    self._take(wanted, answer)
            self._sum()
            note(self.report)

    def _next(self) -> list[_Range]:
        """Take ranges to request, up to the number and length that fit into this round."""
        limits = self._settings
        taken = sum(each.layout.end - each.layout.start for each in self._parts)
        room = limits.round_bytes * self._sums.task_count - taken
        ranges: list[_Range] = []
        while self._ranges and room > 0 and len(ranges) < limits.segments_at_once:
            if len(self._parts) + len(ranges) >= limits.round_part_count_max:
                break
            wanted = self._ranges.popleft()
            if wanted.end - wanted.start > room:
                self._ranges.appendleft(replace(wanted, start=wanted.start + room))
                wanted = replace(wanted, end=wanted.start + room)
            ranges.append(wanted)
            room -= wanted.end - wanted.start
        return ranges

    def _ask(self, ranges: Sequence[_Range]) -> list[SegmentLayout | PenstockError]:
        """Return the chunks of each range, or why they are unknown. Transient errors are retried."""
        answers: list[SegmentLayout | PenstockError] = [PenstockError("not asked")] * len(ranges)
        left = list(range(len(ranges)))
        deadline_s = time.monotonic() + self._source.outage_s_max
        while True:
            wanted = [(ranges[at].segment, ranges[at].start, ranges[at].end) for at in left]
            for at, answer in zip(left, self._source.layouts(wanted), strict=True):
                answers[at] = answer
            failures = {at: answer for at in left if isinstance(answer := answers[at], PenstockError)}
            left = [
                at for at, error in failures.items() if error.is_retriable or isinstance(error, OutcomeUnknownError)
            ]
            if not left:
                return answers
            if time.monotonic() >= deadline_s:
                raise failures[left[0]]
            time.sleep(self._source.retry_interval_s)

    def _take(self, wanted: _Range, answer: SegmentLayout | PenstockError) -> None:
        """Cut the layout of a range into parts; the rest of the range is requested next."""
        if isinstance(answer, NoSuchSegmentError):
            self.report.replaced_count += wanted.result is not None
            return
        if isinstance(answer, SegmentTruncatedError) and answer.start_offset > wanted.start:
            if answer.start_offset < wanted.end:
                self._ranges.appendleft(replace(wanted, start=answer.start_offset))
            else:
                self.report.replaced_count += wanted.result is not None
            return
        if isinstance(answer, PenstockError):
            self._note_unknown(f"{wanted.segment}: {type(answer).__name__}: {answer}")
            return
        if answer.end == wanted.start:
            self.report.unflushed_bytes += wanted.end - wanted.start
            return
        if answer.end < wanted.end:
            self._ranges.appendleft(replace(wanted, start=answer.end))
        is_other = False
        for part in self._cut(answer):
            if wanted.result is not None and self._is_still(part, wanted.suspect, wanted.result):
                self._note(part, wanted.result)
                continue
            is_other = True
            (chunk,) = part.chunks
            if not wanted.check_count and chunk.name != self._counted:
                self.report.chunk_count += 1
                self._counted = chunk.name
            self._parts.append(_Part(part, wanted.check_count))
        self.report.replaced_count += is_other and wanted.result is not None

    def _cut(self, layout: SegmentLayout) -> Iterator[SegmentLayout]:
        """Yield the parts of a layout: each of one chunk, and not too long."""
        for chunk in layout.chunks:
            alone = replace(layout, chunks=(chunk,))
            first, end = told_range(alone)
            step = max(self._settings.part_bytes // chunk.block_length, 1) * chunk.block_length
            for start in range(first, end, step):
                at = chunk.start_offset + start
                part = alone.clipped(at, min(at + step, chunk.start_offset + end))
                if part.chunks:
                    yield part

    def _is_still(self, part: SegmentLayout, suspect: str, result: PartResult) -> bool:
        """Return whether a problem of a chunk also applies to this part, whose layout is newer."""
        (chunk,) = part.chunks
        if chunk.name != suspect:
            return False
        # A damaged block may have been truncated since; a missing or short chunk has its problem at all offsets.
        return result.finding is not Finding.DAMAGED or result.offset >= told_range(part)[0]

    def _sum(self) -> None:
        """Sum the parts of this round; ranges with a problem are requested again."""
        parts, self._parts = self._parts, []
        if not parts:
            return
        results = self._sums.run([part.layout for part in parts])
        again: list[_Range] = []
        for part, result in zip(parts, results, strict=True):
            layout = part.layout
            self.report.checked_bytes += result.read_bytes
            if result.finding is Finding.AWAY:
                raise StorageUnavailableError(
                    f"the checking process cannot read long-term storage: {result.message}; the remaining chunks are "
                    "unchecked"
                )
            if result.finding is Finding.SOUND:
                continue
            if part.check_count + 1 >= self._settings.check_count_max:
                self._note_unknown(
                    f"{layout.segment}: its chunks changed between each of {part.check_count + 1} attempts"
                )
                continue
            name = layout.chunks[0].name
            again.append(_Range(layout.segment, layout.start, layout.end, part.check_count + 1, name, result))
        self._ranges.extendleft(reversed(again))

    def _note(self, part: SegmentLayout, result: PartResult) -> None:
        """Count a problem: once for all parts of a chunk, if the chunk as a whole has it."""
        (chunk,) = part.chunks
        if result.finding is not Finding.DAMAGED and self._told == (chunk.name, result.finding):
            return
        self._told = (chunk.name, result.finding)
        self.report.problem_count += 1
        if len(self.report.problems) < self._settings.problems_max:
            self.report.problems.append(
                ChunkProblem(result.finding, part.segment, chunk.name, chunk.length, result.offset, result.message)
            )

    def _note_unknown(self, message: str) -> None:
        self.report.unknown_count += 1
        if len(self.report.unknowns) < self._settings.problems_max:
            self.report.unknowns.append(message)
