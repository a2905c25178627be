"""Reader groups against a segment store on a real socket: sharing, positions, crashes, scaling, truncation."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from penstock.client.client import Client
from penstock.client.groups import reader_group_state
from penstock.client.groups.reader import Reader
from penstock.client.reading.event import Event
from penstock.model.errors import (
    ConnectionLostError,
    CorruptionError,
    InvalidArgumentError,
    NoSuchReaderGroupError,
    SegmentTruncatedError,
    StreamError,
)
from penstock.model.events import frame_event
from penstock.model.policies import Scaling
from penstock.model.stream_cuts import StreamCut

if TYPE_CHECKING:
    from client.conftest import Cluster

FAST = {"position_interval_s": 0.05, "reader_group_refresh_s": 0.02, "reader_timeout_s": 0.3}


async def fill(
    client: Client, count: int = 100, stream: str = "retail/orders", segments: int = 1, start: int = 0
) -> None:
    await client.create_stream(stream, scaling=Scaling.fixed(segments), exist_ok=True)
    async with client.event_writer(stream) as writer:
        for index in range(start, start + count):
            await writer.write(b"k%d %d" % (index % 5, index), routing_key=f"k{index % 5}")


async def read_count(reader: Reader, count: int) -> list[Event]:
    events: list[Event] = []
    while len(events) < count:
        event = await reader.read(20)
        assert event is not None, f"only {len(events)} of {count} events came"
        events.append(event)
    return events


def numbers(events: list[Event]) -> list[int]:
    return sorted(int(event.data.split()[1]) for event in events)


def assert_ordered(events: list[Event]) -> None:
    by_key: dict[bytes, list[int]] = {}
    for event in events:
        key, number = event.data.split()
        by_key.setdefault(key, []).append(int(number))
    for key, found in by_key.items():
        assert found == sorted(found), key


async def test_reader_gets_every_event_once_with_its_place(cluster: Cluster) -> None:
    async with cluster.client() as client:
        await fill(client, 100, segments=3)
        async with await client.reader_group("audit", ["retail/orders"]) as group, await group.reader("r1") as reader:
            events = await read_count(reader, 100)
            assert await reader.read(0.01) is None
    assert numbers(events) == list(range(100))
    assert_ordered(events)
    for event in events:
        assert event.stream == "retail/orders"
        assert event.position == event.offset + 8 + len(event.data)


async def test_reader_waits_for_new_events(cluster: Cluster) -> None:
    async with cluster.client() as client:
        await client.create_stream("retail/orders")
        async with await client.reader_group("audit", ["retail/orders"]) as group, await group.reader() as reader:
            task = asyncio.create_task(reader.read())
            await asyncio.sleep(0.01)
            await fill(client, 1)
            assert (await asyncio.wait_for(task, 60)).data == b"k0 0"  # type: ignore[union-attr]


async def test_clean_close_continues_exactly_after_the_last_event(cluster: Cluster) -> None:
    async with cluster.client() as client:
        await fill(client, 100)
        group = await client.reader_group("audit", ["retail/orders"])
        async with await group.reader("r1") as reader:
            first = await read_count(reader, 37)
        async with await group.reader("r2") as reader:
            second = await read_count(reader, 63)
            assert await reader.read(0.01) is None
    assert numbers(first) + numbers(second) == list(range(100))


async def test_crashed_reader_continues_from_its_stored_positions(cluster: Cluster) -> None:
    # Positions were stored with 10 events handed out, the last of them unfinished: that one comes again.
    async with cluster.client(position_interval_s=1000) as client:
        await fill(client, 100)
        group = await client.reader_group("audit", ["retail/orders"])
        reader = await group.reader("r1")
        await read_count(reader, 10)
        await group.checkpoint()
        await read_count(reader, 10)
        await reader.abandon()
        async with await group.reader("r1") as again:
            events = await read_count(again, 91)
    assert numbers(events) == list(range(9, 100))


async def test_segments_of_a_dead_reader_are_assigned_to_others(cluster: Cluster) -> None:
    async with cluster.client(**FAST) as client:
        await fill(client, 100, segments=2)
        group = await client.reader_group("audit", ["retail/orders"])
        dead = await group.reader("dead")
        await read_count(dead, 5)
        await dead.abandon()
        async with await group.reader("alive") as alive:
            events = await read_count(alive, 100)
    assert numbers(events) == list(range(100))


async def test_second_reader_takes_its_share(cluster: Cluster) -> None:
    # Both see all events together, none twice, and hold two segments each.
    async with cluster.client(**FAST) as client:
        await fill(client, 50, segments=4)
        group = await client.reader_group("audit", ["retail/orders"])
        async with await group.reader("r1") as first:
            events = await read_count(first, 20)
            async with await group.reader("r2") as second:

                async def drain(reader: Reader) -> None:
                    while len(events) < 250:
                        event = await reader.read(0.05)
                        if event is not None:
                            events.append(event)

                tasks = [asyncio.create_task(drain(first)), asyncio.create_task(drain(second))]
                await asyncio.sleep(0.3)
                assert [len(first.segments), len(second.segments)] == [2, 2]
                await fill(client, 200, start=50)
                await asyncio.wait_for(asyncio.gather(*tasks), 60)
    assert numbers(events) == list(range(250))


async def test_restarted_reader_of_the_same_name_ends_the_older_one(cluster: Cluster) -> None:
    async with cluster.client(**FAST) as client:
        await fill(client, 10)
        group = await client.reader_group("audit", ["retail/orders"])
        old = await group.reader("r1")
        async with await group.reader("r1") as new:
            await asyncio.sleep(0.1)
            with pytest.raises(StreamError, match="started again elsewhere"):
                await read_count(old, 11)
            assert numbers(await read_count(new, 10)) == list(range(10))
            await old.close()


async def test_reader_wrongly_declared_dead_joins_again(cluster: Cluster) -> None:
    # It loses its place to what was stored, so events may come twice, but none is lost.
    async with cluster.client(**FAST) as client:
        await fill(client, 50, segments=2)
        group = await client.reader_group("audit", ["retail/orders"])
        async with await group.reader("r1") as reader:
            events = await read_count(reader, 10)
            await group._record.update(lambda state: reader_group_state.leave(state, "r1"))
            await asyncio.sleep(0.1)
            while set(numbers(events)) != set(range(50)):
                events += await read_count(reader, 1)
            assert len(reader.segments) == 2


async def test_group_survives_a_lost_reply_while_it_is_created(cluster: Cluster) -> None:
    async with cluster.client() as client:
        await fill(client, 3)
        cluster.store.faults["drop_after_create_table"] = 1
        cluster.store.faults["drop_after_table_put"] = 1
        async with await client.reader_group("audit", ["retail/orders"]) as group, await group.reader() as reader:
            assert numbers(await read_count(reader, 3)) == [0, 1, 2]
            assert reader.name.startswith("reader-")


async def test_unassigned_reader_waits_for_its_turn(cluster: Cluster) -> None:
    # One segment, two readers: the second gets events only after the first has left.
    async with cluster.client(**FAST) as client:
        await fill(client, 10)
        group = await client.reader_group("audit", ["retail/orders"])
        first = await group.reader("r1")
        async with await group.reader("r2") as second:
            await read_count(first, 4)
            assert await second.read(0.1) is None
            await first.close()
            assert numbers(await read_count(second, 6)) == list(range(4, 10))
            with pytest.raises(StreamError, match="closed"):
                await first._next_chunk()


async def test_order_holds_across_a_split_and_a_merge(cluster: Cluster) -> None:
    async with cluster.client(**FAST) as client:
        await fill(client, 100)
        await cluster.controller.scale("retail/orders", [0], [(0.0, 0.4), (0.4, 1.0)])
        await fill(client, 100, start=100)
        current = list(cluster.controller.all["retail", "orders"].current)
        await cluster.controller.scale("retail/orders", current, [(0.0, 1.0)])
        await fill(client, 100, start=200)
        async with await client.reader_group("audit", ["retail/orders"]) as group, await group.reader() as reader:
            events = await read_count(reader, 300)
    assert numbers(events) == list(range(300))
    assert_ordered(events)


async def test_iteration_ends_when_the_stream_is_sealed_and_read(cluster: Cluster) -> None:
    async with cluster.client(**FAST) as client:
        await fill(client, 30, segments=2)
        async with await client.reader_group("audit", ["retail/orders"]) as group, await group.reader() as reader:
            events = await read_count(reader, 10)
            await client.seal_stream("retail/orders")
            events += [event async for event in reader]
            assert reader.is_finished
            assert await reader.read() is None
            assert (await group._state()).is_finished
    assert numbers(events) == list(range(30))


async def test_start_at_tail_and_at_a_cut(cluster: Cluster) -> None:
    async with cluster.client() as client:
        await fill(client, 20)
        cut = await client.tail("retail/orders")
        assert cut == StreamCut("retail", "orders", {0: cut.positions[0]})
        tail = await client.reader_group("tail", ["retail/orders"], start="tail")
        await fill(client, 5, start=20)
        at_cut = await client.reader_group("cut", ["retail/orders"], start={"retail/orders": cut})
        for group in (tail, at_cut):
            async with group, await group.reader() as reader:
                assert numbers(await read_count(reader, 5)) == list(range(20, 25))
            assert (await group.stream_cuts())["retail/orders"] == await client.tail("retail/orders")
            assert await group.unread_bytes() == 0


async def test_a_group_checks_its_arguments(cluster: Cluster) -> None:
    async with cluster.client() as client:
        await fill(client, 1)
        await fill(client, 1, stream="retail/other")
        with pytest.raises(InvalidArgumentError, match="start="):
            await client.reader_group("g0", ["retail/orders"], start="middle")
        cut = await client.head("retail/other")
        with pytest.raises(InvalidArgumentError, match="belongs to"):
            await client.reader_group("g1", ["retail/orders"], start={"retail/orders": cut})
        with pytest.raises(InvalidArgumentError, match="at least one"):
            await client.reader_group("g2", [])
        await client.reader_group("g3", ["retail/orders"])
        with pytest.raises(InvalidArgumentError, match="exists and reads"):
            await client.reader_group("g3", ["retail/orders", "retail/other"])
        with pytest.raises(InvalidArgumentError, match="scope/group"):
            await client.delete_reader_group("g3")
        await client.delete_reader_group("retail/g3")
        with pytest.raises(NoSuchReaderGroupError):
            await client.delete_reader_group("g3", scope="retail")


async def test_readers_of_a_deleted_group_fail(cluster: Cluster) -> None:
    async with cluster.client(**FAST) as client:
        await fill(client, 1)
        group = await client.reader_group("audit", ["retail/orders"])
        reader = await group.reader()
        await client.delete_reader_group("audit", scope="retail")
        with pytest.raises(NoSuchReaderGroupError):
            await read_count(reader, 2)
        await reader.close()


@pytest.mark.parametrize("skip", [False, True])
async def test_truncated_events_are_reported_or_skipped(cluster: Cluster, skip: bool) -> None:
    async with cluster.client(read_bytes=64) as client:
        await fill(client, 100)
        group = await client.reader_group("audit", ["retail/orders"])
        # Events of 8 + 4 bytes for 0 to 9, then 8 + 5.
        await client._segment_client.truncate_segment("retail/orders/0.#epoch.0", 12 * 10)
        async with await group.reader() as reader:
            reader.skip_truncated = skip
            if not skip:
                with pytest.raises(SegmentTruncatedError) as caught:
                    await reader.read(20)
                assert caught.value.start_offset == 120
            assert numbers(await read_count(reader, 90)) == list(range(10, 100))


async def test_events_before_damage_are_delivered_and_each_later_read_raises_until_skip(cluster: Cluster) -> None:
    async with cluster.client() as client:
        await fill(client, 5)
        segment = "retail/orders/0.#epoch.0"
        damage_offset = (await client._segment_client.segment_info(segment)).length
        await client._segment_client.append(segment, b"\0\0\0\7garbage!")
        await fill(client, 5, start=5)
        group = await client.reader_group("audit", ["retail/orders"])
        async with await group.reader() as reader:
            assert numbers(await read_count(reader, 5)) == list(range(5))
            for _ in range(3):
                with pytest.raises(CorruptionError, match="type code is 7") as caught:
                    await reader.read(20)
                assert caught.value.offset == damage_offset
            assert reader.position() == {segment: damage_offset}
        assert await group.unread_bytes() > 0
        # A reader that takes over is at the same place.
        async with await group.reader() as reader:
            with pytest.raises(CorruptionError) as caught:
                await reader.read(20)
            assert caught.value.offset == damage_offset
            assert await reader.skip(caught.value) == 12
            assert numbers(await read_count(reader, 5)) == list(range(5, 10))
            with pytest.raises(InvalidArgumentError, match="not at the damage"):
                await reader.skip(caught.value)
        assert await group.unread_bytes() == 0
        await group.close()


async def test_an_open_segment_whose_tail_is_inside_an_event_is_reported(cluster: Cluster) -> None:
    # A header that promises 300 MB, as the bytes after a truncation inside a header can: appends are whole events, so
    # the reader knows at the tail, and does not wait for the rest.
    async with cluster.client(read_bytes=64) as client:
        await fill(client, 3)
        segment = "retail/orders/0.#epoch.0"
        await client._segment_client.append(segment, b"\0\0\0\0\x14rest of an event")
        async with await client.reader_group("audit", ["retail/orders"]) as group, await group.reader() as reader:
            assert numbers(await read_count(reader, 3)) == [0, 1, 2]
            for _ in range(2):
                with pytest.raises(CorruptionError, match="21 bytes into an event"):
                    await reader.read(20)


async def test_lost_connections_lose_and_double_nothing(cluster: Cluster) -> None:
    # All connections break while reading and while the group's state is written.
    async with cluster.client(**FAST) as client:
        await fill(client, 300, segments=2)
        cluster.store.faults["drop_after_table_put"] = 2
        async with await client.reader_group("audit", ["retail/orders"]) as group, await group.reader() as reader:
            events = []
            for _ in range(6):
                events += await read_count(reader, 50)
                cluster.store.drop_all()
                await asyncio.sleep(0.06)
            assert await reader.read(0.05) is None
    assert numbers(events) == list(range(300))


async def test_batches_respect_their_limit_and_convert_to_arrow(cluster: Cluster) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    async with cluster.client() as client:
        await fill(client, 100)
        async with await client.reader_group("audit", ["retail/orders"]) as group, await group.reader() as reader:
            first = await reader.read_batch(max_bytes=12 * 3, timeout_s=5)
            assert [len(first), first.offsets] == [3, [0, 12, 24, 36]]  # type: ignore[arg-type, union-attr]
            tiny = await reader.read_batch(max_bytes=1, timeout_s=5)
            assert tiny.events == [b"k3 3"]  # type: ignore[union-attr]
            rest = await reader.read_batch(timeout_s=5)
            assert len(rest) == 96  # type: ignore[arg-type]
            table = first.to_arrow()  # type: ignore[union-attr]
            assert table.schema == pyarrow.schema(
                [("event", pyarrow.binary()), ("segment_id", pyarrow.int64()), ("offset", pyarrow.int64())]
            )
            assert table.to_pydict() == {"event": first.events, "segment_id": [0, 0, 0], "offset": [0, 12, 24]}  # type: ignore[union-attr]


async def test_segment_reader_returns_exactly_the_range(cluster: Cluster) -> None:
    async with cluster.client(read_bytes=100) as client:
        await fill(client, 100)
        name = "retail/orders/0.#epoch.0"
        whole = (await client._segment_client.read(name, 0, 100_000)).joined()
        async with client.segment_reader(name, 12, 777) as reader:
            assert b"".join([block async for block in reader]) == whole[12:777]
        async with client.segment_reader(name, 12, 12) as reader:
            assert await reader.read() == b""
        await client.seal_stream("retail/orders")
        async with client.segment_reader(name, 0) as reader:
            assert b"".join([block async for block in reader]) == whole
        with pytest.raises(InvalidArgumentError):
            client.segment_reader(name, 10, 9)


async def test_reader_continues_after_the_store_was_away_for_too_long(cluster: Cluster) -> None:
    # Reading is given up after retry_time_max_s with an error; the next calls continue where the events ended.
    async with cluster.client(retry_time_max_s=1.0, position_interval_s=1000, reader_group_refresh_s=1000) as client:
        await fill(client, 20)
        group = await client.reader_group("audit", ["retail/orders"])
        reader = await group.reader()
        events = await read_count(reader, 20)
        cluster.store.refuses = True
        cluster.store.drop_all()
        with pytest.raises(ConnectionLostError):
            await reader.read(20)
        cluster.store.refuses = False
        await fill(client, 10, start=20)
        while len(events) < 30:
            try:
                events += await read_count(reader, 1)
            except ConnectionLostError:
                continue
        assert numbers(events) == list(range(30))
        await group.close()


async def test_sealed_segment_that_ends_inside_an_event_is_reported(cluster: Cluster) -> None:
    async with cluster.client() as client:
        await fill(client, 1)
        await client._segment_client.append("retail/orders/0.#epoch.0", frame_event(b"whole")[:10])
        await client.seal_stream("retail/orders")
        async with await client.reader_group("audit", ["retail/orders"]) as group, await group.reader() as reader:
            await read_count(reader, 1)
            for _ in range(2):
                with pytest.raises(CorruptionError, match="10 bytes into an event"):
                    await reader.read(20)


async def test_segment_that_is_gone_leads_to_its_successors(cluster: Cluster) -> None:
    # Retention deleted a whole segment before it was read: reading continues after it.
    async with cluster.client() as client:
        await fill(client, 10)
        group = await client.reader_group("audit", ["retail/orders"])
        await cluster.controller.scale("retail/orders", [0], [(0.0, 0.5), (0.5, 1.0)])
        await fill(client, 10, start=10)
        await client._segment_client.delete_segment("retail/orders/0.#epoch.0")
        async with group, await group.reader() as reader:
            assert numbers(await read_count(reader, 10)) == list(range(10, 20))


async def test_a_truncation_inside_an_event_is_refused_and_changes_nothing(cluster: Cluster) -> None:
    async with cluster.client() as client:
        # Payloads of zeros: from inside one, a reader would see events of no bytes.
        await client.create_stream("retail/orders", scaling=Scaling.fixed(1))
        async with client.event_writer("retail/orders") as writer:
            for _ in range(10):
                await writer.write(bytes(100))
        for offset in (108 * 3 + 2, 108 * 3 + 50, 108 * 4 - 1):
            with pytest.raises(InvalidArgumentError, match="starts at byte 324") as caught:
                await client.truncate_stream(StreamCut("retail", "orders", {0: offset}))
            assert ("324 or 432" in str(caught.value)) == (offset > 332)
        async with await client.reader_group("audit", ["retail/orders"]) as group, await group.reader() as reader:
            assert len(await read_count(reader, 10)) == 10
