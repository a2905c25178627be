"""`SimulatedWork`: blocking work at a drawn later instant instead of in a thread.

A function mostly runs atomically at one instant, some time after it was started, and its result reaches the event loop
some time later; other jobs may run, and the host may die, in between. So the effect may or may not have happened when
the caller dies. Some functions are split at one of their disk calls, so that other jobs run, and the log changes its
owner, in the middle; while a disk is stalled they wait at that call, each occupying its thread (`held_job`). To make
the host die during a function, use `Host.crash_at_disk_call`.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol, TypeVar

from penstock.runtime.work import Job, PoolSettings, WorkPools, WorkQueue
from penstock_simulation.simulated.errors import ProcessKilled
from penstock_simulation.simulated.held_job import HeldJob
from penstock_simulation.simulated.loop import SimulatedLoop
from penstock_simulation.simulated.process import Process

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class WorkSettings:
    """Durations of blocking work.

    Attributes:
            thread_count: functions in progress at once in the general pool; further ones are queued.
            delay_s_min: shortest time from the start of a function to its effect.
            delay_s_mean_extra: mean of the additional time; up to four times as much is drawn.
            stall_rate: probability that a function takes up to `stall_s_max` more.
            stall_s_max: see `stall_rate`.
            return_delay_s_max: longest time from the effect to the notification of the event loop.
            cut_rate: probability that a function is split at one of its first disk calls.
            cut_s_max: longest time between the two halves.
    """

    thread_count: int = 8
    delay_s_min: float = 50e-6
    delay_s_mean_extra: float = 150e-6
    stall_rate: float = 0.001
    stall_s_max: float = 0.05
    return_delay_s_max: float = 30e-6
    cut_rate: float = 0.0
    cut_s_max: float = 0.5


#: A function is split at one of its first disk calls, up to this number.
_CUT_CALLS_MAX = 4


class Stalls(Protocol):
    """Stalled parts of a host's disks, for `Host`."""

    @property
    def is_any(self) -> bool:
        """Whether any part is stalled."""

    def until_s(self, path: str) -> float | None:
        """Return until when a call on `path` is stalled; None: it is not."""


class SimulatedWork(WorkPools):
    """`BlockingWork` of one process. Its pools differ only in their limits."""

    def __init__(
        self,
        loop: SimulatedLoop,
        process: Process,
        rng: random.Random,
        settings: WorkSettings | None = None,
        stalls: Stalls | None = None,
    ) -> None:
        self.loop = loop
        self.process = process
        self.random: Callable[[], float] = rng.random
        self.settings: WorkSettings = settings or WorkSettings()
        self.stalls = stalls
        self.job_count = 0
        super().__init__(
            lambda name, pool_settings: _SimulatedPool(name, pool_settings, self),
            PoolSettings(self.settings.thread_count),
        )


