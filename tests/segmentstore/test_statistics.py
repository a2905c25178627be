"""Load of segments: counting, rates, and expiry. S-n: docs/spec/controller-internals.md."""

from __future__ import annotations

import asyncio
import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.segmentstore.container.append_request import AppendRequest
from penstock.segmentstore.container.log.pipeline import completer
from penstock.segmentstore.container_settings import ActivitySettings, StatisticsSettings
from penstock.segmentstore.settings import SegmentStoreSettings
from penstock.segmentstore.statistics import WINDOWS_MINUTES, ContainerStatistics, MovingRates, Page, Rates, Statistics
from penstock.segmentstore.tier1.memory_log import MemoryLogFactory
from penstock.wire.statistics import SegmentRow
from support.containers import QUIET, FaultyChunks, memory_runtime, memory_store

SETTINGS = StatisticsSettings(tick_s=5.0, expiry_s=60.0, segments_max=3)
A = "s/t/0.#epoch.0"


def add(statistics: Statistics, segment_id: int, events: int, now_s: float) -> None:
    statistics.add(
        segment_id,
        f"segment-{segment_id}",
        events=events,
        byte_count=events * 100,
        scale_type=2,
        target_rate=10,
        now_s=now_s,
    )


def values(rates: Rates) -> list[float]:
    return [rates.minutes_2, rates.minutes_5, rates.minutes_10, rates.minutes_20]


def test_the_first_measurement_sets_all_averages() -> None:
    """S-245: the start value is immediate; ticks before it count for nothing."""
    rates = MovingRates(5.0)
    rates.measure(0)
    rates.measure(0)
    rates.measure(500)
    assert values(rates.rates()) == [100.0] * 4


def test_averages_move_by_the_weight_of_their_window() -> None:
    """S-245: one tick has the weight 1 - exp(-5 / (60 N))."""
    rates = MovingRates(5.0)
    rates.measure(500)
    rates.measure(1000)
    for minutes, value in zip(WINDOWS_MINUTES, values(rates.rates()), strict=True):
        weight = 1 - math.exp(-5 / (60 * minutes))
        assert value == pytest.approx(100 * (1 - weight) + 200 * weight)


def test_averages_converge_to_the_true_rate() -> None:
    """S-245: the shorter the window, the sooner."""
    rates = MovingRates(5.0)
    rates.measure(5000)
    for _ in range(12 * 60):
        rates.measure(50)
    minutes_2, minutes_5, minutes_10, minutes_20 = values(rates.rates())
    assert 10 <= minutes_2 <= minutes_5 <= minutes_10 <= minutes_20 < 70
    assert minutes_10 == pytest.approx(10, rel=0.3)


@pytest.mark.parametrize("unit_s", [0.5, 6.0, 600.0])
def test_windows_are_as_long_as_the_unit_says(unit_s: float) -> None:
    """The same ticks, as much shorter or longer as the unit is, give the same averages of the same rates."""
    usual, scaled = MovingRates(5.0), MovingRates(5.0 * unit_s / 60, unit_s)
    for count in (500, 0, 20, 900):
        usual.measure(count)
        scaled.measure(count, silent_ticks=0)
    usual.spread(70, 30.0)
    scaled.spread(70, 30.0 * unit_s / 60)
    expected = [value * 60 / unit_s for value in values(usual.rates(3))]
    assert values(scaled.rates(3)) == pytest.approx(expected)


def test_silence_brought_in_later_equals_silence_measured() -> None:
    """Segments without data cost nothing per tick, with the same result."""
    measured, lazy = MovingRates(5.0), MovingRates(5.0)
    for rates in (measured, lazy):
        rates.measure(700)
    for _ in range(17):
        measured.measure(0)
    assert values(lazy.rates(17)) == pytest.approx(values(measured.rates()))
    measured.measure(300)
    lazy.measure(300, 17)
    assert values(lazy.rates()) == pytest.approx(values(measured.rates()))


