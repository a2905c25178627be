"""`Creations`: transactions that are being made at this controller, for those who must not overtake them.

What a creation has found of its stream last is where the next one begins, without a look.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from penstock.controller.metadata.records import EpochRecord, StreamState
from penstock.model.policies import StreamConfig


@dataclass(frozen=True, slots=True)
class StreamView:
    """What a creation has to know of its stream; `stream_id` tells its lives apart."""

    stream_id: str
    state: StreamState
    current: EpochRecord
    configuration: StreamConfig

class Creations:
    """Creations under way by stream, and what was found of `views_max` streams."""

    def __init__(self, views_max: int) -> None:
        self._ongoing: dict[str, set[asyncio.Future[None]]] = {}
        self._views: dict[str, StreamView] = {}
        self._views_max = views_max

    def view(self, stream: str, stream_id: str) -> StreamView | None:
        """Return what was found of a stream last; it may have changed since, so it is to be compared at the end."""
        found = self._views.get(stream)
        return found if found is not None and found.stream_id == stream_id else None

    def found(self, stream: str, view: StreamView | None) -> None:
        """Note what was found of a stream, None: nothing that would still be so."""
        self._views.pop(stream, None)
        if view is not None:
            self._views[stream] = view
            if len(self._views) > self._views_max:
                del self._views[next(iter(self._views))]

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
        self.found(stream, None)
        if ongoing := set(self._ongoing.get(stream, ())):
            await asyncio.wait(ongoing)
            self.found(stream, None)
