"""Key-value tables of the official Java client 0.13.0, over restarts of a real server."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

import penstock
from penstock.serializers import TextSerializer
from support import java_calls_tables as calls
from support.java_calls_streams import SCOPE
from support.java_client import JavaCallError, JavaProcess, kill_and_restart
from support.standalone_process import StandaloneProcess

pytestmark = [pytest.mark.interop, pytest.mark.e2e]


def key(first: int, second: int) -> str:
    """Return a key of 8 and 4 bytes."""
    return f"key{first:05}{second:04}"


def refusal(java: JavaProcess, changes: Sequence[tuple[str, str, str, str]]) -> str:
    """Make changes that are refused; return the class of the exception."""
    with pytest.raises(JavaCallError) as refused:
        java.run(calls.change, "prices", changes)
    return refused.value.kind


def test_tables_live_and_die(java: JavaProcess, server: StandaloneProcess) -> None:
    """Creation, listing and deletion, each seen again after SIGKILL."""
    assert java.run(calls.list_tables) == []
    assert java.run(calls.create_table, "prices") is True
    assert java.run(calls.create_table, "prices") is False
    assert java.run(calls.create_table, "stock") is True
    kill_and_restart(server)
    assert java.run(calls.list_tables) == ["prices", "stock"]
    java.run(calls.put, "stock", {key(1, 1): "a"})
    assert java.run(calls.delete_table, "prices") is True
    assert java.run(calls.delete_table, "prices") is False
    kill_and_restart(server)
    assert java.run(calls.list_tables) == ["stock"]
    assert java.run(calls.get, "stock", [key(1, 1)]) != [None]
    # One that is not empty goes too, and what comes under its name is empty.
    assert java.run(calls.delete_table, "stock") is True
    assert java.run(calls.create_table, "stock") is True
    java.run(calls.forget, "stock")
    assert java.run(calls.get, "stock", [key(1, 1)]) == [None]


def test_entries_put_while_the_server_is_killed_are_all_there(java: JavaProcess, server: StandaloneProcess) -> None:
    """300 puts, the server killed after a third. Then reads by key, of many keys, of missing ones and of ranges."""
    assert java.run(calls.create_table, "prices")
    entries = {key(first, second): f"{first}:{second}" for first in range(30) for second in range(10)}
    putting = java.start(calls.put, "prices", entries)
    putting.wait_for("begun")
    kill_and_restart(server)
    versions = dict(zip(entries, putting.result(), strict=True))
    wanted = [*entries, key(99, 0)]
    found = java.run(calls.get, "prices", wanted)
    assert found == [*((value, versions[name]) for name, value in entries.items()), None]
    assert java.run(calls.exists, "prices", key(0, 0))
    assert not java.run(calls.exists, "prices", key(99, 0))

    kill_and_restart(server)
    assert java.run(calls.get, "prices", wanted) == found
    everything = sorted(entries.items())
    # By partition and then by key: in all, no order is promised.
    assert sorted(java.run(calls.iterate, "prices", "all", "", "", 7)) == everything
    # One first part is in one partition, and so in order.
    of_five = [pair for pair in everything if pair[0].startswith("key00005")]
    assert java.run(calls.iterate, "prices", "primary", "key00005", "", 3) == of_five
    assert java.run(calls.iterate, "prices", "primary", "key00005", "0003:0006", 3) == of_five[3:7]
    of_tens = [pair for pair in everything if pair[0].startswith("key0001")]
    assert len(of_tens) == 100
    assert sorted(java.run(calls.iterate, "prices", "prefix", "key0001", "", 1000)) == of_tens
    between = [pair for pair in everything if "key00005" <= pair[0][:8] <= "key00007"]
    assert sorted(java.run(calls.iterate, "prices", "range", "key00005", "key00007", 5)) == between
    assert java.run(calls.iterate, "prices", "prefix", "nothing", "", 5) == []


def test_changes_on_a_condition_are_made_once_and_only_then(java: JavaProcess, server: StandaloneProcess) -> None:
    """Insert, replace and remove with versions, alone and several as one, before and after SIGKILL."""
    assert java.run(calls.create_table, "prices")
    one, two, three = key(1, 1), key(1, 2), key(1, 3)
    (first,) = java.run(calls.change, "prices", [("insert", one, "a", "")])
    assert refusal(java, [("insert", one, "b", "")]) == "BadKeyVersionException"
    kill_and_restart(server)
    assert refusal(java, [("insert", one, "b", "")]) == "BadKeyVersionException"
    (second,) = java.run(calls.change, "prices", [("put", one, "b", first)])
    assert refusal(java, [("put", one, "c", first)]) == "BadKeyVersionException"
    assert refusal(java, [("put", two, "c", first)]) == "NoSuchKeyException"

    # All or nothing.
    both = [("insert", two, "c", ""), ("put", one, "c", first)]
    assert refusal(java, both) == "BadKeyVersionException"
    assert java.run(calls.get, "prices", [one, two]) == [("b", second), None]
    third, fourth = java.run(calls.change, "prices", [("put", one, "c", second), ("insert", two, "d", "")])
    kill_and_restart(server)
    assert java.run(calls.get, "prices", [one, two, three]) == [("c", third), ("d", fourth), None]

    assert refusal(java, [("remove", one, "", first)]) == "BadKeyVersionException"
    java.run(calls.change, "prices", [("remove", one, "", third)])
    kill_and_restart(server)
    assert java.run(calls.get, "prices", [one, two]) == [None, ("d", fourth)]
    assert refusal(java, [("remove", one, "", third)]) == "NoSuchKeyException"
    # The longest value that the client sends, replaced by itself.
    longest = "x" * calls.VALUE_LENGTH_MAX
    (fifth,) = java.run(calls.change, "prices", [("put", three, longest, "")])
    (sixth,) = java.run(calls.change, "prices", [("put", three, longest, fifth)])
    kill_and_restart(server)
    assert java.run(calls.get, "prices", [three]) == [(longest, sixth)]
    # Without a version it is gone, or was not there.
    java.run(calls.change, "prices", [("remove", one, "", "")])
    java.run(calls.change, "prices", [("remove", two, "", ""), ("remove", three, "", "")])
    assert java.run(calls.iterate, "prices", "all", "", "", 5) == []
    (again,) = java.run(calls.change, "prices", [("insert", one, "e", "")])
    assert java.run(calls.get, "prices", [one]) == [("e", again)]


def test_a_table_that_is_missing_is_an_error(java: JavaProcess, server: StandaloneProcess) -> None:
    """Nothing is made by the way."""
    with pytest.raises(JavaCallError):
        java.run(calls.get, "missing", [key(1, 1)])
    assert java.run(calls.list_tables) == []


def test_tables_of_the_java_client_are_read_and_changed_here(java: JavaProcess, server: StandaloneProcess) -> None:
    """What Java has put, in two partitions, is got, scanned and changed on its versions by the Python client, through
    SIGKILL; then Java sees what was changed, and its own old versions hold no more.
    """
    assert java.run(calls.create_table, "prices")
    entries = {key(first, second): f"{first}:{second}" for first in range(30) for second in range(3)}
    put = java.run(calls.put, "prices", entries)
    versions = {name: int(text.split(":")[1]) for name, text in zip(entries, put, strict=True)}
    kill_and_restart(server)
    with penstock.connect(server.uri) as client:
        assert list(client.tables(SCOPE)) == ["prices"]
        shape = penstock.TableConfig(calls.PRIMARY_LENGTH, calls.SECONDARY_LENGTH, calls.PARTITION_COUNT)
        assert client.table_config(f"{SCOPE}/prices") == shape
        with client.table(f"{SCOPE}/prices", values=TextSerializer()) as table:
            found = {entry.key.decode(): (entry.value, entry.version) for entry in table.scan()}
            assert list(found) == sorted(entries)
            assert found == {name: (value, versions[name]) for name, value in entries.items()}
            assert [entry.value for entry in table.scan(primary="key00005")] == ["5:0", "5:1", "5:2"]
            one, two = key(1, 1), key(2, 2)
            newer = table.put(one.encode(), "ours", version=versions[one])
            table.remove(two.encode(), version=versions[two])
            kill_and_restart(server)
            assert java.run(calls.get, "prices", [one, two])[1] is None
            value, text = java.run(calls.get, "prices", [one])[0] or ("", "")
            assert (value, int(text.split(":")[1])) == ("ours", newer)
            old = f"{text.split(':')[0]}:{versions[one]}"
            assert refusal(java, [("put", one, "theirs", old)]) == "BadKeyVersionException"
            (again,) = java.run(calls.change, "prices", [("put", one, "theirs", text)])
            with pytest.raises(penstock.TableKeyVersionError):
                table.put(one.encode(), "late", version=newer)
            assert table.entry(one.encode()) == penstock.Entry(one.encode(), "theirs", int(again.split(":")[1]))


def test_tables_made_here_are_read_and_changed_by_the_java_client(java: JavaProcess, server: StandaloneProcess) -> None:
    """The other way round: 200 keys over two partitions, so that a key sent to the wrong one would be missing there."""
    entries = {key(first, second): f"{first}:{second}" for first in range(50) for second in range(4)}
    with penstock.connect(server.uri) as client:
        client.create_table(
            f"{SCOPE}/stock",
            key_length=calls.PRIMARY_LENGTH,
            secondary_key_length=calls.SECONDARY_LENGTH,
            partition_count=calls.PARTITION_COUNT,
        )
        with client.table(f"{SCOPE}/stock", values=TextSerializer()) as table:
            versions = table.put_many({name.encode(): value for name, value in entries.items()})
            kill_and_restart(server)
            assert java.run(calls.list_tables) == ["stock"]
            found = java.run(calls.get, "stock", list(entries))
            assert [None if each is None else (each[0], int(each[1].split(":")[1])) for each in found] == [
                (value, version) for value, version in zip(entries.values(), versions, strict=True)
            ]
            assert sorted(java.run(calls.iterate, "stock", "all", "", "", 7)) == sorted(entries.items())
            of_five = [pair for pair in sorted(entries.items()) if pair[0].startswith("key00005")]
            assert java.run(calls.iterate, "stock", "primary", "key00005", "", 3) == of_five
            java.run(calls.change, "stock", [("insert", key(99, 0), "theirs", "")])
            java.run(calls.change, "stock", [("remove", key(0, 0), "", "")])
            kill_and_restart(server)
            assert table.get(key(99, 0).encode()) == "theirs"
            assert table.get(key(0, 0).encode()) is None
            assert table.count() == len(entries)
        client.delete_table(f"{SCOPE}/stock")
    assert java.run(calls.list_tables) == []
