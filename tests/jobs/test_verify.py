"""`Verifier`, over chunks in a directory: damage is reported, and chunks that only changed meanwhile are not."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.client.reading.chunk_places import ChunkPlaces
from penstock.client.settings import ClientSettings
from penstock.client.transport.chunk_layouts import SegmentLayout
from penstock.jobs.chunk_sums import Finding, PartResult, _sum_all
from penstock.jobs.verify import Verifier, VerifyReport, VerifySettings
from penstock.model.checksum import crc32c
from penstock.model.errors import (
    ContainerNotFoundError,
    NoSuchSegmentError,
    PenstockError,
    ProtocolError,
    SegmentTruncatedError,
    StorageUnavailableError,
    UnsupportedOperationError,
)
from penstock.runtime.runtime import real_runtime
from penstock.segmentstore.tier2.storage_check import ProblemKind
from penstock.spark.options import StoreSettings
from penstock.wire.chunk_layouts import ChunkRow, StorageTold

BLOCK = 8
SMALL = VerifySettings(part_bytes=3 * BLOCK, round_bytes=100, segments_at_once=2, check_count_max=3)


class Model:
    """Segments, the chunks that they are recorded to have, and these chunks in a directory. Also a `ChunkSource`.

    Attributes:
        chunks: segment -> its chunks, in order and without a gap.
        ends: segment -> its length, of which the end may not be in storage.
        failures: what the next queries are answered with, in place of layouts.
    """

    outage_s_max = 0.3
    retry_interval_s = 0.01

    def __init__(self, root: Path) -> None:
        self.root = root
        root.mkdir()
        (root / "identity").write_bytes(b"this one")
        self.chunks: dict[str, list[ChunkRow]] = {}
        self.ends: dict[str, int] = {}
        self.starts: dict[str, int] = {}
        self.failures: list[PenstockError] = []
        self.data: dict[str, bytes] = {}

    def add(self, segment: str, *lengths: int, unflushed: int = 0) -> None:
        """Make a segment of chunks of so many bytes."""
        for number, length in enumerate(lengths):
            start = sum(lengths[:number])
            data = bytes((start + at) % 251 for at in range(length))
            self.data[segment] = self.data.get(segment, b"") + data
            self.chunks.setdefault(segment, []).append(self.chunk(f"{segment}.{number}", start, data))
        self.ends[segment] = sum(lengths) + unflushed

    def chunk(self, name: str, start: int, data: bytes) -> ChunkRow:
        """Write a chunk, with something behind its end, as a write that failed leaves it; return its record."""
        (self.root / name).write_bytes(data + b"surplus")
        sums = [crc32c(data[at : at + BLOCK], 0) for at in range(0, len(data), BLOCK)]
        return ChunkRow(name, start, len(data), BLOCK, 0, struct.pack(f">{len(sums)}I", *sums))

    def join(self, segment: str) -> None:
        """Put one chunk in place of all that a segment has."""
        names = [chunk.name for chunk in self.chunks[segment]]
        joined = self.chunk(f"{names[0]}+", self.chunks[segment][0].start_offset, self.data[segment])
        self.chunks[segment] = [joined]
        for name in names:
            (self.root / name).unlink()

    def truncate(self, segment: str, start: int) -> None:
        """Give up what lies before an offset, and delete the chunks that have nothing else."""
        self.starts[segment] = start
        gone = [chunk for chunk in self.chunks[segment] if chunk.start_offset + chunk.length <= start]
        for chunk in gone:
            self.chunks[segment].remove(chunk)
            (self.root / chunk.name).unlink()

    def flip(self, name: str, at: int) -> None:
        """Change one byte of a chunk."""
        path = self.root / name
        data = bytearray(path.read_bytes())
        data[at] ^= 1
        path.write_bytes(data)

    def segments(self, stream: str) -> Iterator[tuple[str, int, int]]:
        for segment, end in self.ends.items():
            yield segment, self.starts.get(segment, 0), end

    def layouts(self, ranges: Sequence[tuple[str, int, int]]) -> list[SegmentLayout | PenstockError]:
        return [self.failures.pop(0) if self.failures else self._layout(*each) for each in ranges]

    def _layout(self, segment: str, start: int, end: int) -> SegmentLayout | PenstockError:
        if segment not in self.ends:
            return NoSuchSegmentError(segment)
        if start < self.starts.get(segment, 0):
            return SegmentTruncatedError(segment, start_offset=self.starts[segment], offset=start)
        told = StorageTold(str(self.root), "identity", b"this one")
        chunks = self.chunks.get(segment, [])
        stored = chunks[-1].start_offset + chunks[-1].length if chunks else 0
        whole = SegmentLayout(segment, chunks[0].start_offset if chunks else start, max(stored, start), told, chunks)
        return whole.clipped(start, end)


class ModelSums:
    """Sums as executors do. `before`: what happens between the listing and the reading of each round, in order."""

    def __init__(self, *before: Callable[[], object], outage_s: float = 0.3, task_count: int = 1) -> None:
        self.task_count = task_count
        self.rounds: list[int] = []
        self._before = list(before)
        self._store = StoreSettings("tcp://nowhere:1", retry_interval_s=0.01, outage_s_max=outage_s)

    def run(self, parts: Sequence[SegmentLayout]) -> Sequence[PartResult]:
        self.rounds.append(len(parts))
        if self._before:
            self._before.pop(0)()
        return asyncio.run(self._run(parts))

    async def _run(self, parts: Sequence[SegmentLayout]) -> Sequence[PartResult]:
        places = ChunkPlaces(real_runtime(1), ClientSettings())
        client: Any = SimpleNamespace(parts=SimpleNamespace(chunk_places=places))
        try:
            return await _sum_all(self._store, "", parts, client)
        finally:
            await places.close()


@pytest.fixture
def model(tmp_path: Path) -> Model:
    return Model(tmp_path / "tier2")


def verified(model: Model, sums: ModelSums | None = None, settings: VerifySettings = SMALL) -> VerifyReport:
    verifier = Verifier(model, sums or ModelSums(), settings)
    verifier.add("s/x")
    verifier.run(lambda report: None)
    return verifier.report


def told(report: VerifyReport) -> list[tuple[str, str, int]]:
    return [(problem.kind, problem.chunk, problem.offset) for problem in report.problems]


def test_every_byte_is_compared_once_in_rounds_of_bounded_size(model: Model) -> None:
    """Chunks that end within a block, several parts and rounds of one, and an end that is not in storage."""
    model.add("a", 250, 13, 1)
    model.add("b", 24)
    model.add("c", unflushed=70)
    model.add("empty")
    model.add("d", 40, unflushed=5)
    sums, seen = ModelSums(), []
    verifier = Verifier(model, sums, SMALL)
    assert verifier.add("s/x") == 250 + 13 + 1 + 24 + 70 + 45
    verifier.run(lambda report: seen.append(report.checked_bytes))
    report = verifier.report
    assert (report.segment_count, report.chunk_count, report.unflushed_bytes) == (5, 5, 75)
    # A round may end within a block, which the next one sums again.
    assert 328 <= report.checked_bytes <= 328 + BLOCK * len(sums.rounds)
    assert seen == sorted(seen)
    assert len(sums.rounds) > 3
    assert max(sums.rounds) <= 100 // (3 * BLOCK) + 5
    assert (report.problem_count, report.unknown_count, report.replaced_count) == (0, 0, 0)
    at_once = verified(model, ModelSums(), VerifySettings())
    assert (at_once.checked_bytes, at_once.chunk_count) == (328, 5)


def test_exactly_the_damage_is_reported(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once for a chunk that is gone or too short, whatever parts it has; the rest is inspected as before."""
    model.add("a", 90, 90, 90, 90, 90, 90)
    (model.root / "a.0").unlink()
    (model.root / "a.2").write_bytes((model.root / "a.2").read_bytes()[:29])
    model.flip("a.3", 70)
    (model.root / "a.5").unlink()
    (model.root / "a.5").mkdir()  # Opening it works, reading does not.
    report = verified(model)
    assert told(report) == [
        ("chunk_missing", "a.0", 0), ("chunk_short", "a.2", 29), ("block_damaged", "a.3", 64),
        ("chunk_unreadable", "a.5", 0),
    ]  # fmt: skip
    assert report.problem_count == 4
    assert report.problems[0].length_bytes == 90
    assert "its record says 90 bytes" in report.problems[0].message
    assert (report.chunk_count, report.replaced_count, report.unknown_count) == (6, 0, 0)
    few = verified(model, settings=VerifySettings(problems_max=1))
    assert (len(few.problems), few.problem_count) == (1, 4)


