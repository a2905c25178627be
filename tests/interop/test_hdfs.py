"""Long-term storage on a real HDFS. The conformance suite of chunk storages runs on it, too."""

from __future__ import annotations

import asyncio
import getpass
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import replace

import httpx
import pytest

from penstock.model.errors import (
    BadChunkOffsetError,
    InvalidArgumentError,
    NoSuchRemoteFileError,
    RemoteFileExistsError,
    RemoteFileLeasedError,
    RemoteFileLengthError,
    StorageCredentialsError,
    StorageError,
    StorageFullError,
    StorageNotRespondingError,
    StorageUnreachableError,
)
from penstock.runtime.files import FilePlace
from penstock.runtime.hdfs_files import HdfsFiles, open_file_store
from penstock.runtime.runtime import Runtime, real_runtime
from penstock.runtime.work import PoolSettings
from penstock.segmentstore.tier2.hdfs_storage import HdfsChunkStorage
from support.hdfs_server import HdfsServer

pytestmark = pytest.mark.interop

NAME = "scope/stream/0.E-1-O-0.7f0c"
#: Writes so much, syncs the first part of it, and is paused with the file open.
WRITER = """
import sys, time
import hdfs_native
client = hdfs_native.Client(sys.argv[1])
path, synced, rest = sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
writer = client.append(path) if sys.argv[5] == "append" else client.create(path)
writer.write(b"s" * synced)
writer.hsync()
writer.write(b"r" * rest)
print("ready", flush=True)
time.sleep(1000)
"""


@pytest.fixture
async def runtime() -> AsyncIterator[Runtime]:
    made = real_runtime(2)
    yield made
    await made.work.close()


@pytest.fixture
async def storage(hdfs_server: HdfsServer, runtime: Runtime) -> AsyncIterator[HdfsChunkStorage]:
    folder = hdfs_server.new_folder()
    made = HdfsChunkStorage(hdfs_server.open(folder, runtime), runtime.rng, folder.root)
    yield made
    await made.close()


def stuck_writer(file_system: str, path: str, synced: int, rest: int, how: str) -> subprocess.Popen[str]:
    """Start a process that has a file open; return when it has written."""
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER, file_system, path, str(synced), str(rest), how],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


async def test_of_many_clients_that_create_a_file_at_once_one_succeeds(
    hdfs_server: HdfsServer, runtime: Runtime
) -> None:
    folder = hdfs_server.new_folder()
    clients = [hdfs_server.open(folder, runtime) for _ in range(4)]
    for turn in range(10):
        path = f"{folder.root}/{turn}"
        ends = await asyncio.gather(
            *(clients[number % 4].create(path, b"%03d" % number) for number in range(12)), return_exceptions=True
        )
        (winner,) = [number for number, end in enumerate(ends) if end is None]
        assert all(isinstance(end, RemoteFileExistsError) for end in ends if end is not None)
        assert await clients[0].read(path, 0, 10) == b"%03d" % winner
    for client in clients:
        await client.close()


async def test_a_killed_writer_leaves_its_synced_data_and_is_fenced_by_the_next_append(
    storage: HdfsChunkStorage,
) -> None:
    """Its file is open, the last block invisible to the library: read by WebHDFS, then closed by the next append."""
    for name, how in (("created", "create"), ("appended", "append")):
        if how == "append":
            await storage.create_with_content(name, [b"0123456789"])
        start = 10 if how == "append" else 0
        writer = stuck_writer(storage.files.place, f"{storage.root}/{name}", 1000, 50, how)
        writer.send_signal(signal.SIGKILL)
        writer.wait()
        assert (await storage.info(name)).length == start + 1000
        assert await storage.read(name, start + 990, 500) == b"s" * 10
        assert await storage.read(name, max(start - 3, 0), 5) == (b"789ss" if start else b"sssss")
        with pytest.raises(InvalidArgumentError):
            await storage.read(name, start + 2000, 1)
        (end,) = await asyncio.gather(storage.write(name, start + 1000, [b"new"]), return_exceptions=True)
        if end == 3:
            assert await storage.read(name, start + 998, 10) == b"ssnew"
        else:
            assert isinstance(end, BadChunkOffsetError)
            assert start + 1000 < end.expected <= start + 1050


