"""`StandaloneProcess`: ``penstock standalone`` as a child process, to start, stop and restart on the same data.

For the quickstart, and for tests of applications and of Penstock itself, which also kill and suspend it. Calls block;
from an event loop use `asyncio.to_thread`. Signals are those of POSIX, so SIGSTOP and the like need Linux or macOS.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType

import penstock
from penstock.server.errors import ServerProcessError

#: Long enough for a machine that is busy with other tests.
START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 60.0
_POLL_S = 0.01
_SOURCES = str(Path(penstock.__file__).parents[1])


#: Length of the log's end that an error shows.
_LOG_TAIL_LENGTH = 4000


class StandaloneProcess:
    """One server process at a time, on `directory` and on free ports, which a restart keeps.

    `options` are further command line options; `memory` starts it without a data directory. With several
    `segment_stores` each is a child process that can be killed and suspended, too, and their ports are new with each
    start. With `has_own_session` Ctrl-C at a terminal does not reach it, so that its parent can stop it cleanly.
    Leaving it as a context manager kills it.

    Attributes:
        data_dir: where the data are.
        log_path: standard error of all starts.
        controller_port, segment_store_port: 0 before the first start.
        ready: the fields of the ready line of the latest start.
        process: the child of the latest start.
    """

    def __init__(
        self,
        directory: Path,
        *options: str,
        memory: bool = False,
        segment_stores: int = 1,
        has_own_session: bool = False,
    ) -> None:
        self.data_dir: Path = directory / "data"
        self.log_path: Path = directory / "server.log"
        self.options = options
        self.is_memory = memory
        self.segment_stores = segment_stores
        self.has_own_session = has_own_session
        self.controller_port: int = 0
        self.segment_store_port: int = 0
        self.ready: dict[str, object] = {}
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def uri(self) -> str:
        """The controller's address."""
        return f"tcp://127.0.0.1:{self.controller_port}"

    @property
    def pid(self) -> int:
        """The process id."""
        return self._child().pid

    @property
    def log(self) -> str:
        """The standard error output of all starts."""
        return self.log_path.read_text(errors="replace") if self.log_path.exists() else ""

    @property
    def is_running(self) -> bool:
        """Whether the process exists, suspended by SIGSTOP or not."""
        return self.process is not None and self.process.poll() is None

    @property
    def exit_code(self) -> int | None:
        """Exit code of the latest process (negative: a signal); None while it runs, or before the first start."""
        return None if self.process is None else self.process.poll()

    def command(self) -> list[str]:
        """Return the command line of the next start."""
        where = ["--memory"] if self.is_memory else ["--data-dir", str(self.data_dir)]
        # The ports after a free one need not be free.
        store_port = self.segment_store_port if self.segment_stores == 1 else 0
        ports = ["--controller-port", str(self.controller_port), "--segment-store-port", str(store_port)]
        if self.segment_stores > 1:
            ports += ["--segment-stores", str(self.segment_stores)]
        return [sys.executable, "-m", "penstock", "standalone", "--json", *where, *ports, *self.options]

    # -- starting -----------------------------------------------------------------------------------------------

    def start(self) -> StandaloneProcess:
        """Start and wait for the ready line. Raises `ServerProcessError` with the log when it exits instead."""
        self.spawn()
        return self.wait_ready()

    def wait_ready(self) -> StandaloneProcess:
        """Wait for the ready line of a `spawn`. Errors as `start`."""
        line = self._first_line()
        if line.get("type") == "error":
            self._wait(self._child())
            raise ServerProcessError(f"the server did not start: {line.get('message')}\n{self._log_tail()}")
        if line.get("type") != "ready":
            code = self._wait(self._child()) if not line else None
            said = f"said {line}" if line else f"ended with code {code}"
            raise ServerProcessError(f"the server did not get ready, it {said}\n{self._log_tail()}")
        self.ready = line
        self.controller_port = _port(line["controller"])
        self.segment_store_port = _port(line["segment_store"])
        return self

    def launch(self) -> dict[str, object]:
        """Start and return the first line of output; empty if it exited without one."""
        self.spawn()
        return self._first_line()

    def spawn(self) -> None:
        """Start without waiting."""
        if self.is_running:
            raise ServerProcessError(f"process {self.pid} still runs: end it before the next start")
        self.log_path.parent.mkdir(parents=True, exist_ok=True)
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen(
                self.command(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                env=child_environment(),
                start_new_session=self.has_own_session,
            )

    def read_line(self) -> bytes:
        """Return the next line of the server's output; empty at its end.

        Raises `ServerProcessError`, and kills the server, after `START_TIMEOUT_S` without one.
        """
        output = self._child().stdout
        assert output is not None
        with selectors.DefaultSelector() as selector:
            selector.register(output, selectors.EVENT_READ)
            if not selector.select(START_TIMEOUT_S):
                self.kill9()
                raise ServerProcessError(f"nothing was printed within {START_TIMEOUT_S:g} s\n{self._log_tail()}")
        return output.readline()

    def _first_line(self) -> dict[str, object]:
        line = self.read_line()
        return dict(json.loads(line)) if line else {}

    # -- stopping -----------------------------------------------------------------------------------------------

    def kill9(self) -> None:
        """Kill it with SIGKILL and wait for its exit. Also for a stopped or a suspended process."""
        if self.process is not None:
            self.process.kill()
            self._wait(self.process)

    def terminate(self) -> int:
        """Send SIGTERM; return its exit code. A suspended process must be resumed before."""
        self._child().send_signal(signal.SIGTERM)
        return self.wait()

    def stop(self) -> None:
        """Stop cleanly. No effect when it is not running.

        Raises `ServerProcessError` when it has not exited after `STOP_TIMEOUT_S`; it was killed then.
        """
        if self.is_running:
            self.terminate()

    def wait(self) -> int:
        """Wait for its exit; return its exit code. Raises `ServerProcessError` after `STOP_TIMEOUT_S`, and kills it."""
        return self._wait(self._child())

    def restart(self) -> None:
        """Stop cleanly and start again on the same ports and data."""
        code = self.terminate()
        if code != 0:
            raise ServerProcessError(f"the server ended with code {code} after SIGTERM, expected 0\n{self._log_tail()}")
        self.start()

    # -- suspending ---------------------------------------------------------------------------------------------

    def pause(self) -> None:
        """Suspend the process with SIGSTOP: its sockets stay open, and nothing answers."""
        self._child().send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Resume a suspended process with SIGCONT. No effect when it is not suspended."""
        self._child().send_signal(signal.SIGCONT)

    # -- segment stores in child processes ------------------------------------------------------------------------

    def store_pid(self, number: int) -> int | None:
        """Return the current process id of a segment store; None while it, or the server, is down (Linux)."""
        if not self.is_running:
            return None
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children")
        try:
            pids = [int(word) for word in children.read_text().split()]
        except OSError:
            return None
        return next((pid for pid in pids if _arguments(pid)[-2:] == ["store-child", str(number)]), None)

    def await_store(self, number: int, *, other_than: int | None = None) -> int:
        """Wait for a segment store's process with another id than `other_than`; return its id.

        Raises `ServerProcessError` after `START_TIMEOUT_S`.
        """
        deadline_s = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline_s:
            pid = self.store_pid(number)
            if pid is not None and pid != other_than:
                return pid
            time.sleep(_POLL_S)
        raise ServerProcessError(
            f"segment store {number} has no process after {START_TIMEOUT_S:g} s\n{self._log_tail()}"
        )

    def signal_store(self, number: int, number_of_signal: signal.Signals, *, pid: int | None = None) -> int | None:
        """Send a signal to a segment store's process, and return its id.

        None, and nothing is sent, while it is down, or if its id is no longer `pid`.
        """
        found = self.store_pid(number)
        if found is None or pid not in (None, found):
            return None
        try:
            os.kill(found, number_of_signal)
        except ProcessLookupError:
            return None
        return found

    def resident_bytes(self) -> int:
        """Return its resident memory in bytes (Linux)."""
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    def _log_tail(self) -> str:
        return self.log[-_LOG_TAIL_LENGTH:]

    def _child(self) -> subprocess.Popen[bytes]:
        if self.process is None:
            raise ServerProcessError("the server was not started yet")
        return self.process

    def _wait(self, process: subprocess.Popen[bytes]) -> int:
        try:
            code = process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise ServerProcessError(f"still there {STOP_TIMEOUT_S:g} s after the signal\n{self._log_tail()}") from None
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


def _arguments(pid: int) -> list[str]:
    """Return the command line of a process; empty if there is none, or it is a zombie."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().split("\0")[:-1]
    except OSError:
        return []


def child_environment(**variables: str) -> dict[str, str]:
    """Return the environment of a child process: this one's without Penstock's settings, and with this Penstock."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
    path = os.pathsep.join(filter(None, (_SOURCES, kept.get("PYTHONPATH", ""))))
    return {**kept, "PYTHONPATH": path, **variables}


def run_penstock(*arguments: str, timeout_s: float = 60.0, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run ``penstock`` to its end and return its exit code and output. `variables` are environment variables."""
    return subprocess.run(
        [sys.executable, "-m", "penstock", *arguments],
        capture_output=True,
        text=True,
        timeout=timeout_s,
        env=child_environment(**variables),
        check=False,
    )


def _port(address: object) -> int:
    return int(str(address).rpartition(":")[2])
