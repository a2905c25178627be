"""What takes events out of the cluster during the soak run: a query of Spark, and an export into Parquet files."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

from penstock.server.standalone_process import child_environment
from penstock_tools.soak.checks import KeyRanges
from penstock_tools.soak.events import ABORT, parse_in_transaction
from penstock_tools.soak.session import PAYMENTS
from support.namespaces import Host

_EXPORT_TIMEOUT_S = 1500.0
_SPARK_RESTART_PAUSE_S = 30.0
#: Bound of the time that the query takes to read the last events.
_SPARK_END_S_MAX = 300.0


class SparkQuery:
    """The process of the query; started again when it has ended. `check` reads the batches that are new."""

    def __init__(self, host: Host, uri: str, directory: Path) -> None:
        self._host, self._uri, self._directory = host, uri, directory
        self._process: subprocess.Popen[bytes] | None = None
        self._started_s = 0.0
        self._ranges = KeyRanges()
        self._next_batch = 0
        self.start_count = 0
        self.is_complete = False

    @property
    def event_count(self) -> int:
        """Events in the batches so far."""
        return self._ranges.count

    @property
    def pid(self) -> int | None:
        """Process id of its driver, if it runs."""
        return None if self._process is None or self._process.poll() is not None else self._process.pid

    def keep_running(self) -> None:
        """Start it if it does not run."""
        if self.pid is not None or time.monotonic() - self._started_s < _SPARK_RESTART_PAUSE_S:
            return
        self._directory.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "penstock_tools.soak.spark_query", self._uri, str(self._directory)]
        with (self._directory / "log").open("ab") as log:
            self._process = subprocess.Popen(
                self._host.command(*command), stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=child_environment()
            )
        self._started_s = time.monotonic()
        self.start_count += 1

    def check(self) -> Iterator[str]:
        """Yield the broken promises in new batches. The newest file may be replaced yet: it is read later."""
        batches = self._directory / "batches"
        while (batches / f"{self._next_batch + 1}.json").exists():
            yield from self._check_batch(batches / f"{self._next_batch}.json")
            self._next_batch += 1

    def finish(self, event_count: int) -> Iterator[str]:
        """Wait until the query has had so many events, all that there are; yield the broken promises.

        A query that is late is not one: `is_complete` is False then.
        """
        deadline_s = time.monotonic() + _SPARK_END_S_MAX
        while time.monotonic() < deadline_s:
            self.keep_running()
            yield from self.check()
            last = self._directory / "batches" / f"{self._next_batch}.json"
            found = json.loads(last.read_text()) if last.exists() else {}
            if self._ranges.count + sum(count for _, _, count in found.values()) >= event_count:
                yield from self._check_batch(last)
                self.is_complete = True
                return
            time.sleep(1.0)

    @property
    def failure_count(self) -> int:
        """How often the query has failed, and was started again."""
        path = self._directory / "failures.jsonl"
        return len(path.read_text().splitlines()) if path.exists() else 0

    def _check_batch(self, path: Path) -> Iterator[str]:
        for key, (first, last, count) in json.loads(path.read_text()).items():
            yield from self._ranges.see(f"{path.stem} of the Spark query", key, first, last, count)

    def stop(self) -> None:
        """End it."""
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(60.0)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()


class Exports:
    """Exports the stream of transactions at intervals, in a thread, and checks the files.

    Every event is there once; of a transaction all events, or none. `last`: the transactions are all complete.
    """

    def __init__(self, host: Host, uri: str, directory: Path, report: Callable[[str], None]) -> None:
        self._host, self._uri, self._directory, self._report = host, uri, directory, report
        self._read: set[Path] = set()
        self._parts: dict[str, set[int]] = defaultdict(set)
        self._counts: dict[str, int] = {}
        self._thread: threading.Thread | None = None
        self.export_count = 0
        self.failure_count = 0

    @property
    def event_count(self) -> int:
        """Events in the files so far."""
        return sum(map(len, self._parts.values()))

    def begin(self) -> None:
        """Start an export, unless one is running."""
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self.export, daemon=True)
            self._thread.start()

    def wait(self) -> None:
        """Wait until no export is running."""
        if self._thread is not None:
            self._thread.join()

    def export(self) -> bool:
        """Export up to the current end, and check the new files; return whether the command succeeded."""
        self._directory.parent.mkdir(parents=True, exist_ok=True)
        command = [
            sys.executable, "-m", "penstock", "export", PAYMENTS, "--to", "parquet", "--directory",
            str(self._directory), "--once", "--outage", "15m", "--json", "--uri", self._uri,
        ]  # fmt: skip
        try:
            done = subprocess.run(
                self._host.command(*command), capture_output=True, text=True, timeout=_EXPORT_TIMEOUT_S,
                env=child_environment(), check=False,
            )  # fmt: skip
            is_done, text = done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
        except subprocess.TimeoutExpired:
            is_done, text = False, f"no end after {_EXPORT_TIMEOUT_S:g} s"
        with self._directory.with_name("exports.jsonl").open("a") as file:
            file.write(json.dumps({"at": time.time(), "ok": is_done, "output": text}) + "\n")
        self.export_count += 1
        self.failure_count += not is_done
        if is_done:
            for violation in self._check_new_files():
                self._report(violation)
        return is_done

    def _check_new_files(self) -> Iterator[str]:
        import pyarrow.parquet as pq

        for path in sorted(self._directory.glob("*.parquet")):
            if path in self._read:
                continue
            self._read.add(path)
            for data in pq.read_table(path, columns=["event"])["event"].to_pylist():
                event = parse_in_transaction(data)
                if event.plan == ABORT:
                    yield f"the export has an event of transaction {event.label}, which was never committed"
                if event.index in self._parts[event.label]:
                    yield f"the export has event {event.index} of transaction {event.label} twice"
                self._parts[event.label].add(event.index)
                self._counts[event.label] = event.count

    def incomplete(self) -> Iterator[str]:
        """Yield the transactions that are not complete. Call it after the last export."""
        for label, parts in self._parts.items():
            if len(parts) != self._counts[label]:
                yield f"the export has {len(parts)} of {self._counts[label]} events of transaction {label}"
