"""Planted bugs of servers whose turns take time: see `Hang`."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from penstock.segmentstore.container.ownership import OwnershipLease
from penstock_simulation.mutations.mutation import Mutation, patched
from penstock_simulation.workloads.plans import PlanSettings
from penstock_simulation.workloads.profile import Profile

#: Servers hang in the middle of turns, mostly for longer than until that is noticed: they are killed, or their
#: containers are moved while they still believe to have them. Callbacks take CPU time.
STALLS = Profile(
    name="stalls",
    plan=PlanSettings(
        duration_s=24.0, lasts_s_max=5.0, mean_gap_s_min=0.5, mean_gap_s_max=1.5, kinds=("Hang",),
        swizzle_rate=0.0, crash_loop_rate=0.0, zombie_rate=0.0,
    ),
    workloads=("events", "readers", "bytes", "tables", "counters", "merges"),
    share=1.0, takeover_gap_s=0.0, writing_s=30.0, store_count_min=2, store_count_max=3, shared_storage_rate=1.0,
    has_chunk_faults=False, memory_flip_rate=0.0, refused_rate=0.0, pace=8.0, callback_cost_s=200e-6,
)  # fmt: skip


@contextmanager
def _take_the_time_of_the_loop() -> Iterator[None]:
    def check(self: OwnershipLease) -> None:
        now_s, self._now_s = self._now_s, asyncio.get_running_loop().time
        try:
            original(self)
        finally:
            self._now_s = now_s

    original = OwnershipLease._check
    with patched(OwnershipLease, "_check", check):
        yield


STALL_MUTATIONS: tuple[Mutation, ...] = (
    Mutation(
        "measure leases by the time of the loop", "who was shut out answers no longer than a lease, also within a turn",
        STALLS, _take_the_time_of_the_loop,
    ),
)  # fmt: skip
"""Bugs of this kind."""
