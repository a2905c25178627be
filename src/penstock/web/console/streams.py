"""The list of streams, page by page, without a request for each stream."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.client.statistics.statistics import GroupLag, StreamLoad
from penstock.model.errors import AccessDeniedError, NoSuchScopeError, PenstockError
from penstock.model.names import SYSTEM_SCOPE
from penstock.web.console.pages import Answer, Page, PageRequest, PageRoute
from penstock.web.console.rates import Sampler

ROWS_MAX = 100
#: Names that one page reads to find its rows.
_NAMES_MAX = 200_000
_SCOPES_MAX = 1000


@dataclass(frozen=True, slots=True)
class StreamRow:
    """A stream of the list. `load` is None without recent writes; `group`: the one with most unread bytes of it."""

    scope: str
    name: str
    load: StreamLoad | None
    group: str
    unread_bytes: int


@dataclass(slots=True)
class _Names:
    """The names of a page, those before it and the number of all that match."""

    wanted: str
    first: int
    found: list[tuple[str, str]]
    count: int = 0
    is_complete: bool = True

    def take(self, scope: str, name: str) -> None:
        if self.wanted and self.wanted not in f"{scope}/{name}".lower():
            return
        if self.first <= self.count < self.first + ROWS_MAX:
            self.found.append((scope, name))
        self.count += 1


async def list_streams(request: PageRequest) -> Answer:
    """List streams. `from`: the number of the first one shown."""
    scope, tag, wanted = request.text("scope"), request.text("tag"), request.text("name").lower()
    with_internal = request.text("internal") == "1"
    first = request.number("from", 0, most=_NAMES_MAX)
    names = _Names(wanted, first, [])
    problems: list[str] = []
    scopes: list[str] = []
    try:
        scopes = await scopes_of(request)
    except AccessDeniedError as error:
        problems.append(f"{error}: enter a scope that your account may read")
    read = 0
    for each in [scope] if scope else scopes:
        try:
            async for name in request.client.streams(each, tag=tag or None, includes_internal=with_internal):
                names.take(each, name)
                read += 1
                if read >= _NAMES_MAX:
                    names.is_complete = False
                    break
        except (AccessDeniedError, NoSuchScopeError) as error:
            if scope:
                raise
            problems.append(f"{each}: {error}")
        if not names.is_complete:
            break
    sampler = await request.rates.of(request.client, with_groups=True)
    worst = _worst_groups(sampler)
    rows = [_row(sampler, worst, *each) for each in names.found]
    return Page("streams.html", "Streams", {
        "rows": rows, "scopes": scopes, "scope": scope, "tag": tag, "name": request.text("name"),
        "with_internal": with_internal, "first": first, "count": names.count, "is_complete": names.is_complete,
        "problems": problems, "rows_max": ROWS_MAX, "rates_problem": sampler.problem,
    })  # fmt: skip


async def scopes_of(request: PageRequest) -> list[str]:
    """Return the names of scopes, without the system's own, sorted. Raises `AccessDeniedError`."""
    found: list[str] = []
    async for name in request.client.scopes():
        if name != SYSTEM_SCOPE:
            found.append(name)
        if len(found) == _SCOPES_MAX:
            break
    return sorted(found)


def _worst_groups(sampler: Sampler) -> dict[str, tuple[str, int]]:
    worst: dict[str, tuple[str, int]] = {}
    groups: dict[str, GroupLag] = dict(sampler.groups or {})
    for name, lag in groups.items():
        for stream, unread in lag.unread_bytes.items():
            if unread > worst.get(stream, ("", 0))[1]:
                worst[stream] = name, unread
    return worst


def _row(sampler: Sampler, worst: dict[str, tuple[str, int]], scope: str, name: str) -> StreamRow:
    stream = f"{scope}/{name}"
    group, unread = worst.get(stream, ("", 0))
    return StreamRow(scope, name, sampler.streams.get(stream), group, unread)


async def groups_reading(request: PageRequest, scopes: list[str], stream: str) -> tuple[list[str], str]:
    """Return the names of reader groups that read a stream, and why some may be missing; empty: none are."""
    found: list[str] = []
    problem = ""
    for scope in scopes:
        try:
            async for group in request.client.group_overviews(scope):
                if stream in group.streams:
                    found.append(group.name)
        except PenstockError as error:
            problem = f"groups of scope {scope}: {error}"
    return found, problem


ROUTES: tuple[PageRoute, ...] = (PageRoute("/streams", list_streams),)
