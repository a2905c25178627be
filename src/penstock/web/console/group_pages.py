"""The pages of reader groups: all with their lag, one with its readers, and what can be changed of it."""

from __future__ import annotations

from collections.abc import Mapping

from penstock.client.groups.reader_group import GroupDescription
from penstock.client.groups.subscribers import subscriber_kind
from penstock.client.low_level import controller_of
from penstock.model.errors import PenstockError, UnsupportedOperationError
from penstock.model.names import parse_segment_name
from penstock.model.stream_cuts import StreamCut, is_cut_text
from penstock.web.console.changes import Change, Field, RestCall, change_page
from penstock.web.console.overview import group_rows, why_behind
from penstock.web.console.pages import Answer, Page, PageRequest, PageRoute, address
from penstock.web.console.positions import position_text, short_text
from penstock.web.console.snippets import Snippet, command, curl, rest_path
from penstock.web.lag_times import LagTime, lag_time

#: Streams of a group whose lag in time is determined for its page.
_TIMED_STREAMS_MAX = 8
_SHOWN_MAX = 1000


async def list_groups(request: PageRequest) -> Answer:
    """List all reader groups, the one with most unread bytes first."""
    sampler = await request.rates.of(request.client, with_groups=True)
    wanted = request.text("name").lower()
    rows = [row for row in group_rows(sampler) if wanted in row.name.lower()]
    return Page("groups.html", "Reader groups", {
        "rows": rows[:_SHOWN_MAX], "count": len(rows), "name": request.text("name"),
        "problem": sampler.groups_problem or sampler.problem,
    })  # fmt: skip


async def show_group(request: PageRequest) -> Answer:
    """Show one reader group: where it is in each stream, its readers, and how far it is behind."""
    scope, name = request.path["scope"], request.path["group"]
    made_by, description = await _described(request)
    lags: dict[str, LagTime | None] = {}
    problem = ""
    if description is not None:
        for stream in list(description.positions)[:_TIMED_STREAMS_MAX]:
            try:
                lags[stream] = await lag_time(request.client, description.positions[stream], request.now())
            except PenstockError as error:
                problem = str(error)
    sampler = await request.rates.of(request.client, with_groups=True)
    known = (sampler.groups or {}).get(request.group)
    rest = rest_path("scopes", scope, "readergroups", name)
    return Page("group.html", f"Reader group {request.group}", {
        "group": request.group, "scope": scope, "name": name, "made_by": made_by, "found": description,
        "lags": lags, "lag_problem": problem, "trend": sampler.trend(request.group),
        "why": _why(request.group, description)
        or ("" if known is None else why_behind(request.group, known, sampler.trend(request.group))),
        "holders": [] if description is None else _holders(description),
        "snippets": [
            Snippet("Command", command("penstock", "group", "describe", request.group, "--uri", request.controller)),
            Snippet("REST", curl(request.origin, "GET", f"{rest}/lag", user=request.user)),
        ],
    })  # fmt: skip


async def _described(request: PageRequest) -> tuple[str, GroupDescription | None]:
    """Return which client made a group, and its state; None for groups of other clients. Raises as `reader_group`."""
    try:
        made_by = (await controller_of(request.client).group_overview(*request.group.split("/", 1))).made_by
    except UnsupportedOperationError:
        made_by = "penstock"
    if made_by != "penstock":
        return made_by, None
    async with request.client.reader_group(request.group) as joined:
        return made_by, await joined.describe()


def _holders(found: GroupDescription) -> list[tuple[str, str, int, int]]:
    """Return reader, stream, segment id and position of each segment; without a reader: an empty name."""
    rows = [(reader, segment) for reader, segments in sorted(found.readers.items()) for segment in segments]
    rows += [("", segment) for segment in found.unassigned]
    shown = []
    for reader, segment in rows:
        scope, stream, segment_id = parse_segment_name(segment)
        cut = found.positions.get(f"{scope}/{stream}")
        shown.append((reader, f"{scope}/{stream}", int(segment_id), -1 if cut is None else cut.positions[segment_id]))
    return shown


def _why(group: str, found: GroupDescription | None) -> str:
    if found is None:
        return ""
    if found.recreated:
        return f"deleted and created again, so it is not read: {', '.join(found.recreated)}"
    if found.is_finished:
        return "finished: it has read every stream to its end"
    if not any(found.unread_bytes.values()):
        return ""
    if not found.readers:
        kind = subscriber_kind(group)
        if kind:
            return f"it has no readers, but is the position of a program ({kind}): see whether that runs"
        return "it has no readers: start one"
    if found.unassigned:
        return f"{len(found.unassigned)} segments have no reader"
    idle = [name for name, segments in found.readers.items() if not segments]
    if idle and len(idle) == len(found.readers):
        return "its readers hold no segments"
    return "its readers have all segments: they read more slowly than events are written, or do not continue"


