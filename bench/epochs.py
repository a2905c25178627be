"""What a stream's operations cost as its epochs grow, and what large stream cuts cost: counts, bytes, CPU.

    python bench/epochs.py
    python bench/epochs.py --epochs 1000000          # some fifteen minutes of CPU, and 1 GB

A real controller over memory scales one stream of four segments again and again. Requests, rows and bytes at the
metadata store are counted per operation: the averages of the first block of a thousand epochs behind the hundredth, of
the last one, and the greatest ratio of any block to the first. `stored_bytes_per_epoch` is what the records take; from
it follows what a year of a scale each second leaves behind.

`cut` is about a stream of `--segments` segments, half of them split: CPU of the check of a cut that spans both epochs,
and of the truncation at it, with and without what the segments' store in memory takes for its part.
`longest_turn_ms` is the longest CPU time between two turns of another task, meanwhile and while all segments of the
history are listed.
"""

from __future__ import annotations

import argparse
import random
import resource
from collections.abc import Awaitable
from dataclasses import asdict
from typing import TypeVar

from _common import TurnWatch, parser, raw_disk, report, work_directory
from _wire import run, say
from penstock.controller.locator import SingleStoreLocator
from penstock.controller.metadata.records import HISTORY_CHUNK_EPOCHS
from penstock.controller.service import ControllerService
from penstock.controller.stream_positions import at_epoch, beginning_of, segments_between, valid_position_of
from penstock.model.policies import Scaling, StreamConfig
from penstock.runtime.disk import LocalDisk
from penstock.runtime.runtime import Runtime, ThreadedWork
from penstock_simulation.epoch_costs import Cost, EpochCosts
from penstock_simulation.memory_segments import MemorySegments
from penstock_simulation.memory_store import MemoryMetadataStore

T = TypeVar("T")

_EPOCHS_OF_A_YEAR = 365 * 24 * 3600


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _ratio_max(blocks: list[Cost]) -> float:
    """Return the greatest ratio of a count of some block to that of the first one."""
    return round(
        max(
            value / first
            for block in blocks
            for value, first in zip(block.values(), blocks[0].values(), strict=True)
            if first
        ),
        3,
    )


async def _measure_epochs(epochs: int, block_epochs: int) -> dict[str, object]:
    costs = EpochCosts(block_epochs)
    before_s = _cpu_s()
    await costs.run(epochs)
    cpu_s = _cpu_s() - before_s
    operations = {
        operation: {"first": asdict(blocks[0]), "last": asdict(blocks[-1]), "ratio_max": _ratio_max(blocks)}
        for operation, blocks in costs.averages.items()
    }
    per_epoch = {kind: round(size / epochs, 2) for kind, size in costs.stored_bytes.items() if size >= epochs}
    year = {kind: round(size * _EPOCHS_OF_A_YEAR / 1e9, 2) for kind, size in per_epoch.items()}
    return {
        "epochs": epochs,
        "operations": operations,
        "cpu_ms_per_epoch": round(cpu_s / epochs * 1e3, 2),
        "stored_bytes_per_epoch": per_epoch,
        "gb_of_a_year": {**year, "all": round(sum(year.values()), 2)},
        "largest_records_bytes": costs.largest_bytes,
    }


