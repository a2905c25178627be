"""`ObjectChunkStorage` when requests are lost, late, sent twice or refused: on the simulated object store."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence

import pytest

from penstock.model.errors import (
    ChunkExistsError,
    InvalidArgumentError,
    NoSuchChunkError,
    ObjectExistsError,
    StorageBucketMissingError,
    StorageError,
    StorageIdentityError,
    StorageNotRespondingError,
    StorageThrottledError,
    StorageUnreachableError,
)
from penstock.model.segments import Buffer
from penstock.runtime.objects import ObjectInfo, ObjectPlace, ObjectStoreSettings
from penstock.segmentstore.tier2.object_storage import KEY_LENGTH_MAX, ObjectChunkStorage
from penstock.segmentstore.tier2.object_storage_settings import ObjectStorageSettings
from penstock_simulation.simulated import Simulation
from penstock_simulation.simulated.objects import ObjectFault, ObjectFaults, SimulatedBucket, SimulatedObjects
from support.object_races import lost_races

NAME = "scope/stream/0.E-1-O-0.7f0c"
Scenario = Callable[[ObjectChunkStorage, SimulatedObjects], Coroutine[object, object, None]]


def simulate(scenario: Scenario, *, seed: int = 1) -> SimulatedObjects:
    """Run a scenario in virtual time, and return the client that it had."""
    objects = SimulatedObjects(SimulatedBucket(), random.Random(seed))
    storage = ObjectChunkStorage(objects, random.Random(seed + 1), prefix="a/prefix")
    with Simulation(seed) as simulation:
        simulation.run(lambda: scenario(storage, objects))
    return objects


@pytest.mark.parametrize("fault", [ObjectFault.LOST_REPLY, ObjectFault.SENT_TWICE])
def test_a_creation_that_landed_without_an_answer_is_adopted(fault: ObjectFault) -> None:
    """Recognised by name, length and tag. It exists once, and the caller gets a success."""

    async def scenario(storage: ObjectChunkStorage, objects: SimulatedObjects) -> None:
        objects.inject("put_new", fault)
        assert await storage.create_with_content(NAME, [b"abc", b"def"]) == 6
        assert await storage.read(NAME, 0, 10) == b"abcdef"
        assert [info.name for info in await storage.list()] == [NAME]

    assert simulate(scenario).fault_counts == {fault: 1}


@pytest.mark.parametrize("fault", [ObjectFault.LOST_REPLY, ObjectFault.SENT_TWICE])
def test_the_identity_that_landed_without_an_answer_is_adopted(fault: ObjectFault) -> None:
    async def scenario(storage: ObjectChunkStorage, objects: SimulatedObjects) -> None:
        objects.inject("put_new", fault)
        await storage.create_identity(b"of cluster 1")
        with pytest.raises(StorageIdentityError):
            await storage.create_identity(b"of cluster 1")
        assert await storage.read_identity() == b"of cluster 1"

    assert simulate(scenario).fault_counts == {fault: 1}


def test_equal_content_of_another_writer_is_not_adopted() -> None:
    """The same name, length and bytes, and so the same entity tag; the other's tag tells."""

    async def scenario(storage: ObjectChunkStorage, objects: SimulatedObjects) -> None:
        objects.bucket.create(f"a/prefix/{NAME}", b"abcdef", "another's")
        for fault in (ObjectFault.LOST_REQUEST, ObjectFault.SENT_TWICE, None):
            if fault is not None:
                objects.inject("put_new", fault)
            with pytest.raises(ChunkExistsError):
                await storage.create_with_content(NAME, [b"abcdef"])

    simulate(scenario)


def test_a_creation_that_arrives_after_it_was_sent_again_does_no_harm() -> None:
    """The first to arrive is applied, the other is refused; both have one tag, so the caller gets a success."""

    async def scenario(storage: ObjectChunkStorage, objects: SimulatedObjects) -> None:
        objects.inject("put_new", ObjectFault.LATE)
        assert await storage.create_with_content(NAME, [b"abc"]) == 3
        await asyncio.sleep(objects.faults.late_s_max + 1)
        assert await storage.read(NAME, 0, 10) == b"abc"
        assert len(objects.bucket.history) == 1

    simulate(scenario)


