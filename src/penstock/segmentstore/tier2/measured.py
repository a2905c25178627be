"""`MeasuredChunkStorage`: counts the requests to long-term storage and how long they take, for metrics."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from typing import TypeVar

from penstock.model.errors import NoSuchChunkError, StorageError
from penstock.model.segments import Buffer
from penstock.runtime.histogram import Histogram
from penstock.segmentstore.tier2.chunk_deletion import DeletesMany
from penstock.segmentstore.tier2.chunk_storage import ChunkInfo, ChunkStorage
from penstock.segmentstore.tier2.wrapped import WrappedChunkStorage

T = TypeVar("T")


class StorageRequests:
    """Requests to long-term storage since the process began.

    Attributes:
        counts: by (verb, result). A result is ``ok``, ``missing`` (there is no such chunk) or ``error``.
        durations: of finished requests in seconds, by verb.
        written_bytes, read_bytes: bytes of chunks.
    """

    def __init__(self) -> None:
        self.counts: dict[tuple[str, str], int] = {}
        self.durations: dict[str, Histogram] = {}
        self.written_bytes: int = 0
        self.read_bytes: int = 0

    async def measured(self, verb: str, request: Awaitable[T]) -> T:
        """Return the result of a request, and count it. One that is cancelled is not counted."""
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        try:
            found = await request
        except NoSuchChunkError:
            self._note(verb, "missing", loop.time() - began_s)
            raise
        except StorageError:
            self._note(verb, "error", loop.time() - began_s)
            raise
        self._note(verb, "ok", loop.time() - began_s)
        return found

    def _note(self, verb: str, result: str, duration_s: float) -> None:
        self.counts[verb, result] = self.counts.get((verb, result), 0) + 1
        self.durations.setdefault(verb, Histogram()).observe(duration_s)


class MeasuredChunkStorage(WrappedChunkStorage):
    """Passes every call on to `inner` and counts it in `requests`."""

    def __init__(self, inner: ChunkStorage) -> None:
        super().__init__(inner)
        self.requests: StorageRequests = StorageRequests()

    async def create(self, name: str) -> None:
        """See `ChunkStorage.create`."""
        await self.requests.measured("create", self.inner.create(name))

    async def create_with_content(self, name: str, data: Sequence[Buffer]) -> int:
        """See `ChunkStorage.create_with_content`."""
        written = await self.requests.measured("create", self.inner.create_with_content(name, data))
        self.requests.written_bytes += sum(map(len, data))
        return written

    async def write(self, name: str, offset: int, data: Sequence[Buffer]) -> int:
        """See `ChunkStorage.write`."""
        written = await self.requests.measured("write", self.inner.write(name, offset, data))
        self.requests.written_bytes += sum(map(len, data))
        return written

    async def read(self, name: str, offset: int, length: int) -> bytes:
        """See `ChunkStorage.read`."""
        data = await self.requests.measured("read", self.inner.read(name, offset, length))
        self.requests.read_bytes += len(data)
        return data

    async def info(self, name: str) -> ChunkInfo:
        """See `ChunkStorage.info`."""
        return await self.requests.measured("info", self.inner.info(name))

    async def exists(self, name: str) -> bool:
        """See `ChunkStorage.exists`."""
        return await self.requests.measured("info", self.inner.exists(name))

    async def delete(self, name: str) -> None:
        """See `ChunkStorage.delete`."""
        await self.requests.measured("delete", self.inner.delete(name))

    async def concat(self, target: str, target_length: int, sources: Sequence[tuple[str, int]]) -> int:
        """See `ChunkStorage.concat`."""
        return await self.requests.measured("concat", self.inner.concat(target, target_length, sources))

    async def list(self, prefix: str = "") -> Sequence[ChunkInfo]:
        """See `ChunkStorage.list`."""
        return await self.requests.measured("list", self.inner.list(prefix))

    async def names(self, *, limit: int, after: str = "") -> Sequence[str]:
        """See `ChunkStorage.names`."""
        return await self.requests.measured("list", self.inner.names(limit=limit, after=after))


class _MeasuredBulkStorage(MeasuredChunkStorage):
    """The same for a storage that deletes many chunks at once."""

    async def delete_many(self, names: Sequence[str], *, limit: int) -> dict[str, StorageError]:
        """See `DeletesMany`."""
        inner = self.inner
        assert isinstance(inner, DeletesMany)
        return await self.requests.measured("delete", inner.delete_many(names, limit=limit))


def measured_storage(chunks: ChunkStorage) -> MeasuredChunkStorage:
    """Return `chunks` with its requests counted."""
    return _MeasuredBulkStorage(chunks) if isinstance(chunks, DeletesMany) else MeasuredChunkStorage(chunks)
