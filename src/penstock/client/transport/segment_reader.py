"""`SegmentReader`: the bytes of one segment in order, read ahead of the consumer."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from types import TracebackType
from typing import Final

from penstock.client.common.pickling import NotPicklable
from penstock.client.settings import ClientSettings
from penstock.client.transport.segment_fetch import Reads, SegmentFetch
from penstock.model.errors import ClosedError


class SegmentReader(NotPicklable):
    """Reads `[start_offset, end_offset)` of a segment; iterate over it, or `read` block by block.

    Without `end_offset` it waits at the tail for new data and ends when the segment is sealed. It reads ahead of the
    consumer, by default `read_ahead_block_count` blocks of `read_bytes`. Made by `Client.segment_reader`; close it when
    done, or use it as an async context manager.
    """

    #: The segment's full name.
    segment: Final[str]

    def __init__(
        self, segments: Reads, segment: str, start_offset: int, end_offset: int | None, settings: ClientSettings
    ) -> None:
        """Begin to read ahead."""
        self.segment = segment
        self._fetch = SegmentFetch(segments, segment, start_offset, end_offset, settings)

    @property
    def is_open(self) -> bool:
        """True from the beginning to the first call of `close`."""
        return not self._fetch.is_stopped

    @property
    def is_closed(self) -> bool:
        """True once closing is complete."""
        return self._fetch.is_stopped and self._fetch.is_ended

    async def read(self, timeout_s: float | None = None) -> bytes:
        """Return the next block, waiting for it up to `timeout_s` (None: without limit); empty at the end.

        Raises `SegmentTruncatedError` if the data were truncated, `NoSuchSegmentError` if the segment was deleted,
        `ClosedError`, `TimeoutError`. After that it may be called again: no data is lost.
        """
        if timeout_s is not None:
            async with asyncio.timeout(timeout_s):
                return await self.read()
        while True:
            if self._fetch.is_stopped:
                raise ClosedError(f"the reader of segment {self.segment} is closed")
            block = self._fetch.take()
            if block is not None:
                return block
            if self._fetch.is_fetched:
                return b""
            await self._fetch.wait_ready()

    def __aiter__(self) -> SegmentReader:
        return self

    async def __anext__(self) -> bytes:
        block = await self.read()
        if not block:
            raise StopAsyncIteration
        return block

    def __await__(self) -> Generator[object, None, SegmentReader]:
        """Never waits; provided for uniformity with other objects."""
        return self.__aenter__().__await__()

    async def __aenter__(self) -> SegmentReader:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self, timeout_s: float | None = None) -> None:
        """Stop reading ahead, and wait until it has stopped, up to `timeout_s`. Calling again is allowed."""
        self._fetch.stop()
        await self._fetch.wait_ended(timeout_s)

    def __repr__(self) -> str:
        life = "closed" if self._fetch.is_stopped else "open"
        return f"<SegmentReader: {self.segment}, {life}, fetched up to byte {self._fetch.fetched_to}>"
