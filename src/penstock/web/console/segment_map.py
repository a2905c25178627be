"""The map of a stream's segments: time from left to right, keys from bottom to top, a box for each segment's life.

Drawn by the server as SVG without styles: colours come from the style sheet, by class. Pure functions of a history.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from markupsafe import Markup, escape

from penstock.client.streams.stream_history import StreamHistory
from penstock.model.names import segment_epoch, segment_number
from penstock.web.console.formats import at_time, in_count
from penstock.web.console.pages import address

#: Of the picture, in units of its view box.
_LEFT, _TOP, _WIDTH, _HEIGHT, _BOTTOM, _RIGHT = 44, 10, 900, 340, 42, 12
_LABEL_WIDTH_MIN, _LABEL_HEIGHT_MIN = 26, 15
_COLOUR_COUNT = 6
_TICK_COUNT = 6
#: Spans that a page offers, in seconds; 0: everything.
SPANS: Mapping[str, float] = {"1 h": 3600.0, "6 h": 21_600.0, "24 h": 86_400.0, "all": 0.0}


@dataclass(frozen=True, slots=True)
class SegmentBox:
    """The life of one segment as a page shows it.

    Attributes:
        segment_id, number, epoch: its id, and the two parts of it.
        key_low, key_high: its part of the key space.
        first_epoch, last_epoch: of the stream, as far as the history contains them.
        began_ms, ended_ms: Unix times. None for the end: it takes events now. None for the begin: it is not known.
        came_from, went_to: numbers of the segments before and after it.
        how_ended: "split", "merged", "replaced", "sealed" or "" for one that takes events.
        is_truncated: whether all of its events were deleted.
        events_per_s: its rate now; None: not known.
    """

    segment_id: int
    number: int
    epoch: int
    key_low: float
    key_high: float
    first_epoch: int
    last_epoch: int
    began_ms: int | None
    ended_ms: int | None
    came_from: Sequence[int]
    went_to: Sequence[int]
    how_ended: str
    is_truncated: bool
    events_per_s: float | None


def segment_boxes(
    history: StreamHistory, head: Mapping[int, int], rates: Mapping[int, float] | None
) -> list[SegmentBox]:
    """Return the lives of all segments of a history, oldest first.

    `head`: offsets of the stream's head. A segment that ended before every segment of the head began has no events any
    more. `rates`: events per second by segment id; None: they are not known.
    """
    began = {epoch.number: epoch.began_ms for epoch in history.epochs}
    last = history.epochs[-1].number
    lives = history.lives()
    first_of_head = min((segment_epoch(each) for each in head), default=0)
    found = []
    for life in lives:
        each = life.segment
        is_open = life.last_epoch == last
        after = [
            other.segment for other in lives
            if other.first_epoch == life.last_epoch + 1
            and other.segment.key_low < each.key_high and each.key_low < other.segment.key_high
        ]  # fmt: skip
        before = [
            other.segment for other in lives
            if other.last_epoch == life.first_epoch - 1
            and other.segment.key_low < each.key_high and each.key_low < other.segment.key_high
        ]  # fmt: skip
        ended_ms = None if is_open else began.get(life.last_epoch + 1)
        rate = None if rates is None or not is_open or history.is_sealed else rates.get(each.segment_id, 0.0)
        found.append(
            SegmentBox(
                each.segment_id, segment_number(each.segment_id), segment_epoch(each.segment_id), each.key_low,
                each.key_high, life.first_epoch, life.last_epoch, began.get(life.first_epoch), ended_ms,
                [segment_number(one.segment_id) for one in before], [segment_number(one.segment_id) for one in after],
                _how_ended(is_open=is_open, is_sealed=history.is_sealed, after=len(after), key_low=each.key_low,
                           key_high=each.key_high, ends=[(one.key_low, one.key_high) for one in after]),
                not is_open and each.segment_id not in head and life.last_epoch < first_of_head, rate,
            )
        )  # fmt: skip
    return found


def _how_ended(
    *, is_open: bool, is_sealed: bool, after: int, key_low: float, key_high: float, ends: Sequence[tuple[float, float]]
) -> str:
    if is_open:
        return "sealed" if is_sealed else ""
    if after > 1:
        return "split"
    if after == 1 and (ends[0][0] < key_low or ends[0][1] > key_high):
        return "merged"
    return "replaced"


def map_picture(history: StreamHistory, boxes: Sequence[SegmentBox], now_ms: float, span_s: float) -> Markup:
    """Return the picture. `span_s`: what it shows of the past; 0: everything.

    Without times, as of Pravega's controllers, epochs are placed at equal distances.
    """
    has_times = all(epoch.began_ms is not None for epoch in history.epochs)
    axis = _times(history, now_ms, span_s) if has_times else _epochs(history)
    parts = [
        Markup(
            '<svg class="map" viewBox="0 0 {} {}" role="group" aria-labelledby="map-title" '
            'xmlns="http://www.w3.org/2000/svg"><title id="map-title">{}</title>'
        ).format(_LEFT + _WIDTH + _RIGHT, _TOP + _HEIGHT + _BOTTOM, _summary(history)),
        *(_box(history, box, axis) for box in boxes if axis.is_shown(box)),
        *_key_axis(),
        *axis.ticks(),
        Markup("</svg>"),
    ]
    return Markup("\n").join(parts)


def _summary(history: StreamHistory) -> str:
    count = len(history.epochs[-1].segments)
    return (
        f"Segments of {history.scope}/{history.stream} over time: {count} "
        f"{'at the end' if history.is_sealed else 'now'}, {history.epoch_count} epochs. The table below says the same."
    )


@dataclass(frozen=True, slots=True)
class _Axis:
    """The horizontal axis: times, or numbers of epochs, from `begin` to `end`."""

    begin: float
    end: float
    is_time: bool

    def x(self, at: float) -> float:
        width = self.end - self.begin
        return _LEFT + _WIDTH * min(max((at - self.begin) / width if width else 0.0, 0.0), 1.0)

    def span(self, box: SegmentBox) -> tuple[float, float]:
        if not self.is_time:
            return float(box.first_epoch), float(box.last_epoch + 1)
        return float(box.began_ms or 0), self.end if box.ended_ms is None else float(box.ended_ms)

    def is_shown(self, box: SegmentBox) -> bool:
        begin, end = self.span(box)
        return end >= self.begin and begin <= self.end

    def ticks(self) -> Iterator[Markup]:
        is_short = self.end - self.begin < 86_400_000
        for part in range(_TICK_COUNT + 1):
            at = self.begin + (self.end - self.begin) * part / _TICK_COUNT
            label = f"{at:.0f}"
            if self.is_time:
                label = datetime.fromtimestamp(at / 1000, UTC).strftime("%H:%M:%S" if is_short else "%m-%d %H:%M")
            yield Markup('<text class="tick" x="{:.1f}" y="{}" text-anchor="middle">{}</text>').format(
                min(max(self.x(at), _LEFT + 24), _LEFT + _WIDTH - 24), _TOP + _HEIGHT + 18, label
            )
        name = "time (UTC)" if self.is_time else "epochs"
        yield Markup('<text class="tick" x="{}" y="{}" text-anchor="middle">{}</text>').format(
            _LEFT + _WIDTH / 2, _TOP + _HEIGHT + 36, name
        )


def _times(history: StreamHistory, now_ms: float, span_s: float) -> _Axis:
    first = history.epochs[0].began_ms or 0
    last = history.epochs[-1].began_ms or 0
    end = max(now_ms, last + 1)
    begin = max(end - span_s * 1000, first) if span_s else first
    return _Axis(float(min(begin, end - 1)), end, True)


def _epochs(history: StreamHistory) -> _Axis:
    return _Axis(float(history.epochs[0].number), float(history.epochs[-1].number + 1), False)


def _box(history: StreamHistory, box: SegmentBox, axis: _Axis) -> Markup:
    begin, end = axis.span(box)
    left, right = axis.x(begin), axis.x(end)
    width, height = max(right - left, 1.0), max((box.key_high - box.key_low) * _HEIGHT, 1.0)
    top = _TOP + (1 - box.key_high) * _HEIGHT
    classes = f"box c{box.first_epoch % _COLOUR_COUNT}" + (" odd" if box.number % 2 else "")
    classes += " gone" if box.is_truncated else " open" if box.how_ended == "" else ""
    link = address("streams", history.scope, history.stream, "events", segment=box.segment_id, at="earliest")
    drawn = Markup(
        '<a href="{}" tabindex="-1"><g class="{}"><title>{}</title>'
        '<rect x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}"/>'
    ).format(link, classes, _about(box), left, top, width, height)
    if width >= _LABEL_WIDTH_MIN and height >= _LABEL_HEIGHT_MIN:
        label = str(box.number)
        if box.events_per_s is not None and width >= 110:
            label += f": {in_count(box.events_per_s)}/s"
        drawn += Markup('<text x="{:.1f}" y="{:.1f}" text-anchor="middle">{}</text>').format(
            left + width / 2, top + height / 2 + 4, label
        )
    return drawn + Markup("</g></a>")


def _about(box: SegmentBox) -> str:
    text = f"segment {box.number} of epoch {box.epoch}, keys {box.key_low:.4g} to {box.key_high:.4g}"
    text += f", from {at_time(box.began_ms)}"
    if box.how_ended:
        text += f", {box.how_ended}" + (f" at {at_time(box.ended_ms)}" if box.ended_ms is not None else "")
    if box.events_per_s is not None:
        text += f", {in_count(box.events_per_s)} events/s"
    return text + (", all of its events were deleted" if box.is_truncated else "")


def _key_axis() -> Iterator[Markup]:
    for part in range(5):
        y = _TOP + _HEIGHT * (1 - part / 4)
        yield Markup('<line class="axis" x1="{}" x2="{}" y1="{:.1f}" y2="{:.1f}"/>').format(_LEFT - 5, _LEFT, y, y)
        yield Markup('<text class="tick" x="{}" y="{:.1f}" text-anchor="end">{}</text>').format(
            _LEFT - 8, y + 4, escape(f"{part / 4:g}")
        )
