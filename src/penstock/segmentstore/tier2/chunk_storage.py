"""`ChunkStorage` (tier 2): plain chunks by name. No caching, no fencing, no metadata.

Once a call has returned its effect is permanent and immediately visible. `create` and `delete` are not idempotent. A
chunk holds user bytes and nothing else. Beside the chunks a storage keeps one small object, its identity, which
distinguishes a place that is missing or belongs to another cluster from an empty one (`storage_identity`). Source:
PDP-34; segment-store 8.2.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from penstock.model.segments import Buffer
from penstock.runtime.disk import DiskSpace


@dataclass(frozen=True, slots=True)
class ChunkInfo:
    """A chunk's name and true length in bytes."""

    name: str
    length: int


class ChunkStorage(Protocol):
    """Chunks. Names are relative paths (``scope/stream/0.#epoch.0.E-1-O-0.<uuid>``).

    Raises `InvalidArgumentError` for an empty or escaping name, a negative offset or length, before any I/O.
    """

    @property
    def supports_append(self) -> bool:
        """Whether `write` to an existing chunk is possible. If not, only `create_with_content` writes."""

    @property
    def supports_concat(self) -> bool:
        """Whether `concat` is supported."""

    @property
    def place(self) -> str:
        """Its location, for messages."""

    @property
    def name_part_bytes_max(self) -> int:
        """The longest supported part of a name between slashes, in bytes of UTF-8."""

    async def read_identity(self) -> bytes | None:
        """Return the identity; None if there is none, or the place does not exist."""

    def hold_to_identity(self, identity: bytes) -> None:
        """From now on create chunks only where this identity is present.

        Otherwise creations raise `StorageUnavailableError` and leave nothing behind. Before the first call any identity
        is accepted. `read_identity` does not change this: the place may have been replaced meanwhile.
        """

    async def create_identity(self, identity: bytes) -> None:
        """Write the identity, durably and atomically, creating the place if necessary.

        Raises `StorageIdentityError` if there is one already, whatever its content: one of several callers succeeds.
        """

    async def create(self, name: str) -> None:
        """Create an empty chunk. Raises `ChunkExistsError`, `StorageFullError`."""

    async def create_with_content(self, name: str, data: Sequence[Buffer]) -> int:
        """Create a chunk that holds `data` (not empty); return its length. Nothing remains after a failure."""

    async def write(self, name: str, offset: int, data: Sequence[Buffer]) -> int:
        """Append `data` at `offset`, which must be the chunk's length; return the bytes written (all).

        Raises `BadChunkOffsetError` and `ChunkNotSettledError` before writing anything, `NoSuchChunkError`,
        `StorageFullError`.
        """

    async def read(self, name: str, offset: int, length: int) -> bytes:
        """Read up to `length` bytes; fewer only at the chunk's end.

        Raises `NoSuchChunkError`; `InvalidArgumentError` if `offset` is beyond the end.
        """

    async def info(self, name: str) -> ChunkInfo:
        """Return the true length. Raises `NoSuchChunkError`."""

    async def exists(self, name: str) -> bool:
        """Return whether the chunk exists."""

    async def delete(self, name: str) -> None:
        """Delete the chunk. Raises `NoSuchChunkError`."""

    async def concat(self, target: str, target_length: int, sources: Sequence[tuple[str, int]]) -> int:
        """Append each source's first bytes to the target's first `target_length`, using the given lengths.

        Returns the new length and removes the sources. Raises `UnsupportedOperationError`.
        """

    async def list(self, prefix: str = "") -> Sequence[ChunkInfo]:
        """Return the chunks whose names start with `prefix`, sorted by name."""

    async def names(self, *, limit: int, after: str = "") -> Sequence[str]:
        """Return the names of up to `limit` chunks after `after`, in a storage-specific order; empty at the end.

        Paging with the last name of each page returns every chunk that exists throughout exactly once.
        """

    async def space(self) -> DiskSpace | None:
        """Return the free space; None if unknown. Raises `StorageError`."""

    async def close(self) -> None:
        """Release all resources; later calls raise `StorageError`."""
