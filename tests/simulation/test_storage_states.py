"""Long-term storage that is full, slow or gone, over each binding: the store reports it, and appends continue.

The report is what `penstock top` shows: what is wrong, since when, and what the store does meanwhile. The server is
not restarted: when storage works again everything is flushed, and the report ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

import pytest

from penstock.segmentstore.container_settings import ContainerSettings, SpaceSettings
from penstock.segmentstore.settings import CacheSettings, SegmentStoreSettings, StorageGuardSettings
from penstock.segmentstore.store import SegmentStore
from penstock_simulation.simulated import Simulation
from penstock_simulation.simulated.cluster import ClusterSettings, SimulatedCluster
from penstock_simulation.simulated.files import FileFaults
from penstock_simulation.simulated.host import Death, Host
from penstock_simulation.simulated.objects import ObjectFaults
from penstock_simulation.simulated.storage_faults import DiskStall, StorageMissing

LASTS_S = 60.0
NAME = "s/t/0.#epoch.0"
BINDINGS: dict[str, ObjectFaults | FileFaults | None] = {
    "directory": None, "bucket": ObjectFaults(), "hdfs": FileFaults()
}  # fmt: skip
SETTINGS = SegmentStoreSettings(
    container_count=1,
    cache=CacheSettings(bytes_max=8 << 20),
    storage_guard=StorageGuardSettings(check_interval_s=1.0, check_timeout_s=2.0),
    container=ContainerSettings(
        flush_age_s=1.0,
        writer_interval_s=0.5,
        writer_retry_s=1.0,
        space=SpaceSettings(
            check_interval_s=1.0,
            storage_free_bytes_min=64 << 20,
            storage_free_percent_max=100,
            log_free_bytes_min=1 << 20,
        ),
    ),
)


def play(binding: str, trouble: Callable[[Simulation, SimulatedCluster, bool], None], told: str) -> None:
    """Append, let `trouble` begin, append, check the report, let the trouble end, and see that all is flushed."""
    with Simulation(3) as simulation:
        cluster = SimulatedCluster(simulation, ClusterSettings(remote_faults=BINDINGS[binding], segment_store=SETTINGS))
        host = cluster.stores[0]

        async def until(condition: Callable[[], bool], what: str) -> None:
            for _ in range(1000):
                if condition():
                    return
                await asyncio.sleep(0.1)
            raise AssertionError(f"not within 100 s: {what}; told is {store().storage_problem}")

        def store() -> SegmentStore:
            found = cluster.store(host)
            assert found is not None
            return found

        def is_flushed() -> bool:
            segment = store().find(NAME)[1]
            return segment.storage_length == segment.length

        async def scenario() -> None:
            await cluster.ready()
            life = host.life
            await host.run(store().create_segment(NAME))
            await host.run(store().append(NAME, b"before"))
            await until(is_flushed, "it is flushed")
            assert store().storage_problem is None
            trouble(simulation, cluster, True)
            await host.run(store().append(NAME, b", meanwhile"))
            await until(lambda: told in (store().storage_problem or ""), "it is reported")
            assert " s; " in (store().storage_problem or "")
            await host.run(store().append(NAME, b", and later"))
            assert not is_flushed()
            trouble(simulation, cluster, False)
            await until(is_flushed, "it is flushed after all")
            await until(lambda: store().storage_problem is None, "nothing is reported any more")
            assert host.life == life
            data = await host.run(store().read(NAME, 0, 100))
            assert data.joined() == b"before, meanwhile, and later"

        simulation.run(scenario)


@pytest.mark.parametrize("binding", BINDINGS)
def test_storage_that_is_gone_is_reported_and_used_again(binding: str) -> None:
    def gone(simulation: Simulation, cluster: SimulatedCluster, begins: bool) -> None:
        if begins:
            StorageMissing("store-1", "/data/tier2", LASTS_S).strike(simulation)

    play(binding, gone, "nothing is flushed, read or deleted there")


@pytest.mark.parametrize("binding", BINDINGS)
def test_storage_that_hangs_is_reported_and_used_again(binding: str) -> None:
    def hung(simulation: Simulation, cluster: SimulatedCluster, begins: bool) -> None:
        if begins:
            DiskStall("store-1", "/tier2/", LASTS_S).strike(simulation)

    play(binding, hung, "nothing is flushed, read or deleted there")


@pytest.mark.parametrize("binding", BINDINGS)
def test_storage_that_is_full_is_reported_and_used_again(binding: str) -> None:
    """A file system says how much is free; of a bucket and of HDFS only a creation that is refused does."""

    def full(simulation: Simulation, cluster: SimulatedCluster, begins: bool) -> None:
        if not cluster.remote_clients:
            # Enough for the log, which shares the disk.
            disk = cluster.stores[0].disk
            capacity_bytes = disk.used_bytes + (32 << 20) if begins else None
            cluster.stores[0].begin_trouble(lambda faults: replace(faults, capacity_bytes=capacity_bytes))
        for remote in cluster.remote_clients:
            remote.faults = replace(remote.faults, is_full=begins)

    play(binding, full, "truncations and deletions free space")


@pytest.mark.parametrize("binding", ["bucket", "hdfs"])
def test_a_container_starts_over_a_service_that_hangs_and_flushes_when_it_answers(binding: str) -> None:
    """segment-store 8.5, fail-over: appends and what the log has are served at once."""
    with Simulation(4) as simulation:
        cluster = SimulatedCluster(simulation, ClusterSettings(remote_faults=BINDINGS[binding], segment_store=SETTINGS))
        host: Host = cluster.stores[0]

        async def scenario() -> None:
            await cluster.ready()
            store = cluster.store(host)
            assert store is not None
            await host.run(store.create_segment(NAME))
            await host.run(store.append(NAME, b"before"))
            DiskStall("store-1", "/tier2/", LASTS_S).strike(simulation)
            ends_s = simulation.loop.time() + LASTS_S
            host.crash(Death.KILL)
            host.restart()
            while (store := cluster.store(host)) is None or not store.is_ready:  # noqa: ASYNC110  # There is no event.
                await asyncio.sleep(0.1)
            await host.run(store.append(NAME, b", and meanwhile"))
            data = await host.run(store.read(NAME, 0, 100))
            assert data.joined() == b"before, and meanwhile"
            assert simulation.loop.time() < ends_s - 20
            segment = store.find(NAME)[1]
            while segment.storage_length < segment.length:  # noqa: ASYNC110  # There is no event for it.
                await asyncio.sleep(0.1)
            assert simulation.loop.time() > ends_s

        simulation.run(scenario)
