"""Memory of one connection's writers, and of decoded lists: counted, bounded for each connection and for all."""

from __future__ import annotations

import asyncio
import dataclasses
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from typing import get_type_hints

import pytest

from penstock.client.settings import ClientSettings
from penstock.client.transport.connection_pool import ConnectionPool
from penstock.client.transport.wire_segments import WireSegments
from penstock.model.errors import BadOffsetError
from penstock.segmentstore import request_memory
from penstock.segmentstore.request_memory import ELEMENT_BYTES, memory_of
from penstock.segmentstore.writer_budget import WRITER_BYTES, WriterBudget, WriterSlots
from penstock.wire import commands as wire_commands
from penstock.wire.commands import (
    BUSY,
    AppendBlockEnd,
    AppendSetup,
    AttributeUpdate,
    CreateTableSegment,
    DataAppended,
    DeleteSegment,
    MergeSegments,
    MergeSegmentsBatch,
    ReadTable,
    RemoveTableKeys,
    SegmentCreated,
    SetupAppend,
    TableEntriesUpdated,
    TableKey,
    TableKeyValue,
    UpdateTableEntries,
    WireCommand,
    WrongHost,
)
from penstock.wire.commands.base import Request
from support.containers import turns, until
from support.raw_wire import RawWire, block
from support.wire_service import CONNECTION, A, WireService

T = "s/table/0.#epoch.0"


@pytest.fixture
async def serve() -> AsyncIterator[Callable[..., Awaitable[WireService]]]:
    made: list[WireService] = []

    async def make(**changes: int) -> WireService:
        made.append(WireService(replace(CONNECTION, **changes)))  # type: ignore[arg-type]  # int fields get ints.
        await made[-1].start()
        return made[-1]

    yield make
    for service in made:
        await service.stop()


def writer(number: int) -> bytes:
    return number.to_bytes(16, "big")


async def set_up(wire: RawWire, number: int, segment: str = A) -> WireCommand | None:
    wire.send(SetupAppend(number, writer(number), segment, ""))
    return await wire.receive()


async def test_a_connection_with_more_writers_than_it_may_have_is_closed(
    serve: Callable[..., Awaitable[WireService]],
) -> None:
    """It comes back with those it still uses; nothing of it is left, and others are served."""
    service = await serve(writer_bytes_max=4 * WRITER_BYTES)
    wire, other = await service.connect(), await service.connect()
    for number in range(4):
        assert isinstance(await set_up(wire, number), AppendSetup)
    assert service.server.writers.used_bytes == 4 * WRITER_BYTES
    assert await set_up(wire, 4) is None
    await until(lambda: service.server.writers.used_bytes == 0)
    assert isinstance(await set_up(other, 4), AppendSetup)


async def test_writers_of_all_connections_have_one_bound_and_none_takes_it_all(
    serve: Callable[..., Awaitable[WireService]],
) -> None:
    """More than is free is refused as busy; the writers of that connection continue, and so do those of others."""
    service = await serve(writers_bytes_max=8 * WRITER_BYTES)
    wires = [await service.connect() for _ in range(3)]
    counts = []
    for at, wire in enumerate(wires):
        count = 0
        while isinstance(reply := await set_up(wire, 100 * at + count), AppendSetup):
            count += 1
        assert isinstance(reply, WrongHost)
        assert reply.stack.startswith(BUSY)
        assert "writers_bytes_max" in reply.stack
        counts.append(count)
    assert counts == [4, 2, 1]
    for at, wire in enumerate(wires):
        wire.send(block(writer(100 * at), 1, b"x"))
        await wire.expect(DataAppended)
    await wires[0].close()
    await until(lambda: service.server.writers.used_bytes == 3 * WRITER_BYTES)
    assert isinstance(await set_up(wires[1], 190), AppendSetup)


async def test_set_ups_that_wait_for_the_log_count(serve: Callable[..., Awaitable[WireService]]) -> None:
    """They had no bound: a client could send them without end while a log stood still."""
    service = await serve(writer_bytes_max=50 * WRITER_BYTES, writers_bytes_max=20 * WRITER_BYTES)
    wire, appending = await service.connect(), await service.connect()
    assert isinstance(await set_up(appending, 1), AppendSetup)
    service.logs.hold_appends(0)
    appending.send(block(writer(1), 1, b"x"))
    await turns(20)
    for number in range(2, 1000):
        wire.send(SetupAppend(number, writer(number), A, ""))
    replies = [await wire.expect(WrongHost) for _ in range(998 - 10)]
    assert all(reply.stack.startswith(BUSY) for reply in replies)
    assert service.server.writers.used_bytes == 11 * WRITER_BYTES
    service.logs.release_appends(0)
    for _ in range(10):
        await wire.expect(AppendSetup)


