"""The official Java client 0.13.0 from Maven Central, unmodified, against a real server: streams, events, bytes.

Each test uses a `penstock standalone` of its own, which is killed with SIGKILL in the middle and started again on the
same data and ports, while the client lives on.
"""

from __future__ import annotations

import collections
from collections.abc import Sequence

import pytest

import penstock
from penstock import StreamCut
from support import java_calls_streams as calls
from support.java_client import JavaCallError, JavaProcess, kill_and_restart
from support.standalone_process import StandaloneProcess

pytestmark = [pytest.mark.interop, pytest.mark.e2e]

MIB = 1024 * 1024
KEY_COUNT = 2


def assert_each_key_in_order(events: Sequence[str], count: int) -> None:
    """Events are ``key:number``; the numbers of all keys together are 0 to count - 1, growing within each key."""
    numbers: dict[str, list[int]] = collections.defaultdict(list)
    for event in events:
        key, _, number = event.partition(":")
        numbers[key].append(int(number))
    assert all(seen == sorted(seen) for seen in numbers.values())
    assert sorted(number for seen in numbers.values() for number in seen) == list(range(count))


def test_scopes_and_streams_live_and_die(java: JavaProcess, server: StandaloneProcess) -> None:
    """Scope, streams, tags and configurations, with each answer that the client can tell apart, and after SIGKILL."""
    assert java.run(calls.create_scope) is False
    assert java.run(calls.create_stream, "orders", 2, ["red", "blue"]) is True
    assert java.run(calls.create_stream, "orders", 2, ["red"]) is False
    assert java.run(calls.create_stream, "bills", 1, ["blue"]) is True
    assert java.run(calls.stream_tags, "orders") == ["blue", "red"]
    # As from Pravega's controller: with the streams of their watermarks.
    assert java.run(calls.list_streams, "") == ["_MARKbills", "_MARKorders", "bills", "orders"]
    assert java.run(calls.list_streams, "blue") == ["bills", "orders"]
    assert java.run(calls.update_stream, "orders", 2, ["green"]) is True
    assert java.run(calls.exists, "orders") == (True, True)
    assert java.run(calls.exists, "missing") == (True, False)

    kill_and_restart(server)
    assert java.run(calls.stream_tags, "orders") == ["green"]
    assert java.run(calls.list_streams, "green") == ["orders"]
    assert java.run(calls.list_streams, "red") == []
    assert java.run(calls.list_scopes) == ["_system", calls.SCOPE]
    with pytest.raises(JavaCallError) as not_empty:
        java.run(calls.delete_scope, False)
    assert "not empty" in str(not_empty.value)
    with pytest.raises(JavaCallError) as missing:
        java.run(calls.update_stream, "missing", 1)
    assert "does not exist" in str(missing.value)

    java.run(calls.write_events, "orders", 0, 10, KEY_COUNT)
    is_sealed, head, tail = java.run(calls.stream_info, "orders")
    # Segments have other numbers if there was a stream of this name before.
    assert (is_sealed, list(head.values())) == (False, [0, 0])
    assert sum(tail.values()) == 10 * len("....::::key0:0")
    with pytest.raises(JavaCallError) as not_sealed:
        java.run(calls.delete_stream, "orders")
    assert "not sealed" in str(not_sealed.value)
    assert java.run(calls.seal_stream, "orders") is True
    kill_and_restart(server)
    # The tail is where one may write: nowhere.
    assert java.run(calls.stream_info, "orders") == (True, head, {})
    with pytest.raises(JavaCallError):
        java.run(calls.write_events, "orders", 10, 11, KEY_COUNT)
    assert java.run(calls.delete_stream, "orders") is True
    assert java.run(calls.delete_stream, "orders") is False
    assert java.run(calls.list_streams, "") == ["_MARKbills", "bills"]
    assert java.run(calls.delete_scope, True) is True
    with pytest.raises(JavaCallError) as no_scope:
        java.run(calls.delete_scope, True)
    assert no_scope.value.kind == "NoSuchScopeException"
    assert java.run(calls.delete_scope, False) is False
    kill_and_restart(server)
    assert java.run(calls.list_scopes) == ["_system"]


