"""`StoreScaleAdvisor`: scaling advice of a segment store for the containers that it runs."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from penstock.model.errors import ContainerNotFoundError, NoSuchSegmentError
from penstock.model.names import ContainerId
from penstock.model.scale_advice import ScaleAdvice
from penstock.segmentstore.container.container import SegmentContainer
from penstock.segmentstore.container.segment import Segment
from penstock.segmentstore.container_settings import ScaleAdviceSettings
from penstock.segmentstore.scale_advice import MostUrgent, advise, silence
from penstock.segmentstore.store import SegmentStore

#: Loads processed before other tasks run: about a millisecond.
_SLICE_SEGMENTS = 256
#: If not all advice fits in an answer, the selection changes after this time.
_TURN_S = 60.0


class StoreScaleAdvisor:
    """`ScaleAdvisor` by direct calls. Stateless."""

    def __init__(self, store: SegmentStore) -> None:
        self._store = store

    async def scale_advice(self, container_id: int, segments: Sequence[str] | None = None) -> Sequence[ScaleAdvice]:
        """See `ScaleAdvisor.scale_advice`."""
        container = next((each for each in self._store.containers if each.id == container_id), None)
        if container is None:
            raise ContainerNotFoundError(ContainerId(container_id), "it is not running here")
        settings = self._store.settings.container.activity.scale_advice
        if segments is None:
            return await _about_all(container, settings)
        asked = [await self._about(name, settings) for name in segments[: settings.advice_max]]
        return [advice for advice in asked if advice is not None]

    async def _about(self, name: str, settings: ScaleAdviceSettings) -> ScaleAdvice | None:
        try:
            async with self._store.using(name) as (container, segment):
                return self._about_segment(container, segment, settings)
        except NoSuchSegmentError:
            return None

    def _about_segment(
        self, container: SegmentContainer, segment: Segment, settings: ScaleAdviceSettings
    ) -> ScaleAdvice | None:
        if segment.is_sealed or not segment.scale_type:
            return None
        advice = _about_load(container, segment.id, segment, settings)
        if advice is not None:
            return advice
        age_s = (self._store.runtime.wall_clock_ms() - segment.created_ms) / 1000
        now_s = asyncio.get_running_loop().time()
        if container.activity_watch.statistics.is_silent(segment.id, now_s, age_s):
            return silence(segment.name)
        return None


async def _about_all(container: SegmentContainer, settings: ScaleAdviceSettings) -> list[ScaleAdvice]:
    statistics, by_id = container.activity_watch.statistics, container.state.metadata.by_id
    found = MostUrgent(settings.advice_max)
    for number, segment_id in enumerate(statistics.known_ids()):
        if number % _SLICE_SEGMENTS == _SLICE_SEGMENTS - 1:
            await asyncio.sleep(0)
        advice = _about_load(container, segment_id, by_id.get(segment_id), settings)
        if advice is not None:
            found.take(advice)
    now_s = asyncio.get_running_loop().time()
    for number, (segment_id, name) in enumerate(statistics.quiet.silent(now_s)):
        if number % _SLICE_SEGMENTS == _SLICE_SEGMENTS - 1:
            await asyncio.sleep(0)
        segment = by_id.get(segment_id)
        if segment is None or not (segment.is_sealed or segment.is_deleted or not segment.scale_type):
            found.take(silence(name))
    return found.chosen(int(now_s / _TURN_S))


def _about_load(
    container: SegmentContainer, segment_id: int, segment: Segment | None, settings: ScaleAdviceSettings
) -> ScaleAdvice | None:
    """Return the advice for a segment from its load and its present policy; `segment`: None if it is not in memory."""
    statistics = container.activity_watch.statistics
    load = statistics.load(segment_id, asyncio.get_running_loop().time())
    if load is None:
        return None
    if segment is not None:
        if segment.is_sealed or segment.is_deleted:
            return None
        load = replace(load, scale_type=segment.scale_type, target_rate=segment.target_rate)
    return advise(load, settings, statistics.window_unit_s)
