"""Watermarks of a whole simulated cluster: three controllers and a segment store that die, two writers, a reader."""

from __future__ import annotations

import asyncio
import random

import pytest

from penstock.client.client import Client
from penstock.client.settings import ClientSettings
from penstock.controller.settings import ControllerSettings, WatermarkSettings
from penstock.model.policies import Scaling
from penstock_simulation.simulated.cluster import ClusterSettings, SimulatedCluster
from penstock_simulation.simulated.host import Death
from penstock_simulation.simulated.simulation import Simulation

STREAM = "scope/stream"
SETTINGS = ClusterSettings(
    controller_count=3,
    controller=ControllerSettings(watermarks=WatermarkSettings(interval_s=0.5)),
    client=ClientSettings(
        request_timeout_s=5.0, controller_request_timeout_s=5.0, retry_time_max_s=600.0, retry_delay_max_s=1.0,
        position_interval_s=0.5, reader_group_refresh_s=0.5,
    ),
)  # fmt: skip
ROUNDS = 25


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.nightly) for seed in range(1, 4))])
def test_no_event_at_or_before_the_lower_bound_arrives_through_crashes(seed: int) -> None:
    """Each event has its time; two writers note it behind each, while controllers and the store crash, and it scales.

    The lower bound never goes back, and comes to the last time of the slower writer.
    """
    rng = random.Random(f"watermarks {seed}")
    with Simulation(seed) as simulation:
        cluster = SimulatedCluster(simulation, SETTINGS)
        writing, reading = cluster.add_client("writing"), cluster.add_client("reading")
        bounds: list[int] = []
        read: list[int] = []
        together = asyncio.Barrier(2)

        async def write(client: Client, first: int) -> None:
            async with client.event_writer(STREAM) as writer:
                # A writer is included in watermarks only after its first time.
                await writer.note_time(0)
                await together.wait()
                for number in range(ROUNDS):
                    time = 10 * number + first
                    for key in range(3):
                        await writer.write(b"%d" % time, routing_key=f"key {key}")
                    await writer.note_time(time)
                    await asyncio.sleep(rng.uniform(0.0, 2.0))
                # Not closed before the reader has seen its last time: watermarks do not wait for writers that left.
                while not bounds or bounds[-1] < 10 * (ROUNDS - 1) + 1:  # noqa: ASYNC110  # there is no notification
                    await asyncio.sleep(1.0)

        async def follow(client: Client) -> None:
            group = await client.reader_group("group", [STREAM])
            reader = await group.reader()
            lower = -1
            while lower < 10 * (ROUNDS - 1) + 1:
                event = await reader.read(0.5)
                if event is not None:
                    read.append(int(event.data))
                    assert read[-1] > lower
                window = await reader.time_window(STREAM)
                if window.lower_bound is not None:
                    assert window.lower_bound >= lower
                    assert window.upper_bound is None or window.upper_bound > window.lower_bound
                    lower = window.lower_bound
                    bounds.append(lower)
            # After it there may be some events of the faster writer, and nothing else.
            while (event := await reader.read(30.0)) is not None:
                read.append(int(event.data))
                assert read[-1] > lower
            await client.close()

        async def disturb() -> None:
            while True:
                await asyncio.sleep(rng.uniform(1.0, 6.0))
                host = rng.choice((*cluster.controllers, cluster.stores[0]))
                host.crash(rng.choice((Death.KILL, Death.POWER)))
                await asyncio.sleep(rng.uniform(0.0, 3.0))
                if not host.is_up:
                    host.restart()

        async def scenario() -> None:
            await cluster.ready()
            client = cluster.client(writing)

            async def write_all() -> None:
                client._open()
                await client.create_stream(STREAM, scaling=Scaling.fixed(2), timestamp_aggregation_timeout_s=1e6)
                async with asyncio.TaskGroup() as group:
                    for first in (1, 2):
                        group.create_task(write(client, first))
                await client.close()

            async def follow_all() -> None:
                client = cluster.client(reading)
                client._open()
                while not await client.stream_exists(STREAM):  # noqa: ASYNC110  # there is no notification
                    await asyncio.sleep(0.1)
                await follow(client)

            disturbing = asyncio.ensure_future(disturb())
            await asyncio.gather(writing.run(write_all()), reading.run(follow_all()))
            disturbing.cancel()

        simulation.run(scenario)
        written = [10 * number + first for number in range(ROUNDS) for first in (1, 2) for _ in range(3)]
        assert sorted(read) == written
        assert len(set(bounds)) > 3
        assert simulation.loop.unhandled == []
