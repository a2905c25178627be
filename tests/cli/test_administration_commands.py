"""`penstock scope`, `stream`, `group` and `transaction` against a server, in this process."""

from __future__ import annotations

import json
from pathlib import Path
from unittest import mock

import pytest

from penstock.cli.names import complete_groups, complete_scopes, complete_streams, complete_tables
from penstock.client.sync import Client
from penstock.model.policies import Retention, Scaling
from penstock.testing.server import MemoryServer

from .conftest import Run

OTHER_CUT = '{"v":1,"scope":"s","stream":"y","positions":{"0":0}}'


def test_scopes_are_created_listed_described_and_deleted(penstock: Run) -> None:
    """Those of the server itself are not in the list unless asked for."""
    assert penstock("scope", "create", "books").ok.stdout == "scope books is created\n"
    assert "books" in penstock("scope", "list").ok.lines
    listed = penstock("scope", "list", "--json").ok.json
    assert listed["type"] == "scopes"
    assert "_system" not in penstock("scope", "list").ok.lines
    assert "_system" in penstock("scope", "list", "--all").ok.lines
    assert penstock("scope", "describe", "books").ok.stdout == "scope books is empty\n"
    penstock("stream", "create", "books/sold").ok  # noqa: B018
    penstock("group", "create", "books/audit", "books/sold").ok  # noqa: B018
    assert penstock("scope", "describe", "books").ok.lines == ["stream books/sold", "group books/audit"]
    assert penstock("scope", "describe", "books", "--json").ok.json["groups"] == ["audit"]
    full = penstock("scope", "delete", "books", "--yes")
    assert full.code == 1
    assert "show its contents with penstock scope describe" in full.stderr
    penstock("group", "delete", "books/audit", "--yes").ok  # noqa: B018
    penstock("stream", "delete", "books/sold", "--yes").ok  # noqa: B018
    assert penstock("scope", "delete", "books", "--yes", "--json").ok.json == {"type": "deleted", "scope": "books"}
    assert "books" not in penstock("scope", "list").ok.lines


def test_a_stream_is_created_with_the_requested_policies(penstock: Run, penstock_client: Client) -> None:
    """And described so; an update changes what is given and nothing else."""
    stream = "policies/all"
    penstock(
        "stream", "create", stream, "--event-rate", "1000", "--factor", "3", "--segments", "2",
        "--keep-time", "7d", "--keep-max", "1w1d", "--tag", "a", "--tag", "b", "--rollover", "64MiB",
    )  # fmt: skip
    config = penstock_client.stream_config(stream)
    assert config.scaling == Scaling.by_event_rate(1000, 3, 2)
    assert config.retention == Retention.by_time(days=7, max_days=8)
    assert (config.tags, config.rollover_bytes) == (("a", "b"), 64 * 1024 * 1024)
    text = penstock("stream", "describe", stream).ok.stdout
    assert "scaling    1000 events/s a segment, splits into 3, at least 2" in text
    assert "retention  keeps 7d, at most 8d" in text
    described = penstock("stream", "describe", stream, "--json").ok.json
    assert described["retention"] == {"kind": "by_time", "min": 7 * 86_400_000, "max": 8 * 86_400_000}
    assert described["tags"] == ["a", "b"]
    penstock("stream", "update", stream, "--keep-bytes", "10GB")
    changed = penstock_client.stream_config(stream)
    assert changed.retention == Retention.by_size(10**10)
    assert (changed.scaling, changed.tags) == (config.scaling, config.tags)
    penstock("stream", "update", stream, "--no-tags", "--data-rate", "100")
    changed = penstock_client.stream_config(stream)
    assert (changed.scaling, changed.tags) == (Scaling.by_data_rate(100), ())


