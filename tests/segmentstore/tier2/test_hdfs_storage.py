"""`HdfsChunkStorage` when requests are lost, late or cut short, and when a dead writer holds a lease: simulated."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine

import pytest

from penstock.model.errors import (
    BadChunkOffsetError,
    ChunkExistsError,
    ChunkNotSettledError,
    InvalidArgumentError,
    NoSuchChunkError,
    StorageError,
    StorageIdentityError,
    StorageNotRespondingError,
    StorageSafeModeError,
    StorageUnavailableError,
    StorageUnreachableError,
)
from penstock.runtime.files import FilePlace, FileStoreSettings
from penstock.runtime.runtime import Runtime
from penstock.segmentstore.tier2.chunk_storage import ChunkInfo
from penstock.segmentstore.tier2.chunked_storage import ChunkedStorage
from penstock.segmentstore.tier2.hdfs_storage import HdfsChunkStorage
from penstock.segmentstore.tier2.hdfs_storage_settings import HdfsStorageSettings
from penstock.segmentstore.tier2.metadata import MemoryMetadataTable
from penstock_simulation.simulated import Simulation
from penstock_simulation.simulated.files import FileFault, FileFaults, SimulatedFiles, SimulatedFileSystem
from support.chunk_records import SEGMENT, SMALL, seeded_runtime
from support.inline_work import InlineWork

NAME = "scope/stream/0.E-1-O-0.7f0c"
ROOT = "/a/root"
Scenario = Callable[[HdfsChunkStorage, SimulatedFiles], Coroutine[object, object, None]]


def simulate(scenario: Scenario, *, seed: int = 1) -> SimulatedFiles:
    """Run a scenario in virtual time, and return the client that it had."""
    files = SimulatedFiles(SimulatedFileSystem(), random.Random(seed))
    storage = HdfsChunkStorage(files, random.Random(seed + 1), ROOT)
    with Simulation(seed) as simulation:
        simulation.run(lambda: scenario(storage, files))
    return files


def another(storage: HdfsChunkStorage, files: SimulatedFiles) -> HdfsChunkStorage:
    """Return the storage of another process."""
    return HdfsChunkStorage(SimulatedFiles(files.system, random.Random(7)), random.Random(8), storage.root)


@pytest.mark.parametrize("fault", [FileFault.LOST_REQUEST, FileFault.LOST_REPLY, FileFault.SENT_TWICE])
def test_a_creation_whose_answer_is_lost_is_made_again(fault: FileFault) -> None:
    """What an earlier sending has left open belongs to this client: deleted and created again."""

    async def scenario(storage: HdfsChunkStorage, files: SimulatedFiles) -> None:
        files.inject("create", fault)
        assert await storage.create_with_content(NAME, [b"abc", b"def"]) == 6
        assert await storage.read(NAME, 0, 10) == b"abcdef"
        assert files.system.file(f"{ROOT}/{NAME}").holder is None

    assert simulate(scenario).fault_counts == {fault: 1}


@pytest.mark.parametrize("count", [2, 3])
def test_a_creation_that_is_sent_twice_is_never_taken_for_that_of_another_client(count: int) -> None:
    """It is created again each time, and after the last one the outcome is unknown: so its name becomes an orphan's."""

    async def scenario(storage: HdfsChunkStorage, files: SimulatedFiles) -> None:
        files.inject("create", *[FileFault.SENT_TWICE] * count)
        if count < 3:
            assert await storage.create_with_content(NAME, [b"abc"]) == 3
            assert await storage.read(NAME, 0, 10) == b"abc"
            return
        with pytest.raises(StorageUnreachableError):
            await storage.create_with_content(NAME, [b"abc"])
        assert not files.system.files

    assert simulate(scenario).fault_counts == {FileFault.SENT_TWICE: count}


@pytest.mark.parametrize("recovery_s", [1.0, 40.0])
def test_a_truncation_that_continues_is_waited_for_without_a_second_recovery(recovery_s: float) -> None:
    """A recovery of the lease begins another one of the block, which met the next append in a real HDFS: it hung.

    Only what is not done when all of its time is over is recovered after all.
    """
    recovered: list[str] = []

    class Watched(SimulatedFiles):
        async def recover_lease(self, path: str) -> bool:
            if self.system.file(path).holder is not None:
                recovered.append(path)
            return await super().recover_lease(path)

    async def scenario(storage: HdfsChunkStorage, files: SimulatedFiles) -> None:
        faults = FileFaults(recovery_s=recovery_s)
        watched = HdfsChunkStorage(Watched(files.system, random.Random(7), faults), random.Random(8), ROOT)
        await watched.create_with_content("target", [b"abcGARBAGE"])
        await watched.create_with_content("s/one", [b"def"])
        assert await watched.concat("target", 3, [("s/one", 3)]) == 6
        assert await watched.read("target", 0, 10) == b"abcdef"

    simulate(scenario)
    assert bool(recovered) is (recovery_s > 30.0)


