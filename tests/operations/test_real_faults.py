"""Each alert is fired by a real fault of a real server that a real Prometheus scrapes; ``penstock doctor`` reports it.

Times of the rules are seconds instead of minutes here, and three limits are lower (`fast_rules`). The expressions, the
metrics and the server are the real ones. `FAULTS` lists which fault fires which alert.
"""

from __future__ import annotations

import asyncio
import ctypes
import inspect
import itertools
import os
import resource
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import cast

import grpc
import pytest

from penstock import Scaling, connect
from penstock.administration.machine import check_clock, is_clock_unsynchronized
from penstock.controller.metadata.layout import SYSTEM_TABLES
from penstock.controller.metadata.pending_work import CreateStream, Subject, SubjectKind
from penstock.model.policies import StreamConfig
from penstock.model.routing import container_of
from penstock.rpc import controller_pb2 as pb
from penstock.rpc.controller_pb2_grpc import ControllerServiceStub
from penstock.server import standalone_process
from penstock.server.settings import StandaloneSettings
from penstock.server.standalone import Standalone
from support.command_line import run_command
from support.prometheus_server import PrometheusServer, alert_rules, fast_rules, free_port
from support.standalone_process import StandaloneProcess, child_environment, run_penstock

#: Alert -> the test here whose fault fires it.
FAULTS = {
    "PenstockServerDown": "test_a_suspended_server",
    "PenstockContainerOffline": "test_a_disabled_log",
    "PenstockNotReady": "test_a_start_without_long_term_storage",
    "PenstockContainerStarting": "test_a_log_that_hangs",
    "PenstockWritesBlocked": "test_little_space",
    "PenstockStorageAway": "test_long_term_storage_is_away",
    "PenstockBacklogGrows": "test_long_term_storage_is_away",
    "PenstockAppendsHeld": "test_a_stream_that_long_term_storage_does_not_accept",
    "PenstockAppendSlow": "test_a_suspended_server",
    "PenstockSyncSlow": "test_a_suspended_server",
    "PenstockLoopLag": "test_a_suspended_server",
    "PenstockLogLong": "test_a_stream_that_long_term_storage_does_not_accept",
    "PenstockCacheFull": "test_long_term_storage_is_away",
    "PenstockRpcErrors": "test_a_disabled_log",
    "PenstockConnectionsRefused": "test_groups_that_do_not_read_and_too_many_connections",
    "PenstockAuthFailures": "test_wrong_credentials",
    "PenstockWorkGivenUp": "test_work_of_an_earlier_release_that_cannot_end",
    "PenstockStorageErrors": "test_a_stream_that_long_term_storage_does_not_accept",
    "PenstockGroupLagHigh": "test_groups_that_do_not_read_and_too_many_connections",
    "PenstockGroupStuck": "test_groups_that_do_not_read_and_too_many_connections",
    "PenstockGroupWithoutReaders": "test_groups_that_do_not_read_and_too_many_connections",
}
STREAM = "shop/orders"
CONTAINER_COUNT = 4
BLOCK = os.urandom(256 * 1024)
MIB = 1024 * 1024
#: A cache and a log that are soon full.
SMALL = """
[segment_store]
container_count = 1
[segment_store.cache]
bytes_max = 67_108_864
[segment_store.container]
flush_bytes = 1_048_576
flush_age_s = 1.0
checkpoint_log_bytes = 1_048_576
log_bytes_max = 8_388_608
"""


