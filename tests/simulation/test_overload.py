"""An hour with long-term storage out while writers push on: memory keeps its bounds, nothing acknowledged is lost.

The hour is virtual. Each simulated second the memory of the segment store is added up, everything that grows with what
clients send: the cache, what the log has not written yet, changed attributes, tails of tables, what connections hold.
"""

from __future__ import annotations

import asyncio
import random
from functools import partial

from penstock.client.settings import ClientSettings
from penstock.client.writing.ack import AckState, when_done
from penstock.client.writing.event_writer import EventWriter
from penstock.model.policies import Scaling
from penstock.model.segments import TableUpdate
from penstock.segmentstore.container_settings import ContainerSettings
from penstock.segmentstore.settings import CacheSettings, ConnectionSettings, SegmentStoreSettings
from penstock.segmentstore.store import SegmentStore
from penstock_simulation.checks.history import WriteEvent, check_history
from penstock_simulation.checks.invariants import check_store
from penstock_simulation.chunk_faults import ChunkFaults
from penstock_simulation.simulated.cluster import ClusterSettings, SimulatedCluster
from penstock_simulation.simulated.host import Host
from penstock_simulation.simulated.simulation import Simulation
from penstock_simulation.simulated.trace import Trace
from penstock_simulation.workloads.events import make_event, read_fully
from penstock_simulation.workloads.world import Workload, World

KIB = 1024
STREAM = "sim/overload"
TABLE = "sim/overload-table/0.#epoch.0"
GOING = "sim/overload-going/0.#epoch.0"
OUT_S = 3600.0
EVENT_BYTES = 24 * KIB
WRITER_COUNT = 3
#: Per writer; all of them together are five times what the cache takes.
EVENT_COUNT = 300
CACHE_BYTES = 4096 * KIB
OUTSTANDING_BYTES = 512 * KIB
CONNECTION_BYTES = 512 * KIB
CONTAINER_COUNT = 2
#: Of one changed attribute, and of one key of a table's tail.
SMALL_THING_BYTES = 200

SETTINGS = ClusterSettings(
    chunk_faults=ChunkFaults(),
    segment_store=SegmentStoreSettings(
        container_count=CONTAINER_COUNT,
        cache=CacheSettings(bytes_max=CACHE_BYTES, block_length=4 * KIB, small_append_length=2 * KIB),
        connection=ConnectionSettings(unacknowledged_bytes_max=CONNECTION_BYTES),
        container=ContainerSettings(
            flush_bytes=256 * KIB,
            flush_age_s=5.0,
            flush_age_index_s=5.0,
            writer_interval_s=2.0,
            writer_retry_s=20.0,
            outstanding_bytes_max=OUTSTANDING_BYTES,
            checkpoint_log_bytes=512 * KIB,
            attributes_in_memory_max=8,
            attributes_flush_count=4,
            table_index_min_bytes=16 * KIB,
            table_index_retry_s=20.0,
            table_compact_bytes=64 * KIB,
        ),
    ),
    client=ClientSettings(
        request_timeout_s=3 * OUT_S,
        controller_request_timeout_s=3 * OUT_S,
        retry_time_max_s=3 * OUT_S,
        max_unacknowledged_bytes=512 * KIB,
        in_flight_bytes_max=256 * KIB,
        block_bytes_max=64 * KIB,
    ),
)


class Pusher(Workload):
    """Writes its events as fast as they are taken."""

    async def run(self) -> None:
        """See `Workload.run`."""
        async with self.client.event_writer(STREAM) as writer:
            for number in range(EVENT_COUNT):
                await self._write(writer, number)
            await writer.flush()

    async def _write(self, writer: EventWriter, number: int) -> None:
        event = make_event(STREAM, self.name, self.name, number, bytes([65 + number % 26]) * EVENT_BYTES)
        call = self.world.history.invoke(self.name, WriteEvent(STREAM, self.name, event))

        def settled(ack: AckState) -> None:
            if ack.error is None:
                self.world.history.ok(call)
                self.world.counts["acknowledged"] += 1
            else:
                self.world.problem(f"{self.name}: event {number} failed: {ack.error!r}")

        ack = await writer.write(event, self.name)
        when_done(ack, partial(settled, ack))


def accounted_bytes(store: SegmentStore) -> int:
    """Return everything in a store's memory that grows with what clients send."""
    total = store.cache.used_bytes
    for container in store.containers:
        total += container.pipeline.outstanding_bytes
        for segment in container.state.metadata.by_id.values():
            total += len(segment.dirty_attributes) * SMALL_THING_BYTES
            if segment.table is not None:
                tails = [segment.table.tail, *([segment.table.frozen] if segment.table.frozen else [])]
                total += sum(len(tail.slots) for tail in tails) * SMALL_THING_BYTES
    return total


