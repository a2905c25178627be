"""Open transactions from the command line, and where a stream is in the times that its writers note."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

import penstock
from penstock.client.controller.transaction_ids import id_of
from penstock.client.sync.client import Client
from penstock.client.transport.wire_segments import WireSegments
from penstock.controller.settings import ControllerSettings, WatermarkSettings
from penstock.model.errors import ContainerOfflineError
from penstock.model.policies import Scaling
from penstock.runtime.portal import Portal
from penstock.server.settings import StandaloneSettings
from penstock.server.standalone import Standalone
from support.command_line import run_command

from .conftest import Run

_names = iter(range(1_000_000))


@pytest.fixture(scope="module")
def uri() -> Iterator[str]:
    """A server with short pages that makes watermarks all the time."""
    settings = StandaloneSettings(
        is_memory=True, host="127.0.0.1", controller_port=0, segment_store_port=0,
        controller=ControllerSettings(page_entries_max=7, watermarks=WatermarkSettings(interval_s=0.05)),
    )  # fmt: skip
    portal = Portal("commands-server")
    server = Standalone(settings)
    portal.call(server.start(), 60)
    yield server.controller_uri
    portal.call(server.stop(), 60)
    portal.close()


@pytest.fixture
def run(uri: str) -> Run:
    return partial(run_command, uri=uri)


@pytest.fixture
def client(uri: str) -> Iterator[Client]:
    with penstock.connect(uri) as connected:
        yield connected


@pytest.fixture
def stream(client: Client) -> str:
    """A fresh stream of three segments."""
    name = f"commands/s{next(_names)}"
    client.create_stream(name, scaling=Scaling.fixed(3))
    return name


def test_open_transactions_are_listed_with_age_lease_and_size(run: Run, client: Client, stream: str) -> None:
    """Those of several pages, each with the bytes of its events and their headers; what has ended comes after them."""
    begun_s = time.monotonic()
    made = [client.begin_transaction(stream, lease_s=500) for _ in range(20)]
    for number, each in enumerate(made):
        for key in range(number):
            each.write(bytes(92), f"key{key}")
        each.flush()
    ended = client.begin_transaction(stream)
    ended.commit()
    answer = run("transaction", "list", stream, "--json").ok.json
    passed_s = time.monotonic() - begun_s
    assert answer["is_every_open_one_shown"] is True
    listed = answer["transactions"]
    assert isinstance(listed, list)
    by_id = {each["transaction"]: each for each in listed}
    assert len(by_id) == len(listed) == 21
    for number, one in enumerate(made):
        found = by_id[one.id]
        assert (found["state"], found["lease_s"], found["bytes"]) == ("OPEN", 500, 100 * number)
        assert 0 <= found["age_s"] <= passed_s + 1
        # Its lease is renewed, and with the slack after it.
        assert 499 - passed_s < found["lease_left_s"] <= 506
        assert found["writer"] == ""
    assert by_id[ended.id]["state"] in ("COMMITTING", "COMMITTED")
    lines = run("transaction", "list", stream, "--open", "-n", "5").ok.lines
    assert lines[0].split() == ["TRANSACTION", "STATE", "AGE", "S", "LEASE", "LEFT", "S", "BYTES", "WRITER"]
    assert len(lines) == 1 + 5 + 1
    assert lines[-1] == "more than these 5 are open: raise --count to see them"
    assert len(run("transaction", "list", stream, "--open", "-n", "20").ok.lines) == 1 + 20
    for each in made:
        each.abort()
    left = run("transaction", "list", stream, "--open", "--json").ok.json["transactions"]
    assert isinstance(left, list)
    assert {each["state"] for each in left} <= {"ABORTING"}
    assert run("transaction", "list", "commands/none").code == 1


def test_one_transaction_is_described_in_each_state(run: Run, client: Client, stream: str) -> None:
    """Open, prepared, committed, aborted, unknown: what is known of each, for people and for programs."""
    one = client.begin_transaction(stream, lease_s=500)
    one.write(bytes(92))
    one.flush()
    lines = run("transaction", "describe", stream, one.id).ok.lines
    assert lines[0] == f"transaction {one.id} on {stream}: OPEN"
    assert [line.split()[0] for line in lines[1:]] == ["began", "lease", "holds"]
    assert re.search(r"500 s, \d+m(\d+s)? left; with renewals it may stay open for ", lines[2])
    assert lines[3] == "  holds    100 B"
    one.detach()

    async def prepare() -> float:
        calls = client._client._controller_client
        return await calls.prepare_transaction(*stream.split("/"), id_of(one.id), limit_ms=7_200_000)  # type: ignore[arg-type, misc]

    client._portal.call(prepare())
    lines = run("transaction", "describe", stream, one.id).ok.lines
    assert lines[0].endswith(": PREPARED")
    assert lines[2].startswith("  limit    ")
    assert lines[2].endswith(" left to commit or abort it")
    assert run("transaction", "list", stream, "--open", "--json").ok.json["transactions"][0]["state"] == "PREPARED"  # type: ignore[index]
    run("transaction", "commit", stream, one.id).ok  # noqa: B018
    assert run("transaction", "describe", stream, one.id).ok.lines[0].split()[-1] in ("COMMITTING", "COMMITTED")
    other = client.begin_transaction(stream)
    run("transaction", "abort", stream, other.id).ok  # noqa: B018
    assert "  aborted  on request" in run("transaction", "describe", stream, other.id).ok.lines
    assert run("transaction", "describe", stream, other.id, "--json").ok.json["abort_reason"] == "REQUESTED"
    unknown = run("transaction", "describe", stream, "7" * 32).ok.lines
    assert unknown == [f"transaction {'7' * 32} on {stream}: UNKNOWN"]
    refused = run("transaction", "commit", stream, other.id, "--json")
    assert (refused.code, refused.json["kind"]) == (1, "TransactionAbortedError")


def test_lengths_are_requested_in_bounded_batches(client: Client, stream: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of so many segments at once; a transaction whose segments are on a store that is away has no length."""
    monkeypatch.setattr("penstock.client.transactions.open_transactions._SEGMENTS_AT_ONCE", 7)
    made = [client.begin_transaction(stream) for _ in range(5)]
    asked: list[int] = []
    real = WireSegments.segment_infos

    async def counted(self: WireSegments, segments: list[str]) -> list[object]:
        asked.append(len(segments))
        infos = list(await real(self, segments))
        away = [made[0].id in name for name in segments]
        return [ContainerOfflineError(0) if is_away else info for is_away, info in zip(away, infos, strict=True)]

    monkeypatch.setattr(WireSegments, "segment_infos", counted)

    found = {each.id: each.length_bytes for each in client.open_transactions(stream)}
    assert found == {each.id: None if each is made[0] else 0 for each in made}
    assert asked == [6, 6, 3]
    for each in made:
        each.abort()


