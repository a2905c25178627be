"""What retention takes: a scan of very many idle streams, the bound of many subscribers, the truncation of a long past.

    python bench/retention.py                                 # 10 000 streams, 100 subscribers x 1000, 100 000 segments
    python bench/retention.py --streams 1000 --segments 0     # only the scans
    python bench/retention.py --memory                        # the controller alone, over segments in memory

A whole server in this process, its log on the disk, so that what holds its loop is seen, the segment store's part
included. `cycles` are scans of streams that got nothing new, by size and by time, one after another. `bound` is the
common lower bound of subscribers whose cuts differ in every segment, read from their records. `truncation` deletes
segments that were sealed by scales. `longest_turn_ms` is the longest CPU time between two turns of a task that only
asks for its turn, which a busy machine does not change much; `longest_collection_ms` is Python's garbage collector's.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import random
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path

from _common import TurnWatch, parser, percentiles_ms, raw_disk, report, work_directory
from _wire import run, say
from penstock.controller.errors import WorkflowTimeoutError
from penstock.controller.locator import SingleStoreLocator
from penstock.controller.metadata.stream_tables import StreamTables
from penstock.controller.metadata.subscribers import add_subscriber, put_subscriber, read_subscriber
from penstock.controller.retention.subscriber_bound import subscriber_bound
from penstock.controller.service import ControllerService
from penstock.controller.settings import ControllerSettings, RetentionSettings
from penstock.controller.stream_positions import beginning_of
from penstock.model.policies import Retention, RetentionKind, Scaling, StreamConfig
from penstock.runtime.collector import settle_collector
from penstock.runtime.disk import LocalDisk
from penstock.runtime.runtime import Runtime, ThreadedWork
from penstock.server import standalone
from penstock.server.settings import StandaloneSettings
from penstock_simulation.memory_segments import MemorySegments
from penstock_simulation.memory_store import MemoryMetadataStore

_SCOPE = "bench"
_CREATIONS_AT_ONCE = 32
#: Segments that one scale seals.
_SCALE_SEGMENTS = 1000
_SETTINGS = ControllerSettings(retention=RetentionSettings(interval_s=1e6))


class Collections:
    """Notes how long Python's garbage collector takes."""

    def __init__(self) -> None:
        self.longest_s = 0.0
        self._begin_s = 0.0

    def __enter__(self) -> Collections:
        gc.callbacks.append(self._note)
        return self

    def __exit__(self, *_: object) -> None:
        gc.callbacks.remove(self._note)

    def _note(self, phase: str, _: dict[str, int]) -> None:
        if phase == "start":
            self._begin_s = time.thread_time()
        else:
            self.longest_s = max(self.longest_s, time.thread_time() - self._begin_s)


@asynccontextmanager
async def _server(directory: Path) -> AsyncIterator[ControllerService]:
    made: list[ControllerService] = []

    class Kept(ControllerService):
        """Tells which one it is."""

        async def start(self) -> None:
            """See `ControllerService.start`."""
            made.append(self)
            await super().start()

    setattr(standalone, "ControllerService", Kept)  # noqa: B010  # not a name that the module gives away
    server = standalone.Standalone(
        StandaloneSettings(
            data_dir=str(directory / "store"), controller_port=0, segment_store_port=0, controller=_SETTINGS
        )
    )
    await server.start()
    settle_collector()
    try:
        yield made[0]
    finally:
        await server.stop()


@asynccontextmanager
async def _controller_alone() -> AsyncIterator[ControllerService]:
    work = ThreadedWork(1)
    service = ControllerService(
        metadata=MemoryMetadataStore(),
        segments=MemorySegments(),
        locator=SingleStoreLocator("127.0.0.1", 6000),
        runtime=Runtime(disk=LocalDisk(), work=work, rng=random.Random(1), wall_clock_ms=lambda: 1_700_000_000_000),
        settings=_SETTINGS,
    )
    await service.start()
    settle_collector()
    try:
        yield service
    finally:
        await service.stop()
        await work.close()


