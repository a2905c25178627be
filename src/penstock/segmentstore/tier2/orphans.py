"""`OrphanChunks`: chunks of one container to which no record refers, or ever will, until they are deleted.

They come from creations that failed, were given up, or whose process died before the commit, and from deletions that
failed after it. Those of this incarnation are remembered; those of earlier ones are found by a sweep of all names in
long-term storage, unless the previous incarnation noted that there are none (`clean_end`). Only chunks with the
container's own mark in their names are considered. The mark is drawn once in the life of a log and stored in it, so no
container ever judges chunks of another one, and one whose log was lost does not judge the chunks of its former records.
See docs/orphan-chunks.md for the failure cases.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from penstock.model.errors import (
    InconsistentStateError,
    LogFencedError,
    NoSuchChunkError,
    PenstockError,
    StaleLogError,
    StorageError,
    StorageNotPrimaryError,
    StorageNotRespondingError,
    StorageUnavailableError,
)
from penstock.segmentstore.container_settings import OrphanSettings
from penstock.segmentstore.tier2.chunk_name import chunk_origin
from penstock.segmentstore.tier2.chunk_storage import ChunkStorage

#: Returns those of some chunks of earlier epochs to which no durable record refers.
Unrecorded = Callable[[Sequence[str]], Awaitable[Sequence[str]]]

#: Raises the error for a chunk of the container that is of a later epoch than this incarnation.
Refuse = Callable[[str, int], Awaitable[None]]

logger: logging.Logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _Orphan:
    """When it was left behind, whether it may still be created, and when its deletion is tried next."""

    since_s: float
    may_come_late: bool
    due_s: float
    pause_s: float


class OrphanChunks:
    """Remembers orphans, and deletes them while `run` runs. All methods run on the event loop.

    Attributes:
        mark: the container's mark, in the names of its chunks; empty: new chunks are never swept.
        swept_ms: wall clock of the start of the last complete sweep of earlier epochs; None: more orphans may exist.
        unrecorded_count: names created by this incarnation and not known to be recorded by a commit.
        deleted_count: orphans deleted so far.
    """

    def __init__(
        self,
        chunks: ChunkStorage,
        settings: OrphanSettings | None = None,
        *,
        mark: bytes = b"",
        swept_ms: int | None = None,
        refuse: Refuse | None = None,
    ) -> None:
        """`refuse`: raises the error for a chunk of a later epoch: the log is an old copy, or was claimed."""
        self._refuse = refuse
        self.mark = mark
        self.swept_ms = swept_ms
        self.unrecorded_count: int = 0
        self.deleted_count: int = 0
        self._is_closed = False
        self._has_forgotten = False
        self._chunks = chunks
        self._settings = settings or OrphanSettings()
        self._orphans: OrderedDict[str, _Orphan] = OrderedDict()

    def __len__(self) -> int:
        """Return the number of remembered orphans."""
        return len(self._orphans)

    def begin(self, name: str) -> None:
        """Note that a chunk is about to be created. Raises `StorageError` once this is closed."""
        if self._is_closed:
            raise StorageError(f"chunk {name} is not created: its container has stopped")
        self.unrecorded_count += 1

    def note_recorded(self, count: int) -> None:
        """Note that a commit has recorded `count` chunks passed to `begin`. Count each chunk only once."""
        self.unrecorded_count -= count

    def close(self) -> bool:
        """Prevent further creations; return whether nothing is left behind, by this incarnation or earlier ones."""
        self._is_closed = True
        return self.swept_ms is not None and not (self.unrecorded_count or self._orphans or self._has_forgotten)

    def add(self, name: str, *, may_come_late: bool = False) -> None:
        """Delete a chunk to which no record refers, or ever will. Returns at once.

        `may_come_late`: its creation was given up and may still take effect, so it cannot be considered gone if it is
        missing.
        """
        settings = self._settings
        now_s = asyncio.get_running_loop().time()
        self._orphans[name] = _Orphan(now_s, may_come_late, now_s, settings.retry_s_min)
        if len(self._orphans) > settings.remembered_max:
            forgotten, _ = self._orphans.popitem(last=False)
            self._has_forgotten = True
            logger.warning("chunk %s is an orphan, and is left to the sweep of a later start: there are too many "
                "orphans",
                           forgotten)  # fmt: skip

    async def run(self) -> None:
        """Delete remembered orphans until cancelled."""
        while True:
            await asyncio.sleep(self._settings.retry_s_min)
            await self.collect()

    async def collect(self) -> None:
        """Try once to delete those that are due. If storage does not respond the rest is skipped."""
        settings = self._settings
        loop = asyncio.get_running_loop()
        for name in [name for name, orphan in self._orphans.items() if orphan.due_s <= loop.time()]:
            orphan = self._orphans.get(name)
            if orphan is None:
                continue
            try:
                await self._chunks.delete(name)
                self.deleted_count += 1
                logger.info("deleted chunk %s: no record refers to it", name)
                # A chunk that was created is not created again.
                self._forget(name, orphan)
                continue
            except NoSuchChunkError:
                if not orphan.may_come_late or loop.time() - orphan.since_s >= settings.late_s_max:
                    self._forget(name, orphan)
                    continue
            except (StorageUnavailableError, StorageNotRespondingError):
                self._put_off(orphan, loop.time())
                return
            except (StorageError, OSError) as error:
                logger.info("chunk %s is an orphan and could not be deleted yet: %s", name, error)
            self._put_off(orphan, loop.time())

    def _put_off(self, orphan: _Orphan, now_s: float) -> None:
        orphan.due_s = now_s + orphan.pause_s
        orphan.pause_s = min(2 * orphan.pause_s, self._settings.retry_s_max)

    def _forget(self, name: str, orphan: _Orphan) -> None:
        if self._orphans.get(name) is orphan:
            del self._orphans[name]

    async def run_sweeps(self, epoch: int, unrecorded: Unrecorded, wall_clock_ms: Callable[[], int]) -> None:
        """Sweep soon, or when due if everything is swept, and then periodically until cancelled."""
        settings = self._settings
        pause_s = settings.sweep_delay_s
        if self.swept_ms is not None and (age_ms := wall_clock_ms() - self.swept_ms) >= 0:
            pause_s = max(pause_s, settings.sweep_interval_s - age_ms / 1000)
        while True:
            await asyncio.sleep(pause_s)
            begin_ms = wall_clock_ms()
            try:
                count = await self.sweep(epoch, unrecorded)
            except (InconsistentStateError, LogFencedError, StaleLogError, StorageNotPrimaryError):
                raise
            except (PenstockError, OSError) as error:
                logger.info("the search for chunks without a record is postponed: %s", error)
                pause_s = settings.sweep_delay_s
            else:
                if count:
                    logger.warning("%d chunks of earlier starts had no record, and are deleted", count)
                self.swept_ms = begin_ms
                pause_s = settings.sweep_interval_s

    async def sweep(self, epoch: int, unrecorded: Unrecorded) -> int:
        """Inspect all chunks and delete those left behind by epochs before `epoch`; return how many.

        `unrecorded` must answer from durable records: the chunks it returns are deleted in any case. Nothing is deleted
        before all names were checked for a later epoch: the records of an old copy do not refer to the newest chunks.
        Raises as `refuse`.
        """
        settings = self._settings
        await self._find_later(epoch)
        count = 0
        after = ""
        while names := await self._chunks.names(limit=settings.sweep_names, after=after):
            after = names[-1]
            candidates = [name for name in names if self._is_of_earlier(name, epoch)]
            if candidates:
                for name in await unrecorded(candidates):
                    self.add(name)
                    count += 1
                await self.collect()
            await asyncio.sleep(settings.sweep_pause_s)
        return count

    async def _find_later(self, epoch: int) -> None:
        """Raise as `refuse` if a chunk of the container is of an epoch after `epoch`."""
        if self._refuse is None:
            return
        settings = self._settings
        after = ""
        while names := await self._chunks.names(limit=settings.sweep_names, after=after):
            after = names[-1]
            for name in names:
                origin = chunk_origin(name)
                if origin is not None and self.mark and origin.mark == self.mark and origin.epoch > epoch:
                    await self._refuse(name, origin.epoch)
            await asyncio.sleep(settings.sweep_pause_s)

    def _is_of_earlier(self, name: str, epoch: int) -> bool:
        origin = chunk_origin(name)
        return origin is not None and bool(self.mark) and origin.mark == self.mark and origin.epoch < epoch