class _SimulatedPool(WorkQueue):
    """`WorkPool` of a simulated process."""

    def __init__(self, name: str, settings: PoolSettings, work: SimulatedWork) -> None:
        super().__init__(name, settings)
        self._work = work
        #: Messages of running functions that have not reached the loop yet, oldest first.
        self._news: deque[Callable[[], object]] = deque()
        self._writes_without_thread: bool | None = None

    @property
    def writes_without_thread(self) -> bool:
        """See `WorkPool.writes_without_thread`: drawn, since systems differ."""
        if self._writes_without_thread is None:
            self._writes_without_thread = self._work.random() < 0.5
        return self._writes_without_thread

    def tell(self, function: Callable[[T], object], news: T) -> None:
        """See `WorkPool.tell`."""
        self._send(partial(function, news))

    def _send(self, message: Callable[[], object]) -> None:
        loop = self._work.loop
        self._news.append(message)
        loop.at(loop.now_s + self._work.settings.return_delay_s_max * self._work.random(), self._deliver)

    def _deliver(self) -> None:
        """Deliver the oldest message to the loop, independent of which one drew this instant."""
        self._work.loop.post(self._work.process, self._news.popleft())

    def _loop(self) -> asyncio.AbstractEventLoop:
        return self._work.loop

    def close(self) -> None:
        """See `WorkPool.close`."""
        super().close()
        self._let_go()

    def _let_go(self) -> None:
        if self.is_closed and not self._started_count and not self._waiting:
            self._work.forget(self)

    def _begin(self, job: Job) -> None:
        work = self._work
        settings = work.settings
        work.job_count += 1
        delay_s = settings.delay_s_min + settings.delay_s_mean_extra * 4.0 * work.random() * work.random()
        if work.random() < settings.stall_rate:
            delay_s += settings.stall_s_max * work.random()
        work.loop.at(work.loop.now_s + delay_s, partial(self._execute, job, work.job_count))

    def _execute(self, job: Job, number: int) -> None:
        work = self._work
        process, loop = work.process, work.loop
        if not process.is_alive:
            return
        if process.is_paused:
            process.on_resume.append(partial(self._execute, job, number))
            return
        function = job.call.func if isinstance(job.call, partial) else job.call
        name = getattr(function, "__qualname__", type(function).__name__)
        loop.trace.add(loop.now_s, f"work {process.name} {self.name} {number} {name}")
        is_cut = work.settings.cut_rate > 0.0 and work.random() < work.settings.cut_rate
        if is_cut or (work.stalls is not None and work.stalls.is_any):
            held = HeldJob(job.call, process.context, self._wait_at(is_cut=is_cut))
            process.held_jobs[held] = None
            self._advance(job, number, held)
            return
        before, loop.current = loop.current, process
        result: object = None
        failure: BaseException | None = None
        try:
            result = process.context.run(job.call)
        except ProcessKilled:
            return
        except Exception as error:  # noqa: BLE001  # is raised where it is awaited, as from a real pool
            failure = error
        finally:
            loop.current = before
        self._return(job, result, failure)

    def _wait_at(self, *, is_cut: bool) -> Callable[[str, str], float | None]:
        """Return the function that a held job calls before each disk call."""
        work = self._work
        calls_left = 1 + int(_CUT_CALLS_MAX * work.random()) if is_cut else 0
        stalls = work.stalls

        def wait_at(call: str, path: str) -> float | None:
            nonlocal calls_left
            if stalls is not None and (until_s := stalls.until_s(path)) is not None:
                return until_s
            calls_left -= 1
            return None if calls_left else work.loop.now_s + work.settings.cut_s_max * work.random()

        return wait_at

    def _advance(self, job: Job, number: int, held: HeldJob) -> None:
        """Resume a held job, and handle its result."""
        process, loop = self._work.process, self._work.loop
        if not process.is_alive:
            return  # It was unwound when the process died.
        if process.is_paused:
            process.on_resume.append(partial(self._advance, job, number, held))
            return
        before, loop.current = loop.current, process
        held.advance()
        loop.current = before
        if held.request is not None:
            request, held.request = held.request, None
            request()
            self._advance(job, number, held)
            return
        if not held.is_over:
            loop.trace.add(loop.now_s, f"work {process.name} {self.name} {number} is held")
            loop.at(max(held.until_s, loop.now_s), partial(self._advance, job, number, held))
            return
        del process.held_jobs[held]
        error = held.error
        if error is None or isinstance(error, Exception):
            self._return(job, held.result, error)

    def _return(self, job: Job, result: object, failure: BaseException | None) -> None:
        """Notify the event loop that a function has ended."""
        work = self._work
        process, loop = work.process, work.loop
        if process.is_alive and self._news:
            self._send(partial(self._finish, job, result, failure))
        elif process.is_alive:
            delay_s = work.settings.return_delay_s_max * work.random()
            loop.at(loop.now_s + delay_s, partial(loop.post, process, self._finish, job, result, failure))

    def _finish(self, job: Job, result: object, failure: BaseException | None) -> None:
        self._ended(job, result, failure)
        self._let_go()
