"""Load of segments and containers: events, bytes, and their rates as moving averages.

Rates are exponential averages over 2, 5, 10 and 20 minutes, measured every 5 s; the first measurement sets them. Only
segments with recent data are kept. Silence costs nothing: it is accounted for when a segment is next processed. A
merged transaction counts for its target, with its events, when it is merged; the averages treat these as if they had
arrived evenly over its life.

Each change of a segment's counts has a number. A repeated query passes the last number known, and gets only the
segments changed since, a page at a time: no query scans all of them.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter

from penstock.segmentstore.container_settings import ScaleAdviceSettings, StatisticsSettings
from penstock.segmentstore.idle_segments import IdleSegments
from penstock.wire.statistics import SegmentRow

#: Minutes over which rates are averaged.
WINDOWS_MINUTES = (2, 5, 10, 20)
#: Segments measured in one step.
_STEP_SEGMENTS = 512


@dataclass(frozen=True, slots=True)
class Rates:
    """Averages over the last 2, 5, 10 and 20 minutes, per second."""

    minutes_2: float
    minutes_5: float
    minutes_10: float
    minutes_20: float


@dataclass(frozen=True, slots=True)
class SegmentStatistics:
    """Load of one segment since the store began to watch it, `age_s` ago.

    `scale_type` and `target_rate` are the segment's policy, as encoded on the wire.
    """

    name: str
    age_s: float
    silent_s: float
    event_count: int
    byte_count: int
    events_per_s: Rates
    bytes_per_s: Rates
    scale_type: int
    target_rate: int


@dataclass(frozen=True, slots=True)
class ContainerStatistics:
    """Load of one container; `segments` are those with recent data, the most recent last.

    Attributes:
        log_bytes: length of its log; a start has to read all of it.
        is_log_long: whether something prevents the truncation of the log; a warning gives the cause.
        backlog_bytes: appended bytes that long-term storage lacks, ...
        backlog_operations: ... and operations of any kind.
        held_append_count: appends held because too much of their segment waits for long-term storage.
    """

    container_id: int
    event_count: int
    byte_count: int
    events_per_s: Rates
    bytes_per_s: Rates
    segments: Sequence[SegmentStatistics]
    log_bytes: int = 0
    is_log_long: bool = False
    backlog_bytes: int = 0
    backlog_operations: int = 0
    held_append_count: int = 0


class MovingRates:
    """Moving averages of one counter, measured every `tick_s`; `unit_s` is the minute of their windows."""

    __slots__ = ("_averages", "_is_set", "_tick_s", "_unit_s")

    def __init__(self, tick_s: float, unit_s: float = 60.0) -> None:
        self._tick_s = tick_s
        self._unit_s = unit_s
        self._averages = [0.0] * len(WINDOWS_MINUTES)
        self._is_set = False

    def measure(self, count: int, silent_ticks: int = 0) -> None:
        """Add `count` of the tick that ends now, after `silent_ticks` ticks with nothing."""
        rate = count / self._tick_s
        if not self._is_set:
            if count:
                self._is_set = True
                self._averages = [rate] * len(WINDOWS_MINUTES)
            return
        for at, minutes in enumerate(WINDOWS_MINUTES):
            kept = math.exp(-self._tick_s / (self._unit_s * minutes))
            self._averages[at] = self._averages[at] * kept ** (silent_ticks + 1) + rate * (1 - kept)

    def spread(self, count: int, life_s: float) -> None:
        """Add `count` spread evenly over the `life_s` seconds that end now, in addition to what was measured."""
        rate = count / life_s
        if not self._is_set:
            self._is_set = True
            self._averages = [rate] * len(WINDOWS_MINUTES)
            return
        for at, minutes in enumerate(WINDOWS_MINUTES):
            self._averages[at] += rate * (1 - math.exp(-life_s / (self._unit_s * minutes)))

    def rates(self, silent_ticks: int = 0) -> Rates:
        """Return the averages after this many further ticks with nothing."""
        return Rates(
            *(
                average * math.exp(-self._tick_s * silent_ticks / (self._unit_s * minutes))
                for average, minutes in zip(self._averages, WINDOWS_MINUTES, strict=True)
            )
        )


class _Load:
    """Counts and rates of one segment, or of all of a container."""

    __slots__ = (
        "byte_count",
        "byte_rates",
        "change",
        "event_count",
        "event_rates",
        "is_gone",
        "last_byte_count",
        "last_event_count",
        "length_bytes",
        "measured_s",
        "name",
        "scale_type",
        "since_s",
        "spread_bytes",
        "spread_events",
        "spread_life_s",
        "target_rate",
        "tick",
        "tick_bytes",
        "tick_events",
    )

    def __init__(self, name: str, since_s: float, tick: int, settings: StatisticsSettings) -> None:
        self.name = name
        self.since_s = since_s
        self.event_count = 0
        self.byte_count = 0
        self.event_rates = MovingRates(settings.tick_s, settings.window_unit_s)
        self.byte_rates = MovingRates(settings.tick_s, settings.window_unit_s)
        self.scale_type = 0
        self.target_rate = 0
        #: Number of the last tick accounted for, and the counts since.
        self.tick = tick
        self.tick_events = 0
        self.tick_bytes = 0
        #: The part of these that came with transactions, and their lifetime.
        self.spread_events = 0
        self.spread_bytes = 0
        self.spread_life_s = 0.0
        #: The counts of the last pass with any data, and its time.
        self.last_event_count = 0
        self.last_byte_count = 0
        self.measured_s = since_s
        self.length_bytes = 0
        #: Number of its last change, in its container.
        self.change = 0
        self.is_gone = False

    def add(self, events: int, byte_count: int, merged: tuple[int, int, float]) -> None:
        self.event_count += events
        self.byte_count += byte_count
        self.tick_events += events
        self.tick_bytes += byte_count
        merged_events, merged_bytes, life_s = merged
        if life_s:
            self.spread_events += merged_events
            self.spread_bytes += merged_bytes
            self.spread_life_s = max(self.spread_life_s, life_s)

    def measure(self, tick: int) -> None:
        silent = tick - self.tick - 1
        self.event_rates.measure(self.tick_events - self.spread_events, silent)
        self.byte_rates.measure(self.tick_bytes - self.spread_bytes, silent)
        if self.spread_life_s:
            self.event_rates.spread(self.spread_events, self.spread_life_s)
            self.byte_rates.spread(self.spread_bytes, self.spread_life_s)
            self.spread_events = self.spread_bytes = 0
            self.spread_life_s = 0.0
        self.tick_events = self.tick_bytes = 0
        self.tick = tick

    def statistics(self, tick: int, tick_s: float, now_s: float) -> SegmentStatistics:
        silent = tick - self.tick
        return SegmentStatistics(
            self.name,
            now_s - self.since_s,
            silent * tick_s,
            self.event_count,
            self.byte_count,
            self.event_rates.rates(silent),
            self.byte_rates.rates(silent),
            self.scale_type,
            self.target_rate,
        )


_CHANGE = attrgetter("change")


@dataclass(frozen=True, slots=True)
class Page:
    """The result of `Statistics.page`: see `ContainerReport` for fields of the same name.

    `change`: number of the last change included.
    """

    segments: list[SegmentRow]
    change: int
    is_complete: bool
    measured_s: float
    interval_s: float
    oldest_s: float
    segment_count: int
    event_count: int
    byte_count: int
    last_event_count: int
    last_byte_count: int
    events_per_s: Rates
    bytes_per_s: Rates


class Statistics:
    """Measures the load of one container. `now_s` is always the loop's time."""

    def __init__(
        self,
        container_id: int,
        settings: StatisticsSettings,
        now_s: float,
        advice: ScaleAdviceSettings | None = None,
    ) -> None:
        self._container_id = container_id
        self._settings = settings
        self._start_s = now_s
        #: Segments to be merged if they get no data for long.
        self.quiet: IdleSegments = IdleSegments(settings.expiry_s, advice or ScaleAdviceSettings())
        #: When a load was last dropped because of the limit.
        self._short_of_room_s = float("-inf")
        self._tick = 0
        # By segment id, in the order of their last changes. Removed ones stay until they expire, to be reported.
        self._segments: dict[int, _Load] = {}
        self._changed: dict[int, _Load] = {}
        self._all = _Load("", now_s, 0, settings)
        self._change = 0
        self._gone_count = 0
        self._has_dropped = False
        self._now_s = now_s
        self._polled_event_count = 0
        self._polled_byte_count = 0
        self._interval_s = 0.0

    def add(
        self,
        segment_id: int,
        name: str,
        *,
        events: int,
        byte_count: int,
        scale_type: int,
        target_rate: int,
        now_s: float,
        length_bytes: int = 0,
        merged: tuple[int, int, float] = (0, 0, 0.0),
    ) -> None:
        """Add the data of a segment since the last call for it. `length_bytes`: its present length.

        `merged`: the part of the events and bytes that came with transactions, and the seconds over which these were
        written.
        """
        self.quiet.forget(segment_id)
        load = self._segments.pop(segment_id, None)
        if load is None or load.is_gone:
            self._gone_count -= load is not None
            load = _Load(name, now_s, self._tick, self._settings)
            while len(self._segments) >= self._settings.segments_max:
                self._drop_oldest()
                self._short_of_room_s = now_s
        self._segments[segment_id] = load
        self._changed[segment_id] = load
        self._change += 1
        load.change = self._change
        load.scale_type, load.target_rate = scale_type, target_rate
        load.last_event_count, load.last_byte_count, load.measured_s = events, byte_count, now_s
        load.length_bytes = length_bytes
        self._now_s = now_s
        load.add(events, byte_count, merged)
        self._all.add(events, byte_count, merged)

    def forget(self, segment_id: int) -> None:
        """Drop a segment that is sealed or deleted: it gets no more data."""
        self.quiet.forget(segment_id)
        load = self._segments.get(segment_id)
        if load is None or load.is_gone:
            return
        del self._segments[segment_id]
        self._changed.pop(segment_id, None)
        self._change += 1
        self._gone_count += 1
        load.change, load.is_gone, load.tick = self._change, True, self._tick
        load.measured_s = self._now_s  # They are in the order of time, too.
        self._segments[segment_id] = load

    def polled(self, now_s: float) -> None:
        """Note that all data until `now_s` has been counted."""
        whole = self._all
        whole.last_event_count = whole.event_count - self._polled_event_count
        whole.last_byte_count = whole.byte_count - self._polled_byte_count
        self._polled_event_count, self._polled_byte_count = whole.event_count, whole.byte_count
        self._interval_s, whole.measured_s = now_s - whole.measured_s, now_s

    def _drop_oldest(self) -> None:
        segment_id = next(iter(self._segments))
        load = self._segments.pop(segment_id)
        self._changed.pop(segment_id, None)
        self._gone_count -= load.is_gone
        self._has_dropped = True

    def advance(self, now_s: float) -> None:
        """Measure if a tick has ended; drop segments that were silent for long."""
        for _ in self.advance_in_steps(now_s):
            pass

    def advance_in_steps(self, now_s: float) -> Iterator[None]:
        """Like `advance`; other tasks may read, and forget segments, between steps."""
        tick = int((now_s - self._start_s) / self._settings.tick_s)
        if tick == self._tick:
            return
        self._tick = tick
        changed, self._changed = self._changed, {}
        for number, load in enumerate(changed.values()):
            if number % _STEP_SEGMENTS == _STEP_SEGMENTS - 1:
                yield
            load.measure(tick)
        self._all.measure(tick)
        oldest_tick = tick - self._settings.expiry_s / self._settings.tick_s
        while self._segments:
            segment_id, load = next(iter(self._segments.items()))
            if load.tick > oldest_tick:
                break
            self._drop_oldest()
            if load.scale_type and not load.is_gone:
                self.quiet.note(segment_id, load.name, load.measured_s)

    @property
    def event_count(self) -> int:
        """Events counted since the container started."""
        return self._all.event_count

    @property
    def byte_count(self) -> int:
        """Bytes counted since the container started."""
        return self._all.byte_count

    # Input for scaling advice: see `scale_advice`.

    @property
    def window_unit_s(self) -> float:
        """The length of a minute in the windows of averages, in seconds."""
        return self._settings.window_unit_s

    def known_ids(self) -> list[int]:
        """Return the ids of segments with recent data, including removed ones."""
        return list(self._segments)

    def load(self, segment_id: int, now_s: float) -> SegmentStatistics | None:
        """Return the load of one segment as of the last tick; None if it is not remembered."""
        load = self._segments.get(segment_id)
        if load is None or load.is_gone:
            return None
        return load.statistics(self._tick, self._settings.tick_s, now_s)

    def is_silent(self, segment_id: int, now_s: float, age_s: float) -> bool:
        """Return whether a segment of age `age_s` is known to have got no data for as long as loads are kept."""
        expiry_s = self._settings.expiry_s
        known_s = now_s - max(self._start_s, self._short_of_room_s)
        return segment_id not in self._segments and min(known_s, age_s) >= expiry_s

    def snapshot(self, now_s: float) -> ContainerStatistics:
        """Return the load as of the last tick."""
        tick_s = self._settings.tick_s
        return ContainerStatistics(
            self._container_id,
            self._all.event_count,
            self._all.byte_count,
            self._all.event_rates.rates(),
            self._all.byte_rates.rates(),
            [load.statistics(self._tick, tick_s, now_s) for load in self._segments.values() if not load.is_gone],
        )

    def page(self, after: int, count_max: int) -> Page:
        """Return the segments changed after the change of that number, the oldest change first, up to `count_max`.

        Costs time for `count_max` segments, and a copy of references to all remembered ones.
        """
        loads = list(self._segments.values())
        start = bisect_right(loads, after, key=_CHANGE)
        found = loads[start : start + count_max]
        whole = self._all
        return Page(
            [
                SegmentRow(
                    load.name,
                    load.length_bytes,
                    load.event_count,
                    load.byte_count,
                    load.last_event_count,
                    load.last_byte_count,
                    round(load.measured_s, 6),
                    load.is_gone,
                )
                for load in found
            ],
            found[-1].change if found else after,
            start + len(found) == len(loads),
            round(whole.measured_s, 6),
            round(self._interval_s, 6),
            round(loads[0].measured_s if loads else self._now_s + 1.0, 6) if self._has_dropped else 0.0,
            len(loads) - self._gone_count,
            whole.event_count,
            whole.byte_count,
            whole.last_event_count,
            whole.last_byte_count,
            whole.event_rates.rates(),
            whole.byte_rates.rates(),
        )