def test_a_creation_of_unknown_outcome_is_reported_as_an_error_and_may_come_late() -> None:
    """Neither success nor that it exists: the caller knows that the name may come into being."""

    async def scenario(storage: ObjectChunkStorage, objects: SimulatedObjects) -> None:
        objects.inject("put_new", *[ObjectFault.LATE] * ObjectStorageSettings().put_attempts_max)
        with pytest.raises(StorageNotRespondingError):
            await storage.create_with_content(NAME, [b"abc"])
        assert not await storage.exists(NAME)
        await asyncio.sleep(objects.faults.late_s_max + 1)
        assert await storage.read(NAME, 0, 10) == b"abc"

    simulate(scenario)


def test_a_creation_continues_through_throttling_conflicts_and_lost_requests() -> None:
    async def scenario(storage: ObjectChunkStorage, objects: SimulatedObjects) -> None:
        objects.inject("put_new", ObjectFault.THROTTLE, ObjectFault.CONFLICT)
        await storage.create_with_content(f"{NAME}-1", [b"abc"])
        objects.inject("put_new", ObjectFault.LOST_REQUEST)
        await storage.create_with_content(f"{NAME}-2", [b"abc"])
        objects.inject("put_new", *[ObjectFault.THROTTLE] * ObjectStorageSettings().put_attempts_max)
        with pytest.raises(StorageThrottledError):
            await storage.create_with_content(f"{NAME}-3", [b"abc"])
        assert not await storage.exists(f"{NAME}-3")

    simulate(scenario)


def test_a_store_that_is_unreachable_says_so_and_works_again_by_itself() -> None:
    async def scenario(storage: ObjectChunkStorage, objects: SimulatedObjects) -> None:
        objects.faults = ObjectFaults(is_reachable=False)
        for call in (
            lambda: storage.create_with_content(NAME, [b"abc"]),
            lambda: storage.read(NAME, 0, 1),
            lambda: storage.exists(NAME),
            lambda: storage.delete(NAME),
            lambda: storage.list(),
            lambda: storage.read_identity(),
        ):
            with pytest.raises(StorageUnreachableError):
                await call()
        objects.faults = ObjectFaults()
        await storage.create_with_content(NAME, [b"abc"])

    simulate(scenario)


@pytest.mark.parametrize("seed", range(10))
def test_under_all_faults_what_was_created_is_there_and_what_exists_was_created_by_one(seed: int) -> None:
    """Four clients create the same names with their own contents. For each name at most one call succeeds, and its
    content then stays. A client that gets `ChunkExistsError` is not the one whose content is there.
    """  # fmt: skip
    rates = tuple((fault, 0.1) for fault in ObjectFault if fault is not ObjectFault.STALE_LIST)
    bucket = SimulatedBucket()
    names = [f"scope/stream/{number}" for number in range(12)]
    ends: dict[str, dict[int, object]] = {name: {} for name in names}

    async def client(number: int) -> None:
        objects = SimulatedObjects(bucket, random.Random(f"{seed}/{number}"), ObjectFaults(rates=rates))
        storage = ObjectChunkStorage(objects, random.Random(f"{seed}/tags of {number}"))
        for name in names:
            try:
                ends[name][number] = await storage.create_with_content(name, [b"client %d" % number])
            except StorageError as error:
                ends[name][number] = error

    async def scenario() -> None:
        await asyncio.gather(*map(client, range(4)))
        await asyncio.sleep(ObjectFaults().late_s_max + 1)

    with Simulation(seed) as simulation:
        simulation.run(scenario)
    for name in names:
        winners = [number for number, end in ends[name].items() if end == len(b"client 0")]
        assert len(winners) <= 1, (name, ends[name])
        stored = bucket.contents.get(name)
        if winners:
            assert stored is not None
            assert stored[0] == b"client %d" % winners[0]
        for number, end in ends[name].items():
            if isinstance(end, ChunkExistsError):
                assert stored is not None
                assert stored[0] != b"client %d" % number


class _Missing(SimulatedObjects):
    """A bucket that is not there: creations report it, and reads cannot."""

    async def put_new(self, key: str, content: Buffer, tag: str) -> None:
        self.put_count = getattr(self, "put_count", 0) + 1
        raise StorageBucketMissingError(f"{self.place} is not there")


async def test_what_is_refused_permanently_is_not_tried_again() -> None:
    objects = _Missing(SimulatedBucket(), random.Random(1))
    with pytest.raises(StorageBucketMissingError):
        await ObjectChunkStorage(objects, random.Random(1)).create_with_content(NAME, [b"abc"])
    assert objects.put_count == 1


