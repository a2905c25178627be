"""Hosts: what a crash stops, what survives it, pauses, clocks, and blocking work."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from penstock.runtime.work import PoolSettings
from penstock_simulation.simulated.disk_faults import CrashKind, DiskFaults
from penstock_simulation.simulated.errors import HostDownError
from penstock_simulation.simulated.host import WALL_CLOCK_MS_FIRST, Death
from penstock_simulation.simulated.simulation import Simulation, SimulationSettings
from penstock_simulation.simulated.work import WorkSettings

DROP = DiskFaults(crash_kinds=(CrashKind.DROP,))


@pytest.fixture
def simulation() -> Iterator[Any]:
    with Simulation(1) as simulation:
        yield simulation


def write_file(disk, path, data, *, is_synced) -> None:
    file = disk.open(path, create=True)
    file.write(0, [data])
    if is_synced:
        file.sync()
        disk.sync_directory("/")
    file.close()


@pytest.mark.parametrize("cut_rate", [0.0, 1.0])
def test_news_of_blocking_work_come_in_order_and_before_its_end(cut_rate) -> None:
    """Whatever instants their ways to the loop take; also from a function that is held in the middle."""
    for seed in range(20):
        heard = []

        async def main(host, heard=heard) -> None:
            pool = host.runtime.work.pool("p", PoolSettings(thread_count_max=1))
            disk = host.runtime.disk

            def count() -> str:
                for number in range(10):
                    disk.list_directory("/")
                    pool.tell(heard.append, number)
                return "end"

            running = pool.run(count)
            running.add_done_callback(lambda done: heard.append(done.result()))
            await running

        with Simulation(seed, SimulationSettings(work=WorkSettings(cut_rate=cut_rate))) as simulation:
            simulation.host("machine", main)
            simulation.run(lambda: asyncio.sleep(5))
        assert heard == [*range(10), "end"]


@pytest.mark.parametrize("death", list(Death))
def test_a_crash_runs_no_further_code(simulation, death) -> None:
    seen = []

    async def main(host) -> None:
        loop = asyncio.get_running_loop()
        loop.call_later(5, seen.append, "timer")

        async def other() -> None:
            try:
                await asyncio.sleep(5)
            finally:
                seen.append("finally of another task")

        task = loop.create_task(other())
        try:
            await host.runtime.work.run(seen.append, "work")
            while True:  # noqa: ASYNC110  # until it is killed
                await asyncio.sleep(0.5)
        except BaseException:
            seen.append("except")
            raise
        finally:
            seen.append("finally")
            task.cancel()

    host = simulation.host("machine", main)

    async def scenario():
        await asyncio.sleep(2)
        host.crash(death)
        host.crash(death)
        assert not host.is_up
        await asyncio.sleep(20)
        return list(seen)

    assert simulation.run(scenario) == ["work"]


def test_work_that_was_started_may_have_its_effect_before_the_crash_or_never() -> None:
    outcomes = set()
    for seed in range(40):
        with Simulation(seed) as simulation:
            effects = []

            async def main(host, effects=effects) -> None:
                await host.runtime.work.run(effects.append, "effect")
                effects.append("heard of it")

            host = simulation.host("machine", main)

            async def scenario(host=host, effects=effects):
                await asyncio.sleep(0.0002)
                host.crash()
                await asyncio.sleep(1)
                return tuple(effects)

            outcomes.add(simulation.run(scenario))
    assert outcomes >= {(), ("effect",), ("effect", "heard of it")}


@pytest.mark.parametrize(
    ("death", "left"), [(Death.KILL, ["/synced", "/unsynced"]), (Death.POWER, ["/synced"])], ids=["kill", "power"]
)
def test_the_disk_survives_a_restart_as_far_as_the_death_allows(simulation, death, left) -> None:
    lives = []

    async def main(host) -> None:
        disk = host.runtime.disk
        lives.append((host.life, sorted(disk.files())))
        await host.runtime.work.run(lambda: write_file(disk, "/synced", b"1", is_synced=True))
        await host.runtime.work.run(lambda: write_file(disk, "/unsynced", b"1", is_synced=False))
        await asyncio.sleep(1000)

    host = simulation.host("machine", main, disk_faults=DROP)

    async def scenario():
        await asyncio.sleep(1)
        host.crash(death)
        host.restart()
        host.restart()
        await asyncio.sleep(1)
        return lives

    assert simulation.run(scenario) == [(1, []), (2, left)]


def test_locks_and_open_files_die_with_their_process(simulation) -> None:
    host = simulation.host("machine")

    async def scenario() -> None:
        host.disk.lock("/lock")
        file = host.disk.open("/file", create=True)
        host.crash(Death.KILL)
        host.restart()
        host.disk.lock("/lock")
        with pytest.raises(OSError, match="gone"):
            file.write(0, [b"x"])

    simulation.run(scenario)


def test_a_crash_at_a_disk_call_cuts_a_function_in_two(simulation) -> None:
    """The function's clean-up code runs, as Python unwinds it, but it cannot reach the disk any more."""
    seen = []

    def job(disk) -> None:
        try:
            write_file(disk, "/first", b"1", is_synced=True)
            write_file(disk, "/second", b"2", is_synced=True)
            seen.append("end")
        finally:
            disk.remove("/first")

    async def main(host) -> None:
        try:
            await host.runtime.work.run(job, host.runtime.disk)
        finally:
            seen.append("finally")

    host = simulation.host("machine", main, disk_faults=DROP)

    async def scenario() -> None:
        # open, write, sync, sync of the directory, open, write, sync: dies before this one's effect.
        host.crash_at_disk_call(7, down_s=5)
        await asyncio.sleep(1)
        assert not host.is_up
        assert host.disk.files() == {"/first": b"1"}
        assert seen == []
        host.main = None
        await asyncio.sleep(10)
        assert host.is_up
        assert host.life == 2

    simulation.run(scenario)


