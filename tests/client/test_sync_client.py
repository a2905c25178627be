"""The blocking client against a whole Penstock in this process, in memory, over real sockets and gRPC."""

from __future__ import annotations

import io
import math
import threading
import time
from collections.abc import Iterator

import pytest

import penstock
from penstock.client.connecting import connect
from penstock.client.sync.client import Client
from penstock.client.sync.reader_group import ReaderGroup
from penstock.model.errors import InvalidNameError
from penstock.runtime.portal import Portal
from penstock.serializers import JsonSerializer
from penstock.server.settings import StandaloneSettings
from penstock.server.standalone import Standalone


@pytest.fixture(scope="module")
def uri() -> Iterator[str]:
    """A running server's controller."""
    portal = Portal("server")
    settings = StandaloneSettings(is_memory=True, host="127.0.0.1", controller_port=0, segment_store_port=0)
    server = Standalone(settings)
    portal.call(server.start(), 30)
    yield server.controller_uri
    portal.call(server.stop(), 30)
    portal.close()


@pytest.fixture
def client(uri: str) -> Iterator[Client]:
    with penstock.connect(uri) as client:
        yield client


_names = iter(range(1_000_000))


@pytest.fixture
def stream() -> str:
    """A fresh stream name."""
    return f"scope-{next(_names)}/events"


def test_scopes_and_streams_come_and_go(client: Client) -> None:
    client.create_scope("one")
    with pytest.raises(penstock.ScopeExistsError):
        client.create_scope("one")
    client.create_stream("one/a", tags=["x"])
    client.create_stream("two/b", scaling=penstock.Scaling.fixed(3), retention=penstock.Retention.by_time(days=1))
    with pytest.raises(penstock.StreamExistsError) as existing:
        client.create_stream("one/a")
    assert existing.value.__notes__ == ["exist_ok=True accepts the stream as it is"]
    with pytest.raises(penstock.InvalidArgumentError, match=r"scaling=4: give a Scaling, as Scaling\.fixed\(4\)"):
        client.create_stream("one/c", scaling=4)  # type: ignore[arg-type]
    with pytest.raises(penstock.InvalidArgumentError, match=r"retention=7: give a Retention"):
        client.update_stream("one/a", retention=7)  # type: ignore[arg-type]
    client.create_stream("one/a", exist_ok=True)
    assert {"one", "two"} <= set(client.scopes())
    assert list(client.streams("one")) == ["a"]
    assert client.stream_exists("two/b")
    assert not client.stream_exists("two/c")
    config = client.stream_config("two/b")
    assert config.scaling == penstock.Scaling.fixed(3)
    assert config.retention == penstock.Retention.by_time(days=1)
    client.update_stream("one/a", tags=["y"])
    assert client.stream_config("one/a").tags == ("y",)
    assert client.head("two/b") == penstock.StreamCut("two", "b", {0: 0, 1: 0, 2: 0})
    with pytest.raises(penstock.ScopeNotEmptyError):
        client.delete_scope("one")
    with pytest.raises(penstock.StreamNotSealedError):
        client.delete_stream("one/a")
    client.seal_stream("one/a")
    client.delete_stream("one/a")
    with pytest.raises(penstock.NoSuchStreamError):
        client.delete_stream("one/a")
    client.delete_scope("one")
    with pytest.raises(penstock.NoSuchScopeError):
        client.delete_scope("one")
    with pytest.raises(penstock.NoSuchScopeError):
        list(client.streams("one"))
    with pytest.raises(InvalidNameError):
        client.create_stream("no-slash")


def test_written_events_are_read_in_order_per_key(client: Client, stream: str) -> None:
    client.create_stream(stream, scaling=penstock.Scaling.fixed(4))
    with client.event_writer(stream) as writer:
        for index in range(5000):
            ack = writer.write(b"k%d %d" % (index % 7, index), routing_key=f"k{index % 7}")
        ack.wait(10)
        assert ack.is_done
    with client.reader_group("audit", [stream]) as group, group.reader("r1") as reader:
        seen: dict[bytes, list[int]] = {}
        for count, event in enumerate(reader, 1):
            key, number = event.data.split()
            seen.setdefault(key, []).append(int(number))
            assert event.stream == stream
            if count == 5000:
                break
        assert reader.read(0.05) is None
    for key, numbers in seen.items():
        assert numbers == list(range(int(key[1:]), 5000, 7))
    assert group_is_at_tail(client, group, stream)


