"""The live assertions hold throughout random work, crashes included, and each names the deliberate damage."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from penstock.model.errors import PenstockError
from penstock.model.segments import TableRemoval, TableUpdate
from penstock.segmentstore.container.container import ContainerStatus, SegmentContainer
from penstock.segmentstore.container.life import ContainerLife
from penstock.segmentstore.container.log.pipeline import CheckpointPosition
from penstock.segmentstore.container.pending import PendingAppend
from penstock.segmentstore.container.reads.read_index import _Block
from penstock.segmentstore.container.reads.reader import _Wait
from penstock.segmentstore.container.segment import Segment, SegmentFlags
from penstock.segmentstore.container.tables.entries import pack_slot
from penstock.segmentstore.tier1.durable_log import LogAddress
from penstock_simulation.checks.invariants import (
    InvariantMonitor,
    SeenChunks,
    check_cache,
    check_container,
    check_incarnations,
    check_storage,
    check_tables,
)
from support.containers import Incarnations, append, turns

NAMES = [f"s/t/{number}.#epoch.0" for number in range(4)]
TABLE = "s/_tables/t"


class Work:
    """Random calls on a container, many at once; what they raise does not matter here."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def call(self, container: SegmentContainer) -> Awaitable[object]:
        rng = self._rng
        name = rng.choice(NAMES)
        match rng.choice(["create", *["append"] * 6, "seal", "truncate", "delete", "merge", *["table"] * 3, "flush"]):
            case "create":
                return container.create(name)
            case "append":
                return self._append(container, name)
            case "seal":
                return container.seal(name)
            case "truncate":
                return container.truncate(name, rng.randrange(3000))
            case "delete":
                return container.delete(name)
            case "merge":
                return container.merges.merge(name, rng.choice(NAMES))
            case "flush":
                return container.flush()
        return self._table(container)

    async def _append(self, container: SegmentContainer, name: str) -> None:
        await append(container, name, self._rng.randbytes(self._rng.choice([1, 100, 3000, 9000])))

    async def _table(self, container: SegmentContainer) -> None:
        rng = self._rng
        key = b"k%d" % rng.randrange(6)
        if TABLE not in container.state.metadata.by_name:
            await container.create(TABLE, flags=SegmentFlags.TABLE)
        segment = container.segment(TABLE)
        if rng.random() < 0.7:
            await container.tables.put(segment, [TableUpdate(key, rng.randbytes(50))], -1)
        else:
            await container.tables.remove(segment, [TableRemoval(key)], -1)


def check_now(world: Incarnations, container: SegmentContainer, monitor: InvariantMonitor) -> None:
    assert check_container(container) == []
    assert check_cache(world.cache) == []
    assert monitor.observe([container]) == []


@pytest.mark.parametrize("seed", range(12))
async def test_invariants_hold_through_random_work_and_crashes(seed: int) -> None:
    """Three incarnations; inspected between any two turns of the loop, and deeply whenever all is quiet."""
    rng = random.Random(seed)
    world = Incarnations()
    monitor = InvariantMonitor()
    work = Work(rng)
    check_count = 0
    seen: SeenChunks = {}
    for _ in range(3):
        container = await world.start(checkpoint_log_bytes=30_000, table_compact_bytes=2_000)
        for _ in range(15):
            calls = [asyncio.ensure_future(work.call(container)) for _ in range(rng.randint(1, 6))]
            for _ in range(rng.randint(0, 30)):
                await asyncio.sleep(0)
                check_now(world, container, monitor)
                check_count += 1
            for result in await asyncio.gather(*calls, return_exceptions=True):
                assert result is None or not isinstance(result, BaseException) or isinstance(result, PenstockError)
            check_now(world, container, monitor)
        assert container.status is ContainerStatus.RUNNING
        assert await check_tables(container) == []
        assert await check_storage(container, seen) == []
        if rng.random() < 0.5:
            await container.flush()
            assert await check_storage(container, seen) == []
        await world.crash(container)
    assert check_count > 200


async def running() -> tuple[Incarnations, SegmentContainer, Segment]:
    """A container with a segment half in storage and a table."""
    world = Incarnations()
    container = await world.start()
    await container.create(NAMES[0])
    await append(container, NAMES[0], b"stored" * 100)
    await container.flush()
    await append(container, NAMES[0], b"waiting" * 100)
    await container.create(TABLE, flags=SegmentFlags.TABLE)
    table = container.segment(TABLE)
    await container.tables.put(table, [TableUpdate(b"k", b"v")], -1)
    await turns()
    segment = container.segment(NAMES[0])
    assert check_container(container) == []
    assert await check_storage(container) == []
    assert await check_tables(container) == []
    return world, container, segment


