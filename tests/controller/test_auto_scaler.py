"""The controller's scans of loads: what they begin, and what prevents it. S-n: docs/spec/controller-internals.md."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import pytest

from penstock.controller.locator import SingleStoreLocator
from penstock.controller.metadata import layout
from penstock.controller.metadata.pending_work import Subject
from penstock.controller.metadata.records import EpochTransition, StreamState
from penstock.controller.metadata.segments_store import SegmentsMetadataStore
from penstock.controller.metadata.stream_tables import StreamTables
from penstock.controller.scaling.auto_scaler import AutoScaler
from penstock.controller.service import ControllerService
from penstock.controller.settings import AutoScalingSettings, ControllerSettings
from penstock.model.errors import ConnectionLostError
from penstock.model.names import segment_id, segment_name
from penstock.model.policies import Scaling, StreamConfig
from penstock.model.routing import container_of
from penstock.model.scale_advice import ScaleAdvice, ScaleDirection
from support.in_process_cluster import InProcessCluster

RATE = Scaling.by_event_rate(100)
#: Never fewer than two.
TWO = Scaling.by_event_rate(100, min_segments=2)
CONTAINERS = 4


class Advisor:
    """`ScaleAdvisor` with the test's answers; `told` by name, `known` only when asked by name."""

    def __init__(self) -> None:
        self.told: dict[str, ScaleAdvice] = {}
        self.known: dict[str, ScaleAdvice] = {}
        self.failures: dict[int, ConnectionLostError] = {}
        self.queries = []

    def hot(self, segment: int, splits: int = 2, stream: str = "stream") -> None:
        name = segment_name("scope", stream, segment)
        self.told[name] = ScaleAdvice(name, ScaleDirection.UP, splits)

    def cold(self, *segments: int, stream: str = "stream", where: dict[Any, Any] | None = None) -> None:
        for segment in segments:
            name = segment_name("scope", stream, segment)
            (self.told if where is None else where)[name] = ScaleAdvice(name, ScaleDirection.DOWN)

    async def scale_advice(self, container_id: int, segments: list[str] | None = None) -> list[ScaleAdvice]:
        self.queries.append((container_id, segments))
        await asyncio.sleep(0)
        if container_id in self.failures:
            raise self.failures[container_id]
        if segments is None:
            return [each for name, each in self.told.items() if container_of(name, CONTAINERS) == container_id]
        assert all(container_of(name, CONTAINERS) == container_id for name in segments)
        everything = self.told | self.known
        return [everything[name] for name in segments if name in everything]


@pytest.fixture
def advisor() -> Advisor:
    return Advisor()


def controller(cluster: InProcessCluster, advisor: Advisor, **settings: Any) -> ControllerService:
    """Return a controller that scans only on request."""
    made = ControllerSettings(auto_scaling=AutoScalingSettings(interval_s=1e9, **settings))
    service = ControllerService(
        metadata=SegmentsMetadataStore(cluster.store, made),
        segments=cluster.store,
        locator=SingleStoreLocator("127.0.0.1", 6000, CONTAINERS),
        runtime=cluster.runtime(),
        settings=made,
        advisor=advisor,  # type: ignore[arg-type]
    )
    cluster.services.append(service)
    return service


async def started(
    cluster: InProcessCluster, advisor: Advisor, count: int = 1, scaling: Scaling = RATE, **settings: float
) -> ControllerService:
    service = controller(cluster, advisor, **settings)
    await service.start()
    await service.create_scope("scope")
    await service.create_stream("scope", "stream", StreamConfig(Scaling.by_event_rate(100, min_segments=count)))
    if scaling.min_segments != count:
        await service.update_stream("scope", "stream", StreamConfig(scaling))
    return service


async def poll(service: ControllerService) -> None:
    scaler: AutoScaler = service._auto_scaler  # type: ignore[assignment]
    await scaler.poll()
    await service.idle()


async def ids(service: ControllerService, stream: str = "stream") -> list[int]:
    return [segment.id for segment in await service.current_segments("scope", stream)]


async def test_a_hot_segment_is_split(cluster: InProcessCluster, advisor: Advisor) -> None:
    """S-052: number + 2, epoch 1; the advice for what is sealed now does nothing any more (S-056)."""
    service = await started(cluster, advisor)
    advisor.hot(0)
    await poll(service)
    assert await ids(service) == [segment_id(1, 1), segment_id(2, 1)]
    await poll(service)
    assert await ids(service) == [segment_id(1, 1), segment_id(2, 1)]


