"""`salvage_object_log` on the logs of a small store in this process, in a simulated bucket; real servers: tests/e2e."""

from __future__ import annotations

import itertools
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.administration.errors import LogNotSalvageableError
from penstock.administration.log_salvage import Salvaged
from penstock.administration.object_log_administration import ObjectLogAdministration
from penstock.administration.object_log_salvage import salvage_object_log
from penstock.model.errors import InvalidArgumentError, LogFencedError, PenstockError
from penstock.model.routing import container_of
from penstock.runtime.runtime import Runtime, real_runtime
from penstock.segmentstore.container_settings import ImageSettings
from penstock.segmentstore.store import SegmentStore
from penstock.segmentstore.tier1.object_log.container_record import ContainerRecord
from penstock.segmentstore.tier1.object_log.factory import ObjectLogFactory
from penstock.segmentstore.tier1.object_log.log_bucket import LogBucket
from penstock.segmentstore.tier1.object_log.server_claim import LogClusterIdentity, claim_identity
from penstock.segmentstore.tier1.object_log.settings import ObjectLogSettings
from penstock.server.data_directory import DataDirectory
from penstock.server.long_term_storage import open_long_term_storage
from penstock.server.settings import StandaloneSettings
from penstock_simulation.simulated.objects import ObjectFaults, SimulatedBucket, SimulatedObjects
from support.small_store import NAMES, settings_of

LOG = ObjectLogSettings(batch_interval_s=0.0, gather_s=0.0, reserve_bytes=0, retry_delay_s_max=0.1)
QUICK = ObjectFaults(latency_s_min=0.0001, latency_s_max=0.0002)
#: Segments of container 0, which gets damaged, and one of container 1.
HERE = [name for name in NAMES if container_of(name, 2) == 0]
THERE = next(name for name in NAMES if container_of(name, 2) == 1)
LATER_MARK = b"another event that will be damaged"
MARK = b"this event will be damaged"


class EndedError(Exception):
    """The process has ended."""


class WatchedBucket(SimulatedBucket):
    """A bucket that takes `writes_left` changes, and makes a call once at the creation of a key with some beginning."""

    def __init__(self) -> None:
        super().__init__()
        self.writes_left: int | None = None
        self.on_create: dict[str, Callable[[], None]] = {}

    def replace(self, key: str, content: bytes, tag: str) -> None:
        """See `SimulatedBucket.replace`."""
        if self.writes_left is not None:
            if not self.writes_left:
                raise EndedError
            self.writes_left -= 1
        for start in [start for start in self.on_create if key.startswith(start) and len(content) > 64]:
            self.on_create.pop(start)()
        super().replace(key, content, tag)