def watermark_of(run: Run, stream: str, lower: int) -> dict[str, object]:
    """Wait for a watermark: it comes some time after the times that make it."""
    for _ in range(600):
        found = run("stream", "watermark", stream, "--json").ok.json["watermark"]
        if isinstance(found, dict) and found["lower_bound"] == lower:
            return found
        time.sleep(0.1)
    raise AssertionError(f"there was no watermark of {lower}")


def test_the_latest_watermark_and_cuts_at_times(run: Run, client: Client, stream: str, tmp_path: Path) -> None:
    """A stream is divided where its writers had come to a time: between two reads, and for what takes a cut."""
    assert "has no watermark" in run("stream", "watermark", stream).ok.stdout
    assert run("stream", "watermark", stream, "--json").ok.json["watermark"] is None
    early = run("stream", "cut", stream, "--at", "noted:10")
    assert early.code == 1
    assert "no watermark of" in early.stderr
    with client.event_writer(stream) as writer:
        for noted in (10, 20, 30):
            for number in range(6):
                writer.write(b"%d" % noted, f"key{number}")
            writer.note_time(noted)
            shown = watermark_of(run, stream, noted)
            assert shown["upper_bound"] == noted
    lines = run("stream", "watermark", stream).ok.lines
    assert lines[0] == f"stream {stream}: events noted at 30 or before are before the cut"
    assert lines[3] == f"  cut          {client.tail(stream).to_text()}"
    assert shown["cut"] == client.tail(stream).to_text()
    middle = run("stream", "cut", stream, "--at", "noted:20").ok.stdout
    assert json.loads(middle)["stream"] == stream.split("/")[1]
    kept = tmp_path / "cut.json"
    kept.write_text(middle)
    for position in ("noted:20", f"@{kept}"):
        before = run("read", stream, "--until", position).ok.lines
        assert sorted(before) == ["10"] * 6 + ["20"] * 6
        assert run("read", stream, "--from", position).ok.lines == ["30"] * 6
    assert run("stream", "cut", stream, "--at", "latest", "--json").ok.json["cut"] == client.tail(stream).to_text()
    # Nothing was stored before; a stream this short keeps no times of what is in it.
    assert run("stream", "cut", stream, "--at", "2001-01-01T00:00Z").ok.stdout.strip() == client.head(stream).to_text()
    behind = run("stream", "cut", stream, "--at", "2001-01-01T00:00Z", "--end").ok.stdout.strip()
    assert behind == client.tail(stream).to_text()
    assert run("stream", "cut", stream, "--at", "noted:31").code == 1
    assert run("stream", "cut", stream, "--at", "noted:soon").code == 2
    assert run("stream", "watermark", "commands/none").code == 1
    run("stream", "truncate", stream, "--at", "noted:20", "--yes").ok  # noqa: B018
    assert run("read", stream).ok.lines == ["30"] * 6


def test_times_of_transactions_are_seen(run: Run, client: Client, stream: str) -> None:
    """A commit with a time makes a watermark."""
    transaction = client.begin_transaction(stream)
    transaction.write(b"one")
    transaction.commit(time=1_700_000_000_000)
    shown = watermark_of(run, stream, 1_700_000_000_000)
    assert shown["cut"] == client.tail(stream).to_text()


def test_a_commit_from_the_command_line_notes_a_time(run: Run, client: Client, stream: str) -> None:
    """A number, or a moment; with what can be none of them nothing is decided."""
    for text, noted in (("1700000000000", 1_700_000_000_000), ("2026-01-01T00:00Z", 1_767_225_600_000)):
        transaction = client.begin_transaction(stream)
        transaction.write(b"one")
        transaction.detach()
        for wrong in ("-5", "soon", "2026-01-41"):
            assert run("transaction", "commit", stream, transaction.id, "--time", wrong).code == 2
        assert client.transaction_state(stream, transaction.id) == "OPEN"
        answer = run("transaction", "commit", stream, transaction.id, "--time", text, "--json").ok.json
        assert answer["state"] in ("COMMITTING", "COMMITTED")
        assert watermark_of(run, stream, noted)["cut"] == client.tail(stream).to_text()