@pytest.fixture(autouse=True)
def surroundings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands that run in this process take every PENSTOCK variable for a setting; servers may start slowly."""
    monkeypatch.delenv("PENSTOCK_TEST_PROFILE", raising=False)
    monkeypatch.setattr(standalone_process, "START_TIMEOUT_S", 300.0)


def test_each_alert_is_fired_by_a_test_of_this_module() -> None:
    """The table above is complete, and each test names the alerts that it is said to fire."""
    assert set(FAULTS) == {rule["alert"] for rule in alert_rules()}
    module = sys.modules[__name__]
    for alert, test in FAULTS.items():
        assert f'"{alert}"' in inspect.getsource(getattr(module, test)), alert


def settings_file(directory: Path, text: str) -> str:
    file = directory / "penstock.toml"
    file.write_text(text)
    return str(file)


def findings(server: StandaloneProcess, *arguments: str) -> set[str]:
    """Return the findings of the doctor about a running server."""
    ran = run_command("doctor", "--json", "--uri", server.uri, "--timeout", "60s", *arguments)
    return {each["id"] for each in cast("list[dict[str, str]]", ran.json["findings"])}


def health(server: StandaloneProcess) -> tuple[str, str]:
    return "--health", f"127.0.0.1:{server.ready['metrics_port']}"


@contextmanager
def scraped(
    directory: Path, *options: str, interval_s: int = 3, segment_stores: int = 1
) -> Iterator[tuple[StandaloneProcess, PrometheusServer]]:
    """A running server, and a Prometheus that scrapes it."""
    with StandaloneProcess(directory, "--metrics-port", "0", *options, segment_stores=segment_stores) as server:
        port = int(str(server.ready["metrics_port"]))
        with PrometheusServer(directory, port, rules=fast_rules(), interval_s=interval_s) as prometheus:
            prometheus.wait_until_value("up", 1)
            yield server, prometheus


class Load:
    """Appends blocks of 256 KiB, at most one in `pause_s`, until the end; appends that wait are awaited there."""

    def __init__(self, uri: str, pause_s: float) -> None:
        self._uri = uri
        self._pause_s = pause_s
        self._is_over = threading.Event()
        self._runs = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def wait_until_it_runs(self) -> None:
        """Wait for the first write."""
        assert self._runs.wait(120)

    def _run(self) -> None:
        with connect(self._uri) as client, client.event_writer(STREAM) as writer:
            for number in itertools.count():
                if self._is_over.wait(self._pause_s):
                    return
                writer.write(BLOCK, routing_key=str(number))
                self._runs.set()

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join(120)


@pytest.mark.e2e
@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_long_term_storage_is_away(tmp_path: Path) -> None:
    """Its directory disappears under load: bytes stay in the log and the cache."""
    storage, away = tmp_path / "storage", tmp_path / "away"
    storage.mkdir()
    config = settings_file(tmp_path, SMALL)
    with scraped(tmp_path, "--config", config, "--tier2", str(storage)) as (server, prometheus):
        with connect(server.uri) as client:
            client.create_stream(STREAM, scaling=Scaling.fixed(16))
        with Load(server.uri, 0.02):
            storage.rename(away)
            try:
                prometheus.wait_until_each_has_fired("PenstockStorageAway", "PenstockBacklogGrows", "PenstockCacheFull")
                assert "storage-unavailable" in findings(server)
            finally:
                # The end of the load waits for appends that wait for room.
                away.rename(storage)


@pytest.mark.e2e
@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_a_stream_that_long_term_storage_does_not_accept(tmp_path: Path) -> None:
    """A file is where the directory of its chunks belongs: other streams are flushed, this one keeps the log long."""
    storage = tmp_path / "storage"
    storage.mkdir()
    config = settings_file(tmp_path, SMALL)
    with scraped(tmp_path, "--config", config, "--tier2", str(storage)) as (server, prometheus):
        (storage / "shop").mkdir()
        (storage / STREAM).touch()
        with connect(server.uri) as client:
            client.create_stream(STREAM)
        with Load(server.uri, 0.1):
            try:
                prometheus.wait_until_each_has_fired("PenstockStorageErrors", "PenstockLogLong", "PenstockAppendsHeld")
                assert {"log-long", "appends-held"} <= findings(server)
            finally:
                (storage / STREAM).unlink()


@pytest.mark.e2e
@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_a_disabled_log(tmp_path: Path) -> None:
    """A container without tables of the controller stays offline: calls about streams in it fail."""
    server = StandaloneProcess(tmp_path, "--metrics-port", "0")
    with server:
        with connect(server.uri) as client:
            client.create_scope("shop")
        server.stop()
        others = {container_of(table, CONTAINER_COUNT) for table in SYSTEM_TABLES}
        container = min(set(range(CONTAINER_COUNT)) - others)
        assert run_command("log", "disable", str(container), "--data-dir", str(server.data_dir)).code == 0
        server.start()
        port = int(str(server.ready["metrics_port"]))
        with PrometheusServer(tmp_path, port, rules=fast_rules()) as prometheus, Callers(server.uri, 8):
            prometheus.wait_until_each_has_fired("PenstockContainerOffline", "PenstockRpcErrors")
            assert "container-offline" in findings(server)


@pytest.mark.e2e
@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_a_log_that_hangs(tmp_path: Path) -> None:
    """The kernel does not return from opening a file of one container's log, as on a file system that hangs.

    The file is a pipe that nothing writes to. The other containers run; this one starts when the file is there again.
    """
    port = free_port()
    # A start without progress ends after 60 s; Prometheus may need longer on a busy machine.
    config = settings_file(tmp_path, "[segment_store]\nstart_stall_timeout_s = 600.0\n")
    server = StandaloneProcess(tmp_path, "--metrics-port", str(port), "--config", config)
    with server:
        with connect(server.uri) as client:
            client.create_stream(STREAM)
        server.stop()
        others = {container_of(table, CONTAINER_COUNT) for table in SYSTEM_TABLES}
        container = min(set(range(CONTAINER_COUNT)) - others)
        file = server.data_dir / "tier1" / str(container) / "log.truncation"
        kept = file.rename(tmp_path / "kept")
        os.mkfifo(file)
        server.spawn()
        with PrometheusServer(tmp_path, port, rules=fast_rules()) as prometheus:
            prometheus.wait_until_each_has_fired("PenstockContainerStarting")
            assert prometheus.value(f'penstock_container_state{{state="starting", container="{container}"}}') == 1
            assert prometheus.value('sum(penstock_container_state{state="running"})') == CONTAINER_COUNT - 1
        server.kill9()
        kept.replace(file)
        server.start()


class Callers:
    """Create streams, `count` at a time, whatever the answers are."""

    def __init__(self, uri: str, count: int) -> None:
        self._address = uri.partition("://")[2]
        self._is_over = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(number,)) for number in range(count)]

    def _run(self, caller: int) -> None:
        with grpc.insecure_channel(self._address) as channel:
            stub = ControllerServiceStub(channel)
            number = 0
            while not self._is_over.wait(0.05):
                number += 1
                stream = pb.StreamInfo(scope="shop", stream=f"s{caller}-{number}")
                policy = pb.ScalingPolicy(scaleType=pb.ScalingPolicy.FIXED_NUM_SEGMENTS, minNumSegments=1)
                with suppress(grpc.RpcError):
                    stub.createStream(pb.StreamConfig(streamInfo=stream, scalingPolicy=policy), timeout=120)

    def __enter__(self) -> Callers:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        for thread in self._threads:
            thread.join(130)


@pytest.mark.e2e
@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_a_start_without_long_term_storage(tmp_path: Path) -> None:
    """Its directory is not mounted: the server waits for it, and the port of metrics answers."""
    storage = tmp_path / "storage"
    storage.mkdir()
    with StandaloneProcess(tmp_path, "--tier2", str(storage)) as server:
        server.stop()
    storage.rename(tmp_path / "away")
    port = free_port()
    server = StandaloneProcess(tmp_path, "--metrics-port", str(port), "--tier2", str(storage))
    server.spawn()
    try:
        with PrometheusServer(tmp_path, port, rules=fast_rules()) as prometheus:
            prometheus.wait_until_each_has_fired("PenstockNotReady")
    finally:
        server.kill9()


@pytest.mark.e2e
@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_little_space(tmp_path: Path) -> None:
    """Another program fills the file system of the log."""
    found = os.statvfs(tmp_path)
    free_bytes = found.f_bavail * found.f_frsize
    if free_bytes < 3072 * MIB:
        pytest.skip("needs 3 GiB of free space")
    # Writes resume when 125 % of the mark is free, and other programs use the file system, too.
    mark_bytes, filled_bytes = free_bytes * 7 // 10, free_bytes * 4 // 10
    config = settings_file(
        tmp_path,
        f"""
