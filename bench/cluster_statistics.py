"""What it costs to ask a server every second what it is doing, with very many segments.

    python bench/cluster_statistics.py                                # 10 000 segments
    python bench/cluster_statistics.py --segments 1000 --calls 50

All segments get an append before each call of `all_changed`, a tenth of them before each of `some_changed`, none before
those of `none_changed`; `whole` are calls without an earlier answer, which tell everything. CPU of the server and of
this process is that of one call. The baseline is the same with a hundred segments. `longest_turn` is that of the
client's loop. The server's are bounded otherwise: an answer has at most 1000 segments, and is one turn.
"""

from __future__ import annotations

import asyncio
import struct
import time

import penstock
from _common import CLOCK_TICKS_PER_S, Server, cpu_s, parser, percentiles_ms, raw_disk, report, server, work_directory
from _wire import Work, ask, for_each, run, say
from penstock import aio
from penstock.client.statistics.statistics import ClusterStatistics
from penstock.wire.commands import (
    AppendBlockEnd,
    AppendSetup,
    CreateSegment,
    DataAppended,
    SegmentCreated,
    SetupAppend,
)
from penstock.wire.connection import WireConnection

_EVENT = b"\0\0\0\0\0\0\0\5event"
#: The counts are polled once a second.
_POLL_S = 1.2


class Crowd:
    """Segments that are appended to, each by a writer of its own."""

    def __init__(self, port: int, prefix: str, count: int) -> None:
        self._port = port
        self._prefix = prefix
        self._round = 0
        self.count = count

    def _name(self, number: int) -> str:
        return f"bench/{self._prefix}-{number}/0.#epoch.0"

    async def create(self) -> None:
        """Create all."""

        async def create(connection: WireConnection, number: int) -> None:
            name = self._name(number)
            await ask(connection, lambda request_id: CreateSegment(request_id, name, 0, 0, "", 0), SegmentCreated)

        await self._each("created", create, range(self.count))

    async def append(self, step: int = 1) -> None:
        """Append an event to each `step`-th segment."""
        self._round += 1

        async def append(connection: WireConnection, number: int) -> None:
            writer = struct.pack(">qq", self._round, number)
            await ask(connection, lambda id_: SetupAppend(id_, writer, self._name(number), ""), AppendSetup)
            await ask(connection, lambda id_: AppendBlockEnd(writer, len(_EVENT), _EVENT, 1, 1, id_), DataAppended)

        await self._each("appended", append, range(0, self.count, step))

    async def _each(self, what: str, work: Work, numbers: range) -> None:
        await for_each(self._port, what, numbers, work, connections=2, window=32, per_connection_max=4000)


class Calls:
    """Measures calls of one kind."""

    def __init__(self, running: Server) -> None:
        self._running = running
        self._server_s = 0.0
        self._client_s = 0.0
        self._wall_s: list[float] = []
        self._longest_turn_s = 0.0

    async def make(
        self, client: aio.Client, since: ClusterStatistics | None, expected: int, times: int = 1
    ) -> ClusterStatistics:
        """Ask `times` times; return the last answer."""
        ticking = asyncio.create_task(self._tick())
        await asyncio.sleep(0)
        server_s, client_s = cpu_s(self._running.pid), time.process_time()
        for _ in range(times):
            begin_s = time.perf_counter()
            answer = await client.statistics(since)
            self._wall_s.append(time.perf_counter() - begin_s)
        self._server_s += cpu_s(self._running.pid) - server_s
        self._client_s += time.process_time() - client_s
        ticking.cancel()
        await asyncio.wait([ticking])
        assert len(answer.segments) >= expected, (len(answer.segments), expected)
        return answer

    async def _tick(self) -> None:
        before_s = time.thread_time()
        while True:
            await asyncio.sleep(0.0005)
            now_s = time.thread_time()
            self._longest_turn_s = max(self._longest_turn_s, now_s - before_s)
            before_s = now_s

    def figures(self) -> dict[str, object]:
        """Return what a call costs. The server's CPU is known to a tick of the system's clock, over all calls."""
        count = len(self._wall_s)
        return {
            "calls": count,
            "server_cpu_ms": round(self._server_s / count * 1e3, 2),
            "server_cpu_known_to_ms": round(1e3 / CLOCK_TICKS_PER_S / count, 2),
            "client_cpu_ms": round(self._client_s / count * 1e3, 2),
            "longest_turn_ms": round(self._longest_turn_s * 1e3, 2),
            "call": percentiles_ms(self._wall_s),
        }


async def measure(running: Server, prefix: str, count: int, calls: int) -> dict[str, object]:
    """Make segments, and ask about them in all ways."""
    crowd = Crowd(running.store_port, prefix, count)
    await crowd.create()
    kinds = {name: Calls(running) for name in ("whole", "all_changed", "some_changed", "none_changed")}
    async with aio.connect(running.uri, penstock.ClientSettings(statistics_timeout_s=60)) as client:
        await crowd.append()
        begin_s = time.perf_counter()
        while len((await client.statistics()).segments) < count:  # noqa: ASYNC110  # that is what is measured
            await asyncio.sleep(_POLL_S)
        seen_s = time.perf_counter() - begin_s
        await kinds["whole"].make(client, None, count, calls)
        statistics = await client.statistics()
        for name, step in (("all_changed", 1), ("some_changed", 10)):
            for _ in range(max(calls // 10, 2)):
                await crowd.append(step)
                await asyncio.sleep(_POLL_S)
                statistics = await kinds[name].make(client, statistics, count)
        await kinds["none_changed"].make(client, statistics, count, calls)
    figures: dict[str, object] = {name: kind.figures() for name, kind in kinds.items()}
    figures["all_seen_after_s"] = round(seen_s, 2)
    say(f"{count} segments: {figures}")
    return figures


def main() -> None:
    options = parser(__doc__ or "")
    options.add_argument("--segments", type=int, default=10_000)
    options.add_argument("--calls", type=int, default=30)
    arguments = options.parse_args()
    if arguments.quick:
        arguments.segments, arguments.calls = 200, 2
    found: dict[str, object] = {}

    async def whole(running: Server) -> None:
        found["few"] = await measure(running, "few", min(100, arguments.segments), arguments.calls)
        found["many"] = await measure(running, "many", arguments.segments, arguments.calls)

    with work_directory(arguments) as directory:
        disk = raw_disk(directory)
        with server(directory) as running:
            run(whole(running))
    report("cluster_statistics", {"segments": arguments.segments, **found, "raw_disk": disk})


if __name__ == "__main__":
    main()
