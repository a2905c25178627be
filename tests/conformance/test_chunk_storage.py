"""Every `ChunkStorage` keeps the contract of segment-store 8.2 (SS-245).

The suite runs on every implementation, with and without a wrapper around it. Optional abilities are tested where they
are offered, and their refusal where they are not.
"""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
from obstore.store import LocalStore, MemoryStore

from penstock.model.errors import (
    BadChunkOffsetError,
    ChunkExistsError,
    InvalidArgumentError,
    NoSuchChunkError,
    StorageError,
    StorageIdentityError,
    StorageUnavailableError,
    UnsupportedOperationError,
)
from penstock.runtime.directory_objects import DirectoryObjects
from penstock.runtime.obstore_objects import ObstoreObjects
from penstock.runtime.runtime import real_runtime
from penstock.segmentstore.tier2.chunk_storage import ChunkInfo, ChunkStorage
from penstock.segmentstore.tier2.directory import DirectoryChunkStorage, DirectoryChunkStorageSettings
from penstock.segmentstore.tier2.hdfs_storage import HdfsChunkStorage
from penstock.segmentstore.tier2.hdfs_storage_settings import HdfsStorageSettings
from penstock.segmentstore.tier2.memory import MemoryChunkStorage
from penstock.segmentstore.tier2.object_storage import ObjectChunkStorage
from penstock.segmentstore.tier2.wrapped import WrappedChunkStorage
from penstock_simulation.chunk_faults import FaultyChunkStorage
from penstock_simulation.simulated.files import FileFaults, SimulatedFiles, SimulatedFileSystem
from penstock_simulation.simulated.objects import SimulatedBucket, SimulatedObjects
from support.hdfs_server import HdfsServer
from support.s3_server import S3Server

NAME = "scope/stream/0.#epoch.0.E-1-O-0.7f0c"
BAD_NAMES = [
    "penstock-storage.toml",
    "penstock-storage.toml/below",
    "",
    "/",
    "/etc/passwd",
    "..",
    "../up",
    "a/../b",
    "a/./b",
    "a//b",
    "a/",
    "./a",
    "nul\0",
    "x" * 256,
    "\ud800",
]


STORAGES = [
    "directory", "directory-one-file-open", "memory", "memory-no-append", "faulty", "wrapped",
    "obstore-memory", "obstore-local", "directory-objects", "simulated-objects", "simulated-files",
    # A real S3 server and a real HDFS, as other programs that tests drive.
    pytest.param("versitygw", marks=pytest.mark.interop),
    pytest.param("hdfs", marks=pytest.mark.interop),
]  # fmt: skip