[segment_store.container.space]
log_free_bytes_min = {mark_bytes}
log_free_percent_max = 100
""",
    )
    with scraped(tmp_path, "--config", config) as (server, prometheus):
        assert "writes-blocked" not in findings(server, *health(server))
        with open(tmp_path / "other", "wb") as file:
            os.posix_fallocate(file.fileno(), 0, filled_bytes)
        prometheus.wait_until_each_has_fired("PenstockWritesBlocked")
        assert "writes-blocked" in findings(server, *health(server))
        (tmp_path / "other").unlink()
        prometheus.wait_until_value("penstock_writes_blocked", 0)
        # Less than twice the limit is free.
        assert "space-short" in findings(server, "--config", config, "--data-dir", str(server.data_dir))


@pytest.mark.e2e
@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_a_suspended_server(tmp_path: Path) -> None:
    """The process is suspended repeatedly, as on a machine that swaps, and at last permanently."""
    with scraped(tmp_path, interval_s=4) as (server, prometheus):
        with connect(server.uri) as client:
            client.create_stream(STREAM)

        def suspend() -> None:
            os.kill(server.pid, signal.SIGSTOP)
            time.sleep(2.0)
            os.kill(server.pid, signal.SIGCONT)
            time.sleep(2.0)

        with Load(server.uri, 0.02) as load:
            load.wait_until_it_runs()
            prometheus.wait_until_each_has_fired(
                "PenstockAppendSlow", "PenstockSyncSlow", "PenstockLoopLag", meanwhile=suspend
            )
        os.kill(server.pid, signal.SIGSTOP)
        try:
            prometheus.wait_until_each_has_fired("PenstockServerDown")
        finally:
            os.kill(server.pid, signal.SIGCONT)


@pytest.mark.e2e
@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_groups_that_do_not_read_and_too_many_connections(tmp_path: Path) -> None:
    """A group without readers, one whose reader hangs, and a program that opens connection after connection."""
    config = settings_file(
        tmp_path,
        """
