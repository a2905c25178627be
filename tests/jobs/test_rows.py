"""Rows of tables: what events hold, and what they do not."""

from __future__ import annotations

import datetime

import pyarrow as pa
import pytest

from penstock.jobs.rows import RowShape, fields_of
from penstock.model.errors import InvalidArgumentError


def batch(*events: bytes) -> pa.RecordBatch:
    count = len(events)
    return pa.RecordBatch.from_pydict(
        {
            "event": pa.array(events, pa.binary()), "scope": ["s"] * count, "stream": ["t"] * count,
            "segment_id": pa.array(range(count), pa.int64()), "offset": pa.array(range(count), pa.int64()),
        }
    )  # fmt: skip


def test_bytes_stay_as_they_are() -> None:
    rows = RowShape("binary").rows(batch(b"\xff", b""))
    assert rows.to_pylist()[0] == {"event": b"\xff", "scope": "s", "stream": "t", "segment_id": 0, "offset": 0}


def test_texts_that_are_none_keep_their_bytes() -> None:
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
        b'{"g":"2026-11-23T10:00:00"}',
    ],
)  # fmt: skip
def test_what_is_no_such_object_keeps_its_bytes_and_its_row(event: bytes) -> None:
    """Also what would shift the rows behind it: two objects in one event, or none."""
    shape = RowShape("json", fields_of("a string, b int, g timestamp"))
    rows = shape.rows(batch(b'{"b":1}', event, b'{"b":3}')).to_pylist()
    assert [(row["b"], row["event_undecoded"]) for row in rows] == [(1, None), (None, event), (3, None)]


@pytest.mark.parametrize(
    "text", ["", "a", "a foo", "a int, a long", "scope string", "a int b int", "event_undecoded json"]
)
def test_a_schema_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgumentError):
        fields_of(text)


def test_a_schema_is_for_json_alone() -> None:
    with pytest.raises(InvalidArgumentError):
        RowShape("json")
    with pytest.raises(InvalidArgumentError):
        RowShape("text", [("a", "int")])
