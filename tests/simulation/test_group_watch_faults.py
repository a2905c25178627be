"""Faults at each request of the polls and heartbeats that a client makes for its readers of a group. Time is virtual.

Two clients with two readers each, which hold a segment each and are idle. One request of the first client is lost, or
loses its reply, hangs, is applied late, or its machine crashes with it. Unless it crashed, it finds afterwards that the
readers of the second one have died.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from enum import Enum

import pytest

from penstock.client.client import Client
from penstock.client.groups.group_state import GroupState
from penstock.client.groups.reader import Reader
from penstock.client.groups.reader_group import ReaderGroup
from penstock.client.settings import ClientSettings
from penstock.client.transport.exchanges import in_time
from penstock.model.errors import OutcomeUnknownError
from penstock.model.policies import Scaling
from penstock.model.segments import TableEntry, TableUpdate
from penstock.wire.commands import WireCommand
from penstock_simulation.simulated.cluster import ClusterSettings, SimulatedCluster
from penstock_simulation.simulated.host import Death, Host
from penstock_simulation.simulated.simulation import Simulation

STREAM = "retail/orders"
TIMEOUT_S = 4.0
SETTINGS = ClientSettings(
    reader_timeout_s=TIMEOUT_S, position_interval_s=0.5, reader_group_refresh_s=0.5, retry_time_max_s=60.0
)
EVENT_COUNT = 40
#: Requests of the watch in about one and a half time-outs. Number 1 is a poll, number 3 a heartbeat.
STEPS = range(12)
STEPS_BY_DAY = (1, 3)


class Fault(Enum):
    """What befalls one request."""

    LOST_REQUEST = "lost request"
    LOST_REPLY = "lost reply"
    HANGS = "hangs"
    LATE = "applied late"
    CRASH = "crash"


class FaultyRequests:
    """Lets a fault befall one request of a client's watch: the one numbered `step` since `begin`."""

    def __init__(self, client: Client, host: Host, fault: Fault, step: int, struck: asyncio.Event) -> None:
        self._segments = client._segment_client
        self._get, self._put = self._segments.table_get, self._segments.table_put
        self._host = host
        self._fault = fault
        self._step = step
        self._count = 0
        self._struck = struck

    def begin(self) -> None:
        self._segments.table_get = self._faulty_get  # type: ignore[method-assign]
        self._segments.table_put = self._faulty_put  # type: ignore[method-assign, assignment]

    async def _faulty_get(self, segment: str, keys: Sequence[bytes]) -> Sequence[TableEntry | None]:
        is_struck = await self._strikes(segment, is_watch=b"revision" in keys)
        found = await self._get(segment, keys)
        if is_struck:
            raise OutcomeUnknownError("no reply")
        return found

    async def _faulty_put(self, segment: str, updates: Sequence[TableUpdate]) -> Sequence[int]:
        is_watch = any(update.key.startswith(b"alive/") for update in updates)
        is_struck = await self._strikes(segment, is_watch=is_watch)
        versions = await self._put(segment, updates)
        if is_struck:
            raise OutcomeUnknownError("no reply")
        return versions

    async def _strikes(self, segment: str, *, is_watch: bool) -> bool:
        """Count a request; befall it before it is sent, or return whether to lose its reply."""
        if not is_watch:
            return False
        self._count += 1
        if self._count != self._step + 1:
            return False
        self._struck.set()
        if self._fault is Fault.LOST_REQUEST:
            raise OutcomeUnknownError("no reply")
        if self._fault is Fault.HANGS:
            never: asyncio.Future[WireCommand] = asyncio.get_running_loop().create_future()
            await in_time(segment, never)
        if self._fault is Fault.LATE:
            await asyncio.sleep(0.75 * TIMEOUT_S)
        if self._fault is Fault.CRASH:
            self._host.crash(Death.KILL)
            await asyncio.sleep(1000)
        return self._fault in (Fault.LOST_REPLY, Fault.LATE)


