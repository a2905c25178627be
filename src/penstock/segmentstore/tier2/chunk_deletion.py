"""Delete many chunks that may be gone already: in one request where the storage can, else several at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from penstock.model.errors import (
    NoSuchChunkError,
    StorageError,
    StorageNotRespondingError,
    StorageThrottledError,
    StorageUnavailableError,
    StorageUnreachableError,
)
from penstock.segmentstore.tier2.chunk_storage import ChunkStorage
from penstock.segmentstore.tier2.turns import run_bounded

#: What says nothing about a chunk, but about the storage: it need not be asked for the next one.
AWAY = (StorageUnavailableError, StorageNotRespondingError, StorageUnreachableError, StorageThrottledError)


@runtime_checkable
class DeletesMany(Protocol):
    """A `ChunkStorage` that can delete many chunks at once."""

    async def delete_many(self, names: Sequence[str], *, limit: int) -> dict[str, StorageError]:
        """See `delete_chunks`."""


async def delete_chunks(chunks: ChunkStorage, names: Sequence[str], *, limit: int) -> dict[str, StorageError]:
    """Delete those of `names` that exist; return why others may still be there, by name.

    `limit`: deletions under way at once, where each is a request. Raises what says that the storage is away, hangs or
    is asked too often: any number of them may be gone then.
    """
    if isinstance(chunks, DeletesMany):
        return await chunks.delete_many(names, limit=limit)
    return await delete_each(chunks, names, limit=limit)


async def delete_each(chunks: ChunkStorage, names: Sequence[str], *, limit: int) -> dict[str, StorageError]:
    """As `delete_chunks`, one by one."""
    failed: dict[str, StorageError] = {}

    async def delete(name: str) -> None:
        try:
            await chunks.delete(name)
        except NoSuchChunkError:
            pass  # Deleted before, by a call whose answer was lost, or which nobody could take down.
        except AWAY:
            raise
        except StorageError as error:
            failed[name] = error

    await run_bounded(delete, names, limit)
    return failed
