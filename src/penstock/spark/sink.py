"""The Spark sink: Arrow batches to events. At least once.

Each task appends through a writer of its own and waits until its events are durable before it reports success, so
nothing that Spark counts as written is lost. Nothing is undone: a retried task and a replayed micro-batch append
their events again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import BinaryType, StringType, StructType

from penstock.model.errors import InvalidArgumentError
from penstock.spark.options import SinkOptions

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock import EventWriter

EVENT_COLUMN = "event"
ROUTING_KEY_COLUMN = "routing_key"


@dataclass
class TaskWritten(WriterCommitMessage):
    """What one task has made durable: events, and the bytes of their payloads."""

    event_count: int
    payload_bytes: int


def check_sink_schema(schema: StructType) -> None:
    """Check that a DataFrame's columns can be written.

    Raises:
        InvalidArgumentError: `event` is missing or neither binary nor string, `routing_key` is not a string, or
            there is any other column.
    """
    by_name = {field.name.lower(): field.dataType for field in schema.fields}
    listing = ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in schema.fields) or "none"
    wanted = "the penstock sink takes the columns event (binary or string) and routing_key (string, optional)"
    if EVENT_COLUMN not in by_name:
        raise InvalidArgumentError(f"column 'event' is missing: {wanted}; the DataFrame has: {listing}")
    if not isinstance(by_name[EVENT_COLUMN], BinaryType | StringType):
        raise InvalidArgumentError(
            f"column 'event' is {by_name[EVENT_COLUMN].simpleString()}: {wanted}; use to_json(...) or cast it"
        )
    routing_key = by_name.get(ROUTING_KEY_COLUMN)
    if routing_key is not None and not isinstance(routing_key, StringType):
        raise InvalidArgumentError(f"column 'routing_key' is {routing_key.simpleString()}: {wanted}; cast it")
    others = sorted(set(by_name) - {EVENT_COLUMN, ROUTING_KEY_COLUMN})
    if others:
        raise InvalidArgumentError(f"column {others[0]!r} has no place in an event: {wanted}; select those first")


def write_batches(options: SinkOptions, batches: Iterator[pa.RecordBatch]) -> TaskWritten:
    """Append the rows of `batches` in order and return once all of them are durable.

    Rows with a routing key keep their order per key; the others are spread over the segments.

    Raises:
        InvalidArgumentError: a row's event is null.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    from penstock.spark.store import StoredStream

    event_count = payload_bytes = 0
    # An empty partition calls this with no batch: the writer is opened at the first row.
    filled = (batch for batch in batches if batch.num_rows)
    first = next(filled, None)
    if first is None:
        return TaskWritten(0, 0)
    names = [name.lower() for name in first.schema.names]
    event_at = names.index(EVENT_COLUMN)
    key_at = names.index(ROUTING_KEY_COLUMN) if ROUTING_KEY_COLUMN in names else None
    with StoredStream(options.store, options.scope, options.stream).writer() as writer:
        batch: pa.RecordBatch | None = first
        while batch is not None:
            events = batch.column(event_at)
            if events.null_count:
                raise InvalidArgumentError(
                    f"{events.null_count} of {len(events)} rows have a null event: filter them out before the sink"
                )
            events = events.cast(pa.binary())
            _write(writer, events, None if key_at is None else batch.column(key_at))
            event_count += len(events)
            payload_bytes += pc.sum(pc.binary_length(events)).as_py()
            batch = next(filled, None)
        writer.flush()
    return TaskWritten(event_count, payload_bytes)


def _write(writer: EventWriter, events: pa.Array, keys: pa.Array | None) -> None:
    """Write `events`; rows whose key is null go without one, after those of the same batch that have one."""
    if keys is None:
        writer.write_many(events)
        return
    if not keys.null_count:
        writer.write_many(events, routing_keys=keys)
        return
    keyed = keys.is_valid()
    if keys.null_count < len(keys):
        writer.write_many(events.filter(keyed), routing_keys=keys.filter(keyed))
    writer.write_many(events.filter(keys.is_null()))


class PenstockBatchWriter(DataSourceArrowWriter):
    """Appends a DataFrame to a stream, at least once."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Append one task's rows; see `write_batches`."""
        return write_batches(self._options, iterator)


class PenstockStreamWriter(DataSourceStreamArrowWriter):
    """Appends each micro-batch to a stream, at least once: a replayed batch appends its events again."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Append one task's rows; see `write_batches`."""
        return write_batches(self._options, iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Do nothing: the events were durable when their tasks ended."""

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Do nothing: appended events stay, and the batch is appended again when Spark replays it."""
