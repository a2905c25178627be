"""Catch-up reads: how fast a segment is read back from its start after a restart, when its data are in chunks.

    python bench/catch_up.py --megabytes 400
"""

from __future__ import annotations

import os
import time

import penstock
from _common import cpu_s, parser, raw_disk, report, server, work_directory

STREAM = "bench/catch-up"


def main() -> None:
    options = parser(__doc__ or "")
    options.add_argument("--megabytes", type=int, default=400)
    arguments = options.parse_args()
    if arguments.quick:
        arguments.megabytes = 20
    event = os.urandom(1000)
    with work_directory(arguments) as directory:
        disk = raw_disk(directory)
        with server(directory) as running, penstock.connect(running.uri) as client:
            client.create_stream(STREAM, scaling=penstock.Scaling.fixed(1))
            with client.event_writer(STREAM) as writer:
                for _ in range(arguments.megabytes):
                    writer.write_many([event] * 1000)
                writer.flush()
            length = client.tail(STREAM).positions[0]
            chunks = directory / "store" / "tier2"
            deadline = time.monotonic() + 60
            while time.monotonic() < deadline:
                stored = sum(path.stat().st_size for path in (chunks / "bench").rglob("*") if path.is_file())
                if stored >= length - 4 * 1024 * 1024:
                    break
                time.sleep(0.2)
        # A small cache, so that what is read comes from chunks and not from what the log's replay left in memory.
        with server(directory, "--cache-mb", "64") as running, penstock.connect(running.uri) as client:
            before_s, before_client_s = cpu_s(running.pid), time.process_time()
            begin = time.perf_counter()
            read = 0
            with client.segment_reader(f"{STREAM}/0.#epoch.0", 0, length) as reader:
                for block in reader:
                    read += len(block)
            elapsed_s = time.perf_counter() - begin
            report(
                "catch-up",
                {
                    "bytes": read,
                    "in_chunks_share": round(min(1.0, stored / length), 3),
                    "mb_per_s": round(read / elapsed_s / 1e6, 1),
                    "restart_to_ready_s": round(running.ready_s, 3),
                    "server_cpu_s": round(cpu_s(running.pid) - before_s, 2),
                    "client_cpu_s": round(time.process_time() - before_client_s, 2),
                    "raw_disk": disk,
                },
            )


if __name__ == "__main__":
    main()
