"""`StatisticsCalls`: requests statistics from all segment stores, and the lag of reader groups.

Stores are located like any segment: the controller returns the home of a name. For each container there is a segment
name that maps to it; the segment need not exist. A store that does not reply in time does not affect the results of
other stores.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, cast

from penstock.client.common.deadline import within
from penstock.client.groups import reader_group_state as rgs
from penstock.client.groups.group_state import GroupState
from penstock.client.groups.reader_group_record import GroupRecord
from penstock.client.groups.reader_group_streams import is_match, known_segments
from penstock.client.statistics.statistics import Answer, ClusterStatistics, GroupLag, merging, stream_of
from penstock.client.streams.stream_lives import recreated_streams
from penstock.client.transport.cluster import Cluster
from penstock.client.transport.connection_pool import ConnectionPool, Purpose
from penstock.client.transport.delegation_tokens import STATISTICS_SEGMENT
from penstock.client.transport.replies import expect
from penstock.client.transport.segment_extents import segment_infos
from penstock.model.errors import (
    ConnectionLostError,
    InvalidArgumentError,
    NoSuchReaderGroupError,
    NoSuchScopeError,
    NoSuchSegmentError,
    PenstockError,
    ProtocolError,
)
from penstock.model.names import SYSTEM_SCOPE, segment_id, segment_name, split_scoped_name
from penstock.model.routing import container_of
from penstock.runtime.bulk import for_each
from penstock.wire.commands import GetStatistics, StatisticsTold
from penstock.wire.statistics import StatisticsQuery, StoreReport, decode_report, encode_message

#: Reader groups by ``scope/group``, or all groups.
Groups = Collection[str] | Literal["all"]

#: Names located while the container count is unknown: enough to find a store that replies.
_FIRST_NAMES = 4
#: More containers than any cluster has; a larger count is not from a segment store.
_CONTAINER_COUNT_MAX = 65536
_PAGE_SEGMENTS = 1000
#: Reader groups processed at the same time.
_GROUPS_AT_ONCE = 32


@dataclass(frozen=True, slots=True)
class _Extent:
    """Start and end of a segment when requested. `is_there`: it was not truncated away as a whole."""

    stream: str
    start_offset: int
    length_bytes: int
    is_there: bool
    asked_s: float


class StatisticsCalls:
    """Requests statistics for one client. Its cache saves requests, and changes no result."""

    def __init__(self, cluster: Cluster, pool: ConnectionPool) -> None:
        self._cluster = cluster
        self._pool = pool
        self._settings = cluster.settings
        self._names: Sequence[str] = ()
        self._records: dict[str, GroupRecord] = {}
        #: Of segments in which groups lag, or without recent writes; each cached for `statistics_extent_age_s`.
        self._extents: dict[str, _Extent] = {}
        #: Group -> when its streams without a known existing segment were checked, and which were recreated.
        self._recreations: dict[str, tuple[float, Sequence[str]]] = {}

    async def ask(self, since: ClusterStatistics | None, groups: Groups) -> ClusterStatistics:
        """See `Client.statistics`."""
        with within("read statistics", 2 * self._settings.statistics_timeout_s, "statistics_timeout_s"):
            statistics = await _merged(await self._ask_stores(since), since)
        if not groups:
            return statistics
        with within("read reader groups", 2 * self._settings.statistics_timeout_s, "statistics_timeout_s"):
            return replace(statistics, groups=await self._lags(groups, statistics))

    # -- segment stores -----------------------------------------------------------------------------------------

    async def _ask_stores(self, since: ClusterStatistics | None) -> list[Answer]:
        """Query each store once. Raises the error that prevents finding any, such as `ControllerUnavailableError`."""
        answers: dict[str, Answer] = {}
        names = self._names or _first_names()
        failure = await self._ask_at(names, since, answers)
        count = max((answer.store.container_count for answer in answers.values() if answer.store), default=0)
        if count and count != len(self._names):
            self._names = names_of_containers(count)
        told = {container_id for answer in answers.values() for container_id in answer.reports}
        missing = [name for container_id, name in enumerate(self._names) if container_id not in told]
        if missing:
            # The stores of the missing containers were not queried, or the containers have moved.
            for name in missing:
                self._pool.forget(name)
            failure = await self._ask_at(missing, since, answers) or failure
        if not answers and failure is not None:
            raise failure
        return list(answers.values())

    async def _ask_at(
        self, names: Iterable[str], since: ClusterStatistics | None, answers: dict[str, Answer]
    ) -> PenstockError | None:
        """Query the stores at the homes of `names` that were not queried yet; return why some have no home, if so."""
        failure: PenstockError | None = None
        homes: dict[str, str] = {}
        names = list(names)
        for name, found in zip(names, await for_each(names, self._pool.endpoint, len(names)), strict=True):
            if isinstance(found, PenstockError):
                failure = failure or found
            else:
                homes.setdefault(f"{found[0]}:{found[1]}", name)
        for answer in await asyncio.gather(
            *(self._ask_store(address, name, since) for address, name in homes.items() if address not in answers)
        ):
            answers[answer.address] = answer
        return failure

    async def _ask_store(self, address: str, name: str, since: ClusterStatistics | None) -> Answer:
        answer = Answer(address)
        cursors = {}
        if since is not None:
            here = (container.id for container in since.containers.values() if container.store == address)
            cursors = {container_id: since.cursors[container_id] for container_id in here}
        is_connected = False
        try:
            async with asyncio.timeout(self._settings.statistics_timeout_s):
                connection = await self._pool.connection(name, Purpose.STATISTICS)
                is_connected = True
                query = StatisticsQuery(cursors=cursors, segment_count_max=_PAGE_SEGMENTS)
                while True:
                    request_id = connection.next_request_id()
                    token = self._pool.tokens.of(STATISTICS_SEGMENT)
                    reply = await connection.request(
                        request_id, GetStatistics(request_id, token, encode_message(query)), timeout_s=None
                    )
                    report = _checked(decode_report(expect(reply, StatisticsTold, address).report), address)
                    answer.take(report, query.containers)
                    incomplete = [container.id for container in report.containers if not container.is_complete]
                    if not incomplete:
                        return answer
                    query = StatisticsQuery(
                        cursors={each: answer.reports[each].cursor for each in incomplete},
                        containers=incomplete,
                        segment_count_max=_PAGE_SEGMENTS,
                    )
        except TimeoutError:
            problem = f"no answer within {self._settings.statistics_timeout_s:g} s (statistics_timeout_s)"
        except ConnectionLostError as error:
            problem = str(error)
            if is_connected:
                problem += " (Pravega's segment stores close it on a request for statistics)"
        except PenstockError as error:
            problem = str(error)
        self._pool.forget(name)
        # Discard the partial reply.
        return Answer(address, problem=problem)

    # -- reader groups ------------------------------------------------------------------------------------------

    async def _lags(self, groups: Groups, statistics: ClusterStatistics) -> dict[str, GroupLag]:
        is_all = isinstance(groups, str)
        if isinstance(groups, str):
            if groups != "all":
                raise InvalidArgumentError(f"groups={groups!r}: give reader groups in a list, or 'all'")
            names = await self._all_groups()
        else:
            names = ["/".join(split_scoped_name(group)) for group in dict.fromkeys(groups)]
        now_s = asyncio.get_running_loop().time()
        oldest_s = now_s - self._settings.statistics_extent_age_s
        self._extents = {name: extent for name, extent in self._extents.items() if extent.asked_s >= oldest_s}
        self._records = {name: record for name, record in self._records.items() if name in names}
        self._recreations = {name: found for name, found in self._recreations.items() if name in names}
        lags: dict[str, GroupLag] = {}

        async def read_lag(name: str) -> GroupLag:
            return await self._lag(name, statistics)

        for name, found in zip(names, await for_each(names, read_lag, _GROUPS_AT_ONCE), strict=True):
            if isinstance(found, NoSuchReaderGroupError):
                if not is_all:
                    raise found
            elif isinstance(found, PenstockError):
                lags[name] = GroupLag(name, {}, 0, 0, str(found))
            else:
                lags[name] = found
        return lags

    async def _all_groups(self) -> list[str]:
        controller = self._cluster.controller
        names: list[str] = []
        async for scope in controller.scopes():
            if scope == SYSTEM_SCOPE:
                continue
            try:
                names += [f"{scope}/{group}" async for group in controller.reader_groups(scope)]
            except NoSuchScopeError:
                continue  # Deleted since it was listed.
        return names

    async def _lag(self, name: str, statistics: ClusterStatistics) -> GroupLag:
        state = await self._state(name)
        unread = dict.fromkeys(state.streams, 0)
        positions = rgs.positions_of(state)
        # The start of a segment does not matter if the group is at its end.
        behind = [
            segment
            for segment, offset in positions.items()
            if (load := statistics.segments.get(segment)) is None or load.length_bytes > offset
        ]
        there = {stream_of(segment) for segment in positions.keys() - set(behind)}
        for segment, extent in (await self._extents_of(behind)).items():
            if not extent.is_there:
                continue
            there.add(extent.stream)
            load = statistics.segments.get(segment)
            length_bytes = extent.length_bytes if load is None else max(load.length_bytes, extent.length_bytes)
            length_bytes = min(length_bytes, state.ends.get(segment, length_bytes))
            unread[extent.stream] += max(length_bytes - max(positions[segment], extent.start_offset), 0)
        recreated = await self._recreated(name, state, [stream for stream in state.streams if stream not in there])
        return GroupLag(name, unread, len(state.readers), len(state.unassigned), None, state.is_finished, recreated)

    async def _recreated(self, name: str, state: GroupState, streams: Sequence[str]) -> Sequence[str]:
        """Return those of `streams`, of which no known segment exists, that were deleted and created again."""
        suspects = [stream for stream in streams if not is_match(stream, state.patterns)]
        if not suspects:
            return ()
        now_s = asyncio.get_running_loop().time()
        asked_s, found = self._recreations.get(name, (float("-inf"), ()))
        if now_s - asked_s >= self._settings.statistics_extent_age_s:
            registered = await self._cluster.controller.reader_group(*split_scoped_name(name))
            if registered is None or registered.id != state.group_id:
                raise NoSuchReaderGroupError(f"reader group {name} does not exist")
            found = await recreated_streams(self._cluster, known_segments(registered, state, suspects))
            self._recreations[name] = now_s, found
        return [stream for stream in found if stream in suspects]

    async def _state(self, name: str) -> GroupState:
        record = self._records.get(name)
        if record is not None:
            try:
                return await record.state()
            except NoSuchReaderGroupError:
                pass  # Deleted, and perhaps created again under another id.
        scope, group = split_scoped_name(name)
        registered = await self._cluster.controller.reader_group(scope, group)
        if registered is None:
            raise NoSuchReaderGroupError(f"reader group {name} does not exist")
        record = self._records[name] = GroupRecord(self._cluster, scope, group, registered.id)
        return await record.state()

    async def _extents_of(self, segments: Sequence[str]) -> dict[str, _Extent]:
        """Return the extents of segments, requesting those that are not cached."""
        known = {segment: self._extents[segment] for segment in segments if segment in self._extents}
        unknown = [segment for segment in segments if segment not in known]
        now_s = asyncio.get_running_loop().time()
        for segment, info in zip(unknown, await segment_infos(self._cluster, unknown), strict=True):
            stream = stream_of(segment)
            if isinstance(info, NoSuchSegmentError):
                extent = _Extent(stream, 0, 0, False, now_s)
            elif isinstance(info, PenstockError):
                raise info
            else:
                extent = _Extent(stream, info.start_offset, info.length, True, now_s)
            known[segment] = self._extents[segment] = extent
        return known


async def _merged(answers: list[Answer], since: ClusterStatistics | None) -> ClusterStatistics:
    steps = merging(answers, since)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return cast(ClusterStatistics, end.value)
        await asyncio.sleep(0)


def _checked(report: StoreReport, address: str) -> StoreReport:
    if not 0 < report.container_count <= _CONTAINER_COUNT_MAX:
        raise ProtocolError(f"{address}: a cluster of {report.container_count} containers")
    return report


def _name(number: int) -> str:
    """Return the name of a segment that does not exist."""
    return segment_name(SYSTEM_SCOPE, f"_statistics-{number}", segment_id(0, 0))


def _first_names() -> list[str]:
    return [_name(number) for number in range(_FIRST_NAMES)]


def names_of_containers(container_count: int) -> list[str]:
    """Return, for each container, a name that maps to it."""
    names: dict[int, str] = {}
    for number in itertools.count():
        names.setdefault(container_of(_name(number), container_count), _name(number))
        if len(names) == container_count:
            return [names[container_id] for container_id in range(container_count)]
    raise AssertionError("every container has names")
