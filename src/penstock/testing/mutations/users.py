"""Planted bugs in what the Python client promises its users."""

from __future__ import annotations

from penstock.testing.workloads.plans import PlanSettings
from penstock.testing.workloads.scenario import Profile

#: Faults are shorter than the others wait before they take a reader for dead, so nobody is taken for dead by mistake.
#: The limits of the clients are shorter still, at times.
USERS = Profile(
    name="users",
    plan=PlanSettings(
        duration_s=20.0,
        lasts_s_max=3.0,
        mean_gap_s_min=2.0,
        mean_gap_s_max=6.0,
        kinds=("Crash", "CrashAtDiskCall", "Partition", "Reset", "SlowLink", "Pause", "ClockJump"),
        swizzle_rate=0.0,
        crash_loop_rate=0.0,
        zombie_rate=0.0,
    ),
    workloads=("events", "user writers", "users"),
    share=1.0,
    takeover_gap_s=0.0,
    writing_s=24.0,
    store_count_max=2,
    refused_rate=0.0,
    memory_flip_rate=0.0,
)
