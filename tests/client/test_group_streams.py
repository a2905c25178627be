"""What a group reads: changes of its streams while readers run, patterns, ends, and starts at a time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import grpc
import grpc.aio
import pytest

from penstock.client.client import Client
from penstock.client.controller.reader_group_calls import Publication
from penstock.client.groups.reader import Reader
from penstock.client.settings import ClientSettings
from penstock.model.errors import InvalidArgumentError, NoSuchReaderGroupError, NoSuchScopeError, NoSuchStreamError
from penstock.model.policies import GroupRetention, Scaling
from penstock.model.stream_cuts import StreamCut
from penstock.server.settings import StandaloneSettings
from penstock.server.standalone import Standalone

if TYPE_CHECKING:
    from client.conftest import Cluster

FAST = {
    "position_interval_s": 0.05, "reader_group_refresh_s": 0.02, "reader_group_stream_refresh_s": 0.05,
    "reader_timeout_s": 0.5,
}  # fmt: skip
A, B, C = "retail/a", "retail/b", "retail/c"


async def fill(client: Client, stream: str, count: int = 10, segments: int = 1, start: int = 0) -> None:
    await client.create_stream(stream, scaling=Scaling.fixed(segments), exist_ok=True)
    async with client.event_writer(stream) as writer:
        for index in range(start, start + count):
            await writer.write(f"{stream} {index}".encode(), routing_key=str(index))


async def drain(reader: Reader, count: int | None = None, idle_s: float = 1.0) -> list[str]:
    """Read `count` events, or until none comes for `idle_s`."""
    found: list[str] = []
    while count is None or len(found) < count:
        event = await reader.read(idle_s if count is None else 20)
        if event is None:
            assert count is None, f"only {len(found)} of {count} came"
            break
        found.append(event.data.decode())
    return sorted(found)


def events(stream: str, *numbers: int) -> list[str]:
    return sorted(f"{stream} {number}" for number in numbers)


async def ends(reader: Reader) -> None:
    async with asyncio.timeout(60):
        assert await reader.read() is None
    assert reader.is_finished


# -- streams that come and go -----------------------------------------------------------------------------------


async def test_streams_are_added_and_removed_while_readers_run(cluster: Cluster) -> None:
    """Both readers follow; a stream added again is read from its beginning, one that stays is read on."""
    async with cluster.client(**FAST) as client:
        await fill(client, A)
        await fill(client, B, 10)
        async with client.reader_group("audit", [A]) as group, group.reader("r") as reader:
            assert await drain(reader, 10) == events(A, *range(10))
            await group.add_streams([B], start="latest")
            await group.add_streams([B])
            await fill(client, B, 5, start=10)
            assert await drain(reader, 5) == events(B, *range(10, 15))
            await group.remove_streams([B, "retail/never-read"])
            await fill(client, B, 5, start=15)
            await fill(client, A, 5, start=10)
            assert await drain(reader) == events(A, *range(10, 15))
            await group.add_streams([B])
            assert await drain(reader, 20) == events(B, *range(20))
            assert (await group.describe()).streams == [A, B]


async def test_event_of_a_removed_stream_is_not_handed_out_any_more(cluster: Cluster) -> None:
    async with cluster.client(**FAST) as client:
        await fill(client, A)
        await fill(client, B)
        async with client.reader_group("audit", [A, B]) as group, group.reader("r") as reader:
            first = (await reader.read(20)).stream  # type: ignore[union-attr]
            other = B if first == A else A
            await group.remove_streams([first])
            async with asyncio.timeout(60):
                while first in [segment.rpartition("/")[0] for segment in reader.segments]:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            assert await drain(reader) == events(other, *range(10))
            with pytest.raises(InvalidArgumentError, match="reads only"):
                await group.remove_streams([other])


async def test_a_change_of_streams_with_a_lost_reply_is_made_once(cluster: Cluster) -> None:
    async with cluster.client(**FAST) as client:
        await fill(client, A)
        await fill(client, B)
        async with client.reader_group("audit", [A]) as group, group.reader("r") as reader:
            losses = [None]

            async def lose() -> None:
                if losses:
                    losses.pop()
                    raise grpc.aio.AioRpcError(  # type: ignore[call-arg]
                        grpc.StatusCode.UNAVAILABLE, grpc.aio.Metadata(), grpc.aio.Metadata(), "lost"
                    )

            cluster.controller.on_group_updated = lose  # type: ignore[method-assign]
            await group.add_streams([B])
            assert not losses
            assert await drain(reader, 20) == events(A, *range(10)) + events(B, *range(10))
            assert cluster.controller.groups["retail", "audit"].generation == (await group._state()).generation == 1


async def test_change_of_streams_that_was_cut_off_is_completed_by_a_reader(cluster: Cluster) -> None:
    """Registered, but not in the record: a reader that runs, or the next to open the group, takes it there."""
    async with cluster.client(**FAST) as client:
        await fill(client, A)
        await fill(client, B)
        await fill(client, C)
        async with client.reader_group("audit", [A]) as group, group.reader("r") as reader:

            async def stop() -> None:
                raise asyncio.CancelledError

            cluster.controller.on_group_updated = stop  # type: ignore[method-assign]
            with pytest.raises(asyncio.CancelledError):
                await group.add_streams([B])
            assert await drain(reader, 20) == events(A, *range(10)) + events(B, *range(10))
            await reader.close()
            with pytest.raises(asyncio.CancelledError):
                await group.add_streams([C])
        async with client.reader_group("audit", scope="retail") as again, again.reader("r") as reader:
            assert (await again._state()).streams == [A, B, C]
            assert await drain(reader) == events(C, *range(10))


async def test_changes_of_streams_at_the_same_time_are_all_made(cluster: Cluster) -> None:
    async with cluster.client(**FAST) as client:
        names = [f"retail/s{number}" for number in range(8)]
        for name in [A, *names]:
            await fill(client, name, 1)
        async with client.reader_group("audit", [A]) as group, group.reader("r") as reader:
            await asyncio.gather(*(group.add_streams([name]) for name in names))
            assert await drain(reader, 9) == sorted(f"{name} 0" for name in [A, *names])
            await asyncio.gather(*(group.remove_streams([name]) for name in names), group.reset("earliest"))
            assert (await group._state()).streams == [A]
            assert await drain(reader) == events(A, 0)


async def test_a_reset_during_a_change_of_streams_resets_all_streams(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cuts were resolved for the previous streams: they are resolved again."""
    async with cluster.client(**FAST) as client:
        await fill(client, A)
        await fill(client, B)
        async with client.reader_group("audit", [A]) as group, group.reader("r") as reader:
            assert await drain(reader, 10) == events(A, *range(10))
            original = client._controller_client.head
            added: list[str] = []

            async def head(scope: str, stream: str) -> StreamCut:
                cut = await original(scope, stream)
                if not added:
                    added.append(B)
                    await group.add_streams([B], start="latest")
                return cut

            monkeypatch.setattr(client._controller_client, "head", head)
            await group.reset("earliest")
            assert await drain(reader, 20) == events(A, *range(10)) + events(B, *range(10))


