"""Large reader groups: how long their readers take to join, and what they cost while nothing is written.

    python bench/reader_groups.py                                   # 200 readers in 4 processes, and 10 to compare with
    python bench/reader_groups.py --readers 1000 --clients 20
    python bench/reader_groups.py --clients 200                     # a client, with its own connections, per reader

All readers start at the same moment. `joined_s`: until the last call that starts a reader has returned.
`balanced_s`: until the readers hold all segments, each its share. Then every reader waits for an event, and the CPU
time of the server and of the readers' processes is measured for `--seconds`, after `--settle-seconds`.
`idle_cpu_percent` is in percent of one core. Settings are the default ones but for closing. The baseline is a group of
10 readers of 10 segments on a fresh server.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import IO, cast

import penstock.aio
from _common import cpu_s, memory_mb, parser, raw_disk, report, server, work_directory
from penstock.client.groups.reader import Reader
from penstock.client.settings import ClientSettings
from penstock.model.errors import PenstockError
from penstock.model.policies import Scaling

STREAM, GROUP = "bench/orders", "bench/audit"
#: Joining and balancing may take so long before the command gives up.
LIMIT_S = 300.0


async def member(uri: str, number: int, readers: int, clients: int) -> None:
    """Run the readers of one process; talk to the parent in lines of JSON."""
    async with contextlib.AsyncExitStack() as stack:
        groups = []
        for _ in range(clients):
            # Leaving is measured, too, also where it takes longer than readers wait by default.
            settings = ClientSettings(reader_close_timeout_s=LIMIT_S, close_timeout_s=LIMIT_S)
            client = await stack.enter_async_context(penstock.aio.connect(uri, settings=settings))
            groups.append(await stack.enter_async_context(client.reader_group(GROUP)))
        _tell({"is_ready": True})
        await _line()
        begin = time.perf_counter()
        found = await asyncio.gather(
            *(groups[index % clients].reader(f"reader-{number}-{index:04d}") for index in range(readers))
        )
        _tell({"joined_s": time.perf_counter() - begin})
        while await _line() == "count":
            _tell({"held": [len(reader.segments) for reader in found]})
        errors: list[str] = []
        tasks = [asyncio.create_task(wait_for_events(reader, errors)) for reader in found]
        await _line()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        begin = time.perf_counter()
    _tell({"left_s": time.perf_counter() - begin, "error_count": len(errors), "first_error": errors[:1]})


async def wait_for_events(reader: Reader, errors: list[str]) -> None:
    """Read, which nothing is written for."""
    while True:
        try:
            await reader.read()
        except PenstockError as error:
            errors.append(str(error))


def _tell(fields: dict[str, object]) -> None:
    print(json.dumps(fields), flush=True)


async def _line() -> str:
    return (await asyncio.to_thread(sys.stdin.readline)).strip()  # type: ignore[no-any-return]


class Member:
    """A process with readers."""

    def __init__(self, uri: str, number: int, readers: int, clients: int) -> None:
        self.readers = readers
        self.process = subprocess.Popen(
            [sys.executable, __file__, "--member", json.dumps([uri, number, readers, clients])],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def say(self, line: str) -> None:
        """Send a line."""
        stdin = cast(IO[str], self.process.stdin)
        stdin.write(line + "\n")
        stdin.flush()

    def hear(self) -> dict[str, object]:
        """Return the next answer."""
        line = cast(IO[str], self.process.stdout).readline()
        if not line:
            raise SystemExit(f"a process with readers has ended: exit code {self.process.wait()}")
        return cast(dict[str, object], json.loads(line))


async def prepare(uri: str, segments: int) -> None:
    """Make the stream and the group."""
    async with penstock.aio.connect(uri) as client:
        await client.create_stream(STREAM, scaling=Scaling.fixed(segments))
        async with client.reader_group(GROUP, [STREAM]):
            pass


def run(arguments: argparse.Namespace, directory: Path, readers: int, clients: int) -> dict[str, object]:
    """Measure a group of so many readers on a fresh server."""
    processes = min(arguments.processes, readers)
    with server(directory) as running:
        asyncio.run(prepare(running.uri, readers))
        members = [
            Member(running.uri, number, _share(readers, processes, number), max(1, clients // processes))
            for number in range(processes)
        ]
        try:
            measured = _measure(arguments, running.pid, members)
            return {"readers": readers, "processes": processes, "clients": clients, **measured}
        finally:
            for each in members:
                each.process.kill()
                each.process.wait()


def _share(count: int, parts: int, number: int) -> int:
    return count // parts + (number < count % parts)


def _cpu(server_pid: int, members: list[Member]) -> tuple[float, float]:
    return cpu_s(server_pid), sum(cpu_s(each.process.pid) for each in members)


def _measure(arguments: argparse.Namespace, server_pid: int, members: list[Member]) -> dict[str, object]:
    for each in members:
        each.hear()
    begin, begin_cpu = time.perf_counter(), _cpu(server_pid, members)
    for each in members:
        each.say("join")
    joined_s = max(cast(float, each.hear()["joined_s"]) for each in members)
    while True:
        held = []
        for each in members:
            each.say("count")
            held += cast(list[int], each.hear()["held"])
        if sum(held) == len(held) and set(held) == {1}:
            break
        if time.perf_counter() - begin > LIMIT_S:
            raise SystemExit(f"not balanced after {LIMIT_S:g} s: {sorted(held)}")
        time.sleep(0.1)
    balanced_s, balanced_cpu = time.perf_counter() - begin, _cpu(server_pid, members)
    for each in members:
        each.say("read")
    time.sleep(arguments.settle_seconds)
    before, before_s = _cpu(server_pid, members), time.perf_counter()
    time.sleep(arguments.seconds)
    after, lasted_s = _cpu(server_pid, members), time.perf_counter() - before_s
    figures: dict[str, object] = {
        "joined_s": round(joined_s, 2),
        "balanced_s": round(balanced_s, 2),
        "cpu_s_until_balanced": {
            "server": round(balanced_cpu[0] - begin_cpu[0], 2),
            "readers": round(balanced_cpu[1] - begin_cpu[1], 2),
        },
        "idle_cpu_percent": {
            "server": round((after[0] - before[0]) / lasted_s * 100, 2),
            "readers": round((after[1] - before[1]) / lasted_s * 100, 2),
        },
        "server_memory": memory_mb(server_pid),
    }
    for each in members:
        each.say("end")
    ends = [each.hear() for each in members]
    figures["left_s"] = round(max(cast(float, end["left_s"]) for end in ends), 2)
    figures["error_count"] = sum(cast(int, end["error_count"]) for end in ends)
    figures["errors"] = [text for end in ends for text in cast(list[str], end["first_error"])]
    return figures


def main() -> None:
    """Run the command."""
    options = parser(__doc__ or "")
    options.set_defaults(seconds=30.0)
    options.add_argument("--readers", type=int, default=200)
    options.add_argument("--processes", type=int, default=4, help="that the readers are in")
    options.add_argument("--clients", type=int, default=4, help="that the readers have, in all processes together")
    options.add_argument("--settle-seconds", type=float, default=20.0)
    options.add_argument("--member", help=argparse.SUPPRESS)
    arguments = options.parse_args()
    if arguments.member:
        uri, number, readers, clients = json.loads(arguments.member)
        asyncio.run(member(uri, number, readers, clients))
        return
    if arguments.quick:
        arguments.readers, arguments.seconds, arguments.settle_seconds = 8, 1.0, 0.5
    with work_directory(arguments) as directory:
        disk = raw_disk(directory)
        large = run(arguments, directory / "large", arguments.readers, arguments.clients)
        small = run(arguments, directory / "small", min(10, arguments.readers), arguments.processes)
    idle, base = (sum(cast(dict[str, float], each["idle_cpu_percent"]).values()) for each in (large, small))
    report("reader_groups", {
        "raw_disk": disk, "group": large, "baseline": small,
        "idle_cpu_ratio": round(idle / base, 2) if base else None,
        "readers_ratio": round(cast(int, large["readers"]) / cast(int, small["readers"]), 1),
    })  # fmt: skip


if __name__ == "__main__":
    main()
