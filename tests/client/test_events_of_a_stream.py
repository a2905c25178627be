"""Events of a stream without a reader group, as the command line reads them: through splits and merges, by cut, key."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

import pytest

from penstock.client.client import Client
from penstock.client.stream_events import StreamEvents
from penstock.model.errors import CorruptionError, InvalidArgumentError
from penstock.model.stream_cuts import OFFSET_FUTURE, StreamCut

if TYPE_CHECKING:
    from client.conftest import Cluster

STREAM = "shop/orders"
KEYS = [f"customer-{number}" for number in range(8)]


async def write(client: Client, first: int, count: int) -> None:
    """Write numbered events, their keys in turn."""
    async with client.event_writer(STREAM) as writer:
        for number in range(first, first + count):
            await writer.write(f"{KEYS[number % len(KEYS)]} {number}".encode(), KEYS[number % len(KEYS)])


async def scaled_stream(cluster: Cluster, client: Client) -> list[StreamCut]:
    """Make a stream of 2 segments, 3, and 1, with 400 events in each time; return the tails after each 400."""
    from penstock.model.policies import Scaling

    tails = []
    await client.create_stream(STREAM, scaling=Scaling.fixed(2))
    for index, ranges in enumerate(([(0.0, 0.2), (0.2, 0.5)], [(0.0, 1.0)], None)):
        await write(client, index * 400, 400)
        tails.append(await client.tail(STREAM))
        if ranges is not None:
            current = list(cluster.controller.all["shop", "orders"].current)
            await cluster.controller.scale(STREAM, current[:1] if index == 0 else current, ranges)
    return tails


async def events_of(events: StreamEvents, count_max: int | None = None) -> list[str]:
    found: list[str] = []
    async for batch in events.batches():
        found += [event.decode() for event in batch.events]
        if count_max is not None and len(found) >= count_max:
            break
    await events.close()
    return found


def in_order(events: Sequence[str], start: int, end: int) -> None:
    """Check that the events are `[start, end)`, those of each key in order."""
    numbers = [int(event.split()[1]) for event in events]
    assert sorted(numbers) == list(range(start, end))
    for key in KEYS:
        own = [int(event.split()[1]) for event in events if event.split()[0] == key]
        assert own == sorted(own)


def no_truncation(segment: str, offset: int, start_offset: int) -> None:
    raise AssertionError((segment, offset, start_offset))


async def test_a_scaled_stream_is_read_in_order_of_its_keys(cluster: Cluster) -> None:
    async with cluster.client() as client:
        tails = await scaled_stream(cluster, client)
        head = await client.head(STREAM)
        everything = await events_of(StreamEvents(client, head, tails[-1], on_truncated=no_truncation))
        in_order(everything, 0, 1200)
        following = await events_of(StreamEvents(client, head, None, on_truncated=no_truncation), 1200)
        in_order(following, 0, 1200)


async def test_a_merged_segment_waits_for_all_that_it_replaces(cluster: Cluster) -> None:
    # One of the two has much more to read than the other: what follows both must not come when the shorter is done.
    from penstock.model.policies import Scaling

    async with cluster.client(read_bytes=4096) as client:
        await client.create_stream(STREAM, scaling=Scaling.fixed(2))
        async with client.event_writer(STREAM) as writer:
            await writer.write_many([b"x" * 1000] * 300, "customer-1")
            await writer.write_many([b"few"] * 3, "customer-2")
        current = list(cluster.controller.all["shop", "orders"].current)
        lengths = sorted((await client.tail(STREAM)).positions.values())
        assert lengths[0] < 100 < 100_000 < lengths[1]
        head = await client.head(STREAM)
        await cluster.controller.scale(STREAM, current, [(0.0, 1.0)])
        async with client.event_writer(STREAM) as writer:
            await writer.write_many([b"after"] * 3)
        found = await events_of(StreamEvents(client, head, None, on_truncated=no_truncation), 306)
        assert found[-3:] == ["after"] * 3


async def test_exactly_the_events_between_two_cuts_are_read(cluster: Cluster) -> None:
    async with cluster.client() as client:
        tails = await scaled_stream(cluster, client)
        in_order(await events_of(StreamEvents(client, tails[0], tails[1], on_truncated=no_truncation)), 400, 800)
        in_order(await events_of(StreamEvents(client, tails[1], tails[2], on_truncated=no_truncation)), 800, 1200)
        assert await events_of(StreamEvents(client, tails[1], tails[1], on_truncated=no_truncation)) == []


async def test_a_segment_that_a_cut_has_not_reached_is_not_read(cluster: Cluster) -> None:
    async with cluster.client() as client:
        await scaled_stream(cluster, client)
        stream = cluster.controller.all["shop", "orders"]
        before = await client.head(STREAM)
        half_way = StreamCut("shop", "orders", {**before.positions, stream.epochs[1][0]: OFFSET_FUTURE})
        assert await events_of(StreamEvents(client, before, half_way, on_truncated=no_truncation)) == []
        everything = await events_of(StreamEvents(client, half_way, None, on_truncated=no_truncation), 1200)
        in_order(everything, 0, 1200)


async def test_only_the_segments_of_a_key_are_read(cluster: Cluster) -> None:
    async with cluster.client() as client:
        tails = await scaled_stream(cluster, client)
        head = await client.head(STREAM)
        for key in KEYS:
            wanted = [f"{key} {number}" for number in range(1200) if KEYS[number % len(KEYS)] == key]
            for end in (tails[-1], None):
                events = StreamEvents(client, head, end, key=key, on_truncated=no_truncation)
                # The last segment takes all keys: followed without an end, so much is there.
                found = await events_of(events, None if end is not None else 1)
                own = [event for event in found if event.startswith(f"{key} ")]
                assert own == wanted[: len(own)]
                assert end is None or own == wanted
                assert end is None or len(found) < 1200


async def test_following_waits_for_new_events(cluster: Cluster) -> None:
    async with cluster.client() as client:
        await client.create_stream(STREAM)
        events = StreamEvents(client, await client.tail(STREAM), None, on_truncated=no_truncation)
        waiting = asyncio.ensure_future(events_of(events, 3))
        await write(client, 0, 3)
        in_order(await waiting, 0, 3)


async def test_an_end_before_the_start_is_refused(cluster: Cluster) -> None:
    async with cluster.client() as client:
        await client.create_stream(STREAM)
        head = await client.head(STREAM)
        await write(client, 0, 3)
        with pytest.raises(InvalidArgumentError, match="the end is before the start"):
            await events_of(StreamEvents(client, await client.tail(STREAM), head, on_truncated=no_truncation))


async def test_an_end_of_an_older_epoch_is_refused(cluster: Cluster) -> None:
    async with cluster.client() as client:
        tails = await scaled_stream(cluster, client)
        with pytest.raises(InvalidArgumentError, match="the end is before the start"):
            await events_of(StreamEvents(client, tails[2], tails[0], on_truncated=no_truncation))


async def test_an_end_inside_an_event_is_reported(cluster: Cluster) -> None:
    async with cluster.client() as client:
        await client.create_stream(STREAM)
        head = await client.head(STREAM)
        await write(client, 0, 2)
        tail = await client.tail(STREAM)
        inside = StreamCut("shop", "orders", {segment: end - 3 for segment, end in tail.positions.items()})
        with pytest.raises(CorruptionError, match="the end position is reached"):
            await events_of(StreamEvents(client, head, inside, on_truncated=no_truncation))


async def test_truncated_events_are_reported_and_reading_continues_after_them(cluster: Cluster) -> None:
    async with cluster.client() as client:
        await client.create_stream(STREAM)
        head = await client.head(STREAM)
        await write(client, 0, 2)
        middle = next(iter((await client.tail(STREAM)).positions.values()))
        await write(client, 2, 2)
        await cluster.store.segments.truncate_segment("shop/orders/0.#epoch.0", middle)
        told: list[tuple[str, int, int]] = []
        events = StreamEvents(client, head, await client.tail(STREAM), on_truncated=lambda *what: told.append(what))
        in_order(await events_of(events), 2, 4)
        assert told == [("shop/orders/0.#epoch.0", 0, middle)]


async def test_segments_that_are_gone_are_at_their_end(cluster: Cluster) -> None:
    async with cluster.client() as client:
        tails = await scaled_stream(cluster, client)
        head = await client.head(STREAM)
        for segment in ("shop/orders/0.#epoch.0", "shop/orders/1.#epoch.0"):
            await cluster.store.segments.delete_segment(segment)
        found = await events_of(StreamEvents(client, head, tails[-1], on_truncated=no_truncation))
        assert found[-1] == "customer-7 1199"
        assert len(found) < 1200
