"""`penstock standalone --segment-stores N`: segment stores as processes that are killed, held, moved from and back to.

SS-n: docs/spec/segment-store.md.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import penstock
from penstock.client.settings import ClientSettings
from penstock.controller.metadata.layout import SYSTEM_TABLES
from penstock.model.routing import container_of
from penstock.runtime.disk import LocalDisk
from penstock.segmentstore.tier1.log_records import read_epoch
from penstock.wire.commands import (
    AppendBlockEnd,
    AppendSetup,
    CreateSegment,
    DataAppended,
    GetStreamSegmentInfo,
    SegmentCreated,
    SetupAppend,
    StreamSegmentInfo,
    WrongHost,
)
from support.standalone_process import StandaloneProcess, child_environment, run_penstock, warnings_in
from support.wire_client import WireClient

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(120)]

CONTAINER_COUNT = 4
#: A segment in each container.
SEGMENTS = [
    next(
        name
        for name in (f"shop/orders{number}/0.#epoch.0" for number in range(1000))
        if container_of(name, CONTAINER_COUNT) == container_id
    )
    for container_id in range(CONTAINER_COUNT)
]
EVENT = b"\0\0\0\0\0\0\0\5hello"
#: Everything that takes seconds takes tenths of one.
QUICK = """
[store_processes]
health_interval_s = 0.1
health_timeout_s = {health_timeout_s}
is_hung_killed = {is_hung_killed}
restart_count_max = {restart_count_max}
return_delay_s = 0.5
[segment_store]
restart_delay_s = 0.1
"""

Make = Callable[..., StandaloneProcess]


@pytest.fixture
def make_quick(make_server: Make, tmp_path: Path) -> Callable[..., StandaloneProcess]:
    """Make servers with two segment stores that are found out soon."""

    def make(
        *, health_timeout_s: float = 20.0, is_hung_killed: bool = True, restart_count_max: int = 3
    ) -> StandaloneProcess:
        settings = tmp_path / "settings.toml"
        settings.write_text(
            QUICK.format(
                health_timeout_s=health_timeout_s,
                is_hung_killed=str(is_hung_killed).lower(),
                restart_count_max=restart_count_max,
            )
        )
        return make_server("--config", str(settings), segment_stores=2)

    return make


def ports(server: StandaloneProcess) -> list[int]:
    stores = server.ready["segment_stores"]
    assert isinstance(stores, list)
    return [int(store["address"].rpartition(":")[2]) for store in stores]


def create(port: int, segment: str) -> None:
    with WireClient(port) as client:
        client.ask(CreateSegment(client.next_id(), segment, 0, 0, "", 0), SegmentCreated)


def append(port: int, segment: str, writer: bytes, number: int = 1) -> None:
    """Append `EVENT` as event `number` of a writer, acknowledged."""
    with WireClient(port) as client:
        client.ask(SetupAppend(client.next_id(), writer, segment, ""), AppendSetup)
        client.ask(AppendBlockEnd(writer, len(EVENT), EVENT, 1, number, client.next_id()), DataAppended)


def length(port: int, segment: str) -> int | None:
    """Return how long a segment is at a store, None if it is not there."""
    try:
        with WireClient(port) as client:
            info = client.ask(GetStreamSegmentInfo(client.next_id(), segment, ""))  # type: ignore[var-annotated]
    except (ConnectionError, EOFError, TimeoutError):
        return None
    assert isinstance(info, (StreamSegmentInfo, WrongHost)), info
    return info.write_offset if isinstance(info, StreamSegmentInfo) else None


def content(port: int, segment: str) -> bytes:
    with WireClient(port) as client:
        end = client.ask(GetStreamSegmentInfo(client.next_id(), segment, ""), StreamSegmentInfo).write_offset
        return client.read_whole(segment, end)


def eventually(condition: Callable[[], object], what: str, timeout_s: float = 30.0) -> None:
    """Wait for something that other processes do."""
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline_s, f"not within {timeout_s:g} s: {what}"
        time.sleep(0.02)


def is_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def epoch(server: StandaloneProcess, container_id: int) -> int:
    """Return the epoch of a container's log, as it is on the disk."""
    (directory,) = (path for path in (server.data_dir / "tier1").iterdir() if path.name.endswith(str(container_id)))
    record = read_epoch(LocalDisk(), str(directory))
    assert record is not None
    return record.epoch


