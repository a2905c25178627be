"""A cluster whose processes are killed while tests of a single server use it.

`KilledCluster` runs it and kills one store and one controller at intervals. `ClusterServer` is what those tests get as
their server: a stop or a kill by the test does nothing, because something dies all the time.
"""

from __future__ import annotations

import asyncio
import os
import random
import threading
import uuid
from pathlib import Path
from types import TracebackType

import penstock
from penstock.model.errors import PenstockError
from penstock.server.standalone_process import StandaloneProcess
from support.cluster_processes import WAIT_S, Cluster, kill_process
from support.network_cluster import SETTINGS
from support.s3_server import ACCESS_KEY, SECRET_KEY, S3Server
from support.zookeeper_server import ZooKeeperServers

#: Variable with the controllers of a cluster, for tests that would start a server otherwise.
VARIABLE = "PENSTOCK_TEST_CLUSTER"
STORES, CONTROLLERS = ("s1", "s2", "s3"), ("c1", "c2")
INTERVAL_S = 20.0
#: Bound of the start of a killed process, on a machine that has much other work.
START_S = 600.0
CONTAINERS = 6


class ClusterServer(StandaloneProcess):
    """See the module. `uri`: of controllers that run already."""

    def __init__(self, directory: Path, uri: str) -> None:
        super().__init__(directory)
        self._uri = uri

    @property
    def uri(self) -> str:
        """The controllers."""
        return self._uri

    @property
    def is_running(self) -> bool:
        """Always: nothing has to be stopped in the end."""
        return True

    def start(self) -> ClusterServer:
        """Return at once."""
        return self

    def kill9(self) -> None:
        """Do nothing."""

    def terminate(self) -> int:
        """Do nothing."""
        return 0

    def empty(self) -> ClusterServer:
        """Delete what tests before have made, however often something is killed meanwhile."""

        async def delete_all() -> None:
            async with asyncio.timeout(WAIT_S), penstock.aio.connect(self._uri) as client:
                while True:
                    try:
                        scopes = [each async for each in client.scopes() if not each.startswith("_")]
                        if not scopes:
                            return
                        await client.delete_scope(scopes[0], recursive=True)
                    except PenstockError:
                        await asyncio.sleep(0.5)

        asyncio.run(delete_all())
        return self


class KilledCluster:
    """Three stores and two controllers. In its block one of each is killed every `INTERVAL_S`, and started again.

    Half of the stores are killed with their parents, as if the host was lost.

    Attributes:
        kill_count: processes killed so far.
        problem: an error of the thread that kills.
    """

    def __init__(self, directory: Path, zookeeper: ZooKeeperServers, bucket_server: S3Server, seed: int) -> None:
        bucket = bucket_server.make_bucket(f"b{uuid.uuid4().hex[:12]}").bucket
        settings = SETTINGS.format(endpoint=bucket_server.endpoint, access_key=ACCESS_KEY, secret_key=SECRET_KEY)
        place = f"{zookeeper.address}/{bucket}"
        self.cluster = Cluster(directory, place, f"s3://{bucket}/log", f"s3://{bucket}/data", settings)
        self.kill_count = 0
        self.problem: BaseException | None = None
        self._rng = random.Random(seed)
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> KilledCluster:
        try:
            self._start()
        except BaseException:
            self.cluster.stop()
            raise
        self._thread.start()
        return self

    def _start(self) -> None:
        cluster = self.cluster
        cluster.init(CONTAINERS)
        for name in STORES:
            cluster.start_store(name)
        for name in CONTROLLERS:
            cluster.start_controller(name)
        for process in cluster.processes.values():
            process.wait_ready()
        cluster.wait_served()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_over.set()
        self._thread.join()
        self.cluster.stop()

    def _run(self) -> None:
        try:
            while not self._is_over.wait(INTERVAL_S):
                self._kill_one_of_each()
        except BaseException as error:  # noqa: BLE001  # the test reports it
            self.problem = error

    def _kill_one_of_each(self) -> None:
        processes = self.cluster.processes
        store, controller = self._rng.choice(STORES), self._rng.choice(CONTROLLERS)
        processes[controller].kill()
        if self._rng.random() < 0.5:
            processes[store].kill()
            self.cluster.start_store(store)
        else:
            for pid in processes[store].store_pids():
                kill_process(pid)
        self.cluster.start_controller(controller)
        self.kill_count += 2
        for name in (store, controller):
            processes[name].wait_ready(START_S)

    def environment(self, *controllers: str) -> dict[str, str]:
        """Return the variables with which tests use this cluster instead of a server."""
        return {**os.environ, VARIABLE: self.cluster.uri(*(controllers or CONTROLLERS))}
