"""Reader groups whose record is packed and split over several table values, on a real socket."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

import pytest

from penstock.client.client import Client
from penstock.client.groups import group_packing
from penstock.client.groups import reader_group_state as rgs
from penstock.client.groups.group_state import GroupState
from penstock.client.groups.reader import Reader
from penstock.client.groups.reader_group_record import GroupRecord
from penstock.model.names import segment_name
from penstock.model.policies import Scaling
from penstock.model.segments import TABLE_VALUE_LENGTH_MAX

if TYPE_CHECKING:
    from client.conftest import Cluster

FAST = {"position_interval_s": 0.05, "reader_group_refresh_s": 0.02, "reader_timeout_s": 5.0}


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Pack every record; return the list of part counts that were written."""
    counts = []
    pack = group_packing.pack_record

    def counted(record: bytes) -> list[bytes]:
        parts = pack(record)
        counts.append(len(parts))
        return parts

    monkeypatch.setattr(group_packing, "_PLAIN_BYTES_MAX", 1)
    monkeypatch.setattr(group_packing, "_PART_BYTES_MAX", 150)
    monkeypatch.setattr("penstock.client.groups.reader_group_record.pack_record", counted)
    return counts


async def read_until_idle(reader: Reader) -> list[int]:
    found = []
    while (event := await reader.read(0.5)) is not None:
        found.append(int(event.data))
    return found


async def until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110  # what the condition reads gives no notice
            await asyncio.sleep(0.01)


async def write(client: Client, numbers: range) -> None:
    async with client.event_writer("retail/orders") as writer:
        for number in numbers:
            await writer.write(b"%d" % number, routing_key=str(number))


async def test_readers_share_leave_and_reopen_a_group_with_a_split_record(
    cluster: Cluster, small_parts: list[Any]
) -> None:
    async with cluster.client(**FAST) as client:
        await client.create_stream("retail/orders", scaling=Scaling.fixed(12))
        await write(client, range(60))
        async with await client.reader_group("audit", ["retail/orders"]) as group:
            first, second = await group.reader("r1"), await group.reader("r2")
            shares = await asyncio.gather(read_until_idle(first), read_until_idle(second))
            found = [*shares[0], *shares[1]]
            await first.commit()
            await second.close()
            await write(client, range(60, 100))
            found += await read_until_idle(first)
            await first.commit()
            await first.close()
    assert sorted(found) == list(range(100))
    assert max(small_parts) > 1
    async with cluster.client(**FAST) as client:
        await write(client, range(100, 120))
        async with await client.reader_group("audit", ["retail/orders"]) as group, await group.reader("r3") as reader:
            assert sorted(await read_until_idle(reader)) == list(range(100, 120))


async def make_record(cluster_client: Client, segment_count: int, stream: str) -> tuple[GroupRecord, GroupState]:
    positions = {segment_name("retail", stream, number): 123456789 + number for number in range(segment_count)}
    record = GroupRecord(cluster_client._cluster, "retail", "audit", "g" * 36)  # type: ignore[arg-type]

    async def make() -> GroupState:
        return rgs.create(positions, [f"retail/{stream}"], group_id="g" * 36)

    return record, await record.find_or_create(make)


async def test_racing_changes_of_a_split_record_are_all_kept(cluster: Cluster, small_parts: list[Any]) -> None:
    async with cluster.client() as one, cluster.client() as two:
        first, _ = await make_record(one, 30, "orders")
        second, _ = await make_record(two, 30, "orders")

        async def join(record: GroupRecord, prefix: str) -> None:
            for number in range(6):
                name = f"{prefix}{number}"
                await record.update(lambda state, name=name: rgs.join(state, name, f"incarnation of {name}"))  # type: ignore[misc]
                await record.state()  # Damaged if it mixed the parts of two versions.

        await asyncio.gather(join(first, "a"), join(second, "b"))
        state = await first.state()
    assert set(state.readers) == {f"{prefix}{number}" for prefix in "ab" for number in range(6)}
    assert max(small_parts) > 1


async def test_a_record_far_above_the_limit_of_a_value_is_stored_and_read_back(cluster: Cluster) -> None:
    async with cluster.client() as client:
        record, state = await make_record(client, 10_000, "o" * 200)
        assert len(state.encode()) > 2 * TABLE_VALUE_LENGTH_MAX
        changed = await record.update(lambda state: rgs.acquire(rgs.join(state, "r1", "i"), "r1", 4096))
        assert await record.state() == changed


