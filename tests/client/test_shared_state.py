"""Revisioned streams and shared state: conditions, lost replies, late copies, compaction, and the bytes in between."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from penstock.client.client import Client
from penstock.client.state.revisioned_stream import Revision, RevisionedStream
from penstock.client.state.shared_state import SharedState
from penstock.client.state.state_entries import StateEntry, StateEntrySerializer
from penstock.client.state.state_watch import StateChange
from penstock.model.errors import (
    ClosedError,
    ConnectionLostError,
    InvalidArgumentError,
    MetadataConflictError,
    NoSuchStreamError,
    OutcomeUnknownError,
    SegmentTruncatedError,
    SerializationError,
    StreamError,
    UnsupportedOperationError,
)
from penstock.model.policies import Scaling
from penstock.model.segments import MARK_ATTRIBUTE
from penstock.serializers import JsonSerializer, TextSerializer
from support.containers import until

if TYPE_CHECKING:
    from client.conftest import Cluster

STREAM = "retail/state"
SEGMENT = "retail/state/0.#epoch.0"


async def revisioned(client: Client) -> RevisionedStream[Any]:
    await client.create_stream(STREAM, exist_ok=True)
    return await client.revisioned_stream(STREAM, serializer=TextSerializer())


async def counters(client: Client, **options: object) -> SharedState[Any, Any]:
    await client.create_stream(STREAM, exist_ok=True)
    return await client.shared_state(
        STREAM,
        initial={},
        states=JsonSerializer(),
        updates=JsonSerializer(),
        apply=lambda state, update: {**state, update[0]: state.get(update[0], 0) + update[1]},
        **options,
    )


async def hang(*arguments: str | int, **options: bool) -> None:
    await asyncio.Event().wait()


async def values_after(stream: RevisionedStream[Any], revision: Revision) -> list[str]:
    return [value async for _, value in stream.read(revision)]


# -- revisioned streams -----------------------------------------------------------------------------------------


async def test_entries_are_written_on_condition_of_the_latest_revision(cluster: Cluster) -> None:
    async with cluster.client() as client, await revisioned(client) as stream:
        start = await stream.latest()
        assert start == await stream.oldest() == Revision(SEGMENT, 0)
        first = await stream.write_if(start, "one")
        assert first == Revision(SEGMENT, 8 + 3)
        assert await stream.write_if(start, "lost") is None
        await stream.write("two")
        assert [entry async for entry in stream.read(start)] == [(first, "one"), (await stream.latest(), "two")]
        assert await values_after(stream, first) == ["two"]
        assert await stream.write_if(await stream.latest(), "three") is not None
        await stream.truncate(first)
        await stream.truncate(start)
        assert await stream.oldest() == first
        with pytest.raises(SegmentTruncatedError):
            await values_after(stream, start)
        with pytest.raises(InvalidArgumentError, match="after the end"):
            await values_after(stream, Revision(SEGMENT, 1000))
        with pytest.raises(InvalidArgumentError, match="after the end"):
            await stream.truncate(Revision(SEGMENT, 1000))
        with pytest.raises(InvalidArgumentError, match="does not belong to"):
            await stream.write_if(Revision("retail/other/0.#epoch.0", 0), "")


async def test_a_mark_is_compared_and_set(cluster: Cluster) -> None:
    async with cluster.client() as client, await revisioned(client) as stream:
        assert await stream.mark() is None
        one, two = Revision(SEGMENT, 0), Revision(SEGMENT, 11)
        assert await stream.set_mark(None, one)
        assert not await stream.set_mark(None, two)
        assert await stream.set_mark(one, two)
        assert await stream.mark() == two
        assert await cluster.store.segments.get_attribute(SEGMENT, MARK_ATTRIBUTE) == 11
        assert await stream.set_mark(two, None)
        assert await stream.mark() is None


def test_a_revision_is_written_as_in_java() -> None:
    revision = Revision(SEGMENT, 11, 2)
    assert str(revision) == "retail/state/0.#epoch.0:11:2"
    assert Revision.parse(str(revision)) == revision
    assert Revision(SEGMENT, 11, 1) < revision < Revision(SEGMENT, 12)
    for text in ("", "a:b", "a:1", "a:1:x", "a:-1:0", ":1:1"):
        with pytest.raises(InvalidArgumentError, match="not a revision"):
            Revision.parse(text)


@pytest.mark.parametrize("fault", ["drop_before_append", "drop_after_append"])
@pytest.mark.parametrize("is_conditional", [True, False])
async def test_an_append_is_stored_once_though_its_reply_is_lost(
    cluster: Cluster, fault: str, is_conditional: bool
) -> None:
    """Another client writes the very same bytes meanwhile, so that bytes do not tell whose they are."""
    async with cluster.client() as client, await revisioned(client) as stream:
        latest = await stream.latest()
        cluster.store.faults[fault] = 1
        if is_conditional:
            assert await stream.write_if(latest, "same") == Revision(SEGMENT, 12)
        else:
            await stream.write("same")
        assert await values_after(stream, latest) == ["same"]


async def test_a_refusal_after_a_lost_reply_is_a_refusal_if_another_was_first(cluster: Cluster) -> None:
    """The reply is lost before anything is stored; then another client stores the same bytes on the same condition."""
    async with cluster.client() as client, cluster.client() as other:
        mine, theirs = await revisioned(client), await revisioned(other)
        latest = await mine.latest()
        cluster.store.gate.clear()
        cluster.store.faults["drop_before_append"] = 1
        writing = asyncio.create_task(mine.write_if(latest, "same"))
        await asyncio.sleep(0.05)
        await cluster.store.segments.append(SEGMENT, b"\0" * 7 + b"\4same")
        cluster.store.gate.set()
        assert await writing is None
        assert await theirs.write_if(latest, "same") is None
        assert await values_after(mine, latest) == ["same"]


async def test_a_cancelled_write_is_never_stored_after_the_next(cluster: Cluster) -> None:
    async with cluster.client() as client, await revisioned(client) as stream:
        latest = await stream.latest()
        await stream.write("zero")
        cluster.store.gate.clear()
        writing = asyncio.create_task(stream.write("cancelled"))
        await asyncio.sleep(0.05)
        writing.cancel()
        await asyncio.wait([writing])
        cluster.store.gate.set()
        await stream.write("next")
        values = await values_after(stream, latest)
        assert values in (["zero", "cancelled", "next"], ["zero", "next"])
        assert values[-1] == "next"


async def test_an_unanswered_request_has_an_unknown_outcome_at_its_deadline(cluster: Cluster) -> None:
    async with cluster.client(retry_time_max_s=0.2) as client, await revisioned(client) as stream:
        cluster.store.faults["drop_before_append"] = 10_000
        with pytest.raises(OutcomeUnknownError):
            await stream.write("one")
        cluster.store.faults.clear()
        await stream.write("two")


async def test_a_stream_that_is_not_revisioned_is_refused(cluster: Cluster) -> None:
    async with cluster.client() as client:
        with pytest.raises(NoSuchStreamError):
            await client.revisioned_stream("retail/none")
        await client.create_stream(STREAM, scaling=Scaling.fixed(2))
        with pytest.raises(UnsupportedOperationError, match="a revisioned stream needs exactly one"):
            await client.revisioned_stream(STREAM)


async def test_a_closed_stream_refuses(cluster: Cluster) -> None:
    async with cluster.client() as client:
        stream = await revisioned(client)
        latest = await stream.latest()
        await stream.close()
        for call in (stream.latest(), stream.write(""), stream.write_if(latest, ""), stream.mark(), stream.oldest()):
            with pytest.raises(ClosedError):
                await call


# -- the bytes --------------------------------------------------------------------------------------------------


def test_entries_have_javas_bytes() -> None:
    """As its `UpdateOrInitSerializer` writes them."""
    entries = StateEntrySerializer()
    assert entries.serialize(StateEntry(b"ab")) == b"\0\0\0\1ab"
    two = StateEntry(None, (b"a", b"", b"bc"))
    assert entries.serialize(two) == b"\0\0\0\2\0\0\0\1a\0\0\0\0\0\0\0\2bc"
    for entry in (StateEntry(b""), StateEntry(b"ab"), StateEntry(None), two):
        assert entries.deserialize(entries.serialize(entry)) == entry


@pytest.mark.parametrize(
    "data", [b"", b"\0\0\1", b"\0\0\0\3", b"\0\0\0\2\0\0\0\5ab", b"\0\0\0\2\0\0", b"\0\0\0\2\xff\xff\xff\xff"]
)
def test_bytes_that_are_no_entry_are_refused(data: bytes) -> None:
    with pytest.raises(SerializationError):
        StateEntrySerializer().deserialize(data)


# -- shared state -----------------------------------------------------------------------------------------------


async def test_clients_that_begin_at_the_same_time_agree_on_the_initial_state(cluster: Cluster) -> None:
    async with cluster.client() as client:
        await client.create_stream(STREAM)
        openings = [client.shared_state(STREAM, initial=[number], states=JsonSerializer()) for number in range(5)]
        opened = await asyncio.gather(*(opening.__aenter__() for opening in openings))
        assert len({str(state.value) for state in opened}) == 1
        assert len({state.revision for state in opened}) == 1


async def test_updates_of_several_clients_are_each_made_once_in_one_order(cluster: Cluster) -> None:
    async with cluster.client() as client, cluster.client() as other:
        states = [await counters(client), await counters(other), await counters(other)]
        seen = []

        async def count(state: SharedState[Any, Any]) -> None:
            for _ in range(20):
                values: list[int] = []

                def make(value: dict[str, int], values: list[int] = values) -> list[list[str | int]]:
                    values.append(value.get("all", 0))
                    return [["all", 1], ["twice", 2]]

                await state.update(make)
                seen.append(values[-1])

        await asyncio.gather(*map(count, states))
        assert sorted(seen) == list(range(60))
        for state in states:
            assert await state.fetch() == {"all": 60, "twice": 120}
        assert len({state.revision for state in states}) == 1


async def test_lost_replies_do_not_count_twice(cluster: Cluster) -> None:
    async with cluster.client() as client, await counters(client) as state:
        for fault in ("drop_after_append", "drop_before_append") * 3:
            cluster.store.faults[fault] = 1
            await state.update(lambda value: [["all", 1]])
            cluster.store.faults[fault] = 1
            await state.post(["all", 1])
        assert await state.fetch() == {"all": 12}


async def test_a_fetch_ends_in_its_time_though_a_read_is_not_answered(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Read-ahead has no part in the deadline of the waiting call: such a call took as long as the store was away."""
    async with cluster.client(retry_time_max_s=0.2) as client, cluster.client() as other:
        state, theirs = await counters(client), await counters(other)
        await theirs.update(lambda _: [["a", 1]])
        with monkeypatch.context() as patch:
            patch.setattr(cluster.store.segments, "read", hang)
            async with asyncio.timeout(60):
                with pytest.raises(OutcomeUnknownError, match="for fetch of shared state retail/state"):
                    await state.fetch()
        assert await state.fetch() == {"a": 1}


