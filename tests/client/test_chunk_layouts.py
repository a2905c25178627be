"""Layouts of chunks over the wire: content, how long a lease keeps it, what is refused, and when none is given."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from penstock.client.settings import ClientSettings
from penstock.client.transport.chunk_layouts import ChunkLayouts, SegmentLayout
from penstock.client.transport.connection_pool import ConnectionPool, Purpose
from penstock.model.block_checksums import verify_blocks
from penstock.model.errors import (
    ConnectionLostError,
    InvalidArgumentError,
    NoSuchSegmentError,
    OutcomeUnknownError,
    PenstockError,
    ProtocolError,
    SegmentTruncatedError,
    TooManyLeasesError,
    UnsupportedOperationError,
)
from penstock.model.routing import container_of
from penstock.segmentstore import chunk_layouts
from penstock.segmentstore.container_settings import GarbageSettings
from penstock.segmentstore.server import SegmentStoreServer
from penstock.segmentstore.settings import SegmentStoreSettings
from penstock.segmentstore.store import SegmentStore
from penstock.segmentstore.tier1.memory_log import MemoryLogFactory
from penstock.wire.chunk_layouts import (
    VERSION,
    ChunkRow,
    LayoutPage,
    LayoutQuery,
    StorageTold,
    decode_layout_page,
    encode_layout,
)
from penstock.wire.codec import encode
from penstock.wire.commands import (
    ChunkLayoutTold,
    ErrorMessage,
    GetChunkLayout,
    Hello,
    KeepAlive,
    WrongHost,
)
from support.containers import QUIET, FaultyChunks, memory_runtime
from support.raw_wire import RawWire

A = "s/t/0.#epoch.0"
#: A chunk of it.
CHUNK_BYTES = 700
BLOCK_BYTES = 256 * 1024
SETTINGS = SegmentStoreSettings(
    container_count=2,
    container=replace(
        QUIET,
        flush_bytes=1 << 40,
        rollover_bytes_min=CHUNK_BYTES,
        garbage=GarbageSettings(delay_s=0.0, leases_max=2, lease_s_max=50.0),
    ),
)
CLIENT = ClientSettings(layout_timeout_s=30.0)


class Bench:
    """Stores over the same logs and chunks, one of which runs all containers, and a client of its layouts."""

    def __init__(self) -> None:
        self.runtime = memory_runtime()
        self.logs = MemoryLogFactory(self.runtime)
        self.chunks = FaultyChunks()
        self.stops: list[object] = []
        self.port = 0
        self.store: SegmentStore
        self.pool = ConnectionPool(self.resolve, CLIENT)
        self.layouts = ChunkLayouts(self.pool, CLIENT, self.runtime.rng)

    async def resolve(self, segment: str) -> tuple[str, int]:
        return "127.0.0.1", self.port

    async def begin(self, *, containers: tuple[int, ...] = (0, 1)) -> None:
        """Run a store; the earlier one, if there is one, is shut out and continues listening."""
        self.store = SegmentStore(
            logs=self.logs, chunks=self.chunks, runtime=self.runtime, settings=SETTINGS, container_ids=containers
        )
        await self.store.start()
        server = SegmentStoreServer(self.store)
        await server.start("127.0.0.1", 0)
        self.port = server.port
        self.stops += [server, self.store]

    async def stop(self) -> None:
        await self.pool.close()
        for each in self.stops:
            await each.stop()  # type: ignore[attr-defined]
        await self.runtime.work.close()

    async def flush(self) -> None:
        for container in self.store.containers:
            await container.flush()

    async def fill(self, count: int, *, length: int = CHUNK_BYTES) -> bytes:
        """Write `count` chunks of a segment, and a tail that long-term storage does not have; return it all."""
        await self.store.create_segment(A, rollover_bytes=length)
        data = b"".join(bytes([number + 1]) * length for number in range(count))
        for number in range(count):
            await self.store.append(A, data[number * length : (number + 1) * length])
            await self.flush()
        await self.store.append(A, b"tail")
        return data + b"tail"

    async def read(self, layout: SegmentLayout) -> bytes:
        """Read what a layout says, verified, chunk by chunk."""
        found = b""
        for chunk in layout.chunks:
            first = chunk.first_block * chunk.block_length
            count = len(chunk.checksums) // 4
            last = min(chunk.length, first + count * chunk.block_length)
            data = await self.chunks.read(chunk.name, first, last - first)
            assert len(data) == last - first
            checksums = struct.unpack(f">{count}I", chunk.checksums)
            verify_blocks(
                chunk.name, first, data, checksums, block_length=chunk.block_length, first_block=chunk.first_block
            )
            at = layout.start + len(found)
            found += data[at - chunk.start_offset - first :]
        return found[: layout.end - layout.start]

    def leases(self) -> int:
        return sum(len(container.storage._user.garbage.leases) for container in self.store.containers)

    async def chunk_count(self) -> int:
        return len(await self.chunks.list("s/"))

    async def collect(self) -> None:
        for container in self.store.containers:
            await container.storage._user.garbage.collect()


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    made = Bench()
    await made.begin()
    yield made
    await made.stop()


@pytest.mark.parametrize(("start", "end"), [(0, 1 << 60), (0, 1), (699, 701), (1400, 1401), (650, 2100), (0, 2104)])
async def test_a_layout_says_where_the_flushed_bytes_of_a_range_are(bench: Bench, start: int, end: int) -> None:
    data = await bench.fill(3)
    layout = await bench.layouts.ask(A, start, end)
    assert (layout.start, layout.end, layout.lease) == (start, min(end, 2100), None)
    assert await bench.read(layout) == data[start : min(end, 2100)]
    # Clipped: no chunk that has none of it.
    assert len(layout.chunks) == (min(end, 2100) - 1) // CHUNK_BYTES - start // CHUNK_BYTES + 1
    assert layout.storage.identity == await bench.chunks.read_identity()


async def test_a_layout_has_only_the_checksums_of_the_requested_range(bench: Bench) -> None:
    data = await bench.fill(1, length=5 * BLOCK_BYTES + 10)
    layout = await bench.layouts.ask(A, 2 * BLOCK_BYTES - 1, 3 * BLOCK_BYTES + 1)
    (chunk,) = layout.chunks
    assert (chunk.first_block, len(chunk.checksums), chunk.length) == (1, 12, 5 * BLOCK_BYTES + 10)
    assert await bench.read(layout) == data[2 * BLOCK_BYTES - 1 : 3 * BLOCK_BYTES + 1]
    layout = await bench.layouts.ask(A, 5 * BLOCK_BYTES + 3, 1 << 40)
    assert await bench.read(layout) == data[5 * BLOCK_BYTES + 3 : -4]


async def test_unflushed_data_has_no_layout_and_takes_no_lease(bench: Bench) -> None:
    await bench.fill(0)
    for start, end in ((0, 100), (4, 4), (100, 200)):
        layout = await bench.layouts.ask(A, start, end, lease_s=10.0)
        assert (layout.end, layout.chunks, layout.lease) == (start, (), None)
    assert bench.leases() == 0


async def test_a_truncated_start_is_refused_even_if_nothing_is_stored(bench: Bench) -> None:
    await bench.fill(0)
    bench.chunks.hold("write")  # A truncation wakes the storage writer.
    await bench.store.truncate_segment(A, 2)
    with pytest.raises(SegmentTruncatedError):
        await bench.layouts.ask(A, 0, 100)
    bench.chunks.release("write")


async def test_long_layouts_come_in_pages_under_one_lease(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    data = await bench.fill(7)
    monkeypatch.setattr(chunk_layouts, "PAGE_CHUNKS_MAX", 2)
    layout = await bench.layouts.ask(A, 10, 1 << 40, lease_s=10.0)
    assert (len(layout.chunks), layout.end, bench.leases()) == (7, 4900, 1)
    assert await bench.read(layout) == data[10:-4]
    # More than one may have: the rest is the store's.
    few = ChunkLayouts(bench.pool, replace(CLIENT, layout_chunk_count_max=3), bench.runtime.rng)
    layout = await few.ask(A, 10, 1 << 40)
    assert (len(layout.chunks), layout.end) == (3, 2100)


async def test_the_checksums_of_a_very_long_chunk_come_in_pages(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    data = await bench.fill(1, length=5 * BLOCK_BYTES)
    monkeypatch.setattr(chunk_layouts, "PAGE_CHECKSUMS_MAX", 2)
    layout = await bench.layouts.ask(A, 3, 1 << 40)
    assert [chunk.first_block for chunk in layout.chunks] == [0, 2, 4]
    assert await bench.read(layout) == data[3:-4]


async def test_leased_chunks_survive_truncation_and_deletion(bench: Bench) -> None:
    """SS-255, SS-257."""
    data = await bench.fill(3)
    layout = await bench.layouts.ask(A, 0, 1 << 40, lease_s=40.0, holder="a job")
    assert layout.lease is not None
    assert layout.lease.duration_s == 40.0
    await bench.store.truncate_segment(A, 1500)
    await bench.flush()
    with pytest.raises(SegmentTruncatedError):
        await bench.layouts.ask(A, 0, 1 << 40)
    await bench.store.delete_segment(A)
    await bench.flush()
    await bench.collect()
    assert await bench.read(layout) == data[:-4]
    await bench.layouts.give_back(layout)
    await bench.layouts.give_back(layout)
    assert bench.leases() == 0
    await bench.collect()
    assert await bench.chunk_count() == 0


async def test_the_length_and_number_of_leases_are_bounded(bench: Bench) -> None:
    await bench.fill(1)
    first = await bench.layouts.ask(A, 0, 10, lease_s=1e6)
    assert first.lease is not None
    assert first.lease.duration_s == 50.0
    await bench.layouts.ask(A, 0, 10, lease_s=1.0)
    with pytest.raises(TooManyLeasesError):
        await bench.layouts.ask(A, 0, 10, lease_s=1.0)
    # Refused, and the connection continues.
    assert (await bench.layouts.ask(A, 0, 10)).end == 10


async def test_another_owner_recognises_and_releases_the_lease(bench: Bench) -> None:
    """SS-258: the container moves during a read; its old store then answers `WrongHost`."""
    data = await bench.fill(2)
    layout = await bench.layouts.ask(A, 0, 1 << 40, lease_s=40.0)
    earlier = bench.port
    await bench.store.stop()
    await bench.begin()
    await bench.store.delete_segment(A)
    await bench.flush()
    await bench.collect()
    assert await bench.read(layout) == data[:-4]
    wire = await RawWire.open(earlier)
    await wire.ask(GetChunkLayout(1, A, "", encode_layout(LayoutQuery(0, 9))), WrongHost)
    await wire.close()
    await bench.layouts.give_back(layout)
    await bench.collect()
    assert await bench.chunk_count() == 0


async def test_segments_without_layout_are_refused(bench: Bench) -> None:
    await bench.fill(1)
    await bench.store.create_table("s/table")
    system = f"_system/containers/storage_metadata_{container_of(A, 2)}"
    for segment, error in (
        ("s/t/9.#epoch.0", NoSuchSegmentError),
        ("s/table", UnsupportedOperationError),
        (system, InvalidArgumentError),
    ):
        with pytest.raises(error):
            await bench.layouts.ask(segment, 0, 10, lease_s=1.0)
    assert bench.leases() == 0


async def test_no_layout_while_long_term_storage_is_unavailable(bench: Bench) -> None:
    await bench.fill(1)
    bench.store.storage._set_unavailable(chunk_layouts.StorageUnavailableError("not mounted"))  # type: ignore[attr-defined]
    wire = await RawWire.open(bench.port)
    await wire.ask(GetChunkLayout(1, A, "", encode_layout(LayoutQuery(0, 9))), WrongHost)
    await wire.close()


@pytest.mark.parametrize(
    "query",
    [
        b"",
        b"{}",
        b"\xff\xfe",
        b"[" * 8000,
        b'{"start": 0, "end": 1, "version": 2}',
        b'{"start": -1, "end": 1}',
        b'{"start": 2, "end": 1}',
        b'{"start": 0, "end": 1, "chunk_count_max": 0}',
        b'{"start": 0, "end": 1, "lease_s": -1}',
        b'{"start": 0, "end": 1, "lease_s": 1e10}',
        b'{"start": 0, "end": 1, "holder": "' + b"x" * 300 + b'"}',
        b'{"start": 0, "end": 1, "more": "' + b"x" * 20_000 + b'"}',
    ],
)
async def test_a_malformed_request_is_refused_and_disturbs_no_other(bench: Bench, query: bytes) -> None:
    await bench.fill(1)
    wire = await RawWire.open(bench.port)
    refused = await wire.ask(GetChunkLayout(7, A, "", query), ErrorMessage)
    assert (refused.request_id, refused.error_code) == (7, 0)
    await wire.ask(KeepAlive(), KeepAlive)
    told = await wire.ask(GetChunkLayout(8, A, "", b'{"start": 0, "end": 1, "more": 1}'), ChunkLayoutTold)
    assert decode_layout_page(told.page).stored_end == 1
    await wire.close()


# Those that know nothing of it, or answer nonsense.


class Stranger:
    """Answers Hello; then the test decides how it answers a query."""

    def __init__(self, reply: bytes | None) -> None:
        self.reply = reply
        self.connections = 0

    async def talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            await self._talk(reader, writer)
        except asyncio.IncompleteReadError:
            pass
        finally:
            writer.close()

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(encode(Hello(17, 5)))
        await reader.readexactly(8 + 8)
        while True:
            head = await reader.readexactly(8)
            content = await reader.readexactly(struct.unpack(">ii", head)[1])
            if self.reply is None:
                return  # Unknown: the connection is ended.
            if self.reply:
                (request_id,) = struct.unpack_from(">q", content)
                writer.write(encode(ChunkLayoutTold(request_id, self.reply)))


async def ask_stranger(reply: bytes | None, timeout_s: float = 30.0) -> tuple[Stranger, PenstockError]:
    stranger = Stranger(reply)
    server = await asyncio.start_server(stranger.talk, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]

    async def resolve(segment: str) -> tuple[str, int]:
        return "127.0.0.1", port

    settings = replace(CLIENT, layout_timeout_s=timeout_s)
    pool = ConnectionPool(resolve, settings)
    try:
        other = await pool.connection(A, Purpose.READ)
        with pytest.raises(PenstockError) as caught:
            await ChunkLayouts(pool, settings, memory_runtime().rng).ask(A, 0, 100)
        assert other.is_open
    finally:
        await pool.close()
        server.close()
        await server.wait_closed()
    return stranger, caught.value


async def test_a_store_without_layouts_costs_one_connection_and_is_not_queried_again_for_a_while() -> None:
    """As every store of before and Pravega's do. Reads and writes go over other connections."""
    stranger, error = await ask_stranger(None)
    assert isinstance(error, ConnectionLostError)
    assert "without support for chunk layouts" in "".join(error.__notes__)
    assert stranger.connections == 3