async def test_a_writer_that_lives_is_shut_out_too(storage: HdfsChunkStorage) -> None:
    """Its sync fails, whatever its writes say."""
    files = storage.files
    assert isinstance(files, HdfsFiles)
    await storage.create_with_content(NAME, [b"abc"])
    path = f"{storage.root}/{NAME}"
    import hdfs_native

    old = await asyncio.to_thread(hdfs_native.Client(files.place).append, path)
    with pytest.raises(RemoteFileLeasedError):
        await files.append(path, 3, b"new")
    assert await storage.write(NAME, 3, [b"new"]) == 3

    def write_on() -> None:
        old.write(b"old")
        old.hsync()

    with pytest.raises(Exception):  # noqa: B017  # Whatever the library makes of it.
        await asyncio.to_thread(write_on)
    assert await storage.read(NAME, 0, 20) == b"abcnew"


async def test_appends_right_after_each_other_lose_nothing(storage: HdfsChunkStorage) -> None:
    """The NameNode learns of a replica a moment after the file is closed. An append before that leaves the replica out,
    and recovery for the next append then yields only the replica's length.
    """

    async def fill(name: str) -> bytes:
        content = name.encode()
        await storage.create_with_content(name, [content])
        for number in range(4):
            more = bytes([number]) * (10_000 * number + 1)
            assert await storage.write(name, len(content), [more]) == len(more)
            content += more
        return content

    names = [f"file-{number}" for number in range(8)]
    for name, content in zip(names, await asyncio.gather(*map(fill, names)), strict=True):
        assert await storage.read(name, 0, len(content) + 1) == content


