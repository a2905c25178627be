"""Runs a script of changes over a segment store that fails at one of its writes.

A controller that dies there is followed by one that starts then, or by one that is alive beside it.

A script is made of the store, and has `steps`: each takes the controller, can be repeated, and leaves the same behind
however often it was. At the end of all steps nothing may be left.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from penstock.controller.metadata import layout
from penstock.controller.ownership.buckets import Buckets
from penstock.controller.service import ControllerService
from penstock.controller.settings import ControllerSettings
from penstock_simulation.memory_segments import MemorySegments
from support.failing_segments import FailingSegments, Fault, attempt
from support.in_process_cluster import InProcessCluster

#: Plays a script of a type on a cluster, with a fault at a write; returns the number of writes.
Play = Callable[[InProcessCluster, "type[Script]", int, Fault], Awaitable[int]]
SETTINGS = ControllerSettings(retry_delay_ms_first=0, retry_delay_ms_max=0, transaction_id_range=3, removal_delay_ms=0)


class Script(Protocol):
    """See the module."""

    def __init__(self, store: MemorySegments) -> None: ...

    def steps(self) -> Sequence[Callable[[ControllerService], Awaitable[object]]]: ...


async def run(cluster: InProcessCluster, script_type: type[Script], at: int, fault: Fault, *, again_at: int = 0) -> int:
    """Run a script with a fault at write `at`; return the number of writes that it took.

    With `again_at` the controller that comes after the first death dies at its own write of that number.
    """
    store = cluster.store
    failing = FailingSegments(store, at, fault)
    service = cluster.build(SETTINGS, segments=failing)
    script = script_type(store)
    steps = [ControllerService.start, *script.steps()]
    for step in steps:
        for _ in range(5):
            if await attempt(step, service, failing):
                break
            while failing.is_dead:
                await service.stop()
                failing, again_at = FailingSegments(store, again_at, fault), 0
                service = cluster.build(SETTINGS, segments=failing)
                if await attempt(ControllerService.start, service, failing):
                    await attempt(ControllerService.idle, service, failing)
        else:
            raise AssertionError(f"{step} did not succeed")
    await _check_end(cluster, service)
    return failing.count


async def run_with_survivor(cluster: InProcessCluster, script_type: type[Script], at: int, fault: Fault) -> int:
    """As `run`, with another controller that is alive all the time; it alone continues when the first one has died."""
    store = cluster.store
    failing = FailingSegments(store, at, fault)
    survivor = await cluster.start(SETTINGS)
    service = first = cluster.build(SETTINGS, segments=failing)
    script = script_type(store)
    for step in [ControllerService.start, *script.steps()]:
        for _ in range(5):
            if await attempt(step, service, failing if service is first else FailingSegments(store, 0, fault)):
                break
            if failing.is_dead and service is first:
                await first.stop()
                service = survivor
                # It is notified of the end in a turn of its own.
                await asyncio.sleep(0)
                await survivor.idle()
        else:
            raise AssertionError(f"{step} did not succeed")
    if service is first:
        assert survivor.statistics().taken_over_count == 0
    await first.stop()
    await _check_end(cluster, survivor)
    return failing.count


async def at_each_write(
    play: Play, fresh: Callable[[], InProcessCluster], script_type: type[Script], fault: Fault
) -> None:
    """Play a script (`run` or `run_with_survivor`) once for each of its writes, failing there."""
    writes = await play(fresh(), script_type, 0, fault)
    assert writes > 100
    for at in range(1, writes + 1):
        try:
            await play(fresh(), script_type, at, fault)
        except Exception as error:
            raise AssertionError(f"{fault.value}, at write {at} of {writes}") from error


class AllBuckets(Buckets):
    """All streams are this controller's."""

    def __init__(self) -> None:
        """Hold nothing: ownership is not asked of a coordinator."""

    def owned(self, scope: str, stream: str) -> bool:
        return True


async def _check_end(cluster: InProcessCluster, service: ControllerService) -> None:
    """Check that nothing is left, after a scan by a last controller."""
    store = cluster.store
    await service.idle()
    await service.stop()
    # A transaction whose creation failed is cleaned up when its lease ends, or by the next controller.
    last = await cluster.start(SETTINGS)
    await last.idle()
    assert not store.segments
    for table in (layout.PENDING_WORK, layout.TRANSACTION_INDEX):
        assert not [key for key in store.tables[table].entries if b"/" in key]
    # Deleted streams are removed from the lists of cycles when a pass reads these, here for all owners.
    for cycle in (last._watermarks._cycle, last._retention._cycle):
        cycle._buckets = AllBuckets()
        await cycle.once()
        assert not [each async for each in cycle._streams.all()]
    cluster_wide = (*layout.SYSTEM_TABLES, layout.MARKED_STREAMS, layout.RETAINED_STREAMS)
    left = [name for name in store.tables if name not in cluster_wide and "Batch-" not in name]
    assert sorted(left) == sorted(name for name in store.tables if name.startswith("_system/_tables/_system/"))