async def test_a_cold_segment_is_merged_with_a_neighbour_that_is_cold_when_asked(
    cluster: InProcessCluster, advisor: Advisor
) -> None:
    """S-053: the neighbour says nothing by itself: it fell silent long ago."""
    service = await started(cluster, advisor, 4)
    advisor.cold(1)
    await poll(service)
    assert await ids(service) == [0, 1, 2, 3]
    service = await started_again(cluster, service, advisor)
    await service.update_stream("scope", "stream", StreamConfig(RATE))
    await poll(service)
    assert await ids(service) == [0, 1, 2, 3]
    advisor.cold(2, where=advisor.known)
    service = await started_again(cluster, service, advisor)
    await poll(service)
    assert await ids(service) == [0, segment_id(4, 1), 3]


async def started_again(cluster: InProcessCluster, service: ControllerService, advisor: Advisor) -> ControllerService:
    """Return another controller in place of one that is gone: it knows nothing of before but the records."""
    await service.stop()
    service = controller(cluster, advisor)
    await service.start()
    return service


async def test_the_least_number_of_segments_is_kept(cluster: InProcessCluster, advisor: Advisor) -> None:
    """S-054: five, four at least, all cold: one merge of two, then none."""
    service = await started(cluster, advisor, 5, Scaling.by_event_rate(100, min_segments=4))
    advisor.cold(0, 1, 2, 3, 4)
    await poll(service)
    assert await ids(service) == [segment_id(5, 1), 2, 3, 4]
    advisor.cold(segment_id(5, 1))
    await poll(service)
    assert await ids(service) == [segment_id(5, 1), 2, 3, 4]


async def test_fixed_and_missing_streams_are_left_alone(cluster: InProcessCluster, advisor: Advisor) -> None:
    """S-055: and names that are of no stream."""
    service = await started(cluster, advisor)
    await service.create_stream("scope", "fixed", StreamConfig(Scaling.fixed(2)))
    advisor.hot(0, stream="fixed")
    advisor.cold(0, 1, stream="fixed")
    advisor.hot(0, stream="missing")
    advisor.told["by-hand"] = ScaleAdvice("by-hand", ScaleDirection.UP, 2)
    await poll(service)
    assert await ids(service, "fixed") == [0, 1]


async def test_a_segment_that_was_checked_without_a_result_is_muted(
    cluster: InProcessCluster, advisor: Advisor
) -> None:
    """S-252: nothing of it is read again for `mute_s`; heat is still heard."""
    service = await started(cluster, advisor, 2, TWO)
    advisor.cold(0, 1)
    await poll(service)
    scaler = service._auto_scaler
    assert scaler._mutes.is_muted("scope/stream/0.#epoch.0", ScaleDirection.DOWN, asyncio.get_running_loop().time())  # type: ignore[union-attr]
    await service.update_stream("scope", "stream", StreamConfig(RATE))
    await poll(service)
    assert await ids(service) == [0, 1]
    advisor.hot(0)
    await poll(service)
    assert await ids(service) == [segment_id(2, 1), segment_id(3, 1), 1]


async def test_mutes_end(cluster: InProcessCluster, advisor: Advisor) -> None:
    """With none at all the next scan tries again."""
    service = await started(cluster, advisor, 2, TWO, mute_s=0.0)
    advisor.cold(0, 1)
    await poll(service)
    await service.update_stream("scope", "stream", StreamConfig(RATE))
    await poll(service)
    assert await ids(service) == [segment_id(2, 1)]


