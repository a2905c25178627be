"""Durations and sizes as people write them on a command line: ``7d``, ``1h30m``, ``10GB``, ``512MiB``."""

from __future__ import annotations

import re

import typer

from penstock.model.errors import InvalidArgumentError

_MILLISECONDS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 7 * 86_400_000}
_BYTES = {
    "": 1, "b": 1,
    "k": 1024, "kb": 1000, "kib": 1024,
    "m": 1024**2, "mb": 1000**2, "mib": 1024**2,
    "g": 1024**3, "gb": 1000**3, "gib": 1024**3,
    "t": 1024**4, "tb": 1000**4, "tib": 1024**4,
}  # fmt: skip
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|[smhdw])")
_NUMBER = re.compile(r"(?:\d+(?:\.\d*)?|\.\d+)(?:[eE]\+?\d+)?")
#: The longest duration of an option, in seconds: 100 years.
_SECONDS_MAX = 100 * 365 * 86_400.0
_SIZE = re.compile(r"(\d+(?:\.\d+)?) ?([a-z]*)")


def milliseconds_of(text: str) -> int:
    """Return a duration in milliseconds: ``7d``, ``1h30m``, ``0.5s``. Raises `InvalidArgumentError`."""
    compact = text.strip().lower()
    parts = _PART.findall(compact)
    if not parts or "".join(number + unit for number, unit in parts) != compact:
        raise InvalidArgumentError(f"{text!r} is not a duration: write it as 30s, 15m, 12h, 7d or 1h30m")
    return round(sum(float(number) * _MILLISECONDS[unit] for number, unit in parts))


def seconds_of(text: object) -> float:
    """Return a duration of an option in seconds: ``90s``, ``1m``, or a plain number of seconds, above 0.

    For `parser` of an option, whose default may be a number. Raises `typer.BadParameter`.
    """
    compact = str(text).strip()
    try:
        seconds = float(compact) if _NUMBER.fullmatch(compact) else milliseconds_of(compact) / 1000
    except InvalidArgumentError as error:
        raise typer.BadParameter(str(error)) from None
    if seconds < 0.001:
        raise typer.BadParameter(f"{compact!r} is too short: at least 1ms")
    if seconds > _SECONDS_MAX:
        raise typer.BadParameter(f"{compact!r} is too long: at most 36500d")
    return seconds


def bytes_of(text: str) -> int:
    """Return a size in bytes: ``4096``, ``10GB`` (powers of 1000), ``512MiB`` or ``512M`` (powers of 1024).

    Raises `InvalidArgumentError`.
    """
    found = _SIZE.fullmatch(text.strip().lower())
    if found is None or found[2] not in _BYTES:
        raise InvalidArgumentError(f"{text!r} is not a size: write it as 4096, 10GB or 512MiB")
    return round(float(found[1]) * _BYTES[found[2]])
