"""`LifeCycle`: the life cycle of the client and of everything it opens.

NEW -> OPEN -> CLOSING -> CLOSED, never back. An owner closes everything that it opened when it closes. Closing runs in
a separate task: a cancelled caller stops waiting for it, and does not interrupt it. For the whole life cycle see
`docs/client-life.md`.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import warnings
from collections.abc import Iterator
from enum import Enum
from types import TracebackType

from penstock.client.common.deadline import context_without_deadline, within
from penstock.client.common.pickling import NotPicklable
from penstock.model.errors import ClosedError, ForkedError, OutcomeUnknownError, PenstockError
from penstock.runtime.program import WatchProgram

_log = logging.getLogger(__name__)

#: The share of the closing time that the children get.
_CHILDREN_TIME_PART = 0.9


class Life(Enum):
    """The phase of a `LifeCycle`."""

    NEW = "not open yet"
    OPEN = "open"
    CLOSING = "being closed"
    CLOSED = "closed"


class LifeCycle(NotPicklable):
    """Base of clients, writers, transactions, reader groups and readers. Belongs to one event loop.

    A subclass calls `open_life` once it is ready, `_check_open` before it accepts new work, and implements its end by
    these methods, called in this order:

    - `_finish`: complete accepted work: flush, store positions. Its own children are closed by then.
    - `_release`: stop tasks, return connections. Does not wait for remote peers. Called also after an error, when the
      time limit has expired, and when no work has to be finished (`abandon`).
    - `_settle`: a plain function, always called last, also in a loop that is being shut down: fail all pending waiters.

    Args:
        what: a description for messages, as "writer of retail/orders".
        close_timeout_s: the default time limit of `close`.
    """

    def __init__(self, what: str, *, close_timeout_s: float) -> None:
        self._what = what
        self._close_timeout_s = close_timeout_s
        self._life = Life.NEW
        #: Not OPEN. A separate field, because writers check it once per event.
        self._is_refusing = True
        self._is_forked = False
        self._owner: LifeCycle | None = None
        #: True in a real program, where losses must be logged; False in a simulation.
        self._is_in_program = False
        # A dict for its order: children are closed in the order they were opened.
        self._children: dict[LifeCycle, None] = {}
        self._ending: asyncio.Task[None] | None = None
        self._limit: asyncio.Timeout | None = None
        self._is_abandoned = False
        self._waiter_count = 0

    # -- for users ----------------------------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        """True from opening to the first call of `close`."""
        return self._life is Life.OPEN

    @property
    def is_closed(self) -> bool:
        """True once closing is complete."""
        return self._life is Life.CLOSED

    async def close(self, timeout_s: float | None = None) -> None:
        """Refuse new work, finish accepted work, then stop; all within `timeout_s` (None: `close_timeout_s`).

        Objects opened from here are closed first. Calling again is allowed: during the closing it waits for the same
        end, afterwards it does nothing. A cancelled caller stops waiting; the closing continues, within its limit.

        Raises:
            OutcomeUnknownError: the time limit expired; the message lists what may not be done.
            PenstockError: some work could not be finished. The object is closed nevertheless.
        """
        await self._end(self._close_timeout_s if timeout_s is None else timeout_s)

    async def abandon(self) -> None:
        """Stop without finishing anything, as a crash would; pending calls fail with `OutcomeUnknownError`.

        A concurrent `close` ends at once.
        """
        await self._end(None)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close. After an exception, errors of closing are only added to it as notes.

        A cancelled or interrupted block is left at once: the closing continues in the background.
        """
        if error is None:
            await self.close()
        elif not isinstance(error, Exception):
            self._start_end(self._close_timeout_s)
        else:
            try:
                await self.close()
            except PenstockError as other:
                error.add_note(f"then the {self._what} could not be closed: {other}")

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {'; '.join([f'{self._what}, {self._life.value}', *self._losses()])}>"

    def note_exception(self) -> None:
        """Record, before closing, that this ends because of an exception; applies to all owned objects, too.

        `close` does so by itself when an exception is being handled where it is called.
        """
        for child in list(self._children):
            child.note_exception()

    # -- for subclasses -----------------------------------------------------------------------------------------

    def open_life(self, owner: LifeCycle | None = None, watch_program: WatchProgram | None = None) -> None:
        """Become OPEN. With an `owner`, be closed with it; without one, have the program's fork and exit watched."""
        if self._life is not Life.NEW:
            raise self._closed_error()
        if owner is not None:
            owner._check_open()
            owner._children[self] = None
            self._owner = owner
            self._is_in_program = owner._is_in_program
        elif watch_program is not None:
            watch_program(self)
            self._is_in_program = True
        self._life = Life.OPEN
        self._is_refusing = False

    def _check_open(self) -> None:
        """Raise `ClosedError` or `ForkedError` unless this is OPEN."""
        if self._life is not Life.OPEN:
            raise self._closed_error()

    def _closed_error(self) -> ClosedError:
        if self._is_forked:
            return ForkedError(
                f"the {self._what} was opened before this process was forked, and belongs to the parent: start "
                "processes by 'spawn', or connect only in the child"
            )
        advice = ": use it as a context manager" if self._life is Life.NEW else ""
        return ClosedError(f"the {self._what} is {self._life.value}{advice}")

    async def _finish(self) -> None:
        """See the class."""

    async def _release(self) -> None:
        """See the class."""

    def _settle(self) -> None:
        """See the class."""

    def _own_losses(self) -> Iterator[str]:
        """Yield descriptions, with counts, of what would be lost or unknown if this ended now."""
        return iter(())

    def _after_fork(self) -> None:
        """Make refusing safe in a forked child, where other threads do not exist and may have held locks."""

    # -- the end ------------------------------------------------------------------------------------------------

    async def _end(self, timeout_s: float | None) -> None:
        ending = self._start_end(timeout_s)
        if ending is None:
            return
        self._waiter_count += 1
        try:
            await asyncio.shield(ending)
        finally:
            self._waiter_count -= 1

    def _start_end(self, timeout_s: float | None) -> asyncio.Task[None] | None:
        """Begin to close, or to abandon (None), without waiting; return the task, or None if there is nothing to do."""
        if self._life is Life.NEW:
            self._life = Life.CLOSED
        if self._life is Life.CLOSED:
            return None
        if self._ending is None:
            if sys.exception() is not None:
                self.note_exception()
            self._life = Life.CLOSING
            self._is_refusing = True
            # Outside the deadline of any call: it has its own limit, and may outlive the call.
            self._ending = asyncio.get_running_loop().create_task(
                self._run_end(timeout_s), name=f"close {self._what}", context=context_without_deadline()
            )
            self._ending.add_done_callback(self._ended)
        if timeout_s is None:
            self._is_abandoned = True
            if self._limit is not None and not self._limit.expired():
                self._limit.reschedule(asyncio.get_running_loop().time())
        return self._ending

    async def _run_end(self, timeout_s: float | None) -> None:
        try:
            if timeout_s is not None and not self._is_abandoned:
                await self._finish_within(timeout_s)
            else:
                self._say_losses("was abandoned")
        except asyncio.CancelledError:
            self._say_losses("was not closed completely, because its event loop ended")
            raise
        finally:
            try:
                await asyncio.gather(*(child.abandon() for child in list(self._children)), return_exceptions=True)
                await self._release()
            finally:
                self._end_now()

    async def _finish_within(self, timeout_s: float) -> None:
        try:
            with within(f"close the {self._what}", timeout_s, "close_timeout_s"):
                async with asyncio.timeout(timeout_s) as self._limit:
                    errors = await self._finish_all(timeout_s)
        except TimeoutError:
            losses = "; ".join(self._losses()) or "its remaining work may or may not be done"
            why = "abandoned during close" if self._is_abandoned else f"not closed in time ({timeout_s:g} s)"
            raise OutcomeUnknownError(f"the {self._what} was {why}: {losses}") from None
        finally:
            self._limit = None
        if errors:
            for other in errors[1:]:
                errors[0].add_note(f"and: {other}")
            raise errors[0]

    async def _finish_all(self, timeout_s: float) -> list[BaseException]:
        # Only a share, so that a child reports its own unfinished work, and time is left for this object.
        part_s = timeout_s * _CHILDREN_TIME_PART
        closings = (child.close(part_s) for child in list(self._children))
        results = await asyncio.gather(*closings, return_exceptions=True)
        errors = [result for result in results if isinstance(result, BaseException)]
        try:
            await self._finish()
        except PenstockError as error:
            errors.append(error)
        return errors

    def _end_now(self) -> None:
        """Become CLOSED, with everything opened from here, without waiting."""
        for child in list(self._children):
            child._end_now()
        if self._life is not Life.CLOSED:
            self._life = Life.CLOSED
            self._is_refusing = True
            self._settle()
        if self._owner is not None:
            self._owner._children.pop(self, None)

    def _ended(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        # The loop may cancel the task before its first step, so that none of its code runs.
        self._end_now()
        if error is not None and not self._waiter_count:
            _log.error("closing the %s failed, after the caller stopped waiting: %s", self._what, error)

    def _say_losses(self, why: str) -> None:
        if self._is_in_program and (losses := list(self._losses())):
            _log.warning("the %s %s: %s", self._what, why, "; ".join(losses))

    def _losses(self) -> Iterator[str]:
        yield from self._own_losses()
        for child in self._children:
            yield from child._losses()

    # -- the program's fork and end: see `ProgramPart` ----------------------------------------------------------

    def _on_forked(self) -> None:
        """Refuse everything in the child: connections and threads are the parent's."""
        for child in list(self._children):
            child._on_forked()
        self._is_forked = self._is_refusing = True
        self._life = Life.CLOSED
        self._after_fork()

    def _on_exit(self) -> None:
        """Log the work that was unfinished when the program ended. Its event loop has ended."""
        if losses := list(self._losses()):
            _log.error("the program ended with an open %s: %s", self._what, "; ".join(losses))
            self._is_in_program = False

    def __del__(self) -> None:
        # Missing if a subclass failed before it called this class.
        if getattr(self, "_is_in_program", False) and self._life in (Life.OPEN, Life.CLOSING):
            losses = list(self._own_losses())
            if losses:
                _log.error("a %s was dropped without being closed: %s", self._what, "; ".join(losses))
            warnings.warn(f"unclosed {self!r}", ResourceWarning, source=self, stacklevel=1)


def end_now(part: LifeCycle) -> None:
    """Close `part`, with everything opened from it, without waiting. For an owner of which it is no child."""
    part._end_now()


def refuse_after_fork(part: LifeCycle) -> None:
    """Let `part` refuse everything in a forked process. For an owner of which it is no child."""
    part._on_forked()
