"""Write throughput: one writer at full speed, optionally a reader following.

    python bench/append.py --event-bytes 100 --follow
    python bench/append.py --event-bytes 10000
    python bench/append.py --event-bytes 1000 --segments 100

Events are written in batches of `--batch` with `write_many`; an append is acknowledged when it is synced. The
reader is a process of its own, so that its CPU is seen apart.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from multiprocessing.connection import Connection

import penstock
from _common import cpu_s, memory_mb, parser, raw_disk, report, server, work_directory

STREAM = "bench/append"


def follow(uri: str, segment_names: list[str], pipe: Connection) -> None:
    """Read one segment from its start until told to stop; send back (bytes, CPU seconds)."""
    read_bytes = 0
    begin_cpu = time.process_time()
    with penstock.connect(uri) as client:
        pipe.send("ready")
        expected = None
        with client.segment_reader(segment_names[0], 0) as reader:
            for block in reader:
                read_bytes += len(block)
                if expected is None and pipe.poll():
                    expected = pipe.recv()
                if expected is not None and read_bytes >= expected:
                    break
    pipe.send((read_bytes, time.process_time() - begin_cpu))


def main() -> None:
    options = parser(__doc__ or "")
    options.add_argument("--event-bytes", type=int, default=100)
    options.add_argument("--segments", type=int, default=1)
    options.add_argument("--batch", type=int, default=0, help="events per write_many; 0: about 1 MB")
    options.add_argument("--follow", action="store_true", help="a reader follows (of the first segment)")
    arguments = options.parse_args()
    if arguments.quick:
        arguments.seconds = 0.3
    size = arguments.event_bytes
    batch_count = arguments.batch or max(1, 1_000_000 // size)

    with work_directory(arguments) as directory, server(directory) as running, penstock.connect(running.uri) as client:
        disk = raw_disk(directory)
        client.create_stream(STREAM, scaling=penstock.Scaling.fixed(arguments.segments))
        events = [os.urandom(size // 2) + bytes(size - size // 2) for _ in range(batch_count)]
        keys = [str(number) for number in range(batch_count)] if arguments.segments > 1 else None
        reader = None
        names = [f"{STREAM}/{number}.#epoch.0" for number in range(arguments.segments)]
        ours, theirs = multiprocessing.get_context("spawn").Pipe()
        if arguments.follow:
            reader = multiprocessing.get_context("spawn").Process(target=follow, args=(running.uri, names, theirs))
            reader.start()
            ours.recv()
        with client.event_writer(STREAM) as writer:
            writer.write_many(events, routing_keys=keys)
            writer.flush()
            server_cpu_s, client_cpu_s = cpu_s(running.pid), time.process_time()
            written = batch_count
            begin = time.perf_counter()
            while time.perf_counter() - begin < arguments.seconds:
                writer.write_many(events, routing_keys=keys)
                written += batch_count
            writer.flush()
            elapsed_s = time.perf_counter() - begin
            if arguments.follow:
                ours.send(written * (size + 8))
                # One more event, so that a reader that has everything polls the pipe.
                writer.write(b"end")
                read_bytes, reader_cpu_s = ours.recv()
                behind_s = time.perf_counter() - begin - elapsed_s
        figures: dict[str, object] = {
            "event_bytes": size,
            "segments": arguments.segments,
            "seconds": round(elapsed_s, 2),
            "events_per_s": round((written - batch_count) / elapsed_s),
            "mb_per_s": round((written - batch_count) * size / elapsed_s / 1e6, 1),
            "server_cpu_s": round(cpu_s(running.pid) - server_cpu_s, 2),
            "client_cpu_s": round(time.process_time() - client_cpu_s, 2),
            "server_memory": memory_mb(running.pid),
            "raw_disk": disk,
        }
        if reader is not None:
            reader.join()
            figures["reader"] = {
                "bytes": read_bytes,
                "cpu_s": round(reader_cpu_s, 2),
                "done_after_last_ack_s": round(behind_s, 3),
            }
        report("append", figures)


if __name__ == "__main__":
    main()
