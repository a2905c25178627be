"""Revisioned streams and state synchronizers of the official Java client 0.13.0, over restarts of a real server."""

from __future__ import annotations

import pytest

from support import java_calls_state as calls
from support.java_calls_streams import create_stream
from support.java_client import JavaProcess, kill_and_restart
from support.standalone_process import StandaloneProcess

pytestmark = [pytest.mark.interop, pytest.mark.e2e]


def test_conditional_writes_marks_and_truncation_of_a_revisioned_stream(
    java: JavaProcess, server: StandaloneProcess
) -> None:
    """Writes on a condition, a mark that is compared and set, and a cut head, each seen again after SIGKILL."""
    assert java.run(create_stream, "log", 1)
    start, same = java.run(calls.ends, "log")
    assert start == same
    first = java.run(calls.write_conditionally, "log", start, "one")
    assert first
    assert java.run(calls.write_conditionally, "log", start, "lost") == ""
    java.run(calls.write_unconditionally, "log", "two")
    assert java.run(calls.mark, "log") == ""
    assert java.run(calls.set_mark, "log", "", first)
    assert not java.run(calls.set_mark, "log", "", start)

    kill_and_restart(server)
    assert java.run(calls.mark, "log") == first
    oldest, latest = java.run(calls.ends, "log")
    assert oldest == start
    assert java.run(calls.read_from, "log", start) == ["one", "two"]
    assert java.run(calls.write_conditionally, "log", first, "lost") == ""
    newest = java.run(calls.write_conditionally, "log", latest, "three")
    assert newest
    assert java.run(calls.read_from, "log", first) == ["two", "three"]
    assert java.run(calls.set_mark, "log", first, newest)
    java.run(calls.truncate_to, "log", first)

    kill_and_restart(server)
    assert java.run(calls.ends, "log") == (first, newest)
    assert java.run(calls.read_from, "log", start) == ["TruncatedDataException"]
    assert java.run(calls.read_from, "log", first) == ["two", "three"]
    assert java.run(calls.mark, "log") == newest


def test_two_state_synchronizers_count_together(java: JavaProcess, server: StandaloneProcess) -> None:
    """Each adds 1 to one counter 150 times on the condition that it knows the newest state; the server is killed
    meanwhile. No addition is lost or made twice, and no value is replaced twice. Then the stream is compacted.
    """
    count = 150
    assert java.run(create_stream, "counters", 1)
    adding = [java.start(calls.add, "counters", name, count) for name in ("a", "b")]
    for call in adding:
        call.wait_for("begun")
    kill_and_restart(server)
    replaced = [value for call in adding for value in call.result()]
    assert sorted(replaced) == list(range(2 * count))
    expected = {"all": 2 * count, "a": count, "b": count}
    assert java.run(calls.counters, "counters", "a") == expected

    java.run(calls.add_unconditionally, "counters", "b", 1000)
    expected["all"] += 1000
    assert java.run(calls.compact, "counters", "a") > 0
    kill_and_restart(server)
    assert java.run(calls.counters, "counters", "b") == expected
    assert java.run(calls.add, "counters", "b", 1) == [expected["all"]]
    # One that begins now reads what the compaction wrote.
    assert java.run(calls.counters, "counters", "new") == {"all": expected["all"] + 1, "a": count, "b": count + 1}
