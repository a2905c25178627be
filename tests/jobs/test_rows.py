"""Rows of tables: what events hold, and what they do not."""

from __future__ import annotations

import datetime

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from penstock.jobs.keys import EventKeys
from penstock.jobs.rows import Field, RowShape, fields_of
from penstock.model.errors import InvalidArgumentError

#: Brackets within each other that no version of Python decodes: 3.14 is limited by the stack in bytes only.
TOO_DEEP = 1_000_000


def batch(*events: bytes) -> pa.RecordBatch:
    count = len(events)
    return pa.RecordBatch.from_pydict(
        {
            "event": pa.array(events, pa.binary()), "scope": ["s"] * count, "stream": ["t"] * count,
            "segment_id": pa.array(range(count), pa.int64()), "offset": pa.array(range(count), pa.int64()),
        }
    )  # fmt: skip


def test_bytes_are_exported_unchanged() -> None:
    rows = RowShape("binary").rows(batch(b"\xff", b""))
    assert rows.to_pylist()[0] == {"event": b"\xff", "scope": "s", "stream": "t", "segment_id": 0, "offset": 0}


def test_events_that_are_not_text_keep_their_bytes() -> None:
    assert RowShape("text").rows(batch(b"a", b"b")).column("event_undecoded").null_count == 2
    rows = RowShape("text").rows(batch("ä".encode(), b"\xff")).to_pylist()
    assert [(row["event"], row["event_undecoded"]) for row in rows] == [("ä", None), (None, b"\xff")]


def test_fields_of_json_are_columns_of_their_types() -> None:
    shape = RowShape("json", fields_of("a string, b int,c long, d double, e boolean, f date, g timestamp, `h i` json"))
    event = (
        b'{"a":"x","b":1,"c":9223372036854775807,"d":2,"e":true,"f":"2026-11-23","g":"2026-11-23T10:00:00+02:00",'
        b'"h i":{"z":[1, 2]},"unknown":1}'
    )
    first, second = shape.rows(batch(event, b"{}")).to_pylist()
    assert first == {
        "a": "x", "b": 1, "c": 9223372036854775807, "d": 2.0, "e": True, "f": datetime.date(2026, 11, 23),
        "g": datetime.datetime(2026, 11, 23, 8, tzinfo=datetime.UTC), "h i": '{"z":[1, 2]}', "event_undecoded": None,
        "scope": "s", "stream": "t", "segment_id": 0, "offset": 0,
    }  # fmt: skip
    assert {second[name] for name in "abcdefg"} == {None}


@pytest.mark.parametrize(
    "event",
    [
        b"", b"{", b"[]", b"1", b'{"b":2147483648}', b'{"b":"1"}', b'{"b":1}{"b":2}', b"\xff", b'{"a":"\xff"}',
        b'{"g":"2026-11-23T10:00:00"}', b'{"h":"\xff"}', b'{"h":' + b"[" * TOO_DEEP + b"]" * TOO_DEEP + b"}",
        b'{"x":' + b"[" * TOO_DEEP + b"]" * TOO_DEEP + b"}", b"[" * 100_000,
        b'{"a":"\\ud800"}', b'{"a":"\xed\xa0\x80"}',
        b'{"g":"9999-12-31T23:59:59-05:00"}', b'{"g":"0001-01-01T00:00:00+05:00"}', b"\xef\xbb\xbf{}", b"\n", b"null",
    ],
)  # fmt: skip
def test_events_that_are_not_such_an_object_keep_their_bytes_and_row(event: bytes) -> None:
    """Also an event that holds two objects, or none: it does not shift the rows after it."""
    shape = RowShape("json", fields_of("a string, b int, g timestamp, h json"))
    rows = shape.rows(batch(b'{"b":1}', event, b'{"b":3}')).to_pylist()
    assert [(row["b"], row["event_undecoded"]) for row in rows] == [(1, None), (None, event), (3, None)]


def test_times_at_the_ends_of_the_calendar_are_read_back() -> None:
    shape = RowShape("json", fields_of("g timestamp"))
    texts = ["9999-12-31T23:59:59.999999Z", "9999-12-31T18:59:59-05:00", "0001-01-01T00:00:00Z"]
    rows = shape.rows(batch(*(b'{"g":"%s"}' % text.encode() for text in texts))).to_pylist()
    assert [row["g"].isoformat() for row in rows] == [
        "9999-12-31T23:59:59.999999+00:00", "9999-12-31T23:59:59+00:00", "0001-01-01T00:00:00+00:00",
    ]  # fmt: skip


