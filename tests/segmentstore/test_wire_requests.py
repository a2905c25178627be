"""Requests that change, merge, iterate and locate, as Pravega's clients send them, in raw frames.

Traps are those of wire-protocol 10; SS-n: docs/spec/segment-store.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from penstock.model.segments import (
    NO_VALUE,
    TABLE_KEY_LENGTH_MAX,
    TABLE_READ_KEY_COUNT_MAX,
    TABLE_READ_KEY_COUNT_SURE,
    TABLE_VALUE_LENGTH_MAX,
    VERSION_ABSENT,
    TableUpdate,
)
from penstock.segmentstore.container_settings import ActivitySettings
from penstock.segmentstore.core_attributes import (
    CREATION_TIME,
    EVENT_COUNT,
    KEY_LENGTH,
    ROLLOVER_SIZE,
    SCALE_POLICY_RATE,
    SCALE_POLICY_TYPE,
    core_attribute_id,
)
from penstock.segmentstore.server import SegmentStoreServer
from penstock.segmentstore.settings import SegmentStoreSettings
from penstock.segmentstore.tier1.memory_log import MemoryLogFactory
from penstock.wire import commands as wire
from penstock.wire.commands import TableKey, TableKeyValue
from support.containers import QUIET, FaultyChunks, memory_runtime, memory_store, until
from support.raw_wire import RawWire, block

A = "s/t/0.#epoch.0"
T = f"{A}#transaction.{'a' * 32}"
TABLE = "s/x_kvtable/0.#epoch.0"
FIXED = "s/y_kvtable/0.#epoch.0"
W = b"w" * 16
K = b"k" * 16
SETTINGS = SegmentStoreSettings(
    container_count=1,
    restart_delay_s=0.01,
    container=replace(QUIET, activity=ActivitySettings(interval_s=3600.0, index_entry_bytes=1000)),
)


class Bench:
    """A store behind a server, with segment A, and a connection to it."""

    def __init__(self) -> None:
        self.runtime = memory_runtime()
        self.logs = MemoryLogFactory(self.runtime)
        self.chunks = FaultyChunks()
        self.store = memory_store(self.logs, self.chunks, self.runtime, SETTINGS)
        self.server = SegmentStoreServer(self.store)
        self.wires: list[RawWire] = []

    async def start(self) -> None:
        await self.store.start()
        await self.server.start("127.0.0.1", 0)
        await self.store.create_segment(A)

    async def connect(self) -> RawWire:
        self.wires.append(await RawWire.open(self.server.port))
        return self.wires[-1]

    async def restart(self) -> None:
        await self.store.stop()
        await self.server.stop()
        self.store = memory_store(self.logs, self.chunks, self.runtime, SETTINGS)
        self.server = SegmentStoreServer(self.store)
        await self.store.start()
        await self.server.start("127.0.0.1", 0)

    async def stop(self) -> None:
        self.logs.release_appends(0)
        await self.server.stop()
        await self.store.stop()
        for connection in self.wires:
            await connection.close()
        await self.runtime.work.close()


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    made = Bench()
    await made.start()
    yield made
    await made.stop()


async def test_the_server_says_hello_in_wire_version_17(bench: Bench) -> None:
    """wire-protocol 10, number 10: Rust clients need at least 15; Java clients ask LocateOffset from 17 on."""
    connection = RawWire(*await asyncio.open_connection("127.0.0.1", bench.server.port))
    assert await connection.ask(wire.Hello(15, 5), wire.Hello) == wire.Hello(17, 5)
    await connection.close()


# Merges.


async def test_a_merge_requested_again_changes_nothing(bench: Bench) -> None:
    """SS-29: the answer was lost with the connection. The same answer comes again, after a restart, too."""
    connection = await bench.connect()
    await bench.store.append(A, b"before")
    await bench.store.create_segment(T)
    await bench.store.append(T, b"transaction")
    merge = wire.MergeSegments(1, A, T, "")
    assert await connection.ask(merge, wire.SegmentsMerged) == wire.SegmentsMerged(1, A, T, 17)
    await bench.store.append(A, b"!")
    again = await (await bench.connect()).ask(merge, wire.SegmentsMerged)
    assert again.new_target_write_offset == 18
    await bench.restart()
    again = await (await bench.connect()).ask(merge, wire.SegmentsMerged)
    assert again.new_target_write_offset == 18
    assert (await bench.store.read(A, 0, 100)).joined() == b"beforetransaction!"


async def test_a_merge_says_which_segment_is_missing(bench: Bench) -> None:
    """wire-protocol 3.10: one that was never there was not merged, nor one that was merged into another."""
    connection = await bench.connect()
    assert (await connection.ask(wire.MergeSegments(1, A, T, ""), wire.NoSuchSegment)).segment == T
    await bench.store.create_segment(T)
    missing = "s/t/0.#epoch.7"
    reply = await connection.ask(wire.MergeSegments(1, missing, T, ""), wire.NoSuchSegment)
    assert (reply.segment, reply.offset) == (missing, -1)
    await bench.store.create_segment(missing)
    await connection.ask(wire.MergeSegments(1, missing, T, ""), wire.SegmentsMerged)
    assert (await connection.ask(wire.MergeSegments(1, A, T, ""), wire.NoSuchSegment)).segment == T
    # A new segment of that name, deleted, was never merged.
    await bench.store.create_segment(T)
    await bench.store.delete_segment(T)
    await connection.ask(wire.MergeSegments(1, missing, T, ""), wire.NoSuchSegment)


async def test_a_merge_may_depend_on_attributes(bench: Bench) -> None:
    """Nothing happens if a condition fails; asked again after it has happened, conditions no longer count."""
    connection = await bench.connect()
    await bench.store.create_segment(T)
    await bench.store.append(T, b"data")
    held = wire.AttributeUpdate(K, 4, 5, NO_VALUE)
    failing = wire.AttributeUpdate(W, 4, 1, 7)
    reply = await connection.ask(wire.MergeSegments(1, A, T, "", [held, failing]), wire.SegmentAttributeUpdated)
    assert not reply.success
    assert (await bench.store.segment_info(A)).length == 0
    assert not (await bench.store.segment_info(T)).is_sealed
    assert await bench.store.get_attribute(A, K) == NO_VALUE
    merge = wire.MergeSegments(2, A, T, "", [held, wire.AttributeUpdate(W, 3, 10, 0)])
    assert (await connection.ask(merge, wire.SegmentsMerged)).new_target_write_offset == 4
    assert [await bench.store.get_attribute(A, key) for key in (K, W)] == [5, 10]
    assert (await connection.ask(merge, wire.SegmentsMerged)).new_target_write_offset == 4
    assert await bench.store.get_attribute(A, W) == 10
    unknown = wire.MergeSegments(3, A, T, "", [wire.AttributeUpdate(K, 9, 1, 1)])
    assert (await connection.ask(unknown, wire.ErrorMessage)).error_code == 0


async def test_an_empty_source_is_merged_and_its_updates_are_made(bench: Bench) -> None:
    """R1.26."""
    connection = await bench.connect()
    await bench.store.create_segment(T)
    merge = wire.MergeSegments(1, A, T, "", [wire.AttributeUpdate(K, 1, 3, 0)])
    assert (await connection.ask(merge, wire.SegmentsMerged)).new_target_write_offset == 0
    assert await bench.store.get_attribute(A, K) == 3
    await connection.ask(wire.GetStreamSegmentInfo(1, T, ""), wire.NoSuchSegment)


async def test_a_merge_into_a_sealed_segment_names_the_source(bench: Bench) -> None:
    """As Pravega's server does; a batch names the target."""
    connection = await bench.connect()
    await bench.store.create_segment(T)
    await bench.store.seal_segment(A)
    assert (await connection.ask(wire.MergeSegments(1, A, T, ""), wire.SegmentIsSealed)).segment == T
    assert (await connection.ask(wire.MergeSegmentsBatch(1, A, [T], ""), wire.SegmentIsSealed)).segment == A


