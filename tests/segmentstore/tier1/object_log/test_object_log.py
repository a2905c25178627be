"""Failure cases of the log in a bucket, one by one, in virtual time: docs/object-log.md."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from penstock.model.errors import CorruptionError, LogFencedError, StorageUnreachableError
from penstock.runtime.disk import LocalDisk
from penstock.runtime.runtime import Runtime
from penstock.segmentstore.container.ownership import OwnershipLease
from penstock.segmentstore.tier1.durable_log import LogAddress
from penstock.segmentstore.tier1.object_log.factory import ObjectLogFactory
from penstock.segmentstore.tier1.object_log.journal_format import (
    HEADER_LENGTH,
    SectionFrames,
    encode_data,
    encode_seal,
    journal_key,
)
from penstock.segmentstore.tier1.object_log.log_process import _UNSEALED_PASSES_MAX
from penstock.segmentstore.tier1.object_log.object_log import ObjectLog
from penstock.segmentstore.tier1.object_log.settings import ObjectLogSettings
from penstock_simulation.checks.members import in_flight_bound
from penstock_simulation.simulated.objects import ObjectFault, ObjectFaults, SimulatedBucket, SimulatedObjects
from penstock_simulation.simulated.simulation import Simulation
from support.inline_work import InlineWork

SETTINGS = ObjectLogSettings(truncate_interval_s=0.0, trim_interval_s=1e6, reserve_bytes=0)
QUICK = ObjectFaults(latency_s_min=0.01, latency_s_max=0.02)


class CountingObjects(SimulatedObjects):
    """Counts requests by name."""

    def __init__(self, bucket: SimulatedBucket, rng: random.Random) -> None:
        super().__init__(bucket, rng, QUICK)
        self.counts: dict[str, int] = {}

    async def _travel(self, call: str, effect: Callable[[], object]) -> float:
        self.counts[call] = self.counts.get(call, 0) + 1
        return await super()._travel(call, effect)


class World:
    """A bucket, and processes with logs in it. They end with the scenario."""

    def __init__(self) -> None:
        self.bucket = SimulatedBucket()
        self.clients: list[CountingObjects] = []
        self.runtime = Runtime(disk=LocalDisk(), work=InlineWork(), rng=random.Random(1), wall_clock_ms=lambda: 0)

    def process(self, settings: ObjectLogSettings = SETTINGS) -> ObjectLogFactory:
        """Begin a process; its client is the last of `clients`."""
        self.clients.append(CountingObjects(self.bucket, random.Random(len(self.clients))))
        return ObjectLogFactory(self.clients[-1], self.runtime, settings, prefix="log", container_count=3)

    def put(self, journal: bytes, slot: int, content: bytes) -> None:
        """Put an object into a slot, as another process does."""
        self.bucket.create(journal_key("log", journal, slot), content, "")

    def slots(self) -> list[int]:
        """Return the lengths of all objects of journals."""
        return [len(content) for key, (content, _) in self.bucket.contents.items() if key.startswith("log/j/")]


def play(scenario: Callable[[World], Awaitable[None]]) -> None:
    """Run a scenario in virtual time."""

    async def run() -> None:
        await scenario(World())
        own = asyncio.current_task()
        rest = [task for task in asyncio.all_tasks() if task is not own]
        for task in rest:
            task.cancel()
        await asyncio.gather(*rest, return_exceptions=True)

    with Simulation(1) as simulation:
        simulation.run(run)


async def opened(factory: ObjectLogFactory, container_id: int = 0) -> ObjectLog:
    log = factory.create(container_id)
    await log.open()
    return log


async def append(log: ObjectLog, data: bytes) -> LogAddress:
    return await log.append([data], len(data))


def is_long_to_open(log: ObjectLog) -> bool:
    return log.is_long_to_open


async def contents(log: ObjectLog) -> list[bytes]:
    return [frame.data async for frame in log.frames()]


@pytest.mark.parametrize(
    "fault",
    [
        ObjectFault.LOST_REPLY,
        ObjectFault.LOST_REQUEST,
        ObjectFault.SENT_TWICE,
        ObjectFault.LATE,
        ObjectFault.THROTTLE,
        ObjectFault.HANG,
    ],
)
def test_a_creation_whose_reply_is_lost_is_neither_lost_nor_repeated(fault: ObjectFault) -> None:
    """The journal continues: an object of one's own is no seal."""

    async def scenario(world: World) -> None:
        factory = world.process()
        log = await opened(factory)
        world.clients[0].inject("put_new", fault)
        await asyncio.gather(append(log, b"one"), append(log, b"two"))
        await append(log, b"three")
        assert world.clients[0].fault_counts[fault] == 1
        assert factory.process.writer.use.roll_count == 0
        assert await contents(await opened(world.process())) == [b"one", b"two", b"three"]

    play(scenario)


