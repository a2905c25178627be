"""The production segment store, controller and client on simulated hosts: through crashes, and under drawn faults."""

from __future__ import annotations

import asyncio
import time

import grpc
import pytest

from penstock.client.controller.controller import ControllerStub
from penstock.client.settings import ClientSettings
from penstock.model.errors import (
    ControllerUnavailableError,
    NoSuchStreamError,
    StreamExistsError,
)
from penstock.model.policies import Scaling
from penstock.rpc import controller_pb2 as pb
from penstock_simulation.simulated.cluster import (
    CONTROLLER_PORT,
    Assignment,
    ClusterSettings,
    SimulatedCluster,
)
from penstock_simulation.simulated.controller_calls import SimulatedRpcError, simulated_stub
from penstock_simulation.simulated.errors import HostDownError
from penstock_simulation.simulated.host import Death
from penstock_simulation.simulated.simulation import Simulation
from support import simulated_workload

STREAM = "scope/stream"
COUNT = 1000


class World:
    """A cluster, a client host, and 1000 events that are written and read back in order of their keys."""

    def __init__(self, simulation, settings=None) -> None:
        self.simulation = simulation
        self.cluster = SimulatedCluster(simulation, settings)
        self.host = self.cluster.add_client("client")
        self.acknowledged_count = 0

    async def create(self) -> None:
        async with self.cluster.client(self.host) as client:
            await client.create_stream(STREAM, scaling=Scaling.fixed(2))

    async def write(self) -> None:
        async with self.cluster.client(self.host) as client, client.event_writer(STREAM) as writer:
            for number in range(COUNT):
                await writer.write(b"event %d" % number, f"key {number % 3}")
                if number % 10 == 9:
                    await writer.flush()
                    self.acknowledged_count = number + 1

    async def read(self):
        events = []
        async with self.cluster.client(self.host) as client, await client.reader_group("group", [STREAM]) as group:
            reader = await group.reader("reader")
            while len(events) < COUNT and (event := await reader.read(timeout_s=30)) is not None:
                events.append(int(event.data.split()[1]))
            assert await reader.read(timeout_s=5) is None
        return events

    async def until_acknowledged(self, count) -> None:
        while self.acknowledged_count < count:  # noqa: ASYNC110  # the driver only polls
            await asyncio.sleep(0.001)

    def check(self, events) -> None:
        assert sorted(events) == list(range(COUNT))
        for key in range(3):
            of_key = [number for number in events if number % 3 == key]
            assert of_key == sorted(of_key)


SETTINGS = [ClusterSettings(), ClusterSettings(store_count=2, is_combined=False), ClusterSettings(store_count=2)]
IDS = ["combined", "apart", "combined with two stores"]


@pytest.mark.parametrize("death", list(Death))
@pytest.mark.parametrize("settings", SETTINGS, ids=IDS)
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.nightly) for seed in (1, 2))])
def test_a_thousand_events_go_through_a_crash_of_the_store(seed: int, settings, death) -> None:
    with Simulation(seed) as simulation:
        world = World(simulation, settings)

        async def crash() -> None:
            await world.until_acknowledged(400)
            store = world.cluster.stores[0]
            store.crash(death)
            await asyncio.sleep(2)
            store.restart()

        async def scenario():
            await world.cluster.ready()
            await world.host.run(world.create())
            await asyncio.gather(world.host.run(world.write()), crash())
            assert world.cluster.stores[0].life == 2
            return await world.host.run(world.read())

        world.check(simulation.run(scenario))
        assert simulation.loop.unhandled == []


@pytest.mark.parametrize("call_count", [1, 7, 30, 111])
def test_a_thousand_events_go_through_a_crash_in_the_middle_of_disk_work(call_count: int) -> None:
    with Simulation(call_count) as simulation:
        world = World(simulation)

        async def scenario():
            await world.cluster.ready()
            await world.host.run(world.create())
            world.cluster.stores[0].crash_at_disk_call(call_count, down_s=1)
            await world.host.run(world.write())
            assert world.cluster.stores[0].life == 2
            return await world.host.run(world.read())

        world.check(simulation.run(scenario))


