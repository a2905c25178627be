"""A third of a group's readers leaves or dies while events are written, and as many come: what is lost or doubled.

    python bench/reader_churn.py                                    # 200 readers in 20 clients
    python bench/reader_churn.py --readers 1000 --clients 20

When every reader holds a segment, `--rate` events per second are written for `--seconds`. In the middle, a sixth of the
readers closes, a sixth ends without a word, and a third joins. `lost`: events that no reader returned. `doubled`:
events that were returned twice. `unexplained`: those of them that were not first returned by a reader that died, which
must be none: a reader that leaves takes nothing with it, and one that died may have had events whose positions were not
stored. `settled_s`: from the end of writing until each event was returned. Settings are the default ones.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import time
from collections import defaultdict
from pathlib import Path

import penstock.aio
from _common import parser, raw_disk, report, server, work_directory
from penstock.client.groups.reader import Reader
from penstock.client.groups.reader_group import ReaderGroup
from penstock.client.settings import ClientSettings
from penstock.model.errors import PenstockError
from penstock.model.policies import Scaling

STREAM, GROUP = "bench/orders", "bench/audit"
#: Joining, balancing and reading the last events may take so long each before the command gives up.
LIMIT_S = 150.0


class Readers:
    """The readers of a group, each in a task that reads until it is ended.

    Attributes:
        returned: for each event, the names of the readers that returned it, in this order.
        errors: of reads.
    """

    def __init__(self) -> None:
        self.returned: dict[int, list[str]] = defaultdict(list)
        self.errors: list[str] = []
        self._is_returned = asyncio.Event()
        self._reading: dict[str, tuple[Reader, asyncio.Task[None]]] = {}

    @property
    def names(self) -> list[str]:
        """Those that read, by age."""
        return list(self._reading)

    @property
    def segment_counts(self) -> list[int]:
        """How many segments each of them holds."""
        return [len(reader.segments) for reader, _ in self._reading.values()]

    async def add(self, groups: list[ReaderGroup], names: list[str]) -> None:
        """Start readers at the same moment."""
        started = await asyncio.gather(
            *(groups[number % len(groups)].reader(name) for number, name in enumerate(names))
        )
        for name, reader in zip(names, started, strict=True):
            self._reading[name] = reader, asyncio.create_task(self._read(name, reader))

    async def end(self, names: list[str], *, is_death: bool) -> None:
        """Close readers, or let them die, at the same moment."""
        await asyncio.gather(*(self._end(name, is_death=is_death) for name in names))

    async def until_returned(self, count: int) -> float:
        """Return how many seconds it takes until `count` events were returned, at most `LIMIT_S`."""
        begin = time.perf_counter()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LIMIT_S):
                while len(self.returned) < count:
                    self._is_returned.clear()
                    await self._is_returned.wait()
        return time.perf_counter() - begin

    async def _end(self, name: str, *, is_death: bool) -> None:
        reader, task = self._reading.pop(name)
        task.cancel()
        await asyncio.wait([task])
        # The event returned last counts as read when the reader closes.
        await (reader.abandon() if is_death else reader.close(is_done=True))

    async def _read(self, name: str, reader: Reader) -> None:
        while True:
            try:
                event = await reader.read()
            except PenstockError as error:
                self.errors.append(f"{name}: {error}")
                continue
            if event is not None:
                self.returned[int(event.data)].append(name)
                self._is_returned.set()


async def until_balanced(readers: Readers, segments: int) -> float:
    """Return how many seconds it takes until each segment has a reader and each reader its share."""
    begin = time.perf_counter()
    while sum(readers.segment_counts) != segments or set(readers.segment_counts) != {1}:
        if time.perf_counter() - begin > LIMIT_S:
            raise SystemExit(f"not balanced after {LIMIT_S:g} s: {sorted(readers.segment_counts)}")
        await asyncio.sleep(0.1)
    return time.perf_counter() - begin


async def measure(uri: str, arguments: argparse.Namespace) -> dict[str, object]:
    """Run the group against a fresh server."""
    count, third = arguments.readers, arguments.readers // 3
    readers, groups = Readers(), []
    async with contextlib.AsyncExitStack() as stack:
        for number in range(arguments.clients):
            settings = ClientSettings(reader_close_timeout_s=LIMIT_S, close_timeout_s=LIMIT_S)
            client = await stack.enter_async_context(penstock.aio.connect(uri, settings=settings))
            if not number:
                await client.create_stream(STREAM, scaling=Scaling.fixed(count))
                writer = await stack.enter_async_context(client.event_writer(STREAM))
            groups.append(await stack.enter_async_context(client.reader_group(GROUP, [STREAM])))
        begin = time.perf_counter()
        await readers.add(groups, [f"old-{number:04d}" for number in range(count)])
        joined_s = time.perf_counter() - begin
        balanced_s = await until_balanced(readers, count) + joined_s

        written = 0

        async def write(seconds: float) -> None:
            nonlocal written
            begin, first = time.perf_counter(), written
            while (passed_s := time.perf_counter() - begin) < seconds:
                while written - first < passed_s * arguments.rate:
                    await writer.write(b"%d" % written, routing_key=str(written))
                    written += 1
                await asyncio.sleep(0.02)

        await write(arguments.seconds / 4)
        writing = asyncio.create_task(write(arguments.seconds * 3 / 4))
        old = readers.names[:: max(count // third, 1)][:third]
        leaving, dying = old[: third // 2], old[third // 2 :]
        begin = time.perf_counter()
        await asyncio.gather(
            readers.end(leaving, is_death=False),
            readers.end(dying, is_death=True),
            readers.add(groups, [f"new-{number:04d}" for number in range(third)]),
        )
        changed_s = time.perf_counter() - begin
        await writing
        await writer.flush()
        settled_s = await readers.until_returned(written)
        await asyncio.sleep(arguments.settle_seconds)  # What comes twice comes late.
        doubled = {event: names for event, names in readers.returned.items() if len(names) > 1}
        await readers.end(readers.names, is_death=False)
    return {
        "readers": count, "clients": arguments.clients, "left": len(leaving), "died": len(dying), "came": third,
        "joined_s": round(joined_s, 2), "balanced_s": round(balanced_s, 2), "changed_s": round(changed_s, 2),
        "written": written, "settled_s": round(settled_s, 2), "lost": written - len(readers.returned),
        "doubled": len(doubled),
        "unexplained": sum(not set(names[:-1]) <= set(dying) for names in doubled.values()),
        "error_count": len(readers.errors), "errors": readers.errors[:3],
    }  # fmt: skip


def run(arguments: argparse.Namespace, directory: Path) -> dict[str, object]:
    """Measure on a fresh server."""
    with server(directory) as running:
        return asyncio.run(measure(running.uri, arguments))


def main() -> None:
    """Run the command."""
    options = parser(__doc__ or "")
    options.set_defaults(seconds=40.0)
    options.add_argument("--readers", type=int, default=200)
    options.add_argument("--clients", type=int, default=20, help="that the readers have")
    options.add_argument("--rate", type=float, default=500.0, help="events per second")
    options.add_argument("--settle-seconds", type=float, default=10.0)
    arguments = options.parse_args()
    if arguments.quick:
        arguments.readers, arguments.clients, arguments.seconds, arguments.settle_seconds = 6, 2, 2.0, 0.5
    with work_directory(arguments) as directory:
        disk = raw_disk(directory)
        report("reader_churn", {"raw_disk": disk, **run(arguments, directory / "store")})


if __name__ == "__main__":
    main()
