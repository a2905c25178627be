"""Framing Arrow arrays and unframing buffers give what the plain functions give."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.client.common import arrow as arrow_module
from penstock.client.common.arrow import frame_array, is_arrow, keys_of, payloads_of, starts_of, unframe
from penstock.model.errors import CorruptionError, InvalidArgumentError
from penstock.model.events import event_starts, frame_events

pa = pytest.importorskip("pyarrow")

CASES = {
    "none": [],
    "one": [b"hello"],
    "empty payloads": [b"", b"", b""],
    "equal": [b"abc"] * 100,
    "equal, then shorter": [b"abcdef"] * 10 + [b"", b"x"],
    "equal, then longer": [b"abc"] * 10 + [b"x" * 50],
    "mixed": [b"x" * (index * 7 % 23) for index in range(200)],
}


@pytest.mark.parametrize("events", CASES.values(), ids=CASES.keys())
@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary()])
@pytest.mark.parametrize("bytes_max", [1, 100, 1 << 20])
def test_framing_an_array_equals_framing_a_list(events: list[bytes], kind: object, bytes_max: int) -> None:
    array = pa.array(events, kind)
    blocks = [(bytes(data), count) for data, count in frame_array(array, bytes_max)]
    assert b"".join(data for data, _ in blocks) == frame_events(events)
    assert sum(count for _, count in blocks) == len(events)
    assert all(len(data) <= bytes_max or count == 1 for data, count in blocks)


def test_slices_and_chunks_are_framed_right() -> None:
    array = pa.array(CASES["mixed"])
    assert b"".join(bytes(data) for data, _ in frame_array(array[20:50], 100)) == frame_events(CASES["mixed"][20:50])
    chunked = pa.chunked_array([array[:3], array[3:3], array[3:]])
    assert b"".join(bytes(data) for data, _ in frame_array(chunked, 100)) == frame_events(CASES["mixed"])
    text = pa.array(["ä", "b"], pa.large_string())
    assert [bytes(data) for data, _ in frame_array(text, 100)] == [frame_events(["ä".encode(), b"b"])]
    assert payloads_of(text) == ["ä".encode(), b"b"]


@pytest.mark.parametrize("events", CASES.values(), ids=CASES.keys())
@pytest.mark.parametrize("cut", [0, 1, 8, 9])
def test_unframing_leaves_a_cut_event(events: list[bytes], cut: int) -> None:
    whole = frame_events(events)
    data = whole + frame_events([b"123456789"])[:cut]
    payloads, starts, consumed = unframe(data)
    assert payloads.type == pa.binary()
    assert payloads.to_pylist() == events
    assert [starts.tolist(), consumed] == [event_starts(whole)[0], len(whole)]
    payloads.validate(full=True)


def test_events_of_equal_length_are_split_without_joining_the_head_or_scanning_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(arrow_module, "starts_of", None)
    data = frame_events([b"abcde"] * 10)
    payloads, starts, consumed = unframe(memoryview(data), head=frame_events([b"ABCDE"]))
    assert payloads.to_pylist() == [b"ABCDE", *[b"abcde"] * 10]
    assert (starts.tolist(), consumed) == (list(range(0, 143, 13)), 143)


def test_a_head_may_hold_several_events() -> None:
    payloads, starts, consumed = unframe(frame_events([b"ef"] * 3), head=frame_events([b"ab", b"cd"]))
    assert payloads.to_pylist() == [b"ab", b"cd", b"ef", b"ef", b"ef"]
    assert (starts.tolist(), consumed) == ([0, 10, 20, 30, 40], 50)


@given(
    events=st.one_of(
        st.lists(st.binary(max_size=20), max_size=30),
        st.integers(0, 20).flatmap(lambda size: st.lists(st.binary(min_size=size, max_size=size), max_size=30)),
    ),
    head=st.one_of(st.none(), st.binary(max_size=20)),
    cut=st.binary(max_size=30),
    is_bad=st.booleans(),
)
def test_a_head_with_data_gives_the_same_events_as_their_concatenation(
    events: list[bytes], head: bytes | None, cut: bytes, is_bad: bool
) -> None:
    # Against the chain of lengths, event by event: of one length and not, whole, cut, and not events at all.
    first = b"" if head is None else frame_events([head])
    data = frame_events(events) + (b"\xff" * 8 if is_bad else frame_events([cut])[:-1])
    whole = first + data
    if is_bad and len(whole) == 8:
        with pytest.raises(CorruptionError) as caught:
            unframe(data, head=first, source="s", base_offset=100)
        assert (caught.value.path, caught.value.offset) == ("s", 100)
        return
    expected, end = event_starts(whole, source="s", base_offset=100)
    payloads, starts, consumed = unframe(data, head=first, source="s", base_offset=100)
    payloads.validate(full=True)
    assert (starts.tolist(), consumed) == (expected, end)
    ends = [*expected[1:], end]
    assert payloads.to_pylist() == [whole[at + 8 : to] for at, to in zip(expected, ends, strict=False)]


def test_bad_header_is_reported() -> None:
    data = frame_events([b"abc"] * 5) + b"\0\0\0\1\0\0\0\0"
    # The five events before it are returned; the call that starts there raises.
    starts, end = starts_of(data, source="s", base_offset=100)
    assert (starts.tolist(), end) == ([0, 11, 22, 33, 44], 55)
    with pytest.raises(CorruptionError) as caught:
        starts_of(data[55:], source="s", base_offset=155)
    assert caught.value.offset == 155
    with pytest.raises(CorruptionError):
        starts_of(b"\xff" * 20)


def test_keys_come_back_as_text() -> None:
    keys = pa.chunked_array([["a", "b", "a"], ["c"]])
    assert keys_of(keys) == ["a", "b", "a", "c"]
    assert is_arrow(keys)
    assert not is_arrow(["a"])


def test_other_types_and_nulls_are_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="int64"):
        list(frame_array(pa.array([1]), 100))
    with pytest.raises(InvalidArgumentError, match="1 nulls"):
        list(frame_array(pa.array([b"a", None]), 100))
    with pytest.raises(InvalidArgumentError, match="use string"):
        keys_of(pa.array([b"a"]))
