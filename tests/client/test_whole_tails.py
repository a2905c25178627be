"""Tails, and what begins or ends at `latest`, while transactions are committed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

import penstock
from penstock.client.client import Client
from penstock.client.controller.controller import ControllerClient
from penstock.model.errors import NoSuchStreamError, UnsupportedOperationError
from penstock.model.names import split_scoped_name
from penstock.model.stream_cuts import StreamCut
from penstock.testing import memory_server
from penstock.testing.server import MemoryServer

_names = iter(range(1_000_000))


@pytest.fixture(scope="module")
def server() -> Iterator[MemoryServer]:
    with memory_server() as server:
        yield server


@pytest.fixture
def stream() -> str:
    """A fresh stream."""
    return f"whole/s{next(_names)}"


async def keys_of_each_segment(client: Client, stream: str) -> list[str]:
    """Return a routing key for each of two segments."""
    scope, name = split_scoped_name(stream)
    found: dict[int, str] = {}
    async with client.event_writer(stream) as writer:
        for number in range(100):
            before = (await client.tail(stream)).positions
            await writer.write(b"12", f"key-{number}")
            await writer.flush()
            after = (await client.tail(stream)).positions
            (segment,) = [one for one in after if after[one] != before[one]]
            found.setdefault(segment, f"key-{number}")
            if len(found) == 2 and len(set(after.values())) == 1:
                return list(found.values())
    raise AssertionError(f"keys of {scope}/{name} go to one segment: {found}")


async def committer(client: Client, stream: str, keys: list[str], is_over: asyncio.Event) -> int:
    count = 0
    while not is_over.is_set():
        async with client.begin_transaction(stream) as transaction:
            for key in keys:
                await transaction.write(b"one", key)
        count += 1
    return count


async def test_a_whole_tail_has_as_much_of_each_segment_as_commits_continue(server: MemoryServer, stream: str) -> None:
    """Each transaction has one event in each of two segments; what begins or ends at `latest` has both or none."""
    async with Client(server.uri) as client:
        await client.create_stream(stream, scaling=penstock.Scaling.fixed(2))
        keys = await keys_of_each_segment(client, stream)
        is_over = asyncio.Event()
        tasks = [asyncio.create_task(committer(client, stream, keys, is_over)) for _ in range(4)]
        for _ in range(40):
            found = (await client.tail(stream, whole_transactions=True)).positions
            assert len(set(found.values())) == 1, found
            async with client.batch(stream) as batch:
                assert len(set(batch.end.positions.values())) == 1, batch.end  # type: ignore[union-attr]
        is_over.set()
        assert sum(await asyncio.gather(*tasks)) > 4


async def test_the_tail_of_a_missing_stream_is_refused(server: MemoryServer, stream: str) -> None:
    async with Client(server.uri) as client:
        with pytest.raises(NoSuchStreamError):
            await client.tail(stream, whole_transactions=True)


async def test_a_controller_without_transactional_tails_gets_no_such_call(
    server: MemoryServer, stream: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pravega's: `whole_transactions=True` raises; a batch to the present end ends where segments do."""

    async def whole_tail(self: ControllerClient, scope: str, stream: str) -> StreamCut:
        raise UnsupportedOperationError("unimplemented")

    monkeypatch.setattr(ControllerClient, "whole_tail", whole_tail)
    async with Client(server.uri) as client:
        await client.create_stream(stream)
        with pytest.raises(UnsupportedOperationError):
            await client.tail(stream, whole_transactions=True)
        async with client.batch(stream) as batch:
            assert batch.end == await client.tail(stream)