async def test_a_call_waits_for_its_turn_in_its_time(cluster: Cluster) -> None:
    """Behind others that get no answer each waited for all before it, one limit after the other. Nothing was done."""
    async with cluster.client(retry_time_max_s=0.1) as client, await counters(client) as state:
        stream = state._stream
        for turn, calls in (
            (state._turn, (state.fetch(), state.update(lambda _: [["a", 1]]), state.replace(lambda _: {"b": 1}))),
            (stream._appender._turn, (state.post(["a", 1]), stream.write(StateEntry(b"{}")))),
        ):
            async with turn, asyncio.timeout(60):
                for call in calls:
                    with pytest.raises(StreamError, match="not begun"):
                        await call
        assert await state.fetch() == {}


async def test_an_empty_or_failed_update_writes_nothing(cluster: Cluster) -> None:
    async with cluster.client() as client, await counters(client) as state:
        revision = state.revision
        assert await state.update(lambda value: []) == {}
        with pytest.raises(KeyError):
            await state.update(lambda value: [["all", value["missing"]]])
        with pytest.raises(TypeError):
            await state.update(lambda value: [["all", "no number"]])
        with pytest.raises(InvalidArgumentError, match="no update"):
            await state.post()
        assert await state.fetch() == {}
        assert state.revision == revision


