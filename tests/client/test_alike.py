"""Everything that a client makes is opened, shown and closed alike, blocking or not; and shows itself shortly."""

from __future__ import annotations

import asyncio
import gc
import warnings
from collections.abc import Iterator

import pytest

import penstock
import penstock.client.sync
from penstock import aio
from penstock.serializers import BytesSerializer, TextSerializer
from penstock.testing import memory_server

STREAM = "alike/events"
SEGMENT = f"{STREAM}/0.#epoch.0"


@pytest.fixture(scope="module")
def uri() -> Iterator[str]:
    """A server with one stream of one event."""
    with memory_server() as server, penstock.connect(server.uri) as client:
        client.create_stream(STREAM)
        client.create_stream("alike/revisions")
        client.create_stream("alike/state")
        client.create_table("alike/table", key_length=8)
        with client.event_writer(STREAM) as writer:
            writer.write(b"first")
        yield server.uri


#: What opens each thing, of a blocking client and of an async one alike.
OPENERS = {
    "EventWriter": lambda client: client.event_writer(STREAM),
    "ValueWriter": lambda client: client.event_writer(STREAM, serializer=TextSerializer()),
    "Transaction": lambda client: client.begin_transaction(STREAM),
    "ValueTransaction": lambda client: client.begin_transaction(STREAM, serializer=TextSerializer()),
    "ReaderGroup": lambda client: client.reader_group("alike", [STREAM]),
    "ByteWriter": lambda client: client.byte_writer(STREAM),
    "ByteReader": lambda client: client.byte_reader(STREAM),
    "SegmentReader": lambda client: client.segment_reader(SEGMENT, 0),
    "BatchReader": lambda client: client.batch(STREAM),
    "Table": lambda client: client.table("alike/table"),
    "RevisionedStream": lambda client: client.revisioned_stream("alike/revisions"),
    "SharedState": lambda client: client.shared_state("alike/state", initial=b"", states=BytesSerializer()),
}


def test_every_public_class_is_compared() -> None:
    """What is new must be alike too, and be among the public names, blocking or not."""
    # Readers are opened by their group, below; an ack is not opened, and a client opens them all.
    assert OPENERS.keys() | {"Reader", "ValueReader", "Ack", "Client"} == set(penstock.client.sync.__all__)
    assert set(penstock.client.sync.__all__) <= set(penstock.__all__)
    assert set(penstock.client.sync.__all__) <= set(aio.__all__)


async def use(thing: object) -> None:
    """Show that it can be inspected and closed, as often as one likes."""
    assert thing.is_open
    assert not thing.is_closed
    assert type(thing).__name__ in repr(thing)
    assert "open" in repr(thing)
    assert len(repr(thing)) < 200
    await thing.close()
    await thing.close()
    assert thing.is_closed
    assert not thing.is_open
    assert "closed" in repr(thing)


@pytest.mark.parametrize("name", OPENERS)
async def test_everything_is_opened_by_await_and_by_async_with(uri: str, name: str) -> None:
    """`await`, `async with`, and both at once."""
    async with aio.connect(uri) as client:
        await use(await OPENERS[name](client))
        async with OPENERS[name](client) as thing:
            assert type(thing) is getattr(aio, name)
            assert thing.is_open
        assert thing.is_closed
        async with await OPENERS[name](client) as thing:
            await use(thing)


async def test_a_reader_is_opened_as_everything_is(uri: str) -> None:
    """It is a group's."""
    async with aio.connect(uri) as client, client.reader_group("alike-aio", [STREAM]) as group:
        await use(await group.reader("a"))
        async with group.reader("b") as reader:
            await use(reader)
        await use(await group.reader("c", serializer=TextSerializer()))
        async with group.reader("d", serializer=TextSerializer()) as reader:
            await use(reader)
        async with await group.reader("e") as reader:
            assert (await reader.read(20)).data == b"first"