async def reset_group(request: PageRequest) -> Answer:
    """Move a group to another position, after showing where that is."""
    to = request.text("to", length_max=64 * 1024)
    streams: dict[str, StreamCut] = {}
    preview: list[tuple[str, str, str]] = []
    target = ""
    made_by, found = await _described(request)
    if found is None:
        raise UnsupportedOperationError(f"group {request.group} was made by another client ({made_by}): reset it there")
    if to:
        target = position_text(to, request.now())
        async with request.client.reader_group(request.group) as joined:
            streams = await joined.reset_cuts(target)
        preview = [
            (stream, short_text(found.positions[stream]) if stream in found.positions else "nothing", short_text(cut))
            for stream, cut in streams.items()
        ]

    async def perform() -> str:
        async with request.client.reader_group(request.group) as joined:
            await joined.reset(target)
        return f"Reader group {request.group} resumes at {target}."

    scope, name = request.path["scope"], request.path["group"]
    return await change_page(request, Change(
        f"Reset reader group {request.group}", request.group, address("groups", scope, name), request.group, perform,
        effects=[
            "All readers of the group, also those that run elsewhere, continue from there.",
            "Events before an earlier position are delivered again; those up to a later position are skipped.",
        ],
        command=command("penstock", "group", "reset", request.group, "--to", target, "--uri", request.controller),
        rest=[RestCall("POST", rest_path("scopes", scope, "readergroups", name, "reset"),
                       _rest_position(target, streams))],
        fields=[Field("to", "to", to, "earliest, latest, a time such as 09:00 or 2026-11-26T09:00:00Z, or a stream cut",
                      is_needed=True)],
        is_ready=bool(to), preview=preview,
    ))  # fmt: skip


def _rest_position(target: str, streams: Mapping[str, StreamCut]) -> dict[str, object]:
    if is_cut_text(target):
        return {
            "cuts": {
                stream: {str(segment): offset for segment, offset in cut.positions.items()}
                for stream, cut in streams.items()
            }
        }
    return {"at": target}


async def remove_reader(request: PageRequest) -> Answer:
    """Remove a reader that ended without closing, so that others continue at its positions."""
    scope, name, reader = request.path["scope"], request.path["group"], request.path["reader"]

    async def perform() -> str:
        async with request.client.reader_group(request.group) as joined:
            was_there = await joined.remove_reader(reader)
        return f"Reader {reader} is removed." if was_there else f"The group has no reader {reader} any more."

    return await change_page(request, Change(
        f"Remove reader {reader} from {request.group}", reader, address("groups", scope, name), request.group, perform,
        effects=[
            "Other readers of the group continue at the positions that it stored last.",
            "If it still runs, it joins again, and its events since those positions are delivered twice.",
        ],
        command=command("penstock", "group", "remove-reader", request.group, reader, "--uri", request.controller),
        rest=[RestCall("DELETE", rest_path("scopes", scope, "readergroups", name, "readers", reader))],
    ))  # fmt: skip


async def delete_group(request: PageRequest) -> Answer:
    """Delete a group."""
    scope, name = request.path["scope"], request.path["group"]

    async def perform() -> str:
        await request.client.delete_reader_group(request.group)
        return f"Reader group {request.group} is deleted."

    return await change_page(request, Change(
        f"Delete reader group {request.group}", request.group, address("groups"), "Reader groups", perform,
        effects=["Its positions are deleted. Its readers end with an error.",
                 "Streams no longer keep events for it."],
        command=command("penstock", "group", "delete", request.group, "--yes", "--uri", request.controller),
        rest=[RestCall("DELETE", rest_path("scopes", scope, "readergroups", name))],
    ))  # fmt: skip


_GROUP = "/groups/{scope}/{group}"
ROUTES: tuple[PageRoute, ...] = (
    PageRoute("/groups", list_groups),
    PageRoute(_GROUP, show_group),
    PageRoute(_GROUP + "/change/reset", reset_group, is_form=True),
    PageRoute(_GROUP + "/readers/{reader}/change/remove", remove_reader, is_form=True),
    PageRoute(_GROUP + "/change/delete", delete_group, is_form=True),
)
