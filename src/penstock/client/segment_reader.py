"""`SegmentReader`: the bytes of one segment in order, read ahead of the consumer.

Blocks are cut wherever the segment store cut them; see `EventAssembler` for events.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from types import TracebackType

from penstock.client.settings import ClientSettings
from penstock.client.tasks import start_watched
from penstock.model.errors import InvalidArgumentError, PenstockError
from penstock.model.segments import Segments


class SegmentReader:
    """Reads `[start_offset, end_offset)` of a segment; iterate over it, or `take` what is there.

    Without `end_offset` it waits at the tail for new data and ends when the segment is sealed. Up to
    `read_ahead_block_count` blocks of `read_bytes` are held for the consumer. Close it when done, or use it as an
    async context manager.

    Args:
        on_ready: called whenever a block, the end or an error has become available to `take`.
    """

    def __init__(
        self,
        segments: Segments,
        segment: str,
        start_offset: int,
        end_offset: int | None,
        settings: ClientSettings,
        *,
        on_ready: Callable[[], None] | None = None,
    ) -> None:
        if start_offset < 0 or (end_offset is not None and end_offset < start_offset):
            raise InvalidArgumentError(f"{segment}: cannot read [{start_offset}, {end_offset})")
        self.segment = segment
        self._segments = segments
        self._settings = settings
        self._fetch_offset = start_offset
        self._end_offset = end_offset
        self._blocks: deque[bytes] = deque()
        self._error: PenstockError | None = None
        self._is_fetched = False
        self._on_ready = on_ready
        self._ready = asyncio.Event()
        self._has_room = asyncio.Event()
        self._has_room.set()
        self._task = start_watched(self._fetch(), f"read {segment}", self._stop_with)

    @property
    def is_at_end(self) -> bool:
        """True when everything was taken: the segment is sealed and read, or `end_offset` is reached."""
        return self._is_fetched and not self._blocks and self._error is None

    @property
    def end_of_segment(self) -> int:
        """How far the segment was fetched: once `is_at_end`, its end."""
        return self._fetch_offset

    def take(self) -> bytes | None:
        """Return the next block, or None if there is none now. Raises what stopped the reading, after the blocks."""
        if self._blocks:
            block = self._blocks.popleft()
            self._has_room.set()
            return block
        if self._error is not None:
            raise self._error
        if not self._is_fetched:
            self._ready.clear()
        return None

    async def read(self) -> bytes:
        """Return the next block, waiting for it; empty at the end.

        Raises `SegmentTruncatedError` when the data were truncated away, `NoSuchSegmentError` when the segment is gone.
        """
        while True:
            block = self.take()
            if block is not None:
                return block
            if self._is_fetched:
                return b""
            await self._ready.wait()

    def __aiter__(self) -> SegmentReader:
        return self

    async def __anext__(self) -> bytes:
        block = await self.read()
        if not block:
            raise StopAsyncIteration
        return block

    async def __aenter__(self) -> SegmentReader:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Stop reading ahead."""
        self._task.cancel()
        await asyncio.wait([self._task])

    async def _fetch(self) -> None:
        try:
            while self._end_offset is None or self._fetch_offset < self._end_offset:
                length = self._settings.read_bytes
                if self._end_offset is not None:
                    length = min(length, self._end_offset - self._fetch_offset)
                data = await self._segments.read(self.segment, self._fetch_offset, length, wait=True)
                block = data.joined()
                if block:
                    # A server answers at least 8 bytes at a time, even when fewer were asked for.
                    block = block[:length]
                    self._fetch_offset += len(block)
                    self._blocks.append(block)
                if data.is_end_of_segment:
                    break
                self._notify()
                if len(self._blocks) >= self._settings.read_ahead_block_count:
                    self._has_room.clear()
                    await self._has_room.wait()
        except PenstockError as error:
            self._stop_with(error)
            return
        self._is_fetched = True
        self._notify()

    def _stop_with(self, error: PenstockError) -> None:
        self._error = error
        self._is_fetched = True
        self._notify()

    def _notify(self) -> None:
        self._ready.set()
        if self._on_ready is not None:
            self._on_ready()