async def test_a_truncated_source_cannot_be_merged(bench: Bench) -> None:
    connection = await bench.connect()
    await bench.store.create_segment(T)
    await bench.store.append(T, b"data")
    await bench.store.truncate_segment(T, 1)
    assert (await connection.ask(wire.MergeSegments(1, A, T, ""), wire.ErrorMessage)).error_code == 0


async def test_a_batch_counts_missing_sources_as_merged(bench: Bench) -> None:
    """SS-29: a commit that is repeated by another controller; without its target it fails."""
    connection = await bench.connect()
    names = [f"{A}#transaction.{digit * 32}" for digit in "abc"]
    for name in names[:2]:
        await bench.store.create_segment(name)
        await bench.store.append(name, b"123")
    batch = wire.MergeSegmentsBatch(1, A, names, "")
    merged = await connection.ask(batch, wire.SegmentsBatchMerged)
    assert [(one.source, one.new_target_write_offset) for one in merged.merged] == list(
        zip(names, (3, 6, 6), strict=True)
    )
    merged = await connection.ask(batch, wire.SegmentsBatchMerged)
    assert [one.new_target_write_offset for one in merged.merged] == [6, 6, 6]
    await bench.store.delete_segment(A)
    assert (await connection.ask(batch, wire.NoSuchSegment)).segment == A


