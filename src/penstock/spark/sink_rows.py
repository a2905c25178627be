"""`SinkRows`: rows of a DataFrame as events, keys and streams."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from pyspark.sql.types import BinaryType, StringType, StructType

from penstock.model.errors import InvalidArgumentError
from penstock.model.names import check_stream_name, split_scoped_name
from penstock.spark.options import SinkOptions

if TYPE_CHECKING:
    import pyarrow as pa

EVENT_COLUMN = "event"
ROUTING_KEY_COLUMN = "routing_key"
STREAM_COLUMN = "stream"
#: Maximum number of streams that one task writes concurrently, where a column names them.
STREAMS_PER_TASK_MAX = 256

#: Writes events into a stream (``scope/stream``), each with a routing key, or all without.
WriteEvents = Callable[[str, "pa.Array", "pa.Array | None"], None]


def check_sink_schema(schema: StructType, *, has_stream: bool = False) -> None:
    """Check that a DataFrame's columns can be written.

    Args:
        schema: of the DataFrame.
        has_stream: a column names each row's stream.

    Raises:
        InvalidArgumentError: `event` is missing or neither binary nor string, `routing_key` is not a string, `stream`
            is missing, not a string, or superfluous, or there is any other column.
    """
    by_name = {field.name.lower(): field.dataType for field in schema.fields}
    listing = ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in schema.fields) or "none"
    wanted = "the penstock sink takes the columns event (binary or string) and routing_key (string, optional)"
    if has_stream:
        wanted += ", and stream (string), since option 'stream' is not given"
    if EVENT_COLUMN not in by_name:
        raise InvalidArgumentError(f"column 'event' is missing: {wanted}; the DataFrame has: {listing}")
    if not isinstance(by_name[EVENT_COLUMN], BinaryType | StringType):
        raise InvalidArgumentError(
            f"column 'event' is {by_name[EVENT_COLUMN].simpleString()}: {wanted}; use to_json(...) or cast it"
        )
    known = {EVENT_COLUMN, ROUTING_KEY_COLUMN}
    if has_stream:
        known.add(STREAM_COLUMN)
        if STREAM_COLUMN not in by_name:
            raise InvalidArgumentError(f"column 'stream' is missing: {wanted}; the DataFrame has: {listing}")
    for name in (ROUTING_KEY_COLUMN, STREAM_COLUMN):
        found = by_name.get(name)
        if name in known and found is not None and not isinstance(found, StringType):
            raise InvalidArgumentError(f"column {name!r} is {found.simpleString()}: {wanted}; cast it")
    others = sorted(set(by_name) - known)
    if others:
        raise InvalidArgumentError(f"column {others[0]!r} cannot be stored in an event: {wanted}; select those first")


class SinkRows:
    """The rows of one task.

    Attributes:
        event_count, payload_bytes: of the written ones.
    """

    def __init__(self, options: SinkOptions) -> None:
        self._options = options
        self._streams: dict[str, str] = {}
        self.event_count: int = 0
        self.payload_bytes: int = 0

    def write_all(self, batches: Iterator[pa.RecordBatch], write: WriteEvents) -> None:
        """Write the rows of `batches` in order, each to its stream.

        Within one batch, rows without a routing key come after those with one.

        Raises:
            InvalidArgumentError: a row has no event, or no stream, or there are too many streams.
        """
        import pyarrow as pa
        import pyarrow.compute as pc

        for batch in batches:
            if not batch.num_rows:
                continue
            by_name = {name.lower(): at for at, name in enumerate(batch.schema.names)}
            events = batch.column(by_name[EVENT_COLUMN])
            if events.null_count:
                raise InvalidArgumentError(
                    f"{events.null_count} of {len(events)} rows have a null event: filter them out before the sink"
                )
            events = events.cast(pa.binary())
            keys = batch.column(by_name[ROUTING_KEY_COLUMN]) if ROUTING_KEY_COLUMN in by_name else None
            if self._options.stream is not None:
                _write_keyed(write, self._options.target, events, keys)
            else:
                self._write_apart(write, batch.column(by_name[STREAM_COLUMN]), events, keys)
            self.event_count += len(events)
            self.payload_bytes += int(pc.sum(pc.binary_length(events)).as_py())

    def _write_apart(self, write: WriteEvents, streams: pa.Array, events: pa.Array, keys: pa.Array | None) -> None:
        """Write rows whose streams a column names, stream by stream."""
        import pyarrow.compute as pc

        if streams.null_count:
            raise InvalidArgumentError(
                f"{streams.null_count} of {len(streams)} rows have no stream: filter them out before the sink"
            )
        for name in pc.unique(streams):
            chosen = pc.equal(streams, name)
            kept = None if keys is None else keys.filter(chosen)
            _write_keyed(write, self._stream(name.as_py()), events.filter(chosen), kept)

    def _stream(self, name: str) -> str:
        """Return the stream in a row, as ``scope/stream``."""
        found = self._streams.get(name)
        if found is None:
            scope, stream = split_scoped_name(name) if "/" in name else (self._options.scope, check_stream_name(name))
            if scope != self._options.scope:
                raise InvalidArgumentError(
                    f"column 'stream' names {name!r}, but option 'scope' is {self._options.scope!r}: all streams of "
                    "one write must be in one scope"
                )
            if len(self._streams) == STREAMS_PER_TASK_MAX:
                raise InvalidArgumentError(
                    f"one task writes to more than {STREAMS_PER_TASK_MAX} streams: repartition by 'stream' first"
                )
            found = self._streams[name] = f"{scope}/{stream}"
        return found


def _write_keyed(write: WriteEvents, stream: str, events: pa.Array, keys: pa.Array | None) -> None:
    """Write `events`; rows whose key is null have no key, and come after those of the same batch with one."""
    if keys is None or not keys.null_count:
        write(stream, events, keys)
        return
    keyed = keys.is_valid()
    if keys.null_count < len(keys):
        write(stream, events.filter(keyed), keys.filter(keyed))
    write(stream, events.filter(keys.is_null()), None)
