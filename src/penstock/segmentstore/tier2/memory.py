"""`MemoryChunkStorage`: chunks in memory, for tests and servers without persistence."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from penstock.model.errors import (
    BadChunkOffsetError,
    ChunkExistsError,
    InvalidArgumentError,
    NoSuchChunkError,
    StorageError,
    StorageFullError,
    StorageIdentityError,
    StorageUnavailableError,
    UnsupportedOperationError,
)
from penstock.model.segments import Buffer
from penstock.runtime.disk import DiskSpace
from penstock.segmentstore.tier2.chunk_name import (
    CHUNK_NAME_PART_LENGTH_MAX,
    check_chunk_name,
    check_concat,
    check_range,
)
from penstock.segmentstore.tier2.chunk_storage import ChunkInfo


class MemoryChunkStorage:
    """`ChunkStorage` that lives as long as the object.

    Attributes:
        capacity_bytes: total bytes of all chunks; None for no limit. It may be changed at any time.
    """

    def __init__(
        self, *, supports_append: bool = True, supports_concat: bool = True, capacity_bytes: int | None = None
    ) -> None:
        self.capacity_bytes = capacity_bytes
        self._supports_append = supports_append
        self._supports_concat = supports_concat
        #: Result of `read_identity`. Tests replace it to remove the storage, or to exchange it for another.
        self.identity: bytes | None = None
        self._known_identity: bytes | None = None
        self._chunks: dict[str, bytearray] = {}
        self._used_bytes = 0
        self._is_closed = False

    @property
    def supports_append(self) -> bool:
        """See `ChunkStorage.supports_append`."""
        return self._supports_append

    @property
    def supports_concat(self) -> bool:
        """See `ChunkStorage.supports_concat`."""
        return self._supports_concat

    @property
    def used_bytes(self) -> int:
        """Total bytes of all chunks."""
        return self._used_bytes

    @property
    def place(self) -> str:
        """See `ChunkStorage.place`."""
        return "memory"

    @property
    def name_part_bytes_max(self) -> int:
        """See `ChunkStorage.name_part_bytes_max`."""
        return CHUNK_NAME_PART_LENGTH_MAX

    async def read_identity(self) -> bytes | None:
        """See `ChunkStorage.read_identity`."""
        self._check_open()
        return self.identity

    def hold_to_identity(self, identity: bytes) -> None:
        """See `ChunkStorage.hold_to_identity`."""
        self._known_identity = identity

    async def create_identity(self, identity: bytes) -> None:
        """See `ChunkStorage.create_identity`."""
        self._check_open()
        if self.identity is not None:
            raise StorageIdentityError(self.place, "it has an identity already")
        self.identity = identity

    async def create(self, name: str) -> None:
        """See `ChunkStorage.create`."""
        self._check(name)
        if not self._supports_append:
            raise UnsupportedOperationError(f"chunk {name}: this storage cannot append, use create_with_content")
        self._add(name, bytearray())

    async def create_with_content(self, name: str, data: Sequence[Buffer]) -> int:
        """See `ChunkStorage.create_with_content`."""
        self._check(name)
        content = bytearray().join(data)
        if not content:
            raise InvalidArgumentError(f"chunk {name} cannot be created without content")
        self._add(name, content)
        return len(content)

    async def write(self, name: str, offset: int, data: Sequence[Buffer]) -> int:
        """See `ChunkStorage.write`."""
        self._check(name, offset)
        if not self._supports_append:
            raise UnsupportedOperationError(f"chunk {name}: this storage cannot append, create another chunk")
        chunk = self._chunk(name)
        if offset != len(chunk):
            raise BadChunkOffsetError(name, expected=len(chunk), given=offset)
        length = sum(map(len, data))
        self._reserve(name, length)
        for buffer in data:
            chunk += buffer
        return length

    async def read(self, name: str, offset: int, length: int) -> bytes:
        """See `ChunkStorage.read`."""
        self._check(name, offset, length)
        chunk = self._chunk(name)
        if offset > len(chunk):
            raise InvalidArgumentError(f"chunk {name}: offset {offset} is beyond its length {len(chunk)}")
        with memoryview(chunk) as view:
            return bytes(view[offset : offset + length])

    async def info(self, name: str) -> ChunkInfo:
        """See `ChunkStorage.info`."""
        self._check(name)
        return ChunkInfo(name, len(self._chunk(name)))

    async def exists(self, name: str) -> bool:
        """See `ChunkStorage.exists`."""
        self._check(name)
        return name in self._chunks

    async def delete(self, name: str) -> None:
        """See `ChunkStorage.delete`."""
        self._check(name)
        self._used_bytes -= len(self._chunk(name))
        del self._chunks[name]

    async def concat(self, target: str, target_length: int, sources: Sequence[tuple[str, int]]) -> int:
        """See `ChunkStorage.concat`."""
        check_concat(target, target_length, sources)
        self._check(target)
        if not self._supports_concat:
            raise UnsupportedOperationError(f"chunk {target}: this storage cannot concatenate")
        parts = [(target, target_length), *sources]
        for name, length in parts:
            if len(self._chunk(name)) < length:
                raise InvalidArgumentError(f"chunk {name}: cannot take {length} bytes of {len(self._chunk(name))}")
        joined = bytearray()
        for name, length in parts:
            joined += memoryview(self._chunks[name])[:length]
        for name, _ in parts:
            self._used_bytes -= len(self._chunks.pop(name))
        self._chunks[target] = joined
        self._used_bytes += len(joined)
        return len(joined)

    async def list(self, prefix: str = "") -> Sequence[ChunkInfo]:
        """See `ChunkStorage.list`."""
        self._check_open()
        return [ChunkInfo(name, len(self._chunks[name])) for name in sorted(self._chunks) if name.startswith(prefix)]

    async def names(self, *, limit: int, after: str = "") -> Sequence[str]:
        """See `ChunkStorage.names`."""
        self._check_open()
        return heapq.nsmallest(limit, (name for name in self._chunks if name > after))

    async def space(self) -> DiskSpace | None:
        """See `ChunkStorage.space`. Always None."""
        return None

    async def close(self) -> None:
        """See `ChunkStorage.close`."""
        self._is_closed = True
        self._chunks.clear()

    def _check(self, name: str, offset: int = 0, length: int = 0) -> None:
        check_chunk_name(name)
        check_range(name, offset, length)
        self._check_open()

    def _check_open(self) -> None:
        if self._is_closed:
            raise StorageError("the chunk storage in memory is closed")

    def _chunk(self, name: str) -> bytearray:
        chunk = self._chunks.get(name)
        if chunk is None:
            raise NoSuchChunkError(name)
        return chunk

    def _add(self, name: str, content: bytearray) -> None:
        if self._known_identity not in (None, self.identity):
            raise StorageUnavailableError(f"chunk {name} was not created: the storage in memory was replaced")
        if name in self._chunks:
            raise ChunkExistsError(name)
        self._reserve(name, len(content))
        self._chunks[name] = content

    def _reserve(self, name: str, length: int) -> None:
        if self.capacity_bytes is not None and self._used_bytes + length > self.capacity_bytes:
            raise StorageFullError(
                f"no space left in memory for {length} bytes of chunk {name}:"
                f" {self._used_bytes} of {self.capacity_bytes} are used"
            )
        self._used_bytes += length
