"""`WireSegments`: every call of the seam over a real socket, its errors, and what is repeated when replies get lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import pytest

from penstock.client.transport.replies import error_of
from penstock.client.transport.wire_segments import WireSegments
from penstock.model.errors import (
    BadOffsetError,
    ClosedError,
    ConnectionLostError,
    ContainerNotFoundError,
    InvalidArgumentError,
    NoSuchSegmentError,
    OutcomeUnknownError,
    PenstockError,
    SegmentExistsError,
    SegmentSealedError,
    SegmentTruncatedError,
    TableKeyMissingError,
    TableKeyVersionError,
    TableNotEmptyError,
    TableReadTooLongError,
    TokenRefusedError,
    UnsupportedOperationError,
)
from penstock.model.segments import NO_VALUE, VERSION_ABSENT, TableRemoval, TableUpdate
from penstock.wire import commands as wire
from penstock.wire.commands.base import Reply

if TYPE_CHECKING:
    from client.conftest import Cluster

NAME = "s/t/0.#epoch.0"
TABLE = "s/x_kvtable/0.#epoch.0"


@pytest.fixture
async def segments(cluster: Cluster) -> AsyncIterator[WireSegments]:
    async with cluster.client(retry_time_max_s=2.0) as client:
        yield client._segment_client


async def test_segment_lives_and_dies(segments: WireSegments) -> None:
    await segments.create_segment(NAME, scale_type=2, target_rate=100)
    with pytest.raises(SegmentExistsError):
        await segments.create_segment(NAME)
    assert await segments.append(NAME, b"hello ") == 6
    assert await segments.append(NAME, b"world", expected_offset=6) == 11
    with pytest.raises(BadOffsetError) as caught:
        await segments.append(NAME, b"!", expected_offset=6)
    assert caught.value.actual == 11
    assert (await segments.read(NAME, 0, 100)).joined() == b"hello world"
    tail = await segments.read(NAME, 11, 100)
    assert (tail.joined(), tail.is_at_tail, tail.is_end_of_segment) == (b"", True, False)
    await segments.update_policy(NAME, scale_type=0, target_rate=0)
    await segments.truncate_segment(NAME, 6)
    with pytest.raises(SegmentTruncatedError):
        await segments.read(NAME, 0, 100)
    await segments.seal_segment(NAME)
    with pytest.raises(SegmentSealedError):
        await segments.append(NAME, b"x")
    info = await segments.segment_info(NAME)
    assert (info.start_offset, info.length, info.is_sealed) == (6, 11, True)
    end = await segments.read(NAME, 11, 100)
    assert (end.joined(), end.is_end_of_segment) == (b"", True)
    await segments.delete_segment(NAME)
    for call in (segments.segment_info(NAME), segments.delete_segment(NAME), segments.append(NAME, b"x")):
        with pytest.raises(NoSuchSegmentError):
            await call


async def test_a_waiting_read_gets_new_bytes_and_the_end(segments: WireSegments) -> None:
    await segments.create_segment(NAME)
    read = asyncio.create_task(segments.read(NAME, 0, 100, wait=True))
    await asyncio.sleep(0.01)
    await segments.append(NAME, b"new")
    assert (await asyncio.wait_for(read, 60)).joined() == b"new"
    read = asyncio.create_task(segments.read(NAME, 3, 100, wait=True))
    await asyncio.sleep(0.01)
    await segments.seal_segment(NAME)
    assert (await asyncio.wait_for(read, 60)).is_end_of_segment


async def test_merge_and_attributes(segments: WireSegments) -> None:
    for name in (NAME, "s/t/1.#epoch.0", "s/t/2.#epoch.0"):
        await segments.create_segment(name)
        await segments.append(name, b"abc")
    assert await segments.merge_segments(NAME, ["s/t/1.#epoch.0", "s/t/2.#epoch.0"]) == [6, 9]
    key = bytes(range(16))
    assert await segments.get_attribute(NAME, key) == NO_VALUE
    assert await segments.update_attribute(NAME, key, value=5, expected=NO_VALUE)
    assert not await segments.update_attribute(NAME, key, value=6, expected=4)
    assert await segments.get_attribute(NAME, key) == 5


async def test_table_lives_and_dies(segments: WireSegments) -> None:
    await segments.create_table(TABLE)
    with pytest.raises(SegmentExistsError):
        await segments.create_table(TABLE)
    versions = await segments.table_put(TABLE, [TableUpdate(b"a", b"1", VERSION_ABSENT), TableUpdate(b"b", b"")])
    assert len(versions) == 2
    with pytest.raises(TableKeyVersionError) as caught:
        await segments.table_put(TABLE, [TableUpdate(b"z", b""), TableUpdate(b"a", b"2", VERSION_ABSENT)])
    assert (caught.value.key, caught.value.expected) == (b"a", VERSION_ABSENT)
    with pytest.raises(TableKeyMissingError):
        await segments.table_put(TABLE, [TableUpdate(b"c", b"2", 7)])
    one, missing, empty = await segments.table_get(TABLE, [b"a", b"missing", b"b"])
    assert (one.value, one.version, missing, empty.value) == (b"1", versions[0], None, b"")  # type: ignore[union-attr]
    page = await segments.table_entries(TABLE, limit=10)
    assert sorted(entry.key for entry in page.entries) == [b"a", b"b"]
    assert not (await segments.table_entries(TABLE, limit=10, token=page.token)).entries
    delta = await segments.table_delta(TABLE, position=0, limit=10)
    assert sorted(entry.key for entry in delta.entries) == [b"a", b"b"]
    assert (await segments.table_info(TABLE)).entry_count == 2
    with pytest.raises(TableNotEmptyError):
        await segments.delete_table(TABLE, must_be_empty=True)
    await segments.table_remove(TABLE, [TableRemoval(b"a"), TableRemoval(b"b")])
    await segments.delete_table(TABLE, must_be_empty=True)
    with pytest.raises(NoSuchSegmentError):
        await segments.table_info(TABLE)


async def test_reads_are_repeated_when_the_connection_is_lost(cluster: Cluster, segments: WireSegments) -> None:
    await segments.create_segment(NAME)
    read = asyncio.create_task(segments.read(NAME, 0, 100, wait=True))
    for _ in range(3):
        await asyncio.sleep(0.02)
        cluster.store.drop_all()
    await asyncio.sleep(0.02)
    await segments.append(NAME, b"x")
    assert (await asyncio.wait_for(read, 60)).joined() == b"x"


async def test_lost_reply_of_a_change_is_an_unknown_outcome(cluster: Cluster, segments: WireSegments) -> None:
    await segments.create_table(TABLE)
    cluster.store.faults["drop_after_table_put"] = 1
    with pytest.raises(ConnectionLostError):
        await segments.table_put(TABLE, [TableUpdate(b"a", b"1")])
    (entry,) = await segments.table_get(TABLE, [b"a"])
    assert entry.value == b"1"  # type: ignore[union-attr]
    await segments.create_segment(NAME)
    cluster.store.faults["drop_after_append"] = 1
    with pytest.raises(OutcomeUnknownError):
        await segments.append(NAME, b"x")
    assert (await segments.segment_info(NAME)).length == 1


async def test_change_is_repeated_when_the_host_was_wrong(cluster: Cluster, segments: WireSegments) -> None:
    cluster.store.wrong_hosts.add(NAME)
    await segments.create_segment(NAME)
    assert cluster.controller.uri_requests == 2


async def test_an_unavailable_store_is_given_up_with_a_log_line(cluster: Cluster) -> None:
    cluster.store.refuses = True
    async with cluster.client(retry_time_max_s=0.1, connect_timeout_s=0.1) as client:
        with pytest.raises(ConnectionLostError) as caught:
            await client._segment_client.segment_info(NAME)
    assert "retry_time_max_s" in caught.value.__notes__[0]


async def test_a_closed_client_sends_no_requests(cluster: Cluster) -> None:
    async with cluster.client(retry_time_max_s=0.05) as client:
        segments = client._segment_client
    with pytest.raises(ConnectionLostError, match="closed"):
        await segments.segment_info(NAME)
    with pytest.raises(ClosedError):
        _ = client._segment_client


@pytest.mark.parametrize(
    ("reply", "error"),
    [
        (wire.WrongHost(1, NAME, "", ""), ContainerNotFoundError),
        (wire.SegmentIsSealed(1, NAME, "", 0), SegmentSealedError),
        (wire.OperationUnsupported(1, "Fly", ""), UnsupportedOperationError),
        (wire.AuthTokenCheckFailed(1, "", 0), TokenRefusedError),
        (wire.ErrorMessage(1, NAME, f"{wire.READ_TOO_LONG}20 MB", 0), TableReadTooLongError),
        (wire.ErrorMessage(1, NAME, "bad", 0), InvalidArgumentError),
        (wire.ErrorMessage(1, NAME, "bad", -1), PenstockError),
        (wire.SegmentSealed(1, NAME), type(None)),
    ],
)
def test_error_replies_have_their_types(reply: Reply, error: type[object]) -> None:
    assert type(error_of(reply, NAME)) is error
