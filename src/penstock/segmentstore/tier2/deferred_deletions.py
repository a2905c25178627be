"""`DeferredDeletions`: delays the deletion of chunks until only superseded images refer to them.

A container with images (`container/storage/images.py`) deletes no chunk to which its last image may refer. Deletions
are remembered here until an image taken later is durable. Deletions that are forgotten, because there are too many or
the process ends, have no record, and are found by the sweep of a later start (`orphans`).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from penstock.model.errors import (
    InvalidArgumentError,
    NoSuchChunkError,
    StorageError,
    StorageUnavailableError,
    UnsupportedOperationError,
)
from penstock.segmentstore.tier2.chunk_deletion import delete_chunks
from penstock.segmentstore.tier2.chunk_name import check_chunk_name
from penstock.segmentstore.tier2.chunk_storage import ChunkStorage
from penstock.segmentstore.tier2.wrapped import WrappedChunkStorage

logger: logging.Logger = logging.getLogger(__name__)

#: Chunks deleted concurrently, ...
_DELETIONS_AT_ONCE = 8
#: ... and in one request if the storage supports it.
_BATCH = 1000


class DeferredDeletions(WrappedChunkStorage):
    """`ChunkStorage` of one container, whose `delete` is deferred. It does not concatenate: that removes sources.

    Attributes:
        has_forgotten: whether some deletions are left to a later start.
    """

    def __init__(self, inner: ChunkStorage, *, held_max: int) -> None:
        super().__init__(inner)
        self.has_forgotten: bool = False
        self._held_max = held_max
        self._held: dict[str, None] = {}

    def __len__(self) -> int:
        """Return how many chunks wait to be deleted."""
        return len(self._held)

    @property
    def supports_concat(self) -> bool:
        """See `ChunkStorage.supports_concat`."""
        return False

    async def concat(self, target: str, target_length: int, sources: Sequence[tuple[str, int]]) -> int:
        """See `ChunkStorage.concat`."""
        raise UnsupportedOperationError(f"chunk {target}: chunks are not concatenated if images are written")

    async def delete(self, name: str) -> None:
        """Delete a chunk later. Raises `NoSuchChunkError` if it does not exist."""
        if not await self.inner.exists(check_chunk_name(name)):
            raise NoSuchChunkError(name)
        self._hold(name)

    async def delete_many(self, names: Sequence[str], *, limit: int) -> dict[str, StorageError]:
        """See `delete_chunks`: deletes later those that exist then.

        Raises `StorageUnavailableError` while too many wait: the caller has a durable record of them.
        """
        if self._held and len(self._held) + len(names) > self._held_max:
            raise StorageUnavailableError(f"{len(self._held)} chunks already wait for an image of their container")
        for name in names:
            self._hold(check_chunk_name(name))
        return {}

    def _hold(self, name: str) -> None:
        self._held[name] = None
        if len(self._held) > self._held_max:
            forgotten = next(iter(self._held))
            del self._held[forgotten]
            self.has_forgotten = True
            logger.warning("chunk %s is not deleted before a later start: too many chunks wait for deletion", forgotten)

    def waiting(self) -> list[str]:
        """Return the chunks waiting now."""
        return list(self._held)

    async def release(self, names: Sequence[str]) -> None:
        """Delete some waiting chunks. One that cannot be deleted continues to wait."""
        for at in range(0, len(names), _BATCH):
            batch = names[at : at + _BATCH]
            try:
                failed = await delete_chunks(self.inner, batch, limit=_DELETIONS_AT_ONCE)
            except (StorageError, InvalidArgumentError, OSError) as error:
                logger.info("chunks that are no longer used could not be deleted, retrying: %s", error)
                return
            for name in batch:
                if name not in failed:
                    self._held.pop(name, None)
            for name, problem in failed.items():
                logger.info("chunk %s is no longer used and could not be deleted, retrying: %s", name, problem)