async def test_an_append_after_moved_blocks_requests_their_copies(
    storage: HdfsChunkStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The target's last block is then one of a file that was closed a moment ago, however old the target is."""
    files = storage.files
    assert isinstance(files, HdfsFiles)
    asked: list[str] = []
    copies = files._web.copies
    monkeypatch.setattr(files._web, "copies", lambda path: (asked.append(path), copies(path))[1])  # type: ignore[func-returns-value]
    await storage.create_with_content("target", [b"abc"])
    await storage.create_with_content("source", [b"def"])
    files._changed_s.clear()  # It was longer ago.
    assert await storage.concat("target", 3, [("source", 3)]) == 6
    assert await storage.write("target", 6, [b"ghi"]) == 3
    assert f"{storage.root}/target" in asked
    assert await storage.read("target", 0, 10) == b"abcdefghi"


async def test_appends_of_every_length_land_across_blocks(hdfs_server: HdfsServer, runtime: Runtime) -> None:
    folder = hdfs_server.new_folder()
    files = open_file_store(folder, replace(hdfs_server.settings, block_bytes=4096), runtime.work)
    path, content = f"{folder.root}/file", b""
    await files.create(path, b"")
    for number, length in enumerate((1, 511, 3584, 4096, 10_000, 3, 8192)):
        await files.append(path, len(content), bytes([number]) * length)
        content += bytes([number]) * length
        assert (await files.stat(path)).length_bytes == len(content)
        assert await files.read(path, 0, len(content) + 5) == content
    assert await files.read(path, 4090, 10) == content[4090:4100]
    assert await files.read(path, len(content), 10) == b""
    assert await files.read(path, len(content) + 10, 10) == b""
    with pytest.raises(RemoteFileLengthError) as raised:
        await files.append(path, 5, b"x")
    assert raised.value.length_bytes == len(content)
    # And that left nothing open.
    await files.append(path, len(content), b"x")
    content += b"x"
    # Whole blocks come from the library, which panics where it is asked for more; the open one comes by WebHDFS.
    writer = stuck_writer(files.place, path, 5, 0, "append")
    try:
        content += b"sssss"
        assert await files.read(path, 0, len(content) + 5) == content
        assert await files.read(path, 4090, len(content)) == content[4090:]
    finally:
        writer.kill()
        writer.wait()
    await files.close()


async def test_missing_permission_and_full_storage_are_reported_by_name(
    hdfs_server: HdfsServer, runtime: Runtime, monkeypatch: pytest.MonkeyPatch, storage: HdfsChunkStorage
) -> None:
    await storage.create_with_content(NAME, [b"abc"])
    async with httpx.AsyncClient() as http:
        answer = await http.put(
            f"{hdfs_server.webhdfs}/webhdfs/v1{storage.root}",
            params={"op": "SETQUOTA", "namespacequota": "4", "user.name": getpass.getuser()},
        )
        assert answer.is_success, answer.text
    with pytest.raises(StorageFullError, match="quota"):
        await storage.create_with_content(f"{NAME}-2", [b"abc"])
    monkeypatch.setenv("HADOOP_USER_NAME", "another-user")
    place = FilePlace.parse(f"{storage.files.place}{storage.root}")
    other = HdfsChunkStorage(hdfs_server.open(place, runtime), runtime.rng, place.root)
    for do in (
        lambda: other.write(NAME, 3, [b"x"]),
        lambda: other.create_identity(b"of cluster 1"),
        lambda: other.delete(NAME),
    ):
        with pytest.raises(StorageCredentialsError, match="HADOOP_USER_NAME"):
            await do()
    assert await other.read(NAME, 0, 3) == b"abc"
    await other.close()
    with pytest.raises(InvalidArgumentError, match="HADOOP_USER_NAME"):
        open_file_store(place, replace(hdfs_server.settings, user="a-third"), runtime.work)


async def test_a_name_node_that_is_away_or_hangs_is_reported_in_time(hdfs_server: HdfsServer, runtime: Runtime) -> None:
    with socket.socket() as deaf, socket.socket() as closed:
        for each in (deaf, closed):
            each.bind(("127.0.0.1", 0))
        deaf.listen()
        one_second = PoolSettings(thread_count_max=2, hung_count_max=2, timeout_s=1.0)
        settings = replace(hdfs_server.settings, reads=one_second, writes=one_second, names=one_second)
        for server, expected in ((closed, StorageUnreachableError), (deaf, StorageNotRespondingError)):
            place = FilePlace.parse(f"hdfs://127.0.0.1:{server.getsockname()[1]}/root")
            files = open_file_store(place, settings, runtime.work)
            for do in (
                lambda files=files: files.stat("/root/x"),
                lambda files=files: files.create("/root/x", b"abc"),
                lambda files=files: files.read("/root/x", 0, 1),
            ):
                with pytest.raises(expected):
                    await do()  # type: ignore[no-untyped-call]
            await files.close()


async def test_webhdfs_that_is_elsewhere_is_reported(
    hdfs_server: HdfsServer, runtime: Runtime, storage: HdfsChunkStorage
) -> None:
    await storage.create_with_content("one", [b"abc"])
    place = FilePlace.parse(f"{storage.files.place}{storage.root}")
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{closed.getsockname()[1]}"
        files = open_file_store(place, replace(hdfs_server.settings, webhdfs=url), runtime.work)
        with pytest.raises(StorageUnreachableError, match="or set webhdfs"):
            await files.truncate(f"{place.root}/one", 1)
        await files.close()
    with pytest.raises(NoSuchRemoteFileError):
        await storage.files.truncate(f"{place.root}/none", 1)


async def test_a_panic_of_the_library_is_an_error_like_others(
    storage: HdfsChunkStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is no `Exception`, and would end the program."""
    import hdfs_native

    await storage.create_with_content(NAME, [b"abc"])
    monkeypatch.setattr(hdfs_native.FileReader, "__len__", lambda reader: 100)
    with pytest.raises(StorageError, match="panicked"):
        await storage.read(NAME, 0, 50)
    monkeypatch.undo()
    assert await storage.read(NAME, 0, 50) == b"abc"


async def test_blocks_are_moved_between_files_of_one_folder(storage: HdfsChunkStorage) -> None:
    """At whatever lengths, with bytes after them that do not count."""
    contents = {"s/target": b"a" * 5000 + b"GARBAGE", "s/one": b"b" * 100, "s/two": b"c" * 7000 + b"X"}
    for name, content in contents.items():
        await storage.create_with_content(name, [content])
    assert await storage.concat("s/target", 5000, [("s/one", 100), ("s/two", 7000)]) == 12_100
    assert await storage.read("s/target", 0, 20_000) == b"a" * 5000 + b"b" * 100 + b"c" * 7000
    assert [info.name for info in await storage.list()] == ["s/target"]