async def until_balanced(readers: Sequence[Reader]) -> None:
    async with asyncio.timeout(60):
        while any(len(reader.segments) != 1 for reader in readers):  # noqa: ASYNC110  # polled in virtual time
            await asyncio.sleep(0.1)


async def open_readers(client: Client, names: Sequence[str]) -> tuple[ReaderGroup, list[Reader]]:
    group = await client.reader_group("audit", [STREAM])
    return group, [await group.reader(name) for name in names]


async def drain(reader: Reader, found: Counter[bytes]) -> None:
    while (event := await reader.read(2 * TIMEOUT_S)) is not None:
        found[event.data] += 1


def holders(state: GroupState) -> dict[str, list[tuple[str, int]]]:
    return {
        name: sorted((segment, held.turn) for segment, held in reader.segments.items())
        for name, reader in state.readers.items()
    }


def play(fault: Fault, step: int) -> None:
    """Run the scenario, and check it."""
    with Simulation(1) as simulation:
        cluster = SimulatedCluster(simulation, ClusterSettings(store_count=1, is_combined=False))
        first_host, second_host = cluster.add_client("first"), cluster.add_client("second")
        is_joined, is_to_read, struck = asyncio.Event(), asyncio.Event(), asyncio.Event()
        found: Counter[bytes] = Counter()

        async def use_first() -> None:
            async with cluster.client(first_host, SETTINGS) as client:
                await client.create_stream(STREAM, scaling=Scaling.fixed(4))
                _, readers = await open_readers(client, ("a1", "a2"))
                is_joined.set()
                await until_balanced(readers)
                # After the group has become idle.
                await asyncio.sleep(2 * TIMEOUT_S)
                FaultyRequests(client, first_host, fault, step, struck).begin()
                await is_to_read.wait()
                await asyncio.gather(*(drain(reader, found) for reader in readers))

        async def use_second() -> None:
            await is_joined.wait()
            async with cluster.client(second_host, SETTINGS) as client:
                group, readers = await open_readers(client, ("b1", "b2"))
                await until_balanced(readers)
                await asyncio.sleep(TIMEOUT_S)
                before = holders(await group._state())
                await struck.wait()
                await asyncio.sleep(3 * TIMEOUT_S)
                after = holders(await group._state())
                if fault is Fault.CRASH:
                    # One time-out without a sign of life, that of the last heartbeat, and some polls.
                    assert after.keys() == {"b1", "b2"}
                    assert [len(segments) for segments in after.values()] == [2, 2]
                else:
                    assert after == before
                    # The first client continues to watch: these end as in a crash.
                    for reader in readers:
                        await reader._membership.stop()
                    await asyncio.sleep(3 * TIMEOUT_S)
                    after = holders(await group._state())
                    assert after.keys() == {"a1", "a2"}
                    assert [len(segments) for segments in after.values()] == [2, 2]
                async with client.event_writer(STREAM) as writer:
                    for number in range(EVENT_COUNT):
                        await writer.write(b"%d" % number, str(number))
                is_to_read.set()
                if fault is Fault.CRASH:
                    await asyncio.gather(*(drain(reader, found) for reader in readers))

        async def main() -> None:
            await cluster.ready()
            running = [
                asyncio.ensure_future(host.run(use()))
                for host, use in ((first_host, use_first), (second_host, use_second))
            ]
            if fault is Fault.CRASH:
                await running[1]
                running[0].cancel()
                await asyncio.wait(running)
            else:
                await asyncio.gather(*running)

        simulation.run(main)
        assert found == Counter({b"%d" % number: 1 for number in range(EVENT_COUNT)})


@pytest.mark.parametrize("fault", Fault, ids=lambda fault: fault.value)
@pytest.mark.parametrize(
    "step", [pytest.param(step, marks=[] if step in STEPS_BY_DAY else [pytest.mark.nightly]) for step in STEPS]
)
def test_a_fault_of_a_poll_or_heartbeat_moves_no_segment_and_a_crash_moves_those_of_the_dead(
    step: int, fault: Fault
) -> None:
    play(fault, step)