def test_a_creation_cut_short_is_made_again_and_leaves_no_part_of_it() -> None:
    async def scenario(storage: HdfsChunkStorage, files: SimulatedFiles) -> None:
        files.inject("create", FileFault.HALF_WRITTEN)
        await storage.create_with_content(NAME, [b"abcdef"])
        assert await storage.list() == [ChunkInfo(NAME, 6)]
        assert await storage.read(NAME, 0, 10) == b"abcdef"

    assert simulate(scenario).fault_counts == {FileFault.HALF_WRITTEN: 1}


def test_the_file_of_another_client_is_never_taken_for_an_own_one() -> None:
    """Open or closed, whatever its bytes. After a lost request the creator is unknown, and so is the outcome."""

    async def scenario(storage: HdfsChunkStorage, files: SimulatedFiles) -> None:
        other = another(storage, files)
        await other.create_with_content(NAME, [b"abcdef"])
        with pytest.raises(ChunkExistsError):
            await storage.create_with_content(NAME, [b"abcdef"])
        files.inject("create", FileFault.LOST_REQUEST)
        with pytest.raises(StorageUnreachableError):
            await storage.create_with_content(NAME, [b"abcdef"])
        assert isinstance(other.files, SimulatedFiles)
        other.files.inject("append", FileFault.LOST_REPLY)
        with pytest.raises(StorageUnreachableError):
            await other.files.append(f"{ROOT}/{NAME}", 6, b"x")
        with pytest.raises(ChunkExistsError):
            await storage.create_with_content(NAME, [b"abcdef"])
        assert await other.read(NAME, 0, 10) == b"abcdef"

    simulate(scenario)


def test_a_creation_that_does_not_answer_is_not_made_again_and_may_come_late() -> None:
    """Its work may still continue: made again, it might delete what the second one made."""

    async def scenario(storage: HdfsChunkStorage, files: SimulatedFiles) -> None:
        files.inject("create", FileFault.LATE)
        with pytest.raises(StorageNotRespondingError):
            await storage.create_with_content(NAME, [b"abc"])
        assert not await storage.exists(NAME)
        await asyncio.sleep(files.faults.late_s_max + 1)
        assert await storage.read(NAME, 0, 10) == b"abc"

    simulate(scenario)


@pytest.mark.parametrize("call", ["create", "append"])
def test_what_was_synced_is_written_be_it_closed_or_not(call: str) -> None:
    """It counts as success, can be read, and the file is closed after it."""

    async def scenario(storage: HdfsChunkStorage, files: SimulatedFiles) -> None:
        files.inject(call, FileFault.NOT_CLOSED)
        await storage.create_with_content(NAME, [b"abc"])
        assert await storage.write(NAME, 3, [b"def"]) == 3
        assert await storage.read(NAME, 0, 10) == b"abcdef"
        assert files.system.file(f"{ROOT}/{NAME}").holder is None
        assert await storage.info(NAME) == ChunkInfo(NAME, 6)

    assert simulate(scenario).fault_counts == {FileFault.NOT_CLOSED: 1}


def test_what_was_synced_is_written_even_if_it_cannot_be_closed() -> None:
    async def scenario(storage: HdfsChunkStorage, files: SimulatedFiles) -> None:
        await storage.create_with_content(NAME, [b"abc"])
        files.inject("append", FileFault.NOT_CLOSED)
        files.inject("recover_lease", FileFault.LATE)
        assert await storage.write(NAME, 3, [b"def"]) == 3
        assert await storage.read(NAME, 0, 10) == b"abcdef"

    simulate(scenario)


