"""`EventDecoder`: decodes events with JSON or Avro records into a column of one Arrow type.

One pass of Python per event, in the tasks. An event either is a record of the schema or is malformed: values are not
coerced, so a text is not a number and a number with a fraction is not an integer. In JSON, missing fields are null, and
fields that are not in the schema are ignored.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import date, datetime
from decimal import Context, Decimal, Inexact, InvalidOperation
from io import BytesIO
from typing import TYPE_CHECKING, NoReturn, TypeVar

from penstock.model.errors import UnsupportedOperationError
from penstock.runtime.extras import missing_extra
from penstock.spark.decode_options import MALFORMED, VALUE, Decoding
from penstock.spark.errors import MalformedEventError

if TYPE_CHECKING:
    import pyarrow as pa

V = TypeVar("V")

Convert = Callable[[object], object]


class EventDecoder:
    """Decodes events into values of `kind`, a struct.

    The constructor raises `UnsupportedOperationError` if Avro's library is not installed, or `kind` has a type that
    cannot be decoded.
    """

    def __init__(self, decoding: Decoding, kind: pa.StructType) -> None:
        self._decoding = decoding
        self._kind = kind
        self._convert = _converter(kind)
        self._parse = _json_value if decoding.form == "json" else _avro_parser(decoding.schema or "")
        if decoding.form == "json" and "decimal" in str(kind):
            self._parse = _exact_json_value

    def decoded(
        self, batches: Iterable[pa.RecordBatch], columns: Sequence[str], segment_name: str
    ) -> Iterator[pa.RecordBatch]:
        """Yield batches of `columns`; the decoded ones are computed from columns `event` and `offset`.

        Raises `MalformedEventError` unless malformed events become null.
        """
        import pyarrow as pa

        for batch in batches:
            events = batch.column("event").to_pylist()
            values: list[object] = []
            malformed: list[bytes | None] = [None] * len(events)
            for index, event in enumerate(events):
                try:
                    values.append(self._convert(self._parse(event)))
                except Exception as error:  # Parsers may raise anything on malformed bytes.
                    if not self._decoding.is_lenient:
                        raise MalformedEventError(
                            f"{segment_name}: the event at byte {batch.column('offset')[index]} is no "
                            f"{self._decoding.form} record of the schema ({error}); to continue past such events, set "
                            "malformed to null"
                        ) from error
                    values.append(None)
                    malformed[index] = event
            found = {VALUE: pa.array(values, self._kind), MALFORMED: pa.array(malformed, pa.binary())}
            arrays = [found[name] if name in found else batch.column(name) for name in columns]
            fields = [pa.field(name, array.type) for name, array in zip(columns, arrays, strict=True)]
            yield pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))


def raw_columns(columns: Sequence[str]) -> tuple[str, ...]:
    """Return the columns of the source that are needed to decode into `columns`."""
    others = (name for name in columns if name not in (VALUE, MALFORMED))
    return tuple(dict.fromkeys(("event", "offset", *others)))


def _json_value(event: bytes) -> object:
    return json.loads(event.decode(), parse_constant=_no_constant)


def _exact_json_value(event: bytes) -> object:
    """As `_json_value`, but numbers with a fraction or an exponent keep their text."""
    return json.loads(event.decode(), parse_constant=_no_constant, parse_float=Decimal)


def _no_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not JSON")


def _avro_parser(schema: str) -> Callable[[bytes], object]:
    try:
        import fastavro
    except ImportError as error:
        raise UnsupportedOperationError(missing_extra("decoding Avro", "avro", error)) from error
    parsed = fastavro.parse_schema(json.loads(schema))

    def parse(event: bytes) -> object:
        data = BytesIO(event)
        value: object = fastavro.schemaless_reader(data, parsed, None)
        if data.tell() != len(event):
            raise ValueError(f"{len(event) - data.tell()} bytes follow the record")
        return value

    return parse


def _converter(kind: pa.DataType) -> Convert:
    """Return a function that checks a value and converts it to what Arrow accepts for `kind`; raises `ValueError`."""
    from pyarrow import types

    if types.is_struct(kind):
        return _struct_converter(kind)
    if types.is_list(kind):
        item = _nullable(_converter(kind.value_type), is_nullable=kind.value_field.nullable)
        return lambda value: [item(each) for each in _checked(value, list)]
    if types.is_map(kind):
        entry = _nullable(_converter(kind.item_type), is_nullable=kind.item_field.nullable)
        if not types.is_string(kind.key_type):
            raise UnsupportedOperationError(f"events cannot be decoded into {kind}: keys are strings")
        return lambda value: [(_text(name), entry(each)) for name, each in _checked(value, dict).items()]
    if types.is_integer(kind):
        bound = 1 << kind.bit_width - 1

        def integer(value: object) -> object:
            if not -bound <= _checked(value, int) < bound:
                raise ValueError(f"{value} is beyond {kind}")
            return value

        return integer
    if types.is_decimal(kind):
        return lambda value: _decimal(value, kind.precision, kind.scale)
    if types.is_timestamp(kind):
        return lambda value: _moment(value, has_zone=kind.tz is not None)
    for is_kind, convert in _CONVERTERS:
        if getattr(types, is_kind)(kind):
            return convert
    raise UnsupportedOperationError(f"events cannot be decoded into {kind}")


def _struct_converter(kind: pa.StructType) -> Convert:
    fields: list[tuple[str, Convert]] = [
        (field.name, _nullable(_converter(field.type), is_nullable=field.nullable)) for field in kind
    ]

    def convert(value: object) -> object:
        given: Mapping[str, object] = _checked(value, dict)
        return {name: step(given.get(name)) for name, step in fields}

    return convert


def _nullable(convert: Convert, *, is_nullable: bool) -> Convert:
    def check(value: object) -> object:
        if value is not None:
            return convert(value)
        if not is_nullable:
            raise ValueError("a field that is not null is missing")
        return None

    return check


def _checked(value: object, kind: type[V]) -> V:
    # Not isinstance: a bool is an int, but True is not a number.
    if type(value) is not kind:
        raise ValueError(f"{str(value)[:80]!r} is no {kind.__name__}")
    return value


def _float(value: object) -> object:
    if type(value) is Decimal:
        return float(value)
    return value if type(value) is float else float(_checked(value, int))


def _text(value: object) -> object:
    text = _checked(value, str)
    if not text.isascii():
        text.encode()  # Raises for an unpaired surrogate.
    return text


def _binary(value: object) -> object:
    """Bytes; encoded in base 64 in JSON, as Spark's `to_json` does."""
    return value if type(value) is bytes else base64.b64decode(_checked(value, str), validate=True)


def _date(value: object) -> object:
    return value if type(value) is date else date.fromisoformat(_checked(value, str))


def _moment(value: object, *, has_zone: bool) -> object:
    moment = value if type(value) is datetime else datetime.fromisoformat(_checked(value, str))
    if (moment.tzinfo is not None) != has_zone:
        raise ValueError(f"{value} has {'no' if has_zone else 'a'} time zone")
    return moment


def _decimal(value: object, precision: int, scale: int) -> object:
    number = value if type(value) is Decimal else Decimal(str(value if type(value) is float else _checked(value, int)))
    exact = Context(prec=precision, traps=[Inexact, InvalidOperation])
    return number.quantize(Decimal(1).scaleb(-scale), context=exact)


#: Types without parameters: their predicate in `pyarrow.types`, and their converter.
_CONVERTERS: Sequence[tuple[str, Convert]] = (
    ("is_boolean", lambda value: _checked(value, bool)),
    ("is_floating", _float),
    ("is_string", _text),
    ("is_binary", _binary),
    ("is_date32", _date),
)
