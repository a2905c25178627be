"""`ByteGate`: how many bytes may be held for something at a time; whoever comes beyond that waits in line."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class ByteGate:
    """Lets in up to `bytes_max` bytes, first come first served; more at once only by itself.

    Attributes:
        held_bytes: let in, and not given back.
    """

    def __init__(self, bytes_max: int) -> None:
        self.held_bytes: int = 0
        self._bytes_max = bytes_max
        self._line = asyncio.Lock()
        self._freed = asyncio.Event()

    @asynccontextmanager
    async def hold(self, count: int) -> AsyncIterator[None]:
        """Hold `count` bytes. Waits for as long as those before hold theirs; a cancellation leaves the line."""
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