async def test_a_large_event_is_one_event_whatever_its_pieces(bench: Bench) -> None:
    """wire-protocol 3.10, with Rust's short MergeSegments; pieces are numbered from 0, and set-up returns no number."""
    connection = await bench.connect()
    made = await connection.ask(wire.CreateTransientSegment(1, W, A, ""), wire.SegmentCreated)
    name = made.segment
    assert name.startswith(f"{A}#transient.{W.hex()}.")
    setup = await connection.ask(wire.SetupAppend(2, W, name, ""), wire.AppendSetup)
    assert setup.last_event_number == NO_VALUE
    for number in range(3):
        command = wire.ConditionalBlockEnd(W, number, number * 1000, bytes([number]) * 1000, 3)
        acknowledged = await connection.ask(command, wire.DataAppended)
        assert acknowledged.event_number == number
    merged = await connection.ask(wire.MergeSegments(4, A, name, ""), wire.SegmentsMerged)
    assert merged.new_target_write_offset == 3000
    reply = await connection.ask(
        wire.GetSegmentAttribute(5, A, core_attribute_id(EVENT_COUNT), ""), wire.SegmentAttribute
    )
    assert reply.value == 1
    await connection.close()
    other = await bench.connect()
    merged = await other.ask(wire.MergeSegments(4, A, name, ""), wire.SegmentsMerged)
    assert merged.new_target_write_offset == 3000


async def test_a_transient_segment_needs_its_parent(bench: Bench) -> None:
    connection = await bench.connect()
    missing = "s/t/9.#epoch.0"
    await connection.ask(wire.CreateTransientSegment(1, W, missing, ""), wire.NoSuchSegment)


# Appends.


async def test_an_append_that_fails_among_others_is_answered_after_the_earlier_ones(bench: Bench) -> None:
    """SS-145: 1 is acknowledged, 2 refused after it, 3 to 5 say nothing; then the writer must set up again."""
    connection = await bench.connect()
    await connection.ask(wire.SetupAppend(1, W, A, ""), wire.AppendSetup)
    bench.logs.hold_appends(0)
    connection.send(block(W, 1, b"one"))
    segment = bench.store.containers[0].segment(A)
    await until(lambda: segment.length == 3)
    sealing = asyncio.ensure_future(bench.store.seal_segment(A))
    await until(lambda: segment.is_sealed)
    connection.send(*(block(W, number, b"x") for number in range(2, 6)))
    await asyncio.sleep(0.02)
    bench.logs.release_appends(0)
    await sealing
    assert (await connection.expect(wire.DataAppended)).event_number == 1
    assert (await connection.expect(wire.SegmentIsSealed)).offset == 2
    connection.send(block(W, 6, b"dropped"), wire.KeepAlive())
    await connection.expect(wire.KeepAlive)
    setup = await connection.ask(wire.SetupAppend(1, W, A, ""), wire.AppendSetup)
    assert setup.last_event_number == 1


# Segments.


async def test_information_about_a_segment_is_whole(bench: Bench) -> None:
    """wire-protocol 4.2 and 10, number 1: Rust needs the last field, too."""
    connection = await bench.connect()
    await bench.store.append(A, b"0123456789")
    await bench.store.truncate_segment(A, 3)
    await bench.store.seal_segment(A)
    reply = await connection.ask(wire.GetStreamSegmentInfo(1, A, ""), wire.StreamSegmentInfo)
    assert reply == wire.StreamSegmentInfo(1, A, True, True, False, 1000, 10, 3)


