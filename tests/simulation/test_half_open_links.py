"""Connections that are forgotten in between, in one direction or both: what each end sees, and new ones that work."""

from __future__ import annotations

import asyncio
import errno

import pytest

from penstock.runtime.sockets import DeadPeerSettings, detect_dead_peers
from penstock_simulation.mutations.half_open import HALF_OPEN
from penstock_simulation.runner import run
from penstock_simulation.simulated.faults import HalfOpen
from penstock_simulation.simulated.simulation import Simulation

PORT = 7
DEAD_PEERS = DeadPeerSettings(probe_after_s=5.0, probe_interval_s=5.0, timeout_s=20.0)


class Echo(asyncio.Protocol):
    """A server's side, which answers what it gets and remembers how it ended."""

    def __init__(self, made) -> None:
        self.error = "open"
        made.append(self)

    def connection_made(self, transport) -> None:
        self.transport = transport

    def data_received(self, data) -> None:
        self.transport.write(data)

    def connection_lost(self, error) -> None:
        self.error = error


class World:
    """A server that echoes and a client. `dead_peers`: see `detect_dead_peers`; None: the server probes nothing."""

    def __init__(self, dead_peers=DEAD_PEERS) -> None:
        self.simulation = Simulation(1)
        self.loop = self.simulation.loop
        self.dead_peers = dead_peers
        self.ends = []
        self.server = self.simulation.host("server", self.serve)
        self.client = self.simulation.host("client")

    async def serve(self, host) -> None:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: Echo(self.ends), None, PORT, start_serving=False)
        if self.dead_peers is not None:
            detect_dead_peers(server, self.dead_peers)
        await server.start_serving()
        await loop.create_future()

    def run(self, on_client):
        with self.simulation:

            async def scenario():
                await asyncio.sleep(1)
                return await self.client.run(on_client())

            return self.simulation.run(scenario)

    async def echoed(self, streams, text=b"hello"):
        reader, writer = streams
        writer.write(text)
        return await reader.readexactly(len(text))

    async def connect(self):
        streams = await asyncio.open_connection("server", PORT)
        assert await self.echoed(streams) == b"hello"
        return streams

    def forget(self, one="client", other="server", *, is_one_way: bool = False) -> None:
        HalfOpen(one, other, is_one_way).strike(self.simulation)


def test_nothing_passes_any_more_and_a_new_connection_works() -> None:
    world = World(dead_peers=None)

    async def scenario() -> None:
        old = await world.connect()
        world.forget()
        new = await world.connect()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(world.echoed(old), 50)
        # The client's kernel has sent it again and again.
        with pytest.raises(TimeoutError) as caught:
            await old[0].read()
        assert caught.value.errno == errno.ETIMEDOUT
        await asyncio.sleep(1000)
        assert [end.error for end in world.ends] == ["open", "open"]
        assert await world.echoed(new) == b"hello"

    world.run(scenario)


def test_an_idle_connection_ends_at_the_side_that_probes() -> None:
    world = World()

    async def scenario() -> None:
        old = await world.connect()
        await asyncio.sleep(100)
        assert world.ends[0].error == "open"
        world.forget()
        await asyncio.sleep(19.9)
        assert world.ends[0].error == "open"
        await asyncio.sleep(0.2)
        assert world.ends[0].error.errno == errno.ETIMEDOUT
        assert not old[0].at_eof()

    world.run(scenario)


def test_what_waits_for_an_acknowledgement_is_bounded_by_the_same_time() -> None:
    """The way to the client works no more, that from it does: each byte that comes from there is a sign of life."""
    world = World()

    async def scenario() -> None:
        old = await world.connect()
        world.forget("server", "client", is_one_way=True)
        for _ in range(12):
            await asyncio.sleep(3)
            if world.ends[0].error != "open":
                break
            old[1].write(b"x")
        assert world.ends[0].error.errno == errno.ETIMEDOUT
        assert 20 <= world.loop.time() - world.simulation.network.flows_forgotten_s <= 27

    world.run(scenario)


def test_the_end_of_one_side_reaches_the_other_if_that_way_works() -> None:
    world = World()

    async def scenario() -> None:
        old = await world.connect()
        world.forget("client", "server", is_one_way=True)
        with pytest.raises(ConnectionResetError):
            await old[0].read()
        assert world.loop.time() - world.simulation.network.flows_forgotten_s == pytest.approx(20, abs=0.1)
        assert world.ends[0].error.errno == errno.ETIMEDOUT

    world.run(scenario)


def test_connections_of_others_are_not_concerned() -> None:
    world = World()
    other = world.simulation.host("other")

    async def scenario() -> None:
        world.forget("other", "server")
        streams = await world.connect()
        world.forget("other", "server")
        await asyncio.sleep(100)
        assert await world.echoed(streams) == b"hello"

    assert other.is_up
    world.run(scenario)


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.nightly)])
def test_users_continue_within_a_bound_and_servers_keep_nothing(seed: int) -> None:
    """Writers, readers and calls of the controller, with the time-outs that they have by default."""
    outcome = run(seed, HALF_OPEN)
    assert outcome.violations == ()
    assert outcome.fault_counts["HalfOpen"]
    for done in ("steady writes", "steady reads", "steady calls of the controller"):
        assert outcome.counts[done], done
