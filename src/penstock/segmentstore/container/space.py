"""`SpaceWatch`: whether the file systems under a container have room, and what has to wait when they have not.

Users' bytes are what fills a disk, so they are what stops, while there is still room for the rest: first what users
append, put into tables and create; then what is moved to long-term storage for them. Reads, truncations, deletions
and the container's own records never stop here; for them the log has a reserve.

Failure cases: docs/full-disk.md. Source: segment store specification, rules R8.31 to R8.33.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from penstock.model.errors import PenstockError, StorageFullError
from penstock.model.names import is_written_for_readers
from penstock.runtime.disk import DiskSpace
from penstock.segmentstore.container_settings import SpaceSettings

logger: logging.Logger = logging.getLogger(__name__)

#: Asks a tier how much room it has.
AskSpace = Callable[[], Awaitable[DiskSpace | None]]


class _Place:
    """One file system. `pending`: a look under way; it may hang, and then there is no second one."""

    def __init__(self, name: str, ask: AskSpace, free_bytes_min: int, free_percent_max: int) -> None:
        self.name = name
        self.ask = ask
        self.free_bytes_min = free_bytes_min
        self.free_percent_max = free_percent_max
        self.is_low = False
        self.low_since_s = 0.0
        self.free_bytes = 0
        self.pending: asyncio.Task[DiskSpace | None] | None = None


class SpaceWatch:
    """What a container knows of the room for its log and in long-term storage. Both are held to be there at first.

    `on_change` is called whenever one of them runs out of room or has it again.
    """

    def __init__(
        self,
        container_id: int,
        settings: SpaceSettings,
        *,
        log_space: AskSpace,
        storage_space: AskSpace,
        on_change: Callable[[], None],
    ) -> None:
        self._container_id = container_id
        self._settings = settings
        self._on_change = on_change
        self._log = _Place("the log", log_space, settings.log_free_bytes_min, settings.log_free_percent_max)
        self._storage = _Place(
            "long-term storage", storage_space, settings.storage_free_bytes_min, settings.storage_free_percent_max
        )

    @property
    def is_log_low(self) -> bool:
        """Whether what users write has to wait."""
        return self._log.is_low

    @property
    def log_free_bytes(self) -> int:
        """What was free beside the log at the last look."""
        return self._log.free_bytes

    @property
    def log_low_since_s(self) -> float | None:
        """Since when, by the loop's clock, `is_log_low`; None while it is not."""
        return self._log.low_since_s if self._log.is_low else None

    @property
    def is_storage_low(self) -> bool:
        """Whether users' bytes stay in the log."""
        return self._storage.is_low

    @property
    def storage_low_since_s(self) -> float | None:
        """Since when, by the loop's clock, `is_storage_low`; None while it is not."""
        return self._storage.low_since_s if self._storage.is_low else None

    def must_wait(self, segment: str) -> bool:
        """Whether users' writes to `segment` have to wait now."""
        return self._log.is_low and not is_written_for_readers(segment)

    def check(self, segment: str) -> None:
        """Raise `StorageFullError` when users' writes to `segment` have to wait. Nothing was done then."""
        if self.must_wait(segment):
            raise StorageFullError(
                f"{segment}: only {self._log.free_bytes} bytes are free beside the log of container "
                f"{self._container_id}; nothing was written. Truncate or delete streams, or make room, and try again "
                "(segment_store.container.space.log_free_bytes_min says how much has to be free)"
            )

    async def look_at_log(self) -> None:
        """Look once: a container that starts on a full disk is to know it before anybody asks."""
        await self._look(self._log)

    async def watch_log(self) -> None:
        """Look at the log's file system for as long as the container runs."""
        await self._watch(self._log)

    async def watch_storage(self) -> None:
        """Look at long-term storage for as long as the container runs; apart from the log, because it may hang."""
        await self._watch(self._storage)

    async def _watch(self, place: _Place) -> None:
        try:
            while True:
                await self._look(place)
                await asyncio.sleep(self._settings.check_interval_s)
        finally:
            if place.pending is not None:
                place.pending.cancel()

    async def _look(self, place: _Place) -> None:
        loop = asyncio.get_running_loop()
        if place.pending is None:
            place.pending = loop.create_task(_asked(place.ask))
        await asyncio.wait([place.pending], timeout=self._settings.check_timeout_s)
        if not place.pending.done():
            return
        task, place.pending = place.pending, None
        try:
            space = task.result()
        except (PenstockError, OSError) as error:
            logger.debug("container %d: free space of %s is not known: %s", self._container_id, place.name, error)
            return
        was_low, place.is_low = place.is_low, self._is_low(place, space)
        if space is not None:
            place.free_bytes = space.free_bytes
        if place.is_low != was_low:
            place.low_since_s = loop.time()
            logger.warning(
                "container %d: %s %s room: %d bytes are free",
                self._container_id,
                place.name,
                "runs out of" if place.is_low else "has",
                place.free_bytes,
            )
            self._on_change()

    def _is_low(self, place: _Place, space: DiskSpace | None) -> bool:
        if space is None:
            return False
        # Not at once again: room that one segment's deletion makes would let everybody in for a moment.
        percent = self._settings.resume_percent if place.is_low else 100
        return space.is_below(place.free_bytes_min * percent // 100, place.free_percent_max * percent // 100)


async def _asked(ask: AskSpace) -> DiskSpace | None:
    return await ask()