def test_a_scope_with_contents_is_deleted_only_with_the_recursive_option(penstock: Run) -> None:
    """The question says how much goes with it."""
    penstock("stream", "create", "attic/old").ok  # noqa: B018
    penstock("stream", "create", "attic/older").ok  # noqa: B018
    penstock("group", "create", "attic/audit", "attic/old").ok  # noqa: B018
    asked = penstock("scope", "delete", "attic", "--recursive")
    assert asked.code == 2
    assert "Not deleted: attic (2 streams, 1 group)." in asked.stderr
    assert penstock("scope", "delete", "attic", "--yes").code == 1
    deleted = penstock("scope", "delete", "attic", "--recursive", "--yes").ok
    assert deleted.stdout == "scope attic is deleted\n"
    assert "attic" not in penstock("scope", "list").ok.lines
    again = penstock("scope", "delete", "attic", "--recursive", "--yes")
    assert again.code == 1
    assert "attic does not exist" in again.stderr


def test_streams_are_listed_by_scope_and_tag(penstock: Run) -> None:
    """All of them without a scope."""
    for name, tag in (("listed/one", "red"), ("listed/two", "blue"), ("listed-too/one", "red")):
        penstock("stream", "create", name, "--tag", tag).ok  # noqa: B018
    assert penstock("stream", "list", "listed").ok.lines == ["listed/one", "listed/two"]
    assert penstock("stream", "list", "listed", "--tag", "red").ok.lines == ["listed/one"]
    assert {"listed/one", "listed-too/one"} <= set(penstock("stream", "list").ok.lines)
    assert penstock("stream", "list", "listed", "--json").ok.json["streams"] == ["listed/one", "listed/two"]
    assert penstock("stream", "list", "not-there").code == 1


def test_a_stream_that_exists_is_refused_unless_that_is_fine(penstock: Run) -> None:
    """With `--exist-ok` it stays as it is."""
    penstock("stream", "create", "twice/stream").ok  # noqa: B018
    refused = penstock("stream", "create", "twice/stream").stderr
    assert "exists already\n  penstock stream create --exist-ok accepts" in refused
    penstock("stream", "create", "twice/stream", "--exist-ok").ok  # noqa: B018


def test_a_stream_is_deleted_only_after_confirmation(penstock: Run) -> None:
    """By a person at a terminal, or by `--yes`; a script that says neither is refused and told what to say."""
    penstock("stream", "create", "agreed/stream").ok  # noqa: B018
    penstock("write", "agreed/stream", stdin=b"0123456789\n").ok  # noqa: B018
    unasked = penstock("stream", "delete", "agreed/stream")
    assert unasked.code == 2
    assert "confirm with --yes" in unasked.stderr
    assert penstock("stream", "delete", "agreed/stream", "--json", is_terminal=True, stdin=b"y\n").code == 2
    for answer in (b"n\n", b"\n", b"", b"yesterday\n"):
        refused = penstock("stream", "delete", "agreed/stream", is_terminal=True, stdin=answer)
        assert (refused.code, refused.stdout) == (1, "")
        assert "Delete stream agreed/stream with 18 B of events? [y/N]" in refused.stderr
    assert penstock("read", "agreed/stream").ok.lines == ["0123456789"]
    deleted = penstock("stream", "delete", "agreed/stream", is_terminal=True, stdin=b"y\n")
    assert (deleted.code, deleted.stdout) == (0, "stream agreed/stream is deleted\n")
    assert penstock("stream", "describe", "agreed/stream").code == 1


