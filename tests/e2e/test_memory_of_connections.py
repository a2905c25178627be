"""Memory of a real process whose log has stalled, while thirty connections send all that their sockets take."""

from __future__ import annotations

import contextlib
import select
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.server.standalone_process import child_environment
from penstock.wire.codec import encode
from penstock.wire.commands import (
    AppendBlockEnd,
    Hello,
    ReadTable,
    SetupAppend,
    TableKey,
    TableKeyValue,
    UpdateTableEntries,
)

pytestmark = pytest.mark.e2e

CONNECTION_COUNT = 30
MIB = 1 << 20
BUDGET_BYTES = CACHE_BYTES = 32 * MIB
WRITER_BUDGET_BYTES = 16 * MIB
#: What the process may take besides: receive buffers, one frame under way each, fragmentation.
SLACK_BYTES = 24 * MIB
QUIET_S = 1.5
GIVE_UP_S = 90.0

SERVER = f"""
import asyncio, random, sys, time
from penstock.runtime.disk import LocalDisk
from penstock.runtime.runtime import Runtime, ThreadedWork
from penstock.segmentstore.server import SegmentStoreServer
from penstock.segmentstore.container_settings import ContainerSettings
from penstock.segmentstore.settings import CacheSettings, ConnectionSettings, SegmentStoreSettings
from penstock.segmentstore.store import SegmentStore
from penstock.segmentstore.tier1.memory_log import MemoryLogFactory
from penstock.segmentstore.tier2.memory import MemoryChunkStorage

async def main():
    runtime = Runtime(disk=LocalDisk(), work=ThreadedWork(1), rng=random.Random(1),
                      wall_clock_ms=lambda: time.time_ns() // 1_000_000)
    settings = SegmentStoreSettings(
        container_count=1,
        cache=CacheSettings(bytes_max={CACHE_BYTES}),
        container=ContainerSettings(outstanding_bytes_max={CACHE_BYTES // 2}),
        connection=ConnectionSettings(
            ingest_bytes_max={BUDGET_BYTES}, read_delay_s_max=1e6, writers_bytes_max={WRITER_BUDGET_BYTES}
        ),
    )
    logs = MemoryLogFactory(runtime)
    store = SegmentStore(logs=logs, chunks=MemoryChunkStorage(), runtime=runtime, settings=settings)
    await store.start()
    for number in range({CONNECTION_COUNT}):
        await store.create_segment(f"s/t{{number}}/0.#epoch.0")
        await store.create_table(f"s/k{{number}}/0.#epoch.0")
    server = SegmentStoreServer(store)
    await server.start("127.0.0.1", 0)
    print(server.port, flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
    logs.hold_appends(0)
    print("stalled", flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)

asyncio.run(main())
"""


