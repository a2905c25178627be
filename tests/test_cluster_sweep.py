"""The logs of a cluster by its identity, and the sweep: simulated ZooKeeper and bucket."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable

import pytest

from penstock.administration.cluster_logs import cluster_logs, sweep_cluster
from penstock.administration.log_administration import LogState
from penstock.administration.object_log_administration import LogSweepReport
from penstock.model.cluster_nodes import (
    DRAINS_PATH,
    ENDS_PATH,
    HOSTS_PATH,
    ClusterIdentity,
    DrainNode,
    EndNode,
    HostNode,
    encode_node,
)
from penstock.model.errors import CorruptionError, InvalidArgumentError, UnsupportedOperationError
from penstock.runtime.coordination import CoordinationSettings
from penstock.segmentstore.tier1.object_log.factory import ObjectLogFactory
from penstock.segmentstore.tier1.object_log.log_bucket import LogBucket
from penstock.segmentstore.tier1.object_log.server_claim import claim_identity
from penstock.server.cluster.identity import make_cluster
from penstock.server.errors import ClusterMismatchError, UnknownClusterError
from penstock.server.settings import StandaloneSettings
from penstock_simulation.simulated.objects import SimulatedObjects
from penstock_simulation.simulated.zookeeper import SimulatedZooKeeper
from penstock_simulation.simulated.zookeeper_client import SimulatedCoordination, SimulatedSession
from segmentstore.tier1.object_log.test_administration import LOST, put_lost_slot
from segmentstore.tier1.object_log.test_object_log import QUICK, SETTINGS, World, append, opened, play

CLUSTER_ID = "ab" * 16


def identity(log: str = "s3://bucket/log", cluster_id: str = CLUSTER_ID) -> ClusterIdentity:
    return ClusterIdentity(
        cluster_id=cluster_id, container_count=3, log=log, tier2="s3://bucket/data", ownership_lease_s_max=4.0
    )


def run(scenario: Callable[[World, SimulatedSession], Awaitable[None]]) -> None:
    """Run a scenario with a bucket and a session of ZooKeeper, in virtual time."""

    async def whole(world: World) -> None:
        world.runtime.open_objects = lambda place, settings: SimulatedObjects(world.bucket, random.Random(7), QUICK)
        zookeeper = SimulatedZooKeeper(random.Random(1))
        service = SimulatedCoordination(zookeeper, "admin", random.Random(2), CoordinationSettings())
        await scenario(world, await service.open_session())

    play(whole)


async def made_log(world: World, cluster_id: str = CLUSTER_ID) -> None:
    """Make the log, as the first store does."""
    bucket = LogBucket(world.process().process.bucket.objects, SETTINGS, prefix="log")
    await claim_identity(bucket, world.runtime, cluster_id, 3)


def store(world: World) -> ObjectLogFactory:
    """Begin a store's process, with a log of the cluster."""
    objects = SimulatedObjects(world.bucket, random.Random(len(world.clients)), QUICK)
    return ObjectLogFactory(objects, world.runtime, SETTINGS, prefix="log", cluster_id=CLUSTER_ID, container_count=3)


def token(factory: ObjectLogFactory) -> str:
    return factory.process.owner.token.hex()


