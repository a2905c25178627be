"""Links and their faults: delay, bandwidth, partitions, resets, silence, and what each side of a connection sees."""

from __future__ import annotations

import asyncio
import errno
import socket

import pytest

from penstock_simulation.simulated.host import Death
from penstock_simulation.simulated.links import NetworkSettings
from penstock_simulation.simulated.simulation import Simulation, SimulationSettings

PORT = 7


class Sink(asyncio.Protocol):
    """A listening side that keeps what it gets and answers each read with its length if `is_echo`."""

    def __init__(self, world) -> None:
        self.world = world
        self.data = bytearray()
        self.error = "open"
        world.sinks.append(self)

    def connection_made(self, transport) -> None:
        self.transport = transport

    def data_received(self, data) -> None:
        self.data += data
        if self.world.is_echo:
            self.transport.write(data)

    def connection_lost(self, error) -> None:
        self.error = error


class World:
    """A server that listens, a client that connects, and the scenario as driver."""

    def __init__(self, seed=1, **network) -> None:
        self.simulation = Simulation(seed, SimulationSettings(network=NetworkSettings(**network)))
        self.network = self.simulation.network
        self.loop = self.simulation.loop
        self.sinks = []
        self.is_echo = False
        self.server = self.simulation.host("server", self.serve)
        self.client = self.simulation.host("client")

    async def serve(self, host) -> None:
        await asyncio.get_running_loop().create_server(lambda: Sink(self), None, PORT, backlog=2)
        await asyncio.get_running_loop().create_future()

    def run(self, scenario):
        with self.simulation:
            return self.simulation.run(scenario)

    async def connect(self):
        """Connect from the client; return a stream reader and writer, to be used on the client."""
        return await self.client.run(asyncio.open_connection("server", PORT))

    async def send(self, writer, data) -> None:
        async def write() -> None:
            writer.write(data)

        await self.client.run(write())


def test_a_message_takes_the_time_of_its_link() -> None:
    world = World(delay_s_min=0.5, delay_s_mean_extra=0.0)
    world.is_echo = True

    async def scenario():
        await asyncio.sleep(1)
        started_s = world.loop.time()
        reader, writer = await world.connect()
        connected_s = world.loop.time()
        await world.send(writer, b"x")
        assert await world.client.run(reader.read(10)) == b"x"
        return connected_s - started_s, world.loop.time() - connected_s

    connect_s, exchange_s = world.run(scenario)
    assert connect_s == pytest.approx(1.0, abs=0.01)
    assert exchange_s == pytest.approx(1.0, abs=0.01)


def test_bandwidth_is_shared_by_the_connections_of_a_link() -> None:
    world = World(bytes_per_s=1_000_000)

    async def scenario():
        await asyncio.sleep(1)
        pairs = [await world.connect() for _ in range(2)]
        started_s = world.loop.time()
        for _, writer in pairs:
            await world.send(writer, bytes(500_000))
        while sum(len(sink.data) for sink in world.sinks) < 1_000_000:  # noqa: ASYNC110  # the driver only polls
            await asyncio.sleep(0.01)
        return world.loop.time() - started_s

    assert 1.0 <= world.run(scenario) < 1.1


def test_an_unknown_host_has_no_address() -> None:
    world = World()
    with pytest.raises(socket.gaierror, match="nowhere"):
        world.run(lambda: world.client.run(asyncio.open_connection("nowhere", PORT)))


def test_a_port_without_listener_refuses() -> None:
    world = World()
    with pytest.raises(ConnectionRefusedError, match="server:8"):
        world.run(lambda: world.client.run(asyncio.open_connection("server", 8)))


def test_a_host_cannot_listen_under_the_name_of_another() -> None:
    world = World()

    async def listen() -> None:
        await asyncio.get_running_loop().create_server(asyncio.Protocol, "server", 1)

    with pytest.raises(OSError, match="not its name"):
        world.run(lambda: world.client.run(listen()))


def test_a_full_backlog_keeps_connections_waiting_until_the_host_continues() -> None:
    world = World()

    async def scenario() -> None:
        await asyncio.sleep(1)
        world.server.pause()
        tasks = [asyncio.ensure_future(world.connect()) for _ in range(3)]
        await asyncio.sleep(0.5)
        assert [task.done() for task in tasks].count(True) == 2
        assert world.sinks == []
        world.server.resume()
        await asyncio.gather(*tasks)
        await asyncio.sleep(1)
        assert len(world.sinks) == 3

    world.run(scenario)


