"""The logs of a cluster, found by its identity in ZooKeeper; and `sweep_cluster`, which deletes what is left over.

Nothing is stopped for it. All changes are those of `ObjectLogAdministration`, which are conditional.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

from penstock.administration.bookkeeper_administration import (
    BookKeeperAdministration,
    LedgerSweepReport,
    ledger_logs,
)
from penstock.administration.ledger_rebuild import RebuiltLog
from penstock.administration.object_log_administration import LogSweepReport, ObjectLogAdministration, object_logs
from penstock.model.cluster_nodes import (
    ASSIGNMENT_PATH,
    CONTROLLERS_PATH,
    DRAINS_PATH,
    ELECTION_PATH,
    ENDS_PATH,
    HELD_PATH,
    HOSTS_PATH,
    IDENTITY_PATH,
    LOADS_PATH,
    ClusterIdentity,
    split_host_node_name,
)
from penstock.model.errors import InvalidArgumentError, UnsupportedOperationError
from penstock.model.errors.coordination import (
    CoordinationOutcomeUnknownError,
    NoSuchNodeError,
)
from penstock.runtime.coordination import CoordinationStore
from penstock.runtime.ledgers import is_ledger_place
from penstock.runtime.objects import DIRECTORY_SCHEME, OBJECT_SCHEMES
from penstock.runtime.runtime import Runtime
from penstock.server.cluster.identity import open_coordination, read_identity
from penstock.server.errors import ClusterMismatchError
from penstock.server.settings import StandaloneSettings

_KNOWN_PATHS = frozenset((
    IDENTITY_PATH, HOSTS_PATH, HELD_PATH, ASSIGNMENT_PATH, DRAINS_PATH, LOADS_PATH, ENDS_PATH, CONTROLLERS_PATH,
    ELECTION_PATH, "/logs",
))  # fmt: skip
_ATTEMPTS_MAX = 5


@dataclass(frozen=True, slots=True)
class ClusterSweepReport:
    """What a sweep of a cluster has found.

    Attributes:
        is_dry_run: whether nothing was changed.
        log: of the logs in the bucket, or in BookKeeper.
        ends: incarnations whose proofs of their end were deleted, or would be: no record of a log names them.
        kept_end_count: proofs that are kept.
        idle_drains: drained stores that are not live. Their drains stay: the stores may come back.
        foreign_nodes: nodes that are not of a cluster; they stay.
    """

    is_dry_run: bool
    log: LogSweepReport | LedgerSweepReport
    ends: Sequence[str]
    kept_end_count: int
    idle_drains: Sequence[str]
    foreign_nodes: Sequence[str]


@asynccontextmanager
async def cluster_logs(
    store: CoordinationStore, place: str, settings: StandaloneSettings, runtime: Runtime
) -> AsyncIterator[ObjectLogAdministration | BookKeeperAdministration]:
    """Open the logs of the cluster in `store`, a session at `place`. Bucket or bookies are reached as the settings say.

    Raises:
        UnknownClusterError: there is no cluster.
        UnsupportedOperationError: its logs are neither in a bucket nor in BookKeeper.
        ClusterMismatchError: the log in the bucket is another cluster's.
        InvalidArgumentError: no segment store of the cluster was started yet.
        StorageError, CoordinationError, CorruptionError: as they say.
    """
    identity = await read_identity(store, place)
    if is_ledger_place(identity.log):
        service = open_coordination(replace(settings.cluster, zookeeper=place))
        async with ledger_logs(identity, service, settings, runtime) as in_ledgers:
            yield in_ledgers
        return
    _demand_bucket(identity, place)
    missing = f"no segment store of the cluster at {place} was started yet"
    async with object_logs(identity.log, settings, runtime, missing=missing) as logs:
        if logs.cluster_id != identity.cluster_id:
            raise ClusterMismatchError(
                f"the log in {identity.log} belongs to cluster {logs.cluster_id}, not to the one at {place}, "
                f"{identity.cluster_id}: nothing was changed"
            )
        yield logs


async def sweep_cluster(
    store: CoordinationStore, place: str, settings: StandaloneSettings, runtime: Runtime, *, is_dry_run: bool
) -> ClusterSweepReport:
    """Delete objects or ledgers of the log that no record includes, and proofs of ends that no record needs.

    Segment stores may run. Why nothing that is needed is deleted: docs/object-log.md, docs/cluster.md. Raises as
    `cluster_logs`, and `UnreadableDataError` if a record is damaged: then nothing was deleted.
    """
    async with cluster_logs(store, place, settings, runtime) as logs:
        # The proofs come first: a process that has ended opens no log, so no record begins to name it.
        ends = await _names(store, ENDS_PATH)
        swept = await logs.sweep(is_dry_run=is_dry_run)
        owners = await logs.owners()
        hosts = [split_host_node_name(each) for each in await _names(store, HOSTS_PATH)]
        live = {incarnation for _, incarnation in hosts}
        gone = [each for each in ends if each not in owners and each not in live]
        if not is_dry_run:
            await _delete(store, [f"{ENDS_PATH}/{each}" for each in gone])
        names = {name for name, _ in hosts}
        drains = await _names(store, DRAINS_PATH)
        top = await _names(store, "/")
        return ClusterSweepReport(
            is_dry_run=is_dry_run,
            log=swept,
            ends=gone,
            kept_end_count=len(ends) - len(gone),
            idle_drains=[each for each in drains if each not in names],
            foreign_nodes=[f"/{each}" for each in top if f"/{each}" not in _KNOWN_PATHS],
        )


async def rebuild_cluster_logs(
    store: CoordinationStore, place: str, settings: StandaloneSettings, runtime: Runtime, *, is_dry_run: bool
) -> Sequence[RebuiltLog]:
    """Make records of logs in BookKeeper that ZooKeeper has lost again. Errors as `cluster_logs`, and:

    Raises:
        InvalidArgumentError: a store of the cluster runs.
        UnsupportedOperationError: the logs are in a bucket, where their records are, too.
    """
    async with cluster_logs(store, place, settings, runtime) as logs:
        if not isinstance(logs, BookKeeperAdministration):
            raise UnsupportedOperationError(
                f"the logs of the cluster at {place} are in a bucket, and so are their records: "
                "ZooKeeper has nothing of them"
            )
        running = sorted({split_host_node_name(each)[0] for each in await _names(store, HOSTS_PATH)})
        if running:
            raise InvalidArgumentError(
                f"segment stores run: {', '.join(running)}. Stop all of them first; nothing was changed"
            )
        return await logs.rebuild(is_dry_run=is_dry_run)


def _demand_bucket(identity: ClusterIdentity, place: str) -> None:
    if identity.log.partition("://")[0] not in (*OBJECT_SCHEMES, DIRECTORY_SCHEME):
        raise UnsupportedOperationError(
            f"the logs of the cluster at {place} are in {identity.log}, not in a bucket: this command works on logs in "
            "buckets only. Nothing was changed"
        )


async def _names(store: CoordinationStore, path: str) -> list[str]:
    try:
        return sorted((await store.children(path)).names)
    except NoSuchNodeError:
        return []


async def _delete(store: CoordinationStore, paths: Collection[str]) -> None:
    """Delete nodes; repeated where the answer is lost. Raises `CoordinationError`."""
    for path in paths:
        for attempt in range(_ATTEMPTS_MAX):
            try:
                await store.delete(path)
            except NoSuchNodeError:
                pass
            except CoordinationOutcomeUnknownError:
                if attempt + 1 == _ATTEMPTS_MAX:
                    raise
                continue
            break
