"""Checksums of a chunk's blocks, grown as bytes are written. How they are checked: `penstock.model.block_checksums`."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence

from penstock.model.checksum import crc32c
from penstock.model.segments import Buffer

#: Approximate number of bytes summed in one step: some 25 us.
STEP_BYTES = 256 * 1024


def extend_checksums(
    checksums: Sequence[int], length: int, data: Sequence[Buffer], *, block_length: int
) -> tuple[int, ...]:
    """Return the checksums of `length` bytes with the given `checksums`, followed by `data`.

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
    """Like `extend_checksums` with `checksum`; yield the bytes summed since, every `STEP_BYTES` and at the end."""
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
