"""Socket options that the interface of event loops lacks."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from penstock.model.errors import InvalidArgumentError
from penstock.runtime.fixed_values import fixed


@dataclass(frozen=True, slots=True)
class DeadPeerSettings:
    """When a server drops a connection whose peer is gone without closing it. See docs/dead-peers.md.

    The kernel of the peer answers probes, whatever its program does: a connection that is only idle stays.

    Attributes:
        probe_after_s: a connection is probed after it has been idle for this long; whole seconds, at least 1.
        probe_interval_s: interval of further probes; whole seconds, at least 1.
        timeout_s: a connection is dropped when the peer has acknowledged nothing for this long, or has taken no byte
            of its replies for this long; more than `probe_after_s`.
    """

    probe_after_s: float = 30.0
    probe_interval_s: float = fixed(10.0)
    timeout_s: float = 60.0

    def __post_init__(self) -> None:
        """Check the times. Raises `InvalidArgumentError`."""
        if self.probe_after_s < 1 or self.probe_interval_s < 1:
            raise InvalidArgumentError(
                f"dead_peers: probe_after_s is {self.probe_after_s:g} and probe_interval_s {self.probe_interval_s:g}: "
                "set each to 1 s or more"
            )
        if self.timeout_s <= self.probe_after_s:
            raise InvalidArgumentError(
                f"dead_peers: timeout_s is {self.timeout_s:g}: set more than probe_after_s ({self.probe_after_s:g}), "
                "or every idle connection is dropped before its first probe can be answered"
            )


class HasSockets(Protocol):
    """A server that listens."""

    @property
    def sockets(self) -> Sequence[socket.socket]:
        """Its listening sockets."""


def bound_receive_buffers(server: HasSockets, byte_count: int) -> None:
    """Bound the unread received bytes in the kernel to about `byte_count` for each connection of `server`.

    Call it before the server serves: connections inherit the size from the listening socket, and the window offered to
    the peer is fixed at accept. Linux includes its bookkeeping and doubles the number for that. Without this bound it
    buffers ten megabytes and more, ahead of the peer's next request.
    """
    for listener in server.sockets:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, byte_count)


def detect_dead_peers(server: HasSockets, settings: DeadPeerSettings) -> None:
    """Let the kernel probe idle connections of `server`, and drop those whose peers are dead.

    Call it before the server serves: connections inherit the options from the listening socket. Probes are not visible
    to the peer's program.
    """
    for listener in server.sockets:
        for level, option, value in _dead_peer_options(settings):
            listener.setsockopt(level, option, value)


def _dead_peer_options(settings: DeadPeerSettings) -> Iterator[tuple[int, int, int]]:
    yield socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1
    silent_s = settings.timeout_s - settings.probe_after_s
    probe_count = max(1, -int(-silent_s // settings.probe_interval_s))
    # Some systems lack some of these options.
    for name, value in (
        ("TCP_KEEPIDLE", round(settings.probe_after_s)),
        ("TCP_KEEPINTVL", round(settings.probe_interval_s)),
        ("TCP_KEEPCNT", probe_count),
        # Probes are sent only while nothing waits for an acknowledgement; this bounds the time in which something does.
        # Linux then uses it as the bound of probes, too.
        ("TCP_USER_TIMEOUT", round(1000 * settings.timeout_s)),
    ):
        if (option := getattr(socket, name, None)) is not None:
            yield socket.IPPROTO_TCP, option, value


def dual_stack_socket(host: str, port: int) -> socket.socket | None:
    """Return a bound socket for all IPv6 and IPv4 addresses if `host` is ``::``; None: the event loop binds `host`.

    Event loops bind ``::`` to IPv6 only. Raises `OSError` when the port is in use.
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
    """Return whether the name `host` resolves within `timeout_s`."""
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(timeout_s):
            return bool(await loop.getaddrinfo(host, None, type=socket.SOCK_STREAM))
    except (OSError, UnicodeError):  # `UnicodeError`: not a host name. `TimeoutError` is an `OSError`.
        return False


async def check_port_is_unused(host: str, port: int) -> None:
    """Raise `OSError` if another process listens on `port` of an address of `host`.

    For a server whose library reports that only in its own log. Other errors of the address are left to that server,
    and so is a process that takes the port between this check and the server's bind.
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
                # As servers do: connections of a server that has just ended do not count.
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


def free_port(host: str) -> int:
    """Return a port of `host` that is free now, for addresses that are announced before they are listened on."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])
