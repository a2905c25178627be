"""Replies that say why a request was not done.

`stack` is for people; keep it empty or ASCII, the Rust client can't read anything else that Java writes.

Source: wire protocol specification, section 2.6.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from penstock.wire.commands.base import Reply
from penstock.wire.fields import I32, I64, Text, Uuid

#: Begins the text of a `WrongHost` that is about a full disk.
NO_ROOM = "StorageFullError: "
#: Begins the text of a `WrongHost` that is about a limit which is reached at the moment.
BUSY = "SegmentStoreBusyError: "
#: Begins the text of an `ErrorMessage` about a read of a table whose reply would not fit into a frame.
READ_TOO_LONG = "TableReadTooLongError: "
#: Begins the text of an `ErrorMessage` that refuses a layout of chunks: so many are leased already. Nothing was done.
TOO_MANY_LEASES = "TooManyLeasesError: "


@dataclass(frozen=True, slots=True)
class WrongHost(Reply):
    """Say that the segment's container is not here. `correct_host` is empty when unknown.

    With a `stack` that begins with `NO_ROOM` or `BUSY` it is here, and has no room for what was asked: nothing was
    done, and the same may be asked again. Clients that know nothing of this ask again all the same.
    """

    TYPE: ClassVar[int] = 50

    request_id: I64
    segment: Text
    correct_host: Text
    stack: Text = ""


@dataclass(frozen=True, slots=True)
class SegmentIsSealed(Reply):
    """Say that the segment is sealed. `offset`: the one asked for, or an append's event number."""

    TYPE: ClassVar[int] = 51

    request_id: I64
    segment: Text
    stack: Text = ""
    offset: I64 = -1


@dataclass(frozen=True, slots=True)
class SegmentAlreadyExists(Reply):
    """Say that there is such a segment."""

    TYPE: ClassVar[int] = 52

    request_id: I64
    segment: Text
    stack: Text = ""


@dataclass(frozen=True, slots=True)
class NoSuchSegment(Reply):
    """Say that there is no such segment. `offset`: the one asked for by a read."""

    TYPE: ClassVar[int] = 53

    request_id: I64
    segment: Text
    stack: Text = ""
    offset: I64 = -1


@dataclass(frozen=True, slots=True)
class InvalidEventNumber(Reply):
    """Say that another connection wrote with this writer id; the connection is closed after it."""

    TYPE: ClassVar[int] = 55

    writer_id: Uuid
    request_id: I64
    stack: Text = ""
    event_number: I64 = -1


@dataclass(frozen=True, slots=True)
class SegmentIsTruncated(Reply):
    """Say that `offset` lies before `start_offset`."""

    TYPE: ClassVar[int] = 56

    request_id: I64
    segment: Text
    start_offset: I64
    stack: Text = ""
    offset: I64 = -1


@dataclass(frozen=True, slots=True)
class OperationUnsupported(Reply):
    """Say that this server can't do it, or not for this kind of segment."""

    TYPE: ClassVar[int] = 57

    request_id: I64
    operation_name: Text
    stack: Text = ""


@dataclass(frozen=True, slots=True)
class AuthTokenCheckFailed(Reply):
    """Say that the token is not good. `error_code`: -1 unspecified, 0 check failed, 1 expired."""

    TYPE: ClassVar[int] = 60

    request_id: I64
    stack: Text = ""
    error_code: I32 = -1


@dataclass(frozen=True, slots=True)
class ErrorMessage(Reply):
    """Say something else. `error_code`: -1 unspecified, 0 illegal argument.

    A `message` that begins with `READ_TOO_LONG` answers a `ReadTable`: the same keys may be asked for, fewer at a time.
    """

    TYPE: ClassVar[int] = 61

    request_id: I64
    segment: Text
    message: Text
    error_code: I32


@dataclass(frozen=True, slots=True)
class TableSegmentNotEmpty(Reply):
    """Say that the table still holds keys."""

    TYPE: ClassVar[int] = 80

    request_id: I64
    segment: Text
    stack: Text


@dataclass(frozen=True, slots=True)
class TableKeyDoesNotExist(Reply):
    """Say that a key that was to have a version does not exist."""

    TYPE: ClassVar[int] = 81

    request_id: I64
    segment: Text
    stack: Text


@dataclass(frozen=True, slots=True)
class TableKeyBadVersion(Reply):
    """Say that a key has another version."""

    TYPE: ClassVar[int] = 82

    request_id: I64
    segment: Text
    stack: Text
