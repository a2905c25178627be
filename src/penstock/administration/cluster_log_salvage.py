"""`salvage_cluster_log`: replaces a damaged log of a cluster, in a bucket or in BookKeeper, while the cluster runs.

The design, and why each crash is harmless: docs/recovery.md, "A damaged log of a cluster".
"""

from __future__ import annotations

from penstock.administration.bookkeeper_administration import BookKeeperAdministration
from penstock.administration.cluster_logs import cluster_logs
from penstock.administration.ledger_salvage import salvage_ledger_log
from penstock.administration.log_salvage import Salvaged
from penstock.administration.object_log_salvage import salvage_object_log
from penstock.model.cluster_nodes import HELD_PATH, HeldNode, HeldPhase, decode_node
from penstock.model.errors import InvalidArgumentError
from penstock.model.errors.coordination import NoSuchNodeError
from penstock.runtime.coordination import CoordinationStore
from penstock.runtime.runtime import Runtime
from penstock.server.cluster.identity import cluster_settings, read_identity
from penstock.server.settings import StandaloneSettings


async def salvage_cluster_log(
    store: CoordinationStore,
    place: str,
    settings: StandaloneSettings,
    runtime: Runtime,
    container_id: int,
    *,
    is_dry_run: bool,
    is_without_absent: bool = False,
) -> Salvaged:
    """Replace the damaged log of a container by a new one with everything in it that is intact.

    With `is_dry_run` nothing is changed, and a store may serve the container. The container starts again by itself.
    `is_without_absent`: what only bookies have that do not answer is lost.

    Raises:
        InvalidArgumentError: a store serves the container, the log is not damaged, or it does not exist.
        LogNotSalvageableError: neither the log nor long-term storage has a whole checkpoint to begin with.
        LogFencedError: another process has changed the log meanwhile. It is as before.
        CorruptionError, LaterVersionError: its record cannot be read.
        ClusterMismatchError: the settings contradict the cluster.
        StorageUnavailableError, StorageIdentityError: long-term storage is missing, or belongs to another cluster.
        StorageError, CoordinationError: the bucket, the bookies or ZooKeeper do not answer.
    """
    settings = cluster_settings(settings, await read_identity(store, place), place)
    enable_command = f"penstock cluster log enable {container_id}"
    async with cluster_logs(store, place, settings, runtime) as logs:
        if not is_dry_run:
            await _demand_not_served(store, container_id)
        if isinstance(logs, BookKeeperAdministration):
            return await salvage_ledger_log(
                logs, settings, runtime, container_id, enable_command=enable_command, is_dry_run=is_dry_run,
                is_without_absent=is_without_absent,
            )  # fmt: skip
        if is_without_absent:
            raise InvalidArgumentError("the logs of this cluster are in a bucket: there are no bookies")
        return await salvage_object_log(
            logs, settings, runtime, container_id, enable_command=enable_command, is_dry_run=is_dry_run
        )


async def _demand_not_served(store: CoordinationStore, container_id: int) -> None:
    """Raise `InvalidArgumentError` if a store serves a container. The log itself shuts out one that begins later."""
    path = f"{HELD_PATH}/{container_id}"
    try:
        held = decode_node(HeldNode, path, (await store.get(path)).content)
    except NoSuchNodeError:
        return
    if held.phase is not HeldPhase.OPENING:
        raise InvalidArgumentError(
            f"store {held.owner} serves container {container_id}: end that with penstock cluster log disable "
            f"{container_id}, and repeat this command. Nothing was changed"
        )


__all__ = ["salvage_cluster_log"]
