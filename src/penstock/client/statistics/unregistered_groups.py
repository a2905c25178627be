"""`UnregisteredGroups`: reader groups of Pravega's Rust and PyPI clients, which are not registered at the controller.

Their readers share a table segment, ``<scope>/<group>_kvtable/0.#epoch.0``, that the clients create directly at its
segment store. Its name is that of a partition of a key-value table, but the controller has no such table. So segments
of such names in the stores, without a table in the controller, are groups of these clients. (A Rust program may create
such tables for other purposes, with indistinguishable names; PyPI's client cannot.)
"""

from __future__ import annotations

from functools import partial

from penstock.client.common.deadline import within
from penstock.client.common.retry import Backoff
from penstock.client.statistics.statistics_calls import names_of_containers
from penstock.client.transport.cluster import Cluster
from penstock.client.transport.connection_pool import ConnectionPool, Purpose
from penstock.client.transport.delegation_tokens import STATISTICS_SEGMENT
from penstock.client.transport.replies import expect
from penstock.model.errors import OutcomeUnknownError, PenstockError, ProtocolError
from penstock.model.names import KEY_VALUE_TABLE_SUFFIX
from penstock.runtime.bulk import for_each
from penstock.wire.commands import GetStatistics, StatisticsTold
from penstock.wire.statistics import StatisticsQuery, StoreReport, TablesQuery, decode_report, encode_message

#: Of a table's first and only segment.
_END = f"{KEY_VALUE_TABLE_SUFFIX}/0.#epoch.0"


class UnregisteredGroups:
    """See the module. Sends one request to each container, and another for each few hundred segments of the scope."""

    def __init__(self, cluster: Cluster, pool: ConnectionPool) -> None:
        self._cluster = cluster
        self._pool = pool
        self._settings = cluster.settings

    async def names(self, scope: str) -> list[str]:
        """Return the names of the groups of a scope, sorted.

        Raises `NoSuchScopeError`; and the error of a store that does not reply within `retry_time_max_s`: without one
        of them the result would lack groups.
        """
        known = {table async for table in self._cluster.controller.tables(scope)}
        with within(f"list the groups in scope {scope}", self._settings.retry_time_max_s, "retry_time_max_s"):
            (any_store,) = names_of_containers(1)
            count = (await self._ask(any_store, StatisticsQuery(containers=[], segment_count_max=0))).container_count
            homes = list(enumerate(names_of_containers(count)))
            found: set[str] = set()
            for answer in await for_each(homes, partial(self._tables, scope), self._settings.bulk_request_count_max):
                if isinstance(answer, PenstockError):
                    raise answer
                found |= answer
        # Listed before and after: a table has segments only while it is registered at the controller.
        known.update([table async for table in self._cluster.controller.tables(scope)])
        return sorted(found - known)

    async def _tables(self, scope: str, home: tuple[int, str]) -> set[str]:
        container, name = home
        found: set[str] = set()
        after = ""
        while True:
            wanted = TablesQuery(container, f"{scope}/", _END, after)
            report = await self._ask(name, StatisticsQuery(containers=[], segment_count_max=0, tables=wanted))
            if report.tables is None:
                raise ProtocolError("a segment store cannot list tables: it is of an earlier release")
            found.update(each.removeprefix(f"{scope}/").removesuffix(_END) for each in report.tables.names)
            if not (after := report.tables.after):
                return found

    async def _ask(self, name: str, query: StatisticsQuery) -> StoreReport:
        backoff = Backoff(self._settings, self._cluster.rng)
        while True:
            try:
                connection = await self._pool.connection(name, Purpose.STATISTICS)
                request_id = connection.next_request_id()
                token = self._pool.tokens.of(STATISTICS_SEGMENT)
                reply = await connection.request(request_id, GetStatistics(request_id, token, encode_message(query)))
                return decode_report(expect(reply, StatisticsTold, connection.address).report)
            except PenstockError as error:
                self._pool.forget(name)
                if not error.is_retriable and not isinstance(error, OutcomeUnknownError):
                    raise
                await backoff.pause(error)  # The request changes nothing, so it can be repeated.
