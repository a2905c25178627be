"""Reader groups, transactions, tables and the cluster over REST."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

import msgspec

from penstock.client.low_level import controller_of
from penstock.client.streams.start_positions import Start
from penstock.model.errors import NoSuchScopeError, PenstockError
from penstock.model.names import split_scoped_name
from penstock.model.stream_cuts import StreamCut
from penstock.runtime.bulk import for_each
from penstock.web import replies
from penstock.web.errors import BadRequestError, NoSuchReaderError
from penstock.web.lag_times import LagTime, lag_time
from penstock.web.listing import PAGED, names_page
from penstock.web.routes import NOTHING, Query, Reply, Request, Route

_ENTRIES_MAX = 1000
#: Streams of a group whose lag in seconds one request determines, and those at once.
_TIMED_STREAMS_MAX = 100
_TIMED_AT_ONCE = 8


async def list_groups(request: Request) -> Reply:
    """List the reader groups of a scope."""
    scope = request.path["scope"]
    await _check_scope(request, scope)
    controller = controller_of(request.client)
    names, headers = await names_page(request, lambda token: controller.reader_group_pages(scope, token=token))
    return Reply(content=replies.GroupList([replies.GroupName(name) for name in sorted(names)]), headers=headers)


async def get_group(request: Request) -> Reply:
    """Return a reader group: its streams and its readers."""
    scope, group = request.path["scope"], request.path["group"]
    overview = await controller_of(request.client).group_overview(scope, group)
    streams = [name.partition("/")[2] for name in overview.streams]
    readers: list[str] = []
    if overview.made_by == "penstock":
        async with request.client.reader_group(f"{scope}/{group}") as joined:
            readers = sorted((await joined.describe()).readers)
    return Reply(content=replies.Group(scope, group, sorted(streams), readers))


async def delete_group(request: Request) -> Reply:
    """Delete a reader group."""
    await request.client.delete_reader_group(f"{request.path['scope']}/{request.path['group']}")
    return NOTHING


async def group_lag(request: Request) -> Reply:
    """Return how far a reader group is behind, by stream: in bytes, and in seconds if wanted."""
    name = f"{request.path['scope']}/{request.path['group']}"
    found = (await request.client.statistics(groups=[name])).groups[name]
    lag = replies.GroupLag(
        dict(found.unread_bytes), found.total_unread_bytes, found.reader_count, found.unassigned_segment_count,
        found.is_finished, list(found.recreated), found.problem,
        await _lag_seconds(request, name) if request.query.get("seconds") == "1" else None,
    )  # fmt: skip
    return Reply(content=lag)


async def _lag_seconds(request: Request, name: str) -> dict[str, replies.LagSeconds]:
    """Return the ages of the oldest unread events of a group by stream."""
    async with request.client.reader_group(name) as group:
        cuts = await group.stream_cuts()
    if len(cuts) > _TIMED_STREAMS_MAX:
        raise BadRequestError(
            f"seconds=1: reader group {name} reads {len(cuts)} streams; ages are determined for {_TIMED_STREAMS_MAX}"
        )
    now = datetime.now(UTC)

    async def timed(stream: str) -> LagTime:
        return await lag_time(request.client, cuts[stream], now)

    lags: dict[str, replies.LagSeconds] = {}
    for stream, found in zip(cuts, await for_each(list(cuts), timed, _TIMED_AT_ONCE), strict=True):
        if isinstance(found, PenstockError):
            raise found
        lags[stream] = replies.LagSeconds(found.least, found.most)
    return lags


class GroupReset(msgspec.Struct, forbid_unknown_fields=True):
    """Where a group continues: ``at`` earliest, latest or a time in ISO 8601, or ``cuts``, offsets by stream."""

    at: str | None = None
    cuts: dict[str, dict[int, int]] | None = None
    dryRun: bool = False


class GroupResetReply(msgspec.Struct):
    """Positions of the group by stream and segment, before and after; and whether they were changed."""

    before: dict[str, dict[str, int]]
    after: dict[str, dict[str, int]]
    isDone: bool


async def reset_group(request: Request) -> Reply:
    """Move a reader group to other positions. Its readers follow."""
    wanted = request.json(GroupReset)
    if (wanted.at is None) == (wanted.cuts is None):
        raise BadRequestError("give either at or cuts")
    start: Start = wanted.at
    if wanted.cuts is not None:
        start = {stream: StreamCut(*split_scoped_name(stream), cut) for stream, cut in wanted.cuts.items()}
    async with request.client.reader_group(f"{request.path['scope']}/{request.path['group']}") as group:
        before, after = await group.stream_cuts(), await group.reset_cuts(start)
        if not wanted.dryRun:
            await group.reset(after)
    return Reply(content=GroupResetReply(_positions(before), _positions(after), not wanted.dryRun))


def _positions(cuts: Mapping[str, StreamCut]) -> dict[str, dict[str, int]]:
    return {
        stream: {str(segment): offset for segment, offset in cut.positions.items()}
        for stream, cut in sorted(cuts.items())
    }


async def remove_reader(request: Request) -> Reply:
    """Remove a reader that ended without closing. Others continue at its stored positions."""
    scope, name, reader = request.path["scope"], request.path["group"], request.path["reader"]
    async with request.client.reader_group(f"{scope}/{name}") as group:
        if not await group.remove_reader(reader):
            raise NoSuchReaderError(f"reader group {scope}/{name} has no reader {reader!r}")
    return NOTHING


async def list_transactions(request: Request) -> Reply:
    """List the transactions of a stream that are not finished."""
    found: list[replies.ListedTransaction] = []
    async for each in request.client.open_transactions(request.stream):
        found.append(msgspec.convert(each, replies.ListedTransaction, from_attributes=True))
        if len(found) == _ENTRIES_MAX:
            break
    return Reply(content=replies.TransactionList(found))


async def commit_transaction(request: Request) -> Reply:
    """Commit a transaction."""
    await request.client.commit_transaction(request.stream, request.path["transaction"])
    return Reply(content=replies.TransactionState("COMMITTED"))


async def abort_transaction(request: Request) -> Reply:
    """Abort a transaction."""
    await request.client.abort_transaction(request.stream, request.path["transaction"])
    return Reply(content=replies.TransactionState("ABORTED"))


async def cluster(request: Request) -> Reply:
    """Return the segment stores and containers of the cluster."""
    found = await request.client.statistics()
    stores = [
        replies.Store(
            address, sorted(number for number, load in found.containers.items() if load.store == address),
            store.resident_bytes, store.cache_bytes, store.cache_bytes_max, store.problem, store.storage_problem,
            {str(number): text for number, text in store.failures.items()},
        )
        for address, store in sorted(found.stores.items())
    ]  # fmt: skip
    return Reply(content=replies.Cluster(found.container_count, list(found.missing_containers), stores))


async def _check_scope(request: Request, scope: str) -> None:
    if not await controller_of(request.client).scope_exists(scope):
        raise NoSuchScopeError(f"scope {scope} does not exist")


_SCOPE = "/v1/scopes/{scope}"
_STREAM = _SCOPE + "/streams/{stream}"
_GROUP = _SCOPE + "/readergroups/{group}"
ROUTES: tuple[Route, ...] = (
    Route(
        "GET",
        _SCOPE + "/readergroups",
        "List the reader groups of a scope.",
        list_groups,
        queries=PAGED,
        reply=(replies.GroupList,),
        needs="READ on the scope",
        is_pravega=True,
    ),
    Route(
        "GET", _GROUP, "Return a reader group.", get_group,
        reply=(replies.Group,), needs="READ on the scope and the group", is_pravega=True,
    ),
    Route(
        "DELETE", _GROUP, "Delete a reader group.", delete_group, 204, needs="READ_UPDATE on the group", is_pravega=True
    ),
    Route(
        "GET", _GROUP + "/lag", "Return how far a group is behind.", group_lag,
        queries=(Query("seconds", "1: also the age of the oldest unread event of each stream."),),
        reply=(replies.GroupLag,), needs="READ on prn::/; for seconds also the rights of a reader of the group",
    ),
    Route(
        "POST",
        _GROUP + "/reset",
        "Move a reader group to other positions.",
        reset_group,
        body=GroupReset,
        reply=(GroupResetReply,),
        needs="the rights of a reader of the group: READ on it and its streams",
    ),
    Route(
        "DELETE",
        _GROUP + "/readers/{reader}",
        "Remove a reader that ended without closing.",
        remove_reader,
        204,
        needs="the rights of a reader of the group",
    ),
    Route(
        "GET",
        _STREAM + "/transactions",
        "List transactions that are not finished.",
        list_transactions,
        reply=(replies.TransactionList,),
        needs="READ on the stream",
    ),
    Route(
        "POST",
        _STREAM + "/transactions/{transaction}/commit",
        "Commit a transaction.",
        commit_transaction,
        reply=(replies.TransactionState,),
        needs="READ_UPDATE on the stream",
    ),
    Route(
        "POST",
        _STREAM + "/transactions/{transaction}/abort",
        "Abort a transaction.",
        abort_transaction,
        reply=(replies.TransactionState,),
        needs="READ_UPDATE on the stream",
    ),
    Route(
        "GET", "/v1/cluster", "Return segment stores and containers.", cluster,
        reply=(replies.Cluster,), needs="READ on prn::/",
    ),
)  # fmt: skip
