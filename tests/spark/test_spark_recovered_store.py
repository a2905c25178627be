"""Spark reads a store whose machine was lost, built again from its long-term storage in a bucket."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from support.lost_store import LostStore, event
from support.standalone_process import StandaloneProcess

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_what_was_flushed_before_the_machine_was_lost_is_read(
    spark: SparkSession, make_server: Callable[..., StandaloneProcess], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Killed under load, wiped, recovered: every event that was flushed, byte for byte."""
    lost = LostStore("s3", make_server, tmp_path, request)
    covered = lost.lose()
    server = lost.recover()
    frame = spark.read.format("penstock").option("uri", server.uri).option("stream", "shop/orders").load()
    found = sorted(bytes(row.event) for row in frame.select("event").collect())
    assert found[:covered] == [event(number) for number in range(covered)]
    assert len(set(found)) == len(found)
