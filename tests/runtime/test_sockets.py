"""The inspect a port before a server takes it, and the options of sockets against peers that are gone."""

from __future__ import annotations

import asyncio
import socket

import pytest

from penstock.model.errors import InvalidArgumentError
from penstock.runtime.sockets import DeadPeerSettings, check_port_is_unused, detect_dead_peers


async def test_a_port_that_something_listens_on_is_reported() -> None:
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
async def test_other_errors_are_left_to_the_server(host: str) -> None:
    """An address that is none, or not of this machine; a port that nothing uses."""
    await check_port_is_unused(host, 0)


async def test_connections_take_the_options_against_dead_peers_from_their_listener() -> None:
    """Also over the event loop of servers, which sets some options of its own."""
    settings = DeadPeerSettings(probe_after_s=7.0, probe_interval_s=2.0, timeout_s=12.0)
    accepted: asyncio.Future[socket.socket] = asyncio.get_running_loop().create_future()

    async def accept(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        accepted.set_result(writer.get_extra_info("socket"))

    server = await asyncio.start_server(accept, "127.0.0.1", 0, start_serving=False)
    detect_dead_peers(server, settings)
    await server.start_serving()
    _, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    found = await accepted
    assert found.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
    wanted = {"TCP_KEEPIDLE": 7, "TCP_KEEPINTVL": 2, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 12_000}
    known = {name: value for name, value in wanted.items() if hasattr(socket, name)}
    assert {name: found.getsockopt(socket.IPPROTO_TCP, getattr(socket, name)) for name in known} == known
    writer.close()
    server.close()


@pytest.mark.parametrize(
    "times", [{"probe_after_s": 0.5}, {"probe_interval_s": 0.0}, {"probe_after_s": 60.0, "timeout_s": 60.0}]
)
def test_times_that_would_drop_living_peers_are_refused(times: dict[str, float]) -> None:
    with pytest.raises(InvalidArgumentError, match="dead_peers"):
        DeadPeerSettings(**times)
