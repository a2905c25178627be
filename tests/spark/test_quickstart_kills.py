"""How the quickstart watches, holds and kills its driver: with processes that do nothing but what a test needs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace

import pytest

from penstock.quickstart import process_tree
from penstock.quickstart.driver import Plan
from penstock.quickstart.driver_process import DriverProcess
from penstock.quickstart.errors import QueryFailedError, SparkStartError
from penstock.quickstart.kills import Checkpoint, QueryWatch
from penstock.quickstart.query import PassResult
from penstock.server.standalone_process import child_environment

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="sessions are seen on Linux only")

GUARD_S = 30.0

#: Starts a child in a process group of its own, as Spark's daemon is, which starts another one.
FAMILY = """
import subprocess, sys, time
child = "import os, subprocess, time; os.setpgid(0, 0); subprocess.Popen(['sleep', '600']); time.sleep(600)"
subprocess.Popen([sys.executable, "-c", child])
time.sleep(600)
"""

#: Runs micro-batches as a query does, as far as its checkpoint and its progress show.
QUERY = """
import json, sys, time
from pathlib import Path
from penstock.quickstart.query import PassResult
say = lambda fields: print(json.dumps(fields), flush=True)
say({"started": 1})
checkpoint = Path(json.loads(sys.stdin.readline())["checkpoint"])
for name in ("offsets", "commits"):
    (checkpoint / name).mkdir(parents=True, exist_ok=True)
for batch in range(COUNT):
    (checkpoint / "offsets" / str(batch)).write_text("")
    time.sleep(0.03)
    (checkpoint / "commits" / str(batch)).write_text("")
    say({"progress": PassResult(event_count=100 * (batch + 1), last_batch=batch).to_text()})
    time.sleep(0.03)
say({"done": True})
"""


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[str], DriverProcess]]:
    """Return a function that starts a driver which runs some Python."""
    started: list[DriverProcess] = []

    def start_driver(program: str) -> DriverProcess:
        started.append(DriverProcess(tmp_path / "spark.log", [sys.executable, "-c", program]).start())
        return started[-1]

    yield start_driver
    for driver in started:
        driver.kill9()


def wait_for(is_true: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + GUARD_S
    while not is_true():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


def states(leader: int) -> list[str]:
    return [each.state for each in process_tree.members(leader)]


def client_with(open_counts: list[int]) -> SimpleNamespace:
    """Return a client of a store that says these numbers of open transactions, and then the last one on and on."""

    def open_transactions(stream: str) -> list[int]:
        return [0] * (open_counts.pop(0) if len(open_counts) > 1 else open_counts[0])

    return SimpleNamespace(open_transactions=open_transactions)


def plan(checkpoint: Path) -> Plan:
    return Plan("tcp://nowhere", "a/b", "a/c", str(checkpoint), 1)


def test_all_of_a_driver_is_held_continues_and_is_killed_whatever_group_it_is_in(
    start: Callable[[str], DriverProcess],
) -> None:
    driver = start(FAMILY)
    leader = driver.pid
    wait_for(lambda: len(states(leader)) == 3)
    assert {os.getpgid(each.pid) for each in process_tree.members(leader)} > {leader}
    driver.hold()
    assert states(leader) == ["T"] * 3
    driver.resume()
    wait_for(lambda: "T" not in states(leader))
    driver.hold()
    assert driver.kill9() == 3
    assert states(leader) == []
    assert driver.kill9() == 0


def test_a_process_that_is_just_starting_a_program_is_held(
    start: Callable[[str], DriverProcess], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waits in the kernel for its child, which comes to the program's start only when it continues."""
    monkeypatch.setattr(process_tree, "SIGNAL_TIMEOUT_S", 2.0)
    os.mkfifo(tmp_path / "fifo")
    opening = f"[(os.POSIX_SPAWN_OPEN, 0, {str(tmp_path / 'fifo')!r}, os.O_RDONLY, 0)]"
    driver = start(f"import os; os.posix_spawn('/bin/sleep', ['sleep', '600'], os.environ, file_actions={opening})")
    wait_for(lambda: "D" in states(driver.pid))
    driver.hold()
    assert sorted(states(driver.pid)) == ["D", "T"]
    assert driver.kill9() == 2


