"""`recovered_frames`: the frames that a local log was opened with, in order, read ahead of the consumer."""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass

from penstock.model.errors import CorruptionError
from penstock.runtime.disk import Disk
from penstock.segmentstore.tier1.durable_log import LogAddress, LogFrame, LogFrameRun
from penstock.segmentstore.tier1.frame_format import BLOCK_LENGTH
from penstock.segmentstore.tier1.log_recovery import ChainFile, read_frames
from penstock.segmentstore.tier1.log_work import LogWork

READ_BATCH_LENGTH = 8 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class _ReadPosition:
    """Where reading continues: at `offset` of a file, where the frame `sequence` is expected."""

    file_index: int
    offset: int
    sequence: int | None


async def recovered_frames(
    work: LogWork, disk: Disk, directory: str, files: Sequence[ChainFile], truncation_address: int
) -> AsyncGenerator[LogFrameRun, None]:
    """Yield every data frame of `files` after an address. Raises `CorruptionError`, `StorageError`."""
    loop = asyncio.get_running_loop()
    reading = loop.create_task(_read_batch(work, disk, directory, files, _ReadPosition(0, BLOCK_LENGTH, None)))
    is_over = False
    try:
        while not is_over:
            runs, following = await reading
            if following is not None:
                # The next batch is read while the caller processes this one.
                reading = loop.create_task(_read_batch(work, disk, directory, files, following))
                # Start it now: the caller may not yield to the loop before it has processed all frames.
                await asyncio.sleep(0)
            is_over = following is None
            for run in runs:
                forgotten = bisect_right(run.addresses, truncation_address)
                if not forgotten:
                    yield run
                elif forgotten < len(run.addresses):
                    yield LogFrameRun(run.addresses[forgotten:], run.data[forgotten:])
    finally:
        # The result of a read in progress is dropped if the caller stops early.
        reading.cancel()
        reading.add_done_callback(lambda done: None if done.cancelled() else done.exception())


async def one_by_one(runs: AsyncGenerator[LogFrameRun, None]) -> AsyncGenerator[LogFrame, None]:
    """Yield the frames of `runs`, and close it at the end."""
    async with aclosing(runs):
        async for run in runs:
            for address, data in zip(run.addresses, run.data, strict=True):
                yield LogFrame(LogAddress(address), data)


async def _read_batch(
    work: LogWork, disk: Disk, directory: str, files: Sequence[ChainFile], position: _ReadPosition
) -> tuple[list[LogFrameRun], _ReadPosition | None]:
    """Return the frames of a batch, and the position of the next one; None after the last."""
    if position.file_index == len(files):
        return [], None
    file = files[position.file_index]
    if position.offset == BLOCK_LENGTH and position.sequence not in (None, file.first_sequence):
        raise CorruptionError(
            f"{directory}/{file.name}",
            BLOCK_LENGTH,
            f"expected frame {position.sequence}, found frame {file.first_sequence}",
        )
    sequence = file.first_sequence if position.offset == BLOCK_LENGTH else position.sequence
    runs, offset, sequence = await work.run(
        "read", read_frames, disk, directory, file, position.offset, sequence, READ_BATCH_LENGTH
    )
    if offset < file.end:
        return runs, _ReadPosition(position.file_index, offset, sequence)
    return runs, _ReadPosition(position.file_index + 1, BLOCK_LENGTH, sequence)
