"""Retention by policies and subscribers, over in-memory segments; cycles run on request.

The numbers are those of controller-internals 8.8: two segments, one byte an event.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from penstock.controller.errors import StreamCutBehindError
from penstock.controller.metadata.listed_streams import ListedStream
from penstock.controller.metadata.pending_work import TruncateStream
from penstock.controller.metadata.retention_records import RetentionEntry
from penstock.controller.metadata.scope_records import GroupCut, ReaderGroupConfig
from penstock.controller.metadata.stream_tables import StreamTables
from penstock.controller.retention.decision import RetentionRow
from penstock.controller.retention.explanation import CutPosition, RetentionExplanation
from penstock.controller.retention.plan import step_ms
from penstock.controller.retention.retention import Retention
from penstock.controller.service import ControllerService
from penstock.controller.settings import ControllerSettings, RetentionSettings
from penstock.model.errors import ContainerOfflineError, NoSuchStreamError, PenstockError
from penstock.model.names import segment_id, segment_name, transaction_segment_name
from penstock.model.policies import LIMIT_NONE, GroupRetention, RetentionKind, Scaling, StreamConfig
from penstock.model.policies import Retention as Policy
from support.controller_faults import BlockedSegments, ScriptedSegments
from support.crash_script import AllBuckets
from support.failing_requests import Failing
from support.in_process_cluster import InProcessCluster
from support.two_controllers import announced, until

QUIET = ControllerSettings(
    retry_delay_ms_first=0,
    retry_delay_ms_max=0,
    attempts_max=2,
    retention=RetentionSettings(interval_s=1e9, cut_interval_s_min=0.0),
)
MINUTE_MS = 60_000


def by_size(least: int, most: int = LIMIT_NONE) -> Any:
    return Policy(RetentionKind.BY_SIZE, least, most)


def by_time(least: int, most: int = LIMIT_NONE) -> Any:
    return Policy(RetentionKind.BY_TIME, least, most)


def retention_of(service: ControllerService) -> Retention:
    """Return the retention of a controller that has not scanned any stream yet, and is to scan all."""
    return Retention(service._context, AllBuckets(), service.truncate_stream, service.transactional_tails.of)


class House:
    """A controller with stream scope/a, its segments, and groups that subscribe to it."""

    def __init__(self, cluster: InProcessCluster, service: ControllerService) -> None:
        self.cluster = cluster
        self.service = service
        self.groups = {}

    async def write(self, lengths: dict[int, int]) -> None:
        """Write to segments until they have these lengths."""
        for segment, length in lengths.items():
            name = segment_name("scope", "a", segment)
            present = (await self.cluster.store.segment_info(name)).length
            await self.cluster.store.append(name, bytes(length - present))

    async def poll(self, after_ms: int = 1) -> dict[int, int]:
        """Run a cycle as a controller without any state does. It does what `explain` reported before."""
        self.cluster.clock_ms += after_ms
        retention = retention_of(self.service)
        before, explained = await self.head(), await self.explain()
        await retention.cycle()
        assert not [known.problem for known in retention._cycle._known.values() if known.problem]
        after = await self.head()
        assert after == (before if explained.chosen is None else explained.chosen.cut)
        return after

    async def explain(self) -> RetentionExplanation:
        """Say what a scan would do. Nothing is changed by it."""
        retention = (await self.tables()).retention
        before = [entry async for page in retention.entries() for entry in page]
        explained = await self.service.retention_explanations.of("scope", "a")
        assert [entry async for page in retention.entries() for entry in page] == before
        return explained

    async def to(self, first: int, second: int, after_ms: int = 1) -> dict[int, int]:
        """Write to both segments of the first epoch, and scan."""
        await self.write({0: first, 1: second})
        return await self.poll(after_ms)

    async def tables(self) -> StreamTables:
        async def tables(found: StreamTables) -> StreamTables:
            return found

        return await self.service.queries.on_stream("scope", "a", tables)

    async def head(self) -> dict[int, int]:
        return (await (await self.tables()).truncation()).record.stream_cut

    async def cuts(self) -> list[dict[int, int]]:
        retention = (await self.tables()).retention
        return [(await retention.cut_of(entry)).stream_cut async for page in retention.entries() for entry in page]

    async def subscribe(self, name: str) -> None:
        config = ReaderGroupConfig((GroupCut("scope", "a"),), retention=GroupRetention.MANUAL)
        self.groups[name] = await self.service.reader_groups.create("scope", name, config)

    async def publish(self, name: str, cut: dict[int, int]) -> None:
        if name not in self.groups:
            await self.subscribe(name)
        group = self.groups[name]
        await self.service.reader_groups.publish("scope", "a", f"scope/{name}", group.id, group.generation, cut)


@pytest.fixture
async def house(cluster: InProcessCluster) -> Callable[..., Awaitable[House]]:
    async def make(policy: Retention | None, *, settings: ControllerSettings = QUIET) -> House:
        service = await cluster.start(settings)
        await service.create_scope("scope")
        await service.create_stream("scope", "a", StreamConfig(Scaling.fixed(2), retention=policy))
        return House(cluster, service)

    return make


async def test_the_effect_of_the_next_truncation_is_explained(house: Callable[..., Awaitable[House]]) -> None:
    """Every cycle of the tests below does what was explained right before; this covers the rest of an explanation."""
    one = await house(by_size(2, 25))
    await one.to(5, 5)
    await one.publish("fast", {0: 9, 1: 9})
    await one.subscribe("silent")
    await one.publish("slow", {0: 9, 1: 6})
    await one.write({0: 10, 1: 10})
    one.cluster.clock_ms += 40
    found = await one.explain()
    assert found.row is RetentionRow.SIZE_BETWEEN
    assert (found.head, found.tail) == (CutPosition({0: 0, 1: 0}, 0), CutPosition({0: 10, 1: 10}, 20))
    # The one that has published nothing holds the head, at the beginning.
    assert (found.chosen, found.bound) == (None, CutPosition({0: 0, 1: 0}, 0))
    assert [(each.name, each.has_published, each.place.size_bytes, each.is_last) for each in found.subscribers] == [
        ("scope/silent", False, 0, True), ("scope/slow", True, 15, False), ("scope/fast", True, 18, False),
    ]  # fmt: skip
    # As of the cut that the scan would record; it is not recorded.
    assert found.is_cut_due
    assert found.max_entry == found.cuts[0] == RetentionEntry(found.now_ms - 40, 10)
    assert found.min_entry == found.cuts[0]
    assert found.cut_count == 1
    await one.publish("silent", {0: 10, 1: 2})
    found = await one.explain()
    # On the keys of one segment it is the slow one, on those of the other the once silent one.
    assert found.chosen == found.bound == CutPosition({0: 9, 1: 2}, 11)
    assert {each.name: each.is_last for each in found.subscribers} == {
        "scope/silent": True, "scope/slow": True, "scope/fast": True,
    }  # fmt: skip
    assert await one.poll() == {0: 9, 1: 2}
    await one.service.seal_stream("scope", "a")
    found = await one.explain()
    assert (found.is_sealed, found.chosen, found.is_cut_due) == (True, None, False)
    assert found.tail == CutPosition({0: 10, 1: 10}, 20)


async def test_of_very_many_cuts_and_subscribers_some_are_explained(house: Callable[..., Awaitable[House]]) -> None:
    """The newest cuts, and the subscribers that hold the stream back most; the total counts are reported."""
    few = RetentionSettings(interval_s=60.0, cut_interval_s_min=0.0, explained_cuts_max=3, explained_subscribers_max=2)
    one = await house(by_size(1000), settings=ControllerSettings(retention=few))
    for length in range(16, 16 * 6, 16):
        await one.to(length, length)
    for number in range(5):
        await one.publish(f"g{number}", {0: 80, 1: 80} if number != 3 else {0: 40, 1: 40})
    found = await one.explain()
    assert [entry.size_bytes for entry in found.cuts] == [96, 128, 160]
    assert found.cut_count == 5
    assert [each.name for each in found.subscribers] == ["scope/g3", "scope/g0"]
    assert found.subscriber_count == 5
    assert (found.interval_ms, found.row) == (60_000, RetentionRow.SIZE_BELOW_MIN_WITHOUT_CUT)


async def test_when_the_next_scan_is(house: Callable[..., Awaitable[House]]) -> None:
    """The owner reports when the next cycle begins, by time not before a cut is due; other controllers do not know."""
    settings = ControllerSettings(retention=RetentionSettings(interval_s=1000.0, cut_interval_s_min=5000.0))
    one = await house(by_time(60 * MINUTE_MS), settings=settings)
    async with asyncio.timeout(60):
        while not (await one.explain()).next_scan_ms:  # noqa: ASYNC110  # Its cycle is yet to begin.
            await asyncio.sleep(0.01)
    assert 900_000 < (await one.explain()).next_scan_ms <= 1_000_000
    await one.service._retention.cycle()
    assert 4_900_000 < (await one.explain()).next_scan_ms <= 5_000_000
    other = await one.cluster.start(settings)
    async with asyncio.timeout(60):
        while True:
            found = [await each.retention_explanations.of("scope", "a") for each in (one.service, other)]
            if [each.next_scan_ms for each in found].count(None) == 1:
                return
            await asyncio.sleep(0.01)


async def test_a_stream_without_a_policy_is_explained_in_few_words(house: Callable[..., Awaitable[House]]) -> None:
    """Where it begins, and ends. A stream that is not there is an error."""
    one = await house(None)
    await one.write({0: 3, 1: 4})
    found = await one.explain()
    assert (found.policy, found.row, found.tail) == (None, None, CutPosition({0: 3, 1: 4}, 7))
    with pytest.raises(NoSuchStreamError):
        await one.service.retention_explanations.of("scope", "b")


async def test_a_cut_is_recorded_once_in_an_interval(house: Callable[..., Awaitable[House]]) -> None:
    """S-113: at the first scan; none within the interval; one as soon as it is over."""
    one = await house(by_time(60 * MINUTE_MS), settings=ControllerSettings(retention=RetentionSettings(
        interval_s=1e9, cut_interval_s_min=1800.0
    )))  # fmt: skip
    await one.to(1, 1)
    await one.to(2, 2, 5 * MINUTE_MS)
    assert await one.cuts() == [{0: 1, 1: 1}]
    await one.to(3, 3, 25 * MINUTE_MS)
    assert await one.cuts() == [{0: 1, 1: 1}]
    await one.to(4, 4, 1)
    assert await one.cuts() == [{0: 1, 1: 1}, {0: 4, 1: 4}]


async def test_by_time_a_stream_is_truncated_at_the_newest_cut_that_is_old_enough(
    house: Callable[..., Awaitable[House]],
) -> None:
    """S-114: nothing before; then there, and the cuts up to it are forgotten."""
    one = await house(by_time(60 * MINUTE_MS))
    assert await one.to(1, 1) == {}
    assert await one.to(2, 2, 30 * MINUTE_MS) == {}
    assert await one.poll(30 * MINUTE_MS - 1) == {}
    assert await one.poll(1) == {0: 1, 1: 1}
    assert await one.cuts() == [{0: 2, 1: 2}]
    assert await one.poll(30 * MINUTE_MS) == {0: 2, 1: 2}
    assert await one.cuts() == []


async def test_by_size_a_stream_is_truncated_at_the_newest_cut_that_keeps_enough(
    house: Callable[..., Awaitable[House]],
) -> None:
    """S-115: nothing below the limit; recorded sizes 19, 100 and 120 with a minimum of 100 lead to the first."""
    one = await house(by_size(100))
    assert await one.to(9, 10) == {}
    assert await one.to(50, 50) == {}
    assert await one.to(60, 60) == {0: 9, 1: 10}
    assert await one.cuts() == [{0: 50, 1: 50}, {0: 60, 1: 60}]


async def test_by_size_over_epochs_and_after_a_manual_truncation(house: Callable[..., Awaitable[House]]) -> None:
    """S-116: a cut of an old epoch is chosen; a choice behind the head is dropped, and the next scan works."""
    one = await house(by_size(100))
    await one.to(60, 60)
    await one.service.scale_stream("scope", "a", [0, 1], [(0.0, 0.25), (0.25, 1.0)])
    await one.service.idle()
    left, right = segment_id(2, 1), segment_id(3, 1)
    await one.write({left: 79, right: 0})
    assert await one.poll() == {}
    await one.write({left: 101})
    assert await one.poll() == {0: 60, 1: 60}
    await one.service.truncate_stream("scope", "a", {left: 101, right: 0})
    await one.write({left: 150, right: 20})
    assert await one.poll() == {left: 101, right: 0}
    await one.write({left: 200, right: 100})
    assert await one.poll() == {left: 150, right: 20}


async def test_a_truncation_in_progress_is_awaited(
    house: Callable[..., Awaitable[House]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """S-126: a cycle waits for a truncation that is under way; the head is the later of the two."""
    one = await house(by_size(100))
    await one.to(50, 50)
    await one.write({0: 160, 1: 160})
    is_held, goes_on = asyncio.Event(), asyncio.Event()
    truncate = one.cluster.store.truncate_segments

    async def held(*args: list[tuple[str, int]], **named: object) -> Sequence[PenstockError | None]:
        is_held.set()
        await goes_on.wait()
        return await truncate(*args, **named)

    monkeypatch.setattr(one.cluster.store, "truncate_segments", held)
    by_hand = asyncio.create_task(one.service.truncate_stream("scope", "a", {0: 10, 1: 10}))
    await is_held.wait()
    one.cluster.clock_ms += 1
    retention = retention_of(one.service)
    running = asyncio.create_task(retention.cycle())
    for _ in range(200):
        await asyncio.sleep(0)
    assert not by_hand.done()
    assert not running.done()
    goes_on.set()
    await by_hand
    await running
    assert not [known.problem for known in retention._cycle._known.values() if known.problem]
    assert await one.head() == {0: 50, 1: 50}


async def test_consumption_by_size_in_one_run(house: Callable[..., Awaitable[House]]) -> None:
    """S-118: the bound; nothing when all is read; minimum; maximum; the bound again where that gains nothing."""
    one = await house(by_size(2, 10))
    await one.publish("one", {0: 0, 1: 0})
    await one.to(1, 0)
    await one.to(2, 2)
    await one.publish("one", {0: 2, 1: 1})
    await one.publish("two", {0: 1, 1: 2})
    assert await one.poll() == {0: 1, 1: 1}
    await one.publish("one", {0: 2, 1: 2})
    await one.publish("two", {0: 2, 1: 2})
    assert await one.poll() == {0: 1, 1: 1}
    await one.write({0: 10, 1: 10})
    await one.publish("one", {0: 10, 1: 9})
    await one.publish("two", {0: 10, 1: 10})
    assert await one.poll() == {0: 2, 1: 2}
    assert await one.to(20, 20) == {0: 10, 1: 10}
    await one.write({0: 30, 1: 30})
    await one.publish("one", {0: 22, 1: 19})
    await one.publish("two", {0: 21, 1: 20})
    assert await one.poll() == {0: 21, 1: 19}


async def test_consumption_by_time(house: Callable[..., Awaitable[House]]) -> None:
    """S-119: between the limits the bound; the minimum when that is read; past the maximum what is not too old."""
    one = await house(by_time(1, 10))
    await one.to(1, 1, 1)
    await one.publish("one", {0: 1, 1: 0})
    await one.publish("two", {0: 0, 1: 1})
    assert await one.to(2, 2, 5) == {}
    await one.publish("one", {0: 2, 1: 1})
    await one.publish("two", {0: 1, 1: 2})
    assert await one.to(10, 10, 1) == {0: 1, 1: 1}
    # Newer than the minimum's cut: that is kept.
    await one.to(11, 11, 1)
    await one.publish("one", {0: 11, 1: 11})
    await one.publish("two", {0: 11, 1: 11})
    assert await one.poll(0) == {0: 10, 1: 10}
    # Behind the maximum.
    await one.to(20, 20, 10)
    assert await one.to(21, 22, 1) == {0: 11, 1: 11}
    assert await one.to(30, 30, 8) == {0: 11, 1: 11}
    assert await one.poll(1) == {0: 20, 1: 20}
    # It overlaps the newest cut of that age.
    await one.publish("one", {0: 22, 1: 21})
    await one.publish("two", {0: 23, 1: 21})
    assert await one.poll(1) == {0: 21, 1: 22}


async def test_consumption_with_a_minimum_that_overlaps_the_bound_by_size(
    house: Callable[..., Awaitable[House]],
) -> None:
    """S-120: the newest cut that no subscriber has yet to come to."""
    one = await house(by_size(2, 20))
    await one.publish("one", {0: 0, 1: 0})
    await one.to(0, 6)
    await one.to(10, 8)
    await one.publish("one", {0: 9, 1: 8})
    await one.write({0: 10, 1: 10})
    await one.publish("one", {0: 9, 1: 10})
    assert await one.poll() == {0: 0, 1: 6}


async def test_consumption_with_a_minimum_that_overlaps_the_bound_by_time(
    house: Callable[..., Awaitable[House]],
) -> None:
    """S-120: none at first, since there is no such cut; then the newest one."""
    one = await house(by_time(10, 1000))
    await one.to(2, 5)
    await one.publish("one", {0: 1, 1: 6})
    assert await one.to(3, 7, 10) == {}
    await one.publish("one", {0: 2, 1: 8})
    assert await one.poll(10) == {0: 2, 1: 5}


async def test_consumption_without_subscribers_is_the_plain_policy(house: Callable[..., Awaitable[House]]) -> None:
    """S-121."""
    one = await house(by_size(2, 10))
    await one.to(1, 1)
    assert await one.to(2, 2) == {0: 1, 1: 1}
    await one.subscribe("one")
    assert await one.to(4, 4) == {0: 1, 1: 1}
    await one.service.reader_groups.delete("scope", "one", one.groups["one"].id)
    assert await one.poll() == {0: 2, 1: 2}


async def test_a_subscriber_that_has_published_nothing_holds_the_head_up_to_the_maximum(
    house: Callable[..., Awaitable[House]],
) -> None:
    """Pravega's does not: what it was registered for to read would be gone before it has begun."""
    one = await house(by_size(2, 20))
    await one.subscribe("silent")
    await one.to(2, 2)
    await one.to(5, 5)
    assert await one.poll() == {}
    assert await one.to(9, 9) == {}
    assert await one.to(12, 12) == {0: 2, 1: 2}


