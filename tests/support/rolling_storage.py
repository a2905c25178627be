"""Writes segments as RollingStorage, the older layout, leaves them: from docs/formats.md, not from the codec."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.segmentstore.tier2.chunk_storage import ChunkStorage


async def put_rolling(
    chunks: ChunkStorage, segment: str, pieces: Sequence[bytes], *, gone: int = 0, start: int = 0
) -> bytes:
    """Write `pieces` as one chunk each, the first at `start`, and the header; the first `gone` were truncated.

    Returns all bytes that are there.
    """
    header = "maxsize=100&"
    at = start
    for number, piece in enumerate(pieces):
        name = f"{segment}$offset.{at}"
        if number >= gone:
            await put(chunks, name, piece)
        header += f"{at}={name}&"
        at += len(piece)
    await put(chunks, f"{segment}$header", header.encode())
    return b"".join(pieces[gone:])


async def put(chunks: ChunkStorage, name: str, data: bytes) -> None:
    """Write a chunk, which may be empty."""
    if await chunks.exists(name):
        await chunks.delete(name)
    if data:
        await chunks.create_with_content(name, [data])
    else:
        await chunks.create(name)
