"""`Transaction`: events that become readable all at once, or never."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from enum import Enum
from random import Random
from types import TracebackType

from penstock.client.common.life_cycle import LifeCycle, end_now, refuse_after_fork
from penstock.client.common.tasks import start_watched
from penstock.client.common.telemetry import operation, telemetry_of_process
from penstock.client.controller.controller import ControllerClient
from penstock.client.controller.sources import TransactionSource
from penstock.client.controller.stream_segments import SegmentRange
from penstock.client.controller.transaction_calls import NO_TIME
from penstock.client.controller.transaction_endings import over_error
from penstock.client.controller.transaction_ids import id_of, transaction_text
from penstock.client.controller.transaction_times import TransactionTimes, commit_time
from penstock.client.settings import ClientSettings
from penstock.client.transactions.lease import keep_renewed
from penstock.client.transport.connection_pool import ConnectionPool
from penstock.client.writing.ack import Ack, AckState, OnDelivery
from penstock.client.writing.event_runs import Events, RoutingKeys
from penstock.client.writing.event_writer import EventWriter
from penstock.model.errors import (
    InvalidArgumentError,
    NoSuchStreamError,
    NoSuchTransactionError,
    TransactionAbortedError,
    TransactionCommittedError,
    TransactionError,
    TransactionPreparedError,
    TransactionStreamDeletedError,
)
from penstock.model.names import EPOCH_SHIFT
from penstock.model.times import NotedTime
from penstock.rpc import controller_pb2 as pb

_log = logging.getLogger(__name__)


class _Fate(Enum):
    """The decision taken here about a transaction."""

    OPEN = "open"
    #: Some of its events may not be stored, or an abort was requested: it can never commit.
    DOOMED = "to be aborted"
    #: Everything is stored and the commit was requested; the request may be repeated until there is a reply.
    COMMITTING = "committing"
    COMMITTED = "committed"
    ABORTED = "aborted"
    #: The controller reported a different end than was requested here.
    OVER = "over"
    #: Everything is stored and preparing was requested; the request may be repeated until there is a reply.
    PREPARING = "being prepared"
    #: Until its limit, only a commit or an abort ends it, here or by its id.
    PREPARED = "prepared"
    #: Everything is stored; another process decides, by the id.
    DETACHED = "detached"


class Transaction(LifeCycle):
    """An open transaction on a stream. Made by `Client.begin_transaction`, or `Client.transaction` for one by its id.

    As a context manager it commits on leaving, or aborts when an exception passes through. Closing it undecided aborts
    it. Its lease is renewed only while it may still commit and is open here.
    """

    def __init__(
        self,
        controller: ControllerClient,
        pool: ConnectionPool,
        settings: ClientSettings,
        rng: Random,
        times: TransactionTimes,
        scope: str,
        stream: str,
        *,
        lease_s: float,
        owner: LifeCycle | None = None,
        ack_factory: Callable[[], AckState] = Ack,
        is_threaded: bool = False,
    ) -> None:
        super().__init__(f"transaction on {scope}/{stream}", close_timeout_s=settings.close_timeout_s)
        self._controller = controller
        self._pool = pool
        self._settings = settings
        self._rng = rng
        self._times = times
        self._scope = scope
        self._stream = stream
        self._lease_s = lease_s
        self._future_owner = owner
        self._ack_factory = ack_factory
        self._is_threaded = is_threaded
        self._telemetry = telemetry_of_process(pool.controller)
        self._id = pb.TxnId()
        self._fate = _Fate.OPEN
        self._doomed_by: BaseException | None = None
        # Not a child: when this is closed undecided, its events need no flush.
        self._writer: EventWriter | None = None
        self._keeper: asyncio.Task[None] | None = None
        #: The time that the commit notes; a repeated commit must give the same time.
        self._noted: int | None = None
        #: A commit or abort in progress. The caller's cancellation does not interrupt it.
        self._deciding: asyncio.Task[None] | None = None

    async def _begin(self) -> None:
        """See `begin_transaction`."""
        self._id, segments = await self._controller.create_transaction(
            self._scope, self._stream, lease_ms=round(self._lease_s * 1000)
        )
        await self._start(segments)

    async def _resume(self, transaction_id: str) -> None:
        """See `resume_transaction`."""
        self._id = id_of(transaction_id)
        await self._controller.ping_transaction(
            self._scope, self._stream, self._id, lease_ms=round(self._lease_s * 1000), tried="resume"
        )
        found = await self._controller.describe_transaction(self._scope, self._stream, self._id)
        if found.state == "PREPARED":
            raise over_error("resume", self._stream_name, found)
        # The upper half of an id begins with the epoch whose segments the transaction uses.
        await self._start(
            await self._controller.epoch_segments(self._scope, self._stream, self._id.highBits >> EPOCH_SHIFT)
        )

    async def _start(self, segments: Sequence[SegmentRange]) -> None:
        source = TransactionSource(
            self._scope, self._stream, segments, high_bits=self._id.highBits, low_bits=self._id.lowBits,
            why_over=self._why_over,
        )  # fmt: skip
        self._writer = await EventWriter(
            source, self._pool, self._settings, self._rng,
            ack_factory=self._ack_factory, is_threaded=self._is_threaded,
        )._start()  # fmt: skip
        self.open_life(self._future_owner)
        self._keeper = start_watched(self._keep_open(), f"lease of {self.id}", lambda error: None)

    @property
    def id(self) -> str:
        """The transaction's id, 32 hexadecimal digits."""
        return transaction_text(self._id)

    @property
    def _open_writer(self) -> EventWriter:
        """The writer of the transaction's events, for operations that this class does not offer."""
        if self._is_forked:
            raise self._closed_error()
        if self._fate in (_Fate.PREPARING, _Fate.PREPARED):
            raise TransactionPreparedError(
                f"{self._name} is {self._fate.value}: it takes no more events",
                stream=self._stream_name, transaction=self.id,
            )  # fmt: skip
        if self._writer is None or self._fate is not _Fate.OPEN or self._is_deciding or not self.is_open:
            raise self._decided_error(f"{self._name} takes no more events")
        return self._writer

    async def write(
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
        return await self._open_writer.write(event, routing_key, timeout_s=timeout_s, on_delivery=on_delivery)

    async def write_many(
        self, events: Events, routing_keys: RoutingKeys = None, *, timeout_s: float | None = None
    ) -> None:
        """Write many events into the transaction; see `EventWriter.write_many`."""
        await self._open_writer.write_many(events, routing_keys, timeout_s=timeout_s)

    async def flush(self, timeout_s: float | None = None) -> None:
        """Wait until everything written so far is durable (not readable before the commit)."""
        await self._open_writer.flush(timeout_s)

    async def commit(self, *, time: NotedTime | None = None) -> None:
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
        if time is not None:
            noted = commit_time(time, self._name)
            if self._fate in (_Fate.OPEN, _Fate.PREPARING, _Fate.PREPARED) and not self._is_deciding:
                self._noted = noted
            elif self._noted != noted:
                earlier = "none" if self._noted is None else str(self._noted)
                raise InvalidArgumentError(f"{self._name}: time={time!r} cannot be noted: {earlier} was given before")
        with operation(self._telemetry, "commit", "settle", self._stream_name):
            await self._decide(self._commit)

    async def abort(self) -> None:
        """Abort: none of the transaction's events are ever read. Aborting twice is allowed.

        Raises `TransactionCommittedError`, `TransactionStreamDeletedError`, `NoSuchTransactionError`; and
        `OutcomeUnknownError` without a reply: it may be repeated, and the transaction is aborted in any case when its
        lease expires.
        """
        with operation(self._telemetry, "abort", "settle", self._stream_name):
            await self._decide(self._abort)

    async def detach(self) -> str:
        """Flush, leave the transaction open for another process, and return its id.

        The whole lease runs from now on: a process that resumes the transaction within that time, by
        `Client.transaction`, may write, commit or abort. No further calls are possible here. If the flush fails, the
        transaction can only be aborted, as with `commit`.
        """
        await self._decide(self._detach)
        return self.id

    async def prepare(self, *, limit_s: float | None = None) -> str:
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
        limit_ms = round((self._settings.prepared_limit_s if limit_s is None else limit_s) * 1000)
        with operation(self._telemetry, "prepare", "settle", self._stream_name):
            await self._decide(lambda: self._prepare(limit_ms))
        return self.id

    async def state(self) -> str:
        """Return ``OPEN``, ``COMMITTING``, ``COMMITTED``, ``ABORTING``, ``ABORTED`` or ``UNKNOWN``."""
        return await self._controller.transaction_state(self._scope, self._stream, self._id)

    async def __aenter__(self) -> Transaction:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is not None or self._fate is not _Fate.OPEN or not self.is_open:
            await super().__aexit__(kind, error, traceback)
            return
        try:
            await self.commit()
        except Exception as failure:
            # Aborts the transaction, unless it may have been committed.
            await super().__aexit__(type(failure), failure, failure.__traceback__)
            raise

    # -- inside -------------------------------------------------------------------------------------------------

    @property
    def _stream_name(self) -> str:
        return f"{self._scope}/{self._stream}"

    @property
    def _name(self) -> str:
        return f"transaction {self.id} on stream {self._stream_name}"

    @property
    def _is_deciding(self) -> bool:
        return self._deciding is not None and not self._deciding.done()

    async def _decide(self, step: Callable[[], Coroutine[object, object, None]]) -> None:
        """Run `step` in a task of its own, after any that still runs."""
        if self._is_forked:
            raise self._closed_error()
        while self._deciding is not None and not self._deciding.done():
            await asyncio.wait([self._deciding])
        self._deciding = asyncio.get_running_loop().create_task(step(), name=f"decide on {self.id}")
        # Its caller may have been cancelled before it fails; a repeated call reports the failure from the fate.
        self._deciding.add_done_callback(lambda task: None if task.cancelled() else task.exception())
        await asyncio.shield(self._deciding)
        await self.close()

    async def _commit(self) -> None:
        if self._fate is _Fate.COMMITTED:
            return
        if self._fate not in (_Fate.OPEN, _Fate.PREPARING, _Fate.PREPARED, _Fate.COMMITTING):
            raise self._decided_error(f"{self._name} cannot be committed")
        if self._fate is _Fate.OPEN:
            await self._store_all()
        self._fate = _Fate.COMMITTING
        writer, noted = "", NO_TIME
        if self._noted is not None:
            writer, noted = self._times.writer(self._scope, self._stream), self._noted
        with self._ending_noted("commit"):
            await self._controller.commit_transaction(
                self._scope, self._stream, self._id, writer_id=writer, timestamp=noted
            )
        self._fate = _Fate.COMMITTED

    async def _store_all(self) -> None:
        self._check_open()
        assert self._writer is not None
        try:
            await self._writer.flush()
            # Closing refuses new events, and flushes those that another task wrote meanwhile.
            await self._writer.close()
        except BaseException as error:
            self._fate = _Fate.DOOMED
            self._doomed_by = error
            raise

    async def _prepare(self, limit_ms: int) -> None:
        if self._fate not in (_Fate.OPEN, _Fate.PREPARING, _Fate.PREPARED):
            raise self._decided_error(f"{self._name} cannot be prepared")
        if self._fate is _Fate.OPEN:
            await self._store_all()
            self._fate = _Fate.PREPARING
        with self._ending_noted("prepare"):
            await self._controller.prepare_transaction(self._scope, self._stream, self._id, limit_ms=limit_ms)
        self._fate = _Fate.PREPARED

    async def _detach(self) -> None:
        if self._fate is _Fate.DETACHED:
            return
        if self._fate is not _Fate.OPEN:
            raise self._decided_error(f"{self._name} cannot be detached")
        await self._store_all()
        with self._ending_noted("leave"):
            await self._renew()
        self._fate = _Fate.DETACHED

    async def _abort(self) -> None:
        is_aborted = self._fate is _Fate.OVER and isinstance(self._doomed_by, TransactionAbortedError)
        if self._fate is _Fate.ABORTED or is_aborted:
            return
        if self._fate in (_Fate.COMMITTED, _Fate.OVER):
            raise self._decided_error(f"{self._name} cannot be aborted")
        if self._fate is _Fate.DETACHED:
            raise self._decided_error(f"{self._name} cannot be aborted here")
        self._fate = _Fate.DOOMED
        if self._writer is not None:
            await self._writer.abandon()
        with self._ending_noted("abort"):
            await self._controller.abort_transaction(self._scope, self._stream, self._id)
        self._fate = _Fate.ABORTED

    async def _finish(self) -> None:
        if self._is_deciding:
            assert self._deciding is not None
            await asyncio.wait([self._deciding])
        is_undecided = self._fate in (_Fate.OPEN, _Fate.PREPARING)
        if is_undecided and self._is_in_program:
            _log.warning("%s was closed without commit: aborting it", self._name)
        if is_undecided or self._fate is _Fate.DOOMED:
            try:
                await self._abort()
            except TransactionCommittedError:
                # Another process that has its id committed it.
                _log.warning("%s was committed elsewhere before it was closed here", self._name)
                self._fate = _Fate.COMMITTED
            except (NoSuchTransactionError, TransactionStreamDeletedError) as error:
                # No transaction is left to abort.
                _log.warning("%s", error)

    async def _release(self) -> None:
        for task in (self._keeper, self._deciding):
            if task is not None:
                task.cancel()
                await asyncio.wait([task])
        if self._writer is not None:
            await self._writer.abandon()

    def _settle(self) -> None:
        if self._writer is not None:
            end_now(self._writer)

    def _own_losses(self) -> Iterator[str]:
        if self._fate is _Fate.OPEN and self.is_open:
            yield f"{self._name} is not committed: none of its events will be read"

    def _after_fork(self) -> None:
        if self._writer is not None:
            refuse_after_fork(self._writer)

    async def _keep_open(self) -> None:
        needed = (_Fate.OPEN, _Fate.PREPARING, _Fate.COMMITTING)
        await keep_renewed(self._name, self._lease_s, self._renew, lambda: self._fate in needed, self._settings)

    async def _renew(self) -> None:
        await self._controller.ping_transaction(
            self._scope, self._stream, self._id, lease_ms=round(self._lease_s * 1000)
        )

    def _decided_error(self, refusal: str) -> TransactionError:
        """Return the error for a call that the decision taken here rules out; `refusal` begins its message."""
        why = f", because of an earlier error: {self._doomed_by}" if self._doomed_by is not None else ""
        kind: type[TransactionError] = TransactionError
        if self._fate is _Fate.COMMITTED:
            kind = TransactionCommittedError
        elif isinstance(self._doomed_by, TransactionError):
            kind = type(self._doomed_by)
        elif self._fate in (_Fate.DOOMED, _Fate.ABORTED):
            kind = TransactionAbortedError
        state = "being decided on" if self._fate is _Fate.OPEN else self._fate.value
        return kind(f"{refusal}, it is {state}{why}", stream=self._stream_name, transaction=self.id)

    @contextmanager
    def _ending_noted(self, tried: str) -> Iterator[None]:
        """Record an end that the controller reports. A missing stream was deleted, because it existed before."""
        try:
            yield
        except TransactionError as error:
            self._end_by(error)
            raise
        except NoSuchStreamError as error:
            deleted = TransactionStreamDeletedError(
                f"cannot {tried} {self._name}: the stream was deleted, and the transaction with it; none of its events "
                "can be read: write them to another stream",
                stream=self._stream_name,
                transaction=self.id,
            )
            self._end_by(deleted)
            raise deleted from error

    def _end_by(self, error: TransactionError) -> None:
        self._fate = _Fate.OVER
        self._doomed_by = error

    async def _why_over(self) -> TransactionError:
        """Return why a transaction's segments take no more events, as far as that can be determined."""
        with self._ending_noted("write to"):
            return await self._controller.over_error(self._scope, self._stream, self._id, "write to")


async def begin_transaction(transaction: Transaction) -> None:
    """Create the transaction at the controller, and open it."""
    await transaction._begin()


async def resume_transaction(transaction: Transaction, transaction_id: str) -> None:
    """Resume the transaction of this id, and open it.

    A prepared transaction is refused: it takes no more events, and closing it undecided here must not abort it.
    """
    await transaction._resume(transaction_id)


def open_writer(transaction: Transaction) -> EventWriter:
    """Return the writer of a transaction's events. Raises as `Transaction.write` if it takes no more events."""
    return transaction._open_writer
