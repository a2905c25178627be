"""Stalls of the event loop in a container of very many segments: creation, start, replay, flush scans, alarms, stop.

    python bench/crowd_stalls.py                          # 25 000 segments of 20 attributes
    python bench/crowd_stalls.py --segments 5000

A container in this process, chunks in memory, its log on the disk. Each step is done while a task that only asks for
its turn notes the CPU time between two of its turns (`longest_turn_ms`), which a busy machine does not change. Of that,
`longest_collection_ms` is the longest single run of Python's garbage collector. Long-term storage refuses everything,
so that every segment waits and keeps the log.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from _common import parser, raw_disk, report, work_directory
from _wire import run, say
from checkpoint_stall import fill
from penstock.model.errors import ChunkError
from penstock.runtime.collector import settle_collector
from penstock.runtime.runtime import Runtime, real_runtime
from penstock.segmentstore.container.append_request import AppendRequest
from penstock.segmentstore.container.container import SegmentContainer
from penstock.segmentstore.container.opening import ContainerOpening
from penstock.segmentstore.container.reads.cache import Cache
from penstock.segmentstore.container_settings import ContainerSettings
from penstock.segmentstore.settings import CacheSettings
from penstock.segmentstore.tier1.local_log_factory import LocalLogFactory
from penstock.segmentstore.tier2.memory import MemoryChunkStorage


class Refusing(MemoryChunkStorage):
    """Takes nothing."""

    async def create_with_content(self, name: str, data: object) -> int:
        """See `ChunkStorage.create_with_content`."""
        raise ChunkError(name, "this storage takes nothing")


class Watch:
    """Notes the longest CPU time between two turns of a task, and the longest garbage collection, step by step."""

    def __init__(self) -> None:
        self.steps: dict[str, dict[str, float]] = {}
        self._longest_s = 0.0
        self._collection_s = 0.0
        self._collection_began_s = 0.0
        gc.callbacks.append(self._collected)

    def _collected(self, phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            self._collection_began_s = time.thread_time()
        else:
            self._collection_s = max(self._collection_s, time.thread_time() - self._collection_began_s)

    async def _turns(self) -> None:
        last_s = time.thread_time()
        while True:
            await asyncio.sleep(0)
            now_s = time.thread_time()
            self._longest_s = max(self._longest_s, now_s - last_s)
            last_s = now_s

    async def step(self, name: str, work: Callable[[], Awaitable[object]]) -> None:
        """Do `work` beside the task, and note what it held the loop for."""
        self._longest_s = self._collection_s = 0.0
        task = asyncio.ensure_future(self._turns())
        await asyncio.sleep(0)
        await work()
        await asyncio.sleep(0)
        task.cancel()
        self.steps[name] = {
            "longest_turn_ms": round(self._longest_s * 1e3, 1),
            "longest_collection_ms": round(self._collection_s * 1e3, 1),
        }
        say(f"{name}: {self.steps[name]}")


def new_container(directory: Path, runtime: Runtime, arguments: argparse.Namespace) -> ContainerOpening:
    """Return the opening of the next incarnation."""
    return ContainerOpening(
        0,
        log=LocalLogFactory(str(directory / "tier1"), runtime).create(0),
        chunks=Refusing(),
        cache=Cache(CacheSettings()),
        runtime=runtime,
        settings=ContainerSettings(
            active_segments_max=arguments.segments + 100,
            active_segments_idle_max=arguments.segments + 100,
            ownership_lease_s=0.1,
            log_alarm_interval_s=0.0,
        ),
        on_failure=lambda _, error: say(f"failed: {error}"),
    )


async def append_to_all(container: SegmentContainer, names: list[str]) -> None:
    """Append to each segment, a few in each turn of the loop."""
    for number, name in enumerate(names):
        container.acceptor.append(container.segment(name), AppendRequest(b"x" * 100), lambda _: None)
        if number % 20 == 19:
            await asyncio.sleep(0)
    await container.pipeline.barrier()


async def measure(arguments: argparse.Namespace) -> None:
    """Do all steps, print the report."""
    watch = Watch()
    with work_directory(arguments) as directory:
        disk = raw_disk(directory)
        runtime = real_runtime()
        settle_collector()
        container = await new_container(Path(directory), runtime, arguments).open()
        names: list[str] = []

        async def create() -> None:
            names.extend(await fill(container, arguments.segments, arguments.attributes))

        await watch.step("create the segments", create)
        await watch.step("append to each segment", lambda: append_to_all(container, names))

        async def checkpoint() -> None:
            container.checkpoints.write_now()
            while container.checkpoints.is_pending:  # noqa: ASYNC110  # nobody tells
                await asyncio.sleep(0)
            await container.pipeline.barrier()

        await watch.step("write a checkpoint", checkpoint)
        await append_to_all(container, names)
        await watch.step("write another one", checkpoint)

        async def scan() -> None:
            for _ in range(3):
                container.events.on_storage_work()
                await asyncio.sleep(container.settings.writer_interval_s * 2)

        await watch.step("scan for due work", scan)

        async def cut() -> None:
            # As when none of them stands in the way.
            min(map(container.checkpoints._first_unflushed, container.state.unflushed.values()))

        await watch.step("find where to truncate the log", cut)

        async def alarm() -> None:
            before = container.settings
            object.__setattr__(before, "log_bytes_max", 1)
            container.log_rewriter._tidied_at_s = float("-inf")
            container.log_rewriter.check()
            carrier = container.log_rewriter
            while carrier._is_carrying or carrier._is_searching or carrier._is_checking:  # noqa: ASYNC110  # likewise
                await asyncio.sleep(0)
            object.__setattr__(before, "log_bytes_max", ContainerSettings().log_bytes_max)

        await watch.step("warn of a long log and carry it forward", alarm)
        await watch.step("stop", container.stop)
        opening = new_container(Path(directory), runtime, arguments)
        successors: list[SegmentContainer] = []

        async def start() -> None:
            successors.append(await opening.open())

        await watch.step("start: replay of the checkpoint and what follows", start)
        await watch.step("stop again", successors[0].stop)
        await runtime.work.close()
    report(
        "crowd-stalls",
        {
            "segments": arguments.segments,
            "attributes": arguments.attributes,
            "steps": watch.steps,
            "longest_turn_ms": max(step["longest_turn_ms"] for step in watch.steps.values()),
            "raw_disk": disk,
        },
    )


def main() -> None:
    """Run the command."""
    options = parser(__doc__ or "")
    options.add_argument("--segments", type=int, default=25_000)
    options.add_argument("--attributes", type=int, default=20, help="of each segment")
    arguments = options.parse_args()
    if arguments.quick:
        arguments.segments = 500
    run(measure(arguments))


if __name__ == "__main__":
    main()
