"""Promises of a reader under interruptions: exceptions, cancellations, outages, deletions, large backlogs.

Each test covers one way in which events were lost or came twice, or a reader stopped reading permanently.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from penstock.client.client import Client
from penstock.client.groups.group_state import GroupState, HeldSegment
from penstock.client.groups.reader import Reader
from penstock.client.reading.event import Event
from penstock.model.errors import (
    ContainerOfflineError,
    InvalidArgumentError,
    NoSuchReaderGroupError,
    NoSuchScopeError,
    OutcomeUnknownError,
    PenstockError,
    ScopeNotEmptyError,
)
from penstock.model.policies import Scaling
from penstock.model.stream_cuts import StreamCut

if TYPE_CHECKING:
    from client.conftest import Cluster

FAST = {"position_interval_s": 0.05, "reader_group_refresh_s": 0.02, "reader_timeout_s": 0.3}
STREAM = "retail/orders"


async def fill(client: Client, count: int = 20, stream: str = STREAM, segments: int = 1, start: int = 0) -> None:
    await client.create_stream(stream, scaling=Scaling.fixed(segments), exist_ok=True)
    async with client.event_writer(stream) as writer:
        for index in range(start, start + count):
            await writer.write(b"%d" % index, routing_key=str(index))


def numbers(events: list[Event]) -> list[int]:
    return [int(event.data) for event in events]


async def drain(reader: Reader, idle_s: float = 1.0) -> list[Event]:
    events = []
    while (event := await reader.read(idle_s)) is not None:
        events.append(event)
    return events


async def until(condition: Callable[[], Any], timeout_s: float = 60.0) -> None:
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110  # no event to await
            await asyncio.sleep(0.01)


# -- an exception never moves a position ------------------------------------------------------------------------


async def test_exception_while_an_event_is_processed_leaves_it_unread(cluster: Cluster) -> None:
    async with cluster.client() as client:
        await fill(client)
        group = await client.reader_group("audit", [STREAM])
        with pytest.raises(KeyError):  # noqa: PT012  # the block is the matter
            async with await group.reader("r") as reader:
                async for event in reader:
                    if event.data == b"7":
                        raise KeyError("processing failed")
        async with await group.reader("r") as reader:
            assert numbers(await drain(reader)) == list(range(7, 20))


async def test_exception_while_a_batch_is_processed_leaves_all_of_it_unread(cluster: Cluster) -> None:
    async with cluster.client() as client:
        await fill(client)
        group = await client.reader_group("audit", [STREAM])
        with pytest.raises(KeyError):  # noqa: PT012  # the block is the matter
            async with await group.reader("r") as reader:
                await reader.read_batch(max_bytes=5 * 9)
                await reader.read_batch(max_bytes=5 * 9)
                raise KeyError("processing failed")
        async with await group.reader("r") as reader:
            assert numbers(await drain(reader)) == list(range(5, 20))


@pytest.mark.parametrize("ends_with", ["group", "finally", "cancellation"])
async def test_exception_leaves_the_event_unread_however_the_reader_is_closed(cluster: Cluster, ends_with: str) -> None:
    """By its group's block, by `close` in a `finally:`, or because the task is cancelled while it works."""
    async with cluster.client() as client:
        await fill(client)
        group = await client.reader_group("audit", [STREAM])

        async def work() -> None:
            if ends_with == "group":
                async with group:
                    await consume(await group.reader("r"))
            elif ends_with == "finally":
                reader = await group.reader("r")
                try:
                    await consume(reader)
                finally:
                    await reader.close()
            else:
                async with await group.reader("r") as reader:
                    await consume(reader)

        async def consume(reader: Reader) -> None:
            async for event in reader:
                if event.data == b"7":
                    if ends_with == "cancellation":
                        is_reached.set()
                        await asyncio.sleep(1000)
                    raise KeyError("processing failed")

        is_reached = asyncio.Event()
        task = asyncio.create_task(work())
        if ends_with == "cancellation":
            async with asyncio.timeout(60):
                await is_reached.wait()
            task.cancel()
        with pytest.raises((KeyError, asyncio.CancelledError)):
            await task
        group = await client.reader_group("audit", [STREAM])
        async with await group.reader("s") as reader:
            assert numbers(await drain(reader)) == list(range(7, 20))


