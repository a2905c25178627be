"""The simulated coordination service: sessions end by its clock, and a member that lost its session learns it last.

Also clusters of several controllers that learn of each other through it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from penstock.controller.errors import MembershipLostError
from penstock.model.errors import ControllerUnavailableError
from penstock_simulation.simulated.cluster import COORDINATOR_PORT, ClusterSettings, SimulatedCluster
from penstock_simulation.simulated.coordination import CoordinationServer, CoordinationSettings, Sessions
from penstock_simulation.simulated.coordination_client import SimulatedCoordinator, SimulatedMembership
from penstock_simulation.simulated.host import Death, Host
from penstock_simulation.simulated.simulation import Simulation

SETTINGS = CoordinationSettings()
#: Longer than a session lives without being heard of, and some.
TOO_LONG_S = SETTINGS.session_timeout_s + 1.0


class Service:
    """The service on a host of its own, and two members on theirs."""

    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation
        self.sessions = Sessions()
        self.host = simulation.host("coordinator", self._serve)
        self.one, self.other = simulation.host("one"), simulation.host("other")

    async def _serve(self, host: Host) -> None:
        await CoordinationServer(self.sessions, SETTINGS).start(None, COORDINATOR_PORT)
        await asyncio.get_running_loop().create_future()

    async def join(self, host: Host) -> SimulatedMembership:
        coordinator = SimulatedCoordinator("coordinator", COORDINATOR_PORT, SETTINGS)
        return await host.run(coordinator.join(host.name))

    def cut_off(self, host: Host) -> None:
        self.simulation.network.block(host.name, "coordinator")
        self.simulation.network.block("coordinator", host.name)

    def reconnect(self, host: Host) -> None:
        self.simulation.network.unblock(host.name, "coordinator")
        self.simulation.network.unblock("coordinator", host.name)


def play(scenario: Callable[[Service], Awaitable[None]]) -> None:
    with Simulation(1) as simulation:
        service = Service(simulation)

        async def run() -> None:
            await scenario(service)

        simulation.run(run)
        assert simulation.loop.unhandled == []


def test_members_with_heartbeats_stay_without_limit() -> None:
    async def scenario(service: Service) -> None:
        first, second = await service.join(service.one), await service.join(service.other)
        await asyncio.sleep(20 * TOO_LONG_S)
        assert (await service.one.run(first.members())).names == {"one", "other"}
        assert not second.is_over

    play(scenario)


def test_a_member_paused_for_too_long_has_ended_without_knowing_it() -> None:
    """The other members are notified meanwhile; it takes itself for a member until its next request."""

    async def scenario(service: Service) -> None:
        first, second = await service.join(service.one), await service.join(service.other)
        before = await service.one.run(first.members())
        watching = asyncio.ensure_future(service.one.run(first.changed(before.version)))
        service.other.pause()
        await asyncio.sleep(TOO_LONG_S)
        assert (await watching).names == {"one"}
        service.other.resume()
        assert not second.is_over
        with pytest.raises(MembershipLostError):
            await service.other.run(second.members())
        assert second.is_over

    play(scenario)


def test_a_member_paused_for_less_than_its_session_stays() -> None:
    async def scenario(service: Service) -> None:
        first, second = await service.join(service.one), await service.join(service.other)
        service.other.pause()
        await asyncio.sleep(SETTINGS.session_timeout_s - SETTINGS.heartbeat_interval_s - 0.5)
        service.other.resume()
        assert (await service.other.run(second.members())).names == {"one", "other"}
        assert not first.is_over

    play(scenario)


def test_a_partitioned_member_gets_no_answers_and_ends_for_the_others() -> None:
    """It gets an error with its first request after the reconnect; a call that waited for a change fails as well."""

    async def scenario(service: Service) -> None:
        first, second = await service.join(service.one), await service.join(service.other)
        version = (await service.other.run(second.members())).version
        watching = asyncio.ensure_future(service.other.run(second.changed(version)))
        service.cut_off(service.other)
        with pytest.raises(ControllerUnavailableError):
            await service.other.run(second.members())
        with pytest.raises(ControllerUnavailableError):
            await watching
        await asyncio.sleep(TOO_LONG_S)
        assert (await service.one.run(first.members())).names == {"one"}
        assert not second.is_over
        service.reconnect(service.other)
        with pytest.raises(MembershipLostError):
            await service.other.run(second.changed(version))
        assert second.is_over

    play(scenario)


def test_sessions_outlast_a_crash_of_the_service() -> None:
    async def scenario(service: Service) -> None:
        first, second = await service.join(service.one), await service.join(service.other)
        service.host.crash(Death.POWER)
        await asyncio.sleep(2 * TOO_LONG_S)
        service.host.restart()
        await asyncio.sleep(TOO_LONG_S)
        assert (await service.one.run(first.members())).names == {"one", "other"}
        assert not second.is_over

    play(scenario)


def test_a_dead_member_ends_with_its_session_and_a_leaving_one_at_once() -> None:
    async def scenario(service: Service) -> None:
        first = await service.join(service.one)
        await service.join(service.other)
        service.other.crash(Death.KILL)
        assert (await service.one.run(first.members())).names == {"one", "other"}
        await asyncio.sleep(TOO_LONG_S)
        assert (await service.one.run(first.members())).names == {"one"}
        await service.one.run(first.leave())
        assert service.sessions.names == set()

    play(scenario)


@pytest.mark.parametrize("trouble", ["crash", "pause", "cut off from its clients"])
def test_a_client_asks_another_controller_when_its_own_gives_no_answer(trouble: str) -> None:
    with Simulation(2) as simulation:
        cluster = SimulatedCluster(simulation, ClusterSettings(controller_count=3))
        host = cluster.add_client("client")
        first = cluster.controller

        async def scenario() -> None:
            await cluster.ready()
            assert len(cluster.sessions.names) == 3
            client = cluster.client(host)

            async def create() -> None:
                client._open()
                await client.create_stream("scope/stream")

            await host.run(create())
            if trouble == "crash":
                first.crash(Death.POWER)
            elif trouble == "pause":
                first.pause()
            else:
                simulation.network.block(first.name, host.name)
                simulation.network.block(host.name, first.name)
            assert await host.run(client.stream_exists("scope/stream"))
            await host.run(client.close())

        simulation.run(scenario)
        assert simulation.loop.unhandled == []


def test_work_left_by_a_controller_is_finished_by_another_without_a_request() -> None:
    """A controller dies during a seal, while the segment store is paused, and does not come back."""
    with Simulation(3) as simulation:
        cluster = SimulatedCluster(simulation, ClusterSettings(controller_count=2))
        host = cluster.add_client("client")

        async def scenario() -> None:
            await cluster.ready()

            client = cluster.client(host)

            async def create() -> None:
                client._open()
                await client.create_stream("scope/stream")

            await host.run(create())
            service = cluster.controller_service()
            assert service is not None
            await cluster.controller.run(service.idle())
            host.spawn(client.seal_stream("scope/stream"))
            while not service._context.claims._unfinished:  # noqa: ASYNC110  # the driver only polls
                await asyncio.sleep(0.0005)
            # The announcement is under way, and is processed after the death of its sender.
            cluster.stores[0].pause()
            await asyncio.sleep(0.1)
            cluster.controller.crash(Death.POWER)
            cluster.stores[0].resume()
            other = cluster.controller_service(cluster.controllers[1])
            assert other is not None
            await asyncio.sleep(TOO_LONG_S + 1.0)
            assert other.statistics().taken_over_count == 1
            await cluster.controllers[1].run(other.idle())
            pending = [subject async for subject in other._context.claims.pending()]
            assert pending == []

        simulation.run(scenario)
