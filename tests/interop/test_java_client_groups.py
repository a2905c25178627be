"""Reader groups of the official Java client 0.13.0, over restarts of a real server.

Their state is a revisioned stream that the client keeps itself; the controller keeps a group's configuration.
"""

from __future__ import annotations

import collections
from collections.abc import Sequence

import pytest

from support import java_calls_groups as calls
from support.java_calls_streams import (
    create_stream,
    delete_scope,
    list_scopes,
    note_times,
    seal_stream,
    truncate_stream,
    write_events,
)
from support.java_calls_tables import create_table
from support.java_client import JavaCallError, JavaProcess, kill_and_restart
from support.standalone_process import StandaloneProcess

pytestmark = [pytest.mark.interop, pytest.mark.e2e]

KEY_COUNT = 2
READERS = ("reader1", "reader2")


def assert_each_key_in_order(read: Sequence[tuple[str, str]], first: int, last: int) -> None:
    """Events are ``key:number``; the numbers of all keys together are those of [first, last), growing in each key."""
    numbers: dict[str, list[int]] = collections.defaultdict(list)
    for _, event in read:
        key, _, number = event.partition(":")
        numbers[key].append(int(number))
    assert all(seen == sorted(seen) for seen in numbers.values())
    assert sorted(number for seen in numbers.values() for number in seen) == list(range(first, last))


def test_two_readers_get_each_event_once_in_key_order(java: JavaProcess, server: StandaloneProcess) -> None:
    """6000 events of two keys in two segments; the server is killed in the writing and again in the reading."""
    count = 6000
    assert java.run(create_stream, "orders", 2)
    assert java.run(calls.create_group, "audit", {"orders": ("", "")})
    writing = java.start(write_events, "orders", 0, count, KEY_COUNT)
    writing.wait_for("begun")
    kill_and_restart(server)
    writing.result()
    reading = java.start(calls.read_events, "audit", READERS, count)
    reading.wait_for("begun")
    kill_and_restart(server)
    read = reading.result()
    assert_each_key_in_order(read, 0, count)
    assert {reader for reader, _ in read} == set(READERS)
    assert java.run(calls.online_readers, "audit") == list(READERS)

    # Closed readers leave where they were, so others continue there.
    java.run(calls.close_readers, "audit", READERS)
    assert java.run(calls.online_readers, "audit") == []
    java.run(write_events, "orders", count, count + 20, KEY_COUNT)
    kill_and_restart(server)
    assert_each_key_in_order(java.run(calls.read_events, "audit", ["reader3"], 20), count, count + 20)


def test_a_group_goes_back_to_a_checkpoint_and_to_a_stream_cut(java: JavaProcess, server: StandaloneProcess) -> None:
    """A checkpoint and stream cuts after 100 events; 50 more are read three times, the server killed in between."""
    assert java.run(create_stream, "orders", 2)
    assert java.run(calls.create_group, "audit", {"orders": ("", "")})
    java.run(write_events, "orders", 0, 100, KEY_COUNT)
    assert_each_key_in_order(java.run(calls.read_events, "audit", READERS, 100), 0, 100)
    content, texts = java.run(calls.checkpoint, "audit", READERS, "at 100")
    assert list(texts) == ["orders"]
    cuts = java.run(calls.stream_cuts, "audit", READERS)
    text, offsets = cuts["orders"]
    first, second = sorted(offsets)
    # Numbers continue after those of a deleted stream of the same name, which tests of a running cluster leave.
    assert second == first + 1
    assert sum(offsets.values()) == sum(8 + len(f"key0:{number}") for number in range(100))

    java.run(write_events, "orders", 100, 150, KEY_COUNT)
    assert_each_key_in_order(java.run(calls.read_events, "audit", READERS, 50), 100, 150)
    kill_and_restart(server)
    java.run(calls.reset_to_checkpoint, "audit", content)
    for reader in READERS:
        assert java.run(calls.must_begin_again, "audit", reader)
    assert_each_key_in_order(java.run(calls.read_events, "audit", READERS, 50), 100, 150)

    kill_and_restart(server)
    java.run(calls.reset_to_streams, "audit", {"orders": (text, "")})
    for reader in READERS:
        assert java.run(calls.must_begin_again, "audit", reader)
    assert_each_key_in_order(java.run(calls.read_events, "audit", READERS, 50), 100, 150)

    # Another group may begin or end there.
    assert java.run(calls.create_group, "before", {"orders": ("", text)})
    assert_each_key_in_order(java.run(calls.read_events, "before", ["early"], 100), 0, 100)
    assert java.run(calls.read_events, "before", ["early"], 1, 1.0) == []
    assert java.run(calls.create_group, "after", {"orders": (text, "")})
    assert_each_key_in_order(java.run(calls.read_events, "after", ["late"], 50), 100, 150)