def test_a_group_is_created_described_reset_and_deleted(penstock: Run, penstock_client: Client, tmp_path: Path) -> None:
    """Its lag is what it has still to read; a reset moves it."""
    penstock("stream", "create", "groups/stream").ok  # noqa: B018
    assert penstock("group", "create", "groups/audit", "groups/stream").ok.stdout == (
        "reader group groups/audit is created\n"
    )
    assert [line.split() for line in penstock("group", "list", "groups").ok.lines] == [
        ["GROUP", "MADE", "BY", "RETENTION", "STREAM", "ACKNOWLEDGED"],
        ["groups/audit", "penstock", "none", "groups/stream"],
    ]
    assert "groups/audit" in penstock("group", "list", "--json").ok.stdout
    penstock("write", "groups/stream", stdin=b"aa\nbb\n").ok  # noqa: B018
    assert penstock("group", "lag", "groups/audit", "--json").ok.json["unread_bytes"] == {"groups/stream": 20}
    assert penstock("group", "lag", "groups/audit").ok.lines[1].split() == ["groups/stream", "20", "20", "B"]
    with penstock_client.reader_group("groups/audit", ["groups/stream"]) as group, group.reader("one") as reader:
        assert reader.read(timeout_s=10) is not None
        described = penstock("group", "describe", "groups/audit").ok.lines
        assert described[0] == "reader group groups/audit: readers: 1, 20 B unread"
        assert any(line.split() == ["one", "groups/stream/0.#epoch.0"] for line in described)
    assert penstock("group", "lag", "groups/audit", "--json").ok.json["unread_bytes_all"] == 10
    cut = tmp_path / "cut"
    cut.write_text(penstock_client.head("groups/stream").to_text())
    penstock("group", "reset", "groups/audit", "--to", f"@{cut}").ok  # noqa: B018
    assert penstock("group", "lag", "groups/audit", "--json").ok.json["unread_bytes_all"] == 20
    planned = penstock("group", "reset", "groups/audit", "--to", "latest", "--dry-run", "--json").ok.json
    assert planned["before"] != planned["after"]
    assert penstock("group", "lag", "groups/audit", "--json").ok.json["unread_bytes_all"] == 20
    shown = penstock("group", "reset", "groups/audit", "--to", "latest", "--dry-run").ok.lines
    assert (shown[0], shown[-1]) == ("groups/stream", "dry run: nothing was changed")
    penstock("group", "reset", "groups/audit", "--to", "latest").ok  # noqa: B018
    lag = penstock("group", "lag", "groups/audit", "--json").ok.json
    assert (lag["unread_bytes_all"], lag["unassigned_segment_count"]) == (0, 1)
    assert (lag["is_finished"], lag["recreated"]) == (False, [])
    with penstock_client.reader_group("groups/audit", ["groups/stream"]) as group, group.reader("two"):
        removed = penstock("group", "remove-reader", "groups/audit", "two").ok.stdout
        assert removed == "reader two is removed from reader group groups/audit\n"
    assert penstock("group", "remove-reader", "groups/audit", "two").code == 2
    shown = penstock("group", "lag", "groups/audit").ok.lines
    assert shown[2] == "segments without a reader: 1 (the group has no readers)"
    penstock("stream", "seal", "groups/stream").ok  # noqa: B018
    penstock("stream", "delete", "groups/stream", "--yes").ok  # noqa: B018
    penstock("stream", "create", "groups/stream").ok  # noqa: B018
    assert penstock("group", "lag", "groups/audit", "--json").ok.json["recreated"] == ["groups/stream"]
    assert "was deleted and created again" in penstock("group", "lag", "groups/audit").ok.stdout
    wrong = penstock("group", "reset", "groups/audit", "--to", "yesterday")
    assert wrong.code == 2
    assert penstock("group", "delete", "groups/audit").code == 2
    penstock("group", "delete", "groups/audit", "--yes").ok  # noqa: B018
    for command in (("describe",), ("lag",), ("reset", "--to", "latest"), ("delete", "--yes")):
        gone = penstock("group", command[0], "groups/audit", *command[1:])
        assert gone.code == 1
        assert "does not exist" in gone.stderr
    # And none of these made it.
    assert penstock("group", "list", "groups").ok.stdout == ""


