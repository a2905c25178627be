"""`DriverProcess`: the query's driver as a child, with its JVM and workers, to be watched, held and killed."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType

from penstock.quickstart import process_tree
from penstock.quickstart.driver import Plan
from penstock.quickstart.errors import QueryFailedError, SparkStartError
from penstock.quickstart.query import PassResult
from penstock.server.standalone_process import child_environment

#: Long, for a machine that is busy with other things. On two free cores it takes 5 s.
START_TIMEOUT_S = 180.0
POLL_INTERVAL_S = 0.01
_READ_LENGTH = 1 << 16


class DriverProcess:
    """One driver, from its start to its end. Leaving it as a context manager kills it, and all that it has started.

    Attributes:
        progress: what it has said it has done.
        is_done: it has said that the query has come to its end.
    """

    def __init__(self, log_path: Path, command: list[str] | None = None) -> None:
        self._log_path = log_path
        self._command = command or [sys.executable, "-m", "penstock.quickstart.driver", str(log_path)]
        self._process: subprocess.Popen[bytes] | None = None
        self._is_started = False
        self._rest = b""
        self.progress: PassResult = PassResult()
        self.is_done: bool = False

    @property
    def pid(self) -> int:
        """The id of the driver's process, and of its session."""
        assert self._process is not None
        return self._process.pid

    def start(self) -> DriverProcess:
        """Start it and wait for nothing."""
        with self._log_path.open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=child_environment(),
                # One that all its children belong to; Ctrl-C at a terminal does not reach it.
                start_new_session=True,
            )
        return self

    def wait_started(self, timeout_s: float = START_TIMEOUT_S) -> None:
        """Wait until Spark is up. Raises `SparkStartError`, `QueryFailedError`."""
        deadline_s = time.monotonic() + timeout_s
        while not self._is_started:
            self.poll()
            if time.monotonic() > deadline_s:
                raise SparkStartError(f"Spark was not ready after {timeout_s:g} s; {self._advice()}")
            time.sleep(POLL_INTERVAL_S)

    def go(self, plan: Plan) -> None:
        """Have it run the query. Raises `QueryFailedError`."""
        assert self._process is not None
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(plan.to_line())
            self._process.stdin.flush()
        except BrokenPipeError:
            raise QueryFailedError(f"the driver has exited; {self._advice()}") from None

    def poll(self) -> PassResult:
        """Take in what it has said since the last time, and return its progress. Never waits.

        Raises:
            SparkStartError, QueryFailedError: it has failed, or ended before the query's end.
        """
        assert self._process is not None
        assert self._process.stdout is not None
        # Before its output: if the process has ended, its output is complete.
        code = self._process.poll()
        output = self._process.stdout.fileno()
        while select.select([output], [], [], 0)[0] and (data := os.read(output, _READ_LENGTH)):
            *lines, self._rest = (self._rest + data).split(b"\n")
            for line in lines:
                self._hear(line)
        if code is not None and not self.is_done:
            raise QueryFailedError(f"the driver ended with code {code} before the query did; {self._advice()}")
        return self.progress

    def _hear(self, line: bytes) -> None:
        said = json.loads(line)
        if "progress" in said:
            self.progress = PassResult.from_text(said["progress"])
        elif "failed" in said:
            kind, message = said["failed"]["kind"], said["failed"]["message"]
            error = SparkStartError if kind == SparkStartError.__name__ else QueryFailedError
            raise error(f"{message}; {self._advice()}")
        elif "done" in said:
            self.is_done = True
        else:
            self._is_started = True

    def hold(self) -> None:
        """Hold driver, JVM and workers. Raises `ProcessTreeError`."""
        process_tree.hold(self.pid)

    def resume(self) -> None:
        """Continue them."""
        process_tree.resume(self.pid)

    def kill9(self) -> int:
        """Kill driver, JVM and workers; return how many processes that were. Fine when they are gone."""
        if self._process is None:
            return 0
        count = process_tree.kill(self.pid)
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()
        self._process = None
        return count

    def _advice(self) -> str:
        return f"Spark's output is at the end of {self._log_path}"

    def __enter__(self) -> DriverProcess:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill9()