def test_chunks_joined_during_the_check_are_no_damage_and_the_new_chunk_is_compared(model: Model) -> None:
    model.add("a", 30, 30, 30)
    report = verified(model, ModelSums(lambda: model.join("a")), VerifySettings())
    assert told(report) == []
    assert (report.replaced_count, report.unknown_count) == (3, 0)
    assert report.checked_bytes == 32 + 40 + 34  # In whole blocks of the longer one.

    model.add("b", 30, 30)

    def join_badly() -> None:
        model.join("b")
        model.flip("b.0+", 50)

    report = verified(model, ModelSums(join_badly), VerifySettings())
    assert [(kind, chunk, offset) for kind, chunk, offset in told(report)] == [("block_damaged", "b.0+", 48)]


def test_data_truncated_or_deleted_during_the_check_is_no_damage(model: Model) -> None:
    model.add("a", 40, 40)
    model.add("b", 40)

    def change() -> None:
        model.truncate("a", 41)
        del model.ends["b"]
        (model.root / "b.0").unlink()

    report = verified(model, ModelSums(change), VerifySettings())
    assert told(report) == []
    assert (report.replaced_count, report.unknown_count) == (2, 0)
    # A block that is damaged, and given up before it is asked about; one that is damaged after it.
    model.flip("a.1", 0)
    report = verified(model, ModelSums(lambda: model.truncate("a", 60)), VerifySettings())
    assert told(report) == []
    model.flip("a.1", 38)
    model.flip("a.1", 22)
    report = verified(model, ModelSums(lambda: model.truncate("a", 65)), VerifySettings())
    assert told(report) == [("block_damaged", "a.1", 32)]


