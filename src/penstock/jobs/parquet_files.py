"""Writes rows as Parquet, in batches; and syncs files and directories."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa

#: Rows are buffered up to this many bytes, and then written as a row group.
ROW_GROUP_BYTES = 32 * 1024 * 1024


def write_parquet(
    file: IO[bytes], schema: pa.Schema, rows: Iterable[pa.RecordBatch], metadata: Mapping[str, str]
) -> int:
    """Write rows as Parquet, zstd-compressed, with `metadata` in its footer; return how many."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    row_count = pending_bytes = 0
    pending: list[pa.RecordBatch] = []
    with pq.ParquetWriter(file, schema, compression="zstd") as writer:
        for batch in rows:
            row_count += batch.num_rows
            pending.append(batch)
            pending_bytes += batch.nbytes
            if pending_bytes >= ROW_GROUP_BYTES:
                writer.write_table(pa.Table.from_batches(pending, schema))
                pending, pending_bytes = [], 0
        if pending:
            writer.write_table(pa.Table.from_batches(pending, schema))
        writer.add_key_value_metadata(dict(metadata))
    return row_count


def sync_file(file: IO[bytes]) -> None:
    """Sync the content of a file."""
    file.flush()
    os.fsync(file.fileno())


def sync_directory(path: Path) -> None:
    """Sync the names in a directory."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
