"""Offsets as the checkpoint keeps them: fixed text, and a clear complaint about anything else. Pure, no Spark."""

from __future__ import annotations

import json

import pytest

from penstock.model.errors import InvalidArgumentError
from penstock.model.stream_cuts import OFFSET_FUTURE, StreamCut
from penstock.spark.offsets import from_offset, from_text, lost_bytes, to_offset, to_text

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


def test_what_was_lost_is_counted_beside_the_cut_and_the_offset_stays_one() -> None:
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
        ({"cut": {"0": 1}, "v": 2}, "version 2"),
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
