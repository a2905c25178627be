"""`WireScaleAdvisor`: requests the advice of segment stores over the wire protocol."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.client.statistics.statistics_calls import names_of_containers
from penstock.client.transport.connection_pool import ConnectionPool, Purpose
from penstock.client.transport.delegation_tokens import STATISTICS_SEGMENT
from penstock.client.transport.replies import expect
from penstock.model.errors import ConnectionLostError, OutcomeUnknownError, PenstockError, ProtocolError
from penstock.model.scale_advice import ScaleAdvice, ScaleDirection
from penstock.wire.commands import GetStatistics, StatisticsTold
from penstock.wire.statistics import AdviceQuery, AdviceRow, StatisticsQuery, decode_report, encode_message


class WireScaleAdvisor:
    """`ScaleAdvisor` over `GetStatistics`. Requests use the separate connection for statistics."""

    def __init__(self, pool: ConnectionPool, container_count: int) -> None:
        self._pool = pool
        self._names = names_of_containers(container_count)

    async def scale_advice(self, container_id: int, segments: Sequence[str] | None = None) -> Sequence[ScaleAdvice]:
        """See `ScaleAdvisor.scale_advice`. The pool's settings limit the wait for a reply."""
        name = self._names[container_id]
        asked = AdviceQuery(container_id, None if segments is None else list(segments))
        query = encode_message(StatisticsQuery(containers=[], segment_count_max=0, advice=asked))
        try:
            try:
                return await self._ask(name, query)
            except ConnectionLostError:
                # The connection was idle since the last request, so its loss is detected only now.
                self._pool.forget(name)
                return await self._ask(name, query)
        except OutcomeUnknownError as error:
            # The request changes nothing, so it can be repeated.
            self._pool.forget(name)
            raise ConnectionLostError(f"container {container_id}: {error}") from error
        except PenstockError:
            self._pool.forget(name)
            raise

    async def _ask(self, name: str, query: bytes) -> Sequence[ScaleAdvice]:
        connection = await self._pool.connection(name, Purpose.STATISTICS)
        request_id = connection.next_request_id()
        token = self._pool.tokens.of(STATISTICS_SEGMENT)
        reply = await connection.request(request_id, GetStatistics(request_id, token, query))
        report = decode_report(expect(reply, StatisticsTold, connection.address).report)
        if report.advice is None:
            raise ProtocolError(f"{connection.address} does not support scaling advice: it is of an earlier release")
        return [_advice(row) for row in report.advice]


def _advice(row: AdviceRow) -> ScaleAdvice:
    try:
        direction = ScaleDirection(row.direction)
    except ValueError as error:
        raise ProtocolError(f"{row.segment}: advice of the unknown direction {row.direction}") from error
    return ScaleAdvice(row.segment, direction, row.split_count, row.is_silent)
