"""What all bench commands share: a server process, raw-disk figures, CPU and memory of processes, JSON out.

Figures are meaningful as ratios within one run: each command prints, beside its own, what the disk did raw in the
same minute and what CPU server and client used.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from array import array
from collections.abc import Awaitable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

CLOCK_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def percentiles_ms(samples_s: Sequence[float]) -> dict[str, float]:
    """Return p50, p95, p99 and the maximum in milliseconds."""
    if not samples_s:
        return {}
    ordered = sorted(samples_s)

    def at(share: float) -> float:
        return round(ordered[min(len(ordered) - 1, int(len(ordered) * share))] * 1e3, 3)

    return {"p50_ms": at(0.5), "p95_ms": at(0.95), "p99_ms": at(0.99), "max_ms": round(ordered[-1] * 1e3, 3)}


def cpu_s(pid: int) -> float:
    """Return the CPU seconds that a process has used, user and system."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / CLOCK_TICKS_PER_S


class TurnWatch:
    """Notes the CPU time of the loop between two turns of a task that always wants one.

    In an array: a collection visits each element of a list, and there are millions of turns.
    """

    def __init__(self) -> None:
        self.turns_s: array[float] = array("d")

    @property
    def longest_s(self) -> float:
        """The longest of them."""
        return max(self.turns_s, default=0.0)

    async def __call__(self) -> None:
        last_s = time.thread_time()
        while True:
            await asyncio.sleep(0)
            now_s = time.thread_time()
            self.turns_s.append(now_s - last_s)
            last_s = now_s

    async def during(self, call: Awaitable[T]) -> T:
        """Watch while a call runs, its last turn included."""
        watching = asyncio.ensure_future(self())
        await asyncio.sleep(0)
        try:
            return await call
        finally:
            await asyncio.sleep(0)
            watching.cancel()


def memory_mb(pid: int) -> dict[str, float]:
    """Return a process's resident, proportional and highest resident memory in MB (10^6 bytes)."""
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    found = {line.split(":")[0]: int(line.split()[1]) for line in text.splitlines()[1:]}
    status = Path(f"/proc/{pid}/status").read_text()
    highest = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM:"))
    return {
        "rss_mb": round(found["Rss"] * 1024 / 1e6, 1),
        "pss_mb": round(found["Pss"] * 1024 / 1e6, 1),
        "rss_max_mb": round(highest * 1024 / 1e6, 1),
    }


def load() -> dict[str, object]:
    """Say what else the machine was doing: figures of a busy one are lower."""
    return {"load_average": [round(value, 1) for value in os.getloadavg()]}


def raw_disk(directory: Path) -> dict[str, float]:
    """Measure the disk under `directory` without us: synced 4 KiB and 1 MiB writes on blocks written before."""
    path = directory / "raw-disk"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT)
    try:
        size = 64 * 1024 * 1024
        for offset in range(0, size, 1024 * 1024):
            os.pwrite(descriptor, bytes(1024 * 1024), offset)
        os.fsync(descriptor)
        samples: list[float] = []
        block = os.urandom(4096)
        begin = time.perf_counter()
        while time.perf_counter() - begin < 1.0:
            start = time.perf_counter()
            os.pwrite(descriptor, block, (len(samples) * 4096) % size)
            os.fdatasync(descriptor)
            samples.append(time.perf_counter() - start)
        small_s = time.perf_counter() - begin
        block = os.urandom(1024 * 1024)
        count = 0
        begin = time.perf_counter()
        while time.perf_counter() - begin < 1.0:
            os.pwrite(descriptor, block, (count * 1024 * 1024) % size)
            os.fdatasync(descriptor)
            count += 1
        large_s = time.perf_counter() - begin
    finally:
        os.close(descriptor)
        path.unlink()
    figures = {f"fdatasync_4k_{name}": value for name, value in percentiles_ms(samples).items()}
    return {
        "fdatasync_4k_per_s": round(len(samples) / small_s),
        **figures,
        "synced_1m_mb_per_s": round(count * 1.048576 / large_s, 1),
    }


