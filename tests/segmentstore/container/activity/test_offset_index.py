"""Index segments: borders between the appends of a segment, who makes them, what becomes of them.

SS-n: docs/spec/segment-store.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from penstock.model.errors import (
    InvalidArgumentError,
    NoSuchSegmentError,
    SegmentTruncatedError,
    StorageError,
)
from penstock.model.names import index_segment_name
from penstock.segmentstore.container.activity.activity import Touched
from penstock.segmentstore.container.activity.offset_index import ENTRY
from penstock.segmentstore.container.activity.watch import ActivityWatch
from penstock.segmentstore.container.append_request import AppendRequest
from penstock.segmentstore.container.container import SegmentContainer
from penstock.segmentstore.container_settings import ActivitySettings
from penstock.segmentstore.settings import SegmentStoreSettings
from penstock.segmentstore.store import SegmentStore
from penstock.segmentstore.tier1.memory_log import MemoryLogFactory
from support.containers import QUIET, FaultyChunks, memory_runtime, memory_store

A = "s/t/0.#epoch.0"
INDEX = index_segment_name(A)
ENTRY_BYTES = 1000
#: No periodic passes: the tests trigger each one.
SETTINGS = SegmentStoreSettings(
    container_count=1,
    container=replace(QUIET, activity=ActivitySettings(interval_s=3600.0, index_entry_bytes=ENTRY_BYTES)),
)


class Bench:
    """A store that is restarted over the same log and chunks."""

    def __init__(self) -> None:
        self.runtime = memory_runtime()
        self.logs = MemoryLogFactory(self.runtime)
        self.chunks = FaultyChunks()
        self.store: SegmentStore

    async def start(self) -> None:
        self.store = memory_store(self.logs, self.chunks, self.runtime, SETTINGS)
        await self.store.start()
        # The job takes away at its first turn what recovery has noted.
        await asyncio.sleep(0)

    async def restart(self) -> None:
        await self.store.stop()
        await self.start()

    @property
    def container(self) -> SegmentContainer:
        return self.store.containers[0]

    async def poll(self) -> None:
        await self.container.activity_watch.poll()

    async def append(self, *lengths: int, segment: str = A) -> None:
        """Append blocks of these lengths, one after the other."""
        for length in lengths:
            await self.store.append(segment, bytes(length))

    async def entries(self, segment: str = A) -> list[int]:
        """Return the offsets in the index."""
        info = await self.store.segment_info(index_segment_name(segment))
        data = (await self.store.read(info.name, info.start_offset, 1 << 20)).joined()
        return [offset for offset, _, _ in ENTRY.iter_unpack(data)]


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    made = Bench()
    await made.start()
    yield made
    await made.store.stop()
    await made.runtime.work.close()


async def test_short_segments_have_no_index(bench: Bench) -> None:
    """Most segments are short: nothing is created for them."""
    await bench.store.create_segment(A)
    await bench.append(500, 499)
    await bench.poll()
    assert not bench.container.state.metadata.by_name.get(INDEX)
    assert await bench.store.locate_offset(A, 1) == 999
    assert await bench.store.locate_offset(A, 998, before=True) == 0


async def test_borders_are_indexed_about_once_in_so_many_bytes(bench: Bench) -> None:
    """Each is the end of an append, however they are cut up between polls; no entry twice."""
    await bench.store.create_segment(A)
    await bench.append(*[300] * 10)
    await bench.poll()
    assert await bench.entries() == [1200, 2400]
    await bench.poll()
    await bench.append(300)
    await bench.poll()
    assert await bench.entries() == [1200, 2400]
    await bench.append(200)
    await bench.poll()
    assert await bench.entries() == [1200, 2400, 3500]
    await bench.append(5000, 10)
    await bench.poll()
    assert await bench.entries() == [1200, 2400, 3500, 8500]


async def test_a_scan_makes_no_task_for_segments_without_a_border(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of fifty segments that get data one passes a border: the others cost the pass no task, and stay known."""
    names = [f"s/t/{number}.#epoch.0" for number in range(50)]
    for name in names:
        await bench.store.create_segment(name)
        await bench.append(1000, segment=name)
    await bench.poll()
    indexed: list[str] = []
    index = ActivityWatch._index

    async def counted(self: ActivityWatch, note: Touched) -> None:
        indexed.append(note.segment.name)
        await index(self, note)

    monkeypatch.setattr(ActivityWatch, "_index", counted)
    for name in names:
        await bench.append(1000 if name == names[7] else 100, segment=name)
    await bench.poll()
    assert indexed == [names[7]]
    assert await bench.entries(names[7]) == [1000, 2000]
    assert len(bench.container.activity_watch._indexed) == 50


