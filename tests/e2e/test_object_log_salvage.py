"""``penstock log salvage --log s3://...``: an object of a real bucket is damaged, and real servers continue."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from e2e.test_corruption import CONTROLLER_CONTAINER, MARK, USER_CONTAINER, change_a_byte, segment_in, write
from penstock.server.standalone_process import StandaloneProcess, run_penstock
from penstock.wire.commands import (
    AppendBlockEnd,
    AppendSetup,
    DataAppended,
    ReadSegment,
    SegmentRead,
    SetupAppend,
)
from support.bucket_server import Make, bucket_options
from support.s3_server import S3Server
from support.wire_client import WireClient

pytestmark = [pytest.mark.e2e, pytest.mark.nightly, pytest.mark.timeout(900)]

BEFORE = b"before"
AFTER = [b"after %d" % index for index in range(20)]


@pytest.fixture
def options(s3_server: S3Server, tmp_path: Path) -> tuple[str, ...]:
    """Options of servers with one log, in a bucket of its own. Bytes stay in the log: nothing else has them."""
    found = bucket_options(s3_server, tmp_path)
    config = Path(found[1])
    config.write_text(config.read_text().replace("flush_age_s = 0.5", "flush_age_s = 3600.0"))
    return found


@pytest.fixture
def make(make_server: Make, options: tuple[str, ...]) -> Callable[[], StandaloneProcess]:
    """Make a server, as on another machine: nothing is there but the options."""
    return lambda: make_server(*options)


@pytest.fixture
def folder(s3_server: S3Server, options: tuple[str, ...]) -> Path:
    """Return the directory that has the objects of the log."""
    return s3_server.directory / "data" / options[3].removeprefix("s3://")


def write_more(server: StandaloneProcess, segment: str, *blocks: bytes) -> None:
    """Append blocks to a segment, each acknowledged, as another writer."""
    with WireClient(server.segment_store_port) as client:
        writer = uuid.uuid4().bytes
        client.ask(SetupAppend(client.next_id(), writer, segment, ""), AppendSetup)
        for number, block in enumerate(blocks, 1):
            client.ask(AppendBlockEnd(writer, len(block), block, 1, number, client.next_id()), DataAppended)


def read(server: StandaloneProcess, segment: str) -> bytes:
    """Return the bytes of a short segment."""
    with WireClient(server.segment_store_port) as client:
        data = client.ask(ReadSegment(segment, 0, 1000, "", 1), SegmentRead).data
        assert isinstance(data, bytes | bytearray | memoryview)
        return bytes(data)


def salvage(options: tuple[str, ...], container: int) -> dict[str, object]:
    """Report what would be lost, and salvage; return the record."""
    told = run_penstock("log", "salvage", str(container), *options, "--dry-run", timeout_s=200.0)
    assert told.returncode == 0, told.stderr
    lost_to = len(BEFORE) + len(MARK) + sum(map(len, AFTER))
    assert f"lost: {segment_in(container)} (id " in told.stdout, told.stdout
    assert f"bytes {len(BEFORE)} to {lost_to}, at least 20 events" in told.stdout, told.stdout
    assert "nothing was changed" in told.stdout
    done = run_penstock("log", "salvage", str(container), *options, "--json", timeout_s=200.0)
    assert done.returncode == 0, done.stderr
    record: dict[str, object] = json.loads(done.stdout)
    report = record["report"]
    assert isinstance(report, dict)
    (loss,) = report["segments"]
    assert (loss["name"], loss["start"], loss["end"]) == (segment_in(container), len(BEFORE), lost_to)
    return record


def test_a_damaged_log_in_a_bucket_is_salvaged_and_all_that_is_intact_is_served(
    make: Callable[[], StandaloneProcess], options: tuple[str, ...], folder: Path
) -> None:
    """A container under the controller, after a kill: the start fails until it is salvaged. The evidence is kept."""
    server = make().start()
    damaged = CONTROLLER_CONTAINER
    write(server, segment_in(damaged), BEFORE)
    time.sleep(0.2)  # In another object.
    write_more(server, segment_in(damaged), MARK)
    time.sleep(0.2)
    write_more(server, segment_in(damaged), *AFTER)
    write(server, segment_in(damaged, 1), b"of another segment")
    write(server, segment_in(USER_CONTAINER), b"of another container")
    server.kill9()
    path, _ = change_a_byte(folder / "j", MARK)
    content = path.read_bytes()
    server = make()
    assert server.launch()["kind"] == "CorruptionError"
    assert server.wait() == 1

    record = salvage(options, damaged)
    kept = folder / "damaged" / Path(str(record["damaged_path"])).name
    copy = kept / path.relative_to(folder)
    assert copy.read_bytes() == content
    swept = json.loads(run_penstock("log", "sweep", *options[:4], "--json", timeout_s=200.0).stdout)
    assert swept["foreign_count"] == 0
    assert copy.exists()

    server = make().start()
    assert server.ready["failures"] == {}
    assert read(server, segment_in(damaged)) == BEFORE
    assert read(server, segment_in(damaged, 1)) == b"of another segment"
    assert read(server, segment_in(USER_CONTAINER)) == b"of another container"
    write(server, segment_in(damaged, 2), b"continues")
    assert read(server, segment_in(damaged, 2)) == b"continues"
