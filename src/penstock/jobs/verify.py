"""`Verifier`: is every chunk of a stream there, as long as the records say, and with the bytes that were written?

Of a server that runs. It tells which chunks hold a segment, with the checksum of every block; who sums them reads
long-term storage and not the store. No lease is taken: a chunk that is not as it was told may be one that was
truncated, joined with others, or deleted since. So of what is found wrong the store is asked again, and it is damage
only if the records still lead there. Failure by failure: ``docs/jobs.md``.
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
    from penstock.client.chunk_layouts import SegmentLayout


class PartSums(Protocol):
    """Sums parts of chunks."""

    #: How many are summed at once.
    task_count: int

    def run(self, parts: Sequence[SegmentLayout]) -> Sequence[PartResult]:
        """Return what each of `parts` is like, in their order."""


class ChunkSource(Protocol):
    """A server, as it is asked about chunks.

    Attributes:
        outage_s_max, retry_interval_s: see `StoreSettings`.
    """

    outage_s_max: float
    retry_interval_s: float

    def segments(self, stream: str) -> Iterator[tuple[str, int, int]]:
        """Yield the segments of a stream: full name, first byte that is kept, length. Raises `NoSuchStreamError`."""

    def layouts(self, ranges: Sequence[tuple[str, int, int]]) -> Sequence[SegmentLayout | PenstockError]:
        """Return which chunks hold each range of a segment, as far as that is known, or why it is not told."""


class StoredChunks:
    """A server that is reached as `StoreSettings` say."""

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
        round_bytes: about how much is handed out to each task before results are waited for, ...
        round_part_count_max: ... and in how many parts, all tasks together.
        segments_at_once: segments whose chunks are asked for at the same time.
        look_count_max: how often bytes are looked at whose chunks are others each time.
        problems_max: problems that are told one by one; the others are only counted.
    """

    part_bytes: int = 64 * 1024 * 1024
    round_bytes: int = 512 * 1024 * 1024
    round_part_count_max: int = 4096
    segments_at_once: int = 32
    look_count_max: int = 5
    problems_max: int = 1000


@dataclass(frozen=True, slots=True)
class ChunkProblem:
    """One thing that is wrong with a chunk.

    Attributes:
        kind: a `Finding`.
        length_bytes: of the chunk, as the store's record has it.
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
    """What a verification has found so far.

    Attributes:
        chunk_count, checked_bytes: chunks that were looked at, and bytes of them that were read and compared.
        unflushed_bytes: of these segments, that are not in long-term storage yet.
        replaced_count: parts that were not as they had been told, since the segment had other chunks by then, or none.
        problem_count: all of them; `problems` has the first.
        unknowns: segments of which something could not be found out, and why; the first of `unknown_count`.
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
    """Bytes of a segment whose chunks are to be asked for.

    Attributes:
        looks: how often they were looked at already.
        suspect, result: the chunk that they were in, and what was wrong with it.
    """

    segment: str
    start: int
    end: int
    looks: int = 0
    suspect: str = ""
    result: PartResult | None = None


@dataclass(frozen=True, slots=True)
class _Part:
    layout: SegmentLayout
    looks: int


class Verifier:
    """See the module. `add` streams, then `run`."""

    def __init__(self, source: ChunkSource, sums: PartSums, settings: VerifySettings | None = None) -> None:
        self._source = source
        self._sums = sums
        self._settings = settings or VerifySettings()
        self._ranges: deque[_Range] = deque()
        self._parts: list[_Part] = []
        #: The latest chunk that was counted, and the latest problem that was told: they come in order.
        self._counted = ""
        self._told = ("", "")
        self.report: VerifyReport = VerifyReport()

    def add(self, stream: str) -> int:
        """Have the segments of ``scope/stream`` verified as they are now. Return their bytes, flushed or not.

        Raises `NoSuchStreamError`, and what asking a server raises.
        """
        total = 0
        for segment, start, end in self._source.segments(stream):
            self.report.segment_count += 1
            if end > start:
                self._ranges.append(_Range(segment, start, end))
                total += end - start
        return total

    def run(self, note: Callable[[VerifyReport], None]) -> None:
        """Look at every chunk; `note` what is known behind each round.

        Raises:
            StorageUnavailableError: whoever reads long-term storage does not find it, for longer than an outage may
                last. Nothing is known of what is not in the report.
            PenstockError: the server was away for as long, or tasks have failed for the last time.
        """
        while self._ranges:
            while ranges := self._next():
                for wanted, answer in zip(ranges, self._ask(ranges), strict=True):
                    self._take(wanted, answer)
            self._sum()
            note(self.report)

    def _next(self) -> list[_Range]:
        """Take ranges to be asked for: as many, and as long, as there is room for in this round."""
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
        """Return which chunks hold each range, or why that is not told. What passes is asked for again."""
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
        """Cut what is told of a range into parts; what is not told of it is asked for next."""
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
            if not wanted.looks and chunk.name != self._counted:
                self.report.chunk_count += 1
                self._counted = chunk.name
            self._parts.append(_Part(part, wanted.looks))
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
        """Say whether what was found wrong with a chunk is wrong with this part, which was told afterwards."""
        (chunk,) = part.chunks
        if chunk.name != suspect:
            return False
        # A damaged block may have been truncated since; what is missing or too short is so behind it, too.
        return result.finding is not Finding.DAMAGED or result.offset >= told_range(part)[0]

    def _sum(self) -> None:
        """Have the parts of this round summed; what is wrong with any is asked again."""
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
                    f"long-term storage cannot be read where it is summed: {result.message}; nothing more is known"
                )
            if result.finding is Finding.SOUND:
                continue
            if part.looks + 1 >= self._settings.look_count_max:
                self._note_unknown(f"{layout.segment}: its chunks were others at each of {part.looks + 1} looks")
                continue
            name = layout.chunks[0].name
            again.append(_Range(layout.segment, layout.start, layout.end, part.looks + 1, name, result))
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
                ChunkProblem(
                    result.finding, part.segment, chunk.name, chunk.length, result.offset, result.message
                )
            )

    def _note_unknown(self, message: str) -> None:
        self.report.unknown_count += 1
        if len(self.report.unknowns) < self._settings.problems_max:
            self.report.unknowns.append(message)
