"""A changed byte in what the server has stored is reported with file and offset, and never served."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import penstock
from penstock.controller.metadata.layout import SYSTEM_TABLES
from penstock.model.routing import container_of
from penstock.wire.commands import (
    AppendBlockEnd,
    AppendSetup,
    CreateSegment,
    DataAppended,
    GetStreamSegmentInfo,
    ReadSegment,
    SegmentCreated,
    SegmentRead,
    SetupAppend,
    StreamSegmentInfo,
    WireCommand,
    WrongHost,
)
from support.standalone_process import StandaloneProcess, run_penstock
from support.wire_client import WireClient

pytestmark = pytest.mark.e2e

CONTAINER_COUNT = 4
MARK = b"here is the event that will be damaged"
FLUSHING = """
[segment_store.container]
flush_bytes = 65536
flush_age_s = 0.05
writer_interval_s = 0.02
checkpoint_log_bytes_idle = 65536
"""


def segment_in(container_id: int, number: int = 0) -> str:
    """Return the name of a segment that lives in a container, one of many."""
    names = (f"scope/stream{index}/0.#epoch.0" for index in range(1000))
    return [name for name in names if container_of(name, CONTAINER_COUNT) == container_id][number]


def write(server: StandaloneProcess, segment: str, *blocks: bytes) -> None:
    """Create a segment and append blocks to it, each acknowledged."""
    with WireClient(server.segment_store_port) as client:
        client.ask(CreateSegment(client.next_id(), segment, 0, 0, "", 0), SegmentCreated)
        client.ask(SetupAppend(client.next_id(), b"w" * 16, segment, ""), AppendSetup)
        for number, block in enumerate(blocks, 1):
            client.ask(AppendBlockEnd(b"w" * 16, len(block), block, 1, number, client.next_id()), DataAppended)


def change_a_byte(directory: Path, mark: bytes) -> tuple[Path, int]:
    """Flip one bit in the first file under `directory` that holds `mark`; return the file and the mark's offset."""
    for path in sorted(directory.rglob("*")):
        if path.is_file() and (offset := path.read_bytes().find(mark)) >= 0:
            with path.open("r+b") as file:
                file.seek(offset + 5)
                byte = file.read(1)[0]
                file.seek(offset + 5)
                file.write(bytes([byte ^ 0x10]))
            return path, offset
    raise AssertionError(f"{mark!r} is in no file under {directory}")


def controller_containers() -> set[int]:
    """Return the containers that hold tables of the controller."""
    return {container_of(table, CONTAINER_COUNT) for table in SYSTEM_TABLES}


#: A container whose loss the controller survives, and one whose loss it doesn't.
USER_CONTAINER = min(set(range(CONTAINER_COUNT)) - controller_containers())
CONTROLLER_CONTAINER = min(controller_containers())


def test_a_damaged_log_is_reported_and_its_container_stays_offline(
    make_server: Callable[..., StandaloneProcess],
) -> None:
    """A byte in the middle of a log, with acknowledged frames after it: not a torn tail but damage."""
    server = make_server().start()
    damaged = USER_CONTAINER
    others = [index for index in range(CONTAINER_COUNT) if index != damaged]
    write(server, segment_in(damaged), b"before", MARK, *(b"after %d" % index for index in range(20)))
    write(server, segment_in(others[0]), b"untouched")
    server.kill9()
    path, offset = change_a_byte(server.data_dir / "tier1" / str(damaged), MARK)
    content = path.read_bytes()

    server.start()
    failures = server.ready["failures"]
    assert isinstance(failures, dict)
    assert list(failures) == [str(damaged)]
    assert str(path) in failures[str(damaged)]
    numbers = [int(number) for number in re.findall(r"\d+", failures[str(damaged)].replace(str(path), ""))]
    assert any(0 <= offset - number < 4096 for number in numbers), failures
    assert str(path) in server.log

    with WireClient(server.segment_store_port) as client:
        for request in (
            ReadSegment(segment_in(damaged), 0, 1000, "", 1),
            GetStreamSegmentInfo(1, segment_in(damaged), ""),
            SetupAppend(1, b"w" * 16, segment_in(damaged), ""),
        ):
            client.ask(request, WrongHost)
        reply = client.ask(ReadSegment(segment_in(others[0]), 0, 1000, "", 1), SegmentRead)
        assert bytes(reply.data) == b"untouched"
    probe = run_penstock("ready", "--uri", server.uri)
    assert probe.returncode == 1
    assert "corrupt data" in probe.stderr
    assert server.terminate() == 0
    # The evidence is kept as it was.
    assert path.read_bytes() == content


