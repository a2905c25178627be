"""A client's machine dies during a commit, at each of many moments, on a simulated clock."""

from __future__ import annotations

import asyncio

from penstock.client.client import Client
from penstock.model.policies import Scaling
from penstock_simulation.simulated.cluster import ClusterSettings, SimulatedCluster
from penstock_simulation.simulated.host import Death
from penstock_simulation.simulated.simulation import Simulation

STREAM = "scope/stream"
EVENTS = [b"%d" % number for number in range(20)]
#: From the call of the commit to the death of its caller: longer than a commit takes.
STEP_S, STEP_COUNT = 0.000_1, 24
MERGED_WITHIN_S = 1.0


def test_a_commit_whose_client_died_is_merged_within_a_second() -> None:
    """A second later it is merged, whole and readable, or was never decided, and is open with nothing readable.

    At no moment does it wait for the end of its lease, or for a request.
    """
    outcomes: list[tuple[str, int]] = []
    with Simulation(7) as simulation:
        cluster = SimulatedCluster(simulation, ClusterSettings())
        writing, reading = cluster.add_client("writing"), cluster.add_client("reading")

        async def begin_and_commit(stream: str, begun: asyncio.Future[str], calling: asyncio.Event) -> None:
            client = cluster.client(writing)
            client._open()
            transaction = await client.begin_transaction(stream, lease_s=600.0)
            for event in EVENTS:
                await transaction.write(event, "key")
            await transaction.flush()
            begun.set_result(transaction.id)
            calling.set()
            await transaction.commit()

        async def once(client: Client, number: int) -> None:
            stream = f"scope/stream{number}"
            await client.create_stream(stream, scaling=Scaling.fixed(2))
            begun: asyncio.Future[str] = asyncio.get_running_loop().create_future()
            calling = asyncio.Event()
            committing = asyncio.ensure_future(writing.run(begin_and_commit(stream, begun, calling)))
            await calling.wait()
            await asyncio.sleep(STEP_S * number)
            writing.crash((Death.KILL, Death.POWER)[number % 2])
            await asyncio.wait([committing])
            committing.exception()
            await asyncio.sleep(MERGED_WITHIN_S)
            state = await client.transaction_state(stream, begun.result())
            async with (
                client.reader_group(f"group{number}", [stream], until="latest") as group,
                group.reader() as reader,
            ):
                found = [event.data async for event in reader]
            assert found in ([], EVENTS)
            outcomes.append((state, len(found)))
            writing.restart()

        async def read_all() -> None:
            async with cluster.client(reading) as client:
                for number in range(STEP_COUNT):
                    await once(client, number)

        async def scenario() -> None:
            await cluster.ready()
            await reading.run(read_all())

        simulation.run(scenario)
        assert simulation.loop.unhandled == []
    assert set(outcomes) == {("OPEN", 0), ("COMMITTED", len(EVENTS))}
