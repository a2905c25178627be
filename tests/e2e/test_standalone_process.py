"""`penstock standalone` and `penstock ready` as processes: start, stop, refusals, signals."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

import penstock
from penstock.runtime.version import penstock_version
from penstock.wire.commands import (
    AppendBlockEnd,
    AppendSetup,
    CreateSegment,
    DataAppended,
    ReadSegment,
    SegmentCreated,
    SegmentRead,
    SetupAppend,
)
from support.standalone_process import StandaloneProcess, run_penstock, warnings_in
from support.wire_client import WireClient

pytestmark = pytest.mark.e2e

SEGMENT = "scope/stream/0.#epoch.0"
EVENT = b"\0\0\0\0\0\0\0\5hello"


def store_event(server: StandaloneProcess) -> None:
    """Create `SEGMENT` with one acknowledged event."""
    with WireClient(server.segment_store_port) as client:
        client.ask(CreateSegment(client.next_id(), SEGMENT, 0, 0, "", 0), SegmentCreated)
        client.ask(SetupAppend(client.next_id(), b"w" * 16, SEGMENT, ""), AppendSetup)
        client.ask(AppendBlockEnd(b"w" * 16, len(EVENT), EVENT, 1, 1, client.next_id()), DataAppended)


def stored_event(server: StandaloneProcess) -> bytes:
    """Read what `store_event` wrote."""
    with WireClient(server.segment_store_port) as client:
        return bytes(client.ask(ReadSegment(SEGMENT, 0, 1000, "", client.next_id()), SegmentRead).data)  # type: ignore[arg-type]


def test_ready_line_says_where_everything_is(make_server: Callable[..., StandaloneProcess]) -> None:
    """The JSON form; ports requested as 0 are reported with their numbers."""
    server = make_server("--advertise", "localhost").start()
    assert server.ready["type"] == "ready"
    assert server.ready["controller"] == f"tcp://localhost:{server.controller_port}"
    assert server.ready["segment_store"] == f"localhost:{server.segment_store_port}"
    assert server.ready["data_dir"] == str(server.data_dir)
    assert server.ready["pid"] == server.pid
    assert server.ready["failures"] == {}
    assert server.terminate() == 0
    assert warnings_in(server.log) == []


def test_the_log_of_a_server_has_life_cycle_clients_and_changes(
    make_server: Callable[..., StandaloneProcess],
) -> None:
    """Each line begins with the time in UTC."""
    server = make_server().start()
    with penstock.connect(server.uri) as client:
        client.create_stream("shop/orders")
        with client.event_writer("shop/orders") as writer:
            writer.write(b"event", "key")
        client.seal_stream("shop/orders")
        client.delete_stream("shop/orders")
    assert server.terminate() == 0
    lines = server.log.splitlines()
    assert all(re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z [A-Z]+ [\w.]+: ", line) for line in lines), lines
    version, place = re.escape(penstock_version()), re.escape(str(server.data_dir))
    wanted = [
        rf"starting penstock {version}, pid {server.pid}, data in {place}$",
        rf"ready after [\d.]+ s: controller {re.escape(server.uri)}",
        rf"controller.*: client \S+ connects, program penstock/{version} grpc-python",
        r"created stream shop/orders, identity ",
        r"connection: client 127\.0\.0\.1:\d+ connects, wire versions \d+ to \d+$",
        r"sealed stream shop/orders$",
        r"deleted stream shop/orders, identity ",
        r"stopping on signal SIGTERM$",
        r": stopped$",
    ]
    found = [next((at for at, line in enumerate(lines) if re.search(each, line)), None) for each in wanted]
    assert None not in found, (found, lines)
    assert found == sorted(found), lines  # type: ignore[type-var]


def test_ready_line_for_people_is_one_line(make_server: Callable[..., StandaloneProcess]) -> None:
    """Without `--json`, and in memory: nothing is written to the disk."""
    server = make_server(memory=True)
    command = server.command()
    server.command = lambda: [word for word in command if word != "--json"]  # type: ignore[method-assign]
    server.spawn()
    line = server.read_line().decode()
    assert line.startswith("penstock is ready: controller tcp://127.0.0.1:")
    assert f"data in memory (pid {server.pid}, " in line
    assert server.terminate() == 0
    assert not server.data_dir.exists()


def test_the_ready_line_says_whether_the_store_is_new_and_where(make_server: Callable[..., StandaloneProcess]) -> None:
    """A mistyped directory is not taken for a store that has lost everything."""
    server = make_server()
    command = server.command()
    server.command = lambda: [word for word in command if word != "--json"]  # type: ignore[method-assign]
    server.spawn()
    assert f"new store in {server.data_dir} (pid " in server.read_line().decode()
    assert server.terminate() == 0
    server.spawn()
    assert f"data in {server.data_dir} (pid " in server.read_line().decode()
    assert server.terminate() == 0


def test_a_server_open_to_other_machines_warns_and_names_its_address(
    make_server: Callable[..., StandaloneProcess],
) -> None:
    server = make_server("--host", "0.0.0.0", "--insecure", "--advertise", "127.0.0.1").start()
    assert server.ready["is_new_store"] is True
    assert server.terminate() == 0
    assert "listening on all addresses of this machine" in server.log
    assert "The address given to clients is 127.0.0.1" in server.log
    assert "cannot resolve" not in server.log


def test_a_server_warns_at_start_when_it_cannot_resolve_the_address_that_clients_are_given(
    make_server: Callable[..., StandaloneProcess],
) -> None:
    server = make_server("--host", "0.0.0.0", "--insecure", "--advertise", "store-1.invalid").start()
    assert server.terminate() == 0
    assert "cannot resolve store-1.invalid, the address given to clients" in server.log
    assert "--advertise" in server.log


def test_data_survive_a_restart_and_the_stop_is_reported(server: StandaloneProcess) -> None:
    """SIGTERM: exit code 0 and a last line; the next start serves the same bytes on the same ports."""
    store_event(server)
    ports = server.controller_port, server.segment_store_port
    assert server.process is not None
    server.process.send_signal(signal.SIGTERM)
    assert json.loads(server.read_line()) == {"type": "stopped", "event": "stopped"}
    assert server.wait() == 0
    server.start()
    assert (server.controller_port, server.segment_store_port) == ports
    assert stored_event(server) == EVENT


def test_ctrl_c_stops_in_order_with_clients_connected(server: StandaloneProcess) -> None:
    """SIGINT while a client is idle and another one waits for data at the tail."""
    store_event(server)
    with WireClient(server.segment_store_port), WireClient(server.segment_store_port) as waiting:
        waiting.send(ReadSegment(SEGMENT, len(EVENT), 1000, "", 1))
        os.kill(server.pid, signal.SIGINT)
        assert json.loads(server.read_line()) == {"type": "stopped", "event": "stopped"}
        waiting.receive_until_closed()
        assert server.wait() == 0


def test_a_second_start_on_the_same_directory_is_refused(
    server: StandaloneProcess, make_server: Callable[..., StandaloneProcess]
) -> None:
    """Exit code 1 and one line that names the directory; the first server is not disturbed."""
    store_event(server)
    second = make_server()
    second.data_dir = server.data_dir
    refused = second.launch()
    assert refused["type"] == "error"
    assert refused["kind"] == "DataDirectoryInUseError"
    assert str(server.data_dir) in str(refused["message"])
    assert second.wait() == 1
    for_people = run_penstock("standalone", "--data-dir", str(server.data_dir))
    assert for_people.returncode == 1
    assert for_people.stderr.startswith("penstock: ")
    assert "use another --data-dir" in for_people.stderr
    assert for_people.stderr.count("\n") == 1
    assert stored_event(server) == EVENT


def test_a_killed_server_leaves_no_lock_behind(server: StandaloneProcess) -> None:
    """kill -9, then a start on the same directory at once."""
    store_event(server)
    server.kill9()
    server.start()
    assert stored_event(server) == EVENT


def test_another_number_of_containers_is_refused(make_server: Callable[..., StandaloneProcess]) -> None:
    """The number is part of the data; the message says with what to start."""
    server = make_server("--containers", "2").start()
    assert server.terminate() == 0
    server.options = ("--containers", "3")
    refused = server.launch()
    assert refused["kind"] == "DataDirectoryError"
    assert "--containers 2, not 3" in str(refused["message"])
    assert server.wait() == 1
    server.options = ("--containers", "2")
    server.start()


def test_a_directory_with_something_else_in_it_is_left_alone(make_server: Callable[..., StandaloneProcess]) -> None:
    """Someone's own directory is not taken over, not even by a lock file."""
    server = make_server()
    server.data_dir.mkdir()
    (server.data_dir / "thesis.txt").write_text("mine")
    refused = server.launch()
    assert refused["kind"] == "DataDirectoryError"
    assert "thesis.txt" in str(refused["message"])
    assert [path.name for path in server.data_dir.iterdir()] == ["thesis.txt"]


