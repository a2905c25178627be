"""What a client makes belongs to one process: pickling says so, and what to send instead."""

from __future__ import annotations

import copy
import pickle
from typing import TYPE_CHECKING

import pytest

import penstock
from penstock.model.policies import Scaling

if TYPE_CHECKING:
    from client.conftest import Cluster

STREAM = "retail/orders"


async def test_parts_of_an_async_client_refuse_pickling_with_advice(cluster: Cluster) -> None:
    async with cluster.client() as client:
        await client.create_stream(STREAM, scaling=Scaling.fixed(1))
        async with client.event_writer(STREAM) as writer:
            ack = await writer.write(b"event")
            await ack
            group = await client.reader_group("audit", [STREAM])
            reader = await group.reader()
            segment_reader = client.segment_reader(f"{STREAM}/0.#epoch.0", 0)
            parts = [client, writer, ack, group, reader, client.batch(STREAM), segment_reader]
            for part in parts:
                with pytest.raises(penstock.NotPicklableError, match="connect there") as caught:
                    pickle.dumps(part)
                assert type(part).__name__ in str(caught.value)
                with pytest.raises(TypeError):
                    copy.copy(part)
            await reader.close()
            await group.close()


def test_a_blocking_client_refuses_pickling_with_advice() -> None:
    with (
        penstock.connect("tcp://localhost:1") as client,
        pytest.raises(penstock.NotPicklableError, match=r"Client.*tcp://localhost:1.*connect there"),
    ):
        pickle.dumps(client)


async def test_an_async_client_is_opened_by_await_as_well_as_by_async_with() -> None:
    client = await penstock.aio.connect("tcp://localhost:1")
    assert client.is_open
    assert await client is client
    await client.close()
    with pytest.raises(penstock.ClosedError):
        await client
    async with penstock.aio.connect("tcp://localhost:1") as other:
        assert other.is_open