def test_chunks_that_are_others_at_each_check_are_not_known(model: Model) -> None:
    """A bound, and not a circle; nothing is called damaged."""
    model.add("a", 30)

    def join() -> None:
        model.join("a")

    report = verified(model, ModelSums(*[join] * 10), VerifySettings(check_count_max=3))
    assert told(report) == []
    assert report.unknown_count == 1
    assert report.unknowns == ["a: its chunks changed between each of 3 attempts"]


def test_requests_to_an_unavailable_server_are_retried_for_a_limited_time(model: Model) -> None:
    model.add("a", 30)
    away = ContainerNotFoundError(0, "starts")
    model.failures = [away, away]
    assert verified(model).checked_bytes >= 30
    model.failures = [away] * 10_000
    with pytest.raises(ContainerNotFoundError):
        verified(model)
    model.failures = [UnsupportedOperationError("a: damaged records")]
    report = verified(model)
    assert (report.unknown_count, report.problem_count) == (1, 0)
    assert "damaged records" in report.unknowns[0]


def test_storage_that_is_away_is_waited_for_and_is_no_damage(model: Model) -> None:
    """A file system that is not mounted, before the first read or during the check, has none of the chunks."""
    model.add("a", 90, 90)
    elsewhere = model.root.with_name("elsewhere")

    def unmount() -> None:
        model.root.rename(elsewhere)
        model.root.mkdir()

    verifier = Verifier(model, ModelSums(unmount), SMALL)
    verifier.add("s/x")
    with pytest.raises(StorageUnavailableError, match="it does not exist"):
        verifier.run(lambda report: None)
    assert verifier.report.problem_count == 0


async def test_storage_that_disappears_during_the_check_is_not_taken_for_empty(model: Model) -> None:
    """The place is known by then, and is checked again before a chunk counts as missing."""
    model.add("a", 90)
    (layout,) = model.layouts([("a", 0, 90)])
    assert isinstance(layout, SegmentLayout)
    places = ChunkPlaces(real_runtime(1), ClientSettings())
    client: Any = SimpleNamespace(parts=SimpleNamespace(chunk_places=places))
    store = StoreSettings("tcp://nowhere:1", retry_interval_s=0.01, outage_s_max=0.2)
    assert [each.finding for each in await _sum_all(store, "", [layout], client)] == ["sound"]
    elsewhere = model.root.with_name("elsewhere")
    model.root.rename(elsewhere)
    assert [each.finding for each in await _sum_all(store, "", [layout] * 20, client)] == ["storage_away"] * 20
    patient = StoreSettings("tcp://nowhere:1", retry_interval_s=0.01, outage_s_max=60.0)
    waiting = asyncio.create_task(_sum_all(patient, "", [layout], client))
    done, _ = await asyncio.wait([waiting], timeout=0.1)
    assert not done
    elsewhere.rename(model.root)
    assert [each.finding for each in await waiting] == ["sound"]
    await places.close()


def test_a_name_that_leads_out_of_storage_is_refused(model: Model) -> None:
    model.add("a", 30)
    (chunk,) = model.chunks["a"]
    model.chunks["a"] = [ChunkRow("../identity", 0, 30, BLOCK, 0, chunk.checksums)]
    with pytest.raises(ProtocolError, match="is not the name of a chunk"):
        verified(model)


def test_damage_has_the_same_name_as_in_the_check_of_a_stopped_store() -> None:
    """Two commands report on chunks; their JSON uses one set of names."""
    assert set(Finding) - {Finding.SOUND, Finding.AWAY} <= {kind.value for kind in ProblemKind}
