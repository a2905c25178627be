"""`ChunkStorage` (tier 2): plain chunks by name. No caching, no fencing, no metadata.

Once a call returned its effect is permanent and visible at once. `create` and `delete` are not idempotent. A chunk
holds user bytes and nothing else. Beside the chunks a storage keeps one small object, its identity, by which a place
that is missing or somebody else's is told from an empty one (`storage_identity`). Source: PDP-34; segment store
specification, section 8.2.
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
        """Whether `concat` is possible."""

    @property
    def place(self) -> str:
        """Where it is, for people."""

    @property
    def name_part_bytes_max(self) -> int:
        """The longest part of a name between slashes that it takes, in bytes of UTF-8."""

    async def read_identity(self) -> bytes | None:
        """Return the identity; None when there is none, or not even a place for it."""

    def hold_to_identity(self, identity: bytes) -> None:
        """Create no chunk from now on where this identity is gone or another one.

        Creations raise `StorageUnavailableError` there, and leave nothing behind. Before the first call anything will
        do. What `read_identity` finds changes nothing: the place may be somebody else's by then.
        """

    async def create_identity(self, identity: bytes) -> None:
        """Write the identity, durably and whole or not at all, and make the place if need be.

        Raises `StorageIdentityError` when there is one already, whatever it is: of several callers one succeeds.
        """

    async def create(self, name: str) -> None:
        """Create an empty chunk. Raises `ChunkExistsError`, `StorageFullError`."""

    async def create_with_content(self, name: str, data: Sequence[Buffer]) -> int:
        """Create a chunk that holds `data` (not empty); return its length. Nothing is left behind on failure."""

    async def write(self, name: str, offset: int, data: Sequence[Buffer]) -> int:
        """Append `data` at `offset`, which must be the chunk's length; return the bytes written (all).

        Raises `BadChunkOffsetError` and `ChunkNotSettledError` before writing anything, `NoSuchChunkError`,
        `StorageFullError`.
        """

    async def read(self, name: str, offset: int, length: int) -> bytes:
        """Read up to `length` bytes, fewer only at the chunk's end.

        Raises `NoSuchChunkError`; `InvalidArgumentError` when `offset` is beyond the end.
        """

    async def info(self, name: str) -> ChunkInfo:
        """Return the true length. Raises `NoSuchChunkError`."""

    async def exists(self, name: str) -> bool:
        """Say whether the chunk exists."""

    async def delete(self, name: str) -> None:
        """Delete the chunk. Raises `NoSuchChunkError`."""

    async def concat(self, target: str, target_length: int, sources: Sequence[tuple[str, int]]) -> int:
        """Append each source's first bytes to the target's first `target_length`, using the given lengths.

        Returns the new length; the sources are gone afterwards. Raises `UnsupportedOperationError`.
        """

    async def list(self, prefix: str = "") -> Sequence[ChunkInfo]:
        """Return the chunks whose names start with `prefix`, sorted by name."""

    async def names(self, *, limit: int, after: str = "") -> Sequence[str]:
        """Return the names of up to `limit` chunks behind `after`, in an order of the storage's own; none at the end.

        Who goes on behind the last name of each page comes by every chunk that stays meanwhile, once.
        """

    async def space(self) -> DiskSpace | None:
        """Return how much room there is; None when nobody can say. Raises `StorageError`."""

    async def close(self) -> None:
        """Release everything; later calls raise `StorageError`."""
