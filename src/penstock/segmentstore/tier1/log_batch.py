"""`BatchWriter`: writes to a log file the frames that one sync covers.

A batch is a sequence of frames from a block boundary on, the last of them marked, and zeros up to the next boundary.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from penstock.model.errors import PenstockError, StorageFullError
from penstock.model.segments import Buffer
from penstock.runtime.disk import DiskFile, is_full_error
from penstock.segmentstore.tier1.durable_log import LogAddress
from penstock.segmentstore.tier1.frame_format import (
    BLOCK_LENGTH,
    FRAME_HEADER_LENGTH,
    LINK_LENGTH,
    FileHeader,
    FrameHeader,
    FrameKind,
    Link,
    encode_frame,
)
from penstock.segmentstore.tier1.log_directory import LogDirectory, encode_link_frame, encode_trailer
from penstock.segmentstore.tier1.log_recovery import log_address


@dataclass(slots=True)
class WritableFile:
    """A log file of this incarnation.

    Attributes:
        length: the length it was created with; it may grow.
        position: everything before it is synced; the next batch is written there.
        link: the end of the previous file, recorded by this file's first frame. None once that is written.
    """

    file: DiskFile
    name: str
    header: FileHeader
    length: int
    position: int = BLOCK_LENGTH
    link: Link | None = None

    @property
    def capacity(self) -> int:
        """Limit of frames: a trailer fits after them without lengthening the file."""
        return self.length - BLOCK_LENGTH


@dataclass(frozen=True, slots=True)
class Append:
    """A frame to append: its payload and the future of its address."""

    buffers: Sequence[Buffer]
    length: int
    future: asyncio.Future[LogAddress]


@dataclass(frozen=True, slots=True)
class BatchResult:
    """A durable batch.

    Attributes:
        addresses: the addresses of its frames.
        end: offset of the next batch.
        began_s: a time before it began, and so before the check that confirmed ownership of the log.
    """

    addresses: list[LogAddress]
    end: int
    began_s: float


@dataclass(frozen=True, slots=True)
class PreparedBatch:
    """A batch to write.

    Attributes:
        appends: the appends taken from the queue for it.
        buffers: its bytes.
        addresses: the addresses of its frames.
        end: offset of the next batch.
        next_sequence: sequence number of the next frame.
        began_s: a time before it began.
    """

    appends: list[Append]
    buffers: list[Buffer]
    addresses: list[LogAddress]
    end: int
    next_sequence: int
    began_s: float


class NoRoomToGrowError(StorageFullError):
    """A batch was not written because it would exceed the file's capacity."""


class FileRoom(Protocol):
    """Answers what still fits in a file; may be called off the loop. See `LogFiles`."""

    def fits(self, file: WritableFile, length: int) -> bool:
        """Return whether a frame of that length fits in `file`, as the first of a batch."""

    def growth_limit(self, file: WritableFile) -> int:
        """Return the offset up to which a file may be written while it has no successor."""


