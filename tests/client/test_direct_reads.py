"""Reads of chunks without the store: the same bytes whatever fails in the storage, and none of them twice."""

from __future__ import annotations

import os
import random
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from penstock.client.client import Client
from penstock.client.reading.direct_reads import DirectReads
from penstock.client.settings import ClientSettings
from penstock.client.transport.chunk_layouts import SegmentLayout
from penstock.model.errors import (
    CorruptionError,
    InvalidArgumentError,
    NoSuchChunkError,
    PenstockError,
    ProtocolError,
    StorageIdentityError,
    StorageNotRespondingError,
)
from penstock.runtime.disk import LocalDisk
from penstock.runtime.objects import ObjectPlace, ObjectStore, ObjectStoreSettings
from penstock.runtime.runtime import Runtime, ThreadedWork
from penstock.segmentstore.server import SegmentStoreServer
from penstock.segmentstore.settings import SegmentStoreSettings
from penstock.segmentstore.store import SegmentStore
from penstock.segmentstore.tier1.memory_log import MemoryLogFactory
from penstock.segmentstore.tier2.chunk_storage import ChunkStorage
from penstock.segmentstore.tier2.directory import DirectoryChunkStorage
from penstock.segmentstore.tier2.object_storage import ObjectChunkStorage
from support.containers import QUIET, memory_runtime

A = "s/t/0.#epoch.0"
BLOCK_BYTES = 256 * 1024
CHUNK_BYTES = 2 * BLOCK_BYTES + 100
#: Chunks of that length, and a tail that is not flushed.
CHUNK_COUNT = 3
STORED_BYTES = CHUNK_COUNT * CHUNK_BYTES
SETTINGS = SegmentStoreSettings(
    container_count=1, container=replace(QUIET, flush_bytes=1 << 40, rollover_bytes_min=CHUNK_BYTES)
)


class Bench:
    """A store over a directory, a segment in it, and a client that sees both."""

    def __init__(self, root: Path, chunks: ChunkStorage | None = None) -> None:
        self.root = root
        self.runtime = memory_runtime()
        self.chunks = chunks or DirectoryChunkStorage(str(root), self.runtime)
        self.data = random.Random(5).randbytes(STORED_BYTES + 1000)

    async def start(self) -> None:
        self.store = SegmentStore(
            logs=MemoryLogFactory(self.runtime),
            chunks=self.chunks,
            runtime=self.runtime,
            settings=SETTINGS,
        )
        await self.store.start()
        self.server = SegmentStoreServer(self.store)
        await self.server.start("127.0.0.1", 0)
        await self.store.create_segment(A, rollover_bytes=CHUNK_BYTES)
        for number in range(CHUNK_COUNT):
            await self.store.append(A, self.data[number * CHUNK_BYTES : (number + 1) * CHUNK_BYTES])
            await self.store.containers[0].flush()
        await self.store.append(A, self.data[STORED_BYTES:])
        self.client = self.new_client(ClientSettings(direct_read_timeout_s=20.0))
        await self.client.__aenter__()
        self.layout = await self.client.parts.chunk_layouts.ask(A, 0, 1 << 40)

    def new_client(self, settings: ClientSettings, runtime: Runtime | None = None) -> Client:
        async def resolve(segment: str) -> tuple[str, int]:
            return "127.0.0.1", self.server.port

        return Client("tcp://127.0.0.1:1", settings, resolver=resolve, runtime=runtime)

    async def stop(self) -> None:
        await self.client.close()
        await self.server.stop()
        await self.store.stop()
        await self.runtime.work.close()

    def chunk(self, number: int) -> Path:
        return self.root / self.layout.chunks[number].name

    async def read(
        self, layout: SegmentLayout | None = None, *, client: Client | None = None, place: str = ""
    ) -> DirectReads:
        """Read all, see that it is what was written, and return how it was read."""
        client = client or self.client
        layout = layout or self.layout
        reads = client.parts.direct_reads(layout, place=place)
        async with client.parts.direct_reader(reads, layout, 0, len(self.data)) as reader:
            found = b"".join([block async for block in reader])
        assert found == self.data
        assert reads.direct_bytes + reads.store_bytes == len(self.data)
        return reads


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    made = Bench(tmp_path / "storage")
    await made.start()
    yield made
    await made.stop()


async def test_stored_data_is_read_from_storage_and_the_tail_from_the_store(bench: Bench) -> None:
    reads = await bench.read()
    assert (reads.direct_bytes, reads.store_bytes, reads.problem) == (STORED_BYTES, 1000, None)


