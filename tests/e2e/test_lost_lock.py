"""The lock file of a data directory goes away under a server, or the directory does. Real processes."""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

import penstock
from penstock.cli.failure import EXIT_DIRECTORY_LOST
from penstock.server.standalone_process import START_TIMEOUT_S, run_penstock
from support.standalone_process import ServerProcessError, StandaloneProcess

pytestmark = pytest.mark.e2e

STREAM = "shop/orders"
#: So rarely that a test is over before the first time.
NEVER = "lock_check_interval_s = 3600.0\n"
POLL_S = 0.05


def server_at(directory: Path, *options: str, stores: int = 1, config: str = "") -> StandaloneProcess:
    """Return a server that is not started, with its own log and settings, on the data in `directory`'s parent."""
    directory.mkdir()
    if config:
        (directory / "config.toml").write_text(config)
        options = ("--config", str(directory / "config.toml"), *options)
    process = StandaloneProcess(directory, *options, segment_stores=stores)
    process.data_dir = directory.parent / "data"
    return process


def wait_for(is_true: Callable[[], bool], what: str) -> None:
    deadline_s = time.monotonic() + START_TIMEOUT_S
    while not is_true():
        assert time.monotonic() < deadline_s, what
        time.sleep(POLL_S)


def write(server: StandaloneProcess, *events: bytes) -> None:
    with penstock.connect(server.uri) as client:
        client.create_stream(STREAM, exist_ok=True)
        with client.event_writer(STREAM) as writer:
            for event in events:
                writer.write(event, routing_key="key")


def read(server: StandaloneProcess) -> list[bytes]:
    with penstock.connect(server.uri) as client, client.batch(STREAM) as batch:
        return [bytes(event.data) for part in batch.ranges for event in batch.events(part)]


def is_retaken(server: StandaloneProcess, count: int) -> bool:
    """Say whether the server has locked its directory again so many times."""
    # The segment stores log that they have it, too, in other words.
    return server.log.count("has locked it again") == count


def has_open(pid: int, path: Path) -> bool:
    """Say whether a process has a file open."""
    return any(one.exists() and one.samefile(path) for one in Path(f"/proc/{pid}/fd").iterdir())


def epochs(server: StandaloneProcess) -> list[int]:
    answer = run_penstock("log", "list", "--json", "--data-dir", str(server.data_dir))
    return [log["epoch"] for log in json.loads(answer.stdout)["logs"]]


class Load(threading.Thread):
    """Writes one event after another to a server until it fails; `acknowledged` are those that it said are stored."""

    def __init__(self, server: StandaloneProcess, name: bytes) -> None:
        super().__init__(daemon=True)
        self.acknowledged: list[bytes] = []
        self._name = name
        self._settings = penstock.ClientSettings(retry_time_max_s=5.0)
        self._uri = server.uri

    def run(self) -> None:
        try:
            with penstock.connect(self._uri, self._settings) as client, client.event_writer(STREAM) as writer:
                for number in range(1_000_000):
                    event = b"%s %d" % (self._name, number)
                    writer.write(event, routing_key="key")
                    writer.flush()
                    self.acknowledged.append(event)
        except penstock.PenstockError:
            pass  # The server is gone.


@pytest.mark.parametrize("stores", [1, 2])
def test_of_two_servers_without_a_lock_file_one_remains_with_all_events(tmp_path: Path, stores: int) -> None:
    """The earlier one ends, says why, and has taken no log back. What either has acknowledged is there."""
    first, second = server_at(tmp_path / "a", stores=stores), server_at(tmp_path / "b", stores=stores)
    with first:
        write(first, b"before")
        load = Load(first, b"first")
        load.start()
        wait_for(lambda: len(load.acknowledged) > 20, "the first server acknowledges nothing")
        # It is stopped while the second one starts, or it would create the file again.
        first.pause()
        (first.data_dir / "LOCK").unlink()
        with second:
            write(second, b"second")
            owned = epochs(second)
            first.resume()
            said = json.loads(first.read_line())
            assert first.wait() == EXIT_DIRECTORY_LOST
            assert (said["type"], said["kind"]) == ("error", "DataDirectoryLostError")
            assert "another process" in said["message"]
            assert str(first.data_dir) in said["message"]
            load.join(START_TIMEOUT_S)
            assert not load.is_alive()
            write(second, b"after")
            assert epochs(second) == owned
            found = read(second)
            assert {b"before", b"second", b"after", *load.acknowledged} <= set(found)
            assert len(found) == len(set(found))


def test_a_server_that_lost_its_lock_reclaims_no_log(tmp_path: Path) -> None:
    """Already before its next check of the lock."""
    first, second = server_at(tmp_path / "a", config=NEVER), server_at(tmp_path / "b")
    with first:
        write(first, b"before")
        (first.data_dir / "LOCK").unlink()
        with second:
            owned = epochs(second)
            refused = [f"container {number} could not be started: " for number in range(4)]
            wait_for(lambda: all(first.log.count(text) >= 2 for text in refused), "claims are not refused")
            assert "this server claims no log" in first.log
            assert epochs(second) == owned
            write(second, b"after")
            assert read(second) == [b"before", b"after"]


@pytest.mark.parametrize("stores", [1, 2])
def test_a_removed_lock_file_is_created_again(tmp_path: Path, stores: int) -> None:
    """Removed, then replaced. The server keeps running, and no second one starts.

    Its segment stores have the new lock, too, so that the directory stays locked until they have ended; a killed one is
    restarted.
    """
    first, second = server_at(tmp_path / "a", stores=stores), server_at(tmp_path / "b", stores=stores)
    with first:
        write(first, b"before")
        lock = first.data_dir / "LOCK"
        lock.unlink()
        wait_for(partial(is_retaken, first, 1), "the lock is not taken again")
        (tmp_path / "new").touch()
        (tmp_path / "new").rename(lock)
        wait_for(partial(is_retaken, first, 2), "the lock is not taken again")
        for pid in [first.pid, *filter(None, map(first.store_pid, range(stores)))]:
            wait_for(partial(has_open, pid, lock), f"process {pid} has not got the new lock")
        with pytest.raises(ServerProcessError, match="locked by another process"):
            second.start()
        if stores > 1:
            killed = first.store_pid(0)
            assert killed is not None
            first.signal_store(0, 9)  # type: ignore[arg-type]
            first.await_store(0, other_than=killed)
        write(first, b"after")
        assert read(first) == [b"before", b"after"]
        assert first.terminate() == 0


@pytest.mark.parametrize("stores", [1, 2])
def test_a_server_with_a_replaced_directory_ends(tmp_path: Path, stores: int) -> None:
    """A copy is put in its place: nothing of it changes, and the next server over the old one has everything."""
    first = server_at(tmp_path / "a", stores=stores)
    with first:
        write(first, b"before")
        first.pause()
        data = first.data_dir
        data.rename(tmp_path / "old")
        shutil.copytree(tmp_path / "old", data)
        copied = {path: path.read_bytes() for path in data.rglob("*") if path.is_file()}
        assert copied
        first.resume()
        said = json.loads(first.read_line())
        assert first.wait() == EXIT_DIRECTORY_LOST
        assert said["kind"] == "DataDirectoryLostError"
        assert "renamed, replaced or unmounted" in said["message"]
        assert {path: path.read_bytes() for path in data.rglob("*") if path.is_file()} == copied
        shutil.rmtree(data)
        (tmp_path / "old").rename(data)
        first.start()
        assert read(first) == [b"before"]
