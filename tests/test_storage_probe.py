"""SS-268 and R8.36: long-term storage is tried before a server relies on it, and is left as it was."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.administration import storage_probe
from penstock.administration.storage_probe import ProbeReport, probe_storage
from penstock.model.errors import StorageError, StorageUnavailableError
from penstock.runtime.runtime import Runtime, real_runtime
from penstock.segmentstore.tier2.memory import MemoryChunkStorage
from penstock.segmentstore.tier2.wrapped import WrappedChunkStorage
from penstock.server.settings import StandaloneSettings

SETTINGS = StandaloneSettings(tier2="s3://bucket/prefix")


@pytest.fixture
async def runtime() -> AsyncIterator[Runtime]:
    made = real_runtime(1)
    yield made
    await made.work.close()


class InMemory(MemoryChunkStorage):
    """Is inspected when the probe has closed it."""

    async def close(self) -> None:
        pass


@contextmanager
def standing_in(monkeypatch: pytest.MonkeyPatch, chunks: object) -> Iterator[None]:
    with monkeypatch.context() as patched:
        patched.setattr(storage_probe, "open_long_term_storage", lambda settings, directory, runtime: chunks)
        yield


async def probe(runtime: Runtime, settings: StandaloneSettings = SETTINGS) -> ProbeReport:
    return await probe_storage(settings, runtime, chunk_bytes=1000)


async def test_a_directory_is_tried_and_left_as_it_was(tmp_path: Path, runtime: Runtime) -> None:
    found = await probe(runtime, StandaloneSettings(tier2=str(tmp_path)))
    assert (found.place, found.has_identity, found.chunk_bytes) == (str(tmp_path), False, 1000)
    assert [step.name for step in found.steps] == [
        "create", "inspect", "create again", "read", "append to", "create another beside", "join another to",
        "read all of", "list", "delete", "check the deletion of",
    ]  # fmt: skip
    assert list(tmp_path.iterdir()) == []


async def test_a_place_that_is_not_there_is_not_made(tmp_path: Path, runtime: Runtime) -> None:
    for settings in (StandaloneSettings(tier2=str(tmp_path / "none")), StandaloneSettings(data_dir=str(tmp_path))):
        with pytest.raises(StorageUnavailableError, match="is not a directory: create it, mount"):
            await probe(runtime, settings)
    assert list(tmp_path.iterdir()) == []


async def test_a_mount_that_cannot_be_written_is_reported_and_nothing_is_left(tmp_path: Path, runtime: Runtime) -> None:
    """SS-268. Not by permissions: root may write nevertheless. So the folder cannot be made, as on such a mount."""
    (tmp_path / "_probe").write_bytes(b"in the way")
    with pytest.raises(StorageError, match=rf"{tmp_path}: to create chunk _probe/.* failed"):
        await probe(runtime, StandaloneSettings(tier2=str(tmp_path)))
    assert [one.name for one in tmp_path.iterdir()] == ["_probe"]


@pytest.mark.parametrize("can_append", [True, False])
@pytest.mark.parametrize("can_concat", [True, False])
async def test_unsupported_operations_are_not_tried(
    monkeypatch: pytest.MonkeyPatch, runtime: Runtime, can_append: bool, can_concat: bool
) -> None:
    chunks = InMemory(supports_append=can_append, supports_concat=can_concat)
    with standing_in(monkeypatch, chunks):
        steps = {step.name for step in (await probe(runtime)).steps}
    assert ("append to" in steps, "join another to" in steps) == (can_append, can_concat)
    assert await chunks.list() == []


CALLS = ("create_with_content", "info", "read", "write", "concat", "list", "delete", "exists")


class Breaking(WrappedChunkStorage):
    """Fails in one call, before it or after it, or does not do it; and may never delete."""

    def __init__(self, inner: MemoryChunkStorage, call: str, how: str, *, deletes: bool = True) -> None:
        super().__init__(inner)
        self.deletes = deletes
        self.is_broken = True
        original = getattr(inner, call)

        async def broken(*arguments: object) -> object:
            if not self.is_broken:
                return await original(*arguments)
            self.is_broken = False
            if how == "before":
                raise OSError(5, "Input/output error")
            await original(*arguments)
            if how == "hang":
                await asyncio.Event().wait()
            raise StorageError("the answer is lost")

        setattr(self, call, broken)
        if not deletes:
            self.delete = self.refuse  # type: ignore[method-assign]

    async def refuse(self, name: str) -> None:
        raise StorageError(f"{name}: access denied")


@pytest.mark.parametrize("how", ["before", "behind"])
@pytest.mark.parametrize("call", CALLS)
async def test_each_failing_call_is_named_and_nothing_is_left(
    monkeypatch: pytest.MonkeyPatch, runtime: Runtime, call: str, how: str
) -> None:
    inner = InMemory()
    with standing_in(monkeypatch, Breaking(inner, call, how)), pytest.raises(StorageError, match="_probe/") as told:
        await probe(runtime)
    assert ("Input/output error" if how == "before" else "the answer is lost") in str(told.value)
    assert await inner.list() == []


@pytest.mark.parametrize("call", CALLS)
async def test_a_probe_that_gives_up_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, runtime: Runtime, call: str
) -> None:
    inner = InMemory()
    with standing_in(monkeypatch, Breaking(inner, call, "hang")):
        task = asyncio.create_task(probe(runtime))
        await asyncio.sleep(0.02)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert await inner.list() == []


async def test_undeletable_files_are_named(monkeypatch: pytest.MonkeyPatch, runtime: Runtime) -> None:
    """Credentials that may write and not delete: the error names the object, which must be deleted by hand."""
    inner = InMemory()
    with (
        standing_in(monkeypatch, Breaking(inner, "read", "before", deletes=False)),
        pytest.raises(StorageError, match="these chunks remain, delete them by hand") as told,
    ):
        await probe(runtime)
    (left,) = await inner.list()
    assert left.name in str(told.value)


class Lying(WrappedChunkStorage):
    """Does everything, and changes one answer."""

    def __init__(self, inner: MemoryChunkStorage, lie: str) -> None:
        super().__init__(inner)
        self.lie = lie

    async def read(self, name: str, offset: int, length: int) -> bytes:
        found = await super().read(name, offset, length)
        if self.lie == "bit":
            return found[:500] + bytes([found[500] ^ 1]) + found[501:]
        return found[:700] if self.lie == "short" else found

    async def create_with_content(self, name, data):  # type: ignore[no-untyped-def]
        if self.lie == "create" and await super().exists(name):
            await super().delete(name)
        return await super().create_with_content(name, data)

    async def info(self, name):  # type: ignore[no-untyped-def]
        found = await super().info(name)
        return replace(found, length=found.length + 1) if self.lie == "length" else found

    async def list(self, prefix: str = ""):  # type: ignore[no-untyped-def]
        return [] if self.lie == "list" else await super().list(prefix)

    async def exists(self, name: str) -> bool:
        return self.lie == "exists" or await super().exists(name)


@pytest.mark.parametrize(
    ("lie", "message"),
    [
        ("bit", "its bytes from 500 on differ from those written"),
        ("short", "its bytes from 700 on differ from those written"),
        ("length", "1000 bytes were written, it has 1001"),
        ("create", "creating it a second time succeeded"),
        ("list", "missing from a listing"),
        ("exists", "although it was deleted"),
    ],
)
async def test_storage_that_lies_is_found_out(
    monkeypatch: pytest.MonkeyPatch, runtime: Runtime, lie: str, message: str
) -> None:
    inner = InMemory()
    with standing_in(monkeypatch, Lying(inner, lie)), pytest.raises(StorageError, match=message):
        await probe(runtime)
    assert await inner.list() == []