def test_a_crash_from_the_hosts_own_code_does_not_return(simulation) -> None:
    seen = []

    async def main(host) -> None:
        asyncio.get_running_loop().call_soon(seen.append, "callback")
        host.crash()
        seen.append("after")

    host = simulation.host("machine", main)

    async def scenario():
        await asyncio.sleep(1)
        return host.is_up, seen

    assert simulation.run(scenario) == (False, [])


def test_run_returns_results_and_raises_errors(simulation) -> None:
    host = simulation.host("machine")

    async def fail() -> None:
        raise ValueError("no")

    async def scenario() -> None:
        assert await host.run(asyncio.sleep(1, "result")) == "result"
        with pytest.raises(ValueError, match="no"):
            await host.run(fail())

    simulation.run(scenario)


def test_run_on_a_host_that_is_down_or_dies_is_an_error(simulation) -> None:
    host = simulation.host("machine")

    async def scenario() -> None:
        asyncio.get_running_loop().call_later(1, host.crash)
        with pytest.raises(HostDownError, match="died while"):
            await host.run(asyncio.sleep(10))
        with pytest.raises(HostDownError, match="is down"):
            await host.run(asyncio.sleep(10))

    simulation.run(scenario)


def test_cancelling_run_cancels_what_runs(simulation) -> None:
    host = simulation.host("machine")
    seen = []

    async def work() -> None:
        try:
            await asyncio.sleep(100)
        except asyncio.CancelledError:
            seen.append(asyncio.get_running_loop().current.name)  # type: ignore[attr-defined]
            raise

    async def scenario():
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                await host.run(work())
        await asyncio.sleep(1)
        return seen

    assert simulation.run(scenario) == ["machine"]


def test_a_paused_host_does_nothing_and_catches_up(simulation) -> None:
    ticks = []

    async def main(host) -> None:
        while True:
            await asyncio.sleep(1)
            await host.runtime.work.run(ticks.append, asyncio.get_running_loop().time())

    host = simulation.host("machine", main)

    async def scenario() -> None:
        await asyncio.sleep(2.5)
        host.pause()
        host.pause()
        await asyncio.sleep(3)
        host.resume()
        await asyncio.sleep(3)
        assert len(ticks) == 2
        host.resume()
        await asyncio.sleep(1.5)
        assert len(ticks) == 4
        assert ticks[2] == pytest.approx(1008.5, abs=0.01)

    simulation.run(scenario)


def test_work_of_a_paused_host_is_held(simulation) -> None:
    seen = []

    async def main(host) -> None:
        await host.runtime.work.run(seen.append, "work")

    host = simulation.host("machine", main)

    async def scenario() -> None:
        await asyncio.sleep(0.00001)
        host.pause()
        await asyncio.sleep(10)
        assert seen == []
        host.resume()
        await asyncio.sleep(1)
        assert seen == ["work"]

    simulation.run(scenario)


