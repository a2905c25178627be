"""Planted bugs of days of restarts: sweeps each 24 hours, retention, and what is recorded for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from penstock.controller.retention.retention import Retention
from penstock.segmentstore.tier2.orphans import OrphanChunks, Unrecorded
from penstock_simulation.mutations.mutation import Mutation, patched
from penstock_simulation.simulated.late_requests import LateRequestSettings
from penstock_simulation.workloads.plans import PlanSettings
from penstock_simulation.workloads.profile import Profile

_HOUR_S = 3600.0
_DAYS = 3

#: Three days with a fault every few hours, clean restarts, and background work at the pace of production.
DAYS = Profile(
    name="days",
    plan=PlanSettings(
        duration_s=_DAYS * 24 * _HOUR_S, lasts_s_max=0.5 * _HOUR_S, mean_gap_s_min=6 * _HOUR_S,
        mean_gap_s_max=12 * _HOUR_S, kinds=("Crash", "CrashAtDiskCall", "Pause", "Partition"),
        swizzle_rate=0.0, crash_loop_rate=0.0, zombie_rate=0.0,
    ),
    workloads=("events", "long days"),
    share=1.0, takeover_gap_s=0.0, writing_s=_DAYS * 24 * _HOUR_S, store_count_max=1, has_chunk_faults=False,
    memory_flip_rate=0.0, refused_rate=0.0, scale_rate=0.0, work_cut_rate=0.0, has_retention=True, pace=1 / 3600,
    late_requests=LateRequestSettings(duplicate_rate=0.0, stuck_rate=0.0),
    late_chunk_gap_s=5 * _HOUR_S, check_interval_s=1800.0,
)  # fmt: skip


@contextmanager
def _count_the_interval_from_each_start() -> Iterator[None]:
    original = OrphanChunks.run_sweeps

    async def run_sweeps(
        self: OrphanChunks, epoch: int, unrecorded: Unrecorded, wall_clock_ms: Callable[[], int]
    ) -> None:
        if self.swept_ms is not None:
            self.swept_ms = wall_clock_ms()
        await original(self, epoch, unrecorded, wall_clock_ms)

    with patched(OrphanChunks, "run_sweeps", run_sweeps):
        yield


def _keep_all_recorded_cuts() -> AbstractContextManager[None]:
    async def forget_cuts(self: Retention, situation: object, seen: object) -> None:
        """Remove nothing."""

    return patched(Retention, "_forget_cuts", forget_cuts)


@contextmanager
def _inspect_once_a_day() -> Iterator[None]:
    original = Retention._inspect

    async def inspect(self: Retention, *arguments: object) -> None:
        await original(self, *arguments)  # type: ignore[arg-type]  # as it was called
        seen = arguments[-1]
        seen.next_scan_s = seen.next_scan_s + 24 * _HOUR_S  # type: ignore[attr-defined]  # a `_Seen`

    with patched(Retention, "_inspect", inspect):
        yield


DAY_MUTATIONS: tuple[Mutation, ...] = (
    Mutation(
        "count the interval of sweeps from each start", "what no record refers to goes within a day",
        DAYS, _count_the_interval_from_each_start,
    ),
    Mutation(
        "keep all recorded cuts", "what is recorded of a stream does not grow with its age",
        DAYS, _keep_all_recorded_cuts,
    ),
    Mutation(
        "inspect a stream once a day", "a stream is truncated by its policy for as long as it lives",
        DAYS, _inspect_once_a_day,
    ),
)  # fmt: skip
"""Bugs of this kind."""