async def watch(cluster: SimulatedCluster, host: Host, found: list[str], peaks: dict[str, int]) -> None:
    """Inspect each second for as long as it runs."""
    while True:
        store = cluster.store(host)
        assert store is not None
        server = cluster.server(host)
        assert server is not None
        held = sum(connection._ingest.outstanding_bytes for connection in server.connections)
        memory = accounted_bytes(store) + held
        allowed = CACHE_BYTES + CONTAINER_COUNT * OUTSTANDING_BYTES + len(server.connections) * CONNECTION_BYTES
        for name, value, limit in (("memory", memory, allowed), ("cache", store.cache.used_bytes, CACHE_BYTES)):
            peaks[name] = max(peaks.get(name, 0), value)
            if value > limit * 1.2:
                found.append(f"at {cluster.simulation.loop.time():.1f} s: {name} is {value} bytes, {limit} are allowed")
        peaks["connections"] = max(peaks.get("connections", 0), len(server.connections))
        found += check_store(store)
        await asyncio.sleep(1.0)


async def relieve(workload: Workload, found: list[str]) -> None:
    """Do what must work under overload: inspect, and delete what fills memory."""
    segments, now_s = workload.client._segment_client, workload.world.now_s
    info = await segments.segment_info(GOING)
    if info.length != 16 * EVENT_BYTES:
        found.append(f"{GOING} has {info.length} bytes")
    (entry,) = await segments.table_get(TABLE, [b"before"])
    if entry is None or entry.value != b"1":
        found.append(f"the table says {entry}")
    await segments.delete_segment(GOING)
    if not await workload.client.stream_exists(STREAM):
        found.append("the controller does not know the stream any more")
    took_s = workload.world.now_s - now_s
    if took_s > 60.0:
        found.append(f"relief took {took_s:.1f} s: it was held back with everything else")


async def play(simulation: Simulation, found: list[str], peaks: dict[str, int]) -> None:
    """Start, fill, wait for an hour, recover, read back."""
    cluster = SimulatedCluster(simulation, SETTINGS)
    await cluster.ready()
    (store_host,) = cluster.stores
    world = World(cluster, random.Random(1), stop_s=0.0, give_up_s=1e9, payload_bytes_max=1)
    host, other = cluster.add_client("client-1"), cluster.add_client("client-2")
    pushers = [Pusher(world, host, f"pusher-{number}", random.Random(number)) for number in range(WRITER_COUNT)]
    reader = Workload(world, other, "reader", random.Random(9))
    for workload in (*pushers, reader):
        workload.client = cluster.client(workload.host)

    async def prepare() -> None:
        for workload in pushers:
            workload.client._open()
        await pushers[0].client.create_stream(STREAM, scaling=Scaling.fixed(2))

    async def prepare_other() -> None:
        reader.client._open()
        await reader.client._segment_client.create_table(TABLE)
        await reader.client._segment_client.table_put(TABLE, [TableUpdate(b"before", b"1")])
        await reader.client._segment_client.create_segment(GOING)

    await host.run(prepare())
    await other.run(prepare_other())

    def set_faults(faults: ChunkFaults) -> None:
        for chunks in cluster.faulty_chunks:
            chunks.faults = faults

    set_faults(ChunkFaults(error_before_rate=1.0))
    out_since_s = world.now_s

    async def fill_what_goes() -> None:
        for _ in range(16):
            await reader.client._segment_client.append(GOING, b"g" * EVENT_BYTES)

    await other.run(fill_what_goes())
    watching = asyncio.create_task(watch(cluster, store_host, found, peaks))
    pushing = [asyncio.create_task(workload.host.run(workload.run())) for workload in pushers]
    await asyncio.sleep(600.0)
    before = world.counts["acknowledged"]
    await other.run(relieve(reader, found))
    await asyncio.sleep(OUT_S - (world.now_s - out_since_s))
    during = world.counts["acknowledged"]
    if not 0 < before <= during < WRITER_COUNT * EVENT_COUNT:
        found.append(f"{before} and later {during} of {WRITER_COUNT * EVENT_COUNT} events were taken: no overload")
    for task in pushing:
        if task.done():
            found.append(f"a writer ended: {task.exception()!r}")
    peaks["acknowledged in the outage"] = during

    set_faults(ChunkFaults())
    healed_s = world.now_s
    await asyncio.gather(*pushing)
    peaks["seconds to take the rest"] = int(world.now_s - healed_s)
    store = cluster.store(store_host)
    assert store is not None
    deadline_s = world.now_s + 120.0
    while any(container.state.unflushed for container in store.containers) and world.now_s < deadline_s:  # noqa: ASYNC110
        await asyncio.sleep(1.0)  # The driver gets no notification.
    for container in store.containers:
        waiting = [segment.name for segment in container.state.unflushed.values() if not segment.is_system]
        if waiting:
            found.append(f"container {container.id} does not drain: {waiting}")
    watching.cancel()
    await other.run(read_fully(reader, STREAM))
    found += world.problems
    found += check_history(world.history)


def test_an_hour_without_long_term_storage_keeps_memory_bounded_and_loses_nothing() -> None:
    """Writers offer five times what fits. They are held, not failed; reads and deletions continue; then all drains."""
    found: list[str] = []
    peaks: dict[str, int] = {}
    with Simulation(seed=11, trace=Trace()) as simulation:
        simulation.run(lambda: play(simulation, found, peaks))
        assert found[:20] == [], peaks
        assert simulation.loop.unhandled == []
    # It has been an overload indeed.
    assert peaks["cache"] > CACHE_BYTES // 2
