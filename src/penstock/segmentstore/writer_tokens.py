"""`WriterTokens`: when the tokens of one connection's writers expire; and the commands that need no token."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from penstock.wire import commands as wire

#: Commands without a token of their own.
WITHOUT_TOKEN = frozenset({
    wire.Hello, wire.KeepAlive,
    wire.AppendBlock, wire.AppendBlockEnd, wire.ConditionalAppend, wire.ConditionalBlockEnd,
})  # fmt: skip
#: Writers of one connection whose tokens are remembered.
_TOKENS_MAX = 65_536


class WriterTokens:
    """Closes a connection when the token of a writer expires, unless the writer was set up again with a later one.

    The client then connects again, and sets the writer up with a new token. `abort` closes the connection.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, abort: Callable[[str], None]) -> None:
        self._loop = loop
        self._abort = abort
        #: When the token of each writer expires, on the loop's clock; and the timer for the earliest.
        self._deadlines_s: dict[bytes, float] = {}
        self._timer: asyncio.TimerHandle | None = None

    def note(self, writer_id: bytes, left_s: float | None) -> None:
        """Note that a writer is set up with a token that is valid for `left_s`; None: without limit."""
        deadline_s = float("inf") if left_s is None else self._loop.time() + left_s
        self._deadlines_s[writer_id] = deadline_s
        if len(self._deadlines_s) > _TOKENS_MAX:
            self._abort(f"more than {_TOKENS_MAX} writers on one connection")
            return
        if self._timer is not None and deadline_s < self._timer.when():
            # A token may have been made before that of another writer.
            self._timer.cancel()
            self._timer = None
        if deadline_s < float("inf") and self._timer is None:
            self._timer = self._loop.call_at(deadline_s, self._may_be_over)

    def _may_be_over(self) -> None:
        self._timer = None
        earliest_s = min(self._deadlines_s.values())
        if earliest_s <= self._loop.time():
            self._abort("the delegation token of a writer has expired")
        elif earliest_s < float("inf"):
            self._timer = self._loop.call_at(earliest_s, self._may_be_over)

    def close(self) -> None:
        """Watch no longer: the connection is lost."""
        if self._timer is not None:
            self._timer.cancel()