def store_pids(server: StandaloneProcess) -> list[int]:
    return [server.await_store(number) for number in range(server.segment_stores)]


# -- start and stop ---------------------------------------------------------------------------------------------------


def test_containers_are_shared_out_and_each_store_serves_its_own(make_server: Make) -> None:
    """The ready line names address, process and containers of each; elsewhere a segment is answered with WrongHost."""
    server = make_server(segment_stores=3).start()
    stores = server.ready["segment_stores"]
    assert isinstance(stores, list)
    assert [store["containers"] for store in stores] == [[0, 3], [1], [2]]
    assert [store["pid"] for store in stores] == store_pids(server)
    assert server.ready["segment_store"] == stores[0]["address"]
    assert server.ready["failures"] == {}
    for container_id, segment in enumerate(SEGMENTS):
        for number, port in enumerate(ports(server)):
            if number == container_id % 3:
                create(port, segment)
                append(port, segment, b"w" * 16)
            else:
                assert length(port, segment) is None
    probe = run_penstock("ready", "--uri", server.uri, "--json")
    assert all(f":{port}" in json.loads(probe.stdout)["segment_store"] for port in ports(server))
    pids = store_pids(server)
    assert server.terminate() == 0
    assert all(map(is_gone, pids))
    assert warnings_in(server.log) == []

    # What several stores have written one can read, and the other way round.
    alone = make_server()
    alone.data_dir = server.data_dir
    alone.start()
    assert [content(alone.segment_store_port, segment) for segment in SEGMENTS] == [EVENT] * CONTAINER_COUNT
    append(alone.segment_store_port, SEGMENTS[1], b"w" * 16, 2)
    assert alone.terminate() == 0
    server.start()
    assert content(ports(server)[1], SEGMENTS[1]) == 2 * EVENT
    assert server.terminate() == 0


def test_the_ready_lines_for_people_show_each_store(make_server: Make) -> None:
    """One line for each segment store before the last one."""
    server = make_server("--segment-stores", "2")
    command = server.command()
    server.command = lambda: [word for word in command if word != "--json"]  # type: ignore[method-assign]
    server.spawn()
    assert server.process is not None
    assert server.process.stdout is not None
    lines = [server.process.stdout.readline().decode() for _ in range(3)]
    assert lines[0].startswith("segment store 0: 127.0.0.1:")
    assert ", containers 0, 2 (pid " in lines[0]
    assert lines[1].startswith("segment store 1: 127.0.0.1:")
    assert ", 2 segment stores, new store in " in lines[2]
    assert lines[2].startswith("penstock is ready: controller tcp://127.0.0.1:")
    assert server.terminate() == 0


def test_ports_are_in_a_row_from_the_one_that_was_requested(make_server: Make) -> None:
    """A port in use is reported with the option to change it; no process stays behind."""
    with contextlib.ExitStack() as stack:
        first = free_ports(stack, 2)
        server = make_server("--segment-stores", "2", "--segment-store-port", str(first)).start()
        assert ports(server) == [first, first + 1]
        assert server.terminate() == 0
        taken = stack.enter_context(socket.socket())
        taken.bind(("127.0.0.1", first + 1))
        taken.listen()
        refused = server.launch()
        assert refused["kind"] == "PortInUseError"
        assert "--segment-store-port" in str(refused["message"])
        assert server.wait() == 1
        assert "Traceback" not in server.log


def free_ports(stack: contextlib.ExitStack, count: int) -> int:
    """Return the first of `count` ports in a row that have no listener."""
    for first in range(20_000, 30_000, 7):
        sockets = []
        try:
            for port in range(first, first + count):
                sockets.append(socket.socket())
                sockets[-1].bind(("127.0.0.1", port))
        except OSError:
            continue
        finally:
            for opened in sockets:
                opened.close()
        return first
    raise AssertionError("no free ports")


