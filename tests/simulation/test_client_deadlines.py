"""One deadline per call: outages shorter and longer than the limit, of what is stopped and of what is dead.

Time is virtual, so limits are checked to the tenth of a second.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from penstock.client.common.deadline import within
from penstock.client.settings import ClientSettings
from penstock.model.errors import ControllerUnavailableError, OutcomeUnknownError, PenstockError
from penstock_simulation.simulated.cluster import ClusterSettings, SimulatedCluster
from penstock_simulation.simulated.host import Death
from penstock_simulation.simulated.simulation import Simulation

STREAM = "scope/stream"
SEGMENT = "scope/stream/0.#epoch.0"
LIMIT_S = 8.0
SETTINGS = ClientSettings(
    retry_time_max_s=LIMIT_S, request_timeout_s=30.0, connect_timeout_s=2.0, position_interval_s=1000.0,
    reader_group_refresh_s=1000.0,
)  # fmt: skip

CALLS = {
    "head": lambda client, group: client.head(STREAM),
    "tail": lambda client, group: client.tail(STREAM),
    "segment_info": lambda client, group: client._segment_client.segment_info(SEGMENT),
    "segment read": lambda client, group: client._segment_client.read(SEGMENT, 0, 100),
    "group state": lambda client, group: group.stream_cuts(),
    "unread": lambda client, group: group.unread_bytes(),
    "reader": lambda client, group: group.reader(),
    "reader_group": lambda client, group: client.reader_group("other", [STREAM]),
    "create_stream": lambda client, group: client.create_stream("scope/other", exist_ok=True),
    "writer": lambda client, group: client.event_writer(STREAM)._start(),
    "transaction": lambda client, group: client.begin_transaction(STREAM),
}


async def stop(cluster: SimulatedCluster, how: str, outage_s: float) -> None:
    """Take away every server, for a while."""
    servers = [*cluster.stores, cluster.controller]
    for host in servers:
        if how == "stopped":
            host.pause()
        else:
            host.crash(Death.KILL)
    await asyncio.sleep(outage_s)
    for host in servers:
        if how == "stopped":
            host.resume()
        else:
            host.restart()


def run_call(call: str, how: str, outage_s: float) -> tuple[float, PenstockError | None, float]:
    """Make a call in an outage. Return how long it took, its error, and how long the next one took after the outage."""
    with Simulation(1) as simulation:
        cluster = SimulatedCluster(simulation, ClusterSettings(store_count=2, is_combined=False))
        host = cluster.add_client("client")
        loop = simulation.loop
        outages: list[asyncio.Task[None]] = []

        async def use() -> tuple[float, PenstockError | None, float]:
            async with cluster.client(host, SETTINGS) as client:
                await client.create_stream(STREAM)
                async with client.event_writer(STREAM) as writer:
                    await writer.write(b"event", "key")
                group = await client.reader_group("group", [STREAM])
                is_out.set()
                await asyncio.sleep(0.01)
                began_s = loop.time()
                error: PenstockError | None = None
                try:
                    await CALLS[call](client, group)
                except PenstockError as raised:
                    error = raised
                took_s = loop.time() - began_s
                await is_over.wait()
                again_s = loop.time()
                await CALLS[call](client, group)
                return took_s, error, loop.time() - again_s

        async def scenario() -> tuple[float, PenstockError | None, float]:
            await cluster.ready()
            using = asyncio.ensure_future(host.run(use()))
            await is_out.wait()
            outages.append(asyncio.ensure_future(stop(cluster, how, outage_s)))
            await asyncio.wait(outages)
            await cluster.ready()
            is_over.set()
            return await using

        is_out, is_over = asyncio.Event(), asyncio.Event()
        return simulation.run(scenario)


@pytest.mark.parametrize("how", ["stopped", "dead"])
@pytest.mark.parametrize("call", CALLS)
def test_an_outage_longer_than_the_limit_costs_the_limit_once_and_leaves_nothing_behind(call: str, how: str) -> None:
    """However many layers try again: the error comes at the limit, and the next call after the outage just works."""
    took_s, error, again_s = run_call(call, how, 60.0)
    assert isinstance(error, (ControllerUnavailableError, OutcomeUnknownError))
    assert took_s <= LIMIT_S + 0.1
    assert again_s <= LIMIT_S
    told = " ".join([str(error), *getattr(error, "__notes__", ())])
    assert "retry_time_max_s" in told, told


@pytest.mark.parametrize("how", ["stopped", "dead"])
@pytest.mark.parametrize("call", CALLS)
def test_an_outage_shorter_than_the_limit_is_outlasted(call: str, how: str) -> None:
    took_s, error, _ = run_call(call, how, 3.0)
    if isinstance(error, OutcomeUnknownError):
        # A change whose one attempt was under way: its outcome is unknown.
        assert call in ("create_stream",)
    else:
        assert error is None, error
    assert took_s <= LIMIT_S


def test_an_outer_deadline_is_never_extended_by_an_inner_one() -> None:
    with Simulation(1) as simulation:

        async def scenario() -> None:
            with within("outer", 1.0, "timeout_s") as outer:
                with within("inner", 60.0, "retry_time_max_s") as inner:
                    assert inner is outer
                with within("inner", 0.5, "retry_time_max_s") as inner:
                    assert (inner.what, inner.left_s()) == ("inner", 0.5)
                await asyncio.sleep(0.25)
                assert outer.left_s() == pytest.approx(0.75, abs=0.01)

        simulation.run(scenario)


def test_a_reader_waits_at_the_tail_for_longer_than_any_limit_and_then_outlasts_an_outage() -> None:
    """Time spent waiting is not time spent failing: an outage after an hour of silence has the whole limit."""
    with Simulation(1) as simulation:
        cluster = SimulatedCluster(simulation, ClusterSettings(store_count=1, is_combined=False))
        host = cluster.add_client("client")

        async def use() -> bytes:
            async with cluster.client(host, SETTINGS) as client:
                await client.create_stream(STREAM)
                async with client.segment_reader(SEGMENT, 0) as reader:
                    reading = asyncio.ensure_future(reader.read())
                    await asyncio.sleep(100 * LIMIT_S)
                    is_out.set()
                    await is_over.wait()
                    async with client.event_writer(STREAM) as writer:
                        await writer.write(b"event", "key")
                    return await reading

        async def scenario() -> bytes:
            await cluster.ready()
            using = asyncio.ensure_future(host.run(use()))
            await is_out.wait()
            await stop(cluster, "dead", 5.0)
            await cluster.ready()
            is_over.set()
            return await using

        is_out, is_over = asyncio.Event(), asyncio.Event()
        assert simulation.run(scenario).endswith(b"event")


@pytest.mark.parametrize("is_idle", [True, False], ids=["idle before", "busy before"])
@pytest.mark.parametrize("how", ["stopped", "dead"])
def test_an_outage_costs_a_writer_the_limit_once(how: str, is_idle: bool) -> None:
    """A writer counts an attempt from its start, and a connection that fell silent from when that began."""
    settings = replace(SETTINGS, retry_time_max_s=30.0, keepalive_interval_s=4.0)
    with Simulation(1) as simulation:
        cluster = SimulatedCluster(simulation, ClusterSettings(store_count=2, is_combined=False))
        host = cluster.add_client("client")
        loop = simulation.loop

        async def use() -> float:
            async with cluster.client(host, settings) as client:
                await client.create_stream(STREAM)
                writer = await client.event_writer(STREAM)
                await (await writer.write(b"event", "key"))
                is_out.set()
                if is_idle:
                    # A connection that is lost meanwhile is no failure of the idle writer.
                    await asyncio.sleep(9.0)
                began_s = loop.time()
                ack = await writer.write(b"event", "key")
                with pytest.raises(OutcomeUnknownError):
                    await ack
                took_s = loop.time() - began_s
                await client.abandon()
                return took_s

        async def scenario() -> float:
            await cluster.ready()
            using = asyncio.ensure_future(host.run(use()))
            await is_out.wait()
            outage = asyncio.ensure_future(stop(cluster, how, 1000.0))
            took_s = await using
            outage.cancel()
            return took_s

        is_out = asyncio.Event()
        took_s = simulation.run(scenario)
    assert took_s <= settings.retry_time_max_s + settings.keepalive_interval_s + 0.1
