"""Idle readers: they show that they are alive without a change of the record that they share, and poll few bytes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from penstock.client.client import Client
from penstock.client.groups import reader_group_state as rgs
from penstock.client.groups.group_heartbeats import heartbeat_key
from penstock.client.groups.group_state import FORMAT_VERSION, GroupState
from penstock.client.groups.group_watch import WATCHER_COUNT, Sign
from penstock.client.groups.membership import GroupMembership
from penstock.client.groups.reader import Reader
from penstock.client.groups.reader_group import ReaderGroup
from penstock.client.groups.reader_group_record import GroupRecord
from penstock.model.errors import LaterVersionError
from penstock.model.names import reader_group_table
from penstock.model.policies import Scaling
from penstock.model.segments import VERSION_ANY, TableEntry, TableUpdate

if TYPE_CHECKING:
    from client.conftest import Cluster

STREAM = "retail/orders"
FAST = {"position_interval_s": 0.05, "reader_group_refresh_s": 0.02, "reader_timeout_s": 0.6}


async def until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110  # what the condition reads gives no notice
            await asyncio.sleep(0.01)


def entries_of(cluster: Cluster, group: ReaderGroup) -> dict[bytes, TableEntry]:
    table = reader_group_table(group.scope, group._record.group_id)
    return cluster.store.segments._table(table).entries


def stored_state(cluster: Cluster, group: ReaderGroup) -> GroupState:
    return GroupState.decode(entries_of(cluster, group)[b"state"].value)


async def balanced_group(stack: AsyncExitStack, client: Client, count: int) -> tuple[ReaderGroup, list[Reader]]:
    """A group whose readers hold a segment each, and have nothing to read."""
    await client.create_stream(STREAM, scaling=Scaling.fixed(count), exist_ok=True)
    group = await stack.enter_async_context(client.reader_group("audit", [STREAM]))
    readers = [await stack.enter_async_context(group.reader(f"r{number:02}")) for number in range(count)]
    await until(lambda: all(len(reader.segments) == 1 for reader in readers))
    return group, readers


@pytest.fixture
async def stack() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as made:
        yield made


async def test_idle_readers_show_that_they_are_alive_beside_the_record(cluster: Cluster, stack: AsyncExitStack) -> None:
    client = await stack.enter_async_context(cluster.client(**FAST))
    group, readers = await balanced_group(stack, client, 3)
    entries = entries_of(cluster, group)
    keys = [heartbeat_key(reader.name) for reader in readers]
    await until(lambda: all(key in entries for key in keys))
    revision = entries[b"state"].version
    for _ in range(3):
        seen = {key: entries[key].version for key in keys}
        await until(lambda seen=seen: all(entries[key].version > seen[key] for key in keys))  # type: ignore[misc]
    assert entries[b"state"].version == revision
    assert stored_state(cluster, group).readers.keys() == {reader.name for reader in readers}


async def test_heartbeats_and_polls_of_one_client_are_one_request_each(
    cluster: Cluster, stack: AsyncExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Heartbeats are durable writes in the store: a group of many readers in few clients makes few of them."""
    client = await stack.enter_async_context(cluster.client(**FAST))
    group, readers = await balanced_group(stack, client, 5)
    put, read = [], []
    table_put, table_get = client._segment_client.table_put, client._segment_client.table_get

    async def counted_put(table: str, updates: list[TableUpdate]) -> Sequence[int]:
        put.append(sorted(update.key for update in updates))
        return await table_put(table, updates)

    async def counted_get(table: str, keys: list[bytes]) -> Sequence[TableEntry | None]:
        read.append(sorted(keys))
        return await table_get(table, keys)

    keys = [heartbeat_key(reader.name) for reader in readers]
    await until(lambda: all(key in entries_of(cluster, group) for key in keys))
    monkeypatch.setattr(client._segment_client, "table_put", counted_put)
    monkeypatch.setattr(client._segment_client, "table_get", counted_get)
    await until(lambda: len(put) > 2 and len(read) > 4)
    assert all(found == keys for found in put)
    assert all(found == [*keys, b"revision"] for found in read)


