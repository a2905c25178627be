"""`SpaceWatch`: whether the file systems under a container have space, and which operations wait when they do not.

User data fills a disk, so user writes stop first, while there is still space for the rest: first appends, table updates
and creations; then the moves of user data to long-term storage. Reads, truncations, deletions and the container's own
records are never stopped; for them the log has a reserve.

Failure cases: docs/full-disk.md. Source: segment-store R8.31 to R8.33.
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

#: Returns the free space of a tier.
AskSpace = Callable[[], Awaitable[DiskSpace | None]]


class _Place:
    """One file system. `pending`: a running check; if it hangs, no second one is started."""

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
    """The known free space for the log and in long-term storage. Both are assumed to have space initially.

    `on_change` is called when either of them runs out of space or has space again.
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
        self._is_due = asyncio.Event()
        self._log = _Place("the log", log_space, settings.log_free_bytes_min, settings.log_free_percent_max)
        self._storage = _Place(
            "long-term storage", storage_space, settings.storage_free_bytes_min, settings.storage_free_percent_max
        )

    @property
    def is_log_low(self) -> bool:
        """Whether user writes must wait."""
        return self._log.is_low

    @property
    def log_free_bytes(self) -> int:
        """Bytes free on the log's file system at the last check."""
        return self._log.free_bytes

    @property
    def log_low_since_s(self) -> float | None:
        """Loop time since when `is_log_low`; None while it is not."""
        return self._log.low_since_s if self._log.is_low else None

    @property
    def is_storage_low(self) -> bool:
        """Whether user bytes stay in the log."""
        return self._storage.is_low

    @property
    def storage_low_since_s(self) -> float | None:
        """Loop time since when `is_storage_low`; None while it is not."""
        return self._storage.low_since_s if self._storage.is_low else None

    def must_wait(self, segment: str) -> bool:
        """Whether user writes to `segment` must wait now."""
        return self._log.is_low and not is_written_for_readers(segment)

    def check(self, segment: str) -> None:
        """Raise `StorageFullError` if user writes to `segment` must wait. Then nothing was done."""
        if self.must_wait(segment):
            raise StorageFullError(
                f"{segment}: only {self._log.free_bytes} bytes are free beside the log of container "
                f"{self._container_id}; nothing was written. Truncate or delete streams, or free space, and try again "
                "(segment_store.container.space.log_free_bytes_min sets the minimum)"
            )

    async def check_log(self) -> None:
        """Check once, so that a container starting on a full disk does not accept writes first."""
        await self._check(self._log)

    async def watch_log(self) -> None:
        """Check the log's file system for as long as the container runs."""
        try:
            while True:
                self._is_due.clear()
                await self._check(self._log)
                await self._until_due()
        finally:
            self._stop(self._log)

    def check_log_now(self) -> None:
        """Check the log's file system now: the log has found it full. Until then writes fill the log's reserve."""
        self._is_due.set()

    async def _until_due(self) -> None:
        try:
            async with asyncio.timeout(self._settings.check_interval_s):
                await self._is_due.wait()
        except TimeoutError:
            pass

    async def watch_storage(self) -> None:
        """Check long-term storage for as long as the container runs; separate from the log, because it may hang."""
        try:
            while True:
                await self._check(self._storage)
                await asyncio.sleep(self._settings.check_interval_s)
        finally:
            self._stop(self._storage)

    def _stop(self, place: _Place) -> None:
        if place.pending is not None:
            place.pending.cancel()

    async def _check(self, place: _Place) -> None:
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
            logger.debug("container %d: free space of %s is unknown: %s", self._container_id, place.name, error)
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
        # Hysteresis: the space freed by deleting one segment must not admit all waiting writes.
        percent = self._settings.resume_percent if place.is_low else 100
        return space.is_below(place.free_bytes_min * percent // 100, place.free_percent_max * percent // 100)


async def _asked(ask: AskSpace) -> DiskSpace | None:
    return await ask()
