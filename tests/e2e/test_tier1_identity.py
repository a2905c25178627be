"""Tier 1 that is missing, exchanged or an old copy, under real servers that are killed between their starts."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import penstock
from support.standalone_process import ServerProcessError, StandaloneProcess, run_penstock

pytestmark = pytest.mark.e2e

STREAM = "shop/orders"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[StandaloneProcess]:
    with StandaloneProcess(tmp_path / "a") as process:
        yield process


def write(server: StandaloneProcess, *events: bytes) -> None:
    with penstock.connect(server.uri) as client:
        client.create_stream(STREAM, exist_ok=True)
        with client.event_writer(STREAM) as writer:
            for event in events:
                writer.write(event, routing_key="key")


def read(server: StandaloneProcess) -> list[bytes]:
    with penstock.connect(server.uri) as client, client.batch(STREAM) as batch:
        return [bytes(event.data) for part in batch.ranges for event in batch.events(part)]


def tier1(server: StandaloneProcess) -> Path:
    return Path(server.data_dir) / "tier1"


def test_a_server_does_not_start_without_its_tier_1(server: StandaloneProcess, tmp_path: Path) -> None:
    write(server, b"first", b"second")
    server.kill9()
    shutil.move(tier1(server), tmp_path / "unmounted")
    for _ in range(2):
        with pytest.raises(ServerProcessError, match="Mount tier 1 or put the log back"):
            server.start()
        assert not tier1(server).exists() or not list(tier1(server).iterdir())
    shutil.rmtree(tier1(server), ignore_errors=True)
    shutil.move(tmp_path / "unmounted", tier1(server))
    server.start()
    assert read(server) == [b"first", b"second"]


def test_servers_with_exchanged_logs_do_not_start(server: StandaloneProcess, tmp_path: Path) -> None:
    with StandaloneProcess(tmp_path / "b") as other:
        for process, event in ((server, b"of a"), (other, b"of b")):
            write(process, event)
            process.kill9()
        shutil.move(tier1(server), tmp_path / "away")
        shutil.move(tier1(other), tier1(server))
        shutil.move(tmp_path / "away", tier1(other))
        for process in (server, other):
            with pytest.raises(ServerProcessError, match="belongs to cluster"):
                process.start()
        shutil.move(tier1(server), tmp_path / "away")
        shutil.move(tier1(other), tier1(server))
        shutil.move(tmp_path / "away", tier1(other))
        for process, event in ((server, b"of a"), (other, b"of b")):
            process.start()
            assert read(process) == [event]


def test_a_server_over_an_old_epoch_record_loses_nothing(server: StandaloneProcess) -> None:
    """The log that got an old record back is refused; with the right record it is whole."""
    write(server, b"first")
    server.stop()
    records = {path: path.read_bytes() for path in tier1(server).glob("*/log.epoch")}
    for number in range(3):
        server.start()
        write(server, b"%d" % number)
        server.kill9()
    newest = {path: path.read_bytes() for path in records}
    for path, old in records.items():
        path.write_bytes(old)
    with pytest.raises(ServerProcessError, match="the record is an old copy"):
        server.start()
    for path, record in newest.items():
        path.write_bytes(record)
    server.start()
    assert read(server) == [b"first", b"0", b"1", b"2"]


def newest_files(server: StandaloneProcess) -> list[Path]:
    """Return the newest file of each container's log."""
    return [max(log.glob("log-*")) for log in sorted(tier1(server).iterdir()) if log.is_dir()]


def remove(path: Path) -> None:
    path.unlink()


def zero_the_end(path: Path) -> None:
    """Overwrite the second half of what was written with zeros, as a copy that was cut off and padded."""
    data = path.read_bytes()
    path.write_bytes(data[: len(data.rstrip(b"\0")) // 2].ljust(len(data), b"\0"))


@pytest.mark.parametrize("damage", [remove, zero_the_end])
def test_a_server_does_not_start_over_a_log_that_lost_its_clean_end(
    server: StandaloneProcess, tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    """Only the recorded end shows the loss. With the right files everything is back."""
    events = [b"%d" % number * 100 for number in range(100)]
    write(server, *events[:50])
    server.kill9()
    server.start()
    write(server, *events[50:])
    server.stop()
    newest = newest_files(server)
    for number, path in enumerate(newest):
        shutil.copy2(path, tmp_path / f"copy-{number}")
        damage(path)
    with pytest.raises(ServerProcessError, match="closed cleanly"):
        server.start()
    server.kill9()
    for number, path in enumerate(newest):
        shutil.copy2(tmp_path / f"copy-{number}", path)
    place = ("--data-dir", str(server.data_dir))
    reports = json.loads(run_penstock("log", "list", *place, "--json").stdout)["logs"]
    for report in reports:
        if report["state"] == "disabled":
            assert run_penstock("log", "enable", str(report["container"]), *place).returncode == 0
    server.start()
    assert read(server) == events


SETTINGS = """
[segment_store.container]
flush_age_s = 0.2
writer_interval_s = 0.05

[segment_store.container.orphans]
sweep_delay_s = 0.5
"""


def test_a_rolled_back_data_directory_destroys_nothing(tmp_path: Path) -> None:
    """Long-term storage is newer than the logs. No start deletes a chunk of it, killed or not."""
    config = tmp_path / "config.toml"
    config.write_text(SETTINGS)
    tier2 = tmp_path / "nas"
    with StandaloneProcess(tmp_path / "a", "--config", str(config), "--tier2", str(tier2)) as server:
        write(server, b"first")
        await_flushed(tier2)
        server.stop()
        shutil.copytree(server.data_dir, tmp_path / "snapshot")
        for number in range(4):
            server.start()
            write(server, b"%d" % number * 1000)
            await_flushed(tier2)
            server.kill9()
        newest = files(tier2)
        shutil.move(server.data_dir, tmp_path / "lost")
        shutil.copytree(tmp_path / "snapshot", server.data_dir)
        for _ in range(6):
            with pytest.raises(ServerProcessError, match=r"is an old copy|is disabled"):
                server.start()
        assert {name: length for name, length in files(tier2).items() if name in newest} == newest
        shutil.rmtree(server.data_dir)
        shutil.move(tmp_path / "lost", server.data_dir)
        server.start()
        assert read(server) == [b"first", *(b"%d" % number * 1000 for number in range(4))]


def files(tier2: Path) -> dict[str, int]:
    return {str(path.relative_to(tier2)): path.stat().st_size for path in tier2.rglob("*") if path.is_file()}


def await_flushed(tier2: Path) -> None:
    """Wait until long-term storage is at rest, its own tables included."""
    before: dict[str, int] = {}
    deadline_s = time.monotonic() + 60
    while time.monotonic() < deadline_s:
        time.sleep(1.0)
        found = files(tier2)
        if found == before and any(name.startswith("shop/") for name in found):
            return
        before = found
    raise AssertionError("long-term storage did not come to rest within 60 s")
