"""A machine that no packet reaches: how long requests to its segment store wait, in virtual time."""

from __future__ import annotations

import asyncio

import pytest

from penstock.client.settings import ClientSettings
from penstock.client.transport.connection_pool import ConnectionPool, Purpose
from penstock.model.errors import ConnectionLostError
from penstock.wire.codec import encode_parts
from penstock.wire.commands import Hello, KeepAlive
from penstock.wire.connection import WIRE_VERSION, WIRE_VERSION_OLDEST
from penstock_simulation.simulated.host import Host
from penstock_simulation.simulated.member_cluster import MemberCluster
from penstock_simulation.simulated.simulation import Simulation
from support.faultless_cluster import faultless_cluster

PORT = 6000
CLIENT = ClientSettings()
#: In this time a connection without an answer is found.
FOUND_S_MAX = 2 * CLIENT.keepalive_interval_s + 0.5
STREAM_COUNT = 3
CLUSTER = faultless_cluster(store_count=3, container_count=6, controller_count=2)
#: The end of the session and the lease of its containers, and what a leader and the next store need.
CALL_S_MAX = 8.0 + 4.0 + 4.0


class Greeter(asyncio.Protocol):
    """The server's side of a connection, which answers every byte with a sign of life."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        self.transport = transport  # type: ignore[assignment]
        transport.writelines(encode_parts(Hello(high=WIRE_VERSION, low=WIRE_VERSION_OLDEST)))

    def data_received(self, data: bytes) -> None:
        assert self.transport is not None
        self.transport.writelines(encode_parts(KeepAlive()))


async def greet(host: Host) -> None:
    loop = asyncio.get_running_loop()
    await loop.create_server(Greeter, None, PORT)
    await loop.create_future()


class Moving:
    """Two stores and a client. The segments of the first store move when `home` changes."""

    def __init__(self) -> None:
        self.simulation = Simulation(1)
        for name in ("first", "second"):
            self.simulation.host(name, greet)
        self.client = self.simulation.host("client")
        self.home = "first"
        self.queries: list[str] = []

    async def resolve(self, segment: str) -> tuple[str, int]:
        self.queries.append(segment)
        return self.home, PORT

    def run(self, scenario) -> None:
        async def main() -> None:
            await asyncio.sleep(1)
            pool = ConnectionPool(self.resolve, CLIENT)
            try:
                await scenario(pool)
            finally:
                await pool.close()

        with self.simulation:
            self.simulation.run(lambda: self.client.run(main()))


def test_a_silent_connection_moves_all_segments_of_its_address_at_once() -> None:
    """Each of them would else wait until a new connection to the old address has failed."""
    moving = Moving()

    async def scenario(pool: ConnectionPool) -> None:
        loop = asyncio.get_running_loop()
        connections = [await pool.connection(segment, Purpose.REQUEST) for segment in "abc"]
        assert connections[0] is connections[2]
        moving.simulation.network.partition("client", "first")
        moving.home = "second"
        await asyncio.sleep(FOUND_S_MAX)
        assert not connections[0].is_open
        begun_s = loop.time()
        for segment in "abc":
            assert (await pool.connection(segment, Purpose.REQUEST)).address == f"second:{PORT}"
        assert loop.time() - begun_s < 1.0
        assert moving.queries == [*"abc", *"abc"]

    moving.run(scenario)


def test_a_failed_connection_moves_all_segments_of_its_address_at_once() -> None:
    moving = Moving()

    async def scenario(pool: ConnectionPool) -> None:
        loop = asyncio.get_running_loop()
        for segment in "abc":
            await pool.endpoint(segment)
        moving.simulation.network.partition("client", "first")
        moving.home = "second"
        with pytest.raises(ConnectionLostError, match="connect_timeout_s"):
            await pool.connection("a", Purpose.READ)
        begun_s = loop.time()
        for segment in "cba":
            assert (await pool.connection(segment, Purpose.REQUEST)).address == f"second:{PORT}"
        assert loop.time() - begun_s < 1.0

    moving.run(scenario)


def test_segments_of_other_addresses_stay_known_and_one_that_moved_back_is_found_again() -> None:
    moving = Moving()

    async def scenario(pool: ConnectionPool) -> None:
        await pool.connection("a", Purpose.REQUEST)
        moving.home = "second"
        await pool.connection("b", Purpose.REQUEST)
        moving.simulation.network.partition("client", "first")
        await asyncio.sleep(FOUND_S_MAX)
        assert (pool.known_endpoint("a"), pool.known_endpoint("b")) == (None, ("second", PORT))
        moving.simulation.network.heal("client", "first")
        moving.home = "first"
        assert (await pool.connection("a", Purpose.REQUEST)).address == f"first:{PORT}"
        assert pool.known_endpoint("a") == ("first", PORT)
        assert moving.queries == ["a", "b", "a"]

    moving.run(scenario)


def test_calls_of_controllers_outlast_a_machine_that_is_cut_off() -> None:
    """Clients begin and abort transactions, which have records in tables on several stores."""
    with Simulation(1) as simulation:
        cluster = MemberCluster(simulation, CLUSTER)
        host = cluster.add_client("client")
        durations_s: list[float] = []
        end_s = float("inf")

        async def create() -> None:
            async with cluster.client(host) as client:
                for number in range(STREAM_COUNT):
                    await client.create_stream(f"scope/stream-{number}")

        async def call(number: int) -> None:
            loop = asyncio.get_running_loop()
            async with cluster.client(host) as client:
                while loop.time() < end_s:
                    begun_s = loop.time()
                    transaction = await client.begin_transaction(f"scope/stream-{number}")
                    durations_s.append(loop.time() - begun_s)
                    begun_s = loop.time()
                    await transaction.abort()
                    durations_s.append(loop.time() - begun_s)
                    await asyncio.sleep(1.0)

        async def scenario() -> None:
            nonlocal end_s
            await cluster.ready()
            await cluster.settled()
            await host.run(create())
            running = [asyncio.create_task(host.run(call(number))) for number in range(STREAM_COUNT)]
            await asyncio.sleep(10)
            machine = {"store-1", "parent-1"}
            for one in sorted(machine):
                cluster.ensemble.cut(one, to_server=True, from_server=True)
                for other in sorted(simulation.hosts.keys() - machine):
                    simulation.network.partition(one, other)
            durations_s.clear()
            end_s = asyncio.get_running_loop().time() + 30
            await asyncio.gather(*running)

        simulation.run(scenario)
    assert 5.0 < max(durations_s) < CALL_S_MAX