class _Tagless(SimulatedObjects):
    """A store that keeps no tags."""

    async def head(self, key: str) -> ObjectInfo:
        found = await super().head(key)
        return ObjectInfo(found.key, found.length_bytes)


def test_without_tags_nothing_is_adopted_and_an_unknown_outcome_stays_unknown() -> None:
    objects = _Tagless(SimulatedBucket(), random.Random(1))
    storage = ObjectChunkStorage(objects, random.Random(1))

    async def scenario() -> None:
        objects.inject("put_new", ObjectFault.LOST_REPLY)
        with pytest.raises(StorageUnreachableError):
            await storage.create_with_content(NAME, [b"abc"])
        with pytest.raises(ChunkExistsError):
            await storage.create_with_content(NAME, [b"abc"])

    with Simulation(1) as simulation:
        simulation.run(scenario)


def test_a_key_that_no_store_takes_is_refused_before_any_request() -> None:
    async def scenario(storage: ObjectChunkStorage, objects: SimulatedObjects) -> None:
        objects.faults = ObjectFaults(is_reachable=False)
        longest = "/".join(["x" * 200] * 5) + "/" + "y" * (KEY_LENGTH_MAX - 5 * 201 - len("a/prefix/"))
        with pytest.raises(StorageUnreachableError):
            await storage.create_with_content(longest, [b"abc"])
        with pytest.raises(InvalidArgumentError, match="1025 bytes with the prefix"):
            await storage.create_with_content(f"{longest}y", [b"abc"])

    simulate(scenario)


def test_a_chunk_deleted_twice_is_missing_the_second_time() -> None:
    async def scenario(storage: ObjectChunkStorage, objects: SimulatedObjects) -> None:
        await storage.create_with_content(NAME, [b"abc"])
        objects.inject("delete", ObjectFault.LOST_REPLY)
        await storage.delete(NAME)  # Sent twice.
        with pytest.raises(NoSuchChunkError):
            await storage.delete(NAME)

    simulate(scenario)


class _CountedLists(SimulatedObjects):
    """Notes the keys of each page of its lists, of at most 10 each."""

    def __init__(self) -> None:
        super().__init__(SimulatedBucket(), random.Random(1))
        self.pages: list[list[str]] = []

    async def list(self, folder: str, *, after: str = "") -> AsyncIterator[Sequence[ObjectInfo]]:
        async for page in super().list(folder, after=after):
            self.pages.append([info.key for info in page])
            yield page


@pytest.mark.parametrize(("prefix", "pages"), [("d/table_3.E-", 1), ("d/table_31.E-", 1), ("d/table_", 10), ("d/", 10)])
def test_a_list_requests_only_what_is_near_its_prefix(prefix: str, pages: int) -> None:
    """One folder has the chunks of all containers. Each start lists those of one container."""
    objects = _CountedLists()
    storage = ObjectChunkStorage(objects, random.Random(2), prefix="a/prefix")
    names = sorted(f"d/table_{container}.E-{number}-O-0.7f0c" for container in range(50) for number in (1, 2))
    names += [f"{folder}/table_3.E-1-O-0.7f0c" for folder in ("c", "e")]

    async def scenario() -> None:
        for name in names:
            await storage.create_with_content(name, [b"abc"])
        found = [info.name for info in await storage.list(prefix)]
        assert found == [name for name in names if name.startswith(prefix)]

    with Simulation(1) as simulation:
        simulation.run(scenario)
    assert len(objects.pages) == pages


@pytest.mark.parametrize("prefix", ["", "x", "d", "d/\U0001f600", "d/\uffee", "d/\uffee/", "d/z", "d/z/y/x"])
def test_a_list_returns_each_chunk_with_its_prefix(prefix: str) -> None:
    """Keys are in the order of their bytes, in which the end of the prefix is recognised."""
    names = ["d/a", "d/z", "d/z0", "d/z.y", "d/\uffee", "d/\uffee1", "d/\U0001f6001", "d/\U0001f600", "e", "x", "xy"]
    names += [f"d/z/y/x{number}" for number in range(15)]

    async def scenario(storage: ObjectChunkStorage, objects: SimulatedObjects) -> None:
        for name in names:
            await storage.create_with_content(name, [b"abc"])
        found = [info.name for info in await storage.list(prefix)]
        assert found == sorted(name for name in names if name.startswith(prefix))

    simulate(scenario)


