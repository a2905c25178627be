"""`init_cluster`: what ``penstock cluster init`` does."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from penstock.model.cluster_nodes import ClusterIdentity
from penstock.model.errors import InvalidArgumentError
from penstock.runtime.coordination import CoordinationService
from penstock.runtime.ledgers import is_ledger_place
from penstock.runtime.objects import ObjectPlace
from penstock.runtime.runtime import Runtime, real_runtime
from penstock.segmentstore.tier1.object_log.log_bucket import LogBucket
from penstock.segmentstore.tier1.object_log.server_claim import read_identity as read_log_identity
from penstock.server.cluster.identity import (
    check_identity,
    make_cluster,
    new_identity,
    read_identity,
    wait_for_session,
)
from penstock.server.cluster.machine import LocalMachine, Machine
from penstock.server.errors import ClusterMismatchError, UnknownClusterError
from penstock.server.settings import StandaloneSettings


class LedgerAdoption(Protocol):
    """How a log in BookKeeper is taken over from a cluster whose ZooKeeper has lost its data."""

    async def cluster_id(self, log: str, settings: StandaloneSettings, runtime: Runtime) -> str:
        """Return the id of the cluster that has written the log. Raises `ClusterMismatchError`."""

    async def rebuild(
        self,
        identity: ClusterIdentity,
        service: CoordinationService,
        settings: StandaloneSettings,
        runtime: Runtime,
    ) -> None:
        """Make the records of its logs again. Raises `LogDamagedError` if those of one cannot be made."""


@dataclass(frozen=True, slots=True)
class MadeCluster:
    """A cluster's identity, and whether it was, or would be, made by this call."""

    identity: ClusterIdentity
    is_new: bool


async def init_cluster(
    settings: StandaloneSettings,
    *,
    containers: int,
    log: str,
    tier2: str,
    lease_s: float,
    adopts: bool,
    is_dry: bool,
    adoption: LedgerAdoption | None = None,
    runtime: Runtime | None = None,
    machine: Machine | None = None,
) -> MadeCluster:
    """Make a cluster, unless it is there. `adopts`: it has the id of the cluster that has written the log.

    `adoption`: needed for the adoption of a log in BookKeeper.
    Raises `ClusterMismatchError` if another one is there, or the log is another one's; `CoordinationError`.
    """
    if containers < 1 or lease_s <= 0:
        raise InvalidArgumentError(f"{containers} containers with a lease of {lease_s:g} s: both are above 0")
    if adopts and is_ledger_place(log) and adoption is None:
        raise InvalidArgumentError(f"the log in {log} cannot be adopted by this call")
    runtime = runtime or real_runtime(1)
    try:
        # Checks both URLs, and that neither is inside of the other.
        checked = StandaloneSettings(
            log=log, tier2=tier2, object_storage=settings.object_storage, cluster=settings.cluster
        )
        service = (machine or LocalMachine()).coordination(settings.cluster)
        store = await wait_for_session(service, settings.cluster.connect_timeout_s, makes_root=not is_dry)
        try:
            try:
                found = await read_identity(store, service.place)
            except UnknownClusterError:
                pass
            else:
                check_identity(service.place, found, containers=containers, log=log, tier2=tier2)
                return MadeCluster(found, is_new=False)
            if adoption is not None and adopts and is_ledger_place(checked.log):
                cluster_id = await adoption.cluster_id(checked.log, settings, runtime)
            elif is_ledger_place(checked.log):
                cluster_id = ""
            else:
                cluster_id = await _log_cluster(runtime, settings, checked.log, containers, adopts=adopts)
            wanted = new_identity(
                runtime, containers=containers, log=log, tier2=tier2, lease_s=lease_s, cluster_id=cluster_id
            )
            if is_dry:
                return MadeCluster(wanted, is_new=True)
            if adoption is not None and adopts and is_ledger_place(checked.log):
                # Before the identity: without it no store starts, which would begin empty logs.
                await adoption.rebuild(wanted, service, settings, runtime)
            return MadeCluster(*await make_cluster(store, service.place, wanted))
        finally:
            await store.close()
    finally:
        await runtime.work.close()


async def _log_cluster(
    runtime: Runtime, settings: StandaloneSettings, log: str, containers: int, *, adopts: bool
) -> str:
    """Return the id of the cluster that has written the log in a bucket; empty if it is new."""
    place = ObjectPlace.parse(log)
    objects = runtime.open_objects(place, settings.object_storage.store)
    try:
        found = await read_log_identity(LogBucket(objects, settings.object_log, prefix=place.prefix))
    finally:
        await objects.close()
    if found is None:
        if adopts:
            raise ClusterMismatchError(f"there is no log in {log}: --adopt takes over one that a cluster has written")
        return ""
    if not adopts:
        raise ClusterMismatchError(
            f"the log in {log} belongs to cluster {found.cluster_id}: name another place, or take it over with "
            "--adopt if that cluster's ZooKeeper has lost its data"
        )
    if found.container_count != containers:
        raise ClusterMismatchError(
            f"the log in {log} was made with {found.container_count} containers: init with --containers "
            f"{found.container_count}"
        )
    return found.cluster_id
