"""A light streaming query of Spark: ``python -m penstock_tools.soak.spark_query URI DIRECTORY``.

Each batch becomes a file ``batches/N.json`` with, for each key, the first and last number and the number of events. A
batch that is executed again replaces its file. The query ends with the process; its checkpoint is in the directory.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from penstock_tools.soak.session import EVENTS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

TRIGGER = "60 seconds"
#: Bound of an outage that the query tolerates: longer than any fault.
OUTAGE = "15m"
_PAUSE_S = 10.0
_HEAD_BYTES = 64


def write_batch(batch: DataFrame, number: int, directory: Path) -> None:
    """Write what a batch has of each key."""
    from pyspark.sql import functions as F

    fields = F.split(F.substring("event", 1, _HEAD_BYTES).cast("string"), " ")
    rows = (
        batch.select(fields[0].alias("key"), fields[1].cast("long").alias("number"))
        .groupBy("key")
        .agg(F.min("number"), F.max("number"), F.count("number"))
        .collect()
    )
    path = directory / f"{number}.json"
    draft = path.with_suffix(".draft")
    draft.write_text(json.dumps({row[0]: list(row[1:]) for row in rows}))
    draft.replace(path)


def main(uri: str, directory: Path) -> None:
    """Run the query until the process ends; start it again when it fails."""
    from penstock.spark import ensure_java

    ensure_java()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    from pyspark.errors import StreamingQueryException
    from pyspark.sql import SparkSession

    batches = directory / "batches"
    batches.mkdir(parents=True, exist_ok=True)
    session = (
        SparkSession.builder.master("local[1]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.memory", "512m")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "1")
        .config("spark.local.dir", str(directory / "spark"))
        .config("spark.sql.warehouse.dir", str(directory / "warehouse"))
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    while True:
        query = (
            session.readStream.format("penstock")
            .option("uri", uri)
            .option("stream", EVENTS)
            .option("startingStreamCut", "earliest")
            .option("columns", "event")
            .option("readTimeout", OUTAGE)
            .load()
            .writeStream.foreachBatch(lambda batch, number: write_batch(batch, number, batches))
            .option("checkpointLocation", str(directory / "checkpoint"))
            .trigger(processingTime=TRIGGER)
            .start()
        )
        try:
            query.awaitTermination()
        except StreamingQueryException as error:
            # Spark gives a worker 10 s to start, which a busy machine exceeds. The query resumes from its checkpoint.
            with (directory / "failures.jsonl").open("a") as file:
                file.write(json.dumps({"at": time.time(), "text": str(error)[:2000]}) + "\n")
            time.sleep(_PAUSE_S)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
