"""A cluster of real processes on this machine, for commands here: ZooKeeper, a bucket, stores and controllers."""

from __future__ import annotations

import sys
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))

from support.cluster_processes import Cluster
from support.network_cluster import SETTINGS
from support.s3_server import ACCESS_KEY, SECRET_KEY, S3Server, S3UnavailableError
from support.zookeeper_server import ZooKeeperServers, ZooKeeperUnavailableError

__all__ = ["Cluster", "S3Server", "ZooKeeperServers", "default_settings_of", "local_cluster", "settings_of"]


def settings_of(bucket_server: S3Server) -> str:
    """Return the settings, as TOML, of processes that use a bucket of a server."""
    return SETTINGS.format(endpoint=bucket_server.endpoint, access_key=ACCESS_KEY, secret_key=SECRET_KEY)


def default_settings_of(bucket_server: S3Server) -> str:
    """Return the same with the defaults for everything but the bucket's server; tests have objects made sooner."""
    settings = bucket_server.settings
    return f"""
[object_storage.store]
endpoint = "{settings.endpoint}"
region = "{settings.region}"
access_key_id = "{ACCESS_KEY}"
secret_access_key = "{SECRET_KEY}"
"""


@contextmanager
def local_cluster(
    directory: Path,
    containers: int,
    *,
    stores: Sequence[str],
    controllers: Sequence[str],
    zookeepers: int = 1,
    settings: Callable[[S3Server], str] = settings_of,
) -> Iterator[tuple[Cluster, ZooKeeperServers, S3Server]]:
    """Run a cluster until the end of the block; it serves. Exits with the reason where it cannot."""
    with ExitStack() as stack:
        try:
            bucket_server = S3Server(directory / "s3").start()
            stack.callback(bucket_server.kill)
            servers = ZooKeeperServers(directory / "zookeeper", zookeepers)
            stack.callback(servers.stop)
            servers.start()
        except (S3UnavailableError, ZooKeeperUnavailableError) as error:
            raise SystemExit(f"there is no cluster: {error}") from error
        bucket = bucket_server.make_bucket(f"b{uuid.uuid4().hex[:12]}").bucket
        where = (f"{servers.address}/{bucket}", f"s3://{bucket}/log", f"s3://{bucket}/data")
        cluster = Cluster(directory, *where, settings(bucket_server))
        stack.callback(cluster.stop)
        cluster.init(containers)
        for name in stores:
            cluster.start_store(name)
        for name in controllers:
            cluster.start_controller(name)
        for process in cluster.processes.values():
            process.wait_ready()
        cluster.wait_served()
        yield cluster, servers, bucket_server