def test_a_connect_across_a_partition_waits_for_its_end() -> None:
    world = World()

    async def scenario():
        await asyncio.sleep(1)
        world.network.partition("client", "server")
        world.loop.call_later(10, world.network.heal, "client", "server")
        started_s = world.loop.time()
        await world.connect()
        return world.loop.time() - started_s

    assert 10 <= world.run(scenario) < 30


@pytest.mark.parametrize("direction", [("client", "server"), ("server", "client")])
def test_a_connect_needs_both_directions(direction: tuple[str, str]) -> None:
    world = World(connect_timeout_s=20)

    async def scenario():
        await asyncio.sleep(1)
        world.network.block(*direction)
        with pytest.raises(TimeoutError, match="no answer"):
            await world.connect()
        return world.loop.time()

    assert world.run(scenario) == pytest.approx(1021, abs=0.1)


def test_a_cancelled_connect_leaves_nothing_behind() -> None:
    world = World(delay_s_min=1.0, delay_s_mean_extra=0.0)

    async def impatient(after_s) -> None:
        async with asyncio.timeout(after_s):
            await asyncio.open_connection("server", PORT)

    async def scenario() -> None:
        await asyncio.sleep(1)
        for after_s in (0.5, 1.5, 1.999999):
            with pytest.raises(TimeoutError):
                await world.client.run(impatient(after_s))
        await asyncio.sleep(10)
        assert all(sink.error != "open" for sink in world.sinks)
        assert not world.client.process.sockets
        assert len(world.server.process.sockets) == 1

    world.run(scenario)


@pytest.mark.parametrize("seed", range(4))
def test_data_held_by_a_partition_arrives_in_order_after_it(seed: int) -> None:
    world = World(seed)

    async def scenario() -> None:
        await asyncio.sleep(1)
        _, writer = await world.connect()
        await world.send(writer, b"1")
        await asyncio.sleep(1)
        # One segment is on the wire when the link breaks, others are sent during the break, one is sent after it.
        await world.send(writer, b"2")
        world.network.partition("client", "server")
        await world.send(writer, b"3")
        await asyncio.sleep(5)
        await world.send(writer, b"4")
        assert world.sinks[0].data == b"1"
        world.network.heal("client", "server")
        await world.send(writer, b"5")
        await asyncio.sleep(5)
        assert world.sinks[0].data == b"12345"

    world.run(scenario)


def test_a_one_way_partition_lets_the_other_way_pass() -> None:
    world = World()
    world.is_echo = True

    async def scenario() -> None:
        await asyncio.sleep(1)
        reader, writer = await world.connect()
        world.network.block("server", "client")
        await world.send(writer, b"question")
        await asyncio.sleep(3)
        assert world.sinks[0].data == b"question"
        world.network.unblock("server", "client")
        assert await world.client.run(reader.readexactly(8)) == b"question"

    world.run(scenario)


def test_without_acknowledgements_a_sender_gets_stuck_and_continues_later() -> None:
    world = World(kernel_buffer_bytes=1000)

    async def scenario() -> None:
        await asyncio.sleep(1)
        _, writer = await world.connect()
        world.network.block("server", "client")
        await world.send(writer, bytes(5000))
        await asyncio.sleep(10)
        assert len(world.sinks[0].data) == 1000
        world.network.unblock("server", "client")
        await asyncio.sleep(10)
        assert len(world.sinks[0].data) == 5000

    world.run(scenario)


@pytest.mark.parametrize("direction", [("client", "server"), ("server", "client")])
def test_a_connection_without_progress_times_out_at_the_sender_alone(direction: tuple[str, str]) -> None:
    world = World(retransmission_timeout_s=30)

    async def scenario() -> None:
        await asyncio.sleep(1)
        reader, writer = await world.connect()
        world.network.block(*direction)
        await world.send(writer, b"x")
        with pytest.raises(TimeoutError) as caught:
            await world.client.run(reader.read(1))
        assert caught.value.errno == errno.ETIMEDOUT
        assert world.loop.time() == pytest.approx(1031, abs=0.1)
        assert world.sinks[0].error == "open"

    world.run(scenario)


def test_an_idle_connection_survives_a_partition() -> None:
    world = World(retransmission_timeout_s=30)
    world.is_echo = True

    async def scenario() -> None:
        await asyncio.sleep(1)
        reader, writer = await world.connect()
        world.network.partition("client", "server")
        await asyncio.sleep(3600)
        world.network.heal("client", "server")
        await world.send(writer, b"still here")
        assert await world.client.run(reader.readexactly(10)) == b"still here"

    world.run(scenario)


