"""Planted bugs of servers whose data directory's lock file is removed: see `LockGone`."""

from __future__ import annotations

from contextlib import AbstractContextManager

from penstock.server.data_directory import DataDirectory
from penstock.server.directory_watch import DirectoryWatch
from penstock_simulation.mutations.mutation import Mutation, patched
from penstock_simulation.workloads.plans import PlanSettings
from penstock_simulation.workloads.profile import Profile

#: A server's lock file is removed repeatedly; mostly another server locks the directory for some seconds.
LOST_LOCKS = Profile(
    name="lost locks",
    plan=PlanSettings(
        duration_s=24.0, lasts_s_max=4.0, mean_gap_s_min=3.0, mean_gap_s_max=8.0, kinds=("LockGone", "Crash"),
        swizzle_rate=0.0, crash_loop_rate=0.0, zombie_rate=0.0,
    ),
    workloads=("events", "readers", "bytes", "merges"),
    share=1.0, takeover_gap_s=0.0, writing_s=30.0, store_count_max=1, memory_flip_rate=0.0, refused_rate=0.0,
)  # fmt: skip


def _claim_without_the_lock() -> AbstractContextManager[None]:
    return patched(DataDirectory, "check_held", lambda self: None)


def _never_check_the_lock() -> AbstractContextManager[None]:
    async def check(self: DirectoryWatch) -> None:
        """Check nothing."""

    return patched(DirectoryWatch, "_check", check)


LOST_LOCK_MUTATIONS: tuple[Mutation, ...] = (
    Mutation(
        "claim a log without the lock of the directory", "two servers do not take logs from each other",
        LOST_LOCKS, _claim_without_the_lock,
    ),
    Mutation(
        "never check the lock of the directory", "a server whose directory another one has locked ends",
        LOST_LOCKS, _never_check_the_lock,
    ),
)  # fmt: skip
"""Bugs of this kind."""
