"""`TraceExcerpt`: the readable lines of a trace: calls and their ends, faults, starts and deaths of hosts."""

from __future__ import annotations

import io
import re
from collections import deque

_TOLD = re.compile(
    r"^\S+ (history |fault |driver: |problem |violation |\S+: (start|crash|pause|resume|failed|ended|clock))"
)
#: Too many to be useful; the violations quote them.
_DULL = re.compile(r": saw (EventSeen|OffsetSeen)")
_WRONG = re.compile(r"^\S+ (problem|violation) ")
#: Lines kept before the first problem, and after it.
_KEPT_COUNT = 5000
_AFTER_COUNT = 5
_LINE_LENGTH_MAX = 240


class TraceExcerpt(io.StringIO):
    """Receives a trace as its sink; keeps the events until shortly after the first problem."""

    def __init__(self) -> None:
        super().__init__()
        self._lines: deque[str] = deque(maxlen=_KEPT_COUNT)
        self._left: int | None = None

    def write(self, text: str) -> int:
        """Add lines."""
        for line in text.splitlines():
            if self._left == 0:
                break
            if _TOLD.match(line) and not _DULL.search(line):
                self._lines.append(line if len(line) <= _LINE_LENGTH_MAX else f"{line[:_LINE_LENGTH_MAX]}...")
                if self._left is not None:
                    self._left -= 1
                elif _WRONG.match(line):
                    self._left = _AFTER_COUNT
        return len(text)

    def tail(self, line_count: int) -> list[str]:
        """Return the last lines, oldest first."""
        return list(self._lines)[-line_count:]