def test_each_store_has_a_port_for_administrators_if_that_is_enabled(make_server: Make, tmp_path: Path) -> None:
    """Store n at the n-th port after the one that is set."""
    with contextlib.ExitStack() as stack:
        first = free_ports(stack, 2)
        settings = tmp_path / "settings.toml"
        settings.write_text(f"[segment_store.admin]\nis_enabled = true\nport = {first}\n")
        server = make_server("--config", str(settings), segment_stores=2).start()
        for port in (first, first + 1):
            WireClient(port).close()
        assert server.terminate() == 0


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--segment-stores", "5"), "segment_stores is 5"),
        (("--segment-stores", "0"), "segment_stores is 0"),
        (("--segment-stores", "2", "--memory"), "what is in memory belongs to one process"),
        (("--segment-stores", "2", "--cache-mb", "31"), "16 MiB for each of 2"),
        (("--segment-stores", "2", "--segment-store-port", "65535"), "ports 65535 to 65536"),
        (("--segment-stores", "2", "--segment-store-port", "9089"), "controller_port is 9090"),
    ],
)
def test_numbers_that_make_no_sense_are_refused(options: tuple[str, ...], told: str, tmp_path: Path) -> None:
    refused = run_penstock("standalone", "--data-dir", str(tmp_path / "data"), *options)
    assert refused.returncode == 2
    assert told in refused.stderr
    assert refused.stderr.startswith("penstock: ")
    assert not (tmp_path / "data").exists()


def test_a_second_server_on_the_same_directory_is_refused(make_server: Make) -> None:
    """And it waits only as long as the stores of a server that was killed may need to end."""
    server = make_server("--segment-stores", "2").start()
    second = make_server("--segment-stores", "2")
    second.data_dir = server.data_dir
    refused = second.launch()
    assert refused["kind"] == "DataDirectoryInUseError"
    assert second.wait() == 1
    assert server.terminate() == 0


def test_a_container_that_is_offline_is_reported_and_the_others_serve(make_server: Make) -> None:
    """Damage in the log of a container without tables of the controller, and then in one with them."""
    needed = {container_of(table, CONTAINER_COUNT) for table in SYSTEM_TABLES}
    (bad, *_) = set(range(CONTAINER_COUNT)) - needed
    server = make_server(segment_stores=2).start()
    assert server.terminate() == 0
    records = {int(path.parent.name[-1]): path for path in (server.data_dir / "tier1").glob("*/log.epoch")}
    kept = {container_id: path.read_bytes() for container_id, path in records.items()}
    records[bad].write_bytes(b"x" * len(kept[bad]))
    server.start()
    failures = server.ready["failures"]
    assert isinstance(failures, dict)
    assert list(failures) == [str(bad)]
    good = min(needed)
    create(ports(server)[good % 2], SEGMENTS[good])
    assert length(ports(server)[bad % 2], SEGMENTS[bad]) is None
    assert server.terminate() == 0
    records[good].write_bytes(b"x" * len(kept[good]))
    refused = server.launch()
    assert refused["kind"] == "StoreProcessError"
    assert f"container {good} holds tables of the controller" in str(refused["message"])
    assert server.wait() == 1


# -- deaths -----------------------------------------------------------------------------------------------------------


def test_a_killed_store_restarts_on_its_port_with_all_acknowledged_data(make_server: Make) -> None:
    """The other one is not disturbed; after SIGTERM, on which a store stops cleanly, it is restarted, too."""
    server = make_server(segment_stores=2).start()
    first, second = ports(server)
    create(first, SEGMENTS[0])
    create(second, SEGMENTS[1])
    for number, how in enumerate((signal.SIGKILL, signal.SIGTERM), start=1):
        with WireClient(second) as other:
            append(first, SEGMENTS[0], b"w" * 16, number)
            pid = server.signal_store(0, how)
            assert pid is not None
            server.await_store(0, other_than=pid)
            eventually(lambda: length(first, SEGMENTS[0]) is not None, "the store serves again")
            assert content(first, SEGMENTS[0]) == number * EVENT
            other.ask(GetStreamSegmentInfo(other.next_id(), SEGMENTS[1], ""), StreamSegmentInfo)
    assert server.terminate() == 0


