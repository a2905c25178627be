"""`Process`: one life of a simulated host, from its start to its death."""

from __future__ import annotations

import asyncio
import contextvars
from collections import deque
from collections.abc import Callable
from typing import Protocol

from penstock_simulation.simulated.held_job import HeldJob

#: The process whose code is running. Tasks and callbacks inherit it with their context.
PROCESS: contextvars.ContextVar[Process] = contextvars.ContextVar("penstock_simulated_process")


class Socket(Protocol):
    """A network resource that a process has open."""

    def kill(self, *, is_silent: bool) -> None:
        """End with the process; `is_silent`: the peer is not notified, because the machine lost power."""


class Process:
    """Callbacks and tasks of one host. A dead process runs no more code, not even clean-up code.

    Attributes:
        name: ``host`` for the first life, ``host.2`` for the second, ...
            ready: callbacks that wait for their turn, first in, first out.
            tasks: every task not known to be done. Also keeps them alive: the garbage collector would end them at an
                unrepeatable moment.
        sockets: connections and listeners that end with the process.
        is_listed: it is in the loop's list of runnable processes.
        is_paused: it was stopped, as by SIGSTOP; its threads, too.
        is_busy: its loop is in the middle of a turn that takes time, or at the end of one; its threads continue.
        is_held: paused or busy: no callback runs.
        busy_s: CPU time of the present turn for which it was not held yet.
        stall_s: it is held for this long in its next turn of several callbacks.
        costs: returns the CPU time of a callback; None: all take none.
        on_stall: called with the length of each stall.
        turn_left: callbacks of a turn in the middle of which it is held; 0: its next turn is a new one.
        turn_time_s: the loop's time at the beginning of that turn.
    """

    __slots__ = (
        "_task_sweep_count", "busy_s", "context", "costs", "held_jobs", "host_name", "is_alive", "is_busy", "is_held",
        "is_listed", "is_paused", "name", "on_death", "on_resume", "on_stall", "ready", "sockets", "stall_s", "tasks",
        "turn_left", "turn_time_s",
    )  # fmt: skip

    def __init__(self, host_name: str, life: int = 1) -> None:
        self.host_name: str = host_name
        self.name: str = host_name if life == 1 else f"{host_name}.{life}"
        self.is_alive: bool = True
        self.is_paused: bool = False
        self.is_busy: bool = False
        self.is_held: bool = False
        self.busy_s: float = 0.0
        self.stall_s: float = 0.0
        self.costs: Callable[[], float] | None = None
        self.on_stall: Callable[[float], None] = lambda duration_s: None
        self.turn_left: int = 0
        self.turn_time_s: float | None = None
        self.is_listed: bool = False
        self.ready: deque[asyncio.Handle] = deque()
        self.tasks: dict[asyncio.Task[object], None] = {}
        self.sockets: dict[Socket, None] = {}
        #: Called once when the process dies, in this order.
        self.on_death: dict[Callable[[], None], None] = {}
        #: Results of the process's threads that came due while it was paused.
        self.on_resume: list[Callable[[], None]] = []
        #: Blocking functions paused in the middle.
        self.held_jobs: dict[HeldJob, None] = {}
        self._task_sweep_count = 64
        self.context: contextvars.Context = contextvars.copy_context()
        self.context.run(PROCESS.set, self)

    def add_task(self, task: asyncio.Task[object]) -> None:
        """Keep a task until it is done; done ones are removed when the number has doubled."""
        self.tasks[task] = None
        if len(self.tasks) >= self._task_sweep_count:
            self.tasks = {other: None for other in self.tasks if not other.done()}
            self._task_sweep_count = max(64, 2 * len(self.tasks))

    def waiting_tasks(self) -> list[asyncio.Task[object]]:
        """Return the tasks that are not done, oldest first."""
        return [task for task in self.tasks if not task.done()]

    def __repr__(self) -> str:
        return f"<Process {self.name}>"
