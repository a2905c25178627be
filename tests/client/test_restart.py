"""A whole server is stopped and started on the same data while a writer and a reader are at work."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from penstock import aio
from penstock.client.client import Client
from penstock.client.settings import ClientSettings
from penstock.model.policies import Scaling
from penstock.server.settings import StandaloneSettings
from penstock.server.standalone import Standalone

COUNT = 20_000


@pytest.mark.timeout(60)
async def test_server_restarts_lose_and_double_nothing(tmp_path: Path) -> None:
    # Writer and reader keep going over two restarts; every event arrives once, each key's in order.
    settings = StandaloneSettings(data_dir=str(tmp_path), host="127.0.0.1", controller_port=0, segment_store_port=0)
    server = Standalone(settings)
    await server.start()
    again = StandaloneSettings(
        data_dir=str(tmp_path),
        host="127.0.0.1",
        controller_port=server.controller_port,
        segment_store_port=server.segment_store_port,
    )
    restarts = 0

    async def write(client: Client) -> None:
        nonlocal server, restarts
        async with client.event_writer("retail/orders") as writer:
            for index in range(COUNT):
                await writer.write(b"k%d %d" % (index % 5, index), routing_key=f"k{index % 5}")
                if index % 500 == 0:
                    await asyncio.sleep(0.001)
                if index in (COUNT // 4, COUNT // 2):
                    await server.stop()
                    server = Standalone(again)
                    await server.start()
                    restarts += 1

    async def read(client: Client) -> dict[bytes, list[int]]:
        seen: dict[bytes, list[int]] = {}
        async with await client.reader_group("audit", ["retail/orders"]) as group, await group.reader() as reader:
            for _ in range(COUNT):
                event = await reader.read(20)
                key, number = event.data.split()  # type: ignore[union-attr]
                seen.setdefault(key, []).append(int(number))
            assert await reader.read(0.05) is None
        return seen

    try:
        async with aio.connect(server.controller_uri, ClientSettings(retry_time_max_s=30.0)) as client:
            await client.create_stream("retail/orders", scaling=Scaling.fixed(3))
            _, seen = await asyncio.gather(write(client), read(client))
    finally:
        await server.stop()
    assert restarts == 2
    assert seen == {b"k%d" % key: list(range(key, COUNT, 5)) for key in range(5)}
