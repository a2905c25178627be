"""Errors of the controller that nobody below it knows.

::

    StreamError
    ├── WorkflowTimeoutError (OutcomeUnknownError)  not ended yet, goes on
    ├── WorkElsewhereError (MetadataConflictError)  other work is announced, or another controller is at work on it
    ├── WorkTakenOverError (MetadataConflictError, OutcomeUnknownError)  another controller does, or did, what was begun
    ├── PolicyReplacedError (MetadataConflictError)  the policy that a truncation was made for is not in force any more
    ├── MembershipLostError (ControllerUnavailableError)  the others take this controller for dead
    ├── HalfCreatedStreamError (ControllerUnavailableError)  its creation is not finished
    ├── StreamWithoutSegmentsError  a policy asks for a stream without segments
    ├── ScalePreconditionError      a segment to seal is not current, or too few would remain
    ├── ScaleUnderWayError          another scale is not complete
    ├── ReaderGroupMismatchError    id or generation is not the group's
    ├── NoSuchSubscriberError       no such subscriber, or one of another group's life
    ├── SubscriberGenerationError   the subscriber's generation is another one
    ├── StreamCutBehindError        a subscriber's cut is not valid, or went back
    ├── NoSuchWriterError           the writer has never noted a time
    ├── WriterTimeError             a writer's time went back
    └── WriterPositionError         a writer's position went back
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
    """A workflow has not ended in the time a caller waits for it. It goes on; ask for the state later."""


class WorkElsewhereError(MetadataConflictError):
    """Other work on the same subject has begun, or a controller that is alive is at work on it. Ask again later."""


class WorkTakenOverError(MetadataConflictError, OutcomeUnknownError):
    """Work that this controller had begun has become another one's, which brings it to its end. Ask again."""


class PolicyReplacedError(MetadataConflictError):
    """A stream is not truncated: its configuration was replaced after the cut was chosen by its retention policy."""


class MembershipLostError(ControllerUnavailableError):
    """This controller is no member any more: others take over what it has begun, until it joins again."""


class HalfCreatedStreamError(ControllerUnavailableError):
    """The stream's creation has begun and is not finished."""


class StreamWithoutSegmentsError(StreamError):
    """A scaling policy asks for less than one segment."""


class ScalePreconditionError(StreamError):
    """A scale names a segment that is not of the current epoch, or would leave fewer than the policy asks for."""


class ScaleUnderWayError(StreamError):
    """Another scale of the stream is not complete. Ask again when it is."""


class ReaderGroupMismatchError(StreamError):
    """The request is about another life of the reader group, or about a configuration that was replaced."""


class NoSuchSubscriberError(StreamError):
    """The stream has no such subscriber, or the request comes from another life of the group."""


class SubscriberGenerationError(StreamError):
    """The subscriber's generation is not the one that the request names."""


class StreamCutBehindError(StreamError):
    """The cut that a subscriber published is not valid, or lies before the one it published last."""


class NoSuchWriterError(StreamError):
    """The writer has never noted a time on this stream."""


class WriterTimeError(StreamError):
    """The writer noted a time before the one it noted last."""


class WriterPositionError(StreamError):
    """The writer noted a position before the one it noted last."""


#: Doing the same again changes nothing. Not corruption: what is damaged may be repaired, and must not be given up.
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