def test_stores_end_with_their_server_even_while_they_are_held(make_server: Make) -> None:
    """kill -9 of the server's process, with one of its stores stopped: both are gone, and it starts again at once."""
    server = make_server(segment_stores=2).start()
    create(ports(server)[1], SEGMENTS[1])
    append(ports(server)[1], SEGMENTS[1], b"w" * 16)
    pids = store_pids(server)
    os.kill(pids[0], signal.SIGSTOP)
    server.kill9()
    server.start()
    assert all(map(is_gone, pids))
    assert content(ports(server)[1], SEGMENTS[1]) == EVENT
    assert server.terminate() == 0


def test_a_held_store_does_not_keep_a_server_from_its_stop(make_quick: Callable[..., StandaloneProcess]) -> None:
    """After most of `stop_timeout_s` it is killed, and the stop says that it was not in order."""
    server = make_quick()
    server.options = (*server.options,)
    config = Path(server.options[1])
    config.write_text("stop_timeout_s = 2.0\n" + config.read_text())
    server.start()
    pid = server.signal_store(1, signal.SIGSTOP)
    assert pid is not None
    assert server.terminate() == 1
    assert is_gone(pid)
    assert "Shutdown failed: " in server.log


def test_a_hung_store_is_killed_and_restarted(make_quick: Callable[..., StandaloneProcess]) -> None:
    """SIGSTOP and nothing else: after `health_timeout_s` there is a new process on the same port."""
    server = make_quick(health_timeout_s=0.5).start()
    port = ports(server)[0]
    create(port, SEGMENTS[0])
    append(port, SEGMENTS[0], b"w" * 16)
    pid = server.signal_store(0, signal.SIGSTOP)
    server.await_store(0, other_than=pid)
    eventually(lambda: length(port, SEGMENTS[0]) is not None, "the new process serves")
    assert content(port, SEGMENTS[0]) == EVENT
    assert "segment store 0 has not answered" in server.log
    assert server.terminate() == 0


def test_statistics_of_the_other_store_continue_while_one_is_held(make_quick: Callable[..., StandaloneProcess]) -> None:
    """Its problem is reported after `statistics_timeout_s`; all figures return when another process has replaced it."""
    server = make_quick().start()
    first, second = ports(server)
    for port, segment in ((first, SEGMENTS[0]), (second, SEGMENTS[1])):
        create(port, segment)
        append(port, segment, b"w" * 16)
    settings = ClientSettings(statistics_timeout_s=1.0)
    with penstock.connect(server.uri, settings) as client:
        eventually(lambda: len(client.statistics().segments) == 2, "both are reported")
        whole = client.statistics()
        assert (whole.container_count, whole.missing_containers) == (CONTAINER_COUNT, [])
        assert all(store.resident_bytes > 10_000_000 for store in whole.stores.values())
        server.signal_store(0, signal.SIGSTOP)
        part = client.statistics(whole)
        problem = part.stores[f"127.0.0.1:{first}"].problem
        assert problem is not None
        assert "statistics_timeout_s" in problem
        assert part.stores[f"127.0.0.1:{second}"].problem is None
        assert list(part.segments) == [SEGMENTS[1]]
        assert sorted([*part.containers, *part.missing_containers]) == list(range(CONTAINER_COUNT))
        pid = server.signal_store(0, signal.SIGKILL)
        server.await_store(0, other_than=pid)
        eventually(lambda: not client.statistics(part).missing_containers, "the new process is asked")
    assert server.terminate() == 0


