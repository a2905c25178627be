"""Errors of the control plane: scopes, streams, transactions, reader groups, tables; and of clients' life."""

from __future__ import annotations

from penstock.model.errors.root import PenstockError


class StreamError(PenstockError):
    """A control-plane request about a scope, a stream or a transaction could not be done."""


class NoSuchScopeError(StreamError):
    """The scope does not exist."""


class ScopeExistsError(StreamError):
    """The scope exists already."""


class ScopeNotEmptyError(StreamError):
    """The scope still holds streams."""


class NoSuchStreamError(StreamError):
    """The stream does not exist."""


class StreamExistsError(StreamError):
    """The stream exists already."""


class StreamSealedError(StreamError):
    """The stream is sealed and takes no more changes."""


class StreamNotSealedError(StreamError):
    """The stream must be sealed first."""


class TransactionError(StreamError):
    """The transaction is past the state that the request needs. Its kinds say why, where that is known.

    `stream` is ``scope/stream``, `transaction` the id, 32 hexadecimal digits; "" where they are in the message alone.
    """

    def __init__(self, message: str, *, stream: str = "", transaction: str = "") -> None:
        super().__init__(message)
        self.stream = stream
        self.transaction = transaction


class NoSuchTransactionError(TransactionError):
    """The controller does not know the transaction: the id is none of the stream, or it ended more than a day ago."""


class TransactionCommittedError(TransactionError):
    """The transaction is committed, or certain to be: its events are read, and it takes no more."""


class TransactionAbortedError(TransactionError):
    """The transaction was aborted, by a client or by the server: none of its events is ever read."""


class TransactionExpiredError(TransactionAbortedError):
    """The transaction was aborted because its lease ran out, or because it was open for longer than is allowed."""


class TransactionPreparedError(TransactionError):
    """A prepared transaction prevents this: it takes no events, and its stream cannot be sealed before its decision.

    Commit or abort it, by its id.
    """


class TransactionStreamSealedError(TransactionAbortedError, StreamSealedError):
    """The transaction was aborted because its stream was sealed, which takes no more events at all."""


class TransactionStreamDeletedError(TransactionError, NoSuchStreamError):
    """The stream of an open transaction does not exist any more, and with it the transaction is gone."""


class NoSuchReaderGroupError(StreamError):
    """The reader group does not exist."""


class NoSuchTableError(StreamError):
    """The key-value table does not exist."""


class TableExistsError(StreamError):
    """The name of the key-value table is taken."""


class CommitNeededError(StreamError):
    """Nothing can be read before `Reader.commit` says what is done of what was handed out."""


class WriteTimeoutError(StreamError, TimeoutError):
    """A writer had no room for another event within the time given. The event was not taken.

    Of several events `taken_count` were taken, from the front, and are on their way.
    """

    is_retriable = True

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.taken_count = 0


class ClosedError(StreamError, ValueError):
    """What was asked for more work is closed, being closed, or not open yet. Nothing was done.

    Also a `ValueError`, as for Python's files.
    """


class ForkedError(ClosedError):
    """The client belongs to the parent of this process, or cannot work because the parent had one before the fork.

    Start processes by ``spawn`` or ``forkserver``, or connect in the child alone.
    """


class MetadataConflictError(StreamError):
    """A versioned write lost against another one. Read again and repeat the decision."""

    is_retriable = True


class ControllerUnavailableError(StreamError, ConnectionError):
    """The controller could not be reached, or answered with a passing fault. Also a `ConnectionError`.

    `was_reached`: whether this client ever had a connection to it. If not, the address may be wrong, and no retry is
    made inside the client.
    """

    is_retriable = True

    def __init__(self, message: str, *, was_reached: bool = True) -> None:
        super().__init__(message)
        self.was_reached = was_reached
