"""Configuration of a stream: scaling, retention, tags.

Values only: limits that depend on a stream's history are checked by the controller.

Source: controller-api 3 (ScalingPolicy, RetentionPolicy, StreamConfig) and 7.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from penstock.model.errors import InvalidArgumentError

#: "No upper limit" of a retention policy, as Pravega's clients write it.
LIMIT_NONE = (1 << 63) - 1
#: A stream has fewer tags than this, and each is shorter than `TAG_LENGTH_LIMIT` characters.
TAG_COUNT_LIMIT = 128
TAG_LENGTH_LIMIT = 256

_INT32_MAX = (1 << 31) - 1


class ScalingKind(IntEnum):
    """The measure that a stream scales by. The numbers are those of the wire."""

    FIXED = 0
    BY_DATA_RATE = 1
    BY_EVENT_RATE = 2


class RetentionKind(IntEnum):
    """The measure of a retention policy. The numbers are those of the wire (0 there means: no policy)."""

    BY_TIME = 1
    BY_SIZE = 2


class GroupRetention(IntEnum):
    """Which data a reader group retains in its streams. The numbers are those of the wire.

    A group that retains data subscribes to its streams: retention keeps unacknowledged data, up to the maximum of the
    stream's policy. Source: Pravega, ``ReaderGroupConfig.StreamDataRetention``.
    """

    #: None: the stream's policy applies, whether data was read or not.
    NONE = 0
    #: Data that the application has not acknowledged, see `ReaderGroup.acknowledge`.
    MANUAL = 1
    #: Data after its last checkpoint, which is acknowledged automatically. Without automatic checkpoints, data after
    #: the group's stored positions.
    AUTOMATIC = 2

    @classmethod
    def of(cls, value: GroupRetention | str) -> GroupRetention:
        """Return the member of this name: "none", "manual" or "automatic". Raises `InvalidArgumentError`."""
        if isinstance(value, cls):
            return value
        found = cls.__members__.get(value.upper()) if isinstance(value, str) else None
        if found is None:
            known = ", ".join(repr(name.lower()) for name in cls.__members__)
            raise InvalidArgumentError(f"retention={value!r} of a reader group: use one of {known}")
        return found


def _positive(name: str, value: int, limit: int = _INT32_MAX) -> int:
    if not 1 <= value <= limit:
        raise InvalidArgumentError(f"{name} is {value}: use 1 to {limit}")
    return value


@dataclass(frozen=True, slots=True)
class Scaling:
    """When the number of a stream's segments changes. Make one with `fixed`, `by_event_rate` or `by_data_rate`.

    Attributes:
        kind: the measure.
        target_rate: events/s or kilobytes/s that one segment should carry; 0 for a fixed count.
        factor: number of segments that a hot one is split into; 0 for a fixed count.
        min_segments: initial and minimum number of segments.
    """

    kind: ScalingKind = ScalingKind.FIXED
    target_rate: int = 0
    factor: int = 0
    min_segments: int = 1

    @classmethod
    def fixed(cls, segments: int) -> Scaling:
        """Keep `segments` segments (1 or more) until the policy is changed.

        Events with the same routing key go to the same segment; a segment is read by one reader at a time.
        """
        return cls(ScalingKind.FIXED, 0, 0, _positive("segments", segments))

    @classmethod
    def by_event_rate(cls, target_rate: int, factor: int = 2, min_segments: int = 1) -> Scaling:
        """Split a segment into `factor` when it takes many more than `target_rate` events/s, merge cold neighbours.

        The stream never has fewer than `min_segments`.
        """
        return cls._by_rate(ScalingKind.BY_EVENT_RATE, "target_rate", target_rate, factor, min_segments)

    @classmethod
    def by_data_rate(cls, kilobytes_per_s: int, factor: int = 2, min_segments: int = 1) -> Scaling:
        """Split a segment into `factor` when it takes far more than `kilobytes_per_s`, merge cold neighbours.

        The stream never has fewer than `min_segments`.
        """
        return cls._by_rate(ScalingKind.BY_DATA_RATE, "kilobytes_per_s", kilobytes_per_s, factor, min_segments)

    @classmethod
    def _by_rate(cls, kind: ScalingKind, rate_name: str, rate: int, factor: int, min_segments: int) -> Scaling:
        _positive(rate_name, rate)
        if factor < 2:
            raise InvalidArgumentError(f"factor is {factor}: a hot segment is split into 2 or more")
        return cls(kind, rate, _positive("factor", factor), _positive("min_segments", min_segments))

    def checked(self) -> Scaling:
        """Return this policy, or raise `InvalidArgumentError` if it is inconsistent.

        Pravega's clients create policies without `by_event_rate` and `by_data_rate`; a fixed one may carry any rate and
        factor (the Rust client sends 1), which are ignored.
        """
        if self.min_segments < 1:
            raise InvalidArgumentError(f"a stream needs 1 segment or more, not {self.min_segments}")
        if self.kind is not ScalingKind.FIXED:
            _positive("target rate", self.target_rate)
            _positive("scale factor", self.factor)
        return self


@dataclass(frozen=True, slots=True)
class Retention:
    """How much of a stream is retained. Make one with `by_time` or `by_size`; a stream without one retains everything.

    Attributes:
        kind: the measure.
        min_limit: milliseconds or bytes that are always retained.
        max_limit: milliseconds or bytes that are never exceeded, even for a subscriber that lags; 0 and `LIMIT_NONE`
            both mean that there is no such limit.
    """

    kind: RetentionKind
    min_limit: int
    max_limit: int = LIMIT_NONE

    @classmethod
    def by_time(
        cls,
        *,
        days: float = 0,
        hours: float = 0,
        minutes: float = 0,
        seconds: float = 0,
        max_days: float = 0,
        max_hours: float = 0,
        max_minutes: float = 0,
        max_seconds: float = 0,
    ) -> Retention:
        """Retain the data written in the last `days` + `hours` + `minutes` + `seconds`.

        With a maximum, subscribers that have not read that far retain older data up to that age; without one they
        retain it for as long as they need it.
        """
        least = _milliseconds(days, hours, minutes, seconds)
        most = _milliseconds(max_days, max_hours, max_minutes, max_seconds)
        return cls._checked(RetentionKind.BY_TIME, "ms", least, most)

    @classmethod
    def by_size(cls, bytes_min: int, bytes_max: int = 0) -> Retention:
        """Keep the newest `bytes_min` bytes; let subscribers that lag hold up to `bytes_max` (0 = no limit)."""
        return cls._checked(RetentionKind.BY_SIZE, "bytes", bytes_min, bytes_max)

    @classmethod
    def _checked(cls, kind: RetentionKind, unit: str, least: int, most: int) -> Retention:
        if not 0 < least <= LIMIT_NONE:
            raise InvalidArgumentError(f"retention of {least} {unit}: give a positive amount (no policy keeps all)")
        if most < 0 or 0 < most < least:
            raise InvalidArgumentError(f"retention maximum of {most} {unit} is below the minimum of {least} {unit}")
        return cls(kind, least, min(most, LIMIT_NONE) or LIMIT_NONE)

    def checked(self) -> Retention:
        """Return this policy, or raise `InvalidArgumentError` if it is inconsistent.

        A minimum of 0 is allowed, as Pravega's clients may send it: no data has to be retained.
        """
        unit = "ms" if self.kind is RetentionKind.BY_TIME else "bytes"
        if self.min_limit < 0:
            raise InvalidArgumentError(f"retention of {self.min_limit} {unit}: use 0 or more")
        if self.max_limit < 0 or 0 < self.max_limit < self.min_limit:
            raise InvalidArgumentError(
                f"retention maximum of {self.max_limit} {unit} is below the minimum of {self.min_limit} {unit}"
            )
        return self

    @property
    def has_max(self) -> bool:
        """Return whether there is an upper limit."""
        return 0 < self.max_limit < LIMIT_NONE


def _milliseconds(days: float, hours: float, minutes: float, seconds: float) -> int:
    if min(days, hours, minutes, seconds) < 0:
        raise InvalidArgumentError("a retention period cannot have negative parts")
    return round(((days * 24 + hours) * 60 + minutes) * 60_000 + seconds * 1000)


@dataclass(frozen=True, slots=True)
class StreamConfig:
    """The configuration of a stream.

    Attributes:
        scaling: when the number of segments changes.
        retention: how much data is retained; None retains all.
        tags: words to find the stream by; fewer than 128, each shorter than 256 characters.
        timestamp_aggregation_timeout_ms: after this time without a noted time, a writer's clock no longer counts.
        rollover_bytes: largest chunk in long-term storage; 0 = the segment store's default.
    """

    scaling: Scaling = Scaling()
    retention: Retention | None = None
    tags: tuple[str, ...] = ()
    timestamp_aggregation_timeout_ms: int = 0
    rollover_bytes: int = 0

    def checked(self) -> StreamConfig:
        """Return this configuration with duplicate tags dropped, or raise `InvalidArgumentError`.

        Performs all checks that do not need the stream: both policies, sizes not negative, tags within bounds.
        """
        self.scaling.checked()
        if self.retention is not None:
            self.retention.checked()
        if self.rollover_bytes < 0:
            raise InvalidArgumentError(f"rollover size of {self.rollover_bytes} bytes: use 0 (default) or more")
        tags = tuple(dict.fromkeys(self.tags))
        if len(tags) >= TAG_COUNT_LIMIT:
            raise InvalidArgumentError(f"{len(tags)} tags: a stream has fewer than {TAG_COUNT_LIMIT}")
        for tag in tags:
            if len(tag) >= TAG_LENGTH_LIMIT:
                raise InvalidArgumentError(f"tag {tag[:32]!r}... has {len(tag)} characters: use fewer than 256")
        if tags == self.tags:
            return self
        return StreamConfig(
            self.scaling, self.retention, tags, self.timestamp_aggregation_timeout_ms, self.rollover_bytes
        )


#: One segment that reports no load: of transactions, or sealed as soon as it is filled.
NO_SCALING = Scaling(ScalingKind.FIXED)
