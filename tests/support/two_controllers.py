"""Two controllers that are alive on one segment store, and what tests ask about them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from penstock.controller.metadata import layout
from penstock.controller.metadata.pending_work import Subject, SubjectKind
from penstock.controller.metadata.stream_tables import StreamTables
from penstock.controller.service import ControllerService
from penstock.controller.settings import ControllerSettings
from penstock.model.names import segment_name
from penstock.model.policies import Scaling, StreamConfig
from support.controller_faults import BlockedSegments
from support.in_process_cluster import InProcessCluster

SETTINGS = ControllerSettings(
    attempts_max=2, retry_delay_ms_first=1, retry_delay_ms_max=2, peer_poll_ms=1, damaged_retry_delay_ms=1
)
STREAM = Subject(SubjectKind.STREAM, "scope", "stream")


def announced(cluster: InProcessCluster) -> list[str]:
    """Return the keys of what has an announcement, sorted."""
    return sorted(key.decode() for key in cluster.store.tables[layout.PENDING_WORK].entries if b"/" in key)


async def until(condition: Callable[[], object], what: object) -> None:
    for _ in range(60_000):
        if condition():
            return
        await asyncio.sleep(0.001)
    raise AssertionError(f"not so after 60 s: {what}")


async def _itself(tables: StreamTables) -> StreamTables:
    return tables


async def tables_of(service: ControllerService, stream: str = "stream") -> StreamTables:
    return await service._catalog.on_stream("scope", stream, _itself)


async def start_pair(
    cluster: InProcessCluster, held: str = "scope/"
) -> tuple[ControllerService, ControllerService, BlockedSegments]:
    """Start two controllers, the first over a store that a test can hold up; and make a stream of two segments.

    Each segment has 100 bytes. Return the controllers, and what holds the first one up, in segments whose names begin
    with `held`.
    """
    blocked = BlockedSegments(cluster.store, lambda segment: segment.startswith(held))
    first = cluster.build(SETTINGS, segments=blocked)
    await first.start()
    await first.create_scope("scope")
    await first.create_stream("scope", "stream", StreamConfig(Scaling.fixed(2)))
    for number in (0, 1):
        await cluster.store.append(segment_name("scope", "stream", number), bytes(100))
    second = await cluster.start(SETTINGS)
    await first.idle()
    await second.idle()
    return first, second, blocked
