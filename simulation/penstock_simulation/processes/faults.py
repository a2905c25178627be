"""Signals for real processes, on a schedule drawn from a seed: SIGKILL, SIGSTOP, SIGTERM, and restarts.

`plan_faults` draws the schedule; the same seed, duration and settings give the same schedule. `ProcessFaults` executes
it on the servers while clients work, one fault at a time, and leaves all servers running. What happens *between* two
signals depends on the operating system, so a seed determines the faults but not their outcome.
"""

from __future__ import annotations

import asyncio
import random
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial

from penstock.model.errors import InvalidArgumentError
from penstock.server.errors import ServerProcessError
from penstock.server.standalone_process import StandaloneProcess

#: Faults that hit the server process itself, when the server has several segment stores.
_SHARE_OF_SERVERS = 0.25


class ProcessFault(Enum):
    """The kind of a fault.

    Attributes:
        KILL: SIGKILL; a new process starts later.
        PAUSE: SIGSTOP, and SIGCONT later: connections stay open, but are not answered.
        PAUSE_AND_KILL: SIGSTOP, then SIGKILL: peers first wait without an answer.
        TERMINATE: SIGTERM, a clean shutdown; a new process starts later.
        KILL_TWICE: SIGKILL, and again while the new process is still recovering; then a third process starts.
    """

    KILL = "kill"
    PAUSE = "pause"
    PAUSE_AND_KILL = "pause and kill"
    TERMINATE = "terminate"
    KILL_TWICE = "kill twice"


@dataclass(frozen=True, slots=True)
class ProcessFaultSettings:
    """Frequency, duration and kinds of faults.

    Attributes:
        interval_s_min, interval_s_max: from the end of one fault to the beginning of the next.
        down_s_max: longest time without a process.
        pause_s_max: longest SIGSTOP.
        recovery_s_max: longest time from the start to the second kill of KILL_TWICE.
        weights: relative probability of each kind; a kind that is absent or 0 is never drawn.
    """

    interval_s_min: float = 0.3
    interval_s_max: float = 2.0
    down_s_max: float = 1.0
    pause_s_max: float = 2.0
    recovery_s_max: float = 1.0
    weights: tuple[tuple[ProcessFault, int], ...] = (
        (ProcessFault.KILL, 5),
        (ProcessFault.PAUSE, 3),
        (ProcessFault.PAUSE_AND_KILL, 1),
        (ProcessFault.TERMINATE, 2),
        (ProcessFault.KILL_TWICE, 1),
    )

    def __post_init__(self) -> None:
        """Raise `InvalidArgumentError` for settings that allow no plan."""
        times = (self.interval_s_min, self.down_s_max, self.pause_s_max, self.recovery_s_max)
        if min(times) < 0 or self.interval_s_max < self.interval_s_min:
            raise InvalidArgumentError("times of process faults are 0 or more, and interval_s_max >= interval_s_min")
        if not any(weight > 0 for _, weight in self.weights) or any(weight < 0 for _, weight in self.weights):
            raise InvalidArgumentError("weights of process faults are 0 or more, at least one is above 0")


@dataclass(frozen=True, slots=True)
class PlannedFault:
    """One fault.

    Attributes:
        wait_s: after the end of the previous fault.
        server: index of the server.
        store: number of one of its segment stores, if that is a process of its own and the only one that is hit.
        fault: the kind.
        hold_s: duration of the SIGSTOP; for KILL_TWICE, lifetime of the second process.
        down_s: time without a process.
    """

    wait_s: float
    server: int
    fault: ProcessFault
    hold_s: float
    down_s: float
    store: int | None = None

    def __str__(self) -> str:
        """Return a description of the fault."""
        where = "" if self.store is None else f"segment store {self.store} of "
        return f"{self.fault.value} {where}server {self.server} (held {self.hold_s:.3f} s, down {self.down_s:.3f} s)"


def plan_faults(
    seed: int,
    duration_s: float,
    *,
    server_count: int = 1,
    store_count: int = 1,
    fault_count: int | None = None,
    settings: ProcessFaultSettings | None = None,
) -> list[PlannedFault]:
    """Draw the faults of `duration_s` seconds, not counting the time for stops and starts.

    `store_count`: segment stores per server; if there are several, most faults hit one of them. `fault_count`: draw
    this many faults, regardless of the duration.
    """
    settings = settings or ProcessFaultSettings()
    rng = random.Random(f"{seed}/process faults")
    faults = [fault for fault, _ in settings.weights]
    weights = [weight for _, weight in settings.weights]
    planned: list[PlannedFault] = []
    left_s = duration_s
    while True:
        fault = rng.choices(faults, weights)[0]
        hold_s = 0.0
        if fault in (ProcessFault.PAUSE, ProcessFault.PAUSE_AND_KILL):
            hold_s = rng.uniform(0.0, settings.pause_s_max)
        elif fault is ProcessFault.KILL_TWICE:
            hold_s = rng.uniform(0.0, settings.recovery_s_max)
        # Half of the new processes start immediately, as under a supervisor.
        down_s = 0.0 if fault is ProcessFault.PAUSE or rng.random() < 0.5 else rng.uniform(0.0, settings.down_s_max)
        wait_s = rng.uniform(settings.interval_s_min, settings.interval_s_max)
        left_s -= wait_s + hold_s + down_s
        if left_s < 0 if fault_count is None else len(planned) == fault_count:
            return planned
        server = rng.randrange(server_count)
        store: int | None = None
        if store_count > 1 and rng.random() >= _SHARE_OF_SERVERS:
            store = rng.randrange(store_count)
        planned.append(PlannedFault(wait_s, server, fault, hold_s, down_s, store))