def test_counts_are_exact_and_ticks_follow_the_clock() -> None:
    statistics = Statistics(3, SETTINGS, now_s=100.0)
    add(statistics, 1, 10, 101.0)
    add(statistics, 1, 15, 102.0)
    statistics.advance(104.9)
    assert values(statistics.snapshot(104.9).segments[0].events_per_s) == [0.0] * 4
    statistics.advance(105.0)
    (load,) = statistics.snapshot(107.0).segments
    assert (load.name, load.event_count, load.byte_count, load.age_s, load.silent_s) == ("segment-1", 25, 2500, 6.0, 0)
    assert (load.scale_type, load.target_rate) == (2, 10)
    assert values(load.events_per_s) == [5.0] * 4
    assert values(load.bytes_per_s) == [500.0] * 4
    add(statistics, 2, 5, 106.0)
    statistics.advance(110.0)
    whole = statistics.snapshot(110.0)
    assert (whole.container_id, whole.event_count, whole.byte_count) == (3, 30, 3000)
    assert 1.0 < whole.events_per_s.minutes_2 < 5.0
    assert [load.silent_s for load in whole.segments] == [5.0, 0.0]


def test_what_is_silent_for_long_is_forgotten() -> None:
    """The one that got data last stays; the container's counts stay whole."""
    statistics = Statistics(0, SETTINGS, now_s=0.0)
    add(statistics, 1, 1, 1.0)
    statistics.advance(5.0)
    add(statistics, 2, 1, 41.0)
    statistics.advance(45.0)
    statistics.advance(60.0)
    assert [load.name for load in statistics.snapshot(60.0).segments] == ["segment-1", "segment-2"]
    statistics.advance(65.0)
    assert [load.name for load in statistics.snapshot(65.0).segments] == ["segment-2"]
    assert statistics.snapshot(65.0).event_count == 2


def test_the_number_of_segments_is_bounded() -> None:
    """Those that got data least lately go first."""
    statistics = Statistics(0, SETTINGS, now_s=0.0)
    for segment_id in (1, 2, 3, 1, 4, 5):
        add(statistics, segment_id, 1, 1.0)
    statistics.advance(5.0)
    assert [load.name for load in statistics.snapshot(5.0).segments] == ["segment-1", "segment-4", "segment-5"]
    statistics.forget(4)
    statistics.forget(99)
    assert len(statistics.snapshot(5.0).segments) == 2


async def test_a_store_tells_the_load_of_its_segments() -> None:
    """Events and bytes of appends and merges; no tables, no transactions, nothing from before a restart."""
    runtime = memory_runtime()
    logs = MemoryLogFactory(runtime)
    settings = SegmentStoreSettings(
        container_count=1, container=replace(QUIET, activity=ActivitySettings(interval_s=3600.0))
    )
    chunks = FaultyChunks()
    store = memory_store(logs, chunks, runtime, settings)
    await store.start()
    transaction = f"{A}#transaction.{'a' * 32}"
    await store.create_segment(A, scale_type=2, target_rate=77)
    await store.create_segment(transaction)
    await store.create_table("s/_tables/a")
    await asyncio.sleep(0)
    container = store.containers[0]

    async def poll() -> ContainerStatistics:
        await container.activity_watch.poll()
        (statistics,) = store.container_statistics()
        return statistics

    container.acceptor.append(container.segment(A), AppendRequest(b"x" * 50, event_count=5), lambda _: None)
    container.acceptor.append(container.segment(transaction), AppendRequest(b"x" * 30, event_count=3), lambda _: None)
    (load,) = (await poll()).segments
    assert (load.name, load.event_count, load.byte_count, load.target_rate) == (A, 5, 50, 77)
    await store.merge_segments(A, [transaction])
    whole = await poll()
    assert (whole.event_count, whole.byte_count) == (8, 80)
    assert [(load.event_count, load.byte_count) for load in whole.segments] == [(8, 80)]
    await store.append(A, b"x")
    await store.seal_segment(A)
    whole = await poll()
    assert (whole.segments, whole.byte_count) == ([], 81)
    await store.stop()

    store = memory_store(logs, chunks, runtime, settings)
    await store.start()
    await asyncio.sleep(0)
    container = store.containers[0]
    assert (await poll()).byte_count == 0
    await store.stop()
    await runtime.work.close()


