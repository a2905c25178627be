"""What can be changed of streams: create, policies, split and merge, truncate, seal, delete."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence
from itertools import pairwise

from penstock.client.controller.stream_segments import SegmentRange
from penstock.client.low_level import controller_of
from penstock.model.names import split_scoped_name
from penstock.model.policies import LIMIT_NONE, Retention, RetentionKind, Scaling, ScalingKind, StreamConfig
from penstock.model.stream_cuts import EARLIEST, LATEST, StreamCut
from penstock.web import models
from penstock.web.console.changes import Change, Field, RestCall, change_page
from penstock.web.console.formats import in_bytes
from penstock.web.console.pages import Answer, PageRequest, PageRoute, address
from penstock.web.console.positions import cut_at, position_text, short_text
from penstock.web.console.snippets import command, rest_path
from penstock.web.console.stream_pages import retention_options, retention_text, scaling_text
from penstock.web.errors import BadRequestError

_KINDS = ("fixed", "events/s", "kB/s")
_DURATIONS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_SIZES = {"": 1, "b": 1, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40, "kb": 10**3, "mb": 10**6,
          "gb": 10**9, "tb": 10**12}  # fmt: skip
_LIMIT = re.compile(r"(\d+(?:\.\d+)?)\s*([a-zA-Z]*)")
_RETENTION_HELP = "7d, 12h or 30m: the events of this period; 10GiB or 500MB: the newest bytes; empty: everything"


def limit_of(text: str) -> tuple[RetentionKind, int] | None:
    """Return the limit of a text such as ``7d`` or ``10GiB``; None for an empty one. Raises `BadRequestError`."""
    if not text:
        return None
    match = _LIMIT.fullmatch(text)
    unit = match[2] if match else ""
    if match and unit in _DURATIONS:
        return RetentionKind.BY_TIME, round(float(match[1]) * _DURATIONS[unit])
    if match and unit.lower() in _SIZES:
        return RetentionKind.BY_SIZE, round(float(match[1]) * _SIZES[unit.lower()])
    raise BadRequestError(f"{text!r} is not a limit: write 7d, 12h, 30m, 10GiB or 500MB")


def _config_of(request: PageRequest, before: StreamConfig) -> StreamConfig:
    """Return the policies of a form. What the form does not have stays as before. Raises `BadRequestError`."""
    kind = request.text("scaling") or "fixed"
    segments = request.number("segments", before.scaling.min_segments, least=1)
    if kind not in _KINDS:
        raise BadRequestError(f"scaling is {kind!r}: choose one of {', '.join(_KINDS)}")
    if kind == "fixed":
        scaling = Scaling.fixed(segments)
    else:
        make = Scaling.by_event_rate if kind == "events/s" else Scaling.by_data_rate
        scaling = make(request.number("rate", before.scaling.target_rate, least=1), min_segments=segments)
    keep, most = limit_of(request.text("keep")), limit_of(request.text("keep_max"))
    retention = None
    if keep is not None:
        if most is not None and most[0] is not keep[0]:
            raise BadRequestError("both limits of the retention are times, or both are sizes")
        retention = Retention(keep[0], keep[1], LIMIT_NONE if most is None else most[1])
    tags = tuple(each.strip() for each in request.text("tags").split(",") if each.strip())
    return StreamConfig(
        scaling, retention, tags, before.timestamp_aggregation_timeout_ms, before.rollover_bytes
    ).checked()


def _limit_text(limit: int, *, is_time: bool) -> str:
    if not is_time:
        return str(limit)
    unit = next(unit for unit in ("d", "h", "m", "s") if limit % _DURATIONS[unit] == 0 or unit == "s")
    return f"{limit / _DURATIONS[unit]:g}{unit}"


def _fields(request: PageRequest, config: StreamConfig) -> list[Field]:
    is_sent = "scaling" in request.form or "scaling" in request.query
    kind = _KINDS[(ScalingKind.FIXED, ScalingKind.BY_EVENT_RATE, ScalingKind.BY_DATA_RATE).index(config.scaling.kind)]
    keep = most = ""
    if config.retention is not None:
        is_time = config.retention.kind is RetentionKind.BY_TIME
        keep = _limit_text(config.retention.min_limit, is_time=is_time)
        most = _limit_text(config.retention.max_limit, is_time=is_time) if config.retention.has_max else ""

    def value(name: str, known: str) -> str:
        return request.text(name) if is_sent else known

    return [
        Field("scaling", "scaling", value("scaling", kind), "fixed, or by the rate of each segment", _KINDS),
        Field("segments", "segments", value("segments", str(config.scaling.min_segments)), "with a rate: the minimum"),
        Field("rate", "rate of one segment", value("rate", str(config.scaling.target_rate or "")),
              "events/s or kB/s; not for a fixed number"),
        Field("keep", "keep", value("keep", keep), _RETENTION_HELP),
        Field("keep_max", "keep at most, for groups that are behind", value("keep_max", most),
              "as above; empty: no limit"),
        Field("tags", "tags", value("tags", ", ".join(config.tags)), "words, separated by commas"),
    ]  # fmt: skip


def _policy_options(config: StreamConfig, before: StreamConfig | None) -> list[str]:
    words = ["--segments", str(config.scaling.min_segments)]
    if config.scaling.kind is not ScalingKind.FIXED:
        name = "--data-rate" if config.scaling.kind is ScalingKind.BY_DATA_RATE else "--event-rate"
        words += [name, str(config.scaling.target_rate), "--factor", str(config.scaling.factor)]
    words += [] if config.retention is None else retention_options(config.retention)
    for tag in config.tags:
        words += ["--tag", tag]
    if before is not None and before.tags and not config.tags:
        words.append("--no-tags")
    return words


async def new_stream(request: PageRequest) -> Answer:
    """Create a stream, and its scope if it is missing."""
    scope, name = request.text("scope"), request.text("stream")
    stream = f"{scope}/{name}"
    is_ready = bool(scope and name)
    config = _config_of(request, StreamConfig()) if is_ready else StreamConfig()
    if is_ready:
        split_scoped_name(stream)

    async def perform() -> str:
        await request.client.create_stream(stream, scaling=config.scaling, retention=config.retention, tags=config.tags)
        return f"Stream {stream} is created."

    body = {
        "streamName": name, "scalingPolicy": models.scaling_shown(config.scaling),
        "retentionPolicy": models.retention_shown(config.retention), "streamTags": list(config.tags),
    }  # fmt: skip
    return await change_page(request, Change(
        f"Create stream {stream}" if is_ready else "Create a stream", stream,
        address("streams", scope, name, "events") if request.is_change else address("streams"),
        stream if request.is_change else "Streams", perform,
        effects=[f"Scaling: {scaling_text(config.scaling)}.", f"Retention: {retention_text(config.retention)}.",
                 f"The scope {scope} is created if it does not exist."],
        command=command("penstock", "stream", "create", stream, *_policy_options(config, None), "--uri",
                        request.controller),
        rest=[RestCall("POST", rest_path("scopes"), {"scopeName": scope}),
              RestCall("POST", rest_path("scopes", scope, "streams"), body)],
        fields=[Field("scope", "scope", scope, is_needed=True), Field("stream", "name", name, is_needed=True),
                *_fields(request, config)],
        is_ready=is_ready,
    ))  # fmt: skip


async def change_policies(request: PageRequest) -> Answer:
    """Change scaling, retention and tags."""
    stream = request.stream
    before = await request.client.stream_config(stream)
    is_ready = "scaling" in request.form or "scaling" in request.query
    config = _config_of(request, before) if is_ready else before

    async def perform() -> str:
        await controller_of(request.client).update_stream(*split_scoped_name(stream), config)
        return f"The policies of stream {stream} are changed."

    preview = [
        ("scaling", scaling_text(before.scaling), scaling_text(config.scaling)),
        ("retention", retention_text(before.retention), retention_text(config.retention)),
        ("tags", ", ".join(before.tags), ", ".join(config.tags)),
    ]
    body = {
        "scalingPolicy": models.scaling_shown(config.scaling),
        "retentionPolicy": models.retention_shown(config.retention), "streamTags": list(config.tags),
    }  # fmt: skip
    effects = ["Segments are split or merged to reach the number of segments."]
    if config.retention is not None:
        effects.append("Events beyond the retention are deleted by the next pass.")
    return await change_page(request, _change(
        request, "Change policies of", perform, effects=effects,
        command=command("penstock", "stream", "update", stream, *_policy_options(config, before), "--uri",
                        request.controller),
        rest=[RestCall("PUT", _rest(request), body)], fields=_fields(request, config), is_ready=is_ready,
        preview=preview,
    ))  # fmt: skip


def _rest(request: PageRequest, *parts: str) -> str:
    return rest_path("scopes", request.path["scope"], "streams", request.path["stream"], *parts)


def _change(
    request: PageRequest,
    verb: str,
    perform: Callable[[], Awaitable[str]],
    *,
    effects: Sequence[str],
    command: str,
    rest: Sequence[RestCall],
    fields: Sequence[Field] = (),
    is_ready: bool = True,
    preview: Sequence[Sequence[str]] = (),
) -> Change:
    """Return a change of the stream of a request."""
    back = address("streams", request.path["scope"], request.path["stream"], "settings")
    if verb == "Delete" and request.is_change:
        back = address("streams")
    return Change(
        f"{verb} stream {request.stream}", request.stream, back, request.stream if "/settings" in back else "Streams",
        perform, effects, command, rest, fields, is_ready, preview,
    )  # fmt: skip


async def seal_stream(request: PageRequest) -> Answer:
    """Seal a stream."""

    async def perform() -> str:
        await request.client.seal_stream(request.stream)
        return f"Stream {request.stream} is sealed."

    return await change_page(request, _change(
        request, "Seal", perform,
        effects=["The stream takes no more events, permanently.", "Its events stay readable.",
                 "Open transactions are aborted."],
        command=command("penstock", "stream", "seal", request.stream, "--uri", request.controller),
        rest=[RestCall("PUT", _rest(request, "state"), {"streamState": "SEALED"})],
    ))  # fmt: skip


async def delete_stream(request: PageRequest) -> Answer:
    """Delete a sealed stream."""

    async def perform() -> str:
        await request.client.delete_stream(request.stream)
        return f"Stream {request.stream} is deleted."

    return await change_page(request, _change(
        request, "Delete", perform, effects=["The stream and all its events are deleted. There is no way back."],
        command=command("penstock", "stream", "delete", request.stream, "--yes", "--uri", request.controller),
        rest=[RestCall("DELETE", _rest(request))],
    ))  # fmt: skip


async def truncate_stream(request: PageRequest) -> Answer:
    """Delete the events before a cut, after showing where that is."""
    at = request.text("at", length_max=64 * 1024)
    cut: StreamCut | None = None
    preview: list[tuple[str, str, str]] = []
    if at:
        cut = await cut_at(request.client, request.stream, at, request.now())
        head = await request.client.head(request.stream)
        preview = [("head", short_text(head), short_text(cut))]
        if set(cut.positions) == set(head.positions):
            freed = sum(max(cut.positions[each] - head.positions[each], 0) for each in cut.positions)
            preview.append(("deleted", "", in_bytes(freed)))

    async def perform() -> str:
        assert cut is not None
        await request.client.truncate_stream(cut)
        return f"Stream {request.stream} begins at {short_text(cut)}."

    text = at if at in (*EARLIEST, *LATEST) or at.startswith("{") or not at else position_text(at, request.now())
    return await change_page(request, _change(
        request, "Truncate", perform,
        effects=["Events before the position are deleted, also those that groups have not read.",
                 "A time is rounded down, by at most about 1 MiB of each segment."],
        command=command("penstock", "stream", "truncate", request.stream, "--at",
                        cut.to_text() if cut is not None and at.startswith("{") else text, "--yes", "--uri",
                        request.controller),
        rest=[] if cut is None else [
            RestCall("POST", _rest(request, "truncation"),
                     {"cut": {str(each): offset for each, offset in cut.positions.items()}})
        ],
        fields=[Field("at", "begin at", at, "latest, a time such as 09:00 or 2026-11-26T09:00:00Z, or a stream cut",
                      is_needed=True)],
        is_ready=bool(at), preview=preview,
    ))  # fmt: skip


async def scale_stream(request: PageRequest) -> Answer:
    """Split one segment, or merge neighbours."""
    current = sorted(await request.client.segments_of(request.stream), key=lambda each: each.key_low)
    chosen = request.text("segments")
    into = request.number("into", 2, least=2, most=1000)
    seal: list[SegmentRange] = []
    ranges: list[tuple[float, float]] = []
    if chosen:
        seal, ranges = _scale_of(request.stream, current, chosen, into)

    async def perform() -> str:
        await request.client.scale_stream(request.stream, seal=[each.segment_id for each in seal], key_ranges=ranges)
        return f"Stream {request.stream} has {len(current) - len(seal) + len(ranges)} segments."

    words = ["--split", str(seal[0].segment_id), "--into", str(into)] if len(seal) == 1 else [
        word for each in seal for word in ("--merge", str(each.segment_id))
    ]  # fmt: skip
    known = ", ".join(f"{each.segment_id} ({each.key_low:.3g} to {each.key_high:.3g})" for each in current[:50])
    return await change_page(request, _change(
        request, "Scale", perform,
        effects=["Writers and readers follow by themselves; events of one key stay in order.",
                 "Open transactions of the stream continue."],
        command=command("penstock", "stream", "scale", request.stream, *words, "--uri", request.controller),
        rest=[RestCall("POST", _rest(request, "scale"),
                       {"seal": [each.segment_id for each in seal], "ranges": ranges})],
        fields=[Field("segments", "segments", chosen, f"one id to split it, or ids of neighbours to merge: {known}",
                      is_needed=True), Field("into", "split into", str(into))],
        is_ready=bool(chosen),
        preview=[("segments", str(len(current)), str(len(current) - len(seal) + len(ranges))),
                 ("key ranges", ", ".join(f"{each.key_low:.4g} to {each.key_high:.4g}" for each in seal),
                  ", ".join(f"{low:.4g} to {high:.4g}" for low, high in ranges))],
    ))  # fmt: skip


def _scale_of(
    stream: str, current: Sequence[SegmentRange], chosen: str, into: int
) -> tuple[list[SegmentRange], list[tuple[float, float]]]:
    """Return the segments to seal, and the key ranges that follow them. Raises `BadRequestError`."""
    known = {str(each.segment_id): each for each in current}
    ids = [each for each in re.split(r"[,\s]+", chosen) if each]
    missing = [each for each in ids if each not in known]
    if missing or not ids:
        raise BadRequestError(f"{chosen!r}: name segments of {stream} that take events: {', '.join(known)}")
    seal = sorted({each: known[each] for each in ids}.values(), key=lambda each: each.key_low)
    low, high = seal[0].key_low, seal[-1].key_high
    if len(seal) > 1:
        if any(one.key_high != other.key_low for one, other in pairwise(seal)):
            raise BadRequestError("only neighbours can be merged: their key ranges follow each other")
        return seal, [(low, high)]
    bounds = [low + (high - low) * step / into for step in range(into)]
    return seal, list(zip(bounds, [*bounds[1:], high], strict=True))


_CHANGE = "/streams/{scope}/{stream}/change/"
ROUTES: tuple[PageRoute, ...] = (
    PageRoute("/new-stream", new_stream, is_form=True),
    PageRoute(_CHANGE + "policies", change_policies, is_form=True),
    PageRoute(_CHANGE + "seal", seal_stream, is_form=True),
    PageRoute(_CHANGE + "delete", delete_stream, is_form=True),
    PageRoute(_CHANGE + "truncate", truncate_stream, is_form=True),
    PageRoute(_CHANGE + "scale", scale_stream, is_form=True),
)
