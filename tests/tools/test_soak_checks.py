"""The checks of the soak run: each accepts what is allowed, and names what is not."""

from __future__ import annotations

import random

import pytest

from penstock_tools.soak.checks import GroupOnce, KeyOrder, KeyRanges, Register, SharedCounter, TransactionsWhole
from penstock_tools.soak.events import (
    ABORT,
    COMMIT,
    DamagedEventError,
    InTransaction,
    Numbered,
    in_transaction,
    numbered,
    padding_length,
    parse_in_transaction,
    parse_numbered,
)


def test_events_of_every_size_are_parsed_as_they_were_written() -> None:
    for length in {padding_length(random.Random(seed)) for seed in range(200)} | {0}:
        assert parse_numbered(numbered(Numbered("w0.0-3", 17), length)) == Numbered("w0.0-3", 17)
        event = InTransaction("t1.4", COMMIT, 2, 5)
        assert parse_in_transaction(in_transaction(event, length)) == event


@pytest.mark.parametrize("at", [-1, 20, 60])
def test_a_changed_byte_is_damage(at: int) -> None:
    data = bytearray(numbered(Numbered("w0.0-3", 17), 100))
    data[at] ^= 1
    with pytest.raises(DamagedEventError):
        parse_numbered(bytes(data))


@pytest.mark.parametrize("end", [0, 1, 10, -1])
def test_a_part_of_an_event_is_damage(end: int) -> None:
    with pytest.raises(DamagedEventError):
        parse_numbered(numbered(Numbered("w0.0-3", 17), 100)[:end])


def test_one_reader_sees_each_number_once_in_order() -> None:
    order = KeyOrder()
    assert [text for number in range(3) for text in order.see(Numbered("a", number))] == []
    assert list(order.see(Numbered("a", 2))) == ["event 2 of key a was read again; the next one is 3"]
    assert list(order.see(Numbered("a", 5))) == ["events 3 to 4 of key a are missing before 5"]
    assert list(order.missing({"a": 6})) == []
    assert list(order.missing({"a": 7, "b": 1})) == [
        "7 events of key a were acknowledged, and 6 were read",
        "1 events of key b were acknowledged, and 0 were read",
    ]


def test_a_group_may_repeat_what_a_dead_reader_had() -> None:
    group = GroupOnce()
    assert [text for number in range(10) for text in group.see("r1", Numbered("a", number))] == []
    group.died("r1")
    assert [text for number in range(4, 12) for text in group.see("r2", Numbered("a", number))] == []
    assert (group.count, group.repeated_count) == (12, 6)


def test_a_group_may_not_repeat_what_a_living_reader_had() -> None:
    group = GroupOnce()
    assert [text for number in range(10) for text in group.see("r1", Numbered("a", number))] == []
    (found,) = group.see("r2", Numbered("a", 9))
    assert "reader r2 got event 9 of key a again; reader r1, which did not die" in found


def test_a_group_may_not_go_back_beyond_the_events_of_a_dead_reader() -> None:
    group = GroupOnce()
    for number in range(5):
        assert list(group.see("r1", Numbered("a", number))) == []
    for number in range(5, 10):
        assert list(group.see("r2", Numbered("a", number))) == []
    group.died("r2")
    (found,) = group.see("r3", Numbered("a", 4))
    assert "reader r1, which did not die" in found


def test_events_repeated_once_may_not_be_repeated_again() -> None:
    group = GroupOnce()
    for number in range(10):
        assert list(group.see("r1", Numbered("a", number))) == []
    group.died("r1")
    for number in range(5, 10):
        assert list(group.see("r2", Numbered("a", number))) == []
    (found,) = group.see("r3", Numbered("a", 7))
    assert "reader r2, which did not die" in found


def test_a_group_misses_nothing_also_after_a_death() -> None:
    group = GroupOnce()
    for number in range(10):
        assert list(group.see("r1", Numbered("a", number))) == []
    group.died("r1")
    assert list(group.see("r2", Numbered("a", 5))) == []
    (found,) = group.see("r2", Numbered("a", 7))
    assert "the group missed events 6 to 6 of key a" in found
    assert list(group.missing({"a": 9})) == ["9 events of key a were acknowledged, and the group has read 8"]


