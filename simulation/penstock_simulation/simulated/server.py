"""`SimulatedServer`: a listening socket of a simulated host."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

from penstock_simulation.simulated.loop import SimulatedLoop
from penstock_simulation.simulated.process import Process
from penstock_simulation.simulated.transport import SimulatedTransport


class ListeningSocket:
    """The value in `SimulatedServer.sockets`: the address, and the options that its connections inherit."""

    def __init__(self, host: str, port: int) -> None:
        self._name = (host, port)
        self._options: dict[tuple[int, int], int] = {}

    def getsockname(self) -> tuple[str, int]:
        """Return host and port."""
        return self._name

    def setsockopt(self, level: int, option: int, value: int) -> None:
        """Set an option. Buffer sizes are ignored: they are settings of the simulated network."""
        self._options[level, option] = value

    @property
    def peer_timeout_s(self) -> float | None:
        """Time without packets from the peer after which the kernel drops a connection; None: never."""
        timeout_s = self.unacknowledged_timeout_s
        if not self._options.get((socket.SOL_SOCKET, socket.SO_KEEPALIVE)):
            return None
        if timeout_s is not None:
            return timeout_s
        idle_s, interval_s, count = (
            self._options[socket.IPPROTO_TCP, getattr(socket, name)]
            for name in ("TCP_KEEPIDLE", "TCP_KEEPINTVL", "TCP_KEEPCNT")
        )
        return float(idle_s + interval_s * count)

    @property
    def unacknowledged_timeout_s(self) -> float | None:
        """Time without an acknowledgement after which it does so; None: the timeout of the network's settings."""
        milliseconds = self._options.get((socket.IPPROTO_TCP, getattr(socket, "TCP_USER_TIMEOUT", -1)))
        return milliseconds / 1000 if milliseconds else None


class SimulatedServer(asyncio.AbstractServer):
    """See `asyncio.Server`. Created by `SimulatedLoop.create_server`."""

    def __init__(
        self,
        loop: SimulatedLoop,
        process: Process,
        factory: Callable[[], asyncio.BaseProtocol],
        port: int,
        *,
        backlog: int,
        forget: Callable[[str, int], None],
    ) -> None:
        self.process = process
        self._loop = loop
        self._forget = forget
        self._factory = factory
        self._port = port
        self.socket: ListeningSocket = ListeningSocket(process.host_name, port)
        self._backlog = backlog
        self._waiting: dict[SimulatedTransport, None] = {}
        self._is_serving = False
        self._is_closed = False
        self._serving: asyncio.Future[None] | None = None

    @property
    def sockets(self) -> tuple[ListeningSocket, ...]:
        """The socket, or an empty tuple once it is closed."""
        return () if self._is_closed else (self.socket,)

    def get_loop(self) -> SimulatedLoop:
        """See `asyncio.AbstractServer`."""
        return self._loop

    def is_serving(self) -> bool:
        """See `asyncio.AbstractServer`."""
        return self._is_serving

    @property
    def is_full(self) -> bool:
        """Whether further connections are ignored until some are accepted."""
        return not self._is_serving or len(self._waiting) >= self._backlog

    def serve(self) -> None:
        """Start accepting."""
        self._is_serving = True

    async def start_serving(self) -> None:
        """See `asyncio.AbstractServer`."""
        self.serve()

    async def serve_forever(self) -> None:
        """See `asyncio.AbstractServer`."""
        self.serve()
        self._serving = self._loop.create_future()
        try:
            await self._serving
        finally:
            self.close()

    def accept(self, transport: SimulatedTransport) -> None:
        """Accept a connection that the kernel has established. A world event."""
        self._waiting[transport] = None
        self._loop.post(self.process, self._attach, transport)

    def _attach(self, transport: SimulatedTransport) -> None:
        if transport not in self._waiting:
            return
        del self._waiting[transport]
        transport.attach(self._factory())

    def close(self) -> None:
        """See `asyncio.AbstractServer`: accepted connections stay open."""
        if self._is_closed:
            return
        self._is_closed = True
        self._is_serving = False
        self.process.sockets.pop(self, None)
        self._forget(self.process.host_name, self._port)
        waiting, self._waiting = self._waiting, {}
        for transport in waiting:
            transport.abandon()
        if self._serving is not None and not self._serving.done():
            self._serving.cancel()

    def kill(self, *, is_silent: bool) -> None:
        """See `Socket`."""
        self._is_closed = True
        self._is_serving = False
        self._waiting.clear()
        self._forget(self.process.host_name, self._port)

    async def wait_closed(self) -> None:
        """See `asyncio.AbstractServer`: returns at once."""

    def close_clients(self) -> None:
        """Close the connections that are not accepted yet; the simulation does not record the others here."""
        for transport in list(self._waiting):
            transport.abandon()

    def abort_clients(self) -> None:
        """See `close_clients`."""
        self.close_clients()
