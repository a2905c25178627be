"""Queries of several streams and of patterns: what Spark calls, in its order, against a real store.

Most tests need no JVM: they hand offsets on as Spark does, as JSON text.
"""

from __future__ import annotations

import asyncio
import json
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from support.live_writer import LiveWriter

pytest.importorskip("pyspark", reason="needs pyspark: pip install 'penstock[spark]'")

from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes

import penstock
from penstock.client.transport.wire_segments import WireSegments
from penstock.model.errors import InvalidArgumentError, NoSuchStreamError
from penstock.model.segments import SegmentInfo
from penstock.spark import stream_set
from penstock.spark.options import SourceOptions, StoreSettings, parse_source_options
from penstock.spark.planner import advance, ranges_between
from penstock.spark.source import PenstockBatchReader, PenstockStreamReader
from penstock.spark.stream_set import StreamSet
from spark.test_spark_planner import ModelStream, check_all_is_covered, streams
from support.clock import SetClock
from support.live_writer import SLOW_S, check_gapless
from support.spark_queries import read, run_to_the_end, scale

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.client.sync import Client
    from penstock.server.standalone_process import StandaloneProcess

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

#: What 20 bytes of an event take with their header.
EVENT_BYTES = 28


class Query:
    """A streaming query without Spark: each micro-batch is committed. A new one continues at an old one's offset."""

    def __init__(self, store: StandaloneProcess, stream: str, at: str | None = None, **options: str) -> None:
        given = {"uri": store.uri, "stream": stream, "streamRefreshInterval": "0s", "start": "earliest", **options}
        self.clock = SetClock()
        self.reader = PenstockStreamReader(parse_source_options(given), self.clock)
        self.at = at or json.dumps(self.reader.initialOffset())

    def plan(self, bytes_max: int | None = None) -> str:
        limit = ReadAllAvailable() if bytes_max is None else ReadMaxBytes(bytes_max)
        return json.dumps(self.reader.latestOffset(json.loads(self.at), limit))

    def rows(self, start: str, end: str) -> Counter[tuple[str, bytes]]:
        rows: Counter[tuple[str, bytes]] = Counter()
        for partition in self.reader.partitions(json.loads(start), json.loads(end)):
            for batch in self.reader.read(partition):
                named = batch.select(["scope", "stream", "event"]).to_pylist()
                rows.update((f"{row['scope']}/{row['stream']}", row["event"]) for row in named)
        return rows

    def step(self, bytes_max: int | None = None) -> Counter[tuple[str, bytes]]:
        end = self.plan(bytes_max)
        rows = self.rows(self.at, end)
        self.at = end
        return rows


def written(stream: str, events: list[bytes]) -> Counter[tuple[str, bytes]]:
    return Counter((stream, event) for event in events)


def of_stream(rows: Counter[tuple[str, bytes]], wanted: str) -> Counter[bytes]:
    return Counter({event: count for (stream, event), count in rows.items() if stream == wanted})


def batch_events(options: SourceOptions) -> Counter[bytes]:
    reader = PenstockBatchReader(options)
    batches = [batch for part in reader.partitions() for batch in reader.read(part)]
    return Counter(event for batch in batches for event in batch.column("event").to_pylist())


@pytest.fixture
def new_streams(client: Client, request: pytest.FixtureRequest) -> Callable[..., list[str]]:
    """Return a function that makes streams in a scope of the test's own."""
    scope = f"several-{abs(hash(request.node.name)) % 10**9}"
    client.create_scope(scope)

    def create(*names: str, segment_count: int = 2) -> list[str]:
        for name in names:
            client.create_stream(f"{scope}/{name}", scaling=penstock.Scaling.fixed(segment_count))
        return [scope, *(f"{scope}/{name}" for name in names)]

    return create


