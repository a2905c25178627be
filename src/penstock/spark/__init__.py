"""Spark source and sink: ``spark.read.format("penstock")`` and its three siblings, and what they need around them.

Spark finds the format by itself through the package `pyspark_penstock`; `register` is for sessions where another
`pyspark_*` package is broken and hides it. `ensure_java` finds a Java for Spark, or the one from PyPI. `LagListener`
tells how far streaming queries are behind, `LagEndpoint` and `lag_metrics` tell it to Prometheus.

Importing this needs no extra. Using it needs the extra ``spark``.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from penstock.spark.java import ensure_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.spark.lag import QueryLag, SegmentLag
    from penstock.spark.lag_metrics import LagEndpoint, lag_metrics
    from penstock.spark.listener import LagListener

__all__ = ["LagEndpoint", "LagListener", "QueryLag", "SegmentLag", "ensure_java", "lag_metrics", "register"]

#: Where the others are. The listener needs the extra, and workers, which import this, none of them.
_LATER = {
    "LagEndpoint": "penstock.spark.lag_metrics",
    "LagListener": "penstock.spark.listener",
    "QueryLag": "penstock.spark.lag",
    "SegmentLag": "penstock.spark.lag",
    "lag_metrics": "penstock.spark.lag_metrics",
}


def __getattr__(name: str) -> object:
    if name not in _LATER:
        raise AttributeError(f"module 'penstock.spark' has no attribute {name!r}")
    found: object = getattr(importlib.import_module(_LATER[name]), name)
    return found


def register(spark: SparkSession) -> None:
    """Register the format `penstock` with a session by hand; needed only where the automatic look-up fails."""
    from penstock.spark.datasource import PenstockDataSource

    spark.dataSource.register(PenstockDataSource)
