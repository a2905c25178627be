"""Transactions of the Java client and of the PyPI client that scales overtake: resumed by their ids, and rolled over.

A client that resumes a transaction by its id requests the segments of the epoch in the id, and derives the names of the
transaction's segments from these. So a segment that a scale did not replace keeps its name there, too.
"""

from __future__ import annotations

import collections
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

import penstock
from support import java_calls_groups as groups
from support import java_calls_streams as streams
from support import java_client
from support.java_client import JavaCallError, JavaProcess
from support.standalone_process import StandaloneProcess

pytestmark = [pytest.mark.interop, pytest.mark.e2e, pytest.mark.timeout(720)]

STREAM = f"{streams.SCOPE}/orders"
KEY_COUNT = 20
PART_COUNT = 40


@pytest.fixture
def other_java(java: JavaProcess, server: StandaloneProcess) -> Iterator[JavaProcess]:
    """Start another process of the Java client, which knows nothing of what the first one does."""
    with JavaProcess(java_client.classpath()) as process:
        process.run(java_client.connect, server.uri)
        yield process


def split_first(client: penstock.Client) -> None:
    """Split the first segment by key. The others stay as they are."""
    first, *_ = client.segments_of(STREAM)
    middle = (first.key_low + first.key_high) / 2
    client.scale_stream(STREAM, seal=[first.segment_id], key_ranges=[(first.key_low, middle), (middle, first.key_high)])


def segment_epochs(client: penstock.Client) -> list[int]:
    """Return in which epoch each current segment was made, by key."""
    return [segment.segment_id >> 32 for segment in client.segments_of(STREAM)]


def read_with_ours(client: penstock.Client, count: int) -> list[str]:
    """Return the first `count` events of the stream."""
    with client.reader_group("checks", [STREAM]) as group, group.reader() as reader:
        found = [reader.read(timeout_s=60) for _ in range(count)]
    return [event.data.decode() for event in found if event is not None]


def assert_each_key_in_order(events: Iterable[str], numbers: Iterable[int]) -> None:
    """Events are ``key:number``; all of these numbers are there once, each key's in their order."""
    place = {number: index for index, number in enumerate(numbers)}
    by_key: dict[str, list[int]] = collections.defaultdict(list)
    for event in events:
        key, _, number = event.partition(":")
        by_key[key].append(place[int(number)])
    assert all(seen == sorted(seen) for seen in by_key.values())
    assert sorted(index for seen in by_key.values() for index in seen) == list(range(len(place)))


def part(number: int) -> tuple[int, int]:
    """Return the range of the events of a part."""
    return number * PART_COUNT, (number + 1) * PART_COUNT


def test_another_process_of_the_java_client_continues_with_transactions_that_scales_overtook(
    java: JavaProcess, other_java: JavaProcess, server: StandaloneProcess
) -> None:
    """By their ids: one of epoch 0 and one of epoch 1, each with a segment that the scale after it has left.

    What either process has written is read, by the Java client and by ours; the first one is rolled over, then the
    second one; a third is aborted by the other process.
    """
    assert java.run(streams.create_stream, "orders", 2)
    with penstock.connect(server.uri) as client:
        ids = {"zero": java.run(streams.begin_transaction, "orders", "zero")}
        java.run(streams.write_to_transaction, "zero", *part(0), KEY_COUNT)
        split_first(client)
        for name, number in (("one", 2), ("never", 9)):
            ids[name] = java.run(streams.begin_transaction, "orders", name)
            java.run(streams.write_to_transaction, name, *part(number), KEY_COUNT)
        split_first(client)
        # The last segment is still the one of epoch 0.
        assert segment_epochs(client) == [2, 2, 1, 0]
        for name, number in ids.items():
            assert other_java.run(streams.find_transaction, "orders", name, number) == "OPEN"
        for name, number in (("zero", 1), ("one", 3), ("never", 10)):
            other_java.run(streams.write_to_transaction, name, *part(number), KEY_COUNT)
        other_java.run(streams.abort_transaction, "never")
        for name in ("zero", "one"):
            other_java.run(streams.commit_transaction, name)
            java.run(streams.await_status, name, "COMMITTED")
        java.run(streams.await_status, "never", "ABORTED")
        with pytest.raises(JavaCallError) as over:
            java.run(streams.write_to_transaction, "zero", *part(11), KEY_COUNT)
        assert over.value.kind == "TxnFailedException"
        java.run(streams.write_events, "orders", *part(4), KEY_COUNT)
        history = client.history(STREAM).epochs
        assert len(history) == 7
        assert segment_epochs(client) == [6] * 4
        numbers = range(5 * PART_COUNT)
        assert_each_key_in_order(read_with_ours(client, len(numbers)), numbers)
    assert java.run(groups.create_group, "audit", {"orders": ("", "")}, 300)
    read = java.run(groups.read_events, "audit", ("reader1", "reader2"), len(numbers))
    assert_each_key_in_order((event for _, event in read), numbers)
    batch, _ = java.run(streams.read_batch, "orders", "", "")
    assert sorted(batch) == sorted(event for _, event in read)