@pytest.mark.parametrize("read_bytes", [1000, BLOCK_BYTES - 1, BLOCK_BYTES + 1, 3 * CHUNK_BYTES])
async def test_reads_of_any_length_from_any_byte_give_the_bytes(bench: Bench, read_bytes: int) -> None:
    """The store is not asked at all: everything lies in the layout."""
    chance = random.Random(read_bytes)
    count = 0
    for _ in range(4):
        start, end = sorted(chance.randrange(STORED_BYTES + 1) for _ in range(2))
        layout = bench.layout.clipped(start, end)
        assert (layout.start, layout.end) == (start, end)
        reads = bench.client.parts.direct_reads(layout)
        at = start
        while at < end:
            data = (await reads.read(A, at, min(read_bytes, end - at))).joined()
            assert 0 < len(data) <= read_bytes
            assert data == bench.data[at : at + len(data)]
            at += len(data)
            count += 1
        assert (reads.direct_bytes, reads.store_bytes, reads.problem) == (end - start, 0, None)
    assert count


async def test_a_clipped_layout_has_the_blocks_of_its_range_and_no_others(bench: Bench) -> None:
    whole = bench.layout
    assert whole.clipped(0, 1 << 40) == whole
    piece = whole.clipped(CHUNK_BYTES + BLOCK_BYTES + 1, 2 * CHUNK_BYTES)
    assert [(chunk.first_block, len(chunk.checksums) // 4) for chunk in piece.chunks] == [(1, 2)]
    assert piece.chunks[0].name == whole.chunks[1].name
    # A chunk ends within its last block; what begins there is in the next one.
    (only,) = whole.clipped(CHUNK_BYTES, CHUNK_BYTES + 1).chunks
    assert only.name == whole.chunks[1].name
    for start, end in ((5, 5), (STORED_BYTES, 1 << 40), (STORED_BYTES + 5, 1 << 40)):
        nothing = whole.clipped(start, end)
        assert (nothing.chunks, nothing.start == nothing.end) == ((), True)


async def test_bytes_after_the_recorded_end_of_a_chunk_are_not_read(bench: Bench) -> None:
    """SS-256: what an old owner writes late, or a write that failed has left."""
    for number in range(CHUNK_COUNT):
        with bench.chunk(number).open("ab") as file:
            file.write(b"ZOMBIE" * 1000)
    reads = await bench.read()
    assert (reads.direct_bytes, reads.store_bytes, reads.problem) == (STORED_BYTES, 1000, None)
    again = await bench.client.parts.chunk_layouts.ask(A, 0, 1 << 40)
    assert again.chunks == bench.layout.chunks


async def test_a_chunk_with_more_after_its_end_does_not_grow(bench: Bench) -> None:
    """SS-256: the store would have added to it, and begins another. Layouts of before and of behind are right."""
    await bench.store.containers[0].flush()
    before = await bench.client.parts.chunk_layouts.ask(A, 0, 1 << 40)
    assert (len(before.chunks), before.chunks[-1].length) == (CHUNK_COUNT + 1, 1000)
    with (bench.root / before.chunks[-1].name).open("ab") as file:
        file.write(b"ZOMBIE" * 1000)
    reads = await bench.read(before)
    assert (reads.direct_bytes, reads.store_bytes, reads.problem) == (STORED_BYTES + 1000, 0, None)
    more = random.Random(6).randbytes(BLOCK_BYTES)
    await bench.store.append(A, more)
    await bench.store.containers[0].flush()
    bench.data += more
    behind = await bench.client.parts.chunk_layouts.ask(A, 0, 1 << 40)
    assert behind.chunks[:-1] == before.chunks
    reads = await bench.read(behind)
    assert (reads.direct_bytes, reads.store_bytes, reads.problem) == (len(bench.data), 0, None)
    reads = await bench.read(before)
    assert (reads.direct_bytes, reads.store_bytes, reads.problem) == (STORED_BYTES + 1000, len(more), None)
    # The store itself, which has nothing of it in memory.
    bench.store.cache.evict_all()
    reads = await bench.read(behind.clipped(0, 0))
    assert (reads.direct_bytes, reads.store_bytes, reads.problem) == (0, len(bench.data), None)


def remove(bench: Bench) -> None:
    bench.chunk(1).unlink()


def cut(bench: Bench) -> None:
    os.truncate(bench.chunk(1), CHUNK_BYTES - 1)


def damage(bench: Bench) -> None:
    with bench.chunk(1).open("r+b") as file:
        file.seek(BLOCK_BYTES + 7)
        old = file.read(1)
        file.seek(BLOCK_BYTES + 7)
        file.write(bytes([old[0] ^ 1]))


@pytest.mark.parametrize(
    ("harm", "error", "direct_bytes"),
    [
        (remove, NoSuchChunkError, CHUNK_BYTES),
        (cut, CorruptionError, CHUNK_BYTES + 2 * BLOCK_BYTES),
        (damage, CorruptionError, CHUNK_BYTES + BLOCK_BYTES),
    ],
)
async def test_after_a_failed_chunk_read_the_rest_is_read_from_the_store(
    bench: Bench, harm: Callable[..., Any], error: type[PenstockError], direct_bytes: int
) -> None:
    """The store still has it in memory. Nothing is read twice or skipped; bytes verified before stay valid."""
    harm(bench)
    # Block by block, so that what comes before the harm has been given out.
    client = bench.new_client(ClientSettings(read_bytes=BLOCK_BYTES))
    async with client:
        reads = await bench.read(client=client)
        assert isinstance(reads.problem, error)
        assert reads.direct_bytes == direct_bytes
        required = client.parts.direct_reads(bench.layout, is_required=True)
        async with client.parts.direct_reader(required, bench.layout, 0, len(bench.data)) as reader:
            with pytest.raises(error):
                [block async for block in reader]
        assert required.store_bytes == 0


async def test_another_place_is_not_read(bench: Bench, tmp_path: Path) -> None:
    """Where something is that is not the store's long-term storage, whatever chunks it has."""
    empty, foreign = tmp_path / "empty", tmp_path / "foreign"
    empty.mkdir()
    foreign.mkdir()
    (foreign / bench.layout.storage.identity_name).write_bytes(b"another")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.symlink_to(bench.root)
    for place, error in (
        (tmp_path / "nowhere", StorageIdentityError),
        (empty, StorageIdentityError),
        (foreign, StorageIdentityError),
        ("ftp://host/path", InvalidArgumentError),
    ):
        reads = await bench.read(place=str(place))
        assert isinstance(reads.problem, error)
        assert reads.direct_bytes == 0
    reads = await bench.read(place=str(elsewhere))
    assert (reads.direct_bytes, reads.problem) == (STORED_BYTES, None)


async def test_a_place_that_hangs_is_given_up_in_time(bench: Bench) -> None:
    chunk = bench.chunk(0)
    chunk.unlink()
    os.mkfifo(chunk)
    client = bench.new_client(ClientSettings(direct_read_timeout_s=0.3))
    try:
        async with client:
            reads = await bench.read(client=client)
            assert isinstance(reads.problem, StorageNotRespondingError)
            assert reads.direct_bytes == 0
    finally:
        os.close(os.open(chunk, os.O_RDWR))  # Lets the thread go that waits for a writer.


async def test_no_name_leads_out_of_the_place(bench: Bench) -> None:
    first = bench.layout.chunks[0]
    for name in (f"../storage/{first.name}", str(bench.chunk(0)), f"./{first.name}", ""):
        chunks = [type(first)(name, *[getattr(first, field) for field in first.__struct_fields__[1:]])]
        layout = replace(bench.layout, chunks=[*chunks, *bench.layout.chunks[1:]])
        reads = await bench.read(layout)
        assert isinstance(reads.problem, ProtocolError)
        assert reads.direct_bytes == 0


async def test_a_bucket_is_read_by_the_keys_of_its_chunks(tmp_path: Path) -> None:
    obstore = pytest.importorskip("obstore.store", reason="needs obstore: pip install 'penstock[s3]'")
    from penstock.runtime.obstore_objects import ObstoreObjects

    stored = obstore.MemoryStore()
    opened: list[ObjectPlace] = []

    def open_objects(place: ObjectPlace, settings: ObjectStoreSettings) -> ObjectStore:
        opened.append(place)
        return ObstoreObjects(stored, f"s3://{place.bucket}")

    chunks = ObjectChunkStorage(ObstoreObjects(stored, "s3://bucket"), random.Random(1), prefix="a/b")
    bench = Bench(tmp_path, chunks)
    await bench.start()
    runtime = Runtime(
        disk=LocalDisk(), work=ThreadedWork(1), rng=random.Random(1), wall_clock_ms=lambda: 1, open_objects=open_objects
    )
    try:
        async with bench.new_client(ClientSettings(), runtime) as client:
            reads = await bench.read(client=client)
            assert (reads.direct_bytes, reads.problem) == (STORED_BYTES, None)
            assert opened == [ObjectPlace("s3", "bucket", "a/b")]
            stored.delete(f"a/b/{bench.layout.chunks[1].name}")
            reads = await bench.read(client=client)
            assert isinstance(reads.problem, NoSuchChunkError)
            stored.delete(f"a/b/{bench.layout.storage.identity_name}")
        async with bench.new_client(ClientSettings(), runtime) as client:
            assert isinstance((await bench.read(client=client)).problem, StorageIdentityError)
    finally:
        await bench.stop()
