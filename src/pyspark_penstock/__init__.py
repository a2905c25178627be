"""Lets Spark find the format `penstock` without registration.

Spark imports every top-level module whose name starts with `pyspark_` and takes its `DefaultSource`. One that fails
to import hides all the others, so this one imports next to nothing.
"""

from penstock.spark.datasource import PenstockDataSource as DefaultSource

__all__ = ["DefaultSource"]
