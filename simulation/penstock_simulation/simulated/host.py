"""`Host`: a simulated machine with a name, a disk, a clock, and one process at a time.

A process's memory ends with it; the disk survives. The disk decides what a crash leaves on it.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from enum import Enum
from functools import partial
from typing import Protocol, TypeVar

from penstock.runtime.runtime import Runtime
from penstock_simulation.simulated.disk import SimulatedDisk
from penstock_simulation.simulated.disk_faults import NO_FAULTS, DiskFaults
from penstock_simulation.simulated.errors import HostDownError, ProcessKilled
from penstock_simulation.simulated.held_job import HELD_JOB
from penstock_simulation.simulated.links import Links
from penstock_simulation.simulated.loop import TIME_S_FIRST, SimulatedLoop
from penstock_simulation.simulated.process import Process
from penstock_simulation.simulated.stalls import DiskStalls
from penstock_simulation.simulated.work import SimulatedWork, WorkSettings

T = TypeVar("T")

#: The wall clock at the start of every simulation: 2023-11-14 22:13:20 UTC.
WALL_CLOCK_MS_FIRST = 1_700_000_000_000

#: The program of a host: runs from the start of each of its processes; the process ends with it.
Main = Callable[["Host"], Coroutine[object, object, None]]


class Surroundings(Protocol):
    """The surroundings of a host: a `Simulation`."""

    @property
    def loop(self) -> SimulatedLoop:
        """The loop of all hosts."""

    @property
    def network(self) -> Links:
        """The links between hosts."""

    @property
    def work_settings(self) -> WorkSettings:
        """Durations of blocking work."""

    def rng(self, purpose: str) -> random.Random:
        """Return the random generator for one purpose."""


class Death(Enum):
    """How a process dies.

    Attributes:
            KILL: like SIGKILL. The kernel lives: peers see their connections end, the page cache survives.
            POWER: power loss. Peers get no packet until the machine is back; unsynced writes are lost or torn.
    """

    KILL = "kill"
    POWER = "power"


class Host:
    """See the module. Made by `Simulation.host`.

    Attributes:
            disk: survives processes.
            disk_faults: faults of the disk outside of troubles; `disk.faults`: the present ones, see `begin_trouble`.
            stalls: stalled parts of its disks.
            losses: unmounted parts of its disks, for services that replace them.
        main: see `Main`; None for hosts that only run what `run` gives them.
            restart_delay_s: when `main` fails it is restarted after this; None: the host stays down.
            process: the running process, or the last one.
            runtime: the seams of that process, new for each one.
            failures: errors that ended `main`, oldest first.
            stall_count: stalls that have struck, see `stall`.
    """

    process: Process
    runtime: Runtime

    def __init__(
        self,
        surroundings: Surroundings,
        name: str,
        main: Main | None,
        *,
        disk_faults: DiskFaults = NO_FAULTS,
        restart_delay_s: float | None = None,
    ) -> None:
        self.name = name
        self.main = main
        self.restart_delay_s = restart_delay_s
        self.failures: list[BaseException] = []
        self.stall_count: int = 0
        self._costs: Callable[[], float] | None = None
        self._surroundings = surroundings
        self._loop = surroundings.loop
        self.disk_faults = disk_faults
        self.disk: SimulatedDisk = SimulatedDisk(surroundings.rng(f"{name} disk"), disk_faults)
        self.stalls: DiskStalls = DiskStalls(surroundings.loop)
        self.losses: DiskStalls = DiskStalls(surroundings.loop)
        self._troubles: list[Callable[[DiskFaults], DiskFaults]] = []
        self._life = 0
        self._pause_count = 0
        self._held_s = 0.0
        self._held_since_s = 0.0
        self._offset_ms = 0
        self._drift = 0.0
        self._calls_left: int | None = None
        self._death_at_call = Death.POWER
        self._down_s: float | None = None
        surroundings.network.add_host(name)
        self._start()

    # -- life ---------------------------------------------------------------------------------------------------

    @property
    def is_up(self) -> bool:
        """Whether a process is running, paused or not."""
        return self.process.is_alive

    @property
    def is_paused(self) -> bool:
        """Whether the machine is paused."""
        return self._pause_count > 0

    @property
    def is_held(self) -> bool:
        """Whether none of its code runs now: the machine is paused, or its process held in a turn."""
        return self._pause_count > 0 or self.is_busy

    @property
    def is_busy(self) -> bool:
        """Whether its process is held in a turn that takes time."""
        return self.process.is_alive and self.process.is_busy

    @property
    def held_s(self) -> float:
        """How long the machine has been paused or stalled so far, in seconds; a stall counts from its beginning."""
        return self._held_s + (self._loop.now_s - self._held_since_s if self._pause_count else 0.0)

    @property
    def life(self) -> int:
        """1 for the first process, 2 for the second, ..."""
        return self._life

    def _start(self) -> None:
        self._life += 1
        self.process = process = self._loop.start_process(self.name, self._life)
        rng = self._surroundings.rng(f"{process.name} runtime")
        work_rng = random.Random(rng.getrandbits(64))
        self.runtime = Runtime(
            disk=self.disk,
            work=SimulatedWork(self._loop, process, work_rng, self._surroundings.work_settings, self.stalls),
            rng=rng,
            wall_clock_ms=self.wall_clock_ms,
            monotonic_s=self._loop.monotonic_s,
        )
        process.on_stall = self._note_stall
        process.costs = self._costs
        self.disk.hook = self.on_disk_call
        self._note("start")
        self._surroundings.network.set_powered(self.name, True)
        if self._pause_count:
            self._loop.pause(process)
        if self.main is not None:
            self._loop.spawn(process, self._live(self.main), f"{process.name} main")

    async def _live(self, main: Main) -> None:
        try:
            await main(self)
        except Exception as error:  # noqa: BLE001  # kept in `failures`; the host is down, as a program that failed is
            self.failures.append(error)
            self._note(f"failed {type(error).__name__}")
            if self.restart_delay_s is not None:
                self._loop.at(self._loop.now_s + self.restart_delay_s, self.restart)
        else:
            self._note("ended")
        self.crash(Death.KILL)

    def crash(self, death: Death = Death.POWER) -> None:
        """End the process at once; none of its code runs again. No effect if it is down.

        Called from the process's own code it does not return.
        """
        process = self.process
        if not process.is_alive:
            return
        is_silent = death is Death.POWER
        self._note(f"crash {death.value}")
        self._calls_left = None
        if self._down_s is not None:
            self._loop.at(self._loop.now_s + self._down_s, self.restart)
            self._down_s = None
        self._loop.kill(process)
        sockets = list(process.sockets)
        process.sockets.clear()
        for opened in sockets:
            opened.kill(is_silent=is_silent)
        if is_silent:
            self._surroundings.network.set_powered(self.name, False)
            self.disk.crash()
        else:
            self.disk.process_kill()
        # Refuses calls that the dead process makes while it is unwound.
        self.disk.hook = self.on_disk_call
        if self._loop.current is process:
            raise ProcessKilled(f"{process.name} died")

    def crash_at_disk_call(self, call_count: int, death: Death = Death.POWER, *, down_s: float | None = None) -> None:
        """Kill the process during a disk call: its `call_count`-th from now (1: the next).

        A write is in the page cache by then, any other call has had no effect. `down_s`: restart after this time. If
        the process dies of another cause first, that replaces this crash.
        """
        self._calls_left = call_count
        self._down_s = down_s
        self._death_at_call = death

    def restart(self) -> None:
        """Start a new process on the disk's contents. No effect if one is running."""
        if not self.process.is_alive:
            self._start()

    def pause(self) -> None:
        """Pause the machine while time passes for the other hosts. Calls add up.

        Its kernel still accepts connections and data, as after SIGSTOP. A process started meanwhile is paused too.
        """
        if not self._pause_count:
            self._held_since_s = self._loop.now_s
        self._pause_count += 1
        self._note("pause")
        self._loop.pause(self.process)

    def resume(self) -> None:
        """Undo one `pause`."""
        assert self._pause_count, f"{self.name} is not paused"
        self._pause_count -= 1
        self._note("resume")
        if not self._pause_count:
            self._held_s += self._loop.now_s - self._held_since_s
            self._loop.resume(self.process)

    def set_costs(self, costs: Callable[[], float]) -> None:
        """Let the callbacks of the host's processes take CPU time: see `Process.costs`."""
        self._costs = self.process.costs = costs

    def stall(self, duration_s: float) -> None:
        """Hold the process for this long in the middle of its next turn of several callbacks.

        That is what a long computation does, or a system that gives the process no CPU. Its threads continue.
        """
        if self.process.is_alive:
            self._loop.stall(self.process, duration_s)

    def _note_stall(self, duration_s: float) -> None:
        self._held_s += duration_s
        self.stall_count += 1

    def on_disk_call(self, call: str, path: str) -> None:
        """Record a call to a disk, pause it or die in it. Every disk of the host calls this, see `DiskHook`."""
        process = self._loop.current
        if not process.is_alive:
            raise ProcessKilled(f"{process.name} is dead")
        held = HELD_JOB.get()
        if held is not None:
            held.at_disk_call(call, path)
        self._note(f"disk {call} {path}")
        if self._calls_left is not None:
            self._calls_left -= 1
            if not self._calls_left:
                if held is not None:
                    held.ask_loop(partial(self.crash, self._death_at_call))
                self.crash(self._death_at_call)

    # -- disk ---------------------------------------------------------------------------------------------------

    def begin_trouble(self, trouble: Callable[[DiskFaults], DiskFaults]) -> None:
        """Replace the disk's faults by the result of `trouble`, until `end_trouble`. Troubles may overlap."""
        self._troubles.append(trouble)
        self._set_disk_faults()

    def end_trouble(self, trouble: Callable[[DiskFaults], DiskFaults]) -> None:
        """Undo `begin_trouble`."""
        self._troubles.remove(trouble)
        self._set_disk_faults()

    def _set_disk_faults(self) -> None:
        faults = self.disk_faults
        for trouble in self._troubles:
            faults = trouble(faults)
        self.disk.faults = faults

    # -- clock --------------------------------------------------------------------------------------------------

    def wall_clock_ms(self) -> int:
        """Return the host's wall-clock time, in milliseconds since the epoch."""
        passed_s = self._loop.now_s - TIME_S_FIRST
        return WALL_CLOCK_MS_FIRST + self._offset_ms + int(passed_s * 1000.0 * (1.0 + self._drift))

    def jump_clock(self, by_ms: int) -> None:
        """Move the wall clock forward, or backward if `by_ms` is negative."""
        self._offset_ms += by_ms
        self._note(f"clock {by_ms:+d} ms")

    def set_clock_drift(self, drift: float) -> None:
        """Make the wall clock run faster (0.001: by a thousandth) or slower from now on."""
        passed_s = self._loop.now_s - TIME_S_FIRST
        self._offset_ms += round(passed_s * 1000.0 * (self._drift - drift))
        self._drift = drift
        self._note(f"clock drift {drift:g}")

    # -- running code -------------------------------------------------------------------------------------------

    def spawn(self, coroutine: Coroutine[object, object, T], name: str = "") -> asyncio.Task[T]:
        """Run a coroutine in the host's process. It never ends if the process dies."""
        return self._loop.spawn(self.process, coroutine, name or f"{self.process.name} job")

    async def run(self, coroutine: Coroutine[object, object, T]) -> T:
        """Run a coroutine in the host's process and return its result to a caller outside of it.

        Raises `HostDownError` when the process is down, or dies first. Cancelling cancels the coroutine.
        """
        process = self.process
        if not process.is_alive:
            coroutine.close()
            raise HostDownError(f"{self.name} is down")
        result: asyncio.Future[T] = self._loop.create_future()

        def ended(task: asyncio.Task[T]) -> None:
            process.on_death.pop(died, None)
            if result.done():
                return
            if task.cancelled():
                result.cancel()
            elif (error := task.exception()) is not None:
                result.set_exception(error)
            else:
                result.set_result(task.result())

        def died() -> None:
            if not result.done():
                result.set_exception(HostDownError(f"{process.name} died while something ran on it"))

        task = self.spawn(coroutine)
        process.on_death[died] = None
        task.add_done_callback(ended)
        try:
            return await result
        except asyncio.CancelledError:
            if not task.done() and process.is_alive:
                self._loop.post(process, task.cancel)
            raise

    def _note(self, text: str) -> None:
        self._loop.trace.add(self._loop.now_s, f"{self.process.name}: {text}")
