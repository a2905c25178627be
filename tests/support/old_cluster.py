"""Makes the clusters of `tests/data/old/clusters`, each with the code of an earlier commit.

    git archive COMMIT | tar x -C /tmp/old
    PYTHONPATH=tests python -m support.old_cluster /tmp/old/src tests/data/old/clusters/DATE-COMMIT.tar.xz

ZooKeeper and the bucket are real. What is written is that of `old_data_directory`; then all processes are killed. An
archive has the objects of the bucket in `bucket/`, and in `nodes.json` the content of each node of ZooKeeper, of live
processes too, by path below the root of the cluster. `tests/e2e/test_old_clusters.py` reads it with the code of today.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import io
import json
import lzma
import subprocess
import sys
import tarfile
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from support.cluster_processes import WAIT_S, Cluster, environment_of
from support.s3_server import ACCESS_KEY, SECRET_KEY, S3Server
from support.zookeeper_server import ZooKeeperServers

CONTAINERS = 2
_DIRECTORY = Path(__file__).parents[1] / "data" / "old" / "clusters"
#: Names of the archives: date and commit.
ARCHIVES = sorted(path.name.partition(".")[0] for path in _DIRECTORY.glob("*.tar.xz"))
#: Nodes that stay when all processes have ended; their children were made by live ones.
_PERSISTENT = ("/identity", "/assignment")
#: Of the bucket, and of the root in ZooKeeper.
BUCKET = "old"
SETTINGS = """
[object_storage]
flush_bytes = 65536
flush_age_s = 0.5

[object_storage.store]
endpoint = "{endpoint}"
region = "us-east-1"
access_key_id = "{access_key}"
secret_access_key = "{secret_key}"

[cluster.leader]
join_delay_s = 1.0
first_wait_s = 1.0
"""
_WRITE = """
import os, sys
from support.old_data_directory import leave_a_transaction_open, write_all
write_all(sys.argv[1])
kept = leave_a_transaction_open(sys.argv[1])
print("written", flush=True)
sys.stdin.read()
os._exit(0)
"""


@dataclass(frozen=True, slots=True)
class OldCluster:
    """What a cluster has left: the content of each object by key, and of each node by path."""

    objects: dict[str, bytes]
    nodes: dict[str, bytes]


def unpacked(name: str) -> OldCluster:
    """Return a cluster of `ARCHIVES`."""
    objects: dict[str, bytes] = {}
    nodes: dict[str, bytes] = {}
    with lzma.open(_DIRECTORY / f"{name}.tar.xz") as file, tarfile.open(fileobj=file) as archive:
        for entry in archive:
            content = archive.extractfile(entry)
            assert content is not None
            if entry.name == "nodes.json":
                nodes = {path: base64.b64decode(text) for path, text in json.loads(content.read()).items()}
            else:
                objects[entry.name.removeprefix("bucket/")] = content.read()
    return OldCluster(objects, nodes)


def restore_objects(server: S3Server, cluster: OldCluster) -> None:
    """Put the objects into the bucket, which is empty."""

    async def put_all() -> None:
        objects = server.open(BUCKET)
        try:
            for key, content in cluster.objects.items():
                await objects.put_new(key, content, "restored")
        finally:
            await objects.close()

    asyncio.run(put_all())


def restore_nodes(zookeeper: ZooKeeperServers, root: str, cluster: OldCluster) -> None:
    """Create the nodes that stay when all processes have ended."""
    from kazoo.client import KazooClient

    client = KazooClient(zookeeper.address)
    client.start(WAIT_S)
    try:
        for path, content in sorted(cluster.nodes.items()):
            if not content or path in _PERSISTENT:
                client.ensure_path(f"{root}{path}".rstrip("/"))
                client.set(f"{root}{path}".rstrip("/"), content)
    finally:
        client.stop()
        client.close()


def settings(server: S3Server) -> str:
    """Return the settings of all processes."""
    return SETTINGS.format(endpoint=server.endpoint, access_key=ACCESS_KEY, secret_key=SECRET_KEY)


def nodes_of(zookeeper: ZooKeeperServers, root: str) -> dict[str, str]:
    """Return the content of each node below a root, as base64, by path below it."""
    from kazoo.client import KazooClient

    client = KazooClient(zookeeper.address)
    client.start(WAIT_S)
    found: dict[str, str] = {}
    try:
        waiting = [root]
        while waiting:
            path = waiting.pop()
            content, _ = client.get(path)
            found[path.removeprefix(root) or "/"] = base64.b64encode(content).decode()
            waiting += [f"{path}/{name}" for name in client.get_children(path)]
    finally:
        client.stop()
        client.close()
    return found


def until_flushed(bucket: Path) -> None:
    """Return once long-term storage has chunks of the streams and of the table."""
    deadline_s = time.monotonic() + WAIT_S
    wanted = ("events", "sealed", "table")
    while not all(any((bucket / "data" / "old").glob(f"{name}*/*.E-*")) for name in wanted):
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"{sorted(map(str, bucket.rglob('*')))}")
        time.sleep(0.1)


def packed(bucket: Path, nodes: dict[str, str]) -> bytes:
    """Return the archive."""
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for path in sorted(bucket.rglob("*")):
            if path.is_file():
                archive.add(path, arcname=f"bucket/{path.relative_to(bucket)}")
        content = json.dumps(nodes, indent=1, sort_keys=True).encode()
        entry = tarfile.TarInfo("nodes.json")
        entry.size = len(content)
        archive.addfile(entry, io.BytesIO(content))
    return lzma.compress(raw.getvalue(), preset=9)


def make(sources: Path, directory: Path) -> bytes:
    """Run a cluster with the code of `sources`, and return what it leaves."""
    zookeeper, server = ZooKeeperServers(directory / "zookeeper", 1).start(), S3Server(directory / "s3").start()
    server.make_bucket(BUCKET)
    cluster = Cluster(
        directory, f"{zookeeper.address}/{BUCKET}", f"s3://{BUCKET}/log", f"s3://{BUCKET}/data", settings(server)
    )
    cluster.sources = sources
    try:
        cluster.init(CONTAINERS)
        cluster.start_store("a")
        cluster.start_controller("c1")
        for process in cluster.processes.values():
            process.wait_ready()
        cluster.wait_served()
        environment = environment_of(sources) | {"PYTHONPATH": f"{sources}:{Path(__file__).parents[1]}"}
        with subprocess.Popen(
            [sys.executable, "-c", _WRITE, cluster.uri("c1")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env=environment,
        ) as writer:  # fmt: skip
            assert writer.stdout is not None
            assert writer.stdout.readline() == "written\n"
            until_flushed(server.directory / "data" / BUCKET)
            nodes = nodes_of(zookeeper, f"/{BUCKET}")
            for process in cluster.processes.values():
                for pid in process.store_pids():
                    subprocess.run(["kill", "-9", str(pid)], check=False)
                process.kill()
            writer.kill()
        return packed(server.directory / "data" / BUCKET, nodes)
    finally:
        cluster.stop()
        server.kill()
        zookeeper.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sources", type=Path)
    parser.add_argument("target", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        data = make(arguments.sources, Path(name))
    arguments.target.parent.mkdir(parents=True, exist_ok=True)
    arguments.target.write_bytes(data)
    print(f"{arguments.target}: {len(data)} bytes")  # noqa: T201  # Its only output.


if __name__ == "__main__":
    main()