async def test_positions_published_after_the_truncation_have_no_effect_on_it(
    house: Callable[..., Awaitable[House]],
) -> None:
    """Of a subscriber that comes late with an old cut. The stream never begins earlier again."""
    one = await house(by_size(2, 6))
    await one.to(2, 2)
    await one.to(5, 5)
    head = await one.to(9, 9)
    assert head == {0: 5, 1: 5}
    await one.publish("late", {0: 1, 1: 1})
    assert await one.to(10, 10) == {0: 9, 1: 9}
    with pytest.raises(StreamCutBehindError):
        await one.publish("late", {0: 0, 1: 0})
    assert await one.poll() == {0: 9, 1: 9}


async def test_consumption_over_scales(house: Callable[..., Awaitable[House]]) -> None:
    """S-123: subscribers in different epochs; the bound mixes them; the head moves forward alone."""
    one = await house(by_size(1, LIMIT_NONE))
    await one.to(10, 10)
    await one.service.scale_stream("scope", "a", [1], [(0.5, 0.75), (0.75, 1.0)])
    await one.service.idle()
    left, right = segment_id(2, 1), segment_id(3, 1)
    await one.write({0: 20, left: 5, right: 5})
    await one.publish("ahead", {0: 15, left: 5, right: 2})
    await one.publish("behind", {0: 18, 1: 4})
    assert await one.poll() == {0: 15, 1: 4}
    await one.publish("behind", {0: 18, left: 0, right: 1})
    assert await one.poll() == {0: 15, left: 0, right: 1}