@pytest.mark.parametrize("seed", range(8))
def test_an_append_cut_short_is_reported_and_the_next_one_finds_its_bytes(seed: int) -> None:
    """The half-written last block is behind the offset, or it is lost; either way nothing false is ever read."""

    async def scenario(storage: HdfsChunkStorage, files: SimulatedFiles) -> None:
        await storage.create_with_content(NAME, [b"abc"])
        files.inject("append", FileFault.HALF_WRITTEN)
        with pytest.raises(StorageUnreachableError):
            await files.append(f"{ROOT}/{NAME}", 3, b"defghi")
        # The lease is a dead writer's, and the length is an old one.
        assert files.system.file(f"{ROOT}/{NAME}").holder is not None
        assert await storage.read(NAME, 0, 10) == b"abc"
        arrived_bytes = len(files.system.file(f"{ROOT}/{NAME}").data)
        (end,) = await asyncio.gather(storage.write(NAME, 3, [b"xyz"]), return_exceptions=True)
        if end == 3:
            assert await storage.read(NAME, 0, 10) == b"abcxyz"
            return
        assert isinstance(end, BadChunkOffsetError)
        assert end.given == 3 < end.expected <= arrived_bytes
        assert (await storage.info(NAME)).length == end.expected

    simulate(scenario, seed=seed)


@pytest.mark.parametrize("fault", [FileFault.LOST_REQUEST, FileFault.LOST_REPLY, FileFault.HALF_WRITTEN])
@pytest.mark.parametrize("seed", range(4))
def test_an_append_whose_connection_breaks_is_made_again_after_a_recovered_lease(fault: FileFault, seed: int) -> None:
    async def scenario(storage: HdfsChunkStorage, files: SimulatedFiles) -> None:
        await storage.create_with_content(NAME, [b"abc"])
        files.inject("append", fault)
        (end,) = await asyncio.gather(storage.write(NAME, 3, [b"defghi"]), return_exceptions=True)
        if fault is FileFault.HALF_WRITTEN and isinstance(end, BadChunkOffsetError):
            assert end.given == 3 < end.expected
        else:
            assert end == 6
            assert await storage.read(NAME, 0, 20) == b"abcdefghi"
        assert files.system.file(f"{ROOT}/{NAME}").holder is None

    assert simulate(scenario, seed=seed).fault_counts == {fault: 1}


def test_bytes_whose_copies_are_not_all_known_are_not_appended_to() -> None:
    """A later append that breaks off might cut them off, synced as they are: the segment continues in another chunk."""
    real = seeded_runtime()
    runtime = Runtime(disk=real.disk, work=InlineWork(), rng=real.rng, wall_clock_ms=real.wall_clock_ms)

    async def scenario(storage: HdfsChunkStorage, files: SimulatedFiles) -> None:
        segments = ChunkedStorage(storage, MemoryMetadataTable(), epoch=1, runtime=runtime, settings=SMALL)
        assert await segments.write(SEGMENT, 0, [b"abc"]) == 3
        files.inject("append", FileFault.COPIES_UNKNOWN)
        assert await segments.write(SEGMENT, 3, [b"de"]) == 5
        assert await segments.write(SEGMENT, 5, [b"fgh"]) == 8
        assert [chunk.length for chunk in await segments.chunks_of(SEGMENT)] == [3, 5]
        assert await segments.read(SEGMENT, 0, 10) == b"abcdefgh"
        # Asked for such an append outright.
        (first, _) = await storage.list()
        files.inject("append", FileFault.COPIES_UNKNOWN)
        with pytest.raises(ChunkNotSettledError, match="1 of 2 copies"):
            await storage.write(first.name, first.length, [b"x"])
        assert await storage.info(first.name) == first

    assert simulate(scenario).fault_counts == {FileFault.COPIES_UNKNOWN: 2}


def test_an_append_that_comes_late_lands_where_it_was_meant_or_not_at_all() -> None:
    """One that does not answer is made again; whichever comes first lands, and the other is refused."""

    async def scenario(storage: HdfsChunkStorage, files: SimulatedFiles) -> None:
        for turn in range(20):
            name = f"{NAME}-{turn}"
            await storage.create_with_content(name, [b"abc"])
            files.inject("append", FileFault.LATE)
            (end,) = await asyncio.gather(storage.write(name, 3, [b"def"]), return_exceptions=True)
            assert end == 3 or (isinstance(end, BadChunkOffsetError) and end.expected == 6)
            await asyncio.sleep(files.faults.late_s_max + 1)
            assert await storage.read(name, 0, 20) == b"abcdef"

    assert simulate(scenario).fault_counts == {FileFault.LATE: 20}


def test_an_append_that_never_answers_is_reported() -> None:
    async def scenario(storage: HdfsChunkStorage, files: SimulatedFiles) -> None:
        await storage.create_with_content(NAME, [b"abc"])
        files.faults = FileFaults(late_s_max=1e6)
        files.inject("append", *[FileFault.LATE] * (HdfsStorageSettings().retries_max + 1))
        with pytest.raises(StorageNotRespondingError):
            await storage.write(NAME, 3, [b"def"])

    simulate(scenario)