async def test_group_is_opened_without_its_streams_if_it_exists(cluster: Cluster) -> None:
    async with cluster.client(**FAST) as client:
        await fill(client, A)
        with pytest.raises(NoSuchReaderGroupError, match="give the streams"):
            await client.reader_group("audit", scope="retail")
        await client.reader_group("audit", [A])
        group = await client.reader_group("retail/audit")
        assert (await group._state()).streams == [A]
        await fill(client, B)
        await group.add_streams([B])
        with pytest.raises(InvalidArgumentError, match="add_streams"):
            await client.reader_group("audit", [A])
        await client.reader_group("audit", [A, B])


# -- patterns ---------------------------------------------------------------------------------------------------


async def test_streams_created_later_that_match_the_pattern_are_read_from_their_beginning(cluster: Cluster) -> None:
    """Also with a start at the tail: that is of what there was. Those deleted are left; others continue."""
    async with cluster.client(**FAST) as client:
        await fill(client, "retail/orders-1")
        await fill(client, "retail/returns")
        async with (
            client.reader_group("audit", ["retail/orders-*"], start="latest") as group,
            group.reader("r") as reader,
        ):
            await fill(client, "retail/orders-2")
            assert await drain(reader, 10) == events("retail/orders-2", *range(10))
            await client.seal_stream("retail/orders-1")
            await client.delete_stream("retail/orders-1")
            await fill(client, "retail/orders-3")
            assert await drain(reader, 10) == events("retail/orders-3", *range(10))
            description = await group.describe()
            assert description.patterns == ["retail/orders-*"]
            async with asyncio.timeout(60):
                while (await group._state()).streams != ["retail/orders-2", "retail/orders-3"]:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            assert not reader.is_finished