async def test_a_store_that_does_not_answer_delays_no_other_store(
    cluster: InProcessCluster, advisor: Advisor, caplog: pytest.LogCaptureFixture
) -> None:
    """It is named once, when it begins and when it ends; its neighbours of cold segments are not taken for cold."""
    service = await started(cluster, advisor, 4, RATE)
    container = container_of(segment_name("scope", "stream", 1), CONTAINERS)
    advisor.failures[container] = ConnectionLostError("away")
    await service.create_stream("scope", "other", StreamConfig(RATE))
    others = ["other", "third", "fourth", "fifth", "sixth"]
    for name in others[1:]:
        await service.create_stream("scope", name, StreamConfig(RATE))
    for name in others:
        advisor.hot(0, stream=name)
    with caplog.at_level(logging.INFO):
        await poll(service)
        await poll(service)
    reached = [name for name in others if container_of(segment_name("scope", name, 0), CONTAINERS) != container]
    assert reached
    for name in others:
        assert len(await ids(service, name)) == (2 if name in reached else 1)
    assert caplog.text.count(f"segments of container {container} are not scaled by their load: away") == 1
    advisor.failures.clear()
    with caplog.at_level(logging.INFO):
        await poll(service)
    assert caplog.text.count(f"container {container} are scaled by their load again") == 1
    for name in others:
        assert len(await ids(service, name)) == 2


async def test_a_store_that_hangs_is_given_up(
    cluster: InProcessCluster, advisor: Advisor, caplog: pytest.LogCaptureFixture
) -> None:
    """A query has its own time limit, whichever store it goes to."""
    service = await started(cluster, advisor, answer_timeout_s=0.05)

    async def hangs(container_id: int, segments: object = None) -> None:
        await asyncio.get_running_loop().create_future()

    advisor.scale_advice = hangs  # type: ignore[assignment, method-assign]
    await poll(service)
    assert "did not report its scaling advice within 0.05 s" in caplog.text


async def test_neighbours_of_which_nothing_is_known_are_not_merged(cluster: InProcessCluster, advisor: Advisor) -> None:
    """No answer is not "cold"."""
    service = await started(cluster, advisor, 2, RATE)
    advisor.cold(0)
    advisor.cold(1, where=advisor.known)
    answers = advisor.scale_advice

    async def named_fail(container_id: int, segments: list[str] | None = None) -> list[ScaleAdvice]:
        if segments is not None:
            raise ConnectionLostError("away")
        return await answers(container_id)

    advisor.scale_advice = named_fail  # type: ignore[method-assign]
    await poll(service)
    assert await ids(service) == [0, 1]


async def test_advice_that_races_a_manual_scale_is_decided_again(cluster: InProcessCluster, advisor: Advisor) -> None:
    """The scale comes between the first read of the stream and its lock: the advice is for a past epoch."""
    service = await started(cluster, advisor)
    advisor.hot(0)
    alone = service._runner.alone

    async def late(subject: Subject, work: Callable[[], Any]) -> object:
        service._runner.alone = alone  # type: ignore[method-assign]
        await service.scale_stream("scope", "stream", [0], [(0.0, 0.3), (0.3, 1.0)])
        return await alone(subject, work)

    service._runner.alone = late  # type: ignore[assignment, method-assign]
    await poll(service)
    assert [segment.key_end for segment in await service.current_segments("scope", "stream")] == [0.3, 1.0]


async def test_scale_advice_is_dropped_when_transactions_were_rolled_meanwhile(
    cluster: InProcessCluster, advisor: Advisor
) -> None:
    """S-049, S-058: the roll comes between the poll and the stream's lock; the segments that were hot are sealed then.

    Nothing of it stays on record, and the stream is free. What followed them is split when it is hot itself.
    """
    service = await started(cluster, advisor)
    transaction = (await service.transactions.create("scope", "stream", 30_000)).id
    await service.scale_stream("scope", "stream", [0], [(0.0, 0.5), (0.5, 1.0)])
    await service.idle()
    advisor.hot(segment_id(1, 1))
    alone = service._runner.alone
    orders = []

    async def late(subject: Subject, work: Callable[[], Any]) -> object:
        service._runner.alone = alone  # type: ignore[method-assign]
        await service.transactions.commit("scope", "stream", transaction, writer_id="w", timestamp=1)
        await service.idle()
        orders.append(await alone(subject, work))
        return orders[0]

    service._runner.alone = late  # type: ignore[assignment, method-assign]
    await poll(service)
    assert orders == [None]
    assert await ids(service) == [segment_id(1, 3), segment_id(2, 3)]
    tables = await service._catalog.on_stream("scope", "stream", itself)
    assert (await tables.transition()).record == EpochTransition()
    assert (await tables.state()).record.state is StreamState.ACTIVE
    assert not [key for key in cluster.store.tables[layout.PENDING_WORK].entries if b"/" in key]
    advisor.told.clear()
    advisor.hot(segment_id(1, 3))
    await poll(service)
    assert await ids(service) == [segment_id(3, 4), segment_id(4, 4), segment_id(2, 3)]


