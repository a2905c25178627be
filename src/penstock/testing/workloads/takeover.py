"""A second incarnation of a container in the same process: the first, which does not know, is the zombie."""

from __future__ import annotations

import random

from penstock.model.errors import PenstockError
from penstock.segmentstore.container.cache import Cache
from penstock.segmentstore.container.container import ContainerStatus, SegmentContainer
from penstock.segmentstore.store import SegmentStore
from penstock.testing.simulation.cluster import SimulatedCluster
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
