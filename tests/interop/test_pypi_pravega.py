"""The PyPI `pravega` client 0.3.8 (module `pravega_client`, built on the Rust client), unmodified, against a real
server.

Each test uses a `penstock standalone` of its own through that client's public functions only.
"""

from __future__ import annotations

import asyncio
import collections
import collections.abc
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import penstock
from penstock.model.names import segment_name, transaction_segment_name
from support.killed_cluster import VARIABLE
from support.standalone_process import StandaloneProcess

if TYPE_CHECKING:
    import pravega_client
else:
    pravega_client = pytest.importorskip("pravega_client", reason="PyPI pravega exists for Python 3.11 and older only")

pytestmark = [pytest.mark.interop, pytest.mark.e2e]

EVENT_COUNT = 100_000
KEY_COUNT = 64
MIB = 1024 * 1024
#: Groups that begin, one after the other, in a cluster that is killed all the time.
CLUSTER_READS_MAX = 8
WORKER = Path(__file__).with_name("pypi_worker.py")


@pytest.fixture
def manager(server: StandaloneProcess) -> pravega_client.StreamManager:
    """Connect the client under test and make a scope."""
    made = pravega_client.StreamManager(server.uri)
    assert made.create_scope("shop") is True
    return made


async def read_events(
    group: pravega_client.StreamReaderGroup,
    reader_names: list[str],
    count: int,
    *,
    idle_s: float = 30.0,
    is_position_stored: bool = False,
) -> list[bytes]:
    """Read `count` events through the readers at the same time; return them in the order in which they came.

    With `is_position_stored` the readers leave the group, which stores how far they were. That takes up to 30 s: the
    client waits for its read at the tail first.
    """
    events: list[bytes] = []
    readers: list[pravega_client.StreamReader] = []

    async def read(name: str) -> None:
        reader = group.create_reader(name)
        readers.append(reader)
        while len(events) < count:
            pending = asyncio.ensure_future(reader.get_segment_slice_async())
            while not pending.done() and len(events) < count:
                done, _ = await asyncio.wait((pending,), timeout=0.2)
                if done:
                    break
            if not pending.done():
                break
            piece = pending.result()
            events.extend(event.data() for event in piece)
            reader.release_segment(piece)

    try:
        async with asyncio.timeout(idle_s + count / 2000):
            await asyncio.gather(*map(read, reader_names))
    except TimeoutError:
        pytest.fail(f"only {len(events)} of {count} events came; the last: {[event[:40] for event in events[-3:]]}")
    if is_position_stored:
        for reader in readers:
            reader.reader_offline()
    return events


def assert_each_key_in_order(events: list[bytes], count: int) -> None:
    """Events are ``key:number``; the numbers of all keys together are 0 to count - 1, growing within each key."""
    numbers: dict[bytes, list[int]] = collections.defaultdict(list)
    for event in events:
        key, _, number = event.partition(b":")
        numbers[key].append(int(number))
    assert all(seen == sorted(seen) for seen in numbers.values())
    assert sorted(number for seen in numbers.values() for number in seen) == list(range(count))


def write_keyed(writer: pravega_client.StreamWriter, first: int, last: int) -> None:
    """Write the events [first, last) and wait until they are acknowledged."""
    for number in range(first, last):
        writer.write_event(f"key{number % KEY_COUNT}:{number}", f"key{number % KEY_COUNT}")
    writer.flush()


def test_scopes_and_streams_live_and_die(server: StandaloneProcess) -> None:
    """Scope and stream life cycle, with each answer that the client can tell apart."""
    manager = pravega_client.StreamManager(server.uri)
    assert manager.list_scope() == ["_system"]
    assert manager.create_scope("shop") is True
    assert manager.create_scope("shop") is False
    with pytest.raises(ValueError, match=r"(?i)invalid"):
        manager.create_scope("not/a/name")
    assert sorted(manager.list_scope()) == ["_system", "shop"]

    assert manager.create_stream("shop", "orders", 2) is True
    assert manager.create_stream("shop", "orders", 2) is False
    with pytest.raises(ValueError, match=r"(?i)scope"):
        manager.create_stream("nowhere", "orders", 1)
    assert sorted(manager.list_stream("shop")) == ["_MARKorders", "orders"]
    assert manager.list_stream("nowhere") == []
    with pytest.raises(ValueError, match=r"(?i)not empty"):
        manager.delete_scope("shop")

    assert manager.seal_stream("shop", "orders") is True
    assert manager.delete_stream("shop", "orders") is True
    assert manager.delete_stream("shop", "orders") is False
    assert manager.list_stream("shop") == []
    assert manager.delete_scope("shop") is True
    assert manager.delete_scope("shop") is False
    assert manager.list_scope() == ["_system"]


