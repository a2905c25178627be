"""``penstock standalone --log s3://... --tier2 s3://...``: real servers without a local disk, over a real S3 server."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import penstock
from penstock.model.errors import PenstockError
from penstock.server.errors import ServerProcessError
from penstock.server.standalone_process import StandaloneProcess, run_penstock
from support.bucket_server import Make, bucket_options
from support.command_line import run_command
from support.s3_server import S3Server

pytestmark = pytest.mark.e2e

STREAM = "shop/orders"
EVENT_COUNT = 300


@pytest.fixture
def options(s3_server: S3Server, tmp_path: Path) -> tuple[str, ...]:
    """Options of servers with one log, in a bucket of its own."""
    return bucket_options(s3_server, tmp_path)


@pytest.fixture
def make(make_server: Make, options: tuple[str, ...]) -> Callable[[], StandaloneProcess]:
    """Make a server, as on another machine: nothing is there but the options."""
    return lambda: make_server(*options)


def write(server: StandaloneProcess, first: int) -> None:
    """Write events, and wait until they are acknowledged."""
    with penstock.connect(server.uri) as client:
        client.create_stream(STREAM, scaling=penstock.Scaling.fixed(3), exist_ok=True)
        with client.event_writer(STREAM) as writer:
            for number in range(first, first + EVENT_COUNT):
                writer.write(b"%08d" % number, routing_key=str(number % 17))


def read(server: StandaloneProcess) -> list[int]:
    """Return the numbers of all events, sorted."""
    with penstock.connect(server.uri) as client, client.batch(STREAM) as batch:
        return sorted(int(bytes(each.data)) for part in batch.ranges for each in batch.events(part))


def test_another_machine_continues_with_all_that_was_acknowledged(make: Callable[[], StandaloneProcess]) -> None:
    """Killed right after the last acknowledgement, twice; nothing is on a local disk."""
    for cycle in range(2):
        server = make().start()
        assert cycle == 0 or read(server) == list(range(cycle * EVENT_COUNT))
        write(server, cycle * EVENT_COUNT)
        server.kill9()
        assert not server.data_dir.exists()
    server = make().start()
    assert read(server) == list(range(2 * EVENT_COUNT))
    assert server.terminate() == 0


def test_a_second_server_takes_over_and_the_first_one_ends(make: Callable[[], StandaloneProcess]) -> None:
    """Under load. What the first has acknowledged is there, once; it says why it ends, and its exit code is 1."""
    first, second = make(), make()
    first.start()
    write(first, 0)
    acknowledged: list[int] = []

    def write_on() -> None:
        try:
            with penstock.connect(first.uri) as client, client.event_writer(STREAM) as writer:
                for number in range(EVENT_COUNT, 1_000_000):
                    writer.write(b"%08d" % number, routing_key="one")
                    writer.flush(timeout_s=30.0)
                    acknowledged.append(number)
        except (PenstockError, TimeoutError):
            pass  # Its server has ended.

    writing = threading.Thread(target=write_on, daemon=True)
    writing.start()
    second.start()
    assert b"another server has taken over the log" in first.read_line()
    assert first.wait() == 1
    found = read(second)
    assert len(set(found)) == len(found)
    assert set(found) >= {*range(EVENT_COUNT), *acknowledged}
    write(second, 2_000_000)
    assert len(read(second)) == len(found) + EVENT_COUNT


def test_a_resumed_former_owner_answers_nothing_and_ends(make: Callable[[], StandaloneProcess]) -> None:
    first, second = make(), make()
    first.start()
    write(first, 0)
    first.pause()
    second.start()
    write(second, EVENT_COUNT)
    first.resume()
    assert first.wait() == 1
    assert read(second) == list(range(2 * EVENT_COUNT))


def test_of_two_servers_that_start_together_one_serves(make: Callable[[], StandaloneProcess]) -> None:
    one, other = make(), make()
    one.spawn()
    other.spawn()
    served: list[StandaloneProcess] = []
    refused: list[str] = []
    for server in (one, other):
        try:
            served.append(server.wait_ready())
        except ServerProcessError as error:
            refused.append(str(error))
    assert all("another server has taken over" in message for message in refused)
    # Both may have been ready, one after the other.
    assert served
    if len(served) == 2:
        ended = next(server for server in served if server.process is not None and _ends(server))
        served.remove(ended)
    write(served[0], 0)
    assert read(served[0]) == list(range(EVENT_COUNT))


def _ends(server: StandaloneProcess) -> bool:
    """Whether the server ends because another one has taken over; it finds that out within a lease."""
    assert server.process is not None
    try:
        return server.process.wait(20.0) == 1
    except subprocess.TimeoutExpired:
        return False


def test_a_data_directory_with_a_log_of_its_own_refuses_a_log_in_a_bucket(
    make_server: Make, options: tuple[str, ...]
) -> None:
    local = make_server().start()
    local.stop()
    done = run_penstock("standalone", *options, "--data-dir", str(local.data_dir))
    assert done.returncode == 1
    assert str(local.data_dir) in done.stderr
    assert options[3] in done.stderr


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        (("--log", "s3://bucket/data/log", "--tier2", "s3://bucket/data"), "one is inside of the other"),
        (("--log", "s3://bucket/log"), "name a bucket or a folder in HDFS with --tier2"),
        (("--log", "s3://b/log", "--tier2", "s3://b/data", "--segment-stores", "2"), "written by one process"),
        (("--log", "s3://bucket/log", "--memory"), "choose one"),
        (("--log", "/a/directory", "--tier2", "s3://bucket/data"), "is not a place in object storage"),
    ],
)
def test_settings_that_cannot_work_are_refused_before_anything_is_written(changed: tuple[str, ...], said: str) -> None:
    ran = run_command("standalone", *changed)
    assert ran.code == 2
    assert said in " ".join(ran.stderr.split())


def test_commands_for_logs_work_on_the_bucket_beside_a_running_server(
    make: Callable[[], StandaloneProcess], options: tuple[str, ...]
) -> None:
    """The outputs are those for a data directory."""
    place = *options[:2], *options[2:4]
    none = run_penstock("log", "list", *place)
    assert (none.returncode, "there is no log in" in none.stderr) == (2, True)
    make().start()
    assert run_penstock("log", "disable", "3", *place).stdout == "the log of container 3 is disabled\n"
    listed = json.loads(run_penstock("log", "list", *place, "--json").stdout)
    assert [each["state"] for each in listed["logs"]] == [*["enabled"] * 3, "disabled"]
    assert listed["logs"][3]["path"] == f"{options[3]}/r/3"
    enabled = run_penstock("log", "enable", "3", *place, "--json")
    assert json.loads(enabled.stdout) == {"type": "enabled", "container": 3}
    assert "container 3: enabled, epoch 1, " in run_penstock("log", "list", *place).stdout
    swept = json.loads(run_penstock("log", "sweep", *place, "--dry-run", "--json").stdout)
    assert (swept["type"], swept["is_dry_run"], swept["foreign_count"]) == ("log_sweep", True, 0)


def test_commands_that_a_log_in_a_bucket_does_not_support_are_refused(tmp_path: Path) -> None:
    """And what to do instead is said."""
    log = ("--log", "s3://bucket/log")
    config = tmp_path / "settings.toml"
    config.write_text('log = "s3://bucket/log"\ntier2 = "s3://bucket/data"\n')
    settings = ("--config", str(config))
    for arguments, said in (
        (("log", "list", *log, "--data-dir", "x"), "name the place of one log"),
        (("log", "sweep"), "--log is required"),
        (("storage", "backup", str(tmp_path / "b"), *settings), "administration port and name that with --admin"),
        (("storage", "recover", "--directory", str(tmp_path / "d"), *settings), "start a server with the same --log"),
        (("storage", "check", *settings), "the log is in s3://bucket/log"),
    ):
        ran = run_command(*arguments)
        assert ran.code != 0
        assert said in " ".join(ran.stderr.split())