def test_exists_without_an_object_is_no_seal_and_no_success() -> None:
    async def scenario(world: World) -> None:
        factory = world.process()
        log = await opened(factory)
        world.clients[0].inject("put_new", ObjectFault.CONFLICT, ObjectFault.CONFLICT)
        await append(log, b"one")
        assert factory.process.writer.use.roll_count == 0
        assert len(world.slots()) == 1

    play(scenario)


@pytest.mark.parametrize("fault", [ObjectFault.LOST_REPLY, ObjectFault.SENT_TWICE, ObjectFault.CONFLICT])
def test_an_open_whose_change_of_the_record_has_no_answer_uses_up_one_epoch(fault: ObjectFault) -> None:
    async def scenario(world: World) -> None:
        await (await opened(world.process())).close()
        factory = world.process()
        world.clients[-1].inject("put_if", fault)
        log = await opened(factory)
        assert log.epoch == 2
        await append(log, b"mine")
        await log.close()
        assert not (await opened(world.process())).may_predecessor_answer

    play(scenario)


def test_a_seal_without_a_change_of_the_record_shuts_out_no_container() -> None:
    """Its opener has ended in between. What was in flight is sent again, in order, and once."""

    async def scenario(world: World) -> None:
        factory = world.process()
        first, second = await opened(factory, 0), await opened(factory, 1)
        await asyncio.gather(append(first, b"a1"), append(second, b"b1"))
        writer = factory.process.writer
        world.put(writer.journal, writer.next_slot, encode_seal(writer.journal, writer.next_slot, bytes(16)))
        await asyncio.gather(append(first, b"a2"), append(second, b"b2"), append(first, b"a3"))
        assert writer.use.roll_count == 1
        assert await contents(await opened(world.process(), 0)) == [b"a1", b"a2", b"a3"]
        assert await contents(await opened(world.process(), 1)) == [b"b1", b"b2"]

    play(scenario)


def test_one_container_is_taken_over_and_the_others_of_its_process_continue() -> None:
    async def scenario(world: World) -> None:
        factory = world.process()
        lost: list[int] = []
        factory.on_fenced = lost.append
        taken, kept = await opened(factory, 0), await opened(factory, 1)
        await asyncio.gather(append(taken, b"a1"), append(kept, b"b1"))
        successor = await opened(world.process(), 0)
        assert await contents(successor) == [b"a1"]
        in_flight = [asyncio.ensure_future(append(kept, b"b%d" % number)) for number in range(2, 9)]
        with pytest.raises(LogFencedError):
            await append(taken, b"late")
        await asyncio.gather(*in_flight)
        await append(successor, b"a2")
        assert lost == [0]
        assert await contents(await opened(world.process(), 1)) == [b"b%d" % number for number in range(1, 9)]
        assert await contents(await opened(world.process(), 0)) == [b"a1", b"a2"]

    play(scenario)