@pytest.mark.parametrize("is_deleted", [False, True])
async def test_a_stream_is_listed_while_it_has_a_policy(cluster: InProcessCluster, is_deleted: bool) -> None:
    """S-083, S-127, S-129: with a policy, given at creation or later, it is inspected; without one it is left alone."""
    service = await cluster.start(QUIET)
    await service.create_scope("scope")
    await service.create_stream("scope", "a", StreamConfig(Scaling.fixed(2)))
    await service.create_stream("scope", "b", StreamConfig(Scaling.fixed(2), retention=by_size(1)))

    async def listed() -> list[str]:
        return sorted([each.stream async for each in service._context.retained.all()])

    assert await listed() == ["b"]
    await service.update_stream("scope", "a", StreamConfig(Scaling.fixed(2), retention=by_size(1)))
    assert await listed() == ["a", "b"]
    if is_deleted:
        await service.seal_stream("scope", "b")
        await service.delete_stream("scope", "b")
    else:
        await service.update_stream("scope", "b", StreamConfig(Scaling.fixed(2)))
    one = House(cluster, service)
    await one.poll()
    assert await listed() == ["a"]
    await one.write({0: 5})
    assert await one.poll() == {}
    await one.write({0: 6})
    assert await one.poll() == {0: 5, 1: 0}
    await service.seal_stream("scope", "a")
    await one.poll()
    assert await listed() == []


