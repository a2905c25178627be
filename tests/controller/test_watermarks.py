"""The cycle that makes watermarks: over in-memory segments, with controllers that run it only on request."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from penstock.controller.metadata import layout
from penstock.controller.metadata.listed_streams import ListedStream
from penstock.controller.service import ControllerService
from penstock.controller.settings import ControllerSettings, WatermarkSettings
from penstock.controller.stream_scanner import StreamScanner
from penstock.controller.watermarks.mark_log import MarkLog
from penstock.controller.watermarks.mark_streams import read_mark_segment
from penstock.controller.watermarks.writer_marks import all_marks
from penstock.model.errors import NoSuchSegmentError, OutcomeUnknownError, StorageError
from penstock.model.events import frame_event, split_events
from penstock.model.names import segment_id
from penstock.model.policies import Scaling, StreamConfig
from penstock.model.segments import MARK_ATTRIBUTE, NO_VALUE, TablePage
from penstock.model.watermarks import Watermark
from support.crash_script import AllBuckets
from support.failing_requests import Failing
from support.in_process_cluster import InProcessCluster

QUIET = ControllerSettings(
    retry_delay_ms_first=0, retry_delay_ms_max=0, attempts_max=2, watermarks=WatermarkSettings(interval_s=1e9)
)
#: Writers of this stream are awaited for longer than a test takes.
PATIENT_MS = 3_600_000


@pytest.fixture
async def controller(cluster: InProcessCluster) -> ControllerService:
    """A controller with stream scope/a of two segments; writers that are behind are awaited."""
    return await with_stream(cluster)


async def with_stream(cluster: InProcessCluster, timeout_ms: int = PATIENT_MS) -> ControllerService:
    service = await cluster.start(QUIET)
    await service.create_scope("scope")
    config = StreamConfig(Scaling.fixed(2), timestamp_aggregation_timeout_ms=timeout_ms)
    await service.create_stream("scope", "a", config)
    return service


async def note(service: ControllerService, writer: str, time: int, position: dict[int, int], stream: str = "a") -> None:
    await service.writer_marks.note("scope", stream, writer, time, position)


async def mark_segment(service: ControllerService, stream: str = "a") -> str:
    return (await service.queries.on_stream("scope", stream, read_mark_segment)).name


async def made(service: ControllerService, stream: str = "a") -> list[Watermark]:
    """Return all watermarks of a stream, as they are stored."""
    name = await mark_segment(service, stream)
    info = await service._context.segments.info(name)
    log = MarkLog(service._context.segments, name)
    return [watermark async for _, watermark in log.entries(info.start_offset, info.length)]


async def times(service: ControllerService, stream: str = "a") -> list[tuple[int, int]]:
    return [(watermark.lower_bound, watermark.upper_bound) for watermark in await made(service, stream)]


async def writers(service: ControllerService, stream: str = "a") -> list[str]:
    return sorted(await service.queries.on_stream("scope", stream, all_marks))


async def listed(service: ControllerService) -> list[str]:
    return [each.stream async for each in service._context.marked.all()]


async def cycle(*services: ControllerService) -> None:
    await asyncio.gather(*(service._watermarks.cycle() for service in services))


async def until(condition: Callable[[], Awaitable[Any]]) -> None:
    """Wait for something that comes by itself, however slow the machine is."""
    async with asyncio.timeout(60):
        while not await condition():  # noqa: ASYNC110  # What it asks for has no event.
            await asyncio.sleep(0.005)


async def test_marks_of_all_writers_make_a_watermark(controller: ControllerService, cluster: InProcessCluster) -> None:
    """It covers the keys, is an event of the mark stream's only segment, and the next one is appended to it."""
    await note(controller, "v", 10, {0: 100, 1: 50})
    await note(controller, "w", 12, {0: 70})
    await cycle(controller)
    (first,) = await made(controller)
    assert (first.lower_bound, first.upper_bound, first.positions) == (10, 12, {0: 100, 1: 50})
    segment = await mark_segment(controller)
    assert segment == "scope/_MARKa/0.#epoch.0"
    stored = (await cluster.store.read(segment, 0, 1000)).joined()
    (event,), _ = split_events(stored)
    assert Watermark.decode(event, segment=segment, offset=0) == first
    assert await cluster.store.get_attribute(segment, MARK_ATTRIBUTE) == NO_VALUE
    await cycle(controller)
    assert await times(controller) == [(10, 12)]
    await note(controller, "v", 20, {0: 110, 1: 60})
    await note(controller, "w", 22, {0: 80, 1: 90})
    await cycle(controller)
    assert (await made(controller))[1].positions == {0: 110, 1: 90}
    # As Pravega leaves it: from there on the last one is read.
    assert await cluster.store.get_attribute(segment, MARK_ATTRIBUTE) == len(stored)