def test_a_group_holds_its_streams_until_they_are_acknowledged(penstock: Run, penstock_client: Client) -> None:
    """By hand. Acknowledging an earlier cut changes nothing. Only a group with manual retention can acknowledge."""
    penstock("stream", "create", "held/stream").ok  # noqa: B018
    penstock("group", "create", "held/audit", "held/stream").ok  # noqa: B018
    penstock("write", "held/stream", stdin=b"aa\nbb\n").ok  # noqa: B018
    assert penstock("group", "describe", "held/audit", "--json").ok.json["retention"] == "none"
    head, tail = (cut.to_text() for cut in (penstock_client.head("held/stream"), penstock_client.tail("held/stream")))
    assert "retention 'none'" in penstock("group", "acknowledge", "held/audit", head).stderr
    penstock("group", "update", "held/audit", "--retention", "manual").ok  # noqa: B018
    described = penstock("group", "describe", "held/audit").ok.lines
    assert described[1] == "  its streams keep events that it has not acknowledged"
    assert "is after the stored position" in penstock("group", "acknowledge", "held/audit", tail).stderr
    penstock("group", "reset", "held/audit", "--to", "latest").ok  # noqa: B018
    assert penstock("group", "acknowledge", "held/audit", tail).ok.stdout == (
        f"reader group held/audit acknowledged {tail}\n"
    )
    assert not penstock("group", "acknowledge", "held/audit", head, "--json").ok.json["is_new"]
    assert f"  held/stream: acknowledged: {tail}" in penstock("group", "describe", "held/audit").ok.lines
    assert penstock("group", "describe", "held/audit", "--json").ok.json["acknowledged"] == {"held/stream": tail}
    listed = penstock("group", "list", "held", "--json").ok.json
    assert listed["groups"] == ["held/audit"]
    assert listed["overviews"][0]["streams"]["held/stream"]["acknowledged"] == tail
    penstock("group", "create", "held/other", "held/stream", "--retention", "automatic").ok  # noqa: B018
    assert penstock("group", "list", "held").ok.lines[2].split() == [
        "held/other", "penstock", "automatic", "held/stream", "nothing",
    ]  # fmt: skip
    assert penstock("group", "describe", "held/other").ok.lines[1] == "  its streams keep events that it has not read"


def test_a_group_reads_more_and_less_and_ends(penstock: Run) -> None:
    """Also streams that match a pattern."""
    for name in ("wider/orders-1", "wider/orders-2", "wider/other"):
        penstock("stream", "create", name).ok  # noqa: B018
        penstock("write", name, stdin=b"a\n").ok  # noqa: B018
    penstock("group", "create", "wider/g", "wider/orders-*").ok  # noqa: B018
    penstock("group", "create", "wider/ends", "wider/other", "--until", "latest").ok  # noqa: B018
    described = penstock("group", "describe", "wider/g", "--json").ok.json
    assert described["streams"] == ["wider/orders-1", "wider/orders-2"]
    assert described["patterns"] == ["wider/orders-*"]
    ends = penstock("group", "describe", "wider/ends", "--json").ok.json["ends"]
    assert isinstance(ends, dict)
    assert '"positions":{"0":9}' in ends["wider/other"]
    added = penstock("group", "update", "wider/g", "--add", "wider/other", "--from", "latest").ok.stdout
    assert added == "reader group wider/g reads wider/orders-1, wider/orders-2, wider/other\n"
    assert penstock("group", "lag", "wider/g", "--json").ok.json["unread_bytes"] == {
        "wider/orders-1": 9, "wider/orders-2": 9, "wider/other": 0,
    }  # fmt: skip
    less = penstock("group", "update", "wider/g", "--remove", "wider/other", "--json").ok.json
    assert less["streams"] == ["wider/orders-1", "wider/orders-2"]
    refused = penstock("group", "update", "wider/g", "--remove", "wider/orders-*")
    assert refused.code == 2
    assert "no change was given" in penstock("group", "update", "wider/g").stderr


