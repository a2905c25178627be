"""What an append costs the server: CPU of everything behind the socket, in one process, no client beside it.

    python bench/append_cpu.py
    python bench/append_cpu.py --writers 100 --lone

Frames as a Java client sends them (a block and its end for each append; `--lone`: the end alone, as other clients do)
are put into the receive buffers of connections whose peer is not there, as fast as they are taken; log and long-term
storage are local directories. CPU is that of the process, user and system, the threads that write included, less the
time in which the frames are made. A connection gets `round_bytes` at a time, the same count of appends of one
writer after the other: that is how they come when a client does not wait. `writers` share each connection.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import resource
import time
from pathlib import Path

from _common import parser, raw_disk, report, work_directory
from _wire import run
from penstock.model.segments import Buffer
from penstock.runtime.disk import LocalDisk
from penstock.runtime.runtime import Runtime, ThreadedWork
from penstock.segmentstore.connection import Connection
from penstock.segmentstore.server import SegmentStoreServer
from penstock.segmentstore.settings import SegmentStoreSettings
from penstock.segmentstore.store import SegmentStore
from penstock.segmentstore.tier1.local_log_factory import LocalLogFactory
from penstock.segmentstore.tier2.directory import DirectoryChunkStorage
from penstock.wire.codec import encode
from penstock.wire.commands import AppendBlock, AppendBlockEnd, Hello, SetupAppend

SIZES = (100, 1000, 16 * 1024, 1000 * 1000)


class Transport(asyncio.Transport):
    """The sending side of a connection without a peer: counts the replies."""

    def __init__(self) -> None:
        super().__init__()
        self.reply_count = 0
        self.reads = asyncio.Event()
        self.reads.set()

    def write(self, data: bytes | bytearray | memoryview) -> None:  # As the loops have it.
        """See `asyncio.Transport`."""
        position = 0
        while position < len(data):
            position += 8 + int.from_bytes(data[position + 4 : position + 8], "big")
            self.reply_count += 1

    def get_write_buffer_size(self) -> int:
        """See `asyncio.Transport`."""
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """See `asyncio.Transport`."""

    def get_extra_info(self, name: str, default: object = None) -> object:
        """See `asyncio.BaseTransport`."""
        return default

    def pause_reading(self) -> None:
        """See `asyncio.Transport`."""
        self.reads.clear()

    def resume_reading(self) -> None:
        """See `asyncio.Transport`."""
        self.reads.set()

    def close(self) -> None:
        """See `asyncio.Transport`."""
        raise SystemExit("the server closed a connection")

    abort = close


class Peer:
    """One connection and those who write on it."""

    def __init__(self, server: SegmentStoreServer, number: int, segments: list[str]) -> None:
        self.transport = Transport()
        self.connection = Connection(server)
        self.connection.connection_made(self.transport)
        self.writers = [bytes((number,)) * 8 + index.to_bytes(8, "big") for index in range(len(segments))]
        self._segments = segments
        self._numbers = [0] * len(segments)
        self._next = 0

    async def set_up(self) -> None:
        """Greet, and set every writer up."""
        self.feed(encode(Hello(17, 5)))
        for request_id, (writer_id, segment) in enumerate(zip(self.writers, self._segments, strict=True)):
            self.feed(encode(SetupAppend(request_id, writer_id, segment, "")))
        while self.transport.reply_count <= len(self.writers):  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.01)

    def feed(self, data: Buffer) -> None:
        """Give bytes to the connection as a loop does, in reads as long as it has room for."""
        view = memoryview(data)
        while view:
            buffer = self.connection.get_buffer(-1)
            count = min(len(buffer), len(view))
            buffer[:count] = view[:count]
            self.connection.buffer_updated(count)
            view = view[count:]

    def round(self, event: bytes, blocks_per_writer: int, writer_count: int, is_single: bool) -> bytes:
        """Return the frames of a round: the next `writer_count` writers, `blocks_per_writer` appends each."""
        parts = []
        for _ in range(writer_count):
            position = self._next
            self._next = (position + 1) % len(self.writers)
            writer_id, first = self.writers[position], self._numbers[position] + 1
            self._numbers[position] += blocks_per_writer
            for number in range(first, first + blocks_per_writer):
                if is_single:
                    parts.append(encode(AppendBlockEnd(writer_id, len(event), event, 1, number, number)))
                else:
                    parts.append(encode(AppendBlock(writer_id, event)))
                    parts.append(encode(AppendBlockEnd(writer_id, len(event), b"", 1, number, number)))
        return b"".join(parts)


def _cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


async def _measure(store: SegmentStore, size: int, arguments: argparse.Namespace) -> dict[str, object]:
    server = SegmentStoreServer(store)
    server.loop = asyncio.get_running_loop()
    peers = []
    for number in range(arguments.connections):
        segments = [f"bench/cpu-{size}-{number}/{index}.#epoch.0" for index in range(arguments.writers)]
        for segment in segments:
            await store.create_segment(segment)
        peers.append(Peer(server, number, segments))
        await peers[-1].set_up()
    event = bytes(4) + (size - 8).to_bytes(4, "big") + random.Random(size).randbytes(size - 8)
    # With many writers not all of them fit into what comes at a time: they come in turn.
    writers_per_round = min(arguments.writers, max(1, arguments.round_bytes // size))
    per_round = max(1, arguments.round_bytes // (size * arguments.writers))
    total = int(max(1, arguments.megabytes * 1_000_000 // (size + arguments.block_overhead_bytes)))
    block_count, making_s = 0, 0.0
    begin_s, before_s, loop_before_s = time.perf_counter(), _cpu_s(), time.thread_time()
    while block_count < total:
        making_since_s = time.thread_time()
        rounds = [peer.round(event, per_round, writers_per_round, arguments.lone) for peer in peers]
        making_s += time.thread_time() - making_since_s
        for peer, frames in zip(peers, rounds, strict=True):
            await peer.transport.reads.wait()
            peer.feed(frames)
        await asyncio.sleep(0)
        block_count += per_round * writers_per_round * len(peers)
    for container in store.containers:
        await container.pipeline.barrier()
    await asyncio.sleep(0.01)
    cpu_s = _cpu_s() - before_s - making_s
    loop_s = time.thread_time() - loop_before_s - making_s
    acknowledgements = sum(peer.transport.reply_count - 1 - len(peer.writers) for peer in peers)
    for peer in peers:
        peer.connection.connection_lost(None)
    return {
        "append_bytes": size,
        "block_count": block_count,
        "blocks_per_writer_and_round": per_round,
        "acknowledgement_count": acknowledgements,
        "cpu_us_per_block": round(cpu_s / block_count * 1e6, 2),
        "loop_us_per_block": round(loop_s / block_count * 1e6, 2),
        "cpu_s_per_gb": round(cpu_s / (block_count * size) * 1e9, 2),
        "mb_per_s": round(block_count * size / (time.perf_counter() - begin_s) / 1e6, 1),
    }


async def measure(arguments: argparse.Namespace) -> None:
    """Measure each size, print the report."""
    with work_directory(arguments) as directory:
        disk = raw_disk(directory)
        runtime = Runtime(
            disk=LocalDisk(),
            work=ThreadedWork(),
            rng=random.Random(1),
            wall_clock_ms=lambda: time.time_ns() // 1_000_000,
        )
        store = SegmentStore(
            logs=LocalLogFactory(str(directory / "tier1"), runtime),
            chunks=DirectoryChunkStorage(str(directory / "tier2"), runtime),
            runtime=runtime,
            settings=SegmentStoreSettings(container_count=1),
        )
        Path(directory / "tier2").mkdir(exist_ok=True)
        await store.start()
        try:
            sizes = [await _measure(store, size, arguments) for size in arguments.sizes]
        finally:
            await store.stop()
            await runtime.work.close()
    conditions = {name: getattr(arguments, name) for name in ("connections", "writers", "lone", "round_bytes")}
    report("append_cpu", {"conditions": conditions, "sizes": sizes, "raw_disk": disk})


def main() -> None:
    """Run the command."""
    options = parser(__doc__)
    options.add_argument("--sizes", type=int, nargs="+", default=list(SIZES), help="bytes of an append")
    options.add_argument("--connections", type=int, default=2)
    options.add_argument("--writers", type=int, default=1, help="on each connection, a segment each")
    options.add_argument("--lone", action="store_true", help="AppendBlockEnd alone, as the Rust client sends it")
    options.add_argument("--round-bytes", type=int, default=192 * 1024, help="a connection sends so much at a time")
    options.add_argument("--megabytes", type=float, default=200.0, help="data of each size; small appends: less")
    options.add_argument("--block-overhead-bytes", type=int, default=1000, help="what a block counts beside its data")
    arguments = options.parse_args()
    if arguments.quick:
        arguments.sizes, arguments.megabytes = [100, 16 * 1024], 2.0
    run(measure(arguments))


if __name__ == "__main__":
    main()
