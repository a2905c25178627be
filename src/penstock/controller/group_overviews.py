"""`GroupOverviews`: the reader groups of a scope, their subscriptions, and the positions they have acknowledged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from penstock.controller.metadata.records import Subscriber
from penstock.controller.metadata.scope_records import GroupCut, ReaderGroupRecord
from penstock.controller.metadata.stream_tables import StreamTables
from penstock.controller.metadata.subscribers import read_subscriber
from penstock.controller.reader_groups import ReaderGroups
from penstock.controller.workflows.context import WorkflowContext
from penstock.model.errors import NoSuchReaderGroupError, NoSuchStreamError, PenstockError
from penstock.model.names import reader_group_table
from penstock.runtime.bulk import for_each


@dataclass(frozen=True, slots=True)
class StreamOfGroup:
    """A stream that a group reads.

    Attributes:
        scope, stream: names of the stream.
        is_subscribed: whether the group subscribes to the stream, and so holds back its retention policy.
        cut: the position that it has acknowledged; empty: none.
        age_ms: time since it did so, or since it subscribed.
    """

    scope: str
    stream: str
    is_subscribed: bool
    cut: Mapping[int, int]
    age_ms: int


@dataclass(frozen=True, slots=True)
class GroupOverview:
    """A group at one moment. `is_penstock`: its state is in a table of Penstock's clients, otherwise in a stream."""

    name: str
    is_penstock: bool
    record: ReaderGroupRecord
    streams: Sequence[StreamOfGroup]


@dataclass(frozen=True, slots=True)
class OverviewPage:
    """A page of groups. An empty one ends the listing."""

    groups: Sequence[GroupOverview]
    token: str


class GroupOverviews:
    """See the module. Costs 2 requests per group, and 1 for each of its streams."""

    def __init__(self, context: WorkflowContext, groups: ReaderGroups) -> None:
        self._context = context
        self._groups = groups

    async def page(self, scope: str, token: str) -> OverviewPage:
        """Return a page of a scope's groups after `token` ('' = from the start).

        Raises `NoSuchScopeError`, `InvalidArgumentError` for a bad token.
        """
        limit = self._context.settings.described_groups_max
        while True:
            names = await self._groups.list(scope, token, limit)
            read = partial(self._read_overview, scope)
            found = await for_each(names.names, read, self._context.settings.described_groups_at_once)
            groups = []
            for one in found:
                if isinstance(one, NoSuchReaderGroupError):
                    continue  # It was deleted meanwhile.
                if isinstance(one, PenstockError):
                    raise one
                groups.append(one)
            if groups or not names.names:
                return OverviewPage(groups, names.token)
            token = names.token

    async def one(self, scope: str, group: str) -> GroupOverview:
        """Return one group. Raises `NoSuchReaderGroupError`."""
        return await self._read_overview(scope, group)

    async def _read_overview(self, scope: str, group: str) -> GroupOverview:
        record = await self._groups.get(scope, group)
        is_penstock = await self._context.segments.table_exists(reader_group_table(scope, record.id))
        streams = [await self._stream(f"{scope}/{group}", start) for start in record.config.starts]
        return GroupOverview(group, is_penstock, record, streams)

    async def _stream(self, group: str, start: GroupCut) -> StreamOfGroup:
        async def read(tables: StreamTables) -> Subscriber | None:
            found = await read_subscriber(tables, group)
            return None if found is None else found.record

        try:
            found = await self._context.catalog.on_stream(start.scope, start.stream, read)
        except NoSuchStreamError:
            found = None
        if found is None:
            return StreamOfGroup(start.scope, start.stream, False, {}, 0)
        age_ms = max(0, self._context.runtime.wall_clock_ms() - found.updated_ms)
        return StreamOfGroup(start.scope, start.stream, True, found.stream_cut, age_ms)
