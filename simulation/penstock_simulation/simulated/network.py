"""`Network`: the links between simulated hosts, their listeners, and the setup of connections."""

from __future__ import annotations

import asyncio
import errno
import random
import socket
from collections.abc import Callable
from functools import partial

from penstock_simulation.simulated.links import Links, NetworkSettings
from penstock_simulation.simulated.loop import SimulatedLoop
from penstock_simulation.simulated.process import Process
from penstock_simulation.simulated.server import SimulatedServer
from penstock_simulation.simulated.transport import SimulatedTransport

#: Names by which a listener may address its own host.
_OWN_NAMES = frozenset({"", "0.0.0.0", "::", "127.0.0.1", "::1", "localhost"})
_PORT_FIRST = 32_768


class Network(Links):
    """See the module. All random choices come from `rng`."""

    def __init__(self, loop: SimulatedLoop, rng: random.Random, settings: NetworkSettings | None = None) -> None:
        super().__init__(loop, rng, settings)
        self._listeners: dict[tuple[str, int], SimulatedServer] = {}
        self._last_ports: dict[str, int] = {}
        loop.network = self

    # -- listening and connecting -------------------------------------------------------------------------------

    def listen(
        self,
        process: Process,
        factory: Callable[[], asyncio.BaseProtocol],
        host: str | None,
        port: int,
        *,
        backlog: int,
        is_serving: bool,
    ) -> SimulatedServer:
        """Create a listener of `process`. See `SimulatedLoop.create_server`."""
        if host is not None and host not in _OWN_NAMES and host != process.host_name:
            raise OSError(errno.EADDRNOTAVAIL, f"{process.host_name} cannot listen on {host}:{port}: not its name")
        if port == 0:
            port = self._free_port(process.host_name)
        server = SimulatedServer(self.loop, process, factory, port, backlog=backlog, forget=self._forget_listener)
        if (process.host_name, port) in self._listeners:
            raise OSError(errno.EADDRINUSE, f"{process.host_name}:{port} is listened on already")
        self._listeners[process.host_name, port] = server
        process.sockets[server] = None
        if is_serving:
            server.serve()
        return server

    def _forget_listener(self, host: str, port: int) -> None:
        del self._listeners[host, port]

    def _free_port(self, host: str) -> int:
        port = self._last_ports.get(host, _PORT_FIRST) + 1
        while (host, port) in self._listeners:
            port += 1
        self._last_ports[host] = port
        return port

    async def connect(
        self, process: Process, protocol: asyncio.BaseProtocol, host: str, port: int
    ) -> SimulatedTransport:
        """Connect `process` to a listener. Raises `OSError` as a real connect does."""
        target = process.host_name if host in _OWN_NAMES else host
        if target not in self._hosts:
            raise socket.gaierror(socket.EAI_NONAME, f"no simulated host is called {host}")
        settings = self.settings
        established: asyncio.Future[SimulatedTransport] = self.loop.create_future()
        deadline_s = self.loop.now_s + settings.connect_timeout_s
        self._attempt(established, process, target, port, settings.connect_retry_s_first, deadline_s)
        try:
            transport = await established
        except asyncio.CancelledError:
            if established.done() and not established.cancelled() and established.exception() is None:
                established.result().abort()
            raise
        self.loop.call_soon(transport.attach, protocol)
        ready: asyncio.Future[None] = self.loop.create_future()
        self.loop.call_soon(_wake, ready)
        try:
            await ready
        except asyncio.CancelledError:
            transport.abort()
            raise
        return transport

    def _attempt(
        self,
        established: asyncio.Future[SimulatedTransport],
        process: Process,
        target: str,
        port: int,
        retry_s: float,
        deadline_s: float,
    ) -> None:
        """Send the first packet of a connection, with retries. A world event after the first."""
        if established.done() or not process.is_alive:
            return
        now_s = self.loop.now_s
        if now_s >= deadline_s:
            established.set_exception(TimeoutError(errno.ETIMEDOUT, f"connect to {target}:{port} got no answer"))
            return
        source = process.host_name
        again = partial(self._attempt, established, process, target, port, 2 * retry_s, deadline_s)
        if self.is_passable(source, target):
            arrival_s = self.arrival_s(source, target, 0)
            again_s = min(now_s + retry_s, deadline_s)
            self.loop.at(arrival_s, partial(self._knock, established, process, target, port, again, again_s))
        else:
            self.loop.at(min(now_s + retry_s, deadline_s), again)

    def _knock(
        self,
        established: asyncio.Future[SimulatedTransport],
        process: Process,
        target: str,
        port: int,
        again: Callable[[], None],
        again_s: float,
    ) -> None:
        source = process.host_name
        server = self._listeners.get((target, port))
        if (
            established.done()
            or not process.is_alive
            or not (self.is_passable(source, target) and self.is_passable(target, source))
            or (server is not None and server.is_full)
        ):
            self.loop.at(max(again_s, self.loop.now_s), again)
            return
        answer_s = self.arrival_s(target, source, 0)
        if server is None:
            self.note(f"refused {source}>{target}:{port}")
            self.loop.at(answer_s, partial(self._refuse, established, process, target, port))
            return
        local = (source, self._free_port(source))
        remote = (target, port)
        label = f"{source}:{local[1]}>{target}:{port}"
        client = SimulatedTransport(self, process, local, remote, label)
        accepted = SimulatedTransport(self, server.process, remote, local, f"{target}:{port}>{source}:{local[1]}")
        client.peer, accepted.peer = accepted, client
        accepted.set_timeouts(server.socket.peer_timeout_s, server.socket.unacknowledged_timeout_s)
        # Nothing may reach the client before the packet that establishes the connection.
        accepted.arrives_after(answer_s)
        self.remember(client)
        self.remember(accepted)
        self.note(f"connect {label}")
        server.accept(accepted)
        self.loop.at(answer_s, partial(self._establish, established, client))

    def _refuse(
        self, established: asyncio.Future[SimulatedTransport], process: Process, target: str, port: int
    ) -> None:
        if not established.done() and process.is_alive:
            established.set_exception(ConnectionRefusedError(errno.ECONNREFUSED, f"{target}:{port} refused"))

    def _establish(self, established: asyncio.Future[SimulatedTransport], client: SimulatedTransport) -> None:
        if client.is_gone:
            return
        if established.done():
            client.abandon()
        else:
            established.set_result(client)


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
