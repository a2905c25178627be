"""What a container may hold and do, small: bounds that do not grow with what exists, counted and never timed.

The commands in `bench/` show the same with 100 000 segments and a million writers and keys.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace

import pytest

from penstock.model.segments import NO_VALUE
from penstock.segmentstore.container.metadata import ContainerMetadata
from penstock.segmentstore.container.pending import PendingQueue
from penstock.segmentstore.container.reads.read_index import ReadIndex
from penstock.segmentstore.container.segment import Segment
from penstock.segmentstore.container.storage.storage_lookups import StorageLookups
from penstock.segmentstore.container.storage.storage_writer import StorageWriter
from penstock.segmentstore.settings import CacheSettings
from support.containers import QUIET, Incarnations, append, read_all, until

A = "s/a/0.#epoch.0"


@pytest.fixture
async def lives() -> AsyncIterator[Incarnations]:
    """A container's lives; closed in the end."""
    incarnations = Incarnations()
    yield incarnations
    await incarnations.close()


def name_of(number: int) -> str:
    """Return a segment's name."""
    return f"s/many/{number}.#epoch.0"


async def test_memory_and_checkpoints_are_bounded_by_what_is_active(lives: Incarnations) -> None:
    """300 segments are made, written and read where 20 may be active: no more ever are, nothing is lost."""
    limit, count = 20, 300
    container = await lives.start(active_segments_max=limit)
    checkpoint_bytes: list[int] = []

    def check() -> None:
        metadata = container.state.metadata
        assert metadata.active_count <= limit
        assert len(metadata.by_id) <= limit + metadata.system_count
        checkpoint_bytes.append(len(metadata.snapshot()))

    for number in range(count):
        await container.create(name_of(number))
        check()
    for number in range(count):
        await container.find(name_of(number))
        await append(container, name_of(number), b"%08d" % number)
        check()
    first_half = max(checkpoint_bytes[:count])
    for number in range(count):
        assert await read_all(container, await container.find(name_of(number))) == b"%08d" % number
        check()
    assert max(checkpoint_bytes) < 2 * first_half
    container = await lives.restart(container)
    check()
    assert await read_all(container, await container.find(name_of(7))) == b"%08d" % 7


class CountedAttributes(dict[bytes, int]):
    """Attributes that count how often all of them were scanned."""

    pass_count = 0

    def __iter__(self) -> Iterator[bytes]:
        self.pass_count += 1
        return super().__iter__()


async def test_values_that_cannot_go_are_not_scanned(lives: Incarnations) -> None:
    """Far more changed values than may stay cached cost a load nothing; of the others the oldest leave in batches."""
    container = await lives.start(attributes_in_memory_max=2, attributes_cached_max=8, attributes_unflushed_max=1000)
    segment = await container.create(A)
    for number in range(100):
        await container.update_attribute(A, b"%016d" % number, value=number, expected=NO_VALUE)
    container.attributes.due()
    await container.attributes.flush(segment)
    for number in range(100, 200):
        await container.update_attribute(A, b"%016d" % number, value=number, expected=NO_VALUE)
    assert len(segment.dirty_attributes) == 100
    counted = segment.attributes = CountedAttributes(segment.attributes)
    for number in range(40):
        assert await container.get_attribute(A, b"%016d" % number) == number
        assert len(counted) - len(segment.dirty_attributes) <= 8 + 1
    assert counted.pass_count <= 40 // 2


