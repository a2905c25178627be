"""Changes of a stream's configuration: what is on record when, two of them at once, one of them again.

Shows S-074, S-075 and S-077, each where it is named.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from penstock.controller.errors import WorkElsewhereError, WorkflowTimeoutError
from penstock.controller.metadata.pending_work import Subject, SubjectKind, UpdateStream
from penstock.controller.metadata.records import ConfigurationRecord, StreamState
from penstock.controller.metadata.stream_tables import StreamTables
from penstock.controller.service import ControllerService
from penstock.controller.settings import ControllerSettings
from penstock.model.policies import Scaling, StreamConfig
from penstock.rpc import controller_pb2 as pb
from penstock_simulation.memory_segments import MemorySegments
from support.in_process_cluster import InProcessCluster
from support.mark_segments import without_marks

if TYPE_CHECKING:
    from controller.conftest import Wire

SETTINGS = ControllerSettings(peer_poll_ms=1, retry_delay_ms_first=1, retry_delay_ms_max=2)
#: Waits for other work for no longer than this; work without conflicts may take longer.
IMPATIENT = replace(SETTINGS, workflow_timeout_s=0.05)
STREAM = Subject(SubjectKind.STREAM, "scope", "stream")
OLD = StreamConfig(Scaling.by_event_rate(5), tags=("both", "old"))
NEW = StreamConfig(Scaling.by_event_rate(9, min_segments=2), tags=("both", "new"))


class Held:
    """Holds up the first request of an update to the segments of any stream, once `hold` was called."""

    def __init__(self, store: MemorySegments) -> None:
        self.reached, self.go_on = asyncio.Event(), asyncio.Event()
        self.go_on.set()
        self.policies = 0
        update_policy = store.update_policy

        async def held(segment: str, **options: int) -> None:
            self.policies += 1
            self.reached.set()
            await self.go_on.wait()
            await update_policy(segment, **options)

        store.update_policy = held  # type: ignore[method-assign]

    def hold(self) -> None:
        self.go_on.clear()


async def tables_of(service: ControllerService) -> StreamTables:
    return await service._catalog.on_stream("scope", "stream", _itself)


async def _itself(tables: StreamTables) -> StreamTables:
    return tables


async def with_tags(service: ControllerService, *tags: str) -> list[tuple[str, ...]]:
    return [(await service.list_streams_by_tag("scope", tag, "")).names for tag in tags]


def rates(cluster: InProcessCluster) -> dict[str, int]:
    return {name: found.target_rate for name, found in without_marks(cluster.store).items() if not found.is_sealed}


async def test_an_update_is_recorded_before_any_effect(cluster: InProcessCluster) -> None:
    """S-074: the replaced policy of the segments, their number and tags are still in force. No other update begins.

    A second update meanwhile waits, and is refused when its time is over; it leaves no trace.
    """
    held = Held(cluster.store)
    service = await cluster.start(SETTINGS)
    await service.create_scope("scope")
    await service.create_stream("scope", "stream", OLD)
    tables = await tables_of(service)
    held.hold()
    changing = asyncio.create_task(service.update_stream("scope", "stream", NEW))
    await held.reached.wait()
    record = (await tables.configuration()).record
    assert record == ConfigurationRecord("scope", "stream", NEW, is_updating=True, removed_tags=("old",))
    assert (await tables.state()).record.state is StreamState.UPDATING
    assert rates(cluster) == {"scope/stream/0.#epoch.0": 5}
    assert await with_tags(service, "both", "old", "new") == [("stream",), ("stream",), ()]
    other = await cluster.start(IMPATIENT)
    with pytest.raises((WorkElsewhereError, WorkflowTimeoutError)):
        await other.update_stream("scope", "stream", StreamConfig(Scaling.fixed(3)))
    await other.idle()
    assert (await tables.configuration()).record == record
    held.go_on.set()
    await changing
    assert (await tables.configuration()).record == ConfigurationRecord("scope", "stream", NEW)
    assert (await tables.state()).record.state is StreamState.ACTIVE
    assert rates(cluster) == {"scope/stream/1.#epoch.1": 9, "scope/stream/2.#epoch.1": 9}
    assert await with_tags(service, "both", "old", "new") == [("stream",), (), ("stream",)]


async def test_updates_at_once_are_done_one_after_the_other(
    connect: Callable[..., Awaitable[Wire]], cluster: InProcessCluster
) -> None:
    """S-075: the second waits, also at another controller. One whose time is over fails, and succeeds afterwards."""
    held = Held(cluster.store)
    first, second, impatient = [await connect(settings) for settings in (SETTINGS, SETTINGS, IMPATIENT)]
    await first.stub.createScope(pb.ScopeInfo(scope="scope"))  # type: ignore[misc]

    def config(tag: str) -> pb.StreamConfig:
        policy = pb.ScalingPolicy(scaleType=pb.ScalingPolicy.FIXED_NUM_SEGMENTS, minNumSegments=1)
        info = pb.StreamInfo(scope="scope", stream="stream")
        return pb.StreamConfig(streamInfo=info, scalingPolicy=policy, tags=pb.Tags(tag=[tag]))

    async def update(wire: Wire, tag: str) -> Any:
        return (await wire.stub.updateStream(config(tag))).status  # type: ignore[misc]

    await first.stub.createStream(config("zero"))  # type: ignore[misc]
    held.hold()
    running = [asyncio.create_task(update(first, "one"))]
    await held.reached.wait()
    running.append(asyncio.create_task(update(second, "two")))
    (refused,) = await asyncio.gather(update(impatient, "three"), return_exceptions=True)
    assert isinstance(refused, grpc.aio.AioRpcError), refused  # type: ignore[has-type]
    # Its time was over here or there; clients repeat both.
    assert refused.code() in (grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.FAILED_PRECONDITION)  # type: ignore[has-type]
    await impatient.service.idle()
    assert not any(one.done() for one in running)
    held.go_on.set()
    assert await asyncio.gather(*running) == [pb.UpdateStreamStatus.SUCCESS] * 2
    assert (await first.service.stream_configuration("scope", "stream")).tags == ("two",)
    assert await update(first, "three") == pb.UpdateStreamStatus.SUCCESS
    assert (await second.service.stream_configuration("scope", "stream")).tags == ("three",)
    assert held.policies == 3


@pytest.mark.parametrize(
    ("state", "is_announced"),
    [(StreamState.ACTIVE, True), (StreamState.UPDATING, True), (StreamState.UPDATING, False)],
    ids=["again", "again, state left over", "state left over"],
)
async def test_a_completed_update_is_not_repeated(
    service: ControllerService, cluster: InProcessCluster, state: StreamState, is_announced: bool
) -> None:
    """S-077: its record says that it is complete. A state that was left UPDATING nevertheless is reset."""
    held = Held(cluster.store)
    await service.create_stream("scope", "stream", OLD)
    await service.update_stream("scope", "stream", NEW)
    tables = await tables_of(service)
    before, policies = await tables.configuration(), held.policies
    assert policies > 0
    assert before.record == ConfigurationRecord("scope", "stream", NEW)
    await tables.set_state(state)
    if is_announced:
        await service._context.begin(STREAM, UpdateStream(NEW), tables.stream_id)
    await service._runner.settle(STREAM)
    assert await tables.configuration() == before
    assert held.policies == policies
    assert (await tables.state()).record.state is StreamState.ACTIVE
    assert [subject async for subject in service._context.claims.pending()] == []
    assert len(await service.current_segments("scope", "stream")) == 2
