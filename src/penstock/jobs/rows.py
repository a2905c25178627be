"""`RowShape`: which columns a table of events has, and how record batches of a stream become rows of it.

Every table has where an event was: ``scope: string, stream: string, segment_id: int64, offset: int64``. What it held is
before these: the bytes as they are, a text, or the fields of a JSON object. An event that is no such thing keeps its
bytes in ``event_undecoded: binary``, which is null elsewhere: none is left out, and none ends an export that runs for
months. Routing keys are no part of events: a key is a column if it is a field.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec

from penstock.model.errors import InvalidArgumentError

if TYPE_CHECKING:
    import pyarrow as pa

Value = Literal["binary", "text", "json"]

#: Columns that every table has; of what events hold none may be called so.
POSITION_COLUMNS = ("scope", "stream", "segment_id", "offset")
UNDECODED = "event_undecoded"

_INT32, _INT64 = 1 << 31, 1 << 63
#: Name in a schema -> what the JSON must be.
_JSON_TYPES: Mapping[str, Any] = {
    "string": str,
    "int": Annotated[int, msgspec.Meta(ge=-_INT32, le=_INT32 - 1)],
    "long": Annotated[int, msgspec.Meta(ge=-_INT64, le=_INT64 - 1)],
    "double": float,
    "boolean": bool,
    "date": datetime.date,
    "timestamp": Annotated[datetime.datetime, msgspec.Meta(tz=True)],
    "json": msgspec.Raw,
}
_NULL = msgspec.Raw(b"null")
_FIELD = re.compile(r"\s*(?:`([^`]+)`|([^\s,`]+))\s+(\w+)\s*")


class RowShape:
    """See the module.

    Args:
        value: what events hold.
        fields: of JSON objects: columns and their types, as `fields_of` returns them.
    """

    def __init__(self, value: Value, fields: Sequence[tuple[str, str]] = ()) -> None:
        import pyarrow as pa

        if (value == "json") != bool(fields):
            raise InvalidArgumentError("a schema is needed for JSON, and is of no use otherwise")
        self.value = value
        self._fields = tuple(fields)
        types = {
            "string": pa.string(), "int": pa.int32(), "long": pa.int64(), "double": pa.float64(),
            "boolean": pa.bool_(), "date": pa.date32(), "timestamp": pa.timestamp("us", tz="UTC"), "json": pa.string(),
        }  # fmt: skip
        columns = [pa.field(name, types[kind]) for name, kind in fields]
        if value != "json":
            columns = [pa.field("event", pa.binary() if value == "binary" else pa.string())]
        if value != "binary":
            columns.append(pa.field(UNDECODED, pa.binary()))
        columns += [
            pa.field("scope", pa.string()), pa.field("stream", pa.string()),
            pa.field("segment_id", pa.int64()), pa.field("offset", pa.int64()),
        ]  # fmt: skip
        #: The columns of a table, in their order; all may be null.
        self.schema: pa.Schema = pa.schema(columns)
        if value == "json":
            # Numbered names, since fields of JSON may be called what no attribute can be.
            known = [
                # A text that is not parsed is in no union.
                (f"f{at}", msgspec.Raw, _NULL) if kind == "json" else (f"f{at}", _JSON_TYPES[kind] | None, None)
                for at, (_, kind) in enumerate(fields)
            ]
            renamed = {f"f{at}": name for at, (name, _) in enumerate(fields)}
            self._decoder = msgspec.json.Decoder(msgspec.defstruct("Row", known, rename=renamed))

    def __reduce__(self) -> tuple[type[RowShape], tuple[Value, tuple[tuple[str, str], ...]]]:
        return RowShape, (self.value, self._fields)

    def rows(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows of a batch with the columns ``event`` (binary) and `POSITION_COLUMNS`."""
        import pyarrow as pa

        events = batch.column("event")
        if self.value == "binary":
            first = [events]
        elif self.value == "text":
            first = self._texts(events)
        else:
            first = self._objects(events)
        return pa.RecordBatch.from_arrays(
            [*first, *(batch.column(name) for name in POSITION_COLUMNS)], schema=self.schema
        )

    def _texts(self, events: pa.BinaryArray) -> list[pa.Array]:
        import pyarrow as pa

        try:
            return [events.cast(pa.string()), pa.nulls(len(events), pa.binary())]
        except pa.ArrowInvalid:
            pass
        texts: list[str | None] = []
        undecoded: list[bytes | None] = []
        for event in events.to_pylist():
            try:
                texts.append(event.decode())
                undecoded.append(None)
            except UnicodeDecodeError:
                texts.append(None)
                undecoded.append(event)
        return [pa.array(texts, pa.string()), pa.array(undecoded, pa.binary())]

    def _objects(self, events: pa.BinaryArray) -> list[pa.Array]:
        import pyarrow as pa

        rows: list[object] = []
        undecoded: list[bytes | None] = []
        for event in events.to_pylist():
            try:
                rows.append(self._decoder.decode(event))
                undecoded.append(None)
            except (msgspec.DecodeError, UnicodeDecodeError):
                rows.append(None)
                undecoded.append(event)
        columns = []
        for at, (name, kind) in enumerate(self._fields):
            attribute = f"f{at}"
            values = [None if row is None else getattr(row, attribute) for row in rows]
            if kind == "json":
                values = [None if value in (None, _NULL) else bytes(value).decode() for value in values]
            columns.append(pa.array(values, self.schema.field(name).type))
        return [*columns, pa.array(undecoded, pa.binary())]


def fields_of(text: str) -> list[tuple[str, str]]:
    """Return names and types of a schema as ``order long, amount double``; a name may stand in backquotes.

    Raises `InvalidArgumentError`.
    """
    found: list[tuple[str, str]] = []
    for part in text.split(","):
        match = _FIELD.fullmatch(part)
        if match is None or match[3].lower() not in _JSON_TYPES:
            raise InvalidArgumentError(
                f"{part.strip()!r} is no column: write NAME TYPE, with one of the types {', '.join(_JSON_TYPES)}"
            )
        found.append((match[1] or match[2], match[3].lower()))
    names = [name for name, _ in found]
    taken = sorted({name for name in names if names.count(name) > 1 or name in (*POSITION_COLUMNS, UNDECODED)})
    if taken:
        raise InvalidArgumentError(f"column {taken[0]!r} is there twice: the table has {POSITION_COLUMNS} too")
    return found
