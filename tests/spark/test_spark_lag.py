"""How far queries are behind: worked out of recorded progress reports, and told by the listener in a real session."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from penstock.model.errors import (
    LaterVersionError,
    NoSuchSegmentError,
    OutcomeUnknownError,
    UnsupportedOperationError,
)
from penstock.server.standalone_process import StandaloneProcess
from penstock.spark.lag import QUERY_COUNT_MAX, TAIL_COUNT_MAX, LagTracker, QueryLag, SegmentLag
from penstock.spark.planner import Extent
from penstock.spark.store import StoredStream
from support.spark_queries import follow, run_to_the_end

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.client.sync import Client

#: The first segment of the second epoch.
NEXT = 1 << 32


def offset(**positions: int) -> dict[str, object]:
    """Return an offset of one stream; segments are named s0, s1, ..."""
    numbers = {name[1:]: at for name, at in positions.items()}
    return {"positions": numbers, "scope": "retail", "stream": "orders", "v": 1}


def several(**streams: Mapping[str, object]) -> dict[str, object]:
    return {"streams": {f"retail/{name}": part for name, part in streams.items()}, "v": 2}


def source(end: object, latest: object, *, start: object = None, rows: int = 0) -> dict[str, object]:
    return {"startOffset": start, "endOffset": end, "latestOffset": latest, "numInputRows": rows}


def report(*sources: object, second: float = 0.0, query: str = "one") -> dict[str, object]:
    return {
        "id": query,
        "name": "billing",
        "batchId": 3,
        "timestamp": f"2026-11-22T10:{int(second) // 60:02}:{second % 60:06.3f}Z",
        "sources": list(sources),
    }


def test_the_lag_is_what_lies_between_the_end_and_the_tail() -> None:
    """By segment; as objects, as recorded JSON has them, and as texts, as a session has them."""
    start, end, latest = offset(s0=0, s1=100), offset(s0=280, s1=100), offset(s0=840, s1=100)
    for form in (dict, json.dumps):
        lag = LagTracker().lag(report(source(form(end), form(latest), start=form(start), rows=10)))
        assert lag is not None
        assert lag.segments == (
            SegmentLag(0, "retail/orders", 0, 560, 20, 0.0),
            SegmentLag(0, "retail/orders", 1, 0, 0, 0.0),
        )
        assert (lag.byte_count, lag.event_count_estimated, lag.is_whole) == (560, 20, True)
        assert str(lag) == (
            "query billing, batch 3: 560 bytes behind in 1 of 2 segments, about 20 events, waiting for 0.0 s at least"
        )


def test_events_are_estimated_from_batches_and_not_before_the_first() -> None:
    """A batch of no rows, or over a scale event, tells nothing new; bytes that were lost are no events."""
    tracker = LagTracker()
    behind = offset(s0=1000)
    lag = tracker.lag(report(source(offset(s0=0), behind)))
    assert lag is not None
    assert lag.event_count_estimated is None
    end = offset(s0=500) | {"lostBytes": 100}
    lag = tracker.lag(report(source(end, behind, start=offset(s0=0), rows=10)))
    assert lag is not None
    assert lag.event_count_estimated == 13  # Of 40 bytes each.
    lag = tracker.lag(report(source(offset(s0=600), behind, start=end)))
    assert lag is not None
    assert lag.event_count_estimated == 10
    lag = tracker.lag(report(source(offset(s1=10), offset(s1=90), start=offset(s0=600), rows=1)))
    assert lag is not None
    assert lag.event_count_estimated == 2


def test_bytes_have_waited_since_a_report_showed_them() -> None:
    """Not since the tail moved last, nor since the query was behind first: since what is unread now was there."""
    tracker = LagTracker()

    def waited(second: float, at: int, tail: int) -> float:
        lag = tracker.lag(report(source(offset(s0=at), offset(s0=tail)), second=second))
        assert lag is not None
        return lag.waited_s_min

    assert waited(0, 0, 100) == 0.0
    assert waited(10, 50, 200) == 10.0
    assert waited(20, 99, 200) == 20.0
    assert waited(30, 100, 300) == 20.0
    assert waited(40, 200, 300) == 10.0
    assert waited(50, 300, 300) == 0.0
    assert waited(60, 300, 301) == 0.0
    assert waited(61.5, 300, 302) == 1.5


def test_remembered_tails_and_queries_are_bounded() -> None:
    """With too many tails what has waited is understated, no longer than by the distance of two; never overstated."""
    tracker = LagTracker()
    count = 10 * TAIL_COUNT_MAX
    for second in range(count):
        lag = tracker.lag(report(source(offset(s0=0), offset(s0=100 + second)), second=second))
    assert lag is not None
    assert lag.waited_s_min == count - 1
    (followed,) = tracker._followed.values()
    assert all(len(tails) <= TAIL_COUNT_MAX for tails in followed.tails.values())
    for query in range(2 * QUERY_COUNT_MAX):
        tracker.lag(report(source(offset(s0=0), offset(s0=100)), query=str(query)))
    assert len(tracker._followed) == QUERY_COUNT_MAX
    tracker.forget(str(2 * QUERY_COUNT_MAX - 1))
    assert len(tracker._followed) == QUERY_COUNT_MAX - 1


def test_several_streams_and_sources_are_distinguished() -> None:
    """A stream that is new to the query, and one that only the other source reads."""
    start = several(orders={"positions": {"0": 0}})
    end = several(orders={"positions": {"0": 100}}, returns={"positions": {"0": 40}, "since": {"0": 20}})
    latest = several(
        orders={"positions": {"0": 130}}, returns={"positions": {"0": 40}}, swaps={"positions": {"0": 7, "1": 0}}
    )
    rate = {"startOffset": 1, "endOffset": "2", "latestOffset": 3, "numInputRows": 1}
    other = source({"positions": {"2": 5}, "scope": "bank", "stream": "bookings", "v": 1}, None)
    other["latestOffset"] = other["endOffset"]
    lag = LagTracker().lag(report(source(end, latest, start=start, rows=12), rate, other))
    assert lag is not None
    assert lag.is_whole
    assert lag.segments == (
        SegmentLag(0, "retail/orders", 0, 30, 3, 0.0),
        SegmentLag(0, "retail/returns", 0, 0, 0, 0.0),
        SegmentLag(0, "retail/swaps", 0, 7, 1, 0.0),
        SegmentLag(0, "retail/swaps", 1, 0, 0, 0.0),
        SegmentLag(2, "bank/bookings", 2, 0, 0, 0.0),
    )


def test_reports_without_a_tail_and_of_other_sources_have_no_lag() -> None:
    """A replayed batch reads no tail: the session's text of nothing is "None"."""
    tracker = LagTracker()
    for latest in (None, "None"):
        assert tracker.lag(report(source(offset(s0=10), latest))) is None
    kafka = {"orders": {"0": 23, "1": 11}}
    assert tracker.lag(report(source(kafka, kafka), source(1, 2), source("7", "9"))) is None
    assert tracker.lag(report()) is None
    assert not tracker._followed


