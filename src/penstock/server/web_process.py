"""`WebListener`: the port of REST and console, whose process starts with the first connection.

The server itself only listens. When a connection waits, it starts ``penstock web`` and hands over the listening socket;
that process accepts the connection, and ends after some time without any. So an unused port costs nothing, and pages
and requests never take time from the server's event loop.

| When | Then |
| --- | --- |
| the web process is idle for `idle_s` | it ends; the next connection starts another |
| it fails, or cannot be started | the next start waits 1 s, then twice as long, up to 10 s; connections wait |
| it hangs | the server is not affected; requests of other callers wait until it is killed |
| the server ends, also by a kill | the web process finds the end of its standard input and ends |
"""

from __future__ import annotations

import asyncio
import importlib.util
import logging
import os
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from penstock.model.errors import InvalidArgumentError
from penstock.runtime.pacing import GrowingDelay
from penstock.server.errors import PortInUseError

_log = logging.getLogger(__name__)

#: The port of the controller plus this one, unless a port is set.
DERIVED_OFFSET = 1
#: Connections that wait to be accepted.
_BACKLOG = 128
_DELAY_S_FIRST = 1.0
_DELAY_S_MAX = 10.0
#: How long the process may take to end before it is killed.
_STOP_S = 5.0
_SOURCES = str(Path(__file__).parents[2])
#: What ``penstock web`` imports from the extra.
_NEEDED = ("jinja2", "starlette", "uvicorn")


@dataclass(frozen=True, slots=True)
class WebServerSettings:
    """The port of REST and console in ``penstock standalone``. It needs the extra ``web``.

    Attributes:
        is_enabled: whether to listen at all.
        port: the port; 0: the one after the controller's, or none if that is in use. If the controller has any free
            port, so has this.
        idle_s: the web process ends after this time without connections.
        hosts: further names under which browsers reach it; see `penstock web --allow-host`.
    """

    is_enabled: bool = True
    port: int = 0
    idle_s: float = 900.0
    hosts: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Check the values. Raises `InvalidArgumentError`."""
        if not 0 <= self.port <= 65535:
            raise InvalidArgumentError(f"web.port is {self.port}: a port is between 0 (chosen here) and 65535")
        if self.idle_s <= 0:
            raise InvalidArgumentError(f"web.idle_s is {self.idle_s}: it is above 0")


def has_web_extra() -> bool:
    """Return whether the packages of ``penstock web`` are installed."""
    return all(importlib.util.find_spec(name) is not None for name in _NEEDED)


class WebListener:
    """See the module. Use `start`, then `stop`.

    Args:
        host: the address to listen on.
        settings: port and idle time.
        derived_port: the port to use when the settings name none; it may be in use.
        options: further options of ``penstock web``.
        environment: variables of the process besides this one's.
    """

    def __init__(
        self, host: str, settings: WebServerSettings, derived_port: int, options: Sequence[str],
        environment: Mapping[str, str],
    ) -> None:  # fmt: skip
        self._host = host
        self._settings = settings
        self._derived_port = derived_port
        self._options = list(options)
        self._environment = dict(environment)
        self._socket: socket.socket | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._task: asyncio.Task[None] | None = None
        #: The port; 0: it does not listen.
        self.port: int = 0

    def start(self) -> None:
        """Listen, if enabled. Raises `PortInUseError` if the port was chosen and cannot be had."""
        if not self._settings.is_enabled:
            return
        if not has_web_extra():
            _log.info("no REST interface and console: they need the extra web of this package")
            return
        port = self._settings.port or self._derived_port
        try:
            self._socket = _listen(self._host, port)
        except OSError as error:
            if not self._settings.port:
                _log.info("no REST interface and console: port %d is not available (%s); choose one with web.port",
                             port, error.strerror)  # fmt: skip
                return
            raise PortInUseError(
                f"web: cannot listen on {self._host}:{port}: {error.strerror}; choose another web.port"
            ) from error
        self.port = self._socket.getsockname()[1]
        self._task = asyncio.get_running_loop().create_task(self._run(self._socket), name="web process")

    async def stop(self) -> None:
        """End the process, and listen no more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
        if self._socket is not None:
            self._socket.close()

    async def _run(self, listening: socket.socket) -> None:
        """Run the process whenever a connection waits, until cancelled."""
        delay = GrowingDelay(_DELAY_S_FIRST, _DELAY_S_MAX)
        while True:
            await _connection(listening)
            try:
                code = await self._run_process(listening)
            except OSError as error:
                _log.warning("the web process cannot be started: %s", error)
                code = 1
            if code == 0:
                delay.reset()
                continue
            wait_s = delay.take()
            _log.warning("the web process ended with exit code %d; the next one starts after %g s", code, wait_s)
            await asyncio.sleep(wait_s)

    async def _run_process(self, listening: socket.socket) -> int:
        """Return the exit code of one process, which has ended then."""
        environment = {**os.environ, **self._environment}
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, (environment.get("PYTHONPATH"), _SOURCES)))
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-P", "-m", "penstock", "web", "--descriptor", str(listening.fileno()),
            "--idle", f"{self._settings.idle_s:g}s", *self._options,
            # Its end tells the process that this one has ended.
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.DEVNULL, pass_fds=(listening.fileno(),),
            env=environment,
            # Ctrl-C in a terminal reaches this process only, which then ends the other.
            start_new_session=True,
        )  # fmt: skip
        try:
            return await process.wait()
        finally:
            if process.returncode is None:
                await _end(process)


async def _end(process: asyncio.subprocess.Process) -> None:
    process.terminate()
    try:
        async with asyncio.timeout(_STOP_S):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()


async def _connection(listening: socket.socket) -> None:
    """Wait for a connection; accept nothing."""
    loop = asyncio.get_running_loop()
    waiting = asyncio.Event()
    loop.add_reader(listening, waiting.set)
    try:
        await waiting.wait()
    finally:
        loop.remove_reader(listening)


def _listen(host: str, port: int) -> socket.socket:
    listening = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        listening.listen(_BACKLOG)
        listening.setblocking(False)
    except OSError:
        listening.close()
        raise
    return listening
