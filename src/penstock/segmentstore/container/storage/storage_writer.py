"""`StorageWriter`: moves durable data from the log and the cache to long-term storage, in the background.

It scans periodically, and when woken, for segments that are due for a flush or that can be freed; each becomes a job. A
segment whose storage is stuck does not block the others: after a while its job no longer counts against the limit of
concurrent jobs. A failure is logged and retried indefinitely, per segment, even if the segment's data in storage is
damaged. The exceptions are errors after which this incarnation must not continue: inconsistent memory, and the loss of
ownership. While storage as a whole is unavailable the log is not truncated.

Source: segment-store 7.1, 7.6 and 7.7.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter

from penstock.model.errors import (
    ContainerOfflineError,
    PenstockError,
    UnreadableDataError,
)
from penstock.runtime.bulk import errors_of
from penstock.runtime.outages import OutageLog
from penstock.runtime.turns import Turns
from penstock.runtime.waits import cancel_and_wait
from penstock.segmentstore.container.attributes.attributes import Attributes
from penstock.segmentstore.container.life import FATAL_ERRORS
from penstock.segmentstore.container.log.checkpoints import Checkpoints
from penstock.segmentstore.container.log.log_rewriter import LogRewriter
from penstock.segmentstore.container.pending import PendingAppend, PendingMerge, PendingTruncate
from penstock.segmentstore.container.segment import Segment
from penstock.segmentstore.container.space import SpaceWatch
from penstock.segmentstore.container.state import ContainerState
from penstock.segmentstore.container.storage.container_storage import ContainerStorage, Submit
from penstock.segmentstore.container.storage.segment_flusher import SegmentFlusher
from penstock.segmentstore.container_settings import ContainerSettings
from penstock.segmentstore.settings import ThrottleSettings

logger: logging.Logger = logging.getLogger(__name__)

#: Operations that may be delayed and batched. All others are due immediately.
_WAITING = (PendingAppend, PendingMerge, PendingTruncate)
#: Scans that take no longer than this are not spaced out.
_QUICK_SCAN_S = 0.002
_SCAN_PAUSE_S_MAX = 2.0
#: Segments scanned before yielding to the event loop; the writers of other containers are scheduled by `Turns`.
_SCAN_STEP = 1024


@dataclass(slots=True)
class _Job:
    """The flush or the freeing of one segment, and the time of its last progress in storage."""

    task: asyncio.Task[None]
    segment: Segment
    since_s: float
    moved_s: float
    taken_bytes: int


class StorageWriter:
    """The storage writer of one container. Invariant: at most one job of a segment at a time."""

    def __init__(
        self,
        state: ContainerState,
        storage: ContainerStorage,
        *,
        settings: ContainerSettings,
        submit: Submit,
        checkpoints: Checkpoints,
        log_rewriter: LogRewriter,
        throttle: ThrottleSettings,
        attributes: Attributes,
        fail: Callable[[BaseException], None],
        is_log_open: Callable[[], bool],
        space: SpaceWatch,
        turns: Turns,
    ) -> None:
        self._state = state
        self._storage = storage
        self._settings = settings
        self._checkpoints = checkpoints
        self._carrier = log_rewriter
        self._attributes = attributes
        self._fail = fail
        self._is_log_open = is_log_open
        self._space = space
        self._turns = turns
        self._flusher = SegmentFlusher(
            state, storage, settings=settings, submit=submit, check_open=self._check_not_stopped, space=space
        )
        # Beyond these limits the backlog is pressing.
        share = settings.flush_pressure_percent
        cache = state.cache.settings
        self._pressing_bytes = throttle.container_backlog_bytes_max(cache) * share // 100
        self._pressing_operations = (throttle.backlog_operations_max or 1 << 62) * share // 100
        self._pressing_cache_bytes = cache.target_bytes * share // 100
        self._loop = asyncio.get_running_loop()
        self._wake = asyncio.Event()
        self._is_stopped = False
        self._task: asyncio.Task[None] | None = None
        #: Segments waiting for a job, by id, in order of arrival.
        self._queue: dict[int, Segment] = {}
        #: Those of them that keep a log long: they are flushed first, in the order of the log.
        self._first: dict[int, Segment] = {}
        self._jobs: dict[int, _Job] = {}
        #: Segments that became due while their job ran.
        self._due_again: set[int] = set()
        #: Time of the next job of a segment whose last job failed.
        self._retry_at_s: dict[int, float] = {}
        #: Time since when flushes of a segment fail, and the last error.
        self._failing: dict[int, tuple[float, BaseException]] = {}
        self._outage = OutageLog(logger, f"container {state.metadata.container_id}: flushes to long-term storage")
        self.failed_job_count: int = 0
        #: Fires when the first truncation since the last firing is due.
        self._truncation_timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Start the loop."""
        self._task = self._loop.create_task(self._run())

    @property
    def tasks(self) -> Sequence[asyncio.Task[None]]:
        """The loop and the running jobs."""
        loop = [self._task] if self._task is not None else []
        return [*loop, *(job.task for job in self._jobs.values())]

    @property
    def failing(self) -> tuple[int, float, BaseException] | None:
        """Number of segments whose last flush failed, time of the first failure (loop's time), and its error."""
        if not self._failing:
            return None
        since_s, error = min(self._failing.values(), key=lambda failure: failure[0])
        return len(self._failing), since_s, error

    def begin_stop(self) -> None:
        """Start no new jobs and do not report further failures: the services it depends on are about to stop."""
        self._is_stopped = True
        if self._truncation_timer is not None:
            self._truncation_timer.cancel()

    async def stop(self) -> None:
        """End the loop; a running write is abandoned, and found again by the next incarnation."""
        self.begin_stop()
        tasks, self._task = self.tasks, None
        await cancel_and_wait(*tasks)

    def wake(self) -> None:
        """Scan for work now."""
        self._wake.set()

    def note_pressure(self) -> None:
        """Scan for work, unless jobs are running: a scan follows when they end.

        Every held append calls this, and a scan of very many segments costs more than the appends do.
        """
        if not self._jobs:
            self._wake.set()

    def note_truncation(self) -> None:
        """Scan for work when the truncation is due."""
        if not self._settings.truncate_delay_s:
            self._wake.set()
        elif self._truncation_timer is None and not self._is_stopped:
            delay_s = self._settings.truncate_delay_s
            self._truncation_timer = self._loop.call_later(delay_s, self._truncations_are_due)

    def note_merge(self) -> None:
        """Scan for work at once if merges are due immediately; otherwise the next periodic scan suffices."""
        if not self._settings.merge_delay_s:
            self._wake.set()

    def _truncations_are_due(self) -> None:
        self._truncation_timer = None
        self._wake.set()

    async def _run(self) -> None:
        try:
            while not self._is_stopped and self._is_log_open():
                try:
                    # Not wait_for: in Python 3.11 that loses a cancellation which comes together with the event.
                    async with asyncio.timeout(self._settings.writer_interval_s):
                        await self._wake.wait()
                except TimeoutError:
                    pass  # Scan for due work anyway.
                self._wake.clear()
                scan_s = 0.0
                await self._turns.wait_turn()
                begin_s = self._loop.time()
                for _ in self._scan_in_steps():
                    scan_s += self._loop.time() - begin_s
                    await self._turns.wait_turn()
                    begin_s = self._loop.time()
                scan_s += self._loop.time() - begin_s
                if scan_s > _QUICK_SCAN_S:
                    # Applies whatever triggers the next scan; jobs keep working on the queue meanwhile.
                    pause_s = scan_s * 100 / self._settings.writer_scan_share_percent
                    await asyncio.sleep(min(pause_s, _SCAN_PAUSE_S_MAX))
        except Exception as error:
            self._end(error)
            raise

    def _scan(self) -> None:
        """Queue all due segments without yielding."""
        for _ in self._scan_in_steps():
            pass

    def _scan_in_steps(self) -> Iterator[None]:
        """Queue all due segments. Yields between steps; other tasks may then change any of the segments."""
        state = self._state
        now_s = self._loop.time()
        for number, segment in enumerate(list(state.gone.values())):
            if number % _SCAN_STEP == _SCAN_STEP - 1:
                yield
            if segment.id in state.gone and segment.id not in state.metadata.merges:
                self._want(segment, now_s)
        is_pressed = self.is_pressed
        kept_before = self._checkpoints.truncation_candidate()
        early: list[Segment] = []
        keepers: list[tuple[int, Segment]] = []
        for number, segment in enumerate(list(state.unflushed.values())):
            if number % _SCAN_STEP == _SCAN_STEP - 1:
                yield
            if segment.id not in state.unflushed or segment.id in state.gone:
                continue
            if not self._flusher.has_to_wait(segment):
                if kept_before and self._keeps_log(segment, kept_before):
                    keepers.append((segment.pending.first_number(), segment))
                elif self._is_due(segment, now_s):
                    self._want(segment, now_s)
                elif is_pressed and segment.id not in self._jobs:
                    early.append(segment)
        self._first.clear()
        keepers.sort(key=itemgetter(0))
        for number, (_, segment) in enumerate(keepers):
            if number % _SCAN_STEP == _SCAN_STEP - 1:
                yield
            if segment.id in state.unflushed and segment.id not in state.gone:
                self._want(segment, now_s, is_first=True)
        for segment in self._largest(early):
            self._want(segment, now_s)
        for segment in self._attributes.due():
            self._want(segment, now_s)
        # Drop state of segments that are gone, or were merged while waiting for a retry.
        known = state.metadata.by_id
        self._retry_at_s = {one: at_s for one, at_s in self._retry_at_s.items() if one in known or one in state.gone}
        self._failing = {one: failure for one, failure in self._failing.items() if one in self._retry_at_s}
        self._start_jobs(now_s)
        self._acknowledge()

    @property
    def is_pressed(self) -> bool:
        """Whether the space for data that storage does not have is nearly used up."""
        state = self._state
        return (
            state.cache.lacking_bytes > self._pressing_cache_bytes
            or state.backlog.byte_count > self._pressing_bytes
            or state.backlog.operation_count > self._pressing_operations
        )

    def _largest(self, segments: list[Segment]) -> list[Segment]:
        """Return the segments with the most pending bytes: as many as may be flushed before the next scan."""
        return heapq.nlargest(self._settings.flush_pressure_segments_max, segments, key=_waiting_bytes)

    def _is_due(self, segment: Segment, now_s: float) -> bool:
        pending = segment.pending
        if not pending:
            return True
        first, last = pending[0], pending[-1]
        if not (isinstance(first, _WAITING) and isinstance(last, _WAITING)):
            return True
        settings = self._settings
        if now_s - pending.truncated_since_s >= (0.0 if self._space.is_storage_low else settings.truncate_delay_s):
            return True
        if now_s - pending.merged_since_s >= settings.merge_delay_s:
            return True
        age_s = settings.flush_age_index_s if segment.is_offset_index else settings.flush_age_s
        return (
            segment.durable_length - segment.storage_length >= settings.flush_bytes
            or now_s - pending.waits_since_s() >= age_s
        )

    @staticmethod
    def _keeps_log(segment: Segment, number: int) -> bool:
        """Return whether the segment prevents truncation of the log at `number`. Index segments are carried instead."""
        return not segment.is_offset_index and segment.pending.first_number() < number

    def _is_wanted(self, segment: Segment, now_s: float) -> bool:
        state = self._state
        if segment.id in state.gone:
            return segment.id not in state.metadata.merges
        if segment.id in state.unflushed and self._is_due(segment, now_s):
            return not self._flusher.has_to_wait(segment)
        return segment.id in state.attribute_work and self._attributes.is_due(segment)

    def _acknowledge(self) -> None:
        """Release data that long-term storage has, in the cache and in the log."""
        self._state.cache.advance(self._loop.time())
        self._note_stuck()
        self._relieve()
        if self._storage.health.is_available:
            self._checkpoints.truncate_log()
            if self._space.is_log_low:
                self._carrier.make_room(self._space.log_free_bytes)
            else:
                self._carrier.check()  # It may temporarily need a large part of the log's length again.
        # If the disk is low on space, the log must be truncated as soon as possible.
        self._checkpoints.write_if_due(is_idle=not self._state.unflushed or self._space.is_log_low)

    def _relieve(self) -> None:
        """Evict data that long-term storage has, if space is needed, and release held operations."""
        cache = self._state.cache
        if cache.used_bytes > cache.settings.target_bytes:
            cache.evict()
        self._state.events.on_relief()

    # Jobs.

    def _want(self, segment: Segment, now_s: float, *, is_first: bool = False) -> None:
        if segment.id in self._jobs:
            self._due_again.add(segment.id)
        elif self._retry_at_s.get(segment.id, now_s) <= now_s:
            self._queue.setdefault(segment.id, segment)
            if is_first:
                self._first.setdefault(segment.id, segment)

    def _start_jobs(self, now_s: float) -> None:
        settings = self._settings
        while self._queue and not self._is_stopped:
            slow = sum(now_s - job.since_s >= settings.flush_slow_s for job in self._jobs.values())
            count = len(self._jobs) - min(slow, settings.flush_slow_max)
            if count >= settings.flush_concurrency and (
                count >= settings.flush_concurrency_small
                or sum(job.segment.pending.byte_count for job in self._jobs.values()) >= settings.flush_bytes
            ):
                return
            segment_id = next(iter(self._first or self._queue))
            self._first.pop(segment_id, None)
            segment = self._queue.pop(segment_id)
            task = self._loop.create_task(self._work(segment))
            self._jobs[segment.id] = _Job(task, segment, now_s, now_s, _taken_bytes(segment))

    def _note_stuck(self) -> None:
        """Find the segments whose flush has made no progress for too long."""
        now_s = self._loop.time()
        for job in self._jobs.values():
            segment, taken_bytes = job.segment, _taken_bytes(job.segment)
            if taken_bytes != job.taken_bytes:
                job.taken_bytes = taken_bytes
                job.moved_s = now_s
                segment.is_stuck = False
            elif now_s - job.moved_s >= self._settings.flush_slow_s:
                segment.is_stuck = True

    async def _work(self, segment: Segment) -> None:
        is_free = False
        length = segment.storage_length
        try:
            if segment.id in self._state.gone:
                is_free = await self._flusher.free(segment)
            else:
                await self._flusher.flush(segment)
                if self._attributes.is_due(segment):
                    await self._attributes.flush(segment)
        except asyncio.CancelledError:
            self._jobs.pop(segment.id, None)
            raise
        except FATAL_ERRORS as error:
            self._jobs.pop(segment.id, None)
            self._end(error)
            return
        except (PenstockError, OSError) as error:
            self._jobs.pop(segment.id, None)
            if self._is_stopped or not self._is_log_open():
                return  # The writer is stopping, or the log and the container failed.
            self._note_failure(segment, error)
        except Exception as error:
            self._jobs.pop(segment.id, None)
            self._end(error)
            raise
        else:
            self._jobs.pop(segment.id, None)
            self._note_success(segment)
            self._relieve()
        now_s = self._loop.time()
        is_due_again = segment.id in self._due_again
        self._due_again.discard(segment.id)
        if is_free:
            # A new segment with the name of the one just freed may be waiting.
            self._wake.set()
        elif is_due_again and self._is_wanted(segment, now_s):
            # Only this one: a scan of all segments would find every segment that is due again, and would never end.
            self._want(segment, now_s)
        self._start_jobs(now_s)
        if not self._queue and segment.storage_length != length and self.is_pressed:
            self._wake.set()  # The largest remaining segments are next.
        if not self._jobs:
            self._acknowledge()

    def _note_success(self, segment: Segment) -> None:
        self._retry_at_s.pop(segment.id, None)
        self._failing.pop(segment.id, None)
        segment.is_stuck = False
        if not self._failing:
            self._outage.ended()

    def _note_failure(self, segment: Segment, error: BaseException) -> None:
        retry_s = self._settings.writer_retry_s
        now_s = self._loop.time()
        self.failed_job_count += 1
        segment.is_stuck = True
        self._retry_at_s[segment.id] = now_s + retry_s
        self._failing[segment.id] = self._failing.get(segment.id, (now_s, error))[0], error
        # A storage outage fails every segment repeatedly.
        self._outage.failed(
            f"container {self._state.metadata.container_id}: flush of {segment.name} to long-term storage failed, "
            f"retrying every {retry_s:.1f} s",
            error,
            level=logging.ERROR if isinstance(error, UnreadableDataError) else logging.WARNING,
        )

    def _end(self, error: BaseException) -> None:
        """Start no new jobs, and end the container."""
        self._is_stopped = True
        self._queue.clear()
        self._first.clear()
        self._wake.set()
        self._fail(error)

    # On request.

    async def flush(self, segment: Segment) -> None:
        """Bring one segment's storage up to date with the currently durable operations, including its attributes."""
        await self._flush(segment)
        await self._attributes.flush(segment)

    async def _flush(self, segment: Segment) -> None:
        await self._flusher.flush(segment)
        self._note_success(segment)

    async def flush_all(self) -> None:
        """Flush until nothing that was durable at the call is pending. Raises what a flush raises."""
        waiting = {segment.id: segment.durable_length for segment in self._state.unflushed.values()}
        while any(
            segment_id in self._state.unflushed and self._state.unflushed[segment_id].storage_length < length
            for segment_id, length in waiting.items()
        ):
            self._check_not_stopped()
            await self._flush_round()
        await self._flush_round()

    async def _flush_round(self) -> None:
        state = self._state
        errors = await self._all(
            self._flusher.free, [one for one in state.gone.values() if one.id not in state.metadata.merges]
        )
        errors += await self._all(self._flush, [one for one in state.unflushed.values() if one.id not in state.gone])
        self._acknowledge()
        for error in errors:
            if isinstance(error, FATAL_ERRORS):
                self._end(error)
                raise error
        if errors:
            raise errors[0]

    async def _all(
        self, call: Callable[[Segment], Awaitable[object]], segments: Sequence[Segment]
    ) -> list[BaseException]:
        """Call for each segment with bounded concurrency; return the errors raised."""
        return await errors_of(segments, call, self._settings.flush_concurrency)

    def _check_not_stopped(self) -> None:
        if self._is_stopped:
            raise ContainerOfflineError(self._state.metadata.container_id, "stopped")


def _taken_bytes(segment: Segment) -> int:
    """Return the stored length of a segment plus that of the source it merges next, which is flushed first."""
    count = segment.storage_length
    while segment.pending and isinstance(segment.pending[0], PendingMerge):
        segment = segment.pending[0].source
        count += segment.storage_length
    return count


def _waiting_bytes(segment: Segment) -> int:
    return segment.pending.byte_count