async def test_stream_that_is_listed_but_not_there_yet_is_found_later(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stream is listed before it is whole, and for a moment after it is gone. No group fails for that."""
    async with cluster.client(**FAST) as client:
        await fill(client, "retail/orders-1")
        await fill(client, "retail/orders-2")
        original = client._controller_client.head
        half_made = {"orders-2"}

        async def head(scope: str, stream: str) -> StreamCut:
            if stream in half_made:
                raise NoSuchStreamError(f"stream {stream} is not completely created")
            return await original(scope, stream)

        monkeypatch.setattr(client._controller_client, "head", head)
        async with client.reader_group("audit", ["retail/orders-*"]) as group, group.reader("r") as reader:
            assert (await group._state()).streams == ["retail/orders-1"]
            await client.reader_group("audit", ["retail/orders-*"])
            assert len(await drain(reader, 10)) == 10
            half_made.clear()
            assert await drain(reader, 10) == events("retail/orders-2", *range(10))


async def test_a_group_whose_pattern_matches_no_stream_waits_for_the_first_one() -> None:
    """It reads nothing, is not finished, and can be opened again; the first stream is read from its beginning."""
    async with served() as client:
        await fill(client, A)
        async with client.reader_group("audit", ["retail/orders-*"]) as group, group.reader("r") as reader:
            await client.reader_group("audit", ["retail/orders-*"])
            assert (await group.describe()).streams == []
            assert await group.unread_bytes() == 0
            assert await reader.read(0.3) is None
            assert not reader.is_finished
            await fill(client, "retail/orders-1")
            assert await drain(reader, 10) == events("retail/orders-1", *range(10))
            # And back to none.
            await client.seal_stream("retail/orders-1")
            await client.delete_stream("retail/orders-1")
            async with asyncio.timeout(60):
                while (await group._state()).streams:  # noqa: ASYNC110  # no event to await
                    await asyncio.sleep(0.01)
            assert not reader.is_finished
            await fill(client, "retail/orders-2")
            assert await drain(reader, 10) == events("retail/orders-2", *range(10))


@pytest.mark.parametrize("retention", ["manual", "automatic"])
@pytest.mark.parametrize("is_changed", [False, True])
async def test_a_waiting_subscriber_group_subscribes_to_the_streams_that_it_finds(
    retention: str, is_changed: bool
) -> None:
    """It cannot before; the record remembers that it is to, also if that was said later."""
    async with served() as client:
        await client.create_scope("retail")
        first = "none" if is_changed else retention
        async with client.reader_group("audit", ["retail/orders-*"], retention=first) as group:
            if is_changed:
                await group.set_retention(retention)
            async with group.reader("r") as reader:
                await fill(client, "retail/orders-1")
                assert len(await drain(reader, 10)) == 10
            registered = await client._controller_client.reader_group("retail", "audit")
            assert registered.retention is GroupRetention.of(retention)  # type: ignore[union-attr]
            assert (await group.describe()).retention is registered.retention  # type: ignore[union-attr]
            assert list(registered.starts) == ["retail/orders-1"]  # type: ignore[union-attr]
            tail = await client.tail("retail/orders-1")
            assert (
                await client._controller_client.publish_cut("retail/audit", registered.id, registered.generation, tail)  # type: ignore[union-attr]
                is Publication.TAKEN
            )


async def test_a_failed_creation_of_a_pattern_group_leaves_nothing(cluster: Cluster) -> None:
    async with cluster.client(**FAST) as client:
        await fill(client, A)
        with pytest.raises(NoSuchScopeError):
            await client.reader_group("audit", ["nowhere/*"])
        with pytest.raises(InvalidArgumentError, match="until"):
            await client.reader_group("audit", ["retail/*"], until="latest")
        assert not cluster.controller.groups


async def test_the_only_pattern_of_a_group_cannot_be_removed(cluster: Cluster) -> None:
    """Nothing would be left to read: that is refused before anything is changed."""
    async with cluster.client(**FAST) as client:
        await fill(client, "retail/orders-1")
        async with client.reader_group("audit", ["retail/orders-*"]) as group:
            with pytest.raises(InvalidArgumentError, match="reads only"):
                await group.remove_streams(["retail/orders-*"])
            assert (await group.describe()).patterns == ["retail/orders-*"]


@pytest.mark.parametrize("is_ended", [False, True])
@pytest.mark.parametrize("is_polled_between", [False, True])
async def test_a_stream_recreated_between_two_polls_is_read_from_its_beginning(
    is_ended: bool, is_polled_between: object
) -> None:
    """Same name, other segments: all its events are read, whether the old stream was read to its end or not.

    The group does not scan while the stream is deleted, unless it has a reader by then.
    """
    again = "retail/orders-1"
    async with served() as client:
        await fill(client, again, 10)
        await fill(client, "retail/orders-2", 3)
        async with client.reader_group("audit", ["retail/orders-*"]) as group:
            async with group.reader("r") as reader:
                assert len(await drain(reader, 13)) == 13
                if is_ended:
                    await client.seal_stream(again)
                    async with asyncio.timeout(60):
                        while again in [segment.rpartition("/")[0] for segment in reader.segments]:
                            assert await reader.read(0.02) is None
                if is_polled_between:
                    await remake(client, again, 10)
                    assert await drain(reader, 5) == events(again, *range(10, 15))
            if not is_polled_between:
                await remake(client, again, 10)
                async with group.reader("r") as reader:
                    assert await drain(reader, 5) == events(again, *range(10, 15))
            await fill(client, "retail/orders-2", 2, start=3)
            async with group.reader("r") as reader:
                assert await drain(reader) == events("retail/orders-2", 3, 4), "another stream lost its place"


async def test_a_stream_truncated_to_the_known_end_is_still_the_same_stream() -> None:
    """All segments that the group knows are gone, though the stream is the same: nothing restarts."""
    stream = "retail/orders-1"
    async with served() as client:
        await fill(client, stream, 10)
        async with client.reader_group("audit", ["retail/orders-*"]) as group:
            async with group.reader("r") as reader:
                assert len(await drain(reader, 4)) == 4
            await client.scale_stream(stream, seal=[0], key_ranges=[(0.0, 0.5), (0.5, 1.0)])
            await fill(client, stream, 10, start=10)
            await client.truncate_stream(await client.tail(stream))
            generation = (await group._state()).generation
            # Opening it lists the streams: the record has segment 0 alone.
            await client.reader_group("audit", ["retail/orders-*"])
            async with group.reader("r") as reader:
                reader.skip_truncated = True
                await fill(client, stream, 5, start=20)
                assert await drain(reader, 5) == events(stream, *range(20, 25))
            assert (await group._state()).generation == generation


async def remake(client: Client, stream: str, start: int) -> None:
    await client.seal_stream(stream)
    await client.delete_stream(stream)
    await fill(client, stream, 5, start=start)


async def test_a_pattern_is_added_and_removed_with_its_streams(cluster: Cluster) -> None:
    async with cluster.client(**FAST) as client:
        for name in (A, "retail/orders-1", "retail/orders-2"):
            await fill(client, name, 3)
        async with client.reader_group("audit", [A]) as group, group.reader("r") as reader:
            assert len(await drain(reader, 3)) == 3
            await group.add_streams(["retail/orders-*"])
            assert len(await drain(reader, 6)) == 6
            with pytest.raises(InvalidArgumentError, match="add it again"):
                await group.remove_streams(["retail/orders-1"])
            await group.remove_streams(["retail/orders-*"])
            await fill(client, "retail/orders-3", 3)
            assert (await group._state()).streams == [A]
            assert await drain(reader) == []


# -- ends -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("segments", [1, 3])
async def test_a_group_ends_at_its_end_cut_when_more_events_follow(cluster: Cluster, segments: int) -> None:
    async with cluster.client(**FAST) as client:
        await fill(client, A, 10, segments)
        async with client.reader_group("audit", [A], until="latest") as group, group.reader("r") as reader:
            await fill(client, A, 10, start=10)
            assert await drain(reader, 10) == events(A, *range(10))
            await ends(reader)
            cut = (await group.stream_cuts())[A]
            assert await group.unread_bytes() == 0
        # It stays so, and what it ended at is where another one begins.
        async with client.reader_group("audit", [A]) as group, group.reader("other") as reader:
            await ends(reader)
            assert (await group.describe()).ends == {A: cut}
            await group.reset("earliest")
            assert await drain(reader, 10) == events(A, *range(10))
            await ends(reader)
        async with client.reader_group("next", [A], start=cut) as group, group.reader("r") as reader:
            assert await drain(reader) == events(A, *range(10, 20))


async def test_group_ends_after_a_split_and_does_not_read_what_follows(cluster: Cluster) -> None:
    async with cluster.client(**FAST) as client:
        await fill(client, A, 10)
        await cluster.controller.scale(A, [0], [(0.0, 0.5), (0.5, 1.0)])
        await fill(client, A, 10, start=10)
        end = await client.tail(A)
        first, second = end.positions
        await fill(client, A, 10, start=20)
        await cluster.controller.scale(A, [first, second], [(0.0, 1.0)])
        await fill(client, A, 10, start=30)
        async with client.reader_group("audit", [A], until=end) as group, group.reader("r") as reader:
            assert await drain(reader, 20) == events(A, *range(20))
            await ends(reader)
            assert (await group.stream_cuts())[A] == end


async def test_group_that_begins_at_its_end_has_nothing_to_read(cluster: Cluster) -> None:
    async with cluster.client(**FAST) as client:
        await fill(client, A, 10)
        async with (
            client.reader_group("audit", [A], start="latest", until="latest") as group,
            group.reader("r") as reader,
        ):
            await ends(reader)


async def test_end_before_the_start_beyond_the_tail_or_inside_an_event_is_refused(cluster: Cluster) -> None:
    async with cluster.client(**FAST) as client:
        await fill(client, A, 10)
        length = (await client.tail(A)).positions[0]
        with pytest.raises(InvalidArgumentError, match="is before the start"):
            await client.reader_group("audit", [A], start="latest", until=StreamCut("retail", "a", {0: 18}))
        with pytest.raises(InvalidArgumentError, match="after the end"):
            await client.reader_group("audit", [A], until=StreamCut("retail", "a", {0: length + 1}))
        assert not cluster.controller.groups
        async with (
            client.reader_group("audit", [A], until=StreamCut("retail", "a", {0: 20})) as group,
            group.reader("r") as reader,
        ):
            assert await drain(reader, 1) == events(A, 0)
            for _ in range(2):
                with pytest.raises(InvalidArgumentError, match="inside the event"):
                    await reader.read(20)


async def test_truncation_beyond_the_end_of_a_group_ends_it(cluster: Cluster) -> None:
    async with cluster.client(**FAST) as client:
        await fill(client, A, 10)
        end = await client.tail(A)
        group = await client.reader_group("audit", [A], until=end)
        await fill(client, A, 10, start=10)
        await client._segment_client.truncate_segment("retail/a/0.#epoch.0", (await client.tail(A)).positions[0])
        async with group.reader("r") as reader:
            reader.skip_truncated = True
            await ends(reader)


# -- times, against a whole server: its segment stores know when ------------------------------------------------


@asynccontextmanager
async def served(**settings: int) -> AsyncIterator[Client]:
    """A client of a server in memory that indexes borders of each few bytes."""
    chosen = StandaloneSettings(is_memory=True, host="127.0.0.1", controller_port=0, segment_store_port=0)
    container = chosen.segment_store.container
    activity = replace(container.activity, interval_s=0.02, index_entry_bytes=settings.pop("index_entry_bytes", 64))
    store = replace(chosen.segment_store, container=replace(container, activity=activity))
    server = Standalone(replace(chosen, segment_store=store))
    await server.start()
    try:
        async with Client(server.controller_uri, ClientSettings(**{**FAST, "position_interval_s": 0.3})) as client:  # type: ignore[arg-type]
            yield client
    finally:
        await server.stop()


async def now_between_writes() -> datetime:
    """Return a time after everything written and before everything to be written."""
    await asyncio.sleep(0.1)
    now = datetime.now(UTC)
    await asyncio.sleep(0.1)
    return now


async def test_a_time_gives_the_cut_between_earlier_and_later_events() -> None:
    """In a segment with an index, in one that got nothing since, and in one with nothing yet."""
    async with served() as client:
        moments = [await now_between_writes()]
        for step in range(5):
            await fill(client, A, 10, start=10 * step)
            moments.append(await now_between_writes())
        for is_end in (False, True):
            cuts = [await client.cut_at_time(A, moment, is_end=is_end) for moment in moments]
            offsets = [cut.positions[0] for cut in cuts]
            assert offsets == sorted(offsets)
            assert is_end or offsets[0] == (await client.head(A)).positions[0]
            assert offsets[-1] == (await client.tail(A)).positions[0]
        for step, moment in enumerate(moments):
            group = await client.reader_group(f"from-{step}", [A], start=moment)
            async with group.reader("r") as reader:
                found = await drain(reader)
            wanted = set(events(A, *range(10 * step, 50)))
            assert wanted <= set(found), "an event of after the time is missing"
            assert len(found) <= len(wanted) + 9, "an event of long before the time came"
            group = await client.reader_group(f"until-{step}", [A], until=moment.isoformat())
            async with group.reader("r") as reader:
                found = await drain(reader)
                await ends(reader)
            wanted = set(events(A, *range(10 * step)))
            assert wanted <= set(found), "an event of before the time is missing"
            assert len(found) <= len(wanted) + 10, "an event of long after the time came"


async def test_reset_to_a_time_goes_back_in_each_stream() -> None:
    async with served() as client:
        await fill(client, A, 5)
        await fill(client, B, 5)
        moment = await now_between_writes()
        await fill(client, B, 5, start=5)
        async with client.reader_group("audit", [A, B]) as group, group.reader("r") as reader:
            assert len(await drain(reader, 15)) == 15
            await group.reset(moment)
            found = await drain(reader)
            assert set(events(B, *range(5, 10))) <= set(found)
            assert not set(events(A, *range(5))) & set(found)


async def test_time_in_a_segment_without_an_index_leads_to_its_beginning_or_its_end() -> None:
    """Too little was written for an entry: rounding is wide, but to the safe side."""
    async with served(index_entry_bytes=1 << 30) as client:
        await fill(client, A, 5)
        moment = await now_between_writes()
        await fill(client, A, 5, start=5)
        assert await client.cut_at_time(A, moment) == await client.head(A)
        assert await client.cut_at_time(A, moment, is_end=True) == await client.tail(A)
        assert await client.cut_at_time(A, await now_between_writes()) == await client.tail(A)


async def test_an_invalid_or_future_time_is_refused() -> None:
    async with served() as client:
        await fill(client, A, 1)
        for bad, text in (
            (datetime.now(), "no time zone"),  # that is the matter
            ("2026-01-01T00:00:00", "no time zone"),
            ("2026-99-99", "not an ISO 8601 time"),
            (datetime.now(UTC) + timedelta(hours=1), "ahead of this machine's clock"),
        ):
            with pytest.raises(InvalidArgumentError, match=text):
                await client.reader_group("audit", [A], start=bad)
        with pytest.raises(NoSuchStreamError):
            await client.cut_at_time("retail/none", "2020-01-01T00:00:00Z")
        assert [name async for name in client.reader_groups("retail")] == []
        head = await client.cut_at_time(A, "2020-01-01T00:00:00Z")
        assert head == await client.head(A)