def test_a_table_is_filled_looked_up_scanned_and_deleted(penstock: Run) -> None:
    """Keys and values are text; versions are conditions."""
    created = penstock("table", "create", "shelf/prices", "--partitions", "3").ok.stdout
    assert created == "table shelf/prices is created\n"
    penstock("table", "create", "shelf/prices", "--partitions", "3", "--exist-ok").ok  # noqa: B018
    assert "another configuration" in penstock("table", "create", "shelf/prices", "--exist-ok").stderr
    assert penstock("table", "list", "shelf").ok.lines == ["shelf/prices"]
    assert "table shelf/prices" in penstock("scope", "describe", "shelf").ok.lines
    version = penstock("table", "put", "shelf/prices", "apple", "120", "--json").ok.json["version"]
    penstock("table", "put", "shelf/prices", "pear", stdin=b"two\nlines").ok  # noqa: B018
    assert penstock("table", "get", "shelf/prices", "apple").ok.stdout == "120\n"
    entry = penstock("table", "get", "shelf/prices", "apple", "--json").ok.json
    assert entry == {"type": "entry", "key": "apple", "version": version, "value": "120"}
    assert penstock("table", "get", "shelf/prices", "pear").ok.stdout == "two\nlines\n"
    missing = penstock("table", "get", "shelf/prices", "plum")
    assert (missing.code, missing.stdout) == (1, "")
    assert missing.stderr == "penstock: shelf/prices has no key plum\n"
    assert penstock("table", "get", "shelf/prices", "plum", "--json").json["kind"] == "TableKeyMissingError"
    assert penstock("table", "put", "shelf/prices", "apple", "0", "--version", "-1").code == 1
    penstock("table", "put", "shelf/prices", "apple", "130", "--version", str(version)).ok  # noqa: B018
    stale = penstock("table", "put", "shelf/prices", "apple", "0", "--version", str(version), "--json")
    assert stale.json["kind"] == "TableKeyVersionError"
    assert penstock("table", "scan", "shelf/prices", "--prefix", "app").ok.lines == ["apple\t130"]
    assert [json.loads(line)["key"] for line in penstock("table", "scan", "shelf/prices", "--json").ok.lines] == [
        "apple", "pear",
    ]  # fmt: skip
    assert penstock("table", "scan", "shelf/prices", "-n", "1").ok.lines == ["apple\t130"]
    assert "keys: 2, of 32 bytes at most, partitions: 3" in penstock("table", "describe", "shelf/prices").ok.stdout
    penstock("table", "remove", "shelf/prices", "pear").ok  # noqa: B018
    penstock("table", "remove", "shelf/prices", "pear").ok  # noqa: B018
    assert penstock("table", "remove", "shelf/prices", "pear", "--version", "7").code == 1
    assert penstock("table", "delete", "shelf/prices").code == 2
    assert "Not deleted: shelf/prices (1 keys)." in penstock("table", "delete", "shelf/prices").stderr
    penstock("table", "delete", "shelf/prices", "--yes").ok  # noqa: B018
    gone = penstock("table", "describe", "shelf/prices")
    assert "list tables with penstock table list" in gone.stderr


def test_a_table_with_two_part_keys_is_queried_by_the_first_part(penstock: Run) -> None:
    """JSON marks values that are not text."""
    penstock("table", "create", "shelf/carts", "--key-length", "16", "--second-length", "8").ok  # noqa: B018
    for customer, item, count in (("ann", "apple", b"3"), ("ann", "pear", b"\xff"), ("bob", "apple", b"1")):
        penstock("table", "put", "shelf/carts", customer, "--second", item, stdin=count).ok  # noqa: B018
    assert penstock("table", "get", "shelf/carts", "bob", "--second", "apple").ok.stdout == "1\n"
    seen = penstock("table", "get", "shelf/carts", "ann", "--second", "pear", is_screen=True)
    assert seen.stdout == "\\xff\n"
    scanned = [json.loads(line) for line in penstock("table", "scan", "shelf/carts", "--key", "ann", "--json").ok.lines]
    assert [(each["key"], each["second"]) for each in scanned] == [("ann", "apple"), ("ann", "pear")]
    assert scanned[1]["value_base64"] == "/w=="
    assert penstock("table", "scan", "shelf/carts", "--key", "bob").ok.lines == ["bob/apple\t1"]
    described = penstock("table", "describe", "shelf/carts", "--json").ok.json
    assert (described["keys"], described["key_length"], described["second_length"]) == (3, 16, 8)
    too_long = penstock("table", "put", "shelf/carts", "x" * 17, "1")
    assert "the limit is 16" in too_long.stderr


