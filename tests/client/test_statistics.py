"""A client's statistics of the whole cluster: from real stores, from stores that hang or are none, and their sums."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from penstock.cli.top import lines_of
from penstock.client.client import Client
from penstock.client.settings import ClientSettings
from penstock.client.statistics.statistics import Answer, ClusterStatistics, ObjectLoad, merged, merging
from penstock.model.errors import InvalidArgumentError, NoSuchReaderGroupError
from penstock.model.routing import container_of
from penstock.segmentstore.container_settings import ActivitySettings
from penstock.segmentstore.server import SegmentStoreServer
from penstock.segmentstore.settings import SegmentStoreSettings
from penstock.segmentstore.statistics_report import store_report
from penstock.segmentstore.store import SegmentStore
from penstock.segmentstore.tier1.memory_log import MemoryLogFactory
from penstock.testing.server import memory_server
from penstock.wire.codec import encode
from penstock.wire.commands import ErrorMessage, GetStatistics, Hello, KeepAlive, StatisticsTold
from penstock.wire.statistics import (
    SEGMENTS_MAX,
    ContainerReport,
    Cursor,
    ObjectRow,
    SegmentRow,
    StatisticsQuery,
    StoreReport,
    decode_report,
    encode_message,
)
from support.containers import QUIET, FaultyChunks, memory_runtime
from support.raw_wire import RawWire

COUNT = 4
SETTINGS = SegmentStoreSettings(
    container_count=COUNT,
    container=replace(QUIET, activity=ActivitySettings(interval_s=3600.0)),
)
PATIENT = ClientSettings(statistics_timeout_s=30.0)
#: For those that never answer; those that do are in the same loop.
QUICK = ClientSettings(statistics_timeout_s=1.5)


class Stores:
    """Segment stores that share the containers out among them, without a controller: a resolver replaces it."""

    def __init__(self) -> None:
        self.runtime = memory_runtime()
        self.stores: list[SegmentStore] = []
        self.servers: list[SegmentStoreServer] = []
        #: By container id; containers without an entry are at a port without a listener.
        self.ports: dict[int, int] = {}

    async def add(self, *containers: int) -> SegmentStore:
        store = SegmentStore(
            logs=MemoryLogFactory(self.runtime),
            chunks=FaultyChunks(),
            runtime=self.runtime,
            settings=SETTINGS,
            container_ids=containers,
        )
        await store.start()
        server = SegmentStoreServer(store)
        await server.start("127.0.0.1", 0)
        self.stores.append(store)
        self.servers.append(server)
        self.ports.update(dict.fromkeys(containers, server.port))
        return store

    async def resolve(self, segment: str) -> tuple[str, int]:
        return "127.0.0.1", self.ports[container_of(segment, COUNT)]

    async def poll(self) -> None:
        """Let every container count what came."""
        await asyncio.sleep(0.01)  # Rates need time to pass; how much does not matter here.
        for store in self.stores:
            for container in store.containers:
                await container.activity_watch.poll()

    def client(self, settings: ClientSettings = PATIENT) -> Client:
        return Client("tcp://127.0.0.1:1", settings, resolver=self.resolve)

    async def stop(self) -> None:
        for server in self.servers:
            await server.stop()
        for store in self.stores:
            await store.stop()
        await self.runtime.work.close()


@pytest.fixture
async def stores() -> AsyncIterator[Stores]:
    made = Stores()
    yield made
    await made.stop()


def segments_in(container_id: int, count: int) -> list[str]:
    names = (f"s/t/{number}.#epoch.0" for number in range(100))
    found = [name for name in names if container_of(name, COUNT) == container_id]
    return found[:count]


async def fill(store: SegmentStore, *segments: str, data: bytes = b"x" * 10) -> None:
    for segment in segments:
        if segment not in {known.name for container in store.containers for known in container.segments()}:
            await store.create_segment(segment)
        await store.append(segment, data)


@asynccontextmanager
async def listener(talk: Callable[[asyncio.StreamReader, asyncio.StreamWriter], object]) -> AsyncIterator[int]:
    server = await asyncio.start_server(talk, "127.0.0.1", 0)  # type: ignore[arg-type]
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


async def greet_and_hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer Hello only until the client closes. Python 3.13 closes the connection of a writer that nothing holds."""
    await reader.read(1)
    writer.write(encode(Hello(17, 5)))
    await reader.read()


