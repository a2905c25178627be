"""What commands print: lines for people, one JSON document for programs; and confirmation of a deletion."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence

import typer

from penstock.cli.failure import EXIT_USAGE, fail

#: Control characters, which stored data must not send to a terminal.
_VISIBLE = {code: f"\\x{code:02x}" for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\t\n"}
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")


def tell(kind: str, fields: dict[str, object], lines: Iterable[str], *, as_json: bool) -> None:
    """Print `lines`, or as JSON a record: `fields` after its `type`, which is `kind`."""
    if as_json:
        write_text(json.dumps({"type": kind, **fields}) + "\n")
        return
    write_text("".join(f"{line}\n" for line in lines))


def write_text(text: str) -> None:
    """Write to standard output, with what it cannot encode escaped."""
    try:
        sys.stdout.write(text)
    except UnicodeEncodeError:
        encoding = sys.stdout.encoding or "ascii"
        sys.stdout.write(text.encode(encoding, "backslashreplace").decode(encoding))


def write_bytes(lines: bytes) -> None:
    """Write what users have stored to standard output: to a terminal without what would control it."""
    write_all(made_visible(lines) if sys.stdout.isatty() else lines)


def write_all(data: bytes) -> None:
    """Write to standard output and flush it."""
    output = sys.stdout.buffer
    left = memoryview(data)
    while left:
        # All at once as a rule; under PYTHONUNBUFFERED it is a file without a buffer, and a signal may cut a write.
        left = left[output.write(left) :]
    output.flush()


def made_visible(lines: bytes) -> bytes:
    """Return lines with control characters, but for line feeds and tabs, as Python writes them. So with no UTF-8."""
    return lines.decode("utf-8", "backslashreplace").translate(_VISIBLE).encode()


def table(headers: Sequence[str], rows: Iterable[Sequence[object]]) -> Iterable[str]:
    """Return lines of aligned columns, numbers to the right. Without rows there are none, no headers either."""
    filled = [list(row) for row in rows]
    if not filled:
        return
    cells = [[str(cell) for cell in row] for row in filled]
    is_number = [
        all(isinstance(row[column], int | float) or str(row[column]).startswith("-") for row in filled)
        for column in range(len(headers))
    ]
    widths = [max(map(len, column)) for column in zip(headers, *cells, strict=True)]
    for row in ([header.upper() for header in headers], *cells):
        yield "  ".join(
            cell.rjust(width) if to_the_right else cell.ljust(width)
            for cell, width, to_the_right in zip(row, widths, is_number, strict=True)
        ).rstrip()


def in_bytes(count: int) -> str:
    """Return a number of bytes as people read it: ``1.5 MiB``."""
    size, unit = float(count), 0
    while size >= 1024 and unit < len(_UNITS) - 1:
        size, unit = size / 1024, unit + 1
    return f"{count} B" if unit == 0 else f"{size:.1f} {_UNITS[unit]}"


def counted(count: int, noun: str) -> str:
    """Return a number of things: ``1 file``, ``2 files``. The plural of `noun` must end in s."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def in_time(milliseconds: int) -> str:
    """Return a duration as people write it: ``7d``, ``1h30m``, ``250ms``."""
    parts = []
    left = milliseconds
    for unit, unit_ms in (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1)):
        count, left = divmod(left, unit_ms)
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts) or "0s"


def confirm(question: str, what: str, *, is_agreed: bool, as_json: bool) -> None:
    """Ask for confirmation before `what` is deleted, unless `is_agreed` (``--yes``).

    Raises `typer.Exit` if the answer is no, and, without a prompt, if standard input is not a terminal or `as_json`.
    """
    if is_agreed:
        return
    if as_json or not sys.stdin.isatty():
        why = "Standard input is not a terminal" if not sys.stdin.isatty() else "--json does not prompt"
        raise fail(
            f"Not deleted: {what}. {why}; confirm with --yes.",
            kind="ConfirmationNeeded",
            as_json=as_json,
            code=EXIT_USAGE,
        )
    sys.stderr.write(f"{question} [y/N] ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        sys.stderr.write("penstock: nothing was changed\n")
        raise typer.Exit(1)