@pytest.mark.parametrize("name", OPENERS)
def test_everything_blocking_is_a_context_manager_and_closes_twice(uri: str, name: str) -> None:
    """Also after its client was closed. What was closed leaves no warning."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with penstock.connect(uri) as client:
            with OPENERS[name](client) as thing:
                assert type(thing) is getattr(penstock, name)
                assert name in repr(thing)
                assert len(repr(thing)) < 200
            thing.close()
            left_open = OPENERS[name](client)
        left_open.close()
        with pytest.raises((penstock.StreamError, penstock.TransactionError, ValueError)):
            # The client itself refuses.
            OPENERS[name](client)
        del thing, left_open
        gc.collect()


def test_a_blocking_reader_closes_twice_and_after_its_client(uri: str) -> None:
    """As everything does."""
    with penstock.connect(uri) as client, client.reader_group("alike-sync", [STREAM]) as group:
        with group.reader("a") as reader:
            assert reader.read(20).data == b"first"
            assert repr(reader) == "<Reader: reader a of group alike/alike-sync, open>"
        reader.close()
        other = group.reader("b")
        values = group.reader("c", serializer=TextSerializer())
        assert repr(values).startswith("<ValueReader: ")
    values.close()
    assert values.is_closed
    other.close()
    other.close()
    group.close()
    client.close()
    assert other.is_closed
    assert repr(client).startswith("<Client: client of tcp://")


def test_an_event_is_shown_shortly() -> None:
    """A notebook prints whatever a cell ends with, and a payload may have megabytes."""
    event = penstock.Event(b"x" * 1_000_000, 4294967297, 8, "a/b", 1_000_016)
    assert len(repr(event)) < 200
    assert "(1000000 bytes), a/b, segment 4294967297 at byte 8>" in repr(event)
    again = penstock.Event(b"{}", 0, 0, "a/b", 10, 2)
    assert repr(again) == "<Event: b'{}', a/b, segment 0 at byte 0, redelivery_count=2>"
    batch = penstock.EventBatch("a/b", 3, [b"one"] * 100_000, list(range(0, 1_100_001, 11)))
    assert repr(batch) == "<EventBatch: 100000 events of a/b, segment 3, bytes [0, 1100000); the first is b'one'>"
    cut = penstock.StreamCut("a", "b", {1: 5, 0: 7})
    assert repr(cut) == "StreamCut(scope='a', stream='b', positions={0: 7, 1: 5})"


def test_both_spellings_of_a_segment_id_are_read() -> None:
    """`segment_id`, as everywhere, and `segment`, as it was."""
    event = penstock.Event(b"", 7, 0, "a/b", 8)
    assert (event.segment_id, event.segment, event[1]) == (7, 7, 7)
    batch = penstock.EventBatch("a/b", 7, [b""], [0, 8])
    assert (batch.segment_id, batch.segment) == (7, 7)


async def test_an_ack_says_whether_its_event_is_durable(uri: str) -> None:
    """Open, durable, failed."""
    async with aio.connect(uri) as client, client.event_writer("alike/events") as writer:
        ack = await writer.write(b"second")
        assert repr(ack) == "<Ack: not durable yet>"
        await ack
        assert repr(ack) == "<Ack: durable>"
        lost = await writer.write(b"third")
        await writer.abandon()
        assert repr(lost).startswith("<Ack: failed: the writer of alike/events was closed before")


async def test_an_unopened_object_raises_an_error_that_says_how_to_open_it(uri: str) -> None:
    """The `repr`, which a notebook shows, names the missing `await`."""
    async with aio.connect(uri) as client:
        opening = client.begin_transaction(STREAM)
        assert repr(opening) == "<Opening: not opened yet; use `await`, or enter it with `async with`>"
        assert "not open yet" in repr(client.event_writer(STREAM))


def test_words_for_the_ends_of_a_stream_are_the_same_everywhere(uri: str) -> None:
    """Of a group's start, in both spellings; those of Spark are in its own tests."""
    with penstock.connect(uri) as client:
        for number, start in enumerate(["earliest", "head", "latest", "tail"]):
            with client.reader_group(f"words-{number}", [STREAM], start=start) as group:
                cut = group.stream_cuts()[STREAM]
                assert cut == (client.head(STREAM) if start in ("earliest", "head") else client.tail(STREAM))


async def test_a_reader_of_a_segment_gives_up_waiting_and_loses_nothing(uri: str) -> None:
    """`read` with a limit, as everything that waits has one."""
    async with aio.connect(uri) as client:
        await client.create_stream("alike/bytes")
        async with client.segment_reader("alike/bytes/0.#epoch.0", 0) as reader:
            with pytest.raises(TimeoutError):
                await reader.read(0.01)
            async with client.byte_writer("alike/bytes") as writer:
                await writer.write(b"late")
                await writer.flush()
            assert await reader.read(20) == b"late"


@pytest.mark.parametrize("name", ["SegmentReader", "ByteReader"])
@pytest.mark.parametrize("closer", ["itself", "client"])
async def test_a_waiter_for_bytes_gets_an_error_on_close(uri: str, name: str, closer: str) -> None:
    """By another task, through the reader or its client; a read after that raises `ClosedError` at once."""
    async with aio.connect(uri) as client:
        stream = f"alike/waits-{name.lower()}-{closer}"
        await client.create_stream(stream)
        segment = f"{stream}/0.#epoch.0"
        open_it = client.byte_reader(stream) if name == "ByteReader" else client.segment_reader(segment, 0)
        reader = await open_it
        waiting = asyncio.create_task(reader.read())
        await asyncio.sleep(0.05)
        async with asyncio.timeout(60):
            await (reader if closer == "itself" else client).close()
            with pytest.raises(penstock.ClosedError):
                await waiting
            with pytest.raises(penstock.ClosedError):
                await reader.read()
            assert reader.is_closed
