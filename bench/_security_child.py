"""Server processes of `security.py`, and what its parts send to them."""

from __future__ import annotations

import datetime
import json
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from _security_server import CHUNK_BYTES, SEGMENT, token
from penstock.security.certificates import make_certificates
from penstock.wire.codec import encode
from penstock.wire.commands import AppendBlockEnd, Hello, ReadSegment, SetupAppend

HERE = Path(__file__).resolve().parent
WRITER = b"w" * 16
BLOCK_BYTES = 64 * 1024


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
        per_write = max(1, BLOCK_BYTES // length)
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
    for _ in range(byte_count // BLOCK_BYTES):
        connection.sendall(bytes(BLOCK_BYTES))
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
