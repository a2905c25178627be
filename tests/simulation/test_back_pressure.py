"""Many connections, a log or a storage that is paused, requests behind appends: in virtual time, over real code.

From the clients' socket calls to the operation log nothing is replaced but the loop, the network, the log's memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

import pytest

from penstock.model.errors import ConnectionLostError
from penstock.model.segments import Buffer
from penstock.segmentstore.server import SegmentStoreServer
from penstock.segmentstore.settings import CacheSettings, ConnectionSettings, SegmentStoreSettings
from penstock.segmentstore.store import SegmentStore
from penstock.segmentstore.tier1.memory_log import MemoryLogFactory
from penstock.wire import connection as wire
from penstock.wire.commands import (
    AppendBlockEnd,
    AppendSetup,
    ConditionalBlockEnd,
    CreateTableSegment,
    DataAppended,
    GetStreamSegmentInfo,
    ReadSegment,
    SegmentRead,
    SetupAppend,
    StreamSegmentInfo,
    WireCommand,
    WrongHost,
)
from penstock_simulation.simulated.host import Host
from penstock_simulation.simulated.simulation import Simulation
from support.containers import QUIET, FaultyChunks, memory_runtime

KIB = 1024
PORT = 6000
CONNECTION_COUNT = 30
BUDGET_BYTES = 2048 * KIB
READ_DELAY_S = 5.0
SETTINGS = SegmentStoreSettings(
    container_count=1,
    cache=CacheSettings(bytes_max=8192 * KIB, block_length=4 * KIB, small_append_length=2 * KIB),
    container=replace(QUIET, outstanding_bytes_max=1024 * KIB, flush_bytes=64 * KIB, writer_interval_s=0.1),
    connection=ConnectionSettings(ingest_bytes_max=BUDGET_BYTES, read_delay_s_max=READ_DELAY_S),
)


def segment_name(number: int) -> str:
    return f"s/t{number}/0.#epoch.0"


class SlowChunks(FaultyChunks):
    """Chunks that take so many bytes a second of all writers together, once `bytes_per_s` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes_per_s = 0
        self.busy_s = 0.0
        self._turn = asyncio.Lock()

    async def write(self, name: str, offset: int, data: Sequence[Buffer]) -> int:
        """See `ChunkStorage.write`."""
        if self.bytes_per_s:
            async with self._turn:
                took_s = sum(map(len, data)) / self.bytes_per_s
                await asyncio.sleep(took_s)
                self.busy_s += took_s
        return await super().write(name, offset, data)


class Stack:
    """A segment store on a simulated host, and another host for its clients."""

    def __init__(self, simulation: Simulation, settings: SegmentStoreSettings) -> None:
        self.simulation = simulation
        self.settings = settings
        self.logs = MemoryLogFactory(memory_runtime())
        self.chunks = SlowChunks()
        self.server: SegmentStoreServer
        self.store: SegmentStore
        self._is_ready: asyncio.Future[None] = simulation.loop.create_future()
        simulation.host("server", self._serve)
        self.clients = simulation.host("clients")

    async def _serve(self, host: Host) -> None:
        self.store = SegmentStore(logs=self.logs, chunks=self.chunks, runtime=host.runtime, settings=self.settings)
        await self.store.start()
        for number in range(CONNECTION_COUNT):
            await self.store.create_segment(segment_name(number))
        self.server = SegmentStoreServer(self.store)
        await self.server.start("0.0.0.0", PORT)
        self._is_ready.set_result(None)
        await asyncio.get_running_loop().create_future()

    async def run(self, scenario: Callable[[Stack], Awaitable[None]]) -> None:
        await self._is_ready

        async def on_clients() -> None:
            await scenario(self)

        await self.clients.run(on_clients())


