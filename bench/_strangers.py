"""A child process of `security.py`: peers without credentials. ``_strangers.py KIND PORT COUNT``; ends with its input.

It prints ``ready``, and for each line of its input how many strangers there were so far. `silent`: COUNT connections
that send nothing; then the oldest are closed and opened again, `CHURN_PER_S`. `partial`: that send a part of a
handshake. `garbage`: connections that send bytes which are no TLS, as many a second, at most ten at once. `handshakes`:
complete ones, `HANDSHAKES_PER_S`, ten at once, closed afterwards.
"""

from __future__ import annotations

import asyncio
import json
import os
import select
import socket
import ssl
import sys
import time
from collections import deque

from penstock.runtime.descriptors import raise_descriptor_limit

_PART = b"\x16\x03\x01"
_GARBAGE = b"\x00garbage" * 500
CHURN_PER_S = 1_000
HANDSHAKES_PER_S = 100
#: They run only while a core is idle, so that their own computation does not delay server and client.
POLICY = "SCHED_IDLE"
_AT_ONCE = 10


class Counts:
    """How many strangers there were; answers the input."""

    def __init__(self) -> None:
        self.count = 0

    def is_over(self) -> bool:
        """Answer a line, if there is one; return whether the input has ended."""
        if not select.select([sys.stdin], [], [], 0)[0]:
            return False
        if not os.read(sys.stdin.fileno(), 64):
            return True
        print(json.dumps({"count": self.count, "cpu_s": time.process_time()}), flush=True)
        return False


class Pace:
    """Spreads events over time."""

    def __init__(self, per_s: float) -> None:
        self._per_s = per_s
        self._next_s = time.monotonic()

    def due(self, most: int) -> int:
        """Return how many are due now, at most `most`; those that were missed are not made up for."""
        now_s = time.monotonic()
        due = min(int((now_s - self._next_s) * self._per_s), most)
        self._next_s = max(self._next_s + due / self._per_s, now_s - most / self._per_s)
        return due


def _opened(port: int, sent: bytes) -> socket.socket | None:
    try:
        made = socket.create_connection(("127.0.0.1", port), timeout=5)
        if sent:
            made.sendall(sent)
    except OSError:
        return None
    return made


def hold(port: int, count: int, sent: bytes, counts: Counts) -> None:
    """Open connections and keep them; then close the oldest and open others."""
    held: deque[socket.socket] = deque()
    while len(held) < count:
        if (made := _opened(port, sent)) is not None:
            held.append(made)
    print("ready", flush=True)
    pace = Pace(CHURN_PER_S)
    while not counts.is_over():
        for _ in range(pace.due(_AT_ONCE)):
            held.popleft().close()
            if (made := _opened(port, sent)) is not None:
                held.append(made)
                counts.count += 1
        time.sleep(0.002)


def garbage(port: int, counts: Counts) -> None:
    """Open connections that send garbage."""
    print("ready", flush=True)
    pace = Pace(CHURN_PER_S)
    while not counts.is_over():
        for _ in range(pace.due(_AT_ONCE)):
            if (made := _opened(port, _GARBAGE)) is not None:
                made.close()
                counts.count += 1
        time.sleep(0.002)


async def handshakes(port: int, counts: Counts) -> None:
    """Complete handshakes."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    tasks: set[asyncio.Task[None]] = set()

    async def one() -> None:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
        except OSError:
            return
        counts.count += 1
        writer.transport.abort()

    print("ready", flush=True)
    pace = Pace(HANDSHAKES_PER_S / _AT_ONCE)
    while not counts.is_over():
        for _ in range(pace.due(1) * _AT_ONCE):
            task = asyncio.ensure_future(one())
            tasks.add(task)
            task.add_done_callback(tasks.discard)
        await asyncio.sleep(0.005)


if __name__ == "__main__":
    raise_descriptor_limit()
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    kind, port_text, count_text = sys.argv[1:]
    match kind:
        case "silent":
            hold(int(port_text), int(count_text), b"", Counts())
        case "partial":
            hold(int(port_text), int(count_text), _PART, Counts())
        case "garbage":
            garbage(int(port_text), Counts())
        case _:
            asyncio.run(handshakes(int(port_text), Counts()))
