"""`Trace`: everything a simulation decided, as lines and as one digest.

Two runs of a seed must have the same trace, byte for byte; no other result counts without that.
"""

from __future__ import annotations

import hashlib
from collections import deque
from typing import TextIO

#: Lines joined before they are hashed: hashing line by line would cost more than making them.
_BATCH_LINE_COUNT = 256


class Trace:
    """Collects lines; keeps the digest of all and the text of the last `tail_line_count_max`.

    `sink`: a text file that gets every line, for comparing two runs with diff.
    """

    def __init__(self, tail_line_count_max: int = 2000, sink: TextIO | None = None) -> None:
        self._hash = hashlib.sha256()
        self._batch: list[str] = []
        self._tail: deque[str] = deque(maxlen=tail_line_count_max)
        self._sink = sink
        self._line_count = 0

    def add(self, time_s: float, text: str) -> None:
        """Add a line: virtual time in seconds and the event. `text` has no addresses or other unstable data."""
        batch = self._batch
        batch.append(f"{time_s:.9f} {text}")
        if len(batch) >= _BATCH_LINE_COUNT:
            self._settle()

    def _settle(self) -> None:
        if not self._batch:
            return
        lines, self._batch = self._batch, []
        self._line_count += len(lines)
        text = "\n".join(lines) + "\n"
        self._hash.update(text.encode())
        self._tail.extend(lines)
        if self._sink is not None:
            self._sink.write(text)

    @property
    def line_count(self) -> int:
        """Lines added so far."""
        return self._line_count + len(self._batch)

    @property
    def digest(self) -> str:
        """SHA-256 of all lines so far, each ended by a newline, in hex."""
        self._settle()
        return self._hash.hexdigest()

    def tail(self, line_count: int | None = None) -> list[str]:
        """Return the last lines, oldest first."""
        self._settle()
        lines = list(self._tail)
        return lines if line_count is None else lines[max(0, len(lines) - line_count) :]