async def test_an_update_without_change_is_decided_on_the_newest_state(cluster: Cluster) -> None:
    """A copy that is behind said that there was nothing to sell."""
    async with cluster.client() as client:
        state = await counters(client)
        await state.post(["apple", 10])
        assert await state.update(lambda levels: [["apple", -3]] if levels.get("apple", 0) >= 3 else []) == {"apple": 7}


async def test_whole_states_are_replaced_compared_and_set(cluster: Cluster) -> None:
    async with cluster.client() as client:
        await client.create_stream(STREAM)
        mine = await client.shared_state(STREAM, initial={"n": 0}, states=JsonSerializer())  # type: ignore[misc]
        theirs = await client.shared_state(STREAM, initial={"n": 99}, states=JsonSerializer())  # type: ignore[misc]
        assert theirs.value == {"n": 0}
        assert await mine.replace(lambda state: {"n": state["n"] + 1}) == {"n": 1}
        assert await theirs.replace(lambda state: {"n": state["n"] + 1}) == {"n": 2}
        revision = mine.revision
        assert not await mine.compare_and_set(revision, {"n": 50})
        assert mine.value == {"n": 2}
        assert await mine.compare_and_set(mine.revision, {"n": 50})
        assert await theirs.fetch() == {"n": 50}
        with pytest.raises(InvalidArgumentError, match="without updates"):
            await mine.post(["n", 1])


