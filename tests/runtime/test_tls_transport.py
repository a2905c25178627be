"""Encrypted connections of a server: those of `TlsListener`, and those of event loops, behave alike.

The client is a blocking socket in a thread.
"""

from __future__ import annotations

import asyncio
import datetime
import random
import socket
import ssl
import struct
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import cast

import pytest
import uvloop

from penstock.model.segments import Buffer
from penstock.runtime import tls_transport
from penstock.runtime.tls_listener import HandshakeSettings, TlsListener
from penstock.runtime.tls_transport import TlsState, TlsTransport
from penstock.runtime.work import ThreadedWork
from penstock.security.certificates import make_certificates

pytest.importorskip("cryptography", reason="needs the extra [security]")

WAIT_S = 60.0
MIB = 1 << 20


class Recorder(asyncio.BufferedProtocol):
    """Keeps what it receives. Its buffer is short, so that many calls are needed."""

    buffer_length = 70_000

    def __init__(self) -> None:
        self.buffer = memoryview(bytearray(self.buffer_length))
        self.received = bytearray()
        self.has_ended = False
        self.pauses = 0
        self.is_paused = False
        self.lost = asyncio.get_running_loop().create_future()
        self.failure: Exception | None = None
        #: It pauses once it has received so many bytes.
        self.pauses_at = float("inf")

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self.buffer

    def buffer_updated(self, nbytes: int) -> None:
        if self.failure is not None:
            raise self.failure
        self.received += self.buffer[:nbytes]
        if len(self.received) >= self.pauses_at:
            self.pauses_at = float("inf")
            self.transport.pause_reading()

    def eof_received(self) -> bool:
        self.has_ended = True
        return False

    def pause_writing(self) -> None:
        self.pauses += 1
        self.is_paused = True

    def resume_writing(self) -> None:
        self.is_paused = False

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.set_result(exc)


class Place:
    """A server with one connection; `is_own`: of `TlsListener`."""

    def __init__(self, directory: Path, *, is_own: bool) -> None:
        made = make_certificates(["localhost"], datetime.datetime.now(datetime.UTC))
        self.pem = directory / "server.pem"
        self.pem.write_bytes(made.private_key + made.certificate)
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.load_cert_chain(self.pem)
        self.client_context = ssl.create_default_context(cadata=made.authority.decode())
        self.is_own = is_own
        self.made: asyncio.Future[Recorder] = asyncio.get_running_loop().create_future()
        self.raw: socket.socket

    def _connected(self) -> Recorder:
        found = Recorder()
        self.made.set_result(found)
        return found

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[int]:
        """Listen; give the port."""
        if not self.is_own:
            server = await asyncio.get_running_loop().create_server(self._connected, "127.0.0.1", 0, ssl=self.context)
            async with server:
                yield server.sockets[0].getsockname()[1]
            return
        work = ThreadedWork()
        listener = TlsListener(self.context, self._connected, HandshakeSettings(timeout_s=600.0), work=work)
        await listener.bind("127.0.0.1", 0)
        listener.listen(16)
        try:
            yield listener.sockets[0].getsockname()[1]
        finally:
            listener.close()
            await work.close()

    def connect(self, port: int) -> ssl.SSLSocket:
        """Connect as a client. Blocks."""
        self.raw = socket.create_connection(("127.0.0.1", port), timeout=WAIT_S)
        return self.client_context.wrap_socket(
            self.raw, server_hostname="localhost", suppress_ragged_eofs=False
        )  # fmt: skip

    def raw_end(self, client: ssl.SSLSocket) -> None:
        """End the client's side of the connection, without that of TLS. It can still receive."""
        socket.socket.shutdown(client, socket.SHUT_WR)  # `SSLSocket.shutdown` would forget the state of TLS.

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[tuple[Recorder, ssl.SSLSocket]]:
        """Give both ends of a connection."""
        async with self.listening() as port:
            client = await asyncio.to_thread(self.connect, port)
            try:
                protocol = await self.made
                await until(lambda: hasattr(protocol, "transport"))
                yield protocol, client
            finally:
                client.close()
                protocol.transport.abort()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not condition():  # noqa: ASYNC110  # the state of sockets has no event
            await asyncio.sleep(0.002)


def read_all(client: ssl.SSLSocket) -> bytes:
    """Read until the end. Raises `SSLEOFError`, but for early versions of Python 3.11, if that is not TLS's own end."""
    found = bytearray()
    while part := client.recv(MIB):
        found += part
    return bytes(found)