# -- a cancelled read leaves nothing half done --------------------------------------------------------------------


def answer_late(client: Client) -> None:
    """Let the store's answer to a change of the record come 50 ms after the change."""
    put = client._segment_client.table_put

    async def late(*args: Any, **kwargs: Any) -> Sequence[int]:
        versions = await put(*args, **kwargs)
        await asyncio.sleep(0.05)
        return versions

    client._segment_client.table_put = late  # type: ignore[method-assign]


async def read_cut_off(reader: Reader, after_s: float) -> None:
    read = asyncio.create_task(reader.read())
    await asyncio.sleep(after_s)
    read.cancel()
    await asyncio.gather(read, return_exceptions=True)


CUTS_S = [0.0, 0.005, 0.02, 0.04, 0.07]


@pytest.mark.parametrize("after_s", CUTS_S)
async def test_read_cancelled_during_a_rebalance_leaves_each_segment_to_one_reader(
    cluster: Cluster, after_s: float
) -> None:
    """The record is changed already, its answer not there yet, when the read is cut off. Every event comes once."""
    async with cluster.client(**FAST) as client:
        await fill(client, 0, segments=4)
        group = await client.reader_group("audit", [STREAM])
        async with await group.reader("r1") as first, await group.reader("r2") as second:
            answer_late(client)
            for _ in range(10):
                await read_cut_off(first, after_s)
            await fill(client, 40)
            events = []
            for _ in range(3):
                for found in await asyncio.gather(drain(first, 0.15), drain(second, 0.15)):
                    events += found
            state = await group._state()
            assert Counter(numbers(events)) == Counter(range(40))
            assert set(first.segments) == set(state.readers["r1"].segments)
            assert set(second.segments) == set(state.readers["r2"].segments)
            assert [len(first.segments), len(second.segments)] == [2, 2]


@pytest.mark.parametrize("step", range(0, 40, 4))
async def test_read_cancelled_at_the_end_of_a_segment_still_finishes(cluster: Cluster, step: int) -> None:
    """Each read is cut off after a few steps of the loop; what follows the segment is read nevertheless."""
    async with cluster.client(**FAST) as client:
        await fill(client, 5)
        await cluster.controller.scale(STREAM, [0], [(0.0, 0.5), (0.5, 1.0)])
        await fill(client, 5, start=5)
        await client.seal_stream(STREAM)
        group = await client.reader_group("audit", [STREAM])
        async with await group.reader("r") as reader:
            events = []
            for _ in range(30):
                read = asyncio.create_task(reader.read())
                for _ in range(step):
                    await asyncio.sleep(0)
                read.cancel()
                try:
                    event = await read
                except asyncio.CancelledError:
                    continue
                events += [] if event is None else [event]
            async with asyncio.timeout(60):
                events += [event async for event in reader]
            assert sorted(numbers(events)) == list(range(10))
            assert reader.is_finished


@pytest.mark.parametrize("after_s", CUTS_S)
async def test_read_cancelled_while_segments_are_taken_over_leaves_none_unread(
    cluster: Cluster, after_s: float
) -> None:
    """The other reader has left: its segments are taken over although every read meanwhile was cut off."""
    async with cluster.client(**FAST) as client:
        await fill(client, 0, segments=4)
        group = await client.reader_group("audit", [STREAM])
        second = await group.reader("r2")
        async with await group.reader("r1") as first:
            await asyncio.gather(drain(first, 0.1), drain(second, 0.1))
            await second.close()
            answer_late(client)
            for _ in range(10):
                await read_cut_off(first, after_s)
            await fill(client, 20)
            assert sorted(numbers(await drain(first, 0.3))) == list(range(20))
            assert len(first.segments) == 4


