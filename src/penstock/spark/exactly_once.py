"""Writes a batch of a sink exactly once: tasks prepare transactions, and the driver records them before it commits.

`SinkTask` is the work of a task, `SinkBatch` the work of the driver. The events of a batch become readable once, or the
batch fails before any of them is readable, whichever process dies, hangs, is repeated or runs twice. Each case is
described in ``docs/exactly-once.md``. This module does not need Spark.
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
from penstock.runtime.bulk import all_ended
from penstock.runtime.pacing import GrowingDelay
from penstock.spark.errors import BatchOvertakenError, LostBatchError, OtherQueryError
from penstock.spark.ledger import BatchState, BegunTransaction, Ledger, LedgerRow, SinkIdentity

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.aio import Client, Transaction

_log = logging.getLogger(__name__)

Answer = TypeVar("Answer")

#: Maximum number of concurrent decisions about transactions.
DECISIONS_AT_ONCE = 16
#: Maximum number of consecutive attempts on the ledger when another driver interferes.
READS_MAX = 8
#: Pauses between polls whether the events of a committed transaction are readable.
_POLL_FIRST_S, _POLL_MAX_S = 0.001, 0.25


@dataclass(frozen=True, slots=True)
class BatchIdentity:
    """A batch of a sink. Batches are numbered from 0, and each begins after the one before it is done.

    Attributes:
        query: id of the streaming query that counts the batches, from its checkpoint; empty: unknown, or the
            application counts them itself.
    """

    sink: SinkIdentity
    batch: int
    query: str = ""

    def __str__(self) -> str:
        return f"batch {self.batch} of {self.sink}"


@dataclass(frozen=True, slots=True)
class SinkLimits:
    """Time limits of a sink.

    Attributes:
        prepared_s: how long transactions prepared by a task wait for the driver; then they are aborted.
        visible_s: how long the driver waits until the events of a batch are readable.
    """

    prepared_s: float = 86_400.0
    visible_s: float = 120.0


class SinkTask:
    """The transactions of one attempt of a task: one for each stream, begun with its first event.

    Args:
        client: an open client.
        identity: None: there is no ledger, and the caller that commits has to know the outcome of the task.
    """

    def __init__(self, client: Client, identity: BatchIdentity | None, limits: SinkLimits) -> None:
        self._client = client
        self._identity = identity
        self._limits = limits
        self._ledger: Ledger | None = None
        self._open: dict[str, Transaction] = {}
        #: The batch is done already, by another run of it.
        self.is_done_before: bool = False

    async def begin(self) -> None:
        """Read the record of the batch. Raises `BatchOvertakenError` or `OtherQueryError`."""
        if self._identity is None:
            return
        self._ledger = await Ledger.open(self._client, self._identity.sink)
        row, _ = await self._ledger.read()
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

        # Concurrently, because both wait for a disk. Announced before prepared: until then the lease ends the
        # transaction.
        announcement = BegunTransaction(self._identity.batch, stream, transaction.id)
        await _together(self._ledger.announce(announcement), write_first())

    async def prepare(self) -> Mapping[str, str]:
        """Make everything durable, so that only a decision ends it; return stream -> id."""
        await asyncio.gather(*(each.prepare(limit_s=self._limits.prepared_s) for each in self._open.values()))
        await self._leave()
        return {stream: each.id for stream, each in self._open.items()}

    async def abort(self) -> None:
        """Abort the task: its events are never readable. A failure is logged; a lease or a limit aborts it then."""
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
    """The end of a batch: all of its tasks have succeeded, or it has failed.

    Args:
        client: an open client.
        transactions: stream -> ids, as prepared by the tasks.
        note: recorded with the transactions, if they are recorded.
        now_ms: the driver's clock, for people who read the ledger.
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
        """Make the batch's events readable exactly once: those of these transactions, or of an earlier run's.

        Raises:
            BatchOvertakenError: a later batch is recorded.
            OtherQueryError: a batch of this number is recorded, and another query has written it.
            LostBatchError: a part of it is committed, and the rest was aborted.
            PenstockError: the outcome is unknown; repeat the batch, or this call.
        """
        ledger = await Ledger.open(self._client, self._identity.sink)
        try:
            for _ in range(READS_MAX):
                try:
                    row, version = await self._attempt(ledger)
                    # Its transactions are committed, so no driver can record others in their place any more: the latter
                    # can be aborted while this is recorded.
                    await _together(self._note_done(ledger, row, version), self._clean(ledger, row))
                except MetadataConflictError:
                    continue
                return
            raise MetadataConflictError(
                f"{self._identity}: the ledger was changed by another driver {READS_MAX} times in a row; only one "
                "driver may run a query"
            )
        finally:
            await ledger.close()

    async def abort(self) -> None:
        """Abort the transactions prepared by the tasks, unless the ledger names them: then they have to be committed.

        Raises `PenstockError`: some of them may be left, until their limit or the next batch.
        """
        ledger = await Ledger.open(self._client, self._identity.sink)
        try:
            # An interrupted commit may have left a write that names them in flight. After the fence it can no longer
            # succeed.
            row = await ledger.fence(self._now_ms())
            named = _ids(row.transactions)
            others = [(stream, each) for stream, each in _pairs(self._own) if each not in named]
            await self._decisions.abort(others)
            batch = self._identity.batch
            await ledger.forget(BegunTransaction(batch, stream, each) for stream, each in others)
        finally:
            await ledger.close()

    async def _attempt(self, ledger: Ledger) -> tuple[LedgerRow, int]:
        """Do what the row requires; return the row with the batch committed, perhaps not recorded as done.

        Raises `MetadataConflictError`.
        """
        identity, decisions = self._identity, self._decisions
        # The tasks' transactions may have waited for long: their whole limit starts again here.
        found, held = await asyncio.gather(ledger.read(), decisions.extend_prepared(self._own), return_exceptions=True)
        if isinstance(found, BaseException):
            raise found
        row, version = found
        _check_not_overtaken(identity, row)
        if row.state is BatchState.INTENT:
            named = BatchIdentity(row.sink, row.batch, row.query)
            refusal = await decisions.extend_prepared(row.transactions)
            if refusal is None:
                await self._commit(row)
                if row.batch == identity.batch:
                    return row, version
                row, version = await self._note_done(ledger, row, version)
            else:
                # All of them must be aborted, so that no driver can commit one, before others take their place.
                if await decisions.abort(_pairs(row.transactions)):
                    raise _lost(named, "some of its transactions were committed, the others aborted", refusal)
                if named.batch < identity.batch:
                    raise _lost(named, "all of its transactions were aborted, but Spark considers it written", refusal)
                if isinstance(refusal, NoSuchTransactionError):
                    raise _lost(
                        named, "its transactions ended so long ago that their outcome is no longer recorded", refusal
                    )
            # The steps above may have taken long, too.
            held = await decisions.extend_prepared(self._own)
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
        """Commit the transactions of the row."""
        try:
            await self._decisions.commit(row.transactions)
        except (TransactionAbortedError, NoSuchTransactionError, TransactionStreamDeletedError) as error:
            named = BatchIdentity(row.sink, row.batch)
            raise _lost(named, "one of its transactions cannot be committed", error) from error

    async def _note_done(self, ledger: Ledger, row: LedgerRow, version: int) -> tuple[LedgerRow, int]:
        """Record in the row that its transactions are committed, unless recorded. Raises `MetadataConflictError`."""
        if row.state is not BatchState.INTENT:
            return row, version
        row = replace(row, state=BatchState.DONE, changed_ms=self._now_ms())
        return row, await ledger.replace(row, version)

    async def _clean(self, ledger: Ledger, row: LedgerRow) -> None:
        """Abort the leftover transactions of other attempts of this batch and of earlier ones, and remove old parts.

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
            _log.warning("%s: transactions of other attempts remain until the next batch: %s", self._identity, error)


class Decisions:
    """Decisions about transactions by their ids, several at once. Without a ledger this is all of a commit."""

    def __init__(self, client: Client, limits: SinkLimits) -> None:
        self._client = client
        self._limits = limits

    async def extend_prepared(self, transactions: Mapping[str, Sequence[str]]) -> PenstockError | None:
        """Restart the whole limit of all of them; return the error if one was aborted or is unknown, else None.

        Committed transactions are skipped.
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
        # Errors about unknown transactions come last: the caller may continue if all are known to be aborted.
        refusals.sort(key=lambda error: not isinstance(error, NoSuchTransactionError))
        return refusals[0] if refusals else None

    async def commit(self, transactions: Mapping[str, Sequence[str]]) -> None:
        """Commit all of them, and return once their events are readable.

        Raises `TransactionAbortedError`, `NoSuchTransactionError`, `OutcomeUnknownError`.
        """

        async def commit(stream: str, transaction: str) -> None:
            await self._client.commit_transaction(stream, transaction)
            loop = asyncio.get_running_loop()
            give_up_s, pause = loop.time() + self._limits.visible_s, GrowingDelay(_POLL_FIRST_S, _POLL_MAX_S)
            while await self._client.transaction_state(stream, transaction) == "COMMITTING":
                if loop.time() > give_up_s:
                    raise OutcomeUnknownError(
                        f"transaction {transaction} on {stream} is to commit, but its events could not be read after "
                        f"{self._limits.visible_s:g} s; the batch is finished when it is repeated"
                    )
                await pause.sleep()

        await _some_at_once(commit, _pairs(transactions))

    async def abort(self, transactions: Iterable[tuple[str, str]]) -> int:
        """Abort them, and return how many are committed nevertheless. Ended transactions are no error."""

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
    """Run steps concurrently; raise the first error when all have ended."""
    for answer in await asyncio.gather(*steps, return_exceptions=True):
        if isinstance(answer, BaseException):
            raise answer


async def _some_at_once(
    decide: Callable[[str, str], Awaitable[Answer]], transactions: Sequence[tuple[str, str]]
) -> list[Answer]:
    """Call `decide` with each stream and id, `DECISIONS_AT_ONCE` at a time; raise the first error when all are done."""
    return await all_ended(transactions, lambda each: decide(*each), DECISIONS_AT_ONCE)


def by_stream(tasks: Iterable[Mapping[str, str]]) -> dict[str, tuple[str, ...]]:
    """Return stream -> ids of the transactions prepared by the tasks, in the order of the tasks."""
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
    """Refuse a batch if the row shows that it is another query's, or comes too late.

    Equal numbers alone do not show that a batch is repeated: a query whose checkpoint was lost counts from 0 again.
    """
    if row.batch > identity.batch:
        raise BatchOvertakenError(
            f"{identity}: batch {row.batch} is already recorded. Another run of the query is ahead, or its checkpoint "
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