async def test_an_entry_tells_offset_events_and_time(bench: Bench) -> None:
    await bench.store.create_segment(A)
    segment = bench.container.segment(A)
    for _ in range(4):
        bench.container.acceptor.append(segment, AppendRequest(bytes(300), event_count=7), lambda _: None)
    await bench.poll()
    data = (await bench.store.read(INDEX, 0, 100)).joined()
    assert data == ENTRY.pack(1200, 28, 1000)


async def test_borders_near_an_offset_are_found(bench: Bench) -> None:
    """SS-254: never a later one than asked with `before`, else the first one behind; the ends where there are none."""
    await bench.store.create_segment(A)
    await bench.append(*[300] * 40)
    await bench.poll()
    borders = [0, *(await bench.entries())]
    assert borders == list(range(0, 12001, 1200))
    await bench.append(50)
    for offset in (0, 1, 299, 300, 1199, 1200, 1201, 6000, 6001, 11999, 12000, 12001, 12049, 12050, 12051):
        before = await bench.store.locate_offset(A, offset, before=True)
        behind = await bench.store.locate_offset(A, offset)
        known = [*borders, 12050]
        assert before == max(border for border in known if border <= offset)
        assert behind == min((border for border in known if border >= offset), default=12050)
    with pytest.raises(InvalidArgumentError):
        await bench.store.locate_offset(A, -1)


@pytest.mark.parametrize("damage", ["missing", "short", "empty"])
async def test_a_missing_or_short_index_only_coarsens(bench: Bench, damage: str) -> None:
    """SS-254: an earlier border, never a later one than asked; and forwards the segment's length."""
    await bench.store.create_segment(A)
    await bench.append(*[1000] * 10)
    if damage == "short":
        await bench.append(1)
    await bench.poll()
    if damage == "missing":
        await bench.container.delete(INDEX)
    elif damage == "empty":
        await bench.container.truncate(INDEX, 10 * ENTRY.size)
    else:
        await bench.append(*[999, 999])  # Not inspected: the index ends before the segment does.
    last = 10_000 if damage == "short" else 0
    length = (await bench.store.segment_info(A)).length
    assert await bench.store.locate_offset(A, length - 1, before=True) == last
    assert await bench.store.locate_offset(A, length - 1) == length


async def test_truncated_offsets_cannot_be_located(bench: Bench) -> None:
    """SS-254: a truncated index. Its head goes with the segment's."""
    await bench.store.create_segment(A)
    await bench.append(*[1000] * 10)
    await bench.poll()
    await bench.store.truncate_segment(A, 3500)
    assert await bench.entries() == [4000, 5000, 6000, 7000, 8000, 9000, 10000]
    assert (await bench.store.segment_info(INDEX)).start_offset == 3 * ENTRY.size
    with pytest.raises(SegmentTruncatedError):
        await bench.store.locate_offset(A, 3499)
    assert await bench.store.locate_offset(A, 3500) == 3500
    assert await bench.store.locate_offset(A, 3501) == 4000
    assert await bench.store.locate_offset(A, 3999, before=True) == 3500
    await bench.store.truncate_segment(A, 10_000)
    assert await bench.entries() == [10_000]
    assert await bench.store.locate_offset(A, 10_000) == 10_000


async def test_an_index_ends_as_its_segment_does(bench: Bench) -> None:
    await bench.store.create_segment(A)
    await bench.append(2000)
    await bench.poll()
    await bench.store.seal_segment(A)
    assert (await bench.store.segment_info(INDEX)).is_sealed
    assert await bench.store.locate_offset(A, 1) == 2000
    await bench.store.delete_segment(A)
    with pytest.raises(NoSuchSegmentError):
        await bench.store.segment_info(INDEX)


async def test_the_end_of_a_merged_segments_index(bench: Bench) -> None:
    """Transactions have none; a whole segment that is merged leaves none behind."""
    other = "s/t/0.#epoch.5"
    transaction = f"{A}#transaction.{'a' * 32}"
    for name in (A, other, transaction):
        await bench.store.create_segment(name)
    await bench.append(2000, segment=other)
    await bench.append(2000, segment=transaction)
    await bench.poll()
    names = bench.container.state.metadata.by_name
    assert index_segment_name(other) in names
    assert index_segment_name(transaction) not in names
    await bench.store.merge_segments(A, [other, transaction])
    assert index_segment_name(other) not in names
    await bench.poll()
    assert await bench.entries() == [2000, 4000]


async def test_an_index_continues_after_a_restart(bench: Bench) -> None:
    """What was appended and not indexed before is made up for; nothing twice."""
    await bench.store.create_segment(A)
    await bench.append(1000, 600)
    await bench.poll()
    await bench.append(600)
    await bench.restart()
    assert await bench.entries() == [1000]
    await bench.append(10)
    await bench.poll()
    assert await bench.entries() == [1000, 2210]
    await bench.restart()
    await bench.append(10)
    await bench.poll()
    assert await bench.entries() == [1000, 2210]
    assert await bench.store.locate_offset(A, 1001) == 2210


