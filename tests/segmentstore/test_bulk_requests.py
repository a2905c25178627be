"""Requests about very many segments of a store: one sweep, one wait for the log, a result of its own for each."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from penstock.model.errors import (
    ContainerNotFoundError,
    ContainerOfflineError,
    InvalidArgumentError,
    NoSuchSegmentError,
    PenstockError,
    UnsupportedOperationError,
)
from penstock.model.names import index_segment_name
from penstock.model.segments import SegmentInfo
from penstock.segmentstore import bulk_requests
from penstock.segmentstore.container.activity.offset_index import ENTRY
from penstock.segmentstore.container.container import SegmentContainer
from penstock.segmentstore.container.log.pipeline import OperationPipeline
from penstock.segmentstore.container_settings import ActivitySettings
from penstock.segmentstore.settings import SegmentStoreSettings
from penstock.segmentstore.store import SegmentStore
from penstock.segmentstore.tier1.memory_log import MemoryLogFactory
from support.containers import QUIET, FaultyChunks, memory_runtime, memory_store

SETTINGS = SegmentStoreSettings(
    container_count=4,
    restart_delay_s=3600.0,  # A container that fails stays away.
    restart_delay_s_max=3600.0,
    container=replace(QUIET, activity=ActivitySettings(interval_s=3600.0, index_entry_bytes=1000)),
)
NAMES = [f"s/t/{number}.#epoch.0" for number in range(600)]


class Bench:
    """A store with one segment of ten bytes for each name."""

    def __init__(self) -> None:
        self.runtime = memory_runtime()
        self.logs = MemoryLogFactory(self.runtime)
        self.chunks = FaultyChunks()
        self.store: SegmentStore = memory_store(self.logs, self.chunks, self.runtime, SETTINGS)

    async def start(self) -> None:
        await self.store.start()
        await asyncio.gather(*(self.store.create_segment(name) for name in NAMES))
        await asyncio.gather(*(self.store.append(name, b"x" * 10) for name in NAMES))

    def of_container(self, container: SegmentContainer) -> list[str]:
        return [name for name in NAMES if self.store.container(name) is container]


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    made = Bench()
    await made.start()
    yield made
    await made.store.stop()
    await made.runtime.work.close()


async def test_many_truncations_wait_for_each_log_once(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer comes when all is durable; single requests, which wait each for itself, are made for none of them."""
    waits: Counter[int] = Counter()
    barrier = OperationPipeline.barrier

    async def counting(self: OperationPipeline) -> None:
        waits[self.container_id] += 1
        await barrier(self)

    async def never(*arguments: object) -> None:
        raise AssertionError(f"asked for alone: {arguments}")

    bench.chunks.hold("write")  # The storage writer, which goes to work at once, waits for nothing else.
    monkeypatch.setattr(OperationPipeline, "barrier", counting)
    monkeypatch.setattr(bench.store, "truncate_segment", never)
    monkeypatch.setattr(bench.store, "segment_info", never)
    assert await bench.store.truncate_segments([(name, 4) for name in NAMES]) == [None] * len(NAMES)
    for name in NAMES:
        assert bench.store.find(name)[1].durable_start_offset == 4
    infos = await bench.store.segment_infos(NAMES)
    assert [info.start_offset for info in infos if isinstance(info, SegmentInfo)] == [4] * len(NAMES)
    assert set(waits) == {0, 1, 2, 3}
    assert sum(waits.values()) < len(NAMES) // 5
    bench.chunks.heal()