def test_an_append_whose_lease_is_not_recovered_in_time_is_given_up() -> None:
    async def scenario(storage: HdfsChunkStorage, files: SimulatedFiles) -> None:
        await storage.create_with_content(NAME, [b"abc"])
        files.inject("append", FileFault.LOST_REPLY)
        files.faults = FileFaults(recovery_s=1e6)
        start_s = asyncio.get_running_loop().time()
        with pytest.raises(StorageNotRespondingError, match="lease"):
            await storage.write(NAME, 3, [b"def"])
        assert asyncio.get_running_loop().time() - start_s < HdfsStorageSettings().lease_timeout_s + 1

    simulate(scenario)


@pytest.mark.parametrize("fault", [FileFault.LOST_REPLY, FileFault.LOST_REQUEST, FileFault.LATE])
def test_a_deletion_whose_answer_is_lost_succeeded_if_the_chunk_is_gone(fault: FileFault) -> None:
    async def scenario(storage: HdfsChunkStorage, files: SimulatedFiles) -> None:
        await storage.create_with_content(NAME, [b"abc"])
        files.inject("delete", fault)
        if fault is FileFault.LOST_REPLY:
            await storage.delete(NAME)
        else:
            with pytest.raises(StorageError):
                await storage.delete(NAME)
            assert await storage.exists(NAME)
            await storage.delete(NAME)
        assert not await storage.exists(NAME)

    simulate(scenario)


@pytest.mark.parametrize("fault", [FileFault.LOST_REPLY, FileFault.LOST_REQUEST])
def test_a_concatenation_whose_answer_is_lost_succeeded_if_the_sources_are_in_it(fault: FileFault) -> None:
    async def scenario(storage: HdfsChunkStorage, files: SimulatedFiles) -> None:
        for name, content in (("target", b"abcGARBAGE"), ("one", b"defX"), ("two", b"ghi")):
            await storage.create_with_content(name, [content])
        files.inject("concat", fault)
        if fault is FileFault.LOST_REPLY:
            assert await storage.concat("target", 3, [("one", 3), ("two", 3)]) == 9
        else:
            with pytest.raises(StorageUnreachableError):
                await storage.concat("target", 3, [("one", 3), ("two", 3)])
            assert await storage.concat("target", 3, [("one", 3), ("two", 3)]) == 9
        assert await storage.read("target", 0, 20) == b"abcdefghi"
        assert await storage.list() == [ChunkInfo("target", 9)]

    simulate(scenario)


def test_what_cannot_be_moved_is_copied() -> None:
    """To a target without blocks, from another folder, and from a file whose name would end in a list of names."""

    async def scenario(storage: HdfsChunkStorage, files: SimulatedFiles) -> None:
        await storage.create("empty")
        for name in ("one", "two", "a,b", "folder/one"):
            await storage.create_with_content(name, [name.encode()])
        files.inject("concat", FileFault.LATE)
        assert await storage.concat("empty", 0, [("one", 3), ("two", 0)]) == 3
        assert await storage.concat("empty", 3, [("a,b", 3)]) == 6
        assert await storage.concat("empty", 6, [("folder/one", 10)]) == 16
        assert await storage.read("empty", 0, 20) == b"onea,bfolder/one"
        assert await storage.list() == [ChunkInfo("empty", 16)]

    assert not simulate(scenario).fault_counts


@pytest.mark.parametrize("fault", [FileFault.LOST_REPLY, FileFault.LOST_REQUEST])
@pytest.mark.parametrize("call", ["create", "rename_new"])
def test_the_identity_is_written_once_with_any_lost_request(call: str, fault: FileFault) -> None:
    """Nothing else of it stays, and no partial identity is ever read."""

    async def scenario(storage: HdfsChunkStorage, files: SimulatedFiles) -> None:
        files.inject(call, fault)
        await storage.create_identity(b"of cluster 1")
        assert await storage.read_identity() == b"of cluster 1"
        with pytest.raises(StorageIdentityError):
            await another(storage, files).create_identity(b"of cluster 1")
        assert list(files.system.files) == [storage.identity_path]

    assert simulate(scenario).fault_counts == {fault: 1}