def test_a_killed_server_loses_and_doubles_no_event(java: JavaProcess, server: StandaloneProcess) -> None:
    """20 000 events of two keys, the server killed with thousands in flight; read back in batches, by segment ranges.

    Then the rest after a stream cut, and, when the stream is truncated there, from its new head.
    """
    count = 20_000
    assert java.run(calls.create_stream, "orders", 2)
    writing = java.start(calls.write_events, "orders", 0, count, KEY_COUNT)
    writing.wait_for("begun")
    kill_and_restart(server)
    writing.result()
    events, ranges = java.run(calls.read_batch, "orders", "", "")
    assert_each_key_in_order(events, count)
    # Segments have other numbers if there was a stream of this name before.
    assert [begin for begin, _ in ranges.values()] == [0, 0]

    cut = java.run(calls.tail_cut, "orders")
    java.run(calls.write_events, "orders", count, count + 10, KEY_COUNT)
    kill_and_restart(server)
    # Each reads the other's text of a cut.
    read = StreamCut.from_text(cut)
    assert read == StreamCut("shop", "orders", {segment: end for segment, (_, end) in ranges.items()})
    cut = read.to_pravega_text()
    later, later_ranges = java.run(calls.read_batch, "orders", cut, "")
    assert sorted(later) == sorted(f"key{number % KEY_COUNT}:{number}" for number in range(count, count + 10))
    assert all(begin == ranges[segment][1] for segment, (begin, _) in later_ranges.items())
    earlier, _ = java.run(calls.read_batch, "orders", "", cut)
    assert_each_key_in_order(earlier, count)

    assert java.run(calls.truncate_stream, "orders", cut)
    kill_and_restart(server)
    assert sorted(java.run(calls.read_batch, "orders", "", "")[0]) == sorted(later)
    _, head, _ = java.run(calls.stream_info, "orders")
    assert head == {segment: end for segment, (_, end) in ranges.items()}


def test_a_byte_stream_is_written_read_sought_and_truncated(java: JavaProcess, server: StandaloneProcess) -> None:
    """8 MiB in pieces of odd size, the server killed in the middle of the writing and in the middle of the reading."""
    assert java.run(calls.create_stream, "film", 1)
    content = calls.large_event(1, 8 * MIB)
    length = len(content)
    writing = java.start(calls.write_bytes, "film", content, 100_003)
    writing.wait_for("begun")
    kill_and_restart(server)
    writing.result()
    assert java.run(calls.bounds, "film") == (0, length, 0, length)

    reading = java.start(calls.read_bytes, "film", length)
    reading.wait_for("begun")
    kill_and_restart(server)
    assert reading.result() == content
    assert java.run(calls.seek, "film", 1_000_001) == 1_000_001
    assert java.run(calls.read_bytes, "film", 1000) == content[1_000_001:1_001_001]

    java.run(calls.truncate_bytes, "film", MIB)
    java.run(calls.write_bytes, "film", b"the end", 7)
    kill_and_restart(server)
    assert java.run(calls.bounds, "film") == (MIB, length + 7, MIB, length + 7)
    assert java.run(calls.seek, "film", 100) == 100
    with pytest.raises(JavaCallError) as truncated:
        java.run(calls.read_bytes, "film", 10)
    assert truncated.value.kind == "SegmentTruncatedException" or "truncated" in str(truncated.value).lower()
    assert java.run(calls.seek, "film", length - 5) == length - 5
    # A read that has come to the tail is woken by the seal.
    reading_on = java.start(calls.read_bytes, "film", 1000)
    reading_on.wait_for("at the tail")
    java.run(calls.close_and_seal, "film")
    assert reading_on.result() == content[-5:] + b"the end"
    kill_and_restart(server)
    assert java.run(calls.read_bytes, "film", 1) == b""


def test_events_of_more_than_8_mib_arrive_whole(java: JavaProcess, server: StandaloneProcess) -> None:
    """They travel in pieces of 8 MiB through a transient segment; the server is killed while one is on its way.

    So do events that are written as one and are larger together.
    """
    lengths = [10, 10 * MIB, 8 * MIB, 8 * MIB + 1, 30 * MIB, 10]
    assert java.run(calls.create_stream, "films", 1)
    writing = java.start(calls.write_large_events, "films", lengths)
    writing.wait_for("begun 4")
    kill_and_restart(server)
    writing.result()
    together = [5 * MIB, 20, 5 * MIB, 3 * MIB]
    writing_together = java.start(calls.write_batch, "films", together)
    writing_together.wait_for("begun")
    kill_and_restart(server)
    writing_together.result()
    java.run(calls.write_batch, "films", [30, 40])
    events = java.run(calls.read_large_batch, "films")
    written = (lengths, together, [30, 40])
    expected = [calls.large_event(index, length) for part in written for index, length in enumerate(part)]
    assert list(map(len, events)) == list(map(len, expected))
    assert events == expected


