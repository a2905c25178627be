"""A rolling restart of every process of a cluster under load: the longest gap, and errors of clients.

    python bench/rolling_restart.py --rate 10000

Three segment stores, two controllers and three servers of ZooKeeper on this machine (Java and versitygw are needed). A
writer writes events of 100 bytes at a fixed rate; other clients append to a segment of each container and read it back,
10 times a second, and begin and abort transactions. First the requests to ZooKeeper of the idle cluster are counted.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from functools import partial

from _cluster import Cluster, ZooKeeperServers, local_cluster
from _common import parser, percentiles_ms, raw_disk, report, work_directory
from penstock.client.client import Client
from penstock.client.writing.ack import AckState, when_done
from penstock.model.errors import PenstockError
from penstock.model.policies import Scaling
from penstock_simulation.processes.probes import ContainerProbes

STREAM = "bench/rolling"
STORES, CONTROLLERS = ("s1", "s2", "s3"), ("c1", "c2")
EVENT_BYTES = 100
_TURN_S = 0.01


class SteadyWriter:
    """Writes events at a fixed rate; notes acknowledgements."""

    def __init__(self, uri: str, events_per_s: int) -> None:
        self._uri = uri
        self._events_per_s = events_per_s
        self._is_over = False
        self.written = 0
        self.acknowledged = 0
        self.errors: list[str] = []
        self.latencies_s: list[float] = []

    async def run(self) -> None:
        """Write until `stop`."""
        loop = asyncio.get_running_loop()
        event = bytes(EVENT_BYTES)
        async with Client(self._uri) as client, client.event_writer(STREAM) as writer:
            begin_s = loop.time()
            while not self._is_over:
                due = int((loop.time() - begin_s) * self._events_per_s) - self.written
                last: AckState | None = None
                for _ in range(due):
                    self.written += 1
                    last = await writer.write(event, str(self.written % 100))
                if last is not None:
                    # One event of each turn stands for all of its turn.
                    when_done(last, partial(self._done, last, due, loop.time()))
                await asyncio.sleep(_TURN_S)

    def _done(self, ack: AckState, count: int, sent_s: float) -> None:
        if ack.error is None:
            self.acknowledged += count
            self.latencies_s.append(asyncio.get_running_loop().time() - sent_s)
        else:
            self.errors.append(repr(ack.error))

    def stop(self) -> None:
        """Write no more."""
        self._is_over = True


async def restart_all(cluster: Cluster, names: Sequence[str]) -> list[tuple[str, float]]:
    """Restart processes, one at a time; return how long each took."""
    took_s: list[tuple[str, float]] = []
    for name in names:
        begin_s = time.monotonic()
        code = await asyncio.to_thread(cluster.processes[name].terminate)
        if code != 0:
            raise SystemExit(f"{name} ended with code {code}")
        start = cluster.start_store if name in STORES else cluster.start_controller
        await asyncio.to_thread(start(name).wait_ready)
        await asyncio.to_thread(cluster.wait_served)
        took_s.append((name, round(time.monotonic() - begin_s, 2)))
    return took_s


async def measure(cluster: Cluster, containers: int, events_per_s: int, names: Sequence[str]) -> dict[str, object]:
    """Restart under load; return the figures."""
    uri = cluster.uri(*CONTROLLERS)
    async with Client(uri) as client:
        await client.create_stream(STREAM, scaling=Scaling.fixed(containers))
    probes = ContainerProbes(lambda: Client(uri), containers)
    await probes.prepare()
    writer = SteadyWriter(uri, events_per_s)
    probing, writing = asyncio.create_task(probes.run()), asyncio.create_task(writer.run())
    try:
        await asyncio.sleep(1.0)
        await probes.all_answered()
        probes.reset()
        begin_s, before = time.monotonic(), writer.acknowledged
        took_s = await restart_all(cluster, names)
        await probes.all_answered()
        seconds = time.monotonic() - begin_s
        rate = (writer.acknowledged - before) / seconds
        gaps_s = probes.gaps_s()
        writer.stop()
        try:
            await writing
        except PenstockError as error:
            writer.errors.append(repr(error))
    finally:
        for task in (probing, writing):
            task.cancel()
        await asyncio.gather(probing, writing, return_exceptions=True)
    longest_s = max(gaps_s.values())
    return {
        "containers": containers,
        "asked_events_per_s": events_per_s,
        "events_per_s": round(rate),
        "seconds": round(seconds, 1),
        "longest_gap_s": round(longest_s, 3),
        "gaps": percentiles_ms(list(gaps_s.values())),
        "write_to_ack": percentiles_ms(writer.latencies_s),
        "client_errors": probes.error_count + len(writer.errors),
        "errors": [*probes.errors, *writer.errors][:10],
        "restarts_s": took_s,
    }


def idle_requests_per_s(servers: ZooKeeperServers, seconds: float) -> float:
    """Return how many packets all servers receive per second, pings included."""
    before = servers.received()
    time.sleep(seconds)
    # The queries themselves are not counted.
    return round((servers.received() - before) / seconds, 1)


def main() -> None:
    """Measure, and print JSON."""
    options = parser(__doc__ or "")
    options.add_argument("--rate", type=int, default=10_000, help="events per second")
    options.add_argument("--rounds", type=int, default=2)
    options.add_argument("--containers", type=int, default=12)
    arguments = options.parse_args()
    if arguments.quick:
        arguments.rate, arguments.rounds, arguments.containers, arguments.seconds = 100, 1, 3, 1.0
    with work_directory(arguments) as work:
        directory = work.resolve()
        disk = raw_disk(directory)
        with local_cluster(directory, arguments.containers, stores=STORES, controllers=CONTROLLERS, zookeepers=3) as (
            cluster,
            zookeepers,
            _,
        ):
            idle = idle_requests_per_s(zookeepers, arguments.seconds)
            restarted = [*STORES, *CONTROLLERS] * arguments.rounds
            if arguments.quick:
                restarted = [STORES[0], CONTROLLERS[0]]
            figures = asyncio.run(measure(cluster, arguments.containers, arguments.rate, restarted))
    report("rolling_restart", {"raw_disk": disk, "idle_zookeeper_requests_per_s": idle, **figures})


if __name__ == "__main__":
    main()