def test_a_container_that_is_taken_over_is_not_confirmed_by_the_next_journal_of_its_process() -> None:
    """While the process moves its containers there, a check of that journal says nothing about this one."""

    async def scenario(world: World) -> None:
        first, second = world.process(), world.process()
        taken, kept, _ = [await opened(first, number) for number in range(3)]
        await append(taken, b"taken")
        await opened(second, 0)
        await opened(second, 2)
        opened_s = world.runtime.monotonic_s()
        # The first change of a record has to fail, and takes long. The last one fails at once.
        world.clients[0].inject("put_if", ObjectFault.SLOW)
        checks = [asyncio.ensure_future(log.confirm_ownership(is_shared=True)) for log in (taken, kept) * 2]
        while taken.is_writing:
            await asyncio.sleep(0.005)
            assert taken.ownership_confirmed_s < opened_s
            if checks[1].done():
                checks[1] = asyncio.ensure_future(kept.confirm_ownership(is_shared=True))
        await asyncio.gather(*checks, return_exceptions=True)
        assert taken.ownership_confirmed_s < opened_s < kept.ownership_confirmed_s

    play(scenario)


def test_an_idle_process_polls_once_for_all_its_containers_and_finds_the_seal() -> None:
    async def scenario(world: World) -> None:
        factory = world.process()
        logs = [await opened(factory, number) for number in range(3)]
        confirmed_s = [log.ownership_confirmed_s for log in logs]
        before = dict(world.clients[0].counts)
        await logs[0].confirm_ownership()
        assert world.clients[0].counts["get_range"] == before.get("get_range", 0) + 1
        assert all(log.ownership_confirmed_s > earlier for log, earlier in zip(logs, confirmed_s, strict=True))
        await opened(world.process(), 1)
        with pytest.raises(LogFencedError):
            await logs[1].confirm_ownership()
        await logs[0].confirm_ownership()
        await logs[2].confirm_ownership()

    play(scenario)


def test_an_idle_process_makes_one_request_per_lease_and_one_that_answers_stays_confirmed() -> None:
    """For all containers together. Requests of one container renew the lease of all before it ends."""

    async def scenario(world: World) -> None:
        loop = asyncio.get_running_loop()
        factory = world.process()
        logs = [await opened(factory, number) for number in range(3)]
        leases = [OwnershipLease(log.container_id, log, lease_s=10.0, now_s=loop.time) for log in logs]
        keeping = [asyncio.ensure_future(lease.keep()) for lease in leases]
        before = sum(world.clients[0].counts.values())
        await asyncio.sleep(600)
        assert 55 <= sum(world.clients[0].counts.values()) - before <= 60
        leases[1].check()
        before = sum(world.clients[0].counts.values())
        for _ in range(6000):
            await asyncio.sleep(0.1)
            leases[1].check()
        assert sum(world.clients[0].counts.values()) - before <= 600 / 9 + 1
        await opened(world.process(), 1)
        await asyncio.sleep(11)
        assert [type(each.exception()) if each.done() else None for each in keeping] == [None, LogFencedError, None]

    play(scenario)


def test_a_check_that_must_begin_now_does_not_take_an_earlier_one() -> None:
    """The answer to the earlier one was on its way when another process opened the log."""

    async def scenario(world: World) -> None:
        log = await opened(world.process())
        world.clients[0].inject("get_range", ObjectFault.SLOW)
        earlier = asyncio.ensure_future(log.confirm_ownership())
        await asyncio.sleep(0.3)  # It has been sent.
        shared = asyncio.ensure_future(log.confirm_ownership(is_shared=True))
        called_s = asyncio.get_running_loop().time()
        await log.confirm_ownership()
        assert log.ownership_confirmed_s >= called_s
        await asyncio.gather(earlier, shared)

    play(scenario)


def test_a_check_fails_when_the_bucket_does_not_answer_and_appends_wait_for_it() -> None:
    async def scenario(world: World) -> None:
        factory = world.process()
        log = await opened(factory)
        client = world.clients[0]
        client.faults = replace(QUICK, is_reachable=False)
        with pytest.raises(StorageUnreachableError):
            await log.confirm_ownership()
        appended = asyncio.ensure_future(append(log, b"held"))
        await asyncio.sleep(300)
        assert not appended.done()
        client.heal()
        await asyncio.wait_for(appended, 5.0)
        await log.confirm_ownership()

    play(scenario)