def read_exactly(client: ssl.SSLSocket, count: int) -> bytes:
    found = bytearray()
    while len(found) < count:
        part = client.recv(count - len(found))
        assert part
        found += part
    return bytes(found)


Scenario = Callable[[Place], Awaitable[None]]
Play = Callable[[Scenario], None]


def _play(make_loop: Callable[[], asyncio.AbstractEventLoop], tmp_path: Path, *, is_own: bool) -> Play:
    async def awaited(scenario: Scenario) -> None:
        async with asyncio.timeout(2 * WAIT_S):
            await scenario(Place(tmp_path, is_own=is_own))

    def run(scenario: Scenario) -> None:
        with asyncio.Runner(loop_factory=make_loop) as runner:
            runner.run(awaited(scenario))

    return run


@pytest.fixture(params=["own-asyncio", "own-uvloop", "loop-uvloop"])
def play(request: pytest.FixtureRequest, tmp_path: Path) -> Play:
    """Run a scenario with the transports of the listener on each kind of loop, and with those of a loop."""
    of, loop = request.param.split("-")
    make_loop = uvloop.new_event_loop if loop == "uvloop" else asyncio.new_event_loop
    return _play(make_loop, tmp_path, is_own=of == "own")


@pytest.fixture
def play_own(tmp_path: Path) -> Play:
    """Run a scenario with the transports of the listener."""
    return _play(uvloop.new_event_loop, tmp_path, is_own=True)


