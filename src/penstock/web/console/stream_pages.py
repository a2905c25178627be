"""The pages of one stream: its events, its segments over time, its reader groups and its settings."""

from __future__ import annotations

from datetime import UTC, datetime

from penstock.client.statistics.statistics import StreamLoad
from penstock.model.errors import AccessDeniedError, PenstockError
from penstock.model.names import parse_segment_name, split_scoped_name
from penstock.model.policies import Retention, RetentionKind, Scaling, ScalingKind, StreamConfig
from penstock.model.stream_cuts import EARLIEST, LATEST, StreamCut
from penstock.web.console.formats import in_bytes, in_milliseconds
from penstock.web.console.overview import group_rows
from penstock.web.console.pages import Answer, Download, Elsewhere, Page, PageRequest, PageRoute, address
from penstock.web.console.positions import last_count, position_text
from penstock.web.console.reading import EventPage, event_page, whole_event
from penstock.web.console.saved_filters import of_stream, query_of
from penstock.web.console.segment_map import SPANS, map_picture, segment_boxes
from penstock.web.console.snippets import Snippet, command, curl, event_snippets, read_command, rest_path
from penstock.web.console.streams import groups_reading, scopes_of
from penstock.web.errors import BadRequestError
from penstock.web.filters import event_filter, path_of

_EVENTS_MAX = 1000
_COLUMNS_MAX = 16
_EPOCHS_MAX = 1000
FORMS: tuple[str, ...] = ("text", "json", "hex")


async def show_stream(request: PageRequest) -> Answer:
    """Lead to the events of a stream from its short address."""
    return Elsewhere(address("streams", request.path["scope"], request.path["stream"], "events"))


async def show_events(request: PageRequest) -> Answer:
    """Show events from a position on."""
    stream, now = request.stream, request.now()
    at = request.text("at", "last:100", length_max=64 * 1024) or "last:100"
    contains, where = request.text("contains"), request.text("where")
    form = request.text("form") or "text"
    limit = request.number("limit", 100, least=1, most=_EVENTS_MAX)
    segment = request.number("segment", -1, least=-1)
    values: dict[str, object] = {
        "stream": stream, "tab": "events", "at": at, "contains": contains, "where": where, "form": form,
        "limit": limit, "segment": segment, "columns_text": request.text("columns"), "forms": FORMS, "mistake": "",
        "saved": of_stream(request), "filter_name": request.text("filter_name"), "kept": query_of(request.query),
        "columns": [], "found": None, "snippets": [], "cut": "", "next": "", "segments": [], "read": "",
    }  # fmt: skip
    # A stream that does not exist, or that the caller may not read, is an error of the page, not of the form.
    values["segments"] = [each.segment_id for each in await request.client.segments_of(stream)]
    try:
        if form not in FORMS:
            raise BadRequestError(f"show {form!r}: choose one of {', '.join(FORMS)}")
        columns = [(each.strip(), path_of(each.strip())) for each in request.text("columns").split(",") if each.strip()]
        if len(columns) > _COLUMNS_MAX:
            raise BadRequestError(f"{len(columns)} columns: at most {_COLUMNS_MAX} are shown")
        wanted = event_filter(contains, where)
        found = await event_page(
            request.client, stream, at=at, token=request.text("token", length_max=16 * 1024),
            segment=None if segment < 0 else segment, wanted=wanted, limit=limit, now=now,
        )  # fmt: skip
        start = _start_text(stream, at, found, now)
    except BadRequestError as error:
        return Page("events.html", f"{stream}: events", {**values, "mistake": str(error)}, 400)
    values |= {
        "columns": columns, "found": found, "cut": _cut_text(stream, found),
        "snippets": event_snippets(
            stream, start, wanted, where, controller=request.controller, origin=request.origin, user=request.user
        ),
        "read": read_command(stream, start, limit, request.controller),
        "next": _with_token(request, found.token) if found.token else "",
    }  # fmt: skip
    return Page("events.html", f"{stream}: events", values)


def _start_text(stream: str, at: str, found: EventPage, now: datetime) -> str:
    """Return the position of a page for programs: ``last:`` as a cut, times in ISO 8601."""
    if at in EARLIEST or at in LATEST:
        return at
    if last_count(at) is not None or at.startswith("{"):
        return _cut_text(stream, found) or "earliest"
    return position_text(at, now)