def test_data_of_another_process_in_a_slot_of_ones_own_is_damage() -> None:
    async def scenario(world: World) -> None:
        factory = world.process()
        log = await opened(factory)
        journal = factory.process.writer.journal
        world.put(journal, 0, encode_data(journal, 0, bytes(16), [SectionFrames(0, 1, [[b"theirs"]])]))
        with pytest.raises(CorruptionError, match="another process writes the same journal"):
            await append(log, b"mine")

    play(scenario)


def test_a_slot_that_is_missing_within_a_log_is_damage_and_is_named() -> None:
    async def scenario(world: World) -> None:
        log = await opened(world.process())
        for number in range(4):
            await append(log, b"%d" % number)
        await log.close()
        key = next(key for key in world.bucket.contents if key.endswith("/0000000000000002"))
        del world.bucket.contents[key]
        with pytest.raises(CorruptionError, match=key):
            await contents(await opened(world.process()))

    play(scenario)


def test_what_an_idle_container_does_not_use_is_deleted_and_its_frames_stay() -> None:
    """Otherwise its last frame would keep all slots after it."""

    async def scenario(world: World) -> None:
        factory = world.process(replace(SETTINGS, truncate_bytes=2000))
        idle, busy = await opened(factory, 0), await opened(factory, 1)
        await append(idle, b"checkpoint")
        address = LogAddress(0)
        for _ in range(30):
            address = await append(busy, bytes(200))
        await busy.truncate(address)
        assert len(world.slots()) == 31
        await factory.process.trim_once()
        assert len(world.slots()) == 2
        await append(idle, b"more")
        assert await contents(await opened(world.process(), 0)) == [b"checkpoint", b"more"]

    play(scenario)


def test_a_truncation_is_recorded_when_the_journal_has_grown_by_many_slots() -> None:
    """The next open reads each slot since the recorded truncation: before the interval is over, they would be many."""

    async def scenario(world: World) -> None:
        settings = replace(SETTINGS, truncate_interval_s=1e6, truncate_slots=8)
        factory = world.process(settings)
        taken, busy = await opened(factory, 0), await opened(factory, 1)
        await taken.truncate(await append(taken, b"first"))
        for _ in range(40):
            await append(busy, b"x")
            await taken.truncate(await append(taken, b"y"))
        later = world.process()
        await contents(await opened(later, 0))
        reads = sum(world.clients[-1].counts.values())
        assert 0 < reads < 50

    play(scenario)


def test_an_open_of_an_idle_container_does_not_read_all_slots_of_the_others() -> None:
    """They would be hundreds of thousands after a day, and a store that ended would be replaced after minutes."""

    async def scenario(world: World) -> None:
        factory = world.process(replace(SETTINGS, hop_slots=8))
        idle, busy = await opened(factory, 0), await opened(factory, 1)
        await append(idle, b"checkpoint")
        for _ in range(100):
            await append(busy, b"x")
        await factory.process.trim_once()
        await append(busy, b"x")
        later = world.process()
        assert await contents(await opened(later, 0)) == [b"checkpoint"]
        assert sum(world.clients[-1].counts.values()) < 40

    play(scenario)


@pytest.mark.parametrize("container_count", [1, 3])
def test_a_take_over_reads_each_slot_once_for_all_containers(container_count: int) -> None:
    """But for the end of the journal, which each open tests for itself."""

    async def scenario(world: World) -> None:
        factory = world.process()
        logs = [await opened(factory, number) for number in range(container_count)]
        for number in range(40):
            await append(logs[number % container_count], b"event %d" % number)
        successor = world.process()
        await asyncio.gather(*(opened(successor, number) for number in range(container_count)))
        assert 40 < world.clients[1].counts["get_range"] <= 60 + 4 * container_count

    play(scenario)


@pytest.mark.parametrize("others", [0, 5])
def test_a_log_is_long_to_open_if_its_frames_are_spread_over_many_slots_of_others(others: int) -> None:
    async def scenario(world: World) -> None:
        factory = world.process(replace(SETTINGS, hop_slots=20, pieces_max=2))
        log, busy = await opened(factory, 0), await opened(factory, 1)
        assert not is_long_to_open(log)
        for _ in range(6):
            address = await append(log, b"x")
            for _ in range(others):
                await append(busy, b"x")
        assert is_long_to_open(log) is (others > 0)
        await log.truncate(address)
        assert not is_long_to_open(log)
        for _ in range(3):
            for _ in range(21):
                await append(busy, b"x")
            await factory.process.trim_once()
            address = await append(log, b"x")
        assert is_long_to_open(log), "it has more pieces than two"
        await log.truncate(address)
        assert not is_long_to_open(log)

    play(scenario)


