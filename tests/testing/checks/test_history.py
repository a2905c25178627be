"""The checkers accept a good history and name what is wrong with each kind of bad one.

Histories are written as steps of a few words; time is the number of records so far.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from penstock.model.errors import InvalidArgumentError
from penstock.model.segments import VERSION_ABSENT, VERSION_ANY
from penstock_simulation.checks.history import (
    AbortTransaction,
    AppendBytes,
    CommitTransaction,
    EpochStarted,
    EventSeen,
    FullRead,
    GetKey,
    GetLength,
    History,
    Invocation,
    KeyValue,
    OffsetSeen,
    PutKey,
    ReadRange,
    RemoveKey,
    WriteEvent,
    check_events,
    check_history,
    check_monotonic,
    check_reads,
    check_table,
    check_transactions,
    check_up_to_date,
)


def new_history() -> History:
    history = History(lambda: float(len(history.records)))
    return history


def write(history: History, event: str, *, key: str = "k", by: str = "w", txn: str | None = None) -> Invocation:
    return history.invoke(by, WriteEvent("s", key, event.encode(), txn))


def written(history: History, *events: str, key: str = "k", by: str = "w", txn: str | None = None) -> None:
    for event in events:
        history.ok(write(history, event, key=key, by=by, txn=txn))


def read(history: History, name: str, *events: str) -> None:
    """A full read that meets events, given as ``event`` or ``event@segment`` or ``event/key``."""
    pass_ = history.invoke("r", FullRead("s", name))
    see(history, name, *events)
    history.ok(pass_)


def see(history: History, name: str, *events: str) -> None:
    for at, text in enumerate(events):
        event, _, segment = text.partition("@")
        event, _, key = event.partition("/")
        history.see("r", EventSeen("s", name, segment or "s/0", at * 10, event.encode(), key or "k"))


def committed(history: History, txn: str) -> None:
    history.ok(history.invoke("t", CommitTransaction("s", txn)))


# Events.


def test_good_history_of_events() -> None:
    """Two writers, a split, a lost reply that was applied and one that was not, a failure, two readers."""
    history = new_history()
    written(history, "a1", "a2", by="a")
    written(history, "x1", key="x", by="b")
    history.unknown(write(history, "a3", by="a"), "lost")
    history.unknown(write(history, "a4", by="a"), "lost")
    history.fail(write(history, "a5", by="a"), "refused")
    written(history, "a6", by="a")
    write(history, "a7", by="a")
    read(history, "one", "a1", "x1/x", "a2@s/1", "a3@s/1", "a6@s/1")
    read(history, "two", "x1/x", "a1", "a2@s/1", "a3@s/1", "a6@s/1", "a7@s/1")
    assert check_history(history) == []


def bad(rule: str) -> Callable[[Callable[[History], None]], Callable[[History], None]]:
    """Name the words that the violation must have."""

    def mark(build: Callable[[History], None]) -> Callable[[History], None]:
        BAD_EVENTS.append((build.__name__, rule, build))
        return build

    return mark


BAD_EVENTS: list[tuple[str, str, Callable[[History], None]]] = []


@bad("acknowledged event is missing")
def lost_event(history: History) -> None:
    written(history, "1", "2", "3")
    read(history, "r", "1", "3")


@bad("acknowledged event is missing")
def lost_tail(history: History) -> None:
    written(history, "1", "2")
    read(history, "r", "1")


@bad("no writer wrote it")
def invented_event(history: History) -> None:
    written(history, "1")
    read(history, "r", "1", "2")


@bad("its write had failed")
def failed_event_is_read(history: History) -> None:
    history.fail(write(history, "1"), "sealed")
    read(history, "r", "1")


@bad("its key is 'z'")
def event_with_another_key(history: History) -> None:
    written(history, "1")
    read(history, "r", "1/z")


@bad("read twice, first at s/0:0")
def duplicate(history: History) -> None:
    written(history, "1", "2")
    read(history, "r", "1", "2", "1@s/1")


@bad("read twice")
def unknown_write_read_twice(history: History) -> None:
    history.unknown(write(history, "1"), "lost")
    read(history, "r", "1", "1")


@bad("out of its writer's order")
def order_of_one_writer(history: History) -> None:
    first, second = write(history, "1"), write(history, "2")
    history.ok(first)
    history.ok(second)
    read(history, "r", "2", "1")


@bad("out of its writer's order")
def order_across_segments(history: History) -> None:
    written(history, "1", "2", "3")
    read(history, "r", "1@s/0", "3@s/1", "2@s/2")


@bad("was acknowledged before it was called")
def order_of_two_writers(history: History) -> None:
    written(history, "1", by="a")
    written(history, "2", by="b")
    read(history, "r", "2", "1")


@bad("pass one had read it")
def event_that_was_read_is_gone(history: History) -> None:
    history.unknown(write(history, "1"), "lost")
    read(history, "one", "1")
    read(history, "two")


@bad("read twice")
def duplicate_in_an_unfinished_pass(history: History) -> None:
    written(history, "1")
    history.invoke("r", FullRead("s", "r"))
    see(history, "r", "1", "1")


@pytest.mark.parametrize(("name", "rule", "build"), BAD_EVENTS, ids=[entry[0] for entry in BAD_EVENTS])
def test_bad_history_of_events_is_named(name: str, rule: str, build: Callable[[History], None]) -> None:
    history = new_history()
    build(history)
    violations = check_events(history)
    assert len(violations) >= 1
    assert rule in violations[0]


def test_concurrent_writes_of_two_writers_may_be_read_either_way() -> None:
    for order in (("1", "2"), ("2", "1")):
        history = new_history()
        first, second = write(history, "1", by="a"), write(history, "2", by="b")
        history.ok(second)
        history.ok(first)
        read(history, "r", *order)
        assert check_events(history) == []


def test_events_written_during_a_full_read_may_be_missing_and_unfinished_reads_may_end_anywhere() -> None:
    history = new_history()
    written(history, "1")
    pass_ = history.invoke("r", FullRead("s", "r"))
    written(history, "2")
    see(history, "r", "1")
    history.ok(pass_)
    history.fail(history.invoke("r", FullRead("s", "broken")), "crashed")
    see(history, "loose")
    assert check_events(history) == []


def test_truncated_stream_may_miss_its_oldest_events_only() -> None:
    history = new_history()
    written(history, "1", "2", "3")
    read(history, "one", "1", "2", "3")
    read(history, "two", "3")
    assert check_events(history, truncated_streams=["s"]) == []
    assert len(check_events(history)) == 4
    read(history, "three", "1", "3")
    assert "is missing" in check_events(history, truncated_streams=["s"])[0]


def test_event_written_twice_cannot_be_checked() -> None:
    history = new_history()
    written(history, "1", "1")
    with pytest.raises(ValueError, match="written twice"):
        check_events(history)


# Transactions.


def test_good_history_of_transactions() -> None:
    """Committed, aborted, left open, and one whose commit was never answered, seen or not."""
    for unknown_seen in ([], ["u1", "u2"]):
        history = new_history()
        written(history, "a1", "a2", txn="a")
        written(history, "b1", txn="b")
        written(history, "u1", "u2", txn="u")
        written(history, "o1", txn="o")
        committed(history, "a")
        history.ok(history.invoke("t", AbortTransaction("s", "b")))
        history.unknown(history.invoke("t", CommitTransaction("s", "u")), "lost")
        read(history, "r", "a1", "a2", *unknown_seen)
        assert check_history(history) == []


def torn_transaction(history: History) -> None:
    written(history, "1", "2", txn="t")
    committed(history, "t")
    read(history, "r", "1")


def torn_unknown_transaction(history: History) -> None:
    written(history, "1", "2", txn="t")
    history.unknown(history.invoke("t", CommitTransaction("s", "t")), "lost")
    read(history, "r", "2")


def lost_transaction(history: History) -> None:
    written(history, "1", txn="t")
    committed(history, "t")
    read(history, "r")


def aborted_transaction_is_read(history: History) -> None:
    written(history, "1", txn="t")
    history.ok(history.invoke("t", AbortTransaction("s", "t")))
    read(history, "r", "1")


def open_transaction_is_read(history: History) -> None:
    written(history, "1", txn="t")
    see(history, "tail", "1")


def commit_order(history: History) -> None:
    written(history, "1", txn="t")
    written(history, "2", txn="u")
    committed(history, "u")
    committed(history, "t")
    read(history, "r", "1", "2")


def order_elsewhere(history: History) -> None:
    """Neither commit was acknowledged before the other one was called; but two segments disagree about their order."""
    for txn in "tu":
        written(history, f"{txn}1", txn=txn, key=f"{txn}-k")
        written(history, f"{txn}2", txn=txn, key=f"{txn}-l")
    both = [history.invoke("t", CommitTransaction("s", txn)) for txn in "tu"]
    for commit in both:
        history.ok(commit)
    pass_ = history.invoke("r", FullRead("s", "r"))
    for segment, offset, event, key in (
        ("s/0", 0, "t1", "t-k"), ("s/0", 10, "u1", "u-k"), ("s/1", 10, "t2", "t-l"), ("s/1", 0, "u2", "u-l"),
    ):  # fmt: skip
        history.see("r", EventSeen("s", "r", segment, offset, event.encode(), key))
    history.ok(pass_)


def order_in_a_circle(history: History) -> None:
    """No two of three transactions meet in more than one segment, and still there is no one order."""
    for event in ("ta", "tc", "ub", "ua", "vc", "vb"):
        written(history, event, txn=event[0], key=event)
    commits = [history.invoke("t", CommitTransaction("s", txn)) for txn in "tuv"]
    for commit in commits:
        history.ok(commit)
    pass_ = history.invoke("r", FullRead("s", "r"))
    # t before u in a, u before v in b, v before t in c.
    for at, event in enumerate(("ta", "ua", "ub", "vb", "vc", "tc")):
        history.see("r", EventSeen("s", "r", f"s/{event[1]}", at, event.encode(), event))
    history.ok(pass_)


def one_amid_another(history: History) -> None:
    written(history, "1", "2", txn="t")
    written(history, "3", txn="u", key="l")
    both = [history.invoke("t", CommitTransaction("s", txn)) for txn in "tu"]
    for commit in both:
        history.ok(commit)
    read(history, "r", "1", "3/l", "2")


def order_within(history: History) -> None:
    written(history, "1", "2", txn="t")
    committed(history, "t")
    read(history, "r", "2", "1")


@pytest.mark.parametrize(
    ("build", "rule"),
    [
        (torn_transaction, "read in part"),
        (torn_unknown_transaction, "read in part"),
        (lost_transaction, "none of it was read"),
        (aborted_transaction_is_read, "was never committed"),
        (open_transaction_is_read, "was never committed"),
        (commit_order, "was read before u"),
        (order_within, "out of order within a transaction"),
        (order_elsewhere, "not in one order"),
        (order_in_a_circle, "not in one order"),
        (one_amid_another, "not in one order"),
    ],
)
def test_bad_history_of_transactions_is_named(build: Callable[[History], None], rule: str) -> None:
    history = new_history()
    build(history)
    violations = check_transactions(history)
    assert len(violations) == 1
    assert rule in violations[0]


def test_duplicate_event_of_a_transaction_is_named() -> None:
    history = new_history()
    written(history, "1", txn="t")
    committed(history, "t")
    read(history, "r", "1", "1")
    assert "read twice" in check_history(history)[0]


def test_repeated_commit_counts_by_its_best_answer() -> None:
    history = new_history()
    written(history, "1", txn="t")
    history.unknown(history.invoke("t", CommitTransaction("s", "t")), "lost")
    committed(history, "t")
    history.fail(history.invoke("t", CommitTransaction("s", "t")), "no such transaction")
    read(history, "r", "1")
    assert check_transactions(history) == []


# Bytes, offsets, epochs.


def test_reads_that_agree_and_appends_that_are_read() -> None:
    history = new_history()
    history.ok(history.invoke("w", AppendBytes("s/0", b"abc" * 3000)), 0)
    history.ok(history.invoke("r", ReadRange("s/0", 1)), b"bcabc")
    history.ok(history.invoke("q", ReadRange("s/0", 4090)), (b"abc" * 3000)[4090:4110])
    history.ok(history.invoke("q", ReadRange("s/1", 1)), b"other")
    history.unknown(history.invoke("q", ReadRange("s/0", 0)), "lost")
    assert check_reads(history) == []


@pytest.mark.parametrize(("offset", "data", "where"), [(0, b"xb", 0), (4094, b"abZ", 4096), (4000, b"Z", 4000)])
def test_readers_that_disagree_are_named(offset: int, data: bytes, where: int) -> None:
    history = new_history()
    history.ok(history.invoke("r", ReadRange("s/0", 0)), (b"ab" * 3000))
    history.ok(history.invoke("q", ReadRange("s/0", offset)), data)
    (violation,) = check_reads(history)
    assert f"byte {where} is" in violation
    assert "client q" in violation


def test_acknowledged_append_that_reads_differently_is_named() -> None:
    history = new_history()
    history.ok(history.invoke("r", ReadRange("s/0", 2)), b"zz")
    history.ok(history.invoke("w", AppendBytes("s/0", b"abc")), 2)
    assert "byte 2" in check_reads(history)[0]


def test_lengths_and_reads_include_acknowledged_appends() -> None:
    """A read may miss what is acknowledged during the call, and what was not acknowledged; nothing else."""
    history = new_history()
    history.ok(history.invoke("w", AppendBytes("s/0", b"abc")), 0)
    asked, waiting = history.invoke("r", GetLength("s/0")), history.invoke("q", ReadRange("s/0", 3))
    history.ok(history.invoke("w", AppendBytes("s/0", b"de")), 3)
    history.ok(asked, 3)
    history.ok(waiting, b"")
    history.unknown(history.invoke("w", AppendBytes("s/0", b"lost")), "lost")
    history.ok(history.invoke("r", GetLength("s/0")), 5)
    history.ok(history.invoke("q", ReadRange("s/0", 5)), b"")
    history.ok(history.invoke("q", ReadRange("s/1", 0)), b"")
    history.fail(history.invoke("q", GetLength("s/0")), "refused")
    assert check_up_to_date(history) == []


@pytest.mark.parametrize(("call", "answer"), [(GetLength("s/0"), 3), (ReadRange("s/0", 4), b"")])
def test_an_answer_that_is_out_of_date_is_named(call: GetLength | ReadRange, answer: int | bytes) -> None:
    """As of an owner that was shut out before the append: another one has acknowledged it."""
    history = new_history()
    history.ok(history.invoke("w", AppendBytes("s/0", b"abc")), 0)
    history.ok(history.invoke("w", AppendBytes("s/0", b"de")), 3)
    history.ok(history.invoke("r", call), answer)
    (violation,) = check_up_to_date(history)
    assert "bytes up to 5 were acknowledged before it asked (record 3)" in violation
    assert "client r" in violation


def test_offsets_and_epochs_that_grow() -> None:
    """Offsets of different clients and things are not compared; equal offsets are fine."""
    history = new_history()
    for client, what, offset in [("a", "x", 5), ("b", "x", 3), ("a", "y", 0), ("a", "x", 5), ("b", "x", 9)]:
        history.see(client, OffsetSeen(what, offset))
    for container, epoch in [(0, 1), (1, 1), (0, 2), (0, 7)]:
        history.see("store", EpochStarted(container, epoch))
    assert check_monotonic(history) == []


def test_an_offset_that_moves_back_is_reported() -> None:
    history = new_history()
    for offset in (5, 8, 7, 8):
        history.see("a", OffsetSeen("length of s/0", offset))
    (violation,) = check_monotonic(history)
    assert "length of s/0 went from 8 (record 1) back to 7" in violation


@pytest.mark.parametrize("epoch", [4, 3])
def test_epoch_that_does_not_grow_is_named(epoch: int) -> None:
    history = new_history()
    history.see("old", EpochStarted(0, 4))
    history.see("new", EpochStarted(0, epoch))
    (violation,) = check_monotonic(history)
    assert f"epoch {epoch} of new" in violation


# Tables.


def put(history: History, value: str, expected: int = VERSION_ANY, by: str = "c") -> Invocation:
    return history.invoke(by, PutKey("t", b"k", value.encode(), expected))


def did_put(history: History, value: str, version: int, expected: int = VERSION_ANY) -> None:
    history.ok(put(history, value, expected), version)


def remove(history: History, expected: int = VERSION_ANY) -> Invocation:
    return history.invoke("c", RemoveKey("t", b"k", expected))


def got(history: History, value: str | None, version: int = 0) -> None:
    history.ok(get(history), None if value is None else KeyValue(value.encode(), version))


def get(history: History) -> Invocation:
    return history.invoke("g", GetKey("t", b"k"))


def test_good_history_of_a_table() -> None:
    """Conditions that hold and that do not, removals, overlapping gets, lost replies that were applied and not."""
    history = new_history()
    got(history, None)
    did_put(history, "a", 0, VERSION_ABSENT)
    history.refuse(put(history, "z", VERSION_ABSENT))
    got(history, "a", 0)
    overlapping = get(history)
    did_put(history, "b", 30, 0)
    history.ok(overlapping, KeyValue(b"a", 0))
    history.refuse(put(history, "y", 0))
    history.ok(remove(history, 30))
    got(history, None)
    history.refuse(remove(history, 30))
    history.unknown(put(history, "c", VERSION_ABSENT), "lost")
    history.unknown(put(history, "d", VERSION_ABSENT), "lost")
    got(history, "c", 90)
    history.unknown(remove(history, 90), "lost")
    got(history, None)
    did_put(history, "e", 200)
    history.ok(remove(history))
    got(history, None)
    history.fail(put(history, "f", VERSION_ABSENT), "offline")
    assert check_history(history) == []


def test_a_put_that_was_given_up_may_be_applied_after_a_later_removal() -> None:
    """Its packets were held by a partition, and arrive when that ends."""
    history = new_history()
    did_put(history, "a", 0, VERSION_ABSENT)
    history.unknown(put(history, "b", VERSION_ABSENT), "lost")
    history.ok(remove(history))
    got(history, "b", 90)
    assert check_history(history) == []


BAD_TABLES: list[tuple[str, str, Callable[[History], None]]] = []


def bad_table(rule: str) -> Callable[[Callable[[History], None]], Callable[[History], None]]:
    def mark(build: Callable[[History], None]) -> Callable[[History], None]:
        BAD_TABLES.append((build.__name__, rule, build))
        return build

    return mark


@bad_table("version 0 was read although a later state")
def stale_get(history: History) -> None:
    did_put(history, "a", 0)
    did_put(history, "b", 30)
    got(history, "a", 0)


@bad_table("version 0 was read although a later state")
def get_goes_back(history: History) -> None:
    did_put(history, "a", 0)
    history.unknown(put(history, "b"), "lost")
    got(history, "b", 30)
    got(history, "a", 0)


@bad_table("it was not there, but version 0 had been reached")
def acknowledged_put_is_gone(history: History) -> None:
    did_put(history, "a", 0)
    got(history, None)


@bad_table("version 0 was read although a later state")
def removed_key_comes_back(history: History) -> None:
    did_put(history, "a", 0)
    history.ok(remove(history, 0))
    got(history, "a", 0)


@bad_table("no client put b'z' as version 5")
def invented_value(history: History) -> None:
    got(history, "z", 5)


@bad_table("no client put b'b' as version 0")
def failed_put_is_read(history: History) -> None:
    history.fail(put(history, "b"), "offline")
    got(history, "b", 0)


@bad_table("was read as b'b' but put as b'a'")
def version_with_another_value(history: History) -> None:
    did_put(history, "a", 0)
    got(history, "b", 0)


@bad_table("an update is lost")
def lost_update(history: History) -> None:
    did_put(history, "a", 0)
    first, second = put(history, "b", 0), put(history, "c", 0)
    history.ok(first, 30)
    history.ok(second, 60)


@bad_table("an update is lost")
def removal_and_put_of_one_version(history: History) -> None:
    did_put(history, "a", 0)
    first, second = remove(history, 0), put(history, "c", 0)
    history.ok(first)
    history.ok(second, 60)


@bad_table("removed twice")
def two_removals_of_one_version(history: History) -> None:
    did_put(history, "a", 0)
    first, second = remove(history, 0), remove(history, 0)
    history.ok(first)
    history.ok(second)


@bad_table("no client made it")
def removal_of_no_version(history: History) -> None:
    history.ok(remove(history, 7))


@bad_table("was put on condition of 0, but 30 came right before")
def condition_skips_a_version(history: History) -> None:
    did_put(history, "a", 0)
    third = put(history, "c", 0)
    history.ok(put(history, "b"), 30)
    history.ok(third, 60)


@bad_table("on condition of absence, but 0 was there")
def created_twice(history: History) -> None:
    first, second = put(history, "a", VERSION_ABSENT), put(history, "b", VERSION_ABSENT)
    history.ok(first, 0)
    history.ok(second, 30)


@bad_table("was made twice")
def version_made_twice(history: History) -> None:
    did_put(history, "a", 5)
    did_put(history, "b", 5)


@bad_table("version 3 is not above what had been reached, 5")
def versions_go_back(history: History) -> None:
    did_put(history, "a", 5)
    did_put(history, "b", 3)


@bad_table("was removed although a later state had been reached, 30")
def removal_of_an_old_version(history: History) -> None:
    did_put(history, "a", 0)
    did_put(history, "b", 30)
    history.ok(remove(history, 0))


@bad_table("refused although version 0 was there all the while")
def refused_for_nothing(history: History) -> None:
    did_put(history, "a", 0)
    history.refuse(put(history, "b", 0))


@bad_table("refused although the key was absent all the while")
def creation_refused_for_nothing(history: History) -> None:
    history.refuse(put(history, "b", VERSION_ABSENT))


@bad_table("read before its put was called")
def read_from_the_future(history: History) -> None:
    got(history, "a", 0)
    did_put(history, "a", 0)


@bad_table("must return its version")
def put_without_version(history: History) -> None:
    history.ok(put(history, "a"), None)


@bad_table("had ended before and is later")
def unanswered_put_before_its_time(history: History) -> None:
    overlapping = get(history)
    did_put(history, "b", 30)
    history.unknown(put(history, "a"), "lost")
    history.ok(overlapping, KeyValue(b"a", 0))


@pytest.mark.parametrize(("name", "rule", "build"), BAD_TABLES, ids=[entry[0] for entry in BAD_TABLES])
def test_bad_history_of_a_table_is_named(name: str, rule: str, build: Callable[[History], None]) -> None:
    history = new_history()
    build(history)
    violations = check_table(history)
    assert any(rule in violation for violation in violations), violations


def test_keys_and_tables_are_judged_apart() -> None:
    history = new_history()
    for table in "tu":
        for key in (b"k", b"l"):
            history.ok(history.invoke("c", PutKey(table, key, b"v", VERSION_ABSENT)), 4)
            history.ok(history.invoke("g", GetKey(table, key)), KeyValue(b"v", 4))
    assert check_table(history) == []


@pytest.mark.parametrize("seed", range(200))
def test_random_overlapping_calls_on_a_right_table_are_accepted(seed: int) -> None:
    """Calls take effect at random moments between invocation and completion; some replies are lost, some effects."""
    rng = random.Random(seed)
    history = new_history()
    stored: tuple[bytes, int] | None = None
    version = 0
    running: list[tuple[Invocation, list[object]]] = []

    def take_effect(invocation: Invocation) -> object:
        nonlocal stored, version
        call = invocation.call
        actual = VERSION_ABSENT if stored is None else stored[1]
        if isinstance(call, GetKey):
            return None if stored is None else KeyValue(*stored)
        assert isinstance(call, (PutKey, RemoveKey))
        if call.expected not in (VERSION_ANY, actual):
            return "refused"
        if isinstance(call, PutKey):
            version += rng.randint(1, 9)
            stored = (call.value, version)
            return version
        stored = None
        return None

    for number in range(60):
        if rng.random() < 0.6 or not running:
            known = VERSION_ABSENT if stored is None else stored[1]
            expected = rng.choice([known, known, max(known - 3, VERSION_ABSENT), VERSION_ABSENT, VERSION_ANY])
            kind = rng.choice("ppprgg")
            if kind == "p":
                invocation = put(history, f"v{number}", expected, by=f"c{number}")
            elif kind == "r" and (expected >= 0 or rng.random() < 0.2):
                invocation = remove(history, expected if expected >= 0 else VERSION_ANY)
            else:
                invocation = get(history)
            running.append((invocation, []))
        elif rng.random() < 0.5:
            waiting = [entry for entry in running if not entry[1]]
            if waiting:
                entry = rng.choice(waiting)
                entry[1].append(take_effect(entry[0]))
        else:
            entry = rng.choice(running)
            if not entry[1] and rng.random() < 0.5:
                entry[1].append(take_effect(entry[0]))
            running.remove(entry)
            if not entry[1] or rng.random() < 0.2:
                history.unknown(entry[0], "lost")
            elif entry[1][0] == "refused":
                history.refuse(entry[0])
            else:
                result = entry[1][0]
                assert result is None or isinstance(result, (int, KeyValue))
                history.ok(entry[0], result)
    assert check_table(history) == []


def test_call_ends_once() -> None:
    history = new_history()
    call = write(history, "1")
    history.ok(call)
    with pytest.raises(InvalidArgumentError):
        history.unknown(call, "again")


def test_checkers_take_linear_time() -> None:
    """Ten times the history makes about ten times the steps, counted as lines run."""
    import sys

    def steps(count: int) -> int:
        history = new_history()
        for number in range(count):
            written(history, f"e{number}", key=f"k{number % 3}")
            history.ok(history.invoke("c", PutKey("t", b"k", b"%d" % number, number - 1)), number)
            history.ok(history.invoke("g", GetKey("t", b"k")), KeyValue(b"%d" % number, number))
            history.ok(history.invoke("r", ReadRange("s/0", number * 4)), b"%4d" % number)
        read(history, "r", *(f"e{number}/k{number % 3}" for number in range(count)))
        lines = 0

        def count_lines(frame: object, event: str, argument: object) -> object:
            nonlocal lines
            lines += event == "line"
            return count_lines

        sys.settrace(count_lines)  # type: ignore[arg-type]
        try:
            assert check_history(history) == []
        finally:
            sys.settrace(None)
        return lines

    assert steps(300) < 12 * steps(30)


# Passes whose readers may die.


def read_by_mortals(history: History, *places: tuple[str, int]) -> None:
    """A full read by readers that may die: each event with its offset."""
    pass_ = history.invoke("r", FullRead("s", "group"))
    for event, offset in places:
        history.see("r", EventSeen("s", "group", "s/0", offset, event.encode(), "k", may_repeat=True))
    history.ok(pass_)


def test_events_of_dead_readers_are_delivered_again() -> None:
    """Also within a transaction: the first time counts."""
    history = new_history()
    written(history, "1", "2")
    written(history, "t1", "t2", txn="t")
    committed(history, "t")
    read_by_mortals(history, ("1", 0), ("2", 10), ("1", 0), ("2", 10), ("t1", 20), ("t2", 30), ("t1", 20), ("t2", 30))
    assert check_history(history) == []


def test_an_event_met_again_elsewhere_is_there_twice() -> None:
    history = new_history()
    written(history, "1")
    read_by_mortals(history, ("1", 0), ("1", 10))
    assert ["read twice" in violation for violation in check_history(history)] == [True]


def test_readers_that_die_lose_nothing() -> None:
    history = new_history()
    written(history, "1", "2", "3")
    read_by_mortals(history, ("1", 0), ("3", 20), ("1", 0))
    assert ["acknowledged event is missing" in violation for violation in check_history(history)] == [True]
