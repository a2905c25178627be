"""Reads: from the cache, through redirects of merged segments, from the disk cache, and from long-term storage.

A read interrupted by the container's end raises `ContainerOfflineError`, which clients receive as WrongHost; they
locate the segment again and retry. An empty answer would suffice for most clients, but some take it for the end of the
segment.

Source: segment-store 4.3 and 4.4; wire-protocol 4.1.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass

from penstock.model.errors import (
    ContainerOfflineError,
    InvalidArgumentError,
    NoSuchSegmentError,
    PenstockError,
    SegmentInactiveError,
    SegmentTruncatedError,
    StorageError,
)
from penstock.model.segments import Buffer, SegmentData
from penstock.runtime.waits import cancel_and_wait
from penstock.segmentstore.container.events import ContainerEvents
from penstock.segmentstore.container.reads.disk_cache import DiskCache, SegmentKey
from penstock.segmentstore.container.reads.read_ahead import ReadAhead
from penstock.segmentstore.container.reads.read_index import VIEW_SHARE_MAX, Found, Missing
from penstock.segmentstore.container.reads.storage_turns import StorageTurns, Turn
from penstock.segmentstore.container.reads.tail_waits import ReadWaiter, TailWaits
from penstock.segmentstore.container.segment import Segment
from penstock.segmentstore.container_settings import ContainerSettings

#: Reads exactly `length` verified bytes from `offset` of a segment from long-term storage; the range is known to exist.
StorageRead = Callable[[Segment, int, int], Awaitable[bytes]]


class StorageReadTimeoutError(StorageError):
    """Long-term storage did not answer a read in time."""

    is_retriable = True


class _Wait(ReadWaiter):
    """A task that waits for bytes of a segment."""

    __slots__ = ("future",)

    def __init__(self, future: asyncio.Future[None]) -> None:
        super().__init__()
        self.future = future

    def wake(self) -> None:
        """See `ReadWaiter.wake`."""
        if not self.future.done():
            self.future.set_result(None)

    def fail(self, error: PenstockError) -> None:
        """See `ReadWaiter.fail`."""
        if not self.future.done():
            self.future.set_exception(error)


@dataclass(slots=True, eq=False)
class _StorageRead:
    """A running or queued read of storage, and the number of its waiters."""

    start: int
    end: int
    turn: Turn
    task: asyncio.Task[bytes]
    is_ahead: bool
    waiting_count: int = 0


class SegmentReader:
    """Reads of one container's segments."""

    def __init__(
        self, container_id: int, settings: ContainerSettings, storage_read: StorageRead, waits: TailWaits
    ) -> None:
        #: Reads that returned bytes, and these bytes: of users, and of the container's tables.
        self.read_count: int = 0
        self.read_bytes: int = 0
        #: Lookups of bytes that were not in memory.
        self.storage_read_count: int = 0
        self._container_id = container_id
        self._waits = waits
        self._is_closed = False
        self._settings = settings
        self._storage_read = storage_read
        self._turns = StorageTurns(settings.storage_reads_max)
        #: For the container's own segments: user reads depend on them, because its tables hold the locations of chunks.
        self._system_turns = StorageTurns(settings.storage_reads_max)
        #: Keyed by segment id and the end of the range.
        self._pending: dict[tuple[int, int], _StorageRead] = {}
        self._tasks: set[asyncio.Task[bytes]] = set()
        self._loop = asyncio.get_running_loop()
        self._ahead = ReadAhead(
            range_bytes=max(settings.read_ahead_range_bytes, settings.read_ahead_bytes),
            count_max=settings.read_ahead_count_max,
            segments_max=settings.read_ahead_segments_max,
        )
        #: Alignments of the ends of reads, whole read-ahead ranges first.
        self._boundaries = sorted({settings.read_ahead_bytes, self._ahead.range_bytes}, reverse=True)
        self._small_bytes = min(settings.read_small_bytes, settings.read_ahead_bytes)
        self._disk_cache: DiskCache | None = None
        self._epoch = 0

    def use_disk_cache(self, disk_cache: DiskCache, epoch: int, events: ContainerEvents) -> None:
        """Read from the disk cache before storage, and store evicted bytes there. Call once the log is open."""
        self._disk_cache = disk_cache
        self._epoch = epoch
        events.on_evicted = self._keep_on_disk

    def _keep_on_disk(self, segment: Segment, offset: int, data: Buffer) -> None:
        if self._disk_cache is not None and not (self._is_closed or segment.is_deleted):
            self._disk_cache.keep(self._disk_key(segment), offset, data)

    def _disk_key(self, segment: Segment) -> SegmentKey:
        return SegmentKey(self._container_id, self._epoch, segment.id)

    def read_cached(self, segment: Segment, offset: int, length: int) -> SegmentData | None:
        """Return the result if the bytes are durable and in memory; None if the read must wait or access storage.

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
        if self._ahead:
            limit = segment.storage_length
            for start, end in self._ahead.cached(segment.id, offset + found.length, limit):
                self._read_ahead(segment, start, end)
        self.read_count += 1
        self.read_bytes += found.length
        is_at_end = found.length == available
        return SegmentData(
            offset,
            found.data,
            is_at_tail=is_at_end and not segment.durable_sealed,
            is_end_of_segment=is_at_end and segment.durable_sealed,
        )

    async def read(self, segment: Segment, offset: int, length: int, *, client: Hashable = None) -> SegmentData:
        """Read up to `length` durable bytes from any source; none at the segment's end. See `Segments.read`.

        `client`: the client the read is for. Queued reads of storage are scheduled round-robin by client.
        """
        while True:
            answer = self.read_cached(segment, offset, length)
            if answer is not None:
                return answer
            if offset >= segment.durable_length:
                return SegmentData(offset, (), is_at_tail=True, is_end_of_segment=False)
            wanted = min(length, segment.durable_length - offset)
            data = await self._fetch(segment, offset, wanted, client)
            if data is None:
                continue
            found = sum(map(len, data))
            while found < wanted <= self._settings.whole_read_bytes:
                if (more := await self._fetch(segment, offset + found, wanted - found, client)) is not None:
                    data = [*data, *more]
                    found += sum(map(len, more))
            self.read_count += 1
            self.read_bytes += found
            is_at_end = offset + found == segment.durable_length
            return SegmentData(
                offset,
                data,
                is_at_tail=is_at_end and not segment.durable_sealed,
                is_end_of_segment=is_at_end and segment.durable_sealed,
            )

    async def read_exactly(self, segment: Segment, offset: int, length: int) -> bytes:
        """Read `length` accepted bytes, durable or not: for the container's own use of table segments."""
        self.read_count += 1
        self.read_bytes += length
        parts: list[Buffer] = []
        end = offset + length
        while offset < end:
            if offset < segment.start_offset:
                raise SegmentTruncatedError(segment.name, start_offset=segment.start_offset, offset=offset)
            found = segment.index.lookup(offset, end - offset)
            data = found.data if isinstance(found, Found) else await self._fetch(segment, offset, end - offset, None)
            for part in data or ():
                parts.append(part)
                offset += len(part)
        return bytes(parts[0]) if len(parts) == 1 else b"".join(parts)

    def park(self, segment: Segment, offset: int, waiter: ReadWaiter) -> None:
        """Make `waiter` wait until there is a byte at `offset`, or never will be.

        To be called right after `read` has found none. The segment may leave memory and return meanwhile. The caller
        bounds the number of waits; a waiter that gives up calls `SegmentWaits.remove`.

        Raises `ContainerOfflineError`, `SegmentInactiveError`.
        """
        if self._is_closed:
            raise self._stopped()
        if segment.is_inactive:
            raise SegmentInactiveError(segment.name)
        self._waits.add(segment, offset, waiter)

    async def wait(self, segment: Segment, offset: int) -> None:
        """Return once there is a byte at `offset`, or never will be; see `park`. Look the segment up again then."""
        wait = _Wait(self._loop.create_future())
        self.park(segment, offset, wait)
        try:
            await wait.future
        finally:
            if wait.waits is not None:
                wait.waits.remove(wait)

    async def _fetch(self, segment: Segment, offset: int, length: int, client: Hashable) -> list[Buffer] | None:
        """Return bytes that are not in this segment's memory; None: their location has changed, retry the lookup."""
        found = segment.index.lookup(offset, length)
        if isinstance(found, Found):
            return found.data
        if not isinstance(found, Missing):
            source = found.source
            try:
                data = await self._fetch(source, found.offset, found.length, client)
            except (NoSuchSegmentError, SegmentTruncatedError):
                if segment.index.lookup(offset, length) != found or segment.is_deleted:
                    return None
                # Storage has merged the source, but the writer, whose call failed, does not know it yet.
                await asyncio.sleep(self._settings.writer_interval_s)
                return None
            # Once the redirect is removed, the source's name may belong to another segment.
            return data if segment.index.lookup(offset, length) == found else None
        if self._is_closed:
            raise self._stopped()
        if segment.storage_length <= offset:
            if segment.is_deleted:
                raise NoSuchSegmentError(segment.name)
            if segment.damage is not None:
                raise segment.damage.with_traceback(None)  # Raised repeatedly: do not accumulate tracebacks.
            raise AssertionError(f"{segment.name}: byte {offset} is neither in memory nor in long-term storage")
        self.storage_read_count += 1
        stored = await self._read_storage(segment, offset, min(found.end, segment.storage_length) - offset, client)
        return None if stored is None else [stored]

    def _stopped(self) -> ContainerOfflineError:
        return ContainerOfflineError(self._container_id, "stopped")

    # Storage.

    async def _read_storage(self, segment: Segment, offset: int, length: int, client: Hashable) -> Buffer | None:
        """Read from storage, sharing one read among all callers that need the range.

        Return None if the shared range no longer has the byte; then read again.
        """
        read = self._storage_read_of(segment, offset, length, client)
        for ahead_start, ahead_end in self._ahead.stored(segment.id, offset, read.end, segment.storage_length):
            self._read_ahead(segment, ahead_start, ahead_end)
        read.waiting_count += 1
        try:
            data = await asyncio.shield(read.task)
        except asyncio.CancelledError:
            caller = asyncio.current_task()
            if read.task.cancelled() and not (caller is not None and caller.cancelling()):
                raise self._stopped() from None
            raise
        except SegmentTruncatedError:
            if offset < segment.durable_start_offset:
                raise SegmentTruncatedError(
                    segment.name, start_offset=segment.durable_start_offset, offset=offset
                ) from None
            if read.start < offset:
                return None  # Only the beginning of the shared range was truncated.
            raise
        finally:
            read.waiting_count -= 1
            if not (read.waiting_count or read.is_ahead or read.turn.is_given):
                # Remove the queued reads of a closed connection.
                self._drop_pending((segment.id, read.end), read)
                read.task.cancel()
        if segment.is_deleted:
            raise NoSuchSegmentError(segment.name)  # The bytes may belong to a later segment of this name.
        first = offset - read.start
        if first >= len(data):
            return None  # The disk cache had only part of the range.
        if not first and length >= len(data):
            return data
        part = memoryview(data)[first : first + length]
        # A view of a small part would keep the whole range alive.
        return part if len(part) * VIEW_SHARE_MAX >= len(data) else bytes(part)

    def _storage_read_of(self, segment: Segment, offset: int, length: int, client: Hashable) -> _StorageRead:
        """Return the pending read that covers `offset`, or start one.

        A new read for a sequential reader ends at the next multiple of `read_ahead_bytes`; any other ends at the next
        multiple of `read_small_bytes` after the requested range.
        """
        end = limit = segment.storage_length
        for boundary in self._boundaries:
            end = segment.index.gap_end(offset, min((offset // boundary + 1) * boundary, limit))
            if (read := self._shared(segment, offset, end, client)) is not None:
                return read
        if not self._ahead.continues(segment.id, offset):
            small = self._small_bytes
            # A short range is read whole, even across a boundary.
            end = min(-(-(offset + length) // small) * small, limit if length <= small else end)
            end = segment.index.gap_end(offset, end)
            if (read := self._shared(segment, offset, end, client)) is not None:
                return read
        return self._begin_storage_read(segment, offset, end, client, is_ahead=False)

    def _shared(self, segment: Segment, offset: int, end: int, client: Hashable) -> _StorageRead | None:
        read = self._pending.get((segment.id, end))
        if read is None or read.start > offset:
            return None
        self._turns_of(segment).join(read.turn, client)
        return read

    def _turns_of(self, segment: Segment) -> StorageTurns:
        return self._system_turns if segment.is_system else self._turns

    def _begin_storage_read(
        self, segment: Segment, start: int, end: int, client: Hashable, *, is_ahead: bool
    ) -> _StorageRead:
        turn = Turn(client)
        task = self._loop.create_task(self._read_and_cache(segment, start, end - start, turn))
        read = _StorageRead(start, end, turn, task, is_ahead)
        self._pending[segment.id, end] = read
        self._tasks.add(task)
        task.add_done_callback(lambda done: self._ended(segment.id, read))
        return read

    def _read_ahead(self, segment: Segment, start: int, end: int) -> None:
        """Read a range ahead of the reader, if the cache has room and no other read has to wait for it."""
        if segment.is_deleted or segment.is_merged:
            self._ahead.forget(segment.id)
        elif self._is_closed or len(self._tasks) >= self._settings.storage_reads_max or not segment.index.takes_stored:
            self._ahead.not_read(segment.id, start)
        elif isinstance(segment.index.lookup(start, end - start, is_use=False), Missing):
            end = segment.index.gap_end(start, end)
            pending = self._pending.get((segment.id, end))
            if pending is None or pending.start > start:
                self._begin_storage_read(segment, start, end, None, is_ahead=True)

    def _ended(self, segment_id: int, read: _StorageRead) -> None:
        self._tasks.discard(read.task)
        self._drop_pending((segment_id, read.end), read)
        if not read.task.cancelled():
            read.task.exception()  # Mark as retrieved: waiters receive it, but there may be none.

    def _drop_pending(self, key: tuple[int, int], read: _StorageRead) -> None:
        if self._pending.get(key) is read:
            del self._pending[key]

    async def _read_and_cache(self, segment: Segment, offset: int, length: int, turn: Turn) -> bytes:
        disk = self._disk_cache
        data = await disk.read(self._disk_key(segment), offset, length) if disk is not None else None
        is_on_disk = data is not None
        if data is None:
            turns = self._turns_of(segment)
            try:
                await turns.take(turn)
                async with asyncio.timeout(self._settings.storage_read_timeout_s):
                    data = await self._storage_read(segment, offset, length)
            except TimeoutError as error:
                raise StorageReadTimeoutError(
                    f"{segment.name}: long-term storage did not return {length} bytes at {offset} "
                    f"within {self._settings.storage_read_timeout_s} s"
                ) from error
            finally:
                turns.leave(turn)
        # Separate from the read, so that an error of the cache does not affect the waiters.
        self._loop.call_soon(self._insert, segment, offset, data, is_on_disk)
        return data

    def _insert(self, segment: Segment, offset: int, data: bytes, is_on_disk: bool) -> None:
        if segment.is_deleted or segment.is_merged or offset + len(data) <= segment.durable_start_offset:
            return
        if not segment.index.insert_stored(offset, data) and not is_on_disk:
            self._keep_on_disk(segment, offset, data)

    async def close(self) -> None:
        """Cancel the running storage reads; their waiters get `ContainerOfflineError`."""
        self._is_closed = True
        tasks = list(self._tasks)
        await cancel_and_wait(*tasks)
