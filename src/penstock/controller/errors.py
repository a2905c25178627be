"""Errors of the controller that are not in `penstock.model.errors`.

::

    StreamError
    ├── WorkflowTimeoutError (OutcomeUnknownError)  not completed yet; it continues
    ├── WorkElsewhereError (MetadataConflictError)  other work is announced, or another controller is working on it
    ├── WorkTakenOverError (MetadataConflictError, OutcomeUnknownError)  another controller has taken over the work
    ├── PolicyReplacedError (MetadataConflictError)  the policy that a truncation was made for is no longer in force
    ├── MembershipLostError (ControllerUnavailableError)  the other members consider this controller dead
    ├── HalfCreatedStreamError (ControllerUnavailableError)  its creation is not finished
    ├── StreamWithoutSegmentsError  a policy asks for a stream without segments
    ├── ScalePreconditionError      a segment to seal is not current, or too few would remain
    ├── ScaleUnderWayError          another scale is not complete
    ├── ReaderGroupMismatchError    id or generation is not the group's
    ├── NoSuchSubscriberError       no such subscriber, or it belongs to another incarnation of the group
    ├── SubscriberGenerationError   the subscriber has another generation
    ├── StreamCutBehindError        a subscriber's cut is invalid, or before the previous one
    ├── NoSuchWriterError           the writer has never noted a time
    ├── WriterTimeError             a writer's time is before its previous one
    └── WriterPositionError         a writer's position is before its previous one
"""

from __future__ import annotations

from penstock.model.errors import (
    BadOffsetError,
    ControllerUnavailableError,
    InvalidArgumentError,
    MetadataConflictError,
    NoSuchSegmentError,
    NoSuchStreamError,
    OutcomeUnknownError,
    PenstockError,
    SegmentMergedError,
    SegmentSealedError,
    SegmentTruncatedError,
    StreamError,
    StreamSealedError,
    TransactionError,
    UnsupportedOperationError,
)


class WorkflowTimeoutError(StreamError, OutcomeUnknownError):
    """A workflow did not complete in the time that a caller waits for it. It continues; read the state later."""


class WorkElsewhereError(MetadataConflictError):
    """Other work on the same subject is announced, or a live controller is working on it. Retry later."""


class WorkTakenOverError(MetadataConflictError, OutcomeUnknownError):
    """Another controller has taken over work of this controller, and completes it. Retry."""


class PolicyReplacedError(MetadataConflictError):
    """A stream was not truncated: its configuration was replaced after its retention policy had chosen the cut."""


class MembershipLostError(ControllerUnavailableError):
    """This controller is no longer a member: others take over its work until it joins again."""


class HalfCreatedStreamError(ControllerUnavailableError):
    """The stream's creation has begun and is not complete."""


class StreamWithoutSegmentsError(StreamError):
    """A scaling policy asks for fewer than one segment."""


class ScalePreconditionError(StreamError):
    """A scale names a segment outside the current epoch, or would leave fewer segments than the policy's minimum."""


class ScaleUnderWayError(StreamError):
    """Another scale of the stream is not complete. Retry when it is."""


class ReaderGroupMismatchError(StreamError):
    """The request refers to another incarnation of the reader group, or to a configuration that was replaced."""


class NoSuchSubscriberError(StreamError):
    """The stream has no such subscriber, or the request comes from another incarnation of the group."""


class SubscriberGenerationError(StreamError):
    """The subscriber has another generation than the request names."""


class UnknownCutSegmentError(InvalidArgumentError):
    """A cut names a segment that the stream never had."""


class StreamCutBehindError(StreamError):
    """The cut that a subscriber published is invalid, or before the one that it published last."""


class NoSuchWriterError(StreamError):
    """The writer has never noted a time on this stream."""


class WriterTimeError(StreamError):
    """The writer noted a time before its previous one."""


class WriterPositionError(StreamError):
    """The writer noted a position before its previous one."""


#: Repeating the request does not help. Not corruption: damaged data may be repaired, so that work is not given up.
PERMANENT_ERRORS: tuple[type[PenstockError], ...] = (
    BadOffsetError,
    InvalidArgumentError,
    NoSuchSegmentError,
    NoSuchStreamError,
    ScalePreconditionError,
    SegmentMergedError,
    SegmentSealedError,
    SegmentTruncatedError,
    StreamSealedError,
    TransactionError,
    UnsupportedOperationError,
)


class EarlyArgumentError(InvalidArgumentError):
    """A bad argument that Pravega detects before it begins: never answered by the reply's enum."""


class LateArgumentError(InvalidArgumentError):
    """A bad argument that Pravega detects late, and answers with UNKNOWN: leases, tokens, ranges of cuts."""


class FinalArgumentError(InvalidArgumentError):
    """A bad argument of a call specific to Penstock: answered with gRPC's own code for it, and not retried."""


class CallRefusedError(ControllerUnavailableError):
    """Too many calls are served, or wait for the same container. A retry may be served."""