def test_the_data_of_a_journal_that_no_record_names_are_deleted_and_its_seal_stays() -> None:
    async def scenario(world: World) -> None:
        old = await opened(world.process())
        for number in range(5):
            await append(old, b"%d" % number)
        factory = world.process()
        log = await opened(factory)
        await log.truncate(await append(log, b"new"))
        await factory.process.trim_once()
        assert sorted(world.slots())[0] == HEADER_LENGTH
        assert len(world.slots()) == 2
        with pytest.raises(LogFencedError):
            await append(old, b"a zombie's")
        assert await contents(await opened(world.process())) == []

    play(scenario)


def data_objects(world: World, journal: bytes) -> int:
    """Return how many slots of a journal have data."""
    folder = journal_key("log", journal, 0).rpartition("/")[0]
    contents = world.bucket.contents.items()
    return sum(key.startswith(f"{folder}/") and len(content) > HEADER_LENGTH for key, (content, _) in contents)


def test_a_journal_whose_last_reference_ends_with_an_open_is_deleted() -> None:
    """A container that has no frames in it gives it up when it is opened, after the others have."""

    async def scenario(world: World) -> None:
        first = world.process()
        busy, idle = await opened(first, 0), await opened(first, 1)
        for number in range(5):
            await append(busy, b"%d" % number)
        journal = first.process.writer.journal
        second = world.process()
        taken = await opened(second, 0)
        await taken.truncate(await append(taken, b"new"))
        await second.process.trim_once()
        assert data_objects(world, journal) == 5, "the record of container 1 names it"
        await opened(second, idle.container_id)
        await second.process.trim_once()
        assert data_objects(world, journal) == 0

    play(scenario)


def test_a_journal_whose_last_reference_ends_with_a_move_is_deleted() -> None:
    """Its own process finds the seal after the process that sealed it has given it up."""

    async def scenario(world: World) -> None:
        first = world.process()
        idle, busy = await opened(first, 0), await opened(first, 1)
        for number in range(5):
            await append(busy, b"%d" % number)
        journal = first.process.writer.journal
        second = world.process()
        taken = await opened(second, 1)
        await taken.truncate(await append(taken, b"new"))
        await second.process.trim_once()
        assert data_objects(world, journal) == 5, "the record of container 0 names it"
        await idle.confirm_ownership()
        await append(idle, b"in the next journal")
        assert first.process.writer.journal != journal
        await first.process.trim_once()
        assert data_objects(world, journal) == 0

    play(scenario)


def test_a_journal_that_is_sealed_after_the_records_ceased_to_name_it_is_deleted() -> None:
    """A log that was closed in order is not sealed by the process that opens it, only by its own when that ends."""

    async def scenario(world: World) -> None:
        first = world.process()
        moved, kept = await opened(first, 0), await opened(first, 1)
        for number in range(5):
            await append(moved, b"%d" % number)
        journal = first.process.writer.journal
        await moved.close()
        await kept.close()
        second = world.process()
        for container_id in (0, 1):
            taken = await opened(second, container_id)
            await taken.truncate(await append(taken, b"new"))
        await second.process.trim_once()
        assert data_objects(world, journal) == 5, "its process may still write"
        await first.process.writer.close()
        await second.process.trim_once()
        assert data_objects(world, journal) == 0

    play(scenario)


