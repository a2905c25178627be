"""Events decoded from JSON and Avro in the source: which are records, which are not, and what Spark gets for them."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from io import BytesIO
from typing import TYPE_CHECKING, Any

import pytest

from penstock.server.standalone_process import StandaloneProcess

pytest.importorskip("pyspark", reason="needs pyspark: pip install 'penstock[spark]'")
pa = pytest.importorskip("pyarrow", reason="needs pyarrow: pip install 'penstock[spark]'")

from penstock.model.errors import InvalidArgumentError, UnsupportedOperationError  # noqa: E402
from penstock.spark.decode_options import Decoding, avro_type  # noqa: E402
from penstock.spark.decoding import EventDecoder  # noqa: E402
from penstock.spark.errors import MalformedEventError  # noqa: E402
from penstock.spark.options import parse_source_options, source_columns  # noqa: E402
from support.spark_queries import read  # noqa: E402

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.client.sync import Client

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

KIND = pa.struct(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("small", pa.int8()),
        ("price", pa.float64()),
        ("exact", pa.decimal128(6, 2)),
        ("name", pa.string()),
        ("raw", pa.binary()),
        ("is_paid", pa.bool_()),
        ("day", pa.date32()),
        ("at", pa.timestamp("us", tz="UTC")),
        ("local", pa.timestamp("us")),
        ("tags", pa.list_(pa.string())),
        ("counts", pa.map_(pa.string(), pa.int32())),
        ("place", pa.struct([("x", pa.int32())])),
    ]
)


def decode(
    events: list[bytes], *, form: str = "json", schema: str | None = None, lenient: bool = True, kind: Any = KIND
) -> dict[str, list[Any]]:
    decoder = EventDecoder(Decoding(form, schema, lenient), kind)
    raw = pa.RecordBatch.from_pydict(
        {"event": pa.array(events, pa.binary()), "offset": pa.array(range(len(events)), pa.int64())}
    )
    (batch,) = decoder.decoded([raw], ("value", "malformed", "offset"), "a/b/0")
    assert batch.schema.field("value").type == kind
    columns: dict[str, list[Any]] = batch.to_pydict()
    return columns


def test_json_of_every_type_is_decoded_and_unknown_fields_are_left_out() -> None:
    event = (
        b'{"id": 7, "small": -128, "price": 3, "exact": 1.25, "name": "caf\\u00e9", "raw": "AAE=", "is_paid": true, '
        b'"day": "2026-11-22", "at": "2026-11-22T10:30:00+01:00", "local": "2026-11-22T10:30:00", "tags": ["a", null], '
        b'"counts": {"k": 1}, "place": {"x": 5, "y": 6}, "more": [1, {"z": null}]}'
    )
    found = decode([event, b' {"id": 8}\n'])
    assert found["malformed"] == [None, None]
    assert found["value"][0] == {
        "id": 7,
        "small": -128,
        "price": 3.0,
        "exact": Decimal("1.25"),
        "name": "caf\u00e9",
        "raw": b"\0\1",
        "is_paid": True,
        "day": date(2026, 11, 22),
        "at": datetime(2026, 11, 22, 9, 30, tzinfo=UTC),
        "local": datetime(2026, 11, 22, 10, 30),
        "tags": ["a", None],
        "counts": [("k", 1)],
        "place": {"x": 5},
    }
    assert found["value"][1] == dict.fromkeys((field.name for field in KIND), None) | {"id": 8}


@pytest.mark.parametrize(
    "event",
    [
        b"",
        b"null",
        b"[1]",
        b'{"id": 1',
        b'{"id": 1} null',
        b'{"id": 1}{"id": 2}',
        b'{"id": 1.0}',
        b'{"id": "1"}',
        b'{"id": true}',
        b'{"id": null}',
        b"{}",
        b'{"id": 9223372036854775808}',
        b'{"id": 1, "small": 128}',
        b'{"id": 1, "price": NaN}',
        b'{"id": 1, "price": "3"}',
        b'{"id": 1, "exact": 1.255}',
        b'{"id": 1, "exact": 12345.5}',
        b'{"id": 1, "name": 5}',
        b'{"id": 1, "name": "\xff"}',
        b'{"id": 1, "name": "\\ud800"}',
        b'{"id": 1, "raw": "a?b="}',
        b'{"id": 1, "is_paid": 0}',
        b'{"id": 1, "day": "22.11.2026"}',
        b'{"id": 1, "at": "2026-11-22T10:30:00"}',
        b'{"id": 1, "local": "2026-11-22T10:30:00Z"}',
        b'{"id": 1, "tags": "a"}',
        b'{"id": 1, "counts": {"k": 1.5}}',
        b'{"id": 1, "place": 5}',
        b"[" * 100_000,
    ],
)
def test_an_invalid_record_is_malformed_and_its_neighbours_are_valid(event: bytes) -> None:
    found = decode([b'{"id": 1}', event, b'{"id": 2}'])
    assert [value and value["id"] for value in found["value"]] == [1, None, 2]
    assert found["malformed"] == [None, event, None]
    with pytest.raises(MalformedEventError, match="a/b/0: the event at byte 1 is no json record"):
        decode([b'{"id": 1}', event], lenient=False)


ORDER = {
    "type": "record",
    "name": "Order",
    "namespace": "retail",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "item", "type": ["null", "string"]},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 6, "scale": 2}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "state", "type": {"type": "enum", "name": "State", "symbols": ["NEW", "PAID"]}},
        {"name": "before", "type": ["null", "State"]},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
        {"name": "counts", "type": {"type": "map", "values": "int"}},
        {"name": "place", "type": {"type": "record", "name": "Place", "fields": [{"name": "x`y", "type": "float"}]}},
    ],
}
ORDER_TYPE = (
    "struct<`id`:bigint,`item`:string,`price`:decimal(6,2),`at`:timestamp,`state`:string,`before`:string,"
    "`tags`:array<string>,`counts`:map<string,int>,`place`:struct<`x``y`:float>>"
)


def test_an_avro_schema_has_a_type_in_spark() -> None:
    assert avro_type(json.dumps(ORDER)) == ORDER_TYPE


@pytest.mark.parametrize(
    ("schema", "complaint"),
    [
        ("{", "not an Avro schema in JSON"),
        ('"long"', "must be that of a record"),
        ({"type": "record", "name": "R", "fields": []}, "without fields"),
        ({"type": "record", "name": "R", "fields": [{"name": "r", "type": ["null", "R"]}]}, "recursive"),
        ({"type": "record", "name": "R", "fields": [{"name": "r", "type": ["int", "string"]}]}, "a union of 2"),
        ({"type": "record", "name": "R", "fields": [{"name": "r", "type": "number"}]}, "is 'number'"),
        (
            {
                "type": "record",
                "name": "R",
                "fields": [{"name": "r", "type": {"type": "string", "logicalType": "uuid"}}],
            },
            "is a uuid",
        ),
    ],
)
def test_avro_that_spark_has_no_type_for_is_refused(schema: object, complaint: str) -> None:
    with pytest.raises(InvalidArgumentError, match=complaint):
        avro_type(schema if isinstance(schema, str) else json.dumps(schema))


def avro_event(schema: dict[str, object], value: dict[str, object]) -> bytes:
    fastavro = pytest.importorskip("fastavro", reason="needs fastavro: pip install 'penstock[avro]'")
    data = BytesIO()
    fastavro.schemaless_writer(data, fastavro.parse_schema(json.loads(json.dumps(schema))), value)
    return data.getvalue()


PLAIN: dict[str, object] = {
    "type": "record",
    "name": "R",
    "fields": [{"name": "id", "type": "int"}, {"name": "name", "type": "string"}],
}
PLAIN_KIND = pa.struct([("id", pa.int32()), ("name", pa.string())])


@pytest.mark.parametrize("broken", [lambda event: event[:-1], lambda event: event + b"x", lambda event: b""])
def test_avro_that_is_cut_off_or_continues_is_malformed(broken: Callable[[bytes], bytes]) -> None:
    event = avro_event(PLAIN, {"id": 5, "name": "abc"})
    bad = broken(event)
    found = decode([event, bad], form="avro", schema=json.dumps(PLAIN), kind=PLAIN_KIND)
    assert found["value"][0] == {"id": 5, "name": "abc"}
    assert found["malformed"] == [None, bad]


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"decode": "xml"}, "give json or avro"),
        ({"malformed": "null"}, "go with 'decode'"),
        ({"decodeSchema": "id long"}, "go with 'decode'"),
        ({"decode": "json", "malformed": "skip"}, "give fail or null"),
        ({"decode": "avro"}, "give the events' schema"),
        ({"decode": "json", "decodeSchema": "id long", "columns": "malformed"}, "names 'malformed'"),
    ],
)
def test_options_that_do_not_fit_are_refused(options: dict[str, str], complaint: str) -> None:
    with pytest.raises(InvalidArgumentError, match=complaint):
        parse_source_options({"stream": "a/b", **options})


def test_decoded_columns_replace_the_event() -> None:
    given = {"stream": "a/b", "decode": "json", "decodeSchema": "id long"}
    assert list(source_columns(given)) == ["value", "scope", "stream", "segment_id", "offset"]
    assert source_columns({**given, "malformed": "null", "columns": "event,malformed,value"}) == {
        "event": "binary",
        "malformed": "binary",
        "value": "struct<id long>",
    }
    with pytest.raises(InvalidArgumentError, match="give columns as 'decodeSchema'"):
        source_columns({"stream": "a/b", "decode": "json"})


def test_a_type_that_cannot_be_decoded_is_refused_before_any_task() -> None:
    for kind in (pa.struct([("a", pa.duration("us"))]), pa.struct([("a", pa.map_(pa.int32(), pa.int32()))])):
        with pytest.raises(UnsupportedOperationError, match="cannot be decoded into"):
            EventDecoder(Decoding("json", None, False), kind)


def test_a_session_reads_json_and_avro_as_columns(
    spark: SparkSession, store: StandaloneProcess, client: Client, new_stream: Callable[..., str]
) -> None:
    stream = new_stream(1)
    at = datetime(2026, 11, 22, 10, 30, tzinfo=UTC)
    order = {
        **{"id": 7, "item": None, "price": Decimal("1.25"), "at": at, "state": "NEW", "before": "PAID", "tags": ["a"]},
        **{"counts": {"k": 1}, "place": {"x`y": 0.5}},
    }
    avro = json.loads(json.dumps(ORDER).replace("x`y", "xy"))
    order["place"] = {"xy": 0.5}
    with client.event_writer(stream) as writer:
        writer.write_many([b'{"id": 1, "p": {"x": 2.5}}', b"no", avro_event(avro, order)])
    given = {"decode": "json", "decodeSchema": "id long, p struct<x: double>", "malformed": "null"}
    frame = read(spark, store, stream, **given)
    assert frame.columns == ["value", "malformed", "scope", "stream", "segment_id", "offset"]
    first, second, _ = frame.orderBy("offset").select("value.id", "value.p.x", "malformed").collect()
    assert (first.id, first.x, first.malformed) == (1, 2.5, None)
    assert (second.id, bytes(second.malformed)) == (None, b"no")
    # A schema of the reader's says it, too; what is malformed ends the query, with its place.
    reader = spark.read.format("penstock").options(uri=store.uri, stream=stream, decode="json")
    with pytest.raises(Exception, match=r"the event at byte 34 is no json record"):
        reader.schema("value struct<id: bigint>, offset bigint").load().collect()
    end = json.dumps({"positions": {"0": 34}, "scope": stream.split("/")[0], "stream": stream.split("/")[1], "v": 1})
    schema = "VALUE struct<id: bigint not null> not null, offset bigint"
    (row,) = reader.schema(schema).option("until", end).load().collect()
    assert (row.VALUE.id, row.offset) == (1, 0)
    start = end.replace("34", "44")
    frame = read(spark, store, stream, decode="avro", decodeSchema=json.dumps(avro), start=start)
    (row,) = frame.selectExpr("value.*", "unix_micros(value.at) as micros").collect()
    assert (row.id, row.item, row.price, row.state, row.before) == (7, None, Decimal("1.25"), "NEW", "PAID")
    assert (row.tags, row.counts, row.place.xy) == (["a"], {"k": 1}, 0.5)
    assert row.micros == at.timestamp() * 10**6


@pytest.mark.parametrize(
    "text", ["12345678901234567.89", "99999999999999999.99", "9007199254740993.01", "0.1", "123", "1e3"]
)
def test_a_decimal_in_json_keeps_its_digits(text: str) -> None:
    """Also more than a double has; a double beside it is a double."""
    kind = pa.struct([("amount", pa.decimal128(20, 2)), ("rate", pa.float64())])
    decoder = EventDecoder(Decoding("json", "amount decimal(20,2), rate double", is_lenient=False), kind)
    event = b'{"amount": %s, "rate": 0.1}' % text.encode()
    raw = pa.RecordBatch.from_pydict({"event": pa.array([event], pa.binary()), "offset": pa.array([0], pa.int64())})
    (batch,) = decoder.decoded([raw], ["value"], "s/t/0")
    assert batch.column("value").to_pylist() == [{"amount": Decimal(text).quantize(Decimal("0.01")), "rate": 0.1}]
