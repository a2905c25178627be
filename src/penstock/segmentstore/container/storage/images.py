"""`ContainerImages`: writes images of a container to long-term storage, so that a store can be rebuilt from it alone.

An image is written soon after a start, then periodically, and with each requested flush. No chunk that an image refers
to is deleted before a later image is durable. Rationale and failure cases: docs/recovery.md.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

from penstock.model.errors import (
    InconsistentStateError,
    LogFencedError,
    NoSuchChunkError,
    PenstockError,
    StaleLogError,
    StorageError,
    StorageFullError,
    StorageNotPrimaryError,
    StorageNotRespondingError,
    StorageUnavailableError,
)
from penstock.runtime.outages import OutageLog
from penstock.segmentstore.container.log.image import ImageName, ImageTooLongError, image_prefix
from penstock.segmentstore.container.log.pipeline import OperationPipeline
from penstock.segmentstore.container.space import SpaceWatch
from penstock.segmentstore.container.storage.image_capture import ImageCapture
from penstock.segmentstore.container_settings import ImageSettings
from penstock.segmentstore.tier2.deferred_deletions import DeferredDeletions
from penstock.segmentstore.tier2.storage_health import StorageHealth

logger: logging.Logger = logging.getLogger(__name__)

#: Interval between checks whether an image is due.
_POLL_S = 1.0
#: Errors after which the incarnation must not continue.
_FATAL = (InconsistentStateError, LogFencedError, StaleLogError, StorageNotPrimaryError)


class ContainerImages:
    """The images of one incarnation of a container; at most one is being written at a time.

    Attributes:
        written_count: images written so far.
    """

    def __init__(
        self,
        *,
        container_id: int,
        chunks: DeferredDeletions,
        pipeline: OperationPipeline,
        capture: ImageCapture,
        space: SpaceWatch,
        settings: ImageSettings,
        health: StorageHealth,
        flush: Callable[[], Awaitable[None]],
        refuse: Callable[[str, int], Awaitable[None]],
    ) -> None:
        """`refuse`: raises the error for an image of a later epoch, see `StaleLogCheck`."""
        self.written_count: int = 0
        self._id = container_id
        self._epoch = capture.epoch
        self._chunks = chunks
        self._pipeline = pipeline
        self._capture = capture
        self._space = space
        self._settings = settings
        self._interval_s = settings.interval_s or 0.0
        self._health = health
        self._flush = flush
        self._refuse = refuse
        self._loop = asyncio.get_running_loop()
        self._lock = asyncio.Lock()
        self._outage = OutageLog(logger, f"container {container_id}: images")
        #: The last image number used in this epoch; each attempt uses a new one.
        self._number = 0
        #: The last record of the log that the newest image covers.
        self._told_number = -1
        self._written_at_s = float("-inf")

    async def run(self) -> None:
        """Write an image whenever one is due, for as long as the container runs."""
        while True:
            if self._is_due():
                try:
                    await self._flush_and_write()
                    self._outage.ended()
                except _FATAL:
                    raise
                except (PenstockError, OSError) as error:
                    retry_s = self._settings.retry_s
                    if isinstance(error, ImageTooLongError) and not self._is_room_short:
                        retry_s = max(retry_s, self._settings.deletions_delay_s)  # Each try flushes all there is.
                    self._outage.failed(
                        f"container {self._id}: no image of it could be written, trying again in {retry_s:.1f} s; "
                        "until then chunks are deleted only if a disk is full",
                        error,
                    )
                    await asyncio.sleep(retry_s)
                    continue
            await asyncio.sleep(min(_POLL_S, self._interval_s))

    @property
    def _is_room_short(self) -> bool:
        return self._space.is_storage_low or self._space.is_log_low

    def _is_due(self) -> bool:
        age_s = self._loop.time() - self._written_at_s
        is_late = age_s >= self._interval_s
        if len(self._chunks) and self._is_room_short:
            return age_s >= self._settings.retry_s
        if len(self._chunks) and age_s >= self._settings.deletions_delay_s:
            # Deletions alone do not trigger an early flush: it would create shorter objects.
            return is_late or not self._capture.waits_for_flush
        return is_late and self._pipeline.durable_sequence_number > self._told_number

    @property
    def _limit_s(self) -> float:
        if self._space.is_log_low:
            # The log may wait for the space of the chunks that wait for this image.
            return min(self._settings.timeout_s, self._settings.deletions_delay_s)
        return self._settings.timeout_s

    async def _flush_and_write(self) -> None:
        """Flush if necessary, and write an image. Raises what `_make_short` and `write` raise.

        If a disk is too full for this, chunks are deleted without an image.
        """
        try:
            await self._make_short()
            await self.write()
        except (StorageFullError, StorageNotRespondingError) as error:
            if isinstance(error, StorageFullError) or self._space.is_log_low:
                async with self._lock:
                    await self._delete_without_image(error)
            raise

    async def _make_short(self) -> None:
        """Flush if too much is unflushed for an image. Raises as a flush, and `StorageNotRespondingError`."""
        if not self._capture.waits_for_flush:
            return
        limit_s = self._limit_s
        try:
            async with asyncio.timeout(limit_s) as deadline:
                await self._flush()
        except TimeoutError as error:
            if not deadline.expired():
                raise
            raise StorageNotRespondingError(
                f"the waiting bytes of container {self._id} were not flushed within {limit_s:g} s"
            ) from error

    async def write(self) -> None:
        """Write an image of everything durable at the call; delete chunks that only earlier images need.

        Raises `ImageTooLongError`, `StorageError`; earlier images are then unchanged. `LogFencedError` or
        `StaleLogError` when a later epoch has written images.
        """
        async with self._lock:
            limit_s = self._limit_s
            try:
                async with asyncio.timeout(limit_s) as deadline:
                    await self._write()
            except TimeoutError as error:
                if not deadline.expired():
                    raise
                raise StorageNotRespondingError(
                    f"an image of container {self._id} was not written within {limit_s:g} s"
                ) from error

    async def _write(self) -> None:
        if not self._health.is_available:
            raise StorageUnavailableError("long-term storage is unavailable, no image can be written there")
        captured = await self._capture.take(self._chunks.waiting)
        self._number += 1
        image = self._capture.image_of(captured, self._number)
        earlier = await self._earlier(image.name)
        try:
            await self._chunks.create_with_content(image.name.name, image.encode())
        except StorageFullError as error:
            await self._delete_without_image(error)
            raise
        await self._remove(earlier)
        await self._chunks.release(captured.waiting)
        self._told_number = captured.sequence_number
        self._written_at_s = self._loop.time()
        self.written_count += 1

    async def _delete_without_image(self, error: StorageError) -> None:
        """Delete the waiting chunks, after all images, which may refer to them. For full disks; with the lock held.

        Only deletions free space. The records of the chunks were removed before their deletion was requested. If no
        chunk waits, the images stay. Raises `StorageError`, and `StaleLogError` when a later epoch has written images.
        """
        waiting = self._chunks.waiting()
        if not waiting:
            return
        logger.warning(
            "container %d: no image can be written, because a disk is full: chunks are deleted anyway, and the "
            "container cannot be recovered from long-term storage alone until an image is written: %s",
            self._id,
            error,
        )
        await self._remove(await self._earlier(ImageName(self._id, self._epoch, self._number + 1)))
        # The next image is due as soon as there is space for one.
        self._told_number = -1
        self._written_at_s = float("-inf")
        await self._chunks.release(waiting)

    async def _earlier(self, name: ImageName) -> list[ImageName]:
        found = [ImageName.parse(chunk.name) for chunk in await self._chunks.list(image_prefix(self._id))]
        for other in found:
            if other is not None and other.epoch > self._epoch:
                await self._refuse(other.name, other.epoch)
        return [other for other in found if other is not None and other < name]

    async def _remove(self, names: Sequence[ImageName]) -> None:
        for name in names:
            try:
                await self._chunks.inner.delete(name.name)
            except NoSuchChunkError:
                pass  # Deleted by an earlier attempt that failed afterwards.
            except OSError as error:
                raise StorageError(f"{name.name} could not be deleted: {error}") from error
