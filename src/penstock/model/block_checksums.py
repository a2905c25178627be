"""Checksums of a chunk's blocks, verified on read: by the store, and by clients that read chunks directly."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.model.checksum import crc32c
from penstock.model.errors import CorruptionError


def block_range(start: int, end: int, *, length: int, block_length: int) -> tuple[int, int]:
    """Return the smallest range of whole blocks that holds bytes [`start`, `end`) of a chunk of `length` bytes."""
    return start - start % block_length, min(length, -(-end // block_length) * block_length)


def verify_blocks(
    chunk: str, start: int, data: bytes, checksums: Sequence[int], *, block_length: int, first_block: int = 0
) -> None:
    """Verify `data`, whole blocks of `chunk` from byte `start` on, against `checksums`, the first for `first_block`.

    Raises:
        CorruptionError: names the chunk and the first byte of the first block that does not match.
    """
    first = start // block_length
    # Slicing the bytes themselves would copy.
    view = memoryview(data)
    for index, position in enumerate(range(0, len(data), block_length), first):
        part = view[position : position + block_length]
        found = crc32c(part, 0)
        expected = checksums[index - first_block]
        if found != expected:
            raise CorruptionError(
                chunk,
                index * block_length,
                f"block of {len(part)} bytes has checksum {found:08x}, written with {expected:08x}",
            )