@pytest.mark.parametrize("request_name", ["truncate", "ask"])
async def test_others_have_their_turn_while_very_many_are_dealt_with(
    bench: Bench, request_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between two turns of another task no more segments are inspected than a turn may have, whatever their number."""
    reads = most = 0
    find = bench.store.find

    def counting(segment: str) -> object:
        nonlocal reads, most
        reads += 1
        most = max(most, reads)
        return find(segment)

    monkeypatch.setattr(bench.store, "find", counting)

    async def other() -> None:
        nonlocal reads
        while True:
            reads = 0
            await asyncio.sleep(0)

    task = asyncio.ensure_future(other())
    await asyncio.sleep(0)
    if request_name == "truncate":
        await bench.store.truncate_segments([(name, 5) for name in NAMES])
    else:
        await bench.store.segment_infos(NAMES)
    task.cancel()
    # `other` may come before or behind a turn of the request in the same round of the loop.
    assert bulk_requests.SEGMENTS_PER_TURN <= most <= 2 * bulk_requests.SEGMENTS_PER_TURN < len(NAMES)


async def test_segments_that_are_not_in_memory_are_brought_in_or_told_of(bench: Bench) -> None:
    """Some were put away: asking leaves them away, a truncation brings them back."""
    away = []
    for container in bench.store.containers:
        members = bench.of_container(container)[:5]
        await container.flush()
        assert await container.catalog.deactivate([container.segment(name) for name in members], 5) == 5
        away += members
    infos = await bench.store.segment_infos(NAMES)
    assert [info.name for info in infos if isinstance(info, SegmentInfo)] == NAMES
    for name in away:
        assert name not in bench.store.container(name).state.metadata.by_name
    assert await bench.store.truncate_segments([(name, 3) for name in NAMES]) == [None] * len(NAMES)
    infos = await bench.store.segment_infos(NAMES)
    assert [info.start_offset for info in infos if isinstance(info, SegmentInfo)] == [3] * len(NAMES)


async def test_what_may_not_be_truncated_is_refused_alone(bench: Bench) -> None:
    """A table, a container's own segment and an index, among others."""
    await bench.store.create_table("s/_tables/a")
    own = next(name for name in bench.store.containers[0].state.metadata.by_name if name.startswith("_system/"))
    offsets = [(NAMES[0], 1), ("s/_tables/a", 1), (own, 1), (index_segment_name(NAMES[0]), 1), (NAMES[1], 1)]
    results = await bench.store.truncate_segments(offsets)
    kinds = [type(result) for result in results]
    assert kinds == [type(None), UnsupportedOperationError, InvalidArgumentError, InvalidArgumentError, type(None)]


async def test_a_container_that_fails_has_no_say_in_the_others(bench: Bench) -> None:
    """Its log fails during the request, then the container is gone: only its segments are unknown, then not found."""
    failing = bench.store.container(NAMES[0])
    bench.logs.fail_append(failing.id)
    its = set(bench.of_container(failing))
    for _ in range(2):
        results = await bench.store.truncate_segments([(name, 6) for name in NAMES])
        infos = await bench.store.segment_infos(NAMES)
        for name, result, info in zip(NAMES, results, infos, strict=True):
            if name in its:
                assert isinstance(result, (ContainerOfflineError, ContainerNotFoundError))
                assert result.is_retriable
                assert isinstance(info, PenstockError)
                assert info.is_retriable
            else:
                assert result is None
                assert isinstance(info, SegmentInfo)
                assert info.start_offset == 6


async def test_what_is_deleted_meanwhile_is_reported_as_a_single_request_tells_it(bench: Bench) -> None:
    """A deletion is accepted between the read and the answer: the answer is that it is gone, and only once it is."""
    asked = asyncio.ensure_future(bench.store.segment_infos(NAMES))
    await bench.store.append(NAMES[0], b"y")  # Something to wait for.
    await bench.store.delete_segment(NAMES[1])
    infos = await asked
    assert isinstance(infos[0], SegmentInfo)
    assert isinstance(infos[1], (SegmentInfo, NoSuchSegmentError))
    (gone,) = await bench.store.segment_infos([NAMES[1]])
    assert isinstance(gone, NoSuchSegmentError)


async def test_the_index_of_a_long_segment_is_truncated_with_it(bench: Bench) -> None:
    """As a single truncation does it; the segment stays in memory meanwhile."""
    for number in range(10):
        await bench.store.append(NAMES[7], bytes(990 if number == 0 else 1000))
    container, segment = bench.store.find(NAMES[7])
    await container.activity_watch.poll()
    index = index_segment_name(NAMES[7])
    assert (await bench.store.segment_info(index)).length == 10 * ENTRY.size
    assert await bench.store.truncate_segments([(NAMES[6], 2), (NAMES[7], 3500)]) == [None, None]
    assert (await bench.store.segment_info(index)).start_offset == 3 * ENTRY.size
    assert segment.use_count == 0


async def test_a_bulk_truncation_that_is_cancelled_keeps_nothing_in_memory(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waits for the log when its caller goes away: no segment is held for it any more."""
    await bench.store.append(NAMES[7], bytes(2000))
    container = bench.store.container(NAMES[7])
    bench.logs.hold_appends(container.id)
    task = asyncio.ensure_future(bench.store.truncate_segments([(NAMES[7], 5)]))
    await asyncio.sleep(0)
    segment = bench.store.find(NAMES[7])[1]
    assert segment.use_count == 1
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert segment.use_count == 0
    bench.logs.release_appends(container.id)