def _bytes(count: int, seed: int = 1) -> bytes:
    return random.Random(seed).randbytes(count)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_bytes_of_both_directions_arrive_in_order(play: Play, version: ssl.TLSVersion) -> None:
    """At the same time, in parts of all lengths."""

    async def scenario(place: Place) -> None:
        place.client_context.minimum_version = place.client_context.maximum_version = version
        sent, rng = _bytes(2 * MIB), random.Random(2)
        async with place.connected() as (protocol, client):
            sending = asyncio.create_task(asyncio.to_thread(client.sendall, sent))
            rest, parts = memoryview(sent), list[memoryview]()
            while rest:
                length = rng.choice((0, 1, 100, 5_000, 16_384, 16_385, 65_536, 300_000))
                parts.append(rest[:length])
                rest = rest[length:]
            protocol.transport.writelines(parts[: len(parts) // 2])
            for part in parts[len(parts) // 2 :]:
                protocol.transport.write(part)
            await sending
            assert await asyncio.to_thread(read_exactly, client, len(sent)) == sent
            await until(lambda: len(protocol.received) == len(sent))
            assert protocol.received == sent
            assert protocol.transport.get_write_buffer_size() == 0

    play(scenario)


def test_a_client_that_reads_nothing_pauses_the_writes(play: Play) -> None:
    async def scenario(place: Place) -> None:
        async with place.connected() as (protocol, client):
            protocol.transport.set_write_buffer_limits(high=200_000, low=100_000)
            block, count = _bytes(50_000), 0
            while not protocol.is_paused:
                protocol.transport.write(block)
                count += 1
                await asyncio.sleep(0)
                assert count < 2_000
            assert 200_000 < protocol.transport.get_write_buffer_size() < 400_000
            received = await asyncio.to_thread(read_exactly, client, count * len(block))
            assert received == block * count
            await until(lambda: not protocol.is_paused)
            assert protocol.pauses == 1
            assert protocol.transport.get_write_buffer_size() <= 100_000

    play(scenario)


def test_a_paused_connection_receives_nothing(play: Play) -> None:
    """And all bytes afterwards, also those that are decrypted already."""

    async def scenario(place: Place) -> None:
        sent = _bytes(400_000)
        async with place.connected() as (protocol, client):
            protocol.buffer = protocol.buffer[:1_000]
            protocol.transport.pause_reading()
            assert not protocol.transport.is_reading()
            sending = asyncio.create_task(asyncio.to_thread(client.sendall, sent))
            await asyncio.sleep(0.05)
            assert not protocol.received
            protocol.pauses_at = 5_000
            protocol.transport.resume_reading()
            await until(lambda: len(protocol.received) >= 5_000)
            await asyncio.sleep(0.02)
            assert len(protocol.received) < 6_000
            protocol.transport.resume_reading()
            await sending
            await until(lambda: len(protocol.received) == len(sent))
            assert protocol.received == sent

    play(scenario)


def test_a_close_sends_what_was_written_and_the_end(play: Play) -> None:
    async def scenario(place: Place) -> None:
        sent = _bytes(3 * MIB)
        async with place.connected() as (protocol, client):
            protocol.transport.write(sent)
            protocol.transport.close()
            protocol.transport.write(b"more")
            assert protocol.transport.is_closing()
            assert await asyncio.to_thread(read_all, client) == sent
            client.close()
            assert await protocol.lost is None

    play(scenario)


def test_a_close_with_unread_bytes_loses_no_reply(play_own: Play) -> None:
    """The client sends all the time, and reads afterwards."""

    async def scenario(place: Place) -> None:
        sent = _bytes(200_000)
        async with place.connected() as (protocol, client):
            protocol.buffer = protocol.buffer[:1_000]
            protocol.pauses_at = 1  # Records of before are in memory, others in the socket.
            await asyncio.to_thread(client.sendall, _bytes(100_000))
            await until(lambda: bool(protocol.received))
            protocol.transport.write(sent)
            protocol.transport.close()
            protocol.transport.pause_reading()
            await asyncio.sleep(0.05)
            assert not protocol.lost.done()
            assert await asyncio.to_thread(read_all, client) == sent
            client.close()
            assert await protocol.lost is None

    play_own(scenario)


def test_a_client_that_does_not_end_is_dropped_after_a_close(play_own: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tls_transport, "_END_TIMEOUT_S", 0.05)

    async def scenario(place: Place) -> None:
        async with place.connected() as (protocol, _):
            protocol.transport.close()
            assert await protocol.lost is None

    play_own(scenario)


def test_the_end_of_the_client_is_answered(play: Play) -> None:
    async def scenario(place: Place) -> None:
        async with place.connected() as (protocol, client):
            await asyncio.to_thread(client.sendall, b"last")
            protocol.transport.write(b"reply")
            assert await asyncio.to_thread(read_exactly, client, 5) == b"reply"
            await asyncio.to_thread(client.unwrap)  # It waits for the end of the server.
            assert await protocol.lost is None
            assert protocol.has_ended
            assert protocol.received == b"last"

    play(scenario)


def test_the_end_without_that_of_tls_ends_the_connection(play: Play) -> None:
    async def scenario(place: Place) -> None:
        async with place.connected() as (protocol, client):
            await asyncio.to_thread(client.sendall, b"last")
            await asyncio.to_thread(client.close)
            await protocol.lost
            assert protocol.received == b"last"

    play(scenario)


def test_a_reset_ends_the_connection(play: Play) -> None:
    async def scenario(place: Place) -> None:
        async with place.connected() as (protocol, client):
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            await asyncio.to_thread(client.close)
            assert isinstance(await protocol.lost, ConnectionError)

    play(scenario)


def test_garbage_in_place_of_a_record_ends_the_connection(play_own: Play) -> None:
    """What came before it counts, and the client gets an alert."""

    async def scenario(place: Place) -> None:
        async with place.connected() as (protocol, client):
            protocol.transport.pause_reading()  # So that both are received at once.
            await asyncio.to_thread(client.sendall, b"before")
            descriptor = socket.socket(fileno=client.detach())
            descriptor.settimeout(WAIT_S)
            await asyncio.to_thread(descriptor.sendall, b"\x17\x03\x03\x00\x20" + bytes(32))
            protocol.transport.resume_reading()
            assert isinstance(await protocol.lost, ssl.SSLError)
            assert protocol.received == b"before"
            found = b""
            while part := await asyncio.to_thread(descriptor.recv, 4096):
                found += part
            assert found
            descriptor.close()

    play_own(scenario)


def test_an_abort_drops_what_was_written(play: Play) -> None:
    async def scenario(place: Place) -> None:
        async with place.connected() as (protocol, client):
            protocol.transport.write(bytes(20 * MIB))
            protocol.transport.abort()
            assert await protocol.lost is None
            received = b""
            with suppress(OSError):  # Python 3.11.2 reports the end without that of TLS as an ordinary one.
                received = await asyncio.to_thread(read_all, client)
            assert len(received) < 20 * MIB

    play(scenario)


def test_a_protocol_can_begin_with_a_pause(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(place: Place) -> None:
        original = Recorder.connection_made

        def connection_made(protocol: Recorder, transport: asyncio.BaseTransport) -> None:
            original(protocol, transport)
            protocol.transport.pause_reading()

        monkeypatch.setattr(Recorder, "connection_made", connection_made)
        async with place.connected() as (protocol, client):
            await asyncio.to_thread(client.sendall, b"early")
            await asyncio.sleep(0.05)
            assert not protocol.received
            protocol.transport.resume_reading()
            await until(lambda: protocol.received == b"early")

    play(scenario)


def test_a_protocol_that_fails_loses_its_connection(play: Play) -> None:
    """The loop reports the failure."""

    async def scenario(place: Place) -> None:
        reported: list[object] = []
        asyncio.get_running_loop().set_exception_handler(
            lambda _, context: reported.append(context.get("exception"))
        )  # fmt: skip
        async with place.connected() as (protocol, client):
            protocol.failure = ValueError("planted")
            await asyncio.to_thread(client.sendall, b"x")
            await protocol.lost
            assert reported == [protocol.failure]

    play(scenario)


def test_a_turn_encrypts_a_part_of_a_long_write(play_own: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that others are served in between, also while the socket has room."""
    monkeypatch.setattr(tls_transport, "_TURN_BYTES_MAX", 10_000)

    async def scenario(place: Place) -> None:
        async with place.connected() as (protocol, client):
            protocol.transport.writelines([bytes(20_000), bytes(20_000)])
            assert protocol.transport.get_write_buffer_size() == 40_000 - 16_384
            await asyncio.to_thread(read_exactly, client, 40_000)
            assert protocol.transport.get_write_buffer_size() == 0

    play_own(scenario)


def test_records_are_full_and_long_parts_are_not_copied(play_own: Play) -> None:
    """Each record costs. The rest of a long part is joined with the part that follows."""

    async def scenario(place: Place) -> None:
        async with place.connected() as (protocol, client):
            parts = [b"a" * 8, b"b" * 1_000, b"c" * 100_000, b"d", b"e" * 40_000]
            pieces: list[Buffer] = []
            original = TlsTransport._next_piece

            def next_piece(transport: TlsTransport, room: int) -> Buffer:
                pieces.append(original(transport, room))
                return pieces[-1]

            with pytest.MonkeyPatch.context() as patched:
                patched.setattr(TlsTransport, "_next_piece", next_piece)
                protocol.transport.writelines(parts)
            assert await asyncio.to_thread(read_exactly, client, 141_009) == b"".join(parts)
            # The first piece has both short parts, the fourth has the rest of the long one, and a short one.
            assert [len(piece) for piece in pieces] == [16_384, 49_152, 32_768, 16_384, 16_384, 9_937]
            assert [isinstance(piece, memoryview) for piece in pieces] == [False, True, True, False, True, True]

    play_own(scenario)


def test_a_handshake_is_computed_in_a_thread(play_own: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: set[int] = set()
    original = TlsState.shake_hands

    def shake_hands(state: TlsState) -> bool:
        threads.add(threading.get_ident())
        return original(state)

    monkeypatch.setattr(TlsState, "shake_hands", shake_hands)

    async def scenario(place: Place) -> None:
        async with place.connected() as (_, client):
            assert client.version() == "TLSv1.3"
        assert threads
        assert threading.get_ident() not in threads

    play_own(scenario)


def test_another_certificate_and_the_end_of_the_listener_during_a_handshake(
    play_own: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread computes meanwhile: it uses the certificate from before, and nothing of the closed connection."""
    begun, go_on = threading.Event(), threading.Event()
    results: list[bool] = []
    original = TlsState.shake_hands

    def shake_hands(state: TlsState) -> bool:
        begun.set()
        assert go_on.wait(WAIT_S)
        results.append(original(state))
        return results[-1]

    monkeypatch.setattr(TlsState, "shake_hands", shake_hands)

    async def scenario(place: Place) -> None:
        async with place.listening() as port:
            connecting = asyncio.create_task(asyncio.to_thread(place.connect, port))
            await until(begun.is_set)
            made = make_certificates(["localhost"], datetime.datetime.now(datetime.UTC))
            place.pem.write_bytes(made.private_key + made.certificate)
            place.context.load_cert_chain(place.pem)
            go_on.set()
            client = await connecting  # Its authority is that of the first certificate.
            client.close()
            begun.clear()
            go_on.clear()
            results.clear()
            connecting = asyncio.create_task(asyncio.to_thread(place.connect, port))
            await until(begun.is_set)
        with pytest.raises(OSError):
            await connecting
        go_on.set()
        await until(lambda: bool(results))

    play_own(scenario)


def test_the_connection_describes_itself(play_own: Play) -> None:
    async def scenario(place: Place) -> None:
        async with place.connected() as (protocol, client):
            info = protocol.transport.get_extra_info
            assert info("peername") == client.getsockname()
            assert info("sockname") == client.getpeername()
            assert info("sslcontext") is place.context
            assert info("ssl_object").version() == client.version()
            assert info("cipher") == client.cipher()
            assert info("peercert", "none") is None
            assert info("socket").fileno() >= 0
            assert info("unknown", "none") == "none"
            assert protocol.transport.get_protocol() is protocol
            protocol.transport.abort()
            await protocol.lost
            assert info("peername", "none") == "none"

    play_own(scenario)


def test_limits_of_writes_are_checked_and_apply_at_once(play_own: Play) -> None:
    async def scenario(place: Place) -> None:
        async with place.connected() as (protocol, client):
            transport = protocol.transport
            transport.set_write_buffer_limits(low=1_000)
            assert transport.get_write_buffer_limits() == (1_000, 4_000)
            transport.set_write_buffer_limits()
            assert transport.get_write_buffer_limits() == (16_384, 65_536)
            with pytest.raises(ValueError, match="high is 1 and low 2"):
                transport.set_write_buffer_limits(high=1, low=2)
            transport.set_write_buffer_limits(high=64 * MIB)
            transport.write(bytes(20 * MIB))
            assert protocol.pauses == 0
            transport.set_write_buffer_limits(high=100)
            assert protocol.pauses == 1
            transport.write(b"more")
            assert protocol.pauses == 1
            await asyncio.to_thread(read_exactly, client, 20 * MIB + 4)
            await until(lambda: not protocol.is_paused)
            assert transport.get_write_buffer_size() == 0

    play_own(scenario)


class OfBytes(asyncio.Protocol):
    """A protocol without a buffer."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.received: list[bytes] = []

    def data_received(self, data: bytes) -> None:
        self.received.append(data)

    def pause_writing(self) -> None:
        self.calls.append("pause")

    def resume_writing(self) -> None:
        self.calls.append("resume")

    def eof_received(self) -> None:
        self.calls.append("end")

    def connection_lost(self, exc: Exception | None) -> None:
        self.calls.append("lost")


def test_a_protocol_without_a_buffer_gets_all_calls(play_own: Play) -> None:
    """It takes the place of another one. Its data stay as they are when others are received."""

    async def scenario(place: Place) -> None:
        async with place.connected() as (protocol, client):
            transport, taken = protocol.transport, OfBytes()
            transport.set_protocol(taken)
            assert transport.get_protocol() is taken
            await asyncio.to_thread(client.sendall, b"first")
            await until(lambda: taken.received == [b"first"])
            await asyncio.to_thread(client.sendall, b"other")
            await until(lambda: len(taken.received) == 2)
            assert taken.received == [b"first", b"other"]
            transport.write(bytes(20 * MIB))
            assert taken.calls == ["pause"]
            await asyncio.to_thread(read_exactly, client, 20 * MIB)
            await until(lambda: taken.calls == ["pause", "resume"])
            await asyncio.to_thread(client.unwrap)
            await until(lambda: taken.calls == ["pause", "resume", "end", "lost"])

    play_own(scenario)


def test_a_connection_that_is_closed_or_lost_does_nothing_more(play_own: Play) -> None:
    async def scenario(place: Place) -> None:
        async with place.connected() as (protocol, client):
            transport = protocol.transport
            assert transport.is_reading()
            assert not transport.is_closing()
            transport.close()
            transport.close()
            transport.resume_reading()
            assert not transport.is_reading()
            assert transport.is_closing()
            transport.write(b"late")
            await asyncio.to_thread(client.sendall, b"unread")
            assert await asyncio.to_thread(read_all, client) == b""
            client.close()
            assert await protocol.lost is None
            assert not protocol.received
            transport.abort()
            transport.write(b"late")
            transport.resume_reading()
            transport.close()
            assert transport.is_closing()
            assert transport.get_write_buffer_size() == 0

    play_own(scenario)


def test_a_peer_that_ends_and_reads_later_gets_what_was_written(play_own: Play) -> None:
    """The socket is full when the end of the peer arrives."""

    async def scenario(place: Place) -> None:
        sent = _bytes(8 * MIB)
        async with place.connected() as (protocol, client):
            protocol.transport.write(sent)
            assert protocol.transport.get_write_buffer_size() > 0
            await asyncio.to_thread(place.raw_end, client)
            await until(lambda: protocol.has_ended)
            assert not protocol.lost.done()
            assert await asyncio.to_thread(read_all, client) == sent
            assert await protocol.lost is None

    play_own(scenario)
