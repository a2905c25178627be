"""Real processes under kill -9, SIGSTOP and SIGTERM while clients work, judged by the checkers of histories.

``PENSTOCK_PROCESS_FAULT_SECONDS`` and ``PENSTOCK_PROCESS_FAULT_SEED`` make the run longer, and another one.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from penstock.model.errors import InvalidArgumentError
from penstock.server.errors import ServerProcessError
from penstock.server.standalone_process import StandaloneProcess, child_environment
from penstock_simulation.checks.history_events import (
    AbortTransaction,
    CommitTransaction,
    FullRead,
    Outcome,
    PutKey,
    ReadRange,
    WriteEvent,
)
from penstock_simulation.processes.faults import (
    PlannedFault,
    ProcessFault,
    ProcessFaults,
    ProcessFaultSettings,
    plan_faults,
)
from penstock_simulation.processes.load import LoadSettings
from penstock_simulation.processes.run import KILL_FAULTS, SEVERAL_STORES_SETTINGS, main, run_processes

SECONDS = float(os.environ.get("PENSTOCK_PROCESS_FAULT_SECONDS", "8"))
SEED = int(os.environ.get("PENSTOCK_PROCESS_FAULT_SEED", "3"))


def one(fault: ProcessFault, *, hold_s: float = 0.2, down_s: float = 0.0) -> PlannedFault:
    return PlannedFault(0.0, 0, fault, hold_s, down_s)


def test_a_seed_gives_one_plan_that_fits_into_its_time() -> None:
    settings = ProcessFaultSettings()
    plan = plan_faults(7, 600.0, server_count=3, settings=settings)
    assert plan == plan_faults(7, 600.0, server_count=3, settings=settings)
    assert plan != plan_faults(8, 600.0, server_count=3, settings=settings)
    assert sum(fault.wait_s + fault.hold_s + fault.down_s for fault in plan) <= 600.0
    assert {fault.fault for fault in plan} == set(ProcessFault)
    assert {fault.server for fault in plan} == {0, 1, 2}
    assert all(settings.interval_s_min <= fault.wait_s <= settings.interval_s_max for fault in plan)
    assert max(fault.down_s for fault in plan) <= settings.down_s_max


def test_weights_choose_the_faults() -> None:
    only_kills = ProcessFaultSettings(weights=((ProcessFault.KILL, 1), (ProcessFault.PAUSE, 0)))
    assert Counter(fault.fault for fault in plan_faults(1, 60.0, settings=only_kills)).keys() == {ProcessFault.KILL}
    assert plan_faults(1, 0.0) == []


@pytest.mark.parametrize(
    "bad",
    [
        {"weights": ()},
        {"weights": ((ProcessFault.KILL, 0),)},
        {"weights": ((ProcessFault.KILL, 2), (ProcessFault.PAUSE, -1))},
        {"interval_s_min": 2.0, "interval_s_max": 1.0},
        {"down_s_max": -1.0},
    ],
)
def test_settings_that_cannot_be_drawn_from_are_refused(bad: dict[str, object]) -> None:
    with pytest.raises(InvalidArgumentError):
        ProcessFaultSettings(**bad)  # type: ignore[arg-type]


@pytest.mark.e2e
@pytest.mark.parametrize("fault", list(ProcessFault))
async def test_each_fault_leaves_a_server_that_serves(fault: ProcessFault, tmp_path: Path) -> None:
    """A held process is the same one afterwards, any other is new; the ports stay."""
    with StandaloneProcess(tmp_path) as server:
        pid, uri = server.pid, server.uri
        faults = ProcessFaults([server], [one(fault)], record_count=lambda: 5)
        await faults.run()
        assert server.is_running
        assert server.uri == uri
        assert (server.pid == pid) is (fault is ProcessFault.PAUSE)
        assert [(done.planned.fault, done.begin_index) for done in faults.done] == [(fault, 5)]
        assert faults.problems == []
        assert server.terminate() == 0


@pytest.mark.e2e
async def test_a_server_that_ends_on_its_own_is_a_problem(tmp_path: Path) -> None:
    """Behind the harness's back it is killed: that is noted, and it is started again."""
    with StandaloneProcess(tmp_path) as server:
        faults = ProcessFaults([server], [one(ProcessFault.PAUSE, hold_s=0.0)])
        assert server.process is not None
        server.process.terminate()
        server.wait()
        await faults.run()
        assert faults.problems == ["server 0 ended on its own with code 0"]
        server.pause()
        await faults.heal()
        assert server.terminate() == 0
        await faults.heal()
        assert server.is_running


