"""`WireRequests`: single requests for segments over the wire protocol, with the token of each segment.

Read-only requests are retried, with bounded back-off, when the connection is lost, until the deadline of the enclosing
call, or for `retry_time_max_s`. Requests that change something are retried only if they cannot have been applied (no
connection, wrong host); a lost reply raises `OutcomeUnknownError`.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from penstock.client.settings import ClientSettings
from penstock.client.transport.connection_pool import ConnectionPool, Purpose
from penstock.client.transport.delegation_tokens import Tokens
from penstock.client.transport.exchanges import Exchanges
from penstock.wire.commands import WireCommand
from penstock.wire.connection import WireConnection

#: Makes the request from a request id.
Make = Callable[[int], WireCommand]


class WireRequests:
    """See the module.

    Use within one event loop.

    Args:
        token: the access token sent with each request; empty: that of the segment's stream, from the pool.
        waits_for_space: whether requests rejected because of a full disk are retried; otherwise `StorageFullError` is
            raised immediately, for a caller with retries of its own.
    """

    def __init__(
        self,
        pool: ConnectionPool,
        settings: ClientSettings,
        rng: Random,
        *,
        token: str = "",
        waits_for_space: bool = True,
    ) -> None:
        self._pool = pool
        self._settings = settings
        self._rng = rng
        self._fixed_token = token
        self._exchanges = Exchanges(pool, settings, rng, waits_for_space=waits_for_space)

    @property
    def controller(self) -> str:
        """URI of the cluster; empty: not known."""
        return self._pool.controller

    @property
    def tokens(self) -> Tokens:
        """The tokens of requests."""
        return self._pool.tokens

    def _token(self, segment: str) -> str:
        return self._fixed_token or self._pool.tokens.of(segment)

    async def _ask(self, segment: str, make: Make) -> WireCommand:
        """Send a request that may be repeated; return its reply, which is never `WrongHost`."""
        return await self._request(segment, make, is_repeatable=True)

    async def _change(self, segment: str, make: Make) -> WireCommand:
        """Send a request that must not be applied twice; return its reply, which is never `WrongHost`."""
        return await self._request(segment, make, is_repeatable=False)

    async def _request(self, segment: str, make: Make, *, is_repeatable: bool) -> WireCommand:
        async def exchange(connection: WireConnection) -> WireCommand:
            request_id = connection.next_request_id()
            return await connection.request(request_id, make(request_id))

        return await self._exchanges.run(segment, exchange, Purpose.REQUEST, is_repeatable=is_repeatable)
