"""The JSON of streams in Pravega's REST interface, and its conversion to and from policies.

Source: controller-api 13. Maxima of retention are read, and never shown, as Pravega does.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from penstock.model.policies import LIMIT_NONE, Retention, RetentionKind, Scaling, ScalingKind, StreamConfig
from penstock.model.sizes import MIB
from penstock.web.errors import BadRequestError

_MINUTE_MS = 60_000
_HOUR_MS = 60 * _MINUTE_MS
_DAY_MS = 24 * _HOUR_MS

#: Numbers that fit into the messages of the controller, and a name that is not empty.
Int32 = Annotated[int, msgspec.Meta(ge=-(1 << 31), le=(1 << 31) - 1)]
Int64 = Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
Name = Annotated[str, msgspec.Meta(min_length=1)]

ScalingType = Literal["FIXED_NUM_SEGMENTS", "BY_RATE_IN_KBYTES_PER_SEC", "BY_RATE_IN_EVENTS_PER_SEC"]
_SCALING_TYPES: dict[ScalingType, ScalingKind] = {
    "FIXED_NUM_SEGMENTS": ScalingKind.FIXED,
    "BY_RATE_IN_KBYTES_PER_SEC": ScalingKind.BY_DATA_RATE,
    "BY_RATE_IN_EVENTS_PER_SEC": ScalingKind.BY_EVENT_RATE,
}


class ScalingPolicy(msgspec.Struct, omit_defaults=True):
    """When segments split and merge."""

    type: ScalingType
    targetRate: Int32 | None = None
    scaleFactor: Int32 | None = None
    minSegments: Int32 | None = None


class TimeBasedRetention(msgspec.Struct):
    """A duration."""

    days: Int32 = 0
    hours: Int32 = 0
    minutes: Int32 = 0


class RetentionPolicy(msgspec.Struct, omit_defaults=True):
    """What is truncated. Sizes are in MiB."""

    type: Literal["LIMITED_DAYS", "LIMITED_SIZE_MB"]
    value: Int32 | None = None
    timeBasedRetention: TimeBasedRetention | None = None
    maxValue: Int32 | None = None
    maxTimeBasedRetention: TimeBasedRetention | None = None


class StreamProperty(msgspec.Struct, omit_defaults=True):
    """A stream and its configuration."""

    scopeName: str
    streamName: str
    scalingPolicy: ScalingPolicy
    tags: list[str]
    timestampAggregationTimeout: int
    rolloverSizeBytes: int
    retentionPolicy: RetentionPolicy | None = None


class CreateStreamRequest(msgspec.Struct):
    """A stream to create."""

    streamName: Name
    scalingPolicy: ScalingPolicy
    retentionPolicy: RetentionPolicy | None = None
    streamTags: list[str] = []
    timestampAggregationTimeout: Int64 = 0
    rolloverSizeBytes: Int64 = 0


class UpdateStreamRequest(msgspec.Struct):
    """The new configuration of a stream."""

    scalingPolicy: ScalingPolicy
    retentionPolicy: RetentionPolicy | None = None
    streamTags: list[str] = []
    timestampAggregationTimeout: Int64 = 0
    rolloverSizeBytes: Int64 = 0


def scaling_of(policy: ScalingPolicy) -> Scaling:
    """Return the policy of a request. Raises `InvalidArgumentError`."""
    kind = _SCALING_TYPES[policy.type]
    minimum = policy.minSegments
    if minimum is None:
        raise BadRequestError("scalingPolicy.minSegments is missing")
    if kind is ScalingKind.FIXED:
        return Scaling.fixed(minimum)
    if policy.targetRate is None or policy.scaleFactor is None:
        raise BadRequestError(f"scalingPolicy of type {policy.type} needs targetRate and scaleFactor")
    make = Scaling.by_data_rate if kind is ScalingKind.BY_DATA_RATE else Scaling.by_event_rate
    return make(policy.targetRate, factor=policy.scaleFactor, min_segments=minimum)


def scaling_shown(scaling: Scaling) -> ScalingPolicy:
    """Return a policy as it is shown."""
    name = next(name for name, kind in _SCALING_TYPES.items() if kind is scaling.kind)
    if scaling.kind is ScalingKind.FIXED:
        return ScalingPolicy(name, minSegments=scaling.min_segments)
    return ScalingPolicy(name, scaling.target_rate, scaling.factor, scaling.min_segments)


def retention_of(policy: RetentionPolicy | None, *, with_maximum: bool) -> Retention | None:
    """Return the policy of a request; the maximum counts at a creation only. Raises `InvalidArgumentError`."""
    if policy is None:
        return None
    if policy.type == "LIMITED_SIZE_MB":
        least, most = (policy.value or 0) * MIB, policy.maxValue
        kind, limit = RetentionKind.BY_SIZE, None if most is None else most * MIB
    else:
        least = _time_ms(policy.value, policy.timeBasedRetention)
        has_maximum = policy.maxValue is not None or policy.maxTimeBasedRetention is not None
        kind = RetentionKind.BY_TIME
        limit = _time_ms(policy.maxValue, policy.maxTimeBasedRetention) if has_maximum else None
    if least < 1:
        raise BadRequestError("retentionPolicy needs a value above 0")
    return Retention(kind, least, limit if with_maximum and limit else LIMIT_NONE)


def _time_ms(days: int | None, time: TimeBasedRetention | None) -> int:
    """Return milliseconds; the detailed time counts only where the number of days is 0."""
    if days:
        return days * _DAY_MS
    return 0 if time is None else time.days * _DAY_MS + time.hours * _HOUR_MS + time.minutes * _MINUTE_MS


def retention_shown(retention: Retention | None) -> RetentionPolicy | None:
    """Return a policy as it is shown."""
    if retention is None:
        return None
    if retention.kind is RetentionKind.BY_SIZE:
        return RetentionPolicy("LIMITED_SIZE_MB", retention.min_limit // MIB)
    days, rest = divmod(retention.min_limit, _DAY_MS)
    hours, minutes = rest // _HOUR_MS, rest % _HOUR_MS // _MINUTE_MS
    whole = days if not hours and not minutes else 0
    return RetentionPolicy("LIMITED_DAYS", whole, TimeBasedRetention(days, hours, minutes))


def property_of(scope: str, stream: str, config: StreamConfig) -> StreamProperty:
    """Return a stream as it is shown."""
    return StreamProperty(
        scope,
        stream,
        scaling_shown(config.scaling),
        list(config.tags),
        config.timestamp_aggregation_timeout_ms,
        config.rollover_bytes,
        retention_shown(config.retention),
    )


def config_of(request: CreateStreamRequest | UpdateStreamRequest) -> StreamConfig:
    """Return the configuration of a request. Raises `InvalidArgumentError`."""
    return StreamConfig(
        scaling_of(request.scalingPolicy),
        retention_of(request.retentionPolicy, with_maximum=isinstance(request, CreateStreamRequest)),
        tuple(request.streamTags),
        request.timestampAggregationTimeout,
        request.rolloverSizeBytes,
    ).checked()
