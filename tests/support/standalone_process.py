"""`StandaloneProcess`: a real ``penstock standalone`` that a test starts, kills and starts again on the same data."""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
from pathlib import Path
from types import TracebackType

import penstock

START_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 30.0
_SOURCES = str(Path(penstock.__file__).parents[1])


class StandaloneProcess:
    """One server process at a time, on a directory of its own and on free ports, which a restart keeps.

    `options` are further command line options; `memory` starts it without a data directory.
    """

    def __init__(self, directory: Path, *options: str, memory: bool = False) -> None:
        self.data_dir = directory / "data"
        self.log_path = directory / "server.log"
        self.options = options
        self.is_memory = memory
        self.controller_port = 0
        self.segment_store_port = 0
        #: The fields of the ready line of the latest start.
        self.ready: dict[str, object] = {}
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def uri(self) -> str:
        """The controller's address."""
        return f"tcp://127.0.0.1:{self.controller_port}"

    @property
    def pid(self) -> int:
        """The process id."""
        assert self.process is not None
        return self.process.pid

    @property
    def log(self) -> str:
        """Everything that was written to standard error by all starts."""
        return self.log_path.read_text(errors="replace")

    @property
    def is_running(self) -> bool:
        """Whether the process lives."""
        return self.process is not None and self.process.poll() is None

    def command(self) -> list[str]:
        """Return the command line of the next start."""
        where = ["--memory"] if self.is_memory else ["--data-dir", str(self.data_dir)]
        ports = [
            "--controller-port", str(self.controller_port), "--segment-store-port", str(self.segment_store_port)
        ]  # fmt: skip
        return [sys.executable, "-m", "penstock", "standalone", "--json", *where, *ports, *self.options]

    def start(self) -> StandaloneProcess:
        """Start and wait for the ready line. Raises `AssertionError` with the log when it ends instead."""
        line = self.launch()
        assert line.get("event") == "ready", f"{line}\n{self.log}"
        self.ready = line
        self.controller_port = int(str(line["controller"]).rpartition(":")[2])
        self.segment_store_port = int(str(line["segment_store"]).rpartition(":")[2])
        return self

    def launch(self) -> dict[str, object]:
        """Start and return the first line of output, or nothing if it ended without one."""
        self.spawn()
        line = self.read_line()
        return json.loads(line) if line else {}

    def spawn(self) -> None:
        """Start and wait for nothing."""
        assert not self.is_running
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen(
                self.command(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, env=child_environment()
            )

    def read_line(self) -> bytes:
        """Return the next line of the server's output; empty at its end."""
        assert self.process is not None
        assert self.process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            if not selector.select(START_TIMEOUT_S):
                self.kill9()
                raise AssertionError(f"nothing was printed within {START_TIMEOUT_S:g} s\n{self.log}")
        return self.process.stdout.readline()

    def kill9(self) -> None:
        """End it the hard way and wait until it is gone."""
        if self.process is not None:
            self.process.kill()
            self._wait(self.process)

    def terminate(self) -> int:
        """Ask it to stop with SIGTERM; return its exit code."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        return self.wait()

    def wait(self) -> int:
        """Wait for its end; return its exit code."""
        assert self.process is not None
        return self._wait(self.process)

    def restart(self) -> None:
        """Stop in order and start again on the same ports and data."""
        assert self.terminate() == 0, self.log
        self.start()

    def resident_bytes(self) -> int:
        """Return the memory it takes now."""
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    def _wait(self, process: subprocess.Popen[bytes]) -> int:
        try:
            code = process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise AssertionError(f"still there {STOP_TIMEOUT_S:g} s after the signal\n{self.log}") from None
        finally:
            if process.stdout is not None:
                process.stdout.close()
        return code

    def __enter__(self) -> StandaloneProcess:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.is_running:
            self.kill9()


def child_environment(**variables: str) -> dict[str, str]:
    """Return the environment of a child process: this one's without settings, and with the sources to be tested."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
    path = os.pathsep.join(filter(None, (_SOURCES, kept.get("PYTHONPATH", ""))))
    return {**kept, "PYTHONPATH": path, **variables}


def run_penstock(*arguments: str, timeout_s: float = 60.0, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run ``penstock`` to its end."""
    return subprocess.run(
        [sys.executable, "-m", "penstock", *arguments],
        capture_output=True,
        text=True,
        timeout=timeout_s,
        env=child_environment(**variables),
        check=False,
    )
