"""Changes of a reader group's record while the store does not answer: how long they take, and whom they hold up.

Time is virtual.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from random import Random

import pytest

from penstock.client.client import Client
from penstock.client.groups import reader_group_state as rgs
from penstock.client.groups.reader_group_record import GroupRecord
from penstock.client.settings import ClientSettings
from penstock.client.transport.exchanges import in_time
from penstock.model.errors import ConnectionLostError, MetadataConflictError, OutcomeUnknownError, TableKeyVersionError
from penstock.model.segments import TableUpdate
from penstock.wire.commands import WireCommand
from penstock_simulation.simulated.cluster import ClusterSettings, SimulatedCluster
from penstock_simulation.simulated.simulation import Simulation

STREAM = "retail/orders"
LIMIT_S = 8.0
#: For requests to the simulated store and for pauses between attempts.
SLACK_S = 0.3
SETTINGS = ClientSettings(retry_time_max_s=LIMIT_S)

Put = Callable[[str, Sequence[TableUpdate]], Awaitable[Sequence[int]]]


def now_s() -> float:
    return asyncio.get_running_loop().time()


def is_change(updates: Sequence[TableUpdate]) -> bool:
    return any(update.key == b"state" for update in updates)


def run(scenario: Callable[[Client, GroupRecord], Awaitable[None]]) -> None:
    """Run a scenario with the record of a new group."""
    with Simulation(1) as simulation:
        cluster = SimulatedCluster(simulation, ClusterSettings(store_count=1, is_combined=False))
        host = cluster.add_client("client")

        async def use() -> None:
            async with cluster.client(host, SETTINGS) as client:
                await client.create_stream(STREAM)
                async with client.reader_group("audit", [STREAM]) as group:
                    await scenario(client, group._record)

        async def main() -> None:
            await cluster.ready()
            await host.run(use())

        simulation.run(main)


def replace_put(client: Client, make: Callable[[Put], Put]) -> None:
    segments = client._segment_client
    segments.table_put = make(segments.table_put)  # type: ignore[method-assign, assignment]


async def join(record: GroupRecord, name: str) -> None:
    await record.update(lambda state: rgs.join(state, name, "1"))


async def hang(table: str) -> None:
    """As a request does that gets no reply."""
    never: asyncio.Future[WireCommand] = asyncio.get_running_loop().create_future()
    await in_time(table, never)


@pytest.mark.parametrize("fault", ["refused", "no reply", "lost races"])
def test_a_change_that_fails_ends_at_its_limit_and_the_next_one_starts_at_once(fault: str) -> None:
    async def scenario(client: Client, record: GroupRecord) -> None:
        is_away = True

        def make(put: Put) -> Put:
            async def faulty(table: str, updates: Sequence[TableUpdate]) -> Sequence[int]:
                if is_away and fault == "no reply":
                    await hang(table)
                if is_away and fault == "lost races":
                    raise TableKeyVersionError(table, key=b"state", expected=1, actual=2)
                if is_away:
                    raise ConnectionLostError("refused")
                return await put(table, updates)

            return faulty

        replace_put(client, make)
        begun_s = now_s()
        with pytest.raises(MetadataConflictError if fault == "lost races" else OutcomeUnknownError, match="retry_time"):
            await join(record, "a")
        assert LIMIT_S / 2 < now_s() - begun_s < LIMIT_S + SLACK_S
        is_away = False
        begun_s = now_s()
        await join(record, "b")
        assert now_s() - begun_s < SLACK_S
        assert set((await record.state()).readers) == {"b"}

    run(scenario)


def test_a_change_without_a_reply_delays_others_by_a_second_only() -> None:
    """The first one is among those that the second one makes, and ends without an error."""

    async def scenario(client: Client, record: GroupRecord) -> None:
        hanging = asyncio.Event()

        def make(put: Put) -> Put:
            async def first_hangs(table: str, updates: Sequence[TableUpdate]) -> Sequence[int]:
                if is_change(updates) and not hanging.is_set():
                    hanging.set()
                    await hang(table)
                return await put(table, updates)

            return first_hangs

        replace_put(client, make)
        first = asyncio.ensure_future(join(record, "a"))
        await hanging.wait()
        begun_s = now_s()
        await asyncio.gather(*(join(record, name) for name in "bcd"))
        assert now_s() - begun_s < 1 + SLACK_S
        assert not first.done()
        begun_s = now_s()
        await join(record, "e")
        assert now_s() - begun_s < SLACK_S
        await first
        assert set((await record.state()).readers) == set("abcde")

    run(scenario)


def test_a_late_reply_does_not_replace_a_later_record() -> None:
    async def scenario(client: Client, record: GroupRecord) -> None:
        is_stored = asyncio.Event()

        def make(put: Put) -> Put:
            async def first_is_late(table: str, updates: Sequence[TableUpdate]) -> Sequence[int]:
                versions = await put(table, updates)
                if is_change(updates) and not is_stored.is_set():
                    is_stored.set()
                    await asyncio.sleep(LIMIT_S / 2)
                return versions

            return first_is_late

        replace_put(client, make)
        first = asyncio.ensure_future(join(record, "a"))
        await is_stored.wait()
        await join(record, "b")
        known = record.known
        assert not first.done()
        await first
        assert record.known is known
        assert set((await record.state()).readers) == {"a", "b"}

    run(scenario)


def test_changes_that_lose_races_are_not_overtaken() -> None:
    """Otherwise one client would race against itself, the more the longer the races last."""

    async def scenario(client: Client, record: GroupRecord) -> None:
        under_way = under_way_max = lost = 0

        def make(put: Put) -> Put:
            async def losing(table: str, updates: Sequence[TableUpdate]) -> Sequence[int]:
                nonlocal under_way, under_way_max, lost
                under_way += 1
                under_way_max = max(under_way, under_way_max)
                try:
                    await asyncio.sleep(0.4)
                    if is_change(updates) and lost < 8:
                        lost += 1
                        raise TableKeyVersionError(table, key=b"state", expected=1, actual=2)
                    return await put(table, updates)
                finally:
                    under_way -= 1

            return losing

        replace_put(client, make)
        await asyncio.gather(*(join(record, name) for name in "abcd"))
        assert (lost, under_way_max) == (8, 1)

    run(scenario)


def test_changes_that_overtake_each_other_in_a_slow_store_are_all_made() -> None:
    """Each request takes several times as long as a change waits for another one, and replies come in any sequence."""

    async def scenario(client: Client, record: GroupRecord) -> None:
        rng = Random(1)

        def make(put: Put) -> Put:
            async def slow(table: str, updates: Sequence[TableUpdate]) -> Sequence[int]:
                if is_change(updates):
                    await asyncio.sleep(1.5 * rng.random())
                versions = await put(table, updates)
                if is_change(updates):
                    await asyncio.sleep(1.5 * rng.random())
                return versions

            return slow

        replace_put(client, make)

        async def later(number: int) -> None:
            await asyncio.sleep(0.4 * number)
            await join(record, f"r{number}")

        await asyncio.gather(*(later(number) for number in range(8)))
        known = record.known
        assert known is not None
        assert len(known.readers) == 8
        stored = await record.state()
        assert (stored.revision, len(stored.readers)) == (known.revision, 8)

    run(scenario)