def test_a_suspended_server_considers_no_other_as_hung(make_quick: Callable[..., StandaloneProcess]) -> None:
    """The server's own process is stopped for longer than the time-out."""
    server = make_quick(health_timeout_s=0.5).start()
    pids = store_pids(server)
    server.pause()
    time.sleep(1.5)
    server.resume()
    probe = run_penstock("ready", "--uri", server.uri)
    assert probe.returncode == 0, probe.stderr
    time.sleep(0.7)
    assert store_pids(server) == pids
    assert server.terminate() == 0
    assert warnings_in(server.log) == []


def test_containers_move_away_from_a_store_that_keeps_ending_and_back_when_it_is_well(
    make_quick: Callable[..., StandaloneProcess],
) -> None:
    """With no restart forgiven: the other store has them while it is away; the controller answers accordingly."""
    server = make_quick(restart_count_max=0).start()
    first, second = ports(server)
    create(first, SEGMENTS[0])
    append(first, SEGMENTS[0], b"w" * 16)
    server.signal_store(0, signal.SIGKILL)
    eventually(lambda: length(second, SEGMENTS[0]) is not None, "the other store has the container")
    append(second, SEGMENTS[0], b"w" * 16, 2)
    eventually(lambda: length(first, SEGMENTS[0]) is not None, "the container is at home again")
    assert length(second, SEGMENTS[0]) is None
    assert content(first, SEGMENTS[0]) == 2 * EVENT
    probe = run_penstock("ready", "--uri", server.uri)
    assert probe.returncode == 0, probe.stderr
    assert "segment store 0 is down" in server.log
    assert "segment store 0 is running again" in server.log
    assert server.terminate() == 0
    # No store was kept from its log: the previous owner of each container had released it, or was dead.
    assert " ERROR " not in server.log


