"""Event framing: what is framed comes back, whatever the cut; what is no event is reported with its place."""

from __future__ import annotations

import re
import struct
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.model.errors import CorruptionError
from penstock.model.events import (
    EventAssembler,
    event_starts,
    frame_event,
    frame_events,
    framed_length,
    framed_length_at,
    offsets_of,
    split_events,
)

payloads = st.lists(st.binary(max_size=40), max_size=30)


def test_frame_is_type_length_payload() -> None:
    # wire-protocol 9.1, vector 9: "hello" as it lies in a segment.
    assert frame_event(b"hello") == bytes.fromhex("000000000000000568656c6c6f")
    assert frame_events([b"hello", b""]) == bytes.fromhex("000000000000000568656c6c6f0000000000000000")
    assert frame_events([]) == b""


def test_long_payload_has_a_full_header() -> None:
    assert frame_event(b"x" * 70_000)[:8] == struct.pack(">ii", 0, 70_000)


@given(payloads)
def test_framed_events_come_back(events: list[bytes]) -> None:
    data = frame_events(events)
    assert split_events(data) == (events, len(data))
    assert split_events(memoryview(data)) == (events, len(data))
    assert framed_length(events) == len(data)
    starts, end = event_starts(data)
    assert [*starts, end] == offsets_of(events, 0)


@given(payloads, st.integers(0, 2000))
def test_cut_event_is_left_for_later(events: list[bytes], cut: int) -> None:
    data = frame_events(events)
    cut = min(cut, len(data))
    found, used = split_events(data[:cut])
    assert found == events[: len(found)]
    assert frame_events(found) == data[:used]
    assert used <= cut
    if len(found) < len(events):
        assert used + 8 + len(events[len(found)]) > cut


@pytest.mark.parametrize(
    ("code", "length", "message"),
    [(7, 3, "type code is 7"), (-1, 0, "type code is -1"), (0, -1, "length is -1"), (0, -(2**31), "length is -2147")],
)
def test_bad_header_is_reported_with_its_place(code: int, length: int, message: str) -> None:
    data = frame_event(b"good") + struct.pack(">ii", code, length) + b"xxx"
    for parse, expected in ((split_events, [b"good"]), (event_starts, [0])):
        # The events before the header are delivered; the call that starts at the header raises.
        assert parse(data, source="s/t/0.#epoch.0", base_offset=1000) == (expected, 12)
        with pytest.raises(CorruptionError, match=message) as caught:
            parse(data[12:], source="s/t/0.#epoch.0", base_offset=1012)
        assert caught.value.offset == 1012
        assert caught.value.path == "s/t/0.#epoch.0"
    with pytest.raises(CorruptionError, match=message):
        framed_length_at(data, 12)


def test_length_is_known_once_the_header_is_whole() -> None:
    data = frame_event(b"hello")
    assert framed_length_at(data[:7]) is None
    assert framed_length_at(data[:8]) == 13


@given(payloads, st.lists(st.integers(1, 50), min_size=1, max_size=20), st.integers(0, 10**12))
def test_assembler_gives_the_same_events_for_any_cut(events: list[bytes], cuts: list[int], offset: int) -> None:
    data = frame_events(events)
    assembler = EventAssembler("s", offset)
    found: list[bytes] = []
    at = turn = 0
    while at < len(data):
        step = cuts[turn % len(cuts)]
        turn += 1
        assembler.feed(data[at : at + step])
        at += step
        taken, start = assembler.take()
        if taken:
            assert start == offset + framed_length(found)
        found += taken
        assert assembler.offset == offset + framed_length(found)
        assert assembler.end_offset == offset + min(at, len(data))
    assert found == events
    assert assembler.pending_bytes == 0


def test_assembler_does_not_touch_a_large_event_until_it_is_whole() -> None:
    # A 1 MB event in 1 kB blocks: the blocks are joined once, at the end.
    data = frame_event(bytes(1_000_000))
    assembler = EventAssembler("s", 0)
    for at in range(0, len(data), 1000):
        assert assembler.take() == ([], 0)
        assembler.feed(data[at : at + 1000])
    assert assembler.take() == ([bytes(1_000_000)], 0)
    assert assembler.offset == len(data)


def test_assembler_reports_a_bad_header_at_its_offset() -> None:
    assembler = EventAssembler("s", 500)
    assembler.feed(frame_event(b"x") + b"\0\0\0\1")
    assert assembler.take() == ([b"x"], 500)
    assembler.feed(b"\0\0\0\1")
    for _ in range(3):
        with pytest.raises(CorruptionError) as caught:
            assembler.take()
        assert caught.value.offset == assembler.offset == 509


@given(st.lists(st.binary(max_size=30), max_size=40), st.lists(st.integers(1, 200), max_size=20))
def test_an_assembler_returns_every_event_before_a_damaged_header_for_any_blocks(
    events: list[bytes], sizes: list[int]
) -> None:
    data = frame_events(events) + b"\xff" * 20 + frame_events([b"after"])
    assembler = EventAssembler("s", 70)
    found, at = [], 0
    for size in [*sizes, len(data)]:
        assembler.feed(data[at : at + size])
        at += size
        if not assembler.missing_bytes and assembler.offset == 70 + framed_length(events):
            break  # The damaged header is next.
        found += assembler.take()[0]
    with pytest.raises(CorruptionError) as caught:
        assembler.take()
    assert found == events
    assert caught.value.offset == assembler.offset == 70 + framed_length(events)
    with pytest.raises(CorruptionError):
        assembler.check()


@given(st.integers(0, 300), st.integers(0, 60), st.binary(max_size=30), st.data())
def test_events_of_one_length_are_split_like_any_others(
    length: int, count: int, rest: bytes, data: st.DataObject
) -> None:
    """Also when one of very many has another length, or is none, and when something follows that is shorter."""
    events = [bytes([index % 256]) * length for index in range(16 + count * 100)]
    framed = bytearray(frame_events(events) + frame_events([b"short"]) + rest)
    if data.draw(st.booleans()):
        at = data.draw(st.integers(0, len(events) - 1)) * (length + 8) + data.draw(st.integers(0, 7))
        framed[at] ^= data.draw(st.sampled_from([1, 2, 128]))
    try:
        starts, used = event_starts(bytes(framed), source="s", base_offset=7)
    except CorruptionError as error:
        with pytest.raises(CorruptionError, match=re.escape(str(error))):
            split_events(bytes(framed), source="s", base_offset=7)
        return
    expected = [bytes(framed[start + 8 : end]) for start, end in pairwise([*starts, used])]
    assert split_events(bytes(framed), source="s", base_offset=7) == (expected, used)
