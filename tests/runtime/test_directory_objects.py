"""`DirectoryObjects`: processes that share a directory, drafts that are no objects, and what is refused.

The contract of every object store is in `tests/conformance/test_object_store.py`.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.model.errors import (
    InvalidArgumentError,
    NoSuchObjectError,
    ObjectExistsError,
    ObjectRangeError,
    StorageBucketMissingError,
    StorageCredentialsError,
    StorageError,
    StorageFullError,
)
from penstock.runtime.directory_objects import DirectoryObjects
from penstock.runtime.objects import ObjectPlace
from penstock.runtime.runtime import real_runtime
from penstock.server.settings import StandaloneSettings
from support.standalone_process import child_environment

#: Increments a counter on condition, again and again, and creates objects; prints how many it has created.
_RACER = """
import asyncio, sys
from penstock.model.errors import ObjectChangedError, ObjectExistsError
from penstock.runtime.directory_objects import DirectoryObjects

async def main():
    objects, own = DirectoryObjects(sys.argv[1], base=sys.argv[1]), sys.argv[2]
    won = 0
    for number in range(40):
        try:
            await objects.put_new(f"races/{number}", own.encode(), own)
            won += 1
        except ObjectExistsError:
            pass
        while True:
            found = await objects.get_versioned("r/counter")
            count = int(found.content.split()[0]) + 1
            try:
                await objects.put_if("r/counter", b"%d %s %d" % (count, own.encode(), number), found.version)
                break
            except ObjectChangedError:
                continue
    print(won)

asyncio.run(main())
"""


def _race(directory: Path) -> list[int]:
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", _RACER, str(directory), str(number)], stdout=subprocess.PIPE, env=child_environment()
        )
        for number in range(4)
    ]
    return [int(racer.communicate(timeout=120)[0]) for racer in racers]


@pytest.fixture
def objects(tmp_path: Path) -> DirectoryObjects:
    return DirectoryObjects(str(tmp_path), base=str(tmp_path))


async def test_processes_create_each_object_once_and_miss_no_increment(
    objects: DirectoryObjects, tmp_path: Path
) -> None:
    """Four processes with one counter and one set of names."""
    await objects.put_new("r/counter", b"0", "")
    assert sum(await asyncio.to_thread(_race, tmp_path)) == 40
    assert (await objects.get("r/counter")).startswith(b"160 ")
    assert [path.name for path in tmp_path.rglob("~draft*")] == []


async def test_drafts_and_locks_are_no_objects(objects: DirectoryObjects, tmp_path: Path) -> None:
    """A draft that a killed process left is not listed, and no key reaches it."""
    await objects.put_new("log/j/1", b"one", "tag")
    await objects.delete("log/j/0")
    (tmp_path / "log" / "j" / "~draft-1-00").write_bytes(b"half of it")
    found = [info.key async for page in objects.list("") for info in page]
    assert found == ["log/j/1"]
    assert (tmp_path / "~locks").is_dir()
    for key in ("log/j/~draft-1-00", "~locks/00", "../x", "a//b", "", "a/./b", "a\0b"):
        with pytest.raises(InvalidArgumentError, match="cannot be the key"):
            await objects.get(key)


async def test_lists_are_in_the_order_of_keys_in_pages(objects: DirectoryObjects) -> None:
    """Not in that of folders: a dash is before a slash."""
    keys = ["a/1", "a/2", "a-b/1", "b", "a/10"]
    for key in keys:
        await objects.put_new(key, key.encode(), "")
    assert [info.key async for page in objects.list("") for info in page] == sorted(keys)
    assert [info.key async for page in objects.list("a", after="a/1") for info in page] == ["a/10", "a/2"]
    assert [page async for page in objects.list("nothing")] == []
    await objects.delete_many(["a/1", "a/2", "nothing/3"])
    assert [info.key async for page in objects.list("a") for info in page] == ["a/10"]


async def test_a_missing_directory_is_not_made_and_never_reported_empty(tmp_path: Path) -> None:
    """It may be a mount that is missing."""
    root = tmp_path / "away"
    objects = DirectoryObjects(str(root), base=str(tmp_path))
    with pytest.raises(StorageBucketMissingError, match="create it"):
        await objects.put_new("away/r/0", b"x", "")
    with pytest.raises(StorageBucketMissingError):
        await objects.get("away/r/0")
    assert not root.exists()
    root.mkdir()
    with pytest.raises(NoSuchObjectError):
        await objects.get("away/r/0")


async def test_ranges_end_with_the_object(objects: DirectoryObjects) -> None:
    """There is an error where there is no byte."""
    await objects.put_new("x", b"0123456789", "")
    assert await objects.get_range("x", 7, 100) == b"789"
    with pytest.raises(ObjectRangeError, match="it has 10 bytes"):
        await objects.get_range("x", 10, 1)


@pytest.mark.parametrize(
    ("number", "kind"),
    [(28, StorageFullError), (13, StorageCredentialsError), (30, StorageCredentialsError), (5, StorageError)],
    ids=["ENOSPC", "EACCES", "EROFS", "EIO"],
)
async def test_errors_of_the_system_name_the_cause(
    objects: DirectoryObjects, monkeypatch: pytest.MonkeyPatch, number: int, kind: type[StorageError]
) -> None:
    """And leave neither an object nor a draft."""

    def fail(handle: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(kind) as caught:
        await objects.put_new("x", b"1", "")
    assert type(caught.value) is kind
    monkeypatch.undo()
    assert [page async for page in objects.list("")] == []
    with pytest.raises(NoSuchObjectError):
        await objects.head("x")


async def test_an_object_that_exists_has_a_durable_name(
    objects: DirectoryObjects, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """An earlier attempt may have had no time to sync it, and its caller takes "exists" for done."""
    await objects.put_new("j/1", b"1", "tag")
    synced: list[str] = []
    real = os.fsync

    def note(handle: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{handle}"))
        real(handle)

    monkeypatch.setattr(os, "fsync", note)
    with pytest.raises(ObjectExistsError):
        await objects.put_new("j/1", b"1", "tag")
    assert synced[-1] == str(tmp_path / "j")


@pytest.mark.parametrize("url", ["file://relative", "file:///", "file://", "file:///a/../b", "file:///a//b", "file:/a"])
def test_places_that_are_no_directory_are_refused(url: str) -> None:
    with pytest.raises(InvalidArgumentError):
        ObjectPlace.parse(url)


async def test_a_directory_is_named_by_a_url(tmp_path: Path) -> None:
    """As a log's or long-term storage's place; one may not be inside of the other."""
    place = ObjectPlace.parse(f"file://{tmp_path}/")
    assert str(place) == f"file://{tmp_path}"
    runtime = real_runtime(1)
    objects = runtime.open_objects(place, StandaloneSettings().object_storage.store)
    await objects.put_new(f"{place.prefix}/identity", b"1", "")
    assert (tmp_path / "identity").read_bytes() == b"1"
    await objects.close()
    await runtime.work.close()
    with pytest.raises(InvalidArgumentError, match="one is inside of the other"):
        StandaloneSettings(log="file:///var/a", tier2="file:///var/a/b")
    assert StandaloneSettings(log="file:///var/a", tier2="file:///var/b").is_object_storage
