"""The embedded store as a child process that can be stopped and started again on the same data and ports."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType

from penstock.model.errors import PenstockError

START_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 30.0
POLL_INTERVAL_S = 0.05
LOG_TAIL_BYTES = 2000


class StoreProcessError(PenstockError):
    """The store's process did not start, or did not stop."""


class StoreProcess:
    """``penstock standalone`` on `data_dir`, which it creates.

    What it says goes to `log_path`, its events (one JSON object a line) to the same path with ``.events``.
    """

    def __init__(self, data_dir: Path, log_path: Path) -> None:
        self.data_dir = data_dir
        self.log_path = log_path
        self.events_path = log_path.with_name(log_path.name + ".events")
        # 0 until the first start: then the ports that were free, and the same again after a restart.
        self._controller_port = 0
        self._segment_store_port = 0
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def uri(self) -> str:
        """The controller's address; the same after a restart."""
        return f"tcp://127.0.0.1:{self._controller_port}"

    @property
    def is_running(self) -> bool:
        """Whether the process lives."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> float:
        """Start the store and wait until it is ready for clients; return the seconds that took.

        Raises:
            StoreProcessError: it ended, or was not ready in `START_TIMEOUT_S`; with the end of its log.
        """
        started = time.monotonic()
        self.data_dir.mkdir(parents=True, exist_ok=True)
        with self.log_path.open("ab") as log, self.events_path.open("ab") as events:
            said_before = events.tell()
            # A session of its own: Ctrl-C reaches this process alone, which then stops the store in order.
            self._process = subprocess.Popen(
                self.command(), stdin=subprocess.DEVNULL, stdout=events, stderr=log, start_new_session=True
            )
        while True:
            is_over = self._process.poll() is not None
            for event in self._events(said_before):
                if event.get("event") == "ready":
                    self._controller_port = _port(event["controller"])
                    self._segment_store_port = _port(event["segment_store"])
                    return time.monotonic() - started
                if event.get("event") == "error":
                    self.stop()
                    raise StoreProcessError(f"the store did not start: {event.get('message')}")
            if is_over:
                raise StoreProcessError(
                    f"the store ended with code {self._process.returncode} instead of starting:\n{self._log_tail()}"
                )
            if time.monotonic() - started > START_TIMEOUT_S:
                self.stop()
                raise StoreProcessError(
                    f"the store was not ready after {START_TIMEOUT_S:g} s (START_TIMEOUT_S):\n{self._log_tail()}"
                )
            time.sleep(POLL_INTERVAL_S)

    def command(self) -> list[str]:
        """Return the command line that starts the store."""
        return [
            sys.executable,
            "-m",
            "penstock",
            "standalone",
            "--data-dir",
            str(self.data_dir),
            "--controller-port",
            str(self._controller_port),
            "--segment-store-port",
            str(self._segment_store_port),
            "--json",
        ]

    def stop(self) -> float:
        """Ask the store to stop and wait for its end; return the seconds that took. A stopped store stays so.

        Raises:
            StoreProcessError: it was still there after `STOP_TIMEOUT_S` and was killed.
        """
        process, self._process = self._process, None
        if process is None or process.poll() is not None:
            return 0.0
        started = time.monotonic()
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired as error:
            process.kill()
            process.wait()
            raise StoreProcessError(
                f"the store had not stopped {STOP_TIMEOUT_S:g} s after SIGTERM (STOP_TIMEOUT_S) and was killed; "
                f"its log: {self.log_path}"
            ) from error
        return time.monotonic() - started

    def __enter__(self) -> StoreProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _events(self, position: int) -> list[dict[str, object]]:
        """Return the events that the store has written whole since byte `position` of its file."""
        with self.events_path.open("rb") as file:
            file.seek(position)
            lines = file.read().split(b"\n")[:-1]
        return [event for event in map(json.loads, lines) if isinstance(event, dict)]

    def _log_tail(self) -> str:
        with self.log_path.open("rb") as log:
            log.seek(max(0, os.fstat(log.fileno()).st_size - LOG_TAIL_BYTES))
            return log.read().decode("utf-8", "replace")


def _port(address: object) -> int:
    return int(str(address).rpartition(":")[2])