@given(models=st.lists(streams(), min_size=2, max_size=3), bytes_max=st.integers(1, 500))
def test_steps_through_several_streams_cover_every_byte_once_and_their_limit_is_of_all(
    models: list[ModelStream], bytes_max: int
) -> None:
    """Segments of the same ids in each of them."""
    joined = StreamSet(StoreSettings("tcp://unknown:1"), [f"s/t{index}" for index in range(len(models))])
    joined._streams = {f"s/t{index}": model for index, model in enumerate(models)}
    for name, model in joined._streams.items():
        model.name = name
    head = joined.merge({name: model.head() for name, model in joined._streams.items()})
    tail = joined.merge({name: model.tail() for name, model in joined._streams.items()})
    cut, seen = head, []
    for _ in range(400):
        following = advance(joined, cut, tail, bytes_max)
        ranges = ranges_between(joined, cut, following)
        assert sum(each.length for each in ranges) <= bytes_max or len(ranges) == 1
        seen.extend(ranges)
        if following == cut:
            break
        cut = following
    assert cut == tail
    for name, model in joined._streams.items():
        mine = [each for each in seen if joined.stream_of(each.segment)[0].name == name]
        check_all_is_covered(model, [type(each)(each.segment.segment, each.start, each.end) for each in mine])
    assert joined.merge(joined.split(cut)) == cut


def test_messages_name_segment_and_stream() -> None:
    joined = StreamSet(StoreSettings("tcp://unknown:1"), ["s/a", "s/b", "s/c", "s/d"])
    (key,) = joined.merge({"s/b": {7: 1}})
    assert f"segment {key}" == "segment 7 of s/b"
    assert joined.name == "s/a, s/b, s/c and 1 more"
    assert joined.stream_of(key)[1] == 7
    assert list(StreamSet(StoreSettings("tcp://unknown:1"), ["s/a"]).merge({"s/a": {7: 1}})) == [7]


def test_a_new_stream_is_read_from_its_beginning_and_a_batch_comes_again_as_it_was(
    store: StandaloneProcess,
    new_streams: Callable[..., list[str]],
    write: Callable[..., list[bytes]],
    live: Callable[..., LiveWriter],
) -> None:
    scope, first, other = new_streams("orders-1", "others")
    writer = live(first)
    query = Query(store, f"{scope}/orders-*,{other}", start="latest")
    writer.wait_for(5)
    seen = query.step()
    assert {stream for stream, _ in seen} == {first}
    _, second = new_streams("orders-2")
    early = write(second, 10)
    start = query.at
    end = query.plan(3 * EVENT_BYTES)
    rows = query.rows(start, end)
    assert 0 < rows.total() <= 3
    # What comes before the batch is run, or run again by the next driver, is none of it.
    late = write(second, 10, first=10)
    writer.wait_for(10)
    later = Query(store, f"{scope}/orders-*,{other}", at=start)
    assert later.rows(start, end) == rows
    later.at = end
    seen += rows + later.step(10 * EVENT_BYTES)
    everything = writer.stop()
    seen += later.step()
    assert later.plan() == later.at
    assert of_stream(seen, second) == Counter(early + late)
    check_gapless(everything, of_stream(seen, first).elements())


def test_limits_are_of_all_streams_and_each_gets_its_share(
    store: StandaloneProcess,
    new_streams: Callable[..., list[str]],
    write: Callable[..., list[bytes]],
    live: Callable[..., LiveWriter],
) -> None:
    scope, small, large = new_streams("a", "b", segment_count=1)
    events = written(small, write(small, 10)) + written(large, write(large, 90))
    writer = live(large, SLOW_S)
    query = Query(store, f"{scope}/*")
    steps = [query.step(10 * EVENT_BYTES) for _ in range(5)]
    assert all(8 <= step.total() <= 10 for step in steps)
    rows = sum(steps, Counter())
    # About a tenth of what is there is of the small stream.
    assert 3 <= of_stream(rows, small).total() <= 6
    assert query.step(EVENT_BYTES - 1).total() == 1
    writer.stop()
    while (following := query.step(7 * EVENT_BYTES)).total():
        assert following.total() <= 7
        rows += following
    assert (events + written(large, writer.events) - rows).total() == 1
    assert query.plan() == query.at


