"""The overview: rates, problems with what to do, the groups that are furthest behind, and the segment stores."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from penstock.client.groups.subscribers import subscriber_kind
from penstock.client.statistics.statistics import ClusterStatistics, GroupLag
from penstock.model.findings import Finding, FindingKind
from penstock.web.console.pages import Answer, Data, Elsewhere, Page, PageRequest, PageRoute, address
from penstock.web.console.rates import Sampler
from penstock.web.console.subscribers import why_subscriber_is_behind

_GROUPS_SHOWN = 8
_STREAMS_SHOWN = 8


@dataclass(frozen=True, slots=True)
class GroupRow:
    """A group as lists show it. `why`: why it is behind, as far as the cluster knows; empty: nothing is wrong."""

    name: str
    lag: GroupLag
    trend: str
    why: str


async def overview(request: PageRequest) -> Answer:
    """Show the state of the cluster."""
    sampler = await request.rates.of(request.client, with_groups=True)
    found = sampler.statistics
    busiest = sorted(sampler.streams.values(), key=lambda load: (-load.bytes_per_s, load.name))[:_STREAMS_SHOWN]
    return Page("overview.html", "Overview", {
        "found": found,
        "problem": sampler.problem,
        "groups_problem": sampler.groups_problem,
        "findings": [] if found is None else list(findings(found, sampler)),
        "groups": group_rows(sampler)[:_GROUPS_SHOWN],
        "streams": busiest if found is not None else [],
        "stores": [] if found is None else store_rows(found),
    })  # fmt: skip


def group_rows(sampler: Sampler) -> list[GroupRow]:
    """Return all groups, the one with most unread bytes first."""
    rows = [
        GroupRow(name, lag, sampler.trend(name), why_behind(name, lag, sampler.trend(name)))
        for name, lag in (sampler.groups or {}).items()
    ]
    return sorted(rows, key=lambda row: (row.lag.problem is None, -row.lag.total_unread_bytes, row.name))


def why_behind(name: str, lag: GroupLag, trend: str) -> str:
    """Return why a group is behind, as far as its state and its trend show it; empty if nothing is wrong."""
    if lag.problem is not None:
        return f"its state could not be read: {lag.problem}"
    if lag.recreated:
        return f"deleted and created again, so it is not read: {', '.join(lag.recreated)}"
    if lag.is_finished:
        return "finished: it has read every stream to its end"
    if not lag.total_unread_bytes:
        return ""
    if not lag.reader_count:
        kind = subscriber_kind(name)
        return why_subscriber_is_behind(kind, trend) if kind else "it has no readers"
    if lag.unassigned_segment_count:
        return f"{lag.unassigned_segment_count} segments have no reader"
    return "its readers are slower than its writers" if trend == "growing" else ""


def store_rows(found: ClusterStatistics) -> list[dict[str, object]]:
    """Return the segment stores, each with the sums over its containers."""
    rows: list[dict[str, object]] = []
    for name, store in sorted(found.stores.items()):
        own = [each for each in found.containers.values() if each.store == name]
        rows.append({
            "address": name, "store": store, "containers": [each.id for each in own],
            "events_per_s": sum(each.events_per_s for each in own),
            "log_bytes": sum(each.log_bytes for each in own),
            "backlog_bytes": sum(each.backlog_bytes for each in own),
        })  # fmt: skip
    return rows


def findings(found: ClusterStatistics, sampler: Sampler) -> Iterator[Finding]:
    """Yield what is wrong: the errors first."""
    yield from _store_findings(found)
    if found.missing_containers:
        numbers = ", ".join(map(str, found.missing_containers))
        yield Finding(FindingKind.CONTAINER_OFFLINE, f"no report of containers {numbers}")
    for number, container in sorted(found.containers.items()):
        if container.held_append_count:
            yield Finding(FindingKind.APPENDS_HELD, f"container {number}: {container.held_append_count} appends wait")
        if container.is_log_long:
            yield Finding(FindingKind.LOG_LONG, f"container {number}: its log has {container.log_bytes:,} bytes")
    yield from group_findings(sampler)


def group_findings(sampler: Sampler) -> Iterator[Finding]:
    """Yield what is wrong with reader groups."""
    for name, lag in sorted((sampler.groups or {}).items()):
        if lag.lacks_readers:
            yield Finding(FindingKind.GROUP_STUCK, f"group {name}")


def _store_findings(found: ClusterStatistics) -> Iterator[Finding]:
    for name, store in sorted(found.stores.items()):
        if store.problem is not None:
            yield Finding(FindingKind.STORE_DOWN, f"store {name}: {store.problem}")
        for number, why in sorted(store.failures.items()):
            yield Finding(FindingKind.CONTAINER_OFFLINE, f"store {name}, container {number}: {why}")
        if store.storage_problem is not None:
            yield Finding(FindingKind.STORAGE_UNAVAILABLE, f"store {name}: {store.storage_problem}")


async def rates_data(request: PageRequest) -> Answer:
    """Return the samples for the charts: one list for each line, by time in Unix seconds."""
    sampler = await request.rates.of(request.client)
    stream, group = request.text("stream"), request.text("group")
    offset_s = request.unix_offset_s()
    if stream:
        pairs = list(sampler.stream_rates.get(stream, ()))
        return Data({"times": [at + offset_s for at, _ in pairs], "events": [rate for _, rate in pairs]})
    if group:
        lags = list(sampler.group_lags.get(group, ()))
        return Data({"times": [at + offset_s for at, _ in lags], "unread": [unread for _, unread in lags]})
    samples = list(sampler.cluster)
    return Data({
        "times": [each.at_s + offset_s for each in samples],
        "events": [each.events_per_s for each in samples],
        "bytes": [each.bytes_per_s for each in samples],
        "backlog": [each.backlog_bytes for each in samples],
        "cache": [each.cache_bytes for each in samples],
    })  # fmt: skip


async def start(request: PageRequest) -> Answer:
    """Lead to the overview from its short address."""
    return Elsewhere(address() + "/")


ROUTES: tuple[PageRoute, ...] = (
    PageRoute("", start),
    PageRoute("/", overview),
    PageRoute("/rates.json", rates_data),
)
