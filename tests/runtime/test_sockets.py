"""The look at a port before a server takes it."""

from __future__ import annotations

import socket

import pytest

from penstock.runtime.sockets import check_port_is_unused


async def test_a_port_that_something_listens_on_is_told() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(OSError, match="in use"):
            await check_port_is_unused("127.0.0.1", taken.getsockname()[1])


async def test_a_port_is_free_again_once_its_server_has_ended() -> None:
    """A connection that the server closed first is kept by the kernel for a minute, and stops no new server."""
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as client:
            accepted, _ = taken.accept()
            accepted.close()
            assert client.recv(1) == b""
    await check_port_is_unused("127.0.0.1", port)


@pytest.mark.parametrize("host", ["256.1.1.1", "::ffff", "127.0.0.1"])
async def test_other_troubles_are_for_the_server_to_find(host: str) -> None:
    """An address that is none, or not of this machine; a port that nothing uses."""
    await check_port_is_unused(host, 0)
