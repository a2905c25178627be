"""`StorageHealth`: what a container asks, and tells, about long-term storage as a whole."""

from __future__ import annotations

from typing import Protocol


class StorageHealth(Protocol):
    """Whether long-term storage is there. See `GuardedChunkStorage`."""

    @property
    def is_available(self) -> bool:
        """Whether it can be used, as far as is known. While it cannot, the log is not cut."""

    def note_missing(self, chunk: str) -> None:
        """Note that a chunk is gone that a record of a container leads to, as its owner says."""


class UnwatchedStorage:
    """`StorageHealth` of a storage that nobody watches: always available."""

    @property
    def is_available(self) -> bool:
        """See `StorageHealth.is_available`."""
        return True

    def note_missing(self, chunk: str) -> None:
        """See `StorageHealth.note_missing`."""