async def test_what_many_record_at_once_is_counted_to_the_last_event() -> None:
    """S-248: writers of the same segments, and transactions merged, while polls take away what has come so far.

    No event is lost and none is counted twice, neither of a segment nor of the container.
    """
    runtime = memory_runtime()
    settings = SegmentStoreSettings(
        container_count=1, container=replace(QUIET, activity=ActivitySettings(interval_s=3600.0))
    )
    store = memory_store(MemoryLogFactory(runtime), FaultyChunks(), runtime, settings)
    await store.start()
    names = [f"s/t/{number}.#epoch.0" for number in range(3)]
    for name in names:
        await store.create_segment(name)
    container = store.containers[0]
    loop = asyncio.get_running_loop()

    async def append(name: str, event_count: int) -> None:
        done = loop.create_future()
        request = AppendRequest(bytes(10 * event_count), event_count=event_count)
        container.acceptor.append(container.segment(name), request, completer(done))
        await done

    async def write(writer: int) -> None:
        for number in range(30):
            await append(names[(writer + number) % 3], 1 + number % 2)
        transaction = f"{names[writer % 3]}#transaction.{writer:032x}"
        await store.create_segment(transaction)
        await append(transaction, 100)
        await store.merge_segments(names[writer % 3], [transaction])

    writing = asyncio.gather(*(write(writer) for writer in range(12)))
    poll_count, seen = 0, set()
    while not writing.done():
        await container.activity_watch.poll()
        poll_count += 1
        seen.add(store.container_statistics()[0].event_count)
        await asyncio.sleep(0)
    await writing
    await container.activity_watch.poll()
    (whole,) = store.container_statistics()
    # Of each of 12 writers: 15 appends of one event and 15 of two, and a transaction of a hundred.
    assert (whole.event_count, whole.byte_count) == (12 * 145, 12 * 1450)
    assert {load.name: load.event_count for load in whole.segments} == dict.fromkeys(names, 4 * 145)
    # Not vacuous: much of it was taken away while more came.
    assert poll_count > 10
    assert len(seen) > 5
    await store.stop()
    await runtime.work.close()


@pytest.mark.parametrize("ending", ["seal", "delete", "delete a sealed one"])
async def test_a_segment_that_ends_long_after_its_last_append_is_reported_as_removed(ending: str) -> None:
    """And in more than one pass: otherwise a poller could show a deleted stream until its load expires."""
    runtime = memory_runtime()
    settings = SegmentStoreSettings(
        container_count=1, container=replace(QUIET, activity=ActivitySettings(interval_s=3600.0))
    )
    store = memory_store(MemoryLogFactory(runtime), FaultyChunks(), runtime, settings)
    await store.start()
    await asyncio.sleep(0)
    watch = store.containers[0].activity_watch
    await store.create_segment(A)
    await store.append(A, b"x")
    await watch.poll()
    page = watch.statistics.page(0, 10)
    assert rows(page) == [(A, 0, False)]
    await watch.poll()
    if ending != "delete":
        await store.seal_segment(A)
    if ending == "delete a sealed one":
        await watch.poll()
    if ending != "seal":
        await store.delete_segment(A)
    await watch.poll()
    assert rows(watch.statistics.page(page.change, 10)) == [(A, 0, True)]
    assert store.container_statistics()[0].segments == []
    await store.stop()
    await runtime.work.close()


