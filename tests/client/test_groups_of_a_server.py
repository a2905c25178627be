"""Reader groups of the Python client with a whole server, in memory: what its controller knows and does of them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import penstock
from penstock.client.client import Client
from penstock.client.settings import ClientSettings
from penstock.model.errors import (
    NoSuchReaderGroupError,
    NoSuchScopeError,
    NoSuchSegmentError,
    ScopeNotEmptyError,
)
from penstock.model.names import reader_group_table
from penstock.testing import memory_server
from penstock_simulation.simulated.zookeeper import Server

FAST = ClientSettings(
    position_interval_s=0.05, reader_group_refresh_s=0.02, reader_group_publish_interval_s=0.05,
    reader_group_checkpoint_interval_s=0.05,
)  # fmt: skip


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with memory_server() as server:
        yield server


_names = iter(range(1_000_000))


@pytest.fixture
def scope() -> str:
    """A fresh scope."""
    return f"groups-{next(_names)}"


async def write(client: Client, stream: str, numbers: range) -> None:
    await client.create_stream(stream, exist_ok=True)
    async with client.event_writer(stream) as writer:
        for number in numbers:
            await writer.write(b"%d" % number, routing_key="k")


async def test_controller_keeps_the_scope_of_a_group_and_deletes_its_table(server: Server, scope: str) -> None:
    async with Client(server.uri, FAST) as client:
        await write(client, f"{scope}-data/orders", range(3))
        await client.create_scope(scope)
        group = await client.reader_group("audit", [f"{scope}-data/orders"], scope=scope)
        table = reader_group_table(scope, (await group._state()).group_id)
        assert (await client._segment_client.table_info(table)).entry_count == 2  # The record and its revision.
        assert [name async for name in client.reader_groups(scope)] == ["audit"]
        assert [name async for name in client.streams(scope)] == []
        with pytest.raises(ScopeNotEmptyError):
            await client.delete_scope(scope)
        # As a client does that knows of no table.
        await client._controller_client.delete_reader_group(scope, "audit", (await group._state()).group_id)
        with pytest.raises(NoSuchSegmentError):
            await client._segment_client.table_info(table)
        await client.delete_scope(scope)
        with pytest.raises(NoSuchReaderGroupError):
            await client.delete_reader_group("audit", scope=scope)


async def test_a_recursive_deletion_removes_a_scope_with_its_contents(server: Server, scope: str) -> None:
    """Streams, sealed or not, groups and tables, but not a scope with the same prefix. A missing one is an error."""
    async with Client(server.uri, FAST) as client:
        await write(client, f"{scope}/orders", range(3))
        await write(client, f"{scope}-2/orders", range(3))
        await client.create_stream(f"{scope}/sealed")
        await client.seal_stream(f"{scope}/sealed")
        await client.reader_group("audit", [f"{scope}/orders"])
        await client.create_table(f"{scope}/prices", key_length=8)
        with pytest.raises(ScopeNotEmptyError):
            await client.delete_scope(scope)
        await client.delete_scope(scope, recursive=True)
        assert scope not in [name async for name in client.scopes()]
        assert await client.stream_exists(f"{scope}-2/orders")
        with pytest.raises(NoSuchScopeError):
            await client.delete_scope(scope, recursive=True)
        await client.create_stream(f"{scope}/orders")
        assert list((await client.tail(f"{scope}/orders")).positions.values()) == [0]
        assert [name async for name in client.reader_groups(scope)] == []


async def test_a_group_of_a_recreated_scope_starts_from_the_beginning(server: Server, scope: str) -> None:
    async with Client(server.uri, FAST) as client:
        stream = f"{scope}-data/orders"
        await write(client, stream, range(5))
        for _ in range(2):
            await client.create_scope(scope)
            async with client.reader_group("audit", [stream], scope=scope) as group, group.reader("r") as reader:
                assert [(await reader.read(20)).data for _ in range(5)] == [b"%d" % number for number in range(5)]
            await client.delete_reader_group("audit", scope=scope)
            await client.delete_scope(scope)


def test_a_blocking_reader_leaves_the_failed_event_unread_however_it_ends(server: Server, scope: str) -> None:
    stream = f"{scope}/orders"
    with penstock.connect(server.uri, settings=FAST) as client:
        client.create_stream(stream)
        with client.event_writer(stream) as writer:
            for number in range(5):
                writer.write(b"%d" % number, routing_key="k")

        def by_block() -> None:
            with client.reader_group("audit", [stream]).reader("r") as reader:
                assert reader.read(20).data == b"0"
                raise KeyError("processing failed")

        def by_group() -> None:
            with client.reader_group("audit", [stream]) as group:
                reader = group.reader("r")
                assert reader.read(20).data == b"0"
                raise KeyboardInterrupt

        def by_finally() -> None:
            reader = client.reader_group("audit", [stream]).reader("r")
            try:
                assert reader.read(20).data == b"0"
                raise KeyError("processing failed")
            finally:
                reader.close()

        for way in (by_block, by_group, by_finally):
            with pytest.raises((KeyError, KeyboardInterrupt)):
                way()
        with client.reader_group("audit", [stream]) as group, group.reader("r", positions="manual") as reader:
            first = reader.read(20)
            assert (first.data, first.redelivery_count) == (b"0", 3)
            reader.commit(first)
            assert group.describe().unread_bytes == {stream: 36}
        with client.reader_group("audit", [stream]) as group, group.reader("r") as reader:
            assert [event.data for event in (reader.read(20) for _ in range(4))] == [b"1", b"2", b"3", b"4"]
