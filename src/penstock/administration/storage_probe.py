"""`probe_storage`: checks whether long-term storage does what a server needs, with two chunks of its own.

It finds a read-only mount, credentials that may read but not delete, or a bucket that loses bytes before a server
depends on them. Source: segment-store R8.36.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from penstock.model.errors import (
    ChunkExistsError,
    NoSuchChunkError,
    PenstockError,
    StorageError,
    StorageUnavailableError,
)
from penstock.runtime.runtime import Runtime
from penstock.segmentstore.tier2.chunk_storage import ChunkStorage
from penstock.server.data_directory import DataDirectory
from penstock.server.long_term_storage import open_long_term_storage
from penstock.server.settings import StandaloneSettings

T = TypeVar("T")

#: The folder of the probe's chunks, which sweeps ignore.
PROBE_FOLDER = "_probe"


@dataclass(frozen=True, slots=True)
class ProbedStep:
    """An operation that was tried, and its duration."""

    name: str
    duration_s: float


@dataclass(frozen=True, slots=True)
class ProbeReport:
    """The operations that were tried, in order; all of them succeeded.

    Attributes:
        place: for messages.
        chunk_bytes: length of each write.
        has_identity: whether a server has ever stored anything there.
        supports_append: whether chunks can be appended to; otherwise each write creates one.
        supports_concat: whether chunks can be joined without sending their bytes.
    """

    place: str
    chunk_bytes: int
    has_identity: bool
    supports_append: bool
    supports_concat: bool
    steps: tuple[ProbedStep, ...]


async def probe_storage(settings: StandaloneSettings, runtime: Runtime, *, chunk_bytes: int) -> ProbeReport:
    """Create, read, compare, append to, join and delete chunks in the configured long-term storage.

    A server may run there meanwhile. Nothing is left over, unless it cannot be deleted: then the error names it.

    Raises:
        InvalidArgumentError: the settings name no valid place.
        StorageUnavailableError: there is nothing in that place.
        StorageError: an operation failed, or data read differ from data written; it names the operation and the chunk.
    """
    async with AsyncExitStack() as held:
        directory = DataDirectory(settings.data_dir, runtime)
        if not (settings.is_object_storage or settings.is_hdfs_storage):
            await runtime.work.run(lambda: _demand_directory(settings.tier2 or directory.tier2))
        chunks = open_long_term_storage(settings, directory, runtime)
        held.push_async_callback(chunks.close)
        has_identity = await chunks.read_identity() is not None
        unique = uuid.UUID(bytes=runtime.rng.randbytes(16), version=4)
        probe = _Probe(chunks, unique, runtime.rng.randbytes(chunk_bytes))
        try:
            await probe.run()
        except StorageError as error:
            left = await probe.clean_up()
            if left:
                raise StorageError(f"{error}; these chunks remain, delete them by hand: {', '.join(left)}") from error
            raise
        except asyncio.CancelledError:
            await probe.clean_up()
            raise
        return ProbeReport(
            chunks.place, chunk_bytes, has_identity, chunks.supports_append, chunks.supports_concat, tuple(probe.steps)
        )


def _demand_directory(path: str | Path) -> None:
    if not Path(path).is_dir():
        raise StorageUnavailableError(
            f"{path} is not a directory: create it, mount the storage there, or give another place with --tier2"
        )


class _Probe:
    """One probe. `steps`: the operations that succeeded."""

    def __init__(self, chunks: ChunkStorage, unique: uuid.UUID, content: bytes) -> None:
        self.steps: list[ProbedStep] = []
        self._chunks = chunks
        self._names = (f"{PROBE_FOLDER}/{unique}.1", f"{PROBE_FOLDER}/{unique}.2")
        self._content = content
        #: Chunks that may exist.
        self._made: list[str] = []

    async def run(self) -> None:
        """Try every chunk operation that a server uses."""
        chunks, content = self._chunks, self._content
        first, second = self._names
        length = len(content)
        self._made.append(first)
        await self._step("create", first, lambda: chunks.create_with_content(first, [content]))
        info = await self._step("inspect", first, lambda: chunks.info(first))
        if info.length != length:
            raise StorageError(f"chunk {first} of {chunks.place}: {length} bytes were written, it has {info.length}")
        if await self._step("create again", first, self._is_created_again):
            raise StorageError(f"chunk {first} of {chunks.place}: it existed, but creating it a second time succeeded")
        await self._compare("read", first, content)
        whole = content
        if chunks.supports_append:
            await self._step("append to", first, lambda: chunks.write(first, length, [content]))
            whole += content
        if chunks.supports_concat:
            self._made.append(second)
            await self._step("create another beside", first, lambda: chunks.create_with_content(second, [content]))
            await self._step("join another to", first, lambda: chunks.concat(first, len(whole), [(second, length)]))
            self._made.remove(second)
            whole += content
        if len(whole) > length:
            await self._compare("read all of", first, whole)
        listed = await self._step("list", first, lambda: chunks.list(first))
        if [one.name for one in listed] != [first]:
            raise StorageError(f"chunk {first} is in {chunks.place}, but missing from a listing")
        await self._step("delete", first, lambda: chunks.delete(first))
        self._made.remove(first)
        if await self._step("check the deletion of", first, lambda: chunks.exists(first)):
            raise StorageError(f"chunk {first} is in {chunks.place} although it was deleted")

    async def _is_created_again(self) -> bool:
        """Return whether storage overwrites an existing chunk on creation, which it must not."""
        try:
            await self._chunks.create_with_content(self._names[0], [self._content[::-1]])
        except ChunkExistsError:
            return False
        return True

    async def clean_up(self) -> list[str]:
        """Delete the chunks of the probe; return those that may still exist."""
        left: list[str] = []
        for name in self._made:
            try:
                await self._chunks.delete(name)
            except NoSuchChunkError:
                pass
            except (StorageError, OSError):
                left.append(name)
        return left

    async def _compare(self, what: str, name: str, wanted: bytes) -> None:
        found = await self._step(what, name, lambda: self._chunks.read(name, 0, len(wanted)))
        if found != wanted:
            pairs = enumerate(zip(found, wanted, strict=False))
            at = next((position for position, (one, other) in pairs if one != other), min(len(found), len(wanted)))
            raise StorageError(
                f"chunk {name} of {self._chunks.place}: its bytes from {at} on differ from those written"
            )

    async def _step(self, what: str, name: str, attempt: Callable[[], Awaitable[T]]) -> T:
        begin_s = time.perf_counter()
        try:
            done = await attempt()
        except (PenstockError, OSError) as error:
            reason = (error.strerror if isinstance(error, OSError) else None) or error
            raise StorageError(f"{self._chunks.place}: to {what} chunk {name} failed: {reason}") from error
        self.steps.append(ProbedStep(what, time.perf_counter() - begin_s))
        return done
