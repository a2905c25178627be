"""What applications control in a reader: positions, places to resume at, pauses; and the errors they get."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from penstock.client.client import Client
from penstock.client.groups.reader import Reader
from penstock.client.reading.event import Event
from penstock.model.errors import CommitNeededError, InvalidArgumentError, StreamError
from penstock.model.policies import Scaling

if TYPE_CHECKING:
    from client.conftest import Cluster

FAST = {"position_interval_s": 0.05, "reader_group_refresh_s": 0.02, "reader_timeout_s": 0.3}
STREAM = "retail/orders"


async def fill(client: Client, count: int = 20, stream: str = STREAM, segments: int = 1, start: int = 0) -> None:
    await client.create_stream(stream, scaling=Scaling.fixed(segments), exist_ok=True)
    async with client.event_writer(stream) as writer:
        for index in range(start, start + count):
            await writer.write(b"%d" % index, routing_key=str(index))


def numbers(events: list[Event]) -> list[int]:
    return [int(event.data) for event in events]


async def take(reader: Reader, count: int) -> list[Event]:
    events: list[Event] = []
    while len(events) < count:
        event = await reader.read(20)
        assert event is not None
        events.append(event)
    return events


async def drain(reader: Reader, idle_s: float = 1.0) -> list[Event]:
    events = []
    while (event := await reader.read(idle_s)) is not None:
        events.append(event)
    return events


async def test_manual_positions_move_by_commit_alone(cluster: Cluster) -> None:
    async with cluster.client(**FAST) as client:
        await fill(client)
        group = await client.reader_group("audit", [STREAM])
        async with await group.reader("r", positions="manual") as reader:
            await take(reader, 3)
            await reader.commit()
            events = await take(reader, 5)
            await reader.commit(events[1])
            await asyncio.sleep(0.15)
        async with await group.reader("r", positions="manual") as reader:
            assert numbers(await take(reader, 2)) == [5, 6]
            place = reader.position()
            batch = await reader.read_batch(max_bytes=27)
            await reader.commit(place)
            assert len(batch) == 3  # type: ignore[arg-type]
        async with await group.reader("s", positions="manual") as reader:
            batch = await reader.read_batch(max_bytes=27)
            assert [int(event) for event in batch.events] == [7, 8, 9]  # type: ignore[union-attr]
            await reader.commit(batch)
        async with await group.reader("s") as reader:
            assert numbers(await take(reader, 1)) == [10]


async def test_commit_refuses_unreturned_events_and_segments_of_other_readers(cluster: Cluster) -> None:
    async with cluster.client(**FAST) as client:
        await fill(client)
        group = await client.reader_group("audit", [STREAM])
        async with await group.reader("r", positions="manual") as reader:
            (event,) = await take(reader, 1)
            with pytest.raises(InvalidArgumentError, match="nothing was handed out"):
                await reader.commit(event._replace(position=event.position + 9))
            with pytest.raises(StreamError, match="reassigned"):
                await reader.commit(event._replace(segment_id=17))
        async with await group.reader("r") as reader:
            (event,) = await take(reader, 1)
            with pytest.raises(InvalidArgumentError, match="manual"):
                await reader.commit(event)
            await reader.commit()
            await reader.abandon()
        async with await group.reader("r") as reader:
            assert numbers(await take(reader, 1)) == [1]
        with pytest.raises(InvalidArgumentError, match="'at_exit'"):
            await group.reader("r", positions="sometimes")


async def test_manual_reader_must_commit_before_it_reads_past_a_segment(cluster: Cluster) -> None:
    async with cluster.client(**FAST) as client:
        await fill(client, 4)
        await cluster.controller.scale(STREAM, [0], [(0.0, 0.5), (0.5, 1.0)])
        await fill(client, 4, start=4)
        await client.seal_stream(STREAM)
        group = await client.reader_group("audit", [STREAM])
        async with await group.reader("r", positions="manual") as reader:
            events = await take(reader, 4)
            assert await reader.read(0.1) is None
            with pytest.raises(CommitNeededError):
                await reader.read()
            await reader.commit()
            async with asyncio.timeout(60):
                while True:
                    try:
                        event = await reader.read()
                    except CommitNeededError:
                        await reader.commit()
                        continue
                    if event is None:
                        break
                    events.append(event)
            assert sorted(numbers(events)) == list(range(8))


async def test_segment_of_a_manual_reader_moves_once_it_is_committed(cluster: Cluster) -> None:
    """The second reader waits: no event comes twice because of it."""
    async with cluster.client(**FAST) as client:
        await fill(client, 20, segments=2)
        group = await client.reader_group("audit", [STREAM])
        async with await group.reader("r1", positions="manual") as first:
            batches = [await first.read_batch(timeout_s=5), await first.read_batch(timeout_s=5)]
            assert {batch.segment_id for batch in batches} == {0, 1}  # type: ignore[union-attr]
            async with await group.reader("r2", positions="manual") as second:
                assert await first.read(0.1) is None
                assert second.segments == []
                await first.commit()
                await fill(client, 20, start=20)
                assert len((await drain(first)) + (await drain(second))) == 20
                assert [len(first.segments), len(second.segments)] == [1, 1]


async def test_positions_at_exit_are_stored_at_a_clean_end_only(cluster: Cluster) -> None:
    async with cluster.client(**FAST) as client:
        await fill(client)
        group = await client.reader_group("audit", [STREAM])
        with pytest.raises(KeyError):  # noqa: PT012  # the block is the matter
            async with await group.reader("r", positions="at_exit") as reader:
                await take(reader, 5)
                await asyncio.sleep(0.15)
                raise KeyError("processing failed")
        async with await group.reader("r", positions="at_exit") as reader:
            assert numbers(await take(reader, 5)) == list(range(5))
        async with await group.reader("r", positions="at_exit") as reader:
            assert numbers(await take(reader, 1)) == [5]


async def test_seek_goes_back_to_an_event_and_to_a_position(cluster: Cluster) -> None:
    async with cluster.client(**FAST) as client:
        await fill(client)
        group = await client.reader_group("audit", [STREAM])
        async with await group.reader("r") as reader:
            events = await take(reader, 10)
            place = reader.position()
            await reader.seek(events[3])
            assert numbers(await take(reader, 3)) == [3, 4, 5]
            await reader.seek(place)
            assert numbers(await take(reader, 1)) == [10]
            with pytest.raises(StreamError, match="no longer reads it"):
                await reader.seek({"retail/orders/9.#epoch.9": 0})


async def test_reset_sets_running_readers_back(cluster: Cluster) -> None:
    async with cluster.client(**FAST) as client:
        await fill(client, 20, segments=2)
        group = await client.reader_group("audit", [STREAM])
        async with await group.reader("r1") as first, await group.reader("r2") as second:
            events = await asyncio.gather(drain(first), drain(second))
            assert sum(map(len, events)) == 20
            cut = (await group.checkpoint())[STREAM]
            await group.reset("earliest")
            await asyncio.sleep(0.1)
            events = await asyncio.gather(drain(first), drain(second))
            assert sorted(numbers(events[0] + events[1])) == list(range(20))
            await group.reset({STREAM: cut.to_text()})
            await asyncio.sleep(0.1)
            assert await asyncio.gather(drain(first), drain(second)) == [[], []]  # type: ignore[comparison-overlap]
            with pytest.raises(InvalidArgumentError):
                await group.reset("yesterday")


async def test_paused_stream_hands_out_nothing_until_it_is_resumed(cluster: Cluster) -> None:
    async with cluster.client(**FAST) as client:
        await fill(client, 10)
        await fill(client, 10, stream="retail/other", start=100)
        group = await client.reader_group("audit", [STREAM, "retail/other"])
        async with await group.reader("r") as reader:
            events = await take(reader, 3)
            reader.pause(STREAM)
            others = await drain(reader)
            assert {event.stream for event in others} <= {"retail/other"}
            reader.pause()
            await fill(client, 2, stream="retail/other", start=110)
            assert await drain(reader) == []
            reader.resume()
            events += others + await drain(reader)
            assert sorted(numbers(events)) == [*range(10), *range(100, 112)]


async def test_redelivered_events_say_how_often(cluster: Cluster) -> None:
    async with cluster.client(**FAST) as client:
        await fill(client)
        group = await client.reader_group("audit", [STREAM])
        for count in range(3):
            with pytest.raises(KeyError):  # noqa: PT012  # the block is the matter
                async with await group.reader("r") as reader:
                    batch = await reader.read_batch(max_bytes=9 * 4)
                    assert batch.redelivery_count == count  # type: ignore[union-attr]
                    raise KeyError("processing failed")
        async with await group.reader("r") as reader:
            events = await take(reader, 20)
        assert [event.redelivery_count for event in events] == [3] * 4 + [0] * 16


async def test_application_gets_callbacks_for_acquired_and_released_segments(cluster: Cluster) -> None:
    async with cluster.client(**FAST) as client:
        await fill(client, 0, segments=2)
        group = await client.reader_group("audit", [STREAM])
        told = []
        async with await group.reader("r1", on_change=lambda came, went: told.append((len(came), len(went)))) as first:
            assert told == [(2, 0)]
            async with await group.reader("r2") as second:
                await asyncio.gather(drain(first), drain(second))
            await drain(first)
        assert told == [(2, 0), (0, 1), (1, 0)]


async def test_application_that_does_not_come_back_loses_its_segments(cluster: Cluster) -> None:
    """It holds an event for longer than the group allows: others continue, and it joins again on its next call."""
    async with cluster.client(**FAST) as client:
        await fill(client, 20, segments=2)
        group = await client.reader_group("audit", [STREAM], processing_time_max_s=0.2)
        async with await group.reader("slow") as slow:
            (in_hand,) = await take(slow, 1)
            async with await group.reader("quick") as quick:
                events: list[Event] = []
                async with asyncio.timeout(60):
                    while len(events) < 20:
                        events += await drain(quick, 0.05)
                assert sorted(numbers(events)) == list(range(20))
                again = next(event for event in events if event.data == in_hand.data)
                assert again.redelivery_count == 1
                assert (await group.describe()).readers.keys() == {"quick"}
                tasks = [asyncio.create_task(drain(reader, 0.3)) for reader in (slow, quick)]
                await asyncio.gather(*tasks)
                assert [len(slow.segments), len(quick.segments)] == [1, 1]


async def test_application_that_is_alone_keeps_its_segments_however_long_it_takes(cluster: Cluster) -> None:
    async with cluster.client(**FAST) as client:
        await fill(client, 5)
        group = await client.reader_group("audit", [STREAM], processing_time_max_s=0.05)
        async with await group.reader("r") as reader:
            await take(reader, 1)
            await asyncio.sleep(0.3)
            assert numbers(await take(reader, 4)) == [1, 2, 3, 4]


async def test_groups_are_listed_and_described(cluster: Cluster) -> None:
    async with cluster.client(**FAST) as client:
        await fill(client, 10, segments=2)
        group = await client.reader_group("audit", [STREAM], reader_timeout_s=7.0)
        async with await group.reader("r") as reader:
            await drain(reader)
            await reader.store_positions()
            await fill(client, 10, start=10)
            found = await group.describe()
        assert found.readers == {"r": ["retail/orders/0.#epoch.0", "retail/orders/1.#epoch.0"]}
        assert found.unread_bytes == {STREAM: 100}
        assert found.streams == [STREAM]
        assert (await group._state()).reader_timeout_s == 7.0
        assert [name async for name in client.reader_groups("retail")] == ["audit"]
        assert [name async for name in client.streams("retail")] == ["orders"]