async def test_what_is_done_twice_is_said(bench: Bench) -> None:
    """SS-247, wire-protocol 4.4: replies that callers count as success the second time."""
    connection = await bench.connect()
    await bench.store.append(A, b"0123456789")
    for _ in range(2):
        await connection.ask(wire.TruncateSegment(1, A, 4, ""), wire.SegmentTruncated)
    truncated = await connection.ask(wire.TruncateSegment(1, A, 3, ""), wire.SegmentIsTruncated)
    assert (truncated.start_offset, truncated.offset) == (4, 3)
    await connection.ask(wire.UpdateSegmentPolicy(1, A, 5, 2, ""), wire.SegmentPolicyUpdated)
    await connection.ask(wire.SealSegment(1, A, ""), wire.SegmentSealed)
    assert (await connection.ask(wire.SealSegment(1, A, ""), wire.SegmentIsSealed)).segment == A
    await connection.ask(wire.UpdateSegmentPolicy(1, A, 6, 2, ""), wire.SegmentIsSealed)
    await connection.ask(wire.UpdateSegmentAttribute(1, A, K, 1, NO_VALUE, ""), wire.SegmentIsSealed)
    await connection.ask(wire.CreateSegment(1, A, 0, 0, ""), wire.SegmentAlreadyExists)
    await connection.ask(wire.DeleteSegment(1, A, ""), wire.SegmentDeleted)
    for command in (
        wire.DeleteSegment(1, A, ""),
        wire.SealSegment(1, A, ""),
        wire.TruncateSegment(1, A, 0, ""),
        wire.UpdateSegmentPolicy(1, A, 6, 2, ""),
        wire.GetSegmentAttribute(1, A, K, ""),
        wire.GetSegmentAttribute(1, A, core_attribute_id(EVENT_COUNT), ""),
        wire.UpdateSegmentAttribute(1, A, K, 1, NO_VALUE, ""),
        wire.GetStreamSegmentInfo(1, A, ""),
        wire.LocateOffset(1, A, 0, ""),
    ):
        missing = await connection.ask(command, wire.NoSuchSegment)
        assert (missing.segment, missing.offset) == (A, -1)


async def test_core_attributes_can_be_read_and_not_written(bench: Bench) -> None:
    """wire-protocol 4.3: creation time, events, policy, length of chunks; of a table the length of its keys."""
    connection = await bench.connect()
    name = "s/t/1.#epoch.0"
    await connection.ask(wire.CreateSegment(1, name, 100, 2, "", 5000), wire.SegmentCreated)
    await connection.ask(wire.SetupAppend(1, W, name, ""), wire.AppendSetup)
    await connection.ask(wire.AppendBlockEnd(W, 3, b"abc", 7, 7, 1), wire.DataAppended)
    await connection.ask(wire.CreateTableSegment(1, FIXED, "", False, 8, 0), wire.SegmentCreated)

    async def value(segment: str, number: int) -> int:
        command = wire.GetSegmentAttribute(1, segment, core_attribute_id(number), "")
        return (await connection.ask(command, wire.SegmentAttribute)).value

    numbers = (CREATION_TIME, EVENT_COUNT, SCALE_POLICY_TYPE, SCALE_POLICY_RATE, ROLLOVER_SIZE, 77)
    assert [await value(name, number) for number in numbers] == [1000, 7, 2, 100, 5000, NO_VALUE]
    assert await value(FIXED, KEY_LENGTH) == 8
    command = wire.UpdateSegmentAttribute(1, name, core_attribute_id(EVENT_COUNT), 9, 7, "")
    assert (await connection.ask(command, wire.ErrorMessage)).error_code == 0
    assert await value(name, EVENT_COUNT) == 7


