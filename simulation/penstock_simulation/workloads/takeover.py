"""`ContainerMoves`: containers that change owners according to a fault plan.

A second incarnation next to the first, which becomes a zombie without noticing; containers that are cleanly taken from
a store and given back; and containers that move to another store.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Coroutine
from dataclasses import replace

from penstock.model.errors import NoSuchSegmentError, PenstockError
from penstock.model.routing import container_of
from penstock.segmentstore.container.container import ContainerStatus, SegmentContainer
from penstock.segmentstore.container.opening import ContainerOpening
from penstock.segmentstore.container.ownership import OwnershipLease
from penstock.segmentstore.container.reads.cache import Cache
from penstock.segmentstore.store import SegmentStore
from penstock.segmentstore.tier1.durable_log import DurableLogFactory
from penstock_simulation.simulated.cluster import SimulatedCluster
from penstock_simulation.simulated.errors import HostDownError
from penstock_simulation.simulated.host import Host

#: The lease of a second incarnation that does not wait for the zombie's lease.
_HASTE_S = 0.01


class _HastyLease(OwnershipLease):
    """The lease of an incarnation that does not wait until its predecessor can no longer answer.

    It does not record that it waited either, so the next incarnation has to wait for both.
    """

    async def wait_out_predecessor(self, opened_s: float, drift_percent: int) -> None:
        """See `OwnershipLease.wait_out_predecessor`: it does not wait."""


class ContainerMoves:
    """`OwnerChanges` of a simulated cluster. `found` gets each answer of an owner that must not answer."""

    def __init__(self, cluster: SimulatedCluster, found: Callable[[str], None]) -> None:
        self._cluster = cluster
        self._found = found
        self._under_way: set[asyncio.Task[None]] = set()

    def take_over(self, container: int, *, is_patient: bool) -> None:
        """See `OwnerChanges`."""
        host = self._owner(container)
        self._begin(host.run(self._take_over(host, container, is_patient=is_patient)))

    def reassign(self, container: int, away_s: float) -> None:
        """See `OwnerChanges`."""
        host = self._owner(container)
        self._begin(host.run(self._reassign(host, container, away_s)))

    def move(self, container: int, target: str, *, old_hears_s: float, new_hears_s: float) -> None:
        """See `OwnerChanges`. Without effect if each store has its own disk."""
        old = self._owner(container)
        if self._cluster.shared_disk is None or old.name == target:
            return
        new = next(host for host in self._cluster.stores if host.name == target)
        self._cluster.locator.give(container, target)
        self._note(f"container {container} goes from {old.name} to {target}")
        self._begin(self._hear(old, old_hears_s))
        self._begin(self._hear(new, new_hears_s))

    def give_away(self, host: str, *, old_hears_s: float) -> None:
        """See `OwnerChanges`. Without effect if each store has its own disk, or `host` has no container."""
        others = [other.name for other in self._cluster.stores if other.name != host]
        if not others:
            return
        for number, container in enumerate(self._cluster.locator.containers_of(host)):
            self.move(container, others[number % len(others)], old_hears_s=old_hears_s, new_hears_s=0.0)

    async def settled(self) -> None:
        """Return when all changes are complete, so that every store knows its containers."""
        while self._under_way:
            await asyncio.wait(self._under_way)

    def cancel(self) -> None:
        """Cancel the changes in progress."""
        for task in self._under_way:
            task.cancel()

    def _owner(self, container: int) -> Host:
        name = self._cluster.locator.owner(container)
        return next(host for host in self._cluster.stores if host.name == name)

    def _begin(self, change: Coroutine[object, object, None]) -> None:
        loop = self._cluster.simulation.loop
        task = loop.spawn(loop.driver, self._whole(change), "change of an owner")
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)

    async def _whole(self, change: Coroutine[object, object, None]) -> None:
        try:
            await change
        except HostDownError:
            pass  # It learns this at its start.

    def _note(self, text: str) -> None:
        simulation = self._cluster.simulation
        simulation.trace.add(simulation.loop.time(), f"owners: {text}")

    def _running(self, host: Host, container: int) -> tuple[SegmentStore, SegmentContainer] | None:
        store = self._cluster.store(host)
        found = [] if store is None else [each for each in store.containers if each.id == container]
        return None if store is None or not found else (store, found[0])

    async def _hear(self, host: Host, delay_s: float) -> None:
        await asyncio.sleep(delay_s)
        await host.run(self._cluster.tell(host))
        self._note(f"{host.name} has heard")

    async def _take_over(self, host: Host, container: int, *, is_patient: bool) -> None:
        """Open the log of one of a store's containers a second time, work a little, and stop.

        A log in a bucket is opened as a second process does it, with a journal of its own.

        The store's own container continues to serve until its next log write finds it fenced; then the store starts a
        new incarnation, which fences this one in turn. A patient second incarnation waits until the lease of the first
        is over, as it should, and checks whether the first still answers. A hasty one runs while the first still
        answers; it changes nothing that is read.
        """
        running = self._running(host, container)
        if running is None:
            return
        store, zombie = running
        logs = self._cluster.second_logs(host, store)
        opening = _incarnation(store, logs, zombie, is_patient=is_patient)
        what = "was taken over"
        try:
            if logs is not store._logs:
                await logs.start()
            intruder = await opening.open()
            if intruder.status is ContainerStatus.RUNNING:
                if is_patient:
                    await self._ask(store, zombie, intruder)
                await intruder.flush()
        except (PenstockError, OSError) as error:
            what = f"was not taken over: {type(error).__name__}"
        finally:
            # Also after a failed opening, which has released everything: stopping is idempotent.
            await opening.closing.stop()
            if logs is not store._logs:
                await logs.close()
        self._note(f"container {container} {what}")

    async def _ask(self, store: SegmentStore, zombie: SegmentContainer, intruder: SegmentContainer) -> None:
        """Query the store of the zombie for a missing segment: the successor has waited for the end of its lease."""
        count = store.settings.container_count
        names = (f"sim/nothing{number}/0.#epoch.0" for number in itertools.count())
        segment = next(name for name in names if container_of(name, count) == zombie.id)
        try:
            is_zombie_asked = store.container(segment) is zombie
            await store.segment_info(segment)
        except NoSuchSegmentError:
            if is_zombie_asked and intruder.status is ContainerStatus.RUNNING:
                self._found(f"container {zombie.id} answers although it was shut out longer ago than its lease")
        except PenstockError:
            return  # It has noticed the fence, or it refuses to answer.

    async def _reassign(self, host: Host, container: int, away_s: float) -> None:
        running = self._running(host, container)
        if running is None:
            return
        store, _ = running
        store.set_assignment([other for other in self._cluster.container_ids(host) if other != container])
        await asyncio.sleep(away_s)
        # The store's assignment may have changed meanwhile.
        store.set_assignment(self._cluster.container_ids(host))
        self._note(f"container {container} was taken away and given back")


def _incarnation(
    store: SegmentStore, logs: DurableLogFactory, zombie: SegmentContainer, *, is_patient: bool
) -> ContainerOpening:
    settings, log = store.settings.container, logs.create(zombie.id)
    if not is_patient:
        settings = replace(settings, ownership_lease_s=_HASTE_S)
    incarnation = ContainerOpening(
        zombie.id,
        log=log,
        chunks=store._chunks,
        cache=Cache(store.settings.cache),
        runtime=store.runtime,
        settings=settings,
        on_failure=lambda container, error: None,
        container_count=store.settings.container_count,
    )
    if not is_patient:
        incarnation.ownership = _HastyLease(zombie.id, log, lease_s=_HASTE_S, now_s=store.runtime.monotonic_s)
    return incarnation
