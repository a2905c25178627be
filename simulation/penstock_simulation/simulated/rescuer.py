"""`Rescuer`: a machine on which a store is rebuilt from a snapshot of long-term storage, and nothing else.

It works on a copy, so the cluster keeps running; data lost in the snapshot is still in the cluster.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace

from penstock.administration.storage_administration import CheckProgress
from penstock.administration.storage_recovery import RecoveryReport, recover_store
from penstock.runtime.runtime import Runtime
from penstock.segmentstore.settings import CacheSettings, SegmentStoreSettings
from penstock.segmentstore.store import SegmentStore
from penstock.server.data_directory import DataDirectory
from penstock.server.long_term_storage import open_long_term_storage
from penstock.server.settings import CACHE_BYTES_MIN, StandaloneSettings
from penstock_simulation.simulated.cluster import DATA_DIRECTORY, SimulatedCluster
from penstock_simulation.simulated.host import Host
from penstock_simulation.simulated.objects import SimulatedBucket, SimulatedObjects

_TIER2 = f"{DATA_DIRECTORY}/tier2"
_COPY = "/long-term"


class Rescuer:
    """A separate host, `host`, with a copy of the present long-term storage of all containers of a cluster.

    For clusters with a single long-term storage: one store, or stores that share it.
    """

    def __init__(self, cluster: SimulatedCluster, name: str) -> None:
        simulation, settings = cluster.simulation, cluster.settings
        self.host: Host = simulation.host(name)
        self._bucket = SimulatedBucket()
        disk = cluster.shared_disk.disk if cluster.shared_disk is not None else cluster.stores[0].disk
        if settings.remote_faults is not None:
            place = "" if cluster.shared_disk is not None else cluster.stores[0].name
            self._bucket.contents.update(cluster.buckets[place].contents)
        else:
            for path, content in disk.files().items():
                if path.startswith(f"{_TIER2}/"):
                    self.host.disk.tree.place(_COPY + path.removeprefix(_TIER2), content)
        runtime = self.host.runtime
        objects_rng = simulation.rng(f"objects of {name}")
        self._runtime = Runtime(
            disk=runtime.disk,
            work=runtime.work,
            rng=runtime.rng,
            wall_clock_ms=runtime.wall_clock_ms,
            open_objects=lambda place, settings: SimulatedObjects(self._bucket, objects_rng),
        )
        self._settings = StandaloneSettings(
            data_dir=DATA_DIRECTORY,
            tier2=_COPY if settings.remote_faults is None else "s3://simulated",
            segment_store=replace(settings.segment_store, cache=CacheSettings(bytes_max=CACHE_BYTES_MIN)),
            durable_log=settings.durable_log,
            long_term_storage=settings.long_term_storage,
        )

    async def recover(self) -> RecoveryReport:
        """Build the data directory. Raises the errors of `recover_store`. Run it on `host`, like the methods below."""
        return await recover_store(self._settings, self._runtime, _unseen)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[SegmentStore]:
        """Run a store with all containers on the recovered data."""
        settings: SegmentStoreSettings = self._settings.segment_store
        directory = DataDirectory(DATA_DIRECTORY, self._runtime)
        identity = directory.open(settings.container_count)
        store = SegmentStore(
            logs=directory.logs(identity, self._settings.durable_log),
            chunks=open_long_term_storage(self._settings, directory, self._runtime),
            cluster_id=identity.cluster_id,
            runtime=self._runtime,
            settings=settings,
        )
        await store.start()
        try:
            yield store
        finally:
            await store.stop()
            directory.close()

    def recovered_files(self) -> dict[str, bytes]:
        """Return the contents of the data directory."""
        return {path: content for path, content in self.host.disk.files().items() if path.startswith(DATA_DIRECTORY)}


def replace_machines(cluster: SimulatedCluster, rescuer: Rescuer) -> None:
    """Replace all local data of the cluster's stores, which are down, by the recovered data directory."""
    recovered = rescuer.recovered_files()
    for disk in [host.disk for host in cluster.stores] if cluster.shared_disk is None else [cluster.shared_disk.disk]:
        kept = {path: content for path, content in disk.files().items() if path.startswith(f"{_TIER2}/")}
        disk.become(kept | recovered)
    if cluster.shared_disk is not None:
        # Each host has its own identity there, and nothing else.
        for host in cluster.stores:
            host.disk.become({})


@contextmanager
def _unseen(total_bytes: int) -> Iterator[CheckProgress]:
    class Unseen:
        def note(self, chunk_count: int, length_bytes: int) -> None:
            """See `CheckProgress`."""

    yield Unseen()
