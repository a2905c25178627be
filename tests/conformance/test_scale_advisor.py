"""Conformance of every `ScaleAdvisor`: the store by direct calls, and over the wire."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from typing import Any

import pytest

from penstock.client.settings import ClientSettings
from penstock.client.statistics.wire_scale_advice import WireScaleAdvisor
from penstock.client.transport.connection_pool import ConnectionPool
from penstock.model.errors import ConnectionLostError, ContainerNotFoundError, ProtocolError
from penstock.model.names import segment_name
from penstock.model.policies import ScalingKind
from penstock.model.routing import container_of
from penstock.model.scale_advice import ScaleAdvice, ScaleAdvisor, ScaleDirection
from penstock.segmentstore.container_settings import ActivitySettings, ScaleAdviceSettings
from penstock.segmentstore.scale_advisor import StoreScaleAdvisor
from penstock.segmentstore.server import SegmentStoreServer
from penstock.segmentstore.settings import SegmentStoreSettings
from penstock.segmentstore.statistics import Statistics
from penstock.segmentstore.store import SegmentStore
from penstock.segmentstore.tier1.memory_log import MemoryLogFactory
from penstock.wire.commands import WireCommand
from penstock.wire.connection import WireConnection
from penstock.wire.statistics import StatisticsQuery, StoreReport, decode_query, decode_report, encode_message
from support.containers import QUIET, FaultyChunks, memory_runtime, memory_store

HOUR_S = 3600
BY_EVENTS = int(ScalingKind.BY_EVENT_RATE)
ACTIVITY = ActivitySettings(interval_s=1000.0, scale_advice=ScaleAdviceSettings(advice_max=5))


@dataclass
class Stack:
    """A store with two containers of which one runs, and its scale advisor."""

    store: SegmentStore
    advisor: ScaleAdvisor
    created: int = 0

    async def segment(self, rate: int | None = None, *, target: int = 100, scale_type: int = BY_EVENTS) -> str:
        """Create a segment of container 0 that has had a load of `rate` events/s for an hour; None: none at all."""
        while True:
            self.created += 1
            name = segment_name("s", f"stream-{self.created}", 0)
            if container_of(name, 2) == 0:
                break
        await self.store.create_segment(name, scale_type=scale_type, target_rate=target)
        container, segment = self.store.find(name)
        segment.created_ms -= HOUR_S * 1000
        statistics = container.activity_watch.statistics
        if rate is not None:
            statistics.add(
                segment.id, name, events=rate * 5, byte_count=1, scale_type=scale_type, target_rate=target,
                now_s=asyncio.get_running_loop().time() - HOUR_S,
            )  # fmt: skip
            statistics._segments[segment.id].measure(statistics._tick)
        return name

    def watched_for(self, seconds: float) -> None:
        """Let container 0 have begun to watch its segments so long ago."""
        watch = self.store.containers[0].activity_watch
        now_s = asyncio.get_running_loop().time()
        watch.statistics = Statistics(0, ACTIVITY.statistics, now_s - seconds, ACTIVITY.scale_advice)
        watch.statistics.advance(now_s)

    async def advice(self, segments: list[str] | None = None) -> list[ScaleAdvice]:
        return list(await self.advisor.scale_advice(0, segments))


@pytest.fixture(params=["store", "wire"])
async def stack(request: pytest.FixtureRequest) -> AsyncIterator[Stack]:
    runtime = memory_runtime()
    settings = SegmentStoreSettings(container_count=2, container=replace(QUIET, activity=ACTIVITY))
    store = memory_store(MemoryLogFactory(runtime), FaultyChunks(), runtime, settings)
    store._container_ids = [0]
    await store.start()
    server = SegmentStoreServer(store)
    await server.start("127.0.0.1", 0)

    async def home(segment: str) -> tuple[str, int]:
        return "127.0.0.1", server.port

    pool = ConnectionPool(home, ClientSettings(request_timeout_s=5.0))
    made = Stack(store, StoreScaleAdvisor(store) if request.param == "store" else WireScaleAdvisor(pool, 2))
    made.watched_for(HOUR_S)
    yield made
    await pool.close()
    await server.stop()
    await store.stop()
    await runtime.work.close()


async def test_hot_and_cold_segments_are_reported_and_others_are_not(stack: Stack) -> None:
    """The hottest first; what is as it should be, or has a fixed policy, is left out."""
    cold, hot, hotter = await stack.segment(1), await stack.segment(200), await stack.segment(700)
    await stack.segment(100)
    await stack.segment(5000, scale_type=0)
    assert await stack.advice() == [
        ScaleAdvice(hotter, ScaleDirection.UP, 7),
        ScaleAdvice(hot, ScaleDirection.UP, 2),
        ScaleAdvice(cold, ScaleDirection.DOWN),
    ]


async def test_what_is_sealed_deleted_or_fixed_by_now_has_no_advice(stack: Stack) -> None:
    """S-253, S-254: also before the next pass over it, requested for all and by name."""
    sealed, fixed, kept, deleted = [await stack.segment(700) for _ in range(4)]
    await stack.store.seal_segment(sealed)
    await stack.store.update_policy(fixed, scale_type=0, target_rate=0)
    assert [advice.segment for advice in await stack.advice()] == [kept, deleted]
    await stack.store.delete_segment(deleted)
    assert [advice.segment for advice in await stack.advice([sealed, fixed, kept, deleted])] == [kept]


async def test_a_new_policy_counts_at_once(stack: Stack) -> None:
    """The load is judged by what the segment is to bear now."""
    name = await stack.segment(200)
    assert await stack.advice() == [ScaleAdvice(name, ScaleDirection.UP, 2)]
    await stack.store.update_policy(name, scale_type=BY_EVENTS, target_rate=1000)
    assert await stack.advice() == [ScaleAdvice(name, ScaleDirection.DOWN)]


async def test_asked_by_name_a_segment_without_a_load_is_silent(stack: Stack) -> None:
    """What asks is not told of a name that does not exist, nor of a fixed segment."""
    silent, fixed = await stack.segment(), await stack.segment(scale_type=0)
    missing = segment_name("s", "missing", 0)
    asked = [silent, fixed] + ([missing] if container_of(missing, 2) == 0 else [])
    assert await stack.advice(asked) == [ScaleAdvice(silent, ScaleDirection.DOWN, is_silent=True)]
    assert await stack.advice() == []


async def test_a_store_that_has_just_begun_to_watch_does_not_know_what_is_silent(stack: Stack) -> None:
    """S-253: after a restart, or a move, silence has to last again."""
    silent = await stack.segment()
    stack.watched_for(1199.0)
    assert await stack.advice([silent]) == []
    stack.watched_for(1200.0)
    assert len(await stack.advice([silent])) == 1


async def test_a_segment_that_is_young_is_not_silent(stack: Stack) -> None:
    """S-253: it may be about to get its first data."""
    young = await stack.segment()
    stack.store.find(young)[1].created_ms += HOUR_S * 1000
    assert await stack.advice([young]) == []


async def test_a_created_segment_that_never_gets_anything_is_reported(stack: Stack) -> None:
    """S-253: as soon as it has been silent for as long as loads are remembered, and not only when asked about."""
    name = await stack.segment()
    fixed = await stack.segment(scale_type=0)
    watch = stack.store.containers[0].activity_watch
    await watch.poll()
    assert await stack.advice() == []
    noted = watch.statistics.quiet._noted
    assert [told for told, _ in noted.values()] == [name] != [fixed]
    ((segment_id, (_, since_s)),) = noted.items()
    noted[segment_id] = (name, since_s - 1200.0)
    assert await stack.advice() == [ScaleAdvice(name, ScaleDirection.DOWN, is_silent=True)]
    await stack.store.append(name, b"x")
    await watch.poll()
    assert await stack.advice() == []


async def test_an_answer_is_bounded(stack: Stack) -> None:
    """With more than it may hold, heat comes before cold."""
    for _ in range(6):
        await stack.segment(1)
    hot = await stack.segment(200)
    advice = await stack.advice()
    assert len(advice) == 5
    assert advice[0].segment == hot


async def test_a_container_that_is_elsewhere_is_no_cold_one(stack: Stack) -> None:
    """A missing answer is not taken for "nothing to do"."""
    with pytest.raises(ContainerNotFoundError):
        await stack.advisor.scale_advice(1)


async def test_a_store_of_an_earlier_release_is_distinguished_from_one_without_advice() -> None:
    """It skips what it does not know in the query, and its answer has no advice at all."""
    runtime = memory_runtime()
    settings = SegmentStoreSettings(container_count=1, container=QUIET)
    store = memory_store(MemoryLogFactory(runtime), FaultyChunks(), runtime, settings)
    await store.start()
    server = SegmentStoreServer(store)
    await server.start("127.0.0.1", 0)

    async def home(segment: str) -> tuple[str, int]:
        return "127.0.0.1", server.port

    pool = ConnectionPool(home, ClientSettings())
    advisor = WireScaleAdvisor(pool, 1)
    assert await advisor.scale_advice(0) == []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "penstock.segmentstore.request_processor.decode_query", lambda data: StatisticsQuery(containers=[])
        )
        with pytest.raises(ProtocolError, match="earlier release"):
            await advisor.scale_advice(0)
    await server.stop()
    with pytest.raises(ConnectionLostError):
        await advisor.scale_advice(0)
    await pool.close()
    await store.stop()
    await runtime.work.close()


async def test_a_store_that_was_started_again_since_the_last_query_is_asked_again() -> None:
    """The connection has died in between, and shows it only when it is used."""
    runtime = memory_runtime()
    settings = SegmentStoreSettings(container_count=1, container=QUIET)
    store = memory_store(MemoryLogFactory(runtime), FaultyChunks(), runtime, settings)
    await store.start()
    server = SegmentStoreServer(store)
    await server.start("127.0.0.1", 0)

    async def home(segment: str) -> tuple[str, int]:
        return "127.0.0.1", server.port

    pool = ConnectionPool(home, ClientSettings())
    advisor = WireScaleAdvisor(pool, 1)
    lost = 0
    request = WireConnection.request

    async def loses_one(self: WireConnection, request_id: int, command: WireCommand, **others: Any) -> object:
        nonlocal lost
        lost += 1
        if lost == 1:
            await self.close()
            raise ConnectionLostError("it has died")
        return await request(self, request_id, command, **others)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(WireConnection, "request", loses_one)
        assert await advisor.scale_advice(0) == []
    assert lost == 2
    await pool.close()
    await server.stop()
    await store.stop()
    await runtime.work.close()


def test_queries_and_answers_of_before_are_understood() -> None:
    """Both sides may be of different releases: what an earlier one sends has no word of advice."""
    assert decode_query(b'{"version":1,"containers":[1]}').advice is None
    report = StoreReport(1, 1, 0, 0, 0, 0, None, {}, [])
    text = encode_message(report).replace(b',"advice":null', b"")
    assert b"advice" not in text
    assert decode_report(text).advice is None
