"""Spark source and sink: ``spark.read.format("penstock")`` and its three siblings, and the tools around them.

Spark finds the format through the package `pyspark_penstock`; `register` is for sessions where another
broken `pyspark_*` package prevents that. `ensure_java` finds a Java for Spark, or the one from PyPI. `ensure_compiled`
shortens the starts of its Python processes. `LagListener` reports the lag of streaming queries, `LagCollector`,
`LagEndpoint` and `lag_metrics` export it to Prometheus.

Importing this needs no extra. Using it needs the extra ``spark``.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from penstock.spark.compiled import ensure_compiled
from penstock.spark.java import ensure_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.spark.lag import QueryLag, SegmentLag
    from penstock.spark.lag_metrics import LagCollector, LagEndpoint, lag_metrics
    from penstock.spark.listener import LagListener

__all__ = [
    "LagCollector",
    "LagEndpoint",
    "LagListener",
    "QueryLag",
    "SegmentLag",
    "ensure_compiled",
    "ensure_java",
    "lag_metrics",
    "register",
]

#: Modules of names imported on first use. The listener needs the extra, and workers, which import this, need none.
_LATER = {
    "LagCollector": "penstock.spark.lag_metrics",
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
    """Register the format `penstock` with a session; needed only where Spark does not find it automatically."""
    from penstock.spark.datasource import PenstockDataSource

    spark.dataSource.register(PenstockDataSource)
