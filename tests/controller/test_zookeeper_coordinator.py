"""Controllers in the simulated ZooKeeper: what its weaknesses may do to a membership, and what they may not."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

import pytest

from penstock.controller.errors import MembershipLostError
from penstock.controller.ownership.zookeeper_coordinator import ZooKeeperCoordinator, ZooKeeperMembership
from penstock.model.errors import ControllerUnavailableError, InvalidArgumentError
from penstock.runtime.coordination import CoordinationSettings, Session
from penstock_simulation.simulated.simulation import Simulation
from penstock_simulation.simulated.zookeeper import Server, SimulatedZooKeeper
from penstock_simulation.simulated.zookeeper_client import SimulatedCoordination

SETTINGS = CoordinationSettings(session_timeout_s=8.0, request_timeout_s=1.0)


class World:
    """An ensemble, and controllers on hosts of their names."""

    def __init__(self, seed: int) -> None:
        self.zookeeper = SimulatedZooKeeper(random.Random(seed))
        self._rng = random.Random(seed + 1)

    async def join(self, name: str) -> ZooKeeperMembership:
        """Join from the host of this name."""
        return await ZooKeeperCoordinator(SimulatedCoordination(self.zookeeper, name, self._rng, SETTINGS)).join(name)

    async def join_at_follower(self, prefix: str) -> tuple[ZooKeeperMembership, Server]:
        """Join by a server that does not lead; names are drawn until it happens."""
        for number in range(50):
            member = await self.join(f"{prefix}{number}")
            server = self.server_of(member)
            if server is not self.zookeeper.leader:
                return member, server
            await member.leave()
        raise AssertionError("every member was connected to the leader")

    def server_of(self, member: ZooKeeperMembership) -> Server:
        """Return the server that a member is connected to."""
        connection = self.zookeeper.connection_of[member._store.session_id]
        return next(server for server in self.zookeeper.servers if connection in server.connections)


def run(scenario: Callable[[World], Awaitable[None]], seed: int = 3) -> None:
    """Run a scenario in virtual time."""
    with Simulation(seed) as simulation:

        async def whole() -> None:
            await scenario(World(seed))

        simulation.run(whole)


def test_an_expired_member_at_a_lagging_server_gets_no_answer() -> None:
    """The server still has its node, and would list it as a member; the change that comes first is refused."""

    async def scenario(world: World) -> None:
        member, server = await world.join_at_follower("a")
        other = await world.join("other")
        await member.members()
        world.zookeeper.hold(server.number)
        world.zookeeper.expire(member._store.session_id)
        assert member._store.session is Session.CONNECTED
        assert member.name in server.tree.nodes["/controllers"].children
        with pytest.raises(MembershipLostError):
            await member.members()
        assert member.is_over
        world.zookeeper.release(server.number)
        assert (await other.members()).names == {"other"}

    run(scenario)


def test_a_server_that_lags_hides_no_member() -> None:
    """A plain read of it does: this is what the change before the read is for."""

    async def scenario(world: World) -> None:
        member, server = await world.join_at_follower("a")
        world.zookeeper.hold(server.number)
        world.zookeeper.cut("later", [server.number])
        await world.join("later")
        assert "later" not in (await member._store.children("/controllers")).names
        reading = asyncio.ensure_future(member.members())
        await asyncio.sleep(0.5)
        assert not reading.done()
        world.zookeeper.release(server.number)
        assert "later" in (await reading).names

    run(scenario)


def test_a_partitioned_member_does_not_know_whether_its_session_ended() -> None:
    """Its requests fail; it learns of its end when it reaches a server, and its wait ends then."""

    async def scenario(world: World) -> None:
        member, other = await world.join("a"), await world.join("b")
        found = await member.members()
        waiting = asyncio.ensure_future(member.changed(found.version))
        await asyncio.sleep(0.1)
        world.zookeeper.cut("a")
        with pytest.raises(ControllerUnavailableError):
            await member.members()
        assert (await asyncio.wait_for(other.changed(found.version), 60.0)).names == {"b"}
        assert not member.is_over
        assert not waiting.done()
        world.zookeeper.mend("a")
        with pytest.raises(MembershipLostError):
            await asyncio.wait_for(waiting, 60.0)
        assert member.is_over

    run(scenario)


def test_a_membership_outlives_a_leader_of_zookeeper() -> None:
    """Waits continue, and report what happens afterwards."""

    async def scenario(world: World) -> None:
        member, other = await world.join("a"), await world.join("b")
        found = await member.members()
        waiting = asyncio.ensure_future(member.changed(found.version))
        assert world.zookeeper.leader is not None
        world.zookeeper.stop(world.zookeeper.leader.number)
        await asyncio.sleep(10.0)
        await other.leave()
        try:
            assert (await asyncio.wait_for(waiting, 60.0)).names == {"a"}
        except ControllerUnavailableError:
            assert (await member.changed(found.version)).names == {"a"}

    run(scenario)


def test_a_join_without_an_answer_is_resolved_or_ended() -> None:
    """Either the member is there, or its session is closed: no node stays without a member."""
    outcomes = set()

    async def scenario(world: World) -> None:
        other = await world.join("b")
        world.zookeeper.lose_replies("a")
        try:
            member = await world.join("a")
        except ControllerUnavailableError:
            outcomes.add("failed")
            await asyncio.sleep(SETTINGS.session_timeout_s * 2)
            assert (await other.members()).names == {"b"}
        else:
            outcomes.add("joined")
            assert (await member.members()).names == (await other.members()).names == {"a", "b"}

    for seed in range(6):
        run(scenario, seed)
    assert "joined" in outcomes


def test_a_member_with_a_deleted_node_has_ended() -> None:
    """An administrator may do that: the others consider it dead, so it must end."""

    async def scenario(world: World) -> None:
        member, other = await world.join("a"), await world.join("b")
        await other._store.delete("/controllers/a")
        with pytest.raises(MembershipLostError):
            await member.members()
        assert member.is_over

    run(scenario)


def test_names_are_checked() -> None:
    """A name is one part of a path."""

    async def scenario(world: World) -> None:
        for name in ("", "a/b", ".."):
            with pytest.raises(InvalidArgumentError):
                await world.join(name)

    run(scenario)
