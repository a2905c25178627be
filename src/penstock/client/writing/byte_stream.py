"""Byte streams: a stream of one segment as an append-only file.

Each append carries its expected offset, so a second writer is detected before its bytes are interleaved.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator
from itertools import islice

from penstock.client.common.life_cycle import LifeCycle
from penstock.client.common.tasks import start_watched
from penstock.client.transport.cluster import Cluster
from penstock.client.transport.connection_pool import ConnectionPool
from penstock.client.transport.segment_reader import SegmentReader
from penstock.client.writing.single_appender import SingleAppender
from penstock.model.errors import (
    BadOffsetError,
    InvalidArgumentError,
    PenstockError,
    StreamSealedError,
    UnsupportedOperationError,
)
from penstock.model.names import segment_name, split_scoped_name
from penstock.model.segments import Buffer

#: An append is one frame; stay below the frame limit.
_APPEND_BYTES_MAX = 8 * 1024 * 1024


async def only_segment(cluster: Cluster, stream: str, kind: str, *, is_read_only: bool = False) -> str:
    """Return the one segment that a stream of this `kind` continues in, or ended with if it `is_read_only`.

    Raises `NoSuchStreamError`, `UnsupportedOperationError` for several, `StreamSealedError`.
    """
    scope, name = split_scoped_name(stream)
    if is_read_only:
        ids = await cluster.last_segments(stream)
    else:
        ids = [segment.segment_id for segment in await cluster.controller.current_segments(scope, name)]
    if not ids:
        raise StreamSealedError(f"stream {stream} is sealed: a {kind} of it cannot be opened")
    if len(ids) > 1:
        raise UnsupportedOperationError(
            f"stream {stream} has {len(ids)} segments; a {kind} needs exactly one: "
            "create it with scaling=Scaling.fixed(1)"
        )
    return segment_name(scope, name, ids[0])


class ByteWriter(LifeCycle):
    """Appends bytes to a byte stream. `write` buffers, `flush` makes durable; closing flushes."""

    def __init__(self, cluster: Cluster, pool: ConnectionPool, stream: str, segment: str, offset: int) -> None:
        super().__init__(f"byte writer of {stream}", close_timeout_s=cluster.settings.close_timeout_s)
        self._cluster = cluster
        self._stream = stream
        self._segment = segment
        self._appender = SingleAppender(pool, segment, cluster.settings, cluster.rng)
        #: The offset of the first of `_pending`. Everything before it is stored.
        self._offset = offset
        self._pending: deque[bytes] = deque()
        self._pending_bytes = 0
        self._failure: PenstockError | None = None
        #: Stores pending bytes. One task at a time, separate from the caller: a cancelled `flush` leaves no partial
        #: append.
        self._flusher: asyncio.Task[None] | None = None

    def tell(self) -> int:
        """Return the offset of the next byte to write."""
        return self._offset + self._pending_bytes

    async def write(self, data: Buffer) -> int:
        """Take `data` (copied) and return its length. Sends whenever a block is full; durable after `flush`.

        If it is cancelled or fails while sending, the data was taken nevertheless. Raises `ClosedError`.
        """
        self._check()
        for start in range(0, len(data), _APPEND_BYTES_MAX):
            self._pending.append(bytes(data[start : start + _APPEND_BYTES_MAX]))
        self._pending_bytes += len(data)
        if self._pending_bytes >= self._cluster.settings.block_bytes_max:
            await self._flush()
        return len(data)

    async def flush(self, timeout_s: float | None = None) -> None:
        """Make everything written so far durable. After a cancellation or `timeout_s`, the storing continues.

        Raises:
            BadOffsetError: another writer has written to the stream. The rest is not stored, and this writer has ended.
            TimeoutError: it is not durable within `timeout_s`.
        """
        self._check()
        async with asyncio.timeout(timeout_s):
            await self._flush()

    async def truncate_before(self, offset: int) -> None:
        """Delete the bytes before `offset`. The controller has no record of it: the stream's head does not move."""
        await self.flush()
        await self._cluster.segments.truncate_segment(self._segment, offset)

    async def __aenter__(self) -> ByteWriter:
        return self

    async def _finish(self) -> None:
        # A failure was raised already by the call that encountered it.
        if self._failure is None:
            await self._flush()

    async def _release(self) -> None:
        if self._flusher is not None:
            self._flusher.cancel()
            await asyncio.wait([self._flusher])

    def _own_losses(self) -> Iterator[str]:
        if self._pending_bytes:
            yield f"{self._pending_bytes} bytes for {self._stream} are not acknowledged, and may be stored or not"

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure
        self._check_open()

    async def _flush(self) -> None:
        end = self.tell()
        while self._offset < end:
            if self._failure is not None:
                raise self._failure
            if self._flusher is None or self._flusher.done():
                self._flusher = start_watched(self._store_pending(), f"append to {self._segment}", self._fail)
            await asyncio.shield(self._flusher)
        if self._failure is not None:
            raise self._failure

    def _fail(self, error: PenstockError) -> None:
        self._failure = self._failure or error

    async def _store_pending(self) -> None:
        """Store the pending bytes, one append after the other. Bytes written meanwhile go into the next append."""
        while self._pending and self._failure is None:
            # Combine many small writes into one append.
            count = length_bytes = 0
            for data in self._pending:
                if count and length_bytes + len(data) > _APPEND_BYTES_MAX:
                    break
                count += 1
                length_bytes += len(data)
            piece = b"".join(islice(self._pending, count))
            try:
                await self._append(piece)
            except PenstockError as error:
                self._fail(error)
                return
            for _ in range(count):
                self._pending.popleft()
            self._pending_bytes -= len(piece)
            self._offset += len(piece)

    async def _append(self, piece: bytes) -> None:
        """Append a piece at its offset, exactly once: the writer's event number resolves a lost reply."""
        if not await self._appender.append_bytes(piece, self._offset):
            info = await self._cluster.segments.segment_info(self._segment)
            raise BadOffsetError(self._segment, expected=self._offset, actual=info.length)


