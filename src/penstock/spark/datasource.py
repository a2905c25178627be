"""The data source `penstock`, as found by Spark.

Spark imports this at its first look-up of any Python source, in a process that only plans: so only PySpark's own
base classes are imported here.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

from penstock.model.errors import InvalidArgumentError, UnsupportedOperationError
from penstock.spark.decode_options import MALFORMED, VALUE
from penstock.spark.options import (
    Column,
    SinkOptions,
    SourceOptions,
    metadata_name,
    narrowed,
    parse_metadata_options,
    parse_sink_options,
    parse_source_options,
    source_columns,
)

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceReader
    from pyspark.sql.types import StructType

    from penstock.spark.sink import PenstockBatchWriter, PenstockStreamWriter
    from penstock.spark.source import PenstockStreamReader

FORMAT = "penstock"


class PenstockDataSource(DataSource):
    """Streams of Penstock as a Spark source and sink, batch and streaming."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return FORMAT

    def schema(self) -> str:
        """Return the source's columns, or those of option `columns`, or a metadata table's."""
        name = metadata_name(self.options)
        if name is not None:
            from penstock.spark.metadata_tables import metadata_table

            return ", ".join(f"`{column}` {kind}" for column, kind in metadata_table(name).columns.items())
        return ", ".join(f"`{name}` {kind}" for name, kind in source_columns(self.options).items())

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return a reader of the range between two cuts, or of a metadata table."""
        name = metadata_name(self.options)
        if name is not None:
            from penstock.spark.metadata_tables import MetadataReader, metadata_table

            table = metadata_table(name)
            options = parse_metadata_options(self.options, needs_stream=table.needs_stream)
            return MetadataReader(table, options, _columns_of(schema))
        from penstock.spark.source import PenstockBatchReader, check_batch_start

        source_options = self._source_options(schema)
        check_batch_start(source_options)
        return PenstockBatchReader(source_options)

    def streamReader(self, schema: StructType) -> PenstockStreamReader:
        """Return a reader that follows the stream."""
        if metadata_name(self.options) is not None:
            raise UnsupportedOperationError(
                "option 'metadata' reads a table as it is now, in a batch: use spark.read in place of spark.readStream"
            )
        from penstock.spark.source import PenstockStreamReader

        return PenstockStreamReader(self._source_options(schema))

    def writer(self, schema: StructType, overwrite: bool) -> PenstockBatchWriter:
        """Return an appending writer. `overwrite` is refused: a stream only grows."""
        from penstock.spark.sink import PenstockBatchWriter

        return PenstockBatchWriter(self._sink_options(schema, overwrite))

    def streamWriter(self, schema: StructType, overwrite: bool) -> PenstockStreamWriter:
        """Return an appending writer for micro-batches. `overwrite` (output mode complete) is refused."""
        from penstock.spark.sink import PenstockStreamWriter

        return PenstockStreamWriter(self._sink_options(schema, overwrite))

    def _source_options(self, schema: StructType) -> SourceOptions:
        options = narrowed(parse_source_options(self.options), _columns_of(schema))
        if options.decoding is None or not {VALUE, MALFORMED}.intersection(options.columns):
            return options
        if VALUE not in options.columns:
            raise InvalidArgumentError(f"column '{MALFORMED}' needs column '{VALUE}': name both")
        from pyspark.sql.pandas.types import to_arrow_schema

        from penstock.spark.decoding import EventDecoder

        kind = to_arrow_schema(schema, timezone="UTC").field(options.columns.index(VALUE)).type
        EventDecoder(options.decoding, kind)  # Raises here, in the driver, instead of in every task.
        return replace(options, value_type=kind)

    def _sink_options(self, schema: StructType, overwrite: bool) -> SinkOptions:
        from penstock.spark.sink_rows import check_sink_schema
        from penstock.spark.store import prepare_target

        options = parse_sink_options(self.options)
        check_sink_schema(schema, has_stream=options.stream is None)
        if overwrite:
            raise UnsupportedOperationError(
                f"cannot overwrite stream {options.target}: the penstock sink only appends; use mode "
                "'append' (streaming: output mode append), or write to a new stream"
            )
        prepare_target(options)
        return options


def _columns_of(schema: StructType) -> list[Column]:
    return [Column(field.name, field.dataType.simpleString(), field.nullable) for field in schema.fields]
