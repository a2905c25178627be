"""`HeldDeletions`: chunks whose deletion waits until nothing durable leads to them any more but what is superseded.

A container with images (`container/storage/images.py`) deletes no chunk that its last image may lead to. What would be
deleted is remembered here until an image is durable that was taken later. What is forgotten, because there is too much
or the process ends, has no record, and is found by the sweep of a later start (`orphans`).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from penstock.model.errors import InvalidArgumentError, NoSuchChunkError, StorageError, UnsupportedOperationError
from penstock.segmentstore.tier2.chunk_name import check_chunk_name
from penstock.segmentstore.tier2.chunk_storage import ChunkStorage
from penstock.segmentstore.tier2.turns import run_bounded
from penstock.segmentstore.tier2.wrapped import WrappedChunkStorage

logger: logging.Logger = logging.getLogger(__name__)

#: Chunks that are deleted at the same time.
_DELETIONS_AT_ONCE = 8


class HeldDeletions(WrappedChunkStorage):
    """`ChunkStorage` of one container, whose `delete` takes note. It concatenates nothing: sources go.

    Attributes:
        has_forgotten: whether some of what should be deleted is left to a later start.
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
        raise UnsupportedOperationError(f"chunk {target}: nothing is concatenated where images are written")

    async def delete(self, name: str) -> None:
        """Have a chunk deleted later. Raises `NoSuchChunkError` when there is none."""
        if not await self.inner.exists(check_chunk_name(name)):
            raise NoSuchChunkError(name)
        self._held[name] = None
        if len(self._held) > self._held_max:
            forgotten = next(iter(self._held))
            del self._held[forgotten]
            self.has_forgotten = True
            logger.warning("chunk %s waits to be deleted, and is left to a later start: there are too many", forgotten)

    def waiting(self) -> list[str]:
        """Return the chunks that wait now."""
        return list(self._held)

    async def release(self, names: Sequence[str]) -> None:
        """Delete some that waited. One that cannot be deleted goes on waiting."""

        async def delete(name: str) -> None:
            try:
                await self.inner.delete(name)
            except NoSuchChunkError:
                pass  # Deleted before, by a call that failed later, or never created.
            except (StorageError, InvalidArgumentError, OSError) as error:
                logger.info("chunk %s is no longer used and could not be deleted, it is tried again: %s", name, error)
                return
            self._held.pop(name, None)

        await run_bounded(delete, names, _DELETIONS_AT_ONCE)
