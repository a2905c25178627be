"""`BackPressure`: which operations of clients a container holds, and how much it admits once it has room.

Client appends and table updates wait while the cache, the log or the backlog of long-term storage is nearly full, and
while the log's file system has no space. The container's own operations never wait: they reduce the load.
"""

from __future__ import annotations

from penstock.segmentstore.container.events import ContainerEvents
from penstock.segmentstore.container.log.pipeline import OperationPipeline
from penstock.segmentstore.container.segment_quota import SegmentQuota
from penstock.segmentstore.container.space import SpaceWatch
from penstock.segmentstore.container.state import ContainerState
from penstock.segmentstore.container.throttle import Bounds, Throttle, hold_bytes
from penstock.segmentstore.container_settings import ContainerSettings
from penstock.segmentstore.settings import ThrottleSettings


class BackPressure:
    """The throttle and the segment quota of one container, with the figures they decide by.

    Attributes:
        throttle: holds appends and table updates of clients back while a resource is nearly full.
        quota: holds appends to a segment back when long-term storage does not accept its data.
        settings: of both.
        pipeline: its outstanding bytes count; None until the log is replayed.
    """

    def __init__(
        self,
        state: ContainerState,
        space: SpaceWatch,
        events: ContainerEvents,
        settings: ContainerSettings,
        throttle: ThrottleSettings,
    ) -> None:
        cache = state.cache
        self.settings: ThrottleSettings = throttle
        self.throttle: Throttle = Throttle(throttle, self._room_bytes)
        self.quota: SegmentQuota = SegmentQuota(
            throttle.segment_backlog_bytes_max(cache.settings), hold_s_max=throttle.segment_hold_s_max
        )
        self.pipeline: OperationPipeline | None = None
        self.bounds: Bounds
        self.urgent_bounds: Bounds
        self.bounds, self.urgent_bounds = (
            Bounds.of(throttle, cache.settings, settings.outstanding_bytes_max, is_urgent=is_urgent)
            for is_urgent in (False, True)
        )
        self._reserved_bounds = Bounds.reserved(throttle, cache.settings, settings.outstanding_bytes_max)
        self._state = state
        self._space = space
        self._events = events
        self._cache_thresholds = (hold_bytes(throttle, cache.settings), cache.settings.essential_bytes)
        for mark_bytes in self._cache_thresholds:
            cache.on_fall_below(mark_bytes, self.throttle.notify)

    def must_wait(self, *, is_urgent: bool = False) -> bool:
        """Whether a client's append or table update must be held by `throttle`; never for the container's own."""
        if not self.throttle.must_wait(is_urgent=is_urgent):
            return False
        self._events.on_pressure()  # The storage writer may be asleep.
        return True

    def relieve(self) -> None:
        """Admit held operations as far as there is room: long-term storage may have freed space."""
        self.throttle.notify()
        self.quota.notify()

    def _room_bytes(self, is_urgent: bool) -> int:
        if self._space.is_log_low and not is_urgent:
            return 0
        backlog, cache = self._state.backlog, self._state.cache
        outstanding_bytes = 0 if self.pipeline is None else self.pipeline.outstanding_bytes
        room_bytes = (self.urgent_bounds if is_urgent else self.bounds).room_bytes(
            cache_bytes=cache.used_bytes,
            outstanding_bytes=outstanding_bytes,
            backlog_bytes=backlog.byte_count,
            backlog_operations=backlog.operation_count,
        )
        if not is_urgent or room_bytes > 0:
            return room_bytes
        return self._reserved_bounds.room_bytes(
            cache_bytes=cache.urgent_lacking_bytes,
            outstanding_bytes=outstanding_bytes,
            backlog_bytes=backlog.urgent.byte_count,
            backlog_operations=backlog.urgent.operation_count,
        )

    def close(self) -> None:
        """Admit everything that is held: the container is stopping, and rejects it."""
        self.throttle.close()
        self.quota.close()

    def release(self) -> None:
        """Stop listening to the cache, which the containers of a process share."""
        for mark_bytes in self._cache_thresholds:
            self._state.cache.forget_fall_below(mark_bytes, self.throttle.notify)