async def test_compaction_lets_new_clients_start_at_the_whole_state_and_truncates_before_the_last_one(
    cluster: Cluster,
) -> None:
    async with cluster.client() as client:
        state, idle = await counters(client), await counters(client)
        for _ in range(5):
            await state.update(lambda value: [["all", 1]])
        first = state.revision.offset
        await state.compact()
        assert await cluster.store.segments.get_attribute(SEGMENT, MARK_ATTRIBUTE) == first
        assert (await counters(client)).value == {"all": 5}
        assert (await cluster.store.segments.segment_info(SEGMENT)).start_offset == 0
        await state.post(["all", 1])
        await state.compact()
        assert (await cluster.store.segments.segment_info(SEGMENT)).start_offset == first
        # One that has seen nothing of it, and cannot read what it would read next.
        assert await idle.fetch() == {"all": 6}
        assert await idle.update(lambda value: [["all", 1]]) == {"all": 7}
        assert await state.fetch() == {"all": 7}


async def test_an_update_that_always_loses_is_given_up(cluster: Cluster) -> None:
    async with cluster.client(shared_state_update_count_max=3) as client:
        state, other = await counters(client), await counters(client)
        append = state._stream._appender.append_event

        async def lose(event: bytes, expected_offset: int | None = None) -> bool:
            await other.post(["other", 1])
            return await append(event, expected_offset)

        state._stream._appender.append_event = lose  # type: ignore[method-assign]
        with pytest.raises(MetadataConflictError, match="3 attempts"):
            await state.update(lambda value: [["all", 1]])
        assert await other.fetch() == {"other": 3}


async def test_a_stream_that_holds_something_else_is_refused(cluster: Cluster) -> None:
    async with cluster.client() as client:
        stream = await client.create_stream(STREAM)  # type: ignore[func-returns-value]
        stream = await client.revisioned_stream(STREAM, serializer=StateEntrySerializer())
        await stream.write(StateEntry(None, (b"1",)))
        with pytest.raises(StreamError, match="no state before them"):
            await counters(client)
        async with client.event_writer(STREAM) as writer:
            await writer.write(b"\0\0\0\7")
        with pytest.raises((SerializationError, StreamError)):
            await counters(client)


async def test_a_closed_state_refuses_and_is_closed_with_its_client(cluster: Cluster) -> None:
    async with cluster.client() as client:
        state = await counters(client)
        await state.close()
        for call in (state.fetch(), state.update(lambda value: []), state.post(["a", 1]), state.compact()):
            with pytest.raises(ClosedError):
                await call
        other = await counters(client)
    assert other.is_closed
    assert other.value == {}


# -- watches ----------------------------------------------------------------------------------------------------


async def test_a_watch_yields_the_current_state_and_each_later_one(cluster: Cluster) -> None:
    """Written by others, by this client, and by another watch's owner; `value` follows."""
    async with cluster.client() as client, cluster.client() as other:
        state, theirs = await counters(client), await counters(other)
        changes = state.watch()
        assert (await anext(changes)) == StateChange({}, state.revision)
        coming: asyncio.Task[Any] = asyncio.create_task(anext(changes))  # type: ignore[arg-type]
        await theirs.update(lambda _: [["a", 1]])
        assert (await coming).value == {"a": 1} == state.value
        await state.update(lambda _: [["b", 1], ["b", 1]])
        assert (await anext(changes)) == StateChange({"a": 1, "b": 2}, state.revision)
        await theirs.post(["a", 1])
        assert (await anext(changes)).value == {"a": 2, "b": 2}