async def _tables(service: ControllerService, stream: str) -> StreamTables:
    async def found(tables: StreamTables) -> StreamTables:
        return tables

    return await service.queries.on_stream(_SCOPE, stream, found)


async def _create_idle(service: ControllerService, count: int) -> None:
    numbers = iter(range(count))

    async def create() -> None:
        for number in numbers:
            # Half of each kind; a day, so that none of those by time is due again.
            kind = RetentionKind.BY_SIZE if number % 2 else RetentionKind.BY_TIME
            config = StreamConfig(Scaling.fixed(1), Retention(kind, 86_400_000))
            await service.create_stream(_SCOPE, f"idle{number}", config)

    await asyncio.gather(*(create() for _ in range(_CREATIONS_AT_ONCE)))


async def measure_cycles(service: ControllerService, count: int) -> dict[str, object]:
    """Scan idle streams repeatedly."""
    begin_s = time.perf_counter()
    await _create_idle(service, count)
    say(f"{count} streams are made: {time.perf_counter() - begin_s:.1f} s")
    retention, watch = service._retention, TurnWatch()
    samples_s: list[float] = []
    for index in range(6):
        begin_s, cpu_s = time.perf_counter(), time.thread_time()
        with Collections() as collections:
            await watch.during(retention.cycle())
        took_s, cpu_s = time.perf_counter() - begin_s, time.thread_time() - cpu_s
        say(f"cycle {index}: {took_s:.2f} s, {cpu_s:.2f} s of CPU")
        if index:
            samples_s.append(took_s)
        else:
            # The first one reads each: nothing is known of any.
            first = {"first_s": round(took_s, 2), "longest_turn_ms_of_the_first": round(watch.longest_s * 1e3, 2)}
            del watch.turns_s[:]
    return {
        "streams": count,
        **first,
        **percentiles_ms(samples_s),
        "longest_turn_ms": round(watch.longest_s * 1e3, 2),
        "longest_collection_ms": round(collections.longest_s * 1e3, 2),
    }


def _bounds(count: int) -> Iterator[tuple[float, float]]:
    return pairwise([number / count for number in range(count)] + [1.0])


async def measure_bound(service: ControllerService, subscribers: int, segments: int) -> dict[str, object]:
    """Find the bound of subscribers, half of which are still in the segments before a scale of all."""
    stream, rng = "bound", random.Random(1)
    await service.create_stream(_SCOPE, stream, StreamConfig(Scaling.fixed(segments)))
    first = [one.id for one in await service.current_segments(_SCOPE, stream)]
    await service.scale_stream(_SCOPE, stream, first, list(_bounds(segments)))
    await service.idle()
    second = [one.id for one in await service.current_segments(_SCOPE, stream)]
    tables = await _tables(service, stream)
    for number in range(subscribers):
        name = f"{_SCOPE}/group{number}"
        await add_subscriber(tables, name, 0, 0, 5)
        found = await read_subscriber(tables, name)
        if found is None:
            raise AssertionError(f"{name} does not subscribe")
        found.record.stream_cut.update({one: rng.randrange(1 << 30) for one in (first if number % 2 else second)})
        await put_subscriber(tables, name, found.record, found.version)
    head = await beginning_of(tables, (await tables.truncation()).record)
    watch = TurnWatch()
    walls_s: list[float] = []
    cpus_s: list[float] = []
    for _ in range(10):
        begin_s, cpu_s = time.perf_counter(), time.thread_time()
        bound = await watch.during(subscriber_bound(tables, head.cut))
        walls_s.append(time.perf_counter() - begin_s)
        cpus_s.append(time.thread_time() - cpu_s)
        if bound is None or set(bound.cut) != set(first):
            raise AssertionError("the bound is in the segments of those that have come least far")
    return {
        "subscribers": subscribers,
        "segments": segments,
        **percentiles_ms(walls_s),
        "cpu": percentiles_ms(cpus_s),
        "longest_turn_ms": round(watch.longest_s * 1e3, 2),
    }