async def greet_and_close_at_anything_else(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """As Pravega's segment store does when it hears a type that it does not know."""
    await reader.readexactly(len(encode(Hello(17, 5))))
    writer.write(encode(Hello(17, 5)))
    await reader.read(1)
    writer.close()


# What stores say.


async def test_one_call_requests_all_statistics_of_every_store(stores: Stores) -> None:
    one, other = await stores.add(0, 2), await stores.add(1, 3)
    mine, yours = segments_in(2, 1) + segments_in(3, 1)
    await fill(one, mine)
    await fill(other, yours, data=b"y" * 30)
    await stores.poll()
    async with stores.client() as client:
        statistics = await client.statistics()
    assert len(statistics.stores) == 2
    assert {store.problem for store in statistics.stores.values()} == {None}
    assert (sorted(statistics.containers), statistics.missing_containers) == ([0, 1, 2, 3], [])
    assert {load.name: load.length_bytes for load in statistics.segments.values()} == {mine: 10, yours: 30}
    (stream,) = statistics.streams().values()
    assert (stream.name, stream.segment_count, stream.byte_count) == ("s/t", 2, 40)
    assert stream.bytes_per_s > 0
    assert statistics.bytes_per_s == pytest.approx(stream.bytes_per_s)
    loads = list(statistics.containers.values())
    assert sum(load.backlog_bytes for load in loads) == statistics.backlog_bytes == 40
    assert all(load.log_bytes > 0 and load.active_segment_count > 0 for load in loads)
    (store, _) = statistics.stores.values()
    assert 0 < store.cache_lacking_bytes <= store.cache_bytes < store.cache_bytes_max


async def test_a_repeated_request_returns_only_what_is_new(stores: Stores) -> None:
    store = await stores.add(0, 1, 2, 3)
    busy, idle, doomed = segments_in(1, 3)
    await fill(store, busy, idle, doomed)
    await stores.poll()
    async with stores.client() as client:
        first = await client.statistics()
        await fill(store, busy, data=b"z" * 100)
        await store.append(doomed, b"last")
        await store.seal_segment(doomed)
        await stores.poll()
        second = await client.statistics(first)
        # No pass has run since: nothing is new, and nothing is invented.
        third = await client.statistics(second)
    assert {name: load.length_bytes for name, load in second.segments.items()} == {busy: 110, idle: 10}
    assert second.segments[busy].bytes_per_s > 0 == second.segments[idle].bytes_per_s
    passed_s = second.containers[1].measured_s - first.containers[1].measured_s
    assert second.segments[busy].bytes_per_s == pytest.approx(100 / passed_s, rel=0.01)
    assert second.containers[1].bytes_per_s == pytest.approx(104 / passed_s, rel=0.01)
    assert third.segments == second.segments
    assert third.containers[1].bytes_per_s == second.containers[1].bytes_per_s


async def test_very_many_segments_come_in_pages_and_later_not_at_all(
    stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No answer has more than so many segments, whatever was asked for; each page is a turn of its own for others."""
    store = await stores.add(0, 1, 2, 3)
    for container in store.containers:
        for number in range(2500):
            container.activity_watch.statistics.add(
                number, f"s/t/{container.id * 2500 + number}.#epoch.0",
                events=1, byte_count=10, scale_type=0, target_rate=0, now_s=1.0,
            )  # fmt: skip
    pages: list[int] = []

    def counted(store: SegmentStore, query: StatisticsQuery) -> StoreReport:
        answer = store_report(store, query)
        pages.append(sum(len(container.segments) for container in answer.containers))
        return answer

    monkeypatch.setattr("penstock.segmentstore.request_processor.store_report", counted)
    async with stores.client() as client:
        first = await client.statistics()
        assert (len(first.segments), len(pages), max(pages)) == (10_000, 10, 1000)
        pages.clear()
        second = await client.statistics(first)
        assert (len(second.segments), pages) == (10_000, [0])
    most = store_report(store, StatisticsQuery(segment_count_max=1 << 40))
    assert sum(len(container.segments) for container in most.containers) == SEGMENTS_MAX


async def test_a_restarted_store_is_not_taken_for_the_one_before(stores: Stores) -> None:
    """A log in memory begins with the same epoch again; cursors of the old life count for nothing."""
    store = await stores.add(0, 1, 2, 3)
    segments = segments_in(1, 3)
    await fill(store, *segments)
    await stores.poll()
    async with stores.client() as client:
        first = await client.statistics()
        await stores.servers.pop().stop()
        await stores.stores.pop().stop()
        stores.runtime.wall_clock_ms = lambda: 5_000
        again = await stores.add(0, 1, 2, 3)
        await fill(again, segments[0])
        await stores.poll()
        second = await client.statistics(first)
    assert set(first.segments) == set(segments)
    assert {name: load.byte_count for name, load in second.segments.items()} == {segments[0]: 10}


# What is beside them.


@pytest.mark.parametrize("talk", [greet_and_hang, greet_and_close_at_anything_else])
async def test_an_unresponsive_store_does_not_affect_the_statistics_of_others(
    stores: Stores, talk: Callable[[asyncio.StreamReader, asyncio.StreamWriter], object]
) -> None:
    """It hangs, or is Pravega's. It is named with its problem; containers without a report are listed as missing."""
    store = await stores.add(0, 1)
    (segment,) = segments_in(1, 1)
    await fill(store, segment)
    await stores.poll()
    async with listener(talk) as port:
        stores.ports.update({2: port, 3: port})
        async with stores.client(QUICK) as client:
            first = await client.statistics()
            second = await client.statistics(first)
    for statistics in (first, second):
        assert statistics.missing_containers == [2, 3]
        assert list(statistics.segments) == [segment]
        problem = statistics.stores[f"127.0.0.1:{port}"].problem
        assert problem is not None
        expected = "within 1.5 s (statistics_timeout_s)" if talk is greet_and_hang else "Pravega"
        assert expected in problem


async def test_old_statistics_of_an_unresponsive_store_are_not_repeated(stores: Stores) -> None:
    """Old figures would pass for current ones. When the store is back, all figures are reported again."""
    store = await stores.add(0, 1, 2, 3)
    (segment,) = segments_in(1, 1)
    await fill(store, segment)
    await stores.poll()
    async with stores.client(QUICK) as client:
        first = await client.statistics()
        home = stores.ports[0]
        async with listener(greet_and_hang) as port:
            stores.ports.update(dict.fromkeys(range(COUNT), port))
            for name in client._statistics_calls._names:
                client._open_pool().forget(name)
            second = await client.statistics(first)
        stores.ports.update(dict.fromkeys(range(COUNT), home))
        third = await client.statistics(second)
    assert (dict(second.segments), dict(second.containers)) == ({}, {})
    assert second.missing_containers == [0, 1, 2, 3]
    assert list(third.segments) == [segment]


async def test_a_store_that_cannot_be_reached_is_named(stores: Stores) -> None:
    await stores.add(0, 1, 2)
    async with listener(greet_and_hang) as port:
        pass
    stores.ports[3] = port
    async with stores.client(QUICK) as client:
        statistics = await client.statistics()
    problem = statistics.stores[f"127.0.0.1:{port}"].problem
    assert problem is not None
    assert "could not connect" in problem
    assert "Pravega" not in problem
    assert statistics.missing_containers == [3]


# What asks them.


@pytest.mark.parametrize(
    "query",
    [
        b"",
        b"\xff\xfe",
        b"[" * 20_000,
        b"{}x",
        b'{"version": 2}',
        b'{"cursors": {"a": [1, 2, 3]}}',
        b'{"cursors": {"0": [1, 2]}, "containers": "all"}',
        b'{"segment_count_max": -1}',
        b'{"segment_count_max": 1.5}',
        b'{"containers": [' + b"1," * 40_000 + b"1]}",
    ],
)
async def test_a_malformed_request_is_refused_and_disturbs_no_other(stores: Stores, query: bytes) -> None:
    await stores.add(0, 1, 2, 3)
    wire = await RawWire.open(stores.servers[0].port)
    refused = await wire.ask(GetStatistics(7, "", query), ErrorMessage)
    assert (refused.request_id, refused.error_code) == (7, 0)
    await wire.ask(KeepAlive(), KeepAlive)
    told = await wire.ask(GetStatistics(8, "", b"{}"), StatisticsTold)
    assert decode_report(told.report).container_count == COUNT
    await wire.close()


async def test_unknown_fields_and_cursors_from_nowhere_are_no_errors(stores: Stores) -> None:
    """A newer client asks for more than is known here; a cursor may be of another life, container or cluster."""
    await stores.add(0, 1, 2, 3)
    (container,) = [each for each in stores.stores[0].containers if each.id == 1]
    await fill(stores.stores[0], *segments_in(1, 2))
    await stores.poll()
    mine = [container.epoch, container.created_ms]
    wire = await RawWire.open(stores.servers[0].port)
    for cursor, count in (([9, 9, 9], 2), ([*mine, -5], 2), ([*mine, 1], 1), ([*mine, 1 << 62], 0)):
        query = {"wanted": "more", "cursors": {"1": cursor, "77": cursor, "-3": cursor}, "containers": [1, 99]}
        told = await wire.ask(GetStatistics(1, "", json.dumps(query).encode()), StatisticsTold)
        (report,) = decode_report(told.report).containers
        assert (report.id, len(report.segments), report.is_complete) == (1, count, True)
    await wire.close()


# Groups, and the blocking client.


def test_the_blocking_client_tells_the_same_and_how_far_groups_are() -> None:
    """The lag is what the group has not read of what is there; groups that are named must be there."""
    with memory_server() as server, server.connect() as client:
        client.create_stream("s/t")
        client.create_stream("s/u")
        with client.event_writer("s/t") as writer:
            writer.write_many([b"x" * 92] * 10)
            writer.flush()
        with client.reader_group("late", ["s/t", "s/u"]) as group:
            client.reader_group("tail", ["s/t"], start="latest").close()
            statistics = client.statistics(groups="all")
            assert {name: lag.total_unread_bytes for name, lag in statistics.groups.items()} == {
                "s/late": 1000, "s/tail": 0,
            }  # fmt: skip
            assert statistics.groups["s/late"].unread_bytes == {"s/t": 1000, "s/u": 0}
            with group.reader("r") as reader:
                assert len([reader.read(20) for _ in range(4)]) == 4
                reader.store_positions()
                lag = client.statistics(statistics, groups=["s/late"]).groups["s/late"]
                assert (lag.unread_bytes["s/t"] < 1000, lag.reader_count, lag.problem) == (True, 1, None)
        client.truncate_stream(client.tail("s/t"))
        with pytest.raises(NoSuchReaderGroupError):
            client.statistics(groups=["s/missing"])
        with pytest.raises(InvalidArgumentError):
            client.statistics(groups="s/late")
        client.delete_reader_group("s/late")
        assert set(client.statistics(statistics, groups="all").groups) == {"s/tail"}


def test_very_many_answers_are_put_together_some_in_each_turn() -> None:
    """Ten thousand segments with news are some tens of milliseconds of work for the client."""
    rows = [SegmentRow(f"s/t/{number}.#epoch.0", 1, 1, 1, 1, 1, 1.0) for number in range(10_000)]
    steps = merging([answer("a:1", report(0, *rows))], None)
    assert sum(1 for _ in steps) >= 10
    whole = merged([answer("a:1", report(0, *rows))], None)
    assert len(whole.segments) == 10_000
    assert len(merged([answer("a:1", report(0, segment_count=10_000))], whole).segments) == 10_000


# How it adds up.


def report(container_id: int, *rows: SegmentRow, epoch: int = 1, **fields: object) -> ContainerReport:
    known: dict[str, object] = {
        "measured_s": 10.0, "interval_s": 1.0, "oldest_s": 0.0, "segment_count": len(rows), "active_segment_count": 9,
        "event_count": 0, "byte_count": 0, "last_event_count": 0, "last_byte_count": 0,
        "events_per_s": (0.0,) * 4, "bytes_per_s": (0.0,) * 4, "log_bytes": 1, "is_log_long": False,
        "outstanding_bytes": 0, "backlog_bytes": 0, "backlog_operations": 0, "held_append_count": 0,
        "is_complete": True,
    }  # fmt: skip
    own: dict[str, object] = {"id": container_id, "epoch": epoch, "segments": list(rows), "cursor": Cursor(epoch, 5, 1)}
    return ContainerReport(**own | known | fields)  # type: ignore[arg-type]


def answer(address: str, *reports: ContainerReport) -> Answer:
    made = Answer(address)
    made.take(decode_report(encode_message(StoreReport(1, COUNT, 0, 0, 0, 0, None, {}, list(reports)))), None)
    return made


def test_of_a_container_that_two_stores_speak_of_the_newer_one_counts() -> None:
    """It has moved, and its old home has not heard of it yet."""
    old, new = report(1, byte_count=7, epoch=3), report(1, byte_count=1, epoch=4)
    for answers in ([answer("a:1", old), answer("b:1", new)], [answer("b:1", new), answer("a:1", old)]):
        statistics = merged(answers, None)
        assert (statistics.containers[1].store, statistics.containers[1].byte_count) == ("b:1", 1)
        assert list(statistics.stores) == ["a:1", "b:1"]


def test_without_an_earlier_answer_rates_are_those_of_the_last_poll() -> None:
    """What got nothing in it has none, however much it has had."""
    now = SegmentRow("s/t/0.#epoch.0", 500, 50, 500, 4, 40, 10.0)
    before = SegmentRow("s/t/1.#epoch.0", 500, 50, 500, 4, 40, 9.0)
    whole = report(0, now, before, interval_s=2.0, last_event_count=4, last_byte_count=40)
    statistics = merged([answer("a:1", whole)], None)
    assert [load.events_per_s for load in statistics.segments.values()] == [2.0, 0.0]
    assert (statistics.events_per_s, statistics.bytes_per_s) == (2.0, 20.0)


def test_a_page_made_during_a_poll_doubles_no_rate() -> None:
    """The segment was counted at 11 s already, the container as a whole not yet."""
    name = "s/t/0.#epoch.0"
    first = merged([answer("a:1", report(0, SegmentRow(name, 100, 10, 100, 10, 100, 11.0), measured_s=10.0))], None)
    later = report(0, SegmentRow(name, 200, 20, 200, 10, 100, 12.0), measured_s=12.0)
    assert merged([answer("a:1", later)], first).segments[name].events_per_s == 10.0


def test_segments_that_a_store_no_longer_reports_are_removed() -> None:
    """Segments that are silent for long go there without a word: the count fits no more, and the age says who."""
    rows = [SegmentRow(f"s/t/{number}.#epoch.0", 1, 1, 1, 1, 1, float(number)) for number in range(4)]
    first = merged([answer("a:1", report(0, *rows, measured_s=4.0))], None)
    later = report(0, measured_s=1300.0, segment_count=2, oldest_s=2.0)
    second = merged([answer("a:1", later)], first)
    assert sorted(second.segments) == ["s/t/2.#epoch.0", "s/t/3.#epoch.0"]


def test_a_container_that_moves_between_two_pages_is_not_reported_in_part() -> None:
    made = answer("a:1", report(0), report(1, SegmentRow("s/t/0.#epoch.0", 1, 1, 1, 1, 1, 1.0), is_complete=False))
    made.take(StoreReport(1, COUNT, 0, 0, 0, 0, None, {}, []), [1])
    statistics: ClusterStatistics = merged([made], None)
    assert (list(statistics.containers), dict(statistics.segments)) == ([0], {})


def test_requests_to_buckets_have_rates_and_a_price_from_the_second_sample_on() -> None:
    """A store whose process is another one begins again; buckets of unknown prices have rates alone."""

    def poll(since: ClusterStatistics | None, measured_s: float, *rows: ObjectRow) -> dict[str, ObjectLoad]:
        made = Answer("a:1")
        report = StoreReport(1, COUNT, 0, 0, 0, 0, None, {}, [], objects=list(rows), measured_s=measured_s)
        made.take(decode_report(encode_message(report)), None)
        polls.append(merged([made], since))
        return dict(polls[-1].stores["a:1"].objects)

    polls: list[ClusterStatistics] = []
    first = poll(None, 10.0, ObjectRow("s3://b", 100, 50, 1, 1_000, 2_000), ObjectRow("gs://b", 1, 1, 0, 0, 0))
    assert first["s3://b"] == ObjectLoad("s3://b", 100, 50, 1, 1_000, 2_000)
    second = poll(polls[-1], 12.0, ObjectRow("s3://b", 108, 52, 1, 3_000, 2_000), ObjectRow("gs://b", 3, 1, 0, 0, 0))
    load = second["s3://b"]
    assert (load.writes_per_s, load.reads_per_s, load.sent_bytes_per_s, load.received_bytes_per_s) == (4, 1, 1_000, 0)
    assert load.dollars_per_month == pytest.approx(2.592e6 * (4 * 5e-6 + 4e-7))
    assert (second["gs://b"].writes_per_s, second["gs://b"].dollars_per_month) == (1, None)
    third = poll(polls[-1], 14.0, ObjectRow("s3://b", 2, 0, 0, 0, 0))
    assert third["s3://b"].writes_per_s is None
    lines = lines_of(polls[1], 5)
    (row,) = [line for line in lines if line.startswith("s3://b")]
    assert row.split()[:6] == ["s3://b", "a:1", "108", "52", "4.0", "1.0"]
    assert row.split()[-1] == "53"
    assert not [line for line in lines_of(replace(polls[1], stores={}), 5) if line.startswith("bucket")]