async def test_attributes_are_compared_and_set(bench: Bench) -> None:
    connection = await bench.connect()
    for value, expected, success in ((5, 4, False), (5, NO_VALUE, True), (6, NO_VALUE, False), (NO_VALUE, 5, True)):
        command = wire.UpdateSegmentAttribute(1, A, K, value, expected, "")
        assert (await connection.ask(command, wire.SegmentAttributeUpdated)).success is success
    assert (await connection.ask(wire.GetSegmentAttribute(1, A, K, ""), wire.SegmentAttribute)).value == NO_VALUE


async def test_borders_are_located(bench: Bench) -> None:
    """SS-254, wire-protocol 4.5: at or behind the offset; what was truncated is answered with SegmentTruncated."""
    connection = await bench.connect()
    for _ in range(5):
        await bench.store.append(A, bytes(1000))
    await bench.store.containers[0].activity_watch.poll()

    async def located(offset: int) -> int:
        reply = await connection.ask(wire.LocateOffset(3, A, offset, ""), wire.OffsetLocated)
        assert (reply.request_id, reply.segment) == (3, A)
        return reply.offset

    assert [await located(offset) for offset in (0, 1, 1000, 1001, 5000, 9999)] == [0, 1000, 1000, 2000, 5000, 5000]
    await bench.store.truncate_segment(A, 1500)
    reply = await connection.ask(wire.LocateOffset(4, A, 1499, ""), wire.SegmentTruncated)
    assert reply == wire.SegmentTruncated(4, A)
    assert [await located(offset) for offset in (1500, 1501)] == [1500, 2000]
    assert (await connection.ask(wire.LocateOffset(4, A, -1, ""), wire.ErrorMessage)).error_code == 0


# Tables.


async def test_iterations_take_java_and_rust_forms(bench: Bench) -> None:
    """wire-protocol 6.4: Java pages a fixed-key table by ranges, Rust a hash table by tokens and in the short form."""
    connection = await bench.connect()
    await bench.store.create_table(FIXED, key_length=2)
    entries = [TableKeyValue(bytes([0, number]), VERSION_ABSENT, b"v%d" % number) for number in range(6)]
    await connection.ask(wire.UpdateTableEntries(1, FIXED, "", entries), wire.TableEntriesUpdated)
    read = await connection.ask(wire.ReadTableEntries(1, FIXED, "", 2, b"", b"\0\1", b"\0\3"), wire.TableEntriesRead)
    assert [(entry.key, entry.value) for entry in read.entries] == [(b"\0\1", b"v1"), (b"\0\2", b"v2")]
    read = await connection.ask(wire.ReadTableEntries(1, FIXED, "", 2, b"", b"\0\3", b"\0\3"), wire.TableEntriesRead)
    assert [entry.key for entry in read.entries] == [b"\0\3"]
    keys = await connection.ask(wire.ReadTableKeys(1, FIXED, "", 100, b"", b"\0\4"), wire.TableKeysRead)
    assert [key.key for key in keys.keys] == [b"\0\4", b"\0\5"]
    keys = await connection.ask(wire.ReadTableKeys(1, FIXED, "", 100, b"", b"\0\2", b"\0\4"), wire.TableKeysRead)
    assert [key.key for key in keys.keys] == [b"\0\2", b"\0\3", b"\0\4"]
    keys = await connection.ask(wire.ReadTableKeys(1, FIXED, "", 100, b"", b"\0\6"), wire.TableKeysRead)
    assert list(keys.keys) == []
    for command in (
        wire.ReadTableKeys(1, FIXED, "", 2, b"\0\1"),
        wire.ReadTableEntries(1, FIXED, "", 2, b"\0\1", b"\0\1"),
    ):
        assert (await connection.ask(command, wire.ErrorMessage)).error_code == 0

    await bench.store.create_table(TABLE)
    entries = [TableKeyValue(b"k%d" % number, NO_VALUE, b"") for number in range(5)]
    await connection.ask(wire.UpdateTableEntries(1, TABLE, "", entries), wire.TableEntriesUpdated)
    token, found = b"", []
    while True:
        # The short form: it ends with the token.
        text = TABLE.encode()
        payload = (7).to_bytes(8, "big") + len(text).to_bytes(2, "big") + text + bytes(2) + (2).to_bytes(4, "big")
        payload += len(token).to_bytes(4, "big") + token
        connection.writer.write((83).to_bytes(4, "big") + len(payload).to_bytes(4, "big") + payload)
        page = await connection.expect(wire.TableKeysRead)
        assert page.request_id == 7
        if not page.keys:
            break
        assert page.continuation_token
        found += [key.key for key in page.keys]
        token = page.continuation_token
    assert sorted(found) == [entry.key for entry in entries]
    assert (await connection.ask(wire.ReadTableKeys(1, TABLE, "", 2, b"", b"k"), wire.ErrorMessage)).error_code == 0