@pytest.mark.parametrize("concurrent", [1, 3])
async def test_single_appends_of_a_client_do_not_reach_the_bound(
    serve: Callable[..., Awaitable[WireService]], concurrent: int
) -> None:
    """The store closed the connection, and other appends were lost: each append had a writer of its own.

    Later only each one at a time used a writer again: most of those that were sent concurrently did not.
    """
    service = await serve(writer_bytes_max=4 * WRITER_BYTES)

    async def resolve(segment: str) -> tuple[str, int]:
        return "127.0.0.1", service.server.port

    pool = ConnectionPool(resolve, ClientSettings())
    segments = WireSegments(pool, ClientSettings(), random.Random(1))
    try:
        for end in range(concurrent, 20 * concurrent + 1, concurrent):
            ends = await asyncio.gather(*(segments.append(A, b"x") for _ in range(concurrent)))
            assert max(ends) == end
            with pytest.raises(BadOffsetError):
                await segments.append(A, b"x", expected_offset=0)
        assert await segments.append(A, b"x", expected_offset=end) == end + 1
        assert service.server.writers.used_bytes == concurrent * WRITER_BYTES
    finally:
        await pool.close()


async def test_a_writer_that_is_set_up_again_counts_once(serve: Callable[..., Awaitable[WireService]]) -> None:
    service = await serve(writer_bytes_max=4 * WRITER_BYTES)
    wire = await service.connect()
    for _ in range(20):
        assert isinstance(await set_up(wire, 7), AppendSetup)
    wire.send(*(SetupAppend(number, writer(7), A, "") for number in range(3)))
    for _ in range(3):
        await wire.expect(AppendSetup)
    assert service.server.writers.used_bytes == WRITER_BYTES


async def test_writers_whose_segments_are_gone_make_room(serve: Callable[..., Awaitable[WireService]]) -> None:
    """A client that writes transaction after transaction over one connection is never disconnected for it."""
    service = await serve(writer_bytes_max=4 * WRITER_BYTES)
    wire = await service.connect()
    assert isinstance(await set_up(wire, 1000), AppendSetup)
    for number in range(3):
        name = f"{A}#transaction.{number:032x}"
        await service.store.create_segment(name)
        assert isinstance(await set_up(wire, number, name), AppendSetup)
        wire.send(DeleteSegment(1, name, ""))
        assert type(await wire.receive()).__name__ == "SegmentDeleted"
    assert isinstance(await set_up(wire, 3), AppendSetup)
    assert service.server.writers.used_bytes == 2 * WRITER_BYTES
    wire.send(block(writer(1000), 1, b"x"))
    await wire.expect(DataAppended)


def test_slots_are_given_back_once() -> None:
    budget = WriterBudget(100 * WRITER_BYTES, 10 * WRITER_BYTES)
    slots, other = WriterSlots(budget), WriterSlots(budget)
    assert all(slots.take() for _ in range(10))
    assert not slots.take()
    assert slots.is_share_used_up
    assert other.take()
    slots.give_back(2)
    slots.close()
    slots.close()
    assert budget.used_bytes == WRITER_BYTES
    assert budget.refused_count == 1


@pytest.mark.parametrize(
    "command",
    [
        ReadTable(1, T, "", [TableKey(b"k", -1)] * 500),
        RemoveTableKeys(1, T, "", [TableKey(b"k", -1)] * 500, -1),
        UpdateTableEntries(1, T, "", [TableKeyValue(b"k", -1, b"v")] * 500, -1),
        MergeSegments(1, A, "s/u/0.#epoch.0", "", [AttributeUpdate(b"a" * 16, 1, 1, 1)] * 500),
        MergeSegmentsBatch(1, A, ["s"] * 500, ""),
    ],
    ids=lambda command: type(command).__name__,
)
def test_each_element_of_a_list_counts(command: WireCommand) -> None:
    assert memory_of(command, 10_000) >= 10_000 + 500 * ELEMENT_BYTES


async def test_decoded_entries_count_as_long_as_their_request_is_under_way(
    serve: Callable[..., Awaitable[WireService]],
) -> None:
    """From the moment at which they are decoded: what one read of a socket brings is many requests."""
    service = await serve()
    wire = await service.connect()
    await wire.ask(CreateTableSegment(1, T, sorted_deprecated=False, key_length=0, token=""), SegmentCreated)
    service.logs.hold_appends(0)
    entries = [TableKeyValue(number.to_bytes(2, "big"), -1, b"v") for number in range(1000)]
    wire.send(UpdateTableEntries(1, T, "", entries, -1))
    await until(lambda: service.server.budget.used_bytes >= 1000 * ELEMENT_BYTES)
    service.logs.release_appends(0)
    await wire.expect(TableEntriesUpdated)
    await until(lambda: service.server.budget.used_bytes == 0)


def test_every_request_with_a_list_is_known() -> None:
    """A new command with a list must say what it takes."""
    kinds = [
        kind
        for kind in vars(wire_commands).values()
        if isinstance(kind, type) and issubclass(kind, Request) and dataclasses.is_dataclass(kind)
    ]
    with_lists = {kind for kind in kinds if "Sequence" in str([*get_type_hints(kind).values()])}
    assert len(kinds) > 20
    # Of an append the list is the parts of one block, and counts with its bytes.
    assert with_lists - {AppendBlockEnd} == set(request_memory._COUNTS)
