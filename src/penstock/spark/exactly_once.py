"""A batch of a sink, written exactly once: tasks prepare transactions, the driver records which before it commits any.

`SinkTask` is the work of a task, `SinkBatch` the work of the driver. The events of a batch are read once, or the batch
fails before any of them can be read, whichever process dies, hangs, is repeated or runs twice. Each case is described
in ``docs/exactly-once.md``. This module does not need Spark.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

from penstock.model.errors import (
    MetadataConflictError,
    NoSuchTransactionError,
    OutcomeUnknownError,
    PenstockError,
    TransactionAbortedError,
    TransactionCommittedError,
    TransactionStreamDeletedError,
)
from penstock.spark.errors import BatchOvertakenError, LostBatchError, OtherQueryError
from penstock.spark.ledger import Announcement, BatchState, Ledger, LedgerRow, SinkIdentity

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.aio import Client, Transaction

_log = logging.getLogger(__name__)

Answer = TypeVar("Answer")

#: Transactions that are decided upon at once.
DECISIONS_AT_ONCE = 16
#: Looks in a row at the ledger that another driver may thwart.
LOOKS_MAX = 8
#: Pauses between looks whether the events of a decided transaction can be read yet.
_LOOK_FIRST_S, _LOOK_MAX_S = 0.001, 0.25


@dataclass(frozen=True, slots=True)
class BatchIdentity:
    """Which batch of which sink. Batches are numbered from 0, and each begins after the one before it is done.

    Attributes:
        query: id of the streaming query that counts the batches, as its checkpoint has it; empty: unknown, or the
            application counts them itself.
    """

    sink: SinkIdentity
    batch: int
    query: str = ""

    def __str__(self) -> str:
        return f"batch {self.batch} of {self.sink}"


@dataclass(frozen=True, slots=True)
class SinkLimits:
    """How patient a sink is.

    Attributes:
        prepared_s: how long what a task has prepared waits for the driver; then it is aborted.
        visible_s: how long the driver waits until the events of a batch can be read.
    """

    prepared_s: float = 86_400.0
    visible_s: float = 120.0


class SinkTask:
    """The transactions of one attempt of a task: one for each stream, begun with its first event.

    Args:
        client: an open client.
        identity: None: there is no ledger, and who commits has to know what became of the task.
    """

    def __init__(self, client: Client, identity: BatchIdentity | None, limits: SinkLimits) -> None:
        self._client = client
        self._identity = identity
        self._limits = limits
        self._ledger: Ledger | None = None
        self._open: dict[str, Transaction] = {}
        #: The batch is done, as another run of it has seen to.
        self.is_done_before: bool = False

    async def begin(self) -> None:
        """Read what is on record about the batch. Raises `BatchOvertakenError` or `OtherQueryError`."""
        if self._identity is None:
            return
        self._ledger = await Ledger.open(self._client, self._identity.sink)
        row, _ = await self._ledger.look()
        _check_not_overtaken(self._identity, row)
        self.is_done_before = row.batch == self._identity.batch and row.state is BatchState.DONE

    async def write(
        self, stream: str, events: pa.Array | Sequence[bytes], routing_keys: pa.Array | Sequence[str] | None = None
    ) -> None:
        """Write events into the task's transaction on a stream."""
        if self.is_done_before:
            return
        transaction = self._open.get(stream)
        if transaction is not None:
            await transaction.write_many(events, routing_keys)
            return
        transaction = self._open[stream] = await self._client.begin_transaction(stream)
        if self._ledger is None or self._identity is None:
            await transaction.write_many(events, routing_keys)
            return

        async def write_first() -> None:
            await transaction.write_many(events, routing_keys)
            await transaction.flush()

        # Both are waits for a disk. It is announced before it is prepared: until then its lease ends it.
        announcement = Announcement(self._identity.batch, stream, transaction.id)
        await _together(self._ledger.announce(announcement), write_first())

    async def prepare(self) -> Mapping[str, str]:
        """Make everything durable, and let only a decision end it; return stream -> id."""
        await asyncio.gather(*(each.prepare(limit_s=self._limits.prepared_s) for each in self._open.values()))
        await self._leave()
        return {stream: each.id for stream, each in self._open.items()}

    async def abort(self) -> None:
        """Undo the task: what it wrote is never read. Where that fails it is said; a lease or a limit ends it then."""
        for stream, transaction in self._open.items():
            try:
                await transaction.abort()
            except PenstockError as error:
                _log.warning("transaction %s on %s was not aborted: %s", transaction.id, stream, error)
        await self._leave()

    async def _leave(self) -> None:
        for transaction in self._open.values():
            await transaction.close()
        if self._ledger is not None:
            await self._ledger.close()


