"""`WrappedChunkStorage`: passes every call on to another `ChunkStorage`.

A base for wrappers that add one feature each (faults, latency, metrics) and can be stacked: override the relevant
methods only.
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.model.segments import Buffer
from penstock.runtime.disk import DiskSpace
from penstock.segmentstore.tier2.chunk_storage import ChunkInfo, ChunkStorage


class WrappedChunkStorage:
    """`ChunkStorage` that delegates to `inner`. Closing it closes `inner`."""

    def __init__(self, inner: ChunkStorage) -> None:
        self.inner = inner

    @property
    def supports_append(self) -> bool:
        """See `ChunkStorage.supports_append`."""
        return self.inner.supports_append

    @property
    def supports_concat(self) -> bool:
        """See `ChunkStorage.supports_concat`."""
        return self.inner.supports_concat

    @property
    def place(self) -> str:
        """See `ChunkStorage.place`."""
        return self.inner.place

    @property
    def name_part_bytes_max(self) -> int:
        """See `ChunkStorage.name_part_bytes_max`."""
        return self.inner.name_part_bytes_max

    async def read_identity(self) -> bytes | None:
        """See `ChunkStorage.read_identity`."""
        return await self.inner.read_identity()

    def hold_to_identity(self, identity: bytes) -> None:
        """See `ChunkStorage.hold_to_identity`."""
        self.inner.hold_to_identity(identity)

    async def create_identity(self, identity: bytes) -> None:
        """See `ChunkStorage.create_identity`."""
        await self.inner.create_identity(identity)

    async def create(self, name: str) -> None:
        """See `ChunkStorage.create`."""
        await self.inner.create(name)

    async def create_with_content(self, name: str, data: Sequence[Buffer]) -> int:
        """See `ChunkStorage.create_with_content`."""
        return await self.inner.create_with_content(name, data)

    async def write(self, name: str, offset: int, data: Sequence[Buffer]) -> int:
        """See `ChunkStorage.write`."""
        return await self.inner.write(name, offset, data)

    async def read(self, name: str, offset: int, length: int) -> bytes:
        """See `ChunkStorage.read`."""
        return await self.inner.read(name, offset, length)

    async def info(self, name: str) -> ChunkInfo:
        """See `ChunkStorage.info`."""
        return await self.inner.info(name)

    async def exists(self, name: str) -> bool:
        """See `ChunkStorage.exists`."""
        return await self.inner.exists(name)

    async def delete(self, name: str) -> None:
        """See `ChunkStorage.delete`."""
        await self.inner.delete(name)

    async def concat(self, target: str, target_length: int, sources: Sequence[tuple[str, int]]) -> int:
        """See `ChunkStorage.concat`."""
        return await self.inner.concat(target, target_length, sources)

    async def list(self, prefix: str = "") -> Sequence[ChunkInfo]:
        """See `ChunkStorage.list`."""
        return await self.inner.list(prefix)

    async def names(self, *, limit: int, after: str = "") -> Sequence[str]:
        """See `ChunkStorage.names`."""
        return await self.inner.names(limit=limit, after=after)

    async def space(self) -> DiskSpace | None:
        """See `ChunkStorage.space`."""
        return await self.inner.space()

    async def close(self) -> None:
        """See `ChunkStorage.close`."""
        await self.inner.close()