@pytest.mark.e2e
def test_a_server_that_cannot_start_says_why(tmp_path: Path) -> None:
    server = StandaloneProcess(tmp_path, "--containers", "0")
    with pytest.raises(ServerProcessError, match="container_count"):
        server.start()
    with pytest.raises(ServerProcessError, match="not started"):
        StandaloneProcess(tmp_path).pause()


def test_most_faults_of_a_server_with_several_stores_concern_one_store() -> None:
    """And the plans of servers with one store are what they were; a number of faults is kept to."""
    plan = plan_faults(7, 600.0, store_count=3)
    assert plan == plan_faults(7, 600.0, store_count=3)
    hit = Counter(fault.store for fault in plan)
    assert set(hit) == {None, 0, 1, 2}
    assert 0 < hit[None] < len(plan) / 2
    assert {fault.store for fault in plan_faults(7, 600.0)} == {None}
    assert len(plan_faults(7, 0.0, store_count=3, fault_count=25)) == 25
    assert str(PlannedFault(0.0, 0, ProcessFault.KILL, 0.0, 0.0, 2)).startswith("kill segment store 2 of server 0")


@pytest.mark.e2e
@pytest.mark.parametrize("fault", list(ProcessFault))
async def test_each_fault_of_a_store_leaves_a_server_with_all_stores(fault: ProcessFault, tmp_path: Path) -> None:
    """A held store is the same process afterwards, any other is new; the server and the other store stay."""
    with StandaloneProcess(tmp_path, segment_stores=2) as server:
        pids = [server.pid, server.await_store(0), server.await_store(1)]
        faults = ProcessFaults([server], [PlannedFault(0.0, 0, fault, 0.2, 0.0, 1)])
        await faults.run()
        await faults.heal()
        now = [server.pid, server.await_store(0), server.await_store(1)]
        assert now[:2] == pids[:2]
        assert (now[2] == pids[2]) is (fault is ProcessFault.PAUSE)
        assert faults.problems == []
        assert server.terminate() in (0, 1)  # A store that was just begun may not get to its orderly stop.