async def test_a_late_writer_delays_watermarks_until_its_time_out(cluster: InProcessCluster) -> None:
    """S-233: awaited for the stream's time-out, from when it is seen to be behind; then removed, and the rest
    continues.
    """
    service = await with_stream(cluster, timeout_ms=200)
    await note(service, "slow", 10, {0: 1})
    await note(service, "fast", 11, {0: 2})
    await cycle(service)
    await note(service, "fast", 20, {0: 3})
    await cycle(service)
    assert await times(service) == [(10, 11)]
    assert await writers(service) == ["fast", "slow"]

    async def is_removed() -> bool:
        await cycle(service)
        return await writers(service) == ["fast"]

    await until(is_removed)
    assert await times(service) == [(10, 11), (20, 20)]
    # It comes back: from its next time on it counts again.
    await note(service, "slow", 15, {0: 4})
    await note(service, "fast", 21, {0: 4})
    await cycle(service)
    assert await times(service) == [(10, 11), (20, 20)]


async def test_a_writer_that_has_left_is_not_awaited(controller: ControllerService) -> None:
    """Its last time still counts; once it is behind, its mark goes."""
    await note(controller, "v", 10, {0: 1})
    await note(controller, "w", 11, {0: 1})
    await cycle(controller)
    await controller.writer_marks.remove("scope", "a", "v")
    await note(controller, "w", 12, {0: 2})
    await cycle(controller)
    assert await times(controller) == [(10, 11), (12, 12)]
    assert await writers(controller) == ["w"]


async def test_a_mark_written_during_removal_of_its_writer_is_kept(controller: ControllerService) -> None:
    """S-233, S-237: what was read is removed, and nothing else."""
    await note(controller, "v", 10, {0: 1})
    await note(controller, "w", 11, {0: 1})
    await cycle(controller)
    await controller.writer_marks.remove("scope", "a", "v")
    await note(controller, "w", 12, {0: 2})
    remove = controller._records.remove_version

    async def late(table: str, key: str, version: int) -> None:
        if "writersPositions" in table:
            await note(controller, "v", 13, {0: 3})
        await remove(table, key, version)

    controller._records.remove_version = late  # type: ignore[method-assign]
    await cycle(controller)
    assert await writers(controller) == ["v", "w"]


async def test_a_stream_without_writers_is_not_processed_until_one_starts(cluster: InProcessCluster) -> None:
    """S-234: it is listed with the first mark, and no longer once no marks are left."""
    service = await with_stream(cluster, timeout_ms=0)
    assert await listed(service) == []
    assert layout.MARKED_STREAMS not in cluster.store.tables
    await note(service, "v", 10, {0: 1})
    assert await listed(service) == ["a"]
    for _ in range(3):
        await cycle(service)
    assert await listed(service) == []
    await note(service, "v", 9, {0: 2})
    await note(service, "w", 11, {0: 2})
    assert await listed(service) == ["a"]
    await cycle(service)
    # Of the time-out 0 the one that is behind is gone at once.
    assert await times(service) == [(10, 10), (11, 11)]
    assert await writers(service) == ["w"]


async def test_a_writer_that_starts_during_removal_from_the_list_is_found(cluster: InProcessCluster) -> None:
    """The entry that is taken off is the one that was read: another one stays."""
    service = await with_stream(cluster, timeout_ms=0)
    await note(service, "v", 10, {0: 1})
    await cycle(service)
    await cycle(service)
    remove = service._records.remove_version

    async def late(table: str, key: str, version: int) -> None:
        if table == layout.MARKED_STREAMS:
            await note(service, "w", 20, {0: 3})
        await remove(table, key, version)

    service._records.remove_version = late  # type: ignore[method-assign]
    await cycle(service)
    assert await listed(service) == ["a"]
    await cycle(service)
    assert await times(service) == [(10, 10), (20, 20)]


