"""A client whose server has a full disk: it reports the wait, its bound holds, and it resumes when there is space.

Time is virtual, so bounds are checked to the second.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TypeVar

import pytest

from penstock.client.client import Client
from penstock.client.settings import ClientSettings
from penstock.model.errors import OutcomeUnknownError, StorageFullError, UnacknowledgedStorageFullError
from penstock_simulation.simulated.cluster import ClusterSettings, SimulatedCluster
from penstock_simulation.simulated.disk_faults import NO_FAULTS
from penstock_simulation.simulated.simulation import Simulation

T = TypeVar("T")

STREAM = "shop/orders"
LIMIT_S = 20.0
SETTINGS = ClientSettings(retry_time_max_s=LIMIT_S)
#: More than `check_interval_s`: the store has noticed.
NOTICED_S = 5.0


def run(use: Callable[[SimulatedCluster, Client], Awaitable[T]]) -> T:
    """Run `use` with a client of a cluster of one store and one controller."""
    with Simulation(1) as simulation:
        cluster = SimulatedCluster(simulation, ClusterSettings(store_count=1, is_combined=False))
        host = cluster.add_client("client")

        async def on_host() -> T:
            client = cluster.client(host, SETTINGS)
            client._open()
            try:
                await client.create_stream(STREAM)
                return await use(cluster, client)
            finally:
                await client.abandon()

        async def scenario() -> T:
            await cluster.ready()
            return await host.run(on_host())

        return simulation.run(scenario)


async def fill(cluster: SimulatedCluster) -> None:
    """Take the space of the store's disk, all but what its marks keep for itself."""
    disk = cluster.stores[0].disk
    disk.faults = replace(NO_FAULTS, capacity_bytes=disk.used_bytes + disk.used_bytes // 20)
    await asyncio.sleep(NOTICED_S)


async def make_room(cluster: SimulatedCluster) -> None:
    cluster.stores[0].disk.faults = NO_FAULTS


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "penstock.client.waits"]


@pytest.mark.parametrize("is_set_up", [True, False], ids=["set up before", "opened on the full disk"])
def test_a_writer_reports_a_full_disk_and_gives_up_at_the_limit(
    caplog: pytest.LogCaptureFixture, is_set_up: bool
) -> None:
    """The store holds the append, or the set-up of the writer, without an answer; the client asks for the reason."""
    caplog.set_level(logging.WARNING)

    async def use(cluster: SimulatedCluster, client: Client) -> tuple[float, StorageFullError]:
        writer = await client.event_writer(STREAM)
        if is_set_up:
            await (await writer.write(b"before"))
        await fill(cluster)
        began_s = asyncio.get_running_loop().time()
        ack = await writer.write(b"event")
        with pytest.raises(StorageFullError) as caught:
            await ack
        with pytest.raises(StorageFullError):
            await writer.write(b"another one")
        return asyncio.get_running_loop().time() - began_s, caught.value

    took_s, error = run(use)
    assert took_s == pytest.approx(LIMIT_S, abs=1.0)
    assert "disk full on the server" in str(error)
    # Events that were sent may be stored once there is space; those that were not sent are certainly not stored.
    assert isinstance(error, UnacknowledgedStorageFullError) == is_set_up
    first = next(line for line in lines(caplog) if "disk full" in line)
    assert first.startswith("write to shop/orders: waiting for ")
    assert "s left" in first
    assert "log_free_bytes_min" in first


def test_a_writer_resumes_when_there_is_space_and_reports_the_end_of_the_wait(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)

    async def use(cluster: SimulatedCluster, client: Client) -> int:
        writer = await client.event_writer(STREAM)
        await (await writer.write(b"before"))
        await fill(cluster)
        acks = [await writer.write(b"event") for _ in range(100)]
        await asyncio.sleep(LIMIT_S - 5.0)
        await make_room(cluster)
        for ack in acks:
            await ack
        return writer.acknowledged_event_count

    assert run(use) == 101
    found = lines(caplog)
    assert found[-1].startswith("the wait ended after "), found
    # At 3 s and at 13 s; the reason is known a moment after the first report.
    assert 2 <= len(found) - 1 <= 4, found


def test_creating_a_stream_reports_a_full_disk_and_gives_up_at_the_limit(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)

    async def use(cluster: SimulatedCluster, client: Client) -> tuple[float, StorageFullError]:
        await fill(cluster)
        began_s = asyncio.get_running_loop().time()
        with pytest.raises(StorageFullError) as caught:
            await client.create_stream("shop/more")
        return asyncio.get_running_loop().time() - began_s, caught.value

    took_s, error = run(use)
    assert took_s == pytest.approx(LIMIT_S, abs=0.5)
    # The controller has begun it, and completes it once there is space.
    assert isinstance(error, OutcomeUnknownError)
    assert lines(caplog)[0].startswith("create stream shop/more: waiting for 3 s: disk full on the server, 17 s left")


def test_a_stream_is_created_once_there_is_space() -> None:
    async def use(cluster: SimulatedCluster, client: Client) -> bool:
        await fill(cluster)
        creating = asyncio.ensure_future(client.create_stream("shop/more"))
        await asyncio.sleep(8.0)
        assert not creating.done()
        await make_room(cluster)
        await creating
        return await client.stream_exists("shop/more")

    assert run(use)


def test_a_byte_writer_gives_up_with_the_reason() -> None:
    async def use(cluster: SimulatedCluster, client: Client) -> float:
        async with client.byte_writer(STREAM) as writer:
            await writer.write(b"before")
            await writer.flush()
            await fill(cluster)
            began_s = asyncio.get_running_loop().time()
            await writer.write(b"bytes")
            with pytest.raises(StorageFullError):
                await writer.flush()
            took_s = asyncio.get_running_loop().time() - began_s
            await writer.abandon()
        return took_s

    assert run(use) == pytest.approx(LIMIT_S, abs=1.0)


def test_reads_and_group_state_do_not_wait(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)

    async def use(cluster: SimulatedCluster, client: Client) -> bytes:
        writer = await client.event_writer(STREAM)
        await (await writer.write(b"before"))
        await fill(cluster)
        group = await client.reader_group("audit", [STREAM])
        reader = await group.reader()
        async with asyncio.timeout(LIMIT_S):
            event = await reader.read(timeout_s=10.0)
        assert event is not None
        return event.data

    assert run(use) == b"before"
    assert lines(caplog) == []
