"""`penstock export --subscriber`: retention keeps what the table lacks, and a group has the lag of the export."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock
from penstock.jobs import export_hold
from penstock.jobs.export_hold import ExportHold
from penstock.model.errors import ControllerUnavailableError, InvalidArgumentError
from penstock.model.stream_cuts import StreamCut
from penstock.spark.options import StoreSettings
from penstock.testing import MemoryServer, memory_server
from support.command_line import run_command

GROUP = "exports/export-lake"


@pytest.fixture(scope="module")
def server() -> Iterator[MemoryServer]:
    with memory_server() as running:
        yield running


@pytest.fixture
def client(server: MemoryServer) -> Iterator[penstock.Client]:
    with server.connect() as connected:
        yield connected
        connected.delete_scope("exports", recursive=True)


def unread(client: penstock.Client) -> dict[str, int]:
    """Return the bytes that the group of the export lacks, by stream."""
    with client.reader_group(GROUP) as group:
        return dict(group.describe().unread_bytes)


def moved(cut: StreamCut, offset: int) -> StreamCut:
    """Return a cut of a stream of one segment at another offset."""
    return StreamCut(cut.scope, cut.stream, dict.fromkeys(cut.positions, offset))


def write(client: penstock.Client, stream: str, count: int) -> None:
    with client.event_writer(stream) as writer:
        for number in range(count):
            writer.write(b"event %03d" % number, routing_key=str(number))


def test_an_export_holds_what_its_table_lacks(client: penstock.Client, server: MemoryServer, tmp_path: Path) -> None:
    client.create_stream("exports/all", scaling=penstock.Scaling.fixed(2), retention=penstock.Retention.by_size(1))
    write(client, "exports/all", 20)
    words = ("export", "exports/all", "--to", "parquet", "--directory", str(tmp_path / "out"), "--once",
             "--batch-size", "100B", "--subscriber", "lake", "--json")  # fmt: skip
    first = run_command(*words, uri=server.uri).ok.json
    assert first["event_count"] == 20
    assert first["commit_count"] != 1
    assert unread(client) == {"exports/all": 0}
    write(client, "exports/all", 7)
    assert unread(client) == {"exports/all": 7 * 17}
    holders = client.explain_retention("exports/all").subscribers
    assert [(each.name, each.place.size_bytes) for each in holders] == [(GROUP, 20 * 17)]
    assert run_command(*words, uri=server.uri).ok.json["event_count"] == 7
    assert unread(client) == {"exports/all": 0}


def test_a_run_releases_what_a_run_before_it_committed(client: penstock.Client, server: MemoryServer) -> None:
    """The run before was killed between the commit and the release."""
    client.create_stream("exports/all", scaling=penstock.Scaling.fixed(1))
    write(client, "exports/all", 10)
    start = client.head("exports/all")
    settings = StoreSettings(uri=server.uri)
    ExportHold(settings, "exports", "lake").begin(start)
    assert unread(client) == {"exports/all": 170}
    ExportHold(settings, "exports", "lake").begin(moved(start, 68))
    assert unread(client) == {"exports/all": 102}


def test_a_release_that_fails_is_no_error_of_the_export(
    client: penstock.Client, server: MemoryServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    client.create_stream("exports/all", scaling=penstock.Scaling.fixed(1))
    write(client, "exports/all", 10)
    start = client.head("exports/all")
    hold = ExportHold(StoreSettings(uri=server.uri), "exports", "lake")
    hold.begin(start)

    def fails(*arguments: object) -> None:
        raise ControllerUnavailableError("away")

    with monkeypatch.context() as patched, caplog.at_level(logging.WARNING):
        patched.setattr(export_hold, "release", fails)
        hold.advance(moved(start, 34))
    assert "holds exported events until the next commit: away" in caplog.text
    assert unread(client) == {"exports/all": 170}
    hold.advance(moved(start, 68))
    assert unread(client) == {"exports/all": 102}


def test_the_group_of_another_stream_is_not_taken(client: penstock.Client, server: MemoryServer) -> None:
    for stream in ("exports/all", "exports/other"):
        client.create_stream(stream, scaling=penstock.Scaling.fixed(1))
        write(client, stream, 10)
    settings, start = StoreSettings(uri=server.uri), client.head("exports/all")
    ExportHold(settings, "exports", "lake").begin(start)
    with pytest.raises(InvalidArgumentError, match="holds events of exports/all: give the export of exports/other"):
        ExportHold(settings, "exports", "lake").begin(client.head("exports/other"))
    assert unread(client) == {"exports/all": 170}
