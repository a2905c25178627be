"""`Creations`: the creations of transactions in progress at this controller, so that a seal can wait for them.

The state of a stream found at the end of a creation is the initial state of the next one, without a read.
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
    """The state of a stream that a creation depends on; `stream_id` identifies its incarnation."""

    stream_id: str
    state: StreamState
    current: EpochRecord
    configuration: StreamConfig


class Creations:
    """Creations in progress by stream, and the last known state of `views_max` streams."""

    def __init__(self, views_max: int) -> None:
        self._ongoing: dict[str, set[asyncio.Future[None]]] = {}
        self._views: dict[str, StreamView] = {}
        self._views_max = views_max

    def view(self, stream: str, stream_id: str) -> StreamView | None:
        """Return the last known state of a stream. It may be outdated, so compare it at the end of the creation."""
        found = self._views.get(stream)
        return found if found is not None and found.stream_id == stream_id else None

    def found(self, stream: str, view: StreamView | None) -> None:
        """Record the state of a stream; None: the last known state is no longer valid."""
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
        """Wait for the creations in progress on a stream. Those that begin later see its new state."""
        self.found(stream, None)
        if ongoing := set(self._ongoing.get(stream, ())):
            await asyncio.wait(ongoing)
            self.found(stream, None)
