"""An hour of a stream that keeps its newest bytes, simulated: space is bounded, and truncated bytes are never read."""

from __future__ import annotations

import asyncio
import random

import pytest

from penstock.client.client import Client
from penstock.client.settings import ClientSettings
from penstock.controller.settings import ControllerSettings, RetentionSettings
from penstock.model.errors import PenstockError, SegmentTruncatedError
from penstock.model.names import segment_name
from penstock.model.policies import Retention, RetentionKind, Scaling
from penstock.model.segments import SegmentData
from penstock.segmentstore.container_settings import ContainerSettings, GarbageSettings
from penstock.segmentstore.settings import CacheSettings, SegmentStoreSettings
from penstock_simulation.simulated.cluster import ClusterSettings, SimulatedCluster
from penstock_simulation.simulated.disk_nodes import FileNode
from penstock_simulation.simulated.host import Death
from penstock_simulation.simulated.simulation import Simulation

STREAM = "scope/stream"
SEGMENT = segment_name("scope", "stream", 0)
POLL_S = 10.0
FLUSH_S = 2.0
SETTINGS = ClusterSettings(
    controller=ControllerSettings(retention=RetentionSettings(interval_s=POLL_S)),
    segment_store=SegmentStoreSettings(
        container_count=1,
        cache=CacheSettings(bytes_max=32 * 1024 * 1024),
        container=ContainerSettings(
            flush_age_s=FLUSH_S, truncate_delay_s=1.0, rollover_bytes_min=1024,
            # What was truncated stays for so long: written meanwhile, it would be the most of what is there.
            garbage=GarbageSettings(delay_s=2.0, interval_s=1.0, retry_s_max=4.0),
        ),
    ),
    client=ClientSettings(
        request_timeout_s=5.0, controller_request_timeout_s=5.0, retry_time_max_s=600.0, retry_delay_max_s=1.0
    ),
)  # fmt: skip
HOUR_S = 3600.0
EVENT_LENGTH = 200
BATCH_EVENTS, BATCH_S = 40, 10.0
MIN_BYTES = 40_000
CHUNK_BYTES = 8_192
#: What a server that is away for some seconds, a scan and a flush that come late, and a chunk that is begun add.
LEEWAY_BYTES = 40_000


def content(start: int, end: int) -> bytes:
    """Return the bytes of the segment at these offsets: events with their numbers, each with its header."""
    first = start // EVENT_LENGTH
    events = b"".join(
        b"\0\0\0\0" + (EVENT_LENGTH - 8).to_bytes(4, "big") + (b"%08d" % number) * ((EVENT_LENGTH - 8) // 8)
        for number in range(first, -(-end // EVENT_LENGTH))
    )
    return events[start - first * EVENT_LENGTH :][: end - start]


@pytest.mark.parametrize("seed", range(1))
def test_an_hour_of_writing_uses_bounded_space_and_no_truncated_event_is_read(seed: int) -> None:
    """90 times its minimum is written, the store dies now and then. At each moment its chunks are little more than what
    is kept, and in the end no more. A read of any old place answers the bytes that were there, or where the stream
    begins: never others, never less than what it promises to keep.
    """
    rng = random.Random(f"space {seed}")
    with Simulation(seed) as simulation:
        cluster = SimulatedCluster(simulation, SETTINGS)
        writing, checking = cluster.add_client("writing"), cluster.add_client("checking")
        store = cluster.stores[0]
        written = 0  # Acknowledged.
        chunk_bytes: list[int] = []
        outcomes = {"read": 0, "truncated": 0}
        final_head: list[int] = []

        def on_disk(part: str) -> int:
            nodes = store.disk.tree.walk()
            return sum(len(node.live) for path, node in nodes if isinstance(node, FileNode) and part in path)

        async def write(client: Client) -> None:
            nonlocal written
            loop = asyncio.get_running_loop()
            end_s = loop.time() + HOUR_S
            async with client.event_writer(STREAM) as writer:
                while loop.time() < end_s:
                    for number in range(written // EVENT_LENGTH, written // EVENT_LENGTH + BATCH_EVENTS):
                        await writer.write((b"%08d" % number) * ((EVENT_LENGTH - 8) // 8))
                    await writer.flush()
                    written += BATCH_EVENTS * EVENT_LENGTH
                    await asyncio.sleep(BATCH_S)

        async def answer(client: Client, offset: int, length: int) -> SegmentData | SegmentTruncatedError:
            try:
                return await client._segment_client.read(SEGMENT, offset, length)
            except SegmentTruncatedError as error:
                return error

        async def read(client: Client) -> None:
            """Read old places, and those near the head."""
            while True:
                await asyncio.sleep(rng.uniform(4.0, 16.0))
                sure = written
                near = max(0, sure - rng.randrange(2 * MIN_BYTES))
                offset = rng.choice((near, rng.randrange(sure + 1)))
                if offset >= sure:
                    continue
                length = rng.randrange(1, 5_000)
                found = await answer(client, offset, length)
                if isinstance(found, SegmentTruncatedError):
                    head = sum((await client.head(STREAM)).positions.values())
                    assert offset < found.start_offset <= head
                    assert offset < sure - MIN_BYTES, "data that must be kept is missing"
                    outcomes["truncated"] += 1
                else:
                    data = found.joined()
                    assert found.offset == offset
                    assert data == content(offset, offset + len(data))
                    assert data
                    outcomes["read"] += 1

        async def disturb() -> None:
            while True:
                await asyncio.sleep(rng.uniform(200.0, 500.0))
                store.crash(rng.choice((Death.KILL, Death.POWER)))
                await asyncio.sleep(rng.uniform(0.0, 3.0))
                if not store.is_up:
                    store.restart()

        async def weigh() -> None:
            while True:
                await asyncio.sleep(15.0)
                chunk_bytes.append(on_disk("/tier2/scope/stream"))

        async def scenario() -> None:
            await cluster.ready()
            begun, done = asyncio.Event(), asyncio.Event()

            async def write_all() -> None:
                async with cluster.client(writing) as client:
                    await client.create_stream(
                        STREAM,
                        scaling=Scaling.fixed(1),
                        retention=Retention(RetentionKind.BY_SIZE, MIN_BYTES),
                        rollover_bytes=CHUNK_BYTES,
                    )
                    begun.set()
                    await write(client)
                    done.set()

            async def read_all() -> None:
                await begun.wait()
                async with cluster.client(checking) as client:
                    reading = asyncio.ensure_future(read(client))
                    await done.wait()
                    reading.cancel()
                    try:
                        await reading
                    except (asyncio.CancelledError, PenstockError):
                        if not reading.cancelled():
                            raise
                    # Nothing more is written: once all of it is done, no chunk before the head is left.
                    async with asyncio.timeout(600.0):
                        while True:
                            head = sum((await client.head(STREAM)).positions.values())
                            if on_disk("/tier2/scope/stream") <= written - head + CHUNK_BYTES:
                                final_head.append(head)
                                return
                            await asyncio.sleep(1.0)

            disturbing, weighing = asyncio.ensure_future(disturb()), asyncio.ensure_future(weigh())
            await asyncio.gather(writing.run(write_all()), checking.run(read_all()))
            disturbing.cancel()
            weighing.cancel()

        simulation.run(scenario)
        assert written >= 60 * MIN_BYTES
        assert MIN_BYTES <= written - final_head[0] <= MIN_BYTES + LEEWAY_BYTES
        assert max(chunk_bytes) <= MIN_BYTES + LEEWAY_BYTES + CHUNK_BYTES
        assert min(outcomes.values()) > 30
        assert simulation.loop.unhandled == []
