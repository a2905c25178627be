"""Every `ObjectStore` creates, replaces and reads objects as its contract says, also with many callers at once.

The real servers run as other programs. MinIO is only used where it is installed, see `support.s3_server`.
"""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from obstore.store import LocalStore, MemoryStore

from penstock.model.errors import (
    NoSuchObjectError,
    ObjectChangedError,
    ObjectExistsError,
    UnsupportedOperationError,
)
from penstock.runtime.directory_objects import DirectoryObjects
from penstock.runtime.object_changes import change_object
from penstock.runtime.objects import ObjectStore, ObjectVersion
from penstock.runtime.obstore_objects import ObstoreObjects
from penstock_simulation.simulated.objects import SimulatedBucket, SimulatedObjects
from support.distant_s3 import DistantS3
from support.object_races import lost_races, lost_replacements
from support.s3_server import S3Server

KEY = "some/log/r/3"


@dataclass
class Bucket:
    """A bucket of one implementation.

    Attributes:
        open: returns another client of it.
        can_replace: whether it replaces objects on condition.
        keeps_tags: whether it keeps tags.
        is_atomic: whether the content and the version of an object change in one step.
    """

    open: Callable[[], ObjectStore]
    can_replace: bool = True
    keeps_tags: bool = True
    is_atomic: bool = True

    @property
    def clients(self) -> list[ObjectStore]:
        return [self.open() for _ in range(4)]


@pytest.fixture(
    params=[
        "obstore-memory",
        "obstore-local",
        "directory",
        "simulated",
        "distant",
        pytest.param("versitygw", marks=pytest.mark.interop),
        pytest.param("minio", marks=pytest.mark.interop),
    ]
)
def bucket(request: pytest.FixtureRequest, tmp_path: Path) -> Bucket:
    match request.param:
        case "obstore-memory":
            memory = MemoryStore()
            return Bucket(lambda: ObstoreObjects(memory, "memory://"))
        case "obstore-local":
            local = LocalStore(tmp_path / "bucket", mkdir=True)
            return Bucket(lambda: ObstoreObjects(local, "file://bucket"), can_replace=False, keeps_tags=False)
        case "directory":
            return Bucket(lambda: DirectoryObjects(str(tmp_path), base=str(tmp_path)))
        case "simulated":
            contents, rng = SimulatedBucket(), random.Random(1)
            return Bucket(lambda: SimulatedObjects(contents, random.Random(rng.random())))
        case "distant":
            distant: DistantS3 = request.getfixturevalue("distant_s3")
            place = distant.make_bucket(f"b{uuid.uuid4().hex[:12]}")
            return Bucket(lambda: distant.open(place.bucket))
        case name:
            server: S3Server = request.getfixturevalue("s3_server" if name == "versitygw" else "minio_server")
            place = server.make_bucket(f"b{uuid.uuid4().hex[:12]}")
            return Bucket(lambda: server.open(place.bucket), is_atomic=server.is_atomic)


@pytest.fixture
def objects(bucket: Bucket) -> ObjectStore:
    return bucket.open()


@pytest.fixture
def replaceable(bucket: Bucket) -> Bucket:
    if not bucket.can_replace:
        pytest.skip("this store cannot replace on condition, which is legal")
    if not bucket.is_atomic:
        pytest.skip("this server needs a file system with extended attributes")
    return bucket


async def test_an_object_is_created_once_and_read_back(bucket: Bucket, objects: ObjectStore) -> None:
    await objects.put_new(KEY, b"abc", "tag 1")
    with pytest.raises(ObjectExistsError):
        await objects.put_new(KEY, b"other", "tag 2")
    assert await objects.get(KEY) == b"abc"
    assert (await objects.get_versioned(KEY)).content == b"abc"
    assert await objects.get_range(KEY, 1, 9) == b"bc"
    info = await objects.head(KEY)
    assert (info.length_bytes, info.tag) == (3, "tag 1" if bucket.keeps_tags else None)
    await objects.delete(KEY)
    for read in (objects.get, objects.head, objects.get_versioned):
        with pytest.raises(NoSuchObjectError):
            await read(KEY)


async def test_an_object_is_replaced_in_the_version_that_is_named_and_in_no_other(replaceable: Bucket) -> None:
    objects, other = replaceable.open(), replaceable.open()
    await objects.put_new(KEY, b"first", "tag")
    first = (await objects.get_versioned(KEY)).version
    second = await objects.put_if(KEY, b"second, longer", first)
    assert not second.is_same(first)
    found = await other.get_versioned(KEY)
    assert found.content == b"second, longer"
    assert found.version.is_same(second)
    for stale in (first, ObjectVersion('"never"', "1")):
        with pytest.raises(ObjectChangedError, match=KEY):
            await other.put_if(KEY, b"third", stale)
    assert (await objects.get_versioned(KEY)).content == b"second, longer"
    third = await other.put_if(KEY, b"3", second)
    assert (await objects.get_versioned(KEY)).version.is_same(third)


async def test_an_object_that_does_not_exist_is_not_created_by_a_replacement(replaceable: Bucket) -> None:
    objects = replaceable.open()
    await objects.put_new(KEY, b"first", "tag")
    version = (await objects.get_versioned(KEY)).version
    await objects.delete(KEY)
    for key in (KEY, "some/other"):
        with pytest.raises(ObjectChangedError, match=key):
            await objects.put_if(key, b"second", version)
        with pytest.raises(NoSuchObjectError):
            await objects.get(key)


async def test_a_store_without_conditional_replacement_says_so_and_changes_nothing(bucket: Bucket) -> None:
    if bucket.can_replace:
        pytest.skip("this store can")
    objects = bucket.open()
    await objects.put_new(KEY, b"first", "tag")
    version = (await objects.get_versioned(KEY)).version
    with pytest.raises(UnsupportedOperationError, match="cannot replace an object on condition"):
        await objects.put_if(KEY, b"second", version)
    assert await objects.get(KEY) == b"first"


async def test_one_of_twenty_concurrent_creations_of_an_object_succeeds(bucket: Bucket) -> None:
    if not bucket.keeps_tags:
        pytest.skip("this store keeps no tags, which is legal")
    assert await lost_races(bucket.clients, round_count=5, writer_count=20) == []


async def test_one_of_twenty_concurrent_replacements_of_an_object_succeeds(replaceable: Bucket) -> None:
    assert await lost_replacements(replaceable.clients, round_count=5, writer_count=20) == []


async def test_a_counter_that_many_increment_misses_no_increment(replaceable: Bucket) -> None:
    """Each reads, adds one, and replaces what it has read; one that was too late begins again."""

    async def increment(objects: ObjectStore, number: int) -> None:
        for round_number in range(3):
            while True:
                found = await objects.get_versioned(KEY)
                count = int(found.content.split()[0]) + 1
                content = b"%d by %d in %d" % (count, number, round_number)
                try:
                    await change_object(objects, KEY, content, found.version)
                    break
                except ObjectChangedError:
                    continue

    clients = replaceable.clients
    await change_object(clients[0], KEY, b"0 by none", None)
    await asyncio.gather(*(increment(objects, number) for number, objects in enumerate(clients)))
    assert (await clients[0].get(KEY)).startswith(b"12 by ")
