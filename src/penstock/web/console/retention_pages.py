"""The pages of retention: what a stream keeps and why, who holds it; and which streams use the space."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from markupsafe import Markup

from penstock.client.controller.retention import REASONS, RetentionExplanation
from penstock.model.errors import AccessDeniedError, PenstockError
from penstock.model.names import split_scoped_name
from penstock.model.policies import RetentionKind
from penstock.runtime.bulk import for_each
from penstock.web.console.formats import in_bytes, in_milliseconds, in_seconds
from penstock.web.console.overview import findings, store_rows
from penstock.web.console.pages import Answer, Page, PageRequest, PageRoute
from penstock.web.console.snippets import Snippet, command
from penstock.web.console.stream_pages import retention_text
from penstock.web.console.streams import scopes_of

#: Of the picture, in units of its view box.
_LEFT, _WIDTH, _BAND, _ROW = 210, 700, 26, 34
_SUBSCRIBERS_SHOWN = 20
#: Streams whose size one page determines, those at once, and the time for it.
_STREAMS_MAX = 1000
_AT_ONCE = 32
_SIZES_TIME_MAX_S = 5.0


async def show_retention(request: PageRequest) -> Answer:
    """Show what the next retention pass would delete of a stream, and what holds the rest."""
    found = await request.client.explain_retention(request.stream)
    return Page("retention.html", f"{request.stream}: retention", {
        "stream": request.stream, "tab": "retention", "found": found, "policy": retention_text(found.policy),
        "outcome": outcome(found), "reason": reason(found), "holders": holders(found), "picture": picture(found),
        "next_pass": _next_pass(found), "shown_max": _SUBSCRIBERS_SHOWN,
        "snippets": [
            Snippet("Command", command("penstock", "retention", "map", request.stream, "--uri", request.controller))
        ],
    })  # fmt: skip


def outcome(found: RetentionExplanation) -> str:
    """Return what the next pass does, in one sentence."""
    if found.policy is None:
        return "Nothing is deleted: the stream has no retention policy."
    if found.is_sealed:
        return "Nothing is deleted: the stream is sealed."
    what = f"{in_bytes(found.cut_bytes)} would be deleted" if found.chosen is not None else "Nothing would be deleted"
    return f"{what}." if found.is_enabled else f"{what}, but retention is switched off for the cluster."


def reason(found: RetentionExplanation) -> str:
    """Return why, in one sentence; empty without a policy."""
    if not found.row:
        return ""
    text = REASONS.get(found.row, found.row)
    is_silent = found.row in ("NO_CUTS", "SIZE_BELOW_MIN_WITHOUT_CUT", "TIME_WITHOUT_CUT")
    if found.chosen is None and not found.is_sealed and not is_silent:
        text += "; but that cut does not exist, or is not after the stream's head"
    return text[0].upper() + text[1:] + "."


def holders(found: RetentionExplanation) -> str:
    """Return the groups that keep data which the policy alone would not; empty: there are none."""
    if not found.is_held:
        return ""
    last = [each for each in found.subscribers if each.is_last]
    names = ", ".join(each.name for each in last[:3]) + (f" and {len(last) - 3} more" if len(last) > 3 else "")
    unread = max((found.tail.size_bytes - each.place.size_bytes for each in last), default=0)
    return f"{names}, with {in_bytes(unread)} not acknowledged"


def _next_pass(found: RetentionExplanation) -> str:
    if not found.is_enabled or found.is_sealed or found.policy is None:
        return "none"
    if found.next_scan_s is None:
        return f"within {in_seconds(found.interval_s)}, by another controller"
    return f"in {in_seconds(found.next_scan_s)}" if found.next_scan_s else "now"


def picture(found: RetentionExplanation) -> Markup:
    """Return the stream as a band from head to tail, with recorded cuts on it, and limits and groups below."""
    marks: list[tuple[str, int, str, str]] = []
    for name, cut in (("maximum", found.max_cut), ("minimum", found.min_cut)):
        if cut is not None:
            kept = in_bytes(found.tail.size_bytes - cut.size_bytes)
            marks.append((name, cut.size_bytes, f"{in_seconds(cut.age_s)} old, {kept} after it", ""))
    for each in found.subscribers[:_SUBSCRIBERS_SHOWN]:
        unread = in_bytes(max(found.tail.size_bytes - each.place.size_bytes, 0))
        is_holding = each.is_last and found.is_held
        remark = f"{unread} not acknowledged" + (", holds the head" if is_holding else "")
        marks.append((each.name, each.place.size_bytes, remark, " holding" if is_holding else ""))
    height = 44 + _BAND + 20 + _ROW * len(marks)
    parts = [
        Markup(
            '<svg class="line" viewBox="0 0 {} {}" role="img" aria-labelledby="retention-title" '
            'xmlns="http://www.w3.org/2000/svg"><title id="retention-title">{}</title>'
        ).format(_LEFT + _WIDTH + 20, height, f"What {found.stream} keeps. The text and the table say the same."),
        *_band(found),
    ]
    for row, (name, size, remark, kind) in enumerate(marks):
        y, x = 44 + _BAND + 30 + _ROW * row, _x(found, size)
        is_right = x > _LEFT + _WIDTH * 0.6
        parts.append(
            Markup(
                '<g class="mark{}"><text x="{}" y="{}" text-anchor="end">{}</text>'
                '<line class="axis" x1="{}" x2="{}" y1="{}" y2="{}"/>'
                '<line class="lead" x1="{:.1f}" x2="{:.1f}" y1="44" y2="{}"/>'
                '<circle cx="{:.1f}" cy="{}" r="5"/><text x="{:.1f}" y="{}" text-anchor="{}">{}</text></g>'
            ).format(
                kind, _LEFT - 12, y + 4, name if len(name) < 30 else f"{name[:29]}…", _LEFT, _LEFT + _WIDTH, y, y, x,
                x, y, x, y, x - 10 if is_right else x + 10, y - 6, "end" if is_right else "start", remark,
            )
        )  # fmt: skip
    return Markup("\n").join([*parts, Markup("</svg>")])


def _x(found: RetentionExplanation, size_bytes: int) -> float:
    if not found.kept_bytes:
        return float(_LEFT)
    share = (size_bytes - found.head.size_bytes) / found.kept_bytes
    return _LEFT + _WIDTH * min(max(share, 0.0), 1.0)


def _band(found: RetentionExplanation) -> list[Markup]:
    kept = in_bytes(found.kept_bytes - found.cut_bytes)
    parts = [
        Markup('<text x="{}" y="34">head</text><text x="{}" y="34" text-anchor="end">tail</text>').format(
            _LEFT, _LEFT + _WIDTH
        ),
        Markup('<rect class="kept" x="{}" y="44" width="{}" height="{}"><title>{} kept</title></rect>').format(
            _LEFT, _WIDTH, _BAND, kept
        ),
    ]
    if found.chosen is not None:
        width = _x(found, found.chosen.size_bytes) - _LEFT
        parts.append(
            Markup('<rect class="going" x="{}" y="44" width="{:.1f}" height="{}"><title>{} to delete</title></rect>')
            .format(_LEFT, width, _BAND, in_bytes(found.cut_bytes))
        )  # fmt: skip
    for cut in found.cuts:
        x = _x(found, cut.size_bytes)
        parts.append(
            Markup('<line class="axis" x1="{:.1f}" x2="{:.1f}" y1="40" y2="{}"/>').format(x, x, 44 + _BAND + 4)
        )
    return parts


@dataclass(frozen=True, slots=True)
class StreamSize:
    """What a stream keeps, or why that is not known."""

    stream: str
    kept_bytes: int
    policy: str
    would_go: str
    held_by: str
    problem: str = ""


async def show_storage(request: PageRequest) -> Answer:
    """Show what uses the space: the streams that keep most, logs, and what is not in long-term storage."""
    scope = request.text("scope")
    problem = ""
    scopes: list[str] = []
    try:
        scopes = await scopes_of(request)
    except AccessDeniedError as error:
        problem = f"{error}: enter a scope that your account may read"
    names: list[str] = []
    is_complete = True
    for each in [scope] if scope else scopes:
        async for name in request.client.streams(each):
            if len(names) == _STREAMS_MAX:
                is_complete = False
                break
            names.append(f"{each}/{name}")
    sizes: list[StreamSize] = []
    await _determine(request, names, sizes)
    sizes.sort(key=lambda each: (-each.kept_bytes, each.stream))
    sampler = await request.rates.of(request.client)
    found = sampler.statistics
    return Page("storage.html", "Storage", {
        "sizes": sizes[:100], "known": len(sizes), "count": len(names), "is_complete": is_complete, "scope": scope,
        "scopes": scopes, "problem": problem, "total": sum(each.kept_bytes for each in sizes),
        "rates_problem": sampler.problem, "stores": [] if found is None else store_rows(found),
        "backlog_bytes": None if found is None else found.backlog_bytes,
        "log_bytes": None if found is None else sum(each.log_bytes for each in found.containers.values()),
        "findings": [] if found is None else list(findings(found, sampler)),
        "snippets": [
            Snippet("Check long-term storage", command("penstock", "storage", "check")),
            Snippet("Check logs", command("penstock", "log", "list")),
            Snippet("Check the machine", command("penstock", "doctor")),
        ],
    })  # fmt: skip


async def _determine(request: PageRequest, names: list[str], sizes: list[StreamSize]) -> None:
    """Fill `sizes` until the time is over. A deleted stream is left out."""

    async def size_of(name: str) -> None:
        try:
            sizes.append(_size(await request.client.explain_retention(name)))
        except AccessDeniedError:
            return
        except PenstockError as error:
            if await request.client.stream_exists(name):
                sizes.append(StreamSize(name, 0, "", "", "", str(error)))

    bound = asyncio.timeout(_SIZES_TIME_MAX_S)
    try:
        async with bound:
            await for_each(names, size_of, _AT_ONCE)
    except TimeoutError:
        if not bound.expired():
            raise


def _size(found: RetentionExplanation) -> StreamSize:
    policy = "none: everything is kept"
    if found.policy is not None:
        shown = in_milliseconds if found.policy.kind is RetentionKind.BY_TIME else in_bytes
        policy = shown(found.policy.min_limit)
    return StreamSize("/".join(split_scoped_name(found.stream)), found.kept_bytes, policy,
                      in_bytes(found.cut_bytes) if found.chosen is not None else "", holders(found))  # fmt: skip


ROUTES: tuple[PageRoute, ...] = (
    PageRoute("/streams/{scope}/{stream}/retention", show_retention),
    PageRoute("/storage", show_storage),
)
