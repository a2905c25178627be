"""`ConnectionAccess`: the tokens of one connection; `UnprovenConnections`: those that have shown no accepted token yet.

A peer without an accepted token costs little: its frames are short, it may append nothing, and its connection is
closed after a while, or when too many such connections are open.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from typing import TYPE_CHECKING, Protocol

from penstock.model.errors import ProtocolError
from penstock.segmentstore.writer_tokens import WITHOUT_TOKEN, WriterTokens
from penstock.wire.codec import FRAME_LENGTH_MAX
from penstock.wire.commands import AuthTokenCheckFailed, Hello, KeepAlive, SetupAppend, WireCommand
from penstock.wire.framing import FrameReceiver

if TYPE_CHECKING:
    from penstock.segmentstore.token_access import TokenAccess

_log = logging.getLogger(__name__)

#: Longest frame of a connection without an accepted token. Tokens and names are shorter.
FRAME_LENGTH_UNPROVEN = 64 * 1024
#: How long a connection may be without an accepted token.
UNPROVEN_S = 30.0
#: Part of all connections that may be without one.
_SHARE_DIVISOR = 4


class Abortable(Protocol):
    """A connection."""

    def abort(self, reason: str) -> None:
        """Close it."""


class UnprovenConnections:
    """See the module. At most a quarter of `connections_max`; the oldest one is closed for one more."""

    def __init__(self, connections_max: int) -> None:
        self._count_max = max(connections_max // _SHARE_DIVISOR, 1)
        #: Oldest first, with the loop's time at which each is closed.
        self._deadlines_s: OrderedDict[Abortable, float] = OrderedDict()
        self._timer: asyncio.TimerHandle | None = None
        self._logged_s = float("-inf")
        #: Connections that were closed for further ones.
        self.pushed_out_count: int = 0

    def __len__(self) -> int:
        """Return the number of connections without an accepted token."""
        return len(self._deadlines_s)

    def add(self, connection: Abortable, loop: asyncio.AbstractEventLoop) -> None:
        """Note a new connection."""
        self._deadlines_s[connection] = loop.time() + UNPROVEN_S
        if len(self._deadlines_s) > self._count_max:
            oldest, _ = self._deadlines_s.popitem(last=False)
            self.pushed_out_count += 1
            oldest.abort("too many connections without an accepted token")
            if loop.time() >= self._logged_s + 1.0:
                self._logged_s = loop.time()
                _log.warning("closed a connection, the %dth: %d without an accepted token are open already",
                             self.pushed_out_count, self._count_max)  # fmt: skip
        if self._timer is None:
            self._timer = loop.call_later(UNPROVEN_S, self._close_late, loop)

    def remove(self, connection: Abortable) -> None:
        """Forget a connection: it is lost, or has shown a token."""
        self._deadlines_s.pop(connection, None)
        if not self._deadlines_s and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _close_late(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = None
        while self._deadlines_s:
            connection, deadline_s = next(iter(self._deadlines_s.items()))
            if deadline_s > loop.time():
                self._timer = loop.call_at(deadline_s, self._close_late, loop)
                return
            del self._deadlines_s[connection]
            connection.abort(f"no accepted token within {UNPROVEN_S:g} s")


class ConnectionAccess:
    """Checks the requests of one connection. `receiver` gets the limit of its frames; `peer`: the client's address.

    `user`: the account that the client's certificate represents; empty: it has none.
    """

    def __init__(
        self,
        access: TokenAccess,
        unproven: UnprovenConnections,
        loop: asyncio.AbstractEventLoop,
        connection: Abortable,
        receiver: FrameReceiver,
        peer: str,
        user: str = "",
    ) -> None:
        self._user = user
        self._access = access
        self._unproven = unproven
        self._connection = connection
        self._receiver = receiver
        self._peer = peer
        self._tokens = WriterTokens(loop, connection.abort)
        self._is_proven = False
        receiver.frame_length_max = FRAME_LENGTH_UNPROVEN
        unproven.add(connection, loop)

    def check(self, command: WireCommand) -> AuthTokenCheckFailed | None:
        """Return the refusal of a request; None: it is permitted.

        Raises `ProtocolError` for an append of a connection without an accepted token.
        """
        kind = type(command)
        if not self._is_proven and kind in WITHOUT_TOKEN and kind not in (Hello, KeepAlive):
            raise ProtocolError(f"{kind.__name__} before a request with an accepted token")
        refusal = self._access.check(command, self._peer, self._user)
        if refusal is None and kind not in WITHOUT_TOKEN:
            if not self._is_proven:
                self._is_proven = True
                self._receiver.frame_length_max = FRAME_LENGTH_MAX
                self._unproven.remove(self._connection)
            if isinstance(command, SetupAppend):
                self._tokens.note(command.writer_id, self._access.left_s(command.token))
        return refusal

    def close(self) -> None:
        """Forget the connection: it is lost."""
        self._unproven.remove(self._connection)
        self._tokens.close()
