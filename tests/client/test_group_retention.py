"""Groups that hold their streams, with a whole server in memory: what they acknowledge, when, and who says it."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

import pytest

from penstock.client.client import Client
from penstock.client.controller.group_overview import StreamOfGroup
from penstock.client.controller.reader_group_calls import Publication, ReaderGroupCalls, RegisteredGroup
from penstock.client.settings import ClientSettings
from penstock.model.errors import (
    InvalidArgumentError,
    NoSuchReaderGroupError,
    NoSuchScopeError,
    StreamError,
    UnsupportedOperationError,
)
from penstock.model.policies import GroupRetention
from penstock.model.stream_cuts import StreamCut
from penstock.testing import memory_server
from penstock_simulation.simulated.zookeeper import Server

FAST = ClientSettings(
    position_interval_s=0.05, reader_group_refresh_s=0.02, reader_group_stream_refresh_s=0.05, reader_timeout_s=0.5,
    reader_group_publish_interval_s=0.05, reader_group_checkpoint_interval_s=0.05,
)  # fmt: skip
#: Publishes when it begins, and not again. What is published is given up after an interval of positions.
SELDOM = ClientSettings(
    position_interval_s=5.0, reader_group_refresh_s=0.02, reader_timeout_s=15.0, reader_group_publish_interval_s=1000.0
)
EVENT_BYTES = 9


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with memory_server() as server:
        yield server


_names = iter(range(1_000_000))


@pytest.fixture
def stream() -> str:
    """A stream in a fresh scope."""
    return f"held-{next(_names)}/orders"


@pytest.fixture
def published(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, StreamCut, Publication]]:
    """What was published: a list that grows, of group, cut and what became of it."""
    found: list[tuple[str, StreamCut, Publication]] = []
    original = ReaderGroupCalls.publish_cut

    async def publish_cut(
        self: ReaderGroupCalls, group: str, group_id: str, generation: int, cut: StreamCut
    ) -> Publication:
        answer = await original(self, group, group_id, generation, cut)
        found.append((group.partition("/")[2], cut, answer))
        return answer

    monkeypatch.setattr(ReaderGroupCalls, "publish_cut", publish_cut)
    return found


async def write(client: Client, stream: str, count: int = 5) -> None:
    await client.create_stream(stream, exist_ok=True)
    async with client.event_writer(stream) as writer:
        for number in range(count):
            await writer.write(b"%d" % (number % 10), routing_key="k")


async def until(condition: object) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110  # no event to await
            await asyncio.sleep(0.02)


def cut_at(stream: str, offset: object) -> StreamCut:
    return StreamCut(*stream.split("/"), {0: offset})


async def subscribes(client: object, group: object, stream: str) -> bool:
    """Say whether a group subscribes, as its controller sees it: it takes a cut at the head, or says it is behind."""
    scope, _, name = group.partition("/")
    registered = await client._controller_client.reader_group(scope, name)
    answer = await client._controller_client.publish_cut(
        group, registered.id, registered.generation, await client.head(stream)
    )
    return answer in (Publication.TAKEN, Publication.REFUSED)


async def test_automatic_group_publishes_each_stored_position_once(
    server: Server, stream: str, published: list[tuple[str, StreamCut, Publication]]
) -> None:
    """The event in hand is not stored as read: the cut lies before it. What has not changed is not said again."""
    async with Client(server.uri, FAST) as client:
        await write(client, stream)
        async with client.reader_group("audit", [stream], retention="automatic") as group, group.reader("r") as reader:
            for _ in range(3):
                await reader.read(20)
            await until(lambda: any(cut == cut_at(stream, 2 * EVENT_BYTES) for _, cut, _ in published))
            assert await reader.read(20) is not None
            assert await reader.read(20) is not None
            assert await reader.read(0.3) is None
            await until(lambda: ("audit", cut_at(stream, 5 * EVENT_BYTES), Publication.TAKEN) in published)
        assert all(answer is Publication.TAKEN for _, _, answer in published)
        cuts = [cut.positions[0] for _, cut, _ in published]
        assert cuts == sorted(set(cuts))
        async with client.reader_group("idle", [stream]) as group, group.reader("r") as reader:
            await reader.store_positions()
            await asyncio.sleep(0.2)
            assert "idle" not in {name for name, _, _ in published}


async def test_a_reset_to_earlier_events_does_not_move_the_published_cut_back(
    server: Server, stream: str, published: list[tuple[str, StreamCut, Publication]]
) -> None:
    async with Client(server.uri, FAST) as client:
        await write(client, stream)
        async with client.reader_group("audit", [stream], retention="automatic") as group, group.reader("r") as reader:
            for _ in range(5):
                await reader.read(20)
            assert await reader.read(0.3) is None
            await until(lambda: ("audit", cut_at(stream, 5 * EVENT_BYTES), Publication.TAKEN) in published)
            await group.reset("earliest")
            await until(lambda: ("audit", cut_at(stream, 0), Publication.REFUSED) in published)


async def test_last_reader_that_leaves_says_where_the_group_is(
    server: Server, stream: str, published: list[tuple[str, StreamCut, Publication]]
) -> None:
    """A job that is shorter than the interval tells it nevertheless; one of several readers leaves it to the others."""
    async with Client(server.uri, SELDOM) as client:
        await write(client, stream)
        async with client.reader_group("audit", [stream], retention="automatic") as group:
            async with group.reader("a") as reader, group.reader("b"):
                for _ in range(5):
                    await reader.read(20)
            # What it says when it begins may come before anything is read, or not at all: it polls now and then.
            cuts = [cut.positions[0] for _, cut, _ in published]
            assert cuts in ([5 * EVENT_BYTES], [0, 5 * EVENT_BYTES])


async def test_when_the_reader_that_publishes_dies_another_one_does(
    server: Server, stream: str, published: list[tuple[str, StreamCut, Publication]]
) -> None:
    async with Client(server.uri, FAST) as client:
        await write(client, stream)
        async with client.reader_group("audit", [stream], retention="automatic") as group:
            dead = await group.reader("a")
            await dead.abandon()
            async with group.reader("b") as reader:
                for _ in range(5):
                    await reader.read(20)
                assert await reader.read(0.3) is None
                await until(lambda: ("audit", cut_at(stream, 5 * EVENT_BYTES), Publication.TAKEN) in published)


async def test_manual_group_publishes_only_acknowledged_positions(
    server: Server, stream: str, published: list[tuple[str, StreamCut, Publication]]
) -> None:
    """Not beyond what is stored as read, not for what it does not read; what lies before is no news, and no error."""
    async with Client(server.uri, FAST) as client:
        await write(client, stream)
        await write(client, stream + "-2")
        async with (
            client.reader_group("audit", [stream], retention="manual") as group,
            group.reader("r", positions="manual") as reader,
        ):
            for _ in range(4):
                await reader.read(20)
            with pytest.raises(InvalidArgumentError, match="is after the stored position"):
                await group.acknowledge(cut_at(stream, 3 * EVENT_BYTES))
            await reader.commit()
            assert await group.acknowledge(cut_at(stream, 3 * EVENT_BYTES))
            assert await group.acknowledge({stream: cut_at(stream, 3 * EVENT_BYTES).to_text()})
            assert not await group.acknowledge(cut_at(stream, EVENT_BYTES))
            with pytest.raises(InvalidArgumentError, match="does not cover every key exactly once"):
                await group.acknowledge(StreamCut(*stream.split("/"), {1 << 32 | 7: 0}))
            with pytest.raises(InvalidArgumentError, match="not held"):
                await group.acknowledge(cut_at(stream + "-2", 0))
            with pytest.raises(InvalidArgumentError, match="cuts="):
                await group.acknowledge({})
        assert [cut.positions[0] for _, cut, _ in published] == [27, 27, 9]
        async with client.reader_group("none", [stream]) as group:
            with pytest.raises(InvalidArgumentError, match="retention 'none'"):
                await group.acknowledge(cut_at(stream, 0))


async def test_retention_of_a_group_changes_with_its_subscription(
    server: Server, stream: str, published: list[tuple[str, StreamCut, Publication]]
) -> None:
    """Each change is one generation, with readers and without; what was acknowledged counts on until it subscribes no
    more."""
    async with Client(server.uri, FAST) as client:
        await write(client, stream)
        name = stream.replace("orders", "audit")

        async def registered() -> object:
            return await client._controller_client.reader_group(*name.split("/"))

        async with client.reader_group(name, [stream]) as group:
            assert not await subscribes(client, name, stream)
            with pytest.raises(InvalidArgumentError, match="'none', 'manual', 'automatic'"):
                await group.set_retention("always")
            await group.set_retention("manual")
            await group.set_retention("manual")
            assert ((await registered()).generation, (await registered()).retention) == (1, GroupRetention.MANUAL)
            async with group.reader("r") as reader:
                for _ in range(4):
                    await reader.read(20)
                await group.checkpoint()
                assert await group.acknowledge(cut_at(stream, 2 * EVENT_BYTES))
                published.clear()
                await group.set_retention("automatic")
                await until(lambda: ("audit", cut_at(stream, 3 * EVENT_BYTES), Publication.TAKEN) in published)
                # What manual mode had acknowledged counts on.
                answer = await client._controller_client.publish_cut(
                    name, (await registered()).id, 2, cut_at(stream, EVENT_BYTES)
                )
                assert answer is Publication.REFUSED
                await group.set_retention("none")
                assert not await subscribes(client, name, stream)
                assert (await group.describe()).retention is GroupRetention.NONE
                published.clear()
                await reader.store_positions()
                await asyncio.sleep(0.2)
            assert published == []
            # Again, it holds all that is there.
            await group.set_retention(GroupRetention.MANUAL)
            assert await group.acknowledge(cut_at(stream, 0))
        await client.delete_reader_group(name)
        answer = await client._controller_client.publish_cut(name, group._record.group_id, 4, cut_at(stream, 0))
        assert answer is Publication.NO_SUBSCRIBER


async def test_groups_of_all_clients_are_reported_with_their_held_bytes(server: Server, stream: str) -> None:
    """One that waits for its first stream reads none. What is only registered, as Java's are, is one of them."""
    scope, _, _ = stream.partition("/")
    async with Client(server.uri, SELDOM) as client:
        await write(client, stream)
        await write(client, stream + "-2")
        async with client.reader_group("held", [stream, stream + "-2"], retention="manual") as group:
            await group.reset("latest")
            assert await group.acknowledge(cut_at(stream, 2 * EVENT_BYTES))
            assert (await group.describe()).acknowledged == {
                stream: cut_at(stream, 2 * EVENT_BYTES), stream + "-2": None,
            }  # fmt: skip
            await group.remove_streams([stream + "-2"])
            await group.add_streams([stream + "-2"])
        async with client.reader_group("waits", [f"{scope}/none-*"], scope=scope, retention="automatic"):
            pass
        async with client.reader_group("none", [stream]) as group:
            assert (await group.describe()).acknowledged == {}
        java = RegisteredGroup(str(uuid.uuid4()), 0, {stream: {}}, GroupRetention.AUTOMATIC)
        await client._controller_client.create_reader_group(scope, "theirs", java)
        found = {one.name: one async for one in client.group_overviews(scope)}
        assert list(found) == [f"{scope}/{each}" for each in ("held", "none", "theirs", "waits")]
        held, none, theirs, waits = found.values()
        assert [one.made_by for one in found.values()] == ["penstock", "penstock", "java", "penstock"]
        assert [one.generation for one in found.values()] == [2, 0, 0, 0]
        assert held.retention is GroupRetention.MANUAL
        assert held.streams[stream].acknowledged == cut_at(stream, 2 * EVENT_BYTES)
        assert 0 <= held.streams[stream].age_s < 3600
        assert held.streams[stream + "-2"].is_subscribed
        assert none.streams == {stream: StreamOfGroup(False, None, 0.0)}
        assert (theirs.streams[stream].is_subscribed, theirs.streams[stream].acknowledged) == (True, None)
        assert waits.streams == {}
        # A stream that is gone keeps nothing.
        await client.seal_stream(stream)
        await client.delete_stream(stream)
        found = {one.name: one async for one in client.group_overviews(scope)}
        assert not found[f"{scope}/theirs"].streams[stream].is_subscribed
        with pytest.raises(NoSuchScopeError):
            [one async for one in client.group_overviews("nowhere")]
        with pytest.raises(NoSuchScopeError):
            [one async for one in client.reader_groups("nowhere")]
        with pytest.raises(NoSuchReaderGroupError):
            await client._controller_client.group_overview(scope, "missing")