def _cut_text(stream: str, found: EventPage) -> str:
    return StreamCut(*split_scoped_name(stream), found.start).to_text() if found.start else ""


def _with_token(request: PageRequest, token: str) -> str:
    query = {name: value for name, value in request.query.items() if name != "token"}
    return address("streams", request.path["scope"], request.path["stream"], "events", **query, token=token)


async def show_tail(request: PageRequest) -> Answer:
    """Show new events as they are stored, by a script that follows the stream over the REST interface."""
    scope, name = split_scoped_name(request.stream)
    segments = [each.segment_id for each in await request.client.segments_of(request.stream)]
    contains, segment = request.text("contains"), request.number("segment", -1, least=-1)
    path = rest_path("scopes", scope, "streams", name, "tail", segment=segment, contains=contains)
    return Page("tail.html", f"{request.stream}: tail", {
        "stream": request.stream, "tab": "tail", "segments": segments, "segment": segment, "contains": contains,
        "tail": path,
        "snippets": [
            Snippet("Command", command("penstock", "tail", request.stream, "--uri", request.controller)),
            Snippet("REST", curl(request.origin, "GET", path, user=request.user).replace("curl", "curl -N", 1)),
        ],
    })  # fmt: skip


async def download_event(request: PageRequest) -> Answer:
    """Return one event as a file."""
    segment, offset = request.number("segment", -1), request.number("offset", -1)
    data = await whole_event(request.client, request.stream, segment, offset, request.number("end", -1))
    return Download(data, f"{request.path['stream']}-{segment}-{offset}.bin")


async def show_segments(request: PageRequest) -> Answer:
    """Show the segments of a stream over time."""
    stream = request.stream
    span = request.text("span") or "all"
    if span not in SPANS:
        raise BadRequestError(f"span is {span!r}: choose one of {', '.join(SPANS)}")
    history = await request.client.history(stream, epoch_count_max=_EPOCHS_MAX)
    head = await request.client.head(stream)
    sampler = await request.rates.of(request.client)
    rates: dict[int, float] | None = None
    if sampler.statistics is not None:
        loads = [load for load in sampler.statistics.segments.values() if load.stream == stream]
        rates = {parse_segment_name(load.name)[2]: load.events_per_s for load in loads}
    boxes = segment_boxes(history, head.positions, rates)
    now_ms = datetime.now(UTC).timestamp() * 1000
    scope, name = split_scoped_name(stream)
    return Page("segments.html", f"{stream}: segments", {
        "stream": stream, "tab": "segments", "history": history, "boxes": list(reversed(boxes)), "span": span,
        "spans": list(SPANS), "picture": map_picture(history, boxes, now_ms, SPANS[span]),
        "epochs_max": _EPOCHS_MAX, "has_rates": rates is not None,
        "snippets": [
            Snippet("Command", command("penstock", "stream", "history", stream, "--uri", request.controller)),
            Snippet("REST", curl(request.origin, "GET", rest_path("scopes", scope, "streams", name, "history"),
                                 user=request.user)),
        ],
    })  # fmt: skip


async def show_groups(request: PageRequest) -> Answer:
    """Show the reader groups that read a stream."""
    stream = request.stream
    sampler = await request.rates.of(request.client, with_groups=True)
    rows = [row for row in group_rows(sampler) if stream in row.lag.unread_bytes or stream in row.lag.recreated]
    problem = sampler.groups_problem or sampler.problem
    others: list[str] = []
    try:
        scopes = await scopes_of(request)
    except AccessDeniedError:
        scopes = [request.path["scope"]]
    found, missing = await groups_reading(request, scopes, stream)
    others = [name for name in found if name not in {row.name for row in rows}]
    return Page("stream_groups.html", f"{stream}: groups", {
        "stream": stream, "tab": "groups", "rows": rows, "others": others, "problem": problem, "missing": missing,
    })  # fmt: skip