async def test_a_policy_set_during_removal_from_the_list_keeps_the_stream_listed(
    cluster: InProcessCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The scan has read that there is none; the entry that it takes back is another one by then."""
    service = await cluster.start(QUIET)
    await service.create_scope("scope")
    await service.create_stream("scope", "a", StreamConfig(Scaling.fixed(2), retention=by_size(1)))
    await service.update_stream("scope", "a", StreamConfig(Scaling.fixed(2)))
    remove = service._context.retained.remove

    async def overtaken(listed: ListedStream) -> None:
        await service.update_stream("scope", "a", StreamConfig(Scaling.fixed(2), retention=by_size(1)))
        await remove(listed)

    monkeypatch.setattr(service._context.retained, "remove", overtaken)
    one = House(cluster, service)
    await one.poll()
    assert [each.stream async for each in service._context.retained.all()] == ["a"]


async def test_a_cut_without_a_record_is_skipped(house: Callable[..., Awaitable[House]]) -> None:
    """S-128: sizes are counted from an earlier one or from the head; forgetting cuts does not fail."""
    one = await house(by_size(10))
    await one.to(1, 1)
    await one.to(5, 5)
    tables = await one.tables()
    entries = [entry async for page in tables.retention.entries() for entry in page]
    for entry in entries:
        await tables.records.remove(tables.metadata, f"retentionCuts-{entry.recorded_ms}")
    assert await one.to(20, 20) == {}
    assert (await tables.retention.newest()).size_bytes == 40
    assert await one.to(25, 25) == {0: 20, 1: 20}
    assert await one.cuts() == [{0: 25, 1: 25}]


async def test_no_stream_has_more_cuts_than_its_policy_needs(house: Callable[..., Awaitable[House]]) -> None:
    """However often it is inspected: as many as are allowed in the minimum, and in the maximum."""
    settings = RetentionSettings(cuts_in_minimum=4, cuts_max=10, cut_interval_s_min=1.0, cut_interval_s_max=100.0)
    assert step_ms(by_time(40_000), settings) == 10_000
    assert step_ms(by_time(400), settings) == 1_000
    assert step_ms(by_time(4_000_000), settings) == 100_000
    assert step_ms(by_time(40_000, 1_000_000), settings) == 100_000
    one = await house(by_size(400, 4000), settings=ControllerSettings(retention=settings))
    await one.subscribe("silent")
    for length in range(1, 3000, 7):
        await one.to(length, length)
    assert len(await one.cuts()) <= 11


@pytest.mark.parametrize("is_applied", [False, True], ids=["lost request", "lost reply"])
async def test_a_scan_cut_short_at_any_step_is_completed_by_the_next(
    fresh: Callable[[], InProcessCluster], is_applied: bool
) -> None:
    """Every request of a cycle that records, truncates and forgets fails in turn, with and without its effect.

    Another controller takes over: the head is the same as without a failure, and the cuts are those after it.
    """
    for step in range(200):
        cluster = fresh()
        service = await cluster.start(QUIET)
        await service.create_scope("scope")
        await service.create_stream("scope", "a", StreamConfig(Scaling.fixed(2), retention=by_size(10)))
        one = House(cluster, service)
        await one.to(2, 2)
        await one.to(5, 5)
        await one.subscribe("reader")
        await one.publish("reader", {0: 4, 1: 5})
        await one.write({0: 20, 1: 20})
        failing = Failing(cluster.store, step, is_applied=is_applied)
        cluster.clock_ms += 1
        with contextlib.suppress(PenstockError):
            await retention_of(service).cycle()
        await service.stop()
        failing.undo()
        other = House(cluster, await cluster.start(QUIET))
        await other.service.idle()
        assert await other.poll() == {0: 4, 1: 5}, step
        assert await other.cuts() == [{0: 5, 1: 5}, {0: 20, 1: 20}], step
        assert [each.stream async for each in other.service._context.retained.all()] == ["a"]
        if not failing.has_failed:
            assert step > 15
            return
    raise AssertionError("a scan has no end")


async def test_two_controllers_may_process_one_stream_concurrently(cluster: InProcessCluster) -> None:
    """As after a change of who is alive: one cut is recorded, and the stream is truncated once."""
    one = House(cluster, await cluster.start(QUIET))
    await one.service.create_scope("scope")
    await one.service.create_stream("scope", "a", StreamConfig(Scaling.fixed(2), retention=by_size(10)))
    other = House(cluster, await cluster.start(QUIET))
    for length in (3, 6, 12, 40):
        await one.write({0: length, 1: length})
        cluster.clock_ms += 1
        scanners = [retention_of(each.service) for each in (one, other)]
        await asyncio.gather(*(each.cycle() for each in scanners))
    assert await one.poll() == {0: 12, 1: 12}
    assert await one.cuts() == [{0: 40, 1: 40}]


async def test_the_cycle_runs_by_itself(cluster: InProcessCluster) -> None:
    """As a controller does it that is left alone."""
    settings = ControllerSettings(retention=RetentionSettings(interval_s=0.01))
    one = House(cluster, await cluster.start(settings))
    await one.service.create_scope("scope")
    await one.service.create_stream("scope", "a", StreamConfig(Scaling.fixed(2), retention=by_size(10)))
    for length in (8, 16):
        await one.write({0: length, 1: length})
        async with asyncio.timeout(60):
            while {0: length, 1: length} not in await one.cuts():  # There is no event to await.
                cluster.clock_ms += 1
                await asyncio.sleep(0.01)
    async with asyncio.timeout(60):
        while await one.head() != {0: 8, 1: 8}:  # noqa: ASYNC110  # As above.
            await asyncio.sleep(0.01)


async def test_all_idle_streams_cost_one_request_in_total(house: Callable[..., Awaitable[House]]) -> None:
    """Nothing is read of each of them; what gets something new, or another policy, is inspected."""
    one = await house(by_size(2))
    service = one.service
    for number in range(20):
        await service.create_stream("scope", f"s{number}", StreamConfig(Scaling.fixed(1), retention=by_size(2)))
    retention = service._retention
    visited = []
    visit = retention._cycle._visit

    async def noted(tables: StreamTables, listed: ListedStream, seen: object) -> None:
        visited.append(listed.stream)
        await visit(tables, listed, seen)

    retention._cycle._visit = noted
    await retention.cycle()
    assert len(visited) == 21
    visited.clear()
    await retention.cycle()
    assert visited == []
    await one.write({0: 3})
    await service.update_stream("scope", "s7", StreamConfig(Scaling.fixed(1), retention=by_size(3)))
    await retention.cycle()
    assert sorted(visited) == ["a", "s7"]


DAY_MS = 86_400_000


@pytest.mark.parametrize("jump_ms", [1_000, DAY_MS, 730 * DAY_MS])
async def test_by_size_truncation_continues_while_and_after_a_clock_was_ahead(
    house: Callable[..., Awaitable[House]], jump_ms: int
) -> None:
    """The times of cuts do not matter then, whatever the clock showed when the newest one was recorded."""
    one = await house(by_size(20))
    for step in range(1, 40):
        if step in (10, 30):
            one.cluster.clock_ms += jump_ms if step == 10 else -jump_ms
        head = await one.to(10 * step, 10 * step)
        kept = 20 * step - sum(head.values())
        assert kept <= 40, f"{kept} bytes are kept after scan {step}"


@pytest.mark.parametrize("jump_ms", [10_000, DAY_MS, 730 * DAY_MS])
@pytest.mark.parametrize("has_restart", [False, True], ids=["", "restarted"])
async def test_by_time_truncation_continues_after_a_clock_was_ahead(
    house: Callable[..., Awaitable[House]], jump_ms: int, has_restart: bool
) -> None:
    """What lies before cuts of the false time counts as written when the clock is right again, and is kept so long."""
    one = await house(by_time(1_000))
    length = 0
    for _ in range(20):
        length += 10
        await one.to(length, length, after_ms=100)
    one.cluster.clock_ms += jump_ms
    for _ in range(20):
        length += 10
        await one.to(length, length, after_ms=100)
    one.cluster.clock_ms -= jump_ms
    corrected = length
    if has_restart:
        await one.service.stop()
        one.service = await one.cluster.start(QUIET)
    for step in range(1, 40):
        length += 10
        head = await one.to(length, length, after_ms=100)
        if step <= 9:
            assert sum(head.values()) <= 2 * corrected, "events of the last second are kept"
        if step >= 13:
            kept = 2 * length - sum(head.values())
            assert kept <= 2 * 10 * 13, f"{kept} bytes are kept, {step} passes after the correction"


async def test_by_time_two_controllers_whose_clocks_differ_by_hours_keep_truncating(
    house: Callable[..., Awaitable[House]],
) -> None:
    """Each scan is made by another clock: neither stops the stream from being truncated."""
    one = await house(by_time(1_000))
    length, heads = 0, []
    for step in range(60):
        one.cluster.clock_ms += 2 * 3_600_000 * (1 if step % 2 else -1)
        length += 10
        heads.append(sum((await one.to(length, length, after_ms=100)).values()))
    assert 2 * length - heads[-1] <= 2 * 10 * 25


@pytest.mark.parametrize("policy", [None, by_size(10**9), by_size(20)], ids=["none", "larger", "the same again"])
async def test_a_policy_that_was_replaced_after_the_cut_was_chosen_truncates_nothing(
    house: Callable[..., Awaitable[House]], policy: Retention | None
) -> None:
    """The update ends between the choice and the truncation: the policy in force decides."""
    one = await house(by_size(20))
    await one.to(100, 100)
    await one.write({0: 200, 1: 200})
    service, asked = one.service, []

    async def truncate(scope: str, stream: str, cut: dict[int, int], *version: int) -> None:
        asked.append(cut)
        await service.update_stream("scope", "a", StreamConfig(Scaling.fixed(2), retention=policy))
        await service.truncate_stream(scope, stream, cut, *version)

    head = await one.head()
    one.cluster.clock_ms += 1
    retention = Retention(service._context, AllBuckets(), truncate, service.transactional_tails.of)
    await retention.cycle()
    await one.write({0: 300, 1: 300})
    one.cluster.clock_ms += 1
    await retention.cycle()
    assert asked, "the old policy was about to truncate"
    assert not [known.problem for known in retention._cycle._known.values() if known.problem]
    if policy is None or policy.min_limit > 600:
        assert await one.head() == head
    else:
        await one.to(400, 400)
        assert await one.head() == {0: 300, 1: 300}


async def test_a_truncation_that_is_taken_over_is_not_made_for_a_policy_that_was_replaced(
    house: Callable[..., Awaitable[House]], cluster: InProcessCluster
) -> None:
    """Its controller ends between announcement and record; what was updated before the announcement counts."""
    one = await house(by_size(20))
    await one.to(100, 100)
    tables, head = await one.tables(), await one.head()
    version = (await tables.configuration()).version
    await one.service.update_stream("scope", "a", StreamConfig(Scaling.fixed(2)))
    for configuration_version, expected in ((version, head), ((await tables.configuration()).version, {0: 70, 1: 70})):
        order = TruncateStream({0: 70, 1: 70}, configuration_version)
        await one.service._context.begin(tables.subject, order, tables.stream_id)
        await one.service.stop()
        one.service = await cluster.start(QUIET)
        await until(lambda: not announced(cluster), "the next controller has finished or withdrawn the truncation")
        await one.service.idle()
        assert await one.head() == expected


async def test_no_head_of_retention_divides_a_transaction(cluster: InProcessCluster) -> None:
    """Cycles run while transactions of both segments are merged one segment after the other, and held between them."""
    blocked = BlockedSegments(cluster.store, lambda name: name == "scope/a/1.#epoch.0", call_name="merge_segments")
    service = cluster.build(QUIET, segments=blocked)
    await service.start()
    await service.create_scope("scope")
    await service.create_stream("scope", "a", StreamConfig(Scaling.fixed(2), retention=by_size(20)))
    one = House(cluster, service)
    retention = retention_of(service)
    for _ in range(8):
        made = (await service.transactions.create("scope", "a", 10_000)).id
        for number in (0, 1):
            name = transaction_segment_name(segment_name("scope", "a", number), made.high, made.low)
            await cluster.store.append(name, b"ten bytes.")
        blocked.is_blocked, blocked._released = True, asyncio.Event()
        await service.transactions.commit("scope", "a", made, writer_id="w", timestamp=-1)
        one.cluster.clock_ms += 1
        running = asyncio.create_task(retention.cycle())
        await asyncio.sleep(0.02)
        blocked.release()
        await running
        await service.idle()
        head = await one.head()
        assert not head or head[0] == head[1], f"a part of a transaction lies before the head {head}"
    assert head == {0: 70, 1: 70}
    assert not [known.problem for known in retention._cycle._known.values() if known.problem]


@pytest.mark.parametrize("is_hanging", [True, False], ids=["hanging", "offline"])
async def test_streams_of_an_offline_container_delay_no_other_stream(
    cluster: InProcessCluster, is_hanging: bool
) -> None:
    """Many more of them than are inspected at once: a healthy stream is truncated in time."""
    settings = ControllerSettings(
        retry_delay_ms_first=10_000,
        attempts_max=3,
        # All segments are in one container here: what hangs must not use up the requests of the healthy stream.
        segment_batches_max=1000,
        segment_requests_max=1000,
        retention=RetentionSettings(interval_s=0.05, streams_at_once=4, answer_timeout_s=0.1),
    )
    scripted = ScriptedSegments(cluster.store)
    blocked = BlockedSegments(scripted, lambda name: name.startswith("scope/sick"))
    service = cluster.build(settings, segments=blocked)
    await service.start()
    await service.create_scope("scope")
    sick = [f"sick-{number}" for number in range(100)]
    for name in (*sick, "a"):
        await service.create_stream("scope", name, StreamConfig(Scaling.fixed(2), retention=by_size(20)))
    one = House(cluster, service)
    cycle = service._retention._cycle
    cycle._pace = replace(cycle._pace, place_s=0.2)
    if is_hanging:
        blocked.is_blocked = True
    else:

        def rule(name: str, arguments: tuple[Any, ...]) -> ContainerOfflineError | None:
            is_sick = arguments and str(arguments[0]).startswith("scope/sick")
            return ContainerOfflineError(0, "its log is away") if is_sick else None

        scripted.rule = rule
    length, heads = 0, set()
    deadline_s = asyncio.get_running_loop().time() + 120
    while len(heads) < 6:
        assert asyncio.get_running_loop().time() < deadline_s, f"the heads were {heads}"
        length += 10
        cluster.clock_ms += 1
        await one.write({0: length, 1: length})
        await asyncio.sleep(0.02)
        heads.add(sum((await one.head()).values()))
    assert cycle._slow_count <= 64
    assert cycle._failing_workers <= 4
    assert not cycle._known["scope", "a"].problem


async def test_failed_streams_are_processed_again(
    house: Callable[..., Awaitable[House]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lane of failing streams empties once they can be inspected."""
    one = await house(by_size(20))
    retention = retention_of(one.service)
    infos = one.cluster.store.segment_infos

    async def refuse(segments: list[str]) -> None:
        raise ContainerOfflineError(0, "its log is away")

    monkeypatch.setattr(one.cluster.store, "segment_infos", refuse)
    await one.write({0: 100, 1: 100})
    await retention.cycle()
    assert retention._cycle._known["scope", "a"].problem
    monkeypatch.setattr(one.cluster.store, "segment_infos", infos)
    for length in (200, 300):
        one.cluster.clock_ms += 1
        await one.write({0: length, 1: length})
        await retention.cycle()
    assert not retention._cycle._known["scope", "a"].problem
    assert await one.head() == {0: 200, 1: 200}
