"""Disks that stand still, are full or missing, work that is cut in two: what the simulation does to storage."""

from __future__ import annotations

import asyncio
import errno

import pytest

from penstock.model.errors import StorageFullError
from penstock_simulation.simulated import Simulation
from penstock_simulation.simulated.faults import Fault, FaultPlan, PlannedFault
from penstock_simulation.simulated.host import Death
from penstock_simulation.simulated.simulation import SimulationSettings
from penstock_simulation.simulated.storage_faults import DiskFull, DiskStall, NoDescriptors, StorageMissing
from penstock_simulation.simulated.trace import Trace
from penstock_simulation.simulated.work import WorkSettings

STALL_S = 3.0


def simulate(coroutine_of, *, seed: int = 1, trace=None, **work):
    with Simulation(seed, SimulationSettings(work=WorkSettings(**work)), trace=trace) as simulation:
        host = simulation.host("machine")
        return simulation.run(lambda: coroutine_of(simulation, host))


def strike(simulation, fault: Fault) -> None:
    FaultPlan((PlannedFault(0.0, fault),)).start(simulation)


def write(disk, path, data) -> None:
    disk.make_directory(path.rpartition("/")[0])
    file = disk.open(path, create=True)
    file.write(0, [data])
    file.sync()
    file.close()
    disk.sync_directory(path.rpartition("/")[0] or "/")


async def timed(host, function, *arguments):
    async def call():
        started_s = asyncio.get_running_loop().time()
        await host.runtime.work.run(function, *arguments)
        return asyncio.get_running_loop().time() - started_s

    return await host.run(call())


def test_a_stalled_place_holds_its_calls_and_no_others() -> None:
    async def scenario(simulation, host):
        strike(simulation, DiskStall("machine", "/tier2/", STALL_S))
        await asyncio.sleep(0.01)
        took_s = await asyncio.gather(
            timed(host, write, host.disk, "/tier2/chunk", b"a"), timed(host, write, host.disk, "/tier1/log", b"b")
        )
        assert host.disk.files() == {"/tier1/log": b"b", "/tier2/chunk": b"a"}
        return took_s

    storage_s, log_s = simulate(scenario)
    assert storage_s == pytest.approx(STALL_S, abs=0.02)
    assert log_s < 0.01


def test_work_that_stalls_keeps_its_thread_so_others_wait() -> None:
    async def scenario(simulation, host):
        strike(simulation, DiskStall("machine", "/tier2/", STALL_S))
        await asyncio.sleep(0.01)
        took_s = await asyncio.gather(
            timed(host, write, host.disk, "/tier2/chunk", b"a"), timed(host, write, host.disk, "/tier1/log", b"b")
        )
        return took_s[1]

    assert simulate(scenario, thread_count=1) > STALL_S - 0.1


@pytest.mark.parametrize("death", Death)
def test_a_process_dies_during_work_that_stalls(death) -> None:
    """Nothing of what the dead process was about to do happens when the stall ends."""

    async def scenario(simulation, host) -> None:
        strike(simulation, DiskStall("machine", "/tier2/", STALL_S))
        await asyncio.sleep(0.01)
        host.runtime.work.run(write, host.disk, "/tier2/chunk", b"a")
        await asyncio.sleep(1.0)
        host.crash(death)
        assert not host.process.held_jobs
        host.restart()
        await asyncio.sleep(STALL_S)
        assert host.disk.files() == {}
        await timed(host, write, host.disk, "/tier2/chunk", b"b")
        assert host.disk.files() == {"/tier2/chunk": b"b"}

    simulate(scenario)


def test_a_host_dies_at_a_disk_call_of_held_work() -> None:
    async def scenario(simulation, host) -> None:
        host.crash_at_disk_call(3, down_s=0.5)
        host.runtime.work.run(write, host.disk, "/tier2/chunk", b"a")
        await asyncio.sleep(2.0)
        assert host.life == 2
        assert not host.process.held_jobs

    simulate(scenario, cut_rate=1.0)


def test_held_calls_keep_waiting_while_their_host_is_paused() -> None:
    async def scenario(simulation, host):
        job = asyncio.create_task(timed(host, write, host.disk, "/chunk", b"a"))
        await asyncio.sleep(0.001)
        host.pause()
        await asyncio.sleep(STALL_S)
        assert "/chunk" not in host.disk.files()
        host.resume()
        await job
        return host.disk.files()

    assert simulate(scenario, cut_rate=1.0, cut_s_max=0.5) == {"/chunk": b"a"}


