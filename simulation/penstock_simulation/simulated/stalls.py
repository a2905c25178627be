"""`DiskStalls`: stalled or lost parts of a host's disks, with the ends of the stalls."""

from __future__ import annotations

from penstock_simulation.simulated.loop import SimulatedLoop


class DiskStalls:
    """Stalls of one host. They outlive its processes."""

    def __init__(self, loop: SimulatedLoop) -> None:
        self._loop = loop
        self._ends_s: list[tuple[str, float]] = []

    def begin(self, place: str, duration_s: float) -> None:
        """Stall calls on paths that contain `place` for this long. Stalls may overlap."""
        now_s = self._loop.now_s
        self._ends_s = [(other, end_s) for other, end_s in self._ends_s if end_s > now_s]
        self._ends_s.append((place, now_s + duration_s))

    @property
    def is_any(self) -> bool:
        """Whether any part is stalled now."""
        now_s = self._loop.now_s
        return any(end_s > now_s for _, end_s in self._ends_s)

    def until_s(self, path: str) -> float | None:
        """Return until when, on the loop's clock, a call on `path` stalls; None: not at all."""
        now_s = self._loop.now_s
        return max((end_s for place, end_s in self._ends_s if end_s > now_s and place in path), default=None)
