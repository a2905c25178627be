"""`StorageHealth`: a container's view of long-term storage as a whole."""

from __future__ import annotations

from typing import Protocol


class StorageHealth(Protocol):
    """Whether long-term storage is available. See `GuardedChunkStorage`."""

    @property
    def is_available(self) -> bool:
        """Whether storage can be used, as far as is known. While it cannot, the log is not truncated."""

    def note_missing(self, chunk: str) -> None:
        """Note that a chunk is missing to which a record of a container refers, as reported by its owner."""


class UnwatchedStorage:
    """`StorageHealth` of an unmonitored storage: always available."""

    @property
    def is_available(self) -> bool:
        """See `StorageHealth.is_available`."""
        return True

    def note_missing(self, chunk: str) -> None:
        """See `StorageHealth.note_missing`."""
