"""`SimulatedWork`: blocking work at a drawn later instant instead of in a thread.

A function mostly runs whole at one instant, some time after it was started, and its result gets to the event loop some
time after that; other jobs may run, and the host may die, in between. So a caller that dies may or may not have had the
effect. Some are cut in two at one of their disk calls, so that others run, and the log changes its owner, in the
middle; and while a disk stalls they wait at it, each keeping its thread (`held_job`). To let the host die in the midst
of one there is `Host.crash_at_disk_call`.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol, TypeVar

from penstock.testing.simulation.errors import ProcessKilled
from penstock.testing.simulation.held_job import HeldJob
from penstock.testing.simulation.loop import SimulatedLoop
from penstock.testing.simulation.process import Process

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class WorkSettings:
    """How long blocking work takes.

    Attributes:
        thread_count: functions under way at once; further ones wait their turn.
        delay_s_min: shortest time from the start of a function to its effect.
        delay_s_mean_extra: mean of what comes on top; up to four times as much is drawn.
        stall_rate: probability that a function takes up to `stall_s_max` more.
        stall_s_max: see `stall_rate`.
        return_delay_s_max: longest time from the effect to the event loop's hearing of it.
        cut_rate: probability that a function is cut in two at one of its first disk calls.
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


#: A function is cut at one of so many disk calls.
_CUT_CALLS_MAX = 4


class Stalls(Protocol):
    """What stands still on a host's disks, as `Host` knows it."""

    @property
    def is_any(self) -> bool:
        """Whether anything does."""

    def until_s(self, path: str) -> float | None:
        """Return until when a call on `path` does not come back; None: it does at once."""


@dataclass(slots=True)
class _Job:
    number: int
    call: partial[object]
    deliver: Callable[[object], None]
    future: asyncio.Future[object]


class SimulatedWork:
    """`BlockingWork` of one process."""

    def __init__(
        self,
        loop: SimulatedLoop,
        process: Process,
        rng: random.Random,
        settings: WorkSettings | None = None,
        stalls: Stalls | None = None,
    ) -> None:
        self._loop = loop
        self._process = process
        self._random = rng.random
        self._settings = settings or WorkSettings()
        self._stalls = stalls
        self._queue: deque[_Job] = deque()
        self._running_count = 0
        self._count = 0
        self._is_closed = False
        self._idle: asyncio.Future[None] | None = None

    def run(self, function: Callable[..., T], *args: object) -> Awaitable[T]:
        """See `BlockingWork.run`. If cancelled while it waits for a thread, the function never runs."""
        if self._is_closed:
            raise RuntimeError("cannot run more blocking work: it was closed")
        future: asyncio.Future[T] = self._loop.create_future()

        def deliver(result: object) -> None:
            if not future.done():
                future.set_result(result)  # type: ignore[arg-type]  # it is what `function` returned

        # The job only asks its future whether it is done, and gives it errors; the result goes through `deliver`.
        self._count += 1
        job = _Job(self._count, partial(function, *args), deliver, future)  # type: ignore[arg-type]  # see above
        if self._running_count < self._settings.thread_count:
            self._start(job)
        else:
            self._queue.append(job)
        return future

    async def close(self) -> None:
        """See `BlockingWork.close`."""
        self._is_closed = True
        if self._running_count:
            self._idle = self._loop.create_future()
            await self._idle

    def _start(self, job: _Job) -> None:
        settings = self._settings
        self._running_count += 1
        delay_s = settings.delay_s_min + settings.delay_s_mean_extra * 4.0 * self._random() * self._random()
        if self._random() < settings.stall_rate:
            delay_s += settings.stall_s_max * self._random()
        self._loop.at(self._loop.time() + delay_s, partial(self._execute, job))

    def _execute(self, job: _Job) -> None:
        process, loop = self._process, self._loop
        if not process.is_alive:
            return
        if process.is_paused:
            process.on_resume.append(partial(self._execute, job))
            return
        name = getattr(job.call.func, "__qualname__", type(job.call.func).__name__)
        loop.trace.add(loop.time(), f"work {process.name} {job.number} {name}")
        is_cut = self._settings.cut_rate > 0.0 and self._random() < self._settings.cut_rate
        if is_cut or (self._stalls is not None and self._stalls.is_any):
            held = HeldJob(job.call, process.context, self._wait_at(is_cut=is_cut))
            process.held_jobs[held] = None
            self._advance(job, held)
            return
        before, loop.current = loop.current, process
        done: Callable[[], None]
        try:
            done = partial(job.deliver, process.context.run(job.call))
        except ProcessKilled:
            return
        except Exception as error:  # noqa: BLE001  # goes to whoever awaits, as from a real pool
            done = partial(_fail, job.future, error)
        finally:
            loop.current = before
        self._return(done)

    def _wait_at(self, *, is_cut: bool) -> Callable[[str, str], float | None]:
        """Return what a held job asks before each disk call."""
        calls_left = 1 + int(_CUT_CALLS_MAX * self._random()) if is_cut else 0
        stalls = self._stalls

        def wait_at(call: str, path: str) -> float | None:
            nonlocal calls_left
            if stalls is not None and (until_s := stalls.until_s(path)) is not None:
                return until_s
            calls_left -= 1
            return None if calls_left else self._loop.time() + self._settings.cut_s_max * self._random()

        return wait_at

    def _advance(self, job: _Job, held: HeldJob) -> None:
        """Let a held job go on, and see what came of it."""
        process, loop = self._process, self._loop
        if not process.is_alive:
            return  # It was unwound when the process died.
        if process.is_paused:
            process.on_resume.append(partial(self._advance, job, held))
            return
        before, loop.current = loop.current, process
        held.advance()
        loop.current = before
        if held.request is not None:
            request, held.request = held.request, None
            request()
            self._advance(job, held)
            return
        if not held.is_over:
            loop.trace.add(loop.time(), f"work {process.name} {job.number} is held")
            loop.at(max(held.until_s, loop.time()), partial(self._advance, job, held))
            return
        del process.held_jobs[held]
        error = held.error
        if isinstance(error, Exception):
            self._return(partial(_fail, job.future, error))
        elif error is None:
            self._return(partial(job.deliver, held.result))

    def _return(self, done: Callable[[], None]) -> None:
        """Tell the event loop that a function has ended."""
        process, loop = self._process, self._loop
        if process.is_alive:
            delay_s = self._settings.return_delay_s_max * self._random()
            loop.at(loop.time() + delay_s, partial(loop.post, process, self._finish, done))

    def _finish(self, done: Callable[[], None]) -> None:
        self._running_count -= 1
        done()
        while self._queue and self._running_count < self._settings.thread_count:
            job = self._queue.popleft()
            if not job.future.done():
                self._start(job)
        if not self._running_count and self._idle is not None and not self._idle.done():
            self._idle.set_result(None)


def _fail(future: asyncio.Future[object], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)
