"""Random kills of all processes of a query and an export, and the count of the resulting rows.

    PYTHONPATH=src:tests python -m support.spark_kills --runs 100 --seed 1

Rows go through a streaming query from one stream into another, and from there by ``penstock export`` into a directory
of Parquet files. In each run one of them is killed with SIGKILL at a random moment: the driver with its JVM and all
workers, one of the Python workers, the store, the driver and the store at once, or the export. What was killed is
started again, what failed with it is repeated, and when all is through, each row has to be in the stream and in the
table once. Prints JSON; exit code 1 if a row is missing or doubled.

That the count can be wrong shows ``--at-least-once``: the sink appends, and drivers are killed when rows of a
micro-batch are in the stream that has to come again. Rows are doubled then, and none is missing.

With ``--executors 2`` the driver has executors in JVMs of their own, on a cluster of Spark's in the driver's process,
and one of those may be the victim, too.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field, fields
from pathlib import Path

import penstock
import penstock.aio
from penstock.client.sync import Client
from penstock.quickstart import process_tree
from penstock.quickstart.kills import Checkpoint
from penstock.quickstart.run import read_stream
from penstock.server.standalone_process import StandaloneProcess, child_environment
from penstock.spark.ledger import BatchState, Ledger, SinkIdentity

SOURCE, TARGET, APP = "kills/source", "kills/target", "kills"
#: The store and the driver, in one moment.
BOTH = "store and driver"
VICTIMS = ("driver", "worker", "store", "export", BOTH)
#: With executors that are processes of their own.
EXECUTOR = "executor"
#: What one of them runs.
_EXECUTOR_CLASS = "CoarseGrainedExecutorBackend"
ROWS_PER_RUN = 400
#: No step takes this long: one that does has failed.
GUARD_S = 240.0
#: How often a query or an export is restarted after one kill. One without a kill succeeds.
REPETITIONS_MAX = 3
#: How long after a transaction was seen open something dies, at most.
OPEN_DELAY_S_MAX = 0.3
_POLL_S = 0.005

#: Runs the query from its checkpoint to the current end on each command, in one session. A task may be repeated.
DRIVER = """
import os, sys
output = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)
from penstock.spark import ensure_java
ensure_java()
os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
from pyspark.sql import SparkSession
uri, source, target, app, checkpoint, exactly_once, master = sys.argv[1:]
session = SparkSession.builder.master(master).config("spark.ui.enabled", "false")
session = session.config("spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1")
session = session.config("spark.executor.memory", "512m").config("spark.sql.shuffle.partitions", "2").getOrCreate()
print("up", file=output, flush=True)
for _ in sys.stdin:
    frame = session.readStream.format("penstock").options(
        uri=uri, stream=source, start="earliest", columns="event", maxBytesPerTrigger=2000, minPartitions=2
    ).load()
    query = frame.writeStream.format("penstock").options(
        uri=uri, stream=target, checkpointLocation=checkpoint, appId=app, exactlyOnce=exactly_once
    ).trigger(availableNow=True).start()
    try:
        query.awaitTermination()
        print("done", file=output, flush=True)
    except Exception as error:
        print("failed", repr(str(error))[:300], file=output, flush=True)
os._exit(0)
"""


@dataclass(slots=True)
class Report:
    """The results of all runs.

    Attributes:
        kills: victim -> how often it was killed.
        moments: moment -> how often: a micro-batch was under way, a transaction was open, an intent was on record.
        unharmed: runs that were over before their victim was there.
        repeated_queries, repeated_exports: how often those were started again, since they failed or died.
        missing, doubled: rows in the target stream, when all was through, summed over all runs' checks.
        exported_missing, exported_doubled: the same of the table.
    """

    seed: int
    runs: int = 0
    rows: int = 0
    kills: Counter[str] = field(default_factory=Counter)
    moments: Counter[str] = field(default_factory=Counter)
    unharmed: int = 0
    repeated_queries: int = 0
    repeated_exports: int = 0
    missing: int = 0
    doubled: int = 0
    exported_missing: int = 0
    exported_doubled: int = 0
    left_open: int = 0
    seconds: float = 0.0

    def to_json(self) -> dict[str, object]:
        # `asdict` cannot copy a counter.
        return {each.name: getattr(self, each.name) for each in fields(self)}

    @property
    def is_exact(self) -> bool:
        return not (self.missing or self.doubled or self.exported_missing or self.exported_doubled)


def missing_and_doubled(found: Iterable[object], row_count: int) -> tuple[int, int]:
    """Return how many of the first `row_count` rows are not in `found`, and how many it has beyond one of each."""
    expected, seen = Counter[object](b"row %d" % number for number in range(row_count)), Counter(found)
    return (expected - seen).total(), (seen - expected).total()


def rows_of_stream(client: Client, stream: str) -> list[object]:
    return list(read_stream(client, stream).to_pylist())


def rows_of_table(table: Path) -> list[object]:
    """Return the rows of a directory of Parquet files, as any program reads it."""
    from pyarrow import dataset

    return list(dataset.dataset(table).to_table(columns=["event"])["event"].to_pylist())


def linked_spark_home(directory: Path) -> Path:
    """Make `directory` a home of Spark's, by links: a cluster of its own writes beside what it finds there."""
    import pyspark

    directory.mkdir()
    for each in Path(pyspark.__file__).parent.iterdir():
        (directory / each.name).symlink_to(each)
    return directory


