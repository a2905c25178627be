"""`Metrics`: the families of metrics that a server process reports, as numbers and labels.

Parts of the server keep plain integers. A collector reads them at a scrape, so nothing is computed for metrics while
events are appended. The text is made by `exposition`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from penstock.runtime.histogram import Histogram

#: Label values, in the order of the family's label names.
Labels = tuple[str, ...]


class Kind(Enum):
    """What a family's numbers are."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(slots=True)
class Family:
    """One metric with all its series.

    `name` has the prefix ``penstock_`` and the base unit as its suffix; for a counter also ``_total``.
    """

    name: str
    kind: Kind
    help: str
    label_names: Sequence[str] = ()
    values: dict[Labels, float] = field(default_factory=dict)
    histograms: dict[Labels, tuple[list[tuple[float, int]], float]] = field(default_factory=dict)

    @property
    def series_count(self) -> int:
        """Number of series in the text."""
        return len(self.values) + sum(len(buckets) + 2 for buckets, _ in self.histograms.values())


class Metrics:
    """Collects the families of one scrape. Every method may be called repeatedly for one name with other labels."""

    def __init__(self) -> None:
        self.families: dict[str, Family] = {}

    def counter(self, name: str, help_text: str, value: float, **labels: object) -> None:
        """Add a number that only grows. `name` ends with ``_total``."""
        self._put(Kind.COUNTER, name, help_text, labels).values[_values(labels)] = value

    def gauge(self, name: str, help_text: str, value: float, **labels: object) -> None:
        """Add a number that may fall."""
        self._put(Kind.GAUGE, name, help_text, labels).values[_values(labels)] = value

    def histogram(self, name: str, help_text: str, value: Histogram, **labels: object) -> None:
        """Add a histogram as it is now."""
        family = self._put(Kind.HISTOGRAM, name, help_text, labels)
        family.histograms[_values(labels)] = (value.cumulative(), value.total)

    def _put(self, kind: Kind, name: str, help_text: str, labels: Mapping[str, object]) -> Family:
        family = self.families.get(name)
        if family is None:
            family = self.families[name] = Family(f"penstock_{name}", kind, help_text, tuple(labels))
        return family


def _values(labels: Mapping[str, object]) -> Labels:
    return tuple(map(str, labels.values()))


#: Adds the present numbers of one part.
Collector = Callable[[Metrics], None]


def collect(collectors: Sequence[Collector]) -> list[Family]:
    """Return the families of all collectors."""
    metrics = Metrics()
    for collector in collectors:
        collector(metrics)
    return list(metrics.families.values())
