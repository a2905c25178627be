"""The commands in `bench/` work: each is run with `--quick` and must print one JSON object with what all of them have.

Their figures are not inspected: a test does not time anything.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.server.standalone_process import child_environment
from penstock_simulation.java_client import JavaUnavailableError, classpath, java_with_compiler

pytestmark = pytest.mark.e2e

BENCH = Path(__file__).resolve().parents[2] / "bench"

#: What the report of each has.
COMMON_FIELDS = {"bench", "durability", "hardware", "load_average", "raw_disk"}
#: Each command with the options that make another path of it run, and fields that its report must have.
COMMANDS = {
    "append": (["--follow"], {"events_per_s", "reader"}),
    "append_cpu": (["--lone"], {"sizes", "conditions"}),
    "cached_reads": ([], {"mb_per_s", "bare_socket_mb_per_s"}),
    "checkpoint_stall": ([], {"rounds", "at_once_cpu_ms"}),
    "catch_up": ([], {"mb_per_s", "in_chunks_share"}),
    "chunk_lists": ([], {"steps", "longest_turn_ms"}),
    "client_rates": (["--mixed"], {"rates"}),
    "client_start": ([], {"programs"}),
    "client_turns": ([], {"turns", "read_ahead"}),
    "client_tables": (["--partitions", "2"], {"put_many", "get", "put_on_version", "scan", "scan_keys"}),
    "command_line": ([], {"write", "write_key_field", "read", "read_json", "help", "help_cpu_ms"}),
    "console_streams": ([], {"streams", "pages"}),
    "crowd_stalls": ([], {"steps", "longest_turn_ms"}),
    "epochs": ([], {"operations", "gb_of_a_year", "cut"}),
    "log_batches": ([], {"log_threads", "device_bytes_per_byte"}),
    "jobs": ([], {"export_parquet", "export_parquet_json", "export_iceberg", "replay", "backfill"}),
    "long_term_storage": ([], {"directory", "s3", "metadata"}),
    "latency": (["--read"], {"append_to_ack", "write_to_reader"}),
    "many_segments": ([], {"many", "baseline"}),
    "metrics": ([], {"scrape", "pages", "groups_pages", "appends"}),
    "reader_churn": ([], {"lost", "doubled", "unexplained"}),
    "reader_groups": ([], {"group", "baseline", "idle_cpu_ratio"}),
    "recovery": ([], {"sizes"}),
    "retained_disk": ([], {"minutes", "is_bounded"}),
    "retention": ([], {"bound", "cycles", "truncation"}),
    "security": ([], {"tokens", "tls", "strangers"}),
    "segments": ([], {"median_mb_per_s", "to_first_count"}),
    "slow_tier2": ([], {"append_to_ack", "append_to_ack_with_slow_syncs", "p50_ratio"}),
    "cluster_statistics": ([], {"few", "many"}),
    "controller": ([], {"create_many", "scale", "truncate"}),
    "startup": ([], {"process_to_ready_s", "idle_memory"}),
    "storage_writer": (["--turns"], {"counts", "conditions"}),
    "tables": ([], {"steps", "slowest_to_first_size", "recovery"}),
    "transactions": ([], {"requests", "lone", "many", "sizes"}),
    "verify": ([], {"here", "bare", "chunks"}),
    "writer_ids": ([], {"tenths", "slowest_to_first_tenth", "recovery"}),
}
#: Those that start a Spark session of their own, each of which takes as long as many others together.
SPARK_COMMANDS: dict[str, tuple[list[str], set[str]]] = {
    "spark_latency": ([], {"sink_to_noop", "foreach_to_rate", "rounds"}),
    "spark_read": ([], {"reads", "flushed_share"}),
    "spark_sink": ([], {"median", "ratio"}),
    "spark_stream_read": ([], {"ratio", "micro_batch_to_batch", "stream"}),
}
#: Those that start a cluster of many processes.
CLUSTER_COMMANDS: dict[str, tuple[list[str], set[str]]] = {
    "cluster_throughput": ([], {"one_process_mb_per_s", "three_stores_mb_per_s", "ratio"}),
    "rolling_restart": ([], {"longest_gap_s", "client_errors", "idle_zookeeper_requests_per_s"}),
    "take_over": ([], {"kinds"}),
}
#: Those that run with every change: a writer, readers, both tiers, a start. All others load and show their options, and
#: run in the nightly profile: together they take three minutes of a core.
DAILY = {"append", "cached_reads", "latency", "long_term_storage", "startup"}
NAMES = [
    name if name in DAILY else pytest.param(name, marks=pytest.mark.nightly)
    for name in COMMANDS | SPARK_COMMANDS | CLUSTER_COMMANDS
]
#: Prints the help of each named file in one process, which takes less than forty starts of Python.
HELP = """
import runpy, sys
for path in sys.argv[1:]:
    sys.argv = [path, "--help"]
    try:
        runpy.run_path(path, run_name="__main__")
    except SystemExit as end:
        if end.code:
            raise
