"""The state of a transaction, and the errors for calls on an ended one."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.model.errors import (
    NoSuchTransactionError,
    TransactionAbortedError,
    TransactionCommittedError,
    TransactionError,
    TransactionExpiredError,
    TransactionPreparedError,
    TransactionStreamSealedError,
)
from penstock.model.times import seconds_text

#: The states in which the events are readable, or certainly will be.
COMMITTED_STATES = ("COMMITTING", "COMMITTED")
#: The states in which they never will be readable.
ABORTED_STATES = ("ABORTING", "ABORTED")

_AGAIN = "none of its events will be readable: write them again in a new transaction"


@dataclass(frozen=True, slots=True)
class TransactionInfo:
    """The controller's record of a transaction.

    Attributes:
        id: 32 hexadecimal digits.
        state: ``OPEN``, ``PREPARED``, ``COMMITTING``, ``COMMITTED``, ``ABORTING``, ``ABORTED`` or ``UNKNOWN``.
        age_s: since its begin; for an ended one, since its end. None: not known.
        lease_s: its lease as last requested; None: it has ended, or that is not known.
        lease_left_s: time until an open one is aborted unless its lease is renewed, or a prepared one is aborted; below
            0: it is about to be.
        lifetime_left_s: the lease of an open one cannot extend beyond this.
        writer: as given by the commit, or "".
        abort_reason: of an aborted one: ``REQUESTED``, ``LEASE_ENDED`` or ``STREAM_SEALED``; "": not known.
        length_bytes: in its segments: events, and 8 bytes for each; merged events no longer count. None: it was not
            requested, or a segment store did not reply.
    """

    id: str
    state: str
    age_s: float | None = None
    lease_s: float | None = None
    lease_left_s: float | None = None
    lifetime_left_s: float | None = None
    writer: str = ""
    abort_reason: str = ""
    length_bytes: int | None = None

    @property
    def is_prepared(self) -> bool:
        """Whether it takes no more events, and waits for a commit or an abort by its id."""
        return self.state == "PREPARED"


def over_error(tried: str, stream: str, found: TransactionInfo) -> TransactionError:
    """Return the error with the reason why `tried` ("commit", "write to", ...) cannot be done with a transaction."""
    what = f"cannot {tried} transaction {found.id} on stream {stream}"
    ago = "" if found.age_s is None else f" {seconds_text(found.age_s)} ago"
    if found.state in COMMITTED_STATES:
        is_readable = found.state == "COMMITTED"
        since = f"{ago}: its events are readable" if is_readable else ": its events will be readable soon"
        return _made(TransactionCommittedError, f"{what}: it was committed{since}; write more events in a new "
            "transaction",
                     stream, found)  # fmt: skip
    if found.state in ABORTED_STATES:
        since = ago if found.state == "ABORTED" else ""
        if found.abort_reason == "LEASE_ENDED":
            lease = "" if found.lease_s is None else f" of {found.lease_s:g} s"
            text = f"{what}: it was aborted{since}, as its lease{lease} ran out without renewal; {_AGAIN}"
            return _made(TransactionExpiredError, text, stream, found)
        if found.abort_reason == "STREAM_SEALED":
            text = f"{what}: it was aborted{since}, as the stream was sealed; none of its events will be read, and the "
            return _made(TransactionStreamSealedError, f"{text}stream takes no more", stream, found)
        unknown = "it was aborted, on request or because its lease ran out"
        who = "it was aborted on request" if found.abort_reason else unknown
        return _made(TransactionAbortedError, f"{what}: {who}{since}; {_AGAIN}", stream, found)
    if found.state == "PREPARED":
        text = f"{what}: it is prepared and takes no more events: commit or abort it by its id"
        return _made(TransactionPreparedError, text, stream, found)
    if found.state == "OPEN":
        text = f"{what}: it is open, but is about to be committed or aborted; check its state"
        return _made(TransactionError, text, stream, found)
    text = f"{what}: the stream has none with this id: it belongs to another stream, or ended more than a day ago"
    return _made(NoSuchTransactionError, f"{text}; list transactions with penstock transaction list", stream, found)


def _made(kind: type[TransactionError], message: str, stream: str, found: TransactionInfo) -> TransactionError:
    return kind(message, stream=stream, transaction=found.id)
