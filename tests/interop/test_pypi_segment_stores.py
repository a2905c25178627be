"""The PyPI `pravega` client, unmodified, against a server with three segment store processes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from penstock.model.names import SegmentId, segment_name
from penstock.model.routing import container_of
from support.standalone_process import StandaloneProcess

if TYPE_CHECKING:
    import pravega_client
else:
    pravega_client = pytest.importorskip("pravega_client", reason="PyPI pravega exists for Python 3.11 and older only")

pytestmark = [pytest.mark.interop, pytest.mark.e2e]

SEGMENT_COUNT = 6
KEY_COUNT = 32


async def read_events(group: pravega_client.StreamReaderGroup, name: str, count: int) -> list[str]:
    """Read `count` events with one reader."""
    reader = group.create_reader(name)
    events: list[str] = []
    async with asyncio.timeout(60):
        while len(events) < count:
            piece = await reader.get_segment_slice_async()
            events += [event.data().decode() for event in piece]
            reader.release_segment(piece)
    return events


async def test_streams_spread_over_several_stores_are_written_read_and_committed(
    make_server: Callable[..., StandaloneProcess],
) -> None:
    """Six segments on all three stores: events, a transaction, another after one of the stores was killed."""
    server = make_server(segment_stores=3).start()
    names = [segment_name("shop", "orders", SegmentId(number)) for number in range(SEGMENT_COUNT)]
    assert {container_of(name, 4) % 3 for name in names} == {0, 1, 2}
    manager = pravega_client.StreamManager(server.uri)
    assert manager.create_scope("shop")
    assert manager.create_stream("shop", "orders", SEGMENT_COUNT)

    def event(number: int) -> tuple[str, str]:
        return f"key{number % KEY_COUNT}:{number}", f"key{number % KEY_COUNT}"

    writer = manager.create_writer("shop", "orders")
    for number in range(2000):
        writer.write_event(*event(number))
    writer.flush()
    transactions = manager.create_transaction_writer("shop", "orders", 7)
    committed = transactions.begin_txn()
    for number in range(2000, 2100):
        committed.write_event(*event(number))
    committed.commit()
    group = manager.create_reader_group("audit", "shop", "orders")
    check(await read_events(group, "reader1", 2100), 2100)

    pid = server.await_store(1)
    server.signal_store(1, 9)  # type: ignore[arg-type]
    server.await_store(1, other_than=pid)
    for number in range(2100, 3000):
        writer.write_event(*event(number))
    writer.flush()
    committed = transactions.begin_txn()
    for number in range(3000, 3100):
        committed.write_event(*event(number))
    committed.commit()
    again = manager.create_reader_group("again", "shop", "orders")
    check(await read_events(again, "reader2", 3100), 3100)
    assert server.terminate() == 0


def check(events: list[str], count: int) -> None:
    """Each event once, those of one key in the order in which they were written."""
    numbers = [int(event.partition(":")[2]) for event in events]
    assert sorted(numbers) == list(range(count))
    for key in range(KEY_COUNT):
        own = [number for number in numbers if number % KEY_COUNT == key]
        assert own == sorted(own)