class Writer:
    """Appends on a connection as fast as it is taken, and begins again where the server says when it is sent away."""

    def __init__(
        self, connection: wire.WireConnection, number: int, length: int, count: int, *, is_conditional: bool = False
    ) -> None:
        self.connection = connection
        self.writer_id = number.to_bytes(16, "big")
        self.segment = segment_name(number)
        self.request_id = connection.next_request_id()
        self.data = bytes([65 + number % 26]) * length
        self.count = count
        #: What is on condition of an offset is not joined with what comes beside it.
        self.is_conditional = is_conditional
        self.sent = 0
        self.acknowledged = 0
        self.away_count = 0
        self.is_done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        connection.subscribe(self.request_id, self)
        connection.send(SetupAppend(self.request_id, self.writer_id, self.segment, ""))

    def on_reply(self, reply: WireCommand) -> None:
        if isinstance(reply, AppendSetup):
            self.sent = max(reply.last_event_number, 0)
            self._acknowledge(self.sent)
            self.on_writable()
        elif isinstance(reply, DataAppended):
            assert reply.previous_event_number < reply.event_number
            self._acknowledge(reply.event_number)
        elif isinstance(reply, WrongHost):
            self.away_count += 1
            self.sent = self.count
            self.connection.send(SetupAppend(self.request_id, self.writer_id, self.segment, ""))
        else:
            raise AssertionError(reply)

    def _acknowledge(self, number: int) -> None:
        self.acknowledged = max(self.acknowledged, number)
        if self.acknowledged == self.count and not self.is_done.done():
            self.is_done.set_result(None)

    def on_writable(self) -> None:
        while self.sent < self.count and self.connection.is_writable:
            self.sent += 1
            if self.is_conditional:
                offset = (self.sent - 1) * len(self.data)
                self.connection.send(ConditionalBlockEnd(self.writer_id, self.sent, offset, self.data, self.request_id))
            else:
                self.connection.send(
                    AppendBlockEnd(self.writer_id, len(self.data), self.data, 1, self.sent, self.request_id)
                )

    def on_connection_lost(self, error: ConnectionLostError) -> None:
        if not self.is_done.done():
            self.is_done.set_exception(error)


async def connect() -> wire.WireConnection:
    settings = wire.ConnectionSettings(keepalive_interval_s=1e6, write_buffer_bytes_max=256 * KIB)
    return await wire.open_connection("server", PORT, settings=settings)


def held_and_accepted_bytes(stack: Stack) -> int:
    """Add up by hand what the connections hold: lanes, and what the log has not confirmed."""
    held = sum(
        operation.byte_count
        for connection in stack.server.connections
        for lane in connection._appends.held_appends
        for operation in lane.operations
    )
    segments = [stack.store.find(segment_name(number))[1] for number in range(CONNECTION_COUNT)]
    return held + sum(segment.length - segment.durable_length for segment in segments)


def play(scenario: Callable[[Stack], Awaitable[None]], settings: SegmentStoreSettings = SETTINGS) -> None:
    with Simulation(seed=5) as simulation:
        stack_of: list[Stack] = []

        async def whole() -> None:
            stack_of.append(Stack(simulation, settings))
            await stack_of[0].run(scenario)

        simulation.run(whole)
        assert simulation.loop.unhandled == []


@pytest.mark.parametrize("length", [40, 20_000])
def test_thirty_connections_against_a_stalled_log_stay_within_the_budget(length: int) -> None:
    """A minute of small or of large appends, ten times what fits. Then the log resumes, and everything arrives."""

    async def scenario(stack: Stack) -> None:
        total = (20 if length > 1000 else 2) << 20
        count = total // CONNECTION_COUNT // length
        stack.logs.hold_appends(0)
        connections = [await connect() for _ in range(CONNECTION_COUNT)]
        stack.logs.release_appends(0)
        writers = [Writer(connection, number, length, count) for number, connection in enumerate(connections)]
        await asyncio.sleep(0.002)
        stack.logs.hold_appends(0)
        peak = 0
        for _ in range(600):
            await asyncio.sleep(0.1)
            peak = max(peak, held_and_accepted_bytes(stack))
            assert stack.server.budget.used_bytes >= held_and_accepted_bytes(stack)
        one_read_each = CONNECTION_COUNT * (stack.server.receive_length + length + 100)
        assert stack.server.budget.used_bytes_highest <= BUDGET_BYTES + one_read_each
        assert peak <= BUDGET_BYTES + one_read_each
        assert sum(writer.acknowledged for writer in writers) < CONNECTION_COUNT * count
        stack.logs.release_appends(0)
        await asyncio.gather(*(writer.is_done for writer in writers))
        assert {stack.store.find(writer.segment)[1].durable_length for writer in writers} == {length * count}
        await asyncio.sleep(1.0)
        assert stack.server.budget.used_bytes == 0

    play(scenario)


