"""Automatic checkpoints of reader groups: the steps on the record, and groups of a whole server in memory."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.client.client import Client
from penstock.client.controller.reader_group_calls import RegisteredGroup
from penstock.client.groups import reader_group_state as rgs
from penstock.client.groups.group_state import GroupState, HeldSegment
from penstock.client.groups.reader_group import GroupDescription, ReaderGroup
from penstock.client.settings import ClientSettings
from penstock.model.errors import InvalidArgumentError
from penstock.model.policies import GroupRetention
from penstock.testing import memory_server
from penstock_simulation.simulated.zookeeper import Server

FAST = ClientSettings(
    position_interval_s=0.05, reader_group_refresh_s=0.02, reader_group_stream_refresh_s=0.05, reader_timeout_s=0.5,
    reader_group_publish_interval_s=0.05, reader_group_checkpoint_interval_s=0.05,
)  # fmt: skip
A, B = "s/t/0.#epoch.0", "s/t/1.#epoch.0"
EVENT_BYTES = 9


def with_readers(*names: str) -> GroupState:
    """A group of two segments whose readers have their share."""
    state = rgs.create({A: 0, B: 0}, ["s/t"], checkpoint_interval_s=30.0)
    for name in names:
        state = rgs.join(state, name, f"{name}1")
    for name in names:
        state = rgs.acquire(state, name, 1)
    return state


def beat(state: GroupState, name: str, offset: int) -> GroupState:
    held = state.readers[name].segments
    return rgs.beat(state, name, {one: HeldSegment(offset, each.turn) for one, each in held.items()})


def test_it_is_taken_when_the_last_awaited_reader_has_stored_its_positions() -> None:
    state = rgs.begin_checkpoint(with_readers("a", "b"), 1)
    state = beat(state, "a", 10)
    assert state.checkpoint.awaited == ["b"]
    assert not rgs.checkpoint_cuts(state)
    # A reader that comes now is none of it.
    state = beat(rgs.join(state, "c", "c1"), "b", 20)
    assert state.checkpoint.awaited == []
    assert rgs.checkpoint_cuts(state)["s/t"].positions == {0: 10, 1: 20}
    assert GroupState.decode(state.encode()) == state
    assert rgs.checkpoint_cuts(beat(state, "a", 30)) == rgs.checkpoint_cuts(state)


def test_concurrent_starts_of_a_checkpoint_start_one_and_a_late_start_none() -> None:
    state = rgs.begin_checkpoint(with_readers("a", "b"), 1)
    assert rgs.begin_checkpoint(state, 1) == state
    assert rgs.begin_checkpoint(state, 2) == state
    state = beat(beat(state, "a", 1), "b", 1)
    assert rgs.begin_checkpoint(state, 1) == state
    assert rgs.begin_checkpoint(state, 2).checkpoint.awaited == ["a", "b"]


def test_a_checkpoint_stops_waiting_for_a_dead_reader_and_waits_for_a_restarted_one() -> None:
    state = beat(rgs.begin_checkpoint(with_readers("a", "b"), 1), "a", 10)
    again = rgs.join(state, "b", "b2")
    assert again.checkpoint.awaited == ["b"]
    assert rgs.checkpoint_cuts(beat(again, "b", 5))["s/t"].positions == {0: 10, 1: 5}
    dead = rgs.leave(state, "b", handed_out={})
    assert rgs.checkpoint_cuts(dead)["s/t"].positions == {0: 10, 1: 0}
    # All readers are dead: the stored positions count, once each has been removed.
    assert rgs.checkpoint_cuts(rgs.leave(rgs.begin_checkpoint(dead, 2), "a", handed_out={}))["s/t"].positions[0] == 10


def test_the_last_reader_to_leave_takes_a_checkpoint() -> None:
    state = with_readers("a")
    held = {one: HeldSegment(7, each.turn) for one, each in state.readers["a"].segments.items()}
    left = rgs.leave(state, "a", held)
    assert rgs.checkpoint_cuts(left)["s/t"].positions == rgs.stream_cuts(left)["s/t"].positions
    assert rgs.leave(left, "a", held) == left
    assert not rgs.checkpoint_cuts(rgs.leave(state, "a", held, handed_out={}))


def test_a_reset_discards_finished_and_open_checkpoints() -> None:
    state = beat(rgs.begin_checkpoint(with_readers("a"), 1), "a", 10)
    for before in (state, rgs.begin_checkpoint(state, 2)):
        after = rgs.reset(before, {A: 0, B: 0}, "once")
        assert (after.checkpoint.awaited, rgs.checkpoint_cuts(after)) == ([], {})
        assert after.checkpoint.number == before.checkpoint.number


def test_streams_that_go_leave_the_checkpoint_and_the_interval_follows() -> None:
    state = beat(rgs.begin_checkpoint(with_readers("a"), 1), "a", 10)
    after = rgs.read_streams(state, {"s/u": {"s/u/0.#epoch.0": 0}}, {}, 1, None, 5.0)
    assert rgs.checkpoint_cuts(after) == {}
    assert after.checkpoint.interval_s == 5.0
    assert rgs.read_streams(after, {"s/u": {}}, {}, 2).checkpoint.interval_s == 5.0


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_each_one_taken_is_a_place_that_was_stored_after_it_was_begun(data: st.DataObject) -> None:
    """Whatever readers do, no reader is awaited without end, and no checkpoint lies before the previous one."""
    state = with_readers("a", "b")
    behind: dict[str, int] = {}
    for _ in range(data.draw(st.integers(1, 40))):
        name = data.draw(st.sampled_from(["a", "b", "c"]))
        match data.draw(st.sampled_from(["begin", "beat", "beat", "join", "leave", "die", "acquire"])):
            case "begin":
                before = state
                state = rgs.begin_checkpoint(state, data.draw(st.integers(0, before.checkpoint.number + 2)))
                assert rgs.begin_checkpoint(state, state.checkpoint.number) == state
                if state != before and state.checkpoint.awaited:
                    behind = rgs.positions_of(state)
            case "beat" if name in state.readers:
                held = state.readers[name].segments
                step = data.draw(st.integers(0, 9))
                moved = {one: HeldSegment(each.offset + step, each.turn) for one, each in held.items()}
                state = rgs.beat(state, name, moved)
            case "join":
                state = rgs.join(state, name, f"{name}{data.draw(st.integers(1, 2))}")
            case "leave":
                state = rgs.leave(state, name)
            case "die":
                state = rgs.leave(state, name, handed_out={})
            case "acquire":
                state = rgs.acquire(state, name, 2)
        found = state.checkpoint
        assert set(found.awaited) <= set(state.readers)
        if found.positions and not found.awaited:
            assert all(behind.get(one, 0) <= offset for one, offset in found.positions.items())
        assert all(offset <= rgs.positions_of(state)[one] for one, offset in found.positions.items())


# -- with a server ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with memory_server() as server:
        yield server


_names = iter(range(1_000_000))


@pytest.fixture
def stream() -> str:
    """A stream in a fresh scope."""
    return f"checked-{next(_names)}/orders"


async def write(client: Client, stream: str) -> None:
    await client.create_stream(stream, exist_ok=True)
    async with client.event_writer(stream) as writer:
        for number in range(5):
            await writer.write(b"%d" % number, routing_key="k")


async def until(group: ReaderGroup, condition: Callable[..., Any]) -> GroupDescription:
    async with asyncio.timeout(60):
        while not condition(found := await group.describe()):  # noqa: ASYNC110  # no event to await
            await asyncio.sleep(0.02)
    return found


async def test_one_reader_takes_the_checkpoint_and_the_group_can_be_reset_to_it(server: Server, stream: str) -> None:
    """Also while the application does not come back; the other reader has nothing to read, and is awaited too."""
    async with Client(server.uri, FAST) as client:
        await write(client, stream)
        async with client.reader_group("audit", [stream]) as group, group.reader("b") as reader:
            async with group.reader("a"):
                for _ in range(3):
                    assert await reader.read(20) is not None
                found = await until(
                    group, lambda found: found.checkpoint.get(stream) == found.positions[stream]
                    and found.positions[stream].positions == {0: 2 * EVENT_BYTES},
                )  # fmt: skip
            await group.reset(found.checkpoint)
            event = await reader.read(20)
            assert event is not None
            assert event.data == b"2"


async def test_a_group_releases_data_only_up_to_its_last_checkpoint(server: Server, stream: str) -> None:
    """Stored positions alone release nothing while checkpoints are far apart; a shorter interval does."""
    seldom = replace(FAST, reader_group_checkpoint_interval_s=1000.0)
    async with Client(server.uri, seldom) as client:
        await write(client, stream)
        async with client.reader_group("audit", [stream], retention="automatic") as group, group.reader("a") as reader:
            first = await until(group, lambda found: found.acknowledged[stream] is not None)
            assert first.checkpoint_interval_s == 1000.0
            for _ in range(5):
                assert await reader.read(20) is not None
            assert await reader.read(0.3) is None
            await reader.store_positions()
            # It has published since: what there is, which is the first checkpoint.
            await group.set_checkpoint_interval(2000.0)
            later = await until(group, lambda found: found.checkpoint_interval_s == 2000.0)
            assert later.positions[stream].positions == {0: 5 * EVENT_BYTES}
            assert later.acknowledged[stream].positions == {0: 0}
            await group.set_checkpoint_interval(0.05)
            await until(group, lambda found: found.acknowledged[stream].positions == {0: 5 * EVENT_BYTES})


async def test_without_checkpoints_data_up_to_stored_positions_is_released(server: Server, stream: str) -> None:
    async with Client(server.uri, FAST) as client:
        await write(client, stream)
        make = client.reader_group("audit", [stream], retention="automatic", checkpoint_interval_s=0)
        async with make as group, group.reader("a") as reader:
            for _ in range(5):
                assert await reader.read(20) is not None
            assert await reader.read(0.3) is None
            found = await until(
                group, lambda found: found.acknowledged[stream] is not None
                and found.acknowledged[stream].positions == {0: 5 * EVENT_BYTES},
            )  # fmt: skip
            assert (found.checkpoint_interval_s, found.checkpoint) == (0.0, {})


async def test_fields_for_java_readers_are_read_and_preserved(server: Server, stream: str) -> None:
    """A group that another client registered keeps its settings when its streams change; "none" is none."""
    async with Client(server.uri, FAST) as client:
        await write(client, stream)
        other = f"{stream}-2"
        await client.create_stream(other)
        scope, _, _ = stream.partition("/")
        made = RegisteredGroup(str(uuid.uuid4()), 0, {stream: {}}, GroupRetention.NONE, {}, -1, 7, 2000)
        await client._controller_client.create_reader_group(scope, "java", made)
        async with client.reader_group("java", scope=scope) as group:
            assert (await group.describe()).checkpoint_interval_s == 0.0
            await group.add_streams([other])
            found = await client._controller_client.reader_group(scope, "java")
            assert (found.checkpoint_interval_ms, found.checkpoints_open_max, found.refresh_ms) == (-1, 7, 2000)
            await group.set_checkpoint_interval(1.5)
            found = await client._controller_client.reader_group(scope, "java")
            assert (found.checkpoint_interval_ms, found.checkpoints_open_max, found.refresh_ms) == (1500, 7, 2000)
            assert (await group.describe()).checkpoint_interval_s == 1.5
        default = await client.reader_group("own", [stream])
        registered = await client._controller_client.reader_group(scope, default.name)
        assert registered.checkpoint_interval_ms == 50
    assert ClientSettings().reader_group_checkpoint_interval_s == 30.0


@pytest.mark.parametrize("interval_s", [-1.0, 0.0001, 1e10, float("nan")])
async def test_an_invalid_interval_is_refused_before_any_change(server: Server, stream: str, interval_s: float) -> None:
    async with Client(server.uri, FAST) as client:
        await write(client, stream)
        scope, _, _ = stream.partition("/")
        with pytest.raises(InvalidArgumentError, match="checkpoint_interval_s"):
            await client.reader_group("audit", [stream], checkpoint_interval_s=interval_s)
        assert [name async for name in client.reader_groups(scope)] == []
