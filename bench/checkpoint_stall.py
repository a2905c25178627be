"""Checkpoints: the longest stall of the event loop while one is written, for many segments with many attributes.

    python bench/checkpoint_stall.py                          # 25 000 segments of 20 attributes
    python bench/checkpoint_stall.py --segments 5000 --attributes 100

A container in this process, its log on the disk. While the checkpoint is encoded and logged part by part, appends go to
segments drawn at random, as many in each turn of the loop as `--appends`. A stall is the time of one turn of the loop:
`cpu` is what the thread worked in it, which a busy machine does not change; `wall` is what others waited. `at_once` is
the same state encoded as one part, for comparison. `image` is what an image of the container takes then
(docs/recovery.md): its bytes, what it adds to the log (a frame is a sync at most), and the thread's time in its longest
turn.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import time
from pathlib import Path

from _common import parser, percentiles_ms, raw_disk, report, work_directory
from _wire import run, say
from penstock.runtime.runtime import real_runtime
from penstock.segmentstore.container.append_request import AppendRequest
from penstock.segmentstore.container.container import SegmentContainer
from penstock.segmentstore.container.log.operations import UpdateAttributes
from penstock.segmentstore.container.opening import ContainerOpening
from penstock.segmentstore.container.reads.cache import Cache
from penstock.segmentstore.container_settings import ContainerSettings
from penstock.segmentstore.settings import CacheSettings
from penstock.segmentstore.tier1.local_log_factory import LocalLogFactory
from penstock.segmentstore.tier2.memory import MemoryChunkStorage

#: Operations accepted before the loop turns, while segments are made.
_BATCH = 500


async def fill(container: SegmentContainer, segments: int, attributes: int) -> list[str]:
    """Create segments with attributes; return their names."""
    rng = random.Random(1)
    names = [f"bench/crowd/{number}.#epoch.0" for number in range(segments)]
    for at in range(0, segments, _BATCH):
        made = await asyncio.gather(*(container.create(name) for name in names[at : at + _BATCH]))
        for segment in made:
            values = {rng.randbytes(16): rng.randrange(1 << 40) for _ in range(attributes)}
            container.acceptor.log(
                UpdateAttributes(segment.id, values),
                lambda segment=segment, values=values: container.state.accept_attributes(segment, values),  # type: ignore[misc]
            )
        await container.pipeline.barrier()
    return names


async def stalls_while_written(container: SegmentContainer, names: list[str], appends: int) -> dict[str, object]:
    """Write a checkpoint; return how long the turns of the loop took until its last part was in the log's hands."""
    rng = random.Random(2)
    wall_s: list[float] = []
    thread_s: list[float] = []
    before_wall, before_cpu = time.perf_counter(), time.thread_time()
    container.checkpoints.write()
    part_count = 1
    while True:
        for _ in range(appends):
            container.acceptor.append(container.segment(rng.choice(names)), AppendRequest(b"an event"), lambda _: None)
        await asyncio.sleep(0)
        now_wall, now_cpu = time.perf_counter(), time.thread_time()
        wall_s.append(now_wall - before_wall)
        thread_s.append(now_cpu - before_cpu)
        before_wall, before_cpu = now_wall, now_cpu
        if container.state.cut is None:
            break
        part_count += 1
    await container.pipeline.barrier()
    return {
        "turns": part_count,
        "cpu": percentiles_ms(thread_s),
        "wall": percentiles_ms(wall_s),
        "checkpoint_mb": round(container.checkpoints._last_length / 1e6, 1),
    }


async def one_image(container: SegmentContainer) -> dict[str, object]:
    """Take an image while nothing waits but what the rounds have appended; return what it took."""
    pipeline = container.pipeline
    log_bytes, frames = pipeline.logged_bytes, pipeline.frame_count
    taken = asyncio.ensure_future(container.capture.image())
    wall, cpu, longest_s = time.perf_counter(), time.process_time(), 0.0
    while not taken.done():
        before = time.thread_time()
        await asyncio.sleep(0)
        longest_s = max(longest_s, time.thread_time() - before)
    image = taken.result()
    return {
        "bytes": sum(map(len, image.frames)),
        "log_bytes": pipeline.logged_bytes - log_bytes,
        "log_frames": pipeline.frame_count - frames,
        "wall_ms": round((time.perf_counter() - wall) * 1e3, 1),
        "cpu_ms": round((time.process_time() - cpu) * 1e3, 1),
        "longest_turn_ms": round(longest_s * 1e3, 1),
    }


async def measure(arguments: argparse.Namespace) -> None:
    """Measure, print the report."""
    with work_directory(arguments) as directory:
        disk = raw_disk(directory)
        runtime = real_runtime()
        place = Path(directory) / "tier1"
        opening = ContainerOpening(
            0,
            log=LocalLogFactory(str(place), runtime).create(0),
            chunks=MemoryChunkStorage(),
            cache=Cache(CacheSettings()),
            runtime=runtime,
            settings=ContainerSettings(
                active_segments_max=arguments.segments + 100, active_segments_idle_max=arguments.segments + 100
            ),
            on_failure=lambda _, error: say(f"failed: {error}"),
        )
        container = await opening.open()
        names = await fill(container, arguments.segments, arguments.attributes)
        rounds = []
        for _ in range(arguments.rounds):
            rounds.append(await stalls_while_written(container, names, arguments.appends))
            say(f"{rounds[-1]}")
        image = await one_image(container)
        begin = time.thread_time()
        container.state.metadata.snapshot()
        at_once_s = time.thread_time() - begin
        await container.stop()
        await runtime.work.close()
    report(
        "checkpoint_stall",
        {
            "segments": arguments.segments,
            "attributes": arguments.attributes,
            "appends_in_a_turn": arguments.appends,
            "rounds": rounds,
            "image": image,
            "at_once_cpu_ms": round(at_once_s * 1e3, 1),
            "raw_disk": disk,
        },
    )


def main() -> None:
    """Run the command."""
    options = parser(__doc__ or "")
    options.add_argument("--segments", type=int, default=25_000)
    options.add_argument("--attributes", type=int, default=20, help="of each segment")
    options.add_argument("--appends", type=int, default=20, help="accepted in each turn of the loop meanwhile")
    options.add_argument("--rounds", type=int, default=3)
    arguments = options.parse_args()
    if arguments.quick:
        arguments.segments, arguments.rounds = 500, 1
    run(measure(arguments))


if __name__ == "__main__":
    main()