async def test_a_watch_from_now_yields_only_later_states(cluster: Cluster) -> None:
    async with cluster.client() as client, await counters(client) as state:
        await state.update(lambda _: [["a", 1]])
        before = cluster.store.received.count("ReadSegment")
        coming: asyncio.Task[Any] = asyncio.create_task(anext(state.watch(from_now=True)))  # type: ignore[arg-type]
        await until(lambda: cluster.store.received.count("ReadSegment") > before)  # It has read, and waits.
        assert not coming.done()
        await state.update(lambda _: [["a", 1]])
        assert (await coming).value == {"a": 2}


async def test_a_slow_watch_gets_only_the_newest_state(cluster: Cluster) -> None:
    async with cluster.client() as client, cluster.client() as other:
        state, theirs = await counters(client), await counters(other)
        changes = state.watch()
        await anext(changes)
        for _ in range(100):
            await theirs.post(["a", 1])
        assert (await anext(changes)).value == {"a": 100}
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await anext(changes)


async def test_a_slow_watch_does_not_depend_on_a_fast_one(cluster: Cluster) -> None:
    """All watches of a state wait with one request, for more than the one ahead has seen."""
    async with cluster.client() as client, cluster.client() as other:
        state, theirs = await counters(client), await counters(other)
        first, second = state.watch(), state.watch()
        await anext(first)
        await anext(second)
        ahead: asyncio.Task[Any] = asyncio.create_task(anext(first))  # type: ignore[arg-type]
        await theirs.post(["a", 1])
        await ahead
        ahead = asyncio.create_task(anext(first))  # type: ignore[arg-type]
        await asyncio.sleep(0.05)
        async with asyncio.timeout(60):
            assert (await anext(second)).value == {"a": 1}
        assert not ahead.done()
        await theirs.post(["a", 1])
        assert (await ahead).value == {"a": 2}
        assert cluster.store.received.count("ReadSegment") < 40


async def test_a_cancelled_watch_loses_no_state_and_leaves_one_pending_request(cluster: Cluster) -> None:
    async with cluster.client() as client, cluster.client() as other:
        state, theirs = await counters(client), await counters(other)
        changes = state.watch()
        await anext(changes)
        before = cluster.store.received.count("ReadSegment")
        for _ in range(10):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.01):
                    await anext(changes)
        assert cluster.store.received.count("ReadSegment") == before + 1
        await theirs.post(["a", 1])
        assert (await anext(changes)).value == {"a": 1}


async def test_a_watch_continues_after_an_outage(cluster: Cluster) -> None:
    async with cluster.client(retry_time_max_s=0.1) as client, cluster.client() as other:
        state, theirs = await counters(client), await counters(other)
        changes = state.watch()
        await anext(changes)
        cluster.store.refuses = True
        cluster.store.drop_all()
        with pytest.raises(ConnectionLostError):
            await anext(changes)
        cluster.store.refuses = False
        await theirs.post(["a", 1])
        assert (await anext(changes)).value == {"a": 1}


async def test_a_watch_ends_with_its_stream_and_raises_when_its_state_is_closed(cluster: Cluster) -> None:
    async with cluster.client() as client:
        state = await counters(client)
        changes = state.watch()
        await anext(changes)
        coming: asyncio.Task[Any] = asyncio.create_task(anext(changes))  # type: ignore[arg-type]
        await asyncio.sleep(0.05)
        await state.close()
        with pytest.raises(ClosedError):
            await coming
        with pytest.raises(ClosedError):
            await anext(changes)
        with pytest.raises(ClosedError):
            state.watch()
        state = await counters(client)
        await state.update(lambda _: [["a", 1]])
        changes = state.watch()
        await client.seal_stream(STREAM)
        assert [change.value async for change in changes] == [{"a": 1}]


async def test_a_watch_overtaken_by_a_compaction_yields_the_whole_state(cluster: Cluster) -> None:
    async with cluster.client() as client, cluster.client() as other:
        state, theirs = await counters(client), await counters(other)
        changes = state.watch()
        await anext(changes)
        for _ in range(3):
            await theirs.update(lambda _: [["a", 1]])
            await theirs.compact()
        assert (await anext(changes)).value == {"a": 3}