async def test_a_read_whose_reply_would_fit_no_frame_is_refused_and_the_connection_continues(bench: Bench) -> None:
    """The refusal says how many fit in any case, and those do; no value is read for it. Java asks for no more."""
    connection = await bench.connect()
    await bench.store.create_table(TABLE)
    keys = [TableKey(b"%02d" % number * (TABLE_KEY_LENGTH_MAX // 2), NO_VALUE) for number in range(17)]
    for key in keys:
        await bench.store.table_put(TABLE, [TableUpdate(key.key, bytes(TABLE_VALUE_LENGTH_MAX))])
    refused = await connection.ask(wire.ReadTable(1, TABLE, "", keys), wire.ErrorMessage)
    assert (refused.request_id, refused.error_code) == (1, 0)
    assert refused.message.startswith(wire.READ_TOO_LONG)
    assert f"{TABLE_READ_KEY_COUNT_SURE} always fit" in refused.message
    fitting = wire.ReadTable(2, TABLE, "", keys[:TABLE_READ_KEY_COUNT_SURE])
    read = await connection.ask(fitting, wire.TableRead)
    assert [(entry.key, len(entry.value)) for entry in read.entries] == [
        (key.key, TABLE_VALUE_LENGTH_MAX) for key in keys[:TABLE_READ_KEY_COUNT_SURE]
    ]


async def test_a_read_of_more_keys_than_one_may_have_is_refused(bench: Bench) -> None:
    """One more than allowed; exactly so many are answered."""
    connection = await bench.connect()
    await bench.store.create_table(TABLE)
    keys = [TableKey(b"%d" % number, NO_VALUE) for number in range(TABLE_READ_KEY_COUNT_MAX + 1)]
    refused = await connection.ask(wire.ReadTable(1, TABLE, "", keys), wire.ErrorMessage)
    assert refused.message.startswith(wire.READ_TOO_LONG)
    read = await connection.ask(wire.ReadTable(2, TABLE, "", keys[1:]), wire.TableRead)
    assert {entry.version for entry in read.entries} == {VERSION_ABSENT}


async def test_table_conditions_have_replies_of_their_own(bench: Bench) -> None:
    """wire-protocol 6.2: 81, 82, 56, and an illegal version; nothing is written."""
    connection = await bench.connect()
    await bench.store.create_table(TABLE)
    await connection.ask(
        wire.UpdateTableEntries(1, TABLE, "", [TableKeyValue(b"a", VERSION_ABSENT, b"1")]), wire.TableEntriesUpdated
    )
    info = await connection.ask(wire.GetTableSegmentInfo(1, TABLE, ""), wire.TableSegmentInfo)
    assert info == wire.TableSegmentInfo(1, TABLE, 0, 19, 1, 0)

    def put(key: bytes, version: int, offset: int = -1) -> wire.UpdateTableEntries:
        return wire.UpdateTableEntries(1, TABLE, "", [TableKeyValue(key, version, b"2")], offset)

    def remove(key: bytes, version: int, offset: int = -1) -> wire.RemoveTableKeys:
        return wire.RemoveTableKeys(1, TABLE, "", [TableKey(key, version)], offset)

    await connection.ask(put(b"a", VERSION_ABSENT), wire.TableKeyBadVersion)
    await connection.ask(put(b"a", 1), wire.TableKeyBadVersion)
    await connection.ask(put(b"b", 0), wire.TableKeyDoesNotExist)
    await connection.ask(remove(b"a", 7), wire.TableKeyBadVersion)
    await connection.ask(remove(b"b", 7), wire.TableKeyDoesNotExist)
    for command in (put(b"b", NO_VALUE, 18), remove(b"a", NO_VALUE, 20)):
        reply = await connection.ask(command, wire.SegmentIsTruncated)
        assert (reply.start_offset, reply.offset) == (19, command.table_segment_offset)
    for command in (put(b"a", -2), remove(b"a", -2), put(b"k" * 8193, NO_VALUE)):
        assert (await connection.ask(command, wire.ErrorMessage)).error_code == 0
    read = await connection.ask(
        wire.ReadTable(1, TABLE, "", [TableKey(b"b", NO_VALUE), TableKey(b"a", NO_VALUE)]), wire.TableRead
    )
    assert list(read.entries) == [TableKeyValue(b"b", -1, b""), TableKeyValue(b"a", 0, b"1")]
    await connection.ask(put(b"a", 0, 19), wire.TableEntriesUpdated)
    await connection.ask(remove(b"b", VERSION_ABSENT), wire.TableKeysRemoved)


async def test_kinds_of_tables_refuse_what_is_not_theirs(bench: Bench) -> None:
    """wire-protocol 6.1; commands that are gone since 0.10 are answered, too."""
    connection = await bench.connect()
    await bench.store.create_table(FIXED, key_length=2)
    await connection.ask(wire.ReadTableEntriesDelta(1, FIXED, "", 0, 10), wire.OperationUnsupported)
    await connection.ask(wire.DeleteTableSegment(1, FIXED, True, ""), wire.OperationUnsupported)
    await connection.ask(wire.DeleteTableSegment(1, FIXED, False, ""), wire.SegmentDeleted)
    await connection.ask(wire.DeleteTableSegment(1, FIXED, False, ""), wire.NoSuchSegment)
    for length in (-1, 257):
        create = wire.CreateTableSegment(1, FIXED, "", False, length, 0)
        assert (await connection.ask(create, wire.ErrorMessage)).error_code == 0
    await connection.ask(wire.MergeTableSegments(1, TABLE, FIXED, ""), wire.OperationUnsupported)
    await connection.ask(wire.SealTableSegment(1, TABLE, ""), wire.OperationUnsupported)
    for command in (
        wire.GetTableSegmentInfo(1, A, ""),
        wire.ReadTableKeys(1, A, "", 1),
        wire.DeleteTableSegment(1, A, False, ""),
    ):
        await connection.ask(command, wire.OperationUnsupported)


async def test_a_table_is_deleted_only_if_empty(bench: Bench) -> None:
    connection = await bench.connect()
    await bench.store.create_table(TABLE)
    await connection.ask(
        wire.UpdateTableEntries(1, TABLE, "", [TableKeyValue(b"a", NO_VALUE, b"")]), wire.TableEntriesUpdated
    )
    await connection.ask(wire.DeleteTableSegment(1, TABLE, True, ""), wire.TableSegmentNotEmpty)
    await connection.ask(wire.RemoveTableKeys(1, TABLE, "", [TableKey(b"a", NO_VALUE)]), wire.TableKeysRemoved)
    await connection.ask(wire.DeleteTableSegment(1, TABLE, True, ""), wire.SegmentDeleted)


# Lists beyond their limit.


@pytest.mark.parametrize("type_code", [wire.MergeSegmentsBatch.TYPE, wire.SegmentsBatchMerged.TYPE])
async def test_a_frame_with_too_many_names_closes_its_connection_only(
    bench: Bench, type_code: int, caplog: pytest.LogCaptureFixture
) -> None:
    """The frame is refused undecoded. The other connection and new ones are served."""
    caplog.set_level("INFO")
    neighbour, hostile = await bench.connect(), await bench.connect()
    count = 8_000_000
    body = (7).to_bytes(8, "big") + b"\0\1t" + count.to_bytes(4, "big") + bytes(2 * count + 2)
    hostile.writer.write(type_code.to_bytes(4, "big") + len(body).to_bytes(4, "big") + body)
    assert await hostile.receive() is None
    is_reply = type_code == wire.SegmentsBatchMerged.TYPE
    assert ("is a reply" if is_reply else f"{count} elements, at most 1000 are allowed") in caplog.text
    assert await neighbour.ask(wire.KeepAlive(), wire.KeepAlive) == wire.KeepAlive()
    another = await bench.connect()
    assert await another.ask(wire.KeepAlive(), wire.KeepAlive) == wire.KeepAlive()