async def test_cancelled_join_leaves_no_member_behind(cluster: Cluster) -> None:
    """`group.reader()` is cancelled at every step: no member that reads nothing may stay in the group."""
    async with cluster.client(**FAST, keepalive_interval_s=100) as client:
        await fill(client, 0, segments=2)
        group = await client.reader_group("audit", [STREAM])
        for step in range(0, 60, 4):
            joining = asyncio.ensure_future(group.reader(f"cut-{step}"))
            for _ in range(step):
                await asyncio.sleep(0)
            joining.cancel()
            await asyncio.gather(joining, return_exceptions=True)
            if not joining.cancelled():
                await joining.result().close()
        async with asyncio.timeout(60):
            while (await group._state()).readers:  # noqa: ASYNC110  # no event to await
                await asyncio.sleep(0.02)
        assert len((await group._state()).unassigned) == 2


async def test_segment_that_was_away_is_read_where_the_record_says(cluster: Cluster) -> None:
    """It went to another reader and came back between two inspects the record: only its number shows that."""
    async with cluster.client(**FAST) as client:
        await fill(client, 20)
        group = await client.reader_group("audit", [STREAM])
        async with await group.reader("r") as reader:
            for _ in range(3):
                await reader.read(20)
            elsewhere = 10 * 9

            def went_away_and_came_back(state: GroupState) -> GroupState:
                me = state.readers["r"]
                held = {segment: HeldSegment(elsewhere, state.next_turn) for segment in me.segments}
                changed = msgspec.structs.replace(me, segments=held)
                return msgspec.structs.replace(state, readers={"r": changed}, next_turn=state.next_turn + 1)

            await group._record.update(went_away_and_came_back)
            await asyncio.sleep(0.1)
            assert numbers(await drain(reader)) == list(range(10, 20))


# -- outages --------------------------------------------------------------------------------------------------------


async def test_reader_reads_on_after_an_outage_longer_than_its_patience(cluster: Cluster) -> None:
    """The error of the outage is raised once, and not again when the store is back."""
    async with cluster.client(retry_time_max_s=2.0, **FAST) as client:
        await fill(client, 5)
        group = await client.reader_group("audit", [STREAM])
        async with await group.reader("r") as reader:
            assert len(await drain(reader, 0.1)) == 5
            name = reader.segments[0]
            # The store answers, but not for this segment: a passing fault that outlasts all attempts.
            original, client._segment_client.read = client._segment_client.read, _failing(name)  # type: ignore[assignment, method-assign]
            for source in reader._membership.open_segments.values():
                done = source.restart(source.offset)  # type: ignore[func-returns-value]
                if done is not None:
                    await done  # type: ignore[unreachable]
            with pytest.raises(ContainerOfflineError):
                await reader.read(20)
            client._segment_client.read = original  # type: ignore[method-assign]
            await fill(client, 5, start=5)
            events: list[Any] = []
            async with asyncio.timeout(60):
                while len(events) < 5:
                    try:
                        event = await reader.read(0.5)
                    except ContainerOfflineError as error:
                        raise AssertionError("the error of the outage comes again") from error
                    events += [] if event is None else [event]
            assert numbers(events) == list(range(5, 10))


def _failing(name: str) -> Callable[..., Awaitable[Any]]:
    async def read(segment: str, offset: int, length: int, *, wait: bool = False) -> None:
        raise ContainerOfflineError(0, f"{segment} cannot be read from here ({name})")

    return read


async def test_segments_that_one_reader_cannot_read_go_to_another(cluster: Cluster) -> None:
    """It is alive and stores positions, but its reads fail: after the group's time-out others try."""
    async with cluster.client(**FAST) as broken, cluster.client(**FAST) as client:
        await fill(client, 20, segments=2)
        broken._segment_client.read = _failing("broken")  # type: ignore[assignment, method-assign]
        first = await (await broken.reader_group("audit", [STREAM])).reader("broken")

        async def insist() -> None:
            while first.is_open if hasattr(first, "is_open") else not first.is_closed:
                try:
                    await first.read(0.05)
                except ContainerOfflineError:
                    await asyncio.sleep(0.01)

        insisting = asyncio.create_task(insist())
        async with await (await client.reader_group("audit", [STREAM])).reader("sound") as second:
            events: list[Event] = []
            async with asyncio.timeout(60):
                while len(events) < 20:
                    event = await second.read(0.1)
                    events += [] if event is None else [event]
            assert sorted(numbers(events)) == list(range(20))
        insisting.cancel()
        await asyncio.gather(insisting, return_exceptions=True)
        await first.close()