async def show_settings(request: PageRequest) -> Answer:
    """Show the policies of a stream, and what can be changed."""
    stream = request.stream
    config = await request.client.stream_config(stream)
    segments = await request.client.segments_of(stream)
    head, tail = await request.client.head(stream), await request.client.tail(stream)
    sampler = await request.rates.of(request.client)
    load: StreamLoad | None = sampler.streams.get(stream) if sampler.statistics is not None else None
    rows = [
        ("Scaling", scaling_text(config.scaling)),
        ("Retention", retention_text(config.retention)),
        ("Tags", ", ".join(config.tags) or "none"),
        ("Largest chunk", in_bytes(config.rollover_bytes) if config.rollover_bytes else "the default of the stores"),
        ("State", "sealed: it takes no more events" if not segments else f"{len(segments)} segments take events"),
        ("Writes now", "not known" if load is None else f"{load.events_per_s:,.0f} events/s"),
    ]
    return Page("settings.html", f"{stream}: settings", {
        "stream": stream, "tab": "settings", "rows": rows, "is_sealed": not segments,
        "head": head.to_text(), "tail": tail.to_text(), "identity": await _identity(request, stream),
        "snippets": _create_snippets(request, stream, config),
    })  # fmt: skip


async def _identity(request: PageRequest, stream: str) -> str:
    try:
        return await request.client.stream_identity(stream) or "not known"
    except PenstockError as error:
        return f"not known: {error}"


def scaling_text(scaling: Scaling) -> str:
    """Return a policy in one line."""
    if scaling.kind is ScalingKind.FIXED:
        return f"fixed: {scaling.min_segments} segments"
    unit = "kB/s" if scaling.kind is ScalingKind.BY_DATA_RATE else "events/s"
    return (
        f"by rate: {scaling.target_rate:,} {unit} for each segment, at least {scaling.min_segments} segments; a busy "
        f"one is split into {scaling.factor}"
    )


def retention_text(retention: Retention | None) -> str:
    """Return a policy in one line."""
    if retention is None:
        return "none: everything is kept"
    shown = in_milliseconds if retention.kind is RetentionKind.BY_TIME else in_bytes
    most = f", at most {shown(retention.max_limit)} for groups that are behind" if retention.has_max else ""
    return f"keeps {shown(retention.min_limit)}{most}"


def _create_snippets(request: PageRequest, stream: str, config: StreamConfig) -> list[Snippet]:
    words = ["penstock", "stream", "create", stream, "--segments", str(config.scaling.min_segments)]
    if config.scaling.kind is not ScalingKind.FIXED:
        name = "--data-rate" if config.scaling.kind is ScalingKind.BY_DATA_RATE else "--event-rate"
        words += [name, str(config.scaling.target_rate), "--factor", str(config.scaling.factor)]
    if config.retention is not None:
        words += retention_options(config.retention)
    for tag in config.tags:
        words += ["--tag", tag]
    scope, name = split_scoped_name(stream)
    path = rest_path("scopes", scope, "streams", name)
    return [
        Snippet("Command that creates a stream like this", command(*words, "--uri", request.controller)),
        Snippet("Command", command("penstock", "stream", "describe", stream, "--uri", request.controller)),
        Snippet("REST", curl(request.origin, "GET", path, user=request.user)),
    ]


def retention_options(retention: Retention) -> list[str]:
    """Return the options of ``penstock stream create`` for a policy."""
    is_time = retention.kind is RetentionKind.BY_TIME
    options = ["--keep-time" if is_time else "--keep-bytes", _option_value(retention.min_limit, is_time=is_time)]
    if retention.has_max:
        options += ["--keep-max", _option_value(retention.max_limit, is_time=is_time)]
    return options


def _option_value(limit: int, *, is_time: bool) -> str:
    return f"{limit / 1000:g}s" if is_time else str(limit)


_STREAM = "/streams/{scope}/{stream}"
ROUTES: tuple[PageRoute, ...] = (
    PageRoute(_STREAM, show_stream),
    PageRoute(_STREAM + "/events", show_events),
    PageRoute(_STREAM + "/tail", show_tail),
    PageRoute(_STREAM + "/event", download_event),
    PageRoute(_STREAM + "/segments", show_segments),
    PageRoute(_STREAM + "/groups", show_groups),
    PageRoute(_STREAM + "/settings", show_settings),
)