Break = Callable[[SegmentContainer, Segment], object]


def drop_memory(container: SegmentContainer, segment: Segment) -> None:
    segment.index.clear()


def wrong_name(container: SegmentContainer, segment: Segment) -> None:
    container.state.metadata.by_name["s/t/9"] = segment


def nameless(container: SegmentContainer, segment: Segment) -> None:
    del container.state.metadata.by_name[segment.name]


def lose_id(container: SegmentContainer, segment: Segment) -> None:
    container.state.metadata.next_segment_id = segment.id


def set_of(field: str, value: Callable[[Segment], object]) -> Break:
    return lambda container, segment: setattr(segment, field, value(segment))


def overlap(container: SegmentContainer, segment: Segment) -> None:
    segment.index._entries[0].data = bytes(segment.index._entries[0].data) + b"x"  # type: ignore[union-attr]


def wait_in_vain(container: SegmentContainer, segment: Segment) -> None:
    container.reader.park(segment, 5, _Wait(asyncio.get_running_loop().create_future()))


def wait_for_ever(container: SegmentContainer, segment: Segment) -> None:
    container.reader.park(segment, segment.length, _Wait(asyncio.get_running_loop().create_future()))
    segment.is_sealed = segment.durable_sealed = True


def lose_waits(container: SegmentContainer, segment: Segment) -> None:
    container.reader.park(segment, segment.length, _Wait(asyncio.get_running_loop().create_future()))
    segment.waits = None


def forget_pending(container: SegmentContainer, segment: Segment) -> None:
    segment.pending.clear()


def forget_unflushed(container: SegmentContainer, segment: Segment) -> None:
    container.state.unflushed.clear()


def disorder(container: SegmentContainer, segment: Segment) -> None:
    segment.pending._pieces.append(PendingAppend(1, segment.length, segment.length, 0.0))


def open_block_inside(container: SegmentContainer, segment: Segment) -> None:
    segment.index._starts.append(segment.length)
    segment.index._entries.append(_Block(segment.index, segment.length, b"", False, None))
    segment.index._entries[0].is_open = True  # type: ignore[union-attr]


def count_wrong(container: SegmentContainer, segment: Segment) -> None:
    segment.index.cached_bytes += 1


def durable_ahead(container: SegmentContainer, segment: Segment) -> None:
    container.pipeline.durable_sequence_number = container.pipeline.sequence_number + 1


def durable_behind(container: SegmentContainer, segment: Segment) -> None:
    container.pipeline.durable_sequence_number -= 1


def phantom_bytes(container: SegmentContainer, segment: Segment) -> None:
    container.pipeline._bytes_in_flight = 5


def forgotten_caller(container: SegmentContainer, segment: Segment) -> None:
    container.pipeline._callbacks.append(lambda error: None)


def checkpoints_disordered(container: SegmentContainer, segment: Segment) -> None:
    container.checkpoints.marks.extend([CheckpointPosition(2, LogAddress(2)), CheckpointPosition(1, LogAddress(3))])


def checkpoint_too_early(container: SegmentContainer, segment: Segment) -> None:
    container.checkpoints.marks.append(CheckpointPosition(1 << 40, LogAddress(1 << 40)))


def merge_of_nothing(container: SegmentContainer, segment: Segment) -> None:
    container.state.metadata.merges[12345] = (segment.id, 0)


@pytest.mark.parametrize(
    ("break_it", "words"),
    [
        (drop_memory, "G7: byte 600 is not in memory"),
        (wrong_name, "which is not the segment of that id"),
        (nameless, "alive, yet it has no name"),
        (lose_id, "the next id is"),
        (set_of("start_offset", lambda s: s.length + 1), "G5: it starts at"),
        (set_of("durable_length", lambda s: s.length + 1), "G11: durable"),
        (set_of("durable_start_offset", lambda s: 1), "G11: durable"),
        (set_of("storage_length", lambda s: s.length + 1), "G5: storage has"),
        (set_of("durable_sealed", lambda s: True), "still takes appends"),
        (overlap, "overlap"),
        (open_block_inside, "may grow, but it is not the last"),
        (count_wrong, "index: it counts"),
        (wait_in_vain, "its wake-up was lost"),
        (wait_for_ever, "of a segment that has ended"),
        (lose_waits, "its appends do not know of them"),
        (forget_pending, "nothing waits to bring them"),
        (forget_unflushed, "the writer does not know"),
        (disorder, "G3: changes wait for storage out of order"),
        (durable_ahead, "G3: sequence number"),
        (durable_behind, "pipeline: nothing is in flight, but"),
        (phantom_bytes, "5 bytes are counted"),
        (forgotten_caller, "1 callers wait"),
        (checkpoints_disordered, "G6: checkpoints out of order"),
        (checkpoint_too_early, "before it is durable"),
        (merge_of_nothing, "one of them is unknown"),
    ],
)
async def test_broken_container_is_named(break_it: Break, words: str) -> None:
    _, container, segment = await running()
    break_it(container, segment)
    violations = check_container(container)
    assert any(words in violation for violation in violations), violations
    assert all(violation.startswith("container 0: ") for violation in violations)


