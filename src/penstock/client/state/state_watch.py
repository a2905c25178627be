"""`StateChanges`: the successive states of a shared state.

A watch stores no states: it waits until the stream is longer than this client's copy accounts for, fetches as `fetch`
does, and returns the resulting state. So it sees states, not steps: a slow consumer gets the newest state, never a
queue of old ones. The final state is never missed. All watches of one shared state wait with a single request, to which
the segment store replies when there is more data.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from penstock.client.common.tasks import start_watched
from penstock.client.state.revisioned_stream import Revision
from penstock.model.errors import PenstockError, SegmentTruncatedError
from penstock.model.segments import Segments

if TYPE_CHECKING:
    from typing import Self

State = TypeVar("State")
State_co = TypeVar("State_co", covariant=True)


@dataclass(frozen=True, slots=True)
class StateChange(Generic[State_co]):
    """A new state of a shared state, with its place in the stream."""

    value: State_co
    revision: Revision


class Growth:
    """Waits until a segment has more than a number of bytes: one request at a time for any number of waiters.

    Attributes:
        is_over: the segment is sealed, and takes no more data.
    """

    def __init__(self, segments: Segments, segment: str) -> None:
        self.is_over: bool = False
        self._segments = segments
        self._segment = segment
        #: The greatest length requested: at least this many bytes exist.
        self._length = 0
        self._waiting: asyncio.Task[None] | None = None
        self._error: PenstockError | None = None

    async def wait(self, length: int) -> None:
        """Return when there may be more than `length` bytes, which must be known to exist, or once this is closed.

        May be cancelled: the request continues, and the next call waits for it. Raises the request's error after
        `retry_time_max_s` without a reply; the next call starts again.
        """
        if length < self._length:
            return  # Another watch has fetched more already.
        self._length = length
        if self._waiting is None or self._waiting.done():
            self._error = None
            self._waiting = start_watched(self._wait(length), f"wait for more of {self._segment}", self._failed)
        await asyncio.wait((self._waiting,))
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        """Wake all waiters."""
        if self._waiting is not None:
            self._waiting.cancel()

    async def _wait(self, length: int) -> None:
        try:
            # Reading one byte is enough. Servers hold a read at the end until there is data.
            data = await self._segments.read(self._segment, length, 1, wait=True)
        except SegmentTruncatedError:
            return  # There is more data, and the bytes after `length` were truncated already.
        except PenstockError as error:
            self._failed(error)
            return
        self.is_over = data.is_end_of_segment and not data.data

    def _failed(self, error: PenstockError) -> None:
        self._error = error


class StateChanges(Generic[State]):
    """Iterates over the states of a shared state. After an error, iteration can be continued.

    Args:
        poll: fetches new entries, and returns the newest state.
        growth: of the stream's segment.
        check: raises once the shared state is closed.
        is_from_now: begin with the first state after the first call; otherwise with the current one.
    """

    def __init__(
        self,
        poll: Callable[[], Awaitable[StateChange[State]]],
        growth: Growth,
        check: Callable[[], object],
        *,
        is_from_now: bool,
    ) -> None:
        self._poll = poll
        self._growth = growth
        self._check = check
        self._is_from_now = is_from_now
        #: The revision returned last.
        self._told: Revision | None = None
        #: The segment's end at the last fetch that found nothing new; None: fetch.
        self._seen_bytes: int | None = None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> StateChange[State]:
        while True:
            self._check()
            if self._seen_bytes is not None:
                await self._growth.wait(self._seen_bytes)
                self._check()
                self._seen_bytes = None
            is_over = self._growth.is_over
            change = await self._poll()
            told, self._told = self._told, change.revision
            if told is None and self._is_from_now:
                told = change.revision
            if told != change.revision:
                return change
            if is_over:
                raise StopAsyncIteration
            self._seen_bytes = change.revision.offset
