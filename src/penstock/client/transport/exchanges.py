"""`Exchanges`: requests to segment stores, each retried until a reply or the time limit of its call."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random

from penstock.client.common.deadline import current_deadline, within
from penstock.client.common.retry import Backoff
from penstock.client.common.waits import NO_ANSWER, UNREACHABLE, Wait
from penstock.client.settings import ClientSettings
from penstock.client.transport.connection_pool import ConnectionPool, Purpose
from penstock.client.transport.replies import error_of, unexpected
from penstock.model.errors import (
    ConnectionLostError,
    ControllerUnavailableError,
    OutcomeUnknownError,
    PenstockError,
    SegmentStoreBusyError,
    StorageFullError,
)
from penstock.wire.commands import AuthTokenCheckFailed, WireCommand, WrongHost
from penstock.wire.connection import WireConnection

#: Sends a request over a connection and returns its reply.
Exchange = Callable[[WireConnection], Awaitable[WireCommand]]


class Exchanges:
    """See the module. Use within one event loop.

    Args:
        waits_for_space: whether requests rejected because of a full disk or a limit are retried; otherwise
            `StorageFullError` or `SegmentStoreBusyError` is raised immediately, for a caller with retries of its own.
    """

    def __init__(self, pool: ConnectionPool, settings: ClientSettings, rng: Random, *, waits_for_space: bool) -> None:
        self._pool = pool
        self._settings = settings
        self._rng = rng
        self._waits_for_space = waits_for_space

    async def run(
        self,
        segment: str,
        exchange: Exchange,
        purpose: Purpose,
        *,
        is_repeatable: bool,
        is_long_poll: bool = False,
    ) -> WireCommand:
        """Return the reply to a request about `segment` (full name); it is never `WrongHost`.

        Args:
            is_repeatable: whether the request may be sent again after its reply was lost.
            is_long_poll: the reply may take any time. Without a deadline of the caller, only failures count then.

        Raises the last error when the time limit expires; `OutcomeUnknownError` for a lost reply that must not be
        repeated.
        """
        if is_long_poll:
            return await self._run(segment, exchange, purpose, is_repeatable=is_repeatable, is_long_poll=True)
        with within(f"a request about segment {segment}", self._settings.retry_time_max_s, "retry_time_max_s"):
            return await self._run(segment, exchange, purpose, is_repeatable=is_repeatable, is_long_poll=False)

    async def _run(
        self, segment: str, exchange: Exchange, purpose: Purpose, *, is_repeatable: bool, is_long_poll: bool
    ) -> WireCommand:
        waits = self._pool.waits
        if waits is None:
            return await self._repeat(segment, exchange, purpose, None, is_repeatable=is_repeatable)
        if is_long_poll:
            # At the tail of a segment, a long wait for data is normal. The controller's calls report an outage.
            return await self._repeat(segment, exchange, purpose, None, is_repeatable=is_repeatable)
        deadline = current_deadline()
        assert deadline is not None, "`run` has set one"
        with waits.during(deadline.what, deadline.at_s) as wait:
            return await self._repeat(segment, exchange, purpose, wait, is_repeatable=is_repeatable)

    async def _repeat(
        self, segment: str, exchange: Exchange, purpose: Purpose, wait: Wait | None, *, is_repeatable: bool
    ) -> WireCommand:
        backoff = Backoff(self._settings, self._rng)

        async def pause(error: PenstockError) -> None:
            if wait is not None:
                wait.note(error)
            await backoff.pause(error)

        has_new_token = False
        while True:
            try:
                with backoff.attempt(f"a request about segment {segment}"):
                    connection = await self._pool.connection(segment, purpose)
            except (ConnectionLostError, ControllerUnavailableError) as error:
                await pause(error)
                continue
            if wait is not None and wait.why == UNREACHABLE:
                wait.why, wait.detail = NO_ANSWER, connection.address
            try:
                reply = await in_time(segment, exchange(connection))
            except OutcomeUnknownError as error:
                self._pool.forget(segment)
                if not is_repeatable:
                    raise
                await pause(error)
                continue
            if isinstance(reply, AuthTokenCheckFailed):
                # The next attempt gets a new token. One that is refused, too, is the caller's error.
                self._pool.tokens.forget(segment)
                if not has_new_token:
                    has_new_token = True
                    continue
            if not isinstance(reply, WrongHost):
                return reply
            refusal = error_of(reply, segment) or unexpected(reply, segment)
            if not self._waits_for_space and isinstance(refusal, (StorageFullError, SegmentStoreBusyError)):
                raise refusal
            self._pool.forget(segment)
            await pause(refusal)


async def in_time(segment: str, exchange: Awaitable[WireCommand]) -> WireCommand:
    """Await an exchange until the deadline of the enclosing call, if any. Raises `OutcomeUnknownError`."""
    deadline = current_deadline()
    if deadline is None:
        return await exchange
    try:
        async with asyncio.timeout_at(deadline.at_s):
            return await exchange
    except TimeoutError as error:
        raise OutcomeUnknownError(
            f"{segment}: no reply of the segment store in the {deadline.limit_s:g} s that {deadline.what} may take "
            f"({deadline.limit_name})"
        ) from error