@pytest.mark.e2e
@pytest.mark.timeout(900)
async def test_every_promise_is_kept_while_any_of_several_processes_is_killed_or_held(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Three segment stores and their server: as above, and containers move between the stores.

    `--kill-cycles` says how many faults there are, `--kill-seed` draws others.
    """
    cycles = request.config.getoption("--kill-cycles")
    seed = request.config.getoption("--kill-seed")
    report = await run_processes(
        tmp_path, seed=seed, seconds=0.0, faults=KILL_FAULTS, segment_stores=3, fault_count=cycles
    )
    assert report.is_well, report.to_text()
    assert len(report.faults) == cycles
    for kind in (WriteEvent, CommitTransaction, PutKey, ReadRange):
        assert report.count(kind, Outcome.OK) > 0, report.to_text()
    assert report.count(FullRead, Outcome.OK) == 3
    # The load was spread: every container had something to flush.
    assert len({path.parts for path in (tmp_path / "data" / "tier1").iterdir()}) == 4


@pytest.mark.e2e
@pytest.mark.timeout(240)
async def test_every_promise_is_kept_though_sleepers_wake_up_as_zombies(tmp_path: Path) -> None:
    """SS-9, SS-10, SS-11: two stores are stopped in turn, not killed, until their containers have moved; then resumed.

    Without the check of the epoch after each sync, this run finds acknowledged events that are lost.
    """
    settings = SEVERAL_STORES_SETTINGS.replace("health_timeout_s = 1.0", "health_timeout_s = 0.5")
    assert settings != SEVERAL_STORES_SETTINGS
    sleep = ProcessFaultSettings(pause_s_max=4.0, weights=((ProcessFault.PAUSE, 1),))
    report = await run_processes(
        tmp_path, seed=1, seconds=0.0, faults=sleep, segment_stores=2, fault_count=5,
        store_settings=settings + "is_hung_killed = false\n",
    )  # fmt: skip
    log = (tmp_path / "server.log").read_text()
    assert "is down, its containers move to other stores" in log
    assert "is running again" in log
    assert "exited with code" not in log
    # What a zombie says when it finds itself shut out is no sign of harm.
    assert [one for one in report.violations if "has been opened by another incarnation" not in one] == []
    assert report.count(FullRead, Outcome.OK) == 3


@pytest.mark.e2e
@pytest.mark.timeout(120 + 4 * SECONDS)
async def test_every_promise_is_kept_through_kills_and_pauses(tmp_path: Path) -> None:
    """Writers, transactions, readers and table users work all the time; then everything is read twice."""
    report = await run_processes(tmp_path, seed=SEED, seconds=SECONDS)
    assert report.is_well, report.to_text()
    assert report.faults
    for kind in (WriteEvent, CommitTransaction, AbortTransaction, PutKey, ReadRange):
        assert report.count(kind, Outcome.OK) > 0, report.to_text()
    assert report.count(FullRead, Outcome.OK) == 3
    assert report.counts["EventSeen"] > 2 * report.count(CommitTransaction, Outcome.OK)
    # The faults really hit calls, and the load reached long-term storage.
    assert sum(path.stat().st_size for path in (tmp_path / "data" / "tier2").rglob("*") if path.is_file()) > 0


class ForgetfulServer(StandaloneProcess):
    """Its disk has not kept what it had promised: when it is killed, the end of each log is zeros."""

    def kill9(self) -> None:
        """See `StandaloneProcess.kill9`."""
        super().kill9()
        for log in (self.data_dir / "tier1").iterdir():
            for file in sorted(log.glob("log-0*"), reverse=True):
                data = file.read_bytes()
                used = len(data.rstrip(b"\0"))
                if used > 8000:
                    kept = used - min(20_000, used // 2)
                    file.write_bytes(data[:kept] + bytes(len(data) - kept))
                    break


@pytest.mark.e2e
# Clients that were cut off in their retries take their time to end.
@pytest.mark.timeout(300)
async def test_a_disk_that_forgets_is_found_out(tmp_path: Path) -> None:
    """So the run above would see lost events. Here the server itself may find the damage first: that will do, too.

    It then refuses to start, or a container stays offline and the run cannot come to its end.
    """
    faults = ProcessFaultSettings(interval_s_min=1.0, interval_s_max=1.5, weights=((ProcessFault.KILL, 1),))
    load = LoadSettings(settle_timeout_s=5.0)
    try:
        async with asyncio.timeout(60):
            report = await run_processes(
                tmp_path, seed=1, seconds=5.0, load=load, faults=faults, server_type=ForgetfulServer
            )
    except ServerProcessError:
        return
    except TimeoutError:
        logs = [path.read_text() for path in tmp_path.rglob("*.log")]
        assert any("stays offline: corrupt data" in log for log in logs), logs
        return
    assert not report.is_well, report.to_text()


@pytest.mark.e2e
def test_the_command_prints_the_result_of_a_run() -> None:
    code = "from penstock_simulation.processes.run import main; main(['--seconds', '1', '--seed', '5', '--json'])"
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=100, env=child_environment(), check=False
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    report = json.loads(ended.stdout)
    assert report["is_well"] is True
    assert (report["seed"], report["violations"]) == (5, [])
    assert report["counts"]["FullRead ok"] == 3


@pytest.mark.e2e
def test_the_command_says_why_a_run_did_not_begin(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "data").write_text("in the way")
    with pytest.raises(SystemExit) as ended:
        main(["--directory", str(tmp_path), "--seconds", "1"])
    assert ended.value.code == 1
    told = capsys.readouterr().err
    assert "the server did not start" in told
    assert str(tmp_path) in told
