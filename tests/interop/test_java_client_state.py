"""Revisioned streams and state synchronizers of the official Java client 0.13.0, over restarts of a real server."""

from __future__ import annotations

import pytest

import penstock
from penstock.client.common.serializers import JsonValue
from penstock.serializers import JsonSerializer, TextSerializer
from support import java_calls_state as calls
from support.java_calls_streams import SCOPE, create_stream
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


def test_a_revisioned_stream_is_written_by_both_clients_in_turn(java: JavaProcess, server: StandaloneProcess) -> None:
    """Conditional writes of both on each other's revisions, marks of both, a head cut here; each through SIGKILL."""
    assert java.run(create_stream, "log", 1)
    with (
        penstock.connect(server.uri) as client,
        client.revisioned_stream(f"{SCOPE}/log", serializer=TextSerializer()) as stream,
    ):
        start = stream.latest()
        theirs = java.run(calls.write_conditionally, "log", str(start), "java")
        assert stream.write_if(start, "lost") is None
        assert str(stream.latest()) == theirs
        mine = stream.write_if(penstock.Revision.parse(theirs), "python")
        assert mine is not None
        assert java.run(calls.write_conditionally, "log", theirs, "lost") == ""
        assert java.run(calls.set_mark, "log", "", theirs)
        kill_and_restart(server)
        assert str(stream.mark()) == theirs
        assert stream.set_mark(penstock.Revision.parse(theirs), mine)
        stream.write("python again")
        kill_and_restart(server)
        assert java.run(calls.mark, "log") == str(mine)
        assert java.run(calls.read_from, "log", str(start)) == ["java", "python", "python again"]
        assert [value for _, value in stream.read(start)] == ["java", "python", "python again"]
        java.run(calls.write_unconditionally, "log", "java again")
        stream.truncate(mine)
        assert java.run(calls.ends, "log") == (str(mine), str(stream.latest()))
        assert java.run(calls.read_from, "log", str(mine)) == ["python again", "java again"]
        assert java.run(calls.read_from, "log", str(start)) == ["TruncatedDataException"]


def _added(state: JsonValue, update: JsonValue) -> JsonValue:
    """Apply an addition as `java_counters` does: ``{"values": {name: count}}`` and ``[name, amount]``."""
    assert isinstance(state, dict)
    assert isinstance(update, list)
    values, (name, amount) = state["values"], update
    assert isinstance(values, dict)
    assert isinstance(name, str)
    assert isinstance(amount, int)
    count = values.get(name, 0)
    assert isinstance(count, int)
    return {"values": {**values, name: count + amount}}


def test_a_state_synchronizer_of_java_and_a_shared_state_count_together(
    java: JavaProcess, server: StandaloneProcess
) -> None:
    """Both add 1 to one counter on the condition that they know the newest state, at the same time, while the server is
    killed. Then each compacts the stream, and clients of both kinds that begin afterwards know everything.
    """
    count = 100
    assert java.run(create_stream, "counters", 1)
    with penstock.connect(server.uri) as client:

        def opened() -> penstock.client.sync.SharedState[JsonValue, JsonValue]:
            return client.shared_state(
                f"{SCOPE}/counters",
                initial={"values": {}}, states=JsonSerializer(), updates=JsonSerializer(), apply=_added,
            )  # fmt: skip

        state = opened()
        adding = java.start(calls.add, "counters", "java", count)
        replaced = []
        for index in range(count):
            seen: list[JsonValue] = []

            def make(value: JsonValue, seen: list[JsonValue] = seen) -> list[JsonValue]:
                assert isinstance(value, dict)
                values = value["values"]
                assert isinstance(values, dict)
                seen.append(values.get("all", 0))
                return [["all", 1], ["python", 1]]

            state.update(make)
            replaced.append(seen[-1])
            if index == count // 3:
                kill_and_restart(server)
        assert sorted([*replaced, *adding.result()], key=str) == sorted(range(2 * count), key=str)
        expected = {"all": 2 * count, "java": count, "python": count}
        assert state.fetch() == {"values": expected}
        assert java.run(calls.counters, "counters", "java") == expected

        state.compact()
        assert java.run(calls.counters, "counters", "behind a compaction here") == expected
        state.post(["all", 1000])
        expected["all"] += 1000
        assert java.run(calls.counters, "counters", "java") == expected
        assert java.run(calls.compact, "counters", "java") > 0
        kill_and_restart(server)
        state.compact()
        newest = opened()
        assert newest.value == {"values": expected}
        # Those that were idle meanwhile, and whose next entry is gone.
        assert java.run(calls.counters, "counters", "behind a compaction here") == expected
        assert java.run(calls.add, "counters", "java", 1) == [expected["all"]]
        assert newest.fetch() == {"values": {**expected, "all": expected["all"] + 1, "java": count + 1}}
        newest.close()
        state.close()