def test_races_are_lost_on_a_store_that_checks_and_writes_in_two_steps() -> None:
    """The race test that real stores pass can fail: on a store that checks conditions without atomicity it does."""

    async def races(is_atomic: bool) -> list[str]:
        bucket, faults = SimulatedBucket(), ObjectFaults(is_atomic=is_atomic)
        clients = [SimulatedObjects(bucket, random.Random(number), faults) for number in range(4)]
        return await lost_races(clients, round_count=10, writer_count=20)

    with Simulation(1) as simulation:
        assert simulation.run(lambda: races(True)) == []
        assert simulation.run(lambda: races(False))


@pytest.mark.parametrize(
    ("url", "place"),
    [
        ("s3://bucket", ObjectPlace("s3", "bucket")),
        ("s3://bucket/", ObjectPlace("s3", "bucket")),
        ("gs://bucket/some/prefix/", ObjectPlace("gs", "bucket", "some/prefix")),
        ("az://container/p", ObjectPlace("az", "container", "p")),
    ],
)
def test_places_are_read(url: str, place: ObjectPlace) -> None:
    assert ObjectPlace.parse(url) == place
    assert str(place) == url.rstrip("/")


@pytest.mark.parametrize(
    "url",
    ["", "bucket", "http://host/bucket", "s3://", "s3:///prefix", "s3://b/a//b", "s3://b/../c", "s3://b/p?x=1", "s3://b/#",
     "s3://b/" + "p" * 201],
)  # fmt: skip
def test_invalid_places_are_refused(url: str) -> None:
    with pytest.raises(InvalidArgumentError, match="is not a place in object storage"):
        ObjectPlace.parse(url)


def test_settings_that_cannot_work_are_refused() -> None:
    for settings in ({"access_key_id": "a"}, {"endpoint": "localhost:9000"}, {"reads_max": 0}):
        with pytest.raises(InvalidArgumentError):
            ObjectStoreSettings(**settings)  # Of several types, on purpose.
    assert "hidden" not in repr(ObjectStoreSettings(access_key_id="a", secret_access_key="hidden"))


def test_an_object_that_cannot_be_beside_others_is_an_error_and_not_a_chunk_that_exists() -> None:
    """As a gateway to a file system refuses a name below another one: there is none, and there never will be."""

    class Refusing(SimulatedObjects):
        async def put_new(self, key: str, content: Buffer, tag: str) -> None:
            raise ObjectExistsError(key, "ObjectParentIsFile")

    async def scenario() -> None:
        storage = ObjectChunkStorage(Refusing(SimulatedBucket(), random.Random(1)), random.Random(1))
        with pytest.raises(ObjectExistsError, match="ObjectParentIsFile"):
            await storage.create_with_content(NAME, [b"abc"])

    with Simulation(1) as simulation:
        simulation.run(scenario)


def test_copies_of_what_is_created_are_bounded_first_come_first_served() -> None:
    """Eight objects of 60 bytes at once, 150 bytes at most; one that is longer than that goes by itself."""

    async def scenario() -> None:
        objects = SimulatedObjects(SimulatedBucket(), random.Random(1))
        storage = ObjectChunkStorage(objects, random.Random(2), ObjectStorageSettings(content_bytes_max=150))
        put_new = objects.put_new
        under_way: dict[str, int] = {}
        most: list[tuple[int, int]] = []
        order: list[str] = []

        async def watched(key: str, data: bytes, tag: str) -> None:
            under_way[key] = len(data)
            order.append(key)
            most.append((sum(under_way.values()), len(under_way)))
            try:
                await asyncio.sleep(1)
                await put_new(key, data, tag)
            finally:
                del under_way[key]

        objects.put_new = watched  # Watched, and then as before.  # type: ignore[assignment, method-assign]
        names = [f"{NAME}{number}" for number in range(8)]
        tasks = [asyncio.ensure_future(storage.create_with_content(name, [bytes(30)] * 2)) for name in names]
        tasks.append(asyncio.ensure_future(storage.create_with_content(NAME, [bytes(1000)])))
        await asyncio.sleep(0.5)
        assert storage.content.held_bytes == 120
        tasks[3].cancel()
        await asyncio.sleep(0)
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert [result for result in results if isinstance(result, int)] == [60] * 7 + [1000]
        assert max(byte_count for byte_count, _ in most[:-1]) == 120
        assert most[-1] == (1000, 1)
        assert order == [*names[:3], *names[4:], NAME]
        assert storage.content.held_bytes == 0

    with Simulation(1) as simulation:
        simulation.run(scenario)