def test_a_pattern_that_finds_nothing_waits_for_its_first_stream(
    store: StandaloneProcess, new_streams: Callable[..., list[str]], live: Callable[..., LiveWriter]
) -> None:
    (scope,) = new_streams()
    query = Query(store, f"{scope}/orders-*", start="latest")
    assert json.loads(query.at) == {"streams": {}, "v": 2}
    assert query.plan() == query.at
    _, stream = new_streams("orders-1")
    writer = live(stream)
    rows = query.step()
    assert rows
    assert "since" in query.at
    events = writer.stop()
    assert rows + query.step() == written(stream, events)
    assert query.plan() == query.at
    batch = PenstockBatchReader(parse_source_options({"uri": store.uri, "stream": f"{scope}/none-*"}))
    assert batch.partitions() == []


def test_patterns_find_new_streams_periodically_and_within_bounds(
    store: StandaloneProcess, new_streams: Callable[..., list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    scope, *_ = new_streams("a", "b")
    query = Query(store, f"{scope}/*", streamRefreshInterval="10s")
    new_streams("c")
    query.clock.now_s += 9
    assert query.plan() == query.at
    query.clock.now_s += 1
    assert set(json.loads(query.plan())["streams"]) == {f"{scope}/{name}" for name in "abc"}
    monkeypatch.setattr(stream_set, "STREAM_COUNT_MAX", 2)
    with pytest.raises(InvalidArgumentError, match="3 streams, more than the 2"):
        Query(store, f"{scope}/*")
    monkeypatch.setattr(stream_set, "LISTED_COUNT_MAX", 2)
    with pytest.raises(InvalidArgumentError, match=f"{scope} has more than 2 streams"):
        Query(store, f"{scope}/x*")


def test_a_stream_that_is_named_must_exist(store: StandaloneProcess, new_streams: Callable[..., list[str]]) -> None:
    scope, stream = new_streams("a")
    with pytest.raises(NoSuchStreamError, match=f"stream {scope}/missing does not exist"):
        Query(store, f"{stream},{scope}/missing")
    reader = PenstockBatchReader(parse_source_options({"uri": store.uri, "stream": f"{stream},{scope}/missing"}))
    with pytest.raises(NoSuchStreamError, match=f"stream {scope}/missing does not exist"):
        reader.partitions()


def delete(client: Client, stream: str) -> None:
    client.seal_stream(stream)
    client.delete_stream(stream)


@pytest.mark.parametrize("is_planned", [False, True])
def test_a_deleted_stream_follows_the_option_fail_on_data_loss(
    store: StandaloneProcess,
    client: Client,
    new_streams: Callable[..., list[str]],
    write: Callable[..., list[bytes]],
    live: Callable[..., LiveWriter],
    caplog: pytest.LogCaptureFixture,
    is_planned: bool,
) -> None:
    """Deleted before its batch is planned, or before it is read; created again, it is read from its beginning."""
    scope, kept, gone = new_streams("a", "b")
    writer = live(kept)
    names = f"{kept},{scope}/b*"
    failing, passing = Query(store, names), Query(store, names, failOnDataLoss="false")
    failing.step()
    seen = passing.step()
    write(gone, 10)
    writer.wait_for(5)
    start, end = passing.at, passing.plan()
    delete(client, gone)
    with pytest.raises(NoSuchStreamError):
        failing.plan()
    with caplog.at_level(logging.WARNING, logger="penstock.spark"):
        if is_planned:
            rows, passing.at = passing.rows(start, end), end
        else:
            rows = passing.step()
    assert {stream for stream, _ in rows} == {kept}
    assert f"stream {gone}, which was deleted" in caplog.text
    new_streams("b")
    again = Counter(write(gone, 3, first=50))
    seen += rows + passing.step()
    assert of_stream(seen, gone) == again
    # A query that has not polled in between knows the new stream by its segments.
    late = Query(store, names, at=start, failOnDataLoss="false")
    assert of_stream(late.step(), gone) == again
    with pytest.raises(Exception, match="lost"):
        Query(store, names, at=start).step()
    events = writer.stop()
    seen += passing.step()
    assert of_stream(seen, kept) == Counter(events)


def test_a_query_of_one_stream_continues_as_one_of_several(
    store: StandaloneProcess,
    new_streams: Callable[..., list[str]],
    write: Callable[..., list[bytes]],
    live: Callable[..., LiveWriter],
) -> None:
    scope, first, second = new_streams("a", "b")
    writer = live(first)
    alone = Query(store, first)
    seen = alone.step()
    others = write(second, 5)
    query = Query(store, f"{first},{second}", at=alone.at)
    writer.wait_for(5)
    rows = query.step()
    assert {stream for stream, _ in rows} == {first, second}
    with pytest.raises(InvalidArgumentError, match="belongs to a query of the streams"):
        Query(store, first, at=query.at).plan()
    # Streams that option `stream` no longer names are left.
    fewer = Query(store, f"{scope}/a*", at=query.at)
    events = writer.stop()
    seen += rows + fewer.step()
    assert seen == written(first, events) + written(second, others)
    assert set(json.loads(fewer.at)["streams"]) == {first}


def test_cuts_are_of_some_streams_and_the_others_are_read_whole(
    store: StandaloneProcess,
    client: Client,
    new_streams: Callable[..., list[str]],
    write: Callable[..., list[bytes]],
    live: Callable[..., LiveWriter],
) -> None:
    scope, first, second = new_streams("a", "b")
    writer = live(first)
    writer.wait_for(5)
    cut = client.tail(first).to_text()
    before = Query(store, first, until=cut).step()
    others = write(second, 5)
    writer.wait_for(5)
    end = Query(store, f"{scope}/*")
    wanted = end.step() - before
    writer.wait_for(5)
    assert of_stream(wanted, second) == Counter(others)
    assert of_stream(wanted, first).total() >= 5
    assert Query(store, f"{scope}/*", start=cut, until=end.at).step() == wanted
    reader = Query(store, f"{scope}/*", start=cut, until=end.at).reader
    assert batch_events(reader._options) == Counter(event for _, event in wanted.elements())


def test_a_run_to_the_current_end_ignores_later_streams(
    store: StandaloneProcess,
    new_streams: Callable[..., list[str]],
    write: Callable[..., list[bytes]],
    live: Callable[..., LiveWriter],
) -> None:
    scope, first = new_streams("a")
    writer = live(first)
    query = Query(store, f"{scope}/*")
    there = len(writer.events)
    query.reader.prepareForTriggerAvailableNow()
    _, second = new_streams("b")
    later = write(second, 5)
    writer.wait_for(5)
    rows = query.step()
    assert of_stream(rows, first).total() == rows.total() >= there
    assert query.plan() == query.at
    writer.wait_for(1)
    assert query.plan() == query.at
    events = writer.stop()
    rows += Query(store, f"{scope}/*", at=query.at).step()
    assert rows == written(first, events) + written(second, later)


@pytest.mark.parametrize("is_alone", [True, False])
def test_a_query_starts_and_ends_at_times_and_its_end_is_one(
    store: StandaloneProcess, new_streams: Callable[..., list[str]], live: Callable[..., LiveWriter], is_alone: bool
) -> None:
    """Stores come to know times better as a segment grows; what a query once took for its end stays that."""
    scope, stream = new_streams("a", segment_count=1)
    name = stream if is_alone else f"{scope}/*"
    writer = live(stream)
    writer.wait_for(5)
    early, moment = written(stream, list(writer.events)), datetime.now(UTC).isoformat()
    ending = Query(store, name, until=moment)
    assert (rows := ending.step(3 * EVENT_BYTES)).total() == 3
    # The end was resolved by now: an event may be stored that the writer does not know of yet.
    known = len(writer.events) + 1
    writer.wait_for(20)
    # A later run, too; without what the first one has found the end would be another one.
    again = Query(store, name, at=ending.at, until=moment)
    rest = again.step()
    assert again.plan() == again.at
    assert early <= rows + rest
    assert (rows + rest).total() <= known
    assert again.rows(ending.at, again.at) == rest
    # A start at a time leaves nothing of then out; what comes is a batch as well as a query.
    before, moment = len(writer.events) + 1, datetime.now(UTC).isoformat()
    writer.wait_for(5)
    late = writer.stop()[before:]
    rows = Query(store, name, start=moment).step()
    assert rows >= written(stream, late)
    options = parse_source_options({"uri": store.uri, "stream": name, "start": moment})
    assert batch_events(options) == Counter(event for _, event in rows.elements())


def test_streams_of_a_pattern_scale_under_a_query(
    spark: SparkSession,
    store: StandaloneProcess,
    new_streams: Callable[..., list[str]],
    write: Callable[..., list[bytes]],
    live: Callable[..., LiveWriter],
    tmp_path: Path,
) -> None:
    """In a session: rows name their streams, and a second run finds a stream that is new."""
    scope, first = new_streams("orders-1", segment_count=1)
    frame = spark.readStream.format("penstock").options(uri=store.uri, start="earliest", maxBytesPerTrigger=600)
    frame = frame.load(f"{scope}/orders-*").select("scope", "stream", "event")
    events = written(first, write(first, 20))
    writer = live(first, SLOW_S)
    scale(store, first, [0], [(0.0, 0.5), (0.5, 1.0)])
    events += written(first, write(first, 20, first=20))
    run_to_the_end(frame, tmp_path / "out", tmp_path / "checkpoint")
    _, second = new_streams("orders-2")
    events += written(second, write(second, 20)) + written(first, writer.stop())
    query = run_to_the_end(frame, tmp_path / "out", tmp_path / "checkpoint")
    assert max(report.numInputRows for report in query.recentProgress) <= 21
    rows = spark.read.parquet(str(tmp_path / "out")).collect()
    assert Counter((f"{row.scope}/{row.stream}", bytes(row.event)) for row in rows) == events
    batch = read(spark, store, f"{first},{second}").groupBy("stream").count()
    assert {row.stream: row["count"] for row in batch.collect()} == {
        "orders-1": 40 + len(writer.events),
        "orders-2": 20,
    }


@pytest.mark.parametrize("is_alone", [True, False])
def test_a_micro_batch_ends_amid_no_transaction(
    store: StandaloneProcess,
    client: Client,
    new_streams: Callable[..., list[str]],
    monkeypatch: pytest.MonkeyPatch,
    is_alone: bool,
) -> None:
    """Each has one event in each of two segments, and each micro-batch ends after the same number of them in both.

    A reader that requests the segments' lengths one by one gets the second one's much later.
    """
    scope, stream = new_streams("a")
    keys: dict[int, str] = {}
    with client.event_writer(stream) as writer:
        while len(keys) < 2:
            before = client.tail(stream).positions
            key = f"key-{len(keys)}-{time.monotonic_ns()}"
            writer.write(b"12", routing_key=key)
            writer.flush()
            after = client.tail(stream).positions
            keys.setdefault(next(one for one in after if after[one] != before[one]), key)
    at_first = client.tail(stream)
    is_over = threading.Event()
    segment_info = WireSegments.segment_info

    async def slow_info(self: WireSegments, segment: str) -> SegmentInfo:
        if segment.endswith("/1.#epoch.0"):
            await asyncio.sleep(0.02)
        return await segment_info(self, segment)

    monkeypatch.setattr(WireSegments, "segment_info", slow_info)

    def commit() -> None:
        while not is_over.is_set():
            with client.begin_transaction(stream) as transaction:
                for key in keys.values():
                    transaction.write(b"one", routing_key=key)

    query = Query(store, stream if is_alone else f"{scope}/*", start="latest" if is_alone else "earliest")
    assert query.reader._options.has_whole_transactions
    committers = [threading.Thread(target=commit) for _ in range(4)]
    for committer in committers:
        committer.start()
    grown, plan_count, until_s = set[int](), 0, time.monotonic() + 60
    try:
        # A busy machine may plan often before anything was committed.
        while (plan_count := plan_count + 1) <= 40 or (len(grown) <= 2 and time.monotonic() < until_s):
            end = query.reader.latestOffset(json.loads(query.at), ReadAllAvailable())
            positions = end["positions"] if is_alone else end["streams"][stream]["positions"]
            ahead = {int(offset) - at_first.positions[int(segment)] for segment, offset in positions.items()}
            assert len(ahead) == 1, positions
            grown |= ahead
    finally:
        is_over.set()
        for committer in committers:
            committer.join()
    assert len(grown) > 2