def test_clocks_jump_and_drift_each_for_itself(simulation) -> None:
    fast, other = simulation.host("fast"), simulation.host("other")

    async def scenario():
        assert fast.runtime.wall_clock_ms() == WALL_CLOCK_MS_FIRST
        fast.set_clock_drift(0.01)
        fast.jump_clock(-5000)
        await asyncio.sleep(100)
        times = fast.runtime.wall_clock_ms(), other.runtime.wall_clock_ms()
        fast.set_clock_drift(-0.5)
        assert abs(fast.runtime.wall_clock_ms() - times[0]) <= 1, "a change of speed is no jump"
        return times

    assert simulation.run(scenario) == (WALL_CLOCK_MS_FIRST + 96_000, WALL_CLOCK_MS_FIRST + 100_000)


def test_a_failed_main_ends_its_host_and_is_restarted(simulation) -> None:
    async def main(host) -> None:
        if host.life < 3:
            raise ValueError(f"life {host.life}")
        await asyncio.sleep(1000)

    host = simulation.host("machine", main, restart_delay_s=1)

    async def scenario():
        await asyncio.sleep(0.5)
        assert not host.is_up
        await asyncio.sleep(5)
        assert host.is_up
        return list(map(str, host.failures))

    assert simulation.run(scenario) == ["life 1", "life 2"]


def test_each_life_has_randomness_of_its_own_and_each_seed_the_same() -> None:
    def draws(seed):
        with Simulation(seed) as simulation:
            host = simulation.host("machine")
            first = host.runtime.random_id()

            async def scenario() -> None:
                host.crash()
                host.restart()

            simulation.run(scenario)
            return first, host.runtime.random_id()

    assert len({*draws(1), *draws(2)}) == 4
    assert draws(1) == draws(1)


def test_names_of_hosts_are_unique(simulation) -> None:
    simulation.host("machine")
    with pytest.raises(ValueError, match="already"):
        simulation.host("machine")


# Blocking work.


def run_on_host(coroutine_of, seed=1, **work):
    with Simulation(seed, SimulationSettings(work=WorkSettings(**work))) as simulation:
        host = simulation.host("machine")
        return simulation.run(lambda: host.run(coroutine_of(host)))


def test_work_is_done_in_a_drawn_order() -> None:
    async def jobs(host):
        seen = []
        await asyncio.gather(*(host.runtime.work.run(seen.append, number) for number in range(6)))
        return tuple(seen)

    assert len({run_on_host(jobs, seed) for seed in range(20)}) > 10
    assert run_on_host(jobs, 3) == run_on_host(jobs, 3)


def test_one_thread_does_its_work_in_order() -> None:
    async def jobs(host):
        seen = []
        await asyncio.gather(*(host.runtime.work.run(seen.append, number) for number in range(10)))
        return seen

    assert run_on_host(jobs, thread_count=1) == list(range(10))


def test_work_takes_time_and_returns_results_and_errors() -> None:
    async def jobs(host) -> None:
        loop = asyncio.get_running_loop()
        started_s = loop.time()
        assert await host.runtime.work.run(int, "7") == 7
        assert loop.time() > started_s
        with pytest.raises(ValueError, match="invalid literal"):
            await host.runtime.work.run(int, "x")

    run_on_host(jobs)


def test_cancelled_work_continues_if_it_was_started_and_never_begins_if_not() -> None:
    async def jobs(host):
        seen = []
        first = asyncio.ensure_future(host.runtime.work.run(seen.append, "started"))
        second = asyncio.ensure_future(host.runtime.work.run(seen.append, "queued"))
        await asyncio.sleep(0)
        first.cancel()
        second.cancel()
        await asyncio.sleep(1)
        return seen

    assert run_on_host(jobs, thread_count=1) == ["started"]


def test_close_waits_for_work_and_refuses_more() -> None:
    async def jobs(host) -> None:
        seen = []
        job = asyncio.ensure_future(host.runtime.work.run(seen.append, "done"))
        await host.runtime.work.close()
        assert seen == ["done"]
        await job
        with pytest.raises(RuntimeError, match="closed"):
            host.runtime.work.run(int)

    run_on_host(jobs)
