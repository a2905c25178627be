"""Containers that change owners: a second incarnation beside the first, which does not know and is the zombie;
containers that are taken from a store in order, and given back; and containers that move to another store."""

from __future__ import annotations

import asyncio
import random

from penstock.model.errors import PenstockError
from penstock.segmentstore.container.container import ContainerStatus, SegmentContainer
from penstock.segmentstore.container.reads.cache import Cache
from penstock.segmentstore.store import SegmentStore
from penstock.testing.simulation.cluster import SimulatedCluster
from penstock.testing.simulation.errors import HostDownError
from penstock.testing.simulation.host import Host


async def take_over(cluster: SimulatedCluster, host: Host, rng: random.Random) -> str | None:
    """Open the log of one of a store's containers a second time, work a little, and stop.

    The store's own container goes on serving until its next log write finds it fenced; then the store starts a new
    incarnation, which fences this one in turn. Returns what was done, None if there was nothing to do. Run it on
    `host`.
    """
    store = cluster.store(host)
    if store is None or not store.containers:
        return None
    zombie = rng.choice(store.containers)
    intruder = _incarnation(store, zombie)
    try:
        await intruder.start()
        if intruder.status is ContainerStatus.RUNNING:
            await intruder.flush()
    except (PenstockError, OSError) as error:
        return f"container {zombie.id} was not taken over: {type(error).__name__}"
    finally:
        await intruder.stop()
    return f"container {zombie.id} was taken over"


async def reassign(cluster: SimulatedCluster, host: Host, rng: random.Random) -> str | None:
    """Take one of a store's containers away, which stops it in order, and give it back a little later.

    Returns what was done, None if there was nothing to do. Run it on `host`.
    """
    store = cluster.store(host)
    if store is None or not store.containers:
        return None
    before = cluster.container_ids(host)
    chosen = rng.choice(before)
    store.set_assignment([container for container in before if container != chosen])
    # Mostly long enough for it to stop, sometimes it is wanted again while it does.
    await asyncio.sleep(rng.choice((0.0, 0.01, 0.5, 2.0)))
    store.set_assignment(before)
    return f"container {chosen} was taken away and given back"


async def move(cluster: SimulatedCluster, rng: random.Random) -> str | None:
    """Give a container to another store. Either may hear of it late: the old one serves on meanwhile, as a zombie.

    Returns what was done, None if no container can move. Not to be run on a host.
    """
    if cluster.shared_disk is None or len(cluster.stores) < 2:
        return None
    chosen = rng.randrange(cluster.settings.segment_store.container_count)
    old = next(host for host in cluster.stores if host.name == cluster.locator.owner(chosen))
    new = rng.choice([host for host in cluster.stores if host is not old])
    cluster.locator.give(chosen, new.name)
    heard_s = {new: rng.choice((0.0, 0.0, 0.05, 0.5)), old: rng.choice((0.0, 0.01, 0.5, 3.0))}

    async def hear(host: Host, delay_s: float) -> None:
        await asyncio.sleep(delay_s)
        try:
            await host.run(cluster.tell(host))
        except HostDownError:
            pass  # It hears when it starts.

    await asyncio.gather(*(hear(host, delay_s) for host, delay_s in heard_s.items()))
    return f"container {chosen} went from {old.name}, which heard after {heard_s[old]} s, to {new.name}"


def _incarnation(store: SegmentStore, zombie: SegmentContainer) -> SegmentContainer:
    return SegmentContainer(
        zombie.id,
        log=store._logs.create(zombie.id),
        chunks=store._chunks,
        cache=Cache(store.settings.cache),
        runtime=store.runtime,
        settings=store.settings.container,
        on_failure=lambda container, error: None,
    )
