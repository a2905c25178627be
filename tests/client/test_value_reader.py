"""Readers and writers of values: an event that cannot be decoded is reported with its place, and never skipped."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from penstock.client.client import Client
from penstock.model.errors import SerializationError, UndecodableEventError, WriteTimeoutError
from penstock.serializers import JsonSerializer, TextSerializer

if TYPE_CHECKING:
    from client.conftest import Cluster

STREAM = "retail/orders"
FAST = {"position_interval_s": 0.05, "reader_group_refresh_s": 0.02}


async def fill(client: Client, *events: bytes) -> None:
    await client.create_stream(STREAM, exist_ok=True)
    async with client.event_writer(STREAM) as writer:
        for event in events:
            await writer.write(event, "k")


async def test_values_come_with_their_places_and_are_committed_by_them(cluster: Cluster) -> None:
    async with cluster.client(**FAST) as client:
        await fill(client, b"1", b"2", b"3", b"4")
        group = await client.reader_group("audit", [STREAM])
        async with group.reader("r", positions="manual", serializer=JsonSerializer()) as reader:
            first = await reader.read(20)
            assert (first.value, first.segment_id, first.offset, first.stream, first.position) == (1, 0, 0, STREAM, 9)  # type: ignore[union-attr]
            batch = await reader.read_batch(18)
            assert (batch.values, batch.offsets, len(batch)) == ([2, 3], [9, 18, 27], 2)  # type: ignore[arg-type, union-attr]
            await reader.commit(first)
            await reader.seek(first)  # type: ignore[arg-type]
            assert (await reader.read(20)).value == 1  # type: ignore[union-attr]
            batch = await reader.read_batch(18)
            await reader.commit(batch)
        async with group.reader("r", serializer=JsonSerializer()) as reader:
            async for event in reader:
                assert event.value == 4
                break


@pytest.mark.parametrize("positions", ["automatic", "manual", "at_exit"])
async def test_event_that_cannot_be_decoded_stays_the_next_one_and_unread(cluster: Cluster, positions: str) -> None:
    """However often it is read, and by the next reader; the events before it are done."""
    async with cluster.client(**FAST) as client:
        await fill(client, b"1", b"2", b"no json", b"4")
        group = await client.reader_group("audit", [STREAM])
        for _ in range(2):
            async with group.reader("r", positions=positions, serializer=JsonSerializer()) as reader:
                found = []
                for _ in range(3):
                    with pytest.raises(UndecodableEventError, match="cannot be decoded") as raised:
                        found += [event.value async for event in reader]
                    error = raised.value
                    assert (error.stream, error.segment_id, error.offset, error.position) == (STREAM, 0, 18, 33)
                    assert error.data == b"no json"
                if positions == "manual":
                    await reader.commit()
            assert (await group.stream_cuts())[STREAM].positions == {0: 18}
        async with group.reader("r", positions=positions, serializer=JsonSerializer()) as reader:
            with pytest.raises(SerializationError):
                await reader.read(20)
            assert (await reader.events.read(5)).data == b"no json"  # type: ignore[union-attr]
            assert (await reader.read(20)).value == 4  # type: ignore[union-attr]
            if positions == "manual":
                await reader.commit()
        assert (await group.stream_cuts())[STREAM].positions == {0: 42}


async def test_batch_ends_before_an_event_that_cannot_be_decoded(cluster: Cluster) -> None:
    async with cluster.client(**FAST) as client:
        await fill(client, b"1", b"2", b"no json", b"4")
        async with (
            client.reader_group("audit", [STREAM]) as group,
            group.reader("r", serializer=JsonSerializer()) as reader,
        ):
            batch = await reader.read_batch(timeout_s=5)
            assert (batch.values, batch.offsets) == ([1, 2], [0, 9, 18])  # type: ignore[union-attr]
            with pytest.raises(UndecodableEventError):
                await reader.read_batch(timeout_s=5)
            await reader.events.read(5)
            assert (await reader.read_batch(timeout_s=5)).values == [4]  # type: ignore[union-attr]


async def test_any_error_of_a_serializer_is_reported_with_the_position(cluster: Cluster) -> None:
    class Picky(TextSerializer):
        def deserialize(self, data: bytes) -> str:
            return {"known": 1}[data.decode()]  # type: ignore[return-value]

    async with cluster.client(**FAST) as client:
        await fill(client, b"known", b"unknown")
        async with client.reader_group("audit", [STREAM]) as group, group.reader("r", serializer=Picky()) as reader:
            assert (await reader.read(20)).value == 1  # type: ignore[union-attr]
            with pytest.raises(UndecodableEventError, match="'unknown'") as raised:
                await reader.read(20)
            assert isinstance(raised.value.__cause__, KeyError)


async def test_writing_many_values_ends_in_its_time_and_says_how_many_were_taken(cluster: Cluster) -> None:
    """Nothing is acknowledged meanwhile, so there is room for some of them only."""
    async with cluster.client(max_unacknowledged_bytes=20_000, close_timeout_s=0.1) as client:
        await client.create_stream(STREAM)
        cluster.store.gate.clear()
        writer = await client.event_writer(STREAM, serializer=TextSerializer())
        with pytest.raises(WriteTimeoutError) as raised:
            await writer.write_many(["0123456789"] * 5000, "k", timeout_s=0.1)
        assert 512 < raised.value.taken_count < 5000
        cluster.store.gate.set()
        await writer.flush()
        await writer.close()
        assert (await client.tail(STREAM)).positions[0] == raised.value.taken_count * 18