def test_an_offset_of_a_newer_release_is_reported() -> None:
    newer = offset(s0=10) | {"v": 3}
    with pytest.raises(LaterVersionError, match="version 3"):
        LagTracker().lag(report(source(newer, newer)))


@dataclass
class ScaledStream:
    """0 was replaced by 1, and that by NEXT, of epochs 0, 0 and 1. Keeps all but the first 10 bytes of 1."""

    is_there: bool = True
    name: str = "retail/orders"

    def extent(self, segment: int) -> Extent:
        if not self.is_there:
            raise OutcomeUnknownError("no store")
        return {0: Extent(0, 100, True), 1: Extent(10, 50, True), NEXT: Extent(0, 70, False)}[segment]

    def extents(self, segments: Sequence[int]) -> Sequence[Extent | NoSuchSegmentError]:
        return [self.extent(segment) for segment in segments]

    def successors(self, segment: int) -> Mapping[int, Sequence[int]]:
        return {0: {1: [0]}, 1: {NEXT: [1]}}[segment]

    def boundaries(self, segment: int, start: int, targets: Sequence[int]) -> Sequence[int]:
        raise NotImplementedError

    def boundary_behind(self, segment: int, start: int, end: int, event_count: int) -> tuple[int, int]:
        raise NotImplementedError

    def event_end(self, segment: int, start: int) -> int:
        raise NotImplementedError


def test_lag_across_a_scale_needs_requests_to_the_store(
    caplog: pytest.LogCaptureFixture,
) -> None:
    end, latest = offset(s0=60), offset(**{f"s{NEXT}": 70})
    scaled = report(source(end, latest))
    at_least = (
        SegmentLag(0, "retail/orders", 0, None, None, None),
        SegmentLag(0, "retail/orders", NEXT, 70, None, 0.0),
    )
    lag = LagTracker().lag(scaled)
    assert lag is not None
    assert (lag.segments, lag.byte_count, lag.is_whole) == (at_least, 70, False)
    assert "at least 70 bytes behind in 2 of 2 segments" in str(lag)

    lag = LagTracker(lambda name: ScaledStream()).lag(scaled)
    assert lag is not None
    assert [(each.segment, each.byte_count) for each in lag.segments] == [(0, 40), (1, 40), (NEXT, 70)]
    assert (lag.byte_count, lag.is_whole) == (150, True)

    lag = LagTracker(lambda name: ScaledStream(is_there=False)).lag(scaled)
    assert lag is not None
    assert (lag.segments, lag.is_whole) == (at_least, False)
    assert "only partly known: no store" in caplog.text


