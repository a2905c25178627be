"""A bucket that takes no more objects, as log and as long-term storage, in virtual time: docs/object-log.md."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial

import pytest

import penstock
from penstock.client.settings import ClientSettings
from penstock.model.errors import LogFencedError, ObjectExistsError, StorageFullError, StorageUnreachableError
from penstock.model.segments import Buffer
from penstock.runtime.disk import LocalDisk
from penstock.runtime.runtime import Runtime
from penstock.segmentstore.container_settings import ContainerSettings
from penstock.segmentstore.settings import CacheSettings, SegmentStoreSettings
from penstock.segmentstore.tier1.log_owner import LogOwner
from penstock.segmentstore.tier1.object_log.factory import ObjectLogFactory
from penstock.segmentstore.tier1.object_log.object_log import ObjectLog
from penstock.segmentstore.tier1.object_log.settings import ObjectLogSettings
from penstock.segmentstore.tier2.object_storage import ObjectChunkStorage
from penstock.segmentstore.tier2.object_storage_settings import ObjectStorageSettings
from penstock_simulation.simulated.host import Host
from penstock_simulation.simulated.objects import ObjectFaults, SimulatedBucket, SimulatedObjects
from penstock_simulation.simulated.simulation import Simulation
from support.inline_work import InlineWork
from support.simulated_stack import CONTAINER_COUNT, SimulatedStack

KIB = 1024
SETTINGS = ObjectLogSettings(
    batch_interval_s=0.02, batch_bytes_max=16 * KIB, in_flight_bytes_max=64 * KIB, reserve_bytes=64 * KIB,
    full_retry_s=1.0, retry_delay_s_max=0.2, truncate_interval_s=0.2, truncate_bytes=4 * KIB, trim_interval_s=0.5,
)  # fmt: skip
QUICK = ObjectFaults(latency_s_min=0.001, latency_s_max=0.002)


def play(scenario: Callable[[SimulatedBucket], Awaitable[None]]) -> None:
    """Run a scenario in virtual time."""

    async def run() -> None:
        await scenario(SimulatedBucket())
        own = asyncio.current_task()
        rest = [task for task in asyncio.all_tasks() if task is not own]
        for task in rest:
            task.cancel()
        await asyncio.gather(*rest, return_exceptions=True)

    with Simulation(1) as simulation:
        simulation.run(run)


def runtime(seed: int) -> Runtime:
    return Runtime(disk=LocalDisk(), work=InlineWork(), rng=random.Random(seed), wall_clock_ms=lambda: 0)


def process(bucket: SimulatedBucket, settings: ObjectLogSettings = SETTINGS, seed: int = 1) -> ObjectLogFactory:
    objects = SimulatedObjects(bucket, random.Random(seed), QUICK)
    return ObjectLogFactory(objects, runtime(seed), settings, prefix="log", container_count=3)


async def opened(factory: ObjectLogFactory) -> ObjectLog:
    log = factory.create(0)
    await log.open()
    return log


def used(bucket: SimulatedBucket) -> int:
    return sum(len(content) for content, _ in bucket.contents.values())


def reserve(bucket: SimulatedBucket) -> int:
    return sum(len(content) for key, (content, _) in bucket.contents.items() if key.startswith("log/reserve/"))


def test_the_reserve_is_created_with_the_first_log_and_freed_part_by_part() -> None:
    async def scenario(bucket: SimulatedBucket) -> None:
        log = await opened(process(bucket))
        await asyncio.sleep(0.5)
        assert reserve(bucket) == SETTINGS.reserve_bytes
        bucket.quota_bytes = used(bucket)
        await log.append([bytes(1000)], 1000)
        assert reserve(bucket) == SETTINGS.reserve_bytes - SETTINGS.batch_bytes_max
        space = await log.space()
        assert space is not None
        assert space.free_bytes == 0

    play(scenario)


def test_appends_wait_and_ownership_is_confirmed_while_not_even_the_reserve_is_left() -> None:
    async def scenario(bucket: SimulatedBucket) -> None:
        log = await opened(process(bucket, replace(SETTINGS, reserve_bytes=0)))
        bucket.quota_bytes = used(bucket)
        waiting = asyncio.ensure_future(log.append([b"waits"], 5))
        await asyncio.sleep(60.0)
        assert not waiting.done()
        before_s = log.ownership_confirmed_s
        await log.confirm_ownership()
        assert log.ownership_confirmed_s > before_s
        bucket.quota_bytes = None
        await waiting
        await asyncio.sleep(2.0)
        assert await log.space() is None

    play(scenario)


def test_a_log_whose_bucket_is_full_detects_that_another_process_has_taken_it() -> None:
    """The creations in flight never find the seal, because the bucket refuses them before it compares names."""

    async def scenario(bucket: SimulatedBucket) -> None:
        first = await opened(process(bucket))
        await asyncio.sleep(0.5)
        objects = first._process.bucket.objects
        assert isinstance(objects, SimulatedObjects)
        objects.faults = replace(QUICK, is_full=True)
        waiting = asyncio.ensure_future(first.append([b"never"], 5))
        await asyncio.sleep(1.0)
        second = await opened(process(bucket, seed=2))
        with pytest.raises(LogFencedError):
            await first.confirm_ownership()
        with pytest.raises((LogFencedError, StorageFullError)):
            await waiting
        assert [frame.data async for frame in second.frames()] == []

    play(scenario)


def test_a_creation_whose_connection_breaks_because_the_object_exists_finds_the_seal() -> None:
    """Services answer before they have read a long body, and close: the client sees a broken connection each time."""

    class Breaking(SimulatedObjects):
        async def put_new(self, key: str, content: Buffer, tag: str) -> None:
            try:
                await super().put_new(key, content, tag)
            except ObjectExistsError:
                raise StorageUnreachableError("simulated: the connection broke") from None

    async def scenario(bucket: SimulatedBucket) -> None:
        breaking = Breaking(bucket, random.Random(1), QUICK)
        first = await opened(ObjectLogFactory(breaking, runtime(1), SETTINGS, prefix="log", container_count=3))
        await opened(process(bucket, seed=2))
        with pytest.raises(LogFencedError):
            async with asyncio.timeout(5.0):
                await first.append([b"never"], 5)

    play(scenario)


def test_a_close_in_a_full_bucket_ends() -> None:
    async def scenario(bucket: SimulatedBucket) -> None:
        log = await opened(process(bucket, replace(SETTINGS, reserve_bytes=0)))
        bucket.quota_bytes = used(bucket)
        waiting = asyncio.ensure_future(log.append([b"waits"], 5))
        async with asyncio.timeout(60.0):
            await log.close()
        with pytest.raises(StorageFullError):
            await waiting

    play(scenario)


class FullStack(SimulatedStack):
    """Log and long-term storage in one bucket."""

    def __init__(self) -> None:
        self.bucket = SimulatedBucket()
        container = replace(
            ContainerSettings(), checkpoint_log_bytes=8 * KIB, checkpoint_log_bytes_idle=4 * KIB, flush_bytes=16 * KIB,
            flush_age_s=0.5, writer_interval_s=0.1, ownership_lease_s=2.0,
        )  # fmt: skip
        settings = SegmentStoreSettings(
            container_count=CONTAINER_COUNT, container=container, cache=CacheSettings(bytes_max=64 << 20)
        )
        super().__init__(0, settings, ClientSettings(retry_time_max_s=600.0))

    async def _serve(self, host: Host) -> None:
        def objects() -> SimulatedObjects:
            return SimulatedObjects(self.bucket, random.Random(1), QUICK)

        self._logs = ObjectLogFactory(
            objects(), host.runtime, SETTINGS, prefix="log", container_count=CONTAINER_COUNT,
            owner=LogOwner(host.runtime.random_id(), lambda token: True),
        )  # fmt: skip
        storage = ObjectStorageSettings(put_retry_delay_s=0.05, full_retry_s=2.0)
        self._chunks = ObjectChunkStorage(objects(), random.Random(1), storage, prefix="data")
        await super()._serve(host)


def test_writers_wait_in_a_full_bucket_and_a_truncation_makes_room() -> None:
    """Reads continue beyond a lease. After the truncation all that was written is there, once and in order."""
    stack = FullStack()
    bucket = stack.bucket

    async def scenario() -> None:
        client = stack.client
        await client.create_stream("test/full", scaling=penstock.Scaling.fixed(1))
        await asyncio.sleep(1.0)
        async with client.event_writer("test/full") as writer:

            async def write(numbers: range) -> None:
                for number in numbers:
                    await writer.write(b"%06d" % number + bytes(994))
                    await writer.flush()

            await write(range(100))
            cut = await client.tail("test/full")
            await asyncio.sleep(5.0)
            bucket.quota_bytes = used(bucket) + 32 * KIB
            waiting = asyncio.ensure_future(write(range(100, 400)))
            await asyncio.sleep(30.0)
            assert not waiting.done()
            async with client.batch("test/full") as reader:
                early = [event[:6] async for batch in reader.read_all() for event in batch.events]
            assert early[:100] == [b"%06d" % number for number in range(100)]
            await client.truncate_stream(cut)
            await asyncio.sleep(120.0)
            assert used(bucket) <= bucket.quota_bytes
            if not waiting.done():
                # The truncation has freed as much as there was: the rest waits for a larger quota.
                bucket.quota_bytes += 1 << 20
            await waiting
        async with client.batch("test/full") as reader:
            found = [event[:6] async for batch in reader.read_all() for event in batch.events]
        assert found == [b"%06d" % number for number in range(100, 400)]

    stack.call(scenario)
    stack.close()


def test_all_logs_of_a_process_report_a_full_bucket_with_the_first_refusal() -> None:
    """So writes are held before they use the reserve up. `space` says it at once, without a request."""

    async def scenario(bucket: SimulatedBucket) -> None:
        factory = process(bucket)
        logs = [factory.create(number) for number in range(2)]
        reports: list[int] = []
        for number, log in enumerate(logs):
            await log.open()
            log.on_full = partial(reports.append, number)
        await asyncio.sleep(0.5)
        bucket.quota_bytes = used(bucket)
        for _ in range(3):
            await logs[0].append([bytes(1000)], 1000)
        assert reports == [0, 1]
        before_s = asyncio.get_running_loop().time()
        space = await logs[1].space()
        assert space is not None
        assert space.free_bytes == 0
        assert asyncio.get_running_loop().time() == before_s

    play(scenario)
