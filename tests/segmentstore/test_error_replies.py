"""Which reply, or closed connection, says which error: segment-store 5.4."""

from __future__ import annotations

import pytest

from penstock.client.transport.replies import error_of
from penstock.model.errors import (
    BadOffsetError,
    ContainerNotFoundError,
    ContainerOfflineError,
    CorruptionError,
    InvalidArgumentError,
    NoSuchSegmentError,
    OutcomeUnknownError,
    PenstockError,
    SegmentExistsError,
    SegmentMergedError,
    SegmentSealedError,
    SegmentTruncatedError,
    StorageError,
    StorageFullError,
    TableKeyMissingError,
    TableKeyVersionError,
    TableNotEmptyError,
    UnsupportedOperationError,
)
from penstock.segmentstore.request_processor import error_reply
from penstock.wire import commands as wire

S = "s/t/0.#epoch.0"


@pytest.mark.parametrize(
    ("error", "reply"),
    [
        (NoSuchSegmentError(S), wire.NoSuchSegment(1, S, "", 5)),
        (SegmentMergedError(S), wire.NoSuchSegment(1, S, "", 5)),
        (SegmentSealedError(S), wire.SegmentIsSealed(1, S, "", 5)),
        (SegmentExistsError(S), wire.SegmentAlreadyExists(1, S)),
        (SegmentTruncatedError(S, start_offset=9, offset=5), wire.SegmentIsTruncated(1, S, 9, "", 5)),
        (BadOffsetError(S, expected=3, actual=7), wire.SegmentIsTruncated(1, S, 7, "", 3)),
        (TableKeyMissingError(S, key=b"k"), wire.TableKeyDoesNotExist(1, S, "")),
        (TableKeyVersionError(S, key=b"k", expected=1, actual=2), wire.TableKeyBadVersion(1, S, "")),
        (TableNotEmptyError(S), wire.TableSegmentNotEmpty(1, S, "")),
        (ContainerNotFoundError(3), wire.WrongHost(1, S, "")),
        (ContainerOfflineError(3), wire.WrongHost(1, S, "")),
        (UnsupportedOperationError("no"), wire.OperationUnsupported(1, "Op")),
        (InvalidArgumentError("bäd"), wire.ErrorMessage(1, S, "b\\xe4d", 0)),
    ],
)
def test_each_error_has_its_reply(error: PenstockError, reply: wire.WireCommand) -> None:
    """Errors that a client can act on have a reply of their own; text is ASCII, as Rust clients need it."""
    assert error_reply(error, 1, S, "Op", 5) == reply


def test_corruption_is_reported_in_words() -> None:
    """Trying again would not help: the client hears where the damage is."""
    reply = error_reply(CorruptionError("tier2/x", 12, "checksum"), 1, S, "ReadSegment")
    assert isinstance(reply, wire.ErrorMessage)
    assert reply.error_code == -1
    assert "tier2/x at byte 12" in reply.message


@pytest.mark.parametrize("error", [StorageError("disk"), OutcomeUnknownError("lost")])
def test_passing_faults_close_the_connection(error: PenstockError) -> None:
    """When a passing disk error was answered with ErrorMessage, it ended readers permanently."""
    with pytest.raises(type(error)):
        error_reply(error, 1, S, "ReadSegment")


def test_a_full_disk_is_said_by_the_reply_that_means_not_done_ask_again() -> None:
    """Every client asks again after `WrongHost`; ours hears what the matter is."""
    reply = error_reply(StorageFullError("no room"), 1, S, "CreateSegment")
    assert reply == wire.WrongHost(1, S, "", "StorageFullError: no room")
    error = error_of(reply, S)
    assert isinstance(error, StorageFullError)
    assert error.is_retriable
    assert "no room" in str(error)
