"""`OperationCosts`: CPU time of a simulated segment store, from the operations of its containers.

In a simulation, code takes no time. So that a leader moves containers for load, each operation counts as if it took a
fixed time: the load of a container moves with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from penstock.segmentstore.container.container import SegmentContainer


class OperationCosts:
    """See the module. `containers` returns those that the store serves; `operation_s` is the time of an operation."""

    def __init__(self, containers: Callable[[], Iterable[SegmentContainer]], operation_s: float) -> None:
        self._containers = containers
        self._operation_s = operation_s
        #: Operations of each incarnation at the last call, by container and epoch.
        self._counts: dict[tuple[int, int], int] = {}
        self._total_s = 0.0

    def cpu_s(self) -> float:
        """Return the CPU time so far. What an incarnation did before its first call does not count."""
        counts = {
            (each.id, each.epoch): each.pipeline.sequence_number + each.reader.read_count for each in self._containers()
        }
        done = sum(count - self._counts.get(key, count) for key, count in counts.items())
        self._counts = counts
        self._total_s += done * self._operation_s
        return self._total_s
