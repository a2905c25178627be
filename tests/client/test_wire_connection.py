"""One connection against a scripted server: Hello, correlation, time-outs, loss, keep-alive, back-pressure."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from penstock.model.errors import ConnectionLostError, OutcomeUnknownError, ProtocolError
from penstock.wire.codec import decode, encode
from penstock.wire.commands import (
    DataAppended,
    GetStreamSegmentInfo,
    Hello,
    KeepAlive,
    SegmentCreated,
    SegmentRead,
    StreamSegmentInfo,
)
from penstock.wire.commands.base import WireCommand
from penstock.wire.connection import ConnectionSettings, WireConnection, open_connection


class Script:
    """A server that does what the test says: `received` commands come in, `send` goes out."""

    def __init__(self, hello: bytes = b"\xff\xff\xff\x81\0\0\0\x08\0\0\0\x11\0\0\0\x05") -> None:
        # The frame above is vector 2 of wire-protocol 9.2: Hello(17, 5).
        self.hello = hello
        self.received: asyncio.Queue[Any] = asyncio.Queue()
        self.writers: list[asyncio.StreamWriter] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writers.append(writer)
        writer.write(self.hello)
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                code = int.from_bytes(await reader.readexactly(4), "big", signed=True)
                payload = await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))
                self.received.put_nowait(decode(code, payload))
        writer.close()

    def send(self, command: WireCommand) -> None:
        self.writers[-1].write(encode(command))


@contextlib.asynccontextmanager
async def connected(script: Script, **settings: Any) -> AsyncIterator[WireConnection]:
    server = await asyncio.start_server(script.serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    try:
        connection = await open_connection("127.0.0.1", port, settings=ConnectionSettings(**settings))
        assert isinstance(await script.received.get(), Hello)
        yield connection
        await connection.close()
    finally:
        server.close()
        for writer in script.writers:
            writer.close()


def ask(connection: WireConnection, **options: float | None) -> asyncio.Task[Any]:
    request_id = connection.next_request_id()
    return asyncio.ensure_future(
        connection.request(request_id, GetStreamSegmentInfo(request_id, "s/t/0.#epoch.0", ""), **options)
    )


def answer(request_id: int) -> StreamSegmentInfo:
    return StreamSegmentInfo(request_id, "s/t/0.#epoch.0", True, False, False, 0, request_id * 10, 0)


async def test_hello_settles_the_version() -> None:
    async with connected(Script(encode(Hello(15, 5)))) as connection:
        assert connection.wire_version == 15
        assert connection.is_open


@pytest.mark.parametrize("hello", [Hello(4, 3), Hello(30, 18)])
async def test_versions_that_do_not_meet_are_refused(hello: Hello) -> None:
    with pytest.raises(ProtocolError, match="wire versions"):
        async with connected(Script(encode(hello))):
            pass


async def test_a_silent_server_is_given_up() -> None:
    with pytest.raises(ConnectionLostError, match="connect_timeout_s"):
        async with connected(Script(b""), connect_timeout_s=0.05):
            pass


async def test_a_port_without_a_listener_is_reported() -> None:
    with pytest.raises(ConnectionLostError, match="could not connect"):
        await open_connection("127.0.0.1", 1, settings=ConnectionSettings())


async def test_replies_in_any_order_are_matched_to_their_requests() -> None:
    script = Script()
    async with connected(script) as connection:
        requests = [ask(connection) for _ in range(5)]
        ids = [(await script.received.get()).request_id for _ in range(5)]
        for request_id in reversed(ids):
            script.send(answer(request_id))
        assert [reply.write_offset for reply in await asyncio.gather(*requests)] == [10 * i for i in ids]
        assert connection.request_count == 0


async def test_time_out_is_an_unknown_outcome_and_the_late_reply_is_dropped() -> None:
    script = Script()
    async with connected(script) as connection:
        with pytest.raises(OutcomeUnknownError, match="no reply to GetStreamSegmentInfo within"):
            await ask(connection, timeout_s=0.01)
        late = (await script.received.get()).request_id
        script.send(answer(late))
        following = ask(connection)
        script.send(answer((await script.received.get()).request_id))
        assert (await following).request_id == late + 1


async def test_lost_connection_fails_everything_that_waits() -> None:
    script = Script()

    class Handler:
        error = None

        def on_reply(self, reply: WireCommand) -> None: ...

        def on_writable(self) -> None: ...

        def on_connection_lost(self, error: ConnectionLostError) -> None:
            self.error = error

    async with connected(script) as connection:
        handler = Handler()
        connection.subscribe(connection.next_request_id(), handler)
        requests = [ask(connection, timeout_s=None) for _ in range(3)]
        await script.received.get()
        script.writers[-1].transport.abort()
        results = await asyncio.gather(*requests, return_exceptions=True)
        assert [type(result) for result in results] == [ConnectionLostError] * 3
        assert isinstance(handler.error, ConnectionLostError)
        assert not connection.is_open
        for call in (lambda: connection.send(KeepAlive()), lambda: connection.subscribe(9, handler)):
            with pytest.raises(ConnectionLostError):
                call()  # type: ignore[no-untyped-call]
        with pytest.raises(ConnectionLostError):
            await ask(connection)


@pytest.mark.parametrize(
    "garbage",
    [
        b"\0\0\0\x63\0\0\0\0",
        b"\0\0\0\x0c\0\0\0\1x",
        b"\0\0\0\x0c\xff\xff\xff\xff",
        encode(KeepAlive())[:4] + b"\x7f" * 9,
    ],
    ids=["unknown type", "short payload", "negative length", "oversize"],
)
async def test_bytes_that_are_not_the_protocol_end_the_connection(garbage: bytes) -> None:
    script = Script()
    async with connected(script) as connection:
        request = ask(connection)
        await script.received.get()
        script.writers[-1].write(garbage)
        with pytest.raises(ConnectionLostError, match="broke the protocol"):
            await request


async def test_command_that_no_server_sends_ends_the_connection() -> None:
    script = Script()
    async with connected(script) as connection:
        request = ask(connection)
        await script.received.get()
        script.writers[-1].write(b"\xff\xff\xff\xff\0\0\0\1x")  # Padding at top level.
        with pytest.raises(ConnectionLostError, match="unexpected Padding"):
            await request


async def test_silence_is_probed_and_then_ends_the_connection() -> None:
    script = Script()
    async with connected(script, keepalive_interval_s=0.03) as connection:
        assert isinstance(await script.received.get(), KeepAlive)
        script.send(KeepAlive())
        assert isinstance(await script.received.get(), KeepAlive)
        request = ask(connection, timeout_s=None)
        with pytest.raises(ConnectionLostError, match="no byte was received"):
            await asyncio.wait_for(request, 60)


async def test_time_in_which_the_process_did_not_run_does_not_end_a_connection() -> None:
    script = Script()
    async with connected(script, keepalive_interval_s=0.2) as connection:
        assert isinstance(await script.received.get(), KeepAlive)
        script.send(KeepAlive())
        time.sleep(0.7)  # noqa: ASYNC251  # the answer waits in the socket, and every check is late
        await asyncio.sleep(0.05)
        assert connection.is_open


async def test_replies_of_a_subscription_go_to_its_handler() -> None:
    script = Script()
    replies = []

    class Handler:
        def on_reply(self, reply: WireCommand) -> None:
            replies.append(reply)

        def on_writable(self) -> None: ...

        def on_connection_lost(self, error: ConnectionLostError) -> None: ...

    async with connected(script) as connection:
        connection.subscribe(7, Handler())
        script.send(DataAppended(bytes(16), 1, -1, 7, 13))
        script.send(DataAppended(bytes(16), 2, 1, 7, 26))
        request = ask(connection)
        script.send(answer((await script.received.get()).request_id))
        await request
        assert [reply.event_number for reply in replies] == [1, 2]  # type: ignore[attr-defined]
        connection.unsubscribe(7)
        connection.unsubscribe(7)


async def test_read_data_survive_the_receive_buffer() -> None:
    # Two replies in one segment of bytes: the first one's data must not change when the buffer is used again.
    script = Script()
    async with connected(script) as connection:
        requests = [ask(connection) for _ in range(2)]
        ids = [(await script.received.get()).request_id for _ in range(2)]
        for request_id, letter in zip(ids, b"ab", strict=True):
            script.send(SegmentRead("s/t/0.#epoch.0", 0, True, False, bytes([letter]) * 100, request_id))
        first, second = await asyncio.gather(*requests)
        third = ask(connection)
        script.send(SegmentCreated((await script.received.get()).request_id, "x" * 200))
        await third
        assert [bytes(first.data), bytes(second.data)] == [b"a" * 100, b"b" * 100]


async def test_full_socket_is_reported_and_so_is_its_end() -> None:
    # The server does not read: the connection stops being writable; the handler is called once the server reads.
    gate = asyncio.Event()
    told = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(encode(Hello(17, 5)))
        await gate.wait()
        while await reader.read(1 << 20):
            pass
        writer.close()

    class Handler:
        def on_reply(self, reply: WireCommand) -> None: ...

        def on_connection_lost(self, error: ConnectionLostError) -> None: ...

        def on_writable(self) -> None:
            told.set()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, limit=1024)
    settings = ConnectionSettings(write_buffer_bytes_max=64 * 1024)
    connection = await open_connection("127.0.0.1", server.sockets[0].getsockname()[1], settings=settings)
    connection.subscribe(1, Handler())
    big = SegmentRead("s/t/0.#epoch.0", 0, True, False, bytes(1 << 20), 1)
    for _ in range(100):
        if not connection.is_writable:
            break
        connection.send(big)
        await asyncio.sleep(0)
    assert not connection.is_writable
    gate.set()
    await asyncio.wait_for(told.wait(), 60)
    assert connection.is_writable
    await connection.close()  # type: ignore[unreachable]
    server.close()


async def test_too_many_requests_are_refused() -> None:
    script = Script()
    async with connected(script, request_count_max=2) as connection:
        requests = [ask(connection, timeout_s=None) for _ in range(2)]
        await asyncio.sleep(0)
        with pytest.raises(OutcomeUnknownError, match="request_count_max"):
            await ask(connection)
        for request in requests:
            request.cancel()
        await asyncio.wait(requests)
        assert connection.request_count == 0


async def test_close_does_not_wait_for_a_server_that_reads_nothing() -> None:
    """The server hangs with the sockets full: unsent bytes are dropped, and closing does not wait for them."""
    script = Script()
    is_over = asyncio.Event()

    async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        script.writers.append(writer)
        writer.write(script.hello)
        script.received.put_nowait(Hello(17, 5))
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        await is_over.wait()

    script.serve = hang  # type: ignore[method-assign]
    async with connected(script, write_buffer_bytes_max=1024) as connection:
        request = ask(connection)
        await asyncio.sleep(0)
        while connection.is_writable or not connection._transport.get_write_buffer_size():  # type: ignore[union-attr]
            connection.send(SegmentRead("s/t/0.#epoch.0", 0, False, False, bytes(1 << 20), 1))
            await asyncio.sleep(0)
        async with asyncio.timeout(60):
            await connection.close()
        with pytest.raises(ConnectionLostError, match="closed by this client"):
            await request
    is_over.set()