def group_is_at_tail(client: Client, group: ReaderGroup, stream: str) -> bool:
    return group.stream_cuts() == {stream: client.tail(stream)}


def test_batches_resume_after_a_break(client: Client, stream: str) -> None:
    pytest.importorskip("pyarrow")
    client.create_stream(stream)
    with client.event_writer(stream) as writer:
        writer.write_many([b"%d" % index for index in range(10_000)])
    with client.reader_group("audit", [stream]) as group:
        with group.reader("r1") as reader:
            batch = reader.read_batch(max_bytes=1000, timeout_s=10)
            found = list(batch.events)  # type: ignore[union-attr]
            assert batch.to_arrow().num_rows == len(batch)  # type: ignore[arg-type, union-attr]
        with group.reader("r1") as reader:
            while len(found) < 10_000:
                found += reader.read_batch(timeout_s=10).events  # type: ignore[union-attr]
    assert found == [b"%d" % index for index in range(10_000)]


def test_threads_share_a_writer(client: Client, stream: str) -> None:
    # Four threads, one writer: every event arrives, each thread's in its order.
    client.create_stream(stream, scaling=penstock.Scaling.fixed(2))
    with client.event_writer(stream) as writer:

        def write(name: str) -> None:
            for index in range(2000):
                writer.write(b"%s %d" % (name.encode(), index), routing_key=name)

        threads = [threading.Thread(target=write, args=(f"t{number}",)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    with client.reader_group("audit", [stream]) as group, group.reader() as reader:
        seen: dict[bytes, list[int]] = {}
        while sum(map(len, seen.values())) < 8000:
            for event in reader.read_batch(timeout_s=10).events:  # type: ignore[union-attr]
                name, index = event.split()
                seen.setdefault(name, []).append(int(index))
    assert seen == {b"t%d" % number: list(range(2000)) for number in range(4)}


def test_arrow_arrays_are_written(client: Client, stream: str) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    client.create_stream(stream, scaling=penstock.Scaling.fixed(3))
    events = [b"x" * (index % 50) for index in range(20_000)]
    keys = [f"k{index % 13}" for index in range(20_000)]
    with client.event_writer(stream) as writer:
        writer.write_many(pyarrow.chunked_array([events[:7000], events[7000:]]))
        writer.write_many(pyarrow.array(events), pyarrow.array(keys))
        writer.write_many(pyarrow.array(["ä", "b"]), "one")
    found: list[bytes] = []
    with client.reader_group("audit", [stream]) as group, group.reader() as reader:
        while len(found) < 40_002:
            found += reader.read_batch(timeout_s=10).events  # type: ignore[union-attr]
    assert sorted(found) == sorted([*events, *events, "ä".encode(), b"b"])


def test_large_event_arrives(client: Client, stream: str) -> None:
    client.create_stream(stream)
    large = bytes(range(256)) * (36 * 1024)
    with client.event_writer(stream) as writer:
        writer.write(b"before")
        writer.write(large)
        writer.write(b"after")
    with client.reader_group("audit", [stream]) as group, group.reader() as reader:
        assert [reader.read(20).data for _ in range(3)] == [b"before", large, b"after"]  # type: ignore[union-attr]


def test_a_transaction_is_read_completely_or_not_at_all(client: Client, stream: str) -> None:
    client.create_stream(stream, scaling=penstock.Scaling.fixed(2))
    with client.begin_transaction(stream) as transaction:
        assert transaction.state() == "OPEN"
        transaction.write(b"1", routing_key="a").wait(10)
        transaction.write_many([b"2", b"3"], ["b", "c"])
    lost = client.begin_transaction(stream)

    def fail_inside() -> None:
        with lost:
            lost.write(b"never")
            raise RuntimeError("boom")

    with pytest.raises(RuntimeError, match="boom"):
        fail_inside()
    assert lost.state() in ("ABORTING", "ABORTED")
    with pytest.raises(penstock.TransactionError):
        lost.write(b"more")
    with pytest.raises(penstock.TransactionError):
        lost.commit()
    with client.reader_group("audit", [stream]) as group, group.reader() as reader:
        assert {reader.read(20).data for _ in range(3)} == {b"1", b"2", b"3"}  # type: ignore[union-attr]
        assert reader.read(0.1) is None
    assert transaction.state() == "COMMITTED"


def test_bytes_are_files(client: Client, stream: str) -> None:
    client.create_stream(stream)
    with client.byte_writer(stream) as writer:
        assert writer.write(b"hello ") == 6
        writer.write(b"world")
        assert writer.tell() == 11
        writer.flush()
        with client.byte_reader(stream) as reader:
            assert reader.read(5) == b"hello"
            assert reader.tell() == 5
            reader.seek(-5, io.SEEK_END)
            assert reader.read(100) == b"world"
            reader.seek(1)
            assert io.BufferedReader(reader).read(3) == b"ell"
        writer.truncate_before(6)
    with client.byte_reader(stream) as reader:
        assert reader.tell() == 6
        reader.seek(0)
        with pytest.raises(penstock.SegmentTruncatedError):
            reader.read(1)
    with client.byte_writer(stream) as one, client.byte_writer(stream) as two:
        one.write(b"x")
        one.flush()
        two.write(b"y")
        with pytest.raises(penstock.BadOffsetError):
            two.flush()


def test_byte_stream_needs_one_segment(client: Client, stream: str) -> None:
    client.create_stream(stream, scaling=penstock.Scaling.fixed(2))
    with pytest.raises(penstock.UnsupportedOperationError, match="exactly one"):
        client.byte_writer(stream)


def test_segment_reader_gives_blocks(client: Client, stream: str) -> None:
    client.create_stream(stream)
    with client.event_writer(stream) as writer:
        writer.write_many([b"x" * 100] * 30_000)
    cut = client.tail(stream)
    with client.segment_reader(f"{stream}/0.#epoch.0", 0, cut.positions[0]) as reader:
        assert sum(map(len, reader)) == 108 * 30_000


def test_truncated_stream_starts_at_the_cut(client: Client, stream: str) -> None:
    client.create_stream(stream)
    with client.event_writer(stream) as writer:
        writer.write_many([b"old"] * 10)
        writer.flush()
        cut = client.tail(stream)
        writer.write(b"new")
    client.truncate_stream(cut)
    assert client.head(stream) == cut
    with client.reader_group("audit", [stream]) as group, group.reader() as reader:
        assert reader.read(20).data == b"new"  # type: ignore[union-attr]


def test_sealed_stream_ends_iteration(client: Client, stream: str) -> None:
    client.create_stream(stream, scaling=penstock.Scaling.fixed(2))
    with client.event_writer(stream) as writer:
        writer.write_many([b"x"] * 10, [str(index) for index in range(10)])
    client.seal_stream(stream)
    with client.reader_group("audit", [stream]) as group, group.reader() as reader:
        assert len(list(reader)) == 10
        assert reader.is_finished
    assert group_is_at_tail_of_sealed(client, stream)


def group_is_at_tail_of_sealed(client: Client, stream: str) -> bool:
    cut = client.tail(stream)
    return sum(cut.positions.values()) == 90


def test_a_closed_client_raises_an_error_that_says_so(uri: str) -> None:
    client = connect(uri)
    client.close()
    with pytest.raises(penstock.ClosedError, match="closed"):
        client.create_scope("x")
    client._portal.close()


def test_controller_that_is_not_there_is_reported() -> None:
    """Calls that read and calls that change fail at once: nothing was sent."""
    settings = penstock.ClientSettings(first_contact_timeout_s=0.2)
    with penstock.connect("tcp://127.0.0.1:1", settings) as client:
        for call in (
            lambda: client.stream_exists("a/b"),
            lambda: client.create_scope("a"),
            lambda: client.event_writer("a/b"),
            lambda: client.reader_group("g", ["a/b"]),
            lambda: client.delete_reader_group("a/g"),
        ):
            with pytest.raises(penstock.ControllerUnavailableError, match=r"127\.0\.0\.1:1 within 0\.2 s"):
                call()


@pytest.mark.parametrize(
    "bad", ["localhost", "http://localhost:9090", "tcp://:9090", "tcp://h:0", "tcp://h:99999", "a:1,b"]
)
def test_bad_controller_address_is_refused(bad: str) -> None:
    with pytest.raises(penstock.InvalidArgumentError):
        penstock.connect(bad)
    assert threading.active_count() < 50


def test_every_public_name_exists() -> None:
    for name in penstock.__all__:
        assert getattr(penstock, name) is not None
    assert sorted(penstock.__all__) == penstock.__all__ == dir(penstock)
    with pytest.raises(AttributeError):
        _ = penstock.nonsense
    assert set(penstock.aio.__all__) <= set(dir(penstock.aio))


def test_call_from_the_clients_own_loop_is_refused(client: Client) -> None:
    async def inner() -> None:
        client.create_scope("x")

    with pytest.raises(RuntimeError, match=r"penstock\.aio"):
        client._portal.call(inner())


def test_single_write_is_quick(client: Client, stream: str) -> None:
    # No timer holds a single event back: then no round trip at all would take less than the timer's 20 ms.
    client.create_stream(stream)
    with client.event_writer(stream) as writer:
        end_s = time.monotonic() + 60
        shortest_s = math.inf
        while shortest_s > 0.018 and time.monotonic() < end_s:
            started_s = time.perf_counter()
            writer.write(b"x").wait(60)
            shortest_s = min(shortest_s, time.perf_counter() - started_s)
        assert shortest_s <= 0.018


def test_a_blocking_table_is_used_as_a_dict(client: Client) -> None:
    """Its items by their keys; what is not there is a `KeyError`, and one of Penstock's own."""
    client.create_table("shelf/prices", key_length=16, partition_count=2)
    with client.table("shelf/prices", keys=penstock.TextKeys(), values=JsonSerializer()) as prices:
        prices["apple"] = 120
        prices["pear"] = None
        prices["apple"] = 125
        assert prices["apple"] == 125
        assert prices["pear"] is None
        assert "apple" in prices
        assert "plum" not in prices
        assert sorted(prices) == ["apple", "pear"]
        assert dict(prices.items()) == {"apple": 125, "pear": None}
        del prices["apple"]
        assert "apple" not in prices
        with pytest.raises(KeyError, match="plum"):
            prices["plum"]
        with pytest.raises(penstock.TableKeyMissingError) as missing:
            del prices["apple"]
        assert str(missing.value) == "shelf/prices: key 'apple' does not exist"
        assert prices.pop("pear", 7) is None
        assert prices.pop("pear", 7) == 7
        # An empty stream is not false: `if prices:` does not ask a server.
        assert prices
    with pytest.raises(penstock.ClosedError):
        prices["apple"]


def test_a_watch_of_a_shared_state_follows_other_clients_and_ends_with_an_error(
    client: Client, uri: str, stream: str
) -> None:
    """Changes by another thread arrive as they are made; a close ends the wait with an error."""
    client.create_stream(stream)
    state = client.shared_state(stream, initial=0, states=JsonSerializer())
    changes = state.watch()
    assert next(changes).value == 0
    with penstock.connect(uri) as other:
        theirs = other.shared_state(stream, initial=7, states=JsonSerializer())
        writing = threading.Timer(0.05, theirs.replace, [lambda count: count + 1])
        writing.start()
        assert next(changes) == penstock.StateChange(1, state.revision)
        writing.join()
    closing = threading.Timer(0.05, state.close)
    closing.start()
    with pytest.raises(penstock.ClosedError):
        next(changes)
    closing.join()
