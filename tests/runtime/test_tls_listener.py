"""`TlsListener`: peers that do not complete their handshake are bounded, and do not keep others from connecting."""

from __future__ import annotations

import asyncio
import datetime
import os
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
import uvloop

from penstock.runtime import tls_listener
from penstock.runtime.tls_listener import HandshakeSettings, TlsListener
from penstock.runtime.work import ThreadedWork
from penstock.security.certificates import make_certificates

pytest.importorskip("cryptography", reason="needs the extra [security]")

Scenario = Callable[["Place"], Awaitable[None]]
#: Nothing ends by its time, however busy the machine is.
LONG = HandshakeSettings(timeout_s=600.0, grace_s=600.0)
WAIT_S = 60.0
#: The beginning of a handshake.
PART = b"\x16\x03\x01"


class Echo(asyncio.Protocol):
    """Sends back what it receives."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self.transport.write(data)


class Place:
    """Certificates, and a listener."""

    def __init__(self, directory: Path) -> None:
        made = make_certificates(["localhost"], datetime.datetime.now(datetime.UTC))
        (directory / "server.pem").write_bytes(made.private_key + made.certificate)
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.load_cert_chain(directory / "server.pem")
        self.client_context = ssl.create_default_context(cadata=made.authority.decode())
        self.strangers: list[socket.socket] = []

    @asynccontextmanager
    async def listening(self, settings: HandshakeSettings) -> AsyncIterator[TlsListener]:
        work = ThreadedWork()
        listener = TlsListener(self.context, Echo, settings, work=work)
        await listener.bind("127.0.0.1", 0)
        listener.listen(128)
        self.port = listener.sockets[0].getsockname()[1]
        try:
            yield listener
        finally:
            listener.close()
            for stranger in self.strangers:
                stranger.close()
            await work.close()

    def stranger(self, sent: bytes = b"") -> socket.socket:
        """Connect, and send some bytes."""
        made = socket.create_connection(("127.0.0.1", self.port), timeout=WAIT_S)
        made.sendall(sent)
        made.setblocking(False)
        self.strangers.append(made)
        return made

    async def check_echo(self) -> None:
        """Connect as a client does, and exchange some bytes."""
        async with asyncio.timeout(WAIT_S):
            reader, writer = await asyncio.open_connection(
                "127.0.0.1", self.port, ssl=self.client_context, server_hostname="localhost"
            )
            writer.write(b"hello")
            assert await reader.readexactly(5) == b"hello"
            writer.close()
            await writer.wait_closed()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not condition():  # noqa: ASYNC110  # the state of sockets has no event
            await asyncio.sleep(0.005)


async def is_ended(stranger: socket.socket) -> bytes:
    """Wait for the end of a connection; return what was received before."""
    async with asyncio.timeout(WAIT_S):
        found = b""
        try:
            while part := await asyncio.get_running_loop().sock_recv(stranger, 4096):
                found += part
        except ConnectionError:
            return found
        return found


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def play(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[Scenario], None]:
    """Run a scenario on each kind of loop."""

    def run(scenario: Scenario) -> None:
        with asyncio.Runner(loop_factory=request.param) as runner:
            runner.run(_awaited(scenario(Place(tmp_path))))

    return run


async def _awaited(scenario: Awaitable[None]) -> None:
    await scenario


def test_many_clients_at_once_are_served(play: Callable[[Scenario], None]) -> None:
    """Few handshakes are in progress at a time."""

    async def scenario(place: Place) -> None:
        async with place.listening(replace(LONG, under_way_max=2)) as listener:
            most = 0

            async def watch() -> None:
                nonlocal most
                while True:
                    most = max(most, len(listener._under_way))
                    await asyncio.sleep(0)

            watching = asyncio.ensure_future(watch())
            await asyncio.gather(*(place.check_echo() for _ in range(30)))
            watching.cancel()
            assert 0 < most <= 2
            assert listener.refused_count == listener.waiting_count == 0

    play(scenario)


def test_handshakes_begin_one_by_one(play: Callable[[Scenario], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of many connections that are ready at once leave time for requests of others in between."""
    pause_s = 0.02
    monkeypatch.setattr(tls_listener, "_BEGIN_PAUSE_S", pause_s)

    async def scenario(place: Place) -> None:
        begun_s: list[float] = []
        original = TlsListener._handshake

        def handshake(listener: TlsListener, accepted: socket.socket, left_s: float) -> Coroutine[None, None, None]:
            begun_s.append(asyncio.get_running_loop().time())  # In the turn that decides, however late the task runs.
            return original(listener, accepted, left_s)

        monkeypatch.setattr(TlsListener, "_handshake", handshake)
        async with place.listening(LONG) as listener:
            await asyncio.gather(*(place.check_echo() for _ in range(8)))
            assert len(begun_s) == 8
            # Two may be closer than a pause, when the machine is busy and the clock of the loop is late.
            assert begun_s[-1] - begun_s[0] > 0.5 * 7 * pause_s
            assert listener.refused_count == 0

    play(scenario)