def resident_bytes(pid: int, field: str) -> int:
    """Return `VmRSS`, or the highest there was, `VmHWM`."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise AssertionError(field)


def until_idle(pid: int) -> None:
    """Wait until the process has done all that it was sent: it uses no more CPU."""
    used, begin_s = -1, time.monotonic()
    while time.monotonic() - begin_s < GIVE_UP_S:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        before, used = used, int(fields[11]) + int(fields[12])
        if used <= before + 2:
            return
        time.sleep(QUIET_S / 2)


def set_up(port: int, number: int) -> socket.socket:
    """Connect and set a writer up; the answers are left unread."""
    wire = socket.create_connection(("127.0.0.1", port), timeout=10.0)
    writer_id = number.to_bytes(16, "big")
    wire.sendall(encode(Hello(17, 5)) + encode(SetupAppend(1, writer_id, f"s/t{number}/0.#epoch.0", "")))
    received = b""
    while len(received) < 60:
        received += wire.recv(4096)
    wire.setblocking(False)
    return wire


@contextlib.contextmanager
def running() -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A server: its process, and its port."""
    process = subprocess.Popen(
        [sys.executable, "-c", SERVER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=child_environment(),
    )
    try:
        assert process.stdout is not None
        yield process, int(process.stdout.readline())
    finally:
        process.kill()
        process.wait()


@contextlib.contextmanager
def stalled() -> Iterator[tuple[list[socket.socket], int, int]]:
    """A server whose log has stalled, with a writer on each connection: these, its process id, its resident bytes."""
    wires: list[socket.socket] = []
    with running() as (process, port):
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            wires += [set_up(port, number) for number in range(CONNECTION_COUNT)]
            process.stdin.write("stall\n")
            process.stdin.flush()
            assert process.stdout.readline() == "stalled\n"
            yield wires, process.pid, resident_bytes(process.pid, "VmRSS")
        finally:
            for wire in wires:
                wire.close()


def send_all(flow: dict[socket.socket, memoryview]) -> dict[socket.socket, int]:
    """Send what the sockets take, and drop the answers, until neither moves any more; return how much was sent."""
    sent = dict.fromkeys(flow, 0)
    moved_s = begin_s = time.monotonic()
    while time.monotonic() - moved_s < QUIET_S and time.monotonic() - begin_s < GIVE_UP_S:
        readable, writable, _ = select.select(list(sent), list(flow), [], 0.1)
        for wire in readable:
            if wire.recv(1 << 20):
                moved_s = time.monotonic()
        for wire in writable:
            count = wire.send(flow[wire][: 256 * 1024])
            moved_s = time.monotonic()
            sent[wire] += count
            flow[wire] = flow[wire][count:]
            if not flow[wire]:
                del flow[wire]
    return sent


@pytest.mark.parametrize("length", [100, 100_000])
def test_thirty_connections_hold_a_bounded_amount_of_memory_against_a_stalled_log(length: int) -> None:
    """Small appends and large ones: resident memory grows by the budget, the cache and some slack at most."""
    with stalled() as (wires, pid, before):
        unknown = b"\xfe" * 16
        frames = b"".join(
            encode(AppendBlockEnd(unknown, length, bytes(length), 1, number, number))
            for number in range(1, 8 * MIB // length)
        )
        sent = send_all(
            {wire: memoryview(frames.replace(unknown, writer.to_bytes(16, "big"))) for writer, wire in enumerate(wires)}
        )
        grown = resident_bytes(pid, "VmHWM") - before
        assert sum(sent.values()) > BUDGET_BYTES, "the sockets took too little to show anything"
        assert grown <= BUDGET_BYTES + CACHE_BYTES + SLACK_BYTES, f"{grown / MIB:.0f} MiB"


def test_writers_without_end_hold_a_bounded_amount_of_memory_against_a_stalled_log() -> None:
    """Each set-up rests on an append that is not durable, and waits: most of ninety thousand are refused."""
    with stalled() as (wires, pid, before):
        flow = {}
        for number, wire in enumerate(wires):
            segment = f"s/t{number}/0.#epoch.0"
            first = encode(AppendBlockEnd(number.to_bytes(16, "big"), 1, b"x", 1, 1, 1))
            set_ups = (
                SetupAppend(count, (number << 64 | count).to_bytes(16, "big"), segment, "") for count in range(1, 3001)
            )
            flow[wire] = memoryview(first + b"".join(map(encode, set_ups)))
        send_all(flow)
        until_idle(pid)
        grown = resident_bytes(pid, "VmHWM") - before
        assert not flow, "refused set-ups are answered, and more are read"
        assert grown <= WRITER_BUDGET_BYTES + SLACK_BYTES, f"{grown / MIB:.0f} MiB"


def test_lists_of_the_smallest_entries_hold_a_bounded_amount_of_memory_against_a_stalled_log() -> None:
    """They take ten times as much decoded as they came in."""
    with stalled() as (wires, pid, before):
        entries = [TableKeyValue(number.to_bytes(2, "big"), -1, b"v") for number in range(4096)]
        flow = {}
        for number, wire in enumerate(wires):
            update = encode(UpdateTableEntries(1, f"s/k{number}/0.#epoch.0", "", entries, -1))
            flow[wire] = memoryview(update * 60)
        send_all(flow)
        grown = resident_bytes(pid, "VmHWM") - before
        assert flow, "less was sent than the budget has room for"
        assert grown <= BUDGET_BYTES + CACHE_BYTES + SLACK_BYTES, f"{grown / MIB:.0f} MiB"


def test_replies_that_are_not_taken_hold_a_bounded_amount_of_memory() -> None:
    """A hundred reads of a table of 5 MiB, asked for over one connection that then takes nothing."""
    with running() as (process, port):
        wire = set_up(port, 0)
        wire.setblocking(True)
        table = "s/k0/0.#epoch.0"
        for number in range(10):
            entry = TableKeyValue(bytes([number]), -1, bytes(MIB // 2))
            wire.sendall(encode(UpdateTableEntries(number, table, "", [entry], -1)))
            assert wire.recv(4096)
        until_idle(process.pid)
        before = resident_bytes(process.pid, "VmRSS")
        keys = [TableKey(bytes([number]), -1) for number in range(10)]
        wire.sendall(encode(ReadTable(1, table, "", keys)) * 100)
        time.sleep(QUIET_S)
        until_idle(process.pid)
        grown = resident_bytes(process.pid, "VmHWM") - before
        assert select.select([wire], [], [], 0.0)[0], "nothing was answered"
        assert grown <= 8 * MIB + 3 * 6 * MIB + SLACK_BYTES, f"{grown / MIB:.0f} MiB"
        wire.close()