def test_a_committed_transaction_is_read_completely_and_an_aborted_one_never(
    java: JavaProcess, server: StandaloneProcess
) -> None:
    """Commit and abort of transactions that were begun, and partly written, before the server was killed."""
    assert java.run(calls.create_stream, "orders", 2)
    # Outcomes are kept by name of the stream, also those of an earlier stream.
    earlier = java.run(calls.completed_transactions, "orders")
    ids = {name: java.run(calls.begin_transaction, "orders", name) for name in ("first", "second")}
    java.run(calls.write_to_transaction, "first", 0, 50, KEY_COUNT)
    java.run(calls.write_to_transaction, "second", 1000, 1050, KEY_COUNT)

    kill_and_restart(server)
    assert java.run(calls.transaction_status, "first") == "OPEN"
    java.run(calls.write_to_transaction, "first", 50, 100, KEY_COUNT)
    assert java.run(calls.read_batch, "orders", "", "")[0] == []
    java.run(calls.abort_transaction, "second")
    java.run(calls.await_status, "second", "ABORTED")
    with pytest.raises(JavaCallError) as aborted:
        java.run(calls.write_to_transaction, "second", 1050, 1051, KEY_COUNT)
    assert aborted.value.kind == "TxnFailedException"
    java.run(calls.commit_transaction, "first")
    java.run(calls.await_status, "first", "COMMITTED")

    number = java.run(calls.begin_transaction, "orders", "third")
    java.run(calls.write_to_transaction, "third", 100, 110, KEY_COUNT)
    kill_and_restart(server)
    assert java.run(calls.transaction_status, "first") == "COMMITTED"
    assert java.run(calls.transaction_status, "second") == "ABORTED"
    # Found again by its number, as a process does that restarts.
    assert java.run(calls.find_transaction, "orders", "again", number) == "OPEN"
    java.run(calls.commit_transaction, "again")
    java.run(calls.await_status, "again", "COMMITTED")
    ended = {ids["first"]: "COMMITTED", ids["second"]: "ABORTED", number: "COMMITTED"}
    assert java.run(calls.completed_transactions, "orders") == earlier | ended
    events, _ = java.run(calls.read_batch, "orders", "", "")
    assert_each_key_in_order(events, 110)


def test_a_prepared_transaction_is_open_for_java_and_decided_by_it(
    java: JavaProcess, server: StandaloneProcess
) -> None:
    """Prepared by Penstock's client, with what Java's had flushed: it takes no more, also after SIGKILL, and waits."""
    assert java.run(calls.create_stream, "orders", 2)
    ids = {name: java.run(calls.begin_transaction, "orders", name) for name in ("first", "second")}
    java.run(calls.write_to_transaction, "first", 0, 50, KEY_COUNT)
    java.run(calls.write_to_transaction, "second", 1000, 1050, KEY_COUNT)
    stream = f"{calls.SCOPE}/orders"
    with penstock.connect(server.uri) as client:
        for number in ids.values():
            client.prepare_transaction(stream, number, limit_s=3600)
    assert java.run(calls.transaction_status, "first") == "OPEN"
    with pytest.raises(JavaCallError) as late:
        java.run(calls.write_to_transaction, "first", 50, 100, KEY_COUNT)
    assert late.value.kind == "TxnFailedException"
    with pytest.raises(JavaCallError, match="Failed to seal stream"):
        java.run(calls.seal_stream, "orders")

    kill_and_restart(server)
    assert java.run(calls.find_transaction, "orders", "again", ids["first"]) == "OPEN"
    java.run(calls.commit_transaction, "again")
    java.run(calls.await_status, "again", "COMMITTED")
    java.run(calls.abort_transaction, "second")
    java.run(calls.await_status, "second", "ABORTED")
    events, _ = java.run(calls.read_batch, "orders", "", "")
    assert_each_key_in_order(events, 50)
