"""`cause_of`: why a call of the controller ended with RESOURCE_EXHAUSTED, which can have several causes.

Penstock's controller marks a full disk in the metadata of the call. Other causes come from gRPC itself, at either end,
and are recognized by their texts; or from a proxy, which are not recognized.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from enum import Enum
from typing import cast

import grpc

from penstock.model.errors import (
    InvalidArgumentError,
    PenstockError,
    ReplyTooLongError,
    StorageFullError,
    UnacknowledgedStorageFullError,
)
from penstock.rpc import STORAGE_FULL_KEY

#: Text of gRPC's core for a message above the limit of one end, "SERVER: Received message larger than max (2 vs. 1)",
#: sometimes after a prefix.
_TOO_LONG = re.compile(r"(CLIENT|SERVER): (Received|Sent) message larger than max")
#: Text of Java's servers for a request that is too long.
_TOO_LONG_FOR_JAVA = "exceeds maximum size"
#: Text of a Python server for a call beyond `maximum_concurrent_rpcs`, which it does not begin.
_TOO_MANY_CALLS = "Concurrent RPC limit exceeded"


class Exhaustion(Enum):
    """The exhausted resource.

    Attributes:
        REQUEST_TOO_LONG: the request; it was not served.
        REPLY_TOO_LONG: the reply, for the controller to send.
        REPLY_TOO_LONG_HERE: the reply, for this client to receive.
        DISK_FULL: space on the server's disk; an interrupted change is completed when there is space.
        TOO_MANY_CALLS: concurrent calls at the controller; this one was not begun.
        REFUSED: something else, perhaps at a proxy; whether the call was served is unknown.
    """

    REQUEST_TOO_LONG = "request too long"
    REPLY_TOO_LONG = "reply too long"
    REPLY_TOO_LONG_HERE = "reply too long for this client"
    DISK_FULL = "disk full"
    TOO_MANY_CALLS = "too many calls"
    REFUSED = "refused"


_CAUSES = {
    ("SERVER", "Received"): Exhaustion.REQUEST_TOO_LONG,
    ("CLIENT", "Sent"): Exhaustion.REQUEST_TOO_LONG,
    ("SERVER", "Sent"): Exhaustion.REPLY_TOO_LONG,
    ("CLIENT", "Received"): Exhaustion.REPLY_TOO_LONG_HERE,
}


def cause_of(error: grpc.RpcError) -> Exhaustion | None:
    """Return the cause of RESOURCE_EXHAUSTED; None: the call ended with another code."""
    if error.code() != grpc.StatusCode.RESOURCE_EXHAUSTED:
        return None
    metadata = cast("Iterable[tuple[str, str | bytes]]", error.trailing_metadata() or ())
    if any(key == STORAGE_FULL_KEY for key, _ in metadata):
        return Exhaustion.DISK_FULL
    text = error.details() or ""
    if (found := _TOO_LONG.search(text)) is not None:
        return _CAUSES[found[1], found[2]]
    if _TOO_LONG_FOR_JAVA in text:
        return Exhaustion.REQUEST_TOO_LONG
    return Exhaustion.TOO_MANY_CALLS if _TOO_MANY_CALLS in text else Exhaustion.REFUSED


def final_error(cause: Exhaustion | None, details: str) -> PenstockError | None:
    """Return the error of a call for which a retry is useless; None: it may be retried."""
    match cause:
        case Exhaustion.REQUEST_TOO_LONG:
            return InvalidArgumentError(
                f"{details}: the request is longer than the controller accepts (message_bytes_max of the controller); "
                "nothing was done"
            )
        case Exhaustion.REPLY_TOO_LONG:
            return ReplyTooLongError(f"{details} (message_bytes_max of the controller)")
        case Exhaustion.REPLY_TOO_LONG_HERE:
            return ReplyTooLongError(f"{details} (controller_reply_bytes_max)")
        case _:
            return None


def full_error(details: str, *, is_change: bool) -> StorageFullError:
    """Return the error of a call that a full disk prevented until its time limit."""
    if not is_change:
        return StorageFullError(f"disk full on the server: {details}")
    return UnacknowledgedStorageFullError(
        f"disk full on the server: {details}; the operation completes after there is space: truncate or delete "
        "streams, or free space on the disk"
    )