def test_very_many_segments_are_measured_in_steps_and_to_the_same_end() -> None:
    """Others get a turn between the steps: 25 000 segments measured at once would hold everybody up."""
    at_once, in_steps = (Statistics(1, StatisticsSettings(), 0.0) for _ in range(2))
    for number in range(3000):
        for statistics in (at_once, in_steps):
            statistics.add(
                number, f"s/t/{number}", events=number, byte_count=10, scale_type=0, target_rate=0, now_s=1.0
            )
    at_once.advance(5.0)
    assert sum(1 for _ in in_steps.advance_in_steps(5.0)) >= 5
    assert in_steps.snapshot(5.0) == at_once.snapshot(5.0)


def rows(page: Page) -> list[tuple[str, int, bool]]:
    return [(row.name, row.event_count, row.is_gone) for row in page.segments]


def test_a_repeated_request_returns_changes_only() -> None:
    """The cursor is the number of the last change reported. A segment with newer activity is returned again, whole."""
    statistics = Statistics(0, StatisticsSettings(), now_s=0.0)
    for segment_id in range(1, 2001):
        add(statistics, segment_id, 1, 1.0)
    statistics.polled(1.0)
    page = statistics.page(0, 10_000)
    assert (len(page.segments), page.is_complete, page.segment_count) == (2000, True, 2000)
    assert rows(statistics.page(page.change, 10_000)) == []
    add(statistics, 7, 4, 2.0)
    add(statistics, 3, 2, 2.0)
    statistics.polled(2.0)
    news = statistics.page(page.change, 10_000)
    assert rows(news) == [("segment-7", 5, False), ("segment-3", 3, False)]
    assert [(row.last_event_count, row.measured_s) for row in news.segments] == [(4, 2.0), (2, 2.0)]
    assert (news.last_event_count, news.measured_s, news.interval_s) == (6, 2.0, 1.0)


def test_segments_that_have_gone_are_reported_once() -> None:
    statistics = Statistics(0, StatisticsSettings(), now_s=0.0)
    add(statistics, 1, 1, 1.0)
    add(statistics, 2, 1, 1.0)
    page = statistics.page(0, 10)
    statistics.forget(1)
    statistics.forget(1)
    statistics.forget(99)
    news = statistics.page(page.change, 10)
    assert (rows(news), news.segment_count) == ([("segment-1", 1, True)], 1)
    assert rows(statistics.page(news.change, 10)) == []
    assert [load.name for load in statistics.snapshot(1.0).segments] == ["segment-2"]


@given(
    st.lists(st.tuples(st.sampled_from("agdl"), st.integers(1, 12), st.integers(1, 5)), max_size=80),
    st.integers(1, 4),
)
def test_pages_put_together_are_the_whole_whatever_happens_between_them(
    steps: list[tuple[str, int, int]], page_count_max: int
) -> None:
    """`a`dd, `g`o, ticks (`d`) in which some expire, `l`isten to a page: in the end the listener knows all."""
    settings = StatisticsSettings(tick_s=5.0, expiry_s=20.0, segments_max=6)
    statistics = Statistics(0, settings, now_s=0.0)
    known: dict[str, SegmentRow] = {}
    after, now_s = 0, 0.0

    def listen() -> bool:
        nonlocal after
        page = statistics.page(after, page_count_max)
        assert len(page.segments) <= page_count_max
        after = page.change
        for row in page.segments:
            known.pop(row.name, None)
            if not row.is_gone:
                known[row.name] = row
        if page.is_complete and len(known) > page.segment_count:
            for name in [name for name, row in known.items() if row.measured_s < page.oldest_s]:
                del known[name]
        return page.is_complete

    for what, segment_id, count in steps:
        now_s += 1.0
        if what == "a":
            add(statistics, segment_id, count, now_s)
        elif what == "g":
            statistics.forget(segment_id)
        elif what == "d":
            now_s += 5.0 * count
            statistics.advance(now_s)
        else:
            listen()
    while not listen():
        pass
    there = {load.name: load.event_count for load in statistics.snapshot(now_s).segments}
    told = {name: row.event_count for name, row in known.items()}
    assert told == there
    assert len(there) == statistics.page(after, 1).segment_count
