"""A segment store of a cluster whose log is gone creates no new one; the first store of a new cluster does."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable

import pytest

from penstock.model.cluster_nodes import ASSIGNMENT_PATH, AssignmentNode, ClusterIdentity, encode_node
from penstock.runtime.coordination import CoordinationSettings
from penstock.runtime.objects import VersionedObject
from penstock.segmentstore.tier1.object_log.log_bucket import LogBucket
from penstock.segmentstore.tier1.object_log.server_claim import claim_identity
from penstock.segmentstore.tier1.object_log.settings import ObjectLogSettings
from penstock.server.cluster.identity import demand_log, make_cluster
from penstock.server.errors import ClusterMismatchError
from penstock_simulation.simulated.objects import ObjectFaults, SimulatedBucket, SimulatedObjects
from penstock_simulation.simulated.simulation import Simulation
from penstock_simulation.simulated.zookeeper import SimulatedZooKeeper
from penstock_simulation.simulated.zookeeper_client import SimulatedCoordination
from support.containers import memory_runtime

IDENTITY = ClusterIdentity(
    cluster_id="ab" * 16, container_count=2, log="s3://b/log", tier2="s3://b/data", ownership_lease_s_max=4.0
)
ASSIGNED = AssignmentNode(number=1, nonce="", owners=("s1", "s1"))
QUICK = ObjectFaults(latency_s_min=0.0, latency_s_max=0.001)


class _CreatedBetween(SimulatedObjects):
    """Another store creates the identity after the first answer."""

    created: Callable[[], Awaitable[None]]
    reads = 0

    async def get_versioned(self, key: str) -> VersionedObject:
        self.reads += 1
        if self.reads == 2:
            await self.created()
        return await super().get_versioned(key)


class World:
    """A cluster in the simulated ZooKeeper, and a bucket."""

    def __init__(self) -> None:
        self.service = SimulatedCoordination(
            SimulatedZooKeeper(random.Random(1)), "s2", random.Random(2), CoordinationSettings()
        )
        self.contents = SimulatedBucket()

    async def make(self) -> None:
        """Make the cluster, without stores."""
        self.session = await self.service.open_session()
        await make_cluster(self.session, "zk", IDENTITY)

    def bucket(self, kind: type[SimulatedObjects] = SimulatedObjects) -> LogBucket:
        return LogBucket(kind(self.contents, random.Random(3), QUICK), ObjectLogSettings(), prefix="log")

    async def write_log(self) -> None:
        """Create the identity of the log, as the first store does."""
        await claim_identity(self.bucket(), memory_runtime(), IDENTITY.cluster_id, IDENTITY.container_count)

    async def assign(self) -> None:
        """Assign the containers, as a controller does after the first store has joined."""
        await self.session.set(ASSIGNMENT_PATH, encode_node(ASSIGNED))

    async def demand(self, bucket: LogBucket) -> None:
        await demand_log(bucket, self.service, 10.0)


def run(scenario: Callable[[World], Awaitable[None]]) -> None:
    with Simulation(1) as simulation:

        async def whole() -> None:
            world = World()
            await world.make()
            await scenario(world)

        simulation.run(whole)


def test_the_log_of_a_new_cluster_may_be_missing() -> None:
    async def scenario(world: World) -> None:
        await world.demand(world.bucket())
        await world.write_log()
        await world.demand(world.bucket())
        await world.assign()
        await world.demand(world.bucket())

    run(scenario)


def test_a_store_may_start_while_the_cluster_is_made() -> None:
    """Its identity is there, and the assignment is not."""

    async def scenario(world: World) -> None:
        await world.session.delete(ASSIGNMENT_PATH)
        await world.demand(world.bucket())

    run(scenario)


def test_a_log_that_was_written_is_not_created_again() -> None:
    """The bucket was emptied, or replaced by an empty one. Nothing is written into it."""

    async def scenario(world: World) -> None:
        await world.write_log()
        await world.assign()
        world.contents = SimulatedBucket()
        with pytest.raises(ClusterMismatchError, match="log/identity is not there, although stores have written"):
            await world.demand(world.bucket())
        assert not world.contents.contents

    run(scenario)


def test_a_log_that_another_store_creates_meanwhile_is_accepted() -> None:
    """It joins, and gets containers, between the two answers."""

    async def scenario(world: World) -> None:
        await world.assign()
        bucket = world.bucket(_CreatedBetween)
        assert isinstance(bucket.objects, _CreatedBetween)
        bucket.objects.created = world.write_log
        await world.demand(bucket)
        assert bucket.objects.reads == 2

    run(scenario)
