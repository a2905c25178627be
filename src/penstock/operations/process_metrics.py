"""`ProcessMetrics`: memory, descriptors, start time, and how late the event loop runs."""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Callable

from penstock.operations.metrics import Metrics
from penstock.runtime.waits import cancel_and_wait

#: Interval at which the lateness of the loop is measured, and the number of measurements kept.
_INTERVAL_S = 0.5
_SAMPLE_COUNT = 20


class ProcessMetrics:
    """Measures this process from `start` to `stop`.

    `resident_bytes` returns the resident memory, `start_time_s` is the Unix time of the start of the process.
    """

    def __init__(self, resident_bytes: Callable[[], int], start_time_s: float, version: str) -> None:
        self._resident_bytes = resident_bytes
        self._start_time_s = start_time_s
        self._version = version
        self._lags_s: deque[float] = deque(maxlen=_SAMPLE_COUNT)
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to measure the loop."""
        self._task = asyncio.get_running_loop().create_task(self._measure())

    async def stop(self) -> None:
        """Stop measuring."""
        task, self._task = self._task, None
        if task is not None:
            await cancel_and_wait(task)

    async def _measure(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            begun_s = loop.time()
            await asyncio.sleep(_INTERVAL_S)
            self._lags_s.append(max(loop.time() - begun_s - _INTERVAL_S, 0.0))

    def collect(self, metrics: Metrics) -> None:
        """Add the present numbers."""
        metrics.gauge("build_info", "1, with the version as a label.", 1, version=self._version)
        metrics.gauge("start_time_seconds", "Unix time at which the process started.", self._start_time_s)
        metrics.gauge("process_resident_memory_bytes", "Resident memory of the process.", self._resident_bytes())
        descriptor_count = open_descriptor_count()
        if descriptor_count is not None:
            metrics.gauge("open_descriptors", "Open file descriptors of the process.", descriptor_count)
        metrics.gauge(
            "loop_lag_seconds", "How late the event loop ran a timer, the maximum of the last 10 s.",
            max(self._lags_s, default=0.0),
        )  # fmt: skip


def open_descriptor_count() -> int | None:
    """Return the number of open file descriptors; None where the system does not tell."""
    try:
        return len(os.listdir("/proc/self/fd")) - 1
    except OSError:
        return None
