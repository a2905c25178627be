"""A stream's segments over time, drawn as text or as a picture (SVG). Pure functions of a `StreamHistory`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING
from xml.sax.saxutils import escape

from penstock.cli.output import table
from penstock.model.names import segment_number

if TYPE_CHECKING:
    from penstock.client.streams.stream_history import SegmentLife, StreamEpoch, StreamHistory

#: Columns that stand for all keys.
_MAP_COLUMNS = 48

# Of the picture, in pixels.
_LEFT, _TOP, _RIGHT, _BOTTOM = 64, 64, 24, 56
_WIDTH_MIN, _WIDTH_MAX, _EPOCH_WIDTH = 880, 4000, 28
_HEIGHT_MIN, _HEIGHT_MAX, _SEGMENT_HEIGHT = 240, 2400, 12
_LABEL_HEIGHT_MIN, _DIGIT_WIDTH = 9, 7
_TICK_SPACE = 28

#: Two shades for each epoch in which segments begin, in turn: a segment that splits or merges changes colour.
_COLOURS = (
    ("#8ecae6", "#a9d7ec"), ("#ffb703", "#ffc636"), ("#b5e48c", "#c6eaa5"),
    ("#f4a3b4", "#f7bac7"), ("#cdb4db", "#d9c6e4"), ("#e9c46a", "#eed189"),
)  # fmt: skip


def map_lines(history: StreamHistory) -> list[str]:
    """Return lines that show which keys went to which segment from epoch to epoch, new segments with their numbers."""
    rows = [
        (epoch.number, len(epoch.segments), _bar(epoch, {segment.segment_id for segment in created}))
        for epoch, _, created in history.changes()
    ]
    lines = list(table(("epoch", "segments", "keys"), rows))
    first, last = history.epochs[0].number, history.epochs[-1].number
    if len(history.epochs) < history.epoch_count:
        lines.append(f"epochs {first} to {last} of {history.epoch_count}: --epochs shows more")
    lines.append("= new in that epoch, with its number; the id is the number + 2^32 times the epoch")
    return lines


def map_fields(history: StreamHistory) -> dict[str, object]:
    """Return the same for programs: each epoch with the segments that it is the first to have, and those gone."""
    return {
        "epoch_count": history.epoch_count,
        "epochs": [
            {
                "epoch": epoch.number,
                "segment_count": len(epoch.segments),
                "sealed": [segment.segment_id for segment in sealed],
                "created": [
                    {"segment": segment.segment_id, "key_low": segment.key_low, "key_high": segment.key_high}
                    for segment in created
                ],
            }
            for epoch, sealed, created in history.changes()
        ],
    }


def _bar(epoch: StreamEpoch, new: set[int]) -> str:
    """Draw the keys from 0 to 1: a border where each segment begins, # for several at one place."""
    bar = [" "] * _MAP_COLUMNS + ["|"]
    borders = [0] * (_MAP_COLUMNS + 1)
    for segment in epoch.segments:
        start, end = round(segment.key_low * _MAP_COLUMNS), round(segment.key_high * _MAP_COLUMNS)
        borders[start] += 1
        if segment.segment_id not in new:
            continue
        bar[start:end] = "=" * (end - start)
        label = str(segment_number(segment.segment_id))
        if end - start > len(label) + 1:
            at = start + 1 + (end - start - 1 - len(label)) // 2
            bar[at : at + len(label)] = label
    for column, count in enumerate(borders):
        if count:
            bar[column] = "|" if count == 1 else "#"
    return "".join(bar)


