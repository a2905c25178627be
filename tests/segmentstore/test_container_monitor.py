"""`ContainerMonitor`: what runs follows what is assigned, whatever goes wrong. SS-n: docs/spec/segment-store.md.

Containers are stand-ins whose starts and stops end when the test says so.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection
from dataclasses import replace

import pytest

from penstock.model.errors import (
    ContainerOfflineError,
    CorruptionError,
    LogDisabledError,
    StorageError,
)
from penstock.runtime.runtime import Runtime
from penstock.segmentstore.container_monitor import ContainerMonitor
from penstock.segmentstore.container_settings import ContainerSettings
from penstock.segmentstore.container_start import ContainerStart
from penstock.segmentstore.settings import SegmentStoreSettings
from penstock.segmentstore.store import SegmentStore
from penstock.segmentstore.tier1.memory_log import MemoryLogFactory
from penstock_simulation.simulated.simulation import Simulation
from support.containers import FaultyChunks, turns, until

SETTINGS = SegmentStoreSettings(
    container_count=16,
    parallel_starts=2,
    restart_delay_s=0.01,
    restart_delay_s_max=0.02,
    disabled_retry_s=0.03,
    assignment_interval_s=0.01,
)


class Incarnation:
    """A container that knows whether another one of the same id lives."""

    def __init__(self, world: World, container_id: int) -> None:
        self.id = container_id
        self._world = world

    async def stop(self) -> None:
        """Stop when the world lets it."""
        try:
            await self._world.stops.wait()
            if self._world.stop_error is not None:
                raise self._world.stop_error
        finally:
            self._world.end(self)


class World:
    """Starts incarnations, and notices when two of one id live at a time.

    `starts`, `stops`: set while starts and stops may end. `errors`: what the next starts of an id fail with.
    """

    def __init__(self, settings: SegmentStoreSettings = SETTINGS) -> None:
        self.starts = asyncio.Event()
        self.stops = asyncio.Event()
        self.starts.set()
        self.stops.set()
        self.stop_error: Exception | None = None
        self.errors: dict[int, list[Exception]] = {}
        self.begun: list[int] = []
        self.replayed: list[int] = []
        self.doubled: list[int] = []
        self.living: dict[int, Incarnation] = {}
        self.starting_count = self.starting_count_max = 0
        self.progress: Callable[[], None] = lambda: None
        self.monitor = ContainerMonitor(self.start, settings)

    async def start(self, container_id: int, steps: ContainerStart) -> Incarnation:
        """Make an incarnation. What waits for `starts` is the replay."""
        self.progress = steps.progress
        if container_id in self.living:
            # The monitor would take an error for that of a start, and try again.
            self.doubled.append(container_id)
        made = self.living[container_id] = Incarnation(self, container_id)
        self.begun.append(container_id)
        try:
            async with steps.replaying():
                self.replayed.append(container_id)
                self.starting_count += 1
                self.starting_count_max = max(self.starting_count_max, self.starting_count)
                try:
                    await self.starts.wait()
                finally:
                    self.starting_count -= 1
            if self.errors.get(container_id):
                raise self.errors[container_id].pop(0)
        except BaseException:
            self.end(made)
            raise
        return made

    def end(self, incarnation: Incarnation) -> None:
        """It lives no more."""
        if self.living.get(incarnation.id) is incarnation:
            del self.living[incarnation.id]

    async def settled(self) -> None:
        """Wait until exactly what is assigned runs."""
        await until(lambda: sorted(self.monitor.running) == self.monitor.held == self.monitor.assigned)
        assert sorted(self.living) == self.monitor.assigned
        assert self.doubled == []


async def test_an_absent_assignment_changes_nothing_and_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """SS-4: nothing starts or stops, the monitor continues, and takes the next assignment up. As absent: unreadable."""
    world = World()
    answers: list[Collection[int] | Exception | None] = [None, {1, 2}, None, StorageError("not now"), {2}]

    async def source() -> Collection[int] | None:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    await world.monitor.refresh(source)
    assert world.monitor.held == []
    assert "there is no container assignment" in caplog.text
    await world.monitor.refresh(source)
    await world.settled()
    assert sorted(world.living) == [1, 2]
    await world.monitor.refresh(source)
    await world.monitor.refresh(source)
    await turns()
    assert sorted(world.living) == [1, 2]
    assert "cannot be read, nothing changes: not now" in caplog.text
    await world.monitor.refresh(source)
    await world.settled()
    assert sorted(world.living) == [2]
    await world.monitor.stop()


async def test_a_container_starts_once_although_watch_and_timer_report_it() -> None:
    """SS-5: while its start is under way the same assignment comes again and again."""
    world = World()
    world.starts.clear()

    async def source() -> Collection[int] | None:
        return {3}

    world.monitor.follow(source)
    for _ in range(5):
        await world.monitor.refresh(source)
        await asyncio.sleep(2 * SETTINGS.assignment_interval_s)
    assert world.begun == [3]
    world.starts.set()
    await world.settled()
    await asyncio.sleep(3 * SETTINGS.assignment_interval_s)
    assert world.begun == [3]
    await world.monitor.stop()
    assert world.living == {}


async def test_the_timer_alone_finds_a_new_assignment() -> None:
    """A change without a notification is seen within `assignment_interval_s`."""
    world = World()
    assigned = {1}

    async def source() -> Collection[int] | None:
        return assigned

    world.monitor.follow(source)
    await until(lambda: 1 in world.monitor.running)
    assigned.add(2)
    await until(lambda: 2 in world.monitor.running)
    await world.monitor.stop()


@pytest.mark.parametrize("last", [(), (3,)])
async def test_a_flapping_assignment_never_makes_two_incarnations_and_ends_as_the_last_one(
    last: tuple[int, ...],
) -> None:
    """SS-6: on and off while starts and stops are held up for a few turns each (`World.start` polls for a second)."""
    world = World()
    for number in range(40):
        (world.starts.clear if number % 3 else world.starts.set)()
        (world.stops.clear if number % 5 else world.stops.set)()
        world.monitor.assign((3,) if number % 2 else ())
        await turns(number % 7)
    world.monitor.assign(last)
    world.starts.set()
    world.stops.set()
    await world.settled()
    assert tuple(world.living) == last
    assert len(world.begun) > 2
    await world.monitor.stop()


async def test_a_start_waits_for_the_end_of_the_previous_incarnation() -> None:
    """R1.8: given back while it is being stopped, it starts after that."""
    world = World()
    await world.monitor.start({3})
    world.stops.clear()
    world.monitor.assign(())
    await turns()
    assert world.monitor.held == [3]
    world.monitor.assign({3})
    await turns()
    assert world.begun == [3]
    world.stops.set()
    await world.settled()
    assert world.begun == [3, 3]
    await world.monitor.stop()


async def test_a_failed_start_is_tried_again_by_the_next_round() -> None:
    """SS-7: three errors, one of them a bug: no mark remains, the others are not disturbed, the pause grows."""
    world = World()
    errors = [StorageError("unreachable"), OSError(5, "input/output error"), ZeroDivisionError()]
    world.errors[3] = list(errors)
    world.monitor.assign({2, 3})
    await until(lambda: 3 in world.monitor.failures)
    # On a busy machine the second may have come by now.
    assert world.monitor.failures[3] in errors
    assert 2 in world.monitor.running
    await world.settled()
    assert world.begun.count(3) == 4
    assert world.begun.count(2) == 1
    assert world.monitor.failures == {}
    await world.monitor.stop()


async def test_a_start_that_takes_long_but_gets_on_is_not_given_up() -> None:
    """A long log is read to its end, however long that takes; a container that needs longer would never start."""
    world = World(replace(SETTINGS, start_stall_timeout_s=0.05))
    world.starts.clear()
    world.monitor.assign({3})
    for _ in range(20):
        await asyncio.sleep(0.01)
        world.progress()
    assert not world.monitor.failures
    world.starts.set()
    await world.settled()
    assert world.begun == [3]
    await world.monitor.stop()


async def test_a_start_that_does_not_get_on_is_given_up_and_tried_again() -> None:
    """R1.7."""
    world = World(replace(SETTINGS, start_stall_timeout_s=0.02))
    world.starts.clear()
    world.monitor.assign({3})
    await until(lambda: 3 in world.monitor.failures)
    assert "start_stall_timeout_s" in str(world.monitor.failures[3])
    world.starts.set()
    await world.settled()
    await world.monitor.stop()


async def test_a_first_start_that_does_not_get_on_ends_and_its_error_promises_no_retry() -> None:
    """A server with containers of its own ends with this error: nothing is started again."""
    world = World(replace(SETTINGS, start_stall_timeout_s=0.02))
    world.starts.clear()
    with pytest.raises(StorageError, match="start_stall_timeout_s") as raised:
        await world.monitor.start({3})
    assert "retried" not in str(raised.value)
    world.starts.set()
    await asyncio.sleep(3 * SETTINGS.restart_delay_s_max)
    assert world.begun == [3]
    assert world.living == {}


@pytest.mark.parametrize("error", [StorageError("broken"), None])
async def test_a_stop_that_fails_or_takes_too_long_is_not_tried_again(
    error: Exception | None, caplog: pytest.LogCaptureFixture
) -> None:
    """R1.7: the handle is dropped, and the container may start again."""
    world = World(replace(SETTINGS, stop_timeout_s=0.02))
    await world.monitor.start({3})
    world.stop_error = error
    if error is None:
        world.stops.clear()
    world.monitor.assign(())
    await until(lambda: world.monitor.held == [])
    assert "container 3 did not stop cleanly" in caplog.text
    world.stop_error = None
    world.stops.set()
    world.monitor.assign({3})
    await world.settled()
    await world.monitor.stop()


async def test_a_container_that_waits_for_its_turn_has_not_stalled() -> None:
    """However long others replay. It is started once."""
    world = World(replace(SETTINGS, start_stall_timeout_s=0.005))
    for _ in range(SETTINGS.parallel_starts):
        await world.monitor._slots.acquire()
    world.monitor.assign({5})
    await asyncio.sleep(0.05)
    assert world.begun == [5]
    assert world.monitor.held == [5]
    for _ in range(SETTINGS.parallel_starts):
        world.monitor._slots.release()
    await world.settled()
    assert world.begun == [5]
    await world.monitor.stop()


def test_many_containers_that_are_taken_over_wait_for_one_lease_together() -> None:
    """Eight with two replays at a time. One after another they would wait for four leases."""
    lease_s = 10.0
    settings = SegmentStoreSettings(
        container_count=8, parallel_starts=2, container=ContainerSettings(ownership_lease_s=lease_s),
        start_stall_timeout_s=lease_s / 2,
    )  # fmt: skip

    async def take_over(runtime: Runtime) -> float:
        logs, chunks = MemoryLogFactory(runtime, is_lease_kept=True), FaultyChunks()
        loop = asyncio.get_running_loop()
        # The first store does not claim its containers again.
        stores = [
            SegmentStore(logs=logs, chunks=chunks, runtime=runtime, settings=each)
            for each in (replace(settings, restart_delay_s=1000.0, restart_delay_s_max=1000.0), settings)
        ]
        await stores[0].start()
        begin_s = loop.time()
        await stores[1].start()
        waited_s = loop.time() - begin_s
        assert stores[1].is_ready
        for store in stores:
            await store.stop()
        return waited_s

    with Simulation(1) as simulation:
        host = simulation.host("machine")
        waited_s = simulation.run(lambda: take_over(host.runtime))
    assert lease_s <= waited_s < 1.5 * lease_s


async def test_no_more_containers_replay_at_once_than_allowed() -> None:
    """SS-8: ten granted at once with a limit of two, each replay held up for a while. All claims begin at once."""
    world = World()
    world.starts.clear()
    world.monitor.assign(range(10))
    await turns()
    assert world.begun == list(range(10))
    while len(world.monitor.running) < 10:
        world.starts.set()
        await turns(1)
        world.starts.clear()
        await turns(3)
    assert world.starting_count_max == 2
    assert sorted(world.begun) == list(range(10))
    world.starts.set()
    await world.monitor.stop()


async def test_a_container_taken_away_while_it_waits_for_its_turn_is_not_replayed() -> None:
    """Of ten, all but the two that replay are taken back."""
    world = World()
    world.starts.clear()
    world.monitor.assign(range(10))
    await turns()
    world.monitor.assign({0})
    world.starts.set()
    await world.settled()
    assert world.begun == list(range(10))
    assert world.replayed == [0, 1]
    assert list(world.living) == [0]
    assert not world.monitor.failures
    await world.monitor.stop()


async def test_a_container_that_ends_by_itself_is_cleared_away_and_started_again() -> None:
    """R1.12. Its second report, and that of one that does not run, change nothing."""
    world = World()
    await world.monitor.start({3, 4})
    failed = world.monitor.running[3]
    world.monitor.failed(3, failed, StorageError("gone"))
    world.monitor.failed(3, failed, StorageError("again"))
    assert sorted(world.monitor.running) == [4]
    assert str(world.monitor.failures[3]) == "gone"
    assert world.monitor.held == [3, 4]
    await world.settled()
    assert world.monitor.running[3] is not failed
    assert world.monitor.failures == {}
    await world.monitor.stop()


def test_a_container_that_keeps_ending_waits_longer_each_time() -> None:
    """Each incarnation costs a recovery. One that has served for a while begins with the short pause again."""
    settings = replace(SETTINGS, restart_delay_s=0.5, restart_delay_s_max=4.0)

    async def run() -> None:
        loop = asyncio.get_running_loop()
        world = World(settings)
        await world.monitor.start({3})

        async def pause_s() -> float:
            ended_s = loop.time()
            world.monitor.failed(3, world.monitor.running[3], StorageError("gone"))
            await until(lambda: 3 in world.monitor.running)
            return round(loop.time() - ended_s, 1)

        assert [await pause_s() for _ in range(5)] == [0.5, 1.0, 2.0, 4.0, 4.0]
        await asyncio.sleep(4.5)
        assert await pause_s() == 0.5
        await world.monitor.stop()

    with Simulation(1) as simulation:
        simulation.run(run)


async def test_a_container_that_cannot_stop_keeps_none_of_the_others_from_it() -> None:
    """Its error is raised once all have stopped."""
    world = World()
    await world.monitor.start({1, 2, 3})
    broken = world.monitor.running[1]

    async def fail() -> None:
        raise StorageError("it cannot")

    broken.stop = fail  # type: ignore[method-assign]
    world.stops.clear()
    stop = asyncio.ensure_future(world.monitor.stop())
    await turns()
    assert not stop.done()
    world.stops.set()
    with pytest.raises(StorageError, match="it cannot"):
        await stop
    assert sorted(world.living) == [1]


async def test_a_failed_container_that_is_taken_away_stays_away() -> None:
    """While it waits for its next start; afterwards there is nothing to report either."""
    world = World(replace(SETTINGS, restart_delay_s=3600.0))
    await world.monitor.start({3})
    world.monitor.failed(3, world.monitor.running[3], StorageError("gone"))
    await turns()
    world.monitor.assign(())
    assert world.monitor.failures == {}
    assert world.monitor.held == []
    world.monitor.assign({3})
    await world.settled()
    await world.monitor.stop()


@pytest.mark.parametrize("error", [CorruptionError("log", 0, "damaged"), LogDisabledError("disabled")])
async def test_a_container_without_a_usable_log_stays_offline_until_it_has_one(error: StorageError) -> None:
    """The start succeeds without it, and it is tried again every `disabled_retry_s`."""
    world = World()
    world.errors[3] = [error, error]
    await world.monitor.start({2, 3})
    assert world.monitor.failures == {3: error}
    assert sorted(world.monitor.running) == [2]
    await world.settled()
    assert world.begun.count(3) == 3
    await world.monitor.stop()


async def test_a_first_start_that_fails_otherwise_stops_everything() -> None:
    """The error is raised once nothing runs any more, and nothing is started later."""
    world = World()
    world.errors[3] = [StorageError("unreachable")]
    with pytest.raises(StorageError, match="unreachable"):
        await world.monitor.start(range(5))
    assert world.living == {}
    await asyncio.sleep(3 * SETTINGS.restart_delay_s)
    assert world.begun.count(3) == 1


async def test_a_stop_ends_the_starts_under_way() -> None:
    """SS-13: callers that wait for the start get an error, and nothing runs afterwards."""
    world = World()
    world.starts.clear()
    starting = asyncio.ensure_future(world.monitor.start(range(5)))
    await turns()
    await world.monitor.stop()
    with pytest.raises(ContainerOfflineError):
        await starting
    assert world.living == {}
    world.monitor.assign({7})
    await turns()
    assert world.begun == list(range(5))
    assert world.replayed == [0, 1]


async def test_a_cancelled_start_leaves_nothing_running(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    world.starts.clear()
    with caplog.at_level(logging.INFO):
        starting = asyncio.ensure_future(world.monitor.start(range(5)))
        await turns()
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
    assert world.living == {}


async def test_a_container_that_fails_in_the_moment_it_has_started_is_started_again() -> None:
    """Its start is over, but the monitor has not processed that yet: otherwise the error would be lost."""
    world = World()
    original = world.monitor._start_container
    failures = 1

    async def start(container_id: int, steps: ContainerStart) -> Incarnation:
        nonlocal failures
        made = await original(container_id, steps)
        if failures:
            failures -= 1
            asyncio.get_running_loop().call_soon(
                world.monitor.failed, container_id, made, StorageError("its log has failed")
            )
        return made

    world.monitor._start_container = start
    world.monitor.assign([0])
    await until(lambda: len(world.begun) == 2 and 0 in world.monitor.running)
    assert not world.doubled
    await world.monitor.stop()
