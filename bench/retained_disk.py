"""The disk space of a stream that keeps its newest bytes, while it is written to without end.

    python bench/retained_disk.py                              # ten minutes, 16 MiB kept
    python bench/retained_disk.py --seconds 3600 --keep-mib 64

A server of its own, whose retention runs every second. Once a second the files of the stream in long-term storage and
those of the log are summed. `minutes` has for each minute what was written by its end, and the most that was on the
disk during it: bounded if the minutes do not grow. What was truncated may still be there until long-term storage hears
of it (`container.truncate_delay_s`, `container.flush_age_s`): `over_kept_max` is above 1 by what is written meanwhile.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import time
from pathlib import Path

from _common import Server, parser, raw_disk, report, server, work_directory
from _wire import run, say
from penstock import Retention, Scaling, aio

_STREAM = "bench/retained"
_MIB = 1 << 20
_EVENT = bytes(100_000)
_SETTINGS = {"controller.retention.interval_s": 1.0, "segment_store.container.flush_age_s": 1.0}


def _bytes_under(directory: Path) -> int:
    """Return the length of all files. One that goes meanwhile counts as gone."""
    total = 0
    for path in directory.rglob("*"):
        with contextlib.suppress(FileNotFoundError):
            total += path.stat().st_size if path.is_file() else 0
    return total


class Watch:
    """Notes once a second how much of a stream is on the disk."""

    def __init__(self, running: Server) -> None:
        self._store = running.data_directory / "store"
        self.chunks_max = 0
        self.log_max = 0
        self.kept_max = 0

    async def __call__(self, client: aio.Client) -> None:
        while True:
            await asyncio.sleep(1.0)
            chunks, log = await asyncio.to_thread(self._measure)
            self.chunks_max, self.log_max = max(self.chunks_max, chunks), max(self.log_max, log)
            found = await client.explain_retention(_STREAM)
            self.kept_max = max(self.kept_max, found.kept_bytes)

    def _measure(self) -> tuple[int, int]:
        return _bytes_under(self._store / "tier2" / _STREAM), _bytes_under(self._store / "tier1")

    def taken(self) -> dict[str, float]:
        """Return the most since this was asked last, in MiB."""
        found = {
            "chunks_max_mib": round(self.chunks_max / _MIB, 1),
            "log_max_mib": round(self.log_max / _MIB, 1),
            "kept_max_mib": round(self.kept_max / _MIB, 1),
        }
        self.chunks_max = self.log_max = self.kept_max = 0
        return found


async def measure(running: Server, arguments: argparse.Namespace) -> dict[str, object]:
    """Write at a rate for as long as is asked for."""
    written, minutes = 0, []
    rate_bytes = arguments.rate_mib * _MIB
    async with aio.connect(running.uri) as client:
        await client.create_stream(
            _STREAM,
            scaling=Scaling.fixed(2),
            retention=Retention.by_size(int(arguments.keep_mib * _MIB)),
            rollover_bytes=4 * _MIB,
        )
        watch = Watch(running)
        watching = asyncio.ensure_future(watch(client))
        begin_s = minute_s = time.perf_counter()
        async with client.event_writer(_STREAM) as writer:
            while (now_s := time.perf_counter()) < begin_s + arguments.seconds:
                if watching.done():
                    watching.result()
                behind = int((now_s - begin_s) * rate_bytes) - written
                for number in range(max(0, behind // len(_EVENT))):
                    await writer.write(_EVENT, routing_key=str(number))
                    written += len(_EVENT)
                await asyncio.sleep(0.05)
                if now_s >= minute_s + arguments.seconds / max(1, round(arguments.seconds / 60)):
                    minute_s = now_s
                    minutes.append({"written_mib": round(written / _MIB, 1), **watch.taken()})
                    say(f"{minutes[-1]}")
            await writer.flush()
        minutes.append({"written_mib": round(written / _MIB, 1), **watch.taken()})
        watching.cancel()
    most = [minute["chunks_max_mib"] for minute in minutes]
    return {
        "keep_mib": arguments.keep_mib,
        "rate_mib_per_s": arguments.rate_mib,
        "minutes": minutes,
        "over_kept_max": round(max(most) / arguments.keep_mib, 2),
        "is_bounded": len(most) < 3 or max(most[len(most) // 2 :]) <= 1.5 * max(most[: len(most) // 2]),
    }


def main() -> None:
    """Run from the command line."""
    assert __doc__ is not None
    options = parser(__doc__)
    options.set_defaults(seconds=600.0)
    options.add_argument("--keep-mib", type=float, default=16.0, help="what the stream keeps at least")
    options.add_argument("--rate-mib", type=float, default=4.0, help="MiB/s that are written")
    arguments = options.parse_args()
    if arguments.quick:
        arguments.seconds, arguments.keep_mib = 3.0, 1.0
    with work_directory(arguments) as directory:
        disk = raw_disk(directory)
        found: dict[str, object] = {}
        with server(directory, settings=_SETTINGS) as running:

            async def work() -> None:
                found.update(await measure(running, arguments))

            run(work())
        report("retained_disk", {**found, "raw_disk": disk})


if __name__ == "__main__":
    main()
