"""`DemoProcess`: a child process of the demonstration. It ends with the demonstration, however that ends."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from penstock.demo import with_parent
from penstock.demo.errors import DemoProcessError
from penstock.server.standalone_process import child_environment

#: How long a process may take until it is ready, and to end.
START_TIMEOUT_S = 180.0
STOP_TIMEOUT_S = 30.0
_LOG_TAIL_BYTES = 2000
_LINE_BYTES_MAX = 1 << 20


class DemoProcess:
    """A program, run in a directory for its log. `arguments`: the program and its arguments.

    Attributes:
        name: for people.
        log_path: its standard error, and its output if nothing reads that.
        is_suspended: whether it was suspended by `suspend`.
    """

    def __init__(self, name: str, arguments: Sequence[str], directory: Path) -> None:
        self.name: str = name
        self.log_path: Path = directory / f"{name}.log"
        self.is_suspended: bool = False
        self._arguments = list(arguments)
        self._process: asyncio.subprocess.Process | None = None

    @property
    def is_running(self) -> bool:
        """Whether the process exists, suspended or not."""
        return self._process is not None and self._process.returncode is None

    @property
    def pid(self) -> int:
        """Its process id; 0 if it was never started."""
        return 0 if self._process is None else self._process.pid

    @property
    def log_tail(self) -> str:
        """The end of its log."""
        return self.log_path.read_bytes()[-_LOG_TAIL_BYTES:].decode(errors="replace") if self.log_path.exists() else ""

    async def start(self) -> None:
        """Start it. Raises `DemoProcessError`."""
        self.is_suspended = False
        launcher = [sys.executable, "-I", str(with_parent.__file__), str(os.getpid())]
        log = os.open(self.log_path, os.O_CREAT | os.O_APPEND | os.O_WRONLY | os.O_CLOEXEC, 0o644)
        try:
            self._process = await asyncio.create_subprocess_exec(
                *launcher, *self._arguments, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE,
                stderr=log, env=child_environment(), limit=_LINE_BYTES_MAX,
                # Ctrl-C in a terminal reaches the demonstration only, which stops the others.
                start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            raise DemoProcessError(f"{self.name} cannot be started: {error}") from error
        finally:
            os.close(log)

    async def ready(self) -> dict[str, object]:
        """Return the record by which a process of Penstock says that it is ready. Raises `DemoProcessError`."""
        assert self._process is not None
        assert self._process.stdout is not None
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                line = await self._process.stdout.readline()
        except TimeoutError as error:
            raise DemoProcessError(f"{self.name} is not ready after {START_TIMEOUT_S:g} s: {self.log_tail}") from error
        if not line:
            raise DemoProcessError(f"{self.name} has ended: {self.log_tail}")
        record: dict[str, object] = json.loads(line)
        if record.get("type") != "ready":
            raise DemoProcessError(f"{self.name} does not start: {record.get('message', record)}")
        return record

    def child_pids(self) -> list[int]:
        """Return the ids of its child processes; empty where that is not known."""
        try:
            text = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text()
        except OSError:
            return []
        return [int(word) for word in text.split()]

    def signal_all(self, number: signal.Signals) -> None:
        """Send a signal to it and its children: first to itself, so that it does not replace a child that ends."""
        if not self.is_running:
            return
        for pid in [self.pid, *self.child_pids()]:
            _signal(pid, number)

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the process itself."""
        if self.is_running:
            _signal(self.pid, number)

    def signal_children(self, number: signal.Signals) -> None:
        """Send a signal to its children."""
        for pid in self.child_pids():
            _signal(pid, number)

    def suspend(self) -> None:
        """Stop it and its children from running, until `resume`."""
        self.signal_all(signal.SIGSTOP)
        self.is_suspended = True

    def resume(self) -> None:
        """End `suspend`."""
        self.signal_all(signal.SIGCONT)
        self.is_suspended = False

    async def kill(self) -> None:
        """End it and its children at once, as the loss of a machine, and wait for its end."""
        self.signal_all(signal.SIGKILL)
        await self._waited(STOP_TIMEOUT_S)

    async def terminate(self, timeout_s: float = STOP_TIMEOUT_S) -> int | None:
        """Stop it cleanly, and kill it if that takes too long. Return its exit code; None: it did not run."""
        if self._process is None or not self.is_running:
            return None
        if self.is_suspended:
            self.resume()
        self.send(signal.SIGTERM)
        if not await self._waited(timeout_s):
            await self.kill()
        return self._process.returncode

    async def _waited(self, timeout_s: float) -> bool:
        """Wait for its end; return whether it has ended. Its output is read meanwhile: a full pipe would hold it."""
        if self._process is None:
            return True
        try:
            async with asyncio.timeout(timeout_s):
                await self._process.communicate()
        except TimeoutError:
            return False
        return True


def _signal(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return
