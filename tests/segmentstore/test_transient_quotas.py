"""A client that makes transient segments without end, over a real socket: it gets "busy", others are served."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from penstock.model.errors import NoSuchSegmentError, SegmentExistsError
from penstock.segmentstore.container_settings import TransientSettings
from penstock.wire.commands import (
    BUSY,
    AppendSetup,
    CreateSegment,
    CreateTableSegment,
    CreateTransientSegment,
    DataAppended,
    DeleteSegment,
    ErrorMessage,
    Hello,
    MergeSegments,
    MergeSegmentsBatch,
    SegmentAlreadyExists,
    SegmentCreated,
    SegmentDeleted,
    SegmentsBatchMerged,
    SegmentsMerged,
    SetupAppend,
    WrongHost,
)
from support.containers import QUIET, until
from support.raw_wire import RawWire, block
from support.wire_service import CONNECTION, A, W, WireService

LIMIT = 4


@pytest.fixture
async def service() -> AsyncIterator[WireService]:
    """A store with twenty slots, half of them for transient segments, four of one connection."""
    made = WireService(
        replace(CONNECTION, transient_segments_max=LIMIT),
        container=replace(QUIET, active_segments_max=20, transients=TransientSettings(share_percent_max=50)),
    )
    await made.start()
    yield made
    await made.stop()


async def make(wire: RawWire) -> str:
    return (await wire.ask(CreateTransientSegment(1, W, A, ""), SegmentCreated)).segment


async def is_busy(wire: RawWire) -> WrongHost:
    """Ask for one more, which must be refused as busy; return the reply."""
    reply = await wire.ask(CreateTransientSegment(9, W, A, ""), WrongHost)
    assert reply.request_id == 9
    assert reply.stack.startswith(BUSY)
    return reply


async def connect_from(service: WireService, host: str) -> RawWire:
    """Connect from another address of this machine, as from another host."""
    service.wires.append(
        RawWire(*await asyncio.open_connection("127.0.0.1", service.server.port, local_addr=(host, 0)))
    )
    await service.wires[-1].ask(Hello(16, 5), Hello)
    return service.wires[-1]


async def test_transients_without_end_are_refused_and_the_connection_continues(service: WireService) -> None:
    wire, other = await service.connect(), await service.connect()
    wire.send(*(CreateTransientSegment(number, W, A, "") for number in range(100)))
    kinds = Counter([type(await wire.receive()).__name__ for _ in range(100)])
    assert kinds == {"SegmentCreated": LIMIT, "WrongHost": 100 - LIMIT}
    assert "transient_segments_max" in (await is_busy(wire)).stack
    # The same connection, and another one, are served as before.
    await wire.ask(SetupAppend(1, W, A, ""), AppendSetup)
    wire.send(block(W, 1, b"event"))
    await wire.expect(DataAppended)
    await make(other)


async def test_many_connections_together_leave_the_slots_of_other_segments(service: WireService) -> None:
    """Five hosts want all slots. What they may not take, creations and finds of others have."""
    wires = [await connect_from(service, f"127.0.0.{number}") for number in range(1, 6)]
    replies = []
    for wire in wires:
        wire.send(*(CreateTransientSegment(number, W, A, "") for number in range(30)))
        replies += [await wire.receive() for _ in range(30)]
    assert sum(isinstance(reply, SegmentCreated) for reply in replies) == 10
    assert sum(isinstance(reply, WrongHost) for reply in replies) == 140
    other = await service.connect()
    for number in range(40):
        await other.ask(CreateSegment(number, f"s/u{number}/0.#epoch.0", 0, 0, ""), SegmentCreated)
    for number in range(40):
        await other.ask(SetupAppend(number, bytes([number]) * 16, f"s/u{number}/0.#epoch.0", ""), AppendSetup)
    for wire in wires:
        await wire.close()
    metadata = service.store.container(A).state.metadata
    await until(lambda: metadata.transient_count == 0)


async def test_what_was_merged_or_deleted_does_not_count(service: WireService) -> None:
    wire = await service.connect()
    names = [await make(wire) for _ in range(LIMIT)]
    await is_busy(wire)
    await wire.ask(MergeSegments(1, A, names[0], "", ()), SegmentsMerged)
    await make(wire)
    await is_busy(wire)
    await wire.ask(DeleteSegment(1, names[1], ""), SegmentDeleted)
    await make(wire)
    await is_busy(wire)
    await wire.ask(MergeSegmentsBatch(1, A, names[2:4], ""), SegmentsBatchMerged)
    await make(wire)
    await make(wire)
    await is_busy(wire)


async def test_what_others_have_deleted_does_not_count(service: WireService) -> None:
    """As the container does with idle ones: the connection finds out when its limit is reached."""
    wire = await service.connect()
    names = [await make(wire) for _ in range(LIMIT)]
    for name in names:
        await service.store.delete_segment(name)
    await make(wire)


async def test_a_creation_that_fails_does_not_count(service: WireService) -> None:
    wire = await service.connect()
    for number in range(2 * LIMIT):
        wire.send(CreateTransientSegment(number, W, "s/missing/0.#epoch.0", ""))
        reply = await wire.receive()
        assert type(reply).__name__ == "NoSuchSegment"
    for _ in range(LIMIT):
        await make(wire)


async def test_names_of_transient_segments_count_however_they_are_made(service: WireService) -> None:
    """By a plain creation, too; and no table has such a name. What another connection has made stays with that one."""
    wire, other = await service.connect(), await service.connect()
    theirs = await make(other)
    await wire.ask(CreateSegment(1, theirs, 0, 0, ""), SegmentAlreadyExists)
    names = [f"{A}#transient.{1:032x}.{number:032x}" for number in range(LIMIT + 1)]
    for name in names[:LIMIT]:
        await wire.ask(CreateSegment(1, name, 0, 0, ""), SegmentCreated)
    reply = await wire.ask(CreateSegment(1, names[LIMIT], 0, 0, ""), WrongHost)
    assert reply.stack.startswith(BUSY)
    table = CreateTableSegment(1, names[LIMIT], sorted_deprecated=False, key_length=0, token="")
    refused = await wire.ask(table, ErrorMessage)
    assert "cannot be a table" in refused.message
    await wire.close()
    await until(lambda: service.store.container(A).state.metadata.transient_count == 1)
    await service.store.segment_info(theirs)
    with pytest.raises(SegmentExistsError):
        await service.store.create_segment(theirs)


async def test_all_transients_of_a_lost_connection_go_though_one_cannot(service: WireService) -> None:
    """Segments that cannot be deleted are left to the container, which deletes idle ones; the others go at once."""
    wire = await service.connect()
    names = [await make(wire) for _ in range(LIMIT)]
    delete = service.store.delete_segment

    async def refuse(segment: str) -> None:
        if segment == names[0]:
            raise SegmentExistsError(segment)
        await delete(segment)

    service.store.delete_segment = refuse  # type: ignore[method-assign]  # A fault of one of them.
    await wire.close()
    metadata = service.store.container(A).state.metadata
    await until(lambda: metadata.transient_count == 1)
    await service.store.segment_info(names[0])
    with pytest.raises(NoSuchSegmentError):
        await service.store.segment_info(names[1])


async def test_a_full_container_answers_busy_and_keeps_the_connection(service: WireService) -> None:
    """All slots in use by segments of any kind: creations and set-ups must be tried again, on the same connection."""
    wire = await service.connect()
    container = service.store.container(A)
    names = [f"s/f{number}/0.#epoch.0" for number in range(30)]
    for name in names[:25]:
        await wire.ask(CreateSegment(1, name, 0, 0, ""), SegmentCreated)
    for segment in container.segments():
        segment.use_count += 1
    while container.state.metadata.active_count < 20:
        (await container.create(names.pop())).use_count += 1
    away = next(name for name in names[:25] if name not in container.state.metadata.by_name)
    for request in (
        CreateSegment(1, names[26], 0, 0, ""),
        SetupAppend(1, W, away, ""),
        CreateTransientSegment(1, W, A, ""),
    ):
        reply = await wire.ask(request, WrongHost)
        assert reply.stack.startswith(BUSY), request
        assert "20 segments are active" in reply.stack
    for segment in container.segments():
        segment.use_count -= 1
    await wire.ask(CreateSegment(1, names[26], 0, 0, ""), SegmentCreated)
    await wire.ask(SetupAppend(1, W, away, ""), AppendSetup)


async def test_a_host_with_many_connections_leaves_a_share_to_other_hosts(service: WireService) -> None:
    """Of the ten of the container: half for the first host, however many connections it has, a part for each other."""
    wires = [await service.connect() for _ in range(5)]
    for wire in wires:
        wire.send(*(CreateTransientSegment(number, W, A, "") for number in range(30)))
    replies = [await wire.receive() for wire in wires for _ in range(30)]
    assert sum(isinstance(reply, SegmentCreated) for reply in replies) == 5
    assert "client host 127.0.0.1 has 5" in (await is_busy(wires[-1])).stack
    second, third = await connect_from(service, "127.0.0.2"), await connect_from(service, "127.0.0.3")
    for count, wire in ((3, second), (1, third)):
        for _ in range(count):
            await make(wire)
        await is_busy(wire)
    # What the first host gives back is free for all.
    for wire in wires:
        await wire.close()
    await until(lambda: service.store.container(A).state.metadata.transient_count == 4)
    await make(third)
    for wire in (second, third):
        await wire.close()
    hosts = service.server.transients
    await until(lambda: not hosts._counts and not hosts._reviews)


async def test_what_is_merged_over_another_connection_frees_the_share_of_its_host(service: WireService) -> None:
    wires = [await service.connect() for _ in range(2)]
    names = [await make(wires[0]) for _ in range(3)] + [await make(wires[1]) for _ in range(2)]
    await is_busy(wires[1])
    other = await connect_from(service, "127.0.0.2")
    await other.ask(DeleteSegment(1, names[0], ""), SegmentDeleted)
    await make(wires[1])
