"""`ByteGate`: limits the bytes held at a time; requests beyond the limit wait in order."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class ByteGate:
    """Admits up to `bytes_max` bytes, first come first served; a larger request is admitted only alone.

    Attributes:
        held_bytes: admitted and not released yet.
    """

    def __init__(self, bytes_max: int) -> None:
        self.held_bytes: int = 0
        self._bytes_max = bytes_max
        self._line = asyncio.Lock()
        self._freed = asyncio.Event()

    @asynccontextmanager
    async def hold(self, count: int) -> AsyncIterator[None]:
        """Hold `count` bytes. Waits until earlier holders release theirs; a cancellation leaves the queue."""
        async with self._line:
            while self.held_bytes and self.held_bytes + count > self._bytes_max:
                self._freed.clear()
                await self._freed.wait()
            self.held_bytes += count
        try:
            yield
        finally:
            self.held_bytes -= count
            self._freed.set()