@pytest.mark.parametrize("what", ["log", "storage"])
def test_requests_after_a_writer_at_full_speed_are_answered_within_the_bound(what: str) -> None:
    """Reads, information, group state and tables on the writer's own connection, again and again for ten minutes.

    The log is paused, or storage does and the cache is full. Each answer that does not itself need the log comes
    within `read_delay_s_max` and what the network takes. Then all continues, and each event is there once.
    """

    async def scenario(stack: Stack) -> None:
        connection = await connect()
        table, group = "s/_RGtable/0.#epoch.0", "s/_RGgroup/0.#epoch.0"
        create = CreateTableSegment(request_id=1 << 20, segment=table, sorted_deprecated=False, key_length=0, token="")
        await connection.request(1 << 20, create)
        await stack.store.append(segment_name(1), b"there")
        await stack.store.create_segment(group)
        setup = await connection.request(1 << 21, SetupAppend(1 << 21, b"g" * 16, group, ""))
        assert isinstance(setup, AppendSetup)
        writer = Writer(connection, 0, 10_000, 3000)
        if what == "log":
            await asyncio.sleep(0.001)
            stack.logs.hold_appends(0)
        else:
            stack.chunks.hold("write")
        loop = asyncio.get_running_loop()
        slowest_s = 0.0
        for number in range(100):
            await asyncio.sleep(6.0)
            writer.on_writable()
            begin_s = loop.time()
            id_ = connection.next_request_id()
            read = await connection.request(id_, ReadSegment(segment_name(1), 0, 5, "", id_), timeout_s=None)
            assert isinstance(read, SegmentRead)
            if what == "storage":
                id_ = connection.next_request_id()
                info = await connection.request(id_, GetStreamSegmentInfo(id_, segment_name(1), ""), timeout_s=None)
                assert isinstance(info, StreamSegmentInfo)
                id_ = connection.next_request_id()
                state = ConditionalBlockEnd(b"g" * 16, number, 5 * number, b"state", id_)
                assert isinstance(await connection.request(id_, state, timeout_s=None), DataAppended)
            slowest_s = max(slowest_s, loop.time() - begin_s)
        assert slowest_s <= READ_DELAY_S + 1.0
        assert writer.acknowledged < 3000
        assert writer.away_count >= 1
        stack.logs.release_appends(0)
        if what == "storage":
            stack.chunks.release("write")
        await writer.is_done
        found = stack.store.find(writer.segment)[1]
        assert (found.durable_length, found.event_count) == (3000 * 10_000, 3000)

    play(scenario)


def test_with_slow_storage_appends_come_in_as_fast_as_it_takes_them_and_a_single_one_waits_a_turn() -> None:
    """One connection floods in small appends, another sends one now and then, while storage is what bounds both.

    The flood is over when storage has taken it, not later however many appends it is: nothing is delayed by itself.
    Each single append waits a turn, not behind all that the other connection has in line.
    """

    async def scenario(stack: Stack) -> None:
        loop = asyncio.get_running_loop()
        stack.chunks.hold("write")
        flooding = await connect()
        flood = Writer(flooding, 0, 100, 60_000, is_conditional=True)
        throttle = stack.store.containers[0].throttle
        while not throttle.waiting_count:
            await asyncio.sleep(0.1)
            flood.on_writable()
        stack.chunks.bytes_per_s = 2 << 20
        stack.chunks.release("write")
        flood_s = loop.time()
        single = await connect()
        writer_id = b"l" * 16
        id_ = single.next_request_id()
        assert isinstance(await single.request(id_, SetupAppend(id_, writer_id, segment_name(2), "")), AppendSetup)
        held_count = 0
        for number in range(1, 51):
            held_count += bool(throttle.waiting_count)
            begin_s = loop.time()
            id_ = single.next_request_id()
            reply = await single.request(id_, AppendBlockEnd(writer_id, 1, b"x", 1, number, id_))
            assert isinstance(reply, DataAppended)
            assert loop.time() - begin_s < 1.0
            await asyncio.sleep(0.02)
        assert held_count > 10, "storage was what bounded them"
        await flood.is_done
        assert loop.time() - flood_s < 1.5 * stack.chunks.busy_s

    container = replace(SETTINGS.container, flush_write_bytes_max=64 * KIB)
    play(scenario, replace(SETTINGS, container=container))
