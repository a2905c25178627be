"""Offsets as the checkpoint keeps them: fixed text, and a clear complaint about anything else. Pure, no Spark."""

from __future__ import annotations

import json

import pytest

from penstock.model.errors import InvalidArgumentError
from penstock.model.stream_cuts import OFFSET_FUTURE, StreamCut
from penstock.spark.offsets import QueryPosition, cuts_from_text, from_offset, from_text, lost_bytes, to_offset, to_text

SEGMENT_OF_EPOCH_1 = 1 << 32


def test_an_offset_has_one_text_whatever_the_order_of_the_cut() -> None:
    text = '{"positions":{"0":10,"2":0,"4294967296":7},"scope":"s","stream":"t","v":1}'
    assert to_text("s", "t", {SEGMENT_OF_EPOCH_1: 7, 2: 0, 0: 10}) == text
    assert json.dumps(to_offset("s", "t", {2: 0, SEGMENT_OF_EPOCH_1: 7, 0: 10}), separators=(",", ":")) == text
    assert StreamCut("s", "t", {SEGMENT_OF_EPOCH_1: 7, 2: 0, 0: 10}).to_text() == text


def test_an_offset_of_an_older_checkpoint_is_read() -> None:
    """It said `cut` where stream cuts say `positions`. Both are read wherever a cut is given as text."""
    old = '{"v":1,"scope":"s","stream":"t","cut":{"0":10,"4294967296":7}}'
    assert from_offset(json.loads(old), "s", "t") == {0: 10, SEGMENT_OF_EPOCH_1: 7}
    assert from_text(old, "s", "t") == {0: 10, SEGMENT_OF_EPOCH_1: 7}
    assert StreamCut.from_text(old) == StreamCut("s", "t", {0: 10, SEGMENT_OF_EPOCH_1: 7})


def test_lost_bytes_are_stored_in_the_offset() -> None:
    offset = to_offset("s", "t", {0: 10}, 300)
    assert lost_bytes(offset) == 300
    assert lost_bytes(to_offset("s", "t", {0: 10})) == 0
    assert from_offset(offset, "s", "t") == {0: 10}
    assert from_text(json.dumps(offset), "s", "t") == {0: 10}
    assert StreamCut.from_text(json.dumps(offset)) == StreamCut("s", "t", {0: 10})
    with pytest.raises(InvalidArgumentError, match="'lostBytes'"):
        lost_bytes({**offset, "lostBytes": "many"})


def test_an_offset_survives_a_round_trip() -> None:
    cut = {0: 10, SEGMENT_OF_EPOCH_1: 7}
    assert from_offset(to_offset("s", "t", cut), "s", "t") == cut
    assert from_text(to_text("s", "t", cut), "s", "t") == cut


def test_the_text_of_a_stream_cut_is_accepted_too_without_its_future_segments() -> None:
    text = StreamCut("s", "t", {0: 10, SEGMENT_OF_EPOCH_1: OFFSET_FUTURE}).to_text()
    assert from_text(text, "s", "t") == {0: 10}


@pytest.mark.parametrize(
    ("offset", "complaint"),
    [
        ([], "is not a JSON object"),
        ({"cut": {"0": 1}, "v": 0}, "version 0"),
        ({"cut": {"0": 1}, "scope": "x"}, "belongs to stream x/t"),
        ({"cut": {"0": 1}, "stream": "x"}, "belongs to stream s/x"),
        ({}, "has no 'positions'"),
        ({"cut": {}}, "has no 'positions'"),
        ({"cut": {"a": 1}}, "segment id 'a'"),
        ({"cut": {"-1": 1}}, "segment id '-1'"),
        ({"cut": {"0": -1}}, "-1 for segment 0"),
        ({"cut": {"0": True}}, "True for segment 0"),
        ({"cut": {"0": "5"}}, "'5' for segment 0"),
    ],
)
def test_anything_else_is_refused(offset: object, complaint: str) -> None:
    with pytest.raises(InvalidArgumentError, match=complaint):
        from_offset(offset, "s", "t")


def test_text_that_is_not_json_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="give 'earliest', 'latest' or the JSON text"):
        from_text("yesterday", "s", "t")


def test_a_stream_cut_of_another_stream_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="belongs to stream s/u"):
        from_text(StreamCut("s", "u", {0: 1}).to_text(), "s", "t")


SEVERAL = QueryPosition(
    {"s/t": {2: 5, 0: 3}, "s/a": {0: 9}}, since={"s/a": {0: 7}}, until={"s/t": {0: 8}}, lost_byte_count=4
)


def test_an_offset_of_several_streams_has_one_text_and_says_where_new_ones_begin() -> None:
    text = (
        '{"lostBytes":4,"streams":{"s/a":{"positions":{"0":9},"since":{"0":7}},'
        '"s/t":{"positions":{"0":3,"2":5},"until":{"0":8}}},"v":2}'
    )
    offset = SEVERAL.to_offset(None)
    assert json.dumps(offset, separators=(",", ":")) == text
    assert QueryPosition.of(json.loads(text), None) == SEVERAL
    assert QueryPosition.of(QueryPosition({}).to_offset(None), None) == QueryPosition({})
    assert cuts_from_text(text, ["s/a", "s/t", "s/z"]) == {"s/a": {0: 9}, "s/t": {0: 3, 2: 5}}


def test_an_offset_of_one_stream_keeps_its_form_and_a_query_of_several_continues_there() -> None:
    place = QueryPosition({"s/t": {0: 3}})
    assert list(place.to_offset("s/t").items()) == list(to_offset("s", "t", {0: 3}).items())
    old = {"v": 1, "scope": "s", "stream": "t", "cut": {"0": 3}}
    assert QueryPosition.of(old, "s/t") == QueryPosition.of(old, None) == place
    bounded = QueryPosition({"s/t": {0: 3}}, since={"s/t": {0: 1}}, until={"s/t": {0: 8}}, lost_byte_count=2)
    assert QueryPosition.of(bounded.to_offset("s/t"), "s/t") == bounded
    assert StreamCut.from_text(json.dumps(bounded.to_offset("s/t"))) == StreamCut("s", "t", {0: 3})
    assert cuts_from_text(StreamCut("s", "t", {0: 3}).to_text(), ["s/t", "s/a"]) == {"s/t": {0: 3}}


@pytest.mark.parametrize(
    ("offset", "only", "complaint"),
    [
        (SEVERAL.to_offset(None), "s/t", "belongs to a query of the streams s/a, s/t"),
        (QueryPosition({}).to_offset(None), "s/t", "of a pattern"),
        ({"positions": {"0": 3}}, None, "does not name its stream"),
        ({"streams": {}, "v": 1}, None, "version 1"),
        ({"streams": [], "v": 2}, None, "no object for each"),
        ({"streams": {"s/t": {}}, "v": 2}, None, "'positions'"),
        ({"streams": {"s/t": {"positions": {"0": 1}, "since": {}}}, "v": 2}, None, "'positions'"),
    ],
)
def test_other_offsets_of_several_streams_are_refused(
    offset: dict[str, object], only: str | None, complaint: str
) -> None:
    with pytest.raises(InvalidArgumentError, match=complaint):
        QueryPosition.of(offset, only)


def test_a_cut_of_a_stream_that_is_not_read_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="for s/t, which the query does not read"):
        cuts_from_text(StreamCut("s", "t", {0: 3}).to_text(), ["s/a"])
