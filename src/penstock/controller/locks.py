"""`StreamLocks`: one workflow at a time per stream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class StreamLocks:
    """A lock per name, kept only while somebody holds or awaits it. First come, first served."""

    def __init__(self) -> None:
        self._locks: dict[str, tuple[asyncio.Lock, int]] = {}

    @asynccontextmanager
    async def hold(self, name: str) -> AsyncIterator[None]:
        """Hold the lock of `name`."""
        lock, users = self._locks.get(name, (None, 0))
        if lock is None:
            lock = asyncio.Lock()
        self._locks[name] = lock, users + 1
        try:
            async with lock:
                yield
        finally:
            _, users = self._locks.pop(name)
            if users > 1:
                self._locks[name] = lock, users - 1

    def __len__(self) -> int:
        return len(self._locks)
