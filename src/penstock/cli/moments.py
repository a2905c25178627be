"""Times as people write them on a command line: ``now``, ``-1h``, ``2026-11-22 10:30``, seconds since the epoch."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, tzinfo

from penstock.cli.quantities import milliseconds_of
from penstock.model.errors import InvalidArgumentError

NOW = "now"

#: What help texts say of a time.
FORMS = "now, -1h (an hour ago), '2026-11-22 10:30' (local time), 2026-11-22T10:30Z, or seconds since 1970"
_SECONDS = re.compile(r"\d{9,11}(?:\.\d+)?")
_MILLISECONDS = re.compile(r"\d{12,14}")
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")
_AGO = re.compile(r"-(\d.*)")


def is_moment(text: str) -> bool:
    """Return whether `text` is meant as a time, right or wrong, rather than as another kind of position."""
    compact = text.strip()
    return compact == NOW or any(form.match(compact) for form in (_SECONDS, _MILLISECONDS, _DATE, _AGO))


def moment_of(text: str, now: datetime, zone: tzinfo | None = None) -> datetime:
    """Return the time that `text` means, with its time zone. `zone`: the local one; None: the system's.

    Text without a time zone is local time. A date alone is its midnight. Numbers of 9 to 11 digits are seconds since
    1970-01-01T00:00Z, of 12 to 14 digits milliseconds. Raises `InvalidArgumentError`.
    """
    compact = text.strip()
    if compact == NOW:
        return now
    try:
        if (ago := _AGO.fullmatch(compact)) is not None:
            return now - timedelta(milliseconds=milliseconds_of(ago[1]))
        if _MILLISECONDS.fullmatch(compact):
            return datetime.fromtimestamp(int(compact) / 1000, UTC)
        if _SECONDS.fullmatch(compact):
            return datetime.fromtimestamp(float(compact), UTC)
        found = datetime.fromisoformat(compact)
    except (ValueError, OverflowError, OSError):
        raise InvalidArgumentError(f"{text!r} is not a time: write it as {FORMS}") from None
    if found.tzinfo is not None:
        return found
    return found.astimezone() if zone is None else found.replace(tzinfo=zone)


def moment_text(text: str, now: datetime) -> str:
    """Return the time that `text` means in ISO 8601, in UTC. Raises `InvalidArgumentError`."""
    return moment_of(text, now).astimezone(UTC).isoformat()
