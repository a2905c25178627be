"""``penstock group``: reader groups."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from penstock.cli.failure import exit_on_error
from penstock.cli.names import complete_streams
from penstock.cli.options import POSITION_HELP, URI, AsJson, Group, ScopeToList, Uri, Yes
from penstock.cli.output import confirm, in_bytes, table, tell

if TYPE_CHECKING:
    from penstock.client.client import Client
    from penstock.client.controller.group_overview import GroupOverview, StreamOfGroup
    from penstock.client.groups.reader_group import GroupDescription, ReaderGroup
    from penstock.model.stream_cuts import StreamCut

T = TypeVar("T")

Streams = Annotated[
    list[str],
    typer.Argument(
        metavar="STREAM",
        help="Streams to read, as SCOPE/STREAM, or patterns: 'SCOPE/orders-*'.",
        autocompletion=complete_streams,
    ),
]
_RETENTION = (
    "What its streams retain for it, up to their --keep-max: 'none', 'automatic' (unread events), 'manual' (events "
    "not acknowledged with penstock group acknowledge)."
)

_HELD = {
    "NONE": (),
    "MANUAL": ("  its streams keep events that it has not acknowledged",),
    "AUTOMATIC": ("  its streams keep events that it has not read",),
}

group: typer.Typer = typer.Typer(name="group")


@group.command("list")
def list_groups(
    scope: ScopeToList = None,
    uri: Uri = URI,
    as_json: AsJson = False,
) -> None:
    """List the reader groups, including those of other clients."""
    from penstock.cli.session import connected
    from penstock.model.errors import UnsupportedOperationError

    with exit_on_error(as_json=as_json), connected(uri) as session:
        client = session.client
        scopes = [scope] if scope else [name for name in session.iterate(client.scopes()) if not name.startswith("_")]
        try:
            found = sorted(
                (one for each in scopes for one in session.iterate(client.group_overviews(each))),
                key=lambda one: one.name,
            )
        except UnsupportedOperationError:
            # The controller is Pravega's: it returns only names.
            names = sorted(f"{each}/{name}" for each in scopes for name in session.iterate(client.reader_groups(each)))
            found = None
    if found is None:
        tell("groups", {"groups": names}, names, as_json=as_json)
        return
    fields: dict[str, object] = {
        "groups": [one.name for one in found],
        "overviews": [_overview_fields(one) for one in found],
    }
    rows = [row for one in found for row in _rows(one)]
    lines = table(("group", "made by", "retention", "stream", "acknowledged"), rows)
    tell("groups", fields, lines if rows else [], as_json=as_json)


def _overview_fields(found: GroupOverview) -> dict[str, object]:
    return {
        "group": found.name,
        "made_by": found.made_by,
        "retention": found.retention.name.lower(),
        "generation": found.generation,
        "streams": {
            stream: {
                "is_subscribed": one.is_subscribed,
                "acknowledged": None if one.acknowledged is None else one.acknowledged.to_text(),
                "age_s": one.age_s,
            }
            for stream, one in found.streams.items()
        },
    }


def _rows(found: GroupOverview) -> list[tuple[str, str, str, str, str]]:
    """Return a line for each stream of a group; of the group itself only the first says something."""
    told = [(stream, _acknowledged(one)) for stream, one in sorted(found.streams.items())] or [("", "")]
    heads = [(found.name, found.made_by, found.retention.name.lower()), *[("", "", "")] * (len(told) - 1)]
    return [(*head, *rest) for head, rest in zip(heads, told, strict=True)]


def _acknowledged(found: StreamOfGroup) -> str:
    if not found.is_subscribed:
        return ""
    return "nothing" if found.acknowledged is None else found.acknowledged.to_text()


@group.command()
def create(
    group: Group,
    streams: Streams,
    start: Annotated[str, typer.Option("--from", help=f"Start position: {POSITION_HELP}")] = "earliest",
    until: Annotated[str | None, typer.Option(help="End position, in the same forms. [default: none]")] = None,
    retention: Annotated[str, typer.Option(help=_RETENTION)] = "none",
    uri: Uri = URI,
    as_json: AsJson = False,
) -> None:
    """Create a reader group. An existing group is left unchanged. Programs that open a group create it, too."""
    from penstock.cli.session import connected

    with exit_on_error(as_json=as_json):
        from penstock.cli.positions import position_text
        from penstock.client.common.opening import awaiting

        with connected(uri) as session:
            begin, end = position_text(start), None if until is None else position_text(until)
            opening = session.client.reader_group(group, streams, start=begin, until=end, retention=retention)
            session.call(awaiting(opening))
    tell("created", {"group": group, "streams": streams}, [f"reader group {group} is created"], as_json=as_json)


@group.command()
def describe(group: Group, uri: Uri = URI, as_json: AsJson = False) -> None:
    """Show a group's readers, their segments and positions, and the group's lag."""
    found = _with_group(group, uri, as_json, lambda joined: joined.describe())
    fields: dict[str, object] = {
        "group": group,
        "id": found.id,
        "streams": list(found.streams),
        "readers": {name: list(segments) for name, segments in found.readers.items()},
        "unassigned": list(found.unassigned),
        "positions": {stream: cut.to_text() for stream, cut in found.positions.items()},
        "unread_bytes": dict(found.unread_bytes),
        "is_finished": found.is_finished,
        "recreated": list(found.recreated),
        "patterns": list(found.patterns),
        "ends": {stream: cut.to_text() for stream, cut in found.ends.items()},
        "retention": found.retention.name.lower(),
        "acknowledged": {stream: None if cut is None else cut.to_text() for stream, cut in found.acknowledged.items()},
    }
    tell("group", fields, _described(group, found), as_json=as_json)


def _described(group: str, found: GroupDescription) -> list[str]:
    holders = [(name, segment) for name, segments in sorted(found.readers.items()) for segment in segments]
    idle = [(name, "") for name, segments in sorted(found.readers.items()) if not segments]
    waiting = [("(none)", segment) for segment in found.unassigned]
    return [
        f"reader group {group}: readers: {len(found.readers)}, {in_bytes(sum(found.unread_bytes.values()))} unread",
        *_HELD[found.retention.name],
        *(f"  {line}" for line in _noted(found)),
        *(f"  {stream}: {in_bytes(lag)} unread, at {found.positions[stream].to_text()}"
          for stream, lag in sorted(found.unread_bytes.items())),
        *(f"  {stream}: acknowledged: {'nothing' if cut is None else cut.to_text()}"
          for stream, cut in sorted(found.acknowledged.items())),
        *(f"  {line}" for line in table(("reader", "segment"), [*holders, *idle, *waiting])),
    ]  # fmt: skip


@group.command()
def lag(group: Group, uri: Uri = URI, as_json: AsJson = False) -> None:
    """Show the lag of a group, from the positions that its readers stored last."""
    found = _with_group(group, uri, as_json, lambda joined: joined.describe())
    unread = dict(sorted(found.unread_bytes.items()))
    rows = [(stream, count, in_bytes(count)) for stream, count in unread.items()]
    fields: dict[str, object] = {
        "group": group,
        "unread_bytes": unread,
        "unread_bytes_all": sum(unread.values()),
        "unassigned_segment_count": len(found.unassigned),
        "is_finished": found.is_finished,
        "recreated": list(found.recreated),
    }
    tell("lag", fields, [*table(("stream", "unread bytes", ""), rows), *_noted(found)], as_json=as_json)


def _noted(found: GroupDescription) -> list[str]:
    """Return what unread bytes do not show: lines on segments that are not read now, and an end."""
    lines = [
        f"stream {stream} was deleted and created again: to read the new stream, remove it from the group and add it "
        "again"
        for stream in found.recreated
    ]
    if found.unassigned:
        why = "" if found.readers else " (the group has no readers)"
        lines.append(f"segments without a reader: {len(found.unassigned)}{why}")
    if found.is_finished:
        lines.append("the group is finished: it read every stream to its end")
    return lines


@group.command()
def reset(
    group: Group,
    to: Annotated[str, typer.Option("--to", help=POSITION_HELP)],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the positions before and after; change nothing.")] = (
        False
    ),
    uri: Uri = URI,
    as_json: AsJson = False,
) -> None:
    """Move a group to another position. Running readers follow."""
    from penstock.cli.positions import position_text

    async def planned(joined: ReaderGroup) -> tuple[dict[str, StreamCut], dict[str, StreamCut]]:
        return await joined.stream_cuts(), await joined.reset_cuts(where)

    with exit_on_error(as_json=as_json):
        where = position_text(to)
    if dry_run:
        before, after = _with_group(group, uri, as_json, planned)
        fields: dict[str, object] = {
            "group": group,
            "before": {stream: cut.to_text() for stream, cut in before.items()},
            "after": {stream: cut.to_text() for stream, cut in after.items()},
        }
        lines = [
            line
            for stream in sorted(after)
            for line in (
                stream,
                f"  now:   {before[stream].to_text() if stream in before else '(no position)'}",
                f"  reset: {after[stream].to_text()}",
            )
        ]
        tell("reset_planned", fields, [*lines, "dry run: nothing was changed"], as_json=as_json)
        return
    _with_group(group, uri, as_json, lambda joined: joined.reset(where))
    tell("reset", {"group": group, "to": where}, [f"reader group {group} resumes at {where}"], as_json=as_json)


@group.command("remove-reader")
def remove_reader(
    group: Group,
    reader: Annotated[str, typer.Argument(metavar="READER", help="Name of the reader.")],
    uri: Uri = URI,
    as_json: AsJson = False,
) -> None:
    """Remove a reader that ended without closing. Other readers continue at its stored positions."""
    if not _with_group(group, uri, as_json, lambda joined: joined.remove_reader(reader)):
        with exit_on_error(as_json=as_json):
            from penstock.model.errors import InvalidArgumentError

            raise InvalidArgumentError(
                f"reader group {group} has no reader {reader!r}: see penstock group describe {group}"
            )
    fields: dict[str, object] = {"group": group, "reader": reader}
    tell("reader_removed", fields, [f"reader {reader} is removed from reader group {group}"], as_json=as_json)


@group.command()
def update(
    group: Group,
    add: Annotated[list[str] | None, typer.Option("--add", help="Add this stream or pattern.")] = None,
    remove: Annotated[list[str] | None, typer.Option("--remove", help="Remove this stream or pattern.")] = None,
    start: Annotated[
        str, typer.Option("--from", help=f"Start position in added streams: {POSITION_HELP}")
    ] = "earliest",
    retention: Annotated[str | None, typer.Option(help=_RETENTION)] = None,
    uri: Uri = URI,
    as_json: AsJson = False,
) -> None:
    """Add streams to a group or remove them. Running readers follow. Positions in removed streams are deleted.

    With --retention, change what its streams retain for it.
    """
    from penstock.cli.positions import position_text
    from penstock.model.errors import InvalidArgumentError

    async def change(joined: ReaderGroup) -> list[str]:
        if add:
            await joined.add_streams(add, start=begin)
        if remove:
            await joined.remove_streams(remove)
        if retention is not None:
            await joined.set_retention(retention)
        return list((await joined.describe()).streams)

    with exit_on_error(as_json=as_json):
        begin = position_text(start)
        if not add and not remove and retention is None:
            raise InvalidArgumentError("no change was given: see penstock group update --help")
    streams = _with_group(group, uri, as_json, change)
    lines = [f"reader group {group} reads {', '.join(streams)}"]
    tell("updated", {"group": group, "streams": streams}, lines, as_json=as_json)


@group.command()
def acknowledge(
    group: Group,
    cut: Annotated[str, typer.Argument(metavar="CUT", help="A stream cut, or @FILE with one.")],
    uri: Uri = URI,
    as_json: AsJson = False,
) -> None:
    """Acknowledge a cut for a group with 'manual' retention: its stream may delete the events before the cut."""
    from penstock.cli.positions import position_text

    with exit_on_error(as_json=as_json):
        where = position_text(cut)
    is_new = _with_group(group, uri, as_json, lambda joined: joined.acknowledge(where))
    said = f"reader group {group} acknowledged {where}"
    line = said if is_new else f"reader group {group} had already acknowledged a later cut; it remains"
    tell("acknowledged", {"group": group, "cut": where, "is_new": is_new}, [line], as_json=as_json)


@group.command()
def delete(group: Group, yes: Yes = False, uri: Uri = URI, as_json: AsJson = False) -> None:
    """Delete a reader group and its positions. Asks for confirmation."""
    from penstock.cli.session import connected

    with exit_on_error(as_json=as_json), connected(uri) as session:
        session.call(_joined(session.client, group))
        confirm(f"Delete reader group {group} and its positions?", group, is_agreed=yes, as_json=as_json)
        session.call(session.client.delete_reader_group(group))
    tell("deleted", {"group": group}, [f"reader group {group} is deleted"], as_json=as_json)


def _with_group(group: str, uri: str, as_json: bool, work: Callable[[ReaderGroup], Awaitable[T]]) -> T:
    """Do something with a group that exists. Nothing is created where there is none."""
    from penstock.cli.session import connected

    async def joined_and_done(client: Client) -> T:
        async with client.reader_group(_checked(group)) as joined:
            return await work(joined)

    with exit_on_error(as_json=as_json), connected(uri) as session:
        return session.call(joined_and_done(session.client))


async def _joined(client: Client, group: str) -> None:
    """Raise `NoSuchReaderGroupError` if there is no such group."""
    async with client.reader_group(_checked(group)):
        pass


def _checked(group: str) -> str:
    from penstock.model.errors import InvalidNameError

    if "/" not in group:
        raise InvalidNameError(f"reader group {group!r}: write it as 'scope/group'")
    return group
