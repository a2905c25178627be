"""The event writer against a segment store on a real socket: order, batching, faults, scaling."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from penstock.client.settings import ClientSettings
from penstock.model.errors import (
    InvalidArgumentError,
    OutcomeUnknownError,
    PenstockError,
    StreamError,
    StreamExistsError,
    StreamSealedError,
)
from penstock.model.events import split_events
from penstock.model.names import segment_name
from penstock.model.policies import Scaling

if TYPE_CHECKING:
    from client.conftest import Cluster


async def stored(cluster: Cluster, stream: str = "retail/orders") -> dict[int, list[bytes]]:
    """Return the events of each segment, read straight from the store."""
    scope, _, name = stream.partition("/")
    result = {}
    for number in cluster.controller.all[scope, name].ranges:
        segment = segment_name(scope, name, number)
        info = await cluster.store.segments.segment_info(segment)
        parts, at = [], 0
        while at < info.length:
            data = (await cluster.store.segments.read(segment, at, 1 << 20)).joined()
            parts.append(data)
            at += len(data)
        events, used = split_events(b"".join(parts))
        assert used == info.length
        result[number] = events
    return result


async def test_written_event_is_stored_and_its_ack_resolves(cluster: Cluster) -> None:
    # One event: the ack resolves after the store has it, framed.
    async with cluster.client() as client:
        await client.create_stream("retail/orders")
        async with client.event_writer("retail/orders") as writer:
            ack = await writer.write(b"one", routing_key="customer-42")
            await ack.wait(5)
            assert ack.is_done
            assert await stored(cluster) == {0: [b"one"]}
            await ack


async def test_events_of_one_key_keep_their_order_over_many_segments(cluster: Cluster) -> None:
    # 3000 events of 7 keys on 4 segments: each key's events are in one segment, in the order written.
    async with cluster.client() as client:
        await client.create_stream("retail/orders", scaling=Scaling.fixed(4))
        async with client.event_writer("retail/orders") as writer:
            for index in range(3000):
                await writer.write(b"k%d %d" % (index % 7, index), routing_key=f"k{index % 7}")
    await assert_ordered(cluster, 3000, 7)


async def assert_ordered(cluster: Cluster, count: int, keys: int) -> None:
    seen: dict[bytes, list[int]] = {}
    total = 0
    for events in (await stored(cluster)).values():
        for event in events:
            key, number = event.split()
            seen.setdefault(key, []).append(int(number))
            total += 1
    assert total == count
    for key, numbers in seen.items():
        assert numbers == list(range(int(key[1:]), count, keys)), key


@pytest.mark.parametrize("fault", ["drop_before_append", "drop_after_append"])
async def test_lost_connections_lose_and_double_nothing(cluster: Cluster, fault: str) -> None:
    # The connection breaks 5 times, before or after an append was stored but not acknowledged.
    async with cluster.client(block_bytes_max=2000, pipelined_block_bytes_min=500) as client:
        await client.create_stream("retail/orders", scaling=Scaling.fixed(2))
        async with client.event_writer("retail/orders") as writer:
            for index in range(2000):
                await writer.write(b"k%d %d" % (index % 5, index), routing_key=f"k{index % 5}")
                if index % 400 == 100:
                    cluster.store.faults[fault] = 1
                    await asyncio.sleep(0)
            await writer.flush()
    await assert_ordered(cluster, 2000, 5)


async def test_idle_writer_reconnects_when_it_has_something_to_write(cluster: Cluster) -> None:
    # The store drops everything between two writes; the second one goes over a new connection.
    async with cluster.client() as client:
        await client.create_stream("retail/orders")
        async with client.event_writer("retail/orders") as writer:
            await (await writer.write(b"one"))
            cluster.store.drop_all()
            await asyncio.sleep(0.01)
            await (await writer.write(b"two")).wait(5)
    assert await stored(cluster) == {0: [b"one", b"two"]}


async def test_a_request_answered_wrong_host_is_retried(cluster: Cluster) -> None:
    async with cluster.client() as client:
        await client.create_stream("retail/orders")
        cluster.store.wrong_hosts.add("retail/orders/0.#epoch.0")
        async with client.event_writer("retail/orders") as writer:
            await (await writer.write(b"one")).wait(5)
    assert cluster.controller.uri_requests == 2
    assert await stored(cluster) == {0: [b"one"]}


async def test_writer_follows_a_split_in_order(cluster: Cluster) -> None:
    # A segment is split while events are in flight: each key's order holds over parent and successors.
    async with cluster.client(block_bytes_max=1000, pipelined_block_bytes_min=100) as client:
        await client.create_stream("retail/orders")
        async with client.event_writer("retail/orders") as writer:
            acks = []
            for index in range(1500):
                acks.append(await writer.write(b"k%d %d" % (index % 7, index), routing_key=f"k{index % 7}"))
                if index == 500:
                    await asyncio.sleep(0.005)
                    await cluster.controller.scale("retail/orders", [0], [(0.0, 0.3), (0.3, 1.0)])
            await writer.flush()
            assert all(ack.is_done and ack.error is None for ack in acks)
    assert len(await stored(cluster)) == 3
    await assert_ordered_over_epochs(cluster, 1500, 7)


async def test_writer_follows_a_merge_in_order(cluster: Cluster) -> None:
    # Two segments become one while events are in flight.
    async with cluster.client(block_bytes_max=1000, pipelined_block_bytes_min=100) as client:
        await client.create_stream("retail/orders", scaling=Scaling.fixed(2))
        async with client.event_writer("retail/orders") as writer:
            for index in range(1500):
                await writer.write(b"k%d %d" % (index % 7, index), routing_key=f"k{index % 7}")
                if index in (300, 900):
                    await asyncio.sleep(0.005)
                    current = cluster.controller.all["retail", "orders"].current
                    ranges = [(0.0, 1.0)] if len(current) == 2 else [(0.0, 0.5), (0.5, 1.0)]
                    await cluster.controller.scale("retail/orders", list(current), ranges)
    await assert_ordered_over_epochs(cluster, 1500, 7)


async def assert_ordered_over_epochs(cluster: Cluster, count: int, keys: int) -> None:
    # Segment ids grow with the epoch, so reading by ascending id is reading in stream order for each key.
    seen: dict[bytes, list[int]] = {}
    for _, events in sorted((await stored(cluster)).items()):
        for event in events:
            key, number = event.split()
            seen.setdefault(key, []).append(int(number))
    assert sum(map(len, seen.values())) == count
    for key, numbers in seen.items():
        assert numbers == list(range(int(key[1:]), count, keys)), key


async def test_sealed_stream_fails_pending_events_and_further_writes(cluster: Cluster) -> None:
    async with cluster.client() as client:
        await client.create_stream("retail/orders")
        writer = await client.event_writer("retail/orders")
        await (await writer.write(b"one"))
        await client.seal_stream("retail/orders")
        ack = await writer.write(b"two")
        with pytest.raises(StreamSealedError):
            await ack.wait(5)
        with pytest.raises(StreamSealedError):
            await writer.write(b"three")
        with pytest.raises(StreamSealedError):
            await writer.close()
        with pytest.raises(StreamSealedError):
            await client.event_writer("retail/orders")
    assert await stored(cluster) == {0: [b"one"]}


async def test_an_unavailable_store_ends_in_an_unknown_outcome(cluster: Cluster) -> None:
    # The outcome of events sent but not acknowledged is unknown, not failed.
    async with cluster.client(retry_time_max_s=0.2) as client:
        await client.create_stream("retail/orders")
        writer = await client.event_writer("retail/orders")
        await (await writer.write(b"one"))
        cluster.store.refuses = True
        cluster.store.drop_all()
        ack = await writer.write(b"two")
        with pytest.raises(OutcomeUnknownError):
            await ack.wait(5)
        with pytest.raises(OutcomeUnknownError):
            await writer.close()


async def test_events_of_an_abandoned_writer_may_be_stored_or_not(cluster: Cluster) -> None:
    # Sent, not acknowledged, then the writer is closed without waiting: neither success nor failure.
    async with cluster.client() as client:
        await client.create_stream("retail/orders")
        writer = await client.event_writer("retail/orders")
        await (await writer.write(b"one"))
        cluster.store.refuses = True
        cluster.store.drop_all()
        ack = await writer.write(b"two")
        await writer.abandon()
        with pytest.raises(OutcomeUnknownError, match="closed before"):
            await ack.wait(5)


async def test_events_collect_into_blocks_while_one_is_in_flight(cluster: Cluster) -> None:
    # With the store held back, 1000 small events need a few blocks, not 1000.
    async with cluster.client() as client:
        await client.create_stream("retail/orders")
        async with client.event_writer("retail/orders") as writer:
            await (await writer.write(b"first"))
            cluster.store.gate.clear()
            for _ in range(1000):
                await writer.write(b"x" * 10)
            await asyncio.sleep(0.01)
            cluster.store.gate.set()
    assert len(cluster.store.block_sizes) <= 4


async def test_writes_wait_when_too_much_is_unacknowledged(cluster: Cluster) -> None:
    # Back-pressure: with the store held back, writing stops near max_unacknowledged_bytes.
    async with cluster.client(max_unacknowledged_bytes=10_000) as client:
        await client.create_stream("retail/orders")
        async with client.event_writer("retail/orders") as writer:
            cluster.store.gate.clear()

            async def write_all() -> None:
                for _ in range(100):
                    await writer.write(b"x" * 992)

            task = asyncio.create_task(write_all())
            await asyncio.sleep(0.02)
            assert 10_000 <= writer.unacknowledged_bytes <= 11_000
            assert not task.done()
            cluster.store.gate.set()
            await asyncio.wait_for(task, 60)
            await writer.flush()
            assert writer.unacknowledged_bytes == 0


async def test_large_event_is_stored_whole_and_in_order(cluster: Cluster) -> None:
    # 20 MiB goes through a transient segment, between its neighbours.
    large = bytes(range(256)) * (20 * 4096)
    async with cluster.client() as client:
        await client.create_stream("retail/orders")
        async with client.event_writer("retail/orders") as writer:
            await writer.write(b"before")
            await writer.write(large)
            await writer.write(b"after")
    assert (await stored(cluster))[0] == [b"before", large, b"after"]


async def test_large_event_is_stored_once_when_the_reply_of_the_merge_is_lost(cluster: Cluster) -> None:
    large = b"x" * (9 * 1024 * 1024)
    cluster.store.faults["drop_after_merge"] = 1
    async with cluster.client() as client:
        await client.create_stream("retail/orders")
        async with client.event_writer("retail/orders") as writer:
            await writer.write(b"before")
            await writer.write(large)
            await writer.write(b"after")
    assert (await stored(cluster))[0] == [b"before", large, b"after"]


@pytest.mark.parametrize("fault", ["busy", "lose_before_piece", "lose_before_merge"])
async def test_large_event_is_written_again_when_there_is_no_room_or_its_transient_segment_is_gone(
    cluster: Cluster, fault: str
) -> None:
    """The store has as many as it may have, or deleted this one as idle. The stream itself is as it was."""
    large = b"x" * (9 * 1024 * 1024)
    cluster.store.faults[fault] = 2
    async with cluster.client() as client:
        await client.create_stream("retail/orders")
        async with client.event_writer("retail/orders") as writer:
            await writer.write(b"before")
            await writer.write(large)
            await writer.write(b"after")
    assert not cluster.store.faults[fault]
    assert (await stored(cluster))[0] == [b"before", large, b"after"]


async def test_large_event_works_on_a_server_that_merges_without_attributes(cluster: Cluster) -> None:
    large = b"x" * (9 * 1024 * 1024)
    cluster.store.merges_plainly = True
    async with cluster.client() as client:
        await client.create_stream("retail/orders")
        async with client.event_writer("retail/orders") as writer:
            for event in (b"1", large, b"2", large, b"3"):
                await writer.write(event)
            await writer.flush()
            cluster.store.drop_all()
            await writer.write(b"4")
    assert (await stored(cluster))[0] == [b"1", large, b"2", large, b"3", b"4"]


async def test_lost_merge_on_such_a_server_is_an_unknown_outcome(cluster: Cluster) -> None:
    cluster.store.merges_plainly = True
    cluster.store.faults["drop_after_merge"] = 1
    async with cluster.client() as client:
        await client.create_stream("retail/orders")
        writer = await client.event_writer("retail/orders")
        ack = await writer.write(b"x" * (9 * 1024 * 1024))
        with pytest.raises(OutcomeUnknownError):
            await ack.wait(5)
        with pytest.raises(OutcomeUnknownError):
            await writer.close()


async def test_event_above_the_limit_is_refused(cluster: Cluster) -> None:
    async with cluster.client(large_event_bytes_max=9 * 1024 * 1024) as client:
        await client.create_stream("retail/orders")
        async with client.event_writer("retail/orders") as writer:
            with pytest.raises(InvalidArgumentError, match="large_event_bytes_max"):
                await writer.write(b"x" * (9 * 1024 * 1024 + 1))
            with pytest.raises(InvalidArgumentError, match="bytes"):
                await writer.write("text")  # type: ignore[arg-type]
            with pytest.raises(InvalidArgumentError, match="routing key is str"):
                await writer.write(b"x", routing_key=b"key")  # type: ignore[arg-type]


@pytest.mark.parametrize("keys", [None, "one", "many"])
async def test_write_many_equals_single_writes(cluster: Cluster, keys: str | None) -> None:
    # Sizes around the block limit, an event above it among them.
    events = [b"%d " % index + b"x" * (index * 37 % 500) for index in range(3000)]
    events[1000] = b"1000 " + b"y" * 50_000
    routing = {None: None, "one": "k", "many": [f"k{index % 11}" for index in range(3000)]}[keys]
    async with cluster.client(block_bytes_max=20_000) as client:
        await client.create_stream("retail/orders", scaling=Scaling.fixed(3))
        async with client.event_writer("retail/orders") as writer:
            await writer.write_many(events, routing)
            await writer.write_many([])
    by_segment = await stored(cluster)
    assert sorted(event for found in by_segment.values() for event in found) == sorted(events)
    if keys is not None:
        for found in by_segment.values():
            numbers = [int(event.split()[0]) for event in found]
            assert numbers == sorted(numbers)
    if keys == "one":
        assert sum(1 for found in by_segment.values() if found) == 1


async def test_write_many_checks_its_arguments(cluster: Cluster) -> None:
    async with cluster.client() as client:
        await client.create_stream("retail/orders")
        async with client.event_writer("retail/orders") as writer:
            with pytest.raises(InvalidArgumentError, match="2 events came with 1"):
                await writer.write_many([b"a", b"b"], ["k"])
            with pytest.raises(InvalidArgumentError, match="not str"):
                await writer.write_many([b"a", "b"])  # type: ignore[list-item]
            await writer.write_many([bytearray(b"a"), memoryview(b"b")])  # type: ignore[list-item]
    assert await stored(cluster) == {0: [b"a", b"b"]}


async def test_closed_writer_refuses_events(cluster: Cluster) -> None:
    async with cluster.client() as client:
        await client.create_stream("retail/orders")
        async with client.event_writer("retail/orders") as writer:
            pass
        with pytest.raises(StreamError, match="closed"):
            await writer.write(b"x")


async def test_existing_stream_is_reported_unless_that_is_fine(cluster: Cluster) -> None:
    async with cluster.client() as client:
        await client.create_stream("retail/orders")
        await client.create_stream("retail/orders", exist_ok=True)
        with pytest.raises(StreamExistsError):
            await client.create_stream("retail/orders")


def test_settings_reject_invalid_values() -> None:
    with pytest.raises(InvalidArgumentError, match="block_bytes_max"):
        ClientSettings(block_bytes_max=9 * 1024 * 1024)
    with pytest.raises(InvalidArgumentError, match="retry_time_max_s"):
        ClientSettings(retry_time_max_s=0)


async def test_a_writer_counts_events_known_to_be_durable(cluster: Cluster) -> None:
    # Nothing while appends are held back; all of it once they are acknowledged; after a failure no more than that.
    async with cluster.client(retry_time_max_s=0.2) as client:
        await client.create_stream("retail/orders", scaling=Scaling.fixed(3))
        async with client.event_writer("retail/orders") as writer:
            cluster.store.gate.clear()
            await writer.write_many([b"%d" % index for index in range(500)], [f"k{index}" for index in range(500)])
            await asyncio.sleep(0)
            assert writer.acknowledged_event_count == 0
            cluster.store.gate.set()
            await writer.flush()
            assert writer.acknowledged_event_count == 500
        writer = await client.event_writer("retail/orders")
        await writer.write(b"stored")
        await writer.flush()
        cluster.store.refuses = True
        cluster.store.drop_all()
        await writer.write_many([b"lost"] * 10)
        with pytest.raises(PenstockError):
            await writer.flush()
        assert writer.acknowledged_event_count == 1
        with pytest.raises(PenstockError):
            await writer.close()
