"""`StateChanges`: the states that a shared state comes to have, one after the other, as they come.

A watch keeps nothing: it waits until the stream has more than this client's copy is made of, takes it in as `fetch`
does, and tells the state that came of it. So it sees states, not steps: whoever is slow is told the newest, never a
queue of old ones. Nothing that lasts is missed. All watches of one shared state wait with one request for more, which
the segment store answers when there is some.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from penstock.client.revisioned_stream import Revision
from penstock.client.tasks import start_watched
from penstock.model.errors import PenstockError, SegmentTruncatedError
from penstock.model.segments import Segments

if TYPE_CHECKING:
    from typing import Self

State = TypeVar("State")
State_co = TypeVar("State_co", covariant=True)


@dataclass(frozen=True, slots=True)
class StateChange(Generic[State_co]):
    """A state that a shared state has come to have, and where in the stream that is."""

    value: State_co
    revision: Revision


class Growth:
    """Waits until a segment has more than a number of bytes: one request at a time, however many wait.

    Attributes:
        is_over: the segment is sealed, and there will never be more.
    """

    def __init__(self, segments: Segments, segment: str) -> None:
        self.is_over: bool = False
        self._segments = segments
        self._segment = segment
        #: The greatest that was asked about: so much there is.
        self._length = 0
        self._waiting: asyncio.Task[None] | None = None
        self._error: PenstockError | None = None

    async def wait(self, length: int) -> None:
        """Return when there may be more than `length` bytes, of which somebody knows, or once this is closed.

        May be cancelled: the request stays, and the next call waits for it. Raises what the request failed with after
        `retry_time_max_s` without an answer; the next call begins anew.
        """
        if length < self._length:
            return  # Another watch is ahead.
        self._length = length
        if self._waiting is None or self._waiting.done():
            self._error = None
            self._waiting = start_watched(self._wait(length), f"wait for more of {self._segment}", self._failed)
        await asyncio.wait((self._waiting,))
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        """Let all who wait go on."""
        if self._waiting is not None:
            self._waiting.cancel()

    async def _wait(self, length: int) -> None:
        try:
            # One byte is enough to know. Servers wait at the end until there is one.
            data = await self._segments.read(self._segment, length, 1, wait=True)
        except SegmentTruncatedError:
            return  # There is more, and what was behind `length` is gone already.
        except PenstockError as error:
            self._failed(error)
            return
        self.is_over = data.is_end_of_segment and not data.data

    def _failed(self, error: PenstockError) -> None:
        self._error = error


class StateChanges(Generic[State]):
    """Iterates over the states of a shared state. After an error it may be asked again, and goes on.

    Args:
        look: takes in what is there, and returns the newest state.
        growth: of the stream's segment.
        check: raises once the shared state is closed.
        is_from_now: begin with the first state that comes after the first call; else with the one that is there.
    """

    def __init__(
        self,
        look: Callable[[], Awaitable[StateChange[State]]],
        growth: Growth,
        check: Callable[[], object],
        *,
        is_from_now: bool,
    ) -> None:
        self._look = look
        self._growth = growth
        self._check = check
        self._is_from_now = is_from_now
        #: The revision told last.
        self._told: Revision | None = None
        #: Where the segment ended when it was looked at last, and nothing new was found; None: look.
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
            change = await self._look()
            told, self._told = self._told, change.revision
            if told is None and self._is_from_now:
                told = change.revision
            if told != change.revision:
                return change
            if is_over:
                raise StopAsyncIteration
            self._seen_bytes = change.revision.offset
