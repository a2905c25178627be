"""`StreamCycle`: goes over the streams of a list again and again, and looks at those that fall to this controller.

One stream's trouble is not another's: what a look raises is told when it begins and when it ends, and the next cycle
looks again. Two controllers may look at one stream at once, see `Buckets`: each step of a look is conditional.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from penstock.controller.buckets import Buckets
from penstock.controller.metadata.catalog import Catalog
from penstock.controller.metadata.listed_streams import ListedStream, ListedStreams
from penstock.controller.metadata.stream_tables import StreamTables
from penstock.controller.steps import pages
from penstock.model.errors import NoSuchStreamError, OutcomeUnknownError, PenstockError
from penstock.runtime.bulk import for_each

S = TypeVar("S")
_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CyclePace:
    """`interval_s`: pause between two cycles. `timeout_name`: the setting that has `stream_timeout_s`, for messages."""

    interval_s: float
    streams_at_once: int
    stream_timeout_s: float
    timeout_name: str


@dataclass(slots=True)
class _Known(Generic[S]):
    """What is remembered of a stream while it is listed and this controller's; `problem` is what its look raised."""

    seen: S
    problem: str = ""


class StreamCycle(Generic[S]):
    """See the module. `run` it as a task; it goes on whatever a stream or a store does.

    `what` names what a look is for ("watermarks"); `look` is given a stream's tables, its entry in the list, and what
    is remembered of it, which `new_seen` makes. A stream that is not there any more is taken off the list. `due` says
    which streams are to be looked at this time; by default all are.
    """

    def __init__(
        self,
        what: str,
        catalog: Catalog,
        streams: ListedStreams,
        buckets: Buckets,
        pace: CyclePace,
        new_seen: Callable[[], S],
        look: Callable[[StreamTables, ListedStream, S], Awaitable[None]],
        due: Callable[[Sequence[tuple[ListedStream, S]]], Awaitable[Sequence[ListedStream]]] | None = None,
    ) -> None:
        self._what = what
        self._catalog = catalog
        self._streams = streams
        self._buckets = buckets
        self._pace = pace
        self._new_seen = new_seen
        self._look = look
        self._due = due
        self._known: dict[tuple[str, str], _Known[S]] = {}
        #: When the next cycle begins, by the loop's clock; in the past while one is under way.
        self.next_s: float = 0.0

    def seen(self, scope: str, stream: str) -> S | None:
        """Return what is remembered of a stream; None: nothing yet."""
        known = self._known.get((scope, stream))
        return None if known is None else known.seen

    async def run(self) -> None:
        """Look for ever."""
        is_failing = False
        while True:
            self.next_s = asyncio.get_running_loop().time() + self._pace.interval_s
            await asyncio.sleep(self._pace.interval_s)
            try:
                await self.once()
            except PenstockError as error:
                # Said when it begins and when it ends: a store may be away for days.
                if not is_failing:
                    _logger.warning("no stream is looked at for its %s, it is tried again: %s", self._what, error)
                is_failing = True
            else:
                if is_failing:
                    _logger.info("streams are looked at again for their %s", self._what)
                is_failing = False

    async def once(self) -> None:
        """Look at each stream once. Raises what the list of streams cannot be read for, and nothing of a stream."""
        listed = [each async for each in self._streams.all() if self._buckets.owned(each.scope, each.stream)]
        known: dict[tuple[str, str], _Known[S]] = {}
        seen: list[tuple[ListedStream, S]] = []
        for page in pages(listed):  # There may be very many: others have their turn.
            for each in page:
                key = (each.scope, each.stream)
                found = known[key] = self._known.get(key) or _Known(self._new_seen())
                seen.append((each, found.seen))
            await asyncio.sleep(0)
        self._known = known
        if self._due is not None:
            listed = list(await self._due(seen))
        results = await for_each(listed, self._look_at, self._pace.streams_at_once)
        for each, result in zip(listed, results, strict=True):
            self._note_problem(each, str(result) if isinstance(result, PenstockError) else "")

    def _note_problem(self, listed: ListedStream, problem: str) -> None:
        """Say what is wrong with a stream when it begins and when it ends."""
        known = self._known[listed.scope, listed.stream]
        name = f"{listed.scope}/{listed.stream}"
        if problem and not known.problem:
            _logger.warning("%s of stream %s is not looked after, it is tried again: %s", self._what, name, problem)
        elif known.problem and not problem:
            _logger.info("%s of stream %s is looked after again", self._what, name)
        known.problem = problem

    async def _look_at(self, listed: ListedStream) -> None:
        seen = self._known[listed.scope, listed.stream].seen

        async def look(tables: StreamTables) -> None:
            await self._look(tables, listed, seen)

        try:
            async with asyncio.timeout(self._pace.stream_timeout_s):
                await self._catalog.on_stream(listed.scope, listed.stream, look)
        except TimeoutError as error:
            raise OutcomeUnknownError(
                f"the look at stream {listed.scope}/{listed.stream} has not ended within "
                f"{self._pace.stream_timeout_s:g} s ({self._pace.timeout_name})"
            ) from error
        except NoSuchStreamError:
            await self._streams.remove(listed)
