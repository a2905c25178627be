"""Parts of the demonstration: its commands, its processes, which end with it, and what its load finds."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.demo import with_parent, zookeeper
from penstock.demo.cluster import DemoCluster
from penstock.demo.commands import DemoCommand, Verb, parse, parse_script
from penstock.demo.errors import DemoCommandError, DemoLoadError, DemoProcessError, DemoRequirementError
from penstock.demo.load import DemoLoad, Lane, _key_in, _note
from penstock.demo.processes import DemoProcess
from penstock.demo.run import Demo, DemoEvent
from penstock.demo.settings import DemoSettings
from penstock.model.errors import InvalidArgumentError
from penstock.model.routing import routing_key_hash


def test_a_script_has_commands_of_lines_or_between_semicolons() -> None:
    """Stores by their numbers, controllers and ZooKeeper by short names or long ones."""
    found = parse_script("kill 2; wait 1.5\n# a comment\nstop c1;;drain store-3; kill zk; start s2; served; quit")
    assert [str(command) for command in found] == [
        "kill store-2", "wait 1.5", "stop controller-1", "drain store-3", "kill zookeeper", "start store-2", "served",
        "quit",
    ]  # fmt: skip
    assert parse("undrain 1") == DemoCommand(Verb.UNDRAIN, "store-1")


@pytest.mark.parametrize(
    ("line", "match"),
    [
        ("dance", "'dance' is no command: use kill, crash"),
        ("kill", "write kill 2"),
        ("kill 1 2", "write kill 2"),
        ("kill everything", "names nothing"),
        ("wait", "number of seconds"),
        ("wait -1", "number of seconds"),
        ("drain c1", "drain has a store"),
        ("crash zk", "crash has a store"),
        ("served 1", "write served"),
    ],
)
def test_an_unknown_command_is_refused(line: str, match: str) -> None:
    with pytest.raises(DemoCommandError, match=match):
        parse(line)


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


async def ended(*pids: int) -> None:
    """Wait until processes have ended."""
    async with asyncio.timeout(60):
        while any(is_running(pid) for pid in pids):  # noqa: ASYNC110  # of other processes
            await asyncio.sleep(0.02)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a process with its parent")
async def test_a_process_ends_with_its_parent(tmp_path: Path) -> None:
    """Also when that one is killed."""
    code = (
        "import os, subprocess, sys, time\n"
        f"launcher = [sys.executable, '-I', {str(with_parent.__file__)!r}, str(os.getpid())]\n"
        "child = subprocess.Popen([*launcher, 'sleep', '600'])\n"
        "print(child.pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    parent = await asyncio.create_subprocess_exec(sys.executable, "-c", code, stdout=subprocess.PIPE)
    assert parent.stdout is not None
    pid = int(await parent.stdout.readline())
    async with asyncio.timeout(60):
        while Path(f"/proc/{pid}/comm").read_text() != "sleep\n":  # noqa: ASYNC110  # of another process
            await asyncio.sleep(0.02)
    parent.kill()
    await parent.wait()
    await ended(pid)


async def test_a_process_and_its_children_are_suspended_and_killed(tmp_path: Path) -> None:
    """As those of a machine; its log is kept."""
    code = (
        "import json, subprocess, sys, time\n"
        "child = subprocess.Popen(['sleep', '600'])\n"
        "print('a line of the log', file=sys.stderr, flush=True)\n"
        "print(json.dumps({'type': 'ready', 'child': child.pid}), flush=True)\n"
        "time.sleep(600)\n"
    )
    process = DemoProcess("one", [sys.executable, "-c", code], tmp_path)
    await process.start()
    record = await process.ready()
    child = int(str(record["child"]))
    assert process.child_pids() == [child]
    process.suspend()
    async with asyncio.timeout(60):
        while Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[0] != "T":  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    process.resume()
    await process.kill()
    assert not process.is_running
    await ended(child)
    assert "a line of the log" in process.log_tail
    assert await process.terminate() is None
    process.send(signal.SIGTERM)


async def test_a_process_that_does_not_start_says_why(tmp_path: Path) -> None:
    """By its log, or by what it has printed."""
    for code, match in (
        ("import sys; sys.exit('broken pipe organ')", "broken pipe organ"),
        ('print(\'{"type": "error", "message": "no cluster there"}\')', "no cluster there"),
    ):
        process = DemoProcess("one", [sys.executable, "-c", code], tmp_path)
        await process.start()
        with pytest.raises(DemoProcessError, match=match):
            await process.ready()
        await process.terminate()


def test_without_java_or_its_jars_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setattr("shutil.which", lambda name: None)
    monkeypatch.setattr(zookeeper, "find_spec", lambda name: None)
    for find in (zookeeper.find_java, zookeeper.find_jars):
        with pytest.raises(DemoRequirementError, match=r"pip install .*pyspark.* --zookeeper HOST:PORT"):
            find()


def test_an_event_that_is_lost_doubled_or_out_of_order_is_found() -> None:
    lanes = {"k": Lane("k", 0)}
    _note(lanes, b"k 0 ....")
    _note(lanes, b"k 1 ....")
    with pytest.raises(DemoLoadError, match="read before event 2"):
        _note(lanes, b"k 3 ....")
    with pytest.raises(DemoLoadError, match="twice or out of order"):
        _note(lanes, b"k 1 ....")
    assert lanes["k"].read == 2


def test_each_lane_has_a_key_of_its_segment() -> None:
    for low, high in ((0.0, 1 / 16), (0.5, 0.75), (15 / 16, 1.0)):
        assert low <= routing_key_hash(_key_in(low, high)) < high


def test_log_and_data_are_in_files_or_in_a_bucket(tmp_path: Path) -> None:
    """In a place of its own there, so that several demonstrations may use one bucket."""
    settings = DemoSettings(tmp_path)
    settings.write()
    assert settings.log == f"file://{tmp_path}/bucket/log"
    assert os.path.isdir(tmp_path / "bucket" / "data")
    one, other = DemoSettings(tmp_path, bucket="s3://b/p/"), DemoSettings(tmp_path, bucket="s3://b/p/")
    assert one.log.startswith("s3://b/p/penstock-demo-")
    assert one.log != other.log
    with pytest.raises(InvalidArgumentError):
        DemoSettings(tmp_path, bucket="nowhere")
    with pytest.raises(InvalidArgumentError):
        DemoSettings(tmp_path, stores=0)


async def test_a_command_reports_once_that_all_containers_are_served(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """They were not served before: the watch of all containers would report that, too."""
    found: list[DemoEvent] = []
    demo = Demo(DemoSettings(tmp_path), found.append)

    async def settled(cluster: DemoCluster) -> None:
        demo._watch_containers()

    monkeypatch.setattr(DemoCluster, "settled", settled)
    monkeypatch.setattr(DemoCluster, "is_served", True)
    monkeypatch.setattr(DemoLoad, "gap_s", 1.5)
    monkeypatch.setattr(demo, "_is_writing", lambda: True)
    demo._is_unserved = True
    await demo.execute(DemoCommand(Verb.SERVED))
    demo._watch_containers()
    assert [each.kind for each in found] == ["command", "all_served"]
