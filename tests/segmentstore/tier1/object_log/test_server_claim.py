"""The record of the server of a log in a bucket: a single server, or a cluster whose stores share the log."""

from __future__ import annotations

import pytest

from penstock.model.errors import InvalidArgumentError, LogTakenOverError
from penstock.segmentstore.tier1.object_log.factory import ObjectLogFactory
from penstock.segmentstore.tier1.object_log.log_bucket import LogBucket
from penstock.segmentstore.tier1.object_log.server_claim import ServerClaim, claim_for_cluster
from penstock_simulation.simulated.objects import ObjectFault
from segmentstore.tier1.object_log.test_object_log import World, append, opened, play

PLACE = "zk1:2181/penstock/main"


def single(world: World, server: str) -> ObjectLogFactory:
    """Begin the process of a single server."""
    factory = world.process()
    bucket = factory.process.bucket
    factory.process.claim = ServerClaim(bucket, world.runtime, server.encode(), server)
    return factory


def shared(world: World) -> LogBucket:
    """Return the bucket as a store of a cluster has it; its client is the last one."""
    return world.process().process.bucket


def test_a_single_server_does_not_start_on_the_log_of_a_cluster() -> None:
    """It would fence the cluster's stores, which open their logs again, and so on."""

    async def scenario(world: World) -> None:
        bucket = shared(world)
        await claim_for_cluster(bucket, world.runtime, PLACE)
        contents = dict(world.bucket.contents)
        with pytest.raises(InvalidArgumentError, match=f"segment-store --zookeeper {PLACE}"):
            await single(world, "late").start()
        assert dict(world.bucket.contents) == contents
        # The other stores of the cluster find the record and change nothing.
        await claim_for_cluster(shared(world), world.runtime, PLACE)
        assert dict(world.bucket.contents) == contents

    play(scenario)


def test_a_single_server_that_runs_opens_no_log_once_a_cluster_has_the_log() -> None:
    async def scenario(world: World) -> None:
        before = single(world, "before")
        await before.start()
        await append(await opened(before, 0), b"acknowledged")
        await claim_for_cluster(shared(world), world.runtime, PLACE)
        with pytest.raises(LogTakenOverError, match=f"the cluster in ZooKeeper at {PLACE}"):
            await opened(before, 1)

    play(scenario)


@pytest.mark.parametrize("fault", [ObjectFault.LOST_REPLY, ObjectFault.LOST_REQUEST, ObjectFault.THROTTLE])
def test_a_lost_reply_is_no_other_claim(fault: ObjectFault) -> None:
    async def scenario(world: World) -> None:
        bucket = shared(world)
        world.clients[-1].inject("put_if", fault)
        world.clients[-1].inject("put_new", fault)
        await claim_for_cluster(bucket, world.runtime, PLACE)
        await claim_for_cluster(bucket, world.runtime, PLACE)
        with pytest.raises(InvalidArgumentError):
            await single(world, "late").start()

    play(scenario)


def test_a_cluster_that_moved_to_another_zookeeper_replaces_the_record() -> None:
    async def scenario(world: World) -> None:
        await claim_for_cluster(shared(world), world.runtime, "zk1:2181/old")
        await claim_for_cluster(shared(world), world.runtime, PLACE)
        with pytest.raises(InvalidArgumentError, match=PLACE):
            await single(world, "late").start()

    play(scenario)
