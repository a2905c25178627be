"""What the event loops leave out of their interface to sockets."""

from __future__ import annotations

import asyncio
import socket


def bound_receive_buffers(server: asyncio.Server, byte_count: int) -> None:
    """Let the kernel hold about `byte_count` bytes that were received and not read, for each connection of `server`.

    For a server that does not serve yet: connections take the size from the listening socket, and the window that is
    offered to the peer is fixed when they are accepted. Linux counts its bookkeeping in and doubles the number for it.
    Without this it lets ten megabytes and more stand there, ahead of whatever the peer asks next.
    """
    for listener in server.sockets:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, byte_count)