def test_a_committed_transaction_is_whole() -> None:
    whole = TransactionsWhole()
    whole.begin("t1", COMMIT, 2)
    assert list(whole.see(InTransaction("t1", COMMIT, 0, 2))) == []
    assert list(whole.end("t1", is_committed=True)) == []
    assert list(whole.missing()) == ["transaction t1 is committed, and 1 of 2 events were read"]
    assert list(whole.see(InTransaction("t1", COMMIT, 0, 2))) == ["event 0 of transaction t1 was read twice"]
    assert list(whole.see(InTransaction("t1", COMMIT, 1, 2))) == []
    assert (whole.incomplete_count, list(whole.missing())) == (0, [])
    assert list(whole.see(InTransaction("t1", COMMIT, 1, 2))) == [
        "event 1 of transaction t1 was read again after all of its events"
    ]


def test_nothing_of_an_aborted_transaction_is_read() -> None:
    whole = TransactionsWhole()
    for label in ("t1", "t2"):
        whole.begin(label, COMMIT, 1)
    assert list(whole.end("t1", is_committed=False)) == []
    assert list(whole.see(InTransaction("t1", COMMIT, 0, 1))) == ["transaction t1 is aborted, and its event 0 was read"]
    assert list(whole.see(InTransaction("t2", COMMIT, 0, 1))) == []
    assert list(whole.end("t2", is_committed=False)) == ["transaction t2 is aborted, and 1 of its events were read"]
    assert list(whole.see(InTransaction("t3", ABORT, 0, 1))) == [
        "an event of transaction t3 was read, which was never committed"
    ]


def test_a_transaction_without_an_outcome_is_named() -> None:
    whole = TransactionsWhole()
    whole.begin("t1", COMMIT, 1)
    assert list(whole.missing()) == ["the outcome of transaction t1 is not known"]


def test_aborted_transactions_are_forgotten_after_many() -> None:
    whole = TransactionsWhole()
    for number in range(TransactionsWhole.ABORTED_KEPT_MAX + 10):
        whole.begin(f"t{number}", ABORT, 1)
        assert list(whole.end(f"t{number}", is_committed=False)) == []
    assert len(whole._open) == TransactionsWhole.ABORTED_KEPT_MAX


def test_a_register_has_its_last_value_or_one_of_unknown_outcome() -> None:
    register = Register("k")
    assert list(register.see(None)) == []
    register.changed("1")
    register.unknown("2")
    assert [text for value in ("1", "2") for text in register.see(value)] == []
    register.changed("3")
    (found,) = register.see("2")
    assert found == "key k has the value 2; possible are ['3']"


def test_a_lost_or_doubled_increment_is_found() -> None:
    counter = SharedCounter("c")
    for value in (1, 2):
        counter.begin()
        assert list(counter.changed(value)) == []
    assert list(counter.see(1, counter.least)) == ["key c is 1; 2 increments were acknowledged, 2 requested"]
    assert list(counter.see(3, counter.least)) == ["key c is 3; 2 increments were acknowledged, 2 requested"]
    counter.begin()
    assert [text for value in (2, 3) for text in counter.see(value, counter.least)] == []
    assert list(counter.changed(2)) == ["two increments of key c returned 2"]
    counter.begin()
    counter.refused()
    assert list(counter.see(4, 3)) == ["key c is 4; 3 increments were acknowledged, 3 requested"]


def test_batches_follow_each_other() -> None:
    ranges = KeyRanges()
    assert list(ranges.see("0", "a", 5, 9, 5)) == []
    assert list(ranges.see("1", "a", 10, 12, 3)) == []
    assert list(ranges.see("2", "a", 13, 15, 2)) == ["batch 2: 2 events of key a in 13 to 15"]
    assert list(ranges.see("3", "a", 15, 16, 2)) == ["batch 3: key a begins at 15; the batches before end before 16"]
    assert list(ranges.see("4", "a", 18, 18, 1)) == ["batch 4: key a begins at 18; the batches before end before 17"]
