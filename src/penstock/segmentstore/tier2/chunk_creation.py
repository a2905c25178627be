"""Create a chunk for bytes of a stored segment, and delete it if its record was refused.

A chunk is created first and recorded afterwards. A failure in between leaves an orphan, which is either remembered in
this process, or found by the sweep of a later start (`orphans`).
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.model.errors import ChunkExistsError, StorageError
from penstock.model.segments import Buffer
from penstock.segmentstore.tier2.chunk_name import new_chunk_name
from penstock.segmentstore.tier2.records import ChunkRecord, leads_to
from penstock.segmentstore.tier2.storage_context import StorageContext


async def create_chunk(context: StorageContext, segment: str, offset: int, pieces: Sequence[Buffer]) -> tuple[str, int]:
    """Create a chunk that holds `pieces`, bytes of `segment` from `offset` on; return its name and length.

    `segment` and `offset` must be those of the key that its record gets, so that the sweep for orphans finds the
    record.
    """
    name = new_chunk_name(
        segment, epoch=context.epoch, offset=offset, rng=context.runtime.rng, mark=context.orphans.mark
    )
    context.orphans.begin(name)
    try:
        return name, await context.chunks.create_with_content(name, pieces)
    except ChunkExistsError:
        raise  # The existing chunk was created by another caller.
    except BaseException:
        # The chunk may exist, or appear later. Its name is known only to this call, so no record will ever refer to it.
        context.orphans.add(name, may_come_late=True)
        raise


async def discard_chunks(context: StorageContext, created: Sequence[ChunkRecord], error: StorageError) -> None:
    """Delete chunks of which nothing was committed because of `error`."""
    unused: list[str] = []
    for chunk in created:
        try:
            (entry,) = await context.table.get([chunk.key])
        except StorageError as second:
            error.add_note(f"chunk {chunk.name} may be an orphan, the records could not be read: {second}")
            continue
        # The error says that nothing was applied. A record would contradict it, and deleting would lose data.
        if entry is None or not leads_to(chunk.key, entry.value, chunk.name):
            unused.append(chunk.name)
    await context.delete_chunks(unused)


def demand_all(name: str, count: int, pieces: Sequence[Buffer]) -> None:
    """Raise `StorageError` unless a storage that reported success has written all of `pieces`."""
    expected = sum(map(len, pieces))
    if count != expected:
        raise StorageError(f"chunk {name}: the storage wrote {count} of {expected} bytes and reported success")