class BatchWriter:
    """Writes the batches of one incarnation from a queue that the event loop fills.

    Small batches are prepared and completed by the loop, if it can write them without a thread. The others are written
    by the log's own thread (`write_queued`, which blocks), with one system call that writes and syncs a batch. The
    fewer system calls, the less often the thread releases the interpreter's lock and has to wait for it while the event
    loop is busy. For the same reason the thread continues while there is something in the queue: the loop is notified
    of each batch and need not reply.

    Attributes:
        sequence: number of the next frame. Like a file's `position` and `link` it belongs to the thread while
            `write_queued` is running, and to the loop otherwise.
        noted_s: the loop's clock as last read by the loop: a time before the next batch begins.
    """

    def __init__(
        self,
        directory: LogDirectory,
        queue: deque[Append],
        *,
        batch_length_max_bytes: int,
        room: FileRoom,
        tell: Callable[[BatchResult], None],
    ) -> None:
        """`tell` passes the result of each batch but the last to the loop."""
        self.directory = directory
        self.sequence: int = 0
        self.noted_s: float = float("-inf")
        self._queue = queue
        self._batch_length_max = batch_length_max_bytes
        self._room = room
        self._tell = tell

    def write_queued(self, file: WritableFile) -> BatchResult | None:
        """Write batches from the queue until it is empty or `file` has no room.

        Return the last result; None if nothing was written. Raises as `complete`. After `NoRoomToGrowError` the batch
        is in the queue again; after any other error its outcome is unknown.
        """
        result: BatchResult | None = None
        while (batch := self.prepare(file)) is not None:
            if result is not None:
                self._tell(result)
            try:
                file.file.write_synced(file.position, batch.buffers)
            except (StorageFullError, OSError) as error:
                self.give_back(file, batch, error)
                raise
            result = self.complete(file, batch)
        return result

    def prepare(self, file: WritableFile) -> PreparedBatch | None:
        """Take a batch from the queue that has room in `file`; None if there is none.

        The caller writes and syncs its buffers at the file's position, then calls `complete` or `give_back`.
        """
        taken = self._take(file)
        return self._encoded(file, taken) if taken else None

    def _take(self, file: WritableFile) -> list[Append]:
        # Beyond its capacity a file may grow to twice its length: see `LogFiles.with_room`.
        limit = file.capacity if file.position < file.capacity else self._room.growth_limit(file)
        offset = file.position
        payload_length = 0
        batch: list[Append] = []
        try:
            while True:
                length = self._queue[0].length
                offset += FRAME_HEADER_LENGTH + length
                payload_length += length
                if not batch:
                    is_room = self._room.fits(file, length)
                else:
                    is_room = offset <= limit and payload_length <= self._batch_length_max
                if not is_room:
                    break
                batch.append(self._queue.popleft())
        except IndexError:
            pass  # Empty, or just emptied by the loop because the log has failed.
        return batch

    def _encoded(self, file: WritableFile, appends: list[Append]) -> PreparedBatch:
        header = file.header
        sequence = self.sequence
        synced_offset = offset = file.position
        out: list[Buffer] = []
        if file.link is not None:
            encode_link_frame(header, file.link, sequence, is_last_of_batch=False, out=out)
            offset += FRAME_HEADER_LENGTH + LINK_LENGTH
            sequence += 1
        addresses: list[LogAddress] = []
        for index, append in enumerate(appends, 1):
            frame = FrameHeader(
                FrameKind.DATA,
                index == len(appends),
                False,
                append.length,
                offset,
                header.epoch,
                sequence,
                synced_offset,
            )
            encode_frame(header.salt, frame, append.buffers, out)
            addresses.append(log_address(header.number, offset))
            offset = frame.next_offset
            sequence += 1
        return PreparedBatch(appends, out, addresses, offset, sequence, self.noted_s)

    def complete(self, file: WritableFile, batch: PreparedBatch) -> BatchResult:
        """Note that a batch is written and synced. Raises `LogFencedError` unless this incarnation owns the log."""
        self.directory.check_unclaimed()
        self.sequence = batch.next_sequence
        file.link = None
        file.position = batch.end
        return BatchResult(batch.addresses, batch.end, batch.began_s)

    def give_back(self, file: WritableFile, batch: PreparedBatch, error: Exception) -> None:
        """Note that a batch could not be written.

        Raises `NoRoomToGrowError` if the file could not grow for it. Then the batch is void and in the queue again, and
        the log can continue.
        """
        if batch.end > file.capacity and is_full_error(error):
            self._queue.extendleft(reversed(batch.appends))
            raise NoRoomToGrowError(f"{file.name} in {self.directory.path} cannot grow: {error}") from error

    def write_trailer(self, file: WritableFile) -> None:
        """Record after the last frame that it was synced, since no later frame says so. Raises as `write`.

        Not synced itself: it needs to survive the process, not the machine. The next batch overwrites it.
        """
        out: list[Buffer] = []
        encode_trailer(file.header, self.sequence, file.position, is_clean_close=False, out=out)
        try:
            file.file.write(file.position, out)
        except (OSError, PenstockError) as error:
            # The file has grown as far as there was room; it continues without a trailer.
            if file.position <= file.capacity or not is_full_error(error):
                raise

    def write_closing_trailer(self, file: WritableFile) -> None:
        """Record durably that nothing follows. Raises `LogFencedError`, `StorageFullError`, `OSError`."""
        self.directory.check_owned()
        out: list[Buffer] = []
        encode_trailer(file.header, self.sequence, file.position, is_clean_close=True, out=out)
        file.file.write_synced(file.position, out)