async def test_segments_that_no_reader_can_hold_are_reported(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    async with cluster.client(**FAST, reader_segment_count_max=4) as client:
        await client.create_stream("retail/orders", scaling=Scaling.fixed(6))
        await write(client, range(60))
        async with await client.reader_group("audit", ["retail/orders"]) as group, await group.reader("r1"):
            await until(lambda: "without a reader" in caplog.text)
            assert "segments without a reader: 2" in caplog.text
            await asyncio.sleep(5 * FAST["reader_group_refresh_s"])
            assert caplog.text.count("without a reader") == 1
            assert len((await group.describe()).unassigned) == 2
            lag = (await client.statistics(groups=["retail/audit"])).groups["retail/audit"]
            assert (lag.reader_count, lag.unassigned_segment_count) == (1, 2)
            async with await group.reader("r2") as second:
                async with asyncio.timeout(60):
                    while len(second.segments) < 3:
                        await second.read(0.05)
                assert (await group.describe()).unassigned == []


@pytest.mark.parametrize("positions", ["automatic", "manual"])
async def test_readers_that_hold_all_they_may_read_the_rest_in_turn(cluster: Cluster, positions: str) -> None:
    """Each event comes once, in the order of its key, while more are written all the time; 12 segments, 5 at a time."""
    rotation = {"reader_segment_count_max": 3, "reader_rotation_interval_s": 0.05}
    async with (
        cluster.client(**FAST, **rotation) as one,
        cluster.client(**FAST, **{**rotation, "reader_segment_count_max": 2}) as two,
    ):
        await one.create_stream("retail/orders", scaling=Scaling.fixed(12))
        group = await one.reader_group("audit", ["retail/orders"])
        same = await two.reader_group("retail/audit")
        readers = [await group.reader("r1", positions=positions), await same.reader("r2", positions=positions)]
        found = []

        async def read(reader: Reader) -> None:
            while True:
                event = await reader.read(0.1)
                if event is not None:
                    found.append(int(event.data))
                if positions == "manual":
                    await reader.commit()

        tasks = [asyncio.create_task(read(reader)) for reader in readers]
        for start in range(0, 600, 60):
            await write(one, range(start, start + 60))
            await until(lambda start=start: len(found) >= start + 30 or any(task.done() for task in tasks))  # type: ignore[misc]
        await until(lambda: len(found) >= 600 or any(task.done() for task in tasks))
        for task in tasks:
            task.cancel()
        assert await asyncio.gather(*tasks, return_exceptions=True)
        for reader in readers:
            await reader.close()
        state = await group._state()
        assert len(state.unassigned) == 12
        assert sorted(found) == list(range(600))


async def test_a_segment_with_an_event_in_hand_is_not_exchanged(cluster: Cluster) -> None:
    rotation = {"reader_segment_count_max": 1, "reader_rotation_interval_s": 0.02}
    async with cluster.client(**FAST, **rotation) as client:
        await client.create_stream("retail/orders", scaling=Scaling.fixed(3))
        await write(client, range(30))
        async with await client.reader_group("audit", ["retail/orders"]) as group, await group.reader("r1") as reader:
            found = [int((await reader.read(5)).data)]  # type: ignore[union-attr]
            held = reader.segments
            await asyncio.sleep(0.3)
            assert reader.segments == held
            while len(found) < 30:
                event = await reader.read(5)
                assert event is not None
                assert event.redelivery_count == 0
                found.append(int(event.data))
        assert sorted(found) == list(range(30))


async def test_a_third_of_many_readers_leaves_and_dies_and_others_come(cluster: Cluster) -> None:
    """45 readers of 3 clients. Clean ends double nothing; what comes twice was with a reader that died."""
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(cluster.client(**FAST)) for _ in range(3)]
        await clients[0].create_stream("retail/orders", scaling=Scaling.fixed(45))
        groups = [await clients[0].reader_group("audit", ["retail/orders"])]
        groups += [await client.reader_group("retail/audit") for client in clients[1:]]
        lost: set[str]
        found, tasks, readers, lost = [], {}, {}, set()

        async def read(reader: Reader) -> None:
            while (event := await reader.read()) is not None:
                found.append((int(event.data), f"{event.stream}/{event.segment_id}"))

        async def start(number: int) -> None:
            readers[number] = await groups[number % 3].reader(f"r{number:03}")
            tasks[number] = asyncio.create_task(read(readers[number]))

        async def end(number: int, *, is_clean: bool) -> None:
            tasks.pop(number).cancel()
            reader = readers.pop(number)
            if is_clean:
                await reader.close(is_done=True)
            else:
                sources = reader._membership.open_segments.values()
                lost.update(f"{source.stream}/{source.segment_id}" for source in sources)
                await reader._membership.stop()

        async def all_read(count: int) -> None:
            await until(lambda: len(set(found)) == count or any(task.done() for task in tasks.values()))
            assert not any(task.done() for task in tasks.values())

        await asyncio.gather(*(start(number) for number in range(45)))
        await write(clients[0], range(500))
        await all_read(500)
        writing = asyncio.create_task(write(clients[0], range(500, 1500)))
        await asyncio.gather(
            *(end(number, is_clean=True) for number in range(0, 45, 3)), *(start(45 + number) for number in range(15))
        )
        await writing
        await all_read(1500)
        assert sorted(number for number, _ in found) == list(range(1500))

        writing = asyncio.create_task(write(clients[0], range(1500, 2500)))
        await asyncio.gather(
            *(end(number, is_clean=False) for number in range(1, 45, 3)), *(start(60 + number) for number in range(15))
        )
        await writing
        await all_read(2500)
        assert {number for number, _ in found} == set(range(2500))
        twice = {segment for (_, segment), count in Counter(found).items() if count > 1}
        assert twice <= lost
        for number in list(tasks):
            await end(number, is_clean=True)