def test_work_is_cut_in_two_and_others_come_between() -> None:
    """One job's write and sync are some time apart; with the same seed it is the same time."""

    async def scenario(simulation, host):
        return await timed(host, write, host.disk, "/a", b"a")

    def took_s(seed):
        trace = Trace()
        return simulate(scenario, seed=seed, trace=trace, cut_rate=1.0, cut_s_max=1.0), trace.digest

    times = [took_s(seed) for seed in range(10)]
    assert times == [took_s(seed) for seed in range(10)]
    assert max(time_s for time_s, _ in times) > 0.5


def test_errors_of_held_work_are_raised_to_its_caller() -> None:
    async def scenario(simulation, host) -> None:
        with pytest.raises(FileNotFoundError):
            await timed(host, host.disk.remove, "/nothing")

    simulate(scenario, cut_rate=1.0)


def test_a_simulation_ends_with_work_held() -> None:
    async def scenario(simulation, host) -> None:
        strike(simulation, DiskStall("machine", "/", STALL_S))
        await asyncio.sleep(0.01)
        host.runtime.work.run(write, host.disk, "/a", b"a")
        await asyncio.sleep(0.1)
        assert len(host.process.held_jobs) == 1

    simulate(scenario)


def test_a_full_disk_accepts_what_fits_and_no_further_file() -> None:
    async def scenario(simulation, host) -> None:
        write(host.disk, "/before", bytes(100))
        strike(simulation, DiskFull("machine", 10, 1.0))
        await asyncio.sleep(0.1)
        write(host.disk, "/before", bytes(100))
        with pytest.raises(StorageFullError):
            write(host.disk, "/after", bytes(11))
        with pytest.raises(OSError, match="no space left for another file") as caught:
            write(host.disk, "/another", b"")
        assert caught.value.errno == errno.ENOSPC
        await asyncio.sleep(1.0)
        write(host.disk, "/another", bytes(1000))

    simulate(scenario)


def test_without_descriptors_nothing_is_opened_and_open_files_work() -> None:
    async def scenario(simulation, host) -> None:
        file = host.disk.open("/open", create=True)
        strike(simulation, NoDescriptors("machine", 1.0))
        await asyncio.sleep(0.1)
        file.write(0, [b"a"])
        file.sync()
        for call in (host.disk.open, host.disk.list_directory, host.disk.lock, host.disk.sync_directory):
            with pytest.raises(OSError, match="too many open files") as caught:
                call("/")
            assert caught.value.errno == errno.EMFILE
        await asyncio.sleep(1.0)
        assert host.disk.list_directory("/") == ["open"]

    simulate(scenario)


def test_troubles_of_a_disk_add_up_and_end_each_for_itself() -> None:
    async def scenario(simulation, host) -> None:
        strike(simulation, DiskFull("machine", 0, 2.0))
        strike(simulation, NoDescriptors("machine", 1.0))
        await asyncio.sleep(0.5)
        assert (host.disk.faults.capacity_bytes, host.disk.faults.has_descriptors) == (0, False)
        await asyncio.sleep(1.0)
        assert (host.disk.faults.capacity_bytes, host.disk.faults.has_descriptors) == (0, True)
        await asyncio.sleep(1.0)
        assert host.disk.faults == host.disk_faults

    simulate(scenario)


def test_missing_storage_is_an_empty_directory_and_comes_back_as_it_was() -> None:
    """Across a power failure as well. Files written under the mount point are hidden again."""

    async def scenario(simulation, host) -> None:
        write(host.disk, "/data/tier2/chunk", b"a")
        host.disk.open("/data/tier2/unsynced", create=True).write(0, [b"b"])
        strike(simulation, StorageMissing("machine", "/data/tier2", 2.0))
        await asyncio.sleep(0.5)
        assert host.disk.files() == {}
        assert host.disk.exists("/data/tier2")
        write(host.disk, "/data/tier2/hidden", b"c")
        host.crash(Death.POWER)
        host.restart()
        assert host.disk.files() == {"/data/tier2/hidden": b"c"}
        await asyncio.sleep(2.0)
        assert host.disk.files() == {"/data/tier2/chunk": b"a", "/data/tier2/unsynced": b"b"}

    simulate(scenario)


def test_faults_of_storage_are_read_back_as_they_were_printed() -> None:
    plan = FaultPlan(
        (
            PlannedFault(0.5, DiskFull("a", 4096, 1.0)),
            PlannedFault(1.0, NoDescriptors("a", 2.0)),
            PlannedFault(1.5, DiskStall("a", "/tier2/", 3.0)),
            PlannedFault(2.0, StorageMissing("a", "/data/tier2", 4.5)),
        )
    )
    assert FaultPlan.parse(str(plan)) == plan
    assert plan.end_s == 6.5


def test_a_host_without_that_directory_misses_nothing() -> None:
    async def scenario(simulation, host) -> None:
        strike(simulation, StorageMissing("machine", "/data/tier2", 1.0))
        await asyncio.sleep(2.0)
        assert host.disk.files() == {}

    simulate(scenario)
