"""Checksums of the bytes that a write adds to chunks, compared with those that the bytes arrived with.

The order matters: first the checksums of the written bytes are computed, then the bytes are compared with those that
arrived. So whenever a byte changes in memory, either the comparison fails, or the checksums are those of the bytes that
arrived. Nothing is joined or copied.

Short pieces are summed on the loop, a bounded number of bytes per turn; long ones by a thread, so that the loop
continues meanwhile. For short ones a thread would cost more than it saves: it would have to be scheduled for each
piece.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from penstock.model.checksum import crc32c, crc32c_at_once
from penstock.model.errors import InconsistentStateError
from penstock.model.segments import Buffer
from penstock.runtime.work import BlockingWork
from penstock.segmentstore.tier2.block_checksums import STEP_BYTES, extend_in_steps

T = TypeVar("T")

#: Approximate number of bytes summed in one turn of the loop: some 100 us.
_SLICE_BYTES = 1024 * 1024
#: Pieces longer than this on average are summed by a thread.
_LONG_PIECE_BYTES = 128 * 1024


@dataclass(frozen=True, slots=True)
class Growth:
    """The bytes that a write adds to one chunk: `pieces` after `length` bytes with the given `checksums`."""

    checksums: tuple[int, ...]
    length: int
    block_length: int
    pieces: Sequence[Buffer]


@dataclass(frozen=True, slots=True)
class _Summed:
    """The new checksums of each chunk; and the damaged buffer, if any, with its present checksum."""

    checksums: list[tuple[int, ...]]
    damaged: int | None
    found: int


async def sum_written(
    work: BlockingWork,
    segment: str,
    offset: int,
    growths: Sequence[Growth],
    checksummed_blocks: Sequence[tuple[Buffer, int]],
) -> list[tuple[int, ...]]:
    """Return the checksums of chunks that have grown by bytes of `segment` from `offset` on.

    `checksummed_blocks`: the buffers that hold those bytes, in order, with the checksums that they arrived with; empty
    if unknown.

    Raises `InconsistentStateError` if any of them differs from what arrived.
    """
    lengths = [len(piece) for growth in growths for piece in growth.pieces]
    if sum(lengths) > _LONG_PIECE_BYTES * len(lengths):
        summed = await work.run(_sum_at_once, growths, checksummed_blocks)
    else:
        summed = await _in_turns(_sum(growths, checksummed_blocks, crc32c_at_once))
    if summed.damaged is not None:
        whole, arrived = checksummed_blocks[summed.damaged]
        raise InconsistentStateError(
            segment,
            offset,
            f"one of the blocks in memory from here on ({len(whole)} bytes) has checksum {summed.found:08x}, it "
            f"arrived with {arrived:08x}: the memory of this process is not sound; what the log has is read again",
        )
    return summed.checksums


def _sum(
    growths: Sequence[Growth], checksummed_blocks: Sequence[tuple[Buffer, int]], checksum: Callable[[Buffer, int], int]
) -> Generator[int, None, _Summed]:
    """Compute the checksums, and yield the bytes summed since after each step."""
    grown: list[tuple[int, ...]] = []
    for growth in growths:
        grown.append(
            (yield from extend_in_steps(
                growth.checksums, growth.length, growth.pieces, block_length=growth.block_length, checksum=checksum
            ))
        )  # fmt: skip
    summed_bytes = 0
    for index, (whole, arrived) in enumerate(checksummed_blocks):
        found = checksum(whole, 0)
        if found != arrived:
            return _Summed(grown, index, found)
        summed_bytes += len(whole)
        if summed_bytes >= STEP_BYTES:
            yield summed_bytes
            summed_bytes = 0
    return _Summed(grown, None, 0)


def _sum_at_once(growths: Sequence[Growth], checksummed_blocks: Sequence[tuple[Buffer, int]]) -> _Summed:
    steps = _sum(growths, checksummed_blocks, crc32c)
    while True:
        try:
            next(steps)
        except StopIteration as done:
            summed: _Summed = done.value
            return summed


async def _in_turns(steps: Generator[int, None, T]) -> T:
    summed_bytes = 0
    while True:
        try:
            summed_bytes += next(steps)
        except StopIteration as done:
            result: T = done.value
            return result
        if summed_bytes >= _SLICE_BYTES:
            summed_bytes = 0
            await asyncio.sleep(0)