def test_reads_are_repeated_when_the_connection_breaks_and_only_so_often() -> None:
    async def scenario(storage: HdfsChunkStorage, files: SimulatedFiles) -> None:
        await storage.create_with_content(NAME, [b"abc"])
        for call in ("read", "stat", "list"):
            files.inject(call, *[FileFault.LOST_REPLY] * HdfsStorageSettings().retries_max)
        assert await storage.read(NAME, 0, 3) == b"abc"
        assert await storage.info(NAME) == ChunkInfo(NAME, 3)
        assert await storage.names(limit=10) == [NAME]
        files.faults = FileFaults(is_reachable=False)
        for do in (
            lambda: storage.read(NAME, 0, 1),
            lambda: storage.info(NAME),
            lambda: storage.exists(NAME),
            lambda: storage.delete(NAME),
            lambda: storage.list(),
            lambda: storage.write(NAME, 3, [b"x"]),
            lambda: storage.create_with_content(f"{NAME}-2", [b"x"]),
            lambda: storage.read_identity(),
        ):
            with pytest.raises(StorageUnreachableError):
                await do()
        files.faults = FileFaults()
        assert await storage.write(NAME, 3, [b"def"]) == 3

    simulate(scenario)


def test_safe_mode_refuses_changes_and_lets_read() -> None:
    """A store that is new waits for its end; one that has data reads them meanwhile."""

    async def scenario(storage: HdfsChunkStorage, files: SimulatedFiles) -> None:
        await storage.create_with_content(NAME, [b"abc"])
        files.faults = FileFaults(is_safe_mode=True)
        assert await storage.read(NAME, 0, 3) == b"abc"
        for do in (
            lambda: storage.write(NAME, 3, [b"x"]),
            lambda: storage.create_with_content(f"{NAME}-2", [b"x"]),
            lambda: storage.delete(NAME),
        ):
            with pytest.raises(StorageSafeModeError):
                await do()
        with pytest.raises(StorageUnavailableError, match="safe mode"):
            await storage.create_identity(b"of cluster 1")
        files.faults = FileFaults()
        await storage.create_identity(b"of cluster 1")

    simulate(scenario)


def test_a_slow_call_holds_up_no_other_chunk() -> None:
    async def scenario(storage: HdfsChunkStorage, files: SimulatedFiles) -> None:
        await storage.create_with_content("slow", [b"abc"])
        await storage.create_with_content("fast", [b"abc"])
        files.inject("append", FileFault.SLOW)
        slow = asyncio.create_task(storage.write("slow", 3, [b"x"]))
        await asyncio.sleep(0)
        start_s = asyncio.get_running_loop().time()
        await storage.write("fast", 3, [b"x"])
        assert asyncio.get_running_loop().time() - start_s < 1
        assert not slow.done()
        await slow

    simulate(scenario)


def test_a_cancelled_call_lets_the_next_one_on_its_chunk_continue() -> None:
    async def scenario(storage: HdfsChunkStorage, files: SimulatedFiles) -> None:
        await storage.create_with_content(NAME, [b"abc"])
        files.inject("append", FileFault.SLOW)
        given_up = asyncio.create_task(storage.write(NAME, 3, [b"x"]))
        await asyncio.sleep(0.1)
        given_up.cancel()
        with pytest.raises(asyncio.CancelledError):
            await given_up
        assert await storage.write(NAME, 3, [b"def"]) == 3

    simulate(scenario)


def test_folders_are_no_chunks() -> None:
    async def scenario(storage: HdfsChunkStorage, files: SimulatedFiles) -> None:
        await storage.create_with_content(NAME, [b"abc"])
        for name in ("scope", "scope/stream"):
            assert not await storage.exists(name)
            with pytest.raises(NoSuchChunkError):
                await storage.delete(name)

    simulate(scenario)


def test_places_are_read_and_others_are_refused() -> None:
    assert FilePlace.parse("hdfs://node:8020/some/root/") == FilePlace("hdfs", "node", 8020, "/some/root")
    assert FilePlace.parse("hdfs://service/root") == FilePlace("hdfs", "service", 0, "/root")
    assert str(FilePlace.parse("hdfs://node:8020/root")) == "hdfs://node:8020/root"
    for url in (
        "hdfs://node:8020", "hdfs://node:8020/", "hdfs:///root", "hdfs://node:x/root", "hdfs://node:0/root",
        "hdfs://node:70000/root", "hdfs://user@node/root", "hdfs://node/a//b", "hdfs://node/a/../b", "s3://bucket/root",
        "node/root", f"hdfs://node/{'x' * 1001}",
    ):  # fmt: skip
        with pytest.raises(InvalidArgumentError):
            FilePlace.parse(url)
    with pytest.raises(InvalidArgumentError):
        FileStoreSettings(webhdfs="node:9870")
