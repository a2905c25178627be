"""Where the stores and controllers of a cluster are, as a controller knows it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

import pytest

from penstock.controller.cluster.directory import ClusterDirectory, ClusterPlaces
from penstock.controller.cluster.view import make_cluster_nodes
from penstock.model.cluster_nodes import (
    ASSIGNMENT_PATH,
    CONTROLLERS_PATH,
    HELD_PATH,
    HOSTS_PATH,
    IDENTITY_PATH,
    AssignmentNode,
    ClusterIdentity,
    ControllerNode,
    Endpoint,
    HeldNode,
    HeldPhase,
    HostNode,
    encode_node,
)
from penstock.model.errors import ConnectionLostError
from penstock.runtime.coordination import CoordinationSettings, CreateNode, DeleteNode
from penstock.runtime.kept_session import KeptSession
from penstock_simulation.simulated.simulation import Simulation
from penstock_simulation.simulated.zookeeper import SimulatedZooKeeper
from penstock_simulation.simulated.zookeeper_client import SimulatedCoordination, SimulatedSession

INSIDE, OUTSIDE = "inside", "outside"


def host(port: int) -> HostNode:
    return HostNode(endpoints={INSIDE: Endpoint("in", port), OUTSIDE: Endpoint("out", port)})


def held(owner: str, incarnation: str = "1") -> bytes:
    return encode_node(HeldNode(owner=owner, incarnation=incarnation, phase=HeldPhase.OPENING))


def assigned(number: int, *owners: str) -> bytes:
    return encode_node(AssignmentNode(number=number, nonce="n", owners=owners))


def test_the_holder_comes_before_the_store_that_is_assigned() -> None:
    """During a hand-over clients go to the store that still serves; after it to the one that is to open."""
    places = ClusterPlaces(2, ("b", "b"), {0: "a~1"}, {"a~1": host(1), "b~2": host(2)}, {"a": "a~1", "b": "b~2"})
    assert places.endpoint_of(0, INSIDE) == Endpoint("in", 1)
    assert places.endpoint_of(1, OUTSIDE) == Endpoint("out", 2)
    assert places.endpoint_of(1, "nowhere") is None
    places.hosts.pop("a~1")
    assert places.endpoint_of(0, INSIDE) == Endpoint("in", 2)
    places.hosts.clear()
    assert places.endpoint_of(0, INSIDE) is None


def test_holders_are_read_again_while_they_may_have_changed() -> None:
    """Those that hold what is assigned to them stay as they are."""
    places = ClusterPlaces(3, ("a", "b", "b"), {0: "a~1", 1: "a~1"}, {"a~1": host(1)}, {"a": "a~1"})
    assert places.unsure_holders(frozenset({0, 1, 2})) == [1, 2]
    places.hosts.clear()
    assert places.unsure_holders(frozenset({0})) == [0]


class World:
    def __init__(self, seed: int) -> None:
        self.zookeeper = SimulatedZooKeeper(random.Random(seed))
        self.rng = random.Random(seed)
        self.admin: SimulatedSession
        self.directory: ClusterDirectory

    def service(self, name: str) -> SimulatedCoordination:
        return SimulatedCoordination(self.zookeeper, name, self.rng, CoordinationSettings())

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(60.0):
            while not condition():  # noqa: ASYNC110  # virtual time
                await asyncio.sleep(0.05)


def run(scenario: Callable[[World], Awaitable[None]], seed: int) -> None:
    """Run a scenario with a directory of a cluster of 2 containers, in virtual time."""
    with Simulation(seed) as simulation:

        async def whole() -> None:
            world = World(seed)
            world.admin = await world.service("admin").open_session()
            identity = ClusterIdentity(
                cluster_id="0" * 32, container_count=2, log="l", tier2="t", ownership_lease_s_max=4.0
            )
            await world.admin.create(IDENTITY_PATH, encode_node(identity))
            await make_cluster_nodes(world.admin)
            sessions = KeptSession(world.service("c1"), "controller c1")
            world.directory = ClusterDirectory(sessions, 2)
            tasks = [asyncio.ensure_future(sessions.run()), asyncio.ensure_future(world.directory.run())]
            await world.directory.is_known.wait()
            await scenario(world)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

        simulation.run(whole)


@pytest.mark.parametrize("seed", range(3))
def test_a_container_is_found_through_moves_and_take_overs(seed: int) -> None:
    async def scenario(world: World) -> None:
        admin, locator = world.admin, world.directory.locator(INSIDE)
        assert locator.endpoint_of(0) is None
        with pytest.raises(ConnectionLostError, match="no segment store runs container"):
            await locator.resolve("s/x/0.#epoch.0")
        await admin.create(f"{HOSTS_PATH}/a~1", encode_node(host(1)), is_ephemeral=True)
        await admin.create(f"{HOSTS_PATH}/b~1", encode_node(host(2)), is_ephemeral=True)
        await admin.set(ASSIGNMENT_PATH, assigned(1, "a", "b"))
        await world.until(lambda: [locator.endpoint_of(0), locator.endpoint_of(1)] == [("in", 1), ("in", 2)])
        await admin.create(f"{HELD_PATH}/0", held("a"), is_ephemeral=True)
        await admin.set(ASSIGNMENT_PATH, assigned(2, "b", "b"))
        await asyncio.sleep(5.0)
        assert locator.endpoint_of(0) == ("in", 1)
        # Taken over in one step: the list of names is the same before and after it.
        await admin.multi([DeleteNode(f"{HELD_PATH}/0"), CreateNode(f"{HELD_PATH}/0", held("b"), is_ephemeral=True)])
        await world.until(lambda: locator.endpoint_of(0) == ("in", 2))
        assert world.directory.locator(OUTSIDE).endpoint_of(0) == ("out", 2)
        # A new process of the same store.
        await admin.create(f"{HOSTS_PATH}/b~2", encode_node(host(3)), is_ephemeral=True)
        await admin.multi(
            [
                DeleteNode(f"{HELD_PATH}/0"),
                DeleteNode(f"{HOSTS_PATH}/b~1"),
                CreateNode(f"{HELD_PATH}/0", held("b", "2"), is_ephemeral=True),
            ]
        )
        await world.until(lambda: locator.endpoint_of(0) == ("in", 3))

    run(scenario, seed)


@pytest.mark.parametrize("seed", range(3))
def test_a_container_is_found_at_the_newer_of_two_live_stores_with_one_name(seed: int) -> None:
    """The older one hands it over; both remain announced."""

    async def scenario(world: World) -> None:
        admin, locator = world.admin, world.directory.locator(INSIDE)
        await admin.create(f"{HOSTS_PATH}/a~1", encode_node(host(1)), is_ephemeral=True)
        await admin.set(ASSIGNMENT_PATH, assigned(1, "a", "a"))
        await admin.create(f"{HELD_PATH}/0", held("a"), is_ephemeral=True)
        await world.until(lambda: world.directory.places.holders == {0: "a~1"})
        await admin.create(f"{HOSTS_PATH}/a~2", encode_node(host(2)), is_ephemeral=True)
        await asyncio.sleep(5.0)
        assert locator.endpoint_of(0) == ("in", 1)
        await admin.multi(
            [DeleteNode(f"{HELD_PATH}/0"), CreateNode(f"{HELD_PATH}/0", held("a", "2"), is_ephemeral=True)]
        )
        await world.until(lambda: locator.endpoint_of(0) == ("in", 2))

    run(scenario, seed)


def test_what_is_known_is_kept_while_zookeeper_is_away() -> None:
    async def scenario(world: World) -> None:
        admin, locator = world.admin, world.directory.locator(INSIDE)
        await admin.create(f"{HOSTS_PATH}/a~1", encode_node(host(1)))
        await admin.set(ASSIGNMENT_PATH, assigned(1, "a", "a"))
        controller = ControllerNode(endpoints={INSIDE: Endpoint("in", 9), OUTSIDE: Endpoint("out", 9)})
        await admin.create(f"{CONTROLLERS_PATH}/c1", encode_node(controller))
        await admin.create(f"{CONTROLLERS_PATH}/c0", encode_node(ControllerNode()))
        await world.until(lambda: locator.endpoint_of(1) == ("in", 1) and world.directory.controllers(INSIDE) != [])
        assert world.directory.controllers(OUTSIDE) == [("out", 9)]
        for number in range(3):
            world.zookeeper.stop(number)
        await asyncio.sleep(300.0)
        assert locator.endpoint_of(1) == ("in", 1)
        assert world.directory.controllers(INSIDE) == [("in", 9)]

    run(scenario, 1)


def test_processes_of_this_version_are_found_beside_one_that_a_later_version_wrote() -> None:
    async def scenario(world: World) -> None:
        admin, locator = world.admin, world.directory.locator(INSIDE)
        later = b'{"v":2,"endpoints":{"inside":{"host":"in","port":7}}}'
        await admin.create(f"{HOSTS_PATH}/a~0", later)
        await admin.create(f"{CONTROLLERS_PATH}/c0", later)
        await admin.create(f"{HELD_PATH}/0", later)
        await admin.create(f"{HOSTS_PATH}/b~1", encode_node(host(1)))
        await admin.create(f"{CONTROLLERS_PATH}/c1", encode_node(ControllerNode(endpoints={INSIDE: Endpoint("in", 9)})))
        await admin.set(ASSIGNMENT_PATH, assigned(1, "b", "a"))
        await world.until(lambda: locator.endpoint_of(0) == ("in", 1) and world.directory.controllers(INSIDE) != [])
        assert locator.endpoint_of(1) is None
        assert world.directory.controllers(INSIDE) == [("in", 9)]

    run(scenario, 1)