async def open_byte_writer(
    cluster: Cluster, pool: ConnectionPool, stream: str, owner: LifeCycle | None = None
) -> ByteWriter:
    """Open a writer at the current end of `stream`."""
    segment = await only_segment(cluster, stream, "byte writer")
    info = await cluster.segments.segment_info(segment)
    writer = ByteWriter(cluster, pool, stream, segment, info.length)
    writer.open_life(owner)
    return writer


class ByteReader(LifeCycle):
    """Reads a byte stream like a file: `read`, `readinto`, `seek`, `tell`. Waits at the end for more bytes."""

    def __init__(self, cluster: Cluster, stream: str, segment: str, offset: int) -> None:
        super().__init__(f"byte reader of {stream}", close_timeout_s=cluster.settings.close_timeout_s)
        self._cluster = cluster
        self._segment = segment
        self._offset = offset
        self._reader: SegmentReader | None = None
        self._block = memoryview(b"")

    def tell(self) -> int:
        """Return the offset of the next byte to read."""
        return self._offset

    async def seek(self, offset: int) -> int:
        """Move to `offset`, counted from the first byte ever written; return it."""
        self._check_open()
        if offset < 0:
            raise InvalidArgumentError(f"{self._segment}: cannot seek to {offset}")
        if offset != self._offset:
            await self._stop_reading_ahead()
            self._offset = offset
        return offset

    async def read(self, length: int = 64 * 1024) -> bytes:
        """Return up to `length` bytes: available bytes at once, otherwise the next to come. Empty at a sealed end.

        Raises `SegmentTruncatedError` if the bytes were truncated, `ClosedError`.
        """
        self._check_open()
        if not self._block:
            if self._reader is None:
                self._reader = self._cluster.segment_reader(self._segment, self._offset)
            self._block = memoryview(await self._reader.read())
        data = bytes(self._block[:length])
        self._block = self._block[len(data) :]
        self._offset += len(data)
        return data

    async def readinto(self, buffer: bytearray | memoryview) -> int:
        """Read into `buffer`, up to its length; return how many bytes. 0 where `read` returns empty bytes."""
        data = await self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    async def current_end(self) -> int:
        """Return the stream's length: the offset of the next byte written."""
        return (await self._cluster.segments.segment_info(self._segment)).length

    async def __aenter__(self) -> ByteReader:
        return self

    async def _release(self) -> None:
        await self._stop_reading_ahead()

    async def _stop_reading_ahead(self) -> None:
        reader, self._reader = self._reader, None
        self._block = memoryview(b"")
        if reader is not None:
            await reader.close()


async def open_byte_reader(cluster: Cluster, stream: str, owner: LifeCycle | None = None) -> ByteReader:
    """Open a reader at the first byte of `stream` that still exists."""
    segment = await only_segment(cluster, stream, "byte reader", is_read_only=True)
    info = await cluster.segments.segment_info(segment)
    reader = ByteReader(cluster, stream, segment, info.start_offset)
    reader.open_life(owner)
    return reader