def test_a_journal_that_is_never_sealed_is_listed_in_some_passes_only() -> None:
    async def scenario(world: World) -> None:
        first = world.process()
        moved = await opened(first, 0)
        await append(moved, b"old")
        await moved.close()
        second = world.process()
        taken = await opened(second, 0)
        await taken.truncate(await append(taken, b"new"))
        listed = []
        for _ in range(_UNSEALED_PASSES_MAX + 5):
            before = world.clients[1].counts.get("list", 0)
            await second.process.trim_once()
            listed.append(world.clients[1].counts.get("list", 0) > before)
        assert listed == [True] * (_UNSEALED_PASSES_MAX + 1) + [False] * 4
        assert data_objects(world, first.process.writer.journal) == 1

    play(scenario)


def test_frames_longer_than_the_limit_in_flight_are_sent_one_at_a_time() -> None:
    async def scenario(world: World) -> None:
        settings = replace(SETTINGS, batch_bytes_max=4000, in_flight_bytes_max=8000, batch_interval_s=0.0, gather_s=0.0)
        factory = world.process(settings)
        log = await opened(factory)
        futures = [log.append([bytes(length)], length) for length in (100, 20_000, 30_000, 3000, 3000, 100)]
        seen = set()
        while not all(future.done() for future in futures):
            writer = factory.process.writer
            count, length_bytes = len(writer._slots), writer._in_flight_bytes
            assert length_bytes <= in_flight_bound(settings, count)
            seen.add((count, length_bytes // 10_000))
            await asyncio.sleep(0.001)
        assert {(1, 2), (1, 3)} <= seen
        assert in_flight_bound(settings, 2) < 20_000

    play(scenario)


def test_objects_are_as_rare_as_the_interval_says_and_a_single_append_waits_for_none() -> None:
    async def scenario(world: World) -> None:
        loop = asyncio.get_running_loop()
        log = await opened(world.process())
        began_s = loop.time()
        await append(log, b"alone")
        assert loop.time() - began_s < 0.05
        await asyncio.sleep(10)
        before = world.clients[0].counts["put_new"]
        began_s = loop.time()
        futures = []
        for _ in range(1000):
            futures.append(log.append([b"frame"], 5))
            await asyncio.sleep(0.004)
        await asyncio.gather(*futures)
        interval_count = (loop.time() - began_s) / SETTINGS.batch_interval_s
        assert world.clients[0].counts["put_new"] - before <= interval_count + 1

    play(scenario)


@pytest.mark.parametrize("window_bytes", [100, 4_000, 7_000, 20_000])
def test_a_full_window_is_sent_as_soon_as_its_bytes_allow_and_objects_stay_as_few_as_promised(
    window_bytes: int,
) -> None:
    """Clients that wait with a full window do not wait for the whole interval, and requests stay below the bound."""
    settings = replace(SETTINGS, batch_bytes_max=8_000)

    async def scenario(world: World) -> None:
        loop = asyncio.get_running_loop()
        log = await opened(world.process(settings))
        client = world.clients[0]
        before, began_s, frame_count = client.counts["put_new"], loop.time(), 0
        while loop.time() - began_s < 20:
            frames = [log.append([bytes(100)], 100) for _ in range(window_bytes // 100)]
            frame_count += len(frames)
            await asyncio.gather(*frames)
        took_s = loop.time() - began_s
        count = client.counts["put_new"] - before
        assert count <= took_s / settings.batch_interval_s + frame_count * 100 / settings.batch_bytes_max + 1
        # A window per interval, and more the longer its last object is.
        rest = 1 - (window_bytes % settings.batch_bytes_max) / settings.batch_bytes_max
        round_s = max(settings.batch_interval_s * rest, settings.gather_s) + 2 * QUICK.latency_s_max
        assert frame_count * 100 >= 0.9 * took_s / round_s * window_bytes

    play(scenario)


def test_a_creation_that_takes_long_gets_a_second_copy_but_few_do() -> None:
    async def scenario(world: World) -> None:
        loop = asyncio.get_running_loop()
        log = await opened(world.process())
        client = world.clients[0]
        client.inject("put_new", ObjectFault.SLOW)
        began_s = loop.time()
        await append(log, b"slow")
        assert loop.time() - began_s < 2 * SETTINGS.hedge_s < QUICK.slow_s
        client.faults = replace(QUICK, rates=((ObjectFault.SLOW, 1.0),))
        before = client.counts["put_new"]
        for _ in range(40):
            await append(log, b"slow")
        assert client.counts["put_new"] - before <= 40 + 6

    play(scenario)


@pytest.mark.parametrize("outage_s", [10.0, 10.5])
def test_appends_are_acknowledged_soon_after_a_bucket_has_refused_everything(outage_s: float) -> None:
    """Pauses between attempts stay short, with the settings that are no parameters of the tests."""

    async def scenario(world: World) -> None:
        loop = asyncio.get_running_loop()
        log = await opened(world.process(ObjectLogSettings()))
        client = world.clients[0]
        client.faults = replace(QUICK, rates=((ObjectFault.THROTTLE, 1.0),))
        appended = asyncio.ensure_future(append(log, b"refused"))
        await asyncio.sleep(outage_s)
        assert not appended.done()
        client.faults = QUICK
        began_s = loop.time()
        await appended
        assert loop.time() - began_s < 1.2

    play(scenario)


def test_bytes_in_flight_are_bounded_and_frames_of_many_slots_come_in_order() -> None:
    settings = replace(SETTINGS, batch_bytes_max=1000, in_flight_bytes_max=2500, in_flight_max=4)

    async def scenario(world: World) -> None:
        factory = world.process(settings)
        log = await opened(factory)
        frames = [bytes([number]) * 300 for number in range(100)]
        futures = [log.append([frame], 300) for frame in frames]
        peak = 0
        while not futures[-1].done():
            peak = max(peak, factory.process.writer._in_flight_bytes)
            await asyncio.sleep(0.001)
        assert 1000 < peak <= 4 * 1200
        assert await contents(await opened(world.process())) == frames

    play(scenario)


def test_a_journal_that_is_full_is_sealed_and_followed_by_another() -> None:
    async def scenario(world: World) -> None:
        factory = world.process(replace(SETTINGS, slots_max=3))
        log = await opened(factory)
        for number in range(10):
            await append(log, b"%d" % number)
        assert factory.process.writer.use.roll_count == 3
        assert await contents(await opened(world.process())) == [b"%d" % number for number in range(10)]

    play(scenario)


def test_a_long_log_is_read_ahead_within_its_bounds() -> None:
    async def scenario(world: World) -> None:
        bounds = replace(SETTINGS, read_head_bytes=4096, read_bytes_max=30_000, kept_bytes_max=0)
        settings = replace(bounds, batch_bytes_max=9000)
        log = await opened(world.process(settings))
        frames = [bytes([number]) * 9000 for number in range(60)]
        await asyncio.gather(*(append(log, frame) for frame in frames))
        loop = asyncio.get_running_loop()
        successor = await opened(world.process(settings))
        began_s = loop.time()
        assert await contents(successor) == frames
        # Two requests for each of 60 slots, one after the other, would take at least 1.2 s.
        assert loop.time() - began_s < 0.8

    play(scenario)


def test_frames_that_settle_while_a_hop_is_recorded_keep_their_addresses() -> None:
    """Otherwise the next owner reads them at other addresses, also those that were truncated meanwhile."""

    async def scenario(world: World) -> None:
        factory = world.process(replace(SETTINGS, batch_interval_s=0.0, truncate_bytes=1000))
        objects = world.clients[0]
        idle, busy = await opened(factory, 0), await opened(factory, 1)
        await append(idle, b"first")
        for _ in range(3):
            await append(busy, bytes(1000))
        objects.faults = replace(QUICK, stall_s_max=5.0)
        objects.inject("put_if", ObjectFault.STALL)
        hopping = asyncio.ensure_future(idle.hop(lambda slot: 3000))
        await asyncio.sleep(0)
        addresses = [await append(idle, b"second"), await append(idle, b"third")]
        assert not hopping.done()
        await hopping
        addresses.append(await append(idle, b"fourth"))
        assert addresses == sorted(addresses)
        await idle.truncate(addresses[0])
        successor = await opened(world.process())
        found = [(frame.address, frame.data) async for frame in successor.frames()]
        assert found == [(addresses[1], b"third"), (addresses[2], b"fourth")]

    play(scenario)
