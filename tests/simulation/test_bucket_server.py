"""Figures of a server that has everything in buckets, in virtual time: the time of a take-over, the requests when idle.

The figures are exact and the same on every machine. What the processor needs is not in them, but for the start of the
process that takes over.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass

import pytest

from penstock.segmentstore.settings import CacheSettings, SegmentStoreSettings
from penstock.segmentstore.tier1.object_log.settings import ObjectLogSettings
from penstock_simulation.simulated.cluster import ClusterSettings, SimulatedCluster
from penstock_simulation.simulated.host import Death
from penstock_simulation.simulated.log_objects import BucketLogSettings
from penstock_simulation.simulated.objects import ObjectFaults
from penstock_simulation.simulated.simulation import Simulation

STREAM = "scope/stream"
#: From the death of a server to the first event that its successor acknowledges, in addition to the lease.
BEYOND_LEASE_S_MAX = 3.0
#: Interpreter and imports of the second server, which take no virtual time.
PROCESS_START_S = 0.5
#: Each of them is an object of the log, which the second server reads.
EVENT_COUNT = 40
EVENT_GAP_S = 0.3
QUIET_S = 1200.0
#: In this time after the last event containers flush, write checkpoints and truncate their logs.
BUSY_S = 300.0


def settings_of(delay_s: float, log: ObjectLogSettings | None = None) -> ClusterSettings:
    """Return a server each of whose requests to its buckets takes this long."""
    requests = ObjectFaults(latency_s_min=delay_s, latency_s_max=delay_s)
    return ClusterSettings(
        bucket_log=BucketLogSettings(log or ObjectLogSettings(reserve_bytes=0), requests, has_one_server=True),
        remote_faults=requests,
        segment_store=SegmentStoreSettings(container_count=4, cache=CacheSettings(bytes_max=32 * 1024 * 1024)),
    )


LEASE_S = settings_of(0.0).segment_store.container.ownership_lease_s


@dataclass(frozen=True)
class TakeOver:
    """Times from the death of a server: until its successor is ready, and until that acknowledges the next event."""

    ready_s: float
    acknowledged_s: float


def take_over(settings: ClusterSettings, event_count: int = EVENT_COUNT, start_s: float = PROCESS_START_S) -> TakeOver:
    """Kill a server that acknowledges events, and start another."""
    with Simulation(1) as simulation:
        cluster = SimulatedCluster(simulation, settings)
        host = cluster.add_client("client")
        acknowledged_s: list[float] = []

        async def write() -> None:
            async with cluster.client(host) as client:
                await client.create_stream(STREAM)
                async with client.event_writer(STREAM) as writer:
                    for number in range(event_count + 1):
                        await writer.write(b"event %d" % number, "key")
                        await writer.flush()
                        acknowledged_s.append(asyncio.get_running_loop().time())
                        await asyncio.sleep(EVENT_GAP_S)

        async def scenario() -> TakeOver:
            await cluster.ready()
            writing = asyncio.create_task(host.run(write()))
            while len(acknowledged_s) < event_count:  # noqa: ASYNC110  # the driver only polls
                await asyncio.sleep(0.01)
            now_s = asyncio.get_running_loop().time
            killed_s = now_s()
            cluster.stores[0].crash(Death.KILL)
            await asyncio.sleep(start_s)
            cluster.stores[0].restart()
            await cluster.ready()
            ready_s = now_s() - killed_s
            await writing
            return TakeOver(ready_s, acknowledged_s[event_count] - killed_s)

        return simulation.run(scenario)


@pytest.mark.parametrize("delay_s", [0.0, 0.03, 0.1])
def test_a_server_that_was_killed_is_replaced_soon_after_its_lease(delay_s: float) -> None:
    assert LEASE_S < take_over(settings_of(delay_s)).acknowledged_s <= LEASE_S + BEYOND_LEASE_S_MAX


def test_a_server_that_reads_hundreds_of_objects_first_is_ready_soon_after_the_lease() -> None:
    """With a slow start of the process, too. The next event waits for its client's next attempt in addition."""
    found = take_over(settings_of(0.1), event_count=300, start_s=1.0)
    assert LEASE_S < found.ready_s <= LEASE_S + BEYOND_LEASE_S_MAX


def test_a_take_over_that_reads_one_object_at_a_time_takes_too_long() -> None:
    """So the bound of the other test is one that a slower recovery does not keep."""
    one_at_a_time = ObjectLogSettings(reserve_bytes=0, read_slots_max=1, open_slots_max=1)
    assert take_over(settings_of(0.03, one_at_a_time)).acknowledged_s > LEASE_S + BEYOND_LEASE_S_MAX


def test_a_server_without_load_reads_its_log_once_per_lease_for_all_containers() -> None:
    """The controller of an idle server scans its tables every few seconds; these answers wait for the read that is due.

    Counted from the acknowledgement of the last event on. Writes end within the first minutes.
    """
    with Simulation(1) as simulation:
        cluster = SimulatedCluster(simulation, settings_of(0.03))
        host = cluster.add_client("client")

        async def write() -> None:
            async with cluster.client(host) as client:
                await client.create_stream(STREAM)
                async with client.event_writer(STREAM) as writer:
                    for number in range(8):
                        await writer.write(b"event %d" % number, f"key {number}")

        async def scenario() -> tuple[Counter[str], Counter[str]]:
            await cluster.ready()
            await host.run(write())
            assert cluster.log_place is not None
            (log,) = cluster.log_place.clients
            at_first = Counter(log.request_counts)
            await asyncio.sleep(BUSY_S)
            then = Counter(log.request_counts)
            await asyncio.sleep(QUIET_S - BUSY_S)
            return then - at_first, log.request_counts - then

        busy, idle = simulation.run(scenario)
    assert busy["put_new"] + busy["put_if"] <= 10
    assert idle.keys() == {"get_range"}
    leases = (QUIET_S - BUSY_S) / LEASE_S
    assert leases * 0.95 <= idle.total() <= leases
