"""The address that a server gives to its clients: one that nothing resolves, and all addresses of a machine."""

from __future__ import annotations

import asyncio
import pickle
import socket
from typing import Any

import pytest

from penstock.client.client import Client
from penstock.client.common.retry import UNRESOLVED_TIME_MAX_S
from penstock.client.settings import ClientSettings
from penstock.client.transport.connection_pool import ConnectionPool, Purpose
from penstock.model.errors import ConnectionLostError
from penstock.runtime.sockets import can_resolve
from penstock.server.errors import PortInUseError
from penstock.server.settings import StandaloneSettings
from penstock.server.standalone import Standalone

UNKNOWN = "store-1.invalid"


def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


async def write(client: Client) -> None:
    writer = await client.event_writer("retail/a")
    try:
        await (await writer.write(b"event", routing_key="k"))
    finally:
        await writer.abandon()


async def start(host: str, advertise: str) -> Standalone:
    server = Standalone(
        StandaloneSettings(is_memory=True, host=host, advertise=advertise, controller_port=0, segment_store_port=0)
    )
    await server.start()
    return server


@pytest.mark.parametrize("call", ["write", "open a group"])
async def test_a_client_names_an_address_that_does_not_resolve_within_seconds(call: str) -> None:
    """The bound holds although calls are repeated for a minute: no attempt can succeed."""
    server = await start("127.0.0.1", UNKNOWN)
    uri = f"tcp://127.0.0.1:{server.controller_port}"
    try:
        async with Client(uri, ClientSettings(retry_time_max_s=60.0, close_timeout_s=1.0)) as client:
            await client.create_stream("retail/a")
            began_s = asyncio.get_running_loop().time()
            with pytest.raises(ConnectionLostError, match=rf"{UNKNOWN}:\d+.*cannot resolve.*--advertise"):
                await (write(client) if call == "write" else client.reader_group("audit", ["retail/a"]))
            assert asyncio.get_running_loop().time() - began_s < UNRESOLVED_TIME_MAX_S + 10
    finally:
        await server.stop()


async def test_a_name_that_was_resolved_before_counts_as_an_outage() -> None:
    """The names of restarting containers are missing for a while: the client has to outlast that."""
    server = await start("127.0.0.1", "")
    host = ["localhost"]

    async def resolver(segment: str) -> tuple[str, int]:
        return host[0], server.segment_store_port

    settings = ClientSettings()
    pool = ConnectionPool(resolver, settings)
    try:
        await (await pool.connection("retail/a/0.#epoch.0", Purpose.READ)).close()
        loop = asyncio.get_running_loop()
        original = loop.create_connection

        async def fail(*arguments: Any, **options: Any) -> Any:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

        loop.create_connection = fail  # type: ignore[method-assign]
        try:
            with pytest.raises(ConnectionLostError, match="cannot resolve the name localhost") as raised:
                await pool.connection("retail/a/0.#epoch.0", Purpose.READ)
        finally:
            loop.create_connection = original  # type: ignore[method-assign]
        assert not raised.value.unresolved_host
        host[0] = UNKNOWN
        pool.forget("retail/a/0.#epoch.0")
        with pytest.raises(ConnectionLostError, match="--advertise") as raised:
            await pool.connection("retail/a/0.#epoch.0", Purpose.READ)
        assert pickle.loads(pickle.dumps(raised.value)).unresolved_host == UNKNOWN
    finally:
        await pool.close()
        await server.stop()


async def test_the_number_of_addresses_kept_is_bounded_if_a_store_always_comes_back_at_another_one() -> None:
    count_max, ports = 10, iter(range(1, 100))

    async def resolver(segment: str) -> tuple[str, int]:
        return "127.0.0.1", next(ports)

    pool = ConnectionPool(resolver, ClientSettings(endpoint_count_max=count_max))
    for _ in range(5 * count_max):
        await pool.endpoint("retail/a/0.#epoch.0")
        pool.forget("retail/a/0.#epoch.0")
    assert len(pool._addresses) <= count_max
    await pool.close()


@pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")
@pytest.mark.parametrize("reached_at", ["127.0.0.1", "::1"])
async def test_a_server_on_all_ipv6_addresses_is_reached_over_ipv4_too(reached_at: str) -> None:
    server = await start("::", reached_at)
    try:
        host = f"[{reached_at}]" if ":" in reached_at else reached_at
        async with Client(f"tcp://{host}:{server.controller_port}", ClientSettings(retry_time_max_s=10)) as client:
            await client.create_stream("retail/a")
            async with client.event_writer("retail/a") as writer:
                await (await writer.write(b"event", routing_key="k"))
        with pytest.raises(PortInUseError, match="already in use"):
            await Standalone(
                StandaloneSettings(
                    is_memory=True, host="::", controller_port=0, segment_store_port=server.segment_store_port
                )
            ).start()
    finally:
        await server.stop()


async def test_names_are_checked_as_clients_resolve_them() -> None:
    assert await can_resolve("127.0.0.1", 5)
    assert await can_resolve("localhost", 5)
    assert not await can_resolve(UNKNOWN, 5)
    assert not await can_resolve("a" * 300, 5)