def test_streams_are_listed_page_by_page(manager: pravega_client.StreamManager) -> None:
    """More streams than the client asks for at once are all listed, once each."""
    names = [f"stream{index:03}" for index in range(30)]
    for name in names:
        assert manager.create_stream("shop", name, 1)
    assert sorted(manager.list_stream("shop")) == sorted([*names, *(f"_MARK{name}" for name in names)])


def test_tags_are_kept_and_replaced(manager: pravega_client.StreamManager) -> None:
    """Tags and policies of a stream: set at creation, read back, replaced by an update."""
    fixed = pravega_client.StreamScalingPolicy.fixed_scaling_policy(2)
    assert manager.create_stream_with_policy(
        "shop", "orders", fixed, pravega_client.StreamRetentionPolicy.none(), ["red", "blue"]
    )
    assert sorted(manager.get_stream_tags("shop", "orders")) == ["blue", "red"]
    kept = pravega_client.StreamRetentionPolicy.by_size(10 * MIB)
    assert manager.update_stream_with_policy("shop", "orders", fixed, kept, ["green"])
    assert manager.get_stream_tags("shop", "orders") == ["green"]
    assert manager.create_stream("shop", "plain", 1)
    assert not manager.get_stream_tags("shop", "plain")
    with pytest.raises(ValueError, match=r"(?i)not.found|no such|does not exist"):
        manager.get_stream_tags("shop", "missing")