class SinkBatch:
    """A batch at its end: all of its tasks have succeeded, or it has failed.

    Args:
        client: an open client.
        transactions: stream -> ids, as the tasks have prepared them.
        note: put on record with them, and if they are.
        now_ms: the driver's clock, for people who look at the ledger.
    """

    def __init__(
        self, client: Client, identity: BatchIdentity, transactions: Mapping[str, Sequence[str]], limits: SinkLimits,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000, note: str = "",
    ) -> None:  # fmt: skip
        self._decisions = Decisions(client, limits)
        self._client = client
        self._identity = identity
        self._own = {stream: tuple(ids) for stream, ids in transactions.items() if ids}
        self._now_ms = now_ms
        self._note = note

    async def commit(self) -> None:
        """See to it that the batch is in its streams once: these transactions, or those of an earlier run of it.

        Raises:
            BatchOvertakenError: a later batch is on record.
            OtherQueryError: a batch of this number is on record, and another query has written it.
            LostBatchError: a part of it is there, and the rest was aborted.
            PenstockError: it is not known to be there; repeat the batch, or this.
        """
        ledger = await Ledger.open(self._client, self._identity.sink)
        try:
            for _ in range(LOOKS_MAX):
                try:
                    row, version = await self._attempt(ledger)
                    # Its transactions are committed, so that nobody can name others in their place any more: those may
                    # go while this goes on record.
                    await _together(self._note_done(ledger, row, version), self._clean(ledger, row))
                except MetadataConflictError:
                    continue
                return
            raise MetadataConflictError(
                f"{self._identity}: the ledger was written by others {LOOKS_MAX} times in a row; only one driver may "
                "run a query"
            )
        finally:
            await ledger.close()

    async def abort(self) -> None:
        """Abort what the tasks have prepared, unless the ledger names it: then it is to commit.

        Raises `PenstockError`: some of it may be left, until its limit or the next batch.
        """
        ledger = await Ledger.open(self._client, self._identity.sink)
        try:
            # A commit that was cut short may have left a write behind that names them, and comes yet: not any more now.
            row = await ledger.fence(self._now_ms())
            named = _ids(row.transactions)
            others = [(stream, each) for stream, each in _pairs(self._own) if each not in named]
            await self._decisions.abort(others)
            batch = self._identity.batch
            await ledger.forget(Announcement(batch, stream, each) for stream, each in others)
        finally:
            await ledger.close()

    async def _attempt(self, ledger: Ledger) -> tuple[LedgerRow, int]:
        """Do what the row asks for; return it as it is then, with the batch committed, if not noted as done.

        Raises `MetadataConflictError`.
        """
        identity, decisions = self._identity, self._decisions
        # What its tasks have prepared may have waited for long: it has its whole limit from here on.
        looked, held = await asyncio.gather(ledger.look(), decisions.hold(self._own), return_exceptions=True)
        if isinstance(looked, BaseException):
            raise looked
        row, version = looked
        _check_not_overtaken(identity, row)
        if row.state is BatchState.INTENT:
            named = BatchIdentity(row.sink, row.batch, row.query)
            refusal = await decisions.hold(row.transactions)
            if refusal is None:
                await self._commit(row)
                if row.batch == identity.batch:
                    return row, version
                row, version = await self._note_done(ledger, row, version)
            else:
                # None of them is to commit any more, by whomever, before others take their place.
                if await decisions.abort(_pairs(row.transactions)):
                    raise _lost(named, "a part of its transactions is committed, the rest was aborted", refusal)
                if named.batch < identity.batch:
                    raise _lost(named, "all of its transactions were aborted, and Spark takes it for written", refusal)
                if isinstance(refusal, NoSuchTransactionError):
                    raise _lost(named, "its transactions ended so long ago that nobody knows how", refusal)
            # That may have taken long, too.
            held = await decisions.hold(self._own)
        if row.batch == identity.batch and row.state is BatchState.DONE:
            return row, version
        if not self._own and row.state is not BatchState.INTENT:
            return row, version
        if held is not None:
            raise held
        row = LedgerRow(
            identity.sink, identity.batch, BatchState.INTENT, self._own, self._now_ms(), self._note, identity.query
        )
        version = await ledger.replace(row, version)
        await self._commit(row)
        return row, version

    async def _commit(self, row: LedgerRow) -> None:
        """Commit what the row names."""
        try:
            await self._decisions.commit(row.transactions)
        except (TransactionAbortedError, NoSuchTransactionError, TransactionStreamDeletedError) as error:
            named = BatchIdentity(row.sink, row.batch)
            raise _lost(named, "one of its transactions cannot be committed", error) from error

    async def _note_done(self, ledger: Ledger, row: LedgerRow, version: int) -> tuple[LedgerRow, int]:
        """Say in the row, if it does not, that what it names is committed. Raises `MetadataConflictError`."""
        if row.state is not BatchState.INTENT:
            return row, version
        row = replace(row, state=BatchState.DONE, changed_ms=self._now_ms())
        return row, await ledger.replace(row, version)

    async def _clean(self, ledger: Ledger, row: LedgerRow) -> None:
        """Abort the transactions that other attempts of this batch and of earlier ones left, and remove old parts.

        Only after the intent, and after the commit of all that it names. Before that, a driver that holds the row's
        earlier version could still name those transactions, and so could a driver that finds the named ones aborted.
        """
        try:
            announced = await ledger.announced(row.batch)
            named = _ids(row.transactions)
            left = [(each.stream, each.transaction) for each in announced if each.transaction not in named]
            await self._decisions.abort(left)
            await _together(ledger.forget(announced), ledger.forget_parts(row))
        except PenstockError as error:
            _log.warning("%s: remains of other attempts stay until the next batch: %s", self._identity, error)