_EVERY_KIND = "a string, b int, c long, d double, e boolean, f date, g timestamp, h json"
_values = st.one_of(
    st.binary(max_size=8),
    st.text(max_size=8).map(lambda text: b'"%s"' % text.encode()),
    st.datetimes(timezones=st.timezones()).map(lambda time: b'"%s"' % time.isoformat().encode()),
    st.integers().map(lambda number: b"%d" % number),
    st.floats().map(lambda number: repr(number).encode()),
    st.sampled_from([b"[" * 1500 + b"]" * 1500, b"null", b'"9999-12-31T23:59:59.9999999Z"', b"{}", b'"\\ud800"']),
)
_objects = st.builds(
    lambda fields: b"{%s}" % b",".join(b'"%s":%s' % field for field in fields),
    st.lists(st.tuples(st.sampled_from([b"a", b"b", b"c", b"d", b"e", b"f", b"g", b"h", b"x"]), _values), max_size=3),
)


@given(st.lists(st.one_of(st.binary(max_size=30), _objects), min_size=1, max_size=4))
@example([b'{"h":"\xff"}', b"{}"])
@example([b'{"g":"9999-12-31T23:59:59-05:00"}'])
def test_every_sequence_of_bytes_is_a_row(events: list[bytes]) -> None:
    """Which can be read back: its values, or else its bytes."""
    for value in ("binary", "text", "json"):
        shape = RowShape(value, fields_of(_EVERY_KIND) if value == "json" else ())
        rows = shape.rows(batch(*events)).to_pylist()
        assert [row["offset"] for row in rows] == list(range(len(events)))
        for row, event in zip(rows, events, strict=True):
            if value == "binary":
                assert row["event"] == event
            elif value == "text":
                assert (row["event"] is None) == (row["event_undecoded"] == event)
            elif row["event_undecoded"] is not None:
                assert row["event_undecoded"] == event
                assert {row[name] for name in "abcdefgh"} == {None}


def test_a_field_may_have_a_column_of_another_name() -> None:
    """Also a field that is called like a column that every table has."""
    shape = RowShape("json", fields_of("offset long as event_offset, `stream` string AS `the stream`, `a b` int as c"))
    (row,) = shape.rows(batch(b'{"offset":7,"stream":"x","a b":1,"c":2}')).to_pylist()
    assert row == {
        "event_offset": 7, "the stream": "x", "c": 1, "event_undecoded": None, "scope": "s", "stream": "t",
        "segment_id": 0, "offset": 0,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        ("offset long", "every table has scope, stream, segment_id, offset.*like offset long as event_offset"),
        ("a int as scope", "every table has.*like a int as event_a"),
        ("a int, b long as a", "column 'a' occurs twice.*like b long as event_b"),
        ("a int, a long", "column 'a' occurs twice"),
        ("`a b` string, c int as `a b`", "like c int as event_c"),
        ('`"` int', "quotation mark"),
    ],
)
def test_a_duplicate_column_name_is_refused_with_the_option_that_renames_it(text: str, advice: str) -> None:
    with pytest.raises(InvalidArgumentError, match=advice):
        fields_of(text)


@pytest.mark.parametrize(
    ("event", "why"),
    [
        (b"", "it is blank"),
        (b" \r", "it is blank"),
        (b'\xef\xbb\xbf{"k":"a"}', "byte order mark.*EF BB BF.*remove it"),
        (b"\xff\xfe{\x00", "byte order mark of UTF-16"),
        (b'{"x":' + b"[" * TOO_DEEP + b"]" * TOO_DEEP + b"}", "nested too deeply"),
        (b"{}", "missing required field"),
    ],
)
def test_an_event_without_a_routing_key_is_reported_with_the_reason(event: bytes, why: str) -> None:
    with pytest.raises(InvalidArgumentError, match=f"event 1 of here has no routing key in the field 'k': .*{why}"):
        EventKeys("k").keys_of([b'{"k":"a"}', event], "here")


@pytest.mark.parametrize(
    "text", ["", "a", "a foo", "a int, a long", "scope string", "a int b int", "event_undecoded json"]
)
def test_an_invalid_schema_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgumentError):
        fields_of(text)


def test_a_schema_requires_json() -> None:
    with pytest.raises(InvalidArgumentError):
        RowShape("json")
    with pytest.raises(InvalidArgumentError):
        RowShape("text", [Field("a", "int", "a")])
