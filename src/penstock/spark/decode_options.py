"""Options `decode`, `decodeSchema` and `malformed` of the source: events as columns of JSON or Avro records.

Avro types without a Spark type are refused when the query is planned. Reads no event, and needs no extra.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from penstock.model.errors import InvalidArgumentError

#: The column of the decoded record, and that of malformed events.
VALUE = "value"
MALFORMED = "malformed"

#: Avro's types and logical types with their Spark types.
_AVRO_TYPES: Mapping[str, str] = {
    "boolean": "boolean",
    "int": "int",
    "long": "bigint",
    "float": "float",
    "double": "double",
    "bytes": "binary",
    "fixed": "binary",
    "string": "string",
    "enum": "string",
}
_AVRO_LOGICAL_TYPES: Mapping[str, str] = {
    "date": "date",
    "timestamp-millis": "timestamp",
    "timestamp-micros": "timestamp",
    "local-timestamp-millis": "timestamp_ntz",
    "local-timestamp-micros": "timestamp_ntz",
}


@dataclass(frozen=True, slots=True)
class Decoding:
    """The format of events.

    Attributes:
        form: ``json`` or ``avro``.
        schema: for JSON, columns in Spark's DDL, or None where the reader is given a schema; for Avro, the
            writer's schema of the events, in JSON.
        is_lenient: a malformed event is null in column `value` and kept in column `malformed`; otherwise its task
            fails.
    """

    form: str
    schema: str | None
    is_lenient: bool

    @property
    def columns(self) -> dict[str, str]:
        """The columns in place of `event`, with their Spark types; that of `value` may be unknown yet."""
        kind = "" if self.schema is None else self.schema
        kind = avro_type(kind) if self.form == "avro" else f"struct<{kind}>" if kind else ""
        return {VALUE: kind} | ({MALFORMED: "binary"} if self.is_lenient else {})


def parse_decoding(found: Mapping[str, str]) -> Decoding | None:
    """Check the options. Raises `InvalidArgumentError` for an unusable value."""
    form, schema = found.get("decode", "").strip().lower(), found.get("decodeSchema", "").strip() or None
    malformed = found.get("malformed", "fail").strip().lower()
    if not form:
        if schema or "malformed" in found:
            raise InvalidArgumentError("options 'decodeSchema' and 'malformed' go with 'decode': give json or avro")
        return None
    if form not in ("json", "avro"):
        raise InvalidArgumentError(f"option 'decode' is {found['decode']!r}: give json or avro")
    if malformed not in ("fail", "null"):
        raise InvalidArgumentError(f"option 'malformed' is {found['malformed']!r}: give fail or null")
    if form == "avro" and schema is None:
        raise InvalidArgumentError("option 'decode' is 'avro': give the events' schema as 'decodeSchema', in JSON")
    return Decoding(form, schema, is_lenient=malformed == "null")


def avro_type(text: str) -> str:
    """Return the Spark type of records of an Avro schema, given in JSON.

    Raises `InvalidArgumentError`: it is not a schema of records, or has a type without a Spark type.
    """
    try:
        schema = json.loads(text)
    except ValueError as error:
        raise InvalidArgumentError(f"option 'decodeSchema' is not an Avro schema in JSON: {error}") from error
    if not isinstance(schema, dict) or schema.get("type") not in ("record", "error"):
        raise InvalidArgumentError("option 'decodeSchema': the Avro schema of an event must be that of a record")
    return _spark_type(schema, "the event", {}, "")


def _spark_type(schema: object, where: str, named: dict[str, str], space: str) -> str:
    """Return a schema's type. `named`: the named types, "" while they are being read; `space`: default namespace."""
    if isinstance(schema, list):
        others = [each for each in schema if each != "null"]
        if len(others) == 1:
            return _spark_type(others[0], where, named, space)
        raise InvalidArgumentError(f"Avro schema: {where} is a union of {len(others)} types, which Spark does not have")
    if isinstance(schema, str):
        known = _AVRO_TYPES.get(schema) or named.get(schema) or named.get(f"{space}.{schema}")
        if known and schema not in ("fixed", "enum"):
            return known
        raise InvalidArgumentError(f"Avro schema: {where} is {schema!r}, which is unknown or recursive")
    if not isinstance(schema, dict):
        raise InvalidArgumentError(f"Avro schema: {where} is {schema!r}, which is not a type")
    kind, logical = schema.get("type"), schema.get("logicalType")
    name = str(schema.get("name", ""))
    space = name.rpartition(".")[0] or str(schema.get("namespace", space))
    full_name = name if "." in name or not space else f"{space}.{name}"
    if logical == "decimal":
        found = f"decimal({int(schema.get('precision', 0))},{int(schema.get('scale', 0))})"
    elif logical is not None and logical in _AVRO_LOGICAL_TYPES:
        found = _AVRO_LOGICAL_TYPES[logical]
    elif logical is not None:
        raise InvalidArgumentError(f"Avro schema: {where} is a {logical}, which has no Spark type")
    elif kind == "array":
        found = f"array<{_spark_type(schema.get('items'), f'an item of {where}', named, space)}>"
    elif kind == "map":
        found = f"map<string,{_spark_type(schema.get('values'), f'a value of {where}', named, space)}>"
    elif kind in ("record", "error"):
        named[full_name] = ""
        fields = schema.get("fields")
        if not isinstance(fields, list) or not fields or not all(isinstance(each, dict) for each in fields):
            raise InvalidArgumentError(f"Avro schema: {where} is a record without fields")
        parts = []
        for each in fields:
            column = str(each.get("name", ""))
            parts.append(f"{_quoted(column)}:{_spark_type(each.get('type'), f'field {column}', named, space)}")
        found = f"struct<{','.join(parts)}>"
    else:
        found = _spark_type(kind, where, named, space) if kind not in ("fixed", "enum") else _AVRO_TYPES[str(kind)]
    if name:
        named[full_name] = found
    return found


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
