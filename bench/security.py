"""What TLS, tokens, and peers without credentials cost a segment store.

    python bench/security.py
    python bench/security.py --parts tokens,tls
    python bench/security.py --parts strangers --strangers 10000

The server is a child process with log and chunks in memory; CPU is that of the child, user and system, so a busy
machine changes it little. All figures are ratios of turns in one run.

`tokens`: CPU per small append with a token for each writer, to without. `tls`: the CPU that TLS adds for a byte, here
and in a bare server of asyncio, for appends and for reads. `strangers`: p99 of one append of a client with a token,
beside strangers of each kind, to without; memory; and the longest turn of the loop in CPU time, which a busy machine
changes little. `handshakes` are 100 a second.
"""

from __future__ import annotations

import argparse
import datetime
import json
import socket
import ssl
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from _common import cpu_s, parser, percentiles_ms, raw_disk, report, work_directory
from _security_server import CHUNK_BYTES, SEGMENT, token
from _wire import say
from penstock.security.certificates import make_certificates
from penstock.wire.codec import encode
from penstock.wire.commands import AppendBlockEnd, Hello, ReadSegment, SetupAppend

HERE = Path(__file__).resolve().parent
WRITER = b"w" * 16
_BLOCK_BYTES = 64 * 1024


class Child:
    """A server in a child process."""

    def __init__(self, process: subprocess.Popen[str], tls: ssl.SSLContext | None, with_token: str) -> None:
        assert process.stdout is not None
        self.process = process
        self.port = int(process.stdout.readline())
        self.token = with_token
        self._tls = tls

    def ask(self, line: str) -> dict[str, float]:
        """Send a line, and return the answer."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        found: dict[str, float] = json.loads(self.process.stdout.readline())
        return found

    def connect(self) -> socket.socket:
        """Return a blocking connection, encrypted if the server is."""
        made = socket.create_connection(("127.0.0.1", self.port))
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return made if self._tls is None else self._tls.wrap_socket(made, server_hostname="localhost")

    def cpu_s(self) -> float:
        """Return the CPU time of the process so far."""
        return cpu_s(self.process.pid)


@contextmanager
def child(directory: Path, kind: str, *, has_tls: bool, has_tokens: bool = False) -> Iterator[Child]:
    """Run a server until the block ends."""
    pem, authority = directory / "server.pem", directory / "ca.pem"
    if not pem.exists():
        made = make_certificates(["localhost"], datetime.datetime.now(datetime.UTC))
        pem.write_bytes(made.private_key + made.certificate)
        authority.write_bytes(made.authority)
    arguments = [kind, str(pem) if has_tls else "-", "tokens" if has_tokens else "-"]
    process = subprocess.Popen(
        [sys.executable, str(HERE / "_security_server.py"), *arguments],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        context = ssl.create_default_context(cafile=str(authority)) if has_tls else None
        yield Child(process, context, token() if has_tokens else "")
    finally:
        process.kill()
        process.wait()


def received(connection: socket.socket, byte_count: int) -> None:
    """Receive so many bytes."""
    buffer = memoryview(bytearray(1 << 20))
    while byte_count > 0:
        count = connection.recv_into(buffer[: min(len(buffer), byte_count)])
        if not count:
            raise SystemExit("the server closed the connection")
        byte_count -= count


def frame(connection: socket.socket) -> tuple[int, bytes]:
    """Receive a frame; return its type and payload."""

    def exactly(count: int) -> bytes:
        found = b""
        while len(found) < count:
            part = connection.recv(count - len(found))
            if not part:
                raise SystemExit("the server closed the connection")
            found += part
        return found

    header = exactly(8)
    return int.from_bytes(header[:4], "big"), exactly(int.from_bytes(header[4:], "big"))


def greeted(server: Child) -> socket.socket:
    """Return a connection with a writer that is set up."""
    connection = server.connect()
    connection.sendall(encode(Hello(17, 5)))
    frame(connection)
    connection.sendall(encode(SetupAppend(1, WRITER, SEGMENT, server.token)))
    frame(connection)
    return connection


def append(server: Child, connection: socket.socket, first: int, count: int, length: int) -> float:
    """Append `count` blocks, numbered from `first`, and wait for the acknowledgement; return the server's CPU time."""
    data = bytes(4) + (length - 8).to_bytes(4, "big") + bytes(length - 8)
    before_s = server.cpu_s()
    last = first + count - 1

    def send() -> None:
        per_write = max(1, _BLOCK_BYTES // length)
        for number in range(first, last + 1, per_write):
            numbers = range(number, min(number + per_write, last + 1))
            connection.sendall(
                b"".join(encode(AppendBlockEnd(WRITER, length, data, 1, each, each)) for each in numbers)
            )

    if isinstance(connection, ssl.SSLSocket):
        # One thread at a time: acknowledgements are few, and fit into the buffers of the sockets.
        send()
    else:
        threading.Thread(target=send).start()
    while True:
        _, payload = frame(connection)
        if int.from_bytes(payload[16:24], "big") >= last:
            return server.cpu_s() - before_s


def read(server: Child, connection: socket.socket, chunk_count: int) -> float:
    """Read chunks from the beginning of the segment; return the server's CPU time."""
    before_s = server.cpu_s()
    for number in range(chunk_count):
        connection.sendall(encode(ReadSegment(SEGMENT, 0, CHUNK_BYTES, server.token, number)))
        frame(connection)
    return server.cpu_s() - before_s


def bare_sent(server: Child, byte_count: int) -> float:
    """Send bytes to a bare server; return its CPU time."""
    connection = server.connect()
    before_s = server.cpu_s()
    connection.sendall(b"r")
    for _ in range(byte_count // _BLOCK_BYTES):
        connection.sendall(bytes(_BLOCK_BYTES))
    connection.sendall(b"e")
    received(connection, 1)
    connection.close()
    return server.cpu_s() - before_s


def bare_received(server: Child, chunk_count: int) -> float:
    """Receive chunks from a bare server; return its CPU time."""
    connection = server.connect()
    connection.sendall(b"s")
    before_s = server.cpu_s()
    for _ in range(chunk_count):
        connection.sendall(b"x")
        received(connection, CHUNK_BYTES)
    connection.close()
    return server.cpu_s() - before_s


def measure_tokens(directory: Path, arguments: argparse.Namespace) -> dict[str, object]:
    """Compare the CPU of small appends with tokens and without, in turns."""
    count = 2_000 if arguments.quick else 200_000
    figures: dict[bool, list[float]] = {False: [], True: []}
    with (
        child(directory, "store", has_tls=False) as plain,
        child(directory, "store", has_tls=False, has_tokens=True) as checked,
    ):
        servers = {False: (plain, greeted(plain)), True: (checked, greeted(checked))}
        for turn in range(1 + arguments.turns):
            for has_tokens, (server, connection) in servers.items():
                spent_s = append(server, connection, 1 + turn * count, count, 100)
                if turn:  # The first one warms up.
                    figures[has_tokens].append(1e6 * spent_s / count)
            say(f"tokens: turn {turn}")
    without, with_tokens = statistics.median(figures[False]), statistics.median(figures[True])
    return {
        "cpu_us_per_append": {"plain": round(without, 3), "tokens": round(with_tokens, 3)},
        "turns": {"plain": figures[False], "tokens": figures[True]},
        "ratio": round(with_tokens / max(without, 1e-9), 3),
    }


def measure_tls(directory: Path, arguments: argparse.Namespace) -> dict[str, object]:
    """Compare the CPU that TLS adds here and in a bare server, in both directions, in turns."""
    chunks = 4 if arguments.quick else 400
    blocks = chunks * CHUNK_BYTES // _BLOCK_BYTES
    found: dict[str, list[float]] = {}
    with (
        child(directory, "store", has_tls=False) as plain,
        child(directory, "store", has_tls=True) as secured,
        child(directory, "bare", has_tls=False) as bare,
        child(directory, "bare", has_tls=True) as bare_secured,
    ):
        connections = {plain: greeted(plain), secured: greeted(secured)}
        for turn in range(1 + arguments.turns):
            for name, server in (("plain", plain), ("tls", secured)):
                spent_s = append(server, connections[server], 1 + turn * blocks, blocks, _BLOCK_BYTES)
                found.setdefault(f"append_{name}", []).append(spent_s)
                found.setdefault(f"read_{name}", []).append(read(server, connections[server], chunks))
            for name, server in (("plain", bare), ("tls", bare_secured)):
                found.setdefault(f"bare_in_{name}", []).append(bare_sent(server, chunks * CHUNK_BYTES))
                found.setdefault(f"bare_out_{name}", []).append(bare_received(server, chunks))
            say(f"tls: turn {turn}")
    gigabytes = chunks * CHUNK_BYTES / 1e9
    per_gb = {name: round(statistics.median(values[1:] or values) / gigabytes, 3) for name, values in found.items()}

    def added(ours: str, bare_name: str) -> float:
        bare_s = per_gb[f"{bare_name}_tls"] - per_gb[f"{bare_name}_plain"]
        return round((per_gb[f"{ours}_tls"] - per_gb[f"{ours}_plain"]) / max(bare_s, 1e-9), 3)

    return {
        "cpu_s_per_gb": per_gb,
        "added_by_tls_to_bare": {"append": added("append", "bare_in"), "read": added("read", "bare_out")},
    }


def single_appends(server: Child, connection: socket.socket, numbers: Iterator[int], seconds: float) -> list[float]:
    """Append one block at a time, about 100 a second; return how long each took."""
    data = bytes(4) + (92).to_bytes(4, "big") + bytes(92)
    samples: list[float] = []
    end_s = time.perf_counter() + seconds
    while time.perf_counter() < end_s:
        number = next(numbers)
        begin_s = time.perf_counter()
        connection.sendall(encode(AppendBlockEnd(WRITER, 100, data, 1, number, number)))
        frame(connection)
        samples.append(time.perf_counter() - begin_s)
        time.sleep(0.01)
    return samples


@contextmanager
def strangers(kind: str, port: int, count: int) -> Iterator[None]:
    """Run strangers in a child process until the block ends."""
    process = subprocess.Popen(
        [sys.executable, str(HERE / "_strangers.py"), kind, str(port), str(count)],
        stdin=subprocess.PIPE, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        time.sleep(1.0)
        yield
    finally:
        process.kill()
        process.wait()


def measure_strangers(directory: Path, arguments: argparse.Namespace) -> dict[str, object]:
    """Compare a single append beside strangers with one alone, in turns; then watch the turns of the loop."""
    count = 50 if arguments.quick else arguments.strangers
    seconds = 0.3 if arguments.quick else arguments.seconds
    found: dict[str, object] = {}
    with child(directory, "store", has_tls=True, has_tokens=True) as server:
        connection = greeted(server)
        numbers = iter(range(1, 1 << 40))
        single_appends(server, connection, numbers, seconds / 2)
        memory = server.ask("report")
        for kind in ("silent", "partial", "garbage", "handshakes"):
            alone: list[float] = []
            beside: list[float] = []
            for _ in range(arguments.turns):
                alone += single_appends(server, connection, numbers, seconds)
                with strangers(kind, server.port, 100 if kind == "handshakes" else count):
                    beside += single_appends(server, connection, numbers, seconds)
                    rss_mb = server.ask("report")["rss_mb"]
            server.ask("watch")
            with strangers(kind, server.port, 100 if kind == "handshakes" else count):
                time.sleep(seconds)
                longest_ms = server.ask("report")["longest_turn_ms"]
            quiet, busy = percentiles_ms(alone), percentiles_ms(beside)
            found[kind] = {
                "alone": quiet, "beside": busy, "p99_ratio": round(busy["p99_ms"] / quiet["p99_ms"], 2),
                "rss_mb": rss_mb, "rss_mb_before": memory["rss_mb"], "longest_turn_ms": longest_ms,
            }  # fmt: skip
            say(f"strangers: {kind} {found[kind]}")
    return found


def main() -> None:
    """Measure the chosen parts, print the report."""
    options = parser(__doc__ or "")
    options.add_argument("--parts", default="tokens,tls,strangers", help="which, separated by commas")
    options.add_argument("--strangers", type=int, default=10_000, help="connections without credentials")
    options.add_argument("--turns", type=int, default=3)
    arguments = options.parse_args()
    if arguments.quick:
        arguments.turns = 1
    parts = {"tokens": measure_tokens, "tls": measure_tls, "strangers": measure_strangers}
    with work_directory(arguments) as directory:
        figures: dict[str, object] = {"raw_disk": raw_disk(directory)}
        for name in arguments.parts.split(","):
            figures[name] = parts[name](directory, arguments)
    report("security", figures)


if __name__ == "__main__":
    main()
