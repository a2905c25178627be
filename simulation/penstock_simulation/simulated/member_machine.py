"""`SimulatedMachine`: the `Machine` of a process of a simulated cluster; `SimulatedChild`: a child process.

A child process is a simulated host of its own, so that it can die, pause and be cut off alone. As with real processes,
its output arrives in its parent's process, and what has arrived waits while that is paused. It is killed when its
parent dies.
"""

from __future__ import annotations

import asyncio
import random
import signal
from collections.abc import Callable
from functools import partial

from penstock.controller.service import ControllerService
from penstock.runtime.coordination import CoordinationService
from penstock.server.cluster.machine import ControllerFront, HostedProcess, OpenFront
from penstock.server.cluster.messages import MemberOrder
from penstock.server.cluster_settings import ClusterSettings
from penstock.server.store_processes.messages import encode_message
from penstock_simulation.simulated.controller_calls import SimulatedFront
from penstock_simulation.simulated.host import Death, Host
from penstock_simulation.simulated.loop import SimulatedLoop
from penstock_simulation.simulated.process import Process
from penstock_simulation.simulated.zookeeper import SimulatedZooKeeper
from penstock_simulation.simulated.zookeeper_client import SimulatedCoordination

#: From an event in one process of a machine to its notice in another one.
_NOTICE_S = 0.0002
#: Exit code of a process that was killed.
_KILLED = -9


class SimulatedMachine:
    """See the module. `begin`: starts a child process on the host of its store; None: this process has no children."""

    def __init__(
        self,
        host: Host,
        ensemble: SimulatedZooKeeper,
        rng: random.Random,
        begin: Callable[[MemberOrder], SimulatedChild] | None = None,
    ) -> None:
        self._host = host
        self._ensemble = ensemble
        self._rng = rng
        self._begin = begin

    @property
    def name(self) -> str:
        """See `Machine.name`."""
        return self._host.name

    @property
    def open_front(self) -> OpenFront:
        """See `Machine.open_front`."""
        return _open_front

    def coordination(self, settings: ClusterSettings) -> CoordinationService:
        """See `Machine.coordination`."""
        return SimulatedCoordination(self._ensemble, self._host.name, self._rng, settings.coordination)

    def unused_port(self, host: str) -> int:
        """See `Machine.unused_port`. The ports of simulated processes are fixed."""
        raise OSError(f"no port on {host} is free")

    async def begin_store(self, order: MemberOrder) -> HostedProcess:
        """See `Machine.begin_store`. Raises `OSError` while the host still runs another process."""
        assert self._begin is not None, "this process has no children"
        await asyncio.sleep(_NOTICE_S)
        return self._begin(order)


def _open_front(service: ControllerService, host: str, port: int, **options: object) -> ControllerFront:
    # As in `LocalMachine`.
    return SimulatedFront(service, host, port, **options)  # type: ignore[arg-type]  # see there


class SimulatedChild:
    """`HostedProcess` on a simulated host, and the `output` of that process. Made in the process of the parent.

    Attributes:
        order: the line that the parent writes to its input.
        asked_to_stop, asked_again: set in the child's process by the first and the second SIGTERM.
        is_begun: the child's program has begun.
        clean_code: exit code, once the child has ended by itself.
    """

    def __init__(self, host: Host, parent: Process, loop: SimulatedLoop, order: MemberOrder) -> None:
        self.order: bytes = encode_message(order)
        self.asked_to_stop: asyncio.Event = asyncio.Event()
        self.asked_again: asyncio.Event = asyncio.Event()
        self.is_begun: bool = False
        self.clean_code: int | None = None
        self._host = host
        self._parent = parent
        self._loop = loop
        self._code: int | None = None
        self._pending = b""
        self._lines: asyncio.Queue[bytes] = asyncio.Queue()
        self._ended = asyncio.Event()
        self._process: Process | None = None

    @property
    def is_started(self) -> bool:
        """Whether the host's process was started by the parent."""
        return self._process is not None

    @property
    def pid(self) -> int:
        """See `HostedProcess.pid`: the number of the host's process."""
        return self._host.life

    @property
    def code(self) -> int | None:
        """See `HostedProcess.code`."""
        return self._code

    async def next_line(self) -> bytes:
        """See `HostedProcess.next_line`."""
        line = await self._lines.get()
        if not line:
            self._lines.put_nowait(line)
        return line

    async def wait(self) -> int:
        """See `HostedProcess.wait`."""
        await self._ended.wait()
        assert self._code is not None
        return self._code

    def signal(self, number: signal.Signals) -> None:
        """See `HostedProcess.signal`."""
        self._later(self._kill if number is signal.SIGKILL else self._terminate)

    # -- in the child's process ---------------------------------------------------------------------------------

    def write(self, data: bytes) -> int:
        """Take output of the child."""
        self._pending += data
        return len(data)

    def flush(self) -> None:
        """Send the complete lines to the parent."""
        *lines, self._pending = self._pending.split(b"\n")
        for line in lines:
            self._later(partial(self._loop.post, self._parent, self._lines.put_nowait, line + b"\n"))

    # -- at instants --------------------------------------------------------------------------------------------

    def started(self) -> None:
        """Take note that the host's process runs."""
        self._process = self._host.process
        self._process.on_death[self._died] = None
        self._parent.on_death[self._kill] = None

    def _died(self) -> None:
        self._parent.on_death.pop(self._kill, None)
        self._later(lambda: self._loop.post(self._parent, self._notice_end))

    def _notice_end(self) -> None:
        self._code = _KILLED if self.clean_code is None else self.clean_code
        self._lines.put_nowait(b"")
        self._ended.set()

    def _kill(self) -> None:
        if self._host.process is self._process:
            self._later(self._crash)

    def _crash(self) -> None:
        if self._host.process is self._process:
            self._host.crash(Death.KILL)

    def _terminate(self) -> None:
        if self._process is not None:
            asked = self.asked_again if self.asked_to_stop.is_set() else self.asked_to_stop
            self._loop.post(self._process, asked.set)

    def _later(self, event: Callable[[], None]) -> None:
        self._loop.at(self._loop.now_s + _NOTICE_S, event)