class Decisions:
    """What is decided upon transactions by their ids, some at once. Without a ledger this is all of a commit."""

    def __init__(self, client: Client, limits: SinkLimits) -> None:
        self._client = client
        self._limits = limits

    async def hold(self, transactions: Mapping[str, Sequence[str]]) -> PenstockError | None:
        """Have all of them wait for their whole limit from now on; return why not, if one was aborted or is unknown.

        Those that are committed need not wait.
        """

        async def prepare(stream: str, transaction: str) -> PenstockError | None:
            try:
                await self._client.prepare_transaction(stream, transaction, limit_s=self._limits.prepared_s)
            except TransactionCommittedError:
                pass
            except (TransactionAbortedError, NoSuchTransactionError, TransactionStreamDeletedError) as error:
                return error
            return None

        answers = await _some_at_once(prepare, _pairs(transactions))
        refusals = [error for error in answers if error is not None]
        # The one that says least: who asks may go on where all are known to be aborted.
        refusals.sort(key=lambda error: not isinstance(error, NoSuchTransactionError))
        return refusals[0] if refusals else None

    async def commit(self, transactions: Mapping[str, Sequence[str]]) -> None:
        """Commit all of them, and return once their events can be read.

        Raises `TransactionAbortedError`, `NoSuchTransactionError`, `OutcomeUnknownError`.
        """

        async def commit(stream: str, transaction: str) -> None:
            await self._client.commit_transaction(stream, transaction)
            loop = asyncio.get_running_loop()
            give_up_s, pause_s = loop.time() + self._limits.visible_s, _LOOK_FIRST_S
            while await self._client.transaction_state(stream, transaction) == "COMMITTING":
                if loop.time() > give_up_s:
                    raise OutcomeUnknownError(
                        f"transaction {transaction} on {stream} is to commit, but its events could not be read after "
                        f"{self._limits.visible_s:g} s; the batch is finished when it is repeated"
                    )
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, _LOOK_MAX_S)

        await _some_at_once(commit, _pairs(transactions))

    async def abort(self, transactions: Iterable[tuple[str, str]]) -> int:
        """Abort them, and return how many are committed all the same. What has ended already is fine."""

        async def abort(stream: str, transaction: str) -> int:
            try:
                await self._client.abort_transaction(stream, transaction)
            except TransactionCommittedError:
                return 1
            except (NoSuchTransactionError, TransactionStreamDeletedError):
                pass
            return 0

        return sum(await _some_at_once(abort, list(transactions)))


