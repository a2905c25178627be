"""The Spark sink: Arrow batches to events. Exactly once, or with `exactlyOnce` false at least once.

Exactly once: each task writes into a transaction and prepares it, and the driver commits those of the successful
tasks, after it has recorded them (`exactly_once.py`). At least once: each task appends through a writer and waits until
its events are durable; nothing is undone, and a retried task or a replayed micro-batch repeats them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeVar

from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from penstock.model.errors import PenstockError, UnsupportedOperationError
from penstock.spark.exactly_once import BatchIdentity, Decisions, SinkBatch, SinkLimits, SinkTask, by_stream
from penstock.spark.ledger import SinkIdentity
from penstock.spark.options import SinkOptions
from penstock.spark.sink_rows import SinkRows
from penstock.spark.worker_memory import freeze_loaded

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock import EventWriter
    from penstock.aio import Client

_log = logging.getLogger(__name__)

T = TypeVar("T")

#: Properties that Spark sets in each task of a streaming query. Internal names of Spark, pinned by a test.
QUERY_ID_PROPERTY = "sql.streaming.queryId"
BATCH_ID_PROPERTY = "streaming.sql.batchId"


@dataclass
class TaskWritten(WriterCommitMessage):
    """What one task has written durably: number of events, and of bytes of their payloads.

    Attributes:
        transactions: stream -> id of the prepared transaction.
        identity: the batch of the task; None: at least once, or a batch write without an id.
    """

    event_count: int
    payload_bytes: int
    transactions: Mapping[str, str] = field(default_factory=dict)
    identity: BatchIdentity | None = None


def write_batches(options: SinkOptions, batches: Iterator[pa.RecordBatch]) -> TaskWritten:
    """Append the rows of `batches` in order and return once all of them are durable. At least once.

    Rows with a routing key keep their order per key; the others are distributed over the segments.

    Raises:
        InvalidArgumentError: a row's event is null, or its stream is not a valid name.
    """
    from penstock.spark.store import StoredStream

    rows = SinkRows(options)
    with ExitStack() as opened:
        writers: dict[str, EventWriter] = {}

        def write(stream: str, events: pa.Array, keys: pa.Array | None) -> None:
            if stream not in writers:
                scope, name = stream.split("/")
                writers[stream] = opened.enter_context(StoredStream(options.store, scope, name).writer())
            writers[stream].write_many(events, routing_keys=keys)

        # An empty partition has no batch, so a writer is opened at its first row.
        rows.write_all(batches, write)
        for writer in writers.values():
            writer.flush()
    freeze_loaded("sink")
    return TaskWritten(rows.event_count, rows.payload_bytes)


def prepare_batches(
    options: SinkOptions, batches: Iterator[pa.RecordBatch], identity: BatchIdentity | None
) -> TaskWritten:
    """Write the rows of `batches` into a transaction for each stream, and prepare these for the driver's decision.

    Order and errors as in `write_batches`; and `BatchOvertakenError`. After an error none of the rows is ever readable.
    """
    from penstock.spark.store import run_in_client

    rows, store = SinkRows(options), options.store
    task: SinkTask | None = None

    async def begin(client: Client) -> SinkTask:
        begun = SinkTask(client, identity, _limits(options))
        await begun.begin()
        return begun

    def write(stream: str, events: pa.Array, keys: pa.Array | None) -> None:
        nonlocal task
        started = task = run_in_client(store, begin) if task is None else task
        run_in_client(store, lambda client: started.write(stream, events, keys))

    def end(step: Callable[[SinkTask], Coroutine[object, object, T]]) -> T | None:
        ended = task
        return None if ended is None else run_in_client(store, lambda client: step(ended))

    try:
        rows.write_all(batches, write)
        transactions = end(SinkTask.prepare) or {}
    except BaseException as error:  # Spark interrupts a task that it kills: its transactions are aborted, too.
        try:
            end(SinkTask.abort)
        except PenstockError as second:
            error.add_note(f"and the task's transaction stays until its lease or limit ends: {second}")
        raise
    freeze_loaded("sink")
    return TaskWritten(rows.event_count, rows.payload_bytes, transactions, identity)


class PenstockBatchWriter(DataSourceArrowWriter):
    """Appends a DataFrame to a stream."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options
        self._identity = None
        if options.is_exactly_once and options.app is not None:
            self._identity = BatchIdentity(SinkIdentity(options.app, options.target), options.batch)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Append one task's rows; see `prepare_batches` and `write_batches`."""
        if not self._options.is_exactly_once:
            return write_batches(self._options, iterator)
        identity = self._identity
        if identity is not None:
            # Set if the write is part of `foreachBatch`.
            identity = replace(identity, query=_task_property(QUERY_ID_PROPERTY) or "")
        return prepare_batches(self._options, iterator, identity)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Commit the tasks' transactions. With an id, a repeated job finishes what this one began."""
        if self._options.is_exactly_once:
            written = _written(messages)
            _commit(self._options, written, self._named_by(written))

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Abort the tasks' transactions, unless the ledger names them."""
        if self._options.is_exactly_once:
            written = _written(messages)
            _abort(self._options, written, self._named_by(written))

    def _named_by(self, written: Sequence[TaskWritten]) -> BatchIdentity | None:
        """Return the batch as in its tasks: only they know the id of the query."""
        return next((each.identity for each in written if each.identity is not None), self._identity)


