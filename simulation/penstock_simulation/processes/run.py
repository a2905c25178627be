"""One run of real processes: ``penstock standalone`` is killed and paused while clients work, then checked.

1. Start a server with fast tiering: small log files, early flushes, frequent checkpoints.
2. `Load` works while `ProcessFaults` executes a plan drawn from the seed.
3. All servers are healed and clients settle. A pass reads everything. After a clean restart, which empties the memory,
another pass reads everything.
4. `check_history` checks the records of all clients.
"""

from __future__ import annotations

import asyncio
import json
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from penstock.client.client import Client
from penstock.client.settings import ClientSettings
from penstock.runtime.disk import LocalDisk
from penstock.runtime.runtime import Runtime, ThreadedWork
from penstock.server.errors import ServerProcessError
from penstock.server.standalone_process import StandaloneProcess
from penstock_simulation.checks.history import check_history
from penstock_simulation.checks.history_events import EventSeen, History, Outcome
from penstock_simulation.processes.faults import (
    FaultDone,
    ProcessFault,
    ProcessFaults,
    ProcessFaultSettings,
    plan_faults,
)
from penstock_simulation.processes.load import Load, LoadSettings

#: Settings of the server: thresholds that usually take gigabytes or minutes are reached all the time.
SERVER_SETTINGS = """\
[segment_store]
restart_delay_s = 0.05
[segment_store.container]
flush_bytes = 262144
flush_age_s = 0.2
writer_interval_s = 0.02
checkpoint_log_bytes = 1048576
checkpoint_log_bytes_idle = 65536
table_compact_bytes = 16384
table_compact_step_bytes = 4096
[durable_log]
first_file_length_bytes = 262144
file_length_bytes = 1048576
zero_chunk_length_bytes = 262144
"""
#: Further settings when segment stores are separate processes: hangs are detected soon, and few restarts are allowed.
SEVERAL_STORES_SETTINGS = """\
[store_processes]
health_interval_s = 0.2
health_timeout_s = 1.0
restart_delay_s = 0.05
restart_count_max = 1
restart_window_s = 10.0
return_delay_s = 1.0
"""
#: Kinds of faults when the number of faults is given: crashes and pauses.
KILL_FAULTS = ProcessFaultSettings(
    weights=(
        (ProcessFault.KILL, 4),
        (ProcessFault.PAUSE, 2),
        (ProcessFault.PAUSE_AND_KILL, 1),
        (ProcessFault.KILL_TWICE, 2),
    )
)
_VIOLATIONS_SHOWN_MAX = 20


@dataclass(frozen=True, slots=True)
class ProcessRunReport:
    """The result of a run.

    Attributes:
        seed, seconds: as requested.
        took_s: total time.
        faults: the executed faults, in order.
        counts: ended calls by kind and outcome, as ``WriteEvent ok``, and ``EventSeen``.
        violations: broken promises, and behaviour of servers and clients that no fault explains. Empty: the run passed.
        history: of all clients.
    """

    seed: int
    seconds: float
    took_s: float
    faults: tuple[FaultDone, ...]
    counts: dict[str, int]
    violations: tuple[str, ...]
    history: History

    @property
    def is_well(self) -> bool:
        """Whether every promise was kept."""
        return not self.violations

    def count(self, kind: type, outcome: Outcome) -> int:
        """Return the number of calls of a kind with this outcome."""
        return self.counts.get(f"{kind.__name__} {outcome.value}", 0)

    def to_json(self) -> str:
        """Return everything except the history as one line of JSON."""
        return json.dumps(
            {
                "seed": self.seed,
                "seconds": self.seconds,
                "took_s": round(self.took_s, 3),
                "is_well": self.is_well,
                "faults": [
                    {
                        "fault": done.planned.fault.value,
                        "server": done.planned.server,
                        "store": done.planned.store,
                        "begin_s": round(done.begin_s, 3),
                        "end_s": round(done.end_s, 3),
                        "records": [done.begin_index, done.end_index],
                    }
                    for done in self.faults
                ],
                "counts": self.counts,
                "violations": list(self.violations),
            }
        )

    def to_text(self) -> str:
        """Return a human-readable summary."""
        faults = Counter(done.planned.fault.value for done in self.faults)
        lines = [
            f"seed {self.seed}: {len(self.faults)} faults in {self.took_s:.1f} s "
            f"({', '.join(f'{count} {fault}' for fault, count in sorted(faults.items())) or 'none'})",
            *(f"  {name}: {count}" for name, count in self.counts.items()),
            f"{len(self.violations)} violations" if self.violations else "every promise was kept",
            *(f"  {violation}" for violation in self.violations[:_VIOLATIONS_SHOWN_MAX]),
        ]
        return "\n".join(lines)


