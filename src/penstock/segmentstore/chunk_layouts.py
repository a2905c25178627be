"""`ChunkLayouts`: returns which chunks hold a range of a segment, for readers that read chunks directly.

See docs/direct-reads.md. A page of the layout is of one moment. Several pages are consistent for reading bytes: the
bytes at an offset never change, nor do those of a chunk, and chunks unlinked after the lease began are not deleted
while it lasts.
"""

from __future__ import annotations

import os
import struct
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from penstock.model.errors import SegmentTruncatedError, StorageUnavailableError
from penstock.segmentstore.container.container import SegmentContainer
from penstock.segmentstore.container.segment import Segment
from penstock.segmentstore.settings import SegmentStoreSettings
from penstock.segmentstore.tier2.chunk_files import IDENTITY_NAME
from penstock.segmentstore.tier2.chunked_storage import ChunkLayout
from penstock.segmentstore.tier2.garbage_records import CreationOrder
from penstock.segmentstore.tier2.storage_guard import GuardedChunkStorage
from penstock.wire.chunk_layouts import (
    PAGE_CHECKSUMS_MAX,
    PAGE_CHUNKS_MAX,
    VERSION,
    ChunkRow,
    LayoutLease,
    LayoutPage,
    LayoutQuery,
    StorageTold,
)


class LayoutHost(Protocol):
    """The required part of the store."""

    settings: SegmentStoreSettings

    @property
    def storage(self) -> GuardedChunkStorage:
        """See `SegmentStore.storage`."""
        ...

    def container(self, segment: str) -> SegmentContainer:
        """See `SegmentStore.container`."""

    def reading_stream(self, segment: str) -> AbstractAsyncContextManager[tuple[SegmentContainer, Segment]]:
        """See `SegmentStore.reading_stream`."""


class ChunkLayouts:
    """See the module."""

    def __init__(self, store: LayoutHost) -> None:
        self._store = store

    async def page(self, segment: str, query: LayoutQuery) -> LayoutPage:
        """Answer a query. A lease is granted first, then the chunks are looked up; it may be shorter than requested.

        Raises `NoSuchSegmentError`, `ContainerNotFoundError`, `SegmentTruncatedError` for a truncated start,
        `UnsupportedOperationError` for a table, `InvalidArgumentError` for a container's own segment,
        `TooManyLeasesError`, `StorageUnavailableError` while the identity of long-term storage is not confirmed. After
        any other error a lease may exist until its time is over.
        """
        async with self._store.reading_stream(segment) as (container, found):
            start_offset = found.durable_start_offset
            if query.start < start_offset:
                raise SegmentTruncatedError(segment, start_offset=start_offset, offset=query.start)
            told = self._told()
            stored_end = max(min(found.storage_length, query.end), query.start)
            if stored_end == query.start:
                return LayoutPage(VERSION, told, [], stored_end, stored_end)
            storage, count = container.storage, min(query.chunk_count_max, PAGE_CHUNKS_MAX)
            lease: LayoutLease | None = None
            if query.lease_s:
                lease_s = min(query.lease_s, self._store.settings.container.garbage.lease_s_max)
                place, layout = await storage.leased_layout(
                    found, lease_s, holder=query.holder, start=query.start, end=stored_end, limit=count
                )
                lease = LayoutLease(place.epoch, place.number, lease_s)
            else:
                layout = await storage.layout(found, start=query.start, end=stored_end, limit=count)
            if not layout or layout[0].start_offset > query.start:
                # Truncated since it was looked up.
                if lease is not None:
                    await storage.release_layout(CreationOrder(lease.epoch, lease.number))
                raise SegmentTruncatedError(segment, start_offset=found.durable_start_offset, offset=query.start)
            return _page(told, layout, query.start, stored_end, lease)

    async def give_back(self, segment: str, epoch: int, number: int) -> None:
        """End a lease. No error if there is none. Raises `ContainerNotFoundError`, `OutcomeUnknownError`."""
        await self._store.container(segment).storage.release_layout(CreationOrder(epoch, number))

    def _told(self) -> StorageTold:
        storage = self._store.storage
        if not storage.is_available or storage.identity is None:
            raise StorageUnavailableError(f"{storage.place} cannot be read at present: {storage.problem}")
        place = storage.place
        return StorageTold(place if "://" in place else os.path.abspath(place), IDENTITY_NAME, storage.identity)


def _page(
    told: StorageTold, layout: list[ChunkLayout], start: int, stored_end: int, lease: LayoutLease | None
) -> LayoutPage:
    """Clip the chunks to [`start`, `stored_end`), in whole blocks, and to the size of a page."""
    rows: list[ChunkRow] = []
    room, at = PAGE_CHECKSUMS_MAX, start
    for chunk in layout:
        block_length = chunk.block_length
        first = (at - chunk.start_offset) // block_length
        behind = -(-(min(stored_end - chunk.start_offset, chunk.length)) // block_length)
        count = min(behind - first, room)
        checksums = struct.pack(f">{count}I", *chunk.block_checksums[first : first + count])
        rows.append(ChunkRow(chunk.name, chunk.start_offset, chunk.length, block_length, first, checksums))
        at = chunk.start_offset + min((first + count) * block_length, chunk.length)
        room -= count
        if not room:
            break
    return LayoutPage(VERSION, told, rows, stored_end, min(at, stored_end), lease)
