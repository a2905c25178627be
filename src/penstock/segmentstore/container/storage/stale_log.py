"""`StaleLogCheck`: whether long-term storage has objects of a later epoch of a container than the container's log.

Each claim of a log raises its epoch, and what an incarnation writes to long-term storage has the epoch in its name. So
an object of a later epoch is either a successor's, and then the log itself shows the claim, or the log is an old copy.
An old copy must not delete anything: chunks without a record in it are the newest data. Failure cases:
docs/log-identity.md.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import TypeAlias

from penstock.model.errors import (
    LogClosedError,
    LogFencedError,
    PenstockError,
    StaleLogError,
)
from penstock.runtime.waits import cancel_and_wait
from penstock.segmentstore.container.log.image import ImageName, image_prefix
from penstock.segmentstore.tier1.durable_log import DurableLog
from penstock.segmentstore.tier2.chunk_name import chunk_origin
from penstock.segmentstore.tier2.chunk_storage import ChunkInfo, ChunkStorage

logger: logging.Logger = logging.getLogger(__name__)

#: Pause before storage that did not answer is inspected again.
RETRY_S = 1.0
#: Attempts before the first write, and the pause between them: a single refused request must not let an old copy serve.
FIRST_ATTEMPTS_MAX = 4
_FIRST_RETRY_S = 0.05
#: Errors that end the incarnation.
_FATAL = (StaleLogError, LogFencedError, LogClosedError)

#: Images and chunks.
_Listing: TypeAlias = tuple[Sequence[ChunkInfo], Sequence[ChunkInfo]]


class StaleLogCheck:
    """The check of one incarnation. It inspects the container's images and the chunks of `table`.

    `table`: the segment with the container's storage records. Every incarnation that flushes anything writes to it.
    """

    def __init__(self, container_id: int, chunks: ChunkStorage, log: DurableLog, *, table: str) -> None:
        self._id = container_id
        self._chunks = chunks
        self._log = log
        self._table = table
        #: The container's mark in the names of its chunks.
        self.mark: bytes = b""
        self.is_done: bool = False
        #: The first listing, if it was begun early.
        self._listing: asyncio.Task[_Listing] | None = None

    def begin(self) -> None:
        """Begin to list what storage has, once the log is claimed: it takes as long as a short replay."""
        self._listing = asyncio.get_running_loop().create_task(self._list())

    async def end(self) -> None:
        """End a listing that was begun and is not needed any more."""
        if self._listing is not None:
            await cancel_and_wait(self._listing)

    async def before_the_first_write(self, timeout_s: float) -> None:
        """Check, for at most `timeout_s`. Storage that fails `FIRST_ATTEMPTS_MAX` times leaves `is_done` false.

        This incarnation has written nothing to long-term storage yet, so its own epoch there is another copy's.

        Raises `StaleLogError`, `LogFencedError`, `LogClosedError`.
        """
        try:
            async with asyncio.timeout(timeout_s):
                await self._check_repeatedly()
        except _FATAL:
            raise
        except (TimeoutError, PenstockError, OSError) as error:
            logger.info(
                "container %d: it is not known yet whether the log is the newest; nothing is deleted in long-term "
                "storage until then: %r",
                self._id,
                error,
            )

    async def _check_repeatedly(self) -> None:
        for attempt in range(1, FIRST_ATTEMPTS_MAX + 1):
            try:
                return await self._check(self._log.epoch)
            except _FATAL:
                raise
            except (PenstockError, OSError):
                if attempt == FIRST_ATTEMPTS_MAX:
                    raise
            await asyncio.sleep(_FIRST_RETRY_S)

    async def until_done(self) -> None:
        """Check until storage has answered. Raises as `before_the_first_write`."""
        while not self.is_done:
            await asyncio.sleep(RETRY_S)
            try:
                await self._check(self._log.epoch + 1)
            except _FATAL:
                raise
            except (PenstockError, OSError) as error:
                logger.debug("container %d: long-term storage does not answer: %r", self._id, error)

    async def refuse(self, name: str, epoch: int) -> None:
        """Raise the error for an object `name` of a later `epoch`.

        Raises `LogFencedError` when a successor has claimed the log, else `StaleLogError`.
        """
        # Called after the object was found: an owner claims the log before it writes any object.
        await self._log.confirm_ownership()
        raise StaleLogError(self._id, epoch=self._log.epoch, found=name, found_epoch=epoch)

    async def _check(self, foreign_epoch: int) -> None:
        listing, self._listing = self._listing, None
        images, chunks = await (self._list() if listing is None else listing)
        for info in images:
            if (image := ImageName.parse(info.name)) is not None and image.epoch >= foreign_epoch:
                await self.refuse(info.name, image.epoch)
        for info in chunks:
            origin = chunk_origin(info.name)
            if origin is not None and origin.mark == self.mark and origin.epoch >= foreign_epoch:
                await self.refuse(info.name, origin.epoch)
        self.is_done = True

    async def _list(self) -> _Listing:
        """List the images and the chunks at the same time: each takes a request, or a walk of a directory."""
        images = asyncio.ensure_future(self._chunks.list(image_prefix(self._id)))
        try:
            chunks = await self._chunks.list(f"{self._table}.E-")
            return await images, chunks
        finally:
            await cancel_and_wait(images)
