"""`ContainerStart`: what a container reports about its start, and its turn to replay its log.

A start first claims the container's log, then replays it, then waits until no earlier owner can answer. Only the replay
needs memory, a disk and the processor, so only the replay is limited to a few containers at a time. Claims and waits of
all containers run concurrently: a store that takes over many containers waits for one lease, not for one after another.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager


class ContainerStart:
    """One start of a container. Without `slots` it replays at once.

    `check`: called when its turn to replay has come; raises if it is not to be started any more.

    Attributes:
        step_count: how often it has made progress.
        is_waiting: whether it waits for its turn or for the end of a lease, so that no progress is expected.
    """

    def __init__(self, slots: asyncio.Semaphore | None = None, check: Callable[[], None] = lambda: None) -> None:
        self.step_count: int = 0
        self.is_waiting: bool = False
        self._slots = slots
        self._check = check

    def progress(self) -> None:
        """Note progress: a claim, or some data that was read."""
        self.step_count += 1

    @asynccontextmanager
    async def replaying(self) -> AsyncIterator[None]:
        """Wait for the turn to replay, and have it while the block runs."""
        if self._slots is None:
            yield
            return
        async with self.waiting():
            await self._slots.acquire()
        try:
            self._check()
            yield
        finally:
            self._slots.release()

    @asynccontextmanager
    async def waiting(self) -> AsyncIterator[None]:
        """Expect no progress while the block runs."""
        self.is_waiting = True
        try:
            yield
        finally:
            self.is_waiting = False
            self.step_count += 1
