"""`BackfillSource`: rows of Parquet files to write into a stream: imported history, or an export written back.

A position is a file and a row in it. Files are identified by name and length, and sorted by name: an export's are in
the order of its commits.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.jobs.ledgered_copy import Portion
from penstock.jobs.rows import UNDECODED
from penstock.model.errors import CorruptionError, InvalidArgumentError

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq


class BackfillSource:
    """See the module. Implements `PortionSource`.

    Args:
        paths: files, or directories of files whose names end in ``.parquet``.
        event_column: bytes or texts; where it is null, the column `UNDECODED` of an export is used.
        key_column: routing keys, of any type that can be written as text; None: no keys, or for an export the segment
            as the key.
        bytes_max, rows_max: limits of a portion, which is held in memory with a row group.
    """

    def __init__(
        self, paths: Sequence[Path], *, event_column: str = "event", key_column: str | None = None, bytes_max: int,
        rows_max: int | None = None,
    ) -> None:  # fmt: skip
        self._files = files_of(paths)
        self._event_column = event_column
        self._key_column = key_column
        self._bytes_max = bytes_max
        self._rows_max = rows_max
        self._opened: tuple[int, pq.ParquetFile] | None = None
        self._group: tuple[tuple[int, int], pa.Table] | None = None
        files = [[path.name, path.stat().st_size] for path in self._files]
        self.plan: str = json.dumps({"files": files, "event": event_column, "key": key_column}, separators=(",", ":"))
        for number in range(len(self._files)):
            self._columns(self._file(number))

    def row_count(self) -> int:
        """Return the total number of rows."""
        return sum(self._file(number).metadata.num_rows for number in range(len(self._files)))

    def portion(self, position: str | None) -> Portion | None:
        """See `PortionSource.portion`. Raises `InvalidArgumentError` for a row without an event."""
        number, row = _place(position)
        while number < len(self._files) and row >= self._file(number).metadata.num_rows:
            number, row = number + 1, 0
        if number >= len(self._files):
            return None
        table, first = self._rows_at(number, row)
        rows = table.slice(row - first, self._rows_max)
        events = self._events(rows, number, row)
        taken = self._within(events)
        events = events.slice(0, taken)
        keys = None if rows.num_columns < 3 else rows.column(2).slice(0, taken).combine_chunks()
        return Portion(events, keys, f"{number}:{row + taken}", int(_lengths(events).sum()))

    def _within(self, events: pa.Array) -> int:
        """Return how many of the first events have `bytes_max` together; at least one."""
        import numpy

        ends = numpy.cumsum(_lengths(events))
        return max(int(numpy.searchsorted(ends, self._bytes_max, side="right")), 1)

    def _events(self, rows: pa.Table, number: int, row: int) -> pa.Array:
        import pyarrow as pa

        column = pa.compute.coalesce(rows.column(0), rows.column(1)) if rows.num_columns > 1 else rows.column(0)
        events = column.combine_chunks()
        if events.null_count:
            bad = row + events.is_null().index(True).as_py()
            raise InvalidArgumentError(f"row {bad} of {self._files[number]} has no event in {self._event_column!r}")
        return events

    def _rows_at(self, number: int, row: int) -> tuple[pa.Table, int]:
        """Return the row group of a row, as events, undecoded events and keys; and its first row."""
        import pyarrow as pa

        file = self._file(number)
        first = group = 0
        while first + file.metadata.row_group(group).num_rows <= row:
            first += file.metadata.row_group(group).num_rows
            group += 1
        if self._group is None or self._group[0] != (number, group):
            event, undecoded, key = self._columns(file)
            wanted = [each for each in (event, undecoded, key) if each is not None]
            try:
                read = file.read_row_group(group, columns=wanted)
            except (OSError, pa.ArrowException) as error:
                raise CorruptionError(str(self._files[number]), 0, f"row group {group}: {error}") from error
            arrays = [read.column(event).cast(pa.large_binary())]
            nothing = pa.nulls(read.num_rows, pa.large_binary())
            arrays.append(nothing if undecoded is None else read.column(undecoded).cast(pa.large_binary()))
            if key is not None:
                arrays.append(read.column(key).cast(pa.string()))
            names = ["event", "undecoded", "key"][: len(arrays)]
            self._group = (number, group), pa.Table.from_arrays(arrays, names=names)
        return self._group[1], first

    def _columns(self, file: pq.ParquetFile) -> tuple[str, str | None, str | None]:
        """Return the names of the columns of events, of undecoded events, and of keys in a file."""
        import pyarrow as pa

        schema = file.schema_arrow
        names = set(schema.names)
        for each in (self._event_column, self._key_column):
            if each is not None and each not in names:
                raise InvalidArgumentError(f"a file has no column {each!r}, but {', '.join(schema.names)}")
        kind = schema.field(self._event_column).type
        if kind not in (pa.binary(), pa.string(), pa.large_binary(), pa.large_string()):
            raise InvalidArgumentError(f"column {self._event_column!r} is {kind}, but must be bytes or text")
        key = self._key_column
        if key is None and {"scope", "stream", "segment_id", "offset"} <= names:
            key = "segment_id"
        return self._event_column, UNDECODED if UNDECODED in names else None, key

    def _file(self, number: int) -> pq.ParquetFile:
        import pyarrow as pa
        import pyarrow.parquet as pq

        if self._opened is None or self._opened[0] != number:
            try:
                self._opened = number, pq.ParquetFile(self._files[number])
            except (OSError, pa.ArrowException) as error:
                raise CorruptionError(str(self._files[number]), 0, f"not a Parquet file: {error}") from error
        return self._opened[1]


def files_of(paths: Sequence[Path]) -> list[Path]:
    """Return the files that paths name; of a directory all files in it, except hidden or staged ones.

    Raises `InvalidArgumentError`: there are none.
    """
    found: list[Path] = []
    for path in paths:
        inside = sorted(each for each in path.glob("*.parquet") if each.name[0] not in "._")
        if not (path.is_file() or inside):
            raise InvalidArgumentError(f"{path} is neither a file nor a directory with .parquet files")
        found += inside or [path]
    return found


def _lengths(events: pa.Array) -> pa.Array:
    import numpy
    import pyarrow as pa

    return pa.compute.binary_length(events).to_numpy(zero_copy_only=False).astype(numpy.int64)


def _place(position: str | None) -> tuple[int, int]:
    if position is None:
        return 0, 0
    number, _, row = position.partition(":")
    return int(number), int(row)
