"""Metrics: histograms, the text, and what is counted for each stream."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from penstock.operations.exposition import exposition
from penstock.operations.metrics import Metrics, collect
from penstock.operations.store_metrics import OTHER, _StreamSums
from penstock.runtime.histogram import Histogram
from penstock.segmentstore.container.activity.stream_totals import StreamTotals


@given(st.lists(st.floats(min_value=0, max_value=100, allow_nan=False)))
def test_a_histogram_counts_each_value_up_to_its_bound(values: list[float]) -> None:
    histogram = Histogram((0.1, 1.0, 10.0))
    for value in values:
        histogram.observe(value)
    for bound, count in histogram.cumulative():
        assert count == sum(value <= bound for value in values)
    assert histogram.count == len(values)
    assert histogram.total == pytest.approx(sum(values))


def test_the_text_has_all_kinds_of_metrics_and_escaped_labels() -> None:
    histogram = Histogram((0.1, 1.0))
    histogram.observe(0.05, 3)
    histogram.observe(7.0)

    def collector(metrics: Metrics) -> None:
        metrics.counter("reads_total", "Reads.", 5, source='ca"che\n')
        metrics.counter("reads_total", "Reads.", 7, source="disk")
        metrics.gauge("used_bytes", "Used.", 1.5)
        metrics.histogram("wait_seconds", "Waits.", histogram, store=1)

    families = {family.name: family for family in text_string_to_metric_families(
        exposition(collect([collector])).decode()
    )}  # fmt: skip
    reads = {sample.labels["source"]: sample.value for sample in families["penstock_reads"].samples}
    assert reads == {'ca"che\n': 5, "disk": 7}
    assert families["penstock_used_bytes"].samples[0].value == 1.5
    samples = families["penstock_wait_seconds"].samples
    waits = {(sample.name, sample.labels.get("le")): sample.value for sample in samples}
    assert waits == {
        ("penstock_wait_seconds_bucket", "0.1"): 3,
        ("penstock_wait_seconds_bucket", "1.0"): 3,
        ("penstock_wait_seconds_bucket", "+Inf"): 4,
        ("penstock_wait_seconds_count", None): 4,
        ("penstock_wait_seconds_sum", None): pytest.approx(7.15),
    }


def test_streams_beyond_the_limit_and_internal_ones_are_counted_together() -> None:
    totals = StreamTotals(streams_max=2)
    totals.add(1, "shop/orders/0.#epoch.0", 10, 100)
    totals.add(2, "shop/orders/1.#epoch.0", 1, 10)
    totals.add(3, "shop/clicks/0.#epoch.0", 5, 50)
    totals.add(4, "shop/late/0.#epoch.0", 7, 70)
    totals.add(5, "shop/_MARKorders/0.#epoch.0", 2, 20)
    totals.add(6, "no segment of a stream", 1, 1)
    counts = {name: total.event_count for name, total in totals.by_stream.items()}
    assert counts == {"shop/orders": 11, "shop/clicks": 5}
    assert (totals.others.event_count, totals.others.byte_count) == (10, 91)


def test_sums_of_streams_never_fall_when_a_container_starts_again() -> None:
    sums = _StreamSums(streams_max=1)
    first, second = StreamTotals(), StreamTotals()
    first.add(1, "shop/orders/0.#epoch.0", 10, 100)
    second.add(1, "shop/orders/1.#epoch.0", 3, 30)
    second.add(2, "shop/clicks/0.#epoch.0", 4, 40)
    sums.update({0: first, 1: second})
    sums.update({0: first, 1: second})
    assert sums.by_stream["shop/orders"].event_count == 13
    assert sums.by_stream[f"{OTHER}/{OTHER}"].event_count == 4
    again = StreamTotals()
    again.add(1, "shop/orders/0.#epoch.0", 2, 20)
    sums.update({0: again, 1: second})
    assert sums.by_stream["shop/orders"].event_count == 15
    sums.update({1: second})
    assert sums.by_stream["shop/orders"].byte_count == 150
