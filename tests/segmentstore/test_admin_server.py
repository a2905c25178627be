"""The administrator's port: what it answers, whom, and what clients' ports do not. SS-n: docs/spec/segment-store.md."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from penstock.model.errors import InvalidArgumentError
from penstock.model.routing import container_of
from penstock.model.segments import TableUpdate
from penstock.segmentstore.admin_server import AdminServer, allow_all
from penstock.segmentstore.server import SegmentStoreServer
from penstock.segmentstore.settings import AdminSettings, SegmentStoreSettings
from penstock.segmentstore.store import SegmentStore
from penstock.segmentstore.tier1.memory_log import MemoryLogFactory
from penstock.wire.codec import encode
from penstock.wire.commands import (
    ErrorMessage,
    FlushToStorage,
    GetStreamSegmentInfo,
    Hello,
    KeepAlive,
    ListStorageChunks,
    NoSuchSegment,
    OperationUnsupported,
    StorageChunksListed,
    StorageFlushed,
    WrongHost,
)
from support.containers import QUIET, FaultyChunks, memory_runtime, until
from support.raw_wire import RawWire

A = "s/t/0.#epoch.0"
ADMIN = AdminSettings(is_enabled=True, port=0, connections_max=2)


class Bench:
    """A store, its port for clients, and that for administrators."""

    def __init__(self, container_ids: tuple[int, ...]) -> None:
        self.runtime = memory_runtime()
        self.chunks = FaultyChunks()
        container = replace(QUIET, flush_bytes=300, rollover_bytes_min=400)
        settings = SegmentStoreSettings(container_count=2, container=container, admin=ADMIN)
        self.store = SegmentStore(
            logs=MemoryLogFactory(self.runtime),
            chunks=self.chunks,
            runtime=self.runtime,
            settings=settings,
            container_ids=container_ids,
        )
        self.server = SegmentStoreServer(self.store)
        self.admin = AdminServer(self.store)

    async def __aenter__(self) -> Bench:
        await self.store.start()
        await self.server.start("127.0.0.1", 0)
        await self.admin.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.chunks.heal()
        await self.admin.stop()
        await self.server.stop()
        await self.store.stop()
        await self.runtime.work.close()

    def unflushed_bytes(self) -> int:
        segments = [segment for container in self.store.containers for segment in container.segments()]
        return sum(segment.durable_length - segment.storage_length for segment in segments if not segment.is_system)


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    async with Bench((0, 1)) as made:
        yield made


async def test_a_flush_returns_when_all_that_came_before_is_in_storage(bench: Bench) -> None:
    """SS-263: while others continue writing."""
    for number in range(4):
        await bench.store.create_segment(f"s/t/{number}.#epoch.0")
        await bench.store.append(f"s/t/{number}.#epoch.0", bytes(1000))
    wire = await RawWire.open(bench.admin.port)
    bench.chunks.hold("write")
    wire.send(FlushToStorage(0, "", 7), FlushToStorage(1, "", 8))
    await until(lambda: bench.chunks.calls["write"] > 0)
    await bench.store.append("s/t/0.#epoch.0", bytes(10))
    assert bench.unflushed_bytes() == 4010
    bench.chunks.release("write")
    assert (await wire.expect(StorageFlushed)).request_id == 7
    assert (await wire.expect(StorageFlushed)).request_id == 8
    assert bench.unflushed_bytes() <= 10
    await wire.close()


async def test_chunks_are_listed_with_both_lengths(bench: Bench) -> None:
    """SS-264: sums equal the length, garbage behind a chunk shows, a missing chunk is flagged."""
    await bench.store.create_segment(A, rollover_bytes=400)
    wire = await RawWire.open(bench.admin.port)
    assert (await wire.ask(ListStorageChunks(A, "", 1), StorageChunksListed)).chunks == ()
    for _ in range(3):
        await bench.store.append(A, bytes(400))
        for container in bench.store.containers:
            await container.flush()
    chunks = (await wire.ask(ListStorageChunks(A, "", 2), StorageChunksListed)).chunks
    assert sum(chunk.length_in_metadata for chunk in chunks) == (await bench.store.segment_info(A)).length == 1200
    assert [chunk.start_offset for chunk in chunks] == [0, 400, 800]
    assert all(chunk.exists_in_storage and chunk.length_in_storage == 400 for chunk in chunks)
    await bench.chunks.delete(chunks[1].chunk_name)
    await bench.chunks.write(chunks[2].chunk_name, 400, [b"garbage"])
    damaged = (await wire.ask(ListStorageChunks(A, "", 3), StorageChunksListed)).chunks
    assert [(chunk.length_in_storage, chunk.exists_in_storage) for chunk in damaged] == [
        (400, True),
        (0, False),
        (407, True),
    ]
    assert [chunk.length_in_metadata for chunk in damaged] == [400, 400, 400]
    await wire.close()


async def test_the_containers_own_segments_are_listed_by_number(bench: Bench) -> None:
    """SS-3: by the number in their names, which clients' requests are not."""
    await bench.store.create_table("s/_tables/a")
    await bench.store.table_put("s/_tables/a", [TableUpdate(b"k", bytes(1000))])
    wire = await RawWire.open(bench.admin.port)
    lengths = []
    for container in bench.store.containers:
        await container.flush()
        name = f"_system/containers/storage_metadata_{container.id}"
        chunks = (await wire.ask(ListStorageChunks(name, "", 1), StorageChunksListed)).chunks
        lengths.append(sum(chunk.length_in_metadata for chunk in chunks))
        assert lengths[-1] == container.segment(name).storage_length
    assert any(lengths)
    await wire.close()