def test_a_sweep_deletes_proofs_of_ends_that_no_record_needs() -> None:
    """That of the last owner of a log stays, and that of a live store; so do the objects of logs. Twice is as once."""

    async def scenario(world: World, session: SimulatedSession) -> None:
        await make_cluster(session, "zk", identity())
        await made_log(world)
        first, last = store(world), store(world)
        for factory in (first, last):
            log = await opened(factory)
            await append(log, b"kept")
            await log.close()
        put_lost_slot(world, 3)
        for incarnation in (token(first), token(last), "cd" * 16, "ef" * 16):
            await session.create(f"{ENDS_PATH}/{incarnation}", encode_node(EndNode(name="a", by="self")))
        await session.create(f"{HOSTS_PATH}/a~{'cd' * 16}", encode_node(HostNode(endpoints={})), is_ephemeral=True)
        for name in ("a", "gone"):
            await session.create(f"{DRAINS_PATH}/{name}", encode_node(DrainNode(by="test", since_ms=0)))
        await session.create("/notes", b"someone's")

        dry = await sweep_cluster(session, "zk", StandaloneSettings(), world.runtime, is_dry_run=True)
        assert sorted(dry.ends) == sorted([token(first), "ef" * 16])
        assert dry.kept_end_count == 2
        assert dry.idle_drains == ["gone"]
        assert dry.foreign_nodes == ["/notes"]
        assert isinstance(dry.log, LogSweepReport)
        assert [each.journal for each in dry.log.unnamed] == [LOST.hex()]
        assert len((await session.children(ENDS_PATH)).names) == 4

        swept = await sweep_cluster(session, "zk", StandaloneSettings(), world.runtime, is_dry_run=False)
        assert swept.ends == dry.ends
        assert (await session.children(ENDS_PATH)).names == {token(last), "cd" * 16}
        assert (await session.children(DRAINS_PATH)).names == {"a", "gone"}
        assert not any(LOST.hex() in key and "0003" in key for key in world.bucket.contents)
        again = await sweep_cluster(session, "zk", StandaloneSettings(), world.runtime, is_dry_run=False)
        assert isinstance(again.log, LogSweepReport)
        assert (again.ends, again.log.object_count, again.kept_end_count) == ([], 0, 2)

    run(scenario)


def test_a_damaged_record_ends_the_sweep_and_nothing_is_deleted() -> None:
    """It is not known what it names, nor whose end it needs."""

    async def scenario(world: World, session: SimulatedSession) -> None:
        await make_cluster(session, "zk", identity())
        await made_log(world)
        await append(await opened(store(world)), b"frame")
        await session.create(f"{ENDS_PATH}/{'ef' * 16}", encode_node(EndNode(name="a", by="self")))
        content = world.bucket.contents["log/r/0"][0]
        world.bucket.replace("log/r/0", content.replace(b'"epoch": 1', b'"epoch": 2'), "")
        with pytest.raises(CorruptionError):
            await sweep_cluster(session, "zk", StandaloneSettings(), world.runtime, is_dry_run=False)
        assert (await session.children(ENDS_PATH)).names == {"ef" * 16}

    run(scenario)


def test_the_logs_of_a_cluster_are_found_by_its_identity() -> None:
    """Disabled and enabled again beside the store that has one open."""

    async def scenario(world: World, session: SimulatedSession) -> None:
        await make_cluster(session, "zk", identity())
        await made_log(world)
        await append(await opened(store(world)), b"frame")
        async with cluster_logs(session, "zk", StandaloneSettings(), world.runtime) as logs:
            await logs.disable(0)
            assert [each.state for each in await logs.reports()][:2] == [LogState.DISABLED, LogState.MISSING]
            await logs.enable(0)

    run(scenario)


def test_a_log_of_another_cluster_is_refused() -> None:
    """Without a cluster, before the first store, with another cluster's log, and with logs elsewhere."""

    async def scenario(world: World, session: SimulatedSession) -> None:
        async def refusal(kind: type[Exception], match: str) -> None:
            with pytest.raises(kind, match=match):
                async with cluster_logs(session, "zk", StandaloneSettings(), world.runtime):
                    pass

        await refusal(UnknownClusterError, "penstock cluster init")
        await make_cluster(session, "zk", identity())
        await refusal(InvalidArgumentError, "no segment store of the cluster at zk was started yet")
        await made_log(world, "cd" * 16)
        await refusal(ClusterMismatchError, f"belongs to cluster {'cd' * 16}, not to the one at zk")
        await session.set("/identity", encode_node(identity("bk://elsewhere")))
        await refusal(UnsupportedOperationError, "not in a bucket")

    run(scenario)