def test_overlapping_partitions_end_with_the_last() -> None:
    world = World()

    async def scenario() -> None:
        world.network.partition("client", "server")
        world.network.partition("client", "server")
        world.network.heal("client", "server")
        assert not world.network.is_passable("client", "server")
        world.network.heal("client", "server")
        assert world.network.is_passable("client", "server")

    world.run(scenario)


def test_a_reset_ends_both_sides_and_may_lose_what_is_on_the_way() -> None:
    outcomes = set()
    for seed in range(20):
        world = World(seed)

        async def scenario(world=world):
            await asyncio.sleep(1)
            reader, writer = await world.connect()
            await world.send(writer, b"x")
            assert world.network.reset("server", "client") == 2
            with pytest.raises(ConnectionResetError):
                await world.client.run(reader.read(1))
            await asyncio.sleep(1)
            (sink,) = world.sinks
            assert isinstance(sink.error, ConnectionResetError)
            assert not world.client.process.sockets
            return bytes(sink.data)

        outcomes.add(world.run(scenario))
    assert outcomes == {b"", b"x"}


def test_no_bytes_arrive_after_bytes_lost_by_a_reset() -> None:
    """They waited to be sent again, and what was sent later was on its way already: TCP never delivers that."""
    for seed in range(20):
        world = World(seed)

        async def scenario(world=world):
            await asyncio.sleep(1)
            _, writer = await world.connect()
            world.network.partition("client", "server")
            await world.send(writer, b"first")
            await asyncio.sleep(0.1)
            world.network.heal("client", "server")
            world.network.slow_down("client", "server", delay_s=0.5)
            await world.send(writer, b"second")
            world.network.reset("client", "server")
            await asyncio.sleep(5)
            return bytes(world.sinks[0].data)

        assert world.run(scenario) in (b"", b"first", b"firstsecond")


def test_a_slow_link_is_slow_until_it_is_not() -> None:
    world = World(delay_s_min=0.001, delay_s_mean_extra=0.0)
    world.is_echo = True

    async def exchange(reader, writer):
        started_s = world.loop.time()
        await world.send(writer, b"x" * 1000)
        await world.client.run(reader.readexactly(1000))
        return world.loop.time() - started_s

    async def scenario():
        await asyncio.sleep(1)
        pair = await world.connect()
        fast_s = await exchange(*pair)
        world.network.slow_down("client", "server", delay_s=0.5, factor=1e6)
        slow_s = await exchange(*pair)
        world.network.slow_down("client", "server")
        return fast_s, slow_s, await exchange(*pair)

    fast_s, slow_s, again_s = world.run(scenario)
    assert fast_s < 0.01
    assert slow_s > 0.8
    assert again_s < 0.01


@pytest.mark.parametrize("seed", range(6))
def test_a_killed_process_ends_its_connections(seed: int) -> None:
    world = World(seed)

    async def scenario():
        await asyncio.sleep(1)
        reader, _ = await world.connect()
        world.server.crash(Death.KILL)
        started_s = world.loop.time()
        try:
            assert await world.client.run(reader.read(1)) == b""
            result = "end of file"
        except ConnectionResetError:
            result = "reset"
        assert world.loop.time() - started_s < 0.01
        with pytest.raises(ConnectionRefusedError):
            await world.connect()
        return result

    assert world.run(scenario) in ("end of file", "reset")


def test_a_machine_without_power_is_silent_and_resets_when_it_is_back() -> None:
    world = World()

    async def scenario() -> None:
        await asyncio.sleep(1)
        reader, writer = await world.connect()
        world.server.crash(Death.POWER)
        waiting = asyncio.ensure_future(world.client.run(reader.read(1)))
        await world.send(writer, b"is it there?")
        await asyncio.sleep(60)
        assert not waiting.done()
        world.server.restart()
        with pytest.raises(ConnectionResetError):
            await waiting
        await world.connect()

    world.run(scenario)


def test_a_paused_host_takes_data_up_to_its_buffers() -> None:
    world = World(kernel_buffer_bytes=1000)

    async def scenario() -> None:
        await asyncio.sleep(1)
        _, writer = await world.connect()
        await asyncio.sleep(1)
        world.server.pause()
        await world.send(writer, bytes(3000))
        await asyncio.sleep(10)
        assert world.sinks[0].data == b""
        assert writer.transport.get_write_buffer_size() == 2000
        world.server.resume()
        await asyncio.sleep(1)
        assert len(world.sinks[0].data) == 3000

    world.run(scenario)


