"""`Creations`: transactions that are being made at this controller, for those who must not overtake them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager


class Creations:
    """Counts creations under way by stream."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}
        self._ended: dict[str, asyncio.Event] = {}

    @contextmanager
    def one(self, stream: str) -> Iterator[None]:
        """Count a creation on a stream, given by its scoped name, while the block runs."""
        self._counts[stream] = self._counts.get(stream, 0) + 1
        try:
            yield
        finally:
            self._counts[stream] -= 1
            if not self._counts[stream]:
                del self._counts[stream]
                ended = self._ended.pop(stream, None)
                if ended is not None:
                    ended.set()

    async def ended(self, stream: str) -> None:
        """Wait until no creation is under way on a stream. New ones must not begin for ever."""
        while stream in self._counts:
            await self._ended.setdefault(stream, asyncio.Event()).wait()
