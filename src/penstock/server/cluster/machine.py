"""`Machine`: what a process of a cluster uses of its machine besides `Runtime`.

Its name, the way to the coordination service, unused ports, the listener for clients of a controller, and child
processes. `LocalMachine` is the real one; the simulation has another one, so that the same processes run in both.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from pathlib import Path
from typing import Protocol

from penstock.controller.grpc.call_counts import CallCounts
from penstock.controller.grpc.server import GrpcServer
from penstock.controller.grpc.slots import CallSlots
from penstock.controller.service import ControllerService
from penstock.model.errors import ProtocolError
from penstock.runtime.coordination import CoordinationService
from penstock.runtime.sockets import free_port
from penstock.server.cluster.identity import open_coordination
from penstock.server.cluster.messages import MemberOrder
from penstock.server.cluster_settings import ClusterSettings
from penstock.server.store_processes.messages import LINE_BYTES_MAX, encode_message

_SOURCES = str(Path(__file__).parents[2])


class ControllerFront(Protocol):
    """A listener for clients of a controller: see `GrpcServer`."""

    slots: CallSlots
    calls: CallCounts

    async def start(self) -> None:
        """Listen and serve. Raises `ControllerUnavailableError`."""

    async def stop(self) -> None:
        """Stop accepting calls, and finish the accepted ones."""


class OpenFront(Protocol):
    """Makes a `ControllerFront`. `options`: as `GrpcServer` has them."""

    def __call__(self, service: ControllerService, host: str, port: int, **options: object) -> ControllerFront:
        """Return a front that is not started."""


class HostedProcess(Protocol):
    """A child process with a segment store."""

    @property
    def pid(self) -> int:
        """Its process id."""

    @property
    def code(self) -> int | None:
        """Its exit code; None while it runs, or its end was not noticed yet."""

    async def next_line(self) -> bytes:
        """Return the next line of its output, without a line end at the end of the output.

        Raises `ProtocolError` if the line is longer than `LINE_BYTES_MAX`.
        """

    async def wait(self) -> int:
        """Wait for its end, and return its exit code."""

    def signal(self, number: signal.Signals) -> None:
        """Send a signal. No effect if it has ended."""


class Machine(Protocol):
    """See the module."""

    @property
    def name(self) -> str:
        """Its name, by which other machines reach it."""

    @property
    def open_front(self) -> OpenFront:
        """Makes listeners for clients of a controller."""

    def coordination(self, settings: ClusterSettings) -> CoordinationService:
        """Return the coordination service. Raises `InvalidArgumentError` if its place is not set."""

    def unused_port(self, host: str) -> int:
        """Return a port on which nothing listens. Raises `OSError`."""

    async def begin_store(self, order: MemberOrder) -> HostedProcess:
        """Start a child process that runs `serve_member`, and end it when this process ends. Raises `OSError`."""


class LocalMachine:
    """The machine of this process."""

    @property
    def name(self) -> str:
        """See `Machine.name`."""
        return socket.gethostname()

    @property
    def open_front(self) -> OpenFront:
        """See `Machine.open_front`."""
        return _grpc_server

    def coordination(self, settings: ClusterSettings) -> CoordinationService:
        """See `Machine.coordination`."""
        return open_coordination(settings)

    def unused_port(self, host: str) -> int:
        """See `Machine.unused_port`."""
        return free_port(host)

    async def begin_store(self, order: MemberOrder) -> HostedProcess:
        """See `Machine.begin_store`: the process exits when it finds the end of its standard input."""
        environment = dict(os.environ)
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, (environment.get("PYTHONPATH"), _SOURCES)))
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-P", "-m", "penstock", "store-child", "--member", order.name,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, env=environment, limit=LINE_BYTES_MAX,
            # Ctrl-C in a terminal reaches this process only, which then stops the children.
            start_new_session=True,
        )  # fmt: skip
        assert process.stdin is not None
        process.stdin.write(encode_message(order))
        return _ChildProcess(process)


def _grpc_server(service: ControllerService, host: str, port: int, **options: object) -> ControllerFront:
    # The names and types of the options are those of `GrpcServer`, as `OpenFront` says.
    return GrpcServer(service, host, port, **options)  # type: ignore[arg-type]  # see above


class _ChildProcess:
    """`HostedProcess` of the operating system."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @property
    def pid(self) -> int:
        """See `HostedProcess.pid`."""
        return self._process.pid

    @property
    def code(self) -> int | None:
        """See `HostedProcess.code`."""
        return self._process.returncode

    async def next_line(self) -> bytes:
        """See `HostedProcess.next_line`."""
        assert self._process.stdout is not None
        try:
            return await self._process.stdout.readline()
        except ValueError as error:
            raise ProtocolError(f"process {self.pid} sent a line above {LINE_BYTES_MAX} bytes") from error

    async def wait(self) -> int:
        """See `HostedProcess.wait`."""
        return await self._process.wait()

    def signal(self, number: signal.Signals) -> None:
        """See `HostedProcess.signal`."""
        if self._process.returncode is None:
            try:
                # `send_signal` would take the exit code of a process that has just ended from its waiter.
                os.kill(self.pid, number)
            except ProcessLookupError:
                return
