"""Numbers, sizes and times as the pages show them. All times are in UTC."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from penstock.web.errors import BadRequestError
from penstock.web.lag_times import LagTime

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
_TIMES = (("d", 86_400), ("h", 3600), ("min", 60), ("s", 1))


def in_bytes(count: float | None) -> str:
    """Return a number of bytes: ``1.5 MiB``; ``?`` for None."""
    if count is None:
        return "?"
    size, unit = float(count), 0
    while size >= 1024 and unit < len(_UNITS) - 1:
        size, unit = size / 1024, unit + 1
    return f"{size:.0f} B" if unit == 0 else f"{size:.1f} {_UNITS[unit]}"


def in_count(count: float | None) -> str:
    """Return a number with separators: ``12,431``; ``?`` for None."""
    return "?" if count is None else f"{count:,.0f}"


def in_seconds(seconds: float | None) -> str:
    """Return a duration by its two largest units: ``2 h 5 min``; ``?`` for None."""
    if seconds is None:
        return "?"
    if 0 < seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    left = max(round(seconds), 0)
    parts: list[str] = []
    for unit, unit_s in _TIMES:
        count, left = divmod(left, unit_s)
        if count:
            parts.append(f"{count} {unit}")
        if len(parts) == 2 or (parts and not count):
            break
    return " ".join(parts) or "0 s"


def in_milliseconds(duration_ms: int) -> str:
    """Return a duration that a policy gives."""
    return in_seconds(duration_ms / 1000)


def at_time(milliseconds: float | None) -> str:
    """Return a Unix time: ``2026-11-26 09:00:00 UTC``; ``not known`` for None."""
    if milliseconds is None:
        return "not known"
    return datetime.fromtimestamp(milliseconds / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def moment(text: str, now: datetime) -> str:
    """Return a time in ISO 8601. Of ``09:00`` it is the last time that a clock in UTC showed it; without a zone: UTC.

    Raises `BadRequestError` if the text is not a time.
    """
    try:
        if len(text) <= 8 and ":" in text:
            clock = datetime.strptime(text, "%H:%M" if text.count(":") == 1 else "%H:%M:%S").time()
            found = datetime.combine(now.date(), clock, UTC)
            found = found - timedelta(days=1) if found > now else found
        else:
            found = datetime.fromisoformat(text.replace("Z", "+00:00"))
            found = found if found.tzinfo else found.replace(tzinfo=UTC)
    except ValueError:
        raise BadRequestError(
            f"{text!r} is not a position: write earliest, latest, last:100, a time such as 09:00 or "
            "2026-11-26T09:00:00Z, or a stream cut"
        ) from None
    return found.isoformat()


def lag_text(found: LagTime | None) -> str:
    """Return the bounds of a lag in words."""
    if found is None or (found.most is None and not found.least):
        return "not known"
    if found.most is None:
        return f"at least {in_seconds(found.least)}"
    return f"{in_seconds(found.least)} to {in_seconds(found.most)}" if found.most else "nothing is unread"
