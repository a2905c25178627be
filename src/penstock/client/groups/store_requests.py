"""`StoreRequests`: callers that wait until one reader's positions are stored."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from penstock.client.common.deadline import within
from penstock.model.errors import OutcomeUnknownError, PenstockError

#: One for each waiting caller.
Requests = Sequence[asyncio.Future[None]]


class StoreRequests:
    """See the module. `what`: the call, for messages; `limit_s`: how long each may take, in seconds."""

    def __init__(self, what: str, limit_s: float) -> None:
        self._what = what
        self._limit_s = limit_s
        self._waiting: list[asyncio.Future[None]] = []

    def add(self) -> asyncio.Future[None]:
        """Return a new request, for `wait`."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(done)
        return done

    async def wait(self, request: asyncio.Future[None]) -> None:
        """Wait for the answer. Raises it if it is an error, and `OutcomeUnknownError` after the time limit."""
        with within(self._what, self._limit_s, "retry_time_max_s") as deadline:
            try:
                async with asyncio.timeout_at(deadline.at_s):
                    await request
            except TimeoutError:
                raise OutcomeUnknownError(
                    f"{self._what}: no answer in the {deadline.limit_s:g} s that {deadline.what} may take "
                    f"({deadline.limit_name}); they may be stored or not"
                ) from None

    def take(self) -> Requests:
        """Return the requests until now, to answer them after the next change of the record."""
        requests, self._waiting = self._waiting, []
        return requests

    def settle(self, error: PenstockError | None) -> None:
        """Answer all requests until now."""
        answer(self.take(), error)


def answer(requests: Requests, error: PenstockError | None) -> None:
    """Answer requests: the positions are stored, or why they are not."""
    for request in requests:
        if request.done():
            continue
        if error is None:
            request.set_result(None)
        else:
            request.set_exception(error)
            # Its awaiter may have been cancelled: retrieve the exception.
            request.exception()