def test_a_cleanly_stopped_store_restarts_with_all_data() -> None:
    with Simulation(1) as simulation:
        world = World(simulation)

        async def scenario():
            await world.cluster.ready()
            await world.host.run(world.create())
            await world.host.run(world.write())
            store = world.cluster.stores[0]
            await world.cluster.shut_down(store)
            assert not store.is_up
            assert world.cluster.store(store) is None
            store.restart()
            await world.cluster.ready()
            assert world.cluster.store(store).is_ready
            return await world.host.run(world.read())

        world.check(simulation.run(scenario))


def test_a_paused_store_and_a_partition_only_delay() -> None:
    with Simulation(1) as simulation:
        world = World(simulation)

        async def disturb() -> None:
            await world.until_acknowledged(200)
            world.cluster.stores[0].pause()
            await asyncio.sleep(10)
            world.cluster.stores[0].resume()
            await world.until_acknowledged(600)
            simulation.network.partition("client", "store-1")
            await asyncio.sleep(10)
            simulation.network.heal("client", "store-1")

        async def scenario():
            await world.cluster.ready()
            await world.host.run(world.create())
            await asyncio.gather(world.host.run(world.write()), disturb())
            return await world.host.run(world.read())

        world.check(simulation.run(scenario))


@pytest.mark.parametrize("is_combined", [True, False], ids=["combined", "apart"])
@pytest.mark.parametrize("seed", [20, *(pytest.param(seed, marks=pytest.mark.nightly) for seed in range(21, 26))])
def test_under_drawn_faults_nothing_acknowledged_is_lost_and_nothing_doubled(seed: int, is_combined: bool) -> None:
    _, workload, plan = simulated_workload.run(seed, is_combined=is_combined)
    assert set(workload.acknowledged) <= set(workload.read), f"lost events under this plan:\n{plan}"
    assert len(workload.read) == len(set(workload.read)), f"doubled events under this plan:\n{plan}"
    assert len(workload.acknowledged) > 50


def test_a_minute_of_a_cluster_takes_seconds() -> None:
    started_s = time.monotonic()
    _, workload, _ = simulated_workload.run(1, is_combined=True, duration_s=60)
    assert len(workload.acknowledged) > 1000
    # About 1 s; the bound is only to notice when it becomes ten times that.
    assert time.monotonic() - started_s < 30


def test_a_cluster_that_cannot_start_is_reported() -> None:
    with Simulation(1) as simulation:
        cluster = SimulatedCluster(simulation)

        async def scenario() -> None:
            cluster.stores[0].crash()
            await cluster.ready(timeout_s=5)

        with pytest.raises(HostDownError, match="store-1"):
            simulation.run(scenario)


def test_containers_are_spread_over_stores() -> None:
    locator = Assignment(("a", "b"), 5)
    assert [locator.endpoint_of(container)[0] for container in range(5)] == ["a", "b", "a", "b", "a"]


# The controller's calls.


def on_client(scenario, seed=1, **client_settings):
    """Run `scenario(cluster, host)` on a client host of a ready cluster."""
    with Simulation(seed) as simulation:
        cluster = SimulatedCluster(simulation, ClusterSettings(client=ClientSettings(**client_settings)))
        host = cluster.add_client("client")

        async def play():
            await cluster.ready()
            return await host.run(scenario(cluster, host))

        return simulation.run(play)


def test_the_stub_has_every_call_of_the_client() -> None:
    with Simulation(1):
        stub = simulated_stub("x", 1)
        for name in ControllerStub.__annotations__:
            assert callable(getattr(stub, name))
        with pytest.raises(AttributeError, match="no call inventScope"):
            stub.inventScope  # noqa: B018


def test_errors_of_the_controller_reach_the_client_as_themselves() -> None:
    async def scenario(cluster, host) -> None:
        async with cluster.client(host) as client:
            with pytest.raises(NoSuchStreamError):
                await client.stream_config("scope/missing")
            await client.create_stream(STREAM)
            with pytest.raises(StreamExistsError):
                await client.create_stream(STREAM)

    on_client(scenario)


