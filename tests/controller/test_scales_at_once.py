"""Two scales of one stream at once, each ordered by hand or by load, at two controllers that are alive.

Shows S-042, S-062, S-063 and S-065, each where it is named.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from penstock.controller.errors import ScalePreconditionError, ScaleUnderWayError
from penstock.controller.locator import SingleStoreLocator
from penstock.controller.metadata import layout
from penstock.controller.metadata.pending_work import AnnouncementFence, Lane, Subject, SubjectKind
from penstock.controller.metadata.records import EpochTransition, StreamState
from penstock.controller.metadata.segments_store import SegmentsMetadataStore
from penstock.controller.metadata.stream_tables import StreamTables
from penstock.controller.metadata.work_claims import _fence_of
from penstock.controller.service import ControllerService
from penstock.controller.settings import AutoScalingSettings, ControllerSettings, WatermarkSettings
from penstock.model.names import segment_name
from penstock.model.policies import Scaling, StreamConfig
from penstock.model.routing import container_of
from penstock.model.scale_advice import ScaleAdvice, ScaleDirection
from support.controller_faults import BlockedSegments, ScriptedSegments, StalledSegments
from support.crash_script import AllBuckets
from support.failing_segments import OneByOne
from support.in_process_cluster import InProcessCluster
from support.mark_segments import without_marks

SETTINGS = ControllerSettings(
    retry_delay_ms_first=1,
    retry_delay_ms_max=2,
    peer_poll_ms=1,
    auto_scaling=AutoScalingSettings(interval_s=1e9),
    watermarks=WatermarkSettings(is_enabled=False),
)
CONTAINERS = 4
STREAM = Subject(SubjectKind.STREAM, "scope", "stream")
#: Into how many parts the first order and the second one split a segment: so their epochs can be told apart.
FIRST_PARTS, SECOND_PARTS = 2, 4


class Advisor:
    """`ScaleAdvisor` that says of one segment that it is hot, or nothing."""

    def __init__(self) -> None:
        self.advice = None

    async def scale_advice(self, container_id: int, segments: object = None) -> list[ScaleAdvice]:
        await asyncio.sleep(0)
        if segments is not None or self.advice is None:
            return []
        return [self.advice] if container_of(self.advice.segment, CONTAINERS) == container_id else []  # type: ignore[unreachable]


def controller(cluster: InProcessCluster, segments: OneByOne) -> ControllerService:
    """Return a controller that reads loads only on request, and then those of all streams."""
    service = ControllerService(
        metadata=SegmentsMetadataStore(segments, SETTINGS),  # type: ignore[arg-type]
        segments=segments,  # type: ignore[arg-type]
        locator=SingleStoreLocator("127.0.0.1", 6000, CONTAINERS),
        runtime=cluster.runtime(),
        settings=SETTINGS,
        advisor=Advisor(),
        coordinator=cluster.coordinator,
    )
    cluster.services.append(service)
    service._auto_scaler._buckets = AllBuckets()  # type: ignore[union-attr]
    return service


async def two_controllers(
    cluster: InProcessCluster, first: StalledSegments, second: ScriptedSegments
) -> tuple[ControllerService, ControllerService]:
    """Start controllers over these segments, with a stream of two segments."""
    services = controller(cluster, first), controller(cluster, second)
    for service in services:
        await service.start()
    await services[0].create_scope("scope")
    policy = Scaling.by_event_rate(100, factor=SECOND_PARTS, min_segments=2)
    await services[0].create_stream("scope", "stream", StreamConfig(policy))
    await idle(*services)
    return services


async def idle(*services: ControllerService) -> None:
    for _ in range(2):
        for service in services:
            await service.idle()


async def by_hand(service: ControllerService, segment: int, parts: int) -> str:
    """Order a split as the API does; return what became of the order."""
    width = 0.5 / parts
    ranges = [(segment / 2 + part * width, segment / 2 + (part + 1) * width) for part in range(parts)]
    try:
        await service.scale_stream("scope", "stream", [segment], ranges)
    except ScaleUnderWayError:
        return "under way"
    except ScalePreconditionError:
        return "too late"
    return "accepted"


async def by_load(service: ControllerService, segment: int, parts: int) -> str:
    """Let the controller process a load that asks for a split; a refused one begins nothing."""
    service._auto_scaler._advisor.advice = ScaleAdvice(  # type: ignore[union-attr]
        segment_name("scope", "stream", segment), ScaleDirection.UP, parts
    )
    await service._auto_scaler.poll()  # type: ignore[union-attr]
    return "inspected"


async def itself(tables: StreamTables) -> StreamTables:
    return tables


async def check_end(cluster: InProcessCluster, service: ControllerService) -> list[int]:
    """Check that all is over and nothing is left over; return into how many parts each scale has split something."""
    tables = await service._catalog.on_stream("scope", "stream", itself)
    assert (await tables.state()).record.state is StreamState.ACTIVE
    assert (await tables.transition()).record == EpochTransition()
    assert not [key for key in cluster.store.tables[layout.PENDING_WORK].entries if b"/" in key]
    current = await tables.current_epoch()
    epochs = await tables.epochs(0, current.epoch)
    assert [epoch.reference_epoch for epoch in epochs] == list(range(len(epochs)))
    assert await tables.epoch(current.epoch + 1) is None
    every = {segment_name("scope", "stream", segment.id) for epoch in epochs for segment in epoch.segments}
    open_now = {segment_name("scope", "stream", segment.id) for segment in current.segments}
    found = without_marks(cluster.store)
    assert found.keys() == every
    assert {name for name, segment in found.items() if not segment.is_sealed} == open_now
    ended = [segment.id for epoch in epochs for segment in epoch.segments if segment not in current.segments]
    assert (await tables.sealed_sizes(ended)).keys() == set(ended)
    return [sum(segment.creation_epoch == epoch.epoch for segment in epoch.segments) for epoch in epochs if epoch.epoch]


async def run(
    cluster: InProcessCluster,
    first_order: Callable[..., Awaitable[str]],
    second_order: Callable[..., Awaitable[str]],
    second_segment: int,
    at: int,
) -> tuple[str, str, list[int]] | None:
    """Let the first order stand still before its write number `at`, and the second one come.

    Return what became of either, and which scales there were; None if the first has no such write.
    """
    stalled, polled = StalledSegments(cluster.store), ScriptedSegments(cluster.store)
    first, second = await two_controllers(cluster, stalled, polled)
    stalled.stall_at(at)

    async def to_the_end() -> str:
        end = await first_order(first, 0, FIRST_PARTS)
        await first.idle()
        return end

    one = asyncio.create_task(to_the_end())
    reached = asyncio.create_task(stalled.reached.wait())
    await asyncio.wait([one, reached], return_when=asyncio.FIRST_COMPLETED)
    if not stalled.reached.is_set():
        reached.cancel()
        await one
        return None
    before = polled.calls
    other = asyncio.create_task(second_order(second, second_segment, SECOND_PARTS))  # type: ignore[arg-type]
    # It is done, or asks again and again whether it may begin.
    while not other.done() and polled.calls < before + 40:  # noqa: ASYNC110  # Polling is what is inspected.
        await asyncio.sleep(0.001)
    stalled.go_on.set()
    first_end, end = await one, await other
    await idle(first, second)
    scales = await check_end(cluster, second)
    if end == "under way":
        # As clients do: they ask again when the scale that was under way is complete.
        assert scales == [FIRST_PARTS]
        end = f"under way, then {await second_order(second, second_segment, SECOND_PARTS)}"
        await idle(first, second)
        scales = await check_end(cluster, second)
    return first_end, end, scales


ORDERS = pytest.mark.parametrize(
    ("first_order", "second_order"),
    [(by_hand, by_hand), (by_load, by_load), (by_hand, by_load), (by_load, by_hand)],
    ids=["by hand, by hand", "by load, by load", "by hand, by load", "by load, by hand"],
)


async def ends_of_all_points(
    fresh: Callable[[], InProcessCluster],
    first_order: Callable[..., Awaitable[str]],
    second_order: Callable[..., Awaitable[str]],
    second_segment: int,
) -> list[tuple[str, str, list[int]]]:
    """Run once for each write of the first order; return what `run` has returned, in order."""
    ends: list[tuple[str, str, list[int]]] = []
    while (end := await run(fresh(), first_order, second_order, second_segment, len(ends) + 1)) is not None:
        ends.append(end)
    # WorkClaim, transition, state, segments, epoch, seal, current epoch, the announcement's withdrawal.
    assert len(ends) >= 8
    return ends


@ORDERS
async def test_of_two_scales_of_one_segment_one_is_done_once(
    fresh: Callable[[], InProcessCluster],
    first_order: Callable[..., Awaitable[str]],
    second_order: Callable[..., Awaitable[str]],
) -> None:
    """S-062 (both by hand), S-063 (both by load), S-042 (one each): the second is refused, or finds nothing to do.

    The scale announced first is done, wherever its controller stalls.
    """
    ends = await ends_of_all_points(fresh, first_order, second_order, 0)
    accepted, refused = ("accepted" if first_order is by_hand else "inspected"), {"inspected"}
    if second_order is by_hand:
        refused = {"too late", "under way, then too late"}
    # Announced with its first write: from the second on it is the first one's turn.
    for first_end, _, scales in ends[1:]:
        assert (first_end, scales) == (accepted, [FIRST_PARTS])
    assert {second_end for _, second_end, _ in ends[1:]} == refused
    first_end, second_end, scales = ends[0]
    assert scales == [SECOND_PARTS]
    assert first_end == ("too late" if first_order is by_hand else "inspected")
    assert second_end == ("accepted" if second_order is by_hand else "inspected")


@ORDERS
async def test_of_two_scales_of_different_segments_the_second_runs_after_the_first(
    fresh: Callable[[], InProcessCluster],
    first_order: Callable[..., Awaitable[str]],
    second_order: Callable[..., Awaitable[str]],
) -> None:
    """S-062, S-063, S-042 where both can be done: each once, one after the other; neither is refused permanently.

    The second one is planned for the epoch that the first one has made.
    """
    ends = await ends_of_all_points(fresh, first_order, second_order, 1)
    assert [scales for *_, scales in ends[1:]] == [[FIRST_PARTS, SECOND_PARTS]] * (len(ends) - 1)
    assert ends[0][2] == [SECOND_PARTS, FIRST_PARTS]
    assert {end for end, *_ in ends} == {"accepted" if first_order is by_hand else "inspected"}
    if second_order is by_hand:
        assert {end for _, end, _ in ends} == {"accepted", "under way, then accepted"}


async def test_an_order_that_finds_another_one_on_record_waits_for_it(cluster: InProcessCluster) -> None:
    """S-065: one by hand gets the conflict, one by load gets in line; the recorded one runs, then the waiting one."""
    held = BlockedSegments(
        cluster.store, lambda segment: segment.startswith("scope/stream/"), call_name="create_segment"
    )
    first, second = await two_controllers(cluster, held, cluster.store)  # type: ignore[arg-type]
    held.is_blocked = True
    assert await by_hand(first, 0, FIRST_PARTS) == "accepted"
    tables = await second._catalog.on_stream("scope", "stream", itself)
    on_record = (await tables.transition()).record
    assert len(on_record.created) == FIRST_PARTS
    assert await by_hand(second, 0, SECOND_PARTS) == "under way"
    assert await by_hand(second, 1, SECOND_PARTS) == "under way"
    waiting = asyncio.create_task(by_load(second, 1, SECOND_PARTS))

    async def line() -> list[tuple[str, Lane]]:
        found = await second._records.get(layout.PENDING_WORK, _fence_of(STREAM), AnnouncementFence)
        return [(each.owner, each.lane) for each in found.record.waiting if each.subject == STREAM.key]  # type: ignore[union-attr]

    async with asyncio.timeout(60):
        while await line() != [(second._context.host, Lane.CHANGE)]:  # noqa: ASYNC110  # A line has no event.
            await asyncio.sleep(0.001)
    assert (await tables.transition()).record == on_record
    held.release()
    await waiting
    await idle(first, second)
    assert await line() == []
    assert await check_end(cluster, second) == [FIRST_PARTS, SECOND_PARTS]