def map_svg(history: StreamHistory) -> str:
    """Return a picture: epochs from left to right, keys from bottom to top, a rectangle for each segment's life."""
    epochs = history.epochs
    segment_count_max = max(len(epoch.segments) for epoch in epochs)
    width = min(max(_WIDTH_MIN, _EPOCH_WIDTH * len(epochs)), _WIDTH_MAX)
    height = min(max(_HEIGHT_MIN, _SEGMENT_HEIGHT * segment_count_max), _HEIGHT_MAX)
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{_LEFT + width + _RIGHT}" '
            f'height="{_TOP + height + _BOTTOM}" font-family="sans-serif" font-size="12">',
            '<rect width="100%" height="100%" fill="white"/>',
            f'<text x="{_LEFT}" y="26" font-size="18">{escape(history.scope)}/{escape(history.stream)}</text>',
            f'<text x="{_LEFT}" y="46" fill="#555">{escape(_summary(history))}</text>',
            *(_rectangle(history, life, width, height) for life in history.lives()),
            *_key_axis(height),
            *_epoch_axis(history, width, height),
            "</svg>",
            "",
        ]
    )


def _summary(history: StreamHistory) -> str:
    first, last = history.epochs[0].number, history.epochs[-1].number
    shown = f"epoch {first}" if first == last else f"epochs {first} to {last}"
    count = len(history.epochs[-1].segments)
    last_ones = f"{count} segment{'' if count == 1 else 's'}{' to the end: sealed' if history.is_sealed else ''}"
    return f"{shown} of {history.epoch_count}; {last_ones}"


def _rectangle(history: StreamHistory, life: SegmentLife, width: int, height: int) -> str:
    segment = life.segment
    step = width / len(history.epochs)
    left = _LEFT + (life.first_epoch - history.epochs[0].number) * step
    wide = (life.last_epoch - life.first_epoch + 1) * step
    top = _TOP + (1 - segment.key_high) * height
    high = (segment.key_high - segment.key_low) * height
    number = segment_number(segment.segment_id)
    colour = _COLOURS[life.first_epoch % len(_COLOURS)][number % 2]
    # Borders are thin where segments are, or there would be nothing but borders.
    line = min(1.0, high / 8, wide / 8)
    about = (
        f"segment {segment.segment_id} (number {number}): keys [{segment.key_low:.6g}, {segment.key_high:.6g}), "
        f"epochs {life.first_epoch} to {life.last_epoch}"
    )
    drawn = (
        f'<g><title>{about}</title><rect x="{left:.2f}" y="{top:.2f}" width="{wide:.2f}" height="{high:.2f}" '
        f'fill="{colour}" stroke="#444" stroke-width="{line:.2f}"/>'
    )
    if high >= _LABEL_HEIGHT_MIN and wide >= _DIGIT_WIDTH * len(str(number)) + 4:
        size = min(12.0, high * 0.8)
        drawn += (
            f'<text x="{left + wide / 2:.2f}" y="{top + high / 2 + size * 0.35:.2f}" font-size="{size:.1f}" '
            f'text-anchor="middle">{number}</text>'
        )
    return drawn + "</g>"


def _key_axis(height: int) -> Iterator[str]:
    for part in range(5):
        y = _TOP + height * (1 - part / 4)
        yield f'<line x1="{_LEFT - 5}" x2="{_LEFT}" y1="{y:.1f}" y2="{y:.1f}" stroke="#444"/>'
        yield f'<text x="{_LEFT - 9}" y="{y + 4:.1f}" text-anchor="end">{part / 4:g}</text>'
    middle = _TOP + height / 2
    yield f'<text x="16" y="{middle:.1f}" text-anchor="middle" transform="rotate(-90 16 {middle:.1f})">keys</text>'


def _epoch_axis(history: StreamHistory, width: int, height: int) -> Iterator[str]:
    step, bottom = width / len(history.epochs), _TOP + height
    every = max(1, -(-_TICK_SPACE // max(1, int(step))))
    for index, epoch in enumerate(history.epochs):
        if index % every == 0:
            x = _LEFT + (index + 0.5) * step
            yield f'<text x="{x:.1f}" y="{bottom + 18}" text-anchor="middle">{epoch.number}</text>'
    middle = _LEFT + width / 2
    yield f'<text x="{middle:.1f}" y="{bottom + 40}" text-anchor="middle">epochs, the latest to the right</text>'
    if history.is_sealed:
        x = _LEFT + width
        yield f'<line x1="{x}" x2="{x}" y1="{_TOP}" y2="{bottom}" stroke="#b00020" stroke-width="4"/>'
