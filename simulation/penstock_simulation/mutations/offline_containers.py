"""Planted bugs in the isolation of healthy streams from a container that is offline: see `OfflineContainer`."""

from __future__ import annotations

import asyncio
from contextlib import AbstractContextManager

from penstock.controller.grpc import slots
from penstock.controller.metadata.listed_streams import ListedStream
from penstock.controller.stream_scanner import StreamScanner
from penstock_simulation.mutations.mutation import Mutation, patched
from penstock_simulation.workloads.plans import PlanSettings
from penstock_simulation.workloads.profile import Profile

OFFLINE_CONTAINER = Profile(
    name="offline container",
    plan=PlanSettings(
        duration_s=6.0, lasts_s_max=1.0, mean_gap_s_min=3.0, mean_gap_s_max=6.0, kinds=("Reset",), swizzle_rate=0.0,
        crash_loop_rate=0.0, zombie_rate=0.0,
    ),
    workloads=("events", "offline container"),
    share=1.0, takeover_gap_s=0.0, writing_s=20.0, store_count_max=1, container_count=16,
    memory_flip_rate=0.0, refused_rate=0.0, scale_rate=0.0, has_retention=True, pace=0.5, call_slots=8,
)  # fmt: skip
"""One container of many is offline for longer than all time-outs of the controller, which has few slots for calls."""


def _wait_for_each_stream() -> AbstractContextManager[None]:
    async def inspect(self: StreamScanner[object], tasks: asyncio.TaskGroup, listed: ListedStream) -> None:
        await self._inspect(listed)

    return patched(StreamScanner, "_inspect_in_place", inspect)


def _share_no_slots() -> AbstractContextManager[None]:
    return patched(slots, "_SLOTS_PER_FREE_SLOT", float("inf"))


OFFLINE_MUTATIONS: tuple[Mutation, ...] = (
    Mutation(
        "wait for each stream of a cycle", "retention of healthy streams continues beside an offline container",
        OFFLINE_CONTAINER, _wait_for_each_stream,
    ),
    Mutation(
        "let calls about one stream hold all slots", "calls about healthy streams are answered",
        OFFLINE_CONTAINER, _share_no_slots,
    ),
)  # fmt: skip
"""Bugs of this kind."""
