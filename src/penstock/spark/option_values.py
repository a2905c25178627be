"""Values of options: numbers, sizes and times as text; errors use the names of the options."""

from __future__ import annotations

import re
from collections.abc import Mapping

from penstock.model.errors import InvalidArgumentError

_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|min|h)?\Z")
_DURATION_UNITS_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, None: 1.0}
_BYTES = re.compile(r"(\d+)\s*([kmgt]?)(?:i?b)?\Z")
_BYTES_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


def count(found: Mapping[str, str], name: str, default: int, minimum: int) -> int:
    """Parse a whole number of at least `minimum`. Raises `InvalidArgumentError`, as all functions here do."""
    text = found.get(name)
    if text is None:
        return default
    try:
        value = int(text.strip())
    except ValueError as error:
        raise InvalidArgumentError(f"option {name!r} is {text!r}: give a whole number") from error
    if value < minimum:
        raise InvalidArgumentError(f"option {name!r} is {value}: give at least {minimum}")
    return value


def flag(found: Mapping[str, str], name: str, *, default: bool) -> bool:
    """Parse true or false."""
    text = found.get(name, str(default)).strip().lower()
    if text not in ("true", "false"):
        raise InvalidArgumentError(f"option {name!r} is {found[name]!r}: give true or false")
    return text == "true"


def byte_count(found: Mapping[str, str], name: str) -> int | None:
    """Parse a number of bytes from 1, written as 1048576 or 8m; None if it is not given."""
    text = found.get(name)
    if text is None:
        return None
    match = _BYTES.match(text.strip().lower())
    value = int(match[1]) * _BYTES_UNITS[match[2]] if match else 0
    if value < 1:
        raise InvalidArgumentError(f"option {name!r} is {text!r}: give a number of bytes from 1, like 1048576 or '8m'")
    return value


def duration_s(found: Mapping[str, str], name: str, default_s: float) -> float:
    """Parse a time, written as 30s, 500ms or 2m, to seconds."""
    text = found.get(name)
    if text is None:
        return default_s
    match = _DURATION.match(text.strip().lower())
    if not match:
        raise InvalidArgumentError(f"option {name!r} is {text!r}: give a time like '30s', '500ms' or '2m'")
    return float(match[1]) * _DURATION_UNITS_S[match[2]]
