"""`CallCounts`: how many calls a controller has answered, with which status, and how long they took. For metrics."""

from __future__ import annotations

from penstock.runtime.histogram import Histogram


class CallCounts:
    """Counts answered calls. The names of calls are those of the service, so the dictionaries are bounded.

    Attributes:
        answered: number of calls by (call, status code).
        durations: seconds per call, by call.
    """

    def __init__(self) -> None:
        self.answered: dict[tuple[str, str], int] = {}
        self.durations: dict[str, Histogram] = {}

    def note(self, call: str, code: str, duration_s: float) -> None:
        """Count an answered call."""
        key = (call, code)
        self.answered[key] = self.answered.get(key, 0) + 1
        durations = self.durations.get(call)
        if durations is None:
            durations = self.durations[call] = Histogram()
        durations.observe(duration_s)
