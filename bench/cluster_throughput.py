"""Write throughput of three segment stores on one machine, beside one process; both with a log in a bucket.

    python bench/cluster_throughput.py

The same blocks are offered to the same number of segments, spread over all containers, in turns: one process, three
stores, one process, .... The ratio is that of the medians. The CPU time of each kind of process is measured, too: what
a megabyte costs depends less on other work of the machine. The log has its default interval between objects: each
object costs the store and the S3 server about 2 ms of CPU each, and three stores create three times as many. Needs Java
and versitygw.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from _cluster import Cluster, S3Server, ZooKeeperServers, default_settings_of, local_cluster
from _common import cpu_s, parser, raw_disk, report, server, work_directory
from _load import AppendLoad, block_of
from penstock.client.client import Client
from penstock.model.errors import SegmentExistsError
from penstock.model.names import segment_name
from penstock.model.routing import container_of

STORES = ("s1", "s2", "s3")
_WRITERS = 4


@dataclass(frozen=True, slots=True)
class Options:
    """What is measured. `window`: blocks under way."""

    seconds: float
    segments: int
    block_bytes: int
    window: int
    containers: int


@dataclass(frozen=True, slots=True)
class Measured:
    """Megabytes per second, acknowledged, and what a megabyte costs: ms of CPU by kind of process."""

    mb_per_s: float
    cpu_ms_per_mb: dict[str, float]


async def throughput(uri: str, ports: list[int], options: Options, pids: Mapping[str, Sequence[int]]) -> Measured:
    """Measure. `ports`: of the store of each container; `pids`: by kind of process."""
    segments: dict[int, list[str]] = defaultdict(list)
    async with Client(uri) as client:
        for number in range(options.segments):
            name = segment_name("bench", f"load-{number}", 0)
            try:
                await client._segment_client.create_segment(name)
            except SegmentExistsError:
                pass  # Of the round before.
            segments[ports[container_of(name, len(ports))]].append(name)
    events = max(1, options.block_bytes // 100)
    load = AppendLoad(segments, writers=_WRITERS, block=block_of(100, events), event_count=events)
    await load.set_up(options.window)
    pids = {**pids, "load": [os.getpid()]}
    before = _cpu_s(pids)
    try:
        blocks, took_s = await load.run_for(options.seconds)
    finally:
        await load.close()
    megabytes = blocks * events * 100 / 1e6
    cost = {kind: round(1000 * (used_s - before[kind]) / megabytes, 2) for kind, used_s in _cpu_s(pids).items()}
    return Measured(round(megabytes / took_s, 2), cost)


def _cpu_s(pids: Mapping[str, Sequence[int]]) -> dict[str, float]:
    return {kind: sum(map(cpu_s, each)) for kind, each in pids.items()}


def _pids(bucket_server: S3Server, **others: Sequence[int]) -> dict[str, Sequence[int]]:
    assert bucket_server.process is not None
    return {"s3": [bucket_server.process.pid], **others}


def one_process(directory: Path, bucket_server: S3Server, name: str, options: Options) -> Measured:
    """Measure `penstock standalone` on a bucket of its own."""
    bucket = bucket_server.make_bucket(name).bucket
    config = directory / "standalone.toml"
    config.write_text(default_settings_of(bucket_server))
    where = ("--config", str(config), "--log", f"s3://{bucket}/log", "--tier2", f"s3://{bucket}/data")
    settings = {"segment_store.container_count": options.containers}
    with server(directory / name, *where, settings=settings) as running:
        pids = _pids(bucket_server, server=[running.pid])
        return asyncio.run(throughput(running.uri, [running.store_port] * options.containers, options, pids))


def three_stores(cluster: Cluster, zookeepers: ZooKeeperServers, bucket_server: S3Server, options: Options) -> Measured:
    """Measure the cluster, once each store has its share."""
    while True:
        rows = cluster.status("containers")["containers"]
        assert isinstance(rows, list)
        counts = Counter(row["holder"] for row in rows if row["phase"] == "serving")
        if counts.keys() == set(STORES) and max(counts.values()) - min(counts.values()) <= 1:
            break
        time.sleep(0.5)
    ports = [cluster.ports[str(row["holder"])] for row in rows]
    parents = [process.process.pid for process in cluster.processes.values() if process.process is not None]
    pids = _pids(
        bucket_server,
        stores=[pid for name in STORES for pid in cluster.processes[name].store_pids()],
        parents_and_controller=parents,
        zookeeper=[pid for number in range(zookeepers.count) if (pid := zookeepers.pid(number)) is not None],
    )
    return asyncio.run(throughput(cluster.uri("c1"), ports, options, pids))


def main() -> None:
    """Measure, and print JSON."""
    made = parser(__doc__ or "")
    made.add_argument("--rounds", type=int, default=5)
    made.add_argument("--segments", type=int, default=48)
    made.add_argument("--block-bytes", type=int, default=10_000)
    made.add_argument("--window", type=int, default=2048)
    made.add_argument("--containers", type=int, default=12)
    arguments = made.parse_args()
    if arguments.quick:
        arguments.rounds, arguments.seconds, arguments.segments, arguments.containers = 1, 0.5, 6, 3
    options = Options(
        arguments.seconds, arguments.segments, arguments.block_bytes, arguments.window, arguments.containers
    )
    single: list[Measured] = []
    several: list[Measured] = []
    with work_directory(arguments) as work:
        directory = work.resolve()
        disk = raw_disk(directory)
        with local_cluster(
            directory, options.containers, stores=STORES, controllers=("c1",), settings=default_settings_of
        ) as (cluster, zookeepers, bucket):
            for number in range(arguments.rounds):
                single.append(one_process(directory, bucket, f"single-{number}", options))
                several.append(three_stores(cluster, zookeepers, bucket, options))
    speeds = [statistics.median(each.mb_per_s for each in turns) for turns in (single, several)]
    costs = [statistics.median(sum(each.cpu_ms_per_mb.values()) for each in turns) for turns in (single, several)]
    figures = {
        "one_process": [asdict(each) for each in single],
        "three_stores": [asdict(each) for each in several],
        "ratio": round(speeds[1] / speeds[0], 3),
        "cpu_per_mb_ratio": round(costs[1] / costs[0], 3),
    }
    report("cluster_throughput", {"raw_disk": disk, "containers": options.containers, **figures})


if __name__ == "__main__":
    main()
