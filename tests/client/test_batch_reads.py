"""Batch reads: every event between two cuts, once, in any order of ranges, across scale events."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import pytest

from penstock.client.client import Client
from penstock.client.reading.batch_reads import BatchRange, BatchReader
from penstock.model.errors import (
    ClosedError,
    CorruptionError,
    InvalidArgumentError,
    NoSuchStreamError,
    SegmentTruncatedError,
)
from penstock.model.policies import Scaling
from penstock.model.stream_cuts import StreamCut

if TYPE_CHECKING:
    from client.conftest import Cluster

STREAM = "retail/orders"


async def write(client: Client, first: int, count: int, size: int = 0) -> None:
    async with client.event_writer(STREAM) as writer:
        for index in range(first, first + count):
            await writer.write((b"%d" % index).ljust(size, b"."), routing_key=str(index))


async def numbers(events: AsyncIterator[Any]) -> list[int]:
    return [int(event.data.rstrip(b".")) async for event in events]


async def all_numbers(batch: BatchReader) -> list[int]:
    return sorted([number for part in batch.ranges for number in await numbers(batch.events(part))])


async def test_everything_between_two_cuts_is_read_once_across_a_scale(cluster: Cluster) -> None:
    async with cluster.client() as client:
        await client.create_stream(STREAM, scaling=Scaling.fixed(2))
        await write(client, 0, 100)
        middle = await client.tail(STREAM)
        await write(client, 100, 100)
        await cluster.controller.scale(STREAM, [0], [(0.0, 0.25), (0.25, 0.5)])
        await write(client, 200, 100)
        async with client.batch(STREAM, start=middle) as batch:
            await write(client, 300, 10)  # Behind its end.
            assert await all_numbers(batch) == list(range(100, 300))
            assert batch.start == middle
            assert len(batch.ranges) == 4
            assert sum(part.length_bytes for part in batch.ranges) == 200 * (8 + 3)
            end = batch.end
        async with client.batch(STREAM, start=end) as batch:
            assert await all_numbers(batch) == list(range(300, 310))
        async with client.batch(STREAM, end=middle) as batch:
            assert await all_numbers(batch) == list(range(100))
        async with client.batch(STREAM) as batch:
            assert await all_numbers(batch) == list(range(310))
        async with client.batch(STREAM, start="latest") as batch:
            assert batch.ranges == ()
            assert [each async for each in batch.read_all()] == []


async def test_ranges_are_values_that_another_process_may_read(cluster: Cluster) -> None:
    async with cluster.client() as client:
        await client.create_stream(STREAM, scaling=Scaling.fixed(2))
        await write(client, 0, 50)
        async with client.batch(STREAM) as batch:
            sent = [pickle.loads(pickle.dumps(part)) for part in batch.ranges]
        async with cluster.client() as other, other.batch(STREAM, ranges=sent[:1]) as first:
            some = await all_numbers(first)
            assert first.start is first.end is None
        async with cluster.client() as other, other.batch(STREAM, ranges=sent[1:]) as rest:
            assert sorted(some + await all_numbers(rest)) == list(range(50))


async def test_long_ranges_are_cut_where_appends_began(cluster: Cluster) -> None:
    async with cluster.client() as client:
        await client.create_stream(STREAM)
        for first in range(0, 100, 10):
            await write(client, first, 10, size=92)
        async with client.batch(STREAM, range_bytes=2500) as batch:
            assert len(batch.ranges) > 2
            assert [part.start for part in batch.ranges[1:]] == [part.end for part in batch.ranges[:-1]]
            assert all(2500 <= part.length_bytes <= 3500 for part in batch.ranges[:-1])
            assert await all_numbers(batch) == list(range(100))


async def test_ranges_are_read_at_the_same_time(cluster: Cluster) -> None:
    async with cluster.client(read_bytes=100) as client:
        await client.create_stream(STREAM, scaling=Scaling.fixed(5))
        await write(client, 0, 300)
        async with client.batch(STREAM) as batch:
            found = [int(event) async for each in batch.read_all(3) for event in each.events]
            assert sorted(found) == list(range(300))
            # One that stops early leaves nothing behind.
            reading = batch.read_all()
            await anext(reading)
            await reading.aclose()  # type: ignore[attr-defined]
        assert not [task for task in asyncio.all_tasks() if "batch reader" in task.get_name()]


async def test_an_error_in_one_range_is_raised(cluster: Cluster) -> None:
    async with cluster.client() as client:
        await client.create_stream(STREAM, scaling=Scaling.fixed(3))
        await write(client, 0, 30)
        async with client.batch(STREAM) as batch:
            part = batch.ranges[1]
            await client._segment_client.truncate_segment(part.segment, part.end)
            with pytest.raises(SegmentTruncatedError):
                [each async for each in batch.read_all()]
            with pytest.raises(SegmentTruncatedError):
                await numbers(batch.events(part))


async def test_events_come_as_arrow_record_batches(cluster: Cluster) -> None:
    pytest.importorskip("pyarrow")
    async with cluster.client(read_bytes=64) as client:
        await client.create_stream(STREAM)
        await write(client, 0, 40)
        await write(client, 40, 1, size=1000)
        await write(client, 41, 1)
        async with client.batch(STREAM) as batch:
            (part,) = batch.ranges
            rows = [row async for each in batch.arrow(part) for row in each.to_pylist()]
            events = [event async for event in batch.events(part)]
        assert [(row["event"], row["segment_id"], row["offset"]) for row in rows] == [
            (event.data, event.segment_id, event.offset) for event in events
        ]
        assert len(rows) == 42


async def test_unreadable_input_is_refused(cluster: Cluster) -> None:
    async with cluster.client() as client:
        with pytest.raises(NoSuchStreamError):
            await client.batch(STREAM)
        await client.create_stream(STREAM)
        await write(client, 0, 20)
        tail = await client.tail(STREAM)
        head = await client.head(STREAM)
        with pytest.raises(InvalidArgumentError):
            await client.batch(STREAM, start=tail, end=head)
        with pytest.raises(InvalidArgumentError):
            await client.batch(STREAM, range_bytes=0)
        with pytest.raises(InvalidArgumentError, match="ranges of this stream"):
            await client.batch(STREAM, ranges=[BatchRange("retail/other", 0, 0, 10)])
        with pytest.raises(InvalidArgumentError, match="ranges of this stream"):
            await client.batch(STREAM, ranges=[], start="earliest")
        async with client.batch(STREAM, ranges=[BatchRange(STREAM, 0, 0, 10)]) as cut_off:
            assert await numbers(cut_off.events(BatchRange(STREAM, 0, 0, 9))) == [0]
            with pytest.raises(InvalidArgumentError, match="inside an event"):
                await numbers(cut_off.events(cut_off.ranges[0]))
            with pytest.raises(CorruptionError):
                await numbers(cut_off.events(BatchRange(STREAM, 0, 4, 18)))
        await client._segment_client.truncate_segment(f"{STREAM}/0.#epoch.0", 9)
        with pytest.raises(SegmentTruncatedError):
            await client.batch(STREAM, start=StreamCut("retail", "orders", {0: 0}))


async def test_a_closed_batch_refuses(cluster: Cluster) -> None:
    async with cluster.client(read_bytes=32) as client:
        await client.create_stream(STREAM)
        await write(client, 0, 20)
        batch = await client.batch(STREAM)
        reading = batch.read(batch.ranges[0])
        await anext(reading)
        await batch.close()
        with pytest.raises(ClosedError):
            await anext(reading)
        with pytest.raises(ClosedError):
            await anext(batch.read(batch.ranges[0]))


@pytest.mark.parametrize("tail", [b"", b"more bytes"])
async def test_a_batch_delivers_the_events_before_damage_and_then_raises(cluster: Cluster, tail: bytes) -> None:
    async with cluster.client() as client:
        await client.create_stream(STREAM)
        await write(client, 0, 5)
        segment = f"{STREAM}/0.#epoch.0"
        damage_offset = (await client._segment_client.segment_info(segment)).length
        await client._segment_client.append(segment, b"\0\0\0\7abcd" + tail)
        async with client.batch(STREAM) as batch:
            found: list[int] = []
            with pytest.raises(CorruptionError, match="type code is 7") as caught:
                await _collect(batch.read(batch.ranges[0]), found)
            assert (sum(found), caught.value.offset) == (5, damage_offset)
            pytest.importorskip("pyarrow")
            rows: list[int] = []
            with pytest.raises(CorruptionError, match="type code is 7"):
                await _collect(batch.arrow(batch.ranges[0]), rows)
            assert sum(rows) == 5


async def _collect(batches: AsyncIterator[Any], lengths: list[Any]) -> None:
    async for batch in batches:
        lengths.append(len(batch))
