"""What is kept of a stream and why, as text and as a picture (SVG). Pure functions of a `RetentionExplanation`.

Places lie on a line from the stream's head to its tail, by the bytes before them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING
from xml.sax.saxutils import escape

from penstock.cli.output import in_bytes, in_time
from penstock.client.controller.retention import REASONS
from penstock.model.policies import RetentionKind

if TYPE_CHECKING:
    from penstock.client.controller.retention import RecordedCut, RetentionExplanation, RetentionSubscriber

#: Columns from head to tail, and the longest name that is shown whole beside them.
_COLUMNS, _NAME_LENGTH_MAX = 48, 28
#: Subscribers that are shown, those that have come least far.
_SUBSCRIBERS_SHOWN = 20

# Of the picture, in pixels.
_LEFT, _TOP, _RIGHT, _WIDTH = 224, 104, 32, 720
_ROW_HEIGHT, _BAND_HEIGHT = 34, 22


@dataclass(frozen=True, slots=True)
class _Mark:
    """A row of the picture: one place, by the bytes before it, with its name and a remark."""

    name: str
    size_bytes: int
    remark: str
    is_holding: bool = False


def explanation_lines(found: RetentionExplanation) -> list[str]:
    """Return what is kept and why, and a picture of it."""
    lines = [
        f"stream {found.stream}: {_policy(found)}",
        f"  holds      {in_bytes(found.kept_bytes)}",
        f"  now        {_outcome(found)}",
    ]
    if found.policy is None:
        return lines
    if found.row:
        lines.append(f"  because    {_reason(found)}")
    if found.subscriber_count:
        lines.append(f"  held by    {_holders(found)}")
    lines += [
        f"  cuts       {_cuts(found)}",
        f"  next scan  {_next_scan(found)}",
        "",
        *(f"  {line}" for line in _picture(found)),
    ]
    return lines


def _policy(found: RetentionExplanation) -> str:
    policy = found.policy
    if policy is None:
        return "keeps everything"
    shown = in_time if policy.kind is RetentionKind.BY_TIME else in_bytes
    most = f", at most {shown(policy.max_limit)} for subscribers that lag" if policy.has_max else ""
    return f"keeps {shown(policy.min_limit)}{most}"


def _outcome(found: RetentionExplanation) -> str:
    if found.policy is None:
        return "nothing is deleted: the stream has no retention policy"
    if found.is_sealed:
        return "nothing is deleted: the stream is sealed"
    what = f"{in_bytes(found.cut_bytes)} would be deleted" if found.chosen is not None else "nothing would be deleted"
    return what if found.is_enabled else f"{what}, but retention is switched off (controller.retention.is_enabled)"


def _reason(found: RetentionExplanation) -> str:
    reason = REASONS.get(found.row, found.row)
    if found.chosen is not None or found.is_sealed:
        return reason
    is_silent = found.row in ("NO_CUTS", "SIZE_BELOW_MIN_WITHOUT_CUT", "TIME_WITHOUT_CUT")
    return reason if is_silent else f"{reason}; but that cut does not exist, or is not after the stream's head"


def _holders(found: RetentionExplanation) -> str:
    """Return the subscribers that hold the head: the last ones, if subscribers decide; else none."""
    last = [one for one in found.subscribers if one.is_last]
    names = ", ".join(one.name for one in last[:3]) + (f" and {len(last) - 3} more" if len(last) > 3 else "")
    unread = max((found.tail.size_bytes - one.place.size_bytes for one in last), default=0)
    if not found.is_held:
        return f"none; {names} is furthest from the tail, with {in_bytes(unread)} unread"
    return f"{names}, with {in_bytes(unread)} unread"


def _cuts(found: RetentionExplanation) -> str:
    if not found.cut_count:
        return "none is recorded" + (", the next scan records one" if found.is_cut_due else "")
    oldest, newest = found.cuts[0], found.cuts[-1]
    ages = f"{_age(newest)} to {_age(oldest)} old" if len(found.cuts) > 1 else f"{_age(newest)} old"
    shown = "" if len(found.cuts) == found.cut_count else f"; the newest {len(found.cuts)}:"
    due = "; the next scan records another" if found.is_cut_due else ""
    return f"{found.cut_count} recorded{shown}, {ages}{due}"


def _age(cut: RecordedCut) -> str:
    return in_time(max(round(cut.age_s), 0) * 1000)


def _next_scan(found: RetentionExplanation) -> str:
    if not found.is_enabled or found.is_sealed:
        return "none"
    if found.next_scan_s is None:
        return f"within {in_time(round(found.interval_s * 1000))}, by another controller"
    return "now" if not found.next_scan_s else f"in {in_time(max(round(found.next_scan_s), 1) * 1000)}"


def _limits(found: RetentionExplanation) -> Iterator[_Mark]:
    for name, cut in (("maximum", found.max_cut), ("minimum", found.min_cut)):
        if cut is not None:
            kept = in_bytes(found.tail.size_bytes - cut.size_bytes)
            yield _Mark(name, cut.size_bytes, f"a cut {_age(cut)} old, {kept} after it")


def _subscriber(found: RetentionExplanation, one: RetentionSubscriber) -> _Mark:
    unread = in_bytes(max(found.tail.size_bytes - one.place.size_bytes, 0))
    remark = f"{unread} unread" if one.has_published else f"{unread} unread, has published nothing"
    is_holding = one.is_last and found.is_held
    return _Mark(one.name, one.place.size_bytes, f"{remark}, holds the head" if is_holding else remark, is_holding)


def _marks(found: RetentionExplanation) -> list[_Mark]:
    return [*_limits(found), *(_subscriber(found, one) for one in found.subscribers[:_SUBSCRIBERS_SHOWN])]


def _left_out(found: RetentionExplanation) -> int:
    return found.subscriber_count - min(len(found.subscribers), _SUBSCRIBERS_SHOWN)


def _share(found: RetentionExplanation, size_bytes: int) -> float:
    """Return how far from head to tail a place is, in [0, 1]."""
    if not found.kept_bytes:
        return 0.0
    return min(max((size_bytes - found.head.size_bytes) / found.kept_bytes, 0.0), 1.0)


def _picture(found: RetentionExplanation) -> list[str]:
    """Draw the stream from head to tail, below it cuts, limits and subscribers."""
    marks = _marks(found)
    width = max(6, *(min(len(mark.name), _NAME_LENGTH_MAX) for mark in marks)) if marks else 6

    def line(name: str, bar: str, remark: str = "") -> str:
        short = name if len(name) <= _NAME_LENGTH_MAX else f"{name[: _NAME_LENGTH_MAX - 3]}..."
        return f"{short:<{width}}  {bar}  {remark}".rstrip()

    def column(size_bytes: int) -> int:
        return round(_share(found, size_bytes) * _COLUMNS)

    going = column(found.chosen.size_bytes) if found.chosen is not None else 0
    stream = "[" + ("x" * going + "=" * (_COLUMNS + 1 - going))[1:-1] + "]"
    remark = f"x {in_bytes(found.cut_bytes)} to delete, = {in_bytes(found.kept_bytes - found.cut_bytes)} to keep"
    lines = [
        line("", f"head{'tail':>{_COLUMNS - 3}}"),
        line("stream", stream, remark),
    ]
    if found.cuts:
        counts = [0] * (_COLUMNS + 1)
        for cut in found.cuts:
            counts[column(cut.size_bytes)] += 1
        bar = "".join(" " if not count else "|" if count == 1 else "#" for count in counts)
        lines.append(line("cuts", bar, "| one, # several"))
    for mark in marks:
        at = column(mark.size_bytes)
        sign = "#" if mark.is_holding else "^"
        lines.append(line(mark.name, f"{' ' * at}{sign}{' ' * (_COLUMNS - at)}", mark.remark))
    if left_out := _left_out(found):
        lines.append(line("", " " * (_COLUMNS + 1), f"and {left_out} more subscribers"))
    return lines


def explanation_svg(found: RetentionExplanation) -> str:
    """Return a picture: the stream as a band from head to tail, cuts on it, limits and subscribers below."""
    marks = _marks(found)
    height = _TOP + _BAND_HEIGHT + 40 + _ROW_HEIGHT * len(marks) + 30
    width = _LEFT + _WIDTH + _RIGHT
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif" '
            'font-size="12">',
            '<rect width="100%" height="100%" fill="white"/>',
            f'<text x="24" y="28" font-size="18">{escape(found.stream)}: {escape(_policy(found))}</text>',
            *_texts(found),
            *_band(found),
            *(_lead(found, mark, index) for index, mark in enumerate(marks)),
            *(line for index, mark in enumerate(marks) for line in _row(found, mark, index)),
            *_foot(found, height),
            "</svg>",
            "",
        ]
    )


def _texts(found: RetentionExplanation) -> Iterator[str]:
    texts = [f"Now: {_outcome(found)}.", f"Next scan: {_next_scan(found)}." if found.policy is not None else ""]
    yield f'<text x="24" y="50" fill="#555">{escape(" ".join(filter(None, texts)))}</text>'
    if found.row:
        yield f'<text x="24" y="68" fill="#555">{escape(_reason(found))}</text>'


def _x(found: RetentionExplanation, size_bytes: int) -> float:
    return _LEFT + _share(found, size_bytes) * _WIDTH


def _band(found: RetentionExplanation) -> Iterator[str]:
    bottom = _TOP + _BAND_HEIGHT
    yield f'<text x="{_LEFT - 12}" y="{_TOP + 15}" text-anchor="end">stream</text>'
    yield (
        f'<rect x="{_LEFT}" y="{_TOP}" width="{_WIDTH}" height="{_BAND_HEIGHT}" fill="#8ecae6" stroke="#444">'
        f"<title>{in_bytes(found.kept_bytes - found.cut_bytes)} to keep</title></rect>"
    )
    if found.chosen is not None:
        wide = _x(found, found.chosen.size_bytes) - _LEFT
        yield (
            f'<rect x="{_LEFT}" y="{_TOP}" width="{wide:.1f}" height="{_BAND_HEIGHT}" fill="#f4a3b4" stroke="#444">'
            f"<title>{in_bytes(found.cut_bytes)} to delete</title></rect>"
        )
    for cut in found.cuts:
        x = _x(found, cut.size_bytes)
        yield (
            f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP}" y2="{bottom + 6}" stroke="#444" stroke-width="0.8">'
            f"<title>a cut {_age(cut)} old</title></line>"
        )
    yield f'<text x="{_LEFT}" y="{_TOP - 7}">head</text>'
    yield f'<text x="{_LEFT + _WIDTH}" y="{_TOP - 7}" text-anchor="end">tail</text>'


def _lead(found: RetentionExplanation, mark: _Mark, index: int) -> str:
    """Draw the line from the band to a mark. Before all marks, so that it crosses no text that is drawn later."""
    y = _TOP + _BAND_HEIGHT + 40 + index * _ROW_HEIGHT
    x = _x(found, mark.size_bytes)
    return (
        f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP}" y2="{y}" stroke="{_colour(mark)}" stroke-width="0.8" '
        'stroke-dasharray="2 3"/>'
    )


def _colour(mark: _Mark) -> str:
    return "#b00020" if mark.is_holding else "#226"


def _row(found: RetentionExplanation, mark: _Mark, index: int) -> Iterator[str]:
    y = _TOP + _BAND_HEIGHT + 40 + index * _ROW_HEIGHT
    x = _x(found, mark.size_bytes)
    colour = _colour(mark)
    short = mark.name if len(mark.name) <= _NAME_LENGTH_MAX else f"{mark.name[: _NAME_LENGTH_MAX - 1]}…"
    yield f'<text x="{_LEFT - 12}" y="{y + 4}" text-anchor="end" fill="{colour}">{escape(short)}</text>'
    yield f'<line x1="{_LEFT}" x2="{_LEFT + _WIDTH}" y1="{y}" y2="{y}" stroke="#ddd"/>'
    yield (
        f'<circle cx="{x:.1f}" cy="{y}" r="5" fill="{colour}"><title>{escape(mark.name)}: {escape(mark.remark)}'
        "</title></circle>"
    )
    # Beside the mark, where there is room.
    is_right = x > _LEFT + _WIDTH * 0.6
    at = x - 10 if is_right else x + 10
    anchor = ' text-anchor="end"' if is_right else ""
    yield (
        f'<text x="{at:.1f}" y="{y - 5}" fill="{colour}" stroke="white" stroke-width="4" paint-order="stroke"'
        f"{anchor}>{escape(mark.remark)}</text>"
    )


def _foot(found: RetentionExplanation, height: int) -> Iterator[str]:
    remark = f"blue: {in_bytes(found.kept_bytes - found.cut_bytes)} to keep; "
    remark += f"red: {in_bytes(found.cut_bytes)} to delete; "
    remark += "a line on the band: a recorded cut"
    if left_out := _left_out(found):
        remark += f"; {left_out} more subscribers are not shown"
    yield f'<text x="{_LEFT}" y="{height - 14}" fill="#555">{escape(remark)}</text>'
