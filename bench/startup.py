"""Start of `penstock standalone`: to the ready line, to the first acknowledged event; memory when idle.

python bench/startup.py --runs 5
"""

from __future__ import annotations

import time

import penstock
from _common import memory_mb, parser, raw_disk, report, server, work_directory


def main() -> None:
    options = parser(__doc__ or "")
    options.add_argument("--runs", type=int, default=5)
    options.add_argument("--idle-seconds", type=float, default=5.0)
    arguments = options.parse_args()
    if arguments.quick:
        arguments.runs, arguments.idle_seconds = 1, 0.1
    ready_s, first_event_s = [], []
    memory: dict[str, float] = {}
    with work_directory(arguments) as directory:
        disk = raw_disk(directory)
        for run in range(arguments.runs):
            begin = time.perf_counter()
            with server(directory / str(run)) as running:
                ready_s.append(round(running.ready_s, 3))
                with penstock.connect(running.uri) as client:
                    client.create_stream("bench/first")
                    with client.event_writer("bench/first") as writer:
                        writer.write(b"first", routing_key="k").wait(10)
                    first_event_s.append(round(time.perf_counter() - begin, 3))
                if run == arguments.runs - 1:
                    time.sleep(arguments.idle_seconds)
                    memory = memory_mb(running.pid)
    report(
        "startup",
        {
            "process_to_ready_s": sorted(ready_s),
            "process_to_first_acknowledged_event_s": sorted(first_event_s),
            "idle_memory": memory,
            "raw_disk": disk,
        },
    )


if __name__ == "__main__":
    main()
