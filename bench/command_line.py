"""The command line: lines per second of `penstock write` and `read` through pipes, and the start of short ones.

    python bench/command_line.py --lines 2000000

CPU of the command, start and all, and of the server are told beside the time: on a machine that does other things as
well only they mean something. What the two may reach on two cores of their own is the lower of both rates.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import IO

from _common import Server, cpu_s, parser, percentiles_ms, raw_disk, report, server, work_directory

STREAM = "bench/lines"


def run(running: Server, *arguments: str, stdin: IO[bytes], stdout: IO[bytes] | int) -> dict[str, float]:
    """Run a command to its end; return its time, its CPU seconds, and the server's."""
    begin = time.perf_counter()
    before, server_before_s = os.times(), cpu_s(running.pid)
    done = subprocess.run(
        [sys.executable, "-m", "penstock", *arguments],
        stdin=stdin,
        stdout=stdout,
        env={**os.environ, "PENSTOCK_URI": running.uri},
        check=False,
    )
    after = os.times()
    if done.returncode:
        raise SystemExit(f"penstock {' '.join(arguments)} ended with {done.returncode}")
    # Of the commands alone: what feeds a pipe, or empties it, is waited for later.
    command_cpu_s = after.children_user + after.children_system - before.children_user - before.children_system
    return {
        "seconds": time.perf_counter() - begin,
        "cpu_s": command_cpu_s,
        "server_cpu_s": cpu_s(running.pid) - server_before_s,
    }


def figures_of(count: int, ran: dict[str, float]) -> dict[str, float]:
    """Return the rates by time and by CPU."""
    return {
        "lines_per_s": round(count / ran["seconds"]),
        "lines_per_cpu_s": round(count / ran["cpu_s"]),
        "lines_per_server_cpu_s": round(count / max(ran["server_cpu_s"], 1e-9)),
        "seconds": round(ran["seconds"], 2),
        "cpu_s": round(ran["cpu_s"], 2),
        "server_cpu_s": round(ran["server_cpu_s"], 2),
    }


def write(running: Server, lines: Path, count: int, *options: str) -> dict[str, float]:
    """Measure `penstock write`, its input a pipe."""
    with subprocess.Popen(["cat", str(lines)], stdout=subprocess.PIPE) as source:
        assert source.stdout is not None
        ran = run(running, "write", STREAM, "--json", *options, stdin=source.stdout, stdout=subprocess.DEVNULL)
    return figures_of(count, ran)


def read(running: Server, count: int, *options: str) -> dict[str, float]:
    """Measure `penstock read`, its output a pipe. Checks that all lines came out of it."""
    with tempfile.TemporaryFile() as told, subprocess.Popen(["wc", "-l"], stdin=subprocess.PIPE, stdout=told) as sink:
        assert sink.stdin is not None
        with open(os.devnull, "rb") as nothing:
            ran = run(running, "read", STREAM, *options, stdin=nothing, stdout=sink.stdin)
        sink.stdin.close()
        sink.wait()
        told.seek(0)
        if int(told.read()) != count:
            raise SystemExit("penstock read printed another number of lines than were written")
    return figures_of(count, ran)


def main() -> None:
    options = parser(__doc__ or "")
    options.add_argument("--lines", type=int, default=2_000_000)
    options.add_argument("--line-bytes", type=int, default=100, help="with its line feed")
    arguments = options.parse_args()
    if arguments.quick:
        arguments.lines = 2000
    count, length = arguments.lines, max(arguments.line_bytes, 40)
    with work_directory(arguments) as directory, server(directory) as running:
        disk = raw_disk(directory)
        lines = directory / "lines"
        with lines.open("w") as file:
            for number in range(count):
                line = json.dumps({"key": f"customer-{number % 1000}", "n": number})
                file.write(line.ljust(length - 1) + "\n")
        with open(os.devnull, "rb") as nothing:
            run(running, "stream", "create", STREAM, "--segments", "4", stdin=nothing, stdout=subprocess.DEVNULL)
            shown = [run(running, "--help", stdin=nothing, stdout=subprocess.DEVNULL) for _ in range(11)]
            listed = [run(running, "scope", "list", stdin=nothing, stdout=subprocess.DEVNULL) for _ in range(11)]
        written = {
            "write": write(running, lines, count),
            "write_key_field": write(running, lines, count, "--key-field", "key"),
        }
        reads = {
            "read": read(running, 2 * count),
            "read_offsets": read(running, 2 * count, "--offsets"),
            "read_json": read(running, 2 * count, "--format", "json"),
        }
    report(
        "command_line",
        {
            "lines": count,
            "line_bytes": length,
            **written,
            **reads,
            "help": percentiles_ms([each["seconds"] for each in shown]),
            "help_cpu_ms": round(min(each["cpu_s"] for each in shown) * 1000),
            "scope_list": percentiles_ms([each["seconds"] for each in listed]),
            "scope_list_cpu_ms": round(min(each["cpu_s"] for each in listed) * 1000),
            "raw_disk": disk,
        },
    )


if __name__ == "__main__":
    main()
