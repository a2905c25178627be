"""Requests of the controller about segments of wide streams: in batches, bounded; what failed is repeated alone."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from penstock.controller.segment_requests import SegmentRequests
from penstock.controller.settings import ControllerSettings
from penstock.model.errors import (
    ContainerOfflineError,
    InvalidArgumentError,
    NoSuchSegmentError,
    OutcomeUnknownError,
    PenstockError,
    SegmentTruncatedError,
)
from penstock.model.names import segment_name
from penstock.model.policies import Scaling, StreamConfig
from penstock.model.routing import container_of
from penstock.model.segments import SegmentInfo
from penstock_simulation.memory_segments import MemorySegments
from support.in_process_cluster import InProcessCluster

CONTAINERS = 4
SETTINGS = ControllerSettings(
    segment_batch_max=50, segment_batches_max=2, attempts_max=4, retry_delay_ms_first=1, retry_delay_ms_max=1
)
NAMES = [segment_name("s", "t", number) for number in range(1000)]


class Batches(MemorySegments):
    """Notes bulk requests; `fault(segment)` may give an error for a segment, before or after the effect."""

    def __init__(self) -> None:
        super().__init__()
        self.batches: list[tuple[str, int, int]] = []
        self.under_way: Counter[int] = Counter()
        self.most: Counter[int] = Counter()
        self.hung: set[Any] = set()
        self.fault = lambda segment: None

    async def _bulk(self, kind: str, names: list[str], call: Callable[[], Any]) -> list[Any]:
        assert len({container_of(name, CONTAINERS) for name in names}) == 1
        container = container_of(names[0], CONTAINERS)
        self.batches.append((kind, container, len(names)))
        self.under_way[container] += 1
        self.most[container] = max(self.most[container], self.under_way[container])
        try:
            if container in self.hung:
                await asyncio.Event().wait()
            results = list(await call())
            await asyncio.sleep(0)
            return [self.fault(name) or result for name, result in zip(names, results, strict=True)]
        finally:
            self.under_way[container] -= 1

    async def segment_infos(self, segments: Sequence[str]) -> Sequence[SegmentInfo | PenstockError]:
        return await self._bulk("ask", segments, lambda: super(Batches, self).segment_infos(segments))  # type: ignore[arg-type]

    async def delete_segments(self, segments: Sequence[str]) -> Sequence[PenstockError | None]:
        return await self._bulk("delete", segments, lambda: super(Batches, self).delete_segments(segments))  # type: ignore[arg-type]

    async def truncate_segments(self, offsets: Sequence[tuple[str, int]]) -> Sequence[PenstockError | None]:
        names = [name for name, _ in offsets]
        return await self._bulk("truncate", names, lambda: super(Batches, self).truncate_segments(offsets))


@pytest.fixture
async def store() -> Batches:
    made = Batches()
    for name in NAMES:
        await made.create_segment(name)
        await made.append(name, bytes(10))
    return made


@pytest.fixture
def requests(store: Batches) -> SegmentRequests:
    return SegmentRequests(store, SETTINGS, CONTAINERS)


async def test_many_segments_are_requested_in_bounded_batches(store: Batches, requests: SegmentRequests) -> None:
    """One container each, and no more at a time than the settings allow, over all callers."""
    offsets = dict.fromkeys(NAMES, 5)
    await asyncio.gather(*(requests.truncate_all(offsets) for _ in range(5)), requests.infos(NAMES))
    assert max(length for _, _, length in store.batches) == 50
    assert len(store.batches) <= 6 * (1000 // 50 + CONTAINERS)
    assert set(store.most.values()) == {2}
    infos = await requests.infos(NAMES)
    assert sorted(infos) == sorted(NAMES)
    assert {info.start_offset for info in infos.values()} == {5}
    await requests.delete_all(NAMES)
    await requests.delete_all(NAMES)  # Segments that are gone count as deleted.
    assert store.segments == {}


async def test_only_failed_requests_are_repeated(store: Batches, requests: SegmentRequests) -> None:
    """Lost replies and containers that are away for a moment: the others are not asked twice."""
    rng = random.Random(3)
    left = {name: rng.choice((OutcomeUnknownError("lost"), ContainerOfflineError(1))) for name in rng.sample(NAMES, 30)}
    store.fault = lambda segment: left.pop(segment, None)  # type: ignore[assignment]
    await requests.delete_all(NAMES)
    assert sum(length for _, _, length in store.batches) == 1030
    assert store.segments == {}


async def test_attempts_have_an_end(store: Batches, requests: SegmentRequests) -> None:
    """A segment stays unreachable: the error of the last attempt is raised, the other segments are done."""
    bad = NAMES[17]
    store.fault = lambda segment: ContainerOfflineError(3) if segment == bad else None  # type: ignore[assignment]
    with pytest.raises(ContainerOfflineError):
        await requests.truncate_all(dict.fromkeys(NAMES, 5))
    asked = [length for _, container, length in store.batches if container == container_of(bad, CONTAINERS)]
    assert asked.count(1) == SETTINGS.attempts_max - 1


async def test_permanent_errors_are_reported_at_once(store: Batches, requests: SegmentRequests) -> None:
    """An offset behind the end, a segment that is missing where it is needed: no second attempt."""
    with pytest.raises(SegmentTruncatedError):
        await requests.truncate_all({NAMES[0]: 11})
    await requests.truncate_all({NAMES[0]: 7})
    await requests.truncate_all({NAMES[0]: 6, "s/t/2000.#epoch.0": 9})  # Begins later already; is gone.
    with pytest.raises(NoSuchSegmentError):
        await requests.infos([NAMES[0], "s/t/2000.#epoch.0"])
    assert len(store.batches) <= 6


async def test_a_container_that_does_not_answer_holds_up_its_own_segments_alone(
    store: Batches, requests: SegmentRequests
) -> None:
    """Its slots stay occupied; requests about segments of the others continue."""
    hung = container_of(NAMES[0], CONTAINERS)
    store.hung.add(hung)
    waiting = [asyncio.ensure_future(requests.truncate_all(dict.fromkeys(NAMES, 5))) for _ in range(4)]
    others = [name for name in NAMES if container_of(name, CONTAINERS) != hung]
    await requests.delete_all(others)
    assert set(store.segments) == set(NAMES) - set(others)
    assert store.most[hung] == 2
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    assert +store.under_way == Counter()
    store.hung.clear()
    await requests.delete_all(NAMES)
    assert store.segments == {}


async def test_a_wide_stream_is_truncated_and_deleted_with_few_requests(cluster: InProcessCluster) -> None:
    """1000 segments: as many requests as there are batches, not as many as there are segments."""
    store = Batches()
    cluster.store = store
    settings = replace(ControllerSettings(), segment_batch_max=100)

    def count_of(kind: str) -> int:
        return sum(kind == each for each, _, _ in store.batches)

    service = cluster.build(settings)
    await service.start()
    await service.create_scope("scope")
    await service.create_stream("scope", "stream", StreamConfig(Scaling.fixed(1000)))
    for number in range(1000):
        await store.append(segment_name("scope", "stream", number), bytes(10))
    store.batches.clear()
    await service.truncate_stream("scope", "stream", dict.fromkeys(range(1000), 4))
    for kind in ("ask", "truncate"):
        assert 1000 // 100 <= count_of(kind) <= 1000 // 100 + CONTAINERS
    assert {info.start_offset for info in await store.segment_infos(_of_container_0())} == {4}  # type: ignore[union-attr]
    with pytest.raises(InvalidArgumentError, match="has no offset 11"):
        await service.truncate_stream("scope", "stream", {**dict.fromkeys(range(1000), 4), 999: 11})
    await service.seal_stream("scope", "stream")
    store.batches.clear()
    await service.delete_stream("scope", "stream")
    assert 1000 // 100 <= count_of("delete") <= 1000 // 100 + CONTAINERS
    assert not [name for name in store.segments if name.startswith("scope/stream/")]


def _of_container_0() -> list[str]:
    names = [segment_name("scope", "stream", number) for number in range(1000)]
    return [name for name in names if container_of(name, CONTAINERS) == 0]