def test_reads_are_cut_at_drawn_places() -> None:
    lengths = set()

    class Measure(Sink):
        def data_received(self, data) -> None:
            lengths.add(len(data))
            super().data_received(data)

    world = World(cut_rate=0.9)

    async def scenario() -> None:
        loop = asyncio.get_running_loop()

        async def listen() -> None:
            await loop.create_server(lambda: Measure(world), None, 9)

        await world.server.run(listen())
        _, writer = await world.client.run(asyncio.open_connection("server", 9))
        await world.send(writer, bytes(10_000))
        await asyncio.sleep(1)
        assert sum(map(len, (sink.data for sink in world.sinks))) == 10_000

    world.run(scenario)
    assert len(lengths) > 3


@pytest.mark.parametrize("has_unsent", [False, True])
def test_a_reset_is_noticed_by_writing_even_when_nothing_is_read(has_unsent: bool) -> None:
    world = World(kernel_buffer_bytes=1000)
    ends = []

    class Deaf(asyncio.Protocol):
        def connection_made(self, transport) -> None:
            transport.pause_reading()

        def connection_lost(self, error) -> None:
            ends.append(error)

    async def scenario() -> None:
        await asyncio.sleep(1)
        transport, _ = await world.client.run(asyncio.get_running_loop().create_connection(Deaf, "server", PORT))
        if has_unsent:
            world.network.block("server", "client")
            await world.client.run(write(transport, bytes(5000)))
            world.network.unblock("server", "client")
        world.network.reset("client", "server")
        await asyncio.sleep(10)
        if not has_unsent:
            assert ends == []
            await world.client.run(write(transport, b"x"))
            await asyncio.sleep(1)
        assert [type(error) for error in ends] == [ConnectionResetError]
        await world.client.run(write(transport, b"x"))

    async def write(transport, data) -> None:
        transport.write(data)

    world.run(scenario)


def test_a_protocol_without_room_in_its_buffer_loses_its_connection() -> None:
    class Full(asyncio.BufferedProtocol):
        def get_buffer(self, sizehint):
            return bytearray()

        def connection_lost(self, error) -> None:
            ends.append(str(error))

    world = World()
    ends = []

    async def scenario() -> None:
        async def listen() -> None:
            await asyncio.get_running_loop().create_server(Full, None, 9)

        await world.server.run(listen())
        _, writer = await world.client.run(asyncio.open_connection("server", 9))
        await world.send(writer, b"x")
        await asyncio.sleep(1)

    world.run(scenario)
    assert ends == ["get_buffer() returned an empty buffer"]


def test_a_server_serves_until_it_is_cancelled_or_closed() -> None:
    world = World()

    async def scenario() -> None:
        async def listen():
            return await asyncio.get_running_loop().create_server(asyncio.Protocol, None, 9, start_serving=False)

        server = await world.server.run(listen())
        assert not server.is_serving()
        serving = asyncio.ensure_future(world.server.run(server.serve_forever()))
        await asyncio.sleep(1)
        assert server.is_serving()
        assert server.get_loop() is world.loop
        await world.client.run(asyncio.open_connection("server", 9))
        serving.cancel()
        await asyncio.sleep(1)
        assert not server.is_serving()
        await server.wait_closed()
        with pytest.raises(ConnectionRefusedError):
            await world.client.run(asyncio.open_connection("server", 9))

    world.run(scenario)


def test_connections_that_wait_to_be_accepted_are_reset_when_the_server_closes() -> None:
    world = World()

    async def scenario() -> None:
        async def listen():
            return await asyncio.get_running_loop().create_server(lambda: Sink(world), None, 9)

        server = await world.server.run(listen())
        world.server.pause()
        reader, _ = await world.client.run(asyncio.open_connection("server", 9))
        server.close()
        with pytest.raises(ConnectionResetError):
            await world.client.run(reader.read())
        world.server.resume()
        await asyncio.sleep(1)
        assert world.sinks == []

    world.run(scenario)


def test_bytes_for_a_connection_that_is_gone_are_answered_by_a_reset() -> None:
    world = World()

    async def scenario() -> None:
        await asyncio.sleep(1)
        reader, writer = await world.connect()
        await asyncio.sleep(1)

        async def hang_up() -> None:
            world.sinks[0].transport.close()

        await world.server.run(hang_up())
        await asyncio.sleep(1)
        assert await world.client.run(reader.read()) == b""
        await world.send(writer, b"too late")
        await asyncio.sleep(1)
        await world.send(writer, b"much too late")
        await asyncio.sleep(1)
        assert writer.transport.is_closing()

    world.run(scenario)
