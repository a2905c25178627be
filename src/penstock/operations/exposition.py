"""`exposition`: metrics in Prometheus' text format, made by the `prometheus-client` package.

The package is imported at the first scrape: a server that is not scraped does not pay for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from penstock.operations.metrics import Family, Kind

if TYPE_CHECKING:
    from prometheus_client import Metric

#: The content type of the text.
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def exposition(families: Sequence[Family]) -> bytes:
    """Return the text of all families."""
    from prometheus_client import CollectorRegistry, generate_latest

    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Families(families))
    return generate_latest(registry)


class _Families:
    """Presents families as a collector of the package."""

    def __init__(self, families: Sequence[Family]) -> None:
        self._families = families

    def describe(self) -> Iterable[Metric]:
        """Return nothing: names need not be checked against other collectors."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Yield all families."""
        return map(_metric, self._families)


def _metric(family: Family) -> Metric:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

    names = list(family.label_names)
    if family.kind is Kind.HISTOGRAM:
        histogram = HistogramMetricFamily(family.name, family.help, labels=names)
        for labels, (buckets, total) in family.histograms.items():
            told = [("+Inf" if bound == float("inf") else str(bound), count) for bound, count in buckets]
            histogram.add_metric(list(labels), told, sum_value=total)
        return histogram
    plain: CounterMetricFamily | GaugeMetricFamily
    if family.kind is Kind.COUNTER:
        plain = CounterMetricFamily(family.name.removesuffix("_total"), family.help, labels=names)
    else:
        plain = GaugeMetricFamily(family.name, family.help, labels=names)
    for labels, value in family.values.items():
        plain.add_metric(list(labels), value)
    return plain
