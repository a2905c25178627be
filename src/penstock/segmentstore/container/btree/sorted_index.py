"""`SortedIndex`: an index of keys in long-term storage, and `IndexStorage`, the one segment that it lives in.

Attributes of a segment and live keys of a table are found through one of these once there are too many for memory.
Implementation: `container.btree`. An index is updated by one task at a time, by the owner of its container; it is
read while it is updated.

Source: segment store specification, section 5.3.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from penstock.model.segments import Buffer


class IndexStorage(Protocol):
    """The bytes of one index segment in long-term storage, of this incarnation of the container only."""

    async def open(self) -> tuple[int, int]:
        """Claim the segment; return its start offset and length, (0, 0) if it does not exist yet.

        Raises `CorruptionError`, `StorageError`, `StorageNotPrimaryError`.
        """

    async def read(self, offset: int, length: int) -> bytes:
        """Return exactly `length` verified bytes. Raises `SegmentTruncatedError` below the start offset."""

    async def append(self, offset: int, data: Sequence[Buffer]) -> int:
        """Write all of `data` at `offset`, which must be the length, or nothing; return the new length.

        Creates the segment at its first write. Raises `BadOffsetError` if the length is another; after any other
        error the outcome is unknown: `open` says what is there.
        """

    async def truncate(self, offset: int) -> None:
        """Give the bytes before `offset` back. A failure is harmless, the next truncation makes up for it."""


class SortedIndex(Protocol):
    """Keys of 1 to `KEY_LENGTH_MAX` bytes to values of one fixed length, in ascending order of the keys' bytes.

    Attributes:
        generation: grows with each update that became visible; what was read in one generation holds in it.
        entry_count: keys in it.
        stored_bytes: bytes that the index takes in long-term storage.
        mark: opaque bytes of the owner, stored in one step with the last update; empty at first.
    """

    generation: int
    entry_count: int
    stored_bytes: int
    mark: bytes

    async def open(self) -> None:
        """Find the last complete update. Raises `CorruptionError` when what is stored is not an index."""

    def get_cached(self, key: bytes) -> tuple[bool, bytes | None]:
        """Look a key up in memory: (True, its value or None for absent), or (False, None) when that takes a read."""

    async def get(self, keys: Sequence[bytes]) -> Sequence[bytes | None]:
        """Return each key's value, in order, None where it is absent; all of them as of one generation."""

    async def page(
        self, *, after: bytes = b"", first: bytes = b"", last: bytes | None = None, limit: int
    ) -> Sequence[tuple[bytes, bytes]]:
        """Return up to `limit` entries in ascending order of keys, as of one generation.

        `after` (if not empty): exclusive lower bound; `first`, `last`: inclusive bounds. Fewer than `limit` entries
        mean that there are no more.
        """

    async def update(self, changes: Mapping[bytes, bytes | None], mark: bytes) -> None:
        """Put (a value) and remove (None) keys and set `mark`, all in one step and durably.

        Readers see the state before until it returns. After an error nothing is visible here, the outcome in storage
        is unknown and the index must be opened again before its next update; updates are absolute, so one may simply
        be repeated then.
        """

    def close(self) -> None:
        """Give the memory of cached pages back. The index may be used again, and keeps pages once it is opened."""


#: As long as a table key may be.
KEY_LENGTH_MAX = 8192
#: Longest `mark`, in bytes.
MARK_LENGTH_MAX = 128
