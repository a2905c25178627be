"""`ChunkJoiner`: joins small chunks of all segments of one `ChunkedStorage`, in the background.

Each round scans the records of all segments and, for each segment, those of the chunks added since the last scan.
Rounds are bounded in bytes copied and records scanned. While storage is slow, full or unavailable, or the container is
busy, rounds become less frequent.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from penstock.model.errors import (
    InconsistentStateError,
    LogFencedError,
    PenstockError,
    StorageNotPrimaryError,
    UnreadableDataError,
)
from penstock.runtime.pacing import GrowingDelay
from penstock.segmentstore.container_settings import JoinSettings
from penstock.segmentstore.tier2.chunk_run import ChunkRun
from penstock.segmentstore.tier2.chunked_storage import ChunkedStorage
from penstock.segmentstore.tier2.records import StoredSegmentRecord

logger: logging.Logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _Done:
    """Nothing could be joined in a segment below `low`, nor above it while it had `chunk_count` chunks."""

    low: int
    chunk_count: int


@dataclass(slots=True)
class _Pass:
    """A scan of a segment from its end down to `low`. `upper`: position reached so far."""

    record: StoredSegmentRecord
    low: int
    upper: int
    has_joined: bool = False


class ChunkJoiner:
    """Joins chunks of `storage`. `is_busy`: whether the container is too busy, or storage too full, to join now.

    Attributes:
        joined_count: chunks joined so far, ...
        made_count: ... and chunks created from them.
        copied_bytes: bytes copied so far, including copies that were discarded.
    """

    def __init__(
        self, storage: ChunkedStorage, settings: JoinSettings, *, is_busy: Callable[[], bool] = lambda: False
    ) -> None:
        self.joined_count: int = 0
        self.made_count: int = 0
        self.copied_bytes: int = 0
        self._storage = storage
        self._settings = settings
        self._is_busy = is_busy
        self._token: bytes | None = b""
        #: Segments of the last page that are still to be scanned.
        self._ahead: deque[StoredSegmentRecord] = deque()
        self._pass: _Pass | None = None
        self._done: OrderedDict[ChunkRun, _Done] = OrderedDict()

    async def run(self, report: Callable[[UnreadableDataError], Awaitable[None]]) -> None:
        """Join chunks until cancelled; `report` is called with damage found."""
        settings = self._settings
        pause = GrowingDelay(settings.interval_s, settings.retry_s_max)
        while True:
            await pause.sleep()
            try:
                is_done = await self.join_round(report)
            except (InconsistentStateError, LogFencedError, StorageNotPrimaryError):
                raise
            except (PenstockError, OSError) as error:
                logger.info("small chunks could not be joined yet: %s", error)
                is_done = False
            if is_done:
                pause.reset()

    async def join_round(self, report: Callable[[UnreadableDataError], Awaitable[None]]) -> bool:
        """Run one round; return False if it was cut short, because the container is busy or storage is slow.

        A segment whose chunks cannot be joined, whatever the error, is skipped until its next turn.
        """
        settings = self._settings
        loop = asyncio.get_running_loop()
        copied_bytes = scanned_count = 0
        self._token = b"" if self._token is None else self._token
        while copied_bytes < settings.round_bytes and scanned_count < settings.round_records:
            if self._is_busy():
                return False
            current = self._pass or self._next()
            if current is None:
                if self._token is None:
                    break
                records, self._token = await self._storage.segments_after(self._token)
                self._ahead.extend(records)
                scanned_count += len(records) + 1
                continue
            # If this step fails, the scan of this segment does not continue.
            self._pass = None
            begin_s = loop.time()
            try:
                step = await self._storage.join_chunks(current.record.name, current.low, current.upper, settings)
            except UnreadableDataError as error:
                await report(error)
                self._note_done(current.record.run, _Done(current.low, current.record.chunk_count))
                continue
            scanned_count += step.scanned_count
            if step.copied_bytes:
                copied_bytes += step.copied_bytes
                self.copied_bytes += step.copied_bytes
                if not step.chunk_count:
                    continue  # The segment has changed. It gets another turn.
                self.joined_count += step.chunk_count
                self.made_count += 1
                current.has_joined = True
            if step.upper > current.low:
                current.upper = step.upper
                self._pass = current
            else:
                self._end_pass(current)
            if step.copied_bytes:
                if loop.time() - begin_s > settings.slow_s:
                    return False
                await asyncio.sleep(settings.pause_s)
        return True

    def _next(self) -> _Pass | None:
        """Return the next segment with new chunks."""
        while self._ahead:
            record = self._ahead.popleft()
            done = self._done.get(record.run)
            if done is not None:
                # The count of truncated chunks says nothing about new ones.
                done.chunk_count = min(done.chunk_count, record.chunk_count)
            low, known = (done.low, done.chunk_count) if done is not None else (0, 0)
            if record.chunk_count - known >= self._settings.chunks_min:
                return _Pass(record, low, record.length)
        return None

    def _end_pass(self, ended: _Pass) -> None:
        record, settings = ended.record, self._settings
        if ended.has_joined:
            # Joined chunks may be joined again with their neighbours.
            self._note_done(record.run, _Done(ended.low, 0))
        else:
            # A join with chunks still to come starts less than a chunk's length before them.
            low = max(ended.low, record.length - min(settings.target_bytes, record.chunk_length_max))
            self._note_done(record.run, _Done(low, record.chunk_count))

    def _note_done(self, run: ChunkRun, done: _Done) -> None:
        self._done[run] = done
        self._done.move_to_end(run)
        if len(self._done) > self._settings.segments_max:
            self._done.popitem(last=False)
