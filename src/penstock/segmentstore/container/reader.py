"""Reads: from the cache, through redirects of merged segments, and from long-term storage.

Source: segment store specification, sections 4.3 and 4.4.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from penstock.model.errors import (
    ContainerOfflineError,
    InvalidArgumentError,
    NoSuchSegmentError,
    PenstockError,
    SegmentSealedError,
    SegmentTruncatedError,
)
from penstock.model.segments import Buffer, SegmentData
from penstock.segmentstore.container.read_index import Found, Missing
from penstock.segmentstore.container.segment import Segment
from penstock.segmentstore.settings import ContainerSettings


class StorageRead(Protocol):
    """Reads verified bytes of a segment from long-term storage."""

    async def __call__(self, segment: Segment, offset: int, length: int) -> bytes:
        """Return exactly `length` bytes; the range is known to be there."""


class TooManyReadsError(PenstockError):
    """Too many reads wait on one segment."""

    is_retriable = True


class SegmentReader:
    """Reads of one container's segments."""

    def __init__(self, container_id: int, settings: ContainerSettings, storage_read: StorageRead) -> None:
        self._container_id = container_id
        self._is_closed = False
        self._settings = settings
        self._storage_read = storage_read
        self._storage_slots = asyncio.Semaphore(settings.storage_reads_max)
        self._pending: dict[tuple[int, int], tuple[int, asyncio.Task[bytes]]] = {}
        self._tasks: set[asyncio.Task[bytes]] = set()
        self._loop = asyncio.get_running_loop()

    def read_cached(self, segment: Segment, offset: int, length: int) -> SegmentData | None:
        """Answer a read at once if its bytes are durable and in memory; None when it takes waiting or storage.

        Raises `SegmentTruncatedError`, `NoSuchSegmentError`, `InvalidArgumentError`.
        """
        if segment.is_deleted or segment.is_merged:
            raise NoSuchSegmentError(segment.name)
        if offset < segment.durable_start_offset:
            raise SegmentTruncatedError(segment.name, start_offset=segment.durable_start_offset, offset=offset)
        available = segment.durable_length - offset
        if available <= 0:
            if not segment.durable_sealed:
                return None
            if available < 0:
                raise InvalidArgumentError(
                    f"{segment.name}: read at {offset}, but the segment is sealed at {segment.durable_length}"
                )
            return SegmentData(offset, (), is_at_tail=False, is_end_of_segment=True)
        if length <= 0:
            return SegmentData(offset, (), is_at_tail=False, is_end_of_segment=False)
        wanted = min(length, available)
        found = segment.index.lookup(offset, wanted)
        if type(found) is not Found or (found.length < wanted and wanted <= self._settings.whole_read_bytes):
            return None
        is_at_end = found.length == available
        return SegmentData(
            offset,
            found.data,
            is_at_tail=is_at_end and not segment.durable_sealed,
            is_end_of_segment=is_at_end and segment.durable_sealed,
        )

    async def read(self, segment: Segment, offset: int, length: int, *, wait: bool) -> SegmentData:
        """Read up to `length` durable bytes; see `Segments.read`.

        With `wait`, raises `SegmentSealedError` when the segment is sealed while the read waits at its end.
        """
        while True:
            answer = self.read_cached(segment, offset, length)
            if answer is not None:
                return answer
            if offset >= segment.durable_length:
                if not wait:
                    return SegmentData(offset, (), is_at_tail=True, is_end_of_segment=False)
                await self._wait_for(segment, offset)
                if segment.durable_sealed and offset >= segment.durable_length:
                    raise SegmentSealedError(segment.name)
                continue
            wanted = min(length, segment.durable_length - offset)
            data = await self._fetch(segment, offset, wanted)
            if data is None:
                continue
            found = sum(map(len, data))
            while found < wanted <= self._settings.whole_read_bytes:
                if (more := await self._fetch(segment, offset + found, wanted - found)) is not None:
                    data = [*data, *more]
                    found += sum(map(len, more))
            is_at_end = offset + found == segment.durable_length
            return SegmentData(
                offset,
                data,
                is_at_tail=is_at_end and not segment.durable_sealed,
                is_end_of_segment=is_at_end and segment.durable_sealed,
            )

    async def read_exactly(self, segment: Segment, offset: int, length: int) -> bytes:
        """Read `length` accepted bytes, durable or not: for the container's own use of table segments."""
        parts: list[Buffer] = []
        end = offset + length
        while offset < end:
            if offset < segment.start_offset:
                raise SegmentTruncatedError(segment.name, start_offset=segment.start_offset, offset=offset)
            found = segment.index.lookup(offset, end - offset)
            data = found.data if isinstance(found, Found) else await self._fetch(segment, offset, end - offset)
            for part in data or ():
                parts.append(part)
                offset += len(part)
        return bytes(parts[0]) if len(parts) == 1 else b"".join(parts)

    async def _wait_for(self, segment: Segment, offset: int) -> None:
        if self._is_closed:
            raise self._stopped()
        if len(segment.waiters) >= self._settings.waiting_reads_max:
            raise TooManyReadsError(f"{segment.name}: {len(segment.waiters)} reads wait already")
        future: asyncio.Future[None] = self._loop.create_future()
        segment.waiters[future] = offset
        try:
            await future
        finally:
            segment.waiters.pop(future, None)

    async def _fetch(self, segment: Segment, offset: int, length: int) -> list[Buffer] | None:
        """Get bytes that are not in this segment's memory; None: look again, the place changed meanwhile."""
        found = segment.index.lookup(offset, length)
        if isinstance(found, Found):
            return found.data
        if not isinstance(found, Missing):
            source = found.source
            try:
                data = await self._fetch(source, found.offset, found.length)
            except (NoSuchSegmentError, SegmentTruncatedError):
                if segment.index.lookup(offset, length) != found or segment.is_deleted:
                    return None
                # Storage has merged the source, and the writer, whose call failed, does not know it yet.
                await asyncio.sleep(self._settings.writer_interval_s)
                return None
            # Once the redirect is gone the source's name may be another segment's.
            return data if segment.index.lookup(offset, length) == found else None
        end = min(found.end, segment.storage_length)
        if self._is_closed:
            raise self._stopped()
        if end <= offset:
            if segment.is_deleted:
                raise NoSuchSegmentError(segment.name)
            raise AssertionError(f"{segment.name}: byte {offset} is neither in memory nor in long-term storage")
        return [await self._read_storage(segment, offset, end - offset)]

    def _stopped(self) -> ContainerOfflineError:
        return ContainerOfflineError(self._container_id, "stopped")

    async def _read_storage(self, segment: Segment, offset: int, length: int) -> bytes:
        """Read from storage up to the next read-ahead boundary, sharing one read among all who want that range."""
        boundary = self._settings.read_ahead_bytes
        end = min((offset // boundary + 1) * boundary, segment.storage_length)
        key = (segment.id, end)
        start, task = self._pending.get(key, (0, None))
        if task is None or start > offset:
            start = offset
            task = self._loop.create_task(self._read_and_cache(segment, start, end - start))
            self._pending[key] = (start, task)
            self._tasks.add(task)
            task.add_done_callback(lambda done: self._drop_pending(key, done))
        try:
            data = await asyncio.shield(task)
        except asyncio.CancelledError:
            caller = asyncio.current_task()
            if task.cancelled() and not (caller is not None and caller.cancelling()):
                raise self._stopped() from None
            raise
        if segment.is_deleted:
            raise NoSuchSegmentError(segment.name)  # The bytes may be those of a later segment of its name.
        first = offset - start
        return data[first : first + length] if first or length < len(data) else data

    def _drop_pending(self, key: tuple[int, int], task: asyncio.Task[bytes]) -> None:
        self._tasks.discard(task)
        if key in self._pending and self._pending[key][1] is task:
            del self._pending[key]
        if not task.cancelled():
            task.exception()  # Those who wait for it hear of it; nobody may be left.

    async def _read_and_cache(self, segment: Segment, offset: int, length: int) -> bytes:
        async with self._storage_slots:
            data = await self._storage_read(segment, offset, length)
        if not (segment.is_deleted or segment.is_merged):
            segment.index.insert_stored(offset, data)
        return data

    async def close(self) -> None:
        """End the storage reads under way; those who wait for them hear `ContainerOfflineError`."""
        self._is_closed = True
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
