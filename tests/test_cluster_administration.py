"""Making, observing and changing a cluster, on the simulated ZooKeeper; and the settings of its processes."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from penstock.controller.cluster.view import read_cluster
from penstock.model.cluster_nodes import (
    ASSIGNMENT_PATH,
    ELECTION_PATH,
    HOSTS_PATH,
    AssignmentNode,
    CandidateNode,
    ClusterIdentity,
    Endpoint,
    HostNode,
    encode_node,
)
from penstock.model.errors import InvalidArgumentError
from penstock.model.errors.coordination import CoordinationUnavailableError
from penstock.runtime.coordination import CoordinationSettings, ensure_node
from penstock.server.cluster.administration import ClusterAdministration
from penstock.server.cluster.identity import (
    cluster_settings,
    make_cluster,
    wait_for_session,
)
from penstock.server.cluster.store import store_names
from penstock.server.cluster_settings import (
    ClusterSettings,
    Listener,
    check_reachable,
    parse_listeners,
    split_address,
)
from penstock.server.errors import ClusterMismatchError, NoSuchStoreError, UnknownClusterError
from penstock.server.settings import StandaloneSettings
from penstock_simulation.simulated.simulation import Simulation
from penstock_simulation.simulated.zookeeper import SimulatedZooKeeper
from penstock_simulation.simulated.zookeeper_client import SimulatedCoordination, SimulatedSession
from support.containers import memory_runtime

IDENTITY = ClusterIdentity(
    cluster_id="ab" * 16, container_count=4, log="s3://b/log", tier2="s3://b/data", ownership_lease_s_max=4.0
)


class World:
    def __init__(self) -> None:
        self.zookeeper = SimulatedZooKeeper(random.Random(1))
        self.session: SimulatedSession
        self.admin: ClusterAdministration

    def service(self, name: str = "admin") -> SimulatedCoordination:
        return SimulatedCoordination(self.zookeeper, name, random.Random(2), CoordinationSettings())

    async def make(self, *stores: str, owners: tuple[str, ...] = ()) -> None:
        """Make the cluster, with stores and an assignment."""
        await make_cluster(self.session, "zk", IDENTITY)
        for name in stores:
            await self.session.create(f"{HOSTS_PATH}/{name}~1", encode_node(HostNode(endpoints={})), is_ephemeral=True)
        if owners:
            await self.session.set(ASSIGNMENT_PATH, encode_node(AssignmentNode(number=1, nonce="", owners=owners)))

    async def owners(self) -> tuple[str, ...]:
        return (await read_cluster(self.session)).assignment.owners


def run(scenario: Callable[[World], Awaitable[None]]) -> None:
    with Simulation(1) as simulation:

        async def whole() -> None:
            world = World()
            world.session = await world.service().open_session()
            world.admin = ClusterAdministration(world.session, "zk", memory_runtime(), "test")
            await scenario(world)

        simulation.run(whole)


def test_a_cluster_is_made_once() -> None:
    """Again with the same values is accepted and changes nothing; other values are refused, with both."""

    async def scenario(world: World) -> None:
        with pytest.raises(UnknownClusterError, match="penstock cluster init"):
            await world.admin.status()
        assert await make_cluster(world.session, "zk", IDENTITY) == (IDENTITY, True)
        again = ClusterIdentity(**{**{name: getattr(IDENTITY, name) for name in IDENTITY.__struct_fields__},
                                   "cluster_id": "cd" * 16})  # fmt: skip
        assert await make_cluster(world.session, "zk", again) == (IDENTITY, False)
        other = ClusterIdentity(
            cluster_id="cd" * 16, container_count=5, log="s3://b/log", tier2="s3://b/data", ownership_lease_s_max=4.0
        )
        with pytest.raises(ClusterMismatchError, match="5, but the cluster at zk was made with 4"):
            await make_cluster(world.session, "zk", other)

    run(scenario)


def test_settings_that_differ_from_the_identity_are_refused() -> None:
    base = StandaloneSettings()
    settled = cluster_settings(base, IDENTITY, "zk")
    assert (settled.log, settled.tier2, settled.segment_store.container_count) == ("s3://b/log", "s3://b/data", 4)
    assert settled.segment_store.container.ownership_lease_s == 4.0
    with pytest.raises(ClusterMismatchError, match="tier2 is 's3://b/other'"):
        cluster_settings(replace(base, tier2="s3://b/other"), IDENTITY, "zk")
    store = replace(base.segment_store, container_count=9)
    with pytest.raises(ClusterMismatchError, match="containers is 9"):
        cluster_settings(replace(base, segment_store=store), IDENTITY, "zk")


def test_a_start_waits_for_zookeeper_and_gives_up_after_a_while() -> None:
    async def scenario(world: World) -> None:
        world.zookeeper.cut("other")
        with pytest.raises(CoordinationUnavailableError, match="connect_timeout_s"):
            await wait_for_session(world.service("other"), 30.0)
        world.zookeeper.mend("other")
        await (await wait_for_session(world.service("other"), 30.0)).close()

    run(scenario)


def test_a_drain_says_what_will_move() -> None:
    async def scenario(world: World) -> None:
        await world.make("a", "b", "c", owners=("a", "b", "c", "a"))
        moves = await world.admin.drain("a", is_dry=True)
        assert sorted((each.container_id, each.source) for each in moves) == [(0, "a"), (3, "a")]
        assert (await read_cluster(world.session)).drains == frozenset()
        assert await world.admin.drain("a", is_dry=False) == moves
        assert await world.admin.drain("a", is_dry=False) == moves
        assert (await world.admin.status()).view.drains == {"a"}
        with pytest.raises(NoSuchStoreError, match="the live stores are"):
            await world.admin.drain("x", is_dry=False)
        for _ in range(2):
            await world.admin.undrain("a", is_dry=False)
            assert (await world.admin.status()).view.drains == frozenset()
        for name, is_dry in (("x", False), ("a", True)):
            with pytest.raises(NoSuchStoreError, match="not drained"):
                await world.admin.undrain(name, is_dry=is_dry)

    run(scenario)


def test_a_container_is_moved_by_the_assignment() -> None:
    """On the version that was read. Another container takes its place, as the leader would move it back otherwise."""

    async def scenario(world: World) -> None:
        await world.make("a", "b", owners=("a", "b", "a", "b"))
        moves = await world.admin.move(0, "b", is_dry=True)
        assert await world.owners() == ("a", "b", "a", "b")
        assert [(each.container_id, each.source, each.target) for each in moves] == [(1, "b", "a")]
        assert await world.admin.move(0, "b", is_dry=False) == moves
        assert await world.owners() == ("b", "a", "a", "b")
        assert await world.admin.balance(is_dry=True) == ()
        why = (await read_cluster(world.session)).assignment.why
        assert [(each.container_id, each.source, each.target, each.reason) for each in why] == [
            (0, "a", "b", "administrator test"), (1, "b", "a", "even"),
        ]  # fmt: skip
        assert await world.admin.move(0, "b", is_dry=False) == ()
        with pytest.raises(InvalidArgumentError, match="there are 4 containers, and none 4"):
            await world.admin.move(4, "b", is_dry=False)
        with pytest.raises(NoSuchStoreError):
            await world.admin.move(0, "x", is_dry=False)
        await world.admin.drain("a", is_dry=False)
        with pytest.raises(InvalidArgumentError, match="is drained"):
            await world.admin.move(0, "a", is_dry=False)

    run(scenario)


def test_balance_evens_out_at_once() -> None:
    async def scenario(world: World) -> None:
        await world.make("a", "b", owners=("a", "a", "a", "a"))
        assert len(await world.admin.balance(is_dry=True)) == 2
        assert (await world.owners()).count("a") == 4
        assert len(await world.admin.balance(is_dry=False)) == 2
        assert (await world.owners()).count("a") == 2
        assert await world.admin.balance(is_dry=False) == ()

    run(scenario)


def test_the_status_names_the_leader_and_unserved_containers() -> None:
    async def scenario(world: World) -> None:
        await world.make("a", owners=("a", "a", "a", "a"))
        await ensure_node(world.session, ELECTION_PATH)
        for name in ("c2", "c1"):
            content = encode_node(CandidateNode(name=name))
            await world.session.create(f"{ELECTION_PATH}/n-", content, is_ephemeral=True, is_sequential=True)
        found = await world.admin.status()
        assert found.leader == "c2"
        assert found.unserved == [0, 1, 2, 3]

    run(scenario)


def test_listeners_are_parsed() -> None:
    found = parse_listeners("in=10.0.0.1:6000, out=[::]:6100@store.example:30100")
    assert found == [Listener("in", "10.0.0.1", 6000), Listener("out", "::", 6100, "store.example", 30100)]
    assert found[0].endpoint(6001, "machine") == Endpoint("10.0.0.1", 6001)
    assert found[1].endpoint(6100, "machine") == Endpoint("store.example", 30100)
    assert Listener("x", "0.0.0.0", 1).endpoint(1, "machine") == Endpoint("machine", 1)
    for wrong in ("in", "in=host", "in=host:x", "in=h:1,in=h:2", "=h:1", "in=::1:6000", "in=h:99999"):
        with pytest.raises(InvalidArgumentError):
            parse_listeners(wrong)
    assert split_address("host", 9) == ("host", 9)
    with pytest.raises(InvalidArgumentError, match="internal_listener"):
        ClusterSettings(listeners="out=h:1").listeners_on("h", 1, "")
    (default,) = ClusterSettings().listeners_on("h", 1, "outside:7")
    assert default == Listener("default", "h", 1, "outside", 7)
    assert store_names("n", 1) == ["n"]
    assert store_names("n", 2) == ["n-0", "n-1"]


def test_loopback_is_refused_beside_other_machines() -> None:
    """Alone on one machine it is fine."""
    own = {"default": Endpoint("127.0.0.1", 6000)}
    check_reachable(own, [Endpoint("localhost", 6001)])
    with pytest.raises(InvalidArgumentError, match="--advertise"):
        check_reachable(own, [Endpoint("localhost", 1), Endpoint("store-2", 6000)])
    check_reachable({"default": Endpoint("store-1", 6000)}, [Endpoint("store-2", 6000)])
