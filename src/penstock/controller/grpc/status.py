"""Which gRPC status an error becomes.

Source: controller API specification, section 5.
"""

from __future__ import annotations

import grpc

from penstock.controller.errors import WorkflowTimeoutError
from penstock.model.errors import (
    ControllerUnavailableError,
    CorruptionError,
    InvalidArgumentError,
    MetadataConflictError,
    NoSuchReaderGroupError,
    NoSuchScopeError,
    NoSuchStreamError,
    NoSuchTableError,
    PenstockError,
    ReplyTooLongError,
    ScopeExistsError,
    ScopeNotEmptyError,
    StorageFullError,
    StreamExistsError,
    StreamNotSealedError,
    UnsupportedOperationError,
)
from penstock.rpc import STORAGE_FULL_KEY

Metadata = tuple[tuple[str, str | bytes], ...]

#: Characters of an error's text that go to the client.
_MESSAGE_LENGTH_MAX = 1000


class EarlyArgumentError(InvalidArgumentError):
    """A bad argument of the kind that Pravega finds before it begins: never an answer of an enum."""


class LateArgumentError(InvalidArgumentError):
    """A bad argument of the kind that Pravega finds late, and answers UNKNOWN: leases, tokens, ranges of cuts."""


class FinalArgumentError(InvalidArgumentError):
    """A bad argument of a call that Pravega does not have: it is answered as gRPC means it, and not asked again."""


class CallRefusedError(ControllerUnavailableError):
    """Too many calls are served, or wait for the same container. A repetition may be served."""


#: The first class that fits decides. Bad arguments are INTERNAL because that is what clients are used to.
_STATUS_BY_ERROR: tuple[tuple[type[PenstockError], grpc.StatusCode], ...] = (
    (LateArgumentError, grpc.StatusCode.UNKNOWN),
    (FinalArgumentError, grpc.StatusCode.INVALID_ARGUMENT),
    # No client asks again.
    (ReplyTooLongError, grpc.StatusCode.OUT_OF_RANGE),
    (InvalidArgumentError, grpc.StatusCode.INTERNAL),
    (WorkflowTimeoutError, grpc.StatusCode.DEADLINE_EXCEEDED),
    (NoSuchScopeError, grpc.StatusCode.NOT_FOUND),
    (NoSuchStreamError, grpc.StatusCode.NOT_FOUND),
    (NoSuchReaderGroupError, grpc.StatusCode.NOT_FOUND),
    (NoSuchTableError, grpc.StatusCode.NOT_FOUND),
    (ScopeExistsError, grpc.StatusCode.ALREADY_EXISTS),
    (StreamExistsError, grpc.StatusCode.ALREADY_EXISTS),
    (ScopeNotEmptyError, grpc.StatusCode.FAILED_PRECONDITION),
    (StreamNotSealedError, grpc.StatusCode.FAILED_PRECONDITION),
    (MetadataConflictError, grpc.StatusCode.FAILED_PRECONDITION),
    (CorruptionError, grpc.StatusCode.DATA_LOSS),
    (UnsupportedOperationError, grpc.StatusCode.UNIMPLEMENTED),
    (CallRefusedError, grpc.StatusCode.UNAVAILABLE),
    (StorageFullError, grpc.StatusCode.RESOURCE_EXHAUSTED),
    # Sealed streams, stores that cannot be reached, lost replies: clients try again.
    (PenstockError, grpc.StatusCode.INTERNAL),
)


def status_of(error: PenstockError) -> tuple[grpc.StatusCode, str]:
    """Return the gRPC status of an error and the text that goes with it."""
    code = next(code for kind, code in _STATUS_BY_ERROR if isinstance(error, kind))
    return code, str(error)[:_MESSAGE_LENGTH_MAX]


def metadata_of(error: PenstockError) -> Metadata:
    """Return the trailing metadata of an error: gRPC answers RESOURCE_EXHAUSTED of its own, for other causes."""
    return ((STORAGE_FULL_KEY, "1"),) if isinstance(error, StorageFullError) else ()