async def test_names_of_groups_are_listed_without_the_streams_of_the_scope(
    server: Server, stream: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a call of Penstock's controller; with a controller that does not have it, among the streams."""
    scope, _, _ = stream.partition("/")
    async with Client(server.uri, FAST) as client:
        await write(client, stream)
        for name in ("one", "two"):
            await client.reader_group(name, [stream], scope=scope)
        controller = client._controller_client
        pages: list[str] = []
        listed = controller.stream_pages

        def stream_pages(scope: str, **options: Any) -> AsyncIterator[tuple[str, Sequence[str]]]:
            pages.append(scope)
            return listed(scope, **options)

        monkeypatch.setattr(controller, "stream_pages", stream_pages)
        assert sorted([name async for name in client.reader_groups(scope)]) == ["one", "two"]
        assert pages == []

        async def unsupported(*arguments: object, **options: object) -> None:
            raise UnsupportedOperationError("describeReaderGroups")

        monkeypatch.setattr(controller._stub, "describeReaderGroups", unsupported, raising=False)
        assert sorted([name async for name in client.reader_groups(scope)]) == ["one", "two"]
        assert pages == [scope]


async def test_groups_of_the_rust_client_are_reported_and_tables_are_not_groups(server: Server, stream: str) -> None:
    """What such clients make is a table segment, without a word to the controller; tables have the same names."""
    scope, _, _ = stream.partition("/")
    async with Client(server.uri, FAST) as client:
        await write(client, stream)
        await client.create_scope(scope + "-2")
        await client.create_table(f"{scope}/prices", key_length=16)
        segments = client._open_cluster().segments
        theirs = [f"{scope}/audit", f"{scope}/prices2", f"{scope}-2/other"]
        for name in theirs:
            await segments.create_table(f"{name}_kvtable/0.#epoch.0")
        await segments.create_segment(f"{scope}/no-table_kvtable/0.#epoch.0")
        await client.reader_group("audit", [stream])
        found = [one async for one in client.group_overviews(scope)]
        assert [(one.name, one.made_by) for one in found] == [
            (f"{scope}/audit", "penstock"), (f"{scope}/audit", "rust"), (f"{scope}/prices2", "rust")
        ]  # fmt: skip
        assert [one.name async for one in client.group_overviews(scope + "-2")] == [theirs[2]]
        await segments.delete_table(f"{theirs[1]}_kvtable/0.#epoch.0")
        assert [one.made_by async for one in client.group_overviews(scope)] == ["penstock", "rust"]


async def test_a_finished_group_holds_no_data(server: Server, stream: str) -> None:
    async with Client(server.uri, SELDOM) as client:
        await write(client, stream)
        name = stream.replace("orders", "audit")
        async with client.reader_group(name, [stream], until="latest", retention="automatic") as group:
            await write(client, stream)
            async with group.reader("r") as reader:
                assert len([event async for event in reader]) == 5
            assert (await group.describe()).retention is GroupRetention.NONE
            assert not await subscribes(client, name, stream)


async def test_an_overtaken_change_is_applied_to_the_current_record(
    server: Server, stream: str, published: list[tuple[str, StreamCut, Publication]]
) -> None:
    """The record of the acknowledging client is out of date: the newer one is published first."""
    async with Client(server.uri, FAST) as client:
        await write(client, stream)
        async with client.reader_group("audit", [stream], retention="manual") as group:
            async with group.reader("r") as reader:
                for _ in range(4):
                    await reader.read(20)
                await group.checkpoint()
            registered = await client._controller_client.reader_group(stream.partition("/")[0], "audit")
            # Another client changes the group and dies before it writes the record.
            assert await client._controller_client.update_reader_group(stream.partition("/")[0], "audit", registered)
            assert await group.acknowledge(cut_at(stream, 2 * EVENT_BYTES))
            assert [answer for _, _, answer in published] == [Publication.TAKEN]


async def test_stream_that_was_made_again_is_not_acknowledged_by_its_name(server: Server, stream: str) -> None:
    async with Client(server.uri, FAST) as client:
        await write(client, stream)
        async with client.reader_group("audit", [stream], retention="manual") as group:
            async with group.reader("r") as reader:
                for _ in range(5):
                    await reader.read(20)
            await client.seal_stream(stream)
            await client.delete_stream(stream)
            with pytest.raises(StreamError):
                await group.acknowledge(cut_at(stream, EVENT_BYTES))
            await write(client, stream)
            with pytest.raises((StreamError, InvalidArgumentError)):
                await group.acknowledge(await client.head(stream))