class World:
    """A bucket, and settings of stores whose logs are in it."""

    def __init__(self, tmp_path: Path) -> None:
        settings = replace(settings_of(tmp_path), object_log=LOG)
        container = replace(settings.segment_store.container, ownership_lease_s=2.0, images=ImageSettings(interval_s=0))
        self.settings: StandaloneSettings = replace(
            settings, segment_store=replace(settings.segment_store, container=container)
        )
        self.bucket = WatchedBucket()
        self.cluster_id = ""

    def objects(self) -> SimulatedObjects:
        """Return a client of the bucket."""
        return SimulatedObjects(self.bucket, random.Random(1), QUICK)

    def runtime(self) -> Runtime:
        """Return a runtime in which all buckets are this one."""
        runtime = real_runtime(2)
        runtime.open_objects = lambda place, settings: self.objects()
        return runtime

    @asynccontextmanager
    async def store(self) -> AsyncIterator[SegmentStore]:
        """Run a store."""
        runtime = self.runtime()
        directory = DataDirectory(self.settings.data_dir, runtime)
        self.cluster_id = directory.open(2).cluster_id
        bucket = LogBucket(self.objects(), LOG, prefix="log")
        await claim_identity(bucket, runtime, self.cluster_id, 2)
        store = SegmentStore(
            logs=ObjectLogFactory(
                self.objects(), runtime, LOG, prefix="log", cluster_id=self.cluster_id, container_count=2
            ),
            chunks=open_long_term_storage(self.settings, directory, runtime),
            cluster_id=self.cluster_id,
            runtime=runtime,
            settings=self.settings.segment_store,
        )
        try:
            await store.start()
            yield store
        finally:
            await store.stop()
            directory.close()
            await runtime.work.close()

    async def fill(self) -> None:
        """Write segments of both containers; each append is an object of its own."""
        async with self.store() as store:
            for name in (*HERE, THERE):
                await store.create_segment(name)
                await store.append(name, b"before")
            await store.append(HERE[0], MARK)
            await store.append(HERE[0], b"after")
            await store.append(HERE[1], b" and more")

    async def salvage(self, container: int = 0, *, is_dry_run: bool = False) -> Salvaged:
        """Salvage the log of a container."""
        runtime = self.runtime()
        bucket = LogBucket(self.objects(), LOG, prefix="log", cluster_id=self.cluster_id, attempts_max=2)
        logs = ObjectLogAdministration(bucket, LogClusterIdentity(self.cluster_id, 2), self.settings, runtime)
        try:
            return await salvage_object_log(
                logs, self.settings, runtime, container, enable_command="penstock log enable", is_dry_run=is_dry_run
            )
        finally:
            await runtime.work.close()

    def slot_with(self, mark: bytes = MARK) -> str:
        """Return the key of the object that has `mark`."""
        return next(
            key for key, (content, _) in self.bucket.contents.items() if key[:6] == "log/j/" and mark in content
        )

    def damage(self, mark: bytes = MARK) -> bytes:
        """Flip a bit of the mark; return the object as it is now."""
        key = self.slot_with(mark)
        content = self.bucket.contents[key][0]
        at = content.find(mark)
        self.bucket.replace(key, content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :], "")
        return self.bucket.contents[key][0]

    def record(self) -> ContainerRecord:
        """Return the record of container 0."""
        return ContainerRecord.decode(self.bucket.contents["log/r/0"][0], "r/0", 0, self.cluster_id)


async def read(store: SegmentStore, name: str) -> bytes:
    """Return the bytes of a segment."""
    info = await store.segment_info(name)
    return (await store.read(name, 0, info.length)).joined() if info.length else b""


async def check_salvaged(world: World) -> None:
    """Check what a store serves of the new log, twice, and that it continues."""
    for cycle in range(2):
        async with world.store() as store:
            assert await read(store, HERE[0]) == b"before" + b"!" * cycle
            assert await read(store, HERE[1]) == b"before and more"
            assert await read(store, THERE) == b"before"
            await store.append(HERE[0], b"!")


async def test_a_damaged_object_is_lost_and_all_else_is_in_the_new_log(tmp_path: Path) -> None:
    """The damaged log is kept as it was; a dry run changes nothing; a second run finds nothing to do."""
    world = World(tmp_path)
    await world.fill()
    key, content = world.slot_with(), world.damage()
    before, pieces = dict(world.bucket.contents), world.record().pieces
    told = await world.salvage(is_dry_run=True)
    assert world.bucket.contents == before
    done = await world.salvage()
    assert done.report is not None
    assert told.report is not None
    (loss,) = done.report.segments.values()
    assert (loss.name, loss.start, loss.end) == (HERE[0], 6, 6 + len(MARK) + 5)
    assert told.report.segments == done.report.segments
    assert (done.path, done.damaged_path[:30]) == ("s3://simulated/log/r/0", "s3://simulated/log/damaged/0-1")
    folder = done.damaged_path.removeprefix("s3://simulated/")
    assert world.bucket.contents[f"{folder}/{key.removeprefix('log/')}"][0] == content
    record = ContainerRecord.decode(world.bucket.contents[f"{folder}/r/0"][0], "r/0", 0, world.cluster_id)
    assert record.pieces == pieces
    with pytest.raises(InvalidArgumentError, match="is not damaged"):
        await world.salvage()
    await check_salvaged(world)


async def test_a_deleted_object_is_lost_and_all_else_is_in_the_new_logs(tmp_path: Path) -> None:
    """It is missing in the log of the other container, too: nothing shows that it had none of its frames."""
    world = World(tmp_path)
    await world.fill()
    del world.bucket.contents[world.slot_with()]
    done = await world.salvage()
    assert done.report is not None
    assert [lost.problem for lost in done.report.lost] == ["the object is missing"]
    assert [loss.name for loss in done.report.segments.values()] == [HERE[0]]
    other = await world.salvage(1)
    assert other.report is not None
    assert other.report.segments == {}
    await check_salvaged(world)