async def test_the_index_of_an_earlier_segment_is_not_believed(bench: Bench) -> None:
    """A crash between the two deletions leaves an index. It is ignored, and does not block a new one."""
    await bench.store.create_segment(A)
    await bench.append(*[1000] * 9)
    await bench.poll()
    await bench.container.delete(A)  # And no more: the crash.
    await bench.restart()
    await bench.store.create_segment(A)
    await bench.append(700, 700)
    assert await bench.store.locate_offset(A, 100) == 1400
    assert await bench.store.locate_offset(A, 1399, before=True) == 0
    await bench.poll()
    assert await bench.entries() == [1400]


async def test_a_repeated_deletion_removes_leftovers_of_the_first(bench: Bench) -> None:
    await bench.store.create_segment(A)
    await bench.append(2000)
    await bench.poll()
    await bench.container.delete(A)
    await bench.restart()
    assert INDEX in bench.container.state.metadata.by_name
    with pytest.raises(NoSuchSegmentError):
        await bench.store.delete_segment(A)
    assert INDEX not in bench.container.state.metadata.by_name


async def test_an_index_has_one_writer(bench: Bench) -> None:
    await bench.store.create_segment(A)
    await bench.append(2000)
    await bench.poll()
    for call in (
        bench.store.append(INDEX, bytes(24)),
        bench.store.seal_segment(INDEX),
        bench.store.truncate_segment(INDEX, 0),
        bench.store.delete_segment(INDEX),
        bench.store.merge_segments(A, [INDEX]),
        bench.store.create_segment("s/t/1.#epoch.0#index"),
        bench.store.create_table("s/t/1.#epoch.0#index"),
    ):
        with pytest.raises(InvalidArgumentError):
            await call


async def test_an_index_that_cannot_be_read_is_left_out(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Statistics and the other segments continue; the next scan tries again."""
    other = "s/u/0.#epoch.0"
    await bench.store.create_segment(A)
    await bench.store.create_segment(other)
    await bench.append(2000)
    await bench.append(2000, segment=other)
    create = bench.container.create
    failures = ["once"]

    async def failing_create(name: str, **options: object) -> object:
        if name == INDEX and failures:
            failures.pop()
            raise StorageError("injected")
        return await create(name, **options)  # type: ignore[arg-type]  # Handed on as it came.

    monkeypatch.setattr(bench.container, "create", failing_create)
    await bench.poll()
    assert await bench.entries(other) == [2000]
    await bench.append(1)
    await bench.poll()
    assert await bench.entries() == [2001]


async def test_a_segment_deleted_while_its_index_is_made_leaves_none(bench: Bench) -> None:
    """Whatever comes first, the index is not there in the end."""
    for turns in range(12):
        await bench.store.create_segment(A)
        await bench.append(2000)
        polling = asyncio.ensure_future(bench.poll())
        for _ in range(turns):
            await asyncio.sleep(0)
        await bench.store.delete_segment(A)
        await polling
        assert INDEX not in bench.container.state.metadata.by_name, turns


async def test_an_index_created_after_the_deletion_of_its_segment_is_deleted(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The deletion has searched for an index before there was one."""
    await bench.store.create_segment(A)
    await bench.append(2000)
    create = bench.container.create

    async def late_create(name: str, **options: object) -> object:
        await bench.store.delete_segment(A)
        return await create(name, **options)  # type: ignore[arg-type]  # Handed on as it came.

    monkeypatch.setattr(bench.container, "create", late_create)
    await bench.poll()
    assert INDEX not in bench.container.state.metadata.by_name


async def test_a_failed_pass_ends_neither_the_passes_nor_the_container(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """SS-266. The failure is logged with all its details."""
    polls: list[bool] = []
    again = asyncio.Event()

    async def poll(self: ActivityWatch) -> None:
        polls.append(not polls)
        if polls[-1]:
            raise ZeroDivisionError("a defect")
        again.set()

    monkeypatch.setattr(ActivityWatch, "poll", poll)
    bench = Bench()
    activity = ActivitySettings(interval_s=0.001, index_entry_bytes=ENTRY_BYTES)
    settings = replace(SETTINGS, container=replace(SETTINGS.container, activity=activity))
    store = memory_store(bench.logs, bench.chunks, bench.runtime, settings)
    await store.start()
    async with asyncio.timeout(60):
        await again.wait()
    await store.create_segment(A)
    assert (await store.segment_info(A)).length == 0
    await store.stop()
    assert "a scan of its activity failed" in caplog.text
    assert "ZeroDivisionError: a defect" in caplog.text
