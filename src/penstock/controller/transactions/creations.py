"""`Creations`: transactions that are being made at this controller, for those who must not overtake them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager


class Creations:
    """Creations under way by stream."""

    def __init__(self) -> None:
        self._ongoing: dict[str, set[asyncio.Future[None]]] = {}

    @contextmanager
    def one(self, stream: str) -> Iterator[None]:
        """Count a creation on a stream, given by its scoped name, while the block runs."""
        creation: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        ongoing = self._ongoing.setdefault(stream, set())
        ongoing.add(creation)
        try:
            yield
        finally:
            creation.set_result(None)
            ongoing.discard(creation)
            if not ongoing:
                self._ongoing.pop(stream, None)

    async def ended(self, stream: str) -> None:
        """Wait for the creations that are under way on a stream now. Those that begin later see its state."""
        if ongoing := set(self._ongoing.get(stream, ())):
            await asyncio.wait(ongoing)
