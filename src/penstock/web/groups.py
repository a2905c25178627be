"""Reader groups, transactions, tables and the cluster over REST."""

from __future__ import annotations

import msgspec

from penstock.client.low_level import controller_of
from penstock.model.errors import NoSuchScopeError
from penstock.web.routes import NOTHING, Reply, Request, Route

_ENTRIES_MAX = 1000


async def list_groups(request: Request) -> Reply:
    """List the reader groups of a scope."""
    scope = request.path["scope"]
    await _check_scope(request, scope)
    names = sorted([name async for name in request.client.reader_groups(scope)])
    return Reply(content={"readerGroups": [{"readerGroupName": name.rpartition("/")[2]} for name in names]})


async def get_group(request: Request) -> Reply:
    """Return a reader group: its streams and its readers."""
    scope, group = request.path["scope"], request.path["group"]
    overview = await controller_of(request.client).group_overview(scope, group)
    streams = [name.partition("/")[2] for name in overview.streams]
    readers: list[str] = []
    if overview.made_by == "penstock":
        async with request.client.reader_group(f"{scope}/{group}") as joined:
            readers = sorted((await joined.describe()).readers)
    return Reply(content={
        "scopeName": scope, "readerGroupName": group, "streamList": sorted(streams), "onlineReaderIds": readers,
    })  # fmt: skip


async def delete_group(request: Request) -> Reply:
    """Delete a reader group."""
    await request.client.delete_reader_group(f"{request.path['scope']}/{request.path['group']}")
    return NOTHING


async def group_lag(request: Request) -> Reply:
    """Return the bytes that a reader group has not read, by stream."""
    name = f"{request.path['scope']}/{request.path['group']}"
    found = (await request.client.statistics(groups=[name])).groups[name]
    return Reply(content={
        "unreadBytes": dict(found.unread_bytes), "unreadBytesAll": found.total_unread_bytes,
        "readers": found.reader_count, "unassignedSegments": found.unassigned_segment_count,
        "isFinished": found.is_finished, "recreatedStreams": list(found.recreated), "problem": found.problem,
    })  # fmt: skip


async def list_transactions(request: Request) -> Reply:
    """List the transactions of a stream that are not finished."""
    found = []
    async for each in request.client.open_transactions(request.stream):
        found.append(msgspec.to_builtins(each, enc_hook=str))
        if len(found) == _ENTRIES_MAX:
            break
    return Reply(content={"transactions": found})


async def commit_transaction(request: Request) -> Reply:
    """Commit a transaction."""
    await request.client.commit_transaction(request.stream, request.path["transaction"])
    return Reply(content={"state": "COMMITTED"})


async def abort_transaction(request: Request) -> Reply:
    """Abort a transaction."""
    await request.client.abort_transaction(request.stream, request.path["transaction"])
    return Reply(content={"state": "ABORTED"})


async def list_tables(request: Request) -> Reply:
    """List the key-value tables of a scope."""
    scope = request.path["scope"]
    await _check_scope(request, scope)
    return Reply(content={"tables": sorted([name.rpartition("/")[2] async for name in request.client.tables(scope)])})


async def cluster(request: Request) -> Reply:
    """Return the segment stores and containers of the cluster."""
    found = await request.client.statistics()
    return Reply(content={
        "containerCount": found.container_count, "missingContainers": list(found.missing_containers),
        "stores": [
            {
                "address": address, "containers": sorted(
                    number for number, load in found.containers.items() if load.store == address
                ),
                "residentBytes": store.resident_bytes, "cacheBytes": store.cache_bytes,
                "cacheBytesMax": store.cache_bytes_max, "problem": store.problem,
                "storageProblem": store.storage_problem,
                "failures": {str(number): text for number, text in store.failures.items()},
            }
            for address, store in sorted(found.stores.items())
        ],
    })  # fmt: skip


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
        needs="READ on the scope",
        is_pravega=True,
    ),
    Route("GET", _GROUP, "Return a reader group.", get_group, needs="READ on the scope and the group", is_pravega=True),
    Route(
        "DELETE", _GROUP, "Delete a reader group.", delete_group, 204, needs="READ_UPDATE on the group", is_pravega=True
    ),
    Route("GET", _GROUP + "/lag", "Return the bytes that a group has not read.", group_lag, needs="READ on prn::/"),
    Route(
        "GET",
        _STREAM + "/transactions",
        "List transactions that are not finished.",
        list_transactions,
        needs="READ on the stream",
    ),
    Route(
        "POST",
        _STREAM + "/transactions/{transaction}/commit",
        "Commit a transaction.",
        commit_transaction,
        needs="READ_UPDATE on the stream",
    ),
    Route(
        "POST",
        _STREAM + "/transactions/{transaction}/abort",
        "Abort a transaction.",
        abort_transaction,
        needs="READ_UPDATE on the stream",
    ),
    Route("GET", _SCOPE + "/tables", "List the key-value tables of a scope.", list_tables, needs="READ on the scope"),
    Route("GET", "/v1/cluster", "Return segment stores and containers.", cluster, needs="READ on prn::/"),
)
