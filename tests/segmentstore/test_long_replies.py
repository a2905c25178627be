"""Reads of tables: what is asked for in a few bytes is made only while the client takes it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from penstock.segmentstore.long_replies import LONG_REPLY_REQUESTS, LongReplies, LongReplyRequest
from penstock.wire.commands import (
    CreateTableSegment,
    GetStreamSegmentInfo,
    ReadTable,
    ReadTableKeys,
    SegmentCreated,
    StreamSegmentInfo,
    TableEntriesUpdated,
    TableKey,
    TableKeyValue,
    TableRead,
    UpdateTableEntries,
    WireCommand,
)
from support.containers import turns, until
from support.wire_service import CONNECTION, A, WireService

T, U = "s/table/0.#epoch.0", "s/other/0.#epoch.0"
KIB = 1024
VALUE = bytes(40 * KIB)
KEYS = [TableKey(b"k%d" % number, -1) for number in range(10)]


class Host:
    """Takes replies or not, and keeps what it was sent."""

    def __init__(self) -> None:
        self.takes_replies = True
        self.frames: list[bytes] = []
        self.stops_after = 1 << 30

    def send_long(self, frame: bytes) -> None:
        self.frames.append(frame)
        self.takes_replies = len(self.frames) < self.stops_after


class Bench:
    """Long replies over a source that answers at once, or when it is let continue."""

    def __init__(self, under_way_max: int = 4) -> None:
        self.host = Host()
        self.under_way = self.most_under_way = self.made_count = 0
        self.stuck: dict[str, asyncio.Event] = {}
        self.replies = LongReplies(self.host, self.answer, container_count=64, under_way_max=under_way_max)
        self.tasks: list[asyncio.Task[None]] = []

    async def answer(self, command: WireCommand) -> WireCommand:
        assert isinstance(command, ReadTable)
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        try:
            await asyncio.sleep(0)
            if (event := self.stuck.get(command.segment)) is not None:
                await event.wait()
        finally:
            self.under_way -= 1
        self.made_count += 1
        return TableRead(command.request_id, command.segment, [])

    def ask(self, count: int, segment: str = T) -> None:
        loop = asyncio.get_running_loop()
        for number in range(count):
            command: LongReplyRequest = ReadTable(number, segment, "", [])
            self.tasks.append(loop.create_task(self.replies.reply(command)))


async def test_nothing_is_made_while_the_peer_takes_nothing_and_all_comes_in_the_end() -> None:
    bench = Bench(under_way_max=8)
    bench.host.stops_after = 3
    bench.ask(100)
    await turns(50)
    assert len(bench.host.frames) == 3
    assert bench.made_count <= 8 + 1
    while len(bench.host.frames) < 100:
        made = bench.made_count
        bench.host.stops_after = len(bench.host.frames) + 1
        bench.host.takes_replies = True
        bench.replies.resume()
        await until(lambda: not bench.host.takes_replies)
        # Those that have their first turn may be too late for this one; none is made over and over again.
        assert bench.made_count - made <= 8 + 1
    await asyncio.gather(*bench.tasks)
    assert bench.made_count <= 200


async def test_a_container_that_is_stuck_holds_up_its_own_reads_alone() -> None:
    bench = Bench()
    bench.stuck[T] = asyncio.Event()
    bench.ask(50)
    await turns(20)
    assert bench.under_way == 4
    bench.ask(50, U)
    await until(lambda: len(bench.host.frames) == 50)
    bench.stuck[T].set()
    await asyncio.gather(*bench.tasks)
    assert len(bench.host.frames) == 100


async def test_what_is_cancelled_while_it_waits_leaves_the_line_to_the_others() -> None:
    bench = Bench()
    bench.host.takes_replies = False
    bench.ask(3)
    await turns(10)
    bench.tasks[0].cancel()
    await turns(10)
    bench.host.takes_replies = True
    bench.replies.resume()
    results = await asyncio.gather(*bench.tasks, return_exceptions=True)
    assert [type(result) for result in results] == [asyncio.CancelledError, type(None), type(None)]
    assert len(bench.host.frames) == 2


def test_the_requests_with_long_replies_are_those_of_tables() -> None:
    assert ReadTableKeys in LONG_REPLY_REQUESTS
    assert UpdateTableEntries not in LONG_REPLY_REQUESTS  # type: ignore[comparison-overlap]


@pytest.fixture
async def service() -> AsyncIterator[WireService]:
    made = WireService(replace(CONNECTION, write_buffer_bytes_max=64 * KIB))
    await made.start()
    yield made
    await made.stop()


async def test_a_client_that_takes_no_answers_fills_no_memory_and_gets_all_when_it_does(service: WireService) -> None:
    """Each answer has 400 KiB, and 200 are asked for with 20 KiB."""
    wire = await service.connect()
    await wire.ask(CreateTableSegment(1, T, sorted_deprecated=False, key_length=0, token=""), SegmentCreated)
    for key in KEYS:
        entry = TableKeyValue(key.key, -1, VALUE)
        await wire.ask(UpdateTableEntries(1, T, "", [entry], -1), TableEntriesUpdated)
    wire.send(*(ReadTable(number, T, "", KEYS) for number in range(200)))
    (connection,) = service.server.connections
    await until(lambda: connection.is_write_blocked)
    await turns(200)
    waiting = connection._transport.get_write_buffer_size() + connection._long_reply_bytes
    assert waiting <= 64 * KIB + 3 * 11 * len(VALUE)
    other = await service.connect()
    await other.ask(GetStreamSegmentInfo(7, A, ""), StreamSegmentInfo)
    seen = set()
    for _ in range(200):
        reply = await wire.expect(TableRead)
        assert [bytes(entry.value) for entry in reply.entries] == [VALUE] * 10
        seen.add(reply.request_id)
    assert seen == set(range(200))
    assert connection.takes_replies
