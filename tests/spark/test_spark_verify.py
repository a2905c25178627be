"""`penstock verify` on Spark: executors read the chunks of a real server, and say which are not as they should be."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="needs pyspark: pip install 'penstock[spark]'")

from pyspark import cloudpickle

import penstock
from penstock.client.transport.chunk_layouts import SegmentLayout
from penstock.jobs.chunk_sums import Finding
from penstock.jobs.spark_sums import SparkSums
from penstock.server.standalone_process import StandaloneProcess
from penstock.spark.options import StoreSettings
from penstock.spark.store import close_clients, layouts_of
from support.command_line import run_command

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

EVENT_COUNT = 2000
#: A stream of so many events, of 150 bytes each, is in storage at once and in several chunks.
SETTINGS = """
[segment_store.container]
flush_age_s = 0.05
rollover_bytes_min = 100_000
"""


@pytest.fixture(scope="module")
def small_store(spark_environment: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandaloneProcess]:
    """A store whose chunks are damaged here."""
    directory = tmp_path_factory.mktemp("verified")
    settings = directory / "penstock.toml"
    settings.write_text(SETTINGS)
    with StandaloneProcess(directory, "--config", str(settings)) as process:
        yield process


@pytest.fixture
def chunked(small_store: StandaloneProcess) -> Callable[[str], str]:
    """Return a function that makes a stream of one segment, which is in storage in chunks of 100 000 bytes."""

    def create(name: str) -> str:
        stream = f"verified/{name}"
        with penstock.connect(small_store.uri) as client:
            client.create_stream(stream, rollover_bytes=100_000)
            with client.event_writer(stream) as writer:
                writer.write_many([b"%0142d" % number for number in range(EVENT_COUNT)])
        verify(small_store, stream)
        return stream

    return create


def chunks_of(store: StandaloneProcess, stream: str) -> list[Path]:
    """Return the chunks of the only segment in order."""
    found = Path(store.data_dir, "tier2", stream).glob("0.#epoch.0.E-*")
    return sorted(found, key=lambda path: int(path.name.partition("-O-")[2].partition(".")[0]))


def verify(store: StandaloneProcess, *arguments: str) -> tuple[int, dict[str, Any]]:
    """Run the command until all is in storage."""
    deadline_s = time.monotonic() + 120
    while True:
        ran = run_command("verify", *arguments, "--json", uri=store.uri)
        assert ran.stderr == ""
        if not ran.json["unflushed_bytes"]:
            return ran.code, ran.json
        assert time.monotonic() < deadline_s, ran
        time.sleep(0.2)


def test_chunks_that_are_damaged_missing_or_too_short_are_reported_and_nothing_else(
    spark: Any, small_store: StandaloneProcess, chunked: Callable[[str], str], tmp_path: Path
) -> None:
    """Of two streams one is healthy; with Spark and without the report is the same."""
    store, healthy, stream = small_store, chunked("healthy"), chunked("damaged")
    code, report = verify(store, healthy, stream, "--spark")
    assert code == 0
    count = len(chunks_of(store, healthy)) + len(chunks_of(store, stream))
    assert count >= 6
    assert (report["segment_count"], report["chunk_count"]) == (2, count)
    assert report["checked_bytes"] == 2 * EVENT_COUNT * 150
    assert (report["problem_count"], report["unknown_count"], report["is_whole"]) == (0, 0, True)
    lines = run_command("verify", healthy, uri=store.uri).ok.lines
    assert lines[-1] == "no problems found"

    damaged, short, missing = chunks_of(store, stream)[:3]
    data = bytearray(damaged.read_bytes())
    data[50_000] ^= 1
    damaged.write_bytes(data)
    short.write_bytes(short.read_bytes()[:-7])
    missing.unlink()
    code, report = verify(store, healthy, stream, "--spark")
    assert code == 3
    found = [(each["kind"], each["chunk"], each["length_bytes"]) for each in report["problems"]]
    assert found == [
        ("block_damaged", f"{stream}/{damaged.name}", len(data)),
        ("chunk_short", f"{stream}/{short.name}", short.stat().st_size + 7),
        ("chunk_missing", f"{stream}/{missing.name}", report["problems"][2]["length_bytes"]),
    ]
    assert report["problem_count"] == 3
    assert verify(store, healthy, stream) == (3, report)
    lines = run_command("verify", stream, uri=store.uri).lines
    assert lines[0].startswith(f"block_damaged: {stream}/{damaged.name} at byte 0: ")
    assert lines[-1] == "3 problems"

    # The reader has no access to the storage: then nothing is known of any damage.
    away = run_command("verify", stream, "--tier2", str(tmp_path), "--outage", "1s", "--spark", uri=store.uri)
    assert away.code == 1
    assert "it does not exist, or is not the store's long-term storage" in away.stderr
    assert away.lines[-1] == "the check was stopped before its end"


def killed_once(marker: str, layout: SegmentLayout) -> SegmentLayout:
    """Return a part, in a worker that dies of it the first time."""
    if not Path(marker).exists():
        Path(marker).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return layout


@dataclass
class Deadly:
    """A part that is a `killed_once` where it comes to."""

    layout: SegmentLayout
    marker: str

    @property
    def start(self) -> int:
        return self.layout.start

    @property
    def end(self) -> int:
        return self.layout.end

    def __reduce__(self) -> Any:
        return killed_once, (self.marker, self.layout)


def test_a_killed_worker_costs_only_its_own_work(
    spark: Any, small_store: StandaloneProcess, chunked: Callable[[str], str], tmp_path: Path
) -> None:
    # Its module is none that workers know.
    cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]
    stream = chunked("killed")
    settings = StoreSettings(small_store.uri)
    (layout,) = layouts_of(settings, [(f"{stream}/0.#epoch.0", 0, EVENT_COUNT * 150)], 0.0, "")
    close_clients()
    assert isinstance(layout, SegmentLayout)
    first, *_, last = layout.chunks
    parts: list[Any] = [
        layout.clipped(chunk.start_offset, chunk.start_offset + chunk.length) for chunk in (first, last)
    ]
    parts.append(Deadly(parts[0], str(tmp_path / "killed")))
    results = SparkSums(spark, settings, task_count=2).run(parts)
    assert [result.finding for result in results] == [Finding.SOUND] * 3
    assert [result.read_bytes for result in results] == [first.length, last.length, first.length]
    assert (tmp_path / "killed").exists()
