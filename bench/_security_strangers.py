"""`measure_strangers`: what peers without credentials cost the data path of a segment store, and its memory.

A client with a token appends one block at a time, about 250 a second, alone and beside strangers of one kind, in turns.
`silent` and `partial`: COUNT connections are opened, then the oldest are closed and opened again, `churn_per_s` of
them. `garbage` is as many connections a second. `handshakes` are 100 complete ones a second, ten at once.

The strangers are a process that runs only on idle cores (SCHED_IDLE): on a machine with few cores their own
computation would be measured as well. How many really came is in the report. CPU per stranger is that of the server
beyond what it uses alone, divided by the strangers. The longest turn is in CPU time of the loop, which a busy machine
changes little.
"""

from __future__ import annotations

import argparse
import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from _common import percentiles_ms
from _security_child import WRITER, Child, child, greeted
from _security_child import frame as received_frame
from _strangers import CHURN_PER_S, HANDSHAKES_PER_S, POLICY
from _wire import say
from penstock.wire.codec import encode
from penstock.wire.commands import AppendBlockEnd

_HERE = Path(__file__).resolve().parent
_PAUSE_S = 0.003
#: Within this, a server has closed the connections of strangers that have ended.
_SETTLED_S = 1.0


def single_appends(server: Child, connection: socket.socket, numbers: Iterator[int], seconds: float) -> list[float]:
    """Append one block at a time; return how long each took."""
    data = bytes(4) + (92).to_bytes(4, "big") + bytes(92)
    samples: list[float] = []
    end_s = time.perf_counter() + seconds
    while time.perf_counter() < end_s:
        number = next(numbers)
        begin_s = time.perf_counter()
        connection.sendall(encode(AppendBlockEnd(WRITER, 100, data, 1, number, number)))
        received_frame(connection)
        samples.append(time.perf_counter() - begin_s)
        time.sleep(_PAUSE_S)
    return samples


class Strangers:
    """A process of strangers."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def counts(self) -> dict[str, float]:
        """Return how many there were so far, and the CPU time of their process."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("count\n")
        self._process.stdin.flush()
        found: dict[str, float] = json.loads(self._process.stdout.readline())
        return found


@contextmanager
def strangers(kind: str, port: int, count: int) -> Iterator[Strangers]:
    """Run strangers in a child process until the block ends. They are all there when it begins."""
    process = subprocess.Popen(
        [sys.executable, str(_HERE / "_strangers.py"), kind, str(port), str(count)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        if process.stdout.readline() != "ready\n":
            raise SystemExit("the strangers did not start")
        yield Strangers(process)
    finally:
        process.kill()
        process.wait()


def measure_strangers(directory: Path, arguments: argparse.Namespace) -> dict[str, object]:
    """Compare a single append beside strangers with one alone, in turns; then watch the turns of the loop."""
    count = 50 if arguments.quick else arguments.strangers
    seconds = 0.3 if arguments.quick else arguments.seconds
    found: dict[str, object] = {
        "churn_per_s": CHURN_PER_S, "handshakes_per_s": HANDSHAKES_PER_S, "scheduling_of_strangers": POLICY,
    }  # fmt: skip
    with child(directory, "store", has_tls=True, has_tokens=True) as server:
        connection = greeted(server)
        numbers = iter(range(1, 1 << 40))
        single_appends(server, connection, numbers, 2 * seconds)
        for kind in arguments.kinds.split(","):
            found[kind] = _of_kind(kind, count, server, connection, numbers, seconds, arguments.turns)
            say(f"strangers: {kind} {found[kind]}")
    # In another process: it remembers each turn.
    with child(directory, "store", has_tls=True, has_tokens=True) as server:
        found["longest_turn_ms"] = {
            kind: _longest_turn_ms(kind, count, server, seconds) for kind in arguments.kinds.split(",")
        }
    return found


def _longest_turn_ms(kind: str, count: int, server: Child, seconds: float) -> float:
    with strangers(kind, server.port, count):
        server.ask("watch")
        time.sleep(seconds)
        return server.ask("report")["longest_turn_ms"]


def _of_kind(
    kind: str, count: int, server: Child, connection: socket.socket, numbers: Iterator[int], seconds: float, turns: int
) -> dict[str, object]:
    alone: list[float] = []
    beside: list[float] = []
    rss_mb: dict[str, float] = {"before": server.ask("report")["rss_mb"], "during": 0.0}
    cpu_alone_s = cpu_beside_s = own_s = came = 0.0
    for _ in range(turns):
        before_s = server.cpu_s()
        alone += single_appends(server, connection, numbers, seconds)
        cpu_alone_s += server.cpu_s() - before_s
        with strangers(kind, server.port, count) as those:
            counts, before_s = those.counts(), server.cpu_s()
            beside += single_appends(server, connection, numbers, seconds)
            cpu_beside_s += server.cpu_s() - before_s
            after = those.counts()
            came += after["count"] - counts["count"]
            own_s += after["cpu_s"] - counts["cpu_s"]
            rss_mb["during"] = max(rss_mb["during"], server.ask("report")["rss_mb"])
    time.sleep(_SETTLED_S)
    rss_mb["after"] = server.ask("report")["rss_mb"]
    quiet, busy = percentiles_ms(alone), percentiles_ms(beside)
    # Each append costs the same, and there are fewer of them beside strangers.
    cpu_alone_s *= len(beside) / max(len(alone), 1)
    per_stranger_us = round(1e6 * (cpu_beside_s - cpu_alone_s) / came, 1) if came else 0.0
    return {
        "alone": quiet, "beside": busy, "p99_ratio": round(busy["p99_ms"] / quiet["p99_ms"], 2),
        "p50_ratio": round(busy["p50_ms"] / quiet["p50_ms"], 2), "samples": len(beside),
        "strangers_per_s": round(came / (turns * seconds)), "server_cpu_us_per_stranger": per_stranger_us,
        "cpu_share_of_strangers": round(own_s / (turns * seconds), 3), "rss_mb": rss_mb,
    }  # fmt: skip
