"""Checksums of a chunk's blocks: grown as bytes are written, checked as bytes are read.

A pure core: bytes and records in, checksums or verified bytes out. Batch readers that read chunks themselves use it
with the layout they were given, so that they verify as the store does.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence

from penstock.model.checksum import crc32c
from penstock.model.errors import CorruptionError
from penstock.model.segments import Buffer

#: What is summed in one step, give or take a buffer: some 25 us.
STEP_BYTES = 256 * 1024


def extend_checksums(
    checksums: Sequence[int], length: int, data: Sequence[Buffer], *, block_length: int
) -> tuple[int, ...]:
    """Return the checksums of `length` bytes, known by `checksums`, followed by `data`.

    The last block's checksum is continued, so nothing written earlier is read again.
    """
    steps = extend_in_steps(checksums, length, data, block_length=block_length, checksum=crc32c)
    while True:
        try:
            next(steps)
        except StopIteration as done:
            grown: tuple[int, ...] = done.value
            return grown


def extend_in_steps(
    checksums: Sequence[int],
    length: int,
    data: Sequence[Buffer],
    *,
    block_length: int,
    checksum: Callable[[Buffer, int], int],
) -> Generator[int, None, tuple[int, ...]]:
    """Do what `extend_checksums` does with `checksum`; yield bytes summed since, every `STEP_BYTES` and at the end."""
    grown = list(checksums)
    filled = length % block_length
    summed_bytes = 0
    for buffer in data:
        if summed_bytes >= STEP_BYTES:
            yield summed_bytes
            summed_bytes = 0
        count = len(buffer)
        summed_bytes += count
        end = filled + count
        if filled and end <= block_length:
            grown[-1] = checksum(buffer, grown[-1])
            filled = end if end < block_length else 0
            continue
        view = memoryview(buffer)
        position = 0
        while position < len(view):
            if not filled:
                grown.append(0)
            count = min(block_length - filled, len(view) - position)
            grown[-1] = checksum(view[position : position + count], grown[-1])
            position += count
            filled = (filled + count) % block_length
    yield summed_bytes
    return tuple(grown)


def block_range(start: int, end: int, *, length: int, block_length: int) -> tuple[int, int]:
    """Return the smallest range of whole blocks that holds bytes [`start`, `end`) of a chunk of `length` bytes."""
    return start - start % block_length, min(length, -(-end // block_length) * block_length)


def verify_blocks(chunk: str, start: int, data: bytes, checksums: Sequence[int], *, block_length: int) -> None:
    """Check `data`, whole blocks of `chunk` from byte `start` on, against the chunk's `checksums`.

    Raises:
        CorruptionError: names the chunk and the first byte of the first block that is not what was written.
    """
    first = start // block_length
    for index, position in enumerate(range(0, len(data), block_length), first):
        part = data if len(data) <= block_length else data[position : position + block_length]
        found = crc32c(part, 0)
        if found != checksums[index]:
            raise CorruptionError(
                chunk,
                index * block_length,
                f"block of {len(part)} bytes has checksum {found:08x}, written with {checksums[index]:08x}",
            )