def test_lag_without_a_scale_needs_no_request() -> None:
    def refuse(name: str) -> ScaledStream:
        raise AssertionError(name)

    lag = LagTracker(refuse).lag(report(source(offset(s0=60), offset(s0=70))))
    assert lag is not None
    assert lag.byte_count == 10


def test_a_stream_that_is_new_and_was_scaled_before_is_not_whole() -> None:
    new = several(orders={"positions": {str(NEXT): 70}})
    lag = LagTracker().lag(report(source(several(), new)))
    assert lag is not None
    assert (lag.byte_count, lag.is_whole) == (70, False)


class Listened:
    """A session's listener, and what it has told of one query."""

    def __init__(self, spark: SparkSession) -> None:
        from penstock.spark import LagListener

        self._told: list[QueryLag] = []
        self.listener = LagListener(self._told.append)
        self._streams = spark.streams

    def __enter__(self) -> Listened:
        self._streams.addListener(self.listener)
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._streams.removeListener(self.listener)

    def told_of(self, query: str, batch: int) -> dict[int, QueryLag]:
        """Return the lags of a query up to one batch, once that is there; Spark tells its listeners late."""
        deadline_s = time.monotonic() + 60
        while True:
            told = {lag.batch: lag for lag in self._told if lag.query == query}
            if batch in told:
                return told
            assert time.monotonic() < deadline_s, f"nothing was reported of batch {batch}: {self._told}"
            time.sleep(0.05)


@pytest.mark.spark
def test_a_query_that_is_held_behind_tells_the_lag_that_it_has(
    spark: SparkSession,
    store: StandaloneProcess,
    client: Client,
    new_stream: Callable[..., str],
    write: Callable[..., list[bytes]],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Four events of ten in each micro-batch: against the tail that the store tells."""
    caplog.set_level(logging.INFO, logger="penstock.spark.listener")
    stream = new_stream(1)
    write(stream, 10)
    (tail,) = client.tail(stream).positions.values()
    with Listened(spark) as listened:
        frame = follow(spark, store, stream, start="earliest", maxEventsPerTrigger="4")
        query = run_to_the_end(frame, tmp_path / "out", tmp_path / "cp")
        told = listened.told_of(str(query.id), 2)
    assert [told[batch].byte_count for batch in range(3)] == [tail * 6 // 10, tail * 2 // 10, 0]
    assert all(told[batch].is_whole for batch in range(3))
    assert [told[batch].event_count_estimated for batch in (1, 2)] == [2, 0]
    assert told[1].waited_s_min > 0
    assert told[1].segments[0].stream == stream
    assert f"{tail * 2 // 10} bytes behind in 1 of 1 segments, about 2 events" in caplog.text


def test_the_listener_keeps_the_latest_of_each_query_that_runs(caplog: pytest.LogCaptureFixture) -> None:
    """And continues behind a report that it cannot read."""
    pytest.importorskip("pyspark", reason="needs pyspark: pip install 'penstock[spark]'")
    from penstock.spark import LagListener

    listener = LagListener()

    def progress(end: int, query: str, **more: object) -> None:
        one = report(source(offset(s0=end) | more, offset(s0=100)), query=query)
        listener.onQueryProgress(SimpleNamespace(progress=one))  # type: ignore[arg-type]

    progress(10, "one")
    progress(20, "two")
    progress(40, "one")
    progress(50, "one", v=3)
    assert "query one: its lag is not known" in caplog.text
    assert sorted((lag.query, lag.byte_count) for lag in listener.latest()) == [("one", 60), ("two", 80)]
    listener.onQueryTerminated(SimpleNamespace(id="one"))  # type: ignore[arg-type]
    assert [lag.query for lag in listener.latest()] == ["two"]


def test_the_listener_sends_a_bounded_number_of_requests_per_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each report restarts."""
    pytest.importorskip("pyspark", reason="needs pyspark: pip install 'penstock[spark]'")
    from penstock.spark import LagListener, listener

    asked: list[int] = []
    monkeypatch.setattr(StoredStream, "extent", lambda self, segment: asked.append(segment))
    monkeypatch.setattr(StoredStream, "successors", lambda self, segment: asked.append(segment))
    monkeypatch.setattr(listener, "QUERY_COUNT_MAX", 4)
    of_uri = LagListener(uri="tcp://nowhere:1")
    for _ in range(2):
        view = of_uri._stream("retail/orders")
        for segment in range(2):
            view.extent(segment)
            view.successors(segment)
        with pytest.raises(UnsupportedOperationError, match="more than 4 requests"):
            view.extent(2)
    assert asked == [0, 0, 1, 1] * 2
