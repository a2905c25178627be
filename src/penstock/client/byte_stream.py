"""Byte streams: a stream of one segment as a file that only grows.

Writes carry the offset they are meant for, so a second writer is found out instead of mixing its bytes in.
"""

from __future__ import annotations

import asyncio
from types import TracebackType

from penstock.client.cluster import Cluster
from penstock.client.segment_reader import SegmentReader
from penstock.model.errors import (
    BadOffsetError,
    InvalidArgumentError,
    OutcomeUnknownError,
    PenstockError,
    UnsupportedOperationError,
)
from penstock.model.names import split_scoped_name
from penstock.model.segments import Buffer

#: An append is one frame; stay below the frame limit.
_APPEND_BYTES_MAX = 8 * 1024 * 1024


async def _only_segment(cluster: Cluster, stream: str) -> str:
    segments = await cluster.controller.current_segments(*split_scoped_name(stream))
    if len(segments) != 1:
        raise UnsupportedOperationError(
            f"stream {stream} has {len(segments)} open segments; a byte stream needs exactly one: "
            "create it with scaling=Scaling.fixed(1)"
        )
    return segments[0].name


class ByteWriter:
    """Appends bytes to a byte stream. `write` collects, `flush` makes durable; leaving the context flushes."""

    def __init__(self, cluster: Cluster, segment: str, offset: int) -> None:
        self._cluster = cluster
        self._segment = segment
        self._offset = offset
        self._pending: list[bytes] = []
        self._pending_bytes = 0
        self._failure: PenstockError | None = None
        self._lock = asyncio.Lock()

    @classmethod
    async def open(cls, cluster: Cluster, stream: str) -> ByteWriter:
        """Open a writer at the current end of `stream`."""
        segment = await _only_segment(cluster, stream)
        info = await cluster.segments.segment_info(segment)
        return cls(cluster, segment, info.length)

    def tell(self) -> int:
        """Return the offset of the next byte to write."""
        return self._offset + self._pending_bytes

    async def write(self, data: Buffer) -> int:
        """Take `data` (copied) and return its length. Sends whenever a block is full; durable after `flush`."""
        self._check()
        self._pending.append(bytes(data))
        self._pending_bytes += len(data)
        if self._pending_bytes >= self._cluster.settings.block_bytes_max:
            await self.flush()
        return len(data)

    async def flush(self) -> None:
        """Make everything written so far durable.

        Raises `BadOffsetError` when somebody else has written to the stream: nothing of this flush is stored then.
        """
        async with self._lock:
            self._check()
            data, self._pending, self._pending_bytes = b"".join(self._pending), [], 0
            for start in range(0, len(data), _APPEND_BYTES_MAX):
                await self._append(data[start : start + _APPEND_BYTES_MAX])

    async def truncate_before(self, offset: int) -> None:
        """Forget the bytes before `offset`. The controller is not told: heads of the stream stay where they were."""
        await self.flush()
        await self._cluster.segments.truncate_segment(self._segment, offset)

    async def close(self) -> None:
        """Flush."""
        if self._failure is None:
            await self.flush()

    async def __aenter__(self) -> ByteWriter:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is None:
            await self.close()

    async def _append(self, piece: bytes) -> None:
        segments = self._cluster.segments
        try:
            try:
                await segments.append(self._segment, piece, expected_offset=self._offset)
            except OutcomeUnknownError:
                # Whether it was stored can be told from the bytes at the place they were meant for.
                if not await self._is_stored(piece):
                    await segments.append(self._segment, piece, expected_offset=self._offset)
        except PenstockError as error:
            self._failure = error
            raise
        self._offset += len(piece)

    async def _is_stored(self, piece: bytes) -> bool:
        info = await self._cluster.segments.segment_info(self._segment)
        if info.length < self._offset + len(piece):
            return False
        async with self._cluster.segment_reader(self._segment, self._offset, self._offset + len(piece)) as reader:
            found = b"".join([block async for block in reader])
        if found != piece:
            raise BadOffsetError(self._segment, expected=self._offset, actual=info.length)
        return True

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure


class ByteReader:
    """Reads a byte stream like a file: `read`, `readinto`, `seek`, `tell`. Waits at the end for more bytes."""

    def __init__(self, cluster: Cluster, segment: str, offset: int) -> None:
        self._cluster = cluster
        self._segment = segment
        self._offset = offset
        self._reader: SegmentReader | None = None
        self._block = memoryview(b"")

    @classmethod
    async def open(cls, cluster: Cluster, stream: str) -> ByteReader:
        """Open a reader at the first byte of `stream` that still exists."""
        segment = await _only_segment(cluster, stream)
        info = await cluster.segments.segment_info(segment)
        return cls(cluster, segment, info.start_offset)

    def tell(self) -> int:
        """Return the offset of the next byte to read."""
        return self._offset

    async def seek(self, offset: int) -> int:
        """Go to `offset`, counted from the first byte ever written; return it."""
        if offset < 0:
            raise InvalidArgumentError(f"{self._segment}: cannot seek to {offset}")
        if offset != self._offset:
            await self.close()
            self._offset = offset
        return offset

    async def read(self, length: int = 64 * 1024) -> bytes:
        """Return up to `length` bytes: what is there, else what comes next. Empty once the stream is sealed and read.

        Raises `SegmentTruncatedError` when the bytes are gone.
        """
        if not self._block:
            if self._reader is None:
                self._reader = self._cluster.segment_reader(self._segment, self._offset)
            self._block = memoryview(await self._reader.read())
        data = bytes(self._block[:length])
        self._block = self._block[len(data) :]
        self._offset += len(data)
        return data

    async def readinto(self, buffer: bytearray | memoryview) -> int:
        """Read into `buffer`, up to its length; return how many bytes. 0 as the empty answer of `read`."""
        data = await self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    async def current_end(self) -> int:
        """Return the stream's length: the offset the next written byte gets."""
        return (await self._cluster.segments.segment_info(self._segment)).length

    async def close(self) -> None:
        """Stop reading ahead."""
        if self._reader is not None:
            await self._reader.close()
            self._reader = None
        self._block = memoryview(b"")

    async def __aenter__(self) -> ByteReader:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()
