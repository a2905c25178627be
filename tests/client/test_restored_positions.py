"""Positions beyond the end of a segment, as after a restore from an older backup: over a real socket, each says so."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from penstock.client.client import Client
from penstock.client.reading.batch_reads import BatchRange
from penstock.client.transport import known_ends
from penstock.model.errors import InvalidArgumentError, PositionBeyondEndError
from penstock.model.events import EVENT_HEADER_LENGTH
from penstock.model.policies import Scaling

if TYPE_CHECKING:
    from client.conftest import Cluster

STREAM = "retail/orders"
SEGMENT = "retail/orders/0.#epoch.0"
EVENT_LENGTH = EVENT_HEADER_LENGTH + 4


async def write(client: Client, *numbers: int) -> None:
    await client.create_stream(STREAM, scaling=Scaling.fixed(1), exist_ok=True)
    async with client.event_writer(STREAM) as writer:
        for number in numbers:
            await writer.write(b"%04d" % number, routing_key="key")


def restore(cluster: Cluster, length: int, segment: str = SEGMENT) -> None:
    """Let the segment store come back with what it had when the segment had that length; nothing else is older."""
    del cluster.store.segments._segment(segment).data[length:]
    cluster.store.drop_all()


def is_of(error: PositionBeyondEndError, position: int, end: int) -> bool:
    return (error.segment, error.position, error.end) == (SEGMENT, position, end)


async def test_a_read_beyond_the_end_is_refused_at_once(cluster: Cluster) -> None:
    async with cluster.client() as client:
        await write(client, *range(5))
        end = 5 * EVENT_LENGTH
        segments = client._segment_client
        with pytest.raises(PositionBeyondEndError, match=f"{end + 1} is after the end.*byte {end}") as caught:
            await segments.read(SEGMENT, end + 1, 100, wait=True)
        assert is_of(caught.value, end + 1, end)
        assert isinstance(caught.value, InvalidArgumentError)
        at_end = asyncio.create_task(segments.read(SEGMENT, end, 100, wait=True))
        await asyncio.sleep(0.01)
        assert not at_end.done()
        await write(client, 5)
        assert len((await asyncio.wait_for(at_end, 60)).joined()) == EVENT_LENGTH
        await segments.seal_segment(SEGMENT)
        with pytest.raises(PositionBeyondEndError):
            await segments.read(SEGMENT, 7 * EVENT_LENGTH, 100, wait=True)


async def test_reading_onward_requests_no_segment_end(cluster: Cluster) -> None:
    """Only once, at the first position that is not the beginning; and again on each new connection."""
    async with cluster.client(read_bytes=EVENT_LENGTH, read_ahead_block_count=1) as client:
        await write(client, *range(50))
        cluster.store.received.clear()
        for start, count in ((0, 0), (EVENT_LENGTH, 0), (3 * EVENT_LENGTH, 0)):
            async with client.segment_reader(SEGMENT, start, 50 * EVENT_LENGTH) as reader:
                assert len(b"".join([block async for block in reader])) == 50 * EVENT_LENGTH - start
            assert cluster.store.received.count("GetStreamSegmentInfo") == count
        cluster.store.drop_all()
        async with client.segment_reader(SEGMENT, EVENT_LENGTH, 50 * EVENT_LENGTH) as reader:
            assert len(b"".join([block async for block in reader])) == 49 * EVENT_LENGTH
        assert cluster.store.received.count("GetStreamSegmentInfo") == 1


async def test_evicted_ends_are_requested_again(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_ends, "SEGMENTS_MAX", 1)
    async with cluster.client() as client:
        segments = client._segment_client
        for name in ("s/t/0.#epoch.0", "s/t/1.#epoch.0"):
            await segments.create_segment(name)
            await segments.append(name, b"abcd")
        for _ in range(2):
            for name in ("s/t/0.#epoch.0", "s/t/1.#epoch.0"):
                assert (await segments.read(name, 2, 10, wait=True)).joined() == b"cd"
                with pytest.raises(PositionBeyondEndError):
                    await segments.read(name, 5, 10, wait=True)


async def test_a_reader_waiting_at_the_end_gets_an_error_after_a_restore(cluster: Cluster) -> None:
    """Its request is repeated on a new connection; then the segment ends before it. More events change nothing."""
    async with cluster.client() as client:
        await write(client, *range(10))
        async with client.segment_reader(SEGMENT, 0) as reader:
            assert len(await reader.read()) == 10 * EVENT_LENGTH
            with pytest.raises(TimeoutError):
                await reader.read(0.05)
            restore(cluster, 4 * EVENT_LENGTH)
            for _ in range(2):
                with pytest.raises(PositionBeyondEndError) as caught:
                    await asyncio.wait_for(reader.read(), 60)
                assert is_of(caught.value, 10 * EVENT_LENGTH, 4 * EVENT_LENGTH)
                await write(client, *range(20, 40))


async def test_a_reader_group_beyond_the_end_raises_until_it_is_set_elsewhere(cluster: Cluster) -> None:
    """At each read, also when the segment has grown past the position, into the midst of an event."""
    async with cluster.client() as client:
        await write(client, *range(10))
        async with client.reader_group("audit", [STREAM]) as group:
            async with group.reader("r") as reader:
                for _ in range(10):
                    assert await reader.read(20) is not None
            restore(cluster, 4 * EVENT_LENGTH)
            async with group.reader("r2") as reader:
                with pytest.raises(PositionBeyondEndError) as caught:
                    await reader.read(20)
                assert is_of(caught.value, 10 * EVENT_LENGTH, 4 * EVENT_LENGTH)
                async with client.event_writer(STREAM) as writer:
                    await writer.write(bytes(9 * EVENT_LENGTH), routing_key="key")
                for _ in range(3):
                    with pytest.raises(PositionBeyondEndError):
                        await reader.read(20)
                await reader.seek({SEGMENT: 4 * EVENT_LENGTH})
                event = await reader.read(20)
                assert event is not None
                assert event.data == bytes(9 * EVENT_LENGTH)


async def test_a_segment_beyond_its_end_does_not_stop_the_others(cluster: Cluster) -> None:
    async with cluster.client() as client:
        await client.create_stream("retail/b", scaling=Scaling.fixed(1))
        await write(client, *range(10))
        async with client.reader_group("audit", [STREAM, "retail/b"]) as group:
            async with group.reader("r") as reader:
                for _ in range(10):
                    assert await reader.read(20) is not None
            restore(cluster, 4 * EVENT_LENGTH)
            async with client.event_writer("retail/b") as writer:
                for number in range(3):
                    await writer.write(b"%d" % number, routing_key="key")
            found: list[bytes]
            found, refused = [], 0
            async with group.reader("r") as reader:
                while len(found) < 3:
                    try:
                        event = await reader.read(20)
                    except PositionBeyondEndError:
                        refused += 1
                        continue
                    assert event is not None
                    found.append(event.data)
                with pytest.raises(PositionBeyondEndError):
                    await reader.read(20)
            assert found == [b"0", b"1", b"2"]


async def test_ranges_of_a_batch_from_before_the_restore_are_refused(cluster: Cluster) -> None:
    async with cluster.client() as client:
        await write(client, *range(10))
        async with client.batch(STREAM) as batch:
            sent = list(batch.ranges)
        restore(cluster, 4 * EVENT_LENGTH)
        with pytest.raises(PositionBeyondEndError) as caught:
            await client.batch(STREAM, ranges=sent)
        assert is_of(caught.value, 10 * EVENT_LENGTH, 4 * EVENT_LENGTH)
        kept = BatchRange(STREAM, 0, 0, 4 * EVENT_LENGTH)
        async with client.batch(STREAM, ranges=[kept]) as batch:
            assert [event.data async for event in batch.events(kept)] == [b"%04d" % number for number in range(4)]
