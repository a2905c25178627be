"""Times in users' formats. The clock itself is the runtime's."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TypeAlias

from penstock.model.errors import InvalidArgumentError

#: A moment, with its time zone, or as text in ISO 8601.
Time: TypeAlias = datetime | str

#: A time that a writer notes: a number in a unit of the application's choice, or a moment: milliseconds since the
#: epoch.
NotedTime: TypeAlias = int | Time

_INT64 = range(-(1 << 63), 1 << 63)


def seconds_text(seconds: float) -> str:
    """Format a duration for messages: ``0.25 s``, ``61.3 s``, ``1060 s``; never in powers of ten."""
    digits = 0 if abs(seconds) >= 100 else 1 if abs(seconds) >= 10 else 2
    text = f"{seconds:.{digits}f}"
    return f"{text.rstrip('0').rstrip('.') if '.' in text else text} s"


def is_time(value: object) -> bool:
    """Return whether a value is meant as a `Time`, and not as some other text."""
    return isinstance(value, datetime) or (isinstance(value, str) and value[:4].isdecimal())


def time_ms(value: Time, what: str) -> int:
    """Return a time in milliseconds since the epoch; `what`: its name in messages.

    Raises `InvalidArgumentError` for invalid text, and for a time without a time zone.
    """
    try:
        moment = datetime.fromisoformat(value) if isinstance(value, str) else value
    except ValueError:
        raise InvalidArgumentError(f"{what}={value!r} is not an ISO 8601 time, as 2026-11-22T10:30:00+01:00") from None
    if moment.tzinfo is None:
        raise InvalidArgumentError(
            f"{what}={value!r} has no time zone: use datetime.now(UTC), .astimezone(), or text that ends in Z or +01:00"
        )
    return int((moment - datetime.fromtimestamp(0, UTC)).total_seconds() * 1000)


def noted_time(value: NotedTime, what: str = "time") -> int:
    """Return a noted or requested time as the number that is stored.

    Raises `InvalidArgumentError` for a number of more than 64 bits, and as `time_ms`.
    """
    if isinstance(value, datetime | str):
        return time_ms(value, what)
    if not isinstance(value, int) or isinstance(value, bool) or value not in _INT64:
        raise InvalidArgumentError(f"{what}={value!r}: use a number of 64 bits, or a time with its time zone")
    return value
