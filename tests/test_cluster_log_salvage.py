"""`salvage_cluster_log`: which cluster's log it salvages, and when it refuses. Simulated ZooKeeper and bucket."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.administration.cluster_log_salvage import salvage_cluster_log
from penstock.administration.log_salvage import Salvaged
from penstock.model.cluster_nodes import HELD_PATH, ClusterIdentity, HeldNode, HeldPhase, encode_node
from penstock.model.errors import InvalidArgumentError
from penstock.server.cluster.identity import make_cluster
from penstock.server.errors import ClusterMismatchError
from penstock_simulation.simulated.zookeeper import SimulatedZooKeeper, ZooKeeperSettings
from penstock_simulation.simulated.zookeeper_client import SimulatedCoordination, SimulatedSession
from test_object_log_salvage import World, check_salvaged


async def damaged_world(tmp_path: Path) -> World:
    """Return a world with a damaged log, whose long-term storage is in the bucket, too."""
    world = World(tmp_path)
    world.settings = replace(world.settings, tier2="s3://simulated/data")
    await world.fill()
    world.damage()
    return world


async def session_of(world: World, cluster_id: str = "") -> SimulatedSession:
    """Return a session with a cluster whose log is that of `world`."""
    zookeeper = SimulatedZooKeeper(random.Random(1), ZooKeeperSettings(server_count=1))
    session = await SimulatedCoordination(zookeeper, "admin", random.Random(2)).open_session()
    identity = ClusterIdentity(
        cluster_id=cluster_id or world.cluster_id, container_count=2, log="s3://simulated/log",
        tier2=world.settings.tier2, ownership_lease_s_max=2.0,
    )  # fmt: skip
    await make_cluster(session, "zk", identity)
    return session


async def salvage(
    world: World, session: SimulatedSession, *, is_dry_run: bool = False, is_without_absent: bool = False
) -> Salvaged:
    """Salvage the log of container 0."""
    runtime = world.runtime()
    try:
        return await salvage_cluster_log(
            session, "zk", world.settings, runtime, 0, is_dry_run=is_dry_run, is_without_absent=is_without_absent
        )
    finally:
        await runtime.work.close()


def held(phase: HeldPhase) -> bytes:
    """Return the content of the node of a store that holds a container."""
    return encode_node(HeldNode(owner="store-a", incarnation="ab" * 16, phase=phase))


async def test_a_log_is_not_salvaged_while_a_store_serves_its_container(tmp_path: Path) -> None:
    """A dry run is permitted. A store that cannot open it does not prevent the salvage."""
    world = await damaged_world(tmp_path)
    session = await session_of(world)
    before = dict(world.bucket.contents)
    await session.create(f"{HELD_PATH}/0", held(HeldPhase.SERVING), is_ephemeral=True)
    for phase in (HeldPhase.SERVING, HeldPhase.CLOSING):
        await session.set(f"{HELD_PATH}/0", held(phase), (await session.get(f"{HELD_PATH}/0")).version)
        with pytest.raises(InvalidArgumentError, match="store-a serves container 0"):
            await salvage(world, session)
        dry = await salvage(world, session, is_dry_run=True)
        assert dry.report is not None
        told = dry.report.segments
    assert world.bucket.contents == before
    await session.set(f"{HELD_PATH}/0", held(HeldPhase.OPENING), (await session.get(f"{HELD_PATH}/0")).version)
    done = await salvage(world, session)
    assert done.report is not None
    assert done.report.segments == told
    await session.close()
    await check_salvaged(world)


async def test_a_log_of_another_cluster_and_lost_bookies_of_a_bucket_are_refused(tmp_path: Path) -> None:
    world = await damaged_world(tmp_path)
    before = dict(world.bucket.contents)
    session = await session_of(world, "ab" * 16)
    with pytest.raises(ClusterMismatchError):
        await salvage(world, session)
    await session.close()
    session = await session_of(world)
    with pytest.raises(InvalidArgumentError, match="there are no bookies"):
        await salvage(world, session, is_without_absent=True)
    await session.close()
    assert world.bucket.contents == before
