"""The blocking `Transaction`. Generated from `penstock.client.transactions.transaction`: do not edit.

`python -m penstock_tools.generate_sync` regenerates it; see ``docs/sync-client.md``.
"""

from __future__ import annotations

from typing import cast

from penstock.client.sync.ack import Ack
from penstock.client.sync.handle import Handle
from penstock.client.transactions import transaction as aio
from penstock.client.transactions.transaction import open_writer
from penstock.client.writing.ack import OnDelivery
from penstock.client.writing.event_runs import Events, RoutingKeys
from penstock.client.writing.event_writer import is_full, put_of, wait_for_space
from penstock.model.times import NotedTime


class Transaction(Handle[aio.Transaction]):
    """An open transaction on a stream. Made by `Client.begin_transaction`, or `Client.transaction` for one by its id.

    As a context manager it commits on leaving, or aborts when an exception passes through. Closing it undecided aborts
    it. Its lease is renewed only while it may still commit and is open here.
    """

    @property
    def id(self) -> str:
        """The transaction's id, 32 hexadecimal digits."""
        return self._part.id

    def write(
        self,
        event: bytes,
        routing_key: str | None = None,
        *,
        timeout_s: float | None = None,
        on_delivery: OnDelivery | None = None,
    ) -> Ack:
        """Write an event into the transaction; see `EventWriter.write`.

        Raises the subclass of `TransactionError` that names the cause if the transaction is over; so does the ack, if
        it ends before the event is stored.
        """
        writer = open_writer(self._part)
        if is_full(writer):
            self._portal.call(wait_for_space(writer, timeout_s))
        # Its acks were made for this front end.
        return cast(Ack, put_of(writer)(event, routing_key, on_delivery))

    def write_many(self, events: Events, routing_keys: RoutingKeys = None, *, timeout_s: float | None = None) -> None:
        """Write many events into the transaction; see `EventWriter.write_many`."""
        self._portal.call(self._part.write_many(events, routing_keys, timeout_s=timeout_s))

    def flush(self, timeout_s: float | None = None) -> None:
        """Wait until everything written so far is durable (not readable before the commit)."""
        self._portal.call(self._part.flush(timeout_s))

    def commit(self, *, time: NotedTime | None = None) -> None:
        """Flush and commit. Once this returns, the transaction stays committed; readers see it soon.

        A transaction whose flush failed can only be aborted: a repeated commit raises. If this call is cancelled, the
        commit continues; call it again to learn the outcome.

        Args:
            time: noted as by `EventWriter.note_time`, with the transaction's end: all events that this client's
                transactions have committed to the stream so far are of this time or before. 0 or more; a time before
                that of an earlier commit is ignored. See `Reader.time_window`.

        Raises:
            InvalidArgumentError: `time` is invalid, or differs from the time of an earlier call.
            OutcomeUnknownError: no reply; `state` returns the outcome, and `commit` may be repeated.
            TransactionError: not everything could be written. None of its events will ever be read.
            TransactionAbortedError: likewise; another process aborted it.
            TransactionExpiredError, TransactionStreamSealedError: likewise; its lease expired, the stream was sealed.
            TransactionStreamDeletedError: likewise; the stream was deleted.
            NoSuchTransactionError: it ended more than a day ago.
        """
        self._portal.call(self._part.commit(time=time))

    def abort(self) -> None:
        """Abort: none of the transaction's events are ever read. Aborting twice is allowed.

        Raises `TransactionCommittedError`, `TransactionStreamDeletedError`, `NoSuchTransactionError`; and
        `OutcomeUnknownError` without a reply: it may be repeated, and the transaction is aborted in any case when its
        lease expires.
        """
        self._portal.call(self._part.abort())

    def detach(self) -> str:
        """Flush, leave the transaction open for another process, and return its id.

        The whole lease runs from now on: a process that resumes the transaction within that time, by
        `Client.transaction`, may write, commit or abort. No further calls are possible here. If the flush fails, the
        transaction can only be aborted, as with `commit`.
        """
        return self._portal.call(self._part.detach())

    def prepare(self, *, limit_s: float | None = None) -> str:
        """Flush, take no more events, and leave the decision to any process that has the id, which this returns.

        For `limit_s` from now (None: `prepared_limit_s` of the settings) only a commit or an abort ends the
        transaction, here or by its id from any process (`Client.commit_transaction`, `Client.abort_transaction`). The
        lease, `close` and the end of this program do not. After the limit it is aborted. Preparing again can extend the
        limit, never shorten it. If the flush fails, the transaction can only be aborted, as with `commit`.

        Raises:
            InvalidArgumentError: the limit is outside the server's bounds.
            OutcomeUnknownError: no reply; `prepare` may be repeated.
            TransactionError: as `commit` does.
            UnsupportedOperationError: the controller is Pravega's own; the transaction can be committed or aborted.
        """
        return self._portal.call(self._part.prepare(limit_s=limit_s))

    def state(self) -> str:
        """Return ``OPEN``, ``COMMITTING``, ``COMMITTED``, ``ABORTING``, ``ABORTED`` or ``UNKNOWN``."""
        return self._portal.call(self._part.state())