class Driver:
    """A driver with its JVM and workers, which may be dead."""

    def __init__(self, command: list[str], log: Path, environment: dict[str, str]) -> None:
        self._log = log
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors,
                env=environment, start_new_session=True,
            )  # fmt: skip
        self._said = b""
        assert self.hear(GUARD_S) == "up", self.tail()

    @property
    def pid(self) -> int:
        return self._process.pid

    def run_query(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(b"go\n")
        self._process.stdin.flush()

    def hear(self, timeout_s: float) -> str | None:
        """Return the first word of the next line: empty when it has ended; None after the timeout."""
        assert self._process.stdout is not None
        output, deadline_s = self._process.stdout.fileno(), time.monotonic() + timeout_s
        while b"\n" not in self._said:
            if not select.select([output], [], [], max(0.0, deadline_s - time.monotonic()))[0]:
                return None
            data = os.read(output, 4096)
            if not data:
                return ""
            self._said += data
        line, self._said = self._said.split(b"\n", 1)
        return line.split()[0].decode()

    def kill9(self) -> None:
        process_tree.kill(self.pid)
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()

    def tail(self) -> str:
        return self._log.read_text(errors="replace")[-3000:]


class KillRuns:
    """Query, export, and the one who kills. Leave it as a context manager to end all of it.

    Without `is_exactly_once` the sink appends, and only drivers are to die; `executors`: so many JVMs of their own.
    `store`: instead of one in `directory`. See the module.
    """

    def __init__(
        self,
        directory: Path,
        seed: int,
        note: Callable[[str], None] = lambda text: None,
        *,
        is_exactly_once: bool = True,
        executors: int = 0,
        store: StandaloneProcess | None = None,
    ) -> None:
        self._is_exactly_once = is_exactly_once
        self._master = f"local-cluster[{executors},1,1024]" if executors else "local[2,4]"
        self._victims = (*VICTIMS, EXECUTOR) if executors else VICTIMS
        self._environment = child_environment()
        if executors:
            self._environment["SPARK_HOME"] = str(linked_spark_home(directory / "spark"))
        self._directory = directory
        self._random = random.Random(seed)
        self._note = note
        self._checkpoint = Checkpoint(directory / "checkpoint")
        self._table = directory / "table"
        self._store = store or StandaloneProcess(directory / "store")
        self._driver: Driver | None = None
        self._exit = ExitStack()
        #: How long the latest undisturbed query and export took.
        self._usual_s = {"query": 4.0, "export": 3.0}
        self.report = Report(seed)

    def __enter__(self) -> KillRuns:
        self._exit.enter_context(self._store)
        self._exit.callback(lambda: self._driver and self._driver.kill9())  # type: ignore[func-returns-value]
        self.client: Client = self._exit.enter_context(penstock.connect(self._store.uri))
        for stream in (SOURCE, TARGET):
            self.client.create_stream(stream, scaling=penstock.Scaling.fixed(2))
        return self

    def __exit__(self, *error: object) -> None:
        self._exit.close()

    def run(self, victim: str | None = None, kill_count: int = 1) -> None:
        """Do one run: write rows, have them go through while a victim dies, and count.

        `kill_count`: how often a victim under the query dies in this run, each time before the query was through;
        `REPETITIONS_MAX` at most.
        """
        report, started_s = self.report, time.monotonic()
        if not self._is_exactly_once:
            victim = "driver"
        victim = victim or self._victims[self._random.randrange(len(self._victims))]
        first, report.rows = report.rows, report.rows + ROWS_PER_RUN
        with self.client.event_writer(SOURCE) as writer:
            writer.write_many([b"row %d" % number for number in range(first, report.rows)])
        killed = self._run_query(victim, kill_count)
        self._run_export(victim if victim == "export" or (victim == "store" and not killed) else None)
        report.runs += 1
        report.seconds += time.monotonic() - started_s
        self._count()
        self._note(
            f"run {report.runs} of {victim}: {time.monotonic() - started_s:.1f} s, missing {report.missing} and "
            f"{report.exported_missing}, doubled {report.doubled} and {report.exported_doubled}"
        )

    # -- the query ----------------------------------------------------------------------------------------------

    def _run_query(self, victim: str, kill_count: int) -> bool:
        """Run the query until it succeeds; return whether the victim was killed meanwhile."""
        killed = 0
        # The store dies under the query in two thirds of its runs, and else under the export.
        wanted = victim in ("driver", "worker", BOTH, EXECUTOR) or (victim == "store" and self._random.random() < 2 / 3)
        for _ in range(1 + REPETITIONS_MAX):
            if self._driver is None:
                arguments = [self._store.uri, SOURCE, TARGET, APP, str(self._checkpoint.directory)]
                arguments += [str(self._is_exactly_once), self._master]
                command = [sys.executable, "-c", DRIVER, *arguments]
                self._driver = Driver(command, self._directory / "driver.log", self._environment)
            started_s = time.monotonic()
            self._driver.run_query()
            answer = None
            if wanted and killed < kill_count:
                answer, has_died = self._kill_under_query(self._driver, victim)
                killed += has_died
                self.report.unharmed += not killed
            answer = answer if answer is not None else self._driver.hear(GUARD_S)
            assert answer is not None, f"the query hangs\n{self._driver.tail()}"
            if answer == "done":
                if not killed:
                    self._usual_s["query"] = time.monotonic() - started_s
                return killed > 0
            assert killed, f"the query failed by itself\n{self._driver.tail()}"
            if answer == "":
                assert victim in ("driver", BOTH), f"the driver died of it\n{self._driver.tail()}"
                self._driver.kill9()
                self._driver = None
            self.report.repeated_queries += 1
        raise AssertionError(f"the query failed {1 + REPETITIONS_MAX} times\n{(self._directory / 'driver.log')}")

    def _kill_under_query(self, driver: Driver, victim: str) -> tuple[str | None, bool]:
        """Wait for a random moment and kill; return what the driver has said meanwhile, and whether it was done."""
        is_of_task = victim in ("worker", EXECUTOR)
        moment = self._random.choice(["any", "open"] if is_of_task else ["any", "open", "intent"])
        if not self._is_exactly_once:
            moment = "written"
            answer = self._await_written(driver)
        elif moment == "any":
            answer = driver.hear(self._random.uniform(0, self._usual_s["query"]))
        elif moment == "open":
            answer = None
            while answer is None and not self._open_count():
                answer = driver.hear(_POLL_S)
            answer = driver.hear(self._random.uniform(0, OPEN_DELAY_S_MAX)) if answer is None else answer
        else:
            answer = asyncio.run(self._await_intent(driver))
        if answer is not None:
            return answer, False
        pid = driver.pid
        if is_of_task:
            found = process_tree.workers(pid)
            if victim == EXECUTOR:
                found = [each for each in process_tree.members(pid) if _EXECUTOR_CLASS in each.command]
            if not found:
                return None, False
            pid = self._random.choice(found).pid
        batch = self._checkpoint.under_way()
        self.report.moments["intent"] += moment == "intent"
        self.report.moments["open"] += moment == "open"
        self.report.moments["written"] += moment == "written"
        self.report.moments["micro-batch"] += batch is not None
        self._note(f"run {self.report.runs}: kills {victim} ({moment}), micro-batch {batch}")
        if victim == "store":
            self._kill_store()
        elif victim in ("driver", BOTH):
            driver.kill9()
            if victim == BOTH:
                self._kill_store()
            self.report.kills[victim] += 1
            return "", True
        else:
            os.kill(pid, signal.SIGKILL)
        self.report.kills[victim] += 1
        return None, True

    def _kill_store(self) -> None:
        self._store.kill9()
        self._store.start()

    def _await_written(self, driver: Driver) -> str | None:
        """Wait until rows of the next micro-batch are in the stream, and hold the driver there: it is not done with it.

        Return what the driver said instead: that micro-batch, of this run's first rows, was done too soon.
        """
        before, first = self._target_bytes(), self._latest_done() + 1
        while True:
            answer = driver.hear(_POLL_S)
            if answer is not None or self._latest_done() >= first:
                return answer if answer is not None else driver.hear(GUARD_S)
            if self._target_bytes() > before:
                process_tree.hold(driver.pid)
                if self._checkpoint.under_way() == first:
                    return None
                process_tree.resume(driver.pid)

    def _latest_done(self) -> int:
        names = [path.name for path in (self._checkpoint.directory / "commits").glob("[0-9]*")]
        return max((int(name) for name in names if name.isdigit()), default=-1)

    def _target_bytes(self) -> int:
        return sum(self.client.tail(TARGET).positions.values())

    async def _await_intent(self, driver: Driver) -> str | None:
        """Wait until the ledger has an intent; return what the driver said instead, if it did."""
        async with penstock.aio.connect(self._store.uri) as client:
            ledger = None
            while True:
                answer = driver.hear(0.001)
                if answer is not None:
                    return answer
                try:
                    ledger = ledger or await Ledger.open(client, SinkIdentity(APP, TARGET))
                    row, _ = await ledger.read()
                except penstock.NoSuchTableError:
                    continue
                if row.state is BatchState.INTENT:
                    return None

    # -- the export ---------------------------------------------------------------------------------------------

    def _run_export(self, victim: str | None) -> None:
        """Run the export until it succeeds, and have the victim die meanwhile."""
        log = self._directory / "export.log"
        command = [sys.executable, "-m", "penstock", "export", TARGET, "--to", "parquet", "--once"]
        command += ["--directory", str(self._table), "--uri", self._store.uri, "--batch-size", "4KiB"]
        for _ in range(1 + REPETITIONS_MAX):
            started_s = time.monotonic()
            with log.open("ab") as output:
                process = subprocess.Popen(command, stdout=output, stderr=output, env=child_environment())
            try:
                was_wanted = victim is not None
                if victim is not None:
                    self._kill_under_export(process, victim)
                    victim = None
                code = process.wait(GUARD_S)
            finally:
                process.kill()
                process.wait()
            if code == 0:
                if not was_wanted:
                    self._usual_s["export"] = time.monotonic() - started_s
                return
            assert was_wanted, f"the export failed by itself\n{log.read_text(errors='replace')[-3000:]}"
            self.report.repeated_exports += 1
        raise AssertionError("unreachable: an export that is not killed succeeds or fails above")

    def _kill_under_export(self, process: subprocess.Popen[bytes], victim: str) -> None:
        try:
            process.wait(self._random.uniform(0, self._usual_s["export"]))
        except subprocess.TimeoutExpired:
            self.report.kills[victim] += 1
            self.report.moments["export"] += 1
            self._note(f"run {self.report.runs}: kills {victim} under the export")
            if victim == "store":
                self._kill_store()
            else:
                process.kill()
        else:
            self.report.unharmed += 1

    # -- the books ----------------------------------------------------------------------------------------------

    def _count(self) -> None:
        """Compare stream and table with the written events, and the ledger with the checkpoint."""
        report = self.report
        missing, doubled = missing_and_doubled(rows_of_stream(self.client, TARGET), report.rows)
        report.missing += missing
        report.doubled += doubled
        missing, doubled = missing_and_doubled(rows_of_table(self._table), report.rows)
        report.exported_missing += missing
        report.exported_doubled += doubled
        if not self._is_exactly_once:
            return
        batch = asyncio.run(self._latest_batch())
        offsets = json.loads((self._checkpoint.directory / "offsets" / str(batch)).read_text().splitlines()[-1])
        assert {int(segment): at for segment, at in offsets["positions"].items()} == self.client.tail(SOURCE).positions
        report.left_open = self._open_count()

    async def _latest_batch(self) -> int:
        async with penstock.aio.connect(self._store.uri) as client:
            row, _ = await (await Ledger.open(client, SinkIdentity(APP, TARGET))).read()
            assert row.state is BatchState.DONE
            return row.batch

    def _open_count(self) -> int:
        return len(list(self.client.open_transactions(TARGET)))


def _say(text: str) -> None:
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def main() -> None:
    """Do as many runs as wanted and print the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--at-least-once", action="store_true", help="To see rows doubled.")
    parser.add_argument("--executors", type=int, default=0, help="JVMs of their own that run tasks.")
    parser.add_argument("--victim", choices=[*VICTIMS, EXECUTOR], help="Kill nothing else.")
    given = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="penstock-kills-") as directory,
        KillRuns(
            Path(directory), given.seed, _say, is_exactly_once=not given.at_least_once, executors=given.executors
        ) as runs,
    ):
        for _ in range(given.runs):
            runs.run(given.victim)
    sys.stdout.write(json.dumps(runs.report.to_json(), indent=2) + "\n")
    sys.exit(0 if runs.report.is_exact else 1)


if __name__ == "__main__":
    main()
