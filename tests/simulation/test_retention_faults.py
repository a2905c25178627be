"""Retention of a whole simulated cluster: three controllers and a segment store that die, a writer, two subscribers."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping

import pytest

from penstock.client.client import Client
from penstock.client.settings import ClientSettings
from penstock.controller.metadata.scope_records import GroupCut, ReaderGroupConfig
from penstock.controller.service import ControllerService
from penstock.controller.settings import ControllerSettings, RetentionSettings
from penstock.model.errors import PenstockError
from penstock.model.policies import GroupRetention, Retention, RetentionKind, Scaling
from penstock_simulation.simulated.cluster import ClusterSettings, SimulatedCluster
from penstock_simulation.simulated.host import Death
from penstock_simulation.simulated.simulation import Simulation

STREAM = "scope/stream"
SETTINGS = ClusterSettings(
    controller_count=3,
    controller=ControllerSettings(retention=RetentionSettings(interval_s=0.5, cut_interval_s_min=0.0)),
    client=ClientSettings(
        request_timeout_s=5.0, controller_request_timeout_s=5.0, retry_time_max_s=600.0, retry_delay_max_s=1.0
    ),
)  # fmt: skip
EVENT_COUNT = 400
EVENT_LENGTH = 100
MIN_BYTES = 2_000


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.nightly) for seed in range(1, 4))])
def test_no_unacknowledged_event_is_truncated_through_crashes(seed: int) -> None:
    """Two subscribers publish how far they are, late and at different times; the head is never behind one of them.

    In the end all that the policy need not keep is gone, and what is left are the last events, whole and in order.
    """
    rng = random.Random(f"retention {seed}")
    with Simulation(seed) as simulation:
        cluster = SimulatedCluster(simulation, SETTINGS)
        writing, reading = cluster.add_client("writing"), cluster.add_client("reading")
        #: What each subscriber has published, or may have.
        published: dict[str, Mapping[int, int]] = {"one": {}, "two": {}}
        heads: list[int] = []
        left: list[int] = []

        def service() -> ControllerService | None:
            found = (cluster.controller_service(host) for host in cluster.controllers if host.is_up)
            return next((one for one in found if one is not None), None)

        async def insist(call: str, *arguments: object) -> object:
            """Ask whichever controller is there, until one has answered."""
            while True:
                try:
                    if (one := service()) is not None:
                        async with asyncio.timeout(20.0):
                            return await getattr(one.reader_groups, call)(*arguments)
                except (PenstockError, TimeoutError):
                    pass
                await asyncio.sleep(0.5)

        async def write(client: Client) -> None:
            async with client.event_writer(STREAM) as writer:
                for number in range(EVENT_COUNT):
                    await writer.write(b"%05d" % number + bytes(EVENT_LENGTH - 13))
                    if number % 20 == 19:
                        await writer.flush()
                        await asyncio.sleep(rng.uniform(0.0, 4.0))

        async def subscribe(client: Client, name: str, done: asyncio.Event) -> None:
            config = ReaderGroupConfig((GroupCut("scope", "stream"),), retention=GroupRetention.MANUAL)
            group = await insist("create", "scope", name, config)
            is_last = False
            while not is_last:
                is_last = done.is_set()
                cut = dict((await client.tail(STREAM)).positions)
                await asyncio.sleep(rng.uniform(0.0, 10.0))
                # It may be on record as soon as it is asked for.
                published[name] = cut
                await insist("publish", "scope", "stream", f"scope/{name}", group.id, group.generation, cut)  # type: ignore[attr-defined]

        async def watch(client: Client) -> None:
            while True:
                found = (await client.head(STREAM)).positions
                for cut in published.values():
                    assert all(offset <= cut.get(segment, 0) for segment, offset in found.items()), (found, published)
                heads.append(sum(found.values()))
                assert heads == sorted(heads)
                await asyncio.sleep(0.3)

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
            done, begun = asyncio.Event(), asyncio.Event()

            async def write_all() -> None:
                async with cluster.client(writing) as client:
                    await client.create_stream(
                        STREAM,
                        scaling=Scaling.fixed(1),
                        retention=Retention(RetentionKind.BY_SIZE, MIN_BYTES),
                    )
                    begun.set()
                    await asyncio.sleep(5.0)
                    await write(client)
                    done.set()

            async def read_all() -> None:
                await begun.wait()
                async with cluster.client(reading) as client:
                    watching = asyncio.ensure_future(watch(client))
                    await asyncio.gather(*(subscribe(client, name, done) for name in published))
                    end = EVENT_COUNT * EVENT_LENGTH
                    # Behind the last acknowledgement nothing but the minimum is kept, and what lies before a cut.
                    while not heads or not end - 40 * EVENT_LENGTH <= heads[-1] <= end - MIN_BYTES:
                        assert not watching.done() or watching.result()
                        await asyncio.sleep(0.5)
                    watching.cancel()
                    async with client.reader_group("group", [STREAM]) as group, group.reader() as reader:
                        while (event := await reader.read(30.0)) is not None:
                            left.append(int(event.data[:5]))

            disturbing = asyncio.ensure_future(disturb())
            await asyncio.gather(writing.run(write_all()), reading.run(read_all()))
            disturbing.cancel()

        simulation.run(scenario)
        assert left == list(range(heads[-1] // EVENT_LENGTH, EVENT_COUNT))
        assert len(left) * EVENT_LENGTH >= MIN_BYTES
        assert len(set(heads)) > 3
        assert simulation.loop.unhandled == []
