"""Mapping of errors to gRPC status codes.

Source: controller-api 5.
"""

from __future__ import annotations

import grpc

from penstock.controller.errors import CallRefusedError, FinalArgumentError, LateArgumentError, WorkflowTimeoutError
from penstock.model.errors import (
    AccessDeniedError,
    AuthenticationBusyError,
    AuthenticationError,
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

#: Maximum length of an error's text sent to a client.
_MESSAGE_LENGTH_MAX = 1000


#: The first matching class applies. Bad arguments are INTERNAL because clients expect that.
_STATUS_BY_ERROR: tuple[tuple[type[PenstockError], grpc.StatusCode], ...] = (
    (AuthenticationBusyError, grpc.StatusCode.UNAVAILABLE),
    (AuthenticationError, grpc.StatusCode.UNAUTHENTICATED),
    (AccessDeniedError, grpc.StatusCode.PERMISSION_DENIED),
    (LateArgumentError, grpc.StatusCode.UNKNOWN),
    (FinalArgumentError, grpc.StatusCode.INVALID_ARGUMENT),
    # Clients do not retry this one.
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
    # Sealed streams, unreachable stores, lost replies: clients retry.
    (PenstockError, grpc.StatusCode.INTERNAL),
)


def status_of(error: PenstockError) -> tuple[grpc.StatusCode, str]:
    """Return the gRPC status and the text of an error."""
    code = next(code for kind, code in _STATUS_BY_ERROR if isinstance(error, kind))
    return code, str(error)[:_MESSAGE_LENGTH_MAX]


def metadata_of(error: PenstockError) -> Metadata:
    """Return the trailing metadata of an error, which distinguishes it from gRPC's own RESOURCE_EXHAUSTED."""
    return ((STORAGE_FULL_KEY, "1"),) if isinstance(error, StorageFullError) else ()