class PenstockStreamWriter(DataSourceStreamArrowWriter):
    """Appends each micro-batch to a stream."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Append one task's rows; see `prepare_batches` and `write_batches`."""
        if not self._options.is_exactly_once:
            return write_batches(self._options, iterator)
        return prepare_batches(self._options, iterator, _identity_of_task(self._options))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Make the batch's events readable exactly once, whatever the outcome of earlier runs of it."""
        written = _written(messages)
        if self._options.is_exactly_once and written:
            _commit(self._options, written, _identity_of_batch(self._options, written, batchId))

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Abort the tasks' transactions, unless they have to be committed: the repeated batch finishes that."""
        written = _written(messages)
        if self._options.is_exactly_once and written:
            _abort(self._options, written, _identity_of_batch(self._options, written, batchId))


def _limits(options: SinkOptions) -> SinkLimits:
    return SinkLimits(options.transaction_limit_s, options.store.outage_s_max)


def _written(messages: Sequence[WriterCommitMessage | None]) -> list[TaskWritten]:
    return [message for message in messages if isinstance(message, TaskWritten)]


def _identity_of_task(options: SinkOptions) -> BatchIdentity:
    """Return the micro-batch of this task. Raises `UnsupportedOperationError` if Spark does not provide its number."""
    query, batch = _task_property(QUERY_ID_PROPERTY), _task_property(BATCH_ID_PROPERTY)
    app = options.app or query
    if not app or batch is None:
        raise UnsupportedOperationError(
            f"this Spark does not give a task its query and batch ({QUERY_ID_PROPERTY}, {BATCH_ID_PROPERTY}), so that "
            "batches cannot be written exactly once: use option exactlyOnce=false, or foreachBatch and a batch write "
            "with appId and batchId"
        )
    return BatchIdentity(SinkIdentity(app, options.target), int(batch), query or "")


def _task_property(name: str) -> str | None:
    """Return a local property of the current task; None: it is not set, or this code does not run in a task."""
    from pyspark import TaskContext

    context = TaskContext.get()
    return None if context is None else context.getLocalProperty(name)


def _identity_of_batch(options: SinkOptions, written: Sequence[TaskWritten], batch: int) -> BatchIdentity:
    for each in written:
        # The query's id comes from the tasks: Spark does not give it to the driver's side.
        if each.identity is not None and each.identity.batch == batch:
            return each.identity
    raise UnsupportedOperationError(f"no task of batch {batch} writing to {options.target} gave its query")


def _commit(options: SinkOptions, written: Sequence[TaskWritten], identity: BatchIdentity | None) -> None:
    from penstock.spark.store import run_in_client

    prepared, limits = by_stream(each.transactions for each in written), _limits(options)
    if identity is None:
        run_in_client(options.store, lambda client: Decisions(client, limits).commit(prepared))
    else:
        named = identity
        run_in_client(options.store, lambda client: SinkBatch(client, named, prepared, limits).commit())


def _abort(options: SinkOptions, written: Sequence[TaskWritten], identity: BatchIdentity | None) -> None:
    """See `SinkBatch.abort`. Errors are only logged: limits end the transactions, and Spark has an error to report."""
    from penstock.spark.store import run_in_client

    prepared, limits = by_stream(each.transactions for each in written), _limits(options)

    async def abort(client: Client) -> None:
        if identity is None:
            await Decisions(client, limits).abort((stream, each) for stream, ids in prepared.items() for each in ids)
        else:
            await SinkBatch(client, identity, prepared, limits).abort()

    try:
        run_in_client(options.store, abort)
    except PenstockError as error:
        _log.warning("the transactions prepared for %s were not aborted: %s", identity or options.target, error)
