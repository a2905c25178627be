"""`ActivityWatch`: the container's background job that turns notes of activity into statistics and offset indexes."""

from __future__ import annotations

import asyncio
import logging

from penstock.model.errors import ContainerOfflineError, PenstockError, UnreadableDataError
from penstock.model.names import has_index_segment
from penstock.segmentstore.container.activity.activity import Activity, Border, Touched
from penstock.segmentstore.container.activity.offset_index import OffsetIndexes
from penstock.segmentstore.container.activity.stream_totals import StreamTotals
from penstock.segmentstore.container_settings import ActivitySettings
from penstock.segmentstore.statistics import Statistics

logger: logging.Logger = logging.getLogger(__name__)

#: Index segments written concurrently: their entries share syncs of the log.
_CONCURRENCY_MAX = 64
#: Segments processed before yielding to the event loop.
_SLICE_SEGMENTS = 1024


class ActivityWatch:
    """Samples a container's activity periodically. A failed index write is logged; the next border retries."""

    def __init__(
        self,
        container_id: int,
        activity: Activity,
        indexes: OffsetIndexes,
        settings: ActivitySettings,
    ) -> None:
        self._container_id = container_id
        self._activity = activity
        self._indexes = indexes
        self._settings = settings
        self._loop = asyncio.get_running_loop()
        # Offset of the last index entry of recently active segments, least recently active first.
        self._indexed: dict[int, int] = {}
        self.statistics: Statistics = Statistics(
            container_id, settings.statistics, self._loop.time(), settings.scale_advice
        )
        #: What was appended to each stream, for metrics.
        self.totals: StreamTotals = StreamTotals()

    async def run(self) -> None:
        """Run until cancelled. A failed pass is logged; only its statistics are lost."""
        self._activity.take()  # Recovery does not count as load.
        self._activity.take_created()
        self._activity.take_ended()
        while True:
            await asyncio.sleep(self._settings.interval_s)
            try:
                await self.poll()
            except Exception:  # A failure to measure must not end the container.
                logger.exception("container %d: a scan of its activity failed", self._container_id)

    async def poll(self) -> None:
        """Process the activity since the last call."""
        notes: list[Touched] = []
        now_s = self._loop.time()
        for segment_id, name in self._activity.take_created():
            self.statistics.quiet.note(segment_id, name, now_s)
        # Taken at the same time: the last data of an ended segment is in these notes or earlier ones.
        touched, ended = self._activity.take(), self._activity.take_ended()
        for number, note in enumerate(touched):
            if number % _SLICE_SEGMENTS == _SLICE_SEGMENTS - 1:
                await asyncio.sleep(0)
            if not _counts(note):
                continue
            notes.append(note)
            segment = note.segment
            event_count, byte_count = segment.event_count - note.event_count, segment.length - note.length
            self.totals.add(segment.id, segment.name, event_count, byte_count)
            self.statistics.add(
                segment.id,
                segment.name,
                events=event_count,
                byte_count=byte_count,
                scale_type=segment.scale_type,
                target_rate=segment.target_rate,
                now_s=now_s,
                length_bytes=segment.length,
                merged=(note.merged_events, note.merged_bytes, note.merged_life_s),
            )
        for number, segment_id in enumerate(ended):
            if number % _SLICE_SEGMENTS == _SLICE_SEGMENTS - 1:
                await asyncio.sleep(0)
            self.statistics.forget(segment_id)
        self.statistics.polled(now_s)
        for _ in self.statistics.advance_in_steps(now_s):
            await asyncio.sleep(0)
        if self._settings.index_entry_bytes <= 0:
            return
        # Nearly all of very many segments have nothing to write: a task for each would cost more than the rest of the
        # pass.
        due: list[Touched] = []
        for number, note in enumerate(notes):
            if number % _SLICE_SEGMENTS == _SLICE_SEGMENTS - 1:
                await asyncio.sleep(0)
            if self._is_index_due(note):
                due.append(note)
            elif (last := self._indexed.pop(note.segment.id, None)) is not None:
                self._indexed[note.segment.id] = last  # Recently active.
        for at in range(0, len(due), _CONCURRENCY_MAX):
            await asyncio.gather(*map(self._try_to_index, due[at : at + _CONCURRENCY_MAX]))

    def _is_index_due(self, note: Touched) -> bool:
        """Return whether `_index` has entries to read or to write."""
        segment = note.segment
        if segment.is_deleted or segment.is_sealed or not self._indexes.may_have_one(segment):
            return False
        last = self._indexed.get(segment.id)
        if last is None or segment.length - last >= self._settings.index_entry_bytes:
            return True
        return bool(note.borders) and note.borders[-1][0] > last

    async def _try_to_index(self, note: Touched) -> None:
        try:
            await self._index(note)
        except ContainerOfflineError:
            pass  # The container ends, and this job with it.
        except UnreadableDataError as error:
            logger.error("container %d: index of %s: %s", self._container_id, note.segment.name, error)
        except (PenstockError, OSError) as error:
            logger.warning("container %d: index of %s: %s", self._container_id, note.segment.name, error)

    async def _index(self, note: Touched) -> None:
        segment = note.segment
        if segment.is_deleted or segment.is_sealed or not self._indexes.may_have_one(segment):
            return
        last = self._indexed.pop(segment.id, None)
        if last is None:
            last = await self._indexes.last_offset(segment)
            while len(self._indexed) >= self._settings.index_segments_max:
                del self._indexed[next(iter(self._indexed))]
        borders: list[Border] = [border for border in note.borders if border[0] > last]
        if borders:
            last = borders[-1][0]
        if segment.length - last >= self._settings.index_entry_bytes:
            borders.append((segment.length, segment.event_count, segment.last_modified_ms))
            last = segment.length
        if borders:
            await self._indexes.write(segment, borders)
        self._indexed[segment.id] = last


def _counts(note: Touched) -> bool:
    segment = note.segment
    return not (segment.is_table or segment.is_system) and has_index_segment(segment.name)
