"""`StoreStates`: why segment stores hold the writes of this client, as far as the stores report it.

A store replies neither to an append that it holds nor to the set-up of a writer whose appends it would hold: no reply
of Pravega's protocol fits (``docs/full-disk.md``). So a client that has waited for some seconds sends `GetStatistics`
over a separate connection. All writers of a client share the replies. Pravega's store closes that connection: then
nothing is known about it, and the next request follows only after a while.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from penstock.client.common.deadline import context_without_deadline
from penstock.client.settings import ClientSettings
from penstock.client.transport.replies import expect
from penstock.model.errors import PenstockError
from penstock.wire.commands import GetStatistics, StatisticsTold
from penstock.wire.connection import WireConnection
from penstock.wire.statistics import StatisticsQuery, StoreReport, decode_report, encode_message

#: Age of a reply after which the store is queried again; the second one after a failed request.
_REFRESH_S = 2.0
_REFRESH_AFTER_FAILURE_S = 10.0
#: A reply older than this is not used.
_AGE_S_MAX = 10.0


@dataclass(frozen=True, slots=True)
class StoreState:
    """A store's report. `full`: why writes are held for lack of space, or None; `problem`: of its storage."""

    reported_s: float
    full: str | None
    problem: str | None


class StoreStates:
    """See the module. Bounded: one request per store at a time, one reply per store.

    Args:
        connect: opens the connection for these requests to the store that serves a segment, given its full name.
        token: returns the access token of these requests, empty by default.
    """

    def __init__(
        self,
        connect: Callable[[str], Awaitable[WireConnection]],
        settings: ClientSettings,
        token: Callable[[], str] = str,
    ) -> None:
        self._token = token
        self._connect = connect
        self._settings = settings
        self._states: dict[tuple[str, int], StoreState] = {}
        self._next_s: dict[tuple[str, int], float] = {}
        self._requests: dict[tuple[str, int], asyncio.Task[None]] = {}

    def state(self, endpoint: tuple[str, int], segment: str) -> StoreState | None:
        """Return the recent report of the store at `endpoint`, or None; start a request if that is due.

        `segment`: a full name that is served there.
        """
        loop = asyncio.get_running_loop()
        now_s = loop.time()
        if endpoint not in self._requests and now_s >= self._next_s.get(endpoint, now_s):
            task = loop.create_task(
                self._refresh(endpoint, segment),
                name=f"state of segment store {endpoint[0]}:{endpoint[1]}",
                context=context_without_deadline(),
            )
            self._requests[endpoint] = task
        found = self._states.get(endpoint)
        return found if found is not None and now_s - found.reported_s <= _AGE_S_MAX else None

    async def close(self) -> None:
        """Cancel the requests in progress."""
        for task in list(self._requests.values()):
            task.cancel()
            await asyncio.wait([task])

    async def _refresh(self, endpoint: tuple[str, int], segment: str) -> None:
        loop = asyncio.get_running_loop()
        refresh_s = _REFRESH_AFTER_FAILURE_S
        try:
            async with asyncio.timeout(self._settings.statistics_timeout_s):
                report = await store_report(await self._connect(segment), str(endpoint), self._token())
            self._states[endpoint] = StoreState(loop.time(), report.full_disk, report.storage_problem)
            refresh_s = _REFRESH_S
        except (PenstockError, TimeoutError):
            # A failed request gives no reason: the wait for the store is reported without one.
            self._states.pop(endpoint, None)
        finally:
            self._next_s[endpoint] = loop.time() + refresh_s
            del self._requests[endpoint]


async def store_report(
    connection: WireConnection, address: str, token: str = "", *, with_containers: bool = False
) -> StoreReport:
    """Return a store's report of itself, without segments. Raises `PenstockError`."""
    request_id = connection.next_request_id()
    query = encode_message(StatisticsQuery(containers=None if with_containers else [], segment_count_max=0))
    reply = await connection.request(request_id, GetStatistics(request_id, token, query))
    return decode_report(expect(reply, StatisticsTold, address).report)