async def test_a_stream_missing_from_the_list_after_a_crash_is_listed_with_the_next_mark(
    cluster: InProcessCluster, controller: ControllerService
) -> None:
    """The mark was written, the controller died before the entry was."""

    async def dies(*arguments: object, **options: Any) -> None:
        raise OutcomeUnknownError("the controller is gone")

    object.__setattr__(controller.writer_marks._writes, "marked", type("Dead", (), {"add": dies})())
    with pytest.raises(OutcomeUnknownError):
        await note(controller, "w", 10, {0: 1})
    other = await cluster.start(QUIET)
    assert await listed(other) == []
    assert await writers(other) == ["w"]
    await note(other, "w", 11, {0: 1})
    assert await listed(other) == ["a"]


async def test_two_controllers_in_one_cycle_make_one_watermark(
    cluster: InProcessCluster, controller: ControllerService
) -> None:
    """S-231: the later of two appends nothing. Each stream has one owner, but owners may overlap for a moment."""
    other = await cluster.start(QUIET)
    for service in (controller, other):
        service._watermarks._cycle._buckets = AllBuckets()
    for time in range(10, 15):
        await note(controller, "v", time, {0: time})
        await note(other, "w", time + 1, {1: time})
        await cycle(controller, other)
    assert await times(controller) == [(time, time + 1) for time in range(10, 15)]


async def test_each_stream_belongs_to_one_of_the_controllers(
    cluster: InProcessCluster, controller: ControllerService
) -> None:
    """The one that owns its bucket; when that goes, another one continues from the stored watermark (S-238)."""
    other = await cluster.start(QUIET)
    both = (controller, other)

    async def know_each_other() -> bool:
        return all(len(service.watermarking_buckets.shares()) == 2 for service in both)

    await until(know_each_other)
    assert [service.watermarking_buckets.owned("scope", "a") for service in both].count(True) == 1
    owner = next(service for service in both if service.watermarking_buckets.owned("scope", "a"))
    rest = next(service for service in both if service is not owner)
    await note(rest, "v", 10, {0: 1})
    await cycle(rest)
    assert await times(rest) == []
    await cycle(owner)
    assert await times(rest) == [(10, 10)]
    await owner.stop()

    async def is_alone() -> bool:
        return len(rest.watermarking_buckets.shares()) == 1

    await until(is_alone)
    await note(rest, "v", 20, {0: 2})
    await cycle(rest)
    assert await times(rest) == [(10, 10), (20, 20)]


async def test_after_a_scale_the_cut_has_the_new_segments(controller: ControllerService) -> None:
    """A writer that has seen it, and one that has not; keys without a position begin where the new segments do."""
    await note(controller, "v", 10, {0: 100, 1: 50})
    await note(controller, "w", 11, {0: 100, 1: 50})
    await cycle(controller)
    await controller.scale_stream("scope", "a", [0, 1], [(0.0, 0.25), (0.25, 1.0)])
    await controller.idle()
    new, other = segment_id(2, 1), segment_id(3, 1)
    await note(controller, "v", 20, {0: 100, 1: 60})
    await note(controller, "w", 21, {0: 100, 1: 50, new: 7})
    await cycle(controller)
    assert (await made(controller))[1].positions == {new: 7, other: 0}


async def test_times_of_transactions_make_watermarks(controller: ControllerService, cluster: InProcessCluster) -> None:
    """A commit with a writer and a time is a mark as any other."""
    transaction = (await controller.transactions.create("scope", "a", 30_000)).id
    await controller.transactions.commit("scope", "a", transaction, writer_id="w", timestamp=7)
    await controller.idle()
    await cycle(controller)
    assert await times(controller) == [(7, 7)]