async def run_processes(
    directory: Path,
    *,
    seed: int,
    seconds: float,
    load: LoadSettings | None = None,
    faults: ProcessFaultSettings | None = None,
    server_type: type[StandaloneProcess] = StandaloneProcess,
    segment_stores: int = 1,
    fault_count: int | None = None,
    store_settings: str = SEVERAL_STORES_SETTINGS,
) -> ProcessRunReport:
    """Run a server in `directory`, which must be empty, under faults for `seconds` plus the time of starts and stops.

    `segment_stores`: number of child processes, which faults hit, too. `fault_count`: this many faults, regardless of
    `seconds`. `store_settings`: TOML, added to the server's settings if there are several segment stores. `server_type`
    may override what a kill or a start does.

    Raises `ServerProcessError` when the server cannot be started again. In any case no process is left running.
    """
    began_s = time.monotonic()
    config = directory / "settings.toml"
    config.write_text(SERVER_SETTINGS + (store_settings if segment_stores > 1 else ""))
    server = server_type(directory, "--config", str(config), segment_stores=segment_stores)
    history = History(lambda: time.monotonic() - began_s)
    clients = random.Random(f"{seed}/clients")
    work = ThreadedWork(1)

    def connect() -> Client:
        # The client draws its writer ids and back-off delays from this seeded generator.
        runtime = Runtime(
            disk=LocalDisk(),
            work=work,
            rng=random.Random(clients.getrandbits(64)),
            wall_clock_ms=lambda: time.time_ns() // 1_000_000,
        )
        return Client(server.uri, ClientSettings(), runtime=runtime)

    try:
        await asyncio.to_thread(server.start)
        clients_load = Load(connect, history, seed, load)
        await clients_load.prepare()
        plan = plan_faults(seed, seconds, store_count=segment_stores, fault_count=fault_count, settings=faults)
        nemesis = ProcessFaults([server], plan, record_count=lambda: len(history.records))
        violations: list[str] = []
        working = asyncio.create_task(clients_load.run())
        try:
            await nemesis.run()
            await nemesis.heal()
            clients_load.stop()
            await working
        finally:
            working.cancel()
            await asyncio.wait([working])
        await clients_load.read_whole("after-faults")
        await asyncio.to_thread(server.restart)
        await clients_load.read_whole("after-restart")
        violations += nemesis.problems
        violations += clients_load.problems
        violations += [f"server log: {line}" for line in server.log.splitlines() if " ERROR " in line]
        violations += check_history(history)
        if await asyncio.to_thread(server.terminate) != 0:
            violations.append(f"the server's last stop was not in order: code {server.exit_code}")
    finally:
        if server.is_running:
            await asyncio.to_thread(server.kill9)
        await work.close()
    done = tuple(
        FaultDone(one.planned, one.begin_s - began_s, one.end_s - began_s, one.begin_index, one.end_index)
        for one in nemesis.done
    )
    return ProcessRunReport(
        seed, seconds, time.monotonic() - began_s, done, _counts(history), tuple(violations), history
    )


def _counts(history: History) -> dict[str, int]:
    counts = Counter(f"{type(ended.invocation.call).__name__} {ended.outcome.value}" for ended in history.calls())
    counts["EventSeen"] = sum(isinstance(seen.observation, EventSeen) for seen in history.observations())
    return dict(sorted(counts.items()))


def processes(
    seconds: Annotated[
        float,
        typer.Option(
            min=0.0, help="How long faults continue, without the time that the server takes to start and stop."
        ),
    ] = 30.0,
    seed: Annotated[int, typer.Option(help="Draws the faults and the load.")] = 1,
    segment_stores: Annotated[
        int, typer.Option(min=1, help="Segment stores; several are processes of their own, killed and held, too.")
    ] = 1,
    kill_cycles: Annotated[
        int | None, typer.Option(min=0, help="So many kills and holds, instead of faults of all kinds for --seconds.")
    ] = None,
    directory: Annotated[
        Path | None, typer.Option(help="Where the server keeps its data and log; kept. [default: a temporary one]")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Kill and hold a real server while clients work, then check every promise. Exit with 1 if one was broken."""
    where = Path(tempfile.mkdtemp(prefix="penstock-processes-")) if directory is None else directory
    where.mkdir(parents=True, exist_ok=True)
    try:
        report = asyncio.run(
            run_processes(
                where,
                seed=seed,
                seconds=seconds,
                faults=None if kill_cycles is None else KILL_FAULTS,
                segment_stores=segment_stores,
                fault_count=kill_cycles,
            )
        )
    except ServerProcessError as error:
        typer.echo(f"seed {seed}: {error}\nData and log are in {where}", err=True)
        raise typer.Exit(1) from error
    typer.echo(report.to_json() if as_json else report.to_text())
    if not report.is_well:
        typer.echo(f"data and log are in {where}", err=True)
        raise typer.Exit(1)
    if directory is None:
        shutil.rmtree(where)


def main(arguments: list[str] | None = None) -> None:
    """Run `processes` as a command line and exit. `arguments` exclude the program's name."""
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(processes)
    app(sys.argv[1:] if arguments is None else arguments)


__all__ = [
    "ProcessRunReport",
    "main",
    "processes",
    "run_processes",
]