def test_containers_move_away_from_a_store_whose_new_process_hangs_before_it_is_ready(
    make_quick: Callable[..., StandaloneProcess], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They need not wait for `start_timeout_s`, which is two minutes; the process that hangs is not given up either.

    What hangs is the interpreter itself, as it does when its files are on a disk that does not answer.
    """
    flag = tmp_path / "hang"
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(
        "import os, sys, time\n"
        f"while sys.orig_argv[-2:] == ['store-child', '0'] and os.path.exists({str(flag)!r}):\n"
        "    time.sleep(0.05)\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(site), prepend=os.pathsep)
    server = make_quick(health_timeout_s=4.0).start()
    first, second = ports(server)
    create(first, SEGMENTS[0])
    append(first, SEGMENTS[0], b"w" * 16)
    flag.touch()
    server.signal_store(0, signal.SIGKILL)
    eventually(lambda: length(second, SEGMENTS[0]) is not None, "the other store has the container")
    assert "segment store 0 is down, its containers move to other stores: it is not ready after 4 s" in server.log
    flag.unlink()
    eventually(lambda: length(first, SEGMENTS[0]) is not None, "the container is at home again")
    assert content(first, SEGMENTS[0]) == EVENT
    assert server.log.count("restarting it") == 1
    assert server.terminate() == 0
    assert " ERROR " not in server.log


def test_a_store_suspended_during_the_loss_of_its_containers_changes_nothing(
    make_quick: Callable[..., StandaloneProcess],
) -> None:
    """SS-9, SS-10, SS-11: a store is stopped by SIGSTOP, another one opens its logs, then it continues.

    Appends that it had received before it could know are not acknowledged, and change nothing that the new owner has
    or reads. Then it gets its containers back, and shuts the other one out in turn: epochs grow, data are equal.
    """
    server = make_quick(health_timeout_s=0.5, is_hung_killed=False).start()
    first, second = ports(server)
    create(first, SEGMENTS[0])
    pid = server.await_store(0)
    with WireClient(first) as zombie_client:
        zombie_client.ask(SetupAppend(zombie_client.next_id(), b"z" * 16, SEGMENTS[0], ""), AppendSetup)
        zombie_client.ask(AppendBlockEnd(b"z" * 16, len(EVENT), EVENT, 1, 1, zombie_client.next_id()), DataAppended)
        epochs = [epoch(server, 0)]
        os.kill(pid, signal.SIGSTOP)
        zombie_client.send(AppendBlockEnd(b"z" * 16, len(EVENT), EVENT, 1, 2, zombie_client.next_id()))
        eventually(lambda: length(second, SEGMENTS[0]) is not None, "the other store has opened the log")
        epochs.append(epoch(server, 0))
        assert content(second, SEGMENTS[0]) == EVENT
        append(second, SEGMENTS[0], b"b" * 16)
        os.kill(pid, signal.SIGCONT)
        replies = []  # type: ignore[var-annotated]
        zombie_client.socket.settimeout(3.0)
        with contextlib.suppress(TimeoutError, EOFError, ConnectionError):
            while True:
                replies.append(zombie_client.receive())
        assert not any(isinstance(reply, DataAppended) for reply in replies), replies
    eventually(lambda: length(first, SEGMENTS[0]) is not None, "the containers are back")
    epochs.append(epoch(server, 0))
    assert content(first, SEGMENTS[0]) == 2 * EVENT
    append(first, SEGMENTS[0], b"z" * 16, 2)
    assert content(first, SEGMENTS[0]) == 3 * EVENT
    assert server.await_store(0) == pid
    assert epochs == sorted(set(epochs))
    assert server.terminate() == 0


# -- the command that runs one store ----------------------------------------------------------------------------------


def order(**changes: object) -> bytes:
    fields: dict[str, object] = {
        "event": "order", "store": 0, "parent_pid": os.getpid(), "lock_descriptor": 0, "port": 0, "containers": [],
        "settings": {}, "owner": "ab" * 16, "living": ["ab" * 16],
    }  # fmt: skip
    return json.dumps({**fields, **changes}).encode() + b"\n"


@pytest.fixture
def lock(tmp_path: Path) -> Iterator[int]:
    """A descriptor of a lock file that is not locked."""
    (tmp_path / "LOCK").touch()
    descriptor = os.open(tmp_path / "LOCK", os.O_RDWR)
    yield descriptor
    os.close(descriptor)


def refuse(line: bytes, *descriptors: int) -> dict[str, str]:
    """Run ``penstock store-child`` with an order and return its refusal."""
    process = subprocess.Popen(
        [sys.executable, "-m", "penstock", "store-child", "0"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=child_environment(),
        pass_fds=descriptors,
    )  # fmt: skip
    with process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdin.write(line)
        process.stdin.flush()
        # Its input stays open: the end of that would be the end of its parent.
        said: dict[str, str] = json.loads(process.stdout.readline())
        assert process.wait(60) == 1
        assert b"Traceback" not in process.stderr.read()
    assert said["event"] == "error"
    return said


def test_a_store_without_a_proper_order_refuses(tmp_path: Path) -> None:
    assert refuse(b"hello\n")["kind"] == "ProtocolError"
    assert "unknown field" in refuse(order(color="red"))["message"]
    assert "the start order is for store 3" in refuse(order(store=3))["message"]
    assert "parent process 1 has exited" in refuse(order(parent_pid=1))["message"]
    assert "did you mean data_dir?" in refuse(order(settings={"data_dirs": str(tmp_path)}))["message"]


def test_a_store_without_its_parents_lock_refuses(tmp_path: Path, lock: int) -> None:
    """No lock at all; a lock that is not held; a lock that another process holds."""
    settings = {"data_dir": str(tmp_path)}
    assert "only a server's own child" in refuse(order(settings=settings))["message"]
    assert "is not locked" in refuse(order(settings=settings, lock_descriptor=lock), lock)["message"]
    held = LocalDisk().lock(str(tmp_path / "LOCK"))
    said = refuse(order(settings=settings, lock_descriptor=lock), lock)
    assert said["kind"] == "DataDirectoryError"
    assert f"is not locked through descriptor {lock}" in said["message"]
    held.release()
    assert os.listdir(tmp_path) == ["LOCK"]
