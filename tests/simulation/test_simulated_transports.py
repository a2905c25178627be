"""The contract of transports, run over real sockets of localhost and over the simulated network.

What the simulated one may do and a real one seldom does (cut reads anywhere) is allowed by the contract, so each test
must hold for both.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from penstock.wire.connection import send_parts
from penstock_simulation.simulated.simulation import Simulation

MIB = 1024 * 1024


class Recorder(asyncio.Protocol):
    """Keeps all that it receives."""

    def __init__(self) -> None:
        self.calls = []
        self.data = bytearray()
        self.lost = asyncio.get_running_loop().create_future()
        self.changed = asyncio.Event()
        self.keep_open = False

    def connection_made(self, transport) -> None:
        self.transport = transport
        self.calls.append("made")
        self.changed.set()

    def data_received(self, data) -> None:
        assert isinstance(data, bytes)
        assert data
        self.data += data
        self.changed.set()

    def eof_received(self):
        self.calls.append("eof")
        self.changed.set()
        return self.keep_open

    def pause_writing(self) -> None:
        self.calls.append("pause")
        self.changed.set()

    def resume_writing(self) -> None:
        self.calls.append("resume")
        self.changed.set()

    def connection_lost(self, error) -> None:
        self.calls.append("lost")
        self.error = error
        self.lost.set_result(error)
        self.changed.set()

    async def until(self, condition) -> None:
        async with asyncio.timeout(20):
            while not condition():
                self.changed.clear()
                await self.changed.wait()


class BufferedRecorder(Recorder, asyncio.BufferedProtocol):
    def __init__(self, size=1000) -> None:
        super().__init__()
        self.buffer = bytearray(size)

    def get_buffer(self, sizehint):
        return memoryview(self.buffer)

    def buffer_updated(self, count) -> None:
        assert 0 < count <= len(self.buffer)
        self.data += self.buffer[:count]
        self.changed.set()


@pytest.fixture(params=["real", *(f"simulated {seed}" for seed in range(4))])
def over(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """Run a scenario that gets a connected pair of protocols, made by two factories."""

    def run(scenario, make_client=Recorder, make_server=Recorder) -> None:
        async def play(host) -> None:
            loop = asyncio.get_running_loop()
            accepted = loop.create_future()

            def accept():
                protocol = make_server()
                if not accepted.done():
                    accepted.set_result(protocol)
                return protocol

            server = await loop.create_server(accept, host, 0)
            port = server.sockets[0].getsockname()[1]
            assert server.is_serving()
            transport, client = await loop.create_connection(make_client, host, port)
            assert client.transport is transport
            assert transport.get_extra_info("peername")[1] == port
            assert transport.get_extra_info("sockname")[1] > 0
            assert transport.get_extra_info("nothing") is None
            served = await accepted
            await served.until(lambda: served.calls)
            assert served.transport.get_extra_info("peername") == transport.get_extra_info("sockname")
            try:
                await scenario(client, served)
            finally:
                if not client.lost.done():
                    transport.abort()
                server.close()
            assert not server.is_serving()
            assert not server.sockets

        if request.param == "real":
            asyncio.run(play("127.0.0.1"))
        else:
            with Simulation(int(request.param.split()[1])) as simulation:
                host = simulation.host("machine")
                simulation.run(lambda: host.run(play("localhost")))
                assert simulation.loop.unhandled == []

    return run


def pattern(length):
    return bytes(range(251)) * (length // 251) + bytes(length % 251)


def test_bytes_arrive_whole_and_in_order(over: Callable[..., Any]) -> None:
    async def scenario(client, server) -> None:
        data = pattern(3 * MIB)
        position, step = 0, 1
        while position < len(data):
            client.transport.write(data[position : position + step])
            position, step = position + step, step * 2
        await server.until(lambda: len(server.data) == len(data))
        assert server.data == data

    over(scenario)


def test_a_buffered_protocol_gets_the_same_bytes(over: Callable[..., Any]) -> None:
    async def scenario(client, server) -> None:
        data = pattern(100_000)
        client.transport.writelines([data[:10], memoryview(data)[10:70_000], bytearray(data[70_000:])])
        await server.until(lambda: len(server.data) == len(data))
        assert server.data == data

    over(scenario, make_server=BufferedRecorder)


def test_data_flows_in_both_directions_at_once(over: Callable[..., Any]) -> None:
    async def scenario(client, server) -> None:
        client.transport.write(b"a" * MIB)
        server.transport.write(b"b" * MIB)
        await client.until(lambda: len(client.data) == MIB)
        await server.until(lambda: len(server.data) == MIB)
        assert client.data == b"b" * MIB
        assert server.data == b"a" * MIB

    over(scenario)


def test_a_written_buffer_may_be_changed_afterwards(over: Callable[..., Any]) -> None:
    async def scenario(client, server) -> None:
        data = bytearray(b"before")
        server.transport.pause_reading()
        client.transport.write(data)
        data[:] = b"after!"
        server.transport.resume_reading()
        await server.until(lambda: len(server.data) == 6)
        assert server.data == b"before"

    over(scenario)


def test_a_reader_that_pauses_gets_nothing_until_it_resumes(over: Callable[..., Any]) -> None:
    async def scenario(client, server) -> None:
        server.transport.pause_reading()
        assert not server.transport.is_reading()
        client.transport.write(b"later")
        await asyncio.sleep(0.05)
        assert server.data == b""
        server.transport.resume_reading()
        assert server.transport.is_reading()
        await server.until(lambda: server.data == b"later")

    over(scenario)


def test_a_writer_is_paused_by_a_reader_that_does_not_read_and_resumed_when_it_does(over: Callable[..., Any]) -> None:
    async def scenario(client, server) -> None:
        client.transport.set_write_buffer_limits(high=100_000)
        assert client.transport.get_write_buffer_limits() == (25_000, 100_000)
        server.transport.pause_reading()
        total = 0
        while "pause" not in client.calls:
            client.transport.write(bytes(65536))
            total += 65536
            assert total < 256 * MIB
            await asyncio.sleep(0)
        assert client.transport.get_write_buffer_size() > 100_000
        server.transport.resume_reading()
        await client.until(lambda: "resume" in client.calls)
        assert client.transport.get_write_buffer_size() <= 25_000
        await server.until(lambda: len(server.data) == total)
        assert client.calls == ["made", "pause", "resume"]

    over(scenario)


def test_bad_limits_are_refused(over: Callable[..., Any]) -> None:
    async def scenario(client, server) -> None:
        with pytest.raises(ValueError, match="high"):
            client.transport.set_write_buffer_limits(high=1, low=2)

    over(scenario)


def test_close_sends_written_bytes_and_then_ends_both_sides(over: Callable[..., Any]) -> None:
    async def scenario(client, server) -> None:
        client.transport.write(bytes(5 * MIB))
        client.transport.close()
        assert client.transport.is_closing()
        client.transport.close()
        assert await asyncio.wait_for(client.lost, 20) is None
        assert await asyncio.wait_for(server.lost, 20) is None
        assert len(server.data) == 5 * MIB
        assert server.calls == ["made", "eof", "lost"]
        assert client.calls[-1] == "lost"

    over(scenario)


def test_nothing_is_received_after_close(over: Callable[..., Any]) -> None:
    async def scenario(client, server) -> None:
        server.transport.write(b"unwanted")
        client.transport.close()
        await asyncio.wait_for(client.lost, 20)
        assert client.data == b""

    over(scenario)


def test_connection_lost_is_not_called_from_within_close(over: Callable[..., Any]) -> None:
    async def scenario(client, server) -> None:
        client.transport.close()
        assert "lost" not in client.calls
        await client.lost

    over(scenario)


def test_abort_ends_at_once_without_sending_the_rest(over: Callable[..., Any]) -> None:
    async def scenario(client, server) -> None:
        server.transport.pause_reading()
        client.transport.write(bytes(64 * MIB))
        client.transport.abort()
        assert client.transport.is_closing()
        assert await asyncio.wait_for(client.lost, 20) is None
        server.transport.resume_reading()
        await asyncio.wait_for(server.lost, 20)
        assert len(server.data) < 64 * MIB

    over(scenario)


def test_writes_after_the_end_are_dropped(over: Callable[..., Any]) -> None:
    async def scenario(client, server) -> None:
        client.transport.abort()
        client.transport.write(b"lost")
        await client.lost
        client.transport.write(b"lost")
        send_parts(client.transport, [b"lost", b"as well"])
        await server.lost
        assert server.data == b""

    over(scenario)


def test_write_eof_half_closes(over: Callable[..., Any]) -> None:
    async def scenario(client, server) -> None:
        server.keep_open = True
        assert client.transport.can_write_eof()
        client.transport.write(b"question")
        client.transport.write_eof()
        with pytest.raises(RuntimeError, match="write_eof"):
            client.transport.write(b"more")
        await server.until(lambda: "eof" in server.calls)
        assert server.data == b"question"
        server.transport.write(b"answer")
        server.transport.close()
        await asyncio.wait_for(client.lost, 20)
        assert client.data == b"answer"

    over(scenario)


def test_close_after_write_eof_sends_everything_and_one_end(over: Callable[..., Any]) -> None:
    async def scenario(client, server) -> None:
        client.transport.write(bytes(2 * MIB))
        client.transport.write_eof()
        client.transport.write_eof()
        client.transport.close()
        await asyncio.wait_for(server.lost, 20)
        await asyncio.wait_for(client.lost, 20)
        assert len(server.data) == 2 * MIB
        assert server.calls == ["made", "eof", "lost"]

    over(scenario)


def test_a_protocol_that_raises_loses_its_connection() -> None:
    """Simulated alone: a real loop also logs, which is not the contract here."""

    class Broken(Recorder):
        def data_received(self, data) -> None:
            raise ValueError("broken")

    async def play() -> None:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(Broken, None, 5)
        transport, client = await loop.create_connection(Recorder, "localhost", 5)
        transport.write(b"x")
        await client.lost
        server.close()

    with Simulation(1) as simulation:
        host = simulation.host("machine")
        simulation.run(lambda: host.run(play()))
        assert ["broken" in str(context["exception"]) for context in simulation.loop.unhandled] == [True]


def test_a_connection_to_a_port_without_a_listener_is_refused(over: Callable[..., Any]) -> None:
    async def scenario(client, server) -> None:
        port = client.transport.get_extra_info("sockname")[1]
        with pytest.raises(ConnectionRefusedError):
            await asyncio.get_running_loop().create_connection(Recorder, "127.0.0.1", port)

    over(scenario)


def test_a_port_is_given_once(over: Callable[..., Any]) -> None:
    async def scenario(client, server) -> None:
        host, port = server.transport.get_extra_info("sockname")[:2]
        with pytest.raises(OSError, match=r"in use|listened on already"):
            await asyncio.get_running_loop().create_server(Recorder, host, port)

    over(scenario)


def test_streams_work_over_it(over: Callable[..., Any]) -> None:
    async def scenario(client, server) -> None:
        loop = asyncio.get_running_loop()
        assert loop.is_running()

        async def echo(reader, writer) -> None:
            while line := await reader.readline():
                writer.write(line.upper())
                await writer.drain()
            writer.close()

        listener = await asyncio.start_server(echo, "127.0.0.1", 0)
        port = listener.sockets[0].getsockname()[1]
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"one\ntwo\n")
        assert await reader.readline() == b"ONE\n"
        assert await reader.readline() == b"TWO\n"
        writer.write_eof()
        assert await reader.read() == b""
        writer.close()
        await writer.wait_closed()
        listener.close()

    over(scenario)
