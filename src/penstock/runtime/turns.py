"""`Turns`: runs at most one step of background work in each turn of the event loop.

A step of two milliseconds delays little. But each container has background work with its own steps, and most of it
wakes at the same time; without this the steps would run in one turn of the loop and block it together.
"""

from __future__ import annotations

import asyncio
from collections import deque


class Turns:
    """Admits one waiting step in each turn of the event loop, in FIFO order."""

    __slots__ = ("_is_giving", "_loop", "_waiting")

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._is_giving = False

    async def wait_turn(self) -> None:
        """Wait for a turn that no other step uses."""
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            # Waiters of another loop ended with it.
            self._loop, self._is_giving = loop, False
            self._waiting.clear()
        waiter: asyncio.Future[None] = loop.create_future()
        self._waiting.append(waiter)
        if not self._is_giving:
            self._is_giving = True
            loop.call_soon(self._give)
        await waiter

    def _give(self) -> None:
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():  # It may have been cancelled.
                waiter.set_result(None)
                break
        self._is_giving = bool(self._waiting)
        if self._is_giving:
            asyncio.get_running_loop().call_soon(self._give)
