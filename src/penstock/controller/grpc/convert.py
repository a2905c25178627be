"""Conversion between the messages of the gRPC service and the controller's values.

A reply with ten thousand segments contains as many messages, which take up to 40 ms to build. So lists of segments are
built page by page (`extend`), and other tasks run in between. Requests and maps of this size are read in 3 ms.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Iterable
from typing import Protocol, TypeVar

from penstock.controller.metadata.records import SegmentRecord
from penstock.controller.metadata.scope_records import GroupCut, ReaderGroupConfig, ReaderGroupRecord
from penstock.controller.metadata.transaction_ids import TransactionId
from penstock.controller.steps import pages
from penstock.model.errors import InvalidArgumentError
from penstock.model.policies import GroupRetention, Retention, RetentionKind, Scaling, ScalingKind, StreamConfig
from penstock.rpc import controller_pb2 as pb

_SCALING_TYPES = {
    ScalingKind.FIXED: pb.ScalingPolicy.FIXED_NUM_SEGMENTS,
    ScalingKind.BY_DATA_RATE: pb.ScalingPolicy.BY_RATE_IN_KBYTES_PER_SEC,
    ScalingKind.BY_EVENT_RATE: pb.ScalingPolicy.BY_RATE_IN_EVENTS_PER_SEC,
}
_RETENTION_TYPES = {
    RetentionKind.BY_TIME: pb.RetentionPolicy.TIME,
    RetentionKind.BY_SIZE: pb.RetentionPolicy.SIZE,
}

Item = TypeVar("Item")
M = TypeVar("M")
M_contra = TypeVar("M_contra", contravariant=True)

#: The id that clients send for "no id": the controller chooses one.
GROUP_ID_NONE = str(uuid.UUID(int=0))


def stream_info(scope: str, stream: str) -> pb.StreamInfo:
    """Return the name of a stream as a message."""
    return pb.StreamInfo(scope=scope, stream=stream)


def segment_id(scope: str, stream: str, segment: int) -> pb.SegmentId:
    """Return a segment's id as a message, always with its stream: the Rust client requires it."""
    return pb.SegmentId(streamInfo=stream_info(scope, stream), segmentId=segment)


def segment_range(scope: str, stream: str, segment: SegmentRecord) -> pb.SegmentRange:
    """Return a segment and its key range as a message."""
    return pb.SegmentRange(
        segmentId=segment_id(scope, stream, segment.id), minKey=segment.key_start, maxKey=segment.key_end
    )


class Repeated(Protocol[M_contra]):
    """A repeated field of a message."""

    def extend(self, messages: Iterable[M_contra], /) -> None:
        """Append messages."""


async def extend(field: Repeated[M], items: Iterable[Item], message_of: Callable[[Item], M]) -> None:
    """Append a message for each item to a repeated field; other tasks run between two pages of them."""
    is_first = True
    for page in pages(items):
        if not is_first:
            await asyncio.sleep(0)
        is_first = False
        field.extend(map(message_of, page))


async def segment_ranges(scope: str, stream: str, segments: Iterable[SegmentRecord]) -> pb.SegmentRanges:
    """Return segments as a message, without a delegation token."""
    message = pb.SegmentRanges()
    await extend(message.segmentRanges, segments, lambda segment: segment_range(scope, stream, segment))
    return message


def stream_config(message: pb.StreamConfig) -> StreamConfig:
    """Decode a configuration sent by a client.

    A missing scaling policy means one fixed segment; a retention policy of type UNKNOWN means none.
    """
    policy = message.scalingPolicy
    try:
        scaling = Scaling(ScalingKind(policy.scaleType), policy.targetRate, policy.scaleFactor, policy.minNumSegments)
    except ValueError as error:
        raise InvalidArgumentError(f"scaling policy type {policy.scaleType} is unknown") from error
    retention = None
    if message.HasField("retentionPolicy") and message.retentionPolicy.retentionType != pb.RetentionPolicy.UNKNOWN:
        kept = message.retentionPolicy
        try:
            retention = Retention(RetentionKind(kept.retentionType), kept.retentionParam, kept.retentionMax)
        except ValueError as error:
            raise InvalidArgumentError(f"retention policy type {kept.retentionType} is unknown") from error
    return StreamConfig(
        scaling if message.HasField("scalingPolicy") else Scaling.fixed(1),
        retention,
        tuple(message.tags.tag),
        message.timestampAggregationTimeout,
        message.rolloverSizeBytes,
    )


