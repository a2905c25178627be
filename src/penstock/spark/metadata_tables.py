"""Tables about streams in place of their events: option `metadata` of the batch source.

A table is read whole when the query is planned, so that all of its rows are of one moment, as far as the store has one.
Names and columns of `Streams` and `StreamInfo` are those of Pravega's own Spark connector, which has these two.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from penstock.model.errors import InvalidArgumentError, NoSuchTableError
from penstock.model.names import segment_epoch
from penstock.spark.options import Column, MetadataOptions, matched

if TYPE_CHECKING:
    from penstock import Client

Row = tuple[object, ...]


def _streams(client: Client, options: MetadataOptions) -> Iterator[Row]:
    for stream in client.streams(options.scope):
        yield options.scope, stream


def _stream_info(client: Client, options: MetadataOptions) -> Iterator[Row]:
    yield client.head(options.target).to_text(), client.tail(options.target).to_text()


def _segments(client: Client, options: MetadataOptions) -> Iterator[Row]:
    from penstock.spark.store import kept_segments

    for segment, info in kept_segments(client, options.target):
        yield (
            *(segment.segment_id, segment_epoch(segment.segment_id), segment.key_low, segment.key_high),
            *(info.start_offset, info.length, info.is_sealed),
        )


def _chunks(client: Client, options: MetadataOptions) -> Iterator[Row]:
    """The chunks of each segment, as in long-term storage at the time of the request."""
    from penstock.spark.store import chunks_of, kept_segments

    for segment, info in kept_segments(client, options.target):
        for chunk in chunks_of(options.store, segment.name, info.start_offset, info.length):
            yield segment.segment_id, *chunk


def _transactions(client: Client, options: MetadataOptions) -> Iterator[Row]:
    for each in client.open_transactions(options.target):
        yield each.id, each.state, each.age_s, each.lease_left_s, each.length_bytes, each.writer


def _ledger(client: Client, options: MetadataOptions) -> Iterator[Row]:
    from penstock.spark.ledger import ledger_rows

    try:
        rows = ledger_rows(client, options.scope)
    except NoSuchTableError:
        return  # The scope has no ledger, because Spark has never written there.
    for row in rows:
        changed = datetime.fromtimestamp(row.changed_ms / 1000, UTC)
        transaction_count = sum(map(len, row.transactions.values()))
        yield row.sink.app, row.sink.target, row.batch, row.state.value, transaction_count, changed


@dataclass(frozen=True, slots=True)
class MetadataTable:
    """One table.

    Attributes:
        columns: column -> its Spark type, in order.
        rows: reads it.
        needs_stream: it is about one stream; else about a scope.
    """

    name: str
    columns: Mapping[str, str]
    rows: Callable[[Client, MetadataOptions], Iterator[Row]]
    needs_stream: bool = True


#: By name in lower case.
TABLES: Mapping[str, MetadataTable] = {
    table.name.lower(): table
    for table in (
        MetadataTable("Streams", {"scope_name": "string", "stream_name": "string"}, _streams, needs_stream=False),
        MetadataTable("StreamInfo", {"head_stream_cut": "string", "tail_stream_cut": "string"}, _stream_info),
        MetadataTable(
            "Segments",
            {
                "segment_id": "bigint",
                "first_epoch": "int",
                "key_low": "double",
                "key_high": "double",
                "start_offset": "bigint",
                "length": "bigint",
                "is_sealed": "boolean",
            },
            _segments,
        ),
        MetadataTable(
            "Chunks",
            {
                "segment_id": "bigint",
                "name": "string",
                "start_offset": "bigint",
                "length": "bigint",
                "storage": "string",
            },
            _chunks,
        ),
        MetadataTable(
            "Transactions",
            {
                "transaction_id": "string",
                "state": "string",
                "age_s": "double",
                "lease_left_s": "double",
                "length_bytes": "bigint",
                "writer": "string",
            },
            _transactions,
        ),
        MetadataTable(
            "Ledger",
            {
                "app_id": "string",
                "target": "string",
                "batch": "bigint",
                "state": "string",
                "transaction_count": "int",
                "changed": "timestamp",
            },
            _ledger,
            needs_stream=False,
        ),
    )
}


def metadata_table(name: str) -> MetadataTable:
    """Return the table named by option `metadata`. Raises `InvalidArgumentError`: there is none."""
    found = TABLES.get(name.strip().lower())
    if found is None:
        near = difflib.get_close_matches(name.strip().lower(), TABLES, n=1)
        hint = f" (did you mean {TABLES[near[0]].name!r}?)" if near else ""
        known = ", ".join(table.name for table in TABLES.values())
        raise InvalidArgumentError(f"option 'metadata' is {name!r}{hint}: give one of {known}")
    return found


class RowsPartition(InputPartition):
    """The rows of a table, already read."""

    def __init__(self, rows: Sequence[Row]) -> None:
        super().__init__(rows)
        self.rows = rows


class MetadataReader(DataSourceReader):
    """Reads `columns` of one table."""

    def __init__(self, table: MetadataTable, options: MetadataOptions, columns: Sequence[Column]) -> None:
        """Raises `InvalidArgumentError`: the table does not have the columns of a schema given to the reader."""
        self._table = table
        self._options = options
        self._columns = tuple(columns)
        known = list(table.columns)
        self._indexes = [known.index(name) for name in matched(columns, table.columns)]

    def partitions(self) -> Sequence[InputPartition]:
        """Read the table. Raises `InvalidArgumentError`: a column declared as not null has a null."""
        from penstock.spark.store import client_of

        rows = [
            tuple(row[index] for index in self._indexes)
            for row in self._table.rows(client_of(self._options.store), self._options)
        ]
        for at, column in enumerate(self._columns):
            if not column.is_nullable and any(row[at] is None for row in rows):
                raise InvalidArgumentError(
                    f"the schema has column {column.name!r} as not null, but table {self._table.name} has null there: "
                    "leave 'not null' out"
                )
        return [RowsPartition(rows)]

    def read(self, partition: InputPartition) -> Iterator[Row]:
        """Yield the rows."""
        assert isinstance(partition, RowsPartition)
        yield from partition.rows
