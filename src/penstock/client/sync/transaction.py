"""The blocking `Transaction`. Generated from `penstock.client.transaction`: do not edit.

`python -m penstock.client.generate_sync` makes it anew; see ``docs/sync-client.md``.
"""

from __future__ import annotations

from typing import cast

from penstock.client import transaction as aio
from penstock.client.ack import OnDelivery
from penstock.client.event_runs import Events, RoutingKeys
from penstock.client.sync.ack import Ack
from penstock.client.sync.handle import Handle
from penstock.model.times import NotedTime


class Transaction(Handle[aio.Transaction]):
    """An open transaction on a stream. Made by `Client.begin_transaction`, or `Client.transaction` for one by its id.

    As a context manager it commits on leaving, or aborts when an exception passes through. Closing it undecided aborts
    it. Its lease is renewed while it may still commit and is open here, and no longer.
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

        Raises `TransactionError` when it is over, of a kind that says why; so does the ack, if it ends meanwhile.
        """
        writer = self._part._open_writer
        if writer._is_full:
            self._portal.call(writer._has_space(timeout_s))
        # Its acks were made for this front end.
        return cast(Ack, writer._put(event, routing_key, on_delivery))

    def write_many(self, events: Events, routing_keys: RoutingKeys = None, *, timeout_s: float | None = None) -> None:
        """Write many events into the transaction; see `EventWriter.write_many`."""
        self._portal.call(self._part.write_many(events, routing_keys, timeout_s=timeout_s))

    def flush(self, timeout_s: float | None = None) -> None:
        """Wait until everything written so far is durable (not readable before the commit)."""
        self._portal.call(self._part.flush(timeout_s))

    def commit(self, *, time: NotedTime | None = None) -> None:
        """Flush and decide that the transaction commits. Once this returns it stays committed; readers see it soon.

        A transaction whose flush failed can only be aborted: a commit asked for again raises. If this is cancelled, the
        commit goes on; call it again to learn how it ended.

        Args:
            time: noted as by `EventWriter.note_time`, with where the transaction ends: all that this client's
                transactions have brought to the stream so far is of this time or before. 0 or more; one before that
                of an earlier commit is passed over. See `Reader.time_window`.

        Raises:
            InvalidArgumentError: `time` is none, or another one than an earlier call gave.
            OutcomeUnknownError: no answer; `state` tells what became of it, and `commit` may be repeated.
            TransactionError: not everything could be written. None of its events will ever be read.
            TransactionAbortedError: likewise, somebody aborted it.
            TransactionExpiredError, TransactionStreamSealedError: likewise; its lease ran out, the stream was sealed.
            TransactionStreamDeletedError: likewise, the stream is gone.
            NoSuchTransactionError: it ended more than a day ago.
        """
        self._portal.call(self._part.commit(time=time))

    def abort(self) -> None:
        """Decide that none of the transaction's events are ever read. Aborting twice is fine.

        Raises `TransactionCommittedError`, `TransactionStreamDeletedError`, `NoSuchTransactionError`; and
        `OutcomeUnknownError` without an answer: it may be repeated, and the end of the lease aborts it in any case.
        """
        self._portal.call(self._part.abort())

    def detach(self) -> str:
        """Flush and leave the transaction open for whoever goes on with it by its id, which this returns.

        It has its whole lease from now on: who takes it up within that, by `Client.transaction`, may write, commit or
        abort. Nothing more can be done here. If the flush fails it can only be aborted, as with `commit`.
        """
        return self._portal.call(self._part.detach())

    def prepare(self, *, limit_s: float | None = None) -> str:
        """Flush, let nothing more be written, and leave the decision to whoever knows the id, which this returns.

        For `limit_s` from now (None: `prepared_limit_s` of the settings) only a commit or an abort ends it, here or by
        its id from any process (`Client.commit_transaction`, `Client.abort_transaction`): no lease, no `close`, and not
        the end of this program. After that it is aborted. Prepared again it may wait for longer, never for less. If the
        flush fails it can only be aborted, as with `commit`.

        Raises:
            InvalidArgumentError: the limit is out of the server's bounds.
            OutcomeUnknownError: no answer; `prepare` may be repeated.
            TransactionError: as `commit` does.
            UnsupportedOperationError: the controller is Pravega's own; the transaction can be committed or aborted.
        """
        return self._portal.call(self._part.prepare(limit_s=limit_s))

    def state(self) -> str:
        """Return ``OPEN``, ``COMMITTING``, ``COMMITTED``, ``ABORTING``, ``ABORTED`` or ``UNKNOWN``."""
        return self._portal.call(self._part.state())