def test_a_transaction_of_another_program_is_committed_or_aborted(penstock: Run, penstock_client: Client) -> None:
    """By its id; how they ended is listed."""
    stream = "decided/stream"
    penstock("stream", "create", stream).ok  # noqa: B018
    ids = []
    for verb, ended in (("commit", "COMMIT"), ("abort", "ABORT")):
        transaction = penstock_client.begin_transaction(stream)
        transaction.write(verb.encode())
        transaction.flush()
        ids.append(transaction.id)
        shown = penstock("transaction", "describe", stream, transaction.id).ok.lines
        assert shown[0] == f"transaction {transaction.id} on {stream}: OPEN"
        assert shown[3] == f"  holds    {8 + len(verb)} B"
        assert str(penstock("transaction", verb, stream, transaction.id, "--json").ok.json["state"]).startswith(ended)
    assert penstock("tail", stream, "--from", "earliest", "-n", "1").ok.lines == ["commit"]
    other = penstock("transaction", "commit", stream, ids[1])
    assert other.code == 1
    assert f"cannot commit transaction {ids[1]} on stream {stream}: it was aborted on request" in other.stderr
    assert penstock("transaction", "abort", stream, ids[0]).code == 1
    for wrong in ("1234", "g" * 32):
        refused = penstock("transaction", "describe", stream, wrong)
        assert "32 hexadecimal digits" in refused.stderr
    penstock("write", stream, "--transaction", stdin=b"x\n").ok  # noqa: B018
    assert penstock("tail", stream, "--from", "earliest", "-n", "2").ok.lines == ["commit", "x"]
    listed = penstock("transaction", "list", stream, "--json").ok.json["transactions"]
    assert isinstance(listed, list)
    assert {"transaction": ids[0], "state": "COMMITTED"} in listed
    assert all(json.dumps(each) for each in listed)


def test_a_prepared_transaction_refuses_writes_and_can_be_committed_or_aborted(penstock: Run) -> None:
    """The shell is a sink: it prepares two, and nothing is written into them; one is committed, one aborted."""
    stream = "admin/prepared"
    penstock("stream", "create", stream).ok  # noqa: B018
    ids = []
    for line in (b"kept\n", b"dropped\n"):
        ids.append(penstock("transaction", "create", stream).ok.stdout.strip())
        penstock("write", stream, "--transaction-id", ids[-1], stdin=line).ok  # noqa: B018
        told = penstock("transaction", "prepare", stream, ids[-1], "--limit-s", "600").ok.stdout
        assert told.startswith(f"transaction {ids[-1]} on {stream}: prepared, to be decided within ")
    assert penstock("write", stream, "--transaction-id", ids[0], stdin=b"more\n").code == 1
    assert "prepared" in penstock("stream", "seal", stream).stderr
    refused = penstock("transaction", "prepare", stream, ids[0], "--limit-s", "1e9")
    assert refused.code != 0
    assert "604800000" in refused.stderr
    assert penstock("transaction", "commit", stream, ids[0]).code == 0
    assert penstock("transaction", "abort", stream, ids[1]).code == 0
    penstock("stream", "seal", stream).ok  # noqa: B018
    assert penstock("read", stream).ok.stdout == "kept\n"


