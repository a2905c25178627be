"""`OnceOpenedLog`: the life of a log object that is opened once, whatever stores its frames.

Logs in buckets and in BookKeeper derive from it. It holds the state, the failure, and what both count alike; a
subclass opens, appends, truncates and closes.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing
from enum import Enum

from penstock.model.errors import InvalidArgumentError, LogClosedError, LogFencedError, PenstockError
from penstock.model.segments import Buffer
from penstock.segmentstore.tier1.durable_log import LogFrame, LogFrameRun
from penstock.segmentstore.tier1.recovered_frames import one_by_one


class LogLife(Enum):
    """States of a log object; none is entered twice."""

    NEW = "not open"
    OPENING = "opening"
    OPEN = "open"
    FAILED = "failed"
    CLOSING = "closing"
    CLOSED = "closed"


class OnceOpenedLog(ABC):
    """See the module. `frame_length_max`: bytes of the longest frame that the log takes."""

    def __init__(self, container_id: int, frame_length_max: int) -> None:
        self.container_id: int = container_id
        self.on_synced: Callable[[], None] = lambda: None
        self._frame_length_max = frame_length_max
        self._state = LogLife.NEW
        self._failure: PenstockError | None = None
        self._record_lock = asyncio.Lock()
        self._outstanding_bytes = 0
        self._confirmed_s = float("-inf")
        self._may_predecessor_answer = False
        self._last_address = 0
        self._truncation = 0
        self._truncated_s = float("-inf")
        self._closing: asyncio.Task[None] | None = None
        self._opening: asyncio.Task[None] | None = None

    # -- properties ---------------------------------------------------------------------------------------------

    @property
    def frame_length_max(self) -> int:
        """See `DurableLog.frame_length_max`."""
        return self._frame_length_max

    @property
    def is_truncated(self) -> bool:
        """See `DurableLog.is_truncated`."""
        return self._truncation > 0

    @property
    def ownership_confirmed_s(self) -> float:
        """See `DurableLog.ownership_confirmed_s`."""
        return self._confirmed_s

    @property
    def may_predecessor_answer(self) -> bool:
        """See `DurableLog.may_predecessor_answer`."""
        return self._may_predecessor_answer

    @property
    def outstanding_bytes(self) -> int:
        """Payload bytes appended but not acknowledged yet."""
        return self._outstanding_bytes

    # -- of a subclass ------------------------------------------------------------------------------------------

    @abstractmethod
    def frame_runs(self) -> AsyncGenerator[LogFrameRun, None]:
        """See `DurableLog.frame_runs`."""

    @abstractmethod
    async def _close(self, *, is_open: bool) -> None:
        """End the log. `is_open`: it was open when `close` was called first."""

    @abstractmethod
    def _describe(self) -> str:
        """Return the container and the place, for messages."""

    # -- calls that need no storage -------------------------------------------------------------------------------

    async def frames(self) -> AsyncIterator[LogFrame]:
        """See `DurableLog.frames`."""
        async with aclosing(one_by_one(self.frame_runs())) as found:
            async for frame in found:
                yield frame

    async def close(self) -> None:
        """See `DurableLog.close`."""
        if self._state in (LogLife.NEW, LogLife.CLOSED):
            self._state = LogLife.CLOSED
            return
        if self._closing is None:
            is_open = self._state is LogLife.OPEN
            if self._state in (LogLife.OPENING, LogLife.OPEN):
                self._state = LogLife.CLOSING
            self._closing = asyncio.get_running_loop().create_task(self._close(is_open=is_open))
        await asyncio.shield(self._closing)

    def _begin_opening(self) -> None:
        if self._state is not LogLife.NEW:
            raise LogClosedError(f"{self._describe()} is {self._state.value}: a log object opens only once")
        self._state = LogLife.OPENING

    def _check_opening(self) -> None:
        if self._state is not LogLife.OPENING:
            raise LogClosedError(f"{self._describe()} is {self._state.value}: it is not opened any more")

    def _check_open(self) -> None:
        if self._state is not LogLife.OPEN:
            because = f" ({self._failure})" if self._failure is not None else ""
            raise LogClosedError(f"{self._describe()} is {self._state.value}{because}") from self._failure

    def _check_usable(self) -> None:
        """Check that the log is open; if another incarnation owns it, raise the error that says so."""
        if isinstance(self._failure, LogFencedError) and self._state is LogLife.FAILED:
            raise self._failure
        self._check_open()

    def _check_owner(self, *, has_record: bool) -> None:
        """Check that the log can be disabled: it was opened, so that its record is known, and is not being closed."""
        if not has_record or self._state in (LogLife.CLOSING, LogLife.CLOSED):
            raise LogClosedError(f"{self._describe()} is {self._state.value}: only its owner can disable it")

    def _check_frame(self, buffers: Sequence[Buffer], length: int) -> None:
        if length > self._frame_length_max:
            raise InvalidArgumentError(
                f"a frame of {length} bytes is longer than {self._frame_length_max}, the most that the log takes"
            )
        if sum(map(len, buffers)) != length:
            raise InvalidArgumentError(f"the buffers hold {sum(map(len, buffers))} bytes, not {length}")
