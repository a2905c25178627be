"""Load of segments and containers: events, bytes, and their rates as moving averages.

Rates are exponential averages over 2, 5, 10 and 20 minutes, measured every 5 s; the first measurement sets them. Only
segments that got data lately are kept. Silence costs nothing: it is brought in when a segment is looked at again. A
merged transaction counts for its target, as the events that it brings, when it is merged; in the averages these count
as if they had come evenly over its life.

Each change of a segment's counts has a number. Whoever asks again says up to which one they know, and hears of the
segments with news alone, a page at a time: nobody goes over all of them.

Source: controller specification, section 9.1 (SegmentAggregates).
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter

from penstock.segmentstore.container_settings import ScaleAdviceSettings, StatisticsSettings
from penstock.segmentstore.quiet_segments import QuietSegments
from penstock.wire.statistics import SegmentRow

#: Minutes over which rates are averaged.
WINDOWS_MINUTES = (2, 5, 10, 20)
#: Segments that are measured in one step.
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

    `scale_type` and `target_rate` are the segment's policy, as the wire has it.
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
    """Load of one container; `segments` are those that got data lately, the most recent last.

    Attributes:
        log_bytes: length of its log; a start has to read all of it.
        is_log_long: whether something keeps the log from being cut; a warning says what.
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
    """Moving averages of one counter, a measurement every `tick_s`; `unit_s` is what is a minute in their windows."""

    __slots__ = ("_averages", "_is_set", "_tick_s", "_unit_s")

    def __init__(self, tick_s: float, unit_s: float = 60.0) -> None:
        self._tick_s = tick_s
        self._unit_s = unit_s
        self._averages = [0.0] * len(WINDOWS_MINUTES)
        self._is_set = False

    def measure(self, count: int, silent_ticks: int = 0) -> None:
        """Bring in `count` of the tick that ends now, after `silent_ticks` ticks with nothing."""
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
        """Bring in `count` that came evenly over the `life_s` seconds that end now, beside what was measured."""
        rate = count / life_s
        if not self._is_set:
            self._is_set = True
            self._averages = [rate] * len(WINDOWS_MINUTES)
            return
        for at, minutes in enumerate(WINDOWS_MINUTES):
            self._averages[at] += rate * (1 - math.exp(-life_s / (self._unit_s * minutes)))

    def rates(self, silent_ticks: int = 0) -> Rates:
        """Return the averages after so many further ticks with nothing."""
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
        #: Number of the last tick that was brought in, and what came since.
        self.tick = tick
        self.tick_events = 0
        self.tick_bytes = 0
        #: Of that, what came with transactions, over so long.
        self.spread_events = 0
        self.spread_bytes = 0
        self.spread_life_s = 0.0
        #: What the last look brought that brought anything, and when that was.
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
    """What `Statistics.page` returns: see `ContainerReport` for what has the same name there.

    `change`: number of the last change told.
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
    """Measures the load of one container. `now_s` is the loop's time throughout."""

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
        #: Those that are to be merged if they get nothing for long.
        self.quiet: QuietSegments = QuietSegments(settings.expiry_s, advice or ScaleAdviceSettings())
        #: When a load was last dropped for want of room.
        self._short_of_room_s = float("-inf")
        self._tick = 0
        # By segment id, in the order of their last changes. Those that have gone stay until they expire, to be told.
        self._segments: dict[int, _Load] = {}
        self._changed: dict[int, _Load] = {}
        self._all = _Load("", now_s, 0, settings)
        self._change = 0
        self._gone_count = 0
        self._has_dropped = False
        self._now_s = now_s
        self._looked_event_count = 0
        self._looked_byte_count = 0
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
        """Count what a segment got since the last call for it. `length_bytes`: its length now.

        `merged`: of that, events and bytes that came with transactions, and over how many seconds these were made.
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
        """Drop a segment that is sealed or gone: it will get nothing more."""
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

    def looked(self, now_s: float) -> None:
        """Note that all that came until `now_s` has been counted."""
        whole = self._all
        whole.last_event_count = whole.event_count - self._looked_event_count
        whole.last_byte_count = whole.byte_count - self._looked_byte_count
        self._looked_event_count, self._looked_byte_count = whole.event_count, whole.byte_count
        self._interval_s, whole.measured_s = now_s - whole.measured_s, now_s

    def _drop_oldest(self) -> None:
        segment_id = next(iter(self._segments))
        load = self._segments.pop(segment_id)
        self._changed.pop(segment_id, None)
        self._gone_count -= load.is_gone
        self._has_dropped = True

    def advance(self, now_s: float) -> None:
        """Measure if a tick has ended; expire what was silent for long."""
        for _ in self.advance_in_steps(now_s):
            pass

    def advance_in_steps(self, now_s: float) -> Iterator[None]:
        """Do what `advance` does; others may read, and forget segments, at each step."""
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

    # What loads ask for: see `scale_advice`.

    @property
    def window_unit_s(self) -> float:
        """What is a minute in the windows of averages, in seconds."""
        return self._settings.window_unit_s

    def known_ids(self) -> list[int]:
        """Return the ids of segments that have got data lately, those that are gone included."""
        return list(self._segments)

    def load(self, segment_id: int, now_s: float) -> SegmentStatistics | None:
        """Return the load of one segment as of the last tick; None if it is not remembered."""
        load = self._segments.get(segment_id)
        if load is None or load.is_gone:
            return None
        return load.statistics(self._tick, self._settings.tick_s, now_s)

    def is_silent(self, segment_id: int, now_s: float, age_s: float) -> bool:
        """Say whether it is known that a segment, which is `age_s` old, got nothing for as long as loads are kept."""
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
            [
                load.statistics(self._tick, tick_s, now_s) for load in self._segments.values() if not load.is_gone
            ],
        )

    def page(self, after: int, count_max: int) -> Page:
        """Return the segments changed after the change of that number, the oldest change first, up to `count_max`.

        Costs `count_max` segments' worth, and a copy of references to all that are remembered.
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
