"""`RowShape`: the columns of a table of events, and the conversion of a stream's record batches into its rows.

Every table has the position of each event: ``scope: string, stream: string, segment_id: int64, offset: int64``. The
columns of its content come before these: the bytes, a text, or fields of a JSON object. An event that cannot be
decoded keeps its bytes in ``event_undecoded: binary``, which is null elsewhere. So every event becomes a row: none is
left out, and none stops an export. Events do not contain their routing keys: a key is a column if it is a field.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec

from penstock.model.errors import InvalidArgumentError

if TYPE_CHECKING:
    import pyarrow as pa

Value = Literal["binary", "text", "json"]

#: Columns that every table has. A field of the same name needs another column.
POSITION_COLUMNS = ("scope", "stream", "segment_id", "offset")
UNDECODED = "event_undecoded"

_INT32, _INT64 = 1 << 31, 1 << 63
#: Type name in a schema -> the type of the JSON value.
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
_NAME = r"(?:`([^`]+)`|([^\s,`]+))"
_FIELD = re.compile(rf"\s*{_NAME}\s+(\w+)(?:\s+as\s+{_NAME})?\s*", re.IGNORECASE)
#: Characters that a field's name must not contain, because the decoder would not find it.
_UNREADABLE = re.compile(r'["\\\x00-\x1f]')
#: Errors of decoding an event. `RecursionError`: it is nested too deeply. `OverflowError`: a time outside of the years
#: 1 to 9999 in UTC, which neither Python nor Iceberg can represent.
_UNDECODABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError, OverflowError)


@dataclass(frozen=True, slots=True)
class Field:
    """A field of JSON objects.

    Attributes:
        name: of the field in the JSON.
        kind: one of the type names of a schema.
        column: of the table.
    """

    name: str
    kind: str
    column: str


class RowShape:
    """See the module.

    Args:
        value: the content of events.
        fields: of JSON objects, as `fields_of` returns them.
    """

    def __init__(self, value: Value, fields: Sequence[Field] = ()) -> None:
        import pyarrow as pa

        if (value == "json") != bool(fields):
            raise InvalidArgumentError("a schema is required for JSON, and not allowed otherwise")
        self.value = value
        self._fields = tuple(fields)
        types = {
            "string": pa.string(), "int": pa.int32(), "long": pa.int64(), "double": pa.float64(),
            "boolean": pa.bool_(), "date": pa.date32(), "timestamp": pa.timestamp("us", tz="UTC"), "json": pa.string(),
        }  # fmt: skip
        columns = [pa.field(field.column, types[field.kind]) for field in fields]
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
            # Numbered names, because fields of JSON may have names that attributes cannot have.
            known = [
                # `Raw` cannot be part of a union.
                (f"f{at}", msgspec.Raw, _NULL) if kind == "json" else (f"f{at}", _JSON_TYPES[kind] | None, None)
                for at, kind in enumerate(field.kind for field in fields)
            ]
            renamed = {f"f{at}": field.name for at, field in enumerate(fields)}
            self._texts_of_json = [f"f{at}" for at, field in enumerate(fields) if field.kind == "json"]
            self._times = [f"f{at}" for at, field in enumerate(fields) if field.kind == "timestamp"]
            self._decoder = msgspec.json.Decoder(msgspec.defstruct("Row", known, rename=renamed))

    def __reduce__(self) -> tuple[type[RowShape], tuple[Value, tuple[Field, ...]]]:
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
                rows.append(self._decoded(event))
                undecoded.append(None)
            except _UNDECODABLE:
                rows.append(None)
                undecoded.append(event)
        columns = []
        for at, field in enumerate(self._fields):
            attribute = f"f{at}"
            values = [None if row is None else getattr(row, attribute) for row in rows]
            columns.append(pa.array(values, self.schema.field(field.column).type))
        return [*columns, pa.array(undecoded, pa.binary())]

    def _decoded(self, event: bytes) -> object:
        """Return an object with the attributes f0, f1, and so on, whose values Arrow takes. Raises `_UNDECODABLE`."""
        row: object = self._decoder.decode(event)
        for attribute in self._texts_of_json:
            # The decoder skips such a value without checking that it is UTF-8.
            raw = getattr(row, attribute)
            setattr(row, attribute, None if raw == _NULL else bytes(raw).decode())
        for attribute in self._times:
            time = getattr(row, attribute)
            if time is not None and not datetime.MINYEAR < time.year < datetime.MAXYEAR:
                setattr(row, attribute, time.astimezone(datetime.UTC))
        return row


def fields_of(text: str) -> list[Field]:
    """Return the fields of a schema like ``order long, offset long as event_offset``.

    A name may be in backquotes. A field without ``as`` has a column of its own name.

    Raises `InvalidArgumentError`: it is not such a schema, or two columns have one name.
    """
    found: list[Field] = []
    for part in text.split(","):
        match = _FIELD.fullmatch(part)
        if match is None or match[3].lower() not in _JSON_TYPES:
            raise InvalidArgumentError(
                f"{part.strip()!r} is not a column: write NAME TYPE, or NAME TYPE as COLUMN, with one of the types "
                f"{', '.join(_JSON_TYPES)}"
            )
        name = match[1] or match[2]
        if _UNREADABLE.search(name):
            raise InvalidArgumentError(
                f"field {name!r} cannot be a column: its name has a quotation mark, a backslash or a control "
                "character; export the events with --value text"
            )
        found.append(Field(name, match[3].lower(), match[4] or match[5] or name))
    columns: set[str] = set()
    for field in found:
        as_another = f"give the field's column another name, like {_quoted(field.name)} {field.kind} as " + (
            _quoted(f"event_{field.name}")
        )
        if field.column in (*POSITION_COLUMNS, UNDECODED):
            raise InvalidArgumentError(
                f"column {field.column!r} would occur twice: every table has {', '.join(POSITION_COLUMNS)} and "
                f"{UNDECODED}; {as_another}"
            )
        if field.column in columns:
            raise InvalidArgumentError(f"column {field.column!r} occurs twice: {as_another}")
        columns.add(field.column)
    return found


def _quoted(name: str) -> str:
    return name if re.fullmatch(r"\w+", name) else f"`{name}`"