async def _truncate(service: ControllerService, stream: str, cut: Mapping[int, int]) -> None:
    try:
        await service.truncate_stream(_SCOPE, stream, cut)
    except WorkflowTimeoutError:
        say("the truncation goes on in the background")
        await service.idle()


async def measure_truncation(service: ControllerService, segments: int) -> dict[str, object]:
    """Truncate a stream behind very many sealed segments."""
    stream, width = "long", min(_SCALE_SEGMENTS, segments)
    await service.create_stream(_SCOPE, stream, StreamConfig(Scaling.fixed(width)))
    sealed, begin_s = 0, time.perf_counter()
    while sealed < segments:
        current = [one.id for one in await service.current_segments(_SCOPE, stream)]
        await service.scale_stream(_SCOPE, stream, current, list(_bounds(width)))
        await service.idle()
        sealed += width
    say(f"{sealed} segments are sealed: {time.perf_counter() - begin_s:.1f} s")
    cut: dict[int, int] = {one.id: 0 for one in await service.current_segments(_SCOPE, stream)}
    watch = TurnWatch()
    begin_s, cpu_s = time.perf_counter(), time.thread_time()
    with Collections() as collections:
        await watch.during(_truncate(service, stream, cut))
    took_s, cpu_s = time.perf_counter() - begin_s, time.thread_time() - cpu_s
    tables = await _tables(service, stream)
    head = await beginning_of(tables, (await tables.truncation()).record)
    if dict(head.cut) != cut:
        raise AssertionError("the stream begins at the cut")
    turns = sorted(watch.turns_s)
    return {
        "sealed_segments": sealed,
        "took_s": round(took_s, 2),
        "loop_cpu_s": round(cpu_s, 2),
        "longest_turn_ms": round(watch.longest_s * 1e3, 2),
        "turns_above_10_ms": sum(turn > 0.010 for turn in turns),
        "turn_p99_ms": round(turns[int(len(turns) * 0.99)] * 1e3, 2),
        "longest_collection_ms": round(collections.longest_s * 1e3, 2),
    }


async def measure(arguments: argparse.Namespace, directory: Path) -> dict[str, object]:
    """Measure what was asked for."""
    found: dict[str, object] = {"is_memory": arguments.memory}
    async with _controller_alone() if arguments.memory else _server(directory) as service:
        await service.create_scope(_SCOPE)
        found["bound"] = await measure_bound(service, arguments.subscribers, arguments.bound_segments)
        say(f"bound: {found['bound']}")
        if arguments.segments:
            found["truncation"] = await measure_truncation(service, arguments.segments)
            say(f"truncation: {found['truncation']}")
        if arguments.streams:
            found["cycles"] = await measure_cycles(service, arguments.streams)
    return found


def main() -> None:
    """Run from the command line."""
    assert __doc__ is not None
    options = parser(__doc__)
    options.add_argument("--streams", type=int, default=10_000, help="idle streams that are scanned")
    options.add_argument("--subscribers", type=int, default=100)
    options.add_argument("--bound-segments", type=int, default=1000, help="of the stream that they subscribe to")
    options.add_argument("--segments", type=int, default=100_000, help="sealed ones that are truncated")
    options.add_argument("--memory", action="store_true", help="the controller alone, over segments in memory")
    arguments = options.parse_args()
    if arguments.quick:
        arguments.streams, arguments.subscribers, arguments.bound_segments, arguments.segments = 20, 4, 8, 20
    with work_directory(arguments) as directory:
        disk = raw_disk(directory)
        found: dict[str, object] = {}

        async def work() -> None:
            found.update(await measure(arguments, directory))

        run(work())
    report("retention", {**found, "raw_disk": disk})


if __name__ == "__main__":
    main()