def stream_config_message(scope: str, stream: str, configuration: StreamConfig) -> pb.StreamConfig:
    """Return a configuration as a message. Scaling policy and tags are always set: clients rely on it."""
    scaling, retention = configuration.scaling, configuration.retention
    message = pb.StreamConfig(
        streamInfo=stream_info(scope, stream),
        scalingPolicy=pb.ScalingPolicy(
            scaleType=_SCALING_TYPES[scaling.kind],
            targetRate=scaling.target_rate,
            scaleFactor=scaling.factor,
            minNumSegments=scaling.min_segments,
        ),
        tags=pb.Tags(tag=configuration.tags),
        timestampAggregationTimeout=configuration.timestamp_aggregation_timeout_ms,
        rolloverSizeBytes=configuration.rollover_bytes,
    )
    if retention is not None:
        message.retentionPolicy.CopyFrom(retention_message(retention))
    return message


def retention_message(retention: Retention) -> pb.RetentionPolicy:
    """Return a retention policy as a message."""
    return pb.RetentionPolicy(
        retentionType=_RETENTION_TYPES[retention.kind],
        retentionParam=retention.min_limit,
        retentionMax=retention.max_limit,
    )


def transaction_id(message: pb.TxnId) -> TransactionId:
    """Decode a transaction id."""
    return TransactionId(message.highBits, message.lowBits)


def transaction_id_message(transaction: TransactionId) -> pb.TxnId:
    """Return a transaction id as a message."""
    return pb.TxnId(highBits=transaction.high, lowBits=transaction.low)


def group_id(text: str) -> str:
    """Decode a reader group's id. Raises `InvalidArgumentError` for a text that is not a UUID."""
    try:
        return str(uuid.UUID(text))
    except ValueError as error:
        raise InvalidArgumentError(f"reader group id {text[:80]!r} is not a UUID") from error


def _group_cut(message: pb.StreamCut) -> GroupCut:
    info = message.streamInfo
    return GroupCut(info.scope, info.stream, dict(sorted(message.cut.items())))


def _group_cut_message(cut: GroupCut) -> pb.StreamCut:
    return pb.StreamCut(streamInfo=stream_info(cut.scope, cut.stream), cut=cut.positions)


def group_config(message: pb.ReaderGroupConfiguration) -> ReaderGroupConfig:
    """Decode a reader group's configuration sent by a client, without id and generation."""
    try:
        retention = GroupRetention(message.retentionType)
    except ValueError as error:
        raise InvalidArgumentError(f"retention type {message.retentionType} of a reader group is unknown") from error
    return ReaderGroupConfig(
        starts=tuple(_group_cut(cut) for cut in message.startingStreamCuts),
        ends=tuple(_group_cut(cut) for cut in message.endingStreamCuts),
        retention=retention,
        refresh_ms=message.groupRefreshTimeMillis,
        checkpoint_interval_ms=message.automaticCheckpointIntervalMillis,
        checkpoints_outstanding_max=message.maxOutstandingCheckpointRequest,
        rollover_bytes=message.rolloverSizeBytes,
    )


def group_config_message(scope: str, group: str, record: ReaderGroupRecord) -> pb.ReaderGroupConfiguration:
    """Return a reader group as a message."""
    config = record.config
    return pb.ReaderGroupConfiguration(
        scope=scope,
        readerGroupName=group,
        groupRefreshTimeMillis=config.refresh_ms,
        automaticCheckpointIntervalMillis=config.checkpoint_interval_ms,
        maxOutstandingCheckpointRequest=config.checkpoints_outstanding_max,
        retentionType=int(config.retention),
        generation=record.generation,
        readerGroupId=record.id,
        startingStreamCuts=[_group_cut_message(cut) for cut in config.starts],
        endingStreamCuts=[_group_cut_message(cut) for cut in config.ends],
        rolloverSizeBytes=config.rollover_bytes,
    )
