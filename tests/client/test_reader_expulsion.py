"""Readers that another one declared dead, or may not: outages, intervals that do not fit, and what `commit` reports."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from penstock.client.client import Client
from penstock.client.groups import reader_group_state
from penstock.client.groups.reader import Reader
from penstock.client.groups.reader_group import ReaderGroup
from penstock.client.settings import ClientSettings
from penstock.model.errors import PenstockError, StorageUnavailableError, StreamError
from penstock.model.policies import Scaling
from penstock_simulation.simulated.cluster import ClusterSettings, SimulatedCluster
from penstock_simulation.simulated.host import Death
from penstock_simulation.simulated.simulation import Simulation

if TYPE_CHECKING:
    from client.conftest import Cluster

STREAM = "retail/orders"
FAST = {"position_interval_s": 0.05, "reader_group_refresh_s": 0.02, "reader_timeout_s": 0.6}


async def fill(client: Client, count: int, segments: int = 1) -> None:
    await client.create_stream(STREAM, scaling=Scaling.fixed(segments), exist_ok=True)
    async with client.event_writer(STREAM) as writer:
        for index in range(count):
            await writer.write(b"%d" % index, routing_key=f"k{index}")


async def expel(group: ReaderGroup, name: str) -> None:
    await group._record.update(lambda state: reader_group_state.leave(state, name, handed_out={}))


async def until(check: Callable[[], Any], timeout_s: float = 60.0) -> None:
    async with asyncio.timeout(timeout_s):
        while not check():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_readers_keep_their_segments_through_an_outage_longer_than_the_timeout(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    async with cluster.client(**FAST, retry_time_max_s=30.0, retry_delay_max_s=0.05) as client:
        await fill(client, 10, segments=2)
        group = await client.reader_group("audit", [STREAM])
        async with group.reader("r1") as first, group.reader("r2") as second:
            await until(lambda: len(first.segments) == len(second.segments) == 1)
            before = (await group._state()).readers
            cluster.store.refuses = True
            cluster.store.drop_all()
            await asyncio.sleep(3 * FAST["reader_timeout_s"])
            cluster.store.refuses = False
            await asyncio.sleep(FAST["reader_timeout_s"])
            after = (await group._state()).readers
    for name in ("r1", "r2"):
        assert after[name].incarnation == before[name].incarnation
        turns = [{segment: held.turn for segment, held in each[name].segments.items()} for each in (before, after)]
        assert turns[0] == turns[1]
    assert "declared" not in caplog.text


async def read_on(reader: Reader, until_s: float | None = None) -> list[PenstockError]:
    """Read as an application does, which continues after errors; return the errors of the store."""
    loop, errors = asyncio.get_running_loop(), []
    while until_s is None or loop.time() < until_s:
        try:
            await reader.read(0.02)
        except PenstockError as error:
            errors.append(error)
            await asyncio.sleep(0.01)
            if until_s is None:
                return errors
    return errors


def test_idle_readers_do_not_step_aside_for_an_error_that_is_over(caplog: pytest.LogCaptureFixture) -> None:
    """Reads failed once, and work again since: nothing is written, so that no bytes show it. Time is virtual."""
    caplog.set_level(logging.WARNING)
    settings = ClientSettings(
        position_interval_s=0.05, reader_group_refresh_s=0.02, reader_timeout_s=FAST["reader_timeout_s"],
        retry_time_max_s=0.1, retry_delay_max_s=0.02,
    )  # fmt: skip
    with Simulation(1) as simulation:
        cluster = SimulatedCluster(simulation, ClusterSettings(store_count=1, is_combined=False))
        host = cluster.add_client("client")
        is_out, is_over = asyncio.Event(), asyncio.Event()

        async def use() -> None:
            async with cluster.client(host, ClientSettings()) as writing:
                await fill(writing, 10, segments=2)
            async with cluster.client(host, settings) as client:
                group = await client.reader_group("audit", [STREAM])
                async with group.reader("r1") as first, group.reader("r2") as second:
                    await until(lambda: len(first.segments) == len(second.segments) == 1)
                    turns = {one.name: sorted(one.segments) for one in (first, second)}
                    is_out.set()
                    for errors in await asyncio.gather(read_on(first), read_on(second)):
                        assert errors
                    await is_over.wait()
                    end_s = asyncio.get_running_loop().time() + 4 * FAST["reader_timeout_s"]
                    await asyncio.gather(read_on(first, end_s), read_on(second, end_s))
                    assert {one.name: sorted(one.segments) for one in (first, second)} == turns

        async def main() -> None:
            await cluster.ready()
            using = asyncio.ensure_future(host.run(use()))
            await is_out.wait()
            cluster.stores[0].crash(Death.KILL)
            await asyncio.sleep(1.0)
            cluster.stores[0].restart()
            await cluster.ready()
            is_over.set()
            await using

        simulation.run(main)
    assert "cannot read" not in caplog.text


async def test_a_reader_that_cannot_read_its_segment_steps_aside(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    """Its store answers, and has bytes that it cannot return to this reader."""
    caplog.set_level(logging.WARNING)
    async with cluster.client(**FAST) as client, cluster.client(**FAST) as other:
        await fill(client, 10, segments=2)

        async def read(segment: str, offset: int, length: int, *, wait: bool = False) -> None:
            raise StorageUnavailableError(f"{segment}: cannot be read")

        client._segment_client.read = read  # type: ignore[assignment, method-assign]
        group, theirs = await client.reader_group("audit", [STREAM]), await other.reader_group("audit", [STREAM])
        async with group.reader("r1") as first, theirs.reader("r2") as second:
            await until(lambda: len(first.segments) == len(second.segments) == 1)
            reading = [asyncio.create_task(read_on(one, float("inf"))) for one in (first, second)]
            await until(lambda: len(second.segments) == 2)
            for task in reading:
                task.cancel()
            await asyncio.gather(*reading, return_exceptions=True)
    assert "reader r1 cannot read" in caplog.text
    assert "reader r2 cannot read" not in caplog.text


async def test_a_position_interval_above_the_timeout_of_the_group_expels_no_reader(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    async with cluster.client(**{**FAST, "position_interval_s": 10.0}) as client:
        await fill(client, 20, segments=2)
        group = await client.reader_group("audit", [STREAM])
        async with group.reader("r1") as first, group.reader("r2") as second:
            await until(lambda: len(first.segments) == len(second.segments) == 1)
            await asyncio.sleep(4 * FAST["reader_timeout_s"])
    assert "declared" not in caplog.text
    assert "position_interval_s is 10 s, too long for group audit" in caplog.text
    assert "reader_timeout_s" in caplog.text


@pytest.mark.parametrize("positions", ["manual", "automatic"])
async def test_a_commit_after_the_loss_of_a_segment_raises_once(cluster: Cluster, positions: str) -> None:
    async with cluster.client(**{**FAST, "position_interval_s": 5.0, "reader_timeout_s": 30.0}) as client:
        await fill(client, 10)
        group = await client.reader_group("audit", [STREAM])
        async with group.reader("r1", positions=positions) as reader:
            event = await reader.read(5)
            await expel(group, "r1")
            with pytest.raises(StreamError, match="delivered again"):
                await reader.commit()
            again = await reader.read(5)
            assert (again.offset, again.redelivery_count) == (event.offset, 1)  # type: ignore[union-attr]
            await reader.commit()
        state = await group._state()
    assert list(state.unassigned.values()) == [again.position]  # type: ignore[union-attr]


async def test_commit_of_an_event_raises_after_its_segment_was_lost_while_it_waited(cluster: Cluster) -> None:
    async with cluster.client(**{**FAST, "reader_group_refresh_s": 5.0, "reader_timeout_s": 60.0}) as client:
        await fill(client, 10)
        group = await client.reader_group("audit", [STREAM])
        async with group.reader("r1", positions="manual") as reader:
            event = await reader.read(5)
            await expel(group, "r1")
            with pytest.raises(StreamError, match="cannot commit"):
                await reader.commit(event)


async def test_commit_counts_as_stored_when_the_segment_moves_with_it(cluster: Cluster) -> None:
    async with cluster.client(**FAST) as client:
        await fill(client, 20, segments=2)
        group = await client.reader_group("audit", [STREAM])
        async with group.reader("r1", positions="manual") as first:
            for _ in range(2):
                await first.read_batch(timeout_s=5)
            async with group.reader("r2", positions="manual") as second:
                assert await first.read(0.1) is None
                await first.commit()
                await until(lambda: len(first.segments) == len(second.segments) == 1)
                await first.commit()


async def test_another_reader_continues_where_a_removed_one_was(cluster: Cluster) -> None:
    async with cluster.client(**FAST, retry_time_max_s=30.0, retry_delay_max_s=0.05) as client:
        await fill(client, 10)
        group = await client.reader_group("audit", [STREAM])
        first = await group.reader("r1")
        found = [(await first.read(timeout_s=30)).data for _ in range(4)]  # type: ignore[union-attr]
        await first.commit()
        # It ends as in a crash. Otherwise it would join again, perhaps before the other one joins.
        await first._membership.stop()
        assert await group.remove_reader("r1")
        assert not await group.remove_reader("r1")
        assert (await group.describe()).readers == {}
        async with group.reader("r2") as second:
            found += [(await second.read(timeout_s=30)).data for _ in range(6)]  # type: ignore[union-attr]
            assert found == [b"%d" % index for index in range(10)]
        await first.close()