async def _measure_cut(segment_count: int) -> dict[str, object]:
    work = ThreadedWork(1)
    segments = MemorySegments()
    service = ControllerService(
        metadata=MemoryMetadataStore(),
        segments=segments,
        locator=SingleStoreLocator("127.0.0.1", 6000),
        runtime=Runtime(disk=LocalDisk(), work=work, rng=random.Random(1), wall_clock_ms=lambda: 1_700_000_000_000),
    )
    await service.start()
    await service.create_scope("scope")
    # Of three of four the first is split: a cut of one half of them before, and the other half after the split.
    first_count = segment_count * 2 // 3
    await service.create_stream("scope", "stream", StreamConfig(Scaling.fixed(first_count)))
    first = await service.current_segments("scope", "stream")
    split = first[: first_count // 2]
    halves = [(one.key_start, (one.key_start + one.key_end) / 2) for one in split]
    halves += [((one.key_start + one.key_end) / 2, one.key_end) for one in split]
    await service.scale_stream("scope", "stream", [one.id for one in split], halves)
    await service.idle()
    cut: dict[int, int] = {one.id: 0 for one in await service.current_segments("scope", "stream")}
    watch = TurnWatch()
    figures: dict[str, object] = {"segments": len(cut)}

    async def timed(name: str, call: Awaitable[T]) -> T:
        before_s = _cpu_s()
        result = await call
        figures[name] = round((_cpu_s() - before_s) * 1e3, 2)
        return result

    for _ in range(3):  # The first one also makes what the others find made.
        await timed("check_cpu_ms", service.is_stream_cut_valid("scope", "stream", cut))
    catalog = service._catalog  # The records alone, without announcement and segments.
    tables = catalog.tables_of("scope", "stream", await catalog.stream_id("scope", "stream") or "")

    async def check() -> None:
        position = await valid_position_of(tables, cut)
        beginning = await beginning_of(tables, (await tables.truncation()).record)
        if position is None or not [found async for found in segments_between(tables, [beginning], position)]:
            raise AssertionError("the cut is valid, and segments lie before it")

    await timed("check_and_sweep_cpu_ms", check())
    await timed("truncate_cpu_ms", service.truncate_stream("scope", "stream", cut))
    await watch.during(service.is_stream_cut_valid("scope", "stream", cut))
    figures["longest_turn_ms_of_a_check"] = round(watch.longest_s * 1e3, 2)
    current = at_epoch(await tables.current_epoch())
    await timed("position_cpu_ms", valid_position_of(tables, current.cut))
    await service.stop()
    await work.close()
    return figures


async def _longest_turn_of_a_range(epochs: int) -> float:
    """Return the longest CPU time, in milliseconds, for which listing a whole history keeps others waiting."""
    costs = EpochCosts(HISTORY_CHUNK_EPOCHS, is_truncated=False)
    watch = TurnWatch()

    async def list_all(service: ControllerService) -> None:
        current: dict[int, int] = {one.id: 0 for one in await service.current_segments("scope", "stream")}
        found = await watch.during(service.segments_between("scope", "stream", {}, current))
        if len(found) < epochs:
            raise AssertionError(f"{len(found)} segments of {epochs} epochs")

    await costs.run(epochs, at_the_end=list_all)
    return round(watch.longest_s * 1e3, 2)


async def measure(arguments: argparse.Namespace) -> None:
    """Measure, print the report."""
    with work_directory(arguments) as directory:
        disk = raw_disk(directory)
    cut = await _measure_cut(arguments.segments)
    say(str(cut))
    cut["longest_turn_ms_of_a_range"] = await _longest_turn_of_a_range(arguments.range_epochs)
    epochs = await _measure_epochs(arguments.epochs, arguments.block_epochs)
    conditions = {"durability": "none: counts over memory", "range_epochs": arguments.range_epochs}
    report("epochs", {"conditions": conditions, **epochs, "cut": cut, "raw_disk": disk})


def main() -> None:
    """Run the command."""
    options = parser(__doc__)
    options.add_argument("--epochs", type=int, default=20_100, help="how often the stream is scaled")
    options.add_argument("--block-epochs", type=int, default=HISTORY_CHUNK_EPOCHS, help="epochs of an average")
    options.add_argument("--segments", type=int, default=1000, help="segments of the cut")
    options.add_argument("--range-epochs", type=int, default=5000, help="epochs whose segments are listed at once")
    arguments = options.parse_args()
    if arguments.quick:
        arguments.epochs, arguments.block_epochs, arguments.segments, arguments.range_epochs = 400, 100, 100, 300
    run(measure(arguments))


if __name__ == "__main__":
    main()