async def test_a_flush_of_many_segments_does_not_scan_all_of_them_for_each(
    lives: Incarnations, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The storage writer is woken again while jobs run; what it inspects then is not everything, again and again."""
    count = 200
    scans = 0
    scan = StorageWriter._scan_in_steps

    def counted(self: StorageWriter) -> Iterator[None]:
        nonlocal scans
        scans += 1
        yield from scan(self)

    container = await lives.start(flush_age_s=0.0, writer_interval_s=1000.0)
    for number in range(count):
        await container.create(name_of(number))
    lives.chunks.hold("write")
    for number in range(count):
        await append(container, name_of(number), b"%08d" % number)
    container.events.on_storage_work()
    await until(lambda: lives.chunks.calls["write"] > 0)
    monkeypatch.setattr(StorageWriter, "_scan_in_steps", counted)
    # Twice more while they run: those that do become due again.
    for scan_count in (1, 2):
        container.events.on_storage_work()
        await until(lambda least=scan_count: scans >= least)  # type: ignore[misc]
    lives.chunks.release("write")
    await until(lambda: all(container.segment(name_of(number)).storage_length == 8 for number in range(count)))
    # Storage finishes them in a few groups, how many is a matter of timing; a scan for each would be two hundred.
    assert scans <= count // 10


async def test_held_appends_cause_no_scan_of_all_segments_while_jobs_run(
    lives: Incarnations, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each append that is held asks for relief: for nothing while the storage writer is at it, else for a scan."""
    scans = 0
    scan = StorageWriter._scan_in_steps

    def counted(self: StorageWriter) -> Iterator[None]:
        nonlocal scans
        scans += 1
        yield from scan(self)

    container = await lives.start(flush_age_s=0.0, writer_interval_s=1000.0)
    await container.create(name_of(0))
    lives.chunks.hold("write")
    await append(container, name_of(0), b"waits")
    monkeypatch.setattr(StorageWriter, "_scan_in_steps", counted)
    monkeypatch.setattr(container.throttle, "must_wait", lambda *, is_urgent: True)
    assert container.back_pressure.must_wait()
    await until(lambda: lives.chunks.calls["write"] > 0)
    assert scans == 1
    for _ in range(100):
        assert container.back_pressure.must_wait()
        await asyncio.sleep(0)
    assert scans == 1
    lives.chunks.release("write")
    await until(lambda: container.segment(name_of(0)).storage_length == 5)
    await until(lambda: len(container.writer.tasks) == 1)
    assert container.back_pressure.must_wait()
    await until(lambda: scans >= 2)


async def test_a_log_that_cannot_be_truncated_is_not_searched_again(
    lives: Incarnations, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While one segment of many holds the log up, a round asks that one alone.

    Once it is flushed the log is truncated.
    """
    container = await lives.start()
    for number in range(50):
        await container.create(name_of(number))
        await append(container, name_of(number), b"waits")
    container.checkpoints.write()
    await until(lambda: len(container.checkpoints.marks) > 0)
    blocker = container.segment(name_of(49))
    asked: list[int] = []

    def counted(segment: Segment) -> int:
        # All others are written to all the time: what they wait with is newer than the checkpoint.
        asked.append(segment.id)
        return 1 if segment is blocker and blocker.id in container.state.unflushed else 1 << 62

    monkeypatch.setattr(container.checkpoints, "_first_unflushed", counted)
    container.checkpoints.truncate_log()
    assert len(asked) >= 50
    for _ in range(10):
        asked.clear()
        container.checkpoints.truncate_log()
        assert asked == [blocker.id]
    await container.writer.flush(blocker)
    asked.clear()
    container.checkpoints.truncate_log()
    assert len(asked) >= 49
    assert not container.checkpoints.marks


async def test_start_stop_and_alarms_of_very_many_segments_give_others_their_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Only so much is done between two turns of another task. `bench/crowd_stalls.py` takes the time."""
    count = 3000
    lives = Incarnations(replace(QUIET, active_segments_max=count + 100, log_bytes_max=1), cache=CacheSettings())
    container = await lives.start()
    names = [f"s/t/{number}.#epoch.0" for number in range(count)]
    await asyncio.gather(*map(container.create, names))
    await asyncio.gather(*(append(container, name, b"waits") for name in names))
    calls: Counter[str] = Counter()
    longest: Counter[str] = Counter()

    def counted(owner: type, name: str) -> None:
        original = getattr(owner, name)

        def call(*arguments: object, **named: object) -> object:
            calls[name] += 1
            return original(*arguments, **named)

        monkeypatch.setattr(owner, name, call)

    counted(ContainerMetadata, "add")
    counted(StorageLookups, "resolve")
    counted(ReadIndex, "clear")
    counted(PendingQueue, "first_unflushed")
    counted(PendingQueue, "waits_since_s")

    async def other() -> None:
        while True:
            for name, number in calls.items():
                longest[name] = max(longest[name], number)
            calls.clear()
            await asyncio.sleep(0)

    task = asyncio.ensure_future(other())
    container.checkpoints.write_now()
    await container.pipeline.barrier()
    container.checkpoints.write_now()
    await until(lambda: not container.checkpoints.is_pending)
    for segment in container.segments():
        segment.is_stuck = True
    container.log_rewriter.check()
    await until(lambda: not container.log_rewriter._is_checking)
    assert container.log_rewriter.is_alarmed
    container = await lives.restart(container)
    await lives.stop(container)
    task.cancel()
    assert set(longest) >= {"add", "resolve", "clear", "first_unflushed", "waits_since_s"}
    assert max(longest.values()) <= 1100, longest
    await lives.close()