[segment_store.connection]
connections_max = 40
""",
    )
    with scraped(tmp_path, "--config", config) as (server, prometheus), connect(server.uri) as client:
        client.create_stream(STREAM)
        with (
            client.reader_group("shop/unread", [STREAM]),
            client.reader_group("shop/hangs", [STREAM]) as group,
            group.reader("one"),
            Load(server.uri, 0.5),
            ExitStack() as sockets,
        ):

            def connect_again() -> None:
                for _ in range(10):
                    sockets.enter_context(socket.create_connection(("127.0.0.1", server.segment_store_port)))

            prometheus.wait_until_each_has_fired(
                "PenstockGroupWithoutReaders", "PenstockGroupLagHigh", "PenstockGroupStuck"
            )
            assert "group-stuck" in findings(server)
            prometheus.wait_until_each_has_fired("PenstockConnectionsRefused", meanwhile=connect_again)
            sockets.close()


@pytest.mark.e2e
@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_wrong_credentials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client guesses passwords; the doctor has a wrong one, too. The audit log is on a full device."""
    config = settings_file(
        tmp_path,
        """
[audit]
file = "/dev/full"
""",
    )
    with scraped(tmp_path, "--secure", "--config", config) as (server, prometheus):
        authority = server.data_dir / "security" / "ca.crt"
        uri = f"tls://localhost:{server.controller_port}"
        credentials = grpc.ssl_channel_credentials(authority.read_bytes())
        with grpc.secure_channel(f"localhost:{server.controller_port}", credentials) as channel:
            stub = ControllerServiceStub(channel)

            def guess() -> None:
                for _ in range(5):
                    with pytest.raises(grpc.RpcError, match="UNAUTHENTICATED"):
                        stub.createScope(
                            pb.ScopeInfo(scope="shop"), timeout=60, metadata=(("authorization", "Basic Zzpn"),)
                        )

            prometheus.wait_until_each_has_fired("PenstockAuthFailures", meanwhile=guess)
        monkeypatch.setenv("PENSTOCK_CA", str(authority))
        monkeypatch.setenv("PENSTOCK_USER", "admin")
        monkeypatch.setenv("PENSTOCK_PASSWORD", "guessed-wrong")
        ran = run_command("doctor", "--json", "--uri", uri, "--timeout", "60s", *health(server))
        found = {each["id"] for each in cast("list[dict[str, str]]", ran.json["findings"])}
        assert {"credentials-refused", "audit-failing"} <= found


@pytest.mark.e2e
@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_a_suspended_segment_store(tmp_path: Path) -> None:
    """The doctor reports it, and not that the controller cannot be reached, although calls about tables wait.

    The server ends a store that does not answer, and starts it again: the next process is suspended, too.
    """
    with StandaloneProcess(tmp_path, segment_stores=2) as server, Suspension(server.pid, "store-child 1"):
        ran = run_command("doctor", "--json", "--uri", server.uri, "--timeout", "20s")
        found = {each["id"] for each in cast("list[dict[str, str]]", ran.json["findings"])}
        assert "store-down" in found
        assert "controller-unreachable" not in found


class Suspension:
    """Suspends each child of a process whose command line ends in `command`, until the end."""

    def __init__(self, parent: int, command: str) -> None:
        self._parent = parent
        self._command = command
        self._is_over = threading.Event()
        self._suspended: set[int] = set()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        while not self._is_over.is_set():
            for process in Path("/proc").glob("[0-9]*"):
                with suppress(OSError):
                    # It may end meanwhile.
                    parent = int((process / "stat").read_text().rpartition(")")[2].split()[1])
                    line = (process / "cmdline").read_text().replace("\0", " ").strip()
                    child = int(process.name)
                    is_it = parent == self._parent and line.endswith(self._command)
                    if is_it and child not in self._suspended:
                        os.kill(child, signal.SIGSTOP)
                        self._suspended.add(child)
            self._is_over.wait(0.2)

    def __enter__(self) -> Suspension:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join(120)
        for child in self._suspended:
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGCONT)