def test_a_group_reads_on_from_the_head_of_a_truncated_stream(java: JavaProcess, server: StandaloneProcess) -> None:
    """A group that lags learns what it lost and resumes at the head; a group made later begins there.

    Both end when the stream is sealed.
    """
    assert java.run(create_stream, "orders", 2)
    for group in ("audit", "lagging"):
        assert java.run(calls.create_group, group, {"orders": ("", "")})
    java.run(write_events, "orders", 0, 100, KEY_COUNT)
    assert_each_key_in_order(java.run(calls.read_events, "audit", READERS, 100), 0, 100)
    text, _ = java.run(calls.stream_cuts, "audit", READERS)["orders"]
    java.run(write_events, "orders", 100, 110, KEY_COUNT)
    assert java.run(truncate_stream, "orders", text)
    kill_and_restart(server)
    assert java.run(calls.create_group, "later", {"orders": ("", "")})
    assert_each_key_in_order(java.run(calls.read_events, "later", READERS, 10), 100, 110)
    read = java.run(calls.read_events, "lagging", ["slow"], 12)
    assert [event for _, event in read].count("truncated") == 2
    assert_each_key_in_order([pair for pair in read if pair[1] != "truncated"], 100, 110)

    assert java.run(seal_stream, "orders")
    kill_and_restart(server)
    for group, readers in (("later", READERS), ("lagging", ["slow"])):
        # This client gives a segment that has ended back at the next checkpoint after it has noticed.
        java.run(calls.checkpoint, group, readers, "first")
        try:
            java.run(calls.checkpoint, group, readers, "second")
        except JavaCallError as error:
            # At the first one the readers had noticed the ends already: the group has no segments any more.
            if "Stream names" not in str(error):
                raise
        ((_, event),) = java.run(calls.read_events, group, readers, 1)
        assert event == "end"


def test_events_are_found_again_by_their_pointers(java: JavaProcess, server: StandaloneProcess) -> None:
    """Each event read comes with a pointer, bytes that find it again after SIGKILL. Noted times do no harm."""
    assert java.run(create_stream, "orders", 2)
    java.run(note_times, "orders", 5)
    assert java.run(calls.create_group, "audit", {"orders": ("", "")})
    pointers = java.run(calls.read_pointers, "audit", "reader1", 5)
    kill_and_restart(server)
    assert java.run(calls.fetch_events, list(pointers)) == list(pointers.values())
    assert sorted(pointers.values()) == [f"event {number}" for number in range(5)]


def test_groups_live_and_die(java: JavaProcess, server: StandaloneProcess) -> None:
    """Groups over two streams: made, found after SIGKILL, deleted; a new one under an old name restarts."""
    for stream in ("orders", "bills"):
        assert java.run(create_stream, stream, 1)
    java.run(write_events, "orders", 0, 10, 1)
    java.run(write_events, "bills", 10, 20, 1)
    both = {"orders": ("", ""), "bills": ("", "")}
    assert not java.run(calls.group_exists, "audit")
    assert java.run(calls.create_group, "audit", both)
    kill_and_restart(server)
    assert java.run(calls.group_exists, "audit")
    # A repetition is accepted while the group is unchanged; another configuration is not.
    assert java.run(calls.create_group, "audit", both)
    with pytest.raises(JavaCallError) as mismatch:
        java.run(calls.create_group, "audit", {"orders": ("", "")})
    assert mismatch.value.kind == "ConfigMismatchException"
    events = [event for _, event in java.run(calls.read_events, "audit", READERS, 20)]
    assert sorted(events) == sorted(f"key0:{number}" for number in range(20))
    java.run(calls.close_readers, "audit", READERS)
    java.run(calls.delete_group, "audit")
    kill_and_restart(server)
    assert not java.run(calls.group_exists, "audit")
    assert java.run(calls.create_group, "audit", {"bills": ("", "")})
    assert_each_key_in_order(java.run(calls.read_events, "audit", ["reader1"], 10), 10, 20)
    with pytest.raises(JavaCallError):
        java.run(calls.create_group, "broken", {"missing": ("", "")})

    # The whole scope goes: streams, groups and tables.
    java.run(calls.close_readers, "audit", ["reader1"])
    assert java.run(create_table, "prices")
    assert java.run(delete_scope, True)
    kill_and_restart(server)
    assert java.run(list_scopes) == ["_system"]
