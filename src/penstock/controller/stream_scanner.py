"""`StreamScanner`: periodically inspects the listed streams that are assigned to this controller.

A stream whose segments or tables are offline must not delay the rest. An inspection holds one of `streams_at_once`
places for at most `place_s`; a longer one continues without a place, up to `slow_streams_max` at a time. A stream whose
last inspection failed is inspected in a separate lane, by `failing_at_once` workers, and no cycle waits for them. An
error of an inspection is logged when it first fails and when it succeeds again.

Two controllers may inspect one stream at once, see `Buckets`: each step of an inspection is conditional.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from penstock.controller.metadata.catalog import Catalog
from penstock.controller.metadata.listed_streams import ListedStream, ListedStreams
from penstock.controller.metadata.stream_tables import StreamTables
from penstock.controller.ownership.buckets import Buckets
from penstock.controller.steps import pages
from penstock.model.errors import NoSuchStreamError, OutcomeUnknownError, PenstockError
from penstock.runtime.bulk import for_each

S = TypeVar("S")
_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CyclePace:
    """How often streams are inspected, and how many at once.

    Attributes:
        interval_s: pause between two cycles.
        streams_at_once: streams inspected concurrently.
        stream_timeout_s: time limit for one inspection.
        timeout_name: name of the setting that holds `stream_timeout_s`, for messages.
        place_s: longest time that an inspection holds one of the `streams_at_once` places.
        slow_streams_max: inspections that may continue without a place.
        failing_at_once: streams whose last inspection failed that are inspected concurrently.
    """

    interval_s: float
    streams_at_once: int
    stream_timeout_s: float
    timeout_name: str
    place_s: float = 1.0
    slow_streams_max: int = 64
    failing_at_once: int = 4


@dataclass(slots=True)
class _Known(Generic[S]):
    """State kept for a stream while it is listed and assigned to this controller.

    Attributes:
        seen: the state of the inspections themselves.
        problem: the error of the last inspection.
        is_busy: whether it is being inspected, or waits for that in the lane of failing streams.
    """

    seen: S
    problem: str = ""
    is_busy: bool = False


class StreamScanner(Generic[S]):
    """See the module. `run` it as a task; it continues whatever error a stream or a store causes.

    `what` names the purpose of an inspection ("watermarks"); `visit` gets a stream's tables, its entry in the list, and
    the state kept for it, which `new_seen` creates. A stream that no longer exists is removed from the list. `due`
    selects the streams to inspect in this cycle from those whose last inspection succeeded; by default all.
    """

    def __init__(
        self,
        what: str,
        catalog: Catalog,
        streams: ListedStreams,
        buckets: Buckets,
        pace: CyclePace,
        new_seen: Callable[[], S],
        visit: Callable[[StreamTables, ListedStream, S], Awaitable[None]],
        due: Callable[[Sequence[tuple[ListedStream, S]]], Awaitable[Sequence[ListedStream]]] | None = None,
    ) -> None:
        self._what = what
        self._catalog = catalog
        self._streams = streams
        self._buckets = buckets
        self._pace = pace
        self._new_seen = new_seen
        self._visit = visit
        self._due = due
        self._known: dict[tuple[str, str], _Known[S]] = {}
        self._slow_count = 0
        #: Streams whose last inspection failed, in the order in which they are inspected again.
        self._failing: deque[ListedStream] = deque()
        self._failing_workers = 0
        #: When the next cycle begins, by the loop's clock; in the past while a cycle is running.
        self.next_s: float = 0.0

    def seen(self, scope: str, stream: str) -> S | None:
        """Return the state kept for a stream; None if there is none yet."""
        known = self._known.get((scope, stream))
        return None if known is None else known.seen

    async def run(self) -> None:
        """Inspect streams until cancelled."""
        is_failing = False
        async with asyncio.TaskGroup() as tasks:
            while True:
                self.next_s = asyncio.get_running_loop().time() + self._pace.interval_s
                await asyncio.sleep(self._pace.interval_s)
                try:
                    await self._cycle(tasks)
                except PenstockError as error:
                    # Logged only at the first failure and at the recovery: a store may be away for days.
                    if not is_failing:
                        _logger.warning("streams are not scanned for %s, retrying: %s", self._what, error)
                    is_failing = True
                else:
                    if is_failing:
                        _logger.info("streams are scanned again for %s", self._what)
                    is_failing = False

    async def once(self) -> None:
        """Inspect each stream once, and wait for all of them.

        Raises errors of reading the list of streams, not those of a stream.
        """
        problem: PenstockError | None = None
        async with asyncio.TaskGroup() as tasks:
            try:
                await self._cycle(tasks)
            except PenstockError as error:
                problem = error
        if problem is not None:
            raise problem

    async def _cycle(self, tasks: asyncio.TaskGroup) -> None:
        """Begin to inspect each stream that is due. Does not wait for slow or failing streams."""
        listed = [each async for each in self._streams.all() if self._buckets.owned(each.scope, each.stream)]
        known: dict[tuple[str, str], _Known[S]] = {}
        healthy: list[tuple[ListedStream, S]] = []
        for page in pages(listed):  # There may be very many: let other tasks run between pages.
            for each in page:
                key = (each.scope, each.stream)
                found = known[key] = self._known.get(key) or _Known(self._new_seen())
                if found.is_busy:
                    continue
                if found.problem:
                    found.is_busy = True
                    self._failing.append(each)
                else:
                    healthy.append((each, found.seen))
            await asyncio.sleep(0)
        self._known = known
        while self._failing_workers < min(len(self._failing), self._pace.failing_at_once):
            self._failing_workers += 1
            tasks.create_task(self._inspect_failing())
        due = [each for each, _ in healthy] if self._due is None else list(await self._due(healthy))
        await for_each(due, lambda each: self._inspect_in_place(tasks, each), self._pace.streams_at_once)

    async def _inspect_failing(self) -> None:
        try:
            while self._failing:
                await self._inspect(self._failing.popleft())
        finally:
            self._failing_workers -= 1

    async def _inspect_in_place(self, tasks: asyncio.TaskGroup, listed: ListedStream) -> None:
        """Inspect a stream; return when it is done, or when it has used up its time in its place."""
        known = self._known.get((listed.scope, listed.stream))
        if known is not None:
            known.is_busy = True
        task = tasks.create_task(self._inspect(listed))
        done, _ = await asyncio.wait([task], timeout=self._pace.place_s)
        if done:
            return
        if self._slow_count >= self._pace.slow_streams_max:
            task.cancel()
            self._note_problem(
                listed,
                f"it took longer than {self._pace.place_s:g} s while {self._slow_count} other streams did; it is "
                "retried among the failed streams",
            )
            return
        self._slow_count += 1
        task.add_done_callback(self._slow_ended)

    def _slow_ended(self, task: asyncio.Task[None]) -> None:
        self._slow_count -= 1

    async def _inspect(self, listed: ListedStream) -> None:
        """Inspect a stream, and record whether that fails."""
        try:
            await self._inspect_stream(listed)
        except PenstockError as error:
            self._note_problem(listed, str(error))
        else:
            self._note_problem(listed, "")
        finally:
            known = self._known.get((listed.scope, listed.stream))
            if known is not None:
                known.is_busy = False

    def _note_problem(self, listed: ListedStream, problem: str) -> None:
        """Log a stream's problem when it begins and when it ends."""
        known = self._known.get((listed.scope, listed.stream))
        if known is None:
            return  # The stream has left the list, or was assigned to another controller, meanwhile.
        name = f"{listed.scope}/{listed.stream}"
        if problem and not known.problem:
            _logger.warning("%s of stream %s fails, retrying: %s", self._what, name, problem)
        elif known.problem and not problem:
            _logger.info("%s of stream %s works again", self._what, name)
        known.problem = problem

    async def _inspect_stream(self, listed: ListedStream) -> None:
        known = self._known.get((listed.scope, listed.stream))
        if known is None:
            return
        seen = known.seen

        async def visit(tables: StreamTables) -> None:
            await self._visit(tables, listed, seen)

        try:
            async with asyncio.timeout(self._pace.stream_timeout_s):
                await self._catalog.on_stream(listed.scope, listed.stream, visit)
        except TimeoutError as error:
            raise OutcomeUnknownError(
                f"the inspection of stream {listed.scope}/{listed.stream} has not ended within "
                f"{self._pace.stream_timeout_s:g} s ({self._pace.timeout_name})"
            ) from error
        except NoSuchStreamError:
            await self._streams.remove(listed)