async def itself(tables: StreamTables) -> StreamTables:
    return tables


async def test_a_policy_that_becomes_fixed_meanwhile_is_obeyed(cluster: InProcessCluster, advisor: Advisor) -> None:
    """Between the first read of the stream and the lock: it is read again under the lock."""
    service = await started(cluster, advisor)
    advisor.hot(0)
    alone = service._runner.alone

    async def late(subject: Subject, work: Callable[[], Any]) -> object:
        service._runner.alone = alone  # type: ignore[method-assign]
        await service.update_stream("scope", "stream", StreamConfig(Scaling.fixed(1)))
        return await alone(subject, work)

    service._runner.alone = late  # type: ignore[assignment, method-assign]
    await poll(service)
    assert await ids(service) == [0]


async def test_two_controllers_with_the_same_advice_scale_once(cluster: InProcessCluster, advisor: Advisor) -> None:
    """S-061: doubled reports are harmless: one has announced it, or the segment is of the current epoch no more."""
    first = await started(cluster, advisor)
    second = controller(cluster, advisor)
    await second.start()
    advisor.hot(0)
    await asyncio.gather(first._auto_scaler.poll(), second._auto_scaler.poll())  # type: ignore[union-attr]
    await first.idle()
    await second.idle()
    assert await ids(first) == [segment_id(1, 1), segment_id(2, 1)]
    assert await ids(second) == [segment_id(1, 1), segment_id(2, 1)]


async def test_one_stream_that_cannot_be_scaled_keeps_no_other_from_it(
    cluster: InProcessCluster, advisor: Advisor, caplog: pytest.LogCaptureFixture
) -> None:
    """The failure is logged, and retried in the next scan."""
    service = await started(cluster, advisor)
    await service.create_stream("scope", "other", StreamConfig(RATE))
    advisor.hot(0)
    advisor.hot(0, stream="other")
    alone = service._runner.alone

    async def fails(subject: Subject, work: Callable[[], Any]) -> EpochTransition:
        if subject.name == "stream":
            raise ConnectionLostError("no luck")
        return await alone(subject, work)

    service._runner.alone = fails  # type: ignore[assignment, method-assign]
    await poll(service)
    assert await ids(service) == [0]
    assert len(await ids(service, "other")) == 2
    assert "scope/stream was not scaled by its load in this pass: no luck" in caplog.text
    service._runner.alone = alone  # type: ignore[method-assign]
    await poll(service)
    assert len(await ids(service)) == 2


async def test_it_polls_by_itself_and_stops_with_the_controller(cluster: InProcessCluster, advisor: Advisor) -> None:
    """A scan each `interval_s`; `idle` does not wait for the next, and `stop` leaves none behind."""
    service = controller(cluster, advisor)
    service._auto_scaler._settings = AutoScalingSettings(interval_s=0.01)  # type: ignore[union-attr]
    await service.start()
    for _ in range(500):
        if len(advisor.queries) >= 2 * CONTAINERS:
            break
        await asyncio.sleep(0.01)
    await service.idle()
    await service.stop()
    asked = len(advisor.queries)
    assert asked >= 2 * CONTAINERS
    await asyncio.sleep(0.05)
    assert len(advisor.queries) == asked


async def test_it_can_be_turned_off(
    cluster: InProcessCluster, advisor: Advisor, caplog: pytest.LogCaptureFixture
) -> None:
    """No store is asked, and the log says that a policy is not enforced."""
    settings = ControllerSettings(auto_scaling=AutoScalingSettings(is_enabled=False))
    service = ControllerService(
        metadata=SegmentsMetadataStore(cluster.store, settings),
        segments=cluster.store,
        locator=SingleStoreLocator("127.0.0.1", 6000, CONTAINERS),
        runtime=cluster.runtime(),
        settings=settings,
        advisor=advisor,  # type: ignore[arg-type]
    )
    cluster.services.append(service)
    await service.start()
    await service.create_scope("scope")
    await service.create_stream("scope", "stream", StreamConfig(RATE))
    assert service._auto_scaler is None
    assert "not enforced by this server" in caplog.text