def hardware() -> dict[str, object]:
    """Describe the machine."""
    model = next(
        (line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line),
        platform.machine(),
    )
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "cpu": model,
        "cores": len(os.sched_getaffinity(0)),
        "memory_gb": round(memory / 1e9, 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
    }


@dataclass(frozen=True)
class Store:
    """One segment store of a server: its process may be the server's."""

    port: int
    pid: int
    containers: frozenset[int]


@dataclass
class Server:
    """A running `penstock standalone`. `store_port`: of its first segment store."""

    process: subprocess.Popen[str]
    uri: str
    store_port: int
    data_directory: Path
    ready_s: float
    stores: list[Store]

    @property
    def pid(self) -> int:
        """The server's process id."""
        return self.process.pid

    def kill(self) -> None:
        """End it as a power cut would, as far as the process is concerned."""
        self.process.kill()
        self.process.wait()

    def counts(self) -> list[dict[str, float]]:
        """Return what the containers hold in memory; for a server that was started with `is_observed`."""
        path = _counts_path(self.data_directory)
        path.unlink(missing_ok=True)
        self.process.send_signal(signal.SIGUSR1)
        deadline_s = time.monotonic() + 30
        while not path.exists():
            if time.monotonic() > deadline_s:
                raise SystemExit("the server did not tell its counts")
            time.sleep(0.01)
        found: list[dict[str, float]] = json.loads(path.read_text())
        return found


def _counts_path(data_directory: Path) -> Path:
    return data_directory / "counts.json"


def _port_of(address: str) -> int:
    return int(address.rpartition(":")[2])


def free_port() -> int:
    """Return a port that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def server(
    data_directory: Path,
    *options: str,
    settings: Mapping[str, object] | None = None,
    is_observed: bool = False,
    profile: Path | None = None,
) -> Iterator[Server]:
    """Run `penstock standalone` on free ports until the block ends.

    `settings`: by dotted name, beyond what there are options for. `is_observed`: `Server.counts` works. `profile`:
    run under cProfile, which costs about half of the speed, and leave the profile in that file.
    """
    port = free_port()
    command = ["-m", "penstock"]
    environment = dict(os.environ)
    for name, value in (settings or {}).items():
        environment["PENSTOCK_" + name.replace(".", "__").upper()] = str(value)
    if is_observed or profile is not None:
        command = [str(Path(__file__).with_name("_server.py"))]
    if is_observed:
        environment["BENCH_COUNTS"] = str(_counts_path(data_directory))
    if profile is not None:
        environment["BENCH_PROFILE"] = str(profile)
    begin = time.perf_counter()
    process = subprocess.Popen(
        [
            *(sys.executable, *command, "standalone", "--json", "--data-dir", str(data_directory / "store")),
            *("--controller-port", str(port), "--segment-store-port", "0", *options),
        ],
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise SystemExit(f"the server did not start: exit code {process.wait()}")
        stores = [
            Store(_port_of(store["address"]), store["pid"], frozenset(store["containers"]))
            for store in json.loads(line)["segment_stores"]
        ]
        data_directory.mkdir(parents=True, exist_ok=True)
        took_s = time.perf_counter() - begin
        yield Server(process, f"tcp://127.0.0.1:{port}", stores[0].port, data_directory, took_s, stores)
    finally:
        process.terminate()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextmanager
def work_directory(options: argparse.Namespace) -> Iterator[Path]:
    """Give a fresh directory on the disk to be measured, removed afterwards."""
    path = Path(tempfile.mkdtemp(prefix="penstock-bench-", dir=options.directory))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def parser(description: str) -> argparse.ArgumentParser:
    """Return a parser with the options that all commands have."""
    made = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--directory", default=".", help="where the data go: the disk that is measured")
    made.add_argument("--seconds", type=float, default=10.0, help="how long each measurement runs")
    made.add_argument("--quick", action="store_true", help="everything small: shows that the command works, no figures")
    return made


def report(name: str, figures: dict[str, object]) -> None:
    """Print a result as one JSON object."""
    print(
        json.dumps(
            {"bench": name, "durability": "synced before ack", "hardware": hardware(), **load(), **figures}, indent=2
        )
    )
