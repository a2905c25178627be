"""Spark source and sink: ``spark.read.format("penstock")`` and its three siblings, and what they need around them.

Spark finds the format by itself through the package `pyspark_penstock`; `register` is for sessions where another
`pyspark_*` package is broken and hides it. `ensure_java` finds a Java for Spark, or the one from PyPI. `LagListener`
tells how far streaming queries are behind.

Importing this needs no extra. Using it needs ``pip install 'penstock[spark]'``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.spark.java import ensure_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.spark.listener import LagListener

__all__ = ["LagListener", "ensure_java", "register"]


def __getattr__(name: str) -> object:
    # What it is made of needs the extra.
    if name != "LagListener":
        raise AttributeError(f"module 'penstock.spark' has no attribute {name!r}")
    from penstock.spark.listener import LagListener

    return LagListener


def register(spark: SparkSession) -> None:
    """Register the format `penstock` with a session by hand; needed only where the automatic look-up fails."""
    from penstock.spark.datasource import PenstockDataSource

    spark.dataSource.register(PenstockDataSource)