async def test_a_position_in_unknown_segments_is_removed_and_the_others_count(controller: ControllerService) -> None:
    """A position of a future epoch, of another number, or below zero: its writer holds no watermark back."""
    await note(controller, "w", 10, {0: 1})
    for index, segment in enumerate((segment_id(0, 7), 99, -1)):
        await note(controller, f"stranger{index}", 5, {segment: 1})
    await cycle(controller)
    assert await times(controller) == [(10, 10)]
    assert await writers(controller) == ["w"]
    await note(controller, "stranger", 11, {99: 1})
    await controller.writer_marks.remove("scope", "a", "w")
    await cycle(controller)
    await cycle(controller)
    assert await times(controller) == [(10, 10)]


async def test_a_sealed_stream_keeps_its_watermarks_and_a_deleted_one_is_forgotten(
    controller: ControllerService, cluster: InProcessCluster
) -> None:
    """S-235: a stream that is created again has no watermarks, and gets its own."""
    await note(controller, "w", 10, {0: 1})
    await cycle(controller)
    await controller.seal_stream("scope", "a")
    await note(controller, "w", 11, {0: 1})
    await cycle(controller)
    assert await times(controller) == [(10, 10), (11, 11)]
    segment = await mark_segment(controller)
    await controller.delete_stream("scope", "a")
    with pytest.raises(NoSuchSegmentError):
        await cluster.store.segment_info(segment)
    await cycle(controller)
    assert await listed(controller) == []
    await controller.create_stream("scope", "a", StreamConfig(Scaling.fixed(1)))
    (first,) = await controller.current_segments("scope", "a")
    await note(controller, "w", 3, {first.id: 0})
    await cycle(controller)
    assert await times(controller) == [(3, 3)]


async def test_watermarks_before_the_head_of_the_stream_are_forgotten(
    controller: ControllerService, cluster: InProcessCluster
) -> None:
    """But for the last of them: a reader at the head still learns how late it is. Java's attribute stays valid."""
    for time in range(1, 8):
        await note(controller, "w", time, {0: 10 * time, 1: 10 * time})
        await cycle(controller)
    await cluster.store.append("scope/a/0.#epoch.0", bytes(100))
    await cluster.store.append("scope/a/1.#epoch.0", bytes(100))
    await controller.truncate_stream("scope", "a", {0: 45, 1: 50})
    await cycle(controller)
    assert [lower for lower, _ in await times(controller)] == [4, 5, 6, 7]
    await controller.truncate_stream("scope", "a", {0: 100, 1: 100})
    await cycle(controller)
    assert await times(controller) == [(7, 7)]
    await note(controller, "w", 8, {0: 100, 1: 100})
    await cycle(controller)
    assert [lower for lower, _ in await times(controller)] == [7, 8]


async def test_many_watermarks_are_forgotten_some_in_each_cycle(cluster: InProcessCluster) -> None:
    """One cycle handles no more of them than the settings allow."""
    settings = ControllerSettings(watermarks=WatermarkSettings(interval_s=1e9, truncation_bytes_max=330))
    service = await cluster.start(settings)
    await service.create_scope("scope")
    await service.create_stream("scope", "a", StreamConfig(Scaling.fixed(2)))
    for time in range(1, 11):
        await note(service, "w", time, {0: time, 1: time})
        await cycle(service)
    for segment in (0, 1):
        await cluster.store.append(f"scope/a/{segment}.#epoch.0", bytes(100))
    await service.truncate_stream("scope", "a", {0: 100, 1: 100})
    kept = []
    for _ in range(12):
        await note(service, "w", 11, {0: 11, 1: 11})
        await cycle(service)
        kept.append(len(await times(service)))
    assert kept[0] > 5
    assert kept[-1] == 1
    assert kept == sorted(kept, reverse=True)


async def test_a_stream_whose_watermarks_cannot_be_read_is_named_once_and_the_others_continue(
    controller: ControllerService, cluster: InProcessCluster, caplog: pytest.LogCaptureFixture
) -> None:
    """Damaged, or gone: nothing is made in their place, and nothing is appended."""
    await controller.create_stream("scope", "b", StreamConfig(Scaling.fixed(1)))
    for stream in "ab":
        await note(controller, "w", 10, {0: 1}, stream)
    await cluster.store.append(await mark_segment(controller), frame_event(b"no watermark"))
    with caplog.at_level("INFO"):
        await cycle(controller)
        await cycle(controller)
    assert await times(controller, "b") == [(10, 10)]
    assert [record.message.split(",")[0] for record in caplog.records if "retrying" in record.message] == [
        "watermarks of stream scope/a fails"
    ]