def test_a_handshake_begins_when_another_is_complete(play: Callable[[Scenario], None]) -> None:
    """Although the oldest one in progress, which stalls, is not given up for a long time."""

    async def scenario(place: Place) -> None:
        async with place.listening(replace(LONG, under_way_max=2)) as listener:
            place.stranger(PART)
            await until(lambda: len(listener._under_way) == 1)
            await asyncio.gather(*(place.check_echo() for _ in range(6)))
            assert listener.refused_count == 0

    play(scenario)


def test_silent_connections_are_bounded(play: Callable[[Scenario], None]) -> None:
    async def scenario(place: Place) -> None:
        async with place.listening(replace(LONG, waiting_max=5)) as listener:
            first = [place.stranger() for _ in range(3)]
            await until(lambda: listener.waiting_count == 3)
            for _ in range(5):
                place.stranger()
            for each in first:
                assert await is_ended(each) == b""
            await until(lambda: listener.waiting_count == 5)
            assert listener.refused_count == 3
            await place.check_echo()

    play(scenario)


def test_stalled_handshakes_are_dropped_for_new_ones(play: Callable[[Scenario], None]) -> None:
    async def scenario(place: Place) -> None:
        async with place.listening(replace(LONG, under_way_max=3, grace_s=0.05)) as listener:
            first = [place.stranger(PART) for _ in range(3)]
            await until(lambda: len(listener._under_way) == 3)
            await place.check_echo()
            assert listener.refused_count >= 1
            await is_ended(first[0])

    play(scenario)


def test_a_connection_ends_when_its_time_is_over(play: Callable[[Scenario], None]) -> None:
    """Whether it is silent, or has sent a part of its handshake."""

    async def scenario(place: Place) -> None:
        async with place.listening(HandshakeSettings(timeout_s=0.2)) as listener:
            for sent in (b"", PART):
                await is_ended(place.stranger(sent))
            await until(lambda: not listener._under_way)
            assert listener.waiting_count == 0

    play(scenario)


@pytest.mark.parametrize("sent", [b"GET / HTTP/1.1\r\n\r\n", b"\x00", PART + b"garbage" * 100])
def test_a_client_without_tls_is_disconnected(play: Callable[[Scenario], None], sent: bytes) -> None:
    async def scenario(place: Place) -> None:
        async with place.listening(LONG) as listener:
            await is_ended(place.stranger(sent))
            place.stranger().close()
            await until(lambda: not listener.waiting_count and not listener._under_way)
            await place.check_echo()

    play(scenario)


def test_no_descriptor_is_left(play: Callable[[Scenario], None]) -> None:
    """After failed handshakes, and after the end of a listener with connections in each state."""

    async def scenario(place: Place) -> None:
        def descriptors() -> int:
            return len(os.listdir("/proc/self/fd"))

        async with place.listening(LONG):
            await place.check_echo()
        before = descriptors()
        async with place.listening(replace(LONG, under_way_max=2)) as listener:
            for _ in range(20):
                await is_ended(place.stranger(PART + b"garbage" * 10))
            for sent in (b"", PART, PART, PART):
                place.stranger(sent)
            await until(lambda: len(listener._silent) == 1 and len(listener._ready) == 1)
        place.strangers.clear()
        await until(lambda: descriptors() <= before)

    play(scenario)
