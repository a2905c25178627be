"""Times of transactions that a scale has overtaken: noted in epochs without a record yet, with crashes meanwhile.

Shows S-165 for marks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from penstock.controller.metadata.records import TransactionStatus
from penstock.controller.metadata.transaction_ids import TransactionId
from penstock.controller.service import ControllerService
from penstock.controller.settings import ControllerSettings, WatermarkSettings
from penstock.controller.transactions.lease_timers import OpenTransaction
from penstock.controller.watermarks.mark_log import MarkLog
from penstock.controller.watermarks.mark_streams import read_mark_segment
from penstock.controller.watermarks.writer_marks import all_marks
from penstock.model.names import segment_id, segment_name, transaction_segment_name
from penstock.model.policies import Scaling, StreamConfig
from penstock.model.watermarks import Watermark
from support.crash_script import AllBuckets
from support.failing_segments import FailingSegments, Fault, attempt
from support.in_process_cluster import InProcessCluster

QUIET = ControllerSettings(
    retry_delay_ms_first=0, retry_delay_ms_max=0, removal_delay_ms=0, watermarks=WatermarkSettings(interval_s=1e9)
)
#: Writers that are behind are awaited for longer than the test takes.
CONFIG = StreamConfig(Scaling.fixed(2), timestamp_aggregation_timeout_ms=3_600_000)
#: The times of the transactions, by their writers, and what each of them brings to each segment.
TIMES = {"a": 7, "b": 8}
DATA = b"ten bytes!"


async def begin(cluster: InProcessCluster, service: ControllerService) -> TransactionId:
    made = await service.transactions.create("scope", "stream", 30_000)
    for segment in made.epoch.segments:
        parent = segment_name("scope", "stream", segment.id)
        await cluster.store.append(transaction_segment_name(parent, made.id.high, made.id.low), DATA)
    return made.id


async def decided(service: ControllerService, made: dict[str, TransactionId]) -> None:
    """Decide on transactions of which nothing follows yet."""
    post, service.transactions.work.post_commit = service.transactions.work.post_commit, lambda opened: None  # type: ignore[method-assign]
    for writer, transaction in made.items():
        await service.transactions.commit("scope", "stream", transaction, writer_id=writer, timestamp=TIMES[writer])
    service.transactions.work.post_commit = post  # type: ignore[method-assign]


async def prepared(
    cluster: InProcessCluster, fault: Fault
) -> tuple[FailingSegments, ControllerService, ControllerService, dict[str, TransactionId]]:
    """Start two controllers on a stream that a scale has moved on, with two transactions of its first epoch, decided.

    All writers have noted 0, and one of them 100 since: the next watermark is one of the transactions.
    """
    failing = FailingSegments(cluster.store, 0, fault)
    first = cluster.build(QUIET, segments=failing)
    await first.start()
    await first.create_scope("scope")
    await first.create_stream("scope", "stream", CONFIG)
    for writer in ("a", "b", "ahead"):
        await first.writer_marks.note("scope", "stream", writer, 0, {0: 0, 1: 0})
    await cycle(first)
    made = {writer: await begin(cluster, first) for writer in TIMES}
    await first.scale_stream("scope", "stream", [0], [(0.0, 0.25), (0.25, 0.5)])
    await first.idle()
    current = {segment.id: 0 for segment in await first.current_segments("scope", "stream")}
    await first.writer_marks.note("scope", "stream", "ahead", 100, current)  # type: ignore[arg-type]
    second = await cluster.start(QUIET)
    await second.idle()
    await decided(first, made)
    return failing, first, second, made


async def cycle(service: ControllerService) -> None:
    service._watermarks._cycle._buckets = AllBuckets()
    await service._watermarks.cycle()


async def watermarks(service: ControllerService) -> list[Watermark]:
    name = (await service.queries.on_stream("scope", "stream", read_mark_segment)).name
    log = MarkLog(service._context.segments, name)
    return [found async for _, found in log.entries(0, (await service._context.segments.info(name)).length)]


async def check(service: ControllerService, made: dict[str, TransactionId]) -> None:
    """All is merged; the marks are where it ended, and the watermark after it is one of the slower transaction."""
    for transaction in made.values():
        assert await service.transactions.status("scope", "stream", transaction) is TransactionStatus.COMMITTED
    ends = {segment_id(number, 2): 2 * len(DATA) for number in (0, 1)}
    marks = await service.queries.on_stream("scope", "stream", all_marks)
    assert {writer: marks[writer].record.timestamp for writer in made} == TIMES
    # Who was merged first ends there, or, merged again by another controller, where the whole batch ends.
    assert marks["b"].record.position == ends
    assert marks["a"].record.position.keys() == ends.keys()
    assert set(marks["a"].record.position.values()) <= {len(DATA), 2 * len(DATA)}
    await cycle(service)
    found = await watermarks(service)
    assert [(each.lower_bound, each.upper_bound) for each in found] == [(0, 0), (7, 100)]
    assert found[-1].positions == ends


@pytest.mark.parametrize("fault", list(Fault))
async def test_times_of_a_roll_are_noted_whichever_of_its_writes_fails(
    fault: Fault, fresh: Callable[[], InProcessCluster]
) -> None:
    """A controller dies, or a request or a reply is lost, at each write from the batch to its end.

    Watermarks are computed before the work is resumed. None comes too early: what is noted with the
    transactions lies after everything on record then.
    """
    at = 0
    while True:
        at += 1
        cluster = fresh()
        failing, first, second, made = await prepared(cluster, fault)
        failing.count, failing.at = 0, at
        for transaction in made.values():
            first.transactions.work.post_commit(OpenTransaction("scope", "stream", transaction))
        await attempt(type(first).idle, first, failing)
        if not failing.is_dead:
            await check(first, made)
        else:
            await cycle(second)
            assert {each.lower_bound for each in await watermarks(second)} <= {0, 7}, at
            await first.stop()
            # It learns of the end in a turn of its own.
            await asyncio.sleep(0)
            await second.idle()
            await check(second, made)
        if failing.count < at:
            assert at > 15
            return
