"""Containers that change owners: a second incarnation beside the first, which does not know and is the zombie;
containers that are taken from a store in order, and given back; and containers that move to another store."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Callable
from dataclasses import replace

from penstock.model.errors import NoSuchSegmentError, PenstockError
from penstock.model.routing import container_of
from penstock.segmentstore.container.container import ContainerStatus, SegmentContainer
from penstock.segmentstore.container.reads.cache import Cache
from penstock.segmentstore.store import SegmentStore
from penstock.testing.simulation.cluster import SimulatedCluster
from penstock.testing.simulation.errors import HostDownError
from penstock.testing.simulation.host import Host

#: The lease of an intruder that does not wait for the zombie's.
_HASTE_S = 0.01


async def take_over(
    cluster: SimulatedCluster, host: Host, rng: random.Random, found: Callable[[str], None]
) -> str | None:
    """Open the log of one of a store's containers a second time, work a little, and stop.

    The store's own container goes on serving until its next log write finds it fenced; then the store starts a new
    incarnation, which fences this one in turn. Returns what was done, None if there was nothing to do. Run it on
    `host`. A patient second one waits until the lease of the first is over, as it should, and looks whether that still
    answers: then `found` is told. One in haste is there while the first still answers; it changes nothing that is read.
    """
    store = cluster.store(host)
    if store is None or not store.containers:
        return None
    zombie = rng.choice(store.containers)
    is_patient = rng.random() < 0.5
    intruder = _incarnation(store, zombie, is_patient=is_patient)
    try:
        await intruder.start()
        if intruder.status is ContainerStatus.RUNNING:
            if is_patient:
                await _ask(store, zombie, intruder, found)
            await intruder.flush()
    except (PenstockError, OSError) as error:
        return f"container {zombie.id} was not taken over: {type(error).__name__}"
    finally:
        await intruder.stop()
    return f"container {zombie.id} was taken over"


async def _ask(
    store: SegmentStore, zombie: SegmentContainer, intruder: SegmentContainer, found: Callable[[str], None]
) -> None:
    """Ask the store that still has the zombie for a segment that there is not: its successor has waited for its end."""
    count = store.settings.container_count
    names = (f"sim/nothing{number}/0.#epoch.0" for number in itertools.count())
    segment = next(name for name in names if container_of(name, count) == zombie.id)
    try:
        is_zombie_asked = store.container(segment) is zombie
        await store.segment_info(segment)
    except NoSuchSegmentError:
        if is_zombie_asked and intruder.status is ContainerStatus.RUNNING:
            found(f"container {zombie.id} answers although it was shut out longer ago than its lease")
    except PenstockError:
        return  # It has noticed, or it refuses.


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


def _incarnation(store: SegmentStore, zombie: SegmentContainer, *, is_patient: bool) -> SegmentContainer:
    settings = store.settings.container
    if not is_patient:
        settings = replace(settings, ownership_lease_s=_HASTE_S)
    return SegmentContainer(
        zombie.id,
        log=store._logs.create(zombie.id),
        chunks=store._chunks,
        cache=Cache(store.settings.cache),
        runtime=store.runtime,
        settings=settings,
        on_failure=lambda container, error: None,
    )
