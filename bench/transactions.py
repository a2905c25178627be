"""What small transactions take on the embedded store: each for itself, many at once, large and small ones.

    python bench/transactions.py
    python bench/transactions.py --lone 500 --writers 8 --seconds 20

`lone`: begin, `--events` events of 100 bytes, commit, until a reader has the last of them; one after another, a
caller's wait. `begin`, `write` and `commit` are its parts as far as the writer is concerned. `many`: `--writers`
writers on one stream, each with the next transaction as soon as its last commit was answered; counted until all are
merged. `sizes`: from the call of commit until the stream has grown, for small and for large transactions: `at_once`,
while the disk still takes what was written, and `settled`, when it has nothing more to do. `requests`: what the
controller asks of segment stores for each transaction, counted, not timed. CPU is the server's, for each transaction.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

from _common import Server, cpu_s, parser, percentiles_ms, raw_disk, report, server, work_directory
from _wire import run, say
from penstock import aio
from penstock.controller.locator import SingleStoreLocator
from penstock.controller.metadata.segments_store import SegmentsMetadataStore
from penstock.controller.service import ControllerService
from penstock.model.names import segment_name
from penstock.model.policies import StreamConfig
from penstock.runtime.disk import LocalDisk
from penstock.runtime.runtime import Runtime, ThreadedWork
from penstock_simulation.memory_segments import MemorySegments

_SCOPE = "bench"
#: A server that has nothing to do writes less than this in a tenth of a second.
_QUIET_BYTES = 100_000
_SETTLED_WAITS_MAX = 600


async def _until(condition: Callable[[], Awaitable[bool]]) -> None:
    while True:
        if await condition():
            return
        await asyncio.sleep(0)


async def _is_behind(client: aio.Client, stream: str, length: int) -> bool:
    (end,) = (await client.tail(stream)).positions.values()
    return end > length


async def _has(data: bytearray, length: int) -> bool:
    return len(data) >= length


async def lone(client: aio.Client, running: Server, arguments: argparse.Namespace) -> dict[str, object]:
    """Play transactions one after another, each until it is read."""
    stream = f"{_SCOPE}/lone"
    await client.create_stream(stream)
    parts: dict[str, list[float]] = {"begin": [], "write": [], "commit": [], "visible": []}
    server_s = 0.0
    async with (
        client.reader_group(f"{_SCOPE}/lone-readers", [stream]) as group,
        group.reader("one") as reader,
    ):
        for number in range(arguments.lone + 10):
            if number == 10:  # What is made at the first time is not what one takes.
                server_s = cpu_s(running.pid)
                for samples in parts.values():
                    samples.clear()
            begin_s = time.perf_counter()
            transaction = await client.begin_transaction(stream)
            parts["begin"].append(time.perf_counter() - begin_s)
            for _ in range(arguments.events):
                await transaction.write(bytes(100), routing_key="key")
            written_s = time.perf_counter()
            parts["write"].append(written_s - begin_s - parts["begin"][-1])
            await transaction.commit()
            parts["commit"].append(time.perf_counter() - written_s)
            for _ in range(arguments.events):
                assert await reader.read(timeout_s=30) is not None
            parts["visible"].append(time.perf_counter() - begin_s)
        server_s = cpu_s(running.pid) - server_s
    figures: dict[str, object] = {name: percentiles_ms(samples) for name, samples in parts.items()}
    figures["server_cpu_ms"] = round(server_s / arguments.lone * 1e3, 2)
    say(f"lone: {figures}")
    return figures


async def many(client: aio.Client, running: Server, arguments: argparse.Namespace) -> dict[str, object]:
    """Commit transactions from several writers for some seconds; wait until all are merged."""
    stream = f"{_SCOPE}/many"
    await client.create_stream(stream)
    length_bytes = (8 + 100) * arguments.events
    count = 0

    async def writer(end_s: float) -> None:
        nonlocal count
        while time.perf_counter() < end_s:
            transaction = await client.begin_transaction(stream)
            for _ in range(arguments.events):
                await transaction.write(bytes(100), routing_key="key")
            await transaction.commit()
            count += 1

    await writer(time.perf_counter())
    server_s, begin_s = cpu_s(running.pid), time.perf_counter()
    await asyncio.gather(*(writer(begin_s + arguments.seconds) for _ in range(arguments.writers)))
    await _until(partial(_is_behind, client, stream, count * length_bytes - 1))
    took_s, server_s = time.perf_counter() - begin_s, cpu_s(running.pid) - server_s
    figures: dict[str, object] = {
        "writers": arguments.writers,
        "transactions": count,
        "per_s": round(count / took_s, 1),
        "server_cpu_ms": round(server_s / count * 1e3, 2),
    }
    say(f"many: {figures}")
    return figures


def _written_bytes(pid: int) -> int:
    """Return what a process has had written to disks so far."""
    (line,) = [line for line in Path(f"/proc/{pid}/io").read_text().splitlines() if line.startswith("write_bytes:")]
    return int(line.split()[1])


async def _settled(pid: int) -> None:
    """Wait until a process has written next to nothing for some tenths of a second."""
    last, quiet_count = _written_bytes(pid), 0
    for _ in range(_SETTLED_WAITS_MAX):
        await asyncio.sleep(0.1)
        now = _written_bytes(pid)
        quiet_count = quiet_count + 1 if now - last < _QUIET_BYTES else 0
        last = now
        if quiet_count == 3:
            return
    raise SystemExit("the server still writes")


async def sizes(
    client: aio.Client, running: Server, arguments: argparse.Namespace, *, is_settled: bool
) -> dict[str, object]:
    """Commit transactions of different sizes, each until its last event is read."""
    result: dict[str, object] = {}
    for megabytes in (0, arguments.large_mb):
        stream = f"{_SCOPE}/size-{megabytes}{'-settled' if is_settled else ''}"
        await client.create_stream(stream)
        samples_s: list[float] = []
        for _ in range(arguments.large):
            transaction = await client.begin_transaction(stream)
            await transaction.write(bytes(100), routing_key="key")
            for _ in range(megabytes):
                await transaction.write(bytes(1_000_000), routing_key="key")
            await transaction.flush()
            if is_settled:
                await _settled(running.pid)
            (length,) = (await client.tail(stream)).positions.values()
            begin_s = time.perf_counter()
            await transaction.commit()
            await _until(partial(_is_behind, client, stream, length))
            samples_s.append(time.perf_counter() - begin_s)
        result[f"{megabytes}_mb"] = {"min_ms": round(min(samples_s) * 1e3, 2), **percentiles_ms(samples_s)}
    say(f"sizes, {'settled' if is_settled else 'at once'}: {result}")
    return result


class _Counted:
    """Counts the requests to a segment store."""

    def __init__(self, store: MemorySegments) -> None:
        self._store = store
        self.calls: Counter[str] = Counter()

    def __getattr__(self, name: str) -> Callable[..., Awaitable[object]]:
        call = getattr(self._store, name)

        async def forward(*arguments: object, **options: object) -> object:
            self.calls[name] += 1
            result: object = await call(*arguments, **options)
            return result

        return forward


async def requests(arguments: argparse.Namespace) -> dict[str, object]:
    """Count the controller's requests for transactions, in memory: one after another, and `--writers` at a time."""
    store = MemorySegments()
    counted = _Counted(store)
    service = ControllerService(
        metadata=SegmentsMetadataStore(counted),  # type: ignore[arg-type]  # has all calls of what it wraps
        segments=counted,  # type: ignore[arg-type]  # the same
        locator=SingleStoreLocator("127.0.0.1", 6000),
        runtime=Runtime(
            disk=LocalDisk(),
            work=ThreadedWork(1),
            rng=random.Random(1),
            wall_clock_ms=lambda: int(time.time() * 1000),
        ),
    )
    await service.start()
    await service.create_scope(_SCOPE)
    await service.create_stream(_SCOPE, "counted", StreamConfig())
    segment = store.segments[segment_name(_SCOPE, "counted", 0)]

    async def play() -> None:
        made = await service.transactions.create(_SCOPE, "counted", 10_000)
        await store.append(f"{segment_name(_SCOPE, 'counted', 0)}#transaction.{made.id.text.replace('-', '')}", b"x")
        await service.transactions.commit(_SCOPE, "counted", made.id, writer_id="", timestamp=-1)

    async def writer(count: int) -> None:
        for _ in range(count):
            await play()

    await play()
    await service.idle()
    result: dict[str, object] = {}
    for writers in (1, arguments.writers):
        counted.calls.clear()
        for _ in range(100 if writers == 1 else 1):
            length = len(segment.data)
            await asyncio.gather(*(writer(1 if writers == 1 else 100) for _ in range(writers)))
            expected = length + (1 if writers == 1 else 100 * writers)
            await _until(partial(_has, segment.data, expected))
        await service.idle()
        transactions = 100 * writers
        result[f"writers_{writers}"] = {
            "all": round(counted.calls.total() / transactions, 2),
            **{name: round(count / transactions, 2) for name, count in sorted(counted.calls.items())},
        }
    await service.stop()
    say(f"requests: {result}")
    return result


def main() -> None:
    options = parser(__doc__ or "")
    options.add_argument("--lone", type=int, default=300)
    options.add_argument("--events", type=int, default=10)
    options.add_argument("--writers", type=int, default=8)
    options.add_argument("--large", type=int, default=10, help="transactions of each size")
    options.add_argument("--large-mb", type=int, default=50)
    arguments = options.parse_args()
    if arguments.quick:
        arguments.lone, arguments.seconds, arguments.large, arguments.large_mb = 10, 0.5, 1, 2
    with work_directory(arguments) as directory:
        disk = raw_disk(directory)
        with server(directory) as running:
            found: dict[str, object] = {}

            async def work() -> None:
                found["requests"] = await requests(arguments)
                async with aio.connect(running.uri) as client:
                    await client.create_scope(_SCOPE)
                    found["lone"] = await lone(client, running, arguments)
                    found["many"] = await many(client, running, arguments)
                    found["sizes"] = {
                        name: await sizes(client, running, arguments, is_settled=is_settled)
                        for name, is_settled in (("at_once", False), ("settled", True))
                    }

            run(work())
        report("transactions", {**found, "raw_disk": disk})


if __name__ == "__main__":
    main()