async def test_a_bounded_number_of_streams_is_processed_concurrently_and_all_in_turn(
    cluster: InProcessCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S-227: three at a time of ten; in one cycle all of them get their watermark."""
    settings = ControllerSettings(watermarks=WatermarkSettings(interval_s=1e9, streams_at_once=3))
    service = await cluster.start(settings)
    await service.create_scope("scope")
    streams = [f"stream-{number}" for number in range(10)]
    for stream in streams:
        await service.create_stream("scope", stream, StreamConfig(Scaling.fixed(1)))
        await note(service, "w", 10, {0: 1}, stream)
    inspect, under_way, most, inspected = StreamScanner._inspect_stream, 0, 0, []

    async def counted(self: StreamScanner[Any], listed: ListedStream) -> None:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        try:
            await inspect(self, listed)
        finally:
            under_way -= 1
        inspected.append(listed.stream)

    monkeypatch.setattr(StreamScanner, "_inspect_stream", counted)
    await cycle(service)
    assert most == 3
    assert sorted(inspected) == streams
    assert [await times(service, stream) for stream in streams] == [[(10, 10)]] * 10


async def test_a_stream_that_hangs_does_not_stop_the_others(cluster: InProcessCluster) -> None:
    """The work on it ends with its time limit; it is the first stream, and streams are handled one at a time."""
    settings = ControllerSettings(watermarks=WatermarkSettings(interval_s=1e9, streams_at_once=1, stream_timeout_s=0.5))
    service = await cluster.start(settings)
    await service.create_scope("scope")
    for stream in "ab":
        await service.create_stream("scope", stream, StreamConfig(Scaling.fixed(1)))
        await note(service, "w", 10, {0: 1}, stream)
        await mark_segment(service, stream)
    get_attribute, hung = cluster.store.get_attribute, []

    async def hangs(segment: str, attribute: bytes) -> int:
        if segment.startswith("scope/_MARKa/"):
            hung.append(segment)
            await asyncio.Event().wait()
        return await get_attribute(segment, attribute)

    cluster.store.get_attribute = hangs  # type: ignore[assignment, method-assign]

    async def is_made() -> bool:
        await cycle(service)
        return await times(service, "b") == [(10, 10)]

    await until(is_made)
    assert hung
    assert await times(service, "a") == []


@pytest.mark.parametrize("is_applied", [False, True], ids=["lost request", "lost reply"])
async def test_a_cycle_cut_short_at_any_step_is_made_good_by_the_next(
    fresh: Callable[[], InProcessCluster], is_applied: bool
) -> None:
    """Every request of a cycle fails in turn, with and without its effect. Another controller continues.

    Afterwards each watermark is there once, times and cuts grow, and the marks are what they are without the failure.
    """
    for step in range(200):
        cluster = fresh()
        service = await with_stream(cluster, timeout_ms=0)
        await note(service, "v", 10, {0: 5, 1: 5})
        await note(service, "w", 11, {0: 6, 1: 6})
        await cycle(service)
        await note(service, "w", 20, {0: 7, 1: 7})
        failing = Failing(cluster.store, step, is_applied=is_applied)
        with contextlib.suppress(StorageError, OutcomeUnknownError):
            await cycle(service)
        failing.undo()
        other = await cluster.start(QUIET)
        other._watermarks._cycle._buckets = AllBuckets()
        await cycle(other)
        await note(other, "w", 30, {0: 9, 1: 9})
        await cycle(other)
        found = await made(other)
        assert [watermark.lower_bound for watermark in found] == [10, 20, 30], step
        assert [watermark.positions for watermark in found] == [{0: n, 1: n} for n in (6, 7, 9)], step
        assert await writers(other) == ["w"], step
        assert await listed(other) == ["a"], step
        segment = await mark_segment(other)
        length = (await cluster.store.segment_info(segment)).length
        assert await cluster.store.get_attribute(segment, MARK_ATTRIBUTE) == 2 * length // 3, step
        if not failing.has_failed:
            assert step > 10
            return
    raise AssertionError("a cycle has no end")


async def test_the_cycle_runs_by_itself(cluster: InProcessCluster) -> None:
    """As a controller does it that is left alone; and it ends with the controller."""
    service = await cluster.start(ControllerSettings(watermarks=WatermarkSettings(interval_s=0.01)))
    await service.create_scope("scope")
    await service.create_stream("scope", "a", StreamConfig(Scaling.fixed(1)))
    await note(service, "w", 10, {0: 1})

    async def is_made() -> bool:
        return await times(service) == [(10, 10)]

    await until(is_made)


async def test_a_cycle_with_an_unreadable_list_is_repeated(
    cluster: InProcessCluster, caplog: pytest.LogCaptureFixture
) -> None:
    """The task continues, and says once why there was nothing, however long that lasts; and that it is over."""
    service = await cluster.start(ControllerSettings(watermarks=WatermarkSettings(interval_s=0.01)))
    await service.create_scope("scope")
    await service.create_stream("scope", "a", StreamConfig(Scaling.fixed(1)))
    entries = cluster.store.table_entries
    failures: list[str] = []

    async def broken(segment: str, **options: Any) -> TablePage:
        if segment == layout.MARKED_STREAMS and len(failures) < 3:
            failures.append(segment)
            raise StorageError("the disk is gone")
        return await entries(segment, **options)

    cluster.store.table_entries = broken  # type: ignore[method-assign]
    with caplog.at_level("INFO"):
        await note(service, "w", 10, {0: 1})

        async def is_made() -> bool:
            return len(failures) == 3 and await times(service) == [(10, 10)]

        await until(is_made)
        await until(lambda: asyncio.sleep(0, "scanned again for watermarks" in caplog.text))
    assert caplog.text.count("streams are not scanned for watermarks, retrying") == 1


async def test_no_watermarks_when_disabled(cluster: InProcessCluster) -> None:
    """The marks are kept."""
    service = await cluster.start(ControllerSettings(watermarks=WatermarkSettings(is_enabled=False, interval_s=0.001)))
    await service.create_scope("scope")
    await service.create_stream("scope", "a", StreamConfig(Scaling.fixed(1)))
    await note(service, "w", 10, {0: 1})
    assert not [task for task in asyncio.all_tasks() if task.get_name() == "watermarks"]
    assert await writers(service) == ["w"]


async def test_a_time_in_an_epoch_that_a_roll_is_about_to_put_on_record_is_no_strangers(
    controller: ControllerService, cluster: InProcessCluster
) -> None:
    """The transaction is merged, and its time noted; the epoch is put on record when its segments are sealed.

    Meanwhile there is no watermark: what it brought lies behind every cut. A stranger beside it is removed as before.
    """
    transaction = (await controller.transactions.create("scope", "a", 30_000)).id
    await controller.scale_stream("scope", "a", [0], [(0.0, 0.25), (0.25, 0.5)])
    await controller.idle()
    sealing, go_on = asyncio.Event(), asyncio.Event()
    seal = cluster.store.seal_segment

    async def held(segment: str) -> object:
        sealing.set()
        await go_on.wait()
        return await seal(segment)  # type: ignore[func-returns-value]

    cluster.store.seal_segment = held  # type: ignore[assignment, method-assign]
    await controller.transactions.commit("scope", "a", transaction, writer_id="w", timestamp=7)
    await asyncio.wait_for(sealing.wait(), 60)
    await note(controller, "v", 8, {1: 5})
    await note(controller, "stranger", 9, {segment_id(0, 7): 1})
    await cycle(controller)
    await cycle(controller)
    assert await writers(controller) == ["v", "w"]
    assert await times(controller) == []
    go_on.set()
    await controller.idle()
    await cycle(controller)
    assert await times(controller) == [(7, 8)]
    assert (await made(controller))[0].positions == {segment_id(0, 2): 0, segment_id(1, 2): 0}
