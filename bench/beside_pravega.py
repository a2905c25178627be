"""The log in BookKeeper beside Pravega 0.13, on the same bookies, with the same load of Pravega's Java client.

    python bench/beside_pravega.py
    python bench/beside_pravega.py --event-bytes 1000 --rate 5000 --rounds 2

ZooKeeper, three bookies, both servers and the client share this machine. Each server has one segment store and one
controller, four containers, the same cache, long-term storage in a directory, and ledgers on three bookies of which two
confirm. Both run all the time, and the client writes to one after the other in alternating rounds: at `--rate` events
per second, and then at full speed, which leaves much to be flushed. `throughput_ratio` is the median of events per
second of Penstock divided by that of Pravega, `p99_ratio` the same of the 99th percentile until the acknowledgement.
Needs Java with a compiler, and Maven.
"""

from __future__ import annotations

import statistics
import sys
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from _common import cpu_s, memory_mb, parser, raw_disk, report, work_directory
from _pravega import VERSION, Pravega, PravegaUnavailableError
from java_client import event_load

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))

from penstock_simulation.java_client import JavaUnavailableError, classpath, java_with_compiler
from support.bookkeeper_server import Bookies, BookiesUnavailableError
from support.cluster_processes import Cluster
from support.zookeeper_server import ZooKeeperServers, ZooKeeperUnavailableError

_CONTAINERS = 4
_SETTINGS = """
[bookkeeper]
jars = "{jars}"

[segment_store.cache]
bytes_max = {cache_bytes}
"""
_HEAP_MIB = 512
_SYSTEMS = ("penstock", "pravega")


def start_penstock(directory: Path, zookeeper: str, bookies: Bookies, cache_mib: int) -> Cluster:
    """Start a store and a controller of Penstock."""
    directory.mkdir()
    settings = _SETTINGS.format(jars=bookies.jars, cache_bytes=cache_mib << 20)
    storage = (directory / "storage").resolve()
    storage.mkdir()
    cluster = Cluster(directory, f"{zookeeper}/penstock", bookies.url, f"file://{storage}", settings)
    cluster.init(_CONTAINERS)
    cluster.start_store("store")
    cluster.start_controller("controller")
    for process in cluster.processes.values():
        process.wait_ready()
    cluster.wait_served()
    return cluster


def _note_cpu(pid: int, used_s: list[float]) -> None:
    used_s.append(cpu_s(pid))


def measure(
    uris: dict[str, str], pids: dict[str, int], options: dict[str, object], rates: list[float], rounds: int
) -> dict[str, object]:
    """Return the figures of both by load. `pids`: of the segment stores."""
    jars = classpath()
    for name in _SYSTEMS:  # Java compiles the load, and the servers, what it uses.
        event_load(jars, _HEAP_MIB, {**options, "controller": uris[name], "rate": rates[0]})
    figures: dict[str, object] = {}
    for rate in rates:
        per_s: dict[str, list[float]] = {name: [] for name in _SYSTEMS}
        p50_ms: dict[str, list[float]] = {name: [] for name in _SYSTEMS}
        p99_ms: dict[str, list[float]] = {name: [] for name in _SYSTEMS}
        cpu_us: dict[str, list[float]] = {name: [] for name in _SYSTEMS}
        for number in range(rounds):
            for name in _SYSTEMS if number % 2 == 0 else reversed(_SYSTEMS):
                used_s: list[float] = []
                note = partial(_note_cpu, pids[name], used_s)
                found = event_load(jars, _HEAP_MIB, {**options, "controller": uris[name], "rate": rate}, note)
                count = int(str(found["events_acknowledged_then"]))
                per_s[name].append(count / float(str(found["measured_s"])))
                p50_ms[name].append(float(str(found["ack_p50_ms"])))
                p99_ms[name].append(float(str(found["ack_p99_ms"])))
                cpu_us[name].append((used_s[1] - used_s[0]) / count * 1e6)
        median = {name: statistics.median(per_s[name]) for name in _SYSTEMS}
        median_p99 = {name: statistics.median(p99_ms[name]) for name in _SYSTEMS}
        figures[f"{rate:g}/s" if rate else "full speed"] = {
            "throughput_ratio": round(median["penstock"] / median["pravega"], 3),
            "p99_ratio": round(median_p99["penstock"] / median_p99["pravega"], 3),
            **{
                name: {
                    "events_per_s": [round(each) for each in per_s[name]],
                    "p50_ms": [round(each, 2) for each in p50_ms[name]],
                    "p99_ms": [round(each, 2) for each in p99_ms[name]],
                    "store_cpu_us_per_event": [round(each, 2) for each in cpu_us[name]],
                }
                for name in _SYSTEMS
            },
        }
    return figures


def main() -> None:
    """Run the servers and measure."""
    made = parser(__doc__ or "")
    made.add_argument("--event-bytes", type=int, default=100)
    made.add_argument("--segments", type=int, default=10)
    made.add_argument("--rate", type=float, default=5000.0, help="events per second of the second load")
    made.add_argument("--rounds", type=int, default=3)
    made.add_argument("--warm-up-seconds", type=float, default=4.0)
    made.add_argument("--cache-mib", type=int, default=512)
    options = made.parse_args()
    if options.quick:
        options.rounds, options.seconds, options.warm_up_seconds = 1, 1.0, 0.5
    with ExitStack() as stack:
        directory = stack.enter_context(work_directory(options)).resolve()
        try:
            java_with_compiler()
            disk = raw_disk(directory)
            zookeeper = ZooKeeperServers(directory / "zookeeper", 1)
            stack.callback(zookeeper.stop)
            zookeeper.start()
            bookies = Bookies(directory / "bookies", zookeeper.address, 3)
            stack.callback(bookies.stop)
            bookies.start()
            pravega = Pravega(directory / "pravega", zookeeper.address, _CONTAINERS, options.cache_mib)
            stack.callback(pravega.kill)
            pravega.start()
        except (
            BookiesUnavailableError, JavaUnavailableError, PravegaUnavailableError, ZooKeeperUnavailableError
        ) as error:  # fmt: skip
            raise SystemExit(f"nothing can be measured: {error}") from error
        cluster = start_penstock(directory / "penstock", zookeeper.address, bookies, options.cache_mib)
        stack.callback(cluster.stop)
        pids = {"penstock": cluster.processes["store"].store_pids()[0], "pravega": pravega.store_pid}
        loads = measure(
            {"penstock": cluster.uri("controller"), "pravega": pravega.uri},
            pids,
            {
                "segments": options.segments,
                "writers": 1,
                "readers": 0,
                "event-bytes": options.event_bytes,
                "warm-up-seconds": options.warm_up_seconds,
                "seconds": options.seconds,
                "drain-seconds": 60,
                "pooled": True,
            },
            [options.rate, 0.0],
            options.rounds,
        )
        report(
            "beside-pravega",
            {
                "pravega": VERSION,
                "event_bytes": options.event_bytes,
                "segments": options.segments,
                "raw_disk": disk,
                "loads": loads,
                "store_memory": {name: memory_mb(pid) for name, pid in pids.items()},
            },
        )


if __name__ == "__main__":
    main()