def test_damaged_logs_are_salvaged_and_all_that_is_intact_is_served(
    make_server: Callable[..., StandaloneProcess],
) -> None:
    """A container of users and one under the controller, after a kill: the start fails until both are salvaged."""
    server = make_server().start()
    damaged = (USER_CONTAINER, CONTROLLER_CONTAINER)
    with penstock.connect(server.uri) as client:
        client.create_stream("shop/orders")
    for container in damaged:
        write(server, segment_in(container), b"before", MARK, *(b"after %d" % index for index in range(20)))
        write(server, segment_in(container, 1), b"of another segment")
    server.kill9()
    evidence = {}
    for container in damaged:
        path, _ = change_a_byte(server.data_dir / "tier1" / str(container), MARK)
        evidence[container] = (path.name, path.read_bytes())
    assert server.launch()["kind"] == "CorruptionError"
    assert server.wait() == 1

    where = ("--data-dir", str(server.data_dir))
    for container in damaged:
        told = run_penstock("log", "salvage", str(container), *where, "--dry-run")
        assert told.returncode == 0, told.stderr
        lost_from = len(b"before")
        lost_to = lost_from + len(MARK) + sum(len(b"after %d" % index) for index in range(20))
        line = f"lost: {segment_in(container)} (id "
        assert line in told.stdout
        assert f"bytes {lost_from} to {lost_to}, at least 20 events" in told.stdout
        assert "nothing was changed" in told.stdout
        done = run_penstock("log", "salvage", str(container), *where, "--json")
        assert done.returncode == 0, done.stderr
        record = json.loads(done.stdout)
        assert record["type"] == "log_salvage"
        (loss,) = record["report"]["segments"]
        assert (loss["name"], loss["start"], loss["end"]) == (segment_in(container), lost_from, lost_to)
        name, content = evidence[container]
        assert (Path(record["damaged_path"]) / name).read_bytes() == content
        again = run_penstock("log", "salvage", str(container), *where)
        assert again.returncode == 2
        assert "is not damaged" in again.stderr

    server.start()
    assert server.ready["failures"] == {}
    with WireClient(server.segment_store_port) as client:
        for container in damaged:
            reply = client.ask(ReadSegment(segment_in(container), 0, 1000, "", 1), SegmentRead)
            assert bytes(reply.data) == b"before"
            reply = client.ask(ReadSegment(segment_in(container, 1), 0, 1000, "", 1), SegmentRead)
            assert bytes(reply.data) == b"of another segment"
    with penstock.connect(server.uri) as client, client.event_writer("shop/orders") as writer:
        writer.write(b"continues", routing_key="key")


def test_a_damaged_log_under_the_controller_stops_the_start(make_server: Callable[..., StandaloneProcess]) -> None:
    """Without its tables the controller serves nothing: the start fails at once and says why."""
    server = make_server().start()
    write(server, segment_in(CONTROLLER_CONTAINER), MARK, *(b"after %d" % index for index in range(20)))
    server.kill9()
    path, _ = change_a_byte(server.data_dir / "tier1" / str(CONTROLLER_CONTAINER), MARK)
    refused = server.launch()
    assert refused["kind"] == "CorruptionError"
    assert str(path) in str(refused["message"])
    assert server.wait() == 1


def test_a_damaged_chunk_is_reported_and_its_bytes_are_not_served(
    make_server: Callable[..., StandaloneProcess], tmp_path: Path
) -> None:
    """Data that were flushed to long-term storage and damaged there: a read of them fails, and says where."""
    settings = tmp_path / "settings.toml"
    settings.write_text(FLUSHING)
    server = make_server("--config", str(settings), "--log-level", "info").start()
    segment = segment_in(USER_CONTAINER)
    filler = b"x" * 8192
    write(server, segment, *[filler] * 20, MARK, *[filler] * 20)
    chunks = server.data_dir / "tier2"
    wait_for_flush(server, chunks, 40 * len(filler) + len(MARK))
    # Until the log is truncated, a restart brings the bytes back to memory and reads never touch the chunk.
    for _ in range(5):
        time.sleep(1.0)
        server.restart()
        if replayed_bytes(server, USER_CONTAINER) < len(filler):
            break
    else:
        pytest.fail(f"the log of container {USER_CONTAINER} is never truncated\n{server.log}")
    assert server.terminate() == 0, server.log
    path, offset = change_a_byte(chunks, MARK)

    server.start()
    with WireClient(server.segment_store_port) as client:
        info = client.ask(GetStreamSegmentInfo(1, segment, ""), StreamSegmentInfo)
        assert info.write_offset == 40 * len(filler) + len(MARK)
        client.send(ReadSegment(segment, 20 * len(filler), len(MARK), "", 2))
        assert_not_served(client)
    assert str(path.relative_to(chunks)) in server.log, server.log
    told = " ".join(line for line in server.log.splitlines() if path.name in line)
    numbers = [int(number) for number in re.findall(r"\d+", told)]
    assert any(0 <= offset - number < 65536 for number in numbers), server.log


def replayed_bytes(server: StandaloneProcess, container_id: int) -> int:
    """Return how much of its log a container had to replay at the latest start."""
    return int(re.findall(rf"container {container_id} runs: .* \((\d+) bytes\)", server.log)[-1])


def wait_for_flush(server: StandaloneProcess, chunks: Path, length: int) -> None:
    """Wait until the marked bytes are in long-term storage."""
    deadline_s = time.monotonic() + 60
    while not any(MARK in path.read_bytes() for path in chunks.rglob("*") if path.is_file()):
        assert time.monotonic() < deadline_s, f"{length} bytes were not flushed\n{server.log}"
        time.sleep(0.05)


def assert_not_served(client: WireClient) -> None:
    """Anything but the wrong bytes: an error, or the end of the connection."""
    try:
        reply: WireCommand = client.receive()
    except (EOFError, ConnectionError):
        return
    assert not isinstance(reply, SegmentRead) or not len(reply.data), bytes(reply.data)


def test_a_damaged_identity_stops_the_start(make_server: Callable[..., StandaloneProcess]) -> None:
    """`penstock.toml` says how segments map to containers: a wrong number there would lose everything."""
    server = make_server().start()
    assert server.terminate() == 0
    identity = server.data_dir / "penstock.toml"
    identity.write_text(identity.read_text().replace("container_count = 4", "container_count = 8"))
    refused = server.launch()
    assert refused["kind"] == "CorruptionError"
    assert str(identity) in str(refused["message"])
