"""`DiskCache`: the second level of the cache, on a local disk; off by default.

One file of slots of equal length. A slot holds a range of one *cell*, an aligned piece of a segment, at the range's
position in the cell, so that pieces evicted one by one join up. The index is kept in memory only: the cache is empty
at every start. Cached bytes never change: offsets of a segment are not reused, and a segment's owner (container,
epoch, id) is part of its key, so that data of an earlier segment or incarnation is never returned.

Correctness does not depend on it. Data that cannot be written is not kept. A slot that cannot be read, or whose
checksum (CRC32C) is wrong, is dropped and counts as a miss.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections import OrderedDict, deque
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from penstock.model.checksum import crc32c
from penstock.model.errors import PenstockError
from penstock.model.segments import Buffer
from penstock.runtime.disk import DiskFile
from penstock.runtime.runtime import Runtime
from penstock.runtime.waits import cancel_and_wait
from penstock.segmentstore.settings import DiskCacheSettings

logger: logging.Logger = logging.getLogger(__name__)

_FILE_NAME = "evicted-data"


class SegmentKey(NamedTuple):
    """A segment of one incarnation of a container."""

    container_id: int
    epoch: int
    segment_id: int


_CellKey = tuple[SegmentKey, int]


@dataclass(slots=True, eq=False)
class _Slot:
    """Bytes `[start, end)` of a segment. While `pin_count` is above 0 the slot is not reused."""

    number: int
    start: int
    end: int
    checksum: int
    pin_count: int = 0
    is_dropped: bool = False


@dataclass(slots=True)
class DiskCacheStatistics:
    """Counters since the start.

    Attributes:
        hit_count: reads that found their first byte.
        miss_count: reads that did not.
        kept_bytes: bytes written.
        dropped_bytes: bytes not kept, because the queue was full or every slot was in use.
        damaged_count: slots whose checksum was wrong.
        failure_count: calls of the disk that failed.
    """

    hit_count: int = 0
    miss_count: int = 0
    kept_bytes: int = 0
    dropped_bytes: int = 0
    damaged_count: int = 0
    failure_count: int = 0


class DiskCache:
    """See the module. `directory` belongs to this process alone; call `open` before anything else."""

    def __init__(self, directory: str, settings: DiskCacheSettings, runtime: Runtime) -> None:
        self.statistics: DiskCacheStatistics = DiskCacheStatistics()
        self._path = os.path.join(directory, _FILE_NAME)
        self._directory = directory
        self._settings = settings
        self._disk = runtime.disk
        self._pool = runtime.work.pool("disk-cache", settings.pool)
        self._slot_count_max = settings.bytes_max // settings.slot_bytes
        self._slot_count = 0
        self._free: list[int] = []
        #: Least recently used first.
        self._slots: OrderedDict[_CellKey, _Slot] = OrderedDict()
        self._file: DiskFile | None = None
        self._pending: deque[tuple[SegmentKey, int, Buffer]] = deque()
        self._pending_bytes = 0
        self._writer: asyncio.Task[None] | None = None
        #: Running disk calls, including abandoned ones; the file is closed after the last.
        self._job_count = 0
        self._unused_file: DiskFile | None = None
        self._failures_in_a_row = 0

    @property
    def is_on(self) -> bool:
        """Whether the cache is on."""
        return self._file is not None

    @property
    def slot_count(self) -> int:
        """Number of slots in use."""
        return len(self._slots)

    async def open(self) -> None:
        """Create an empty file. If that fails, the error is logged and the cache stays off."""
        if self._slot_count_max <= 0:
            return
        try:
            self._file = await self._pool.run(self._create)
        except (OSError, PenstockError) as error:
            logger.warning("no cache on disk: %s cannot be created: %s", self._path, error)

    def _create(self) -> DiskFile:
        disk = self._disk
        disk.make_directory(self._directory)
        if disk.exists(self._path):
            disk.remove(self._path)
        return disk.open(self._path, create=True, exclusive=True)

    async def close(self) -> None:
        """Turn the cache off and free its space. Waits for a hanging disk only for a limited time."""
        file = self._turn_off()
        if self._writer is not None:
            await cancel_and_wait(self._writer)
        if file is None:
            return
        try:
            async with asyncio.timeout(self._settings.close_timeout_s):
                await self._pool.drained()
                await self._pool.run(self._disk.remove, self._path)
        except (TimeoutError, OSError, PenstockError) as error:
            logger.warning("%s could not be deleted: %r", self._path, error)

    # Reads.

    async def read(self, segment: SegmentKey, offset: int, length: int) -> bytes | None:
        """Return up to `length` verified bytes from `offset` if the first of them is here. Never fails."""
        file = self._file
        if file is None:
            return None
        size = self._settings.slot_bytes
        key = (segment, offset // size)
        slot = self._slots.get(key)
        if slot is None or not slot.start <= offset < slot.end:
            self.statistics.miss_count += 1
            return None
        self._slots.move_to_end(key)
        start, end, checksum = slot.start, slot.end, slot.checksum
        slot.pin_count += 1
        self._job_count += 1
        position = slot.number * size + start % size
        try:
            data, found = await self._pool.run(
                _read_and_check, file, position, end - start, on_end=partial(self._ended, slot)
            )
        except (OSError, PenstockError) as error:
            self._failed("read", error)
            self._drop(key, slot)
            return None
        if len(data) != end - start or found != checksum:
            if self._slots.get(key) is slot:
                self.statistics.damaged_count += 1
                logger.warning(
                    "%s: slot %d is damaged; bytes %d to %d of segment %d of container %d are read from long-term "
                    "storage",
                    self._path,
                    slot.number,
                    start,
                    end,
                    segment.segment_id,
                    segment.container_id,
                )
                self._drop(key, slot)
            return None
        self._failures_in_a_row = 0
        self.statistics.hit_count += 1
        return data[offset - start : offset - start + length]

    # Writes.

    def keep(self, segment: SegmentKey, offset: int, data: Buffer) -> None:
        """Write bytes of a segment in the background if there is room for them. They must not change."""
        if self._file is None:
            return
        size = self._settings.slot_bytes
        view = memoryview(data)
        end = offset + len(data)
        while offset < end:
            stop = min(end, (offset // size + 1) * size)
            piece, view = view[: stop - offset], view[stop - offset :]
            slot = self._slots.get((segment, offset // size))
            if len(piece) >= self._settings.piece_bytes_min and not _covers(slot, offset, stop):
                if self._pending_bytes + len(piece) > self._settings.pending_bytes_max:
                    self.statistics.dropped_bytes += len(piece)
                else:
                    self._pending.append((segment, offset, piece))
                    self._pending_bytes += len(piece)
            offset = stop
        if self._pending and self._writer is None:
            self._writer = asyncio.get_running_loop().create_task(self._write_pending())

    async def settle(self) -> None:
        """Return once all pending bytes are written."""
        while self._writer is not None:
            await asyncio.gather(self._writer, return_exceptions=True)

    async def _write_pending(self) -> None:
        try:
            while self._pending:
                segment, start, data = self._pending.popleft()
                self._pending_bytes -= len(data)
                await self._write(segment, start, data)
        finally:
            self._writer = None
            if self._file is None:
                self._pending.clear()
                self._pending_bytes = 0

    async def _write(self, segment: SegmentKey, start: int, data: Buffer) -> None:
        size = self._settings.slot_bytes
        end = start + len(data)
        key = (segment, start // size)
        slot = self._slots.get(key)
        if slot is not None and slot.end != start:
            if _covers(slot, start, end) or slot.pin_count or slot.end - slot.start >= len(data):
                return
            self._drop(key, slot)
            slot = None
        file = self._file
        if file is None:
            return
        if slot is None:
            number = self._take_number()
            if number is None:
                self.statistics.dropped_bytes += len(data)
                return
            slot = _Slot(number, start, start, 0)
        # Readers of an extended slot see its previous range until the write is complete.
        slot.pin_count += 1
        self._job_count += 1
        # Nothing may be added after the bytes of an abandoned write: they may not match the checksum.
        is_written = False
        position = slot.number * size + start % size
        try:
            checksum = await self._pool.run(
                _write_and_sum, file, position, data, slot.checksum, on_end=partial(self._ended, slot)
            )
            is_written = True
        except (OSError, PenstockError) as error:
            self._failed("write", error)
            return
        finally:
            if not is_written:
                self._drop(key, slot)
                if slot.end == slot.start and not slot.is_dropped:
                    slot.is_dropped = True  # A new slot, not visible yet.
                    if not slot.pin_count:
                        self._free.append(slot.number)
        self._failures_in_a_row = 0
        if self._file is None or slot.is_dropped:
            return  # Closed or found damaged meanwhile.
        slot.end = end
        slot.checksum = checksum
        self._slots[key] = slot
        self._slots.move_to_end(key)
        self.statistics.kept_bytes += len(data)

    def _take_number(self) -> int | None:
        """Return a free slot; evict the least recently used one if necessary."""
        if self._free:
            return self._free.pop()
        if self._slot_count < self._slot_count_max:
            self._slot_count += 1
            return self._slot_count - 1
        for _ in range(len(self._slots)):
            key, slot = next(iter(self._slots.items()))
            if not slot.pin_count:
                del self._slots[key]
                return slot.number
            self._slots.move_to_end(key)  # Just read.
        return None

    def _drop(self, key: _CellKey, slot: _Slot) -> None:
        if self._slots.get(key) is slot:
            del self._slots[key]
            slot.is_dropped = True
            if not slot.pin_count:
                self._free.append(slot.number)

    def _unpin(self, slot: _Slot) -> None:
        slot.pin_count -= 1
        if slot.is_dropped and not slot.pin_count:
            self._free.append(slot.number)

    def _failed(self, what: str, error: Exception) -> None:
        self.statistics.failure_count += 1
        self._failures_in_a_row += 1
        if self._failures_in_a_row < self._settings.failures_max:
            logger.warning("%s: %s failed: %s", self._path, what, error)
        elif self._file is not None:
            logger.error("%s: %s failed too often, the cache on disk is disabled: %s", self._path, what, error)
            self._turn_off()

    def _turn_off(self) -> DiskFile | None:
        """Turn the cache off; return the file, which is closed once it is no longer in use."""
        file, self._file = self._file, None
        self._slots.clear()
        self._pending.clear()
        self._pending_bytes = 0
        if file is not None:
            self._unused_file = file
            self._close_unused()
        return file

    def _close_unused(self) -> None:
        if self._unused_file is not None and not self._job_count:
            file, self._unused_file = self._unused_file, None
            file.close()

    def _ended(self, slot: _Slot) -> None:
        """Note that a disk call has ended, in time or not."""
        self._job_count -= 1
        self._unpin(slot)
        self._close_unused()


def _covers(slot: _Slot | None, start: int, end: int) -> bool:
    return slot is not None and slot.start <= start and end <= slot.end


def _read_and_check(file: DiskFile, position: int, length: int) -> tuple[bytes, int]:
    data = file.read(position, length)
    return data, crc32c(data, 0)


def _write_and_sum(file: DiskFile, position: int, data: Buffer, checksum: int) -> int:
    file.write(position, [data])
    return crc32c(data, checksum)