async def test_read_returns_in_its_time_while_the_record_is_away(cluster: Cluster) -> None:
    """Balancing needs the group's record; a read with a time-out does not wait for it."""
    async with cluster.client(**FAST, request_timeout_s=30.0) as client:
        await fill(client, 5, segments=2)
        group = await client.reader_group("audit", [STREAM])
        async with await group.reader("r1") as first, await group.reader("r2"):
            cluster.store.loses_table_requests = True
            first._delivery.needs_attention = True
            async with asyncio.timeout(60):
                while await first.read(0.1) is not None:
                    first._delivery.needs_attention = True
            await cluster.store.request_lost.wait()
            # The requests sent until now never get a reply. The readers close in their time nevertheless.
            cluster.store.loses_table_requests = False


async def test_storing_positions_ends_in_its_time_while_another_poll_is_under_way(cluster: Cluster) -> None:
    """The poll that was begun before waits for the record, and would have its whole time before this one had any."""
    async with cluster.client(**{**FAST, "retry_time_max_s": 0.3}) as client:
        await fill(client, 5)
        group = await client.reader_group("audit", [STREAM])
        async with await group.reader("r1") as reader:
            original = client._segment_client.table_get, client._segment_client.table_put
            asked = asyncio.Event()

            async def hang(*args: Any, **kwargs: Any) -> Any:
                asked.set()
                await asyncio.sleep(1000)

            client._segment_client.table_get = client._segment_client.table_put = hang  # type: ignore[method-assign]
            reader._membership.wake()
            await asked.wait()
            async with asyncio.timeout(60):
                with pytest.raises(OutcomeUnknownError, match="retry_time_max_s"):
                    await reader.store_positions()
            client._segment_client.table_get, client._segment_client.table_put = original  # type: ignore[method-assign]
            await reader.abandon()


async def test_close_ends_in_its_time_while_the_store_is_away(cluster: Cluster) -> None:
    """It says that it does not know, and a later call leaves the group."""
    async with cluster.client(**FAST, reader_close_timeout_s=0.2) as client:
        await fill(client, 5)
        group = await client.reader_group("audit", [STREAM])
        reader = await group.reader("r1")
        await reader.read(1)
        cluster.store.refuses = True
        cluster.store.drop_all()
        async with asyncio.timeout(60):
            with pytest.raises(PenstockError):
                await reader.close()
        cluster.store.refuses = False
        assert "r1" in (await group._state()).readers
        await reader.close()
        assert not (await group._state()).readers


# -- where a group starts ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "start",
    ["headd", 17, b"tail", ["retail/orders"], {"retail/order": "cut"}, {"retail/other": "other"}, {}, {STREAM: 5}],
)
async def test_an_invalid_start_is_refused_and_leaves_nothing(cluster: Cluster, start: Any) -> None:
    async with cluster.client() as client:
        await fill(client, 3)
        await fill(client, 3, stream="retail/other")
        if isinstance(start, dict):
            cuts = {"cut": await client.tail(STREAM), "other": await client.tail("retail/other")}
            start = {name: cuts.get(cut, cut) if isinstance(cut, str) else cut for name, cut in start.items()}
        tables = set(cluster.store.segments.tables)
        with pytest.raises(InvalidArgumentError):
            await client.reader_group("audit", [STREAM], start=start)
        assert set(cluster.store.segments.tables) == tables


@pytest.mark.parametrize("positions", [{0: 1_000_000}, {7: 0}, {}])
async def test_start_beyond_the_end_is_refused(cluster: Cluster, positions: dict[int, int]) -> None:
    async with cluster.client() as client:
        await fill(client, 3)
        with pytest.raises(InvalidArgumentError):
            await client.reader_group("audit", [STREAM], start={STREAM: StreamCut("retail", "orders", positions)})


