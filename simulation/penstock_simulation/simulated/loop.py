"""`SimulatedLoop`: an event loop with virtual time whose every choice comes from a seed.

The guarantees of asyncio are kept: callbacks of one process run in the order of `call_soon`. Everything else is drawn:
which process runs next, and the order of timers due at the same instant. When no process is ready, time jumps to the
next event. Each turn of a process (all callbacks ready when the turn began, as in asyncio) takes `turn_cost_s` of
virtual time, so that a loop of ``sleep(0)`` makes progress.

CPU time that passes within a turn: between two callbacks of a turn a process may be held (`stall`), for one long time
or for the costs of its callbacks. Other processes run meanwhile, timers and sockets become ready. Then the rest of the
turn runs. As with uvloop, `time` does not advance within a turn; `monotonic_s` does.

Hosts affect each other only through *world events*: plain functions called at an instant, outside every process (see
`at`). Real threads, sockets and signals are refused. The garbage collector runs at fixed steps, because finalisers
that run at arbitrary times would make two runs of a seed differ.

Built on `asyncio.BaseEventLoop` for everything unrelated to time and I/O: `run_until_complete`, exception
handlers, async generators.
"""

from __future__ import annotations

import asyncio
import contextvars
import gc
import itertools
import logging
import math
import random
import threading
from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from heapq import heapify, heappop, heappush
from types import AsyncGeneratorType, CoroutineType
from typing import NoReturn, Protocol, TypeVar, TypeVarTuple, cast

from penstock_simulation.simulated.awaitables import SimulatedFuture, SimulatedHandle, SimulatedTask
from penstock_simulation.simulated.errors import (
    DeadlockError,
    ProcessKilled,
    RealWorldError,
    SimulationLimitError,
)
from penstock_simulation.simulated.process import PROCESS, Process
from penstock_simulation.simulated.trace import Trace

T = TypeVar("T")
Arguments = TypeVarTuple("Arguments")
ProtocolT = TypeVar("ProtocolT", bound=asyncio.BaseProtocol)

_logger = logging.getLogger(__name__)

#: Virtual time at the start. Not 0, which some code treats as "none".
TIME_S_FIRST = 1000.0
#: Cancelled timers are removed from the queue when there are at least this many, and they are the majority.
_CANCELLED_SWEEP_COUNT = 512
#: A process whose callbacks have taken this long together is held in its turn; shorter times add up.
_HELD_S_MIN = 0.001
#: A stall is in a turn of at least this many callbacks, and leaves half as many for the time after it.
_STALL_CALLBACKS_MIN = 6
_TASKS_NAMED_MAX = 20
_FRAMES_NAMED_MAX = 4
#: How many waits of the clean-up code of a dead coroutine are ended.
_CLOSE_ATTEMPTS_MAX = 16


@dataclass(frozen=True, slots=True)
class LoopSettings:
    """Limits of a simulation.

    Attributes:
        turn_count_max: turns of processes.
        time_s_max: virtual seconds.
        turn_cost_s: virtual time that one turn takes.
        collect_turn_count: turns between two runs of the garbage collector.
    """

    turn_count_max: int = 50_000_000
    time_s_max: float = 7 * 86_400.0
    turn_cost_s: float = 1e-6
    collect_turn_count: int = 20_000


class Sockets(Protocol):
    """The network's interface to the loop."""

    def listen(
        self,
        process: Process,
        factory: Callable[[], asyncio.BaseProtocol],
        host: str | None,
        port: int,
        *,
        backlog: int,
        is_serving: bool,
    ) -> asyncio.AbstractServer:
        """Create a listener of `process`. See `SimulatedLoop.create_server`."""

    async def connect(
        self, process: Process, protocol: asyncio.BaseProtocol, host: str, port: int
    ) -> asyncio.Transport:
        """Connect `process` to a listener. Raises `OSError` as a real connect does."""


#: When, drawn order among equals, order of scheduling, a timer or a world event, the timer's process.
_Entry = tuple[float, float, int, asyncio.Handle | Callable[[], None], Process | None]