def test_several_writes_are_one_transaction(penstock: Run) -> None:
    """It is begun, written to twice, kept open and committed by commands of their own; what fails leaves it open."""
    stream = "decided/shared"
    penstock("stream", "create", stream).ok  # noqa: B018
    transaction = penstock("transaction", "create", stream, "--lease-s", "20").ok.stdout.strip()
    for line in (b"a\n", b"b\n"):
        written = penstock("write", stream, "--transaction-id", transaction, stdin=line).ok.stdout
        assert written == f"1 line is in transaction {transaction}\n"
    bad = penstock("write", stream, "--transaction-id", transaction, "--key-field", "k", stdin=b"no\n")
    assert bad.code == 1
    assert f"transaction {transaction} is still open" in bad.stderr
    assert penstock("transaction", "update", stream, transaction, "--lease-s", "30").ok.stdout == (
        f"transaction {transaction} on {stream}: open for 30 s more\n"
    )
    assert penstock("read", stream).ok.stdout == ""
    penstock("transaction", "commit", stream, transaction).ok  # noqa: B018
    assert sorted(penstock("tail", stream, "--from", "earliest", "-n", "2").ok.lines) == ["a", "b"]
    late = penstock("write", stream, "--transaction-id", transaction, stdin=b"c\n")
    assert late.code == 1
    assert "committed" in late.stderr.lower()
    assert "32 hexadecimal digits" in penstock("write", stream, "--transaction-id", "x", stdin=b"c\n").stderr


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["stream", "create", "no-slash"], "write it as 'scope/stream'"),
        (["stream", "create", "bad name/x"], "scope name 'bad name'"),
        (["stream", "create", "s/x", "--keep-time", "seven"], "'seven' is not a duration"),
        (["stream", "create", "s/x", "--keep-bytes", "7furlongs"], "'7furlongs' is not a size"),
        (["stream", "create", "s/x", "--keep-time", "7d", "--keep-bytes", "1"], "not by both"),
        (["stream", "create", "s/x", "--keep-max", "7d"], "--keep-max needs"),
        (["stream", "create", "s/x", "--event-rate", "7", "--data-rate", "1"], "not by both"),
        (["stream", "update", "s/x"], "no change was given"),
        (["stream", "update", "s/x", "--tag", "a", "--no-tags"], "exclude each other"),
        (["stream", "truncate", "s/x", "--at", "@/does/not/exist"], "cannot read the position from /does/not/exist"),
        (["read", "s/x", "--from", '{"v": 2}'], "format version 2"),
        (["read", "s/x", "--from", OTHER_CUT], "belongs to s/y, not to s/x"),
        (["write", "s/x", "--key", "a", "--key-field", "b"], "exclude each other"),
        (["write", "s/x", "--transaction", "--transaction-id", "0" * 32], "exclude each other"),
        (["table", "create", "no-slash"], "write it as 'scope/table'"),
        (["table", "describe", "s/nope"], "does not exist"),
        (["read", "s/x", "--from", "2026-11-22T25:30"], "is not a time: write it as now, -1h"),
        (["group", "describe", "no-slash"], "write it as 'scope/group'"),
        (["group", "create", "s/g", "nope/nope"], "does not exist"),
        (["scope", "describe", "not-there"], "does not exist"),
        (["stream", "seal", "s/x", "--uri", "http://localhost:1"], "the scheme must be tcp or tls"),
        (["stream", "seal", "s/x", "--uri", "localhost"], "write each address as host:port"),
    ],
)
def test_bad_input_is_reported_in_a_line_or_two(penstock: Run, arguments: list[str], told: str) -> None:
    """Exit code 2, and 1 for names that do not exist; no traceback; as JSON the same."""
    code = 1 if told == "does not exist" else 2
    refused = penstock(*arguments)
    assert (refused.code, refused.stdout) == (code, "")
    assert told in refused.stderr
    assert refused.stderr.startswith("penstock: ")
    as_json = penstock(*arguments, "--json")
    assert as_json.code == code
    assert told in str(as_json.json["message"])


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["stream", "fly"], "No such command 'fly'"),
        (["stream", "create"], "STREAM"),
        (["stream", "create", "s/x", "--segments", "0"], "--segments"),
        (["read", "s/x", "--format", "xml"], "--format"),
        (["read", "s/x", "--count", "many"], "--count"),
        (["read", "s/x", "--colour"], "--colour"),
        (["write", "s/x", "--rate", "-1"], "--rate"),
        (["fly"], "No such command 'fly'"),
    ],
)
def test_a_wrong_command_line_ends_with_2(penstock: Run, arguments: list[str], told: str) -> None:
    """And says what is wrong with it, with --json as a record."""
    refused = penstock(*arguments)
    assert (refused.code, refused.stdout) == (2, "")
    assert told in refused.stderr
    as_json = penstock(*arguments, "--json")
    assert (as_json.code, as_json.stderr) == (2, "")
    assert (as_json.json["type"], as_json.json["kind"]) == ("error", "UsageError")
    assert told in str(as_json.json["message"])
    assert "--help" in str(as_json.json["hint"])


