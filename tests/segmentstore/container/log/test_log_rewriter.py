"""The log stays short although a segment can never be flushed, and nothing of it is lost. See docs/log-length.md."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field

import pytest

from penstock.model.errors import CorruptionError, StorageError
from penstock.model.segments import Buffer
from penstock.segmentstore.container.container import SegmentContainer
from penstock.segmentstore.container.log.operations import (
    CarriedBytes,
    CarriedMerge,
    Truncate,
    decode_operation,
)
from penstock.segmentstore.container.pending import PendingAppend
from penstock.segmentstore.settings import CacheSettings
from penstock.segmentstore.tier2.wrapped import WrappedChunkStorage
from support.containers import Incarnations, append, pause_writer, read_all, turns, until
from support.drawn_seeds import drawn_seeds

A, B = "s/stuck/0.#epoch.0", "s/t/1.#epoch.0"
LOG_BYTES_MAX = 32 * 1024


class Refusing(WrappedChunkStorage):
    """Refuses every change of the chunks of some segments, permanently or until `is_over`."""

    def __init__(self, inner: WrappedChunkStorage) -> None:
        super().__init__(inner)
        self.is_over = False

    def _check(self, name: str) -> None:
        if name.startswith("s/stuck/") and not self.is_over:
            raise StorageError(f"{name}: this storage does not want it")

    async def create_with_content(self, name: str, data: Sequence[Buffer]) -> int:
        self._check(name)
        return await super().create_with_content(name, data)

    async def write(self, name: str, offset: int, data: Sequence[Buffer]) -> int:
        self._check(name)
        return await super().write(name, offset, data)

    async def delete(self, name: str) -> None:
        self._check(name)
        await super().delete(name)


@dataclass
class World:
    """A container some of whose segments cannot be flushed."""

    lives: Incarnations
    chunks: Refusing

    async def start(self) -> SegmentContainer:
        self.lives.chunks = self.chunks  # type: ignore[assignment]  # A wrapper of what is declared.
        return await self.lives.start(
            log_bytes_max=LOG_BYTES_MAX,
            carry_record_bytes_max=512,
            checkpoint_log_bytes=4 * 1024,
            flush_age_s=0.0,
            writer_interval_s=0.001,
            writer_scan_share_percent=100,
            writer_retry_s=0.005,
        )

    @property
    def log_bytes(self) -> int:
        return sum(map(len, self.lives.frames()))


@pytest.fixture
async def world() -> AsyncIterator[World]:
    lives = Incarnations(cache=CacheSettings(bytes_max=1 << 20, block_length=1024, small_append_length=64))
    inner = lives.chunks
    yield World(lives, Refusing(inner))
    lives.chunks = inner
    await lives.close()


async def settled(container: SegmentContainer, world: World) -> None:
    """Wait until the log is as short as it is promised to be."""
    await until(lambda: world.log_bytes <= LOG_BYTES_MAX * 5 // 4)


async def test_a_segment_that_cannot_be_flushed_does_not_keep_the_log(world: World) -> None:
    """Others write ten times the bound; the log stays within it, and both segments are whole after a crash."""
    container = await world.start()
    for name in (A, B):
        await container.create(name)
    stuck, flowing = bytearray(), bytearray()
    longest = 0
    for number in range(160):
        data = bytes([number]) * 2048
        await append(container, B, data)
        flowing += data
        if number < 40:
            await append(container, A, data[:100])
            stuck += data[:100]
        longest = max(longest, world.log_bytes)
        await asyncio.sleep(0.001)
    assert len(flowing) == 10 * LOG_BYTES_MAX
    await settled(container, world)
    assert longest <= 3 * LOG_BYTES_MAX  # The writer scans now and then.
    assert container.log_rewriter.carried_bytes >= len(stuck)
    container = await world.lives.restart(container)
    assert await read_all(container, A) == bytes(stuck)
    assert await read_all(container, B) == bytes(flowing)
    assert container.segment(A).storage_length == 0
    world.chunks.is_over = True
    await container.flush()
    assert container.segment(A).storage_length == len(stuck)


@pytest.mark.parametrize("is_long", [True, False])
async def test_little_data_does_not_keep_a_log_that_is_long_to_open(
    world: World, monkeypatch: pytest.MonkeyPatch, is_long: bool
) -> None:
    """However few bytes it has: a checkpoint is written beside unflushed data, and the log is truncated there."""
    container = await world.start()
    for name in (A, B):
        await container.create(name)
    stuck = b"a few bytes"
    await append(container, A, stuck)
    await append(container, B, bytes(2048))
    checkpoints, rewriter = container.checkpoints, container.log_rewriter
    await until(lambda: container.segment(B).storage_length == 2048)
    assert container.state.unflushed
    monkeypatch.setattr(type(container.log), "is_long_to_open", property(lambda self: is_long))
    before = checkpoints.log_bytes
    # A scan writes the checkpoint, a later one uses it; a scan in between does neither.
    for _ in range(6):
        rewriter._tidied_at_s = float("-inf")
        rewriter.check()
        await turns(20)
    assert (rewriter.carried_count > 0) is is_long
    assert (checkpoints.log_bytes <= before - 2048) is is_long
    container = await world.lives.restart(container)
    assert await read_all(container, A) == stuck
    assert await read_all(container, B) == bytes(2048)


async def test_much_data_is_not_copied_for_a_log_that_is_long_to_open(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If almost all of the log is unflushed, copies would not shorten it."""
    container = await world.start()
    await container.create(A)
    for _ in range(4):
        await append(container, A, bytes(2048))
    monkeypatch.setattr(type(container.log), "is_long_to_open", property(lambda self: True))
    container.checkpoints.write_now()
    await container.pipeline.barrier()
    for _ in range(6):
        container.log_rewriter._tidied_at_s = float("-inf")
        container.log_rewriter.check()
        await turns(20)
    assert container.checkpoints.marks
    assert container.log_rewriter.carried_count == 0


