"""Controller messages to values of the model, and back."""

from __future__ import annotations

from penstock.client.controller.stream_segments import SegmentRange
from penstock.model.names import SegmentId
from penstock.model.policies import Retention, RetentionKind, Scaling, ScalingKind, StreamConfig
from penstock.model.stream_cuts import StreamCut
from penstock.rpc import controller_pb2 as pb


def config_to_message(scope: str, stream: str, config: StreamConfig) -> pb.StreamConfig:
    """Return the message for a stream's configuration, every field filled in."""
    scaling = pb.ScalingPolicy(
        scaleType=pb.ScalingPolicy.ScalingPolicyType.Name(config.scaling.kind),
        targetRate=config.scaling.target_rate,
        scaleFactor=config.scaling.factor,
        minNumSegments=config.scaling.min_segments,
    )
    retention = None
    if config.retention is not None:
        retention = pb.RetentionPolicy(
            retentionType=pb.RetentionPolicy.RetentionPolicyType.Name(config.retention.kind),
            retentionParam=config.retention.min_limit,
            retentionMax=config.retention.max_limit,
        )
    return pb.StreamConfig(
        streamInfo=pb.StreamInfo(scope=scope, stream=stream),
        scalingPolicy=scaling,
        retentionPolicy=retention,
        tags=pb.Tags(tag=config.tags),
        timestampAggregationTimeout=config.timestamp_aggregation_timeout_ms,
        rolloverSizeBytes=config.rollover_bytes,
    )


def config_from_message(message: pb.StreamConfig) -> StreamConfig:
    """Return the configuration in a message."""
    scaling = message.scalingPolicy
    return StreamConfig(
        scaling=Scaling(
            ScalingKind(scaling.scaleType), scaling.targetRate, scaling.scaleFactor, scaling.minNumSegments
        ),
        retention=retention_from_message(message.retentionPolicy),
        tags=tuple(message.tags.tag),
        timestamp_aggregation_timeout_ms=message.timestampAggregationTimeout,
        rollover_bytes=message.rolloverSizeBytes,
    )


def retention_from_message(message: pb.RetentionPolicy) -> Retention | None:
    """Return the policy in a message; None for one that is not set."""
    if message.retentionType == pb.RetentionPolicy.UNKNOWN:
        return None
    return Retention(RetentionKind(message.retentionType), message.retentionParam, message.retentionMax)


def cut_to_message(cut: StreamCut) -> pb.StreamCut:
    """Return the message for a stream cut."""
    return pb.StreamCut(streamInfo=pb.StreamInfo(scope=cut.scope, stream=cut.stream), cut=dict(cut.positions))


def cut_from_locations(scope: str, stream: str, reply: pb.SegmentsAtTime) -> StreamCut:
    """Return the stream cut in the answer to getSegments."""
    return StreamCut(scope, stream, {location.segmentId.segmentId: location.offset for location in reply.segments})


def range_from_message(message: pb.SegmentRange) -> SegmentRange:
    """Return the segment and key range in a message."""
    info = message.segmentId.streamInfo
    return SegmentRange(info.scope, info.stream, SegmentId(message.segmentId.segmentId), message.minKey, message.maxKey)
