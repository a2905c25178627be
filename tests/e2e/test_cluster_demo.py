"""``penstock cluster demo`` with real processes; and commands of an administrator on the cluster that it runs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.demo.errors import DemoRequirementError
from penstock.demo.zookeeper import find_jars, find_java
from penstock.server.standalone_process import child_environment
from support.command_line import run_command

pytest.importorskip("kazoo", reason="needs the extra zookeeper")

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

#: Bound of every wait.
WAIT_S = 300.0


class DemoProgram:
    """The command as a child process: commands go to its standard input, records come from its output."""

    def __init__(self, directory: Path, *options: str) -> None:
        self.directory = directory
        self.records: list[dict[str, object]] = []
        #: Command lines of processes that belonged to it, by id.
        self._known: dict[int, bytes] = {}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "penstock", "cluster", "demo", "--json", "--directory", str(directory), *options],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=child_environment(),
        )  # fmt: skip
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.records.append(json.loads(line))

    def say(self, command: str) -> None:
        """Give it a command."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{command}\n".encode())
        self.process.stdin.flush()

    def wait_for(self, kind: str, count: int = 1) -> dict[str, object]:
        """Wait until there are so many records of a kind; return the last one."""
        deadline_s = time.monotonic() + WAIT_S
        while time.monotonic() < deadline_s:
            found = [each for each in list(self.records) if each["type"] == kind]
            if len(found) >= count:
                return found[count - 1]
            assert self.process.poll() is None, self.told()
            time.sleep(0.05)
        raise AssertionError(f"no {kind} record: {self.told()}")

    def told(self) -> str:
        """Return what it has printed, and the ends of all logs."""
        logs = [f"{path.name}: {path.read_text(errors='replace')[-1500:]}" for path in self.directory.glob("*.log")]
        return "\n".join([*map(str, self.records), *logs])

    def wait(self) -> int:
        """Wait for its end, and return its exit code."""
        code = self.process.wait(WAIT_S)
        self._reader.join(WAIT_S)
        return code

    def processes(self) -> list[str]:
        """Return the command lines of all processes that belong to it: they name its directory, or their parents do."""
        words: dict[int, bytes] = {}
        parents: dict[int, int] = {}
        for path in Path("/proc").glob("[0-9]*"):
            try:
                command = (path / "cmdline").read_bytes()
                parent = int((path / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
            if int(path.name) != os.getpid():
                words[int(path.name)], parents[int(path.name)] = command, parent
        named = {each for each, command in words.items() if str(self.directory).encode() in command}
        found = named | {each for each, parent in parents.items() if parent in named}
        self._known |= {each: words[each] for each in found}
        # Children whose parents have ended have another parent.
        return [words[each].decode()[:200] for each in words if self._known.get(each) == words[each]]

    def await_no_process(self) -> None:
        """Wait until none is left."""
        deadline_s = time.monotonic() + WAIT_S
        while found := self.processes():
            assert time.monotonic() < deadline_s, found
            time.sleep(0.1)


@pytest.fixture
def programs(tmp_path: Path) -> Iterator[list[DemoProgram]]:
    """Kill what a test has started."""
    try:
        find_java(), find_jars()
    except DemoRequirementError as error:
        pytest.skip(str(error))
    made: list[DemoProgram] = []
    yield made
    for each in made:
        each.process.kill()
        each.process.wait()


def administer(program: DemoProgram, *arguments: str, code: int = 0) -> dict[str, object]:
    """Run ``penstock cluster`` on the cluster of a demonstration."""
    where = str(program.wait_for("ready")["zookeeper"])
    done = run_command("cluster", *arguments, "--zookeeper", where, "--json")
    assert done.code == code, done.stdout + done.stderr + program.told()
    return dict(json.loads(done.stdout))


def test_a_demonstration_survives_a_crash_and_its_logs_are_administered(
    programs: list[DemoProgram], tmp_path: Path
) -> None:
    """No event is lost. Logs are listed and swept beside their stores; nothing runs after the end."""
    program = DemoProgram(tmp_path, "--stores", "2", "--controllers", "1", "--containers", "2", "--rate", "50")
    programs.append(program)
    program.wait_for("ready")
    program.say("crash 1")
    program.say("served")
    program.wait_for("all_served")

    logs = administer(program, "log", "list")["logs"]
    assert isinstance(logs, list)
    assert [each["state"] for each in logs] == ["enabled", "enabled"]
    assert {each["holder"] for each in logs} <= {"store-1", "store-2"}
    stores = administer(program, "stores")["stores"]
    assert isinstance(stores, list)
    assert "store-2" in [each["name"] for each in stores]
    refused = administer(program, "log", "salvage", "0", code=2)
    assert "serves container 0" in str(refused["message"])
    # The store that has crashed left a journal, and a proof that no record may need any more.
    dry = administer(program, "sweep", "--dry-run")
    assert dry["is_dry_run"] is True
    administer(program, "sweep")

    program.say("dance")
    assert "is no command" in str(program.wait_for("error")["message"])
    program.say("status")
    states = program.wait_for("status")["processes"]
    assert states == dict.fromkeys(("store-1", "store-2", "controller-1", "zookeeper"), "running")
    program.say("quit")
    assert program.wait() == 0, program.told()
    result = program.wait_for("result")
    assert result["written"] == result["read"]
    program.await_no_process()


@pytest.mark.nightly
def test_a_log_is_disabled_and_enabled_beside_its_store(programs: list[DemoProgram], tmp_path: Path) -> None:
    """Its container is away until it is enabled, and then served again with all events."""
    program = DemoProgram(tmp_path, "--stores", "2", "--controllers", "1", "--containers", "2", "--rate", "50")
    programs.append(program)
    program.wait_for("ready")
    assert administer(program, "log", "disable", "1")["container"] == 1
    assert "is disabled" in str(administer(program, "log", "disable", "1", code=2)["message"])
    assert administer(program, "log", "enable", "1")["type"] == "enabled"
    program.say("served")
    program.wait_for("all_served")
    program.say("quit")
    assert program.wait() == 0, program.told()


@pytest.mark.nightly
def test_a_script_shows_each_kind_of_loss(programs: list[DemoProgram], tmp_path: Path) -> None:
    """Machines are killed, suspended, drained and stopped in order; the leader is killed; every event is there."""
    script = (
        "kill 2; served; start 2; served; stop 3; served; cont 3; served; drain 1; served; undrain 1; served; "
        "kill c1; served; start c1; term 2; served; start 2; served; status"
    )
    program = DemoProgram(tmp_path, "--script", script)
    programs.append(program)
    assert program.wait() == 0, program.told()
    served = [each for each in program.records if each["type"] == "all_served"]
    assert len(served) >= 9
    drained = next(number for number, each in enumerate(program.records) if each.get("command") == "undrain store-1")
    moved = [each for each in program.records[:drained] if each["type"] == "served"]
    assert not any(each["store"] == "store-1" for each in moved[-2:])
    result = program.records[-2]
    assert result["type"] == "result"
    assert result["written"] == result["read"]


@pytest.mark.nightly
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_everything_ends_with_the_command(programs: list[DemoProgram], tmp_path: Path, number: signal.Signals) -> None:
    """However it ends."""
    program = DemoProgram(tmp_path, "--stores", "2", "--controllers", "1", "--containers", "2")
    programs.append(program)
    program.wait_for("ready")
    # The command, ZooKeeper, two parents with a store each, and a controller.
    assert len(program.processes()) >= 7
    program.process.send_signal(number)
    code = program.wait()
    assert code == (-9 if number is signal.SIGKILL else 128 + number)
    program.await_no_process()