async def test_the_alarm_names_the_segments_that_keep_the_log(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """A warning, and the container's statistics, before anything else is done."""
    container = await world.start()
    for name in (A, B):
        await container.create(name)
    await append(container, A, b"stuck")
    assert not container.statistics(0.0).is_log_long
    with caplog.at_level(logging.WARNING):
        while not container.log_rewriter.is_alarmed:
            await append(container, B, bytes(2048))
            await until(lambda: container.segment(B).storage_length == container.segment(B).length)
        assert container.statistics(0.0).is_log_long
        for _ in range(3):
            container.log_rewriter.check()
            await turns()
    warnings = [record.getMessage() for record in caplog.records if "its log has" in record.getMessage()]
    assert len(warnings) == 1
    assert A in warnings[0]
    assert B not in warnings[0]


async def test_a_log_that_is_long_because_of_writes_raises_no_alarm(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """At full speed what keeps the log is due, or is being flushed. What is long overdue is worth an alarm."""
    container = await world.start()
    await container.create(B)
    await pause_writer(container)
    while container.checkpoints.log_bytes <= LOG_BYTES_MAX:
        await append(container, B, bytes(2048))
    container.checkpoints.write_now()
    await container.pipeline.barrier()
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            container.log_rewriter.check()
            await turns()
        assert container.log_rewriter.is_long
        assert not container.log_rewriter.is_alarmed
        assert not container.statistics(0.0).is_log_long
        assert not [record for record in caplog.records if "its log has" in record.getMessage()]
        (first, *_) = container.segment(B).pending
        assert isinstance(first, PendingAppend)
        first.since_s -= container.settings.flush_age_s + container.settings.log_alarm_age_s + 1.0
        container.log_rewriter.check()
        await turns()
        assert container.statistics(0.0).is_log_long
    (warning,) = [record.getMessage() for record in caplog.records if "its log has" in record.getMessage()]
    assert B in warning
    await container.writer.flush(container.segment(B))
    container.log_rewriter.check()
    await turns()
    assert not container.log_rewriter.is_alarmed


async def test_no_records_are_rewritten_while_most_of_the_log_waits_for_storage(world: World) -> None:
    """Storage that is out altogether: copies would make the log longer, not shorter. The throttle bounds it then."""
    container = await world.start()
    await container.create(A)
    while container.checkpoints.log_bytes < 2 * LOG_BYTES_MAX:
        await append(container, A, bytes(1000))
        await asyncio.sleep(0)
    container.log_rewriter.check()
    await turns()
    assert container.log_rewriter.carried_count == 0


async def test_copies_are_not_copied_again_for_their_own_sake(world: World) -> None:
    """With a backlog longer than the log's bound, large checkpoints and no writers, the log comes to rest.

    Copies and the checkpoints they cause are appended to the log, too. If they counted like other bytes, they would
    cause all of it to be copied again, repeatedly, for as long as storage is stuck.
    """
    container = await world.start()
    for name in (A, B, *(f"s/filler/{number}.#epoch.0" for number in range(100))):
        await container.create(name)
    for _ in range(400):
        await append(container, A, bytes(100))
    while not container.log_rewriter.carried_count:
        await append(container, B, bytes(2048))
        await asyncio.sleep(0.001)
    # How often something was copied while there were appends is a matter of how long they took.
    written, carried = container.pipeline.logged_bytes, container.log_rewriter.carried_bytes
    for _ in range(100):
        await asyncio.sleep(0.002)
    # What storage takes may be copied as well, where it is slower than the log.
    backlog_bytes = container.segment(A).length + container.segment(B).length
    assert container.log_rewriter.carried_bytes - carried <= 2 * backlog_bytes
    assert container.pipeline.logged_bytes - written <= 4 * container.segment(A).length
    container = await world.lives.restart(container)
    assert await read_all(container, A) == bytes(400 * 100)


async def test_truncations_and_merges_are_carried_too(world: World) -> None:
    """Whatever the log was kept for: bytes of the target and of the source, the merge, the truncation."""
    container = await world.start()
    source = "s/stuck/2.#epoch.0"
    for name in (A, B, source):
        await container.create(name)
    await append(container, A, b"a" * 1500)
    await append(container, source, b"s" * 700)
    await container.merges.merge(A, source)
    await append(container, A, b"b" * 900)
    await container.truncate(A, 300)
    while not container.log_rewriter.carried_bytes >= 3100:
        await append(container, B, bytes(2048))
        await asyncio.sleep(0.001)
    await settled(container, world)
    kinds = [type(operation) for operation in operations(world)]
    assert {CarriedBytes, CarriedMerge, Truncate} <= set(kinds)
    expected = b"a" * 1200 + b"s" * 700 + b"b" * 900
    assert await read_all(container, A) == expected
    for _ in range(2):
        container = await world.lives.restart(container)
        assert await read_all(container, A) == expected
        assert container.segment(A).durable_start_offset == 300
    world.chunks.is_over = True
    await container.flush()
    assert container.segment(A).storage_length == 3100
    assert not container.state.gone
    container = await world.lives.restart(container)
    assert await read_all(container, A) == expected


def operations(world: World) -> list[object]:
    """Return the operations in the log, those that span frames apart."""
    found: list[object] = []
    for frame in world.lives.frames():
        position = 1
        while position < len(frame):
            flags, length = frame[position], int.from_bytes(frame[position + 1 : position + 5], "big")
            if flags == 3:
                found.append(decode_operation(frame[position + 5 : position + 5 + length])[1])
            position += 5 + length
    return found


@dataclass
class Expected:
    """What a segment must have."""

    data: bytearray = field(default_factory=bytearray)
    start: int = 0


@pytest.mark.parametrize("seed", drawn_seeds(40, daily=12))
async def test_any_crash_leaves_every_byte(world: World, seed: int) -> None:
    """Random appends, truncations, merges, deletions and crashes, in the middle of carrying, too; storage comes back.

    An append may be under way at the crash: then it is there whole or not at all.
    """
    rng = random.Random(seed)
    container = await world.start()
    names = [A, "s/stuck/1.#epoch.0", B]
    model: dict[str, Expected] = {}
    for name in names:
        await container.create(name)
        model[name] = Expected()
    source_count = 0
    for _ in range(120):
        name = rng.choice(names)
        expected = model[name]
        roll = rng.random()
        if roll < 0.7:
            data = rng.randbytes(rng.choice((10, 200, 700) if name != B else (3000,)))
            await append(container, name, data)
            expected.data += data
        elif roll < 0.76 and len(expected.data) > expected.start:
            expected.start = rng.randint(expected.start, len(expected.data))
            await container.truncate(name, expected.start)
        elif roll < 0.82:
            source_count += 1
            source = f"s/stuck/source-{source_count}"
            data = rng.randbytes(rng.choice((0, 300)))
            await container.create(source)
            await append(container, source, data)
            await container.merges.merge(name, source)
            expected.data += data
        elif roll < 0.85:
            await container.delete(name)
            await container.create(name)
            model[name] = Expected()
        elif roll < 0.9:
            if rng.random() < 0.5:
                world.lives.logs.fail_append(0, nth=rng.randint(1, 4), has_effect=rng.random() < 0.5)
                container.checkpoints.write_now()
                await turns(30)
            await turns(rng.randrange(12))
            world.lives.logs._get(0).fault = None
            container = await world.lives.restart(container)
            await check(container, model)
        elif roll < 0.92:
            world.chunks.is_over = not world.chunks.is_over
        await turns(rng.randrange(4))
        if rng.random() < 0.3:
            await asyncio.sleep(0.002)
    await check(container, model)
    world.chunks.is_over = True
    await container.flush()
    container = await world.lives.restart(container)
    await check(container, model)
    assert not world.lives.failures or all(isinstance(error, StorageError) for error in world.lives.failures)
    assert not any(isinstance(error, CorruptionError) for error in world.lives.failures)


async def check(container: SegmentContainer, model: dict[str, Expected]) -> None:
    for name, expected in model.items():
        segment = container.segment(name)
        assert segment.durable_length == len(expected.data), name
        assert segment.durable_start_offset == expected.start, name
        assert await read_all(container, segment) == bytes(expected.data[expected.start :]), name


async def test_the_log_is_not_cut_before_the_copies_are_durable(world: World) -> None:
    """A crash with the copies still in the log's hands: the originals are all there is."""
    container = await world.start()
    for name in (A, B):
        await container.create(name)
    await append(container, A, b"stuck" * 100)
    await pause_writer(container)
    while container.checkpoints.log_bytes <= LOG_BYTES_MAX:
        await append(container, B, bytes(2048))
        await container.writer.flush(container.segment(B))
    container.checkpoints.write_now()
    await container.pipeline.barrier()
    world.lives.logs.hold_appends(0)
    container.log_rewriter.check()
    await turns()
    assert container.log_rewriter._is_carrying
    container.checkpoints.truncate_log()
    await turns()
    world.lives.logs.release_appends(0)
    await world.lives.crash(container)
    world.lives.logs._get(0).holders.clear()
    container = await world.lives.start()
    assert await read_all(container, A) == b"stuck" * 100


@pytest.mark.parametrize("field", ["offset", "segment", "merge"])
async def test_a_copy_that_contradicts_the_log_is_corruption(world: World, field: str) -> None:
    """Never passed over: a copy can only be of what the segment has."""
    container = await world.start()
    for name in (A, B):
        await container.create(name)
    await append(container, A, b"12345")
    id_ = container.segment(A).id
    bad = {
        "offset": CarriedBytes(id_, 3, b"456"),
        "segment": CarriedBytes(id_ + 1000, 0, b"1"),
        "merge": CarriedMerge(id_, container.segment(B).id, 5),
    }[field]
    container.pipeline.add_operation(bad, lambda _: None)  # type: ignore[arg-type]
    await container.pipeline.barrier()
    with pytest.raises(CorruptionError):
        await world.lives.restart(container)
    await world.lives.logs.enable(0)


async def test_few_bytes_that_keep_much_of_the_log_are_rewritten(world: World) -> None:
    """An index of borders is flushed for its age long after the bytes it describes; it is not read from storage.

    So indexes cause fewer syncs than segments, and the log is still truncated, at the price of copying the few bytes
    of the index.
    """
    container = await world.lives.start(
        checkpoint_log_bytes=8 * 1024, flush_age_s=0.0, flush_age_index_s=1e9, writer_interval_s=0.001
    )
    index = f"{B}#index"
    await container.create(B)
    await container.create(index)
    await append(container, index, b"border")
    for number in range(40):
        await append(container, B, bytes([number]) * 2048)
    await until(lambda: container.segment(B).storage_length == 40 * 2048)
    await until(lambda: world.log_bytes < 20 * 1024)
    assert container.segment(index).storage_length == 0
    assert 0 < container.log_rewriter.carried_bytes < 100
    container = await world.lives.restart(container, flush_age_index_s=0.0)
    assert await read_all(container, index) == b"border"
    await until(lambda: container.segment(index).storage_length == 6)


async def test_a_constantly_written_segment_does_not_prevent_truncation_of_the_log(world: World) -> None:
    """What arrives while a flush is under way has a place in the log of its own, not that of what is flushed."""
    container = await world.lives.start()
    await pause_writer(container)
    await container.create(B)
    segment = container.segment(B)
    for _ in range(5):
        await append(container, B, bytes(1000))
        before = container.pipeline.sequence_number
        world.lives.chunks.hold("write")
        flush = asyncio.ensure_future(container.writer.flush(segment))
        await turns()
        await append(container, B, bytes(100))
        world.lives.chunks.release("write")
        await flush
        assert segment.storage_length == segment.length - 100
        assert segment.pending.first_number() > before


async def test_log_rewriter_ends_although_the_segment_is_always_written(world: World) -> None:
    """What arrives meanwhile has a place in the log of its own; it would be carried too, and more come meanwhile."""
    container = await world.lives.start(carry_record_bytes_max=512)
    await pause_writer(container)
    await container.create(A)
    await append(container, A, bytes(2048))
    container.checkpoints.write_now()
    await until(lambda: container.checkpoints.newest is not None)
    mark = container.checkpoints.newest
    assert mark is not None
    segment = container.segment(A)
    carrying = asyncio.ensure_future(container.log_rewriter._carry_all([segment], mark.sequence_number))
    for _ in range(50):
        if carrying.done():
            break
        await append(container, A, bytes(1024))
    is_done = carrying.done()
    carrying.cancel()
    assert is_done
    assert segment.pending.first_number() > mark.sequence_number
    assert container.log_rewriter.carried_bytes == 2048


async def test_segments_that_keep_a_long_log_are_flushed_first_in_log_order(world: World) -> None:
    """Not when it is due, and not the largest: what was not flushed for longest."""
    container = await world.lives.start(
        log_bytes_max=64 * 1024,
        log_flush_percent=50,
        checkpoint_log_bytes=2 * 1024,
        flush_concurrency=1,
        flush_concurrency_small=1,
    )
    await pause_writer(container)
    names = [f"s/t/{number}.#epoch.0" for number in range(12)]
    for name in names:
        await container.create(name)
    for number, name in enumerate(names):
        await append(container, name, bytes(1000 + 100 * (7 * number % 12)))
    container.writer._scan()
    assert not container.writer._jobs  # The log is short.
    order: list[str] = []
    world.lives.chunks.hold("write")
    for name in reversed(names):
        await append(container, name, bytes(2500))
    await until(lambda: not container.checkpoints.is_pending)
    container.writer._scan()
    order = [job.segment.name for job in container.writer._jobs.values()]
    order += [segment.name for segment in container.writer._first.values()]
    users = [name for name in order if name in names]
    assert users == names[: len(users)]
    assert len(users) >= 3
    world.lives.chunks.release("write")
