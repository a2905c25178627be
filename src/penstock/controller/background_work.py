"""`BackgroundWork`: work that nobody waits for, repeated until it is done; and queues of it, one per stream."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from functools import partial
from itertools import islice
from typing import Generic, TypeVar

from penstock.controller.errors import PERMANENT_ERRORS, WorkElsewhereError
from penstock.controller.retry import delay_s
from penstock.controller.settings import ControllerSettings
from penstock.controller.tasks import BackgroundTasks
from penstock.model.errors import CorruptionError, PenstockError

T = TypeVar("T")
Item = TypeVar("Item")
_logger = logging.getLogger(__name__)

#: Errors after which nothing is repeated: what is damaged waits for a repair, and must not fill the log meanwhile.
_HOPELESS_ERRORS: tuple[type[PenstockError], ...] = (CorruptionError, *PERMANENT_ERRORS)


class BackgroundWork:
    """Repeats work until it is done; at most `workflow_concurrency_max` pieces hold a slot at the same time.

    A slot is given back after `work_slot_s` however long the work takes: what is blocked, by a segment store that does
    not answer, does not stop the rest.
    """

    def __init__(self, tasks: BackgroundTasks, settings: ControllerSettings) -> None:
        self.tasks = tasks
        self._settings = settings
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

    def start(self, what: str, call: Callable[[], Awaitable[None]]) -> asyncio.Task[None]:
        """Repeat `call` in a task of its own until it is done; see `until_done`."""
        return self.tasks.start(what, self.until_done(what, call))

    async def until_done(self, what: str, call: Callable[[], Awaitable[None]]) -> None:
        """Repeat `call`, with growing waits, until it succeeds or fails in a way that a repetition cannot mend."""
        attempt = 1
        while True:
            try:
                async with self._slot():
                    await call()
                return
            except WorkElsewhereError as error:
                _logger.info("%s is left to another controller: %s", what, error)
                return
            except _HOPELESS_ERRORS:
                _logger.exception("%s cannot go on; it is tried again when the next change is asked for", what)
                return
            except PenstockError as error:
                level = logging.WARNING if attempt < self._settings.attempts_max else logging.ERROR
                _logger.log(level, "%s failed (attempt %d): %s", what, attempt, error)
            await asyncio.sleep(delay_s(self._settings, attempt))
            attempt += 1


class StreamQueue(Generic[Item]):
    """What is to be done for each stream, in the order of posting: one task per stream that has something to do.

    `work(scope, stream, items)` is given up to `commit_batch_max` items at a time, and again until it succeeds.
    """

    def __init__(
        self,
        what: str,
        background: BackgroundWork,
        settings: ControllerSettings,
        work: Callable[[str, str, list[Item]], Awaitable[None]],
    ) -> None:
        self._what = what
        self._background = background
        self._items_max = settings.commit_batch_max
        self._work = work
        self._posted: dict[tuple[str, str], dict[Item, None]] = {}
        self._tasks: dict[tuple[str, str], asyncio.Task[None]] = {}

    def post(self, scope: str, stream: str, item: Item) -> None:
        """See to it that `item` is worked off."""
        key = (scope, stream)
        posted = self._posted.setdefault(key, {})
        posted[item] = None
        if key not in self._tasks:
            self._tasks[key] = self._background.tasks.start(f"{self._what} on {scope}/{stream}", self._serve(key))

    async def empty(self, scope: str, stream: str) -> None:
        """Wait until nothing is to be done for a stream."""
        while (task := self._tasks.get((scope, stream))) is not None:
            await asyncio.wait([task])

    async def _serve(self, key: tuple[str, str]) -> None:
        scope, stream = key
        posted = self._posted[key]
        try:
            while posted:
                # Forgotten only when all of it is done: a repetition would find no other trace of them.
                items = list(islice(posted, self._items_max))
                await self._background.until_done(
                    f"{self._what} on {scope}/{stream}", partial(self._work, scope, stream, items)
                )
                for item in items:
                    del posted[item]
        finally:
            del self._posted[key], self._tasks[key]


async def all_ended(requests: list[Coroutine[object, object, T]]) -> list[T]:
    """Run all to their ends, at the same time; return their answers in order.

    Nothing is cancelled when one fails. Then an error that a repetition may mend is raised rather than one that stays.
    """
    results = await asyncio.gather(*requests, return_exceptions=True)
    errors = [result for result in results if isinstance(result, BaseException)]
    for error in errors:
        if not isinstance(error, _HOPELESS_ERRORS):
            raise error
    for error in errors:
        raise error
    return [result for result in results if not isinstance(result, BaseException)]
