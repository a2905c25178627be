"""Maps a segment store's error replies to typed errors: the client's only such table."""

from __future__ import annotations

from typing import TypeVar

from penstock.model.errors import (
    BadEventNumberError,
    ContainerNotFoundError,
    InvalidArgumentError,
    NoSuchSegmentError,
    PenstockError,
    ProtocolError,
    SegmentExistsError,
    SegmentSealedError,
    SegmentStoreBusyError,
    SegmentTruncatedError,
    StorageFullError,
    TableKeyMissingError,
    TableKeyVersionError,
    TableNotEmptyError,
    TableReadTooLongError,
    TokenExpiredError,
    TokenRefusedError,
    TooManyLeasesError,
    UnsupportedOperationError,
)
from penstock.model.segments import NO_VALUE
from penstock.wire.commands import (
    BUSY,
    NO_ROOM,
    READ_TOO_LONG,
    TOO_MANY_LEASES,
    AuthTokenCheckFailed,
    ErrorMessage,
    InvalidEventNumber,
    NoSuchSegment,
    OperationUnsupported,
    SegmentAlreadyExists,
    SegmentIsSealed,
    SegmentIsTruncated,
    TableKeyBadVersion,
    TableKeyDoesNotExist,
    TableSegmentNotEmpty,
    WireCommand,
    WrongHost,
)

#: The error code of AuthTokenCheckFailed that asks for a new token.
_TOKEN_EXPIRED = 1
_Reply = TypeVar("_Reply", bound=WireCommand)


def error_of(reply: WireCommand, segment: str) -> PenstockError | None:
    """Return the error of a reply to a request about `segment`, or None if it is not an error."""
    match reply:
        case WrongHost() if reply.stack.startswith(NO_ROOM):
            return StorageFullError(f"the segment store answered: {reply.stack.removeprefix(NO_ROOM)}")
        case WrongHost() if reply.stack.startswith(BUSY):
            return SegmentStoreBusyError(segment, f"the segment store answered: {reply.stack.removeprefix(BUSY)}")
        case WrongHost():
            return ContainerNotFoundError(None, f"segment {segment} is not served by this host")
        case SegmentIsSealed():
            return SegmentSealedError(segment)
        case SegmentAlreadyExists():
            return SegmentExistsError(segment)
        case NoSuchSegment():
            return NoSuchSegmentError(segment)
        case InvalidEventNumber():
            return BadEventNumberError(
                segment, writer_id=reply.writer_id, event_number=reply.event_number, stored=NO_VALUE
            )
        case SegmentIsTruncated():
            return SegmentTruncatedError(segment, start_offset=reply.start_offset, offset=reply.offset)
        case OperationUnsupported():
            return UnsupportedOperationError(f"{segment}: the segment store does not support {reply.operation_name}")
        case AuthTokenCheckFailed():
            if reply.error_code == _TOKEN_EXPIRED:
                return TokenExpiredError(f"{segment}: the segment store refused the access token: it has expired")
            return TokenRefusedError(
                f"{segment}: the segment store refused the access token: the account may not do this, or the client "
                "has no account (PENSTOCK_USER)"
            )
        case ErrorMessage() if reply.message.startswith(READ_TOO_LONG):
            return TableReadTooLongError(f"the segment store answered: {reply.message.removeprefix(READ_TOO_LONG)}")
        case ErrorMessage() if reply.message.startswith(TOO_MANY_LEASES):
            return TooManyLeasesError(f"the segment store answered: {reply.message.removeprefix(TOO_MANY_LEASES)}")
        case ErrorMessage():
            if reply.error_code == 0:
                return InvalidArgumentError(f"{segment}: the segment store answered: {reply.message}")
            return PenstockError(f"{segment}: the segment store answered: {reply.message}")
        case TableSegmentNotEmpty():
            return TableNotEmptyError(segment)
        case TableKeyDoesNotExist():
            return TableKeyMissingError(segment, key=b"")
        case TableKeyBadVersion():
            return TableKeyVersionError(segment, key=b"", expected=NO_VALUE, actual=NO_VALUE)
        case _:
            return None


def expect(reply: WireCommand, kind: type[_Reply], segment: str) -> _Reply:
    """Return `reply` if it is of `kind`. Raises its typed error, or `ProtocolError` for any other reply."""
    if isinstance(reply, kind):
        return reply
    raise error_of(reply, segment) or unexpected(reply, segment)


def unexpected(reply: WireCommand, segment: str) -> ProtocolError:
    """Return the error for a reply that does not match the request."""
    return ProtocolError(f"{segment}: unexpected {type(reply).__name__} from the segment store")
