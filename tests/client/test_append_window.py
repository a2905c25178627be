"""`AppendWindow` alone: batching rules, numbers, and a random history against a model store."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.client.writing.ack import AckState, follow, settle
from penstock.client.writing.append_window import (
    SLOW_ACKNOWLEDGEMENT_S,
    SLOW_BLOCK_BYTES_MIN,
    AppendWindow,
    Block,
    WindowLimits,
)
from penstock.model.errors import ProtocolError
from penstock.model.events import EVENT_LENGTH_MAX, split_events
from penstock.model.segments import NO_VALUE, Buffer

LIMITS = WindowLimits(
    block_bytes_max=100, pipelined_block_bytes_min=50, in_flight_block_count_max=3, in_flight_bytes_max=250
)


def new_window(limits: WindowLimits = LIMITS) -> AppendWindow:
    return AppendWindow(limits, AckState)


def add(window: AppendWindow, size: int, key: str = "k") -> AckState:
    return window.add(b"x" * (size - 8), key, size)


def test_single_event_is_sent_at_once_with_number_one() -> None:
    window = new_window()
    add(window, 20)
    block = window.next_to_send(0.0)
    assert (block.last_number, block.event_count, len(block.framed())) == (1, 1, 20)  # type: ignore[union-attr]
    assert window.next_to_send(0.0) is None
    assert not window.is_empty
    assert window.acknowledge(1, 0.0) == [block]
    assert window.is_empty


def test_small_events_collect_while_a_block_is_in_flight() -> None:
    window = new_window()
    add(window, 20)
    first = window.next_to_send(0.0)
    acks = {id(add(window, 20)) for _ in range(2)}
    assert len(acks) == 1
    assert window.next_to_send(0.0) is None
    add(window, 20)  # 60 bytes: worth a block of their own.
    second = window.next_to_send(0.0)
    assert (second.event_count, second.last_number) == (3, 4)  # type: ignore[union-attr]
    assert window.acknowledge(4, 0.0) == [first, second]


SLOW_LIMITS = WindowLimits(
    block_bytes_max=1 << 20, pipelined_block_bytes_min=128 * 1024, in_flight_block_count_max=4,
    in_flight_bytes_max=4 << 20,
)  # fmt: skip


def test_smaller_blocks_follow_while_acknowledgements_take_long() -> None:
    """The events after the first one then do not wait for its acknowledgement."""
    window = new_window(SLOW_LIMITS)
    add(window, 20)
    assert window.next_to_send(0.0) is not None
    add(window, SLOW_BLOCK_BYTES_MIN)
    assert window.next_to_send(SLOW_ACKNOWLEDGEMENT_S - 0.001) is None
    following = window.next_to_send(SLOW_ACKNOWLEDGEMENT_S)
    assert following is not None
    assert following.size_bytes == SLOW_BLOCK_BYTES_MIN
    # The age of the oldest block counts, not that of the latest.
    add(window, SLOW_BLOCK_BYTES_MIN)
    assert window.next_to_send(SLOW_ACKNOWLEDGEMENT_S) is not None
    add(window, SLOW_BLOCK_BYTES_MIN - 1)
    assert window.next_to_send(1.0) is None


def test_the_more_is_unacknowledged_the_larger_are_the_blocks_that_follow() -> None:
    """The segments of one writer together send few blocks per wait, whatever their number; full ones are not held."""
    unacknowledged_bytes = 64 * 2 * SLOW_BLOCK_BYTES_MIN
    window = AppendWindow(SLOW_LIMITS, AckState, unacknowledged_bytes=lambda: unacknowledged_bytes)
    add(window, 20)
    assert window.next_to_send(0.0) is not None
    add(window, 2 * SLOW_BLOCK_BYTES_MIN - 1)
    assert window.next_to_send(1.0) is None
    add(window, 20)
    assert window.next_to_send(1.0) is not None
    unacknowledged_bytes = 1 << 30
    add(window, SLOW_LIMITS.pipelined_block_bytes_min - 1)
    assert window.next_to_send(1.0) is None
    add(window, 20)
    assert window.next_to_send(1.0) is not None


def test_full_block_is_closed_and_the_limits_of_the_wire_hold() -> None:
    window = new_window()
    for _ in range(5):
        add(window, 90)
    sent = []
    while (block := window.next_to_send(0.0)) is not None:
        sent.append(block.size_bytes)
    assert sent == [90, 90]  # A third would be above 250 bytes in flight.
    window.acknowledge(1, 0.0)
    assert window.next_to_send(0.0) is not None
    assert window.in_flight_bytes == 180


def test_block_larger_than_the_window_is_sent_alone() -> None:
    window = new_window()
    add(window, 1000)
    assert window.next_to_send(0.0).size_bytes == 1000  # type: ignore[union-attr]


def test_large_event_travels_alone() -> None:
    window = new_window()
    add(window, 20)
    window.add(b"x" * (EVENT_LENGTH_MAX + 1), None, EVENT_LENGTH_MAX + 9)
    add(window, 60)
    window.next_to_send(0.0)
    assert window.next_to_send(0.0) is None
    window.acknowledge(1, 0.0)
    large = window.next_to_send(0.0)
    assert large.is_large  # type: ignore[union-attr]
    assert window.next_to_send(0.0) is None
    window.settle_unnumbered(large)  # type: ignore[arg-type]
    assert window.next_to_send(0.0).last_number == 2  # type: ignore[union-attr]


def test_reconnect_sends_the_rest_again_with_the_same_numbers() -> None:
    window = new_window()
    for _ in range(3):
        add(window, 80)
    blocks = [window.next_to_send(0.0) for _ in range(3)]
    assert [block.last_number for block in blocks if block] == [1, 2, 3]
    assert window.reconnect(1) == [blocks[0]]
    assert [window.next_to_send(0.0) for _ in range(2)] == blocks[1:]
    # Lost again before anything was sent: still in order.
    assert window.reconnect(1) == []
    assert window.reconnect(3) == blocks[1:]
    add(window, 20)
    assert window.next_to_send(0.0).last_number == 4  # type: ignore[union-attr]


def test_new_writer_has_no_number_stored() -> None:
    window = new_window()
    assert window.reconnect(NO_VALUE) == []
    add(window, 20)
    block = window.next_to_send(0.0)
    assert window.reconnect(NO_VALUE) == []
    assert window.next_to_send(0.0) is block


@pytest.mark.parametrize("stored", [NO_VALUE, 0, 2, 4])
def test_impossible_stored_numbers_are_refused(stored: int) -> None:
    # Blocks of 1, 2 and 3 events; 1 acknowledged; then only 1, 3 and 6 are possible.
    window = new_window()
    for count in (1, 2, 3):
        window.add_many([b""] * count, [None] * count, 99)
    for _ in range(2):
        window.next_to_send(0.0)
    window.acknowledge(1, 0.0)
    window.next_to_send(0.0)
    with pytest.raises(ProtocolError):
        window.reconnect(stored)


@pytest.mark.parametrize("number", [0, 2, 9])
def test_impossible_acknowledgements_are_refused(number: int) -> None:
    window = new_window()
    add(window, 80)
    window.add_many([b"", b""], [None, None], 90)
    window.next_to_send(0.0)
    window.next_to_send(0.0)
    with pytest.raises(ProtocolError):
        window.acknowledge(number, 0.0)


def test_taking_all_gives_events_and_keys_back_in_order() -> None:
    window = new_window()
    for index in range(6):
        window.add(b"%d" % index, f"k{index}", 40)
    window.add_framed(b"\0\0\0\0\0\0\0\1!", 1, ["last"])
    window.next_to_send(0.0).framed()  # type: ignore[union-attr]
    blocks = window.take_all()
    assert [event for block in blocks for event in block.payloads()] == [b"%d" % i for i in range(6)] + [b"!"]
    assert [key for block in blocks for key in block.keys] == [f"k{i}" for i in range(6)] + ["last"]
    assert window.is_empty


@pytest.mark.parametrize("is_framed", [False, True])
def test_late_hashed_keys_stay_with_their_events(is_framed: bool) -> None:
    """Single events, runs and runs by key in one block, cut into pieces: each event has its own key again."""
    window = new_window(replace(LIMITS, block_bytes_max=10_000))
    written = [(b"%d" % number, f"k{number % 3}") for number in range(40)]
    for start in range(0, 40, 10):
        first, *others = written[start : start + 5]
        window.add(*first, 9)
        window.add_many([event for event, _ in others], [key for _, key in others], 9 * 4)
        run = written[start + 5 : start + 10]
        window.add_keyed([event for event, _ in run], partial(list, [key for _, key in run]), 9 * 5)
    block = window.open
    if is_framed:
        block.framed()  # type: ignore[union-attr]
    found: list[tuple[bytes, str | None]] = []
    while block.event_count:  # type: ignore[union-attr]
        events, keys = block.cut(1000, 7)  # type: ignore[union-attr]
        found += zip(map(bytes, events), keys, strict=True)
    assert found == written


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_every_event_is_stored_once_in_order_under_any_fault(data: st.DataObject) -> None:
    # A model store applies blocks, loses connections with any prefix of the wire applied, and loses acks.
    window = new_window()
    stored: list[bytes] = []
    last_stored = NO_VALUE
    wire = []
    acks = []
    count = 0
    acknowledged = 0

    def apply(block: Block) -> None:
        nonlocal last_stored
        first = block.last_number - block.event_count + 1
        assert first == (1 if last_stored == NO_VALUE else last_stored + 1)
        stored.extend(split_events(block.framed())[0])
        last_stored = block.last_number

    for _ in range(data.draw(st.integers(1, 60))):
        match data.draw(st.sampled_from(["add", "add", "send", "store", "ack", "break"])):
            case "add":
                event = b"%d" % count + b"." * data.draw(st.integers(0, 120))
                acks.append(window.add(event, None, len(event) + 8))
                count += 1
            case "send":
                block = window.next_to_send(0.0)
                if block is not None:
                    wire.append(block)
            case "store" if wire:
                apply(wire.pop(0))
            case "ack" if last_stored != NO_VALUE and last_stored > acknowledged:
                for block in window.acknowledge(last_stored, 0.0):
                    settle(block.ack)
                acknowledged = last_stored
            case "break":
                for _ in range(data.draw(st.integers(0, len(wire)))):
                    apply(wire.pop(0))
                wire.clear()
                for block in window.reconnect(last_stored):
                    settle(block.ack)
                acknowledged = max(last_stored, 0)
    while not window.is_empty:
        while (block := window.next_to_send(0.0)) is not None:
            wire.append(block)
        while wire:
            apply(wire.pop(0))
        for block in window.acknowledge(last_stored, 0.0):
            settle(block.ack)
    assert [int(event.split(b".")[0]) for event in stored] == list(range(count))
    assert all(ack.is_done and ack.error is None for ack in acks)


def test_ack_follows_its_parts() -> None:
    whole, one, two = AckState(), AckState(), AckState()
    follow(whole, [one, two])
    settle(one)
    assert not whole.is_done
    settle(two, ProtocolError("lost"))
    assert str(whole.error) == "lost"
    nothing = AckState()
    follow(nothing, [])
    assert nothing.is_done


@given(
    st.lists(st.binary(max_size=40), min_size=1, max_size=30),
    st.lists(st.tuples(st.integers(1, 120), st.integers(1, 7)), min_size=1),
    st.booleans(),
    st.booleans(),
)
def test_a_split_block_keeps_its_events_and_keys_in_order_within_the_bounds(
    events: list[bytes], bounds: list[tuple[int, int]], is_framed: bool, is_added_to: bool
) -> None:
    """Framed or not, and also when it is added to in between: at least one each time, and nothing twice."""
    window = AppendWindow(replace(LIMITS, block_bytes_max=100_000), AckState)
    for number, event in enumerate(events):
        window.add(event, f"k{number}", len(event) + 8)
    (block,) = window.pending()
    if is_framed:
        window.next_to_send(0.0).framed()  # type: ignore[union-attr]
    cut: list[tuple[Buffer, str | None]] = []
    while block.event_count:
        bytes_max, count_max = bounds[len(cut) % len(bounds)]
        some, keys = block.cut(bytes_max, count_max)
        assert 1 <= len(some) == len(keys) <= count_max
        assert len(some) == 1 or sum(len(event) + 8 for event in some) <= bytes_max
        cut += zip(some, keys, strict=True)
        if is_added_to and not is_framed:
            is_added_to = False
            events = [*events, b"more"]
            window.add(b"more", f"k{len(events) - 1}", 12)
        left = events[len(cut) :]
        assert block.event_count == len(left)
        assert block.size_bytes == sum(len(event) + 8 for event in left)
    assert cut == [(event, f"k{number}") for number, event in enumerate(events)]
