"""Source, sink and listener through Spark Connect: the session is in a server, which loads the format by its name."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.server.standalone_process import StandaloneProcess

#: A session and its server, in a process of its own: one that has a classic session can have no other.
PROGRAM = """
import json, sys, time
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from penstock.spark import LagListener

uri, source, target, work = sys.argv[1:]
spark = (
    SparkSession.builder.remote("local[2]").config("spark.ui.enabled", "false")
    .config("spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1").getOrCreate()
)
number = F.col("id").cast("string")
rows = spark.range(100).select(number.alias("event"), number.alias("routing_key"))
rows.write.format("penstock").option("uri", uri).mode("append").save(source)
told = []
listener = LagListener(told.append)
spark.streams.addListener(listener)
frame = spark.readStream.format("penstock").options(uri=uri, start="earliest", columns="event")
query = (
    frame.option("maxEventsPerTrigger", "60").load(source)
    .writeStream.format("penstock").option("uri", uri).option("stream", target)
    .option("checkpointLocation", work + "/checkpoint").trigger(availableNow=True).start()
)
query.awaitTermination()
deadline = time.monotonic() + 60
while len(told) < 2 and time.monotonic() < deadline:
    time.sleep(0.1)
found = spark.read.format("penstock").option("uri", uri).load(target)
events = sorted(int(bytes(row.event)) for row in found.select("event").collect())
lags = [lag.event_count_estimated for lag in told]
print(json.dumps({"kind": type(spark).__module__, "events": events, "lags": lags}))
spark.stop()
"""


@pytest.mark.spark
@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_source_sink_and_listener_work_through_a_connect_session(
    store: StandaloneProcess, new_stream: Callable[..., str], tmp_path: Path
) -> None:
    """Written, followed in two micro-batches into another stream, and read back from there.

    Nightly only: a session with a server of its own takes 70 s of CPU.
    """
    for part in ("grpc", "grpc_status", "google.rpc.error_details_pb2", "zstandard", "pandas"):
        try:
            is_there = importlib.util.find_spec(part) is not None
        except ModuleNotFoundError:
            is_there = False
        if not is_there:
            pytest.skip(f"needs {part}: pip install 'pyspark[connect]'")
    answer = subprocess.run(
        [sys.executable, "-c", PROGRAM, store.uri, new_stream(2), new_stream(1), str(tmp_path)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr[-5000:]
    told = json.loads(answer.stdout.splitlines()[-1])
    assert told["kind"].startswith("pyspark.sql.connect")
    assert told["events"] == list(range(100))
    assert told["lags"][-1] == 0