@pytest.fixture(params=STORAGES)
async def storage(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[ChunkStorage]:
    runtime = real_runtime(4)
    made: ChunkStorage
    match request.param:
        case "directory":
            made = DirectoryChunkStorage(str(tmp_path / "chunks"), runtime)
        case "directory-one-file-open":
            one = DirectoryChunkStorageSettings(open_files_max=1, known_directories_max=1, copy_buffer_bytes=7)
            made = DirectoryChunkStorage(str(tmp_path / "chunks"), runtime, one)
        case "memory":
            made = MemoryChunkStorage()
        case "memory-no-append":
            made = MemoryChunkStorage(supports_append=False, supports_concat=False)
        case "faulty":
            made = FaultyChunkStorage(MemoryChunkStorage(), random.Random(1))
        case "obstore-memory":
            made = ObjectChunkStorage(ObstoreObjects(MemoryStore(), "memory://"), runtime.rng, prefix="some/prefix")
        case "obstore-local":
            place = tmp_path / "chunks"
            made = ObjectChunkStorage(ObstoreObjects(LocalStore(place, mkdir=True), f"file://{place}"), runtime.rng)
        case "directory-objects":
            made = ObjectChunkStorage(
                DirectoryObjects(str(tmp_path), base=str(tmp_path)), runtime.rng, prefix="some/prefix"
            )
        case "versitygw":
            server: S3Server = request.getfixturevalue("s3_server")
            bucket = server.make_bucket(f"b{uuid.uuid4().hex[:12]}").bucket
            made = ObjectChunkStorage(server.open(bucket), runtime.rng, prefix="some/prefix")
        case "hdfs":
            hdfs: HdfsServer = request.getfixturevalue("hdfs_server")
            folder = hdfs.new_folder()
            made = HdfsChunkStorage(hdfs.open(folder, runtime), runtime.rng, folder.root)
        case "simulated-files":
            files = SimulatedFiles(SimulatedFileSystem(), random.Random(1), FileFaults(0.0001, 0.001, recovery_s=0.01))
            settings = HdfsStorageSettings(lease_poll_s=0.01)
            made = HdfsChunkStorage(files, runtime.rng, "/some/root", settings)
        case "simulated-objects":
            made = ObjectChunkStorage(SimulatedObjects(SimulatedBucket(), random.Random(1)), runtime.rng)
        case _:
            made = WrappedChunkStorage(WrappedChunkStorage(MemoryChunkStorage()))
    yield made
    await made.close()
    await runtime.work.close()


def needs_append(storage: ChunkStorage) -> None:
    if not storage.supports_append:
        pytest.skip("this storage cannot append, which is legal")


async def test_identity_is_written_once_and_read_back(storage: ChunkStorage) -> None:
    """It is no chunk: not listed, not counted. A second one is refused, whatever it is, and changes nothing."""
    assert await storage.read_identity() is None
    await storage.create_identity(b"of cluster 1")
    assert await storage.read_identity() == b"of cluster 1"
    for again in (b"of cluster 1", b"of cluster 2"):
        with pytest.raises(StorageIdentityError):
            await storage.create_identity(again)
    assert await storage.read_identity() == b"of cluster 1"
    assert await storage.list() == []
    await storage.create_with_content(NAME, [b"abc"])
    assert await storage.list() == [ChunkInfo(NAME, 3)]


async def test_one_of_two_concurrent_creations_of_the_identity_succeeds(storage: ChunkStorage) -> None:
    ends = await asyncio.gather(
        *(storage.create_identity(b"of cluster %d" % number) for number in range(8)), return_exceptions=True
    )
    (winner,) = [number for number, end in enumerate(ends) if end is None]
    assert all(isinstance(end, StorageIdentityError) for number, end in enumerate(ends) if number != winner)
    assert await storage.read_identity() == b"of cluster %d" % winner
    assert await storage.list() == []


@pytest.mark.parametrize("is_foreign", [False, True])
async def test_nothing_is_created_where_the_identity_is_gone_or_another_one(
    storage: ChunkStorage, tmp_path: Path, is_foreign: bool
) -> None:
    """A storage that was not mounted any more between two calls; what it holds by then is left as it is."""
    await storage.create_identity(b"of cluster 1")
    storage.hold_to_identity(b"of cluster 1")
    await storage.create_with_content(NAME, [b"abc"])
    await replace_identity(storage, tmp_path, b"of cluster 2" if is_foreign else None)
    # Reading the identity that is there now does not make it the right place.
    assert await storage.read_identity() == (b"of cluster 2" if is_foreign else None)
    for name in ("other/place/chunk", f"{NAME}-2"):
        with pytest.raises(StorageUnavailableError):
            await storage.create_with_content(name, [b"def"])
        if storage.supports_append:
            with pytest.raises(StorageUnavailableError):
                await storage.create(name)
    assert await storage.list() == [ChunkInfo(NAME, 3)]
    assert not (tmp_path / "chunks" / "other").exists()
    await replace_identity(storage, tmp_path, b"of cluster 1")
    await storage.create_with_content("other/place/chunk", [b"def"])


async def test_its_place_and_its_longest_name_are_reported(storage: ChunkStorage) -> None:
    assert storage.place
    longest = "x" * storage.name_part_bytes_max
    await storage.create_with_content(f"scope/{longest}", [b"abc"])
    with pytest.raises(InvalidArgumentError):
        await storage.create_with_content(f"scope/{longest}x", [b"abc"])


async def replace_identity(storage: ChunkStorage, tmp_path: Path, identity: bytes | None) -> None:
    """Put another identity in place of the storage's own, without its knowledge."""
    while isinstance(storage, WrappedChunkStorage):
        storage = storage.inner
    if isinstance(storage, MemoryChunkStorage):
        storage.identity = identity
        return
    if isinstance(storage, ObjectChunkStorage):
        await storage.objects.delete(storage.identity_key)
        if identity is not None:
            await storage.objects.put_new(storage.identity_key, identity, "another cluster's")
        return
    if isinstance(storage, HdfsChunkStorage):
        if await storage.read_identity() is not None:
            await storage.files.delete(storage.identity_path)
        if identity is not None:
            await storage.files.create(storage.identity_path, identity)
        return
    file = tmp_path / "chunks" / "penstock-storage.toml"
    if identity is None:
        file.unlink()
    else:
        file.write_bytes(identity)


async def test_content_is_read_back_at_every_range(storage: ChunkStorage) -> None:
    data = bytes(range(40))
    assert await storage.create_with_content(NAME, [data[:5], bytearray(data[5:6]), memoryview(data)[6:], b""]) == 40
    for start in range(41):
        for length in range(0, 43 - start):
            assert await storage.read(NAME, start, length) == data[start : start + length]
    assert await storage.info(NAME) == ChunkInfo(NAME, 40)
    assert await storage.exists(NAME)


async def test_appends_follow_each_other(storage: ChunkStorage) -> None:
    needs_append(storage)
    await storage.create(NAME)
    assert await storage.info(NAME) == ChunkInfo(NAME, 0)
    assert await storage.read(NAME, 0, 10) == b""
    assert await storage.write(NAME, 0, [b"abc", memoryview(b"de")]) == 5
    assert await storage.write(NAME, 5, [bytearray(b"f")]) == 1
    assert await storage.write(NAME, 6, []) == 0
    assert await storage.read(NAME, 0, 100) == b"abcdef"


async def test_append_after_create_with_content(storage: ChunkStorage) -> None:
    needs_append(storage)
    await storage.create_with_content(NAME, [b"abc"])
    await storage.write(NAME, 3, [b"def"])
    assert await storage.read(NAME, 0, 6) == b"abcdef"


@pytest.mark.parametrize("offset", [0, 2, 4, 1 << 40])
async def test_write_at_another_offset_than_the_length_changes_nothing(storage: ChunkStorage, offset: int) -> None:
    needs_append(storage)
    await storage.create_with_content(NAME, [b"abc"])
    with pytest.raises(BadChunkOffsetError) as raised:
        await storage.write(NAME, offset, [b"x"])
    assert (raised.value.expected, raised.value.given, raised.value.chunk) == (3, offset, NAME)
    assert await storage.read(NAME, 0, 10) == b"abc"


async def test_append_is_refused_where_unsupported(storage: ChunkStorage) -> None:
    if storage.supports_append:
        pytest.skip("this storage can append")
    with pytest.raises(UnsupportedOperationError):
        await storage.create(NAME)
    await storage.create_with_content(NAME, [b"abc"])
    with pytest.raises(UnsupportedOperationError):
        await storage.write(NAME, 3, [b"x"])
    assert await storage.read(NAME, 0, 10) == b"abc"


async def test_create_is_exclusive(storage: ChunkStorage) -> None:
    await storage.create_with_content(NAME, [b"abc"])
    with pytest.raises(ChunkExistsError):
        await storage.create_with_content(NAME, [b"other"])
    if storage.supports_append:
        with pytest.raises(ChunkExistsError):
            await storage.create(NAME)
    assert await storage.read(NAME, 0, 10) == b"abc"


async def test_one_of_many_concurrent_creates_wins(storage: ChunkStorage) -> None:
    contents = [bytes([n]) * 100 for n in range(8)]
    results = await asyncio.gather(
        *(storage.create_with_content(NAME, [content]) for content in contents), return_exceptions=True
    )
    assert sorted(type(result).__name__ for result in results) == ["ChunkExistsError"] * 7 + ["int"]
    winner = next(index for index, result in enumerate(results) if isinstance(result, int))
    assert await storage.read(NAME, 0, 200) == contents[winner]


async def test_one_of_many_concurrent_writes_at_one_offset_wins(storage: ChunkStorage) -> None:
    needs_append(storage)
    await storage.create(NAME)
    contents = [bytes([n]) * 1000 for n in range(8)]
    results = await asyncio.gather(*(storage.write(NAME, 0, [c]) for c in contents), return_exceptions=True)
    winners = [content for content, result in zip(contents, results, strict=True) if result == 1000]
    assert len(winners) == 1
    assert all(isinstance(r, BadChunkOffsetError) for r in results if r != 1000)
    assert await storage.read(NAME, 0, 2000) == winners[0]


async def test_chunks_of_one_new_directory_are_created_and_deleted_concurrently(storage: ChunkStorage) -> None:
    async def churn(number: int) -> None:
        for turn in range(10):
            name = f"scope/stream/{number}.{turn}"
            await storage.create_with_content(name, [name.encode()])
            assert await storage.read(name, 0, 100) == name.encode()
            await storage.delete(name)

    await asyncio.gather(*(churn(number) for number in range(6)))
    assert list(await storage.list()) == []


async def test_deleted_chunk_is_gone_and_its_name_is_free(storage: ChunkStorage) -> None:
    await storage.create_with_content(NAME, [b"abc"])
    assert await storage.read(NAME, 0, 3) == b"abc"
    await storage.delete(NAME)
    assert not await storage.exists(NAME)
    assert list(await storage.list()) == []
    with pytest.raises(NoSuchChunkError):
        await storage.delete(NAME)
    await storage.create_with_content(NAME, [b"new"])
    assert await storage.read(NAME, 0, 10) == b"new"


async def test_missing_chunk_is_reported_by_every_verb(storage: ChunkStorage) -> None:
    await storage.create_with_content("scope/stream/there", [b"abc"])
    # Also "scope": a directory in some implementations, and never a chunk. And a name below a chunk.
    for name in (NAME, "scope/stream/ther", "scope", "scope/stream/there/below"):
        assert not await storage.exists(name)
        calls: list[Callable[[], Awaitable[object]]] = [
            lambda name=name: storage.info(name),  # type: ignore[misc]  # Lambdas with defaults have no type of their own.
            lambda name=name: storage.read(name, 0, 1),  # type: ignore[misc]
            lambda name=name: storage.delete(name),  # type: ignore[misc]
        ]
        if storage.supports_append:
            calls.append(lambda name=name: storage.write(name, 0, [b"x"]))  # type: ignore[misc]
        for call in calls:
            with pytest.raises(NoSuchChunkError):
                await call()


@pytest.mark.parametrize("name", BAD_NAMES)
async def test_bad_names_are_refused_by_every_verb(storage: ChunkStorage, name: str) -> None:
    calls: list[Callable[[], Awaitable[object]]] = [
        lambda: storage.create(name),
        lambda: storage.create_with_content(name, [b"x"]),
        lambda: storage.write(name, 0, [b"x"]),
        lambda: storage.read(name, 0, 1),
        lambda: storage.info(name),
        lambda: storage.exists(name),
        lambda: storage.delete(name),
        lambda: storage.concat(name, 0, [(NAME, 1)]),
        lambda: storage.concat(NAME, 0, [(name, 1)]),
    ]
    for call in calls:
        with pytest.raises(InvalidArgumentError):
            await call()


async def test_bad_ranges_are_refused(storage: ChunkStorage) -> None:
    await storage.create_with_content(NAME, [b"abc"])
    for offset, length in ((-1, 1), (0, -1), (4, 0), (4, 1)):
        with pytest.raises(InvalidArgumentError):
            await storage.read(NAME, offset, length)
    if storage.supports_append:
        with pytest.raises(InvalidArgumentError):
            await storage.write(NAME, -1, [b"x"])
    with pytest.raises(InvalidArgumentError):
        await storage.create_with_content("empty", [])
    with pytest.raises(InvalidArgumentError):
        await storage.create_with_content("empty", [b"", b""])
    assert not await storage.exists("empty")


@pytest.mark.parametrize(
    "name", ["a", "Grüße/日本/🚰", "a b/c#d$e", ".hidden", "d/..b/c..", "/".join(["x" * 200] * 5), "p" * 251]
)
async def test_odd_names_work(storage: ChunkStorage, name: str) -> None:
    await storage.create_with_content(name, [b"abc"])
    assert await storage.read(name, 1, 5) == b"bc"
    assert list(await storage.list()) == [ChunkInfo(name, 3)]
    assert list(await storage.list(name[:1])) == [ChunkInfo(name, 3)]
    assert list(await storage.list(name)) == [ChunkInfo(name, 3)]
    await storage.delete(name)


async def test_list_is_sorted_and_filtered_by_prefix(storage: ChunkStorage) -> None:
    names = ["s/a/0.E-1", "s/a/0.E-10", "s/a/1.E-1", "s/a-b/0", "s/a.x", "s/b/0", "t"]
    for number, name in enumerate(reversed(names)):
        await storage.create_with_content(name, [b"x" * (number + 1)])
    length = {name: len(names) - index for index, name in enumerate(names)}
    for prefix in (
        "",
        "s",
        "s/",
        "s/a",
        "s/a/",
        "s/a/0",
        "s/a/0.E-1",
        "s/a/0.E-10",
        "t",
        "t/",
        "u",
        "s/a/0.E-1/x",
        "..",
    ):
        expected = [ChunkInfo(name, length[name]) for name in sorted(names) if name.startswith(prefix)]
        assert list(await storage.list(prefix)) == expected


@pytest.mark.parametrize("limit", [1, 2, 3, 99])
async def test_names_are_gone_through_page_by_page(storage: ChunkStorage, limit: int) -> None:
    """Every chunk that stays is listed once, despite concurrent changes; the name to continue after may be deleted."""
    stay = {"s/a/0.E-1", "s/a/0.E-10", "s/a/1.E-1", "s/a-b/0", "s/a.x", "s/b/0", "t", "s/a0/x/y/z"}
    for name in (*stay, "s/a/0.E-2", "s/b/1"):
        await storage.create_with_content(name, [b"x"])
    assert list(await storage.names(limit=limit, after="zz")) == []
    found: list[str] = []
    while page := await storage.names(limit=limit, after=found[-1] if found else ""):
        assert len(page) <= limit
        if page[-1] in ("s/a/0.E-2", "s/b/1"):
            await storage.delete(page[-1])
        if not found:
            await storage.create_with_content("s/0", [b"x"])
        found += page
    assert len(set(found)) == len(found)
    assert stay <= set(found) <= stay | {"s/a/0.E-2", "s/b/1", "s/0"}


async def test_concat_takes_the_given_lengths(storage: ChunkStorage) -> None:
    if not storage.supports_concat:
        pytest.skip("this storage cannot concatenate, which is legal")
    await storage.create_with_content("target", [b"abcGARBAGE"])
    await storage.create_with_content("s/one", [b"0123456789-0123456789"])
    await storage.create_with_content("s/two", [b"defX"])
    assert await storage.concat("target", 3, [("s/two", 3), ("s/one", 20)]) == 26
    assert await storage.read("target", 0, 100) == b"abcdef0123456789-012345678"
    assert [info.name for info in await storage.list()] == ["target"]
    if storage.supports_append:
        await storage.write("target", 26, [b"!"])
        assert await storage.read("target", 25, 5) == b"8!"


async def test_bad_concat_changes_nothing(storage: ChunkStorage) -> None:
    contents = {"one": b"1", "target": b"abc", "two": b"22"}
    for name, content in contents.items():
        await storage.create_with_content(name, [content])
    cases: list[tuple[str, int, list[tuple[str, int]], type[Exception]]] = [
        ("target", 3, [], InvalidArgumentError),
        ("target", 3, [("one", 1), ("one", 1)], InvalidArgumentError),
        ("target", 3, [("target", 3)], InvalidArgumentError),
        ("target", -1, [("one", 1)], InvalidArgumentError),
        ("target", 3, [("one", -1)], InvalidArgumentError),
    ]
    if storage.supports_concat:
        cases += [
            ("target", 4, [("one", 1)], InvalidArgumentError),
            ("target", 3, [("one", 1), ("two", 3)], InvalidArgumentError),
            ("target", 3, [("one", 1), ("none", 0)], NoSuchChunkError),
            ("none", 0, [("one", 1)], NoSuchChunkError),
        ]
    else:
        cases.append(("target", 3, [("one", 1)], UnsupportedOperationError))
    for target, target_length, sources, error in cases:
        with pytest.raises(error):
            await storage.concat(target, target_length, sources)
        for name, content in contents.items():
            assert await storage.read(name, 0, 10) == content


async def test_closed_storage_refuses_everything(storage: ChunkStorage) -> None:
    await storage.create_with_content(NAME, [b"abc"])
    await storage.read(NAME, 0, 1)
    await storage.close()
    await storage.close()
    calls: list[Callable[[], Awaitable[object]]] = [
        lambda: storage.create("x"),
        lambda: storage.create_with_content("x", [b"x"]),
        lambda: storage.write(NAME, 3, [b"x"]),
        lambda: storage.read(NAME, 0, 1),
        lambda: storage.info(NAME),
        lambda: storage.exists(NAME),
        lambda: storage.delete(NAME),
        lambda: storage.concat(NAME, 3, [("x", 1)]),
        lambda: storage.list(),
    ]
    for call in calls:
        with pytest.raises(StorageError):
            await call()