def worker(*arguments: str) -> subprocess.Popen[str]:
    """Start `pypi_worker.py`."""
    return subprocess.Popen(
        [sys.executable, str(WORKER), *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def await_begun(process: subprocess.Popen[str]) -> None:
    """Wait until the worker is well under way."""
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"


def finish(process: subprocess.Popen[str], timeout_s: float = 300.0) -> list[bytes]:
    """Wait for the worker's end and return the lines that it printed before `done`."""
    try:
        output, _ = process.communicate(timeout=timeout_s)
    finally:
        process.kill()
    *lines, last = output.splitlines()
    assert (process.returncode, last) == (0, "done")
    return [line.encode() for line in lines if line != "begun"]


def read_by_two(server: StandaloneProcess, count: int, meanwhile: Callable[[], object] = lambda: None) -> list[bytes]:
    """Return the events that two readers of one group get, in the order in which they came.

    In a cluster that is killed all the time another group begins again if they fail: the client keeps the address of
    the store that has the group's table, and its readers end when the table's container moves.
    """
    attempts = CLUSTER_READS_MAX if VARIABLE in os.environ else 1
    for attempt in range(attempts):
        reading = worker("read", server.uri, "orders", f"audit{attempt}", "2", str(count))
        try:
            await_begun(reading)
            meanwhile()
            return finish(reading)
        except AssertionError:
            if attempt == attempts - 1:
                raise
    raise AssertionError("not reached")


def test_two_readers_get_each_event_once_in_key_order_across_restarts(
    server: StandaloneProcess, manager: pravega_client.StreamManager
) -> None:
    """100 000 keyed events; the server is restarted in the middle of the writing and in the middle of the reading.

    One writer, and two readers of one group, live through a restart each.
    """
    assert manager.create_stream("shop", "orders", 4)
    writing = worker("write", server.uri, "orders", "0", str(EVENT_COUNT))
    await_begun(writing)
    server.restart()
    finish(writing)

    assert_each_key_in_order(read_by_two(server, EVENT_COUNT, server.restart), EVENT_COUNT)


def test_a_kill_of_the_server_loses_and_doubles_nothing(
    server: StandaloneProcess, manager: pravega_client.StreamManager
) -> None:
    """As above, but with SIGKILL while thousands of events are in flight."""
    count = 30_000
    assert manager.create_stream("shop", "orders", 2)
    writing = worker("write", server.uri, "orders", "0", str(count))
    await_begun(writing)
    server.kill9()
    server.start()
    finish(writing)
    assert_each_key_in_order(read_by_two(server, count), count)


async def test_a_reader_at_the_tail_sees_only_what_comes_after(manager: pravega_client.StreamManager) -> None:
    """A group made to read from the tail waits there and is woken by the next event."""
    assert manager.create_stream("shop", "orders", 1)
    writer = manager.create_writer("shop", "orders")
    writer.write_event("before", "key")
    writer.flush()
    group = manager.create_reader_group("late", "shop", "orders", True)
    reading = asyncio.create_task(read_events(group, ["reader1"], 1))
    await asyncio.sleep(0.3)
    await asyncio.to_thread(writer.write_event, "after", "key")
    assert await reading == [b"after"]


async def test_a_second_group_reads_everything_again_and_groups_can_be_deleted(
    manager: pravega_client.StreamManager,
) -> None:
    """Groups keep their own positions, and a deleted one restarts."""
    assert manager.create_stream("shop", "orders", 2)
    write_keyed(manager.create_writer("shop", "orders", 100), 0, 500)
    for name in ("first", "second"):
        group = manager.create_reader_group(name, "shop", "orders")
        assert_each_key_in_order(await read_events(group, [f"{name}-reader"], 500), 500)
    manager.delete_reader_group("first", "shop")
    group = manager.create_reader_group("first", "shop", "orders")
    assert_each_key_in_order(await read_events(group, ["reader"], 500), 500)


def test_byte_stream_writes_reads_seeks_and_truncates(
    server: StandaloneProcess, manager: pravega_client.StreamManager
) -> None:
    """The byte stream over a restart: 3 MiB written, read whole, read from the middle, cut at the head."""
    assert manager.create_stream("shop", "bytes", 1)
    content = bytes(range(256)) * (3 * MIB // 256)
    stream = manager.create_byte_stream("shop", "bytes")
    for start in range(0, len(content), 256 * 1024):
        assert stream.write(content[start : start + 256 * 1024]) == 256 * 1024
    stream.flush()
    assert stream.current_tail_offset() == len(content)
    assert read_bytes(stream, len(content)) == content

    server.restart()
    again = manager.create_byte_stream("shop", "bytes")
    assert again.seek(1_000_001, 0) == 1_000_001
    assert again.tell() == 1_000_001
    assert read_bytes(again, 1000) == content[1_000_001:1_001_001]
    again.truncate(MIB)
    assert again.current_head_offset() == MIB
    assert again.seek(MIB, 0) == MIB
    assert read_bytes(again, 100) == content[MIB : MIB + 100]
    # The first object: one that was made later would write from offset 0, which the client never moves to the tail.
    stream.write(b"the end")
    stream.flush()
    assert again.seek(-7, 2) == len(content)
    assert read_bytes(again, 7) == b"the end"


def read_bytes(stream: pravega_client.ByteStream, length: int) -> bytes:
    """Read exactly `length` bytes from where the stream stands."""
    parts = bytearray()
    while len(parts) < length:
        buffer = bytearray(min(64 * 1024, length - len(parts)))
        count = stream.readinto(buffer)
        assert count > 0
        parts += buffer[:count]
    return bytes(parts)


async def test_a_committed_transaction_is_read_completely_and_an_aborted_one_never(
    server: StandaloneProcess, manager: pravega_client.StreamManager
) -> None:
    """Commit, abort, and a commit of a transaction that was open across a restart of the server."""
    assert manager.create_stream("shop", "orders", 2)
    transactions = manager.create_transaction_writer("shop", "orders", 7)

    committed = transactions.begin_txn()
    for number in range(50):
        committed.write_event(f"key{number % KEY_COUNT}:{number}", f"key{number % KEY_COUNT}")
    assert committed.is_open()
    committed.commit()
    assert not committed.is_open()

    aborted = transactions.begin_txn()
    aborted.write_event("never:999", "key0")
    aborted.abort()
    with pytest.raises(pravega_client.TxnFailedException):
        aborted.write_event("never:1000", "key0")

    left_open = transactions.begin_txn()
    for number in range(50, 100):
        left_open.write_event(f"key{number % KEY_COUNT}:{number}", f"key{number % KEY_COUNT}")
    number = left_open.get_txn_id()
    server.restart()
    # This client asks for the state of a transaction found by its id, but fails its commit without asking the server.
    assert transactions.get_txn(number).is_open()
    left_open.commit()

    group = manager.create_reader_group("audit", "shop", "orders")
    assert_each_key_in_order(await read_events(group, ["reader1"], 100), 100)


async def test_transactions_of_several_writers_end_as_asked_over_a_kill_between_flush_and_commit(
    server: StandaloneProcess, manager: pravega_client.StreamManager
) -> None:
    """Three processes of that client with four transactions each on one segment; SIGKILL of the server.

    Each ends one by commit and one by abort beside the others, and one each after a kill that comes when all of their
    events are stored. Those committed are read whole, each in one piece and in its order, the others not at all.
    """
    event_count, writers = 40, (1, 2, 3)
    assert manager.create_stream("shop", "orders", 1)
    workers = [worker("transact", server.uri, "orders", str(writer), str(event_count)) for writer in writers]
    expected: list[str] = []
    try:
        ids: list[int] = []
        for process in workers:
            assert process.stdout is not None
            while (line := process.stdout.readline()) != "begun\n":
                what, _, value = line.strip().partition(" ")
                assert what in ("open", "committed")
                expected += [value] if what == "committed" else []
                ids += [int(value)] if what == "open" else []
        assert len(ids) == 2 * len(workers)
        length_bytes = sum(8 + len(f"w1t2:{number}") for number in range(event_count))
        await until(server, ids, lambda length: length == length_bytes)
        server.kill9()
        server.start()
        for process in workers:
            assert process.stdin is not None
            process.stdin.write("end\n")
            process.stdin.flush()
        for process in workers:
            expected += [line.decode().partition(" ")[2] for line in finish(process)]
    finally:
        for process in workers:
            process.kill()
    assert sorted(expected) == sorted(f"w{writer}t{index}" for writer in writers for index in (0, 2))
    group = manager.create_reader_group("audit", "shop", "orders")
    events = await read_events(group, ["reader1"], len(expected) * event_count)
    pieces = [events[start : start + event_count] for start in range(0, len(events), event_count)]
    assert sorted(piece[0].partition(b":")[0].decode() for piece in pieces) == sorted(expected)
    for piece in pieces:
        name = piece[0].partition(b":")[0]
        assert piece == [b"%s:%d" % (name, number) for number in range(event_count)]
    await until(server, ids, lambda length: length is None)


async def until(
    server: StandaloneProcess, transactions: list[int], is_so: collections.abc.Callable[[int | None], bool]
) -> None:
    """Wait until it is so of the length in bytes of each of these transactions' segments; None: it is gone."""
    async with asyncio.timeout(300), penstock.aio.connect(server.uri) as client:
        for name in map(transaction_segment, transactions):
            while not is_so(await length_of(client, name)):  # noqa: ASYNC110  # What a server does has no event.
                await asyncio.sleep(0.05)


async def length_of(client: penstock.aio.Client, segment: str) -> int | None:
    """Return the length of a segment in bytes; None if there is none."""
    try:
        return (await client.segment_info(segment)).length
    except penstock.NoSuchSegmentError:
        return None


def transaction_segment(transaction: int) -> str:
    """Return the name of the segment that a transaction has beside the only one of the stream."""
    return transaction_segment_name(segment_name("shop", "orders", 0), transaction >> 64, transaction & (1 << 64) - 1)


@pytest.mark.parametrize("length", [8 * MIB - 1, 8 * MIB, 8 * MIB + 1, 15 * MIB])
async def test_events_around_and_over_8_mib_arrive_whole(manager: pravega_client.StreamManager, length: int) -> None:
    """Past 8 MiB the client writes through a transient segment that is merged into the stream; it refuses 16 MiB."""
    assert manager.create_stream("shop", "films", 1)
    writer = manager.create_writer("shop", "films")
    film = (bytes(range(251)) * (length // 251 + 1))[:length]
    writer.write_event_bytes(b"short", "key")
    writer.write_event_bytes(film, "key")
    writer.write_event_bytes(b"end", "key")
    writer.flush()
    group = manager.create_reader_group("cinema", "shop", "films")
    assert await read_events(group, ["reader1"], 3) == [b"short", film, b"end"]


async def test_the_stream_cut_of_a_group_is_a_place_to_begin(manager: pravega_client.StreamManager) -> None:
    """A second group that begins at the first one's stream cut reads the rest."""
    assert manager.create_stream("shop", "orders", 1)
    writer = manager.create_writer("shop", "orders", 100)
    write_keyed(writer, 0, 100)
    group = manager.create_reader_group("first", "shop", "orders")
    await read_events(group, ["reader1"], 100, is_position_stored=True)
    cut = group.get_streamcut()
    # All that can be had of it outside of the client, which makes no cut of a text.
    length = sum(8 + len(f"key{number % KEY_COUNT}:{number}") for number in range(100))
    assert cut.get_segment_offset_map() == {0: length}
    write_keyed(writer, 100, 110)
    later = manager.create_reader_group("second", "shop", "orders", False, cut)
    events = await read_events(later, ["reader2"], 10)
    assert [int(event.partition(b":")[2]) for event in events] == list(range(100, 110))


def test_writes_to_a_sealed_stream_fail(manager: pravega_client.StreamManager) -> None:
    """A writer learns that its stream takes no more events."""
    assert manager.create_stream("shop", "orders", 1)
    writer = manager.create_writer("shop", "orders")
    writer.write_event("one", "key")
    writer.flush()
    assert manager.seal_stream("shop", "orders")
    with pytest.raises(Exception, match=r"(?i)seal|error|closed|fail"):
        writer.write_event("two", "key")
