"""Delete many chunks, some of which may not exist: in one request if the storage supports it, else concurrently."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from penstock.model.errors import (
    STORAGE_AWAY,
    NoSuchChunkError,
    StorageError,
)
from penstock.segmentstore.tier2.chunk_storage import ChunkStorage
from penstock.segmentstore.tier2.turns import run_bounded


@runtime_checkable
class DeletesMany(Protocol):
    """A `ChunkStorage` that can delete many chunks at once."""

    async def delete_many(self, names: Sequence[str], *, limit: int) -> dict[str, StorageError]:
        """See `delete_chunks`."""


async def delete_chunks(chunks: ChunkStorage, names: Sequence[str], *, limit: int) -> dict[str, StorageError]:
    """Delete those of `names` that exist; return the errors of those that may still exist, by name.

    `limit`: concurrent deletions, if each is a request. Raises errors which mean that the storage is unavailable, not
    responding or throttling: any number of the chunks may have been deleted then.
    """
    if isinstance(chunks, DeletesMany):
        return await chunks.delete_many(names, limit=limit)
    return await delete_each(chunks, names, limit=limit)


async def delete_each(chunks: ChunkStorage, names: Sequence[str], *, limit: int) -> dict[str, StorageError]:
    """Like `delete_chunks`, with one request per chunk."""
    failed: dict[str, StorageError] = {}

    async def delete(name: str) -> None:
        try:
            await chunks.delete(name)
        except NoSuchChunkError:
            pass  # Deleted before, by a call whose response was lost, or whose outcome could not be recorded.
        except STORAGE_AWAY:
            raise
        except StorageError as error:
            failed[name] = error

    await run_bounded(delete, names, limit)
    return failed