@pytest.mark.nightly
async def test_a_salvage_that_ends_anywhere_leaves_the_damaged_log_or_the_new_one(tmp_path: Path) -> None:
    """Each change of the bucket is once the last one. What is left is never a mixture; the next run ends it."""
    world = World(tmp_path)
    await world.fill()
    world.damage()
    before, pieces = dict(world.bucket.contents), world.record().pieces
    outcomes: list[bool] = []
    for count in itertools.count():
        world.bucket.contents = dict(before)
        world.bucket.writes_left = count
        try:
            await world.salvage()
        except EndedError:
            pass
        is_whole = world.bucket.writes_left == 0
        world.bucket.writes_left = None
        left = world.record()
        is_new = left.is_enabled and left.epoch > 1
        if is_new:
            with pytest.raises(InvalidArgumentError, match="is not damaged"):
                await world.salvage()
        else:
            assert [piece.ordinal for piece in left.pieces][: len(pieces)] == [piece.ordinal for piece in pieces]
            assert all(piece.first == piece.end for piece in left.pieces[len(pieces) :])
            await world.salvage()
        (piece,) = world.record().pieces
        assert piece.end
        outcomes.append(is_new)
        if is_new and not is_whole:
            break
    assert outcomes == sorted(outcomes)
    assert outcomes.count(False) > 5
    await check_salvaged(world)


async def test_a_record_that_is_changed_meanwhile_ends_the_salvage_and_the_log_stays(tmp_path: Path) -> None:
    """An administrator enables the log, or a server opens it, while the new log is written."""
    world = World(tmp_path)
    await world.fill()
    world.damage()

    def enable() -> None:
        record = replace(world.record(), is_enabled=True, nonce=bytes(16))
        world.bucket.replace("log/r/0", record.encode(), "")

    world.bucket.on_create["log/j/"] = enable
    with pytest.raises(LogFencedError, match="was changed meanwhile"):
        await world.salvage()
    assert [piece.ordinal for piece in world.record().pieces if piece.end != piece.first] == [1]
    await world.salvage()
    await check_salvaged(world)


async def test_an_owner_that_still_runs_is_fenced_and_what_it_acknowledged_is_kept(tmp_path: Path) -> None:
    """Its log was damaged after it was read. The other container of its process continues."""
    world = World(tmp_path)
    await world.fill()
    async with world.store() as store:
        await store.append(HERE[1], b"!")
        # Not yet forgotten by a truncation.
        await store.append(HERE[0], LATER_MARK)
        world.damage(LATER_MARK)
        await world.salvage()
        with pytest.raises(PenstockError):
            await store.append(HERE[1], b"?")
        await store.append(THERE, b"!")
    async with world.store() as store:
        assert await read(store, HERE[1]) == b"before and more!"
        assert await read(store, THERE) == b"before!"


async def test_a_log_that_its_owner_truncates_meanwhile_is_enabled_again(tmp_path: Path) -> None:
    """The damage is gone when the log is disabled. Here it is put right at that moment."""
    world = World(tmp_path)
    await world.fill()
    key = world.slot_with()
    content = world.bucket.contents[key][0]
    world.damage()

    def put_back() -> None:
        world.bucket.contents[key] = content, ""

    world.bucket.on_create["log/r/0"] = put_back
    record = replace(world.record(), pieces=(replace(world.record().pieces[0], end=None),), is_released=False)
    world.bucket.contents["log/r/0"] = record.encode(), ""
    with pytest.raises(InvalidArgumentError, match="is not damaged any more"):
        await world.salvage()
    assert world.record().is_enabled
    async with world.store() as store:
        assert await read(store, HERE[0]) == b"before" + MARK + b"after"


async def test_a_log_without_a_whole_checkpoint_is_left_as_it_is(tmp_path: Path) -> None:
    world = World(tmp_path)
    await world.fill()
    for key in [key for key in world.bucket.contents if key.startswith("log/j/")]:
        content = world.bucket.contents[key][0]
        if len(content) > 64:
            world.bucket.replace(key, content[:64] + bytes(len(content) - 64), "")
    before = dict(world.bucket.contents)
    with pytest.raises(LogNotSalvageableError, match="Put the damaged or missing object back"):
        await world.salvage()
    assert world.bucket.contents == before
