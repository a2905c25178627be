"""Replies to requests that failed.

`stack` is for people; keep it empty or ASCII, because the Rust client cannot decode other text as Java encodes it.

Source: wire-protocol 2.6.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from penstock.wire.commands.base import Reply
from penstock.wire.fields import I32, I64, Text, Uuid

#: Prefix of the text of a `WrongHost` that reports a full disk.
NO_ROOM = "StorageFullError: "
#: Prefix of the text of a `WrongHost` that reports a limit which is reached at the moment.
BUSY = "SegmentStoreBusyError: "
#: Prefix of the text of an `ErrorMessage` about a read of a table whose reply would not fit into a frame.
READ_TOO_LONG = "TableReadTooLongError: "
#: Prefix of the text of an `ErrorMessage` that refuses a chunk layout because of too many leases. Nothing was done.
TOO_MANY_LEASES = "TooManyLeasesError: "


@dataclass(frozen=True, slots=True, eq=False)
class WrongHost(Reply):
    """The segment's container is not on this server. `correct_host` is empty when unknown.

    With a `stack` that begins with `NO_ROOM` or `BUSY` it is here, but lacks the resources for the request: nothing was
    done, and the request may be repeated. Clients that do not know these prefixes retry in any case.
    """

    TYPE: ClassVar[int] = 50

    request_id: I64
    segment: Text
    correct_host: Text
    stack: Text = ""


@dataclass(frozen=True, slots=True, eq=False)
class SegmentIsSealed(Reply):
    """The segment is sealed. `offset`: the requested one, or an append's event number."""

    TYPE: ClassVar[int] = 51

    request_id: I64
    segment: Text
    stack: Text = ""
    offset: I64 = -1


@dataclass(frozen=True, slots=True, eq=False)
class SegmentAlreadyExists(Reply):
    """The segment exists already."""

    TYPE: ClassVar[int] = 52

    request_id: I64
    segment: Text
    stack: Text = ""


@dataclass(frozen=True, slots=True, eq=False)
class NoSuchSegment(Reply):
    """The segment does not exist. `offset`: the one requested by a read."""

    TYPE: ClassVar[int] = 53

    request_id: I64
    segment: Text
    stack: Text = ""
    offset: I64 = -1


@dataclass(frozen=True, slots=True, eq=False)
class InvalidEventNumber(Reply):
    """Another connection has written with this writer id; the connection is closed afterwards."""

    TYPE: ClassVar[int] = 55

    writer_id: Uuid
    request_id: I64
    stack: Text = ""
    event_number: I64 = -1


@dataclass(frozen=True, slots=True, eq=False)
class SegmentIsTruncated(Reply):
    """`offset` lies before `start_offset`."""

    TYPE: ClassVar[int] = 56

    request_id: I64
    segment: Text
    start_offset: I64
    stack: Text = ""
    offset: I64 = -1


@dataclass(frozen=True, slots=True, eq=False)
class OperationUnsupported(Reply):
    """This server does not support the request, or not for this kind of segment."""

    TYPE: ClassVar[int] = 57

    request_id: I64
    operation_name: Text
    stack: Text = ""


@dataclass(frozen=True, slots=True, eq=False)
class AuthTokenCheckFailed(Reply):
    """The token is not valid. `error_code`: -1 unspecified, 0 check failed, 1 expired."""

    TYPE: ClassVar[int] = 60

    request_id: I64
    stack: Text = ""
    error_code: I32 = -1


@dataclass(frozen=True, slots=True, eq=False)
class ErrorMessage(Reply):
    """Any other error. `error_code`: -1 unspecified, 0 illegal argument.

    A `message` that begins with `READ_TOO_LONG` answers a `ReadTable`: the same keys may be read in smaller requests.
    """

    TYPE: ClassVar[int] = 61

    request_id: I64
    segment: Text
    message: Text
    error_code: I32


@dataclass(frozen=True, slots=True, eq=False)
class TableSegmentNotEmpty(Reply):
    """The table is not empty."""

    TYPE: ClassVar[int] = 80

    request_id: I64
    segment: Text
    stack: Text


@dataclass(frozen=True, slots=True, eq=False)
class TableKeyDoesNotExist(Reply):
    """A key for which the request expects a version does not exist."""

    TYPE: ClassVar[int] = 81

    request_id: I64
    segment: Text
    stack: Text


@dataclass(frozen=True, slots=True, eq=False)
class TableKeyBadVersion(Reply):
    """A key has another version than the request expects."""

    TYPE: ClassVar[int] = 82

    request_id: I64
    segment: Text
    stack: Text