async def _together(*steps: Awaitable[object]) -> None:
    """Take steps at once; raise the first error when all have ended."""
    for answer in await asyncio.gather(*steps, return_exceptions=True):
        if isinstance(answer, BaseException):
            raise answer


async def _some_at_once(
    decide: Callable[[str, str], Awaitable[Answer]], transactions: Sequence[tuple[str, str]]
) -> list[Answer]:
    """Call `decide` with each stream and id, `DECISIONS_AT_ONCE` at a time; raise the first error when all are done."""
    free = asyncio.Semaphore(DECISIONS_AT_ONCE)

    async def one(stream: str, transaction: str) -> tuple[Answer]:
        # In a tuple, since an answer may be an error: one that is returned, and not raised.
        async with free:
            return (await decide(stream, transaction),)

    done: list[Answer] = []
    for answer in await asyncio.gather(*(one(*each) for each in transactions), return_exceptions=True):
        if isinstance(answer, BaseException):
            raise answer
        done += answer
    return done


def by_stream(tasks: Iterable[Mapping[str, str]]) -> dict[str, tuple[str, ...]]:
    """Return stream -> ids of what tasks have prepared, in the order of the tasks."""
    found: defaultdict[str, list[str]] = defaultdict(list)
    for transactions in tasks:
        for stream, transaction in transactions.items():
            found[stream].append(transaction)
    return {stream: tuple(ids) for stream, ids in found.items()}


def _pairs(transactions: Mapping[str, Sequence[str]]) -> list[tuple[str, str]]:
    return [(stream, each) for stream, ids in transactions.items() for each in ids]


def _ids(transactions: Mapping[str, Sequence[str]]) -> set[str]:
    return {each for ids in transactions.values() for each in ids}


def _check_not_overtaken(identity: BatchIdentity, row: LedgerRow) -> None:
    """Refuse a batch that the row shows to be another query's, or to come too late.

    Equal numbers alone do not show that a batch is repeated: a query whose checkpoint was lost counts from 0 again.
    """
    if row.batch > identity.batch:
        raise BatchOvertakenError(
            f"{identity}: batch {row.batch} is on record already. Another run of the query is ahead, or its checkpoint "
            "was lost and batches are counted from 0 again: stop the other run, or use another appId"
        )
    if row.batch == identity.batch and row.query and identity.query and row.query != identity.query:
        done = "was written" if row.state is BatchState.DONE else "was begun, and may be written in part,"
        raise OtherQueryError(
            f"{identity} of query {identity.query}: a batch of this number {done} by query {row.query}. The query's "
            "checkpoint was lost, or two queries use one appId. Nothing of this batch was written: compare the stream "
            "with the query's source, and continue with another appId"
        )


def _lost(identity: BatchIdentity, what: str, error: PenstockError) -> LostBatchError:
    return LostBatchError(
        f"{identity}: {what} ({error}). Compare its events with the stream, and continue with another appId or "
        "checkpoint"
    )
