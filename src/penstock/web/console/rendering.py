"""Templates: the environment in which pages are rendered. Everything that a page shows is escaped."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from functools import cache
from importlib.resources import files

import jinja2

from penstock.model.names import segment_epoch, segment_number
from penstock.web.console import formats
from penstock.web.console.formats import lag_text
from penstock.web.console.pages import address
from penstock.web.console.reading import ShownEvent
from penstock.web.filters import is_missing, parsed, shown_value, value_at

_PACKAGE = "penstock.web.console"
#: Served as they are, with their media types.
STATIC: Mapping[str, str] = {
    "console.css": "text/css",
    "console.js": "text/javascript",
    "charts.js": "text/javascript",
    "tail.js": "text/javascript",
    "htmx.min.js": "text/javascript",
    "uPlot.iife.min.js": "text/javascript",
    "uPlot.min.css": "text/css",
    "favicon.svg": "image/svg+xml",
}
#: Characters that change what a reader sees around them: controls, and marks of the direction of text.
_VISIBLE: Mapping[int, str] = {
    **{code: f"\\x{code:02x}" for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\t\n"},
    **{code: f"\\u{code:04x}" for code in (0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A))},
    0xFEFF: "\\ufeff",
}
_HEX_BYTES_MAX = 4096
_SUMMARY_LENGTH = 160


@cache
def environment() -> jinja2.Environment:
    """Return the environment: undefined names are errors, and values are escaped."""
    found = jinja2.Environment(
        loader=jinja2.PackageLoader(_PACKAGE),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    found.filters.update(
        bytes=formats.in_bytes, count=formats.in_count, seconds=formats.in_seconds, ms=formats.in_milliseconds,
        time=formats.at_time, visible=visible, event_text=event_text, summary=summary, column=column,
        cut_at=cut_at, segment=segment_text, lag_text=lag_text, text_of=text_of,
    )  # fmt: skip
    found.globals.update(address=address, static=static_address)
    return found


@cache
def static_file(name: str) -> bytes:
    """Return a file that is served as it is. Raises `KeyError` for a name that is not in `STATIC`."""
    if name not in STATIC:
        raise KeyError(name)
    return (files(_PACKAGE) / "static" / name).read_bytes()


@cache
def static_address(name: str) -> str:
    """Return the address of a file, which changes with its content: browsers may keep it."""
    digest = hashlib.sha256(static_file(name)).digest()
    return address("static", name, v=base64.urlsafe_b64encode(digest[:9]).decode())


def rendered(template: str, values: Mapping[str, object]) -> str:
    """Return a page as HTML."""
    return environment().get_template(template).render(values)


def visible(text: str) -> str:
    """Return text with control characters, and marks of the direction of text, as escapes."""
    return text.translate(_VISIBLE)


def text_of(data: bytes) -> str:
    """Return bytes as text; what is not UTF-8, and what is not visible, as escapes."""
    return visible(data.decode("utf-8", "backslashreplace"))


def event_text(event: ShownEvent, form: str) -> str:
    """Return an event as a page shows it: ``text``, ``json`` or ``hex``."""
    if form == "hex":
        return hex_dump(event.data[:_HEX_BYTES_MAX])
    if form == "json" and not event.is_cut:
        document = parsed(event.data)
        if not is_missing(document):
            return visible(json.dumps(document, indent=2, ensure_ascii=False))
    return text_of(event.data)


def summary(text: str) -> str:
    """Return the beginning of a text in one line."""
    line = " ".join(text.split())
    return line if len(line) <= _SUMMARY_LENGTH else line[:_SUMMARY_LENGTH] + "…"


def column(event: ShownEvent, path: tuple[str, ...]) -> str:
    """Return a field of an event; empty if it has none."""
    if event.is_cut:
        return ""
    value = value_at(parsed(event.data), path)
    return "" if is_missing(value) else summary(visible(shown_value(value)))


def segment_text(segment_id: int) -> str:
    """Return a segment as pages show it: its number, with its epoch if that is not the first one."""
    epoch = segment_epoch(segment_id)
    return f"{segment_number(segment_id)} (epoch {epoch})" if epoch else str(segment_number(segment_id))


def cut_at(start: Mapping[int, int], segment_id: int, offset: int) -> str:
    """Return a cut as ``{"0":123}``: `start` with another offset in one segment."""
    return json.dumps({str(each): at for each, at in {**start, segment_id: offset}.items()}, separators=(",", ":"))


def hex_dump(data: bytes) -> str:
    """Return bytes in lines of 16, with offsets and ASCII."""
    lines = []
    for start in range(0, len(data), 16):
        row = data[start : start + 16]
        shown = "".join(chr(byte) if 0x20 <= byte < 0x7F else "." for byte in row)
        lines.append(f"{start:08x}  {row.hex(' '):<47}  {shown}")
    return "\n".join(lines)
