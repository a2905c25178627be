"""Verification of chunks: bytes compared with their checksums per second, and per second of this process's CPU.

Beside it, over the same chunks: reading them in blocks without checking them, and, with `--spark`, the same by Spark's
executors. Reads come from the page cache if there is room in memory: what is measured is the work, not the disk.

    python bench/verify.py --megabytes 2000 --spark 2
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import penstock
from _common import cpu_s, parser, raw_disk, report, server, work_directory
from penstock.jobs.chunk_sums import READ_BYTES
from penstock.jobs.verify import HereSums, PartSums, StoredChunks, Verifier, VerifyReport
from penstock.spark.options import StoreSettings

STREAM = "bench/verify"
#: How long is waited until long-term storage has it all.
FLUSH_S_MAX = 120.0


def verified(store: StoreSettings, sums: PartSums) -> VerifyReport:
    """Verify all there is."""
    verifier = Verifier(StoredChunks(store), sums)
    verifier.add(STREAM)
    verifier.run(lambda _: None)
    assert not verifier.report.problem_count + verifier.report.unknown_count, verifier.report
    return verifier.report


def read(chunks: list[Path]) -> int:
    """Read files in blocks as a verification does; return their bytes."""
    total = 0
    for chunk in chunks:
        with chunk.open("rb", buffering=0) as file:
            while data := file.read(READ_BYTES):
                total += len(data)
    return total


def measured(work: Callable[[], int], runs: int) -> dict[str, float]:
    """Return the best of some runs."""
    rates, rates_cpu = [], []
    for _ in range(runs):
        begin_s, begin_cpu_s = time.perf_counter(), time.process_time()
        total = work()
        rates.append(total / (time.perf_counter() - begin_s) / 1e6)
        rates_cpu.append(total / (time.process_time() - begin_cpu_s) / 1e6)
    return {"mb_per_s": round(max(rates), 1), "mb_per_cpu_s": round(max(rates_cpu), 1)}


def main() -> None:
    options = parser(__doc__ or "")
    options.add_argument("--megabytes", type=int, default=2000)
    options.add_argument("--runs", type=int, default=3)
    options.add_argument("--spark", type=int, default=0, metavar="CORES", help="Also by Spark, on so many cores.")
    arguments = options.parse_args()
    if arguments.quick:
        arguments.megabytes = 10
    settings = {"segment_store.container.flush_age_s": 0.05}
    with work_directory(arguments) as directory:
        disk = raw_disk(directory)
        with server(directory, settings=settings) as running:
            batch = [b"%01000d" % number for number in range(1000)]
            store = StoreSettings(running.uri)
            with penstock.connect(running.uri) as client:
                client.create_stream(STREAM, scaling=penstock.Scaling.fixed(4))
                with client.event_writer(STREAM) as writer:
                    for _ in range(arguments.megabytes):
                        writer.write_many(batch, routing_keys=[str(number) for number in range(len(batch))])
            deadline_s = time.monotonic() + FLUSH_S_MAX
            while verified(store, HereSums(store)).unflushed_bytes and time.monotonic() < deadline_s:
                time.sleep(0.5)
            chunks = [path for path in directory.rglob("*.E-*") if STREAM in str(path)]
            before_s = cpu_s(running.pid)
            figures: dict[str, object] = {
                "bytes": sum(path.stat().st_size for path in chunks),
                "chunks": len(chunks),
                "here": measured(lambda: verified(store, HereSums(store)).checked_bytes, arguments.runs),
                "server_cpu_s": round(cpu_s(running.pid) - before_s, 2),
                "bare": measured(lambda: read(chunks), arguments.runs),
            }
            if arguments.spark:
                figures["spark"] = by_spark(store, arguments.spark, arguments.runs)
            report("verify", {**figures, "raw_disk": disk})


def by_spark(store: StoreSettings, cores: int, runs: int) -> dict[str, float]:
    """Return the same by Spark. Its workers' CPU is not this process's."""
    import os
    import sys

    from penstock.jobs.spark_sums import SparkSums
    from penstock.spark import ensure_compiled, ensure_java

    ensure_java()
    ensure_compiled()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    from pyspark.sql import SparkSession

    session = SparkSession.builder.master(f"local[{cores}]").config("spark.ui.enabled", "false").getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    sums = SparkSums(session, store, task_count=cores)
    verified(store, sums)  # The first one starts the workers.
    rate = measured(lambda: verified(store, sums).checked_bytes, runs)["mb_per_s"]
    session.stop()
    return {"cores": cores, "mb_per_s": rate, "mb_per_s_per_core": round(rate / cores, 1)}


if __name__ == "__main__":
    main()