async def test_polls_of_an_unchanged_record_cost_an_idle_reader_nothing(
    cluster: Cluster, stack: AsyncExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the first reader by name, which does the group's work, makes a pass over the record after each poll."""
    client = await stack.enter_async_context(cluster.client(**{**FAST, "reader_timeout_s": 60.0}))
    group, readers = await balanced_group(stack, client, 5)
    members = [reader._membership for reader in readers]
    await until(lambda: all(each._is_quiet and each._state is group._record.known for each in members))
    passed, polled = [], []
    pass_over, poll = GroupMembership._poll_record, GroupRecord.poll

    async def counted_pass(
        self: GroupMembership, found: tuple[GroupState, Mapping[str, Sign]] | None, *, is_beat: bool
    ) -> None:
        passed.append(self.name)
        await pass_over(self, found, is_beat=is_beat)

    async def counted_poll(
        self: GroupRecord, names: Collection[str], age_s: float
    ) -> tuple[GroupState, Mapping[str, bytes]]:
        polled.append(names)
        return await poll(self, names, age_s)

    monkeypatch.setattr(GroupMembership, "_poll_record", counted_pass)
    monkeypatch.setattr(GroupRecord, "poll", counted_poll)
    await until(lambda: len(polled) > 20)
    assert set(passed) <= {"r00"}


async def test_an_idle_reader_stores_the_position_after_an_event(cluster: Cluster, stack: AsyncExitStack) -> None:
    """Also if it compared its positions with the record before, and found nothing to store."""
    client = await stack.enter_async_context(cluster.client(**FAST))
    group, readers = await balanced_group(stack, client, 2)
    await until(lambda: all(reader._membership._is_quiet for reader in readers))
    async with client.event_writer(STREAM) as writer:
        for number in range(8):
            await writer.write(b"%d" % number, routing_key=str(number))
    for reader in readers:
        while await reader.read(0.2) is not None:
            pass

    def stored() -> dict[str, int]:
        state = stored_state(cluster, group)
        return {segment: held.offset for each in state.readers.values() for segment, held in each.segments.items()}

    ends = {segment: end for reader in readers for segment, end in reader.position().items()}
    assert sum(ends.values()) > 0
    await until(lambda: stored() == ends)


async def test_the_tasks_of_a_client_end_with_its_last_reader(cluster: Cluster, stack: AsyncExitStack) -> None:
    client = await stack.enter_async_context(cluster.client(**FAST))
    group, readers = await balanced_group(stack, client, 2)

    def running() -> list[str]:
        return [task.get_name() for task in asyncio.all_tasks() if "group audit" in task.get_name()]

    assert len(running()) == 2
    await readers[0].close()
    assert len(running()) == 2
    await readers[1].close()
    assert not running()
    again = await group.reader("r02")
    assert len(running()) == 2
    await again.close()
    assert not running()


async def test_a_poll_of_an_unchanged_record_does_not_read_it(
    cluster: Cluster, stack: AsyncExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = await stack.enter_async_context(cluster.client(**FAST))
    group, _ = await balanced_group(stack, client, 2)
    read = []
    table_get = client._segment_client.table_get

    async def counted(table: str, keys: list[bytes]) -> Sequence[TableEntry | None]:
        read.append(list(keys))
        return await table_get(table, keys)

    monkeypatch.setattr(client._segment_client, "table_get", counted)
    await until(lambda: len(read) > 20)
    assert all(b"state" not in keys for keys in read[5:])
    # A change by another client is found, and read once by the readers of this one.
    async with cluster.client(**FAST) as other, other.reader_group("retail/audit") as same:
        del read[:]
        await same._record.update(lambda state: rgs.find_streams(state, ["retail/none-*"]))
        await until(lambda: any(b"state" in keys for keys in read))
        await until(lambda: group._record.known is not None and group._record.known.patterns == ["retail/none-*"])
        assert sum(b"state" in keys for keys in read) == 1


@pytest.mark.parametrize("dead", [[0], [WATCHER_COUNT + 1], list(range(WATCHER_COUNT)), list(range(1, 6))])
async def test_any_monitoring_reader_detects_dead_readers(
    cluster: Cluster, stack: AsyncExitStack, dead: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    """One of the first, one of the rest, all that watch the rest, and all but the first."""
    client = await stack.enter_async_context(cluster.client(**FAST))
    group, readers = await balanced_group(stack, client, 6)
    gone = {readers[number].name for number in dead}
    for number in dead:
        await readers[number]._membership.stop()
    await until(lambda: not gone & stored_state(cluster, group).readers.keys())
    assert stored_state(cluster, group).readers.keys() == {reader.name for reader in readers} - gone
    left = [reader for reader in readers if reader.name not in gone]
    await until(lambda: sum(len(reader.segments) for reader in left) == 6)


async def test_readers_whose_heartbeats_lose_their_replies_are_not_expelled(
    cluster: Cluster, stack: AsyncExitStack, caplog: pytest.LogCaptureFixture
) -> None:
    client = await stack.enter_async_context(cluster.client(**FAST))
    group, readers = await balanced_group(stack, client, 2)
    entries = entries_of(cluster, group)
    key = heartbeat_key("r01")
    await until(lambda: key in entries)
    for _ in range(4):
        seen = entries[key].version
        cluster.store.faults["drop_after_table_put"] = 1
        await until(lambda seen=seen: entries[key].version > seen and not cluster.store.faults["drop_after_table_put"])  # type: ignore[misc]
    await asyncio.sleep(FAST["reader_timeout_s"])
    assert "declared" not in caplog.text
    assert stored_state(cluster, group).readers.keys() == {reader.name for reader in readers}


async def test_a_reader_whose_change_of_the_record_takes_long_is_not_expelled(
    cluster: Cluster, stack: AsyncExitStack, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For three times as long as the time-out no change of its client gets through."""
    client = await stack.enter_async_context(cluster.client(**FAST))
    other = await stack.enter_async_context(cluster.client(**FAST))
    await client.create_stream(STREAM, scaling=Scaling.fixed(2))
    group = await stack.enter_async_context(client.reader_group("audit", [STREAM]))
    same = await stack.enter_async_context(other.reader_group("retail/audit"))
    first = await stack.enter_async_context(group.reader("r00"))
    second = await stack.enter_async_context(same.reader("r01"))
    await until(lambda: len(first.segments) == len(second.segments) == 1)
    table_put, may_write = client._segment_client.table_put, asyncio.Event()

    async def held_up(table: str, updates: list[TableUpdate]) -> Sequence[int]:
        if any(update.key == b"state" for update in updates):
            await may_write.wait()
        return await table_put(table, updates)

    monkeypatch.setattr(client._segment_client, "table_put", held_up)
    committing = asyncio.create_task(first.commit())
    await asyncio.sleep(3 * FAST["reader_timeout_s"])
    assert "declared" not in caplog.text
    assert first.segments
    may_write.set()
    await committing


async def test_readers_of_one_client_join_in_few_writes_of_the_record(
    cluster: Cluster, stack: AsyncExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = await stack.enter_async_context(cluster.client(**{**FAST, "reader_timeout_s": 60.0}))
    await client.create_stream(STREAM, scaling=Scaling.fixed(30))
    group = await stack.enter_async_context(client.reader_group("audit", [STREAM]))
    revision = stored_state(cluster, group).revision
    readers = await asyncio.gather(*(group.reader(f"r{number:02}") for number in range(30)))
    assert stored_state(cluster, group).revision - revision < 10
    await until(lambda: all(len(reader.segments) == 1 for reader in readers))


async def test_a_cancelled_change_does_not_cancel_others(
    cluster: Cluster, stack: AsyncExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one that writes for all is cancelled while it waits for the reply."""
    client = await stack.enter_async_context(cluster.client(**FAST))
    await client.create_stream(STREAM)
    group = await stack.enter_async_context(client.reader_group("audit", [STREAM]))
    record, table_put = group._record, client._segment_client.table_put
    is_sent, may_answer = asyncio.Event(), asyncio.Event()

    async def held_up(table: str, updates: list[TableUpdate]) -> Sequence[int]:
        versions = await table_put(table, updates)
        is_sent.set()
        await may_answer.wait()
        return versions

    monkeypatch.setattr(client._segment_client, "table_put", held_up)
    first = asyncio.create_task(record.update(lambda state: rgs.join(state, "a", "1")))
    await is_sent.wait()
    second = asyncio.create_task(record.update(lambda state: rgs.join(state, "b", "1")))
    await asyncio.sleep(0)
    first.cancel()
    may_answer.set()
    assert "b" in (await second).readers
    assert first.cancelled()
    assert (await record.state()).readers.keys() == {"a", "b"}


async def test_entries_of_absent_readers_are_swept(cluster: Cluster, stack: AsyncExitStack) -> None:
    client = await stack.enter_async_context(cluster.client(**FAST))
    group, _ = await balanced_group(stack, client, 2)
    entries = entries_of(cluster, group)
    keys = {heartbeat_key("r00"), heartbeat_key("r01")}
    await until(lambda: keys <= entries.keys())
    table = reader_group_table(group.scope, group._record.group_id)
    late = [TableUpdate(heartbeat_key(f"gone-{number}"), b"x", VERSION_ANY) for number in range(40)]
    await client._segment_client.table_put(table, late)
    await group._record.sweep_heartbeats(await group._state())
    assert {key for key in entries if key.startswith(b"alive/")} == keys


async def test_a_leaving_reader_removes_its_entry(cluster: Cluster, stack: AsyncExitStack) -> None:
    client = await stack.enter_async_context(cluster.client(**FAST))
    group, readers = await balanced_group(stack, client, 2)
    entries = entries_of(cluster, group)
    await until(lambda: {heartbeat_key("r00"), heartbeat_key("r01")} <= entries.keys())
    await readers[1].close()
    assert heartbeat_key("r01") not in entries
    assert heartbeat_key("r00") in entries


async def test_a_record_of_the_earlier_format_is_read_and_renewed(cluster: Cluster, stack: AsyncExitStack) -> None:
    """An earlier release refuses the renewed one, so its readers cannot take readers of this one for dead."""
    client = await stack.enter_async_context(cluster.client(**FAST))
    await client.create_stream(STREAM, scaling=Scaling.fixed(2))
    async with client.event_writer(STREAM) as writer:
        for number in range(10):
            await writer.write(b"%d" % number, routing_key=str(number))
    group = await stack.enter_async_context(client.reader_group("audit", [STREAM]))
    table = reader_group_table(group.scope, group._record.group_id)
    old = msgspec.json.decode(entries_of(cluster, group)[b"state"].value)
    del old["revision"]
    old["version"] = 3
    old["readers"] = {"old": {"incarnation": "i", "heartbeat": 7, "segments": {}, "handed_out": {}}}
    await client._segment_client.table_put(table, [TableUpdate(b"state", msgspec.json.encode(old), VERSION_ANY)])
    del entries_of(cluster, group)[b"revision"]

    record = GroupRecord(client._cluster, group.scope, group.name, group._record.group_id)  # type: ignore[arg-type]
    assert (await record.state()).readers["old"].heartbeat == 7
    assert await record.update(lambda state: state) == await record.state()
    other = await stack.enter_async_context(cluster.client(**FAST))
    same = await stack.enter_async_context(other.reader_group("retail/audit"))
    async with same.reader("new") as reader:
        found = {int((await reader.read(5)).data)}  # type: ignore[union-attr]
        assert msgspec.json.decode(entries_of(cluster, group)[b"state"].value)["version"] == FORMAT_VERSION == 4
        # The old one shows no life any more, and its share comes here.
        async with asyncio.timeout(60):
            while len(found) < 10:
                if (event := await reader.read(0.1)) is not None:
                    found.add(int(event.data))
        await until(lambda: "old" not in stored_state(cluster, group).readers)
    assert found == set(range(10))


def test_a_record_of_a_later_format_is_refused() -> None:
    later = msgspec.structs.replace(rgs.create({}, ["a/b"]), version=FORMAT_VERSION + 1)
    with pytest.raises(LaterVersionError):
        GroupState.decode(later.encode())


@pytest.mark.parametrize("packed_format", [None, 2])
async def test_the_state_of_a_later_version_is_refused_by_the_name_of_its_group(
    cluster: Cluster, stack: AsyncExitStack, packed_format: int | None
) -> None:
    """And it is not changed. The advice used to be to delete the group, or that the record was damaged."""
    client = await stack.enter_async_context(cluster.client(**FAST))
    await client.create_stream(STREAM)
    async with client.reader_group("audit", [STREAM]) as group:
        table = reader_group_table(group.scope, group._record.group_id)
        later = msgspec.structs.replace(stored_state(cluster, group), version=FORMAT_VERSION + 1).encode()
        if packed_format is not None:
            later = bytes([packed_format]) + later
        await client._segment_client.table_put(table, [TableUpdate(b"state", later, VERSION_ANY)])
    with pytest.raises(LaterVersionError, match=r"state of reader group retail/audit .* this version reads"):
        async with client.reader_group("retail/audit") as again, again.reader("one"):
            pass
    assert entries_of(cluster, group)[b"state"].value == later