async def test_no_answer_is_waited_for_so_long_and_no_longer() -> None:
    _, error = await ask_stranger(b"", timeout_s=0.2)
    assert isinstance(error, OutcomeUnknownError)


STORAGE = StorageTold("/nowhere", "name", b"identity")
ROW = ChunkRow("c", 0, 100, 10, 0, bytes(40))


@pytest.mark.parametrize(
    "page",
    [
        b"[]",
        b"{}",
        encode_layout(LayoutPage(VERSION + 1, STORAGE, [ROW], 100, 100)),
        # Too little, too much, a gap, not where it was asked, past the end.
        encode_layout(LayoutPage(VERSION, STORAGE, [], 100, 100)),
        encode_layout(LayoutPage(VERSION, STORAGE, [], 100, 0)),
        encode_layout(LayoutPage(VERSION, STORAGE, [ROW], 200, 100)),
        encode_layout(LayoutPage(VERSION, STORAGE, [ChunkRow("c", 0, 100, 10, 0, bytes(36))], 100, 100)),
        encode_layout(LayoutPage(VERSION, STORAGE, [ChunkRow("c", 0, 100, 10, 1, bytes(36))], 100, 100)),
        encode_layout(LayoutPage(VERSION, STORAGE, [ChunkRow("c", 0, 100, 0, 0, bytes(40))], 100, 100)),
        encode_layout(LayoutPage(VERSION, STORAGE, [ChunkRow("c", -5, 200, 10, -1, bytes(80))], 100, 100)),
    ],
)
async def test_a_layout_without_the_location_of_the_bytes_is_ignored(page: bytes) -> None:
    _, error = await ask_stranger(page)
    assert isinstance(error, ProtocolError)
