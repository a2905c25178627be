"""Write throughput of three segment stores on one machine, beside one process; both with a log in a bucket.

    python bench/cluster_throughput.py

The same blocks are offered to the same number of segments, spread over all containers, in turns: one process, three
stores, one process, .... The ratio is that of the medians. Needs Java and versitygw.
"""

from __future__ import annotations

import asyncio
import statistics
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from _cluster import Cluster, S3Server, local_cluster, settings_of
from _common import parser, raw_disk, report, server, work_directory
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


async def throughput(uri: str, ports: list[int], options: Options) -> float:
    """Return megabytes per second, acknowledged. `ports`: of the store of each container."""
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
    try:
        blocks, took_s = await load.run_for(options.seconds)
    finally:
        await load.close()
    return blocks * events * 100 / took_s / 1e6


def one_process(directory: Path, bucket_server: S3Server, name: str, options: Options) -> float:
    """Measure `penstock standalone` on a bucket of its own."""
    bucket = bucket_server.make_bucket(name).bucket
    config = directory / "standalone.toml"
    config.write_text(settings_of(bucket_server))
    where = ("--config", str(config), "--log", f"s3://{bucket}/log", "--tier2", f"s3://{bucket}/data")
    settings = {"segment_store.container_count": options.containers}
    with server(directory / name, *where, settings=settings) as running:
        return asyncio.run(throughput(running.uri, [running.store_port] * options.containers, options))


def three_stores(cluster: Cluster, options: Options) -> float:
    """Measure the cluster."""
    rows = cluster.status("containers")["containers"]
    assert isinstance(rows, list)
    ports = [cluster.ports[str(row["holder"])] for row in rows]
    return asyncio.run(throughput(cluster.uri("c1"), ports, options))


def main() -> None:
    """Measure, and print JSON."""
    made = parser(__doc__ or "")
    made.add_argument("--rounds", type=int, default=5)
    made.add_argument("--segments", type=int, default=48)
    made.add_argument("--block-bytes", type=int, default=10_000)
    made.add_argument("--window", type=int, default=256)
    made.add_argument("--containers", type=int, default=12)
    arguments = made.parse_args()
    if arguments.quick:
        arguments.rounds, arguments.seconds, arguments.segments, arguments.containers = 1, 0.5, 6, 3
    options = Options(
        arguments.seconds, arguments.segments, arguments.block_bytes, arguments.window, arguments.containers
    )
    single: list[float] = []
    several: list[float] = []
    with work_directory(arguments) as work:
        directory = work.resolve()
        disk = raw_disk(directory)
        with local_cluster(directory, options.containers, stores=STORES, controllers=("c1",)) as (cluster, _, bucket):
            for number in range(arguments.rounds):
                single.append(one_process(directory, bucket, f"single-{number}", options))
                several.append(three_stores(cluster, options))
    figures = {
        "one_process_mb_per_s": [round(each, 2) for each in single],
        "three_stores_mb_per_s": [round(each, 2) for each in several],
        "ratio": round(statistics.median(several) / statistics.median(single), 3),
    }
    report("cluster_throughput", {"raw_disk": disk, "containers": options.containers, **figures})


if __name__ == "__main__":
    main()
