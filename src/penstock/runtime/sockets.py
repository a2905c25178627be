"""What the event loops leave out of their interface to sockets."""

from __future__ import annotations

import asyncio
import errno
import socket


def bound_receive_buffers(server: asyncio.Server, byte_count: int) -> None:
    """Let the kernel hold about `byte_count` bytes that were received and not read, for each connection of `server`.

    For a server that does not serve yet: connections take the size from the listening socket, and the window that is
    offered to the peer is fixed when they are accepted. Linux counts its bookkeeping in and doubles the number for it.
    Without this it lets ten megabytes and more stand there, ahead of whatever the peer asks next.
    """
    for listener in server.sockets:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, byte_count)


async def check_port_is_unused(host: str, port: int) -> None:
    """Raise `OSError` if something listens on `port` of each address of `host`.

    For a server whose library has nothing but lines of its own to say about it. Whatever else may be wrong with the
    address is for that server to find, and so is who takes the port between this look and the server's.
    """
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError:
        return
    in_use: OSError | None = None
    for family, kind, protocol, _, address in found:
        try:
            with socket.socket(family, kind, protocol) as probe:
                # As servers do: what a server that has just ended leaves to the kernel does not count.
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(address)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                return
            in_use = error
        else:
            return
    if in_use is not None:
        raise in_use