@pytest.mark.parametrize("option", ["--controller-port", "--segment-store-port"])
def test_a_port_in_use_is_reported_with_the_option_to_change_it(
    make_server: Callable[..., StandaloneProcess], option: str
) -> None:
    """And the data directory is free again afterwards."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        server = make_server(option, str(taken.getsockname()[1]))
        refused = server.launch()
    assert refused["kind"] == "PortInUseError"
    assert option in str(refused["message"])
    assert "in use" in str(refused["message"])
    assert str(refused["message"]).count("cannot listen") == 1
    assert server.wait() == 1
    # What libraries have to say about it is in the message, not on lines of their own.
    assert warnings_in(server.log) == []
    server.options = ()
    server.start()


def test_the_ready_probe_distinguishes_a_running_server_from_none(server: StandaloneProcess) -> None:
    """Exit code 0 and 1; JSON for programs."""
    probe = run_penstock("ready", "--uri", server.uri)
    assert (probe.returncode, probe.stdout) == (
        0, f"ready: controller {server.uri}, segment store 127.0.0.1:{server.segment_store_port}\n"
    )  # fmt: skip
    probe = run_penstock("ready", "--uri", server.uri, "--json")
    assert json.loads(probe.stdout)["type"] == "ready"

    server.terminate()
    probe = run_penstock("ready", "--uri", server.uri, "--timeout-s", "2")
    assert probe.returncode == 1
    assert probe.stderr.startswith(f"penstock: {server.uri} is not ready")
    probe = run_penstock("ready", "--uri", server.uri, "--timeout-s", "2", "--json")
    assert (probe.returncode, json.loads(probe.stdout)["type"]) == (1, "error")


def test_a_second_signal_ends_the_process_at_once(server: StandaloneProcess) -> None:
    """Two SIGTERMs: whether it was in the middle of its stop or through, it is gone; what was acknowledged is there."""
    store_event(server)
    assert server.process is not None
    server.process.send_signal(signal.SIGTERM)
    assert server.terminate() in (0, 128 + signal.SIGTERM)
    server.start()
    assert stored_event(server) == EVENT


def test_settings_file_environment_and_flags_override_each_other(
    make_server: Callable[..., StandaloneProcess], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A misspelt key stops the start and names the nearest setting."""
    settings = tmp_path / "settings.toml"
    settings.write_text("[segment_store.cache]\nbytes_maximum = 1\n")
    refused = make_server("--config", str(settings)).launch()
    assert refused["kind"] == "SettingsError"
    assert "did you mean bytes_max?" in str(refused["message"])
    probe = run_penstock("standalone", "--memory", PENSTOCK_CONTAINERS="3")
    assert probe.returncode == 2
    assert "PENSTOCK_CONTAINERS: there is no setting 'containers'" in probe.stderr
    settings.write_text('advertise = "from-file"\nhost = "127.0.0.1"\n')
    server = make_server("--config", str(settings), "--advertise", "localhost").start()
    assert str(server.ready["segment_store"]).startswith("localhost:")
