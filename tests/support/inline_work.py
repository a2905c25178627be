"""`InlineWork`: blocking work on the spot, so that one seed gives one trace."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from penstock.runtime.work import Job, PoolSettings, WorkPools, WorkQueue

T = TypeVar("T")


class InlineWork(WorkPools):
    """`BlockingWork` that runs a function where it is asked for, whatever its pool; by `begin`, a turn later.

    Attributes:
        held_names: functions of these names wait for `release`.
        writes_without_thread: see `WorkPool.writes_without_thread`.
        delay_turns: returns how many turns of the loop the next function waits, as it would for a thread.
    """

    def __init__(self, *, writes_without_thread: bool = False, delay_turns: Callable[[], int] = lambda: 0) -> None:
        self.delay_turns = delay_turns
        self.writes_without_thread = writes_without_thread
        self.held_names: set[str] = set()
        self.held: list[tuple[_InlinePool, Job]] = []
        super().__init__(lambda name, settings: _InlinePool(name, settings, self), PoolSettings(1))

    def release(self) -> None:
        """Run the held work, and hold nothing any more."""
        self.held_names.clear()
        held, self.held = self.held, []
        for pool, job in held:
            pool._begin(job)


class _InlinePool(WorkQueue):
    def __init__(self, name: str, settings: PoolSettings, work: InlineWork) -> None:
        super().__init__(name, settings)
        self._work = work

    @property
    def writes_without_thread(self) -> bool:
        """See `WorkPool.writes_without_thread`."""
        return self._work.writes_without_thread

    def _loop(self) -> asyncio.AbstractEventLoop:
        return asyncio.get_running_loop()

    def begin(self, function: Callable[[], T], on_done: Callable[[T | None, BaseException | None], None]) -> None:
        """See `WorkPool.begin`: in the next turn, as what a thread takes finds there what came in this one."""
        self._loop().call_soon(super().begin, function, on_done)

    def tell(self, function: Callable[[T], object], news: T) -> None:
        """See `WorkPool.tell`: at once."""
        function(news)

    def _begin(self, job: Job) -> None:
        assert isinstance(job.call, partial)
        if getattr(job.call.func, "__name__", "") in self._work.held_names:
            self._work.held.append((self, job))
            return
        self._run_after(self._work.delay_turns(), job)

    def _run_after(self, turns: int, job: Job) -> None:
        if turns:
            self._loop().call_soon(self._run_after, turns - 1, job)
            return
        try:
            result = job.call()
        except Exception as error:  # noqa: BLE001  # handed to the awaiting task
            self._ended(job, None, error)
        else:
            self._ended(job, result, None)
