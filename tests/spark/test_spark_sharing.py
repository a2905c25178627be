"""How the limit of a micro-batch is shared among segments: about full, fair over many of them, at bounded cost."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.server.standalone_process import StandaloneProcess
from support.live_writer import LiveWriter

pytest.importorskip("pyspark", reason="needs pyspark: pip install 'penstock[spark]'")

from pyspark.sql.streaming.datasource import ReadMaxBytes, ReadMaxRows

from penstock.spark.options import parse_source_options
from penstock.spark.planner import Extent, advance
from penstock.spark.sharing import (
    LOOKUP_COUNT_MAX,
    PASS_COUNT_MAX,
    SLICE_BYTES_MIN,
    Claims,
    Lookup,
    lookup_count,
    share_bytes,
    share_events,
)
from penstock.spark.source import PenstockStreamReader
from penstock.spark.store import StoredStream

if TYPE_CHECKING:
    from penstock.client.sync import Client

KIB, MIB = 1024, 1024 * 1024


@dataclass
class EqualEvents:
    """A stream of segments that all hold events of one size; counts the lookups of boundaries."""

    event_bytes: int
    lengths: dict[int, int]
    name: str = "model/stream"
    lookup_count: int = 0

    def extent(self, segment: int) -> Extent:
        return Extent(0, self.lengths[segment], False)

    def extents(self, segments: Sequence[int]) -> Sequence[Extent]:
        return [self.extent(segment) for segment in segments]

    def successors(self, segment: int) -> Mapping[int, Sequence[int]]:
        return {}

    def boundaries(self, segment: int, start: int, targets: Sequence[int]) -> Sequence[int]:
        self.lookup_count += 1
        return [start + (target - start) // self.event_bytes * self.event_bytes for target in targets]

    def boundary_behind(self, segment: int, start: int, end: int, event_count: int) -> tuple[int, int]:
        self.lookup_count += 1
        count = min(event_count, (end - start) // self.event_bytes)
        return start + count * self.event_bytes, count

    def event_end(self, segment: int, start: int) -> int:
        return start + self.event_bytes

    def head(self) -> dict[int, int]:
        return dict.fromkeys(self.lengths, 0)


@pytest.mark.parametrize("segment_count", [10, 64, 500, 1500, 10_000])
@pytest.mark.parametrize("limit", [64 * KIB, MIB, 8 * MIB])
@pytest.mark.parametrize("event_bytes", [100, 1008, 30_000])
def test_a_batch_holds_about_the_limit_however_many_segments_there_are(
    segment_count: int, limit: int, event_bytes: int
) -> None:
    stream = EqualEvents(event_bytes, dict.fromkeys(range(segment_count), 1000 * event_bytes))
    cut, claims = stream.head(), Claims()
    for _ in range(5):
        stream.lookup_count = 0
        following = advance(stream, cut, stream.lengths, limit, claims=claims)
        taken = sum(following.values()) - sum(cut.values())
        left = sum(stream.lengths.values()) - sum(cut.values())
        assert min(limit // 2, left) <= taken <= limit
        assert stream.lookup_count <= 2 * LOOKUP_COUNT_MAX
        assert stream.lookup_count <= 2 * lookup_count(limit, SLICE_BYTES_MIN) + PASS_COUNT_MAX
        cut = following


@pytest.mark.parametrize("segment_count", [10, 300, 2000])
@pytest.mark.parametrize("limit", [100, 10_000])
def test_a_batch_of_so_many_events_is_about_full_and_no_lookup_for_each_segment(segment_count: int, limit: int) -> None:
    stream = EqualEvents(108, dict.fromkeys(range(segment_count), 108 * 10_000))
    cut, claims = stream.head(), Claims()
    for _ in range(5):
        stream.lookup_count = 0
        following = advance(stream, cut, stream.lengths, None, events_max=limit, claims=claims)
        assert limit // 2 <= (sum(following.values()) - sum(cut.values())) // 108 <= limit
        assert stream.lookup_count <= LOOKUP_COUNT_MAX
        cut = following


def test_segments_that_hold_a_few_bytes_each_fill_a_batch_without_lookups() -> None:
    stream = EqualEvents(1008, dict.fromkeys(range(10_000), 1008))
    cut = advance(stream, stream.head(), stream.lengths, MIB)
    assert MIB - 1008 * 20 <= sum(cut.values()) <= MIB
    assert stream.lookup_count <= 16


@settings(max_examples=20, deadline=None)
@given(
    weights=st.lists(st.integers(1, 300), min_size=2, max_size=60),
    limit=st.sampled_from([20 * KIB, 128 * KIB, MIB]),
    is_by_events=st.booleans(),
)
def test_each_segment_gets_its_part_over_many_batches(weights: list[int], limit: int, is_by_events: bool) -> None:
    """All arrive at the end together: at half of the way no segment is far before or after its own half."""
    stream = EqualEvents(508, {segment: weight * 508 * 100 for segment, weight in enumerate(weights)})
    total = sum(stream.lengths.values())
    cut, claims = stream.head(), Claims()
    while sum(cut.values()) < total // 2:
        limits = (None, limit // 508) if is_by_events else (limit, None)
        cut = advance(stream, cut, stream.lengths, limits[0], events_max=limits[1], claims=claims)
    share = SLICE_BYTES_MIN + limit // 4
    part = sum(cut.values()) / total
    for segment, at in cut.items():
        assert abs(at - part * stream.lengths[segment]) <= share


def test_a_claim_below_an_event_is_kept_until_it_is_one() -> None:
    """Ten segments share less than ten events: each has its turn."""
    stream = EqualEvents(1000, dict.fromkeys(range(10), 100_000))
    cut, claims = stream.head(), Claims()
    for _ in range(20):
        cut = advance(stream, cut, stream.lengths, 2000, claims=claims)
    assert sum(cut.values()) >= 20 * 1000
    assert max(cut.values()) - min(cut.values()) <= 2000


def test_shares_of_events_that_fit_nowhere_go_to_fewer_segments() -> None:
    asked: list[list[Lookup]] = []

    def find(lookups: Sequence[Lookup]) -> list[tuple[int, int]]:
        asked.append(list(lookups))
        return [(each.at + each.share // 700 * 700, each.share // 700 * 700) for each in lookups]

    claims = dict.fromkeys(range(10), 0.1)
    found, taken = share_bytes(dict.fromkeys(range(10), 0), dict.fromkeys(range(10), 7000), claims, 1000, find)
    assert found == taken == {0: 700} | dict.fromkeys(range(1, 10), 0)
    assert [len(each) for each in asked] == [10, 8, 1]


def test_claims_add_up_to_nothing_owed_and_are_forgotten_with_their_segments() -> None:
    claims = Claims()
    claims.settle({0: 100, 1: 300}, {0: 0, 1: 50})
    assert claims.of({0: 100, 1: 300}) == {0: 0.5, 1: 0.5}
    claims.settle({1: 300}, {1: 10})
    assert claims.of({0: 100, 1: 300})[0] == 0.25
    claims.settle({1: 300}, {})
    claims.clear()
    assert claims.of({0: 100, 1: 300}) == {0: 0.25, 1: 0.75}


def test_events_of_segments_that_have_few_are_given_to_others() -> None:
    def find(lookups: Sequence[Lookup]) -> list[tuple[int, int]]:
        counts = [min(each.share, each.goal - each.at) for each in lookups]
        return [(each.at + count, count) for each, count in zip(lookups, counts, strict=True)]

    goals = {0: 1, 1: 1, 2: 1000}
    found, taken = share_events(dict.fromkeys(goals, 0), goals, {0: 0.45, 1: 0.45, 2: 0.1}, 100, find)
    assert taken == found
    assert found[0] == found[1] == 1
    assert 50 <= sum(taken.values()) <= 100


@pytest.mark.spark
@pytest.mark.timeout(300)
@pytest.mark.parametrize("limit", [ReadMaxBytes(100_000), ReadMaxRows(400)])
@pytest.mark.parametrize("fails_on_loss", ["true", "false"])
def test_a_stream_of_very_many_segments_is_read_once_in_full_batches(
    store: StandaloneProcess,
    client: Client,
    new_stream: Callable[..., str],
    live: Callable[..., LiveWriter],
    monkeypatch: pytest.MonkeyPatch,
    limit: ReadMaxBytes | ReadMaxRows,
    fails_on_loss: str,
) -> None:
    """Requests for single segments are counted: there are far fewer of them than segments."""
    stream = new_stream(300)
    events = [b"%08d" % number + bytes(92) for number in range(3000)]
    with client.event_writer(stream) as writer:
        writer.write_many(events, routing_keys=[str(number) for number in range(3000)])
    producer = live(stream)
    calls: Counter[str] = Counter()

    def count(name: str) -> None:
        original = getattr(StoredStream, name)

        def counted(self: StoredStream, *args: Any) -> Any:
            calls[name] += 1
            return original(self, *args)

        monkeypatch.setattr(StoredStream, name, counted)

    for name in ("extent", "boundaries", "boundary_behind", "event_end"):
        count(name)
    options = {"uri": store.uri, "stream": stream, "start": "earliest", "failOnDataLoss": fails_on_loss}
    reader = PenstockStreamReader(parse_source_options({**options, "directReads": "never"}))
    at, seen, sizes = reader.initialOffset(), Counter[bytes](), list[int]()
    while True:
        if len(sizes) == 5:
            events += producer.stop()
        calls.clear()
        end = reader.latestOffset(at, limit)
        assert calls.total() < 150
        if end == at:
            break
        rows = [batch for part in reader.partitions(at, end) for batch in reader.read(part)]
        found = [event for batch in rows for event in batch.column("event").to_pylist()]
        seen.update(found)
        sizes.append(len(found) if isinstance(limit, ReadMaxRows) else sum(len(event) + 8 for event in found))
        at = json.loads(json.dumps(end))
    assert seen == Counter(events)
    most = limit.max_rows if isinstance(limit, ReadMaxRows) else limit.max_bytes
    assert max(sizes) <= most
    assert all(size >= most // 2 for size in sizes[:3])