async def test_wrong_cache_books_are_named() -> None:
    world, _, _ = await running()
    world.cache.used_bytes += 1
    assert "its members hold" in check_cache(world.cache)[0]


async def test_table_index_that_left_its_log_is_named() -> None:
    _, container, _ = await running()
    index = container.segment(TABLE).table
    assert index is not None
    index.tail.slots[b"k"] = pack_slot(77, 0, 1)
    index.tail.add(b"ghost", pack_slot(5, 0, 1))
    index.tail.live_bytes_delta += 1
    index.tail.count_delta += 7
    first, second, third, fourth = await check_tables(container)
    assert "key b'ghost' has version 5 in the index, None in the log" in first
    assert "key b'k' has version 77 in the index" in second
    assert "live bytes" in third
    assert "keys" in fourth


async def test_storage_that_differs_is_named() -> None:
    """Chunk cut, chunk gone, memory changed, less stored than counted: each by its name."""
    world, container, segment = await running()
    block = segment.index._entries[0]
    assert isinstance(block, _Block)
    block.data = b"X" + bytes(block.data)[1:]
    assert "G9: memory and storage differ" in (await check_storage(container))[0]
    block.data = b"s" + bytes(block.data)[1:]
    segment.storage_length = 700
    assert "G5: storage has 600 bytes, the container counts 700" in (await check_storage(container))[0]
    segment.storage_length = 600
    (chunk,) = [info.name for info in await world.chunks.inner.list(segment.name)]
    content = world.chunks.inner._chunks[chunk]  # type: ignore[attr-defined]
    del content[500:]
    assert any("has 500 bytes, its record says 600" in violation for violation in await check_storage(container))
    del world.chunks.inner._chunks[chunk]  # type: ignore[attr-defined]
    assert "G8" in (await check_storage(container))[0]


async def test_chunk_that_grows_under_another_epoch_is_named() -> None:
    world, container, segment = await running()
    (chunk,) = await container.storage.layout(segment)
    seen: SeenChunks = {}
    assert await check_storage(container, seen) == []
    assert seen[chunk.name] == (600, 1)
    await world.crash(container)
    container = await world.start()
    seen[chunk.name] = (500, 1)  # As if epoch 1 had written again after the check.
    assert await check_storage(container, seen) == []
    seen[chunk.name] = (500, 2)
    (violation,) = await check_storage(container, seen)
    assert f"G10: chunk {chunk.name} grew from 500 to 600 bytes after epoch 1" in violation


async def test_the_monitor_reports_values_that_move_back() -> None:
    _, container, segment = await running()
    monitor = InvariantMonitor()
    assert monitor.observe([container]) == []
    segment.durable_length -= 1
    assert "G1" in monitor.observe([container])[0]
    segment.durable_length += 1
    segment.durable_start_offset = 5
    assert monitor.observe([container]) == []
    segment.durable_start_offset = 4
    assert "truncated durably to 5" in monitor.observe([container])[0]
    container.pipeline.durable_sequence_number -= 1
    assert any("has only" in violation for violation in monitor.observe([container]))


async def test_two_owners_with_one_epoch_are_named_and_stopped_ones_are_ignored() -> None:
    _, container, segment = await running()
    assert check_incarnations([container, container]) == []
    twin = replace(container, life=ContainerLife(container.id, container.events))
    twin.life.status = ContainerStatus.RUNNING
    assert "G4" in check_incarnations([container, twin])[0]
    twin.life.status = ContainerStatus.NEW
    drop_memory(container, segment)
    container.life.status = ContainerStatus.STOPPED
    assert check_container(container) == []


@pytest.mark.parametrize("is_copied", [False, True])
async def test_a_log_that_stays_too_long_is_named_later_while_its_data_are_copied(is_copied: bool) -> None:
    """Copies make it shorter in the end, so they have more time; but not without a bound."""
    _, container, _ = await running()
    monitor = InvariantMonitor()
    container.checkpoints._cut_at_bytes = -(1 << 40)
    check_count = 0
    while not (found := monitor.observe([container])):
        check_count += 1
        container.log_rewriter.carried_bytes += 300 * is_copied
        assert check_count < 100
    assert "its log has" in found[0]
    assert check_count == (40 if is_copied else 8)