class SimulatedLoop(asyncio.BaseEventLoop):
    """See the module. `rng` makes all choices, `trace` records them.

    Attributes:
            driver: the process of the code that set up the simulation. It is never slow and never fails.
            current: the process whose turn it is; `driver` outside of turns.
            network: used by `create_server` and `create_connection`.
            unhandled: errors that reached the exception handler. Not in the trace: finalisers cause some of them.
    """

    network: Sockets
    #: `BaseEventLoop.stop` was called.
    _stopping: bool

    def __init__(self, rng: random.Random, trace: Trace, settings: LoopSettings | None = None) -> None:
        super().__init__()
        # `python -X dev` would measure callbacks with the real clock.
        self.set_debug(False)
        self.settings: LoopSettings = settings or LoopSettings()
        self.trace = trace
        self._random = rng.random
        self._time_s = TIME_S_FIRST
        #: What `time` returns in the rest of a turn in which the process was held.
        self._turn_time_s: float | None = None
        self._turn_cost_s = self.settings.turn_cost_s
        self._time_s_end = TIME_S_FIRST + self.settings.time_s_max
        self._turn_count_end: float = self.settings.turn_count_max
        self._events: list[_Entry] = []
        self._numbers = itertools.count(1)
        self._task_numbers = itertools.count(1)
        self._cancelled_count = 0
        self._runnable: list[Process] = []
        self.driver: Process = Process("driver")
        self.current: Process = self.driver
        self.processes: list[Process] = [self.driver]
        self.turn_count: int = 0
        self.unhandled: list[dict[str, object]] = []
        self._is_over = False
        # Owner of each asynchronous generator, by the generator's id (weak references are dead when it is finalised,
        # which may happen in any process's turn). A reused id is entered again.
        self._generators: dict[int, Process] = {}

    # -- time and turns -----------------------------------------------------------------------------------------

    def time(self) -> float:
        """Return the virtual time in seconds; in a turn that takes time, that of its beginning."""
        return self._time_s if self._turn_time_s is None else self._turn_time_s

    @property
    def now_s(self) -> float:
        """The virtual time in seconds, for the simulation itself: in any turn the time that it is now."""
        return self._time_s

    def monotonic_s(self) -> float:
        """Return what `Runtime.monotonic_s` is for the process whose turn it is."""
        return self._time_s + self.current.busy_s

    def _run_once(self) -> None:
        """Run until the loop is stopped. Called by `run_forever`, which would else be re-entered after each turn."""
        while True:
            events = self._events
            if events and events[0][0] <= self._time_s:
                self._make_ready()
            if self._runnable:
                self._take_turn()
            elif events:
                self._move_time_on()
            else:
                raise DeadlockError(f"nothing can happen any more at {self._time_s:.6f}: {self.waiting_summary()}")
            if self._stopping:
                return

    def _make_ready(self) -> None:
        """Run the world events that are due, and make due timers ready for the next turn of their process."""
        events = self._events
        now_s = self._time_s
        while events and events[0][0] <= now_s:
            _, _, number, event, process = heappop(events)
            if process is None:
                event()  # type: ignore[operator]  # a world event: it has no process
            elif process.is_alive:
                handle: asyncio.Handle = event  # type: ignore[assignment]  # a timer: it has a process
                if not handle._cancelled:
                    self.trace.add(now_s, f"timer {process.name} {number}")
                    process.ready.append(handle)
                    if not process.is_listed and not process.is_held:
                        process.is_listed = True
                        self._runnable.append(process)
                else:
                    self._cancelled_count -= 1

    def _move_time_on(self) -> None:
        """No process is ready: jump to the next event."""
        events = self._events
        if self._cancelled_count > _CANCELLED_SWEEP_COUNT and 2 * self._cancelled_count > len(events):
            self._sweep()
            return
        self._time_s = events[0][0]
        if self._time_s > self._time_s_end:
            raise SimulationLimitError(
                f"the simulation came to its limit of {self.settings.time_s_max:g} virtual seconds (time_s_max); "
                f"{self.waiting_summary()}"
            )

    def _take_turn(self) -> None:
        runnable = self._runnable
        # Remove by moving the last element into the gap: the order of the list is irrelevant.
        index = int(self._random() * len(runnable)) if len(runnable) > 1 else 0
        process = runnable[index]
        last = runnable.pop()
        if last is not process:
            runnable[index] = last
        ready = process.ready
        if not process.is_alive or process.is_held or not ready:
            process.is_listed = False
            return
        count, process.turn_left = process.turn_left or len(ready), 0
        has_costs = process.costs is not None or (process.stall_s > 0.0 and count >= _STALL_CALLBACKS_MIN)
        self.trace.add(self._time_s, f"turn {process.name} {count}")
        self.current = process
        self._turn_time_s = process.turn_time_s
        for number in range(count):
            if has_costs and number and self._hold(process, count - number):
                break
            handle = ready.popleft()
            if not handle._cancelled:
                try:
                    # Not through `Handle._run`, which would double the cost.
                    handle._context.run(handle._callback, *handle._args)  # type: ignore[attr-defined]  # in no stub
                except (SystemExit, KeyboardInterrupt):
                    raise
                except BaseException as error:  # noqa: BLE001  # as `Handle._run` has it
                    self._tell_of_failure(handle, error)
            if process.costs is not None:
                process.busy_s += process.costs()
            # Checked after each callback: the process may be killed or paused by its own code.
            if not ready or process.is_held:
                break
        self.current = self.driver
        self._turn_time_s = None
        if not process.is_busy:
            process.turn_time_s = None
            if process.busy_s > 0.0:
                self._be_busy(process)
        if ready and process.is_alive and not process.is_held:
            runnable.append(process)
        else:
            process.is_listed = False
        self._time_s += self._turn_cost_s
        self.turn_count += 1
        if self.turn_count % self.settings.collect_turn_count == 0:
            gc.collect(1)
        if self.turn_count >= self._turn_count_end:
            raise SimulationLimitError(
                f"the simulation came to its limit of {self.settings.turn_count_max} turns (turn_count_max) at "
                f"{self._time_s:.6f}; {self.waiting_summary()}"
            )

    def stall(self, process: Process, duration_s: float) -> None:
        """Hold a process for this long between two callbacks of a turn: of the next one with many callbacks."""
        process.stall_s += duration_s

    def _hold(self, process: Process, left: int) -> bool:
        """Hold a process in the middle of its turn, before its last `left` callbacks, if that is due."""
        if process.stall_s > 0.0 and left >= _STALL_CALLBACKS_MIN // 2 and self._random() < 0.5:
            process.busy_s += process.stall_s
            self.trace.add(self._time_s, f"stall {process.name} {process.stall_s:.6f}")
            process.on_stall(process.stall_s)
            process.stall_s = 0.0
        elif process.busy_s < _HELD_S_MIN:
            return False
        process.turn_left = left
        process.turn_time_s = self.time()
        self._be_busy(process)
        return True

    def _be_busy(self, process: Process) -> None:
        process.is_busy = process.is_held = True
        self.at(self._time_s + process.busy_s, partial(self._continue, process))
        process.busy_s = 0.0

    def _continue(self, process: Process) -> None:
        process.is_busy = False
        process.is_held = process.is_paused
        self.list_process(process)

    def _tell_of_failure(self, handle: asyncio.Handle, error: BaseException) -> None:
        message = f"Exception in callback {handle!r}"
        self.call_exception_handler({"message": message, "exception": error, "handle": handle})

    def _sweep(self) -> None:
        self._events = [entry for entry in self._events if not _is_cancelled(entry)]
        heapify(self._events)
        self._cancelled_count = 0

    def at(self, time_s: float, event: Callable[[], None]) -> None:
        """Call `event` at an instant, outside every process. World events at one instant have a drawn order."""
        heappush(self._events, (time_s, self._random(), next(self._numbers), event, None))

    def post(self, process: Process, callback: Callable[[*Arguments], object], *args: *Arguments) -> None:
        """Run a callback in a process at its next turn, in its own context. No effect if the process is dead."""
        if process.is_alive:
            process.ready.append(SimulatedHandle(callback, args, self, process.context))
            self.list_process(process)

    def list_process(self, process: Process) -> None:
        """Make a process runnable if it has anything to do."""
        if process.ready and process.is_alive and not process.is_listed and not process.is_held:
            process.is_listed = True
            self._runnable.append(process)

    # -- scheduling, called by the code under test --------------------------------------------------------------

    def call_soon(
        self,
        callback: Callable[[*Arguments], object],
        *args: *Arguments,
        context: contextvars.Context | None = None,
    ) -> asyncio.Handle:
        """See `asyncio.AbstractEventLoop.call_soon`. Ignored when called by a dead process."""
        if context is None:
            process = self.current
            context = contextvars.copy_context()
        else:
            process = context.get(PROCESS, self.driver)
        handle = SimulatedHandle(callback, args, self, context)
        if process.is_alive:
            process.ready.append(handle)
            if not process.is_listed and not process.is_held:
                process.is_listed = True
                self._runnable.append(process)
        return handle

    def call_soon_threadsafe(
        self,
        callback: Callable[[*Arguments], object],
        *args: *Arguments,
        context: contextvars.Context | None = None,
    ) -> asyncio.Handle:
        """As `call_soon`; there are no other threads."""
        if self.is_running() and threading.get_ident() != self._home_thread:
            _refuse("a thread")
        return self.call_soon(callback, *args, context=context)

    def call_later(
        self,
        delay: float,
        callback: Callable[[*Arguments], object],
        *args: *Arguments,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        """See `asyncio.AbstractEventLoop.call_later`."""
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(
        self,
        when: float,
        callback: Callable[[*Arguments], object],
        *args: *Arguments,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        """See `asyncio.AbstractEventLoop.call_at`. Timers due at the same instant have a drawn order."""
        process = self.current if context is None else context.get(PROCESS, self.driver)
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        if process.is_alive:
            heappush(self._events, (when, self._random(), next(self._numbers), handle, process))
        return handle

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        self._cancelled_count += 1

    def create_future(self) -> asyncio.Future[T]:
        """See `asyncio.AbstractEventLoop.create_future`."""
        return SimulatedFuture(loop=self, number=next(self._numbers))

    def create_task(
        self,
        coroutine: Generator[asyncio.Future[object] | None, None, T] | Coroutine[object, object, T],
        *,
        name: object = None,
        context: contextvars.Context | None = None,
    ) -> asyncio.Task[T]:
        """See `asyncio.AbstractEventLoop.create_task`. Tasks without a name get one that is the same in every run."""
        process = self.current if context is None else context.get(PROCESS, self.driver)
        number = next(self._task_numbers)
        text = f"task-{number}" if name is None else str(name)
        task = SimulatedTask(coroutine, loop=self, number=number, name=text, context=context)
        process.add_task(cast("asyncio.Task[object]", task))
        return task

    # -- processes ----------------------------------------------------------------------------------------------

    def start_process(self, host_name: str, life: int) -> Process:
        """Return a new process without code."""
        process = Process(host_name, life)
        self.processes.append(process)
        return process

    def spawn(self, process: Process, coroutine: Coroutine[object, object, T], name: str) -> asyncio.Task[T]:
        """Run a coroutine as a task of `process`."""
        return process.context.copy().run(self._spawn_here, process, coroutine, name)

    def _spawn_here(self, process: Process, coroutine: Coroutine[object, object, T], name: str) -> asyncio.Task[T]:
        before, self.current = self.current, process
        try:
            return self.create_task(coroutine, name=name, context=contextvars.copy_context())
        finally:
            self.current = before

    def kill(self, process: Process) -> None:
        """End a process at once: none of its code runs again. Its coroutines are kept until the end, unfinished."""
        if not process.is_alive:
            return
        process.is_alive = False
        process.ready.clear()
        self.trace.add(self._time_s, f"dead {process.name}")
        held_jobs, process.held_jobs = process.held_jobs, {}
        before, self.current = self.current, process
        for job in held_jobs:
            job.abandon()
        self.current = before
        watchers, process.on_death = process.on_death, {}
        for watcher in watchers:
            watcher()

    def pause(self, process: Process) -> None:
        """Pause a process as SIGSTOP does: due callbacks wait."""
        process.is_paused = process.is_held = True

    def resume(self, process: Process) -> None:
        """Resume a paused process."""
        process.is_paused = False
        process.is_held = process.is_busy
        waiting, process.on_resume = process.on_resume, []
        for event in waiting:
            self.at(self._time_s, event)
        self.list_process(process)

    def kill_all(self) -> None:
        """Kill every process but the driver, and lift the limits: the simulation is over."""
        self._is_over = True
        self._turn_count_end = self._time_s_end = math.inf
        for process in self.processes:
            if process is not self.driver:
                # No process is left to be notified.
                process.on_death.clear()
                self.kill(process)

    def bury(self) -> None:
        """End the driver too, except for the calling task, and close all coroutines that never ended.

        Their clean-up code runs now, but everything it calls ignores it.
        """
        here = asyncio.current_task()
        for process in self.processes:
            self.kill(process)
            self.current = process
            # Again, because clean-up code starts tasks.
            while tasks := [task for task in process.waiting_tasks() if task is not here]:
                process.tasks.clear()
                for task in tasks:
                    # The warning of asyncio about a destroyed pending task is expected here.
                    setattr(task, "_log_destroy_pending", False)  # noqa: B010  # typeshed does not know it
                    coroutine = task.get_coro()
                    if asyncio.iscoroutine(coroutine):
                        process.context.copy().run(_close, coroutine)
        self.current = self.driver
        # For the calling task, which has to end cleanly.
        self.driver.is_alive = True

    def _asyncgen_firstiter_hook(self, generator: AsyncGeneratorType[object, object]) -> None:
        self._generators[id(generator)] = self.current

    def _asyncgen_finalizer_hook(self, generator: AsyncGeneratorType[object, object]) -> None:
        process = self._generators.pop(id(generator), self.driver)
        if process.is_alive and not self.is_closed():
            self.spawn(process, generator.aclose(), "close of a generator")

    def waiting_summary(self) -> str:
        """Describe which tasks wait, and where."""
        lines = []
        for process in self.processes:
            if not process.is_alive:
                continue
            if process.is_paused:
                lines.append(f"{process.name} is paused")
            lines += [f"{process.name}: {task.get_name()} at {_place(task)}" for task in process.waiting_tasks()]
        shown = lines[:_TASKS_NAMED_MAX]
        more = f"\n  and {len(lines) - len(shown)} more" if len(lines) > len(shown) else ""
        return f"{len(lines)} tasks wait:\n  " + "\n  ".join(shown) + more

    def call_exception_handler(self, context: dict[str, object]) -> None:
        """See `asyncio.AbstractEventLoop.call_exception_handler`; also keeps it in `unhandled`.

        Errors of dead processes are dropped, and so are errors after the end of the simulation.
        """
        if self._is_over or not self.current.is_alive or isinstance(context.get("exception"), ProcessKilled):
            return
        self.unhandled.append(context)
        super().call_exception_handler(context)

    # -- network ------------------------------------------------------------------------------------------------

    async def create_server(  # type: ignore[override]  # the part of the signature that has a meaning here
        self,
        protocol_factory: Callable[[], asyncio.BaseProtocol],
        host: str | None = None,
        port: int | None = None,
        *,
        backlog: int = 100,
        ssl: None = None,
        start_serving: bool = True,
        **options: object,
    ) -> asyncio.AbstractServer:
        """Listen on the simulated network. Raises `OSError` when the port is in use or the host is another one."""
        _check_options(ssl, options)
        return self.network.listen(
            self.current, protocol_factory, host, port or 0, backlog=backlog, is_serving=start_serving
        )

    async def create_connection(  # type: ignore[override]  # the part of the signature that has a meaning here
        self,
        protocol_factory: Callable[[], ProtocolT],
        host: str | None = None,
        port: int | None = None,
        *,
        ssl: None = None,
        **options: object,
    ) -> tuple[asyncio.Transport, ProtocolT]:
        """Connect over the simulated network. Raises `OSError` as a real connect does."""
        _check_options(ssl, options)
        if host is None or port is None:
            _refuse("a connection without host and port")
        protocol = protocol_factory()
        transport = await self.network.connect(self.current, protocol, host, port)
        return transport, protocol

    # -- the real world -----------------------------------------------------------------------------------------

    def run_until_complete(self, future: Awaitable[T] | Generator[object, None, T]) -> T:
        """See `asyncio.AbstractEventLoop.run_until_complete`."""
        self._home_thread = threading.get_ident()
        was_enabled = gc.isenabled()
        gc.disable()
        try:
            return super().run_until_complete(future)
        finally:
            self.current = self.driver
            if was_enabled:
                gc.enable()

    def run_in_executor(self, *_: object, **__: object) -> NoReturn:
        """Raise `RealWorldError`: blocking work goes through `Runtime.work`."""
        _refuse("an executor (use Runtime.work)")

    async def getaddrinfo(self, *_: object, **__: object) -> NoReturn:
        """Raise `RealWorldError`."""
        _refuse("name resolution")

    async def getnameinfo(self, *_: object, **__: object) -> NoReturn:
        """Raise `RealWorldError`."""
        _refuse("name resolution")

    def add_reader(self, *_: object) -> NoReturn:
        """Raise `RealWorldError`."""
        _refuse("a file descriptor")

    def add_writer(self, *_: object) -> NoReturn:
        """Raise `RealWorldError`."""
        _refuse("a file descriptor")

    async def sock_recv(self, *_: object) -> NoReturn:
        """Raise `RealWorldError`."""
        _refuse("a socket")

    async def sock_sendall(self, *_: object) -> NoReturn:
        """Raise `RealWorldError`."""
        _refuse("a socket")

    async def sock_connect(self, *_: object) -> NoReturn:
        """Raise `RealWorldError`."""
        _refuse("a socket")

    async def create_datagram_endpoint(self, *_: object, **__: object) -> NoReturn:
        """Raise `RealWorldError`."""
        _refuse("a datagram socket")

    async def subprocess_exec(self, *_: object, **__: object) -> NoReturn:
        """Raise `RealWorldError`."""
        _refuse("a subprocess")

    async def subprocess_shell(self, *_: object, **__: object) -> NoReturn:
        """Raise `RealWorldError`."""
        _refuse("a subprocess")

    def add_signal_handler(self, *_: object) -> NoReturn:
        """Raise `RealWorldError`."""
        _refuse("a signal")


def _refuse(what: str) -> NoReturn:
    raise RealWorldError(f"simulated code asked for {what}, which the simulation does not have")


def _check_options(ssl: object, options: dict[str, object]) -> None:
    if ssl:
        _refuse("TLS")
    given = sorted(name for name, value in options.items() if value is not None)
    if given:
        _refuse(f"a connection with the options {', '.join(given)}")


def _is_cancelled(entry: _Entry) -> bool:
    process = entry[4]
    return process is not None and (not process.is_alive or cast(asyncio.Handle, entry[3])._cancelled)


def _place(task: asyncio.Task[object]) -> str:
    """Name the coroutines that a task waits in, outermost first, and the line of the innermost."""
    coroutine: object = task.get_coro()
    names: list[str] = []
    line = 0
    while isinstance(coroutine, CoroutineType) and coroutine.cr_frame is not None:
        names.append(coroutine.cr_code.co_qualname)
        line = coroutine.cr_frame.f_lineno
        coroutine = coroutine.cr_await
    return f"{' > '.join(names[-_FRAMES_NAMED_MAX:])} line {line}" if names else "its start"


def _close(coroutine: Coroutine[object, object, object]) -> None:
    """End a coroutine of a dead process. Each wait of its clean-up code ends with the same error.

    `close` serves only at the end: it drops inner coroutines that wait in their clean-up code, still unfinished, and
    the interpreter complains of each of them when it is freed.
    """
    for _ in range(_CLOSE_ATTEMPTS_MAX):
        try:
            coroutine.throw(ProcessKilled("the simulation is over"))
        except (StopIteration, ProcessKilled):
            return
        except BaseException as error:  # noqa: BLE001  # the clean-up code of a dead process has no effect
            _logger.debug("clean-up of a dead process: %r", error)
            return
    with suppress(RuntimeError):
        coroutine.close()
