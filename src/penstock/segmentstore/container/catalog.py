"""`SegmentCatalog`: finds a container's segments, in memory or by their records, and deactivates idle ones.

See docs/segments.md. Source: segment-store 1.4; where it differs, that page says why.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from itertools import islice

from penstock.model.errors import (
    CorruptionError,
    NoSuchSegmentError,
    PenstockError,
    SegmentInactiveError,
    TooManyActiveSegmentsError,
)
from penstock.model.segments import TableRemoval, TableUpdate
from penstock.runtime.bulk import errors_of
from penstock.segmentstore.container.attributes.attributes import LogOperation
from penstock.segmentstore.container.life import FATAL_ERRORS
from penstock.segmentstore.container.log.operations import Activate, Deactivate
from penstock.segmentstore.container.metadata import (
    SegmentSnapshot,
    decode_record,
    encode_adopted,
    encode_record,
)
from penstock.segmentstore.container.segment import Segment
from penstock.segmentstore.container.state import ContainerState
from penstock.segmentstore.container.tables.tables import Tables
from penstock.segmentstore.container_settings import ContainerSettings
from penstock.segmentstore.later_format import LaterFormatError
from penstock.segmentstore.tier2.chunked_storage import StoredSegment

logger: logging.Logger = logging.getLogger(__name__)


#: Maximum number of records removed in one update.
_FORGOTTEN_AT_ONCE_MAX = 256
#: Segments inspected, and deactivated, before yielding to the event loop.
_PUT_AWAY_STEP = 256


def metadata_segment(container_id: int) -> str:
    """Return the name of a container's table of inactive segments."""
    return f"_system/containers/metadata_{container_id}"