def test_a_call_that_the_service_does_not_have_is_unimplemented() -> None:
    async def scenario(cluster, host):
        stub = simulated_stub(cluster.controller.name, CONTROLLER_PORT)
        with pytest.raises(SimulatedRpcError) as caught:
            await stub._call("inventScope", pb.ServerRequest(), timeout=10)
        return caught.value.code()

    assert on_client(scenario) is grpc.StatusCode.UNIMPLEMENTED


def test_a_controller_that_is_down_is_unavailable() -> None:
    async def scenario(cluster, host) -> None:
        cluster.controller.crash(Death.KILL)
        async with cluster.client(host) as client:
            with pytest.raises(ControllerUnavailableError, match="UNAVAILABLE"):
                await client.stream_exists(STREAM)

    on_client(scenario, controller_attempt_count_max=2)


def test_a_lost_reply_is_a_deadline_exceeded_although_the_work_is_done() -> None:
    async def scenario(cluster, host):
        stub = simulated_stub(cluster.controller.name, CONTROLLER_PORT)
        await stub.checkScopeExists(pb.ScopeInfo(scope="other"), timeout=5)
        network = cluster.simulation.network
        network.block(cluster.controller.name, "client")
        with pytest.raises(SimulatedRpcError) as caught:
            await stub.createScope(pb.ScopeInfo(scope="scope"), timeout=5)
        assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        network.unblock(cluster.controller.name, "client")
        return (await stub.checkScopeExists(pb.ScopeInfo(scope="scope"), timeout=30)).exists

    assert on_client(scenario)


def test_a_connection_that_breaks_during_a_call_is_unavailable() -> None:
    async def scenario(cluster, host):
        stub = simulated_stub(cluster.controller.name, CONTROLLER_PORT)
        await stub.checkScopeExists(pb.ScopeInfo(scope="other"), timeout=5)
        cluster.controller.pause()
        loop = asyncio.get_running_loop()
        loop.call_later(1, cluster.simulation.network.reset, "client", cluster.controller.name)
        with pytest.raises(SimulatedRpcError) as caught:
            await stub.createScope(pb.ScopeInfo(scope="scope"), timeout=5)
        cluster.controller.resume()
        return caught.value.code(), caught.value.details()

    code, details = on_client(scenario)
    assert code is grpc.StatusCode.UNAVAILABLE
    assert "connection lost" in details


def test_a_controller_that_breaks_says_so_without_details(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def broken(service, scope) -> None:
        raise ValueError("secret")

    monkeypatch.setattr("penstock.controller.service.ControllerService.create_scope", broken)

    async def scenario(cluster, host):
        stub = simulated_stub(cluster.controller.name, CONTROLLER_PORT)
        with pytest.raises(SimulatedRpcError) as caught:
            await stub.createScope(pb.ScopeInfo(scope="scope"), timeout=5)
        return caught.value.code(), caught.value.details()

    code, details = on_client(scenario)
    assert code is grpc.StatusCode.INTERNAL
    assert "secret" not in details
    assert "secret" in caplog.text


def test_a_deadline_cancels_the_handler(monkeypatch: pytest.MonkeyPatch) -> None:
    ends = []

    async def slow(service, scope) -> None:
        try:
            await asyncio.sleep(100)
        finally:
            ends.append(asyncio.get_running_loop().time())

    monkeypatch.setattr("penstock.controller.service.ControllerService.create_scope", slow)

    async def scenario(cluster, host):
        stub = simulated_stub(cluster.controller.name, CONTROLLER_PORT)
        started_s = asyncio.get_running_loop().time()
        with pytest.raises(SimulatedRpcError):
            await stub.createScope(pb.ScopeInfo(scope="scope"), timeout=5)
        await asyncio.sleep(1)
        return ends[0] - started_s

    assert on_client(scenario) == pytest.approx(5, abs=0.1)
