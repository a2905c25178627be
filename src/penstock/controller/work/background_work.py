"""`BackgroundWork`: work that no caller waits for, repeated until it is done; and a queue of such work per stream."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from itertools import islice
from typing import Generic, TypeVar

from penstock.controller.errors import PERMANENT_ERRORS, WorkElsewhereError
from penstock.controller.locks import StreamLocks
from penstock.controller.metadata.given_up import GivenUpWork
from penstock.controller.retry import delay_s
from penstock.controller.settings import ControllerSettings
from penstock.controller.tasks import BackgroundTasks
from penstock.model.errors import CorruptionError, PenstockError, UnreadableDataError

T = TypeVar("T")
Item = TypeVar("Item")
_logger = logging.getLogger(__name__)

#: Errors that a repetition alone does not fix.
_STAYING_ERRORS: tuple[type[PenstockError], ...] = (CorruptionError, *PERMANENT_ERRORS)


class BackgroundWork:
    """Repeats work until it is done; at most `workflow_concurrency_max` pieces hold a slot at the same time.

    A slot is released after `work_slot_s` even if the work takes longer, so work blocked by an unresponsive segment
    store does not block the rest. Work that waits for a lock or for its next attempt holds no slot.

    Attributes:
        tasks: owns the tasks.
        failed_attempt_count: attempts that have failed and were, or will be, repeated.
    """

    def __init__(
        self, tasks: BackgroundTasks, settings: ControllerSettings, locks: StreamLocks, given_up: GivenUpWork
    ) -> None:
        self.tasks = tasks
        self.failed_attempt_count: int = 0
        self._settings = settings
        self._locks = locks
        self._given_up = given_up
        self._slots = asyncio.Semaphore(settings.workflow_concurrency_max)

    @asynccontextmanager
    async def _slot(self) -> AsyncIterator[None]:
        await self._slots.acquire()
        is_held = True

        def give_back() -> None:
            nonlocal is_held
            if is_held:
                is_held = False
                self._slots.release()

        timer = asyncio.get_running_loop().call_later(self._settings.work_slot_s, give_back)
        try:
            yield
        finally:
            timer.cancel()
            give_back()

    async def room(self) -> None:
        """Wait until a slot is free. Callers that start much work use it to start no more than can run."""
        async with self._slot():
            return

    def start(self, what: str, call: Callable[[], Awaitable[None]]) -> asyncio.Task[None]:
        """Repeat `call` in a task of its own until it is done; see `until_done`."""
        return self.tasks.start(what, self.until_done(what, call))

    async def until_done(
        self, what: str, call: Callable[[], Awaitable[T]], *, lock: str | None = None, lane: str = ""
    ) -> T | None:
        """Repeat `call`, with growing waits up to a bound, until it succeeds; return its result.

        Each attempt first acquires `lock` (None: no lock), waiting in `lane`, and then a slot. Work that waits for
        another controller is retried every `peer_poll_ms`. After a permanent error the work is given up: this is logged
        and recorded, and None is returned. Work that reads damaged data is not given up: it is retried after
        `damaged_retry_delay_ms`, since the data may be repaired.
        """
        attempt = 1
        while True:
            try:
                return await self._attempt(what, call, lock, lane)
            except WorkElsewhereError as error:
                # Not a failure: another controller does this work, or other work comes first.
                _logger.debug("%s waits: %s", what, error)
                await asyncio.sleep(self._settings.peer_poll_ms / 1000)
                continue
            except PenstockError as error:
                self.failed_attempt_count += 1
                # Work that fails for days must not fill the log: it is logged less and less often.
                if attempt <= self._settings.attempts_max or attempt & (attempt - 1) == 0:
                    level = logging.WARNING if attempt < self._settings.attempts_max else logging.ERROR
                    _logger.log(level, "%s failed (attempt %d), retrying: %s", what, attempt, error)
                wait_s = delay_s(self._settings, attempt)
                if isinstance(error, UnreadableDataError):
                    wait_s = self._settings.damaged_retry_delay_ms / 1000
            await asyncio.sleep(wait_s)
            attempt += 1

    async def _attempt(self, what: str, call: Callable[[], Awaitable[T]], lock: str | None, lane: str) -> T | None:
        try:
            async with AsyncExitStack() as held:
                if lock is not None:
                    await held.enter_async_context(self._locks.hold(lock, lane=lane))
                await held.enter_async_context(self._slot())
                return await call()
        except PERMANENT_ERRORS as error:
            await self._given_up.add(what, error)
            return None


class StreamQueue(Generic[Item]):
    """Items to process for each stream, in the order of posting: one task per stream that has items.

    `work(scope, stream, items)` gets up to `commit_batch_max` items at a time, and is repeated until it succeeds; it
    returns the items that are done. `lock` returns the name of the lock held meanwhile; None: no lock. The queue waits
    for the lock in a lane of its own, so it gets its turn however many other waiters there are.
    """

    def __init__(
        self,
        what: str,
        background: BackgroundWork,
        settings: ControllerSettings,
        work: Callable[[str, str, list[Item]], Awaitable[Collection[Item]]],
        *,
        lock: Callable[[str, str], str] | None = None,
    ) -> None:
        self._what = what
        self._background = background
        self._items_max = settings.commit_batch_max
        self._work = work
        self._lock = lock
        self._posted: dict[tuple[str, str], dict[Item, None]] = {}
        self._tasks: dict[tuple[str, str], asyncio.Task[None]] = {}

    def post(self, scope: str, stream: str, item: Item) -> None:
        """Queue `item` for processing."""
        key = (scope, stream)
        posted = self._posted.setdefault(key, {})
        posted[item] = None
        if key not in self._tasks:
            self._tasks[key] = self._background.tasks.start(f"{self._what} on {scope}/{stream}", self._serve(key))

    def has(self, scope: str, stream: str, item: Item) -> bool:
        """Say whether an item was posted and is not done."""
        return item in self._posted.get((scope, stream), ())

    async def empty(self, scope: str, stream: str) -> None:
        """Wait until a stream has no items left."""
        while (task := self._tasks.get((scope, stream))) is not None:
            await asyncio.wait([task])

    async def _serve(self, key: tuple[str, str]) -> None:
        scope, stream = key
        posted = self._posted[key]
        lock = None if self._lock is None else self._lock(scope, stream)
        try:
            while posted:
                # Removed only when done: there is no other record of the items for a repetition.
                items = list(islice(posted, self._items_max))
                done = await self._background.until_done(
                    f"{self._what} on {scope}/{stream}",
                    partial(self._work, scope, stream, items),
                    lock=lock,
                    lane=self._what,
                )
                for item in items if done is None else done:
                    posted.pop(item, None)
        finally:
            del self._posted[key], self._tasks[key]


async def all_ended(requests: list[Coroutine[object, object, T]]) -> list[T]:
    """Run all requests concurrently to completion; return their results in order.

    A failure cancels nothing. If several fail, a transient error is raised in preference to a permanent one.
    """
    results = await asyncio.gather(*requests, return_exceptions=True)
    errors = [result for result in results if isinstance(result, BaseException)]
    for error in errors:
        if not isinstance(error, _STAYING_ERRORS):
            raise error
    # Damaged data may be repaired, so this error is raised before permanent ones: all of the work is retried.
    for error in errors:
        if isinstance(error, UnreadableDataError):
            raise error
    for error in errors:
        raise error
    return [result for result in results if not isinstance(result, BaseException)]
