"""Commits, closings and flushes that are cancelled, or whose servers die, at one moment after the other.

The moments are virtual milliseconds after the call began; a call takes some tens of them. At each moment, results
that the user got hold, and a repeated call takes effect once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from penstock.client.client import Client
from penstock.client.settings import ClientSettings
from penstock.model.errors import ControllerUnavailableError, OutcomeUnknownError, PenstockError, TransactionError
from penstock_simulation.simulated.cluster import ClusterSettings, SimulatedCluster
from penstock_simulation.simulated.host import Death
from penstock_simulation.simulated.simulation import Simulation

STREAM = "scope/stream"
SEGMENT = "scope/stream/0.#epoch.0"
SETTINGS = ClientSettings(retry_time_max_s=60.0, close_timeout_s=120.0, connect_timeout_s=2.0)
MOMENTS_MS = (0.0, 0.1, 0.3, 0.5, 1.0, 1.5, 2.0, 3.0, 5.0, 8.0, 13.0, 21.0)
#: Milliseconds that the servers are away.
OUTAGE_MS = 3000
EVENT = b"12345678"
FRAMED_LENGTH = 16
#: Errors that a user may get when an answer is missing; the next call settles the outcome.
UNSURE = (OutcomeUnknownError, ControllerUnavailableError, asyncio.CancelledError)


def play(use: Callable[[Client, Callable[[Awaitable[None]], Awaitable[None]]], Awaitable[None]],
         moment_ms: float, trouble: str) -> int:  # fmt: skip
    """Let `use` make a call that is troubled, by the function it gets; return how many bytes are stored in the end."""
    with Simulation(7) as simulation:
        cluster = SimulatedCluster(simulation, ClusterSettings(store_count=1, is_combined=False))
        host = cluster.add_client("client")

        async def troubled(call: Awaitable[None]) -> None:
            task = asyncio.ensure_future(call)
            await asyncio.sleep(moment_ms / 1000)
            if trouble == "cancelled":
                task.cancel()
            else:
                servers = {"store dies": cluster.stores, "controller dies": [cluster.controller]}[trouble]
                for server in servers:
                    server.crash(Death.KILL)
                await asyncio.sleep(OUTAGE_MS / 1000)
                for server in servers:
                    server.restart()
            await task

        async def user() -> int:
            async with cluster.client(host, SETTINGS) as client:
                await client.create_stream(STREAM)
                await use(client, troubled)
            async with cluster.client(host, SETTINGS) as client:
                return (await client._segment_client.segment_info(SEGMENT)).length

        async def scenario() -> int:
            await cluster.ready()
            return await host.run(user())

        length = simulation.run(scenario)
        assert simulation.loop.unhandled == []
        return length


@pytest.mark.parametrize("trouble", ["cancelled", "store dies", "controller dies"])
@pytest.mark.parametrize("moment_ms", MOMENTS_MS)
def test_a_commit_troubled_at_any_moment_is_whole_or_not_at_all(moment_ms: float, trouble: str) -> None:
    told: list[bool] = []

    async def use(client: Client, troubled: Callable[[Awaitable[None]], Awaitable[None]]) -> None:
        transaction = await client.begin_transaction(STREAM, lease_s=60.0)
        for _ in range(10):
            await transaction.write(EVENT)
        attempt = troubled(transaction.commit())
        for _ in range(10):
            try:
                await attempt
            except UNSURE:
                attempt = transaction.commit()
            except TransactionError:
                told.append(False)
                break
            else:
                told.append(True)
                break
        while await transaction.state() in ("OPEN", "COMMITTING", "ABORTING"):  # noqa: ASYNC110  # of the server
            await asyncio.sleep(0.1)

    length = play(use, moment_ms, trouble)
    assert told in ([True], [False])
    assert length == (10 * FRAMED_LENGTH if told[0] else 0)
    # A cancellation alone undoes nothing: the commit continues, and a repeated call returns its outcome.
    assert told[0] or trouble != "cancelled"


@pytest.mark.parametrize("trouble", ["cancelled", "store dies"])
@pytest.mark.parametrize("moment_ms", MOMENTS_MS)
def test_a_writer_whose_closing_is_troubled_at_any_moment_stores_each_event_once(
    moment_ms: float, trouble: str
) -> None:
    async def use(client: Client, troubled: Callable[[Awaitable[None]], Awaitable[None]]) -> None:
        writer = await client.event_writer(STREAM)
        acks = [await writer.write(EVENT) for _ in range(50)]
        try:
            await troubled(writer.close())
        except asyncio.CancelledError:
            await writer.close()
        assert writer.is_closed
        assert [ack.error for ack in acks] == [None] * 50

    assert play(use, moment_ms, trouble) == 50 * FRAMED_LENGTH


@pytest.mark.parametrize("trouble", ["cancelled", "store dies"])
@pytest.mark.parametrize("moment_ms", MOMENTS_MS)
def test_bytes_whose_flush_is_troubled_at_any_moment_are_stored_once(moment_ms: float, trouble: str) -> None:
    async def use(client: Client, troubled: Callable[[Awaitable[None]], Awaitable[None]]) -> None:
        writer = await client.byte_writer(STREAM)
        await writer.write(b"x" * 100)
        try:
            await troubled(writer.flush())
        except asyncio.CancelledError:
            pass
        await writer.write(b"y" * 10)
        await writer.close()

    assert play(use, moment_ms, trouble) == 110


@pytest.mark.parametrize("moment_ms", MOMENTS_MS)
def test_a_client_whose_closing_is_cancelled_at_any_moment_flushes_what_it_owns(moment_ms: float) -> None:
    async def use(client: Client, troubled: Callable[[Awaitable[None]], Awaitable[None]]) -> None:
        writer = await client.event_writer(STREAM)
        for _ in range(50):
            await writer.write(EVENT)
        transaction = await client.begin_transaction(STREAM)
        await transaction.write(EVENT)
        await (await client.byte_writer(STREAM)).write(b"")
        try:
            await troubled(client.close())
        except asyncio.CancelledError:
            await client.close()
        assert client.is_closed
        with pytest.raises(PenstockError):
            await transaction.commit()

    assert play(use, moment_ms, "cancelled") == 50 * FRAMED_LENGTH