"""


def run(name: str, *options: str, limit_s: float = 100) -> subprocess.CompletedProcess[str]:
    """Run a command to its end. Its servers take any variable of ours for a setting, so they get none."""
    return subprocess.run(
        [sys.executable, str(BENCH / f"{name}.py"), *options],
        capture_output=True,
        text=True,
        env=child_environment(),
        timeout=limit_s,
        check=False,
    )


def test_every_command_is_run_here() -> None:
    """A command without a test stops working unnoticed. Java's has a test below."""
    found = {path.stem for path in BENCH.glob("*.py") if not path.stem.startswith("_")}
    # `plan` measures a function alone, so its report has no fields about a server; `compare` runs other commands.
    # These, `object_log`, which needs an S3 server, and those that need bookies have tests of their own.
    assert found - {"java_client", "plan", "compare", "object_log", "bookkeeper", "beside_pravega"} == (
        COMMANDS.keys() | SPARK_COMMANDS.keys() | CLUSTER_COMMANDS.keys()
    )


def test_the_plan_of_assignments_is_measured(tmp_path: Path) -> None:
    done = run("plan", "--quick", "--directory", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert {"cases", "containers", "stores"} <= json.loads(done.stdout).keys()


@pytest.mark.nightly
def test_the_log_in_a_bucket_is_measured(tmp_path: Path) -> None:
    """Its requests without load, which is the shortest part."""
    done = run("object_log", "--quick", "--no-java", "--only", "idle", "--directory", str(tmp_path))
    if "there is no S3 server" in done.stderr:
        pytest.skip(done.stderr.strip().splitlines()[-1])
    assert done.returncode == 0, done.stderr
    measured = json.loads(done.stdout)
    assert measured.keys() >= COMMON_FIELDS | {"batch_interval_s"}
    assert "idle" in next(iter(value for key, value in measured.items() if key.endswith("_ms")))


@pytest.mark.nightly
def test_the_log_in_bookkeeper_is_measured(tmp_path: Path) -> None:
    """Beside plain appends of the Java client, on the same bookies."""
    done = run("bookkeeper", "--quick", "--lengths", "100", "--directory", str(tmp_path))
    if "nothing can be measured" in done.stderr:
        pytest.skip(done.stderr.strip().splitlines()[-1])
    assert done.returncode == 0, done.stderr
    measured = json.loads(done.stdout)
    assert measured.keys() >= COMMON_FIELDS | {"memory_mb"}
    assert measured["lengths"]["100"].keys() >= {"ratio", "loop_cpu_us", "alone_p50_ms"}


@pytest.mark.nightly
def test_the_log_in_bookkeeper_is_measured_beside_pravega(tmp_path: Path) -> None:
    """Both servers take the load of the Java client, on the same bookies."""
    done = run("beside_pravega", "--quick", "--directory", str(tmp_path), limit_s=500)
    if "nothing can be measured" in done.stderr:
        pytest.skip(done.stderr.strip().splitlines()[-1])
    assert done.returncode == 0, done.stderr
    measured = json.loads(done.stdout)
    assert measured.keys() >= COMMON_FIELDS | {"store_memory"}
    assert measured["loads"]["full speed"].keys() >= {"throughput_ratio", "p99_ratio", "penstock", "pravega"}
    assert list(tmp_path.iterdir()) == []


@pytest.mark.nightly
def test_take_overs_with_the_log_in_bookkeeper_are_measured(tmp_path: Path) -> None:
    options = ("--quick", "--log", "bookkeeper", "--kinds", "child", "--directory", str(tmp_path))
    done = run("take_over", *options, limit_s=500)
    if "there is no cluster" in done.stderr or "there are no bookies" in done.stderr:
        pytest.skip(done.stderr.strip().splitlines()[-1])
    assert done.returncode == 0, done.stderr
    measured = json.loads(done.stdout)
    assert (measured["log"], measured["kinds"]["child"]["gaps"]) == ("bookkeeper", 1)
    assert list(tmp_path.iterdir()) == []


def test_two_checkouts_are_compared_in_turns(tmp_path: Path) -> None:
    """Here a checkout with itself: each figure of both is there, once for each round, and so is their ratio."""
    root = str(BENCH.parent)
    done = run("compare", root, root, "--quick", "--rounds", "1", "--command", "startup", "--directory", str(tmp_path))
    assert done.returncode == 0, done.stderr
    compared = json.loads(done.stdout)
    figure = compared["figures"]["startup"]["idle_memory.rss_mb"]
    assert [len(figure["base"]), len(figure["changed"])] == [compared["rounds"]] * 2 == [1, 1]
    ratios = [after / before for before, after in zip(figure["base"], figure["changed"], strict=True)]
    assert figure["ratio"]["lowest"] == round(min(ratios), 4) <= figure["ratio"]["median"] <= figure["ratio"]["highest"]
    assert compared["base"] == compared["changed"]


def test_a_directory_that_is_not_a_checkout_is_refused(tmp_path: Path) -> None:
    done = run("compare", str(tmp_path), str(BENCH.parent), "--quick")
    assert done.returncode == 1
    assert "no checkout of the project" in done.stderr


@pytest.mark.parametrize("name", NAMES)
def test_command_reports(name: str, tmp_path: Path) -> None:
    """One JSON object on standard output, independent of progress output, and nothing left in the directory."""
    options, fields = (COMMANDS | SPARK_COMMANDS | CLUSTER_COMMANDS)[name]
    limit_s = 100 if name in COMMANDS else 500
    done = run(name, "--quick", "--directory", str(tmp_path), *options, limit_s=limit_s)
    if "there is no cluster" in done.stderr:
        pytest.skip(done.stderr.strip().splitlines()[-1])
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    assert COMMON_FIELDS | fields <= figures.keys()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.nightly
def test_events_written_by_the_java_client_all_arrive(tmp_path: Path) -> None:
    """What the yardstick counts adds up: all that was written at its rate is acknowledged, and read, once."""
    try:
        classpath()
        java_with_compiler()
    except JavaUnavailableError as error:
        pytest.skip(str(error))
    done = run("java_client", "--quick", "--directory", str(tmp_path), "--writers", "2", "--readers", "2")
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    assert COMMON_FIELDS | {"events_per_s", "server_cpu_s_per_million_events", "server_memory"} <= figures.keys()
    assert sum(figures["events_by_second"]) > 0
    assert figures["is_flushed"]
    assert figures["reader"]["is_drained"]
    assert 0 < figures["append_to_ack"]["p50_ms"] <= figures["append_to_ack"]["p99_ms"]
    assert list(tmp_path.iterdir()) == []


def test_every_command_loads_and_shows_its_options() -> None:
    """`plan` has none: a test of its own runs it."""
    paths = sorted(path for path in BENCH.glob("*.py") if not path.stem.startswith("_") and path.stem != "plan")
    done = subprocess.run(
        [sys.executable, "-c", HELP, *map(str, paths)],
        capture_output=True, text=True, env={**child_environment(), "PYTHONPATH": str(BENCH)}, timeout=100, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    for path in paths:
        assert f"usage: {path.name}" in done.stdout


def test_help_shows_how_to_call() -> None:
    """`--help` has the examples of the command's own documentation, line by line."""
    done = run("many_segments", "--help")
    assert done.returncode == 0
    assert "python bench/many_segments.py" in done.stdout
    assert "--segments" in done.stdout