@dataclass(frozen=True, slots=True)
class FaultDone:
    """A fault that was executed. `begin_index`, `end_index`: history lengths at its beginning and end."""

    planned: PlannedFault
    begin_s: float
    end_s: float
    begin_index: int
    end_index: int


class ProcessFaults:
    """Executes a plan on `servers`, which must be running.

    `record_count` returns the current length of the history, to locate faults in it. Afterwards `done` has the executed
    faults, and `problems` the unexpected behaviour of servers: exits, stops with an error, starts with failures.
    """

    def __init__(
        self,
        servers: Sequence[StandaloneProcess],
        plan: Sequence[PlannedFault],
        *,
        record_count: Callable[[], int] = lambda: 0,
    ) -> None:
        self.done: list[FaultDone] = []
        self.problems: list[str] = []
        self._servers = servers
        self._plan = plan
        self._record_count = record_count

    async def run(self) -> None:
        """Execute the plan. On cancellation the servers are left as they are; call `heal` then.

        Raises `ServerProcessError` when a server does not start again.
        """
        for planned in self._plan:
            await asyncio.sleep(planned.wait_s)
            server = self._servers[planned.server]
            if not server.is_running:
                self.problems.append(f"server {planned.server} ended on its own with code {server.exit_code}")
                await self._start(planned.server)
            begin_s, begin_index = time.monotonic(), self._record_count()
            if planned.store is None:
                await self._do(server, planned)
            else:
                await self._do_to_store(server, planned, planned.store)
            self.done.append(FaultDone(planned, begin_s, time.monotonic(), begin_index, self._record_count()))

    async def heal(self) -> None:
        """Resume all paused servers and start those that are down. Raises `ServerProcessError`."""
        for number, server in enumerate(self._servers):
            if server.is_running:
                server.resume()
                for store in range(server.segment_stores):
                    server.signal_store(store, signal.SIGCONT)
            else:
                if server.exit_code not in (0, -signal.SIGKILL):
                    self.problems.append(f"server {number} ended on its own with code {server.exit_code}")
                await self._start(number)

    async def _do(self, server: StandaloneProcess, planned: PlannedFault) -> None:
        match planned.fault:
            case ProcessFault.PAUSE:
                await self._hold(server, planned.hold_s)
                return
            case ProcessFault.PAUSE_AND_KILL:
                await self._hold(server, planned.hold_s, is_over=server.kill9)
            case ProcessFault.TERMINATE:
                code = await asyncio.to_thread(server.terminate)
                if code != 0:
                    self.problems.append(f"server {planned.server} ended with code {code} after SIGTERM, expected 0")
            case ProcessFault.KILL:
                await asyncio.to_thread(server.kill9)
            case ProcessFault.KILL_TWICE:
                await asyncio.to_thread(server.kill9)
                server.spawn()
                await asyncio.sleep(planned.hold_s)
                await asyncio.to_thread(server.kill9)
        await asyncio.sleep(planned.down_s)
        await self._start(planned.server)

    async def _do_to_store(self, server: StandaloneProcess, planned: PlannedFault, store: int) -> None:
        """Apply the fault to a child process. Its parent restarts it, and may kill one that is paused for long."""
        pid = await asyncio.to_thread(server.await_store, store)
        match planned.fault:
            case ProcessFault.PAUSE | ProcessFault.PAUSE_AND_KILL:
                server.signal_store(store, signal.SIGSTOP, pid=pid)
                await asyncio.sleep(planned.hold_s)
                if planned.fault is ProcessFault.PAUSE:
                    server.signal_store(store, signal.SIGCONT, pid=pid)
                    return
                server.signal_store(store, signal.SIGKILL, pid=pid)
            case ProcessFault.TERMINATE:
                server.signal_store(store, signal.SIGTERM, pid=pid)
            case ProcessFault.KILL:
                server.signal_store(store, signal.SIGKILL, pid=pid)
            case ProcessFault.KILL_TWICE:
                server.signal_store(store, signal.SIGKILL, pid=pid)
                pid = await asyncio.to_thread(partial(server.await_store, store, other_than=pid))
                await asyncio.sleep(planned.hold_s)
                server.signal_store(store, signal.SIGKILL, pid=pid)
        await asyncio.to_thread(partial(server.await_store, store, other_than=pid))

    async def _hold(self, server: StandaloneProcess, hold_s: float, is_over: Callable[[], None] | None = None) -> None:
        server.pause()
        try:
            await asyncio.sleep(hold_s)
            if is_over is not None:
                await asyncio.to_thread(is_over)
        finally:
            if server.is_running:
                server.resume()

    async def _start(self, number: int) -> None:
        server = self._servers[number]
        try:
            await asyncio.to_thread(server.start)
        except ServerProcessError as error:
            error.add_note(f"after {self.done[-1].planned if self.done else 'no fault'}")
            raise
        failures = server.ready.get("failures")
        if failures:
            self.problems.append(f"server {number} started with containers offline: {failures}")
