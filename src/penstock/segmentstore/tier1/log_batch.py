"""`BatchWriter`: what one sync covers, written to a log file. Blocks; runs in the log's own thread.

A batch is frames from a block boundary on, the last of them marked, and zeros up to the next boundary.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

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
        length: what it was made with; it may grow.
        position: everything before it is synced; the next batch goes there.
        link: where the log was before this file; its first frame says so. None once that is written.
    """

    file: DiskFile
    name: str
    header: FileHeader
    length: int
    position: int = BLOCK_LENGTH
    link: Link | None = None

    @property
    def capacity(self) -> int:
        """Where frames end: a trailer finds room behind them without making the file longer."""
        return self.length - BLOCK_LENGTH


@dataclass(frozen=True, slots=True)
class Append:
    """One frame on its way: its payload, and who waits for its address."""

    buffers: Sequence[Buffer]
    length: int
    future: asyncio.Future[LogAddress]


@dataclass(frozen=True, slots=True)
class BatchResult:
    """A batch that is durable: the addresses of its frames, and where the next batch begins."""

    addresses: list[LogAddress]
    end: int


class NoRoomToGrowError(StorageFullError):
    """A batch that goes beyond the file's capacity was not written."""


class BatchWriter:
    """Writes the batches of one incarnation.

    One system call for each batch, which writes and syncs: the fewer there are, the less often the thread gives away
    the interpreter's lock and has to wait for it beside a busy event loop.
    """

    def __init__(self, directory: LogDirectory) -> None:
        self.directory = directory

    def write(self, file: WritableFile, batch: Sequence[Append], sequence: int) -> BatchResult:
        """Write and sync a batch, its first frame `sequence`. Returns only while this incarnation owns the log.

        Raises `LogFencedError`, `NoRoomToGrowError` (nothing was acknowledged, and the file may go on),
        `StorageFullError`, `OSError`.
        """
        header = file.header
        synced_offset = offset = file.position
        out: list[Buffer] = []
        if file.link is not None:
            encode_link_frame(header, file.link, sequence, is_last_of_batch=False, out=out)
            offset += FRAME_HEADER_LENGTH + LINK_LENGTH
            sequence += 1
        addresses: list[LogAddress] = []
        for index, append in enumerate(batch, 1):
            frame = FrameHeader(
                FrameKind.DATA,
                index == len(batch),
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
        try:
            file.file.write_synced(file.position, out)
        except (StorageFullError, OSError) as error:
            if offset > file.capacity and is_full_error(error):
                raise NoRoomToGrowError(f"{file.name} in {self.directory.path} cannot grow: {error}") from error
            raise
        self.directory.check_unclaimed()
        return BatchResult(addresses, offset)

    def write_trailer(self, file: WritableFile, sequence: int) -> None:
        """Say behind the last frame that it was synced, since nothing that follows does. Raises as `write`.

        Not synced itself: it is meant to outlive the process, not the machine. The next batch overwrites it.
        """
        out: list[Buffer] = []
        encode_trailer(file.header, sequence, file.position, is_clean_close=False, out=out)
        try:
            file.file.write(file.position, out)
        except (OSError, PenstockError) as error:
            # Grown as far as there was room, it does without.
            if file.position <= file.capacity or not is_full_error(error):
                raise

    def write_closing_trailer(self, file: WritableFile, sequence: int) -> None:
        """Say durably that nothing follows. Raises `LogFencedError`, `StorageFullError`, `OSError`."""
        self.directory.check_owned()
        out: list[Buffer] = []
        encode_trailer(file.header, sequence, file.position, is_clean_close=True, out=out)
        file.file.write_synced(file.position, out)
