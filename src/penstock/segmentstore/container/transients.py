"""`TransientSegments`: limits the number and age of large events under construction in one container.

A transient segment holds the pieces of one large event until it is merged into its parent. It stays in memory and takes
one of the container's slots for active segments. Clients may create any number of them: without limits one client could
take all slots, and no other segment could be created or found. See docs/segments.md.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from penstock.model.errors import (
    NoSuchSegmentError,
    PenstockError,
    SegmentMergedError,
    TooManyTransientSegmentsError,
)
from penstock.model.names import parent_segment_name
from penstock.segmentstore.container.life import FATAL_ERRORS
from penstock.segmentstore.container.metadata import ContainerMetadata
from penstock.segmentstore.container.segment import Segment
from penstock.segmentstore.container_settings import TransientSettings

logger: logging.Logger = logging.getLogger(__name__)

#: A sweep counts at most this many intervals since the last one, because nothing was observed in between.
_INTERVALS_COUNTED_MAX = 2.0


class TransientSegments:
    """The limits of one container's transient segments; deletes idle ones.

    Args:
        count_max: maximum number in the container.
        delete: deletes a segment by name.
        takes_bytes: whether appends are accepted now. Time in which they are not does not count as idle.
    """

    def __init__(
        self,
        metadata: ContainerMetadata,
        settings: TransientSettings,
        *,
        count_max: int,
        delete: Callable[[str], Awaitable[None]],
        takes_bytes: Callable[[], bool],
    ) -> None:
        self._metadata = metadata
        self._settings = settings
        self._count_max = count_max
        self._delete = delete
        self._takes_bytes = takes_bytes
        #: By id, as of the last sweep: the length, and the number of seconds for which it has not changed.
        self._idle: dict[int, tuple[int, float]] = {}
        self._swept_s = asyncio.get_running_loop().time()
        #: Number of segments deleted because they were idle.
        self.expired_count: int = 0

    @property
    def free_count(self) -> int:
        """Number of further transient segments that the container may have."""
        return max(0, self._count_max - self._metadata.transient_count)

    def check(self, name: str) -> None:
        """Raise `TooManyTransientSegmentsError` if a transient segment `name` would exceed a limit."""
        parent = parent_segment_name(name)
        if len(self._metadata.transients.get(parent, ())) >= self._settings.parent_max:
            raise TooManyTransientSegmentsError(
                name,
                whose=f"segment {parent}",
                count_max=self._settings.parent_max,
                setting="segment_store.container.transients.parent_max",
            )
        if self._metadata.transient_count >= self._count_max:
            raise TooManyTransientSegmentsError(
                name,
                whose=f"container {self._metadata.container_id}",
                count_max=self._count_max,
                setting="segment_store.container.transients.share_percent_max",
            )

    async def drop_all(self) -> None:
        """Delete the segments of connections of an earlier incarnation: their large events can never be completed."""
        names = [segment.name for siblings in self._metadata.transients.values() for segment in siblings.values()]
        await asyncio.gather(*map(self._delete, names))

    async def run(self) -> None:
        """Delete idle transient segments, for as long as the container runs."""
        while True:
            await asyncio.sleep(self._settings.sweep_interval_s)
            await self.sweep()

    async def sweep(self) -> int:
        """Delete segments that have received no bytes for `idle_s`; return the number deleted."""
        now_s = asyncio.get_running_loop().time()
        elapsed_s = min(now_s - self._swept_s, _INTERVALS_COUNTED_MAX * self._settings.sweep_interval_s)
        self._swept_s = now_s
        if not self._takes_bytes():
            elapsed_s = 0.0
        before, self._idle = self._idle, {}
        expired: list[Segment] = []
        for siblings in self._metadata.transients.values():
            for segment in siblings.values():
                length, idle_s = before.get(segment.id, (-1, 0.0))
                idle_s = idle_s + elapsed_s if length == segment.length and not segment.use_count else 0.0
                self._idle[segment.id] = (segment.length, idle_s)
                if idle_s >= self._settings.idle_s:
                    expired.append(segment)
        count = 0
        for segment in expired:
            count += await self._expire(segment)
        self.expired_count += count
        if count:
            logger.info(
                "container %d: deleted %d transient segments that took no bytes for %g s (transients.idle_s)",
                self._metadata.container_id,
                count,
                self._settings.idle_s,
            )
        return count

    async def _expire(self, segment: Segment) -> bool:
        if segment.use_count or segment.length != self._idle[segment.id][0]:
            return False  # It is in use again.
        try:
            await self._delete(segment.name)
        except (NoSuchSegmentError, SegmentMergedError):
            return False  # Its connection was closed, or the event is complete.
        except FATAL_ERRORS:
            raise
        except (PenstockError, OSError) as error:
            # It still exists and is still idle: the next sweep retries.
            logger.warning("container %d: %s is not deleted: %s", self._metadata.container_id, segment.name, error)
            return False
        return True
