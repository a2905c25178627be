"""`Turns`: work in the background that has a turn of the event loop to itself, as far as its like goes.

A step of two milliseconds holds nobody up. But each container has work of its own, with steps of its own, and what
wakes one of them wakes most; without this their steps would fall into one turn of the loop and hold it together.
"""

from __future__ import annotations

import asyncio
from collections import deque


class Turns:
    """Lets one step of those that ask for it go on in each turn of the event loop, in the order in which they came."""

    __slots__ = ("_is_giving", "_loop", "_waiting")

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._is_giving = False

    async def mine(self) -> None:
        """Wait for a turn that no other step has."""
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            # Those who waited on another loop went with it.
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
            if not waiter.done():  # Nor cancelled.
                waiter.set_result(None)
                break
        self._is_giving = bool(self._waiting)
        if self._is_giving:
            asyncio.get_running_loop().call_soon(self._give)