def test_a_stream_is_split_and_merged(penstock: Run, penstock_client: Client) -> None:
    """By the ids that describe prints; what is read comes in the order of its keys whatever was in between."""
    stream = "scaled/orders"
    penstock("stream", "create", stream)
    with penstock_client.event_writer(stream) as writer:
        writer.write(b"1", routing_key="a")
    split = penstock("stream", "scale", stream, "--split", "0", "--into", "3", "--json").ok.json
    ids = [each["segment"] for each in split["segments"]]
    assert [each["key_low"] for each in split["segments"]] == [0.0, 1 / 3, 2 / 3]
    with penstock_client.event_writer(stream) as writer:
        writer.write(b"2", routing_key="a")
    merged = penstock("stream", "scale", stream, "--merge", str(ids[1]), "--merge", str(ids[0]))
    assert merged.ok.lines[0] == f"stream {stream} has 2 segments"
    with penstock_client.event_writer(stream) as writer:
        writer.write(b"3", routing_key="a")
    assert penstock("read", stream).ok.lines == ["1", "2", "3"]
    assert penstock("stream", "update", stream, "--segments", "4").ok
    described = penstock("stream", "describe", stream, "--json").ok.json
    assert sum(not segment["is_sealed"] for segment in described["segments"]) == 4
    for wrong, said in (
        (["--split", "0"], "0 is not a current segment"),
        ([], "give --split SEGMENT"),
        (["--split", "1", "--merge", "2"], "give --split SEGMENT"),
    ):
        refused = penstock("stream", "scale", stream, *wrong)
        assert refused.code != 0
        assert said in refused.stderr


def test_names_are_completed_from_existing_ones(
    penstock: Run, penstock_server: MemoryServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the scopes that begin so, or of the scope that is typed; where nothing answers there is nothing to say."""
    for stream in ("complete/one", "complete/other", "complete-too/one"):
        penstock("stream", "create", stream).ok  # noqa: B018
    penstock("group", "create", "complete/group", "complete/one").ok  # noqa: B018
    penstock("table", "create", "complete/table").ok  # noqa: B018
    monkeypatch.setenv("PENSTOCK_URI", penstock_server.uri)
    context = mock.Mock(params={})
    assert sorted(complete_streams(context, "compl")) == ["complete-too/one", "complete/one", "complete/other"]
    assert complete_streams(context, "complete/ot") == ["complete/other"]
    assert complete_streams(context, "nothing/") == []
    assert sorted(complete_scopes(context, "compl")) == ["complete", "complete-too"]
    assert complete_groups(context, "complete") == ["complete/group"]
    assert complete_tables(context, "complete/") == ["complete/table"]
    assert complete_streams(mock.Mock(params={"uri": "tcp://127.0.0.1:1"}), "compl") == []
    assert complete_streams(mock.Mock(params={"uri": "nonsense"}), "compl") == []
