"""Events as lines of output: the bytes themselves, JSON, or hexadecimal digits; a batch at a time."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Literal

import msgspec

from penstock.cli.output import made_visible
from penstock.client.reading.event import EventBatch

Format = Literal["text", "json", "hex"]
#: Turns a batch into what is written at once.
Lines = Callable[[EventBatch], bytes]

_encoder = msgspec.json.Encoder()

#: In JSON only these are left: the others are escaped there in any case.
_VISIBLE_IN_JSON = {code: f"\\u{code:04x}" for code in range(0x7F, 0xA0)}


class _Line(msgspec.Struct, omit_defaults=True, tag_field="type", tag="event"):
    """An event as a JSON record. `event` is its text; if that is not UTF-8, `event_base64` has its bytes."""

    segment: int
    offset: int
    event: str | None = None
    event_base64: str | None = None


def lines_of(form: Format, *, with_offsets: bool, is_terminal: bool) -> Lines:
    """Return what turns batches into lines.

    `with_offsets`: each line begins with segment, colon, offset and a tab; JSON has them in any case. `is_terminal`:
    control characters of events are made visible, for they are not the events' to give.
    """
    if form == "json":
        if is_terminal:
            return lambda batch: _json_lines(batch).decode().translate(_VISIBLE_IN_JSON).encode()
        return _json_lines
    if form == "hex":
        return _hex_lines_with_offsets if with_offsets else _hex_lines
    plain = _text_lines_with_offsets if with_offsets else _text_lines
    return (lambda batch: made_visible(plain(batch))) if is_terminal else plain


def _text_lines(batch: EventBatch) -> bytes:
    return b"\n".join(batch.events) + b"\n"


def _text_lines_with_offsets(batch: EventBatch) -> bytes:
    segment = batch.segment
    return b"".join(
        [b"%d:%d\t%b\n" % (segment, offset, event) for event, offset in zip(batch.events, batch.offsets, strict=False)]
    )


def _hex_lines(batch: EventBatch) -> bytes:
    return ("\n".join([event.hex() for event in batch.events]) + "\n").encode()


def _hex_lines_with_offsets(batch: EventBatch) -> bytes:
    segment = batch.segment
    pairs = zip(batch.events, batch.offsets, strict=False)
    return "".join([f"{segment}:{offset}\t{event.hex()}\n" for event, offset in pairs]).encode()


def _json_lines(batch: EventBatch) -> bytes:
    segment = batch.segment
    pairs = zip(batch.events, batch.offsets, strict=False)
    try:
        lines = [_Line(segment, offset, event.decode()) for event, offset in pairs]
    except UnicodeDecodeError:
        lines = [_json_line(segment, offset, event) for event, offset in zip(batch.events, batch.offsets, strict=False)]
    return _encoder.encode_lines(lines)


def _json_line(segment: int, offset: int, event: bytes) -> _Line:
    try:
        return _Line(segment, offset, event.decode())
    except UnicodeDecodeError:
        return _Line(segment, offset, event_base64=base64.b64encode(event).decode())