class SegmentCatalog:
    """Active and inactive segments of one container; `table` holds the records of the inactive ones.

    `flush` moves a segment's bytes and attributes to long-term storage, so that it can be deactivated. `adopt`, if
    segments of an older store are adopted, stores the records of a segment and returns its state.
    """

    def __init__(
        self,
        state: ContainerState,
        tables: Tables,
        table: Segment,
        *,
        settings: ContainerSettings,
        log: LogOperation,
        flush: Callable[[Segment], Awaitable[None]],
        adopt: Callable[[str], Awaitable[StoredSegment | None]] | None = None,
        now_ms: Callable[[], int] = lambda: 0,
    ) -> None:
        self._state = state
        self._metadata = state.metadata
        self._tables = tables
        self._table = table
        self._settings = settings
        self._log = log
        self._flush = flush
        self._adopt = adopt
        self._now_ms = now_ms
        #: Running activations, by name; concurrent calls for the same segment wait for their end.
        self._finding: dict[str, asyncio.Future[None]] = {}
        self._room = asyncio.Lock()
        self._put_away = asyncio.Lock()
        #: Segments whose records must be removed, by id; each is kept in use by a waiting call.
        self._forgetting: dict[int, Segment] = {}
        self.deactivated_count: int = 0
        self.activated_count: int = 0
        if self.has_inactive:
            # The log does not show which records the last incarnation wrote without deactivating the segment.
            for segment in self._metadata.by_name.values():
                segment.has_record = not segment.is_system

    # Finding.

    @property
    def has_inactive(self) -> bool:
        """Whether there may be inactive segments at all."""
        return self._table.length > self._table.start_offset

    def get(self, name: str) -> Segment:
        """Return an active segment. Raises `NoSuchSegmentError`, or `SegmentInactiveError` if `find` is needed."""
        segment = self._metadata.by_name.get(name)
        if segment is not None:
            segment.is_touched = True
            return segment
        if self.has_inactive or self._adopt is not None:
            raise SegmentInactiveError(name)
        raise NoSuchSegmentError(name)

    async def find(self, name: str) -> Segment:
        """Return a segment, activating it if necessary. Raises `NoSuchSegmentError`, `TooManyActiveSegmentsError`."""
        while True:
            try:
                return self.get(name)
            except SegmentInactiveError:
                finding = self._finding.get(name)
            if finding is None:
                break
            await asyncio.wait((finding,))
            # Do not repeat a wait that failed. But a `NoSuchSegmentError` of the other call may be out of date.
            if not finding.cancelled() and (error := finding.exception()) is not None:
                raise error
        finding = self._finding[name] = asyncio.get_running_loop().create_future()
        try:
            return await self._activate(name)
        except PenstockError as error:
            if not isinstance(error, NoSuchSegmentError):
                finding.set_exception(error)
                finding.exception()  # There may be no waiter.
            raise
        finally:
            del self._finding[name]
            finding.cancel()

    async def _activate(self, name: str) -> Segment:
        record = await self._record(name) if self.has_inactive else None
        stored = None
        if record is None and self._adopt is not None and name not in self._metadata.by_name:
            stored = await self._adopt(name)
        if (record is not None or stored is not None) and name not in self._metadata.by_name:
            await self.make_room(name)
        segment = self._metadata.by_name.get(name)
        if segment is not None:
            return segment  # It was not inactive, but created meanwhile.
        if stored is not None:
            # Done here because its id must still be free when it is accepted.
            record = encode_adopted(self._metadata.next_segment_id, stored, self._now_ms())
        if record is None:
            raise NoSuchSegmentError(name)
        try:
            decode_record(record)
        except LaterFormatError as error:
            raise error.at(f"the record of {name} in {self._table.name}") from error
        except ValueError as error:
            raise CorruptionError(self._table.name, 0, f"record of {name}: {error}") from error
        operation = Activate(record)
        self._log(operation, lambda: self._state.accept_activate(operation))
        self.activated_count += 1
        return self._metadata.get(name)

    async def _record(self, name: str) -> bytes | None:
        (entry,) = await self._tables.get(self._table, [name.encode()])
        return None if entry is None else entry.value

    async def inactive(self, name: str) -> SegmentSnapshot | None:
        """Return the record of a segment that is not active, without activating it; None if there is none.

        Before acting on the result the caller must check whether the segment has become active meanwhile.
        """
        record = await self._record(name) if self.has_inactive else None
        if record is None:
            await self._is_taken_over(name)
            return None
        try:
            return decode_record(record)
        except LaterFormatError as error:
            raise error.at(f"the record of {name} in {self._table.name}") from error
        except ValueError as error:
            raise CorruptionError(self._table.name, 0, f"record of {name}: {error}") from error

    async def exists(self, name: str) -> bool:
        """Return whether a segment of that name exists, active or not, at the time of return."""
        while name not in self._metadata.by_name:
            count = self.deactivated_count
            if not self.has_inactive:
                return await self._is_taken_over(name)
            is_recorded = await self._record(name) is not None
            # A segment may have been created and deactivated since the record was read.
            if self.deactivated_count == count:
                return is_recorded or name in self._metadata.by_name or await self._is_taken_over(name)
        return True

    async def _is_taken_over(self, name: str) -> bool:
        """Adopt a segment of an older store, if there is one; return whether there is a segment of that name."""
        if self._adopt is None:
            return False
        try:
            await self.find(name)
        except NoSuchSegmentError:
            return False
        return True

    async def names(self, *, page_length: int = 256) -> AsyncIterator[str]:
        """Yield the names of all user segments, active or not; may miss segments created or deleted meanwhile."""
        active = [segment.name for segment in self._metadata.by_name.values() if not segment.is_system]
        for name in active:
            yield name
        seen = set(active)
        token = b""
        while True:
            page = await self._tables.entries(self._table, limit=page_length, token=token)
            if not page.entries:
                return
            token = page.token
            for entry in page.entries:
                name = entry.key.decode()
                if name not in seen:
                    yield name

    async def forget_record(self, segment: Segment) -> None:
        """Remove the record of a segment before the segment is deleted; otherwise the record would restore it.

        The caller keeps the segment in use.
        """
        if not segment.has_record:
            return
        self._forgetting[segment.id] = segment
        try:
            # Not while records are being written: this segment's may be among them and must not follow the removal.
            async with self._put_away:
                if _has_record_to_forget(segment):
                    await self._forget(segment)
        finally:
            self._forgetting.pop(segment.id, None)

    async def _forget(self, segment: Segment) -> None:
        """Remove its record together with other records waiting for removal: one sync for very many."""
        others = (other for other in self._forgetting.values() if other is not segment and _has_record_to_forget(other))
        chosen = [segment, *islice(others, _FORGOTTEN_AT_ONCE_MAX - 1)]
        await self._tables.remove(self._table, [TableRemoval(each.name.encode()) for each in chosen], -1)
        for each in chosen:
            each.has_record = False

    # Deactivation.

    @property
    def is_full(self) -> bool:
        """Whether no more segments may become active before others are deactivated."""
        return self._metadata.active_count >= self._settings.active_segments_max

    async def make_room(self, name: str) -> None:
        """Return once one more segment may become active.

        Raises `TooManyActiveSegmentsError` after at most `active_segments_wait_s`: storage may be stuck.
        """
        if not self.is_full:
            return
        settings = self._settings
        try:
            async with asyncio.timeout(settings.active_segments_wait_s) as deadline:
                await self._make_room(name)
        except TimeoutError as error:
            if not deadline.expired():
                raise
            raise TooManyActiveSegmentsError(
                name,
                active_count=self._metadata.active_count,
                active_max=settings.active_segments_max,
                reason=f"long-term storage did not accept their data within {settings.active_segments_wait_s:g} s",
            ) from error

    async def _make_room(self, name: str) -> None:
        limit = self._settings.active_segments_max
        async with self._room:
            if self._metadata.active_count < limit:
                return
            count = max(1, min(limit // 10, self._settings.deactivation_batch_max))
            reason = "all of them are in use"
            if not await self.deactivate(self._idle_first(), count):
                try:
                    await self._flush_some(count)
                except FATAL_ERRORS:
                    raise
                except (PenstockError, OSError) as error:
                    reason = f"flushing them failed: {error}"
                await self.deactivate(self._idle_first(), count)
            if self._metadata.active_count >= limit:
                raise TooManyActiveSegmentsError(
                    name, active_count=self._metadata.active_count, active_max=limit, reason=reason
                )

    def _idle_first(self) -> Iterable[Segment]:
        segments = list(self._metadata.by_name.values())
        return sorted(segments, key=lambda segment: segment.is_touched)

    async def _flush_some(self, count: int) -> None:
        """Flush segments so that they can be deactivated, longest pending first."""
        candidates = [
            segment for segment in self._state.unflushed.values() if not segment.is_system and not segment.use_count
        ]
        candidates += [
            segment for segment in self._state.attribute_work.values() if segment.id not in self._state.unflushed
        ]
        errors = await errors_of(candidates[:count], self._flush, self._settings.flush_concurrency)
        if errors:
            raise next((error for error in errors if isinstance(error, FATAL_ERRORS)), errors[0])

    async def run(self) -> None:
        """Deactivate idle segments periodically, until cancelled. A failed round is logged: they stay in memory."""
        while True:
            await asyncio.sleep(self._settings.deactivation_interval_s)
            try:
                await self.deactivate_idle()
            except FATAL_ERRORS:
                raise
            except (PenstockError, OSError) as error:
                container_id = self._metadata.container_id
                logger.warning("container %d: idle segments stay in memory: %s", container_id, error)

    async def deactivate_idle(self) -> int:
        """Deactivate segments not used since the last call, if there are many; return the number deactivated."""
        excess = self._metadata.active_count - self._settings.active_segments_idle_max
        idle = [segment for segment in self._metadata.by_name.values() if not segment.is_touched] if excess > 0 else []
        for segment in self._metadata.by_name.values():
            segment.is_touched = False
        return await self.deactivate(idle, min(excess, self._settings.deactivation_batch_max)) if idle else 0

    async def deactivate(self, candidates: Iterable[Segment], count: int) -> int:
        """Deactivate up to `count` of `candidates`, skipping those that cannot be; return the number deactivated."""
        left, one_by_one = count, iter(candidates)
        while left > 0:
            some = list(islice(one_by_one, _PUT_AWAY_STEP))
            if not some:
                break
            left -= await self._deactivate_some(some, left)
            await asyncio.sleep(0)
        return count - left

    async def _deactivate_some(self, candidates: Sequence[Segment], count: int) -> int:
        async with self._put_away:
            chosen = list(islice(filter(self._can_leave, candidates), count))
            if not chosen:
                return 0
            for segment in chosen:
                segment.has_record = True  # Even if the write fails, the record may exist.
            records = [encode_record(segment) for segment in chosen]
            await self._tables.put(
                self._table,
                [TableUpdate(segment.name.encode(), record) for segment, record in zip(chosen, records, strict=True)],
                -1,
            )
            # Segments used or changed meanwhile stay active; their records are not read while they are active.
            leaving = [
                segment
                for segment, record in zip(chosen, records, strict=True)
                if self._can_leave(segment) and encode_record(segment) == record
            ]
            if leaving:
                for segment in leaving:
                    if segment.is_table:
                        self._tables.release(segment)
                operation = Deactivate([segment.id for segment in leaving])
                self._log(operation, lambda: self._state.accept_deactivate(leaving))
                self.deactivated_count += len(leaving)
            return len(leaving)

    def _can_leave(self, segment: Segment) -> bool:
        """Whether long-term storage has all of a segment and no code relies on its object."""
        return not (
            segment.is_system
            # Bounded by the activity of connections; the next start must find those left by a crash.
            or segment.is_transient
            or segment.is_deleted
            or segment.is_merged
            or segment.is_inactive
            or segment.pending
            or segment.id in self._state.unflushed
            or segment.length != segment.durable_length
            or segment.length > max(segment.storage_length, segment.start_offset)
            or segment.start_offset != segment.durable_start_offset
            or segment.is_sealed != segment.durable_sealed
            or segment.use_count
            or segment.flush_lock.locked()
            # Dirty attributes, or too many for a record: they are about to be flushed.
            or segment.id in self._state.attribute_work
            or (segment.has_attribute_index and segment.dirty_attributes)
            or (segment.is_table and self._tables.is_busy(segment))
        )


def _has_record_to_forget(segment: Segment) -> bool:
    # If the segment is gone, another call removed the record; it may now belong to a later segment of the name.
    return segment.has_record and not (segment.is_deleted or segment.is_merged)
