"""`SortedIndex`: an index of keys in long-term storage, and `IndexStorage`, the segment that stores it.

Used for the attributes of a segment and the live keys of a table once there are too many for memory. Implementation:
`container.btree`. An index is updated by one task at a time, by the owner of its container; reads may run concurrently
with an update.

Source: segment-store 5.3.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from penstock.model.segments import Buffer


class IndexStorage(Protocol):
    """The bytes of one index segment in long-term storage, as seen by this incarnation of the container."""

    async def open(self) -> tuple[int, int]:
        """Claim the segment; return its start offset and length, (0, 0) if it does not exist yet.

        Raises `CorruptionError`, `StorageError`, `StorageNotPrimaryError`.
        """

    async def read(self, offset: int, length: int) -> bytes:
        """Return exactly `length` verified bytes. Raises `SegmentTruncatedError` below the start offset."""

    async def append(self, offset: int, data: Sequence[Buffer]) -> int:
        """Write all of `data` or nothing at `offset`, which must be the current length; return the new length.

        Creates the segment at its first write. Raises `BadOffsetError` if the length differs; after any other error the
        outcome is unknown: `open` shows the current state.
        """

    async def truncate(self, offset: int) -> None:
        """Free the bytes before `offset`. A failure is harmless; the next truncation also frees them."""


class SortedIndex(Protocol):
    """Keys of 1 to `KEY_LENGTH_MAX` bytes to values of one fixed length, in ascending order of the keys' bytes.

    Attributes:
        generation: incremented by each update that becomes visible; results of reads are valid within one generation.
        entry_count: number of keys.
        stored_bytes: bytes that the index takes in long-term storage.
        mark: opaque bytes of the owner, stored atomically with the last update; initially empty.
    """

    generation: int
    entry_count: int
    stored_bytes: int
    mark: bytes

    async def open(self) -> None:
        """Find the last complete update. Raises `CorruptionError` if the stored data is not an index."""

    def get_cached(self, key: bytes) -> tuple[bool, bytes | None]:
        """Look a key up in memory: (True, its value or None if absent), or (False, None) if a read is necessary."""

    async def get(self, keys: Sequence[bytes]) -> Sequence[bytes | None]:
        """Return each key's value, in order, None if it is absent; all of them as of one generation."""

    async def page(
        self, *, after: bytes = b"", first: bytes = b"", last: bytes | None = None, limit: int
    ) -> Sequence[tuple[bytes, bytes]]:
        """Return up to `limit` entries in ascending order of keys, as of one generation.

        `after` (if not empty): exclusive lower bound; `first`, `last`: inclusive bounds. Fewer than `limit` entries
        mean that there are no more.
        """

    async def update(self, changes: Mapping[bytes, bytes | None], mark: bytes) -> None:
        """Put (a value) and remove (None) keys and set `mark`, atomically and durably.

        Readers see the previous state until it returns. After an error nothing is visible here, the outcome in storage
        is unknown and the index must be opened again before its next update; updates are absolute, so the failed one
        can simply be repeated.
        """

    def close(self) -> None:
        """Release the memory of cached pages. The index may be used again, and caches pages once it is opened."""


#: Maximum length of a key, the same as that of a table key.
KEY_LENGTH_MAX = 8192
#: Maximum length of `mark`, in bytes.
MARK_LENGTH_MAX = 128
