"""What the controller takes for its calls on the embedded store: streams made, scaled, asked about, cut and listed.

    python bench/controller.py                          # 1000 streams are made, 10 000 listed
    python bench/controller.py --streams 200 --listed 0 --cut-segments 100

`create_lone` and the other single calls are made one after another: what a caller waits. `create_many` are made by
`--clients` callers at a time: what the server does in a second. CPU is the server's, for each call. `store_append` is
the baseline: a single event of 8 bytes, written to a stream and synced on the same disk in the same run; a call of the
controller consists of such writes.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Awaitable, Callable
from itertools import count

from _common import Server, cpu_s, parser, percentiles_ms, raw_disk, report, server, work_directory
from _wire import run, say
from penstock import Scaling, aio

_SCOPE = "bench"


class Calls:
    """Makes calls and measures them."""

    def __init__(self, running: Server) -> None:
        self._running = running

    async def lone(self, what: str, call: Callable[[], Awaitable[object]], times: int) -> dict[str, object]:
        """Call `times` times, one after another."""
        samples_s: list[float] = []
        server_s = cpu_s(self._running.pid)
        for _ in range(times):
            begin_s = time.perf_counter()
            await call()
            samples_s.append(time.perf_counter() - begin_s)
        server_s = cpu_s(self._running.pid) - server_s
        figures: dict[str, object] = {
            "calls": times,
            **percentiles_ms(samples_s),
            "server_cpu_ms": round(server_s / times * 1e3, 2),
        }
        say(f"{what}: {figures}")
        return figures

    async def many(
        self, what: str, call: Callable[[], Awaitable[object]], times: int, at_once: int
    ) -> dict[str, object]:
        """Call `times` times, `at_once` of them at a time."""
        left = iter(range(times))

        async def caller() -> None:
            for _ in left:
                await call()

        server_s, begin_s = cpu_s(self._running.pid), time.perf_counter()
        await asyncio.gather(*(caller() for _ in range(at_once)))
        took_s, server_s = time.perf_counter() - begin_s, cpu_s(self._running.pid) - server_s
        figures: dict[str, object] = {
            "calls": times,
            "at_once": at_once,
            "per_s": round(times / took_s, 1),
            "server_cpu_ms": round(server_s / times * 1e3, 2),
        }
        say(f"{what}: {figures}")
        return figures


async def measure(running: Server, arguments: argparse.Namespace) -> dict[str, object]:
    """Make all calls."""
    calls, numbers = Calls(running), count()
    found: dict[str, object] = {}
    async with aio.connect(running.uri) as client:
        await client.create_scope(_SCOPE)

        async def create() -> None:
            await client.create_stream(f"{_SCOPE}/s{next(numbers)}")

        await client.create_stream(f"{_SCOPE}/written")
        async with client.event_writer(f"{_SCOPE}/written") as writer:

            async def append() -> None:
                await writer.write(b"8 bytes.")
                await writer.flush()

            found["store_append"] = await calls.lone("store_append", append, arguments.lone)
        found["create_lone"] = await calls.lone("create_lone", create, arguments.lone)
        found["create_many"] = await calls.many("create_many", create, arguments.streams, arguments.clients)

        asked = f"{_SCOPE}/s0"
        found["current_segments"] = await calls.lone(
            "current_segments", lambda: client.segments_of(asked), arguments.lone * 5
        )

        async def scale() -> None:
            (segment,) = await client.segments_of(asked)
            await client.scale_stream(asked, seal=[segment.segment_id], key_ranges=[(0.0, 1.0)])

        found["scale"] = await calls.lone("scale", scale, arguments.lone)
        found["truncate"] = await _cuts(client, calls, arguments)
        if arguments.listed:
            missing = arguments.listed - next(numbers)
            if missing > 0:
                await calls.many("create_listed", create, missing, arguments.clients)

            async def list_all() -> None:
                listed = [name async for name in client.streams(_SCOPE)]
                assert len(listed) >= arguments.listed, len(listed)

            found["list"] = {"streams": arguments.listed, **await calls.lone("list", list_all, 5)}
    return found


async def _cuts(client: aio.Client, calls: Calls, arguments: argparse.Namespace) -> dict[str, object]:
    """Truncate a stream of many segments at cuts that lie one byte behind one another."""
    stream = f"{_SCOPE}/wide"
    await client.create_stream(stream, scaling=Scaling.fixed(arguments.cut_segments))
    cuts = []
    async with client.event_writer(stream) as writer:
        for _ in range(5):
            for number in range(4 * arguments.cut_segments):
                await writer.write(b"event", routing_key=str(number))
            await writer.flush()
            cuts.append(await client.tail(stream))
    behind = iter(cuts)

    async def truncate() -> None:
        await client.truncate_stream(next(behind))

    return {"segments": arguments.cut_segments, **await calls.lone("truncate", truncate, len(cuts))}


def main() -> None:
    options = parser(__doc__ or "")
    options.add_argument("--streams", type=int, default=1000)
    options.add_argument("--lone", type=int, default=200, help="single calls of each kind")
    options.add_argument("--clients", type=int, default=16)
    options.add_argument("--listed", type=int, default=10_000)
    options.add_argument("--cut-segments", type=int, default=1000)
    arguments = options.parse_args()
    if arguments.quick:
        arguments.streams, arguments.lone, arguments.listed, arguments.cut_segments = 20, 10, 0, 20
    with work_directory(arguments) as directory:
        disk = raw_disk(directory)
        with server(directory) as running:
            found: dict[str, object] = {}

            async def work() -> None:
                found.update(await measure(running, arguments))

            run(work())
        report("controller", {**found, "raw_disk": disk})


if __name__ == "__main__":
    main()