async def announce_creation(data_directory: Path, stream: str) -> None:
    """Announce the creation of a stream in scope shop, as a server does that ends immediately afterwards."""
    settings = StandaloneSettings(data_dir=str(data_directory), controller_port=0, segment_store_port=0)
    async with Standalone(settings) as server:
        assert server.service is not None
        context = server.service._context
        order = CreateStream(StreamConfig(Scaling.fixed(1)))
        await context.begin(Subject(SubjectKind.STREAM, "shop", stream), order, context.new_id())


@pytest.mark.e2e
@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_work_of_an_earlier_release_that_cannot_end(tmp_path: Path) -> None:
    """It announced a stream with a name that no segment can have; the next start gives that up."""
    port = free_port()
    with StandaloneProcess(tmp_path, "--metrics-port", str(port)) as server:
        with connect(server.uri) as client:
            client.create_scope("shop")
        with PrometheusServer(tmp_path, port, rules=fast_rules()) as prometheus:
            prometheus.wait_until_value("penstock_work_given_up_total", 0)
            server.stop()
            asyncio.run(announce_creation(server.data_dir, ".."))
            server.start()
            prometheus.wait_until_each_has_fired("PenstockWorkGivenUp")
        assert "work-given-up" in findings(server, *health(server))


@pytest.mark.e2e
@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_a_doctor_of_another_version(tmp_path: Path) -> None:
    """Its package has other metadata than that of the server."""
    (tmp_path / "other" / "penstock-0.0.1.dist-info").mkdir(parents=True)
    (tmp_path / "other" / "penstock-0.0.1.dist-info" / "METADATA").write_text("Name: penstock\nVersion: 0.0.1\n\n")
    path = os.pathsep.join((str(tmp_path / "other"), child_environment()["PYTHONPATH"]))
    with StandaloneProcess(tmp_path, "--metrics-port", "0") as server:
        asked = ("doctor", "--json", "--uri", server.uri, "--timeout", "60s", *health(server))
        ran = run_penstock(*asked, timeout_s=300, PYTHONPATH=path)
        assert "this command is of 0.0.1" in ran.stdout, ran
        assert "version-differs" in ran.stdout
        assert "version-differs" not in run_penstock(*asked, timeout_s=300).stdout


@contextmanager
def few_writes(directory: Path, writes_per_s: int) -> Iterator[Path]:
    """Return the control group of processes that the kernel lets write only so often to the disk of `directory`."""
    group = Path("/sys/fs/cgroup/blkio", f"penstock-{os.getpid()}")
    device = os.stat(directory).st_dev
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"needs the control groups of disks and the rights to use them: {error}")
    try:
        limit = f"{os.major(device)}:{os.minor(device)} {writes_per_s}"
        try:
            (group / "blkio.throttle.write_iops_device").write_text(limit)
        except OSError as error:
            pytest.skip(f"the kernel does not limit writes to this disk: {error}")
        yield group
    finally:
        group.rmdir()


@pytest.mark.nightly
def test_a_slow_disk(tmp_path: Path) -> None:
    """The kernel delays the writes of the doctor."""
    with few_writes(tmp_path, 20) as group:
        command = [sys.executable, "-m", "penstock", "doctor", "--json", "--data-dir", str(tmp_path / "new")]
        ran = subprocess.run(
            command, capture_output=True, text=True, timeout=300, check=False, env=child_environment(),
            preexec_fn=lambda: (group / "cgroup.procs").write_text(str(os.getpid())),
        )  # fmt: skip
    assert '"disk-slow"' in ran.stdout, ran


def test_the_clock_is_reported_as_the_kernel_reports_it(tmp_path: Path) -> None:
    """The bits of its status say whether it is synchronized; the doctor uses the result of the call."""
    timex = ctypes.create_string_buffer(512)
    if ctypes.CDLL(None).adjtimex(timex) < 0:
        pytest.skip("the kernel does not report on its clock")
    (status,) = struct.unpack_from("i", timex, 40)
    is_unsynchronized = bool(status & 0x40)  # STA_UNSYNC
    found = check_clock(tmp_path, time.time(), is_clock_unsynchronized())
    assert ("clock-unsynchronized" in {each.kind.id for each in found.findings}) == is_unsynchronized


def test_few_file_descriptors(tmp_path: Path) -> None:
    """The doctor runs with a low limit of the system."""
    command = [sys.executable, "-m", "penstock", "doctor", "--json", "--data-dir", str(tmp_path / "new")]
    ran = subprocess.run(
        command, capture_output=True, text=True, timeout=300, check=False, env=child_environment(),
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (300, 300)),
    )  # fmt: skip
    assert '"descriptors-few"' in ran.stdout, ran