def test_many_transactions_of_the_java_client_are_open_while_the_stream_scales(
    java: JavaProcess, server: StandaloneProcess
) -> None:
    """Begun in three epochs, written to before and after scales, and committed in another order; some are aborted.

    Each is there whole or not at all, and each key has them in the order in which they were committed.
    """
    assert java.run(streams.create_stream, "orders", 1)
    names: list[str] = []
    with penstock.connect(server.uri) as client:

        def begin_some() -> None:
            for _ in range(4):
                name = f"part {len(names)}"
                java.run(streams.begin_transaction, "orders", name)
                java.run(streams.write_to_transaction, name, *halves(len(names))[0], KEY_COUNT)
                names.append(name)

        def halves(number: int) -> tuple[tuple[int, int], tuple[int, int]]:
            first, last = part(number)
            middle = (first + last) // 2
            return (first, middle), (middle, last)

        begin_some()
        for _ in range(2):
            split_first(client)
            begin_some()
        aborted = {2, 9}
        # Every third one in turn: of different epochs, and one after the other.
        order = [number for start in range(3) for number in range(start, len(names), 3)]
        for place, number in enumerate(order):
            java.run(streams.write_to_transaction, names[number], *halves(number)[1], KEY_COUNT)
            if number in aborted:
                java.run(streams.abort_transaction, names[number])
                continue
            java.run(streams.commit_transaction, names[number])
            java.run(streams.await_status, names[number], "COMMITTED")
            if place % 5 == 3:
                # Those that are open are of yet another epoch than the current one.
                split_first(client)
        numbers = [event for number in order if number not in aborted for event in range(*part(number))]
        assert_each_key_in_order(read_with_ours(client, len(numbers)), numbers)
        epochs = client.history(STREAM).epochs
    # Four scales at least, and a roll behind each of the first.
    assert len(epochs) > 8
    assert java.run(groups.create_group, "audit", {"orders": ("", "")}, 300)
    read = java.run(groups.read_events, "audit", ("reader1", "reader2"), len(numbers))
    assert_each_key_in_order((event for _, event in read), numbers)


def test_transactions_of_the_pypi_client_outlive_scales(server: StandaloneProcess) -> None:
    """Two continue where they began; one is resumed by our client, by its id; all are rolled over and read.

    Another process of the PyPI client finds them open by their ids, which requires the segments of their epochs; this
    client does not let that process write. Nothing is read of an aborted one.
    """
    pravega_client = pytest.importorskip("pravega_client", reason="the PyPI client has no wheel for this Python")
    manager = pravega_client.StreamManager(server.uri)
    manager.create_scope(streams.SCOPE)
    assert manager.create_stream(streams.SCOPE, "orders", 2)
    writer = manager.create_transaction_writer(streams.SCOPE, "orders", 7)

    def events_of(number: int) -> list[tuple[str, str]]:
        return [(f"key{event % KEY_COUNT}", f"key{event % KEY_COUNT}:{event}") for event in range(*part(number))]

    def found(transaction: pravega_client.StreamTransaction) -> str:
        """Return the state of a transaction that another process gets."""
        return run_worker("find", server.uri, "orders", str(transaction.get_txn_id()))

    with penstock.connect(server.uri) as client:
        zero = writer.begin_txn()
        for key, event in events_of(0):
            zero.write_event(event, key)
        split_first(client)
        one, handed, never = writer.begin_txn(), writer.begin_txn(), writer.begin_txn()
        split_first(client)
        assert segment_epochs(client) == [2, 2, 1, 0]
        assert {found(transaction) for transaction in (zero, one, handed)} == {"open\n"}
        for transaction, number in ((zero, 1), (one, 2), (never, 9)):
            for key, event in events_of(number):
                transaction.write_event(event, key)
        zero.commit()
        one.commit()
        never.abort()
        with client.transaction(STREAM, f"{handed.get_txn_id():032x}") as resumed:
            for key, event in events_of(3):
                resumed.write(event.encode(), key)
        numbers = range(4 * PART_COUNT)
        assert_each_key_in_order(read_with_ours(client, len(numbers)), numbers)
        assert {found(transaction) for transaction in (zero, handed, never)} == {"over\n"}
        assert len(client.history(STREAM).epochs) >= 7
    read = run_worker("read", server.uri, "orders", "audit", "2", str(len(numbers)))
    assert_each_key_in_order((line for line in read.splitlines() if ":" in line), numbers)


def run_worker(*arguments: str) -> str:
    """Run the PyPI client in a process of its own, see ``pypi_worker.py``; return what it prints."""
    worker = str(Path(__file__).with_name("pypi_worker.py"))
    command = [sys.executable, worker, *arguments]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=240, check=True).stdout
