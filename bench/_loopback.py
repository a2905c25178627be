"""What a bare socket of this machine carries: the baseline of what goes over TCP."""

from __future__ import annotations

import multiprocessing
import socket
import time
from multiprocessing.connection import Connection


def _send(pipe: Connection, block_bytes: int, total_bytes: int) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        pipe.send(listener.getsockname()[1])
        peer, _ = listener.accept()
        block = bytes(block_bytes)
        with peer:
            for _ in range(total_bytes // block_bytes):
                peer.sendall(block)


def bare_socket_mb_per_s(total_bytes: int) -> float:
    """Measure a plain socket between two processes."""
    ours, theirs = multiprocessing.get_context("spawn").Pipe()
    sender = multiprocessing.get_context("spawn").Process(target=_send, args=(theirs, 1 << 20, total_bytes))
    sender.start()
    received = 0
    buffer = bytearray(1 << 20)
    with socket.create_connection(("127.0.0.1", ours.recv())) as peer:
        begin_s = time.perf_counter()
        while count := peer.recv_into(buffer):
            received += count
        took_s = time.perf_counter() - begin_s
    sender.join()
    return round(received / took_s / 1e6, 1)
