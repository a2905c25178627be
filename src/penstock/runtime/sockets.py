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


def dual_stack_socket(host: str, port: int) -> socket.socket | None:
    """Return a bound socket for all IPv6 and IPv4 addresses if `host` is ``::``; None: the event loop binds `host`.

    Event loops bind ``::`` to IPv6 alone. Raises `OSError` when the port is taken.
    """
    if host != "::" or not socket.has_dualstack_ipv6():
        return None
    bound = socket.socket(socket.AF_INET6, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        bound.bind((host, port))
    except BaseException:
        bound.close()
        raise
    return bound


async def can_resolve(host: str, timeout_s: float) -> bool:
    """Say whether this machine finds addresses for the name `host` within `timeout_s`."""
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(timeout_s):
            return bool(await loop.getaddrinfo(host, None, type=socket.SOCK_STREAM))
    except (OSError, UnicodeError):  # `UnicodeError`: no host name at all. `TimeoutError` is an `OSError`.
        return False


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