# -- the controller knows groups -----------------------------------------------------------------------------------


async def test_scope_with_a_group_cannot_be_deleted(cluster: Cluster) -> None:
    async with cluster.client() as client:
        await fill(client, 3)
        await client.create_scope("groups")
        await client.reader_group("audit", [STREAM], scope="groups")
        with pytest.raises(ScopeNotEmptyError):
            await client.delete_scope("groups")
        await client.delete_reader_group("audit", scope="groups")
        await client.delete_scope("groups")


async def test_a_group_in_a_missing_scope_is_refused_and_leaves_nothing(cluster: Cluster) -> None:
    async with cluster.client() as client:
        await fill(client, 3)
        with pytest.raises(NoSuchScopeError):
            await client.reader_group("audit", [STREAM], scope="nowhere")
        assert not cluster.store.segments.tables


async def test_a_recreated_group_starts_from_the_beginning(cluster: Cluster) -> None:
    """Whichever client deleted the registration, and how: the new group does not use positions of the old one."""
    async with cluster.client(**FAST) as client:
        await fill(client, 10)
        group = await client.reader_group("audit", [STREAM])
        old = await group.reader("r")
        assert len(await drain(old, 0.1)) == 10
        # Another client's way to delete it, which knows of no table.
        cluster.controller.groups.clear()
        async with await client.reader_group("audit", [STREAM]) as again, await again.reader("r") as reader:
            assert numbers(await drain(reader, 0.1)) == list(range(10))
        await old.close()


async def test_refused_group_leaves_no_table(cluster: Cluster) -> None:
    async with cluster.client() as client:
        await fill(client, 3)
        with pytest.raises(PenstockError):
            await client.reader_group("audit", [STREAM, "retail/missing"])
        assert not cluster.store.segments.tables


async def test_deleted_group_is_gone_for_its_readers(cluster: Cluster) -> None:
    async with cluster.client(**FAST) as client:
        await fill(client, 1)
        group = await client.reader_group("audit", [STREAM])
        async with await group.reader("r") as reader:
            await drain(reader, 0.05)
            await client.delete_reader_group("retail/audit")
            with pytest.raises(NoSuchReaderGroupError):
                await drain(reader, 1)
        assert not cluster.store.segments.tables


# -- read-ahead -----------------------------------------------------------------------------------------------------


async def test_read_ahead_is_one_budget_for_all_segments_of_a_reader(cluster: Cluster) -> None:
    """A hundred segments full of events, a reader that takes its time: what it holds stays within the setting."""
    budget = 64 * 1024
    async with cluster.client(reader_read_ahead_bytes_max=budget, read_bytes=16 * 1024, **FAST) as client:
        await client.create_stream(STREAM, scaling=Scaling.fixed(100))
        payload = bytes(1000)
        async with client.event_writer(STREAM) as writer:
            for index in range(2000):
                await writer.write(payload, routing_key=str(index))
        group = await client.reader_group("audit", [STREAM])
        async with await group.reader("r") as reader:
            await until(lambda: reader.read_ahead_bytes > budget // 2)
            for _ in range(2000):
                assert await reader.read(60) is not None
                # One event may go past it, or it could not be read.
                assert reader.read_ahead_bytes <= budget + 1008
            assert await reader.read(0.1) is None


async def test_event_larger_than_the_share_of_its_segment_is_read(cluster: Cluster) -> None:
    async with cluster.client(reader_read_ahead_bytes_max=8 * 1024, read_bytes=4 * 1024, **FAST) as client:
        await client.create_stream(STREAM, scaling=Scaling.fixed(8))
        async with client.event_writer(STREAM) as writer:
            for index in range(40):
                await writer.write(bytes([index]) * 30_000, routing_key=str(index))
        group = await client.reader_group("audit", [STREAM])
        async with await group.reader("r") as reader:
            events: list[bytes] = []
            while len(events) < 40:
                event = await reader.read(20)
                assert event is not None
                events.append(event.data)
    assert sorted(events) == [bytes([index]) * 30_000 for index in range(40)]
