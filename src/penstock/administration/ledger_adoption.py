"""`LedgerAdoption`: takes a log in BookKeeper over for a cluster whose ZooKeeper has lost its data.

BookKeeper's own metadata must be intact, in a ZooKeeper of its own or at another path.
"""

from __future__ import annotations

from penstock.administration.bookkeeper_administration import ledger_logs, open_ledgers
from penstock.administration.ledger_rebuild import RebuildState, labelled_ledgers
from penstock.model.cluster_nodes import ClusterIdentity
from penstock.model.errors import CorruptionError, LogDamagedError
from penstock.runtime.coordination import CoordinationService
from penstock.runtime.runtime import Runtime
from penstock.server.errors import ClusterMismatchError
from penstock.server.settings import StandaloneSettings


class LedgerAdoption:
    """See the module, and `penstock.server.cluster.initialisation.LedgerAdoption`."""

    async def cluster_id(self, log: str, settings: StandaloneSettings, runtime: Runtime) -> str:
        """Return the id of the only cluster that has ledgers there. Raises `ClusterMismatchError`."""
        ledgers = open_ledgers(log, settings, runtime)
        try:
            await ledgers.start()
            found = {labels.cluster_id async for _, labels in labelled_ledgers(ledgers)}
        finally:
            await ledgers.close()
        if not found:
            raise ClusterMismatchError(
                f"there is no log in {log}: --adopt takes over one that a cluster has written. If BookKeeper's "
                "metadata were lost with ZooKeeper, recover from images in long-term storage"
            )
        if len(found) > 1:
            raise ClusterMismatchError(
                f"clusters {', '.join(sorted(found))} have ledgers in {log}: it is not known which one is adopted"
            )
        return found.pop()

    async def rebuild(
        self,
        identity: ClusterIdentity,
        service: CoordinationService,
        settings: StandaloneSettings,
        runtime: Runtime,
    ) -> None:
        """Make the records of its logs again. Raises `LogDamagedError` if those of one cannot be made."""
        async with ledger_logs(identity, service, settings, runtime) as logs:
            for each in await logs.rebuild(is_dry_run=False):
                if each.state is RebuildState.DAMAGED:
                    raise LogDamagedError(
                        each.container, CorruptionError(f"container {each.container}", 0, each.problem),
                        advice="The cluster was not made. Start bookies that are away and repeat this command, or "
                        "recover from images in long-term storage",
                    )  # fmt: skip
