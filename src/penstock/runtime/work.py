"""`BlockingWork`: blocking functions, off the event loop, in bounded pools of threads.

Each pool serves one resource that can hang independently: one log, the reads of long-term storage, its writes, the
cache on disk. So functions that hang use up the threads of their own pool only.

A thread inside a system call that does not return cannot be interrupted. Its caller can stop waiting (a time-out, or a
cancellation); the work is then *abandoned*. The thread counts as hung until the function ends. It is replaced by
another one, up to `PoolSettings.hung_count_max` of them; when all are hung, callers get `StorageNotRespondingError` at
once. The result of an abandoned function goes to `discard`; what the function uses must exist until it has ended, which
`on_end` reports. The end of the process never waits for a thread.

`WorkQueue` is the part without threads, which the simulation shares. All of its state belongs to the event loop.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol, TypeVar, cast

from penstock.model.errors import InvalidArgumentError, StorageNotRespondingError
from penstock.model.segments import Buffer
from penstock.runtime.disk import DiskFile
from penstock.runtime.fixed_values import fixed
from penstock.runtime.write_ring import OnWritten, WriteNotDoneError, WriteRing, open_write_ring

T = TypeVar("T")

_log = logging.getLogger(__name__)

#: How long `BlockingWork.close` waits for work that is not abandoned.
CLOSE_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class PoolSettings:
    """Bounds of one pool.

    Attributes:
        thread_count_max: functions running at once, without those that hang.
        hung_count_max: hung threads that are replaced; with more, the pool works with fewer threads, and refuses all
            work when none is left.
        waiting_count_max: functions that wait for a thread; more are refused.
        timeout_s: time for a function, its wait for a thread included; 0: no limit.
    """

    thread_count_max: int = 4
    hung_count_max: int = fixed(8)
    waiting_count_max: int = fixed(100_000)
    timeout_s: float = 0.0

    def __post_init__(self) -> None:
        """Check the bounds. Raises `InvalidArgumentError`."""
        if self.thread_count_max < 1 or self.waiting_count_max < 1:
            raise InvalidArgumentError("thread_count_max and waiting_count_max of a pool are at least 1")
        if self.hung_count_max < 0 or self.timeout_s < 0:
            raise InvalidArgumentError("hung_count_max and timeout_s of a pool are not negative")


class WorkPool(Protocol):
    """A bounded pool for one kind of work. Belongs to the event loop."""

    @property
    def name(self) -> str:
        """Its purpose, for messages."""

    @property
    def settings(self) -> PoolSettings:
        """Its bounds."""

    @property
    def hung_count(self) -> int:
        """Abandoned functions that still run."""

    @property
    def is_closed(self) -> bool:
        """Whether it accepts no more work."""

    async def drained(self, *, with_abandoned: bool = False) -> None:
        """Return when no function waits or runs, abandoned ones not counted unless `with_abandoned`."""

    def run(
        self,
        function: Callable[..., T],
        *args: object,
        on_end: Callable[[], object] | None = None,
        discard: Callable[[T], object] | None = None,
    ) -> asyncio.Future[T]:
        """Start `function(*args)` as soon as a thread is free and return the future of its result.

        Cancelling the future abandons the function; if it waits for a thread, it never runs.

        Args:
            on_end: called on the loop, exactly once, when the function has ended or is certain never to run.
            discard: called on the loop with the result if the function was abandoned.

        The future raises what the function raises, and `StorageNotRespondingError` when it is not done in time (it may
        still take effect, later) or when all threads hang.
        """

    def begin(self, function: Callable[[], T], on_done: Callable[[T | None, BaseException | None], None]) -> None:
        """Run `function()` as `run` does; `on_done` gets its result, or its error.

        `on_done` is called on the loop, in the turn that receives the end. Awaiting a future takes one turn more.
        """

    @property
    def writes_without_thread(self) -> bool:
        """Whether `write_synced` does small writes without a thread."""

    def write_synced(self, file: DiskFile, offset: int, buffers: Sequence[Buffer], on_written: OnWritten) -> None:
        """Run `file.write_synced(offset, buffers)` as `run` does; without a thread where that is possible.

        `on_written` is called on the loop, in the turn that receives the end. Until then the buffers must not change,
        nor the file be closed.
        """

    def tell(self, function: Callable[[T], object], news: T) -> None:
        """Call `function(news)` on the loop, soon. For a running function of this pool, called off the loop.

        Calls are made in order, and before the loop receives the end of that function. No effect once the loop is
        closed.
        """

    def close(self) -> None:
        """Accept no more work. Accepted work continues; then the threads end. Waits for nothing."""


class BlockingWork(Protocol):
    """Runs blocking functions off the event loop."""

    def pool(self, name: str, settings: PoolSettings) -> WorkPool:
        """Return a new pool; its threads are started when needed. Close it after use."""

    def run(self, function: Callable[..., T], *args: object) -> asyncio.Future[T]:
        """Run a function in the general pool: see `WorkPool.run`. For work that does not belong to a tier."""

    async def close(self) -> None:
        """Accept no more work; wait for work that is not abandoned, `CLOSE_TIMEOUT_S` at most."""


class Job:
    """A function in a pool, waiting or running."""

    __slots__ = ("call", "is_abandoned", "is_settled", "is_started", "loop", "on_end", "settle", "timer", "write")

    def __init__(self, loop: asyncio.AbstractEventLoop, call: Callable[[], object]) -> None:
        self.loop: asyncio.AbstractEventLoop = loop
        self.call: Callable[[], object] = call
        #: Whether the caller has its answer, or has stopped waiting.
        self.is_settled: Callable[[], bool] = lambda: False
        self.is_started: bool = False
        self.is_abandoned: bool = False
        self.timer: asyncio.TimerHandle | None = None
        #: Delivers the outcome to the caller: the result, or the error. No effect if the caller has stopped waiting.
        self.settle: Callable[[object, BaseException | None], None] = _ignore
        self.on_end: Callable[[], object] | None = None
        #: What `call` does, if it is a write that may be done without a thread.
        self.write: SyncedWrite | None = None


@dataclass(frozen=True, slots=True)
class SyncedWrite:
    """See `WorkPool.write_synced`."""

    file: DiskFile
    offset: int
    buffers: Sequence[Buffer]


def _ignore(result: object, error: BaseException | None) -> None:
    """Drop the outcome: the caller has stopped waiting."""


class _NoThreadError(Exception):
    """The system cannot start another thread."""


class WorkQueue(ABC):
    """`WorkPool` without threads: the waiting, running and hung functions. All methods run on the event loop."""

    def __init__(self, name: str, settings: PoolSettings) -> None:
        self._name = name
        self._settings = settings
        self._waiting: dict[Job, None] = {}
        self._started_count = 0
        self._hung_count = 0
        self._is_closed = False
        self._idle: list[asyncio.Future[None]] = []

    @property
    def name(self) -> str:
        """See `WorkPool.name`."""
        return self._name

    @property
    def settings(self) -> PoolSettings:
        """See `WorkPool.settings`."""
        return self._settings

    @property
    def hung_count(self) -> int:
        """See `WorkPool.hung_count`."""
        return self._hung_count

    @property
    def is_closed(self) -> bool:
        """See `WorkPool.is_closed`."""
        return self._is_closed

    @property
    def is_idle(self) -> bool:
        """Whether no function waits or runs, abandoned ones not counted."""
        return not self._waiting and self._started_count == self._hung_count

    def run(
        self,
        function: Callable[..., T],
        *args: object,
        on_end: Callable[[], object] | None = None,
        discard: Callable[[T], object] | None = None,
    ) -> asyncio.Future[T]:
        """See `WorkPool.run`."""
        loop = self._loop()
        future: asyncio.Future[T] = loop.create_future()
        job = Job(loop, partial(function, *args))
        job.on_end = on_end
        job.is_settled = future.done

        def settle(result: object, error: BaseException | None) -> None:
            if not future.done():
                if error is not None:
                    future.set_exception(error)
                else:
                    future.set_result(result)  # type: ignore[arg-type]  # it is what `function` returned
            elif error is None and discard is not None:
                discard(result)  # type: ignore[arg-type]  # it is what `function` returned

        job.settle = settle
        if self._admit(job):
            future.add_done_callback(partial(self._done, job))
        return future

    def begin(self, function: Callable[[], T], on_done: Callable[[T | None, BaseException | None], None]) -> None:
        """See `WorkPool.begin`."""
        # The queue holds jobs of all result types; this one's result is what `function` returned.
        told = cast(Callable[[object, BaseException | None], None], on_done)
        self._begin_call(Job(self._loop(), partial(function)), told)

    @property
    def writes_without_thread(self) -> bool:
        """See `WorkPool.writes_without_thread`."""
        return False

    def write_synced(self, file: DiskFile, offset: int, buffers: Sequence[Buffer], on_written: OnWritten) -> None:
        """See `WorkPool.write_synced`."""
        job = Job(self._loop(), partial(file.write_synced, offset, buffers))
        job.write = SyncedWrite(file, offset, buffers)
        self._begin_call(job, lambda _, error: on_written(error))

    def _begin_call(self, job: Job, on_done: Callable[[object, BaseException | None], None]) -> None:
        """Admit a job whose `settle` is called once, when it has ended or is abandoned."""
        is_told = False

        def settle(result: object, error: BaseException | None) -> None:
            nonlocal is_told
            if not is_told:
                is_told = True
                self._done(job)
                on_done(result, error)

        job.is_settled = lambda: is_told
        job.settle = settle
        self._admit(job)

    def _admit(self, job: Job) -> bool:
        """Queue a job, or refuse it."""
        if self._is_closed:
            raise RuntimeError(f"cannot run more blocking work in the pool {self._name!r}: it was closed")
        settings = self._settings
        if self._hung_count >= settings.thread_count_max + settings.hung_count_max:
            self._refuse(job, f"{self._hung_count} of its calls hang already")
            return False
        if len(self._waiting) >= settings.waiting_count_max:
            self._refuse(job, f"{len(self._waiting)} calls are queued already")
            return False
        if settings.timeout_s:
            job.timer = job.loop.call_later(settings.timeout_s, self._expire, job)
        self._waiting[job] = None
        self._start_waiting()
        return True

    def close(self) -> None:
        """See `WorkPool.close`."""
        self._is_closed = True

    async def drained(self, *, with_abandoned: bool = False) -> None:
        """See `WorkPool.drained`."""
        while not self.is_idle or (with_abandoned and self._started_count):
            idle: asyncio.Future[None] = self._loop().create_future()
            self._idle.append(idle)
            await idle

    @abstractmethod
    def tell(self, function: Callable[[T], object], news: T) -> None:
        """See `WorkPool.tell`."""

    @abstractmethod
    def _loop(self) -> asyncio.AbstractEventLoop:
        """Return the event loop."""

    @abstractmethod
    def _begin(self, job: Job) -> None:
        """Run the function; `_ended` has to be called on the loop when it has ended.

        Raises `_NoThreadError`: then it never runs.
        """

    def _start_waiting(self) -> None:
        settings = self._settings
        while self._waiting:
            if self._started_count >= settings.thread_count_max + min(self._hung_count, settings.hung_count_max):
                return
            job = next(iter(self._waiting))
            del self._waiting[job]
            if job.is_settled():
                continue  # `_done` is scheduled.
            job.is_started = True
            self._started_count += 1
            try:
                self._begin(job)
            except _NoThreadError as error:
                self._started_count -= 1
                job.is_started = False
                self._refuse(job, f"no thread can be started for it ({error})")
                self._tell_idle()

    def _ended(self, job: Job, result: object, error: BaseException | None) -> None:
        """Handle the end of a function."""
        self._started_count -= 1
        if job.is_abandoned:
            self._hung_count -= 1
        if job.timer is not None:
            job.timer.cancel()
        # From here on a done future does not mean that the job was abandoned.
        job.is_abandoned = True
        job.settle(result, error)
        if job.on_end is not None:
            job.on_end()
        self._start_waiting()
        self._tell_idle()

    def _done(self, job: Job, _: object = None) -> None:
        """Handle that the caller has its answer, or has stopped waiting."""
        if job.is_abandoned:
            return
        job.is_abandoned = True
        if job.timer is not None:
            job.timer.cancel()
        if not job.is_started:
            self._waiting.pop(job, None)
            if job.on_end is not None:
                job.on_end()
        else:
            self._hung_count += 1
            settings = self._settings
            if self._hung_count >= settings.thread_count_max + settings.hung_count_max:
                _log.error("%s does not answer: %d calls hang", self._name, self._hung_count)
                for waiting in list(self._waiting):
                    self._refuse(waiting, f"{self._hung_count} of its calls hang already")
            else:
                self._start_waiting()
        self._tell_idle()

    def _expire(self, job: Job) -> None:
        never = "the call was not started, because all threads hang"
        is_begun = "the call may still take effect" if job.is_started else never
        job.settle(
            None,
            StorageNotRespondingError(
                f"{self._name} did not answer within {self._settings.timeout_s:g} s; {is_begun}: "
                "check that the underlying file system responds"
            ),
        )

    def _refuse(self, job: Job, because: str) -> None:
        self._waiting.pop(job, None)
        job.is_abandoned = True
        if job.timer is not None:
            job.timer.cancel()
        job.settle(None, StorageNotRespondingError(f"{self._name} does not answer: {because}; nothing was done"))
        if job.on_end is not None:
            job.on_end()

    def _tell_idle(self) -> None:
        if self._idle and self.is_idle:
            # Callers that also wait for abandoned work check again.
            waiters, self._idle = self._idle, []
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_result(None)


class _Worker:
    """A thread that runs one job at a time. Never joined: it may hang, and must not delay the exit of the process."""

    __slots__ = ("jobs",)

    def __init__(self, name: str) -> None:
        #: The next job and the callback for its end; None: exit.
        self.jobs: queue.SimpleQueue[tuple[Job, Callable[..., None]] | None] = queue.SimpleQueue()
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def _run(self) -> None:
        while (given := self.jobs.get()) is not None:
            job, ended = given
            result: object = None
            failure: BaseException | None = None
            try:
                result = job.call()
            except BaseException as error:  # noqa: BLE001  # goes to the awaiting caller
                failure = error
            try:
                job.loop.call_soon_threadsafe(ended, self, job, result, failure)
            except RuntimeError:
                return  # The loop was closed, so there is no caller left.
            # Keep no reference to this job while waiting for the next one.
            del given, job, ended, result, failure


class _ThreadPool(WorkQueue):
    """`WorkPool` on threads."""

    def __init__(self, name: str, settings: PoolSettings, work: ThreadedWork) -> None:
        super().__init__(name, settings)
        self._free: list[_Worker] = []
        self._work = work
        #: The loop that uses this pool; threads post callbacks to it.
        self._home: asyncio.AbstractEventLoop | None = None

    def _loop(self) -> asyncio.AbstractEventLoop:
        return asyncio.get_running_loop()

    def _begin(self, job: Job) -> None:
        # The most recently used thread: its memory is warm.
        self._home = job.loop
        if (write := job.write) is not None and (ring := self._work.ring) is not None and ring.loop is job.loop:
            job.write = None
            if ring.begin(write.file, write.offset, write.buffers, partial(self._written, job, write)):
                return
        worker = self._free.pop() if self._free else self._new_worker()
        worker.jobs.put((job, self._worker_ended))

    def tell(self, function: Callable[[T], object], news: T) -> None:
        """See `WorkPool.tell`."""
        assert self._home is not None
        try:
            self._home.call_soon_threadsafe(function, news)
        except RuntimeError:
            pass  # The loop was closed, so there is no caller left.

    def _new_worker(self) -> _Worker:
        try:
            return _Worker(f"penstock {self._name}")
        except (RuntimeError, MemoryError) as error:
            raise _NoThreadError(str(error) or "out of memory") from error

    def _worker_ended(self, worker: _Worker, job: Job, result: object, error: BaseException | None) -> None:
        self._free.append(worker)
        self._ended(job, result, error)
        self._let_go()

    @property
    def writes_without_thread(self) -> bool:
        """See `WorkPool.writes_without_thread`."""
        ring = self._work.ring
        return ring is not None and ring.is_usable and ring.loop is asyncio.get_running_loop()

    def _written(self, job: Job, write: SyncedWrite, error: BaseException | None) -> None:
        """Handle the end of a write without a thread."""
        if isinstance(error, WriteNotDoneError):
            try:
                self._begin(job)
                return
            except _NoThreadError as refusal:
                error = StorageNotRespondingError(f"{self._name}: no thread can be started for it ({refusal})")
        self._ended(job, None if error is not None else sum(map(len, write.buffers)), error)
        self._let_go()

    def close(self) -> None:
        """See `WorkPool.close`."""
        super().close()
        self._let_go()

    def _let_go(self) -> None:
        """End the threads that are no longer needed."""
        count_kept = 0 if self._is_closed and not self._waiting else self._settings.thread_count_max
        while len(self._free) > count_kept:
            self._free.pop().jobs.put(None)
        if self._is_closed and not self._started_count and not self._waiting:
            self._work.forget(self)


class WorkPools:
    """The pools of a process, without the parts that need threads. Created by `ThreadedWork` and the simulation."""

    def __init__(self, make: Callable[[str, PoolSettings], WorkQueue], general: PoolSettings) -> None:
        self._make = make
        self._pools: dict[WorkQueue, None] = {}
        self._is_closed = False
        self._general = self.pool("general", general)

    def pool(self, name: str, settings: PoolSettings) -> WorkQueue:
        """See `BlockingWork.pool`."""
        if self._is_closed:
            raise RuntimeError("cannot run more blocking work: it was closed")
        made = self._make(name, settings)
        self._pools[made] = None
        return made

    def run(self, function: Callable[..., T], *args: object) -> asyncio.Future[T]:
        """See `BlockingWork.run`."""
        return self._general.run(function, *args)

    @property
    def pools(self) -> Iterable[WorkQueue]:
        """The pools that are in use."""
        return list(self._pools)

    def forget(self, pool: WorkQueue) -> None:
        """Remove a closed pool that has no function running."""
        self._pools.pop(pool, None)

    async def close(self) -> None:
        """See `BlockingWork.close`."""
        self._is_closed = True
        pools = self.pools
        for pool in pools:
            pool.close()
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                for pool in pools:
                    await pool.drained()
        except TimeoutError:
            names = ", ".join(repr(pool.name) for pool in pools if not pool.is_idle)
            _log.warning("work is still running after %g s, and is abandoned: %s", CLOSE_TIMEOUT_S, names)


class ThreadedWork(WorkPools):
    """`BlockingWork` on threads, for the whole process.

    `thread_count_max`: of the general pool.
    """

    def __init__(self, thread_count_max: int = 8) -> None:
        self._ring: WriteRing | None = None
        self._has_checked_for_ring = False
        super().__init__(lambda name, settings: _ThreadPool(name, settings, self), PoolSettings(thread_count_max))

    @property
    def ring(self) -> WriteRing | None:
        """Return the ring for writes without a thread, if available, for the first loop that requests it."""
        if not self._has_checked_for_ring and not self._is_closed:
            self._has_checked_for_ring = True
            self._ring = open_write_ring(asyncio.get_running_loop())
        return self._ring

    async def close(self) -> None:
        """See `BlockingWork.close`."""
        await super().close()
        ring, self._ring = self._ring, None
        if ring is not None:
            ring.close()
