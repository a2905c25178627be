"""Server processes of `security.py`, and what its parts send to them."""

from __future__ import annotations

import datetime
import json
import random
import socket
import ssl
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from _security_server import BARE_REQUEST, CHUNK_BYTES, SEGMENT, token
from penstock.security.certificates import make_certificates
from penstock.wire.codec import encode
from penstock.wire.commands import AppendBlockEnd, Hello, ReadSegment, SetupAppend

HERE = Path(__file__).resolve().parent
WRITER = b"w" * 16
BLOCK_BYTES = 64 * 1024
#: For bounds.
_DRAWS = 2_000


def bounds(groups: Sequence[Sequence[float]], of: Callable[[Sequence[float]], float]) -> list[float]:
    """Return the bounds of 95 % of `of`, over draws of groups, and then of values of each."""
    rng = random.Random(1)
    found = sorted(
        of([value for group in rng.choices(groups, k=len(groups)) for value in rng.choices(group, k=len(group))])
        for _ in range(_DRAWS)
    )
    return [round(found[int(_DRAWS * share)], 4) for share in (0.025, 0.975)]


class Child:
    """A server in a child process."""

    def __init__(self, process: subprocess.Popen[str], tls: ssl.SSLContext | None, with_token: str) -> None:
        assert process.stdout is not None
        self.process = process
        self.ports = [int(each) for each in process.stdout.readline().split()]
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

    @property
    def port(self) -> int:
        """The first port."""
        return self.ports[0]

    def connect(self, port: int | None = None, *, has_tls: bool | None = None) -> socket.socket:
        """Return a blocking connection, encrypted if the server is, or by `has_tls`."""
        made = socket.create_connection(("127.0.0.1", port or self.port))
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._tls is None or has_tls is False:
            return made
        return self._tls.wrap_socket(made, server_hostname="localhost")

    def cpu_s(self) -> float:
        """Return the CPU time of the process so far, of all threads, by its own clock: that of the system has ticks."""
        return self.ask("cpu")["cpu_s"]


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


def exactly(connection: socket.socket, byte_count: int) -> bytes:
    """Receive so few bytes that copies do not matter."""
    found = b""
    while len(found) < byte_count:
        part = connection.recv(byte_count - len(found))
        if not part:
            raise SystemExit("the server closed the connection")
        found += part
    return found


def frame(connection: socket.socket) -> tuple[int, bytes]:
    """Receive a short frame; return its type and payload."""
    header = exactly(connection, 8)
    return int.from_bytes(header[:4], "big"), exactly(connection, int.from_bytes(header[4:], "big"))


def greeted(
    server: Child, port: int | None = None, *, has_tls: bool | None = None, writer: bytes = WRITER
) -> socket.socket:
    """Return a connection with a writer that is set up."""
    connection = server.connect(port, has_tls=has_tls)
    connection.sendall(encode(Hello(17, 5)))
    frame(connection)
    connection.sendall(encode(SetupAppend(1, writer, SEGMENT, server.token)))
    frame(connection)
    return connection


def frames(first: int, count: int, length: int, writer: bytes = WRITER) -> list[bytes]:
    """Return `count` blocks, numbered from `first`, in parts that are sent one by one."""
    data = bytes(4) + (length - 8).to_bytes(4, "big") + bytes(length - 8)
    per_write = max(1, BLOCK_BYTES // length)
    end = first + count
    return [
        b"".join(
            encode(AppendBlockEnd(writer, length, data, 1, each, each))
            for each in range(number, min(number + per_write, end))
        )
        for number in range(first, end, per_write)
    ]


def append(server: Child, connection: socket.socket, parts: Sequence[bytes], last: int) -> float:
    """Append blocks, and wait for the acknowledgement of the last one; return the server's CPU time."""
    before_s = server.cpu_s()
    # One thread: acknowledgements are few, and fit into the buffers of the sockets.
    for part in parts:
        connection.sendall(part)
    while True:
        _, payload = frame(connection)
        if int.from_bytes(payload[16:24], "big") >= last:
            return server.cpu_s() - before_s


def read(server: Child, connection: socket.socket, chunk_count: int, segment: str) -> float:
    """Read the first chunk of a segment so many times; return the server's CPU time."""
    before_s = server.cpu_s()
    for number in range(chunk_count):
        connection.sendall(encode(ReadSegment(segment, 0, CHUNK_BYTES, server.token, number)))
        header = exactly(connection, 8)
        received(connection, int.from_bytes(header[4:], "big"))
    return server.cpu_s() - before_s


def bare_sent(server: Child, connection: socket.socket, parts: Sequence[bytes]) -> float:
    """Send bytes to a bare server; return its CPU time."""
    before_s = server.cpu_s()
    connection.sendall(BARE_REQUEST.pack(b"r", sum(map(len, parts))))
    for part in parts:
        connection.sendall(part)
    received(connection, 1)
    return server.cpu_s() - before_s


def bare_received(server: Child, connection: socket.socket, chunk_count: int) -> float:
    """Receive chunks from a bare server; return its CPU time."""
    before_s = server.cpu_s()
    for _ in range(chunk_count):
        connection.sendall(BARE_REQUEST.pack(b"s", 0))
        received(connection, CHUNK_BYTES)
    return server.cpu_s() - before_s
