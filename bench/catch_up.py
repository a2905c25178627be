"""Catch-up reads: how fast a segment is read back from its start after a restart, when its data are in chunks.

    python bench/catch_up.py --megabytes 400
    python bench/catch_up.py --s3                # chunks in S3: versitygw, as the tests build it

Over a socket, from a server with a small cache. In turns with it, the same chunks are read raw, in ranges of 1 MiB:
files by `pread`, objects by obstore, as many at a time as the server reads ahead of a reader. Medians of the rounds.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import time
from contextlib import ExitStack
from pathlib import Path

import penstock
from _common import cpu_s, parser, raw_disk, report, server, work_directory
from _s3 import BUCKET, S3UnavailableError, read_ranges, s3_bucket
from penstock.segmentstore.container_settings import ContainerSettings

STREAM = "bench/catch-up"
READ_BYTES = 1024 * 1024
#: All of the data go to chunks, and soon.
SETTINGS = {"segment_store.container.flush_age_s": 1.0, "object_storage.flush_age_s": 1.0}


def read_files(paths: list[Path]) -> float:
    """Read files raw, one after the other; return the seconds that it took."""
    begin_s = time.perf_counter()
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        offset = 0
        while count := len(os.pread(descriptor, READ_BYTES, offset)):
            offset += count
        os.close(descriptor)
    return time.perf_counter() - begin_s


def main() -> None:
    options = parser(__doc__ or "")
    options.add_argument("--megabytes", type=int, default=400)
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--s3", action="store_true", help="long-term storage in S3, not in a directory")
    arguments = options.parse_args()
    if arguments.quick:
        arguments.megabytes, arguments.rounds = 20, 1
    event = os.urandom(1000)
    settings: dict[str, object] = dict(SETTINGS)
    with work_directory(arguments) as directory, ExitStack() as stack:
        disk = raw_disk(directory)
        place = directory / "store" / "tier2"
        tier2: list[str] = []
        s3 = None
        if arguments.s3:
            try:
                s3 = stack.enter_context(s3_bucket(directory / "s3"))
            except S3UnavailableError as error:
                raise SystemExit(str(error)) from error
            place = s3.directory / "data" / BUCKET
            tier2 = ["--tier2", f"s3://{BUCKET}"]
            there = s3.settings
            for name in ("endpoint", "region", "access_key_id", "secret_access_key"):
                settings[f"object_storage.store.{name}"] = getattr(there, name)

        def chunks() -> list[Path]:
            return [path for path in (place / "bench").rglob("*") if path.is_file()]

        with server(directory, *tier2, settings=settings) as running, penstock.connect(running.uri) as client:
            client.create_stream(STREAM, scaling=penstock.Scaling.fixed(1))
            with client.event_writer(STREAM) as writer:
                for _ in range(arguments.megabytes):
                    writer.write_many([event] * 1000)
                writer.flush()
            length = client.tail(STREAM).positions[0]
            deadline = time.monotonic() + 120
            while time.monotonic() < deadline:
                stored = sum(path.stat().st_size for path in chunks())
                if stored >= length:
                    break
                time.sleep(0.2)
        # A small cache, so that what is read comes from chunks and not from what the log's replay left in memory.
        with (
            server(directory, "--cache-mb", "64", *tier2, settings=settings) as running,
            penstock.connect(running.uri) as client,
        ):
            took_s: list[float] = []
            raw_s: list[float] = []
            before_s, before_client_s = cpu_s(running.pid), 0.0
            for _ in range(arguments.rounds):
                if s3 is None:
                    raw_s.append(read_files(chunks()))
                else:
                    lengths = {str(path.relative_to(place)): path.stat().st_size for path in chunks()}
                    lanes = 1 + ContainerSettings().read_ahead_count_max
                    raw_s.append(asyncio.run(read_ranges(s3, lengths, READ_BYTES, lanes=lanes)))
                begin_s, begin_cpu_s = time.perf_counter(), time.process_time()
                read = 0
                with client.segment_reader(f"{STREAM}/0.#epoch.0", 0, length) as reader:
                    for block in reader:
                        read += len(block)
                took_s.append(time.perf_counter() - begin_s)
                before_client_s += time.process_time() - begin_cpu_s
            report(
                "catch-up",
                {
                    "storage": "s3" if arguments.s3 else "directory",
                    "bytes": read,
                    "rounds": arguments.rounds,
                    "in_chunks_share": round(min(1.0, stored / length), 3),
                    "mb_per_s": round(read / statistics.median(took_s) / 1e6, 1),
                    "raw_mb_per_s": round(stored / statistics.median(raw_s) / 1e6, 1),
                    "to_raw": round(statistics.median(raw_s) / statistics.median(took_s) * read / stored, 2),
                    "restart_to_ready_s": round(running.ready_s, 3),
                    "server_cpu_s_per_round": round((cpu_s(running.pid) - before_s) / arguments.rounds, 2),
                    "client_cpu_s_per_round": round(before_client_s / arguments.rounds, 2),
                    "raw_disk": disk,
                },
            )


if __name__ == "__main__":
    main()