def test_a_driver_that_ends_or_fails_is_an_error_that_names_its_log(start: Callable[[str], DriverProcess]) -> None:
    with pytest.raises(QueryFailedError, match=r"ended with code 3 before the query did; .*spark\.log"):
        start("raise SystemExit(3)").wait_started(GUARD_S)
    failed = json.dumps({"failed": {"kind": "SparkStartError", "message": "no Java"}})
    with pytest.raises(SparkStartError, match=r"no Java; .*spark\.log"):
        start(f"print('''{failed}''')").wait_started(GUARD_S)
    with pytest.raises(SparkStartError, match=r"not ready after 0\.2 s"):
        start("import time; time.sleep(600)").wait_started(0.2)


def test_a_hung_query_is_an_error_with_advice(start: Callable[[str], DriverProcess], tmp_path: Path) -> None:
    driver = start("import time; print('{\"started\": 1}', flush=True); time.sleep(600)")
    driver.wait_started(GUARD_S)
    driver.go(plan(tmp_path))
    watch = QueryWatch(client_with([0]), "a/c", Checkpoint(tmp_path), lambda progress: None, timeout_s=0.3)
    with pytest.raises(QueryFailedError, match=r"not done after 0\.3 s \(QUERY_TIMEOUT_S\): .*--limit"):
        watch.until_midst(driver, 0)


@pytest.mark.parametrize(("open_counts", "batch"), [([1], 2), ([0, 0, 0, 1], 2), ([0], 4)])
def test_a_driver_is_held_during_a_micro_batch(
    start: Callable[[str], DriverProcess], tmp_path: Path, open_counts: list[int], batch: int
) -> None:
    """Behind 200 events: in one that writes, or if none of the next two does, in the one after them."""
    driver, checkpoint = start(QUERY.replace("COUNT", "1000")), Checkpoint(tmp_path)
    seen: list[PassResult] = []
    watch = QueryWatch(client_with(open_counts), "a/c", checkpoint, seen.append, timeout_s=GUARD_S)
    driver.wait_started(GUARD_S)
    driver.go(plan(tmp_path))
    midst = watch.until_midst(driver, 200)
    assert midst is not None
    assert midst.batch >= batch
    assert midst.open_count == open_counts[-1]
    assert (driver.progress.last_batch, seen[-1].last_batch) == (midst.batch - 1,) * 2
    assert checkpoint.under_way() == midst.batch
    assert set(states(driver.pid)) == {"T"}
    driver.resume()
    assert watch.until_batch_done(driver, midst.batch)


def test_a_finished_query_has_nothing_to_suspend(start: Callable[[str], DriverProcess], tmp_path: Path) -> None:
    driver = start(QUERY.replace("COUNT", "2"))
    watch = QueryWatch(client_with([1]), "a/c", Checkpoint(tmp_path), lambda progress: None, timeout_s=GUARD_S)
    driver.wait_started(GUARD_S)
    driver.go(plan(tmp_path))
    assert watch.until_midst(driver, 10_000) is None
    assert driver.is_done
    assert driver.progress.event_count == 200


def test_a_checkpoint_says_which_micro_batch_is_under_way(tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path / "checkpoint")
    assert checkpoint.under_way() is None
    for name in ("offsets", "commits"):
        (checkpoint.directory / name).mkdir(parents=True)
    for batch in (8, 9, 10):
        (checkpoint.directory / "offsets" / str(batch)).touch()
    (checkpoint.directory / "offsets" / ".11.tmp").touch()
    (checkpoint.directory / "commits" / "9").touch()
    assert checkpoint.under_way() == 10
    (checkpoint.directory / "commits" / "10").touch()
    assert checkpoint.under_way() is None


def test_progress_passes_from_process_to_process() -> None:
    hours = (datetime(2013, 1, 1, tzinfo=UTC), datetime(2013, 1, 2, tzinfo=UTC))
    progress = PassResult(5, 2, 1, 2.5, [hours, hours], 7)
    assert PassResult.from_text(progress.to_text()) == progress


def test_a_driver_ends_with_the_process_that_started_it() -> None:
    """Before it receives its orders, and afterwards."""
    program = "from threading import Event; from penstock.quickstart import driver; driver._listen([], Event())"
    for order in (b"", b"{}\n"):
        driver = subprocess.Popen(
            [sys.executable, "-c", program], stdin=subprocess.PIPE, env=child_environment(), start_new_session=True
        )
        try:
            assert driver.stdin is not None
            driver.stdin.write(order)
            driver.stdin.close()
            assert driver.wait(GUARD_S) == 1
        finally:
            if driver.poll() is None:
                driver.send_signal(signal.SIGKILL)
                driver.wait()