async def test_clients_are_refused_what_administrators_may(bench: Bench) -> None:
    """SS-265: on the port of clients; their connection stays."""
    wire = await RawWire.open(bench.server.port)
    for command, name in (
        (FlushToStorage(0, "", 4), "FlushToStorage"),
        (ListStorageChunks(A, "", 4), "ListStorageChunks"),
    ):
        reply = await wire.ask(command, OperationUnsupported)
        assert (reply.request_id, reply.operation_name) == (4, name)
    await wire.ask(KeepAlive(), KeepAlive)
    await wire.close()


async def test_administrators_are_refused_what_clients_may(bench: Bench) -> None:
    wire = await RawWire.open(bench.admin.port)
    reply = await wire.ask(GetStreamSegmentInfo(9, A, ""), OperationUnsupported)
    assert (reply.request_id, reply.operation_name) == (9, "GetStreamSegmentInfo")
    await wire.ask(KeepAlive(), KeepAlive)
    await wire.close()


async def test_a_gateway_that_is_off_has_no_port(bench: Bench) -> None:
    """SS-265: off is the default."""
    assert not AdminSettings().is_enabled
    server = AdminServer(bench.store, settings=AdminSettings())
    await server.start()
    assert server.port == 0
    await server.stop()


async def test_what_is_not_here_is_said() -> None:
    """Another store's container, no container at all, no segment."""
    async with Bench((0,)) as bench:
        wire = await RawWire.open(bench.admin.port)
        await wire.ask(FlushToStorage(1, "", 1), WrongHost)
        assert (await wire.ask(FlushToStorage(2, "", 1), ErrorMessage)).error_code == 0
        assert (await wire.ask(FlushToStorage(-1, "", 1), ErrorMessage)).error_code == 0
        missing = next(
            name for name in (f"s/t{number}/0.#epoch.0" for number in range(100)) if container_of(name, 2) == 0
        )
        assert (await wire.ask(ListStorageChunks(missing, "", 1), NoSuchSegment)).segment == missing
        await wire.close()


async def test_tokens_are_asked_about(bench: Bench) -> None:
    def only_root(token: str) -> None:
        if token != "root":
            raise InvalidArgumentError("this token does not allow administration")

    server = AdminServer(bench.store, authorise=only_root)
    await server.start()
    wire = await RawWire.open(server.port)
    await wire.ask(FlushToStorage(0, "unknown", 1), ErrorMessage)
    await wire.ask(FlushToStorage(0, "root", 1), StorageFlushed)
    await wire.close()
    await server.stop()
    allow_all("anything")


async def test_storage_that_fails_ends_the_connection(bench: Bench) -> None:
    """As for clients: it may pass, and must be tried again."""
    await bench.store.create_segment(A)
    await bench.store.append(A, bytes(1000))
    wire = await RawWire.open(bench.admin.port)
    bench.chunks.fail("write", times=100)
    wire.send(FlushToStorage(0, "", 1), FlushToStorage(1, "", 2))
    replies = [await wire.receive(), await wire.receive()]
    assert None in replies


@pytest.mark.parametrize(
    "data",
    [
        encode(KeepAlive()),
        encode(Hello(4, 4)),
        struct.pack(">ii", 99999, 0),
        encode(Hello(17, 5)) + struct.pack(">ii", -3, 1 << 20),
        encode(Hello(17, 5)) + struct.pack(">ii", -3, -1),
        encode(Hello(17, 5)) + struct.pack(">ii", -3, 2) + b"xx",
    ],
)
async def test_what_is_not_the_protocol_closes_the_connection(bench: Bench, data: bytes) -> None:
    wire = await RawWire.open(bench.admin.port, greet=False)
    wire.writer.write(data)
    while (await wire.receive()) is not None:
        pass
    await wire.close()


async def test_half_a_request_does_not_keep_a_connection_forever(bench: Bench) -> None:
    """Two of them would shut all other administrators out. Saying nothing between two requests is fine."""
    slow = AdminServer(bench.store, settings=replace(ADMIN, frame_timeout_s=0.05))
    await slow.start()
    quiet = await RawWire.open(slow.port)
    for half in (b"\xff", struct.pack(">ii", -3, 100), struct.pack(">ii", -3, 100) + b"x"):
        wire = await RawWire.open(slow.port)
        wire.writer.write(half)
        assert await wire.receive() is None
        await wire.close()
    quiet.send(KeepAlive())
    assert await quiet.receive() == KeepAlive()
    await quiet.close()
    await slow.stop()


async def test_connections_are_bounded(bench: Bench) -> None:
    first, second = await RawWire.open(bench.admin.port), await RawWire.open(bench.admin.port)
    third = await RawWire.open(bench.admin.port, greet=False)
    assert await third.receive() is None
    await first.close()
    await until(lambda: len(bench.admin._connections) == 1)
    await (await RawWire.open(bench.admin.port)).close()
    await second.close()
    await asyncio.sleep(0)


async def test_a_taken_port_is_an_error(bench: Bench) -> None:
    second = AdminServer(bench.store, settings=replace(ADMIN, port=bench.admin.port))
    with pytest.raises(InvalidArgumentError, match="address already in use"):
        await second.start()
    await second.stop()
