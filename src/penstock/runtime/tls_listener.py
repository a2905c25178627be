"""`TlsListener`: accepts encrypted connections. A peer that has not completed its handshake costs little.

An event loop that accepts TLS connections by itself makes the state of TLS for each at once, does the computation of
all handshakes that are ready in one turn, and bounds neither. Here a connection waits as a bare socket until its peer
has sent something. Then handshakes begin one by one, with a pause between two, and a bounded number is in progress. At
a bound the oldest connection is closed: a client needs milliseconds, so it is rarely that one.

A thread computes them, one at a time: 0.4 ms of each are in OpenSSL, which does not hold the interpreter's lock. So
requests of other connections do not wait for them.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import ssl
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from penstock.model.errors import PenstockError
from penstock.runtime.tls_transport import RECEIVED_LENGTH, TlsState, TlsTransport
from penstock.runtime.work import BlockingWork, PoolSettings

_log = logging.getLogger(__name__)

#: First byte of a TLS connection.
_HANDSHAKE = 0x16
#: Connections accepted in one turn of the loop, and pause between the begins of two handshakes. A connection takes
#: about 0.05 ms of CPU of the loop, a handshake 0.2 ms.
_ACCEPTED_PER_TURN = 4
_BEGIN_PAUSE_S = 0.001
#: Bytes of a client's handshake, with its certificates. Data may follow in the same packets.
_HANDSHAKE_BYTES_MAX = 256 * 1024
#: Bytes that are received in order to close a connection without TLS.
_UNREAD_MAX = 64 * 1024
#: Pause after the process has run out of descriptors, and between two lines of the log about refused connections.
_PAUSE_S = 0.1
_LOG_INTERVAL_S = 1.0


@dataclass(frozen=True, slots=True)
class HandshakeSettings:
    """Bounds of connections without a complete handshake.

    Attributes:
        waiting_max: connections that wait for their peer, or for their turn.
        under_way_max: handshakes in progress. After `grace_s` the oldest may be closed for another one.
        grace_s: see there.
        timeout_s: time of a connection from its acceptance to the end of its handshake.
    """

    waiting_max: int = 1024
    under_way_max: int = 64
    grace_s: float = 1.0
    timeout_s: float = 10.0


class TlsListener:
    """See the module. `context`: with the certificate. `factory` makes the protocol of a complete connection.

    Attributes:
        sockets: it listens on these.
        refused_count: connections closed before their handshake was complete, by this side.
    """

    def __init__(
        self,
        context: ssl.SSLContext,
        factory: Callable[[], asyncio.BaseProtocol],
        settings: HandshakeSettings | None = None,
        *,
        work: BlockingWork,
    ) -> None:
        self.sockets: list[socket.socket] = []
        self.refused_count: int = 0
        self._context = context
        self._factory = factory
        self._settings = settings or HandshakeSettings()
        self._loop = asyncio.get_running_loop()
        self._pool = work.pool("tls-handshakes", PoolSettings(thread_count_max=1))
        #: Encrypted bytes are received into this; it is empty again at the end of each call.
        self._received = memoryview(bytearray(RECEIVED_LENGTH))
        #: Accepted connections, oldest first, with the time by which their handshake is complete: those that have sent
        #: nothing, and those that wait for their turn.
        self._silent: OrderedDict[socket.socket, float] = OrderedDict()
        self._ready: OrderedDict[socket.socket, float] = OrderedDict()
        #: Handshakes in progress, oldest first, with the time of their begin.
        self._under_way: OrderedDict[asyncio.Task[None], float] = OrderedDict()
        #: The call that begins the next handshake, and the time before which there is none.
        self._begin: asyncio.Handle | None = None
        self._begin_s = 0.0
        self._sweep: asyncio.TimerHandle | None = None
        self._pauses: set[asyncio.TimerHandle] = set()
        self._logged_s = float("-inf")

    @property
    def waiting_count(self) -> int:
        """Connections that wait for their peer, or for their turn."""
        return len(self._silent) + len(self._ready)

    async def bind(self, host: str, port: int) -> None:
        """Bind sockets for `host`; port 0: any free one, the same for all addresses of the host. Raises `OSError`."""
        found = await self._loop.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        is_dual = host == "::" and socket.has_dualstack_ipv6()
        for family, kind, protocol, _, address in dict.fromkeys(found):
            bound = socket.socket(family, kind, protocol)
            self.sockets.append(bound)
            bound.setblocking(False)
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, not is_dual)
            taken = port or (self.sockets[0].getsockname()[1] if len(self.sockets) > 1 else 0)
            bound.bind((address[0], taken, *address[2:]))

    def listen(self, backlog: int) -> None:
        """Accept connections."""
        for bound in self.sockets:
            bound.listen(backlog)
            self._loop.add_reader(bound, self._accept, bound)

    def close(self) -> None:
        """Accept no more connections, and close those whose handshake is not complete."""
        for pause in self._pauses:
            pause.cancel()
        for bound in self.sockets:
            self._loop.remove_reader(bound)
            bound.close()
        self.sockets = []
        for handle in (self._begin, self._sweep):
            if handle is not None:
                handle.cancel()
        for waiting in list(self._silent):
            self._close_silent(waiting)
        for waiting in self._ready:
            waiting.close()
        self._ready.clear()
        for task in self._under_way:
            task.cancel()
        self._pool.close()

    # -- accepted connections -----------------------------------------------------------------------------------

    def _accept(self, bound: socket.socket) -> None:
        for _ in range(_ACCEPTED_PER_TURN):
            try:
                accepted, _ = bound.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                break
            except OSError as error:
                self._pause(bound, error)
                break
            accepted.setblocking(False)
            self._silent[accepted] = self._loop.time() + self._settings.timeout_s
            self._loop.add_reader(accepted, self._has_sent, accepted)
            if self.waiting_count > self._settings.waiting_max:
                self._close_oldest()
        self._sweep_later()

    def _pause(self, bound: socket.socket, error: OSError) -> None:
        """Stop accepting for a moment: the process has no descriptors or no memory left."""
        if error.errno not in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
            self._tell("cannot accept a connection: %s", error)
        else:
            self._tell("cannot accept a connection now: %s", error)
        self._loop.remove_reader(bound)

        def resume() -> None:
            self._pauses.discard(pause)
            self._loop.add_reader(bound, self._accept, bound)

        pause = self._loop.call_later(_PAUSE_S, resume)
        self._pauses.add(pause)

    def _close_oldest(self) -> None:
        self.refused_count += 1
        self._tell("closed a connection, the %dth: too many have not completed their TLS handshake",
                   self.refused_count)  # fmt: skip
        if self._silent:
            self._close_silent(next(iter(self._silent)))
        else:
            self._ready.popitem(last=False)[0].close()

    def _close_silent(self, waiting: socket.socket) -> None:
        del self._silent[waiting]
        self._loop.remove_reader(waiting)
        waiting.close()

    def _sweep_later(self) -> None:
        if self._sweep is None and (self._silent or self._ready):
            deadline_s = min(next(iter(each.values())) for each in (self._silent, self._ready) if each)
            self._sweep = self._loop.call_at(deadline_s, self._close_late)

    def _close_late(self) -> None:
        self._sweep = None
        now_s = self._loop.time()
        for waiting in [each for each, deadline_s in self._silent.items() if deadline_s <= now_s]:
            self.refused_count += 1
            self._close_silent(waiting)
        for waiting in [each for each, deadline_s in self._ready.items() if deadline_s <= now_s]:
            self.refused_count += 1
            del self._ready[waiting]
            waiting.close()
        self._sweep_later()

    # -- handshakes ---------------------------------------------------------------------------------------------

    def _has_sent(self, waiting: socket.socket) -> None:
        try:
            first = waiting.recv(1, socket.MSG_PEEK)
            if first and first[0] != _HANDSHAKE:
                waiting.recv(_UNREAD_MAX)  # With unread bytes, the peer would get a reset instead of an end.
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            first = b""
        deadline_s = self._silent[waiting]
        if not first or first[0] != _HANDSHAKE:
            if first:
                self.refused_count += 1
                self._tell("a client does not use TLS, which this port needs; closing its connection")
            self._close_silent(waiting)
            return
        del self._silent[waiting]
        self._loop.remove_reader(waiting)
        self._ready[waiting] = deadline_s
        self._begin_later()

    def _begin_later(self) -> None:
        if self._begin is None and self._ready:
            self._begin = self._loop.call_at(self._begin_s, self._begin_next)

    def _begin_next(self) -> None:
        """Begin a handshake; the next one follows after a pause, or when others are complete."""
        self._begin = None
        if not self._ready:
            return
        now_s = self._loop.time()
        if len(self._under_way) >= self._settings.under_way_max:
            oldest, begun_s = next(iter(self._under_way.items()))
            if now_s < begun_s + self._settings.grace_s:
                self._begin = self._loop.call_at(begun_s + self._settings.grace_s, self._begin_next)
                return
            del self._under_way[oldest]
            oldest.cancel()
            self.refused_count += 1
            self._tell("gave up the oldest TLS handshake: too many are in progress")
        accepted, deadline_s = self._ready.popitem(last=False)
        task = self._loop.create_task(self._handshake(accepted, deadline_s - now_s))
        self._under_way[task] = now_s
        task.add_done_callback(self._is_complete)
        self._begin_s = now_s + _BEGIN_PAUSE_S
        self._begin_later()

    def _is_complete(self, task: asyncio.Task[None]) -> None:
        self._under_way.pop(task, None)
        if self._begin is not None:
            self._begin.cancel()  # It may wait for the oldest one.
            self._begin = None
        self._begin_later()
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("a connection could not be served", exc_info=error)

    async def _handshake(self, accepted: socket.socket, left_s: float) -> None:
        try:
            async with asyncio.timeout(max(left_s, 0.001)):
                state = await self._complete(accepted)
        except (OSError, EOFError, PenstockError) as error:  # `SSLError` and `TimeoutError` are `OSError`s.
            self._tell("a TLS handshake failed: %s", str(error) or type(error).__name__)
            accepted.close()
        except BaseException:
            accepted.close()
            raise
        else:
            TlsTransport(accepted, state, self._factory(), self._received).start()

    async def _complete(self, accepted: socket.socket) -> TlsState:
        """Exchange the messages of a handshake. What computes runs in a thread, which uses nothing else meanwhile."""
        accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        state = TlsState(self._context)
        byte_count, is_complete = 0, False
        while not is_complete:
            received = await self._loop.sock_recv(accepted, RECEIVED_LENGTH)
            byte_count += len(received)
            if not received:
                raise EOFError("the client has ended the connection")
            if byte_count > _HANDSHAKE_BYTES_MAX:
                raise ssl.SSLError(f"a handshake of more than {_HANDSHAKE_BYTES_MAX} bytes")
            state.incoming.write(received)
            try:
                is_complete = await self._pool.run(state.shake_hands)
            except ssl.SSLError:
                with suppress(OSError):  # The alert tells the client why; the error is reported here in any case.
                    accepted.send(state.outgoing.read())
                raise
            if state.outgoing.pending:
                await self._loop.sock_sendall(accepted, state.outgoing.read())
        return state

    def _tell(self, text: str, *values: object) -> None:
        """Log a line about refused connections, at most one a second: many may come at once."""
        if self._loop.time() >= self._logged_s + _LOG_INTERVAL_S:
            self._logged_s = self._loop.time()
            _log.info(text, *values)
