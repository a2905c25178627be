"""How long a connection waits, for its peer and for room, without a socket. Virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace

import pytest

from penstock.segmentstore.append_processor import AppendProcessor
from penstock.segmentstore.connection import Connection
from penstock.segmentstore.ingest_window import WINDOW_BYTES_LEAST
from penstock.segmentstore.server import SegmentStoreServer
from penstock.segmentstore.settings import ConnectionSettings, SegmentStoreSettings
from penstock.segmentstore.tier1.memory_log import MemoryLogFactory
from penstock.wire.codec import encode
from penstock.wire.commands import AppendBlock, Hello, KeepAlive
from penstock_simulation.simulated.simulation import Simulation
from support.containers import QUIET, SMALL_CACHE, FaultyChunks, memory_runtime, memory_store

SETTINGS = ConnectionSettings(
    unacknowledged_bytes_max=100_000, receive_buffer_bytes=1000, frame_timeout_s=10.0, read_delay_s_max=5.0
)
FRAME = encode(KeepAlive())
OPEN_BLOCK = encode(AppendBlock(b"w" * 16, bytes(500)))


def in_virtual_time(scenario: Callable[[], Coroutine[object, object, None]]) -> None:
    with Simulation(1) as simulation:
        simulation.run(scenario)


class Socket(asyncio.Transport):
    """A peer that takes everything."""

    def __init__(self) -> None:
        super().__init__()
        self.is_closed = False
        self.is_read = True

    def write(self, data: object) -> None:
        pass

    def close(self) -> None:
        self.is_closed = True

    abort = close

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return 0

    def get_extra_info(self, name: str, default: object = None) -> object:
        return default

    def pause_reading(self) -> None:
        self.is_read = False

    def resume_reading(self) -> None:
        self.is_read = True


class Bench:
    """A connection that was greeted, of a server of its own or of another one's."""

    def __init__(self, connection: ConnectionSettings = SETTINGS, *, beside: Bench | None = None) -> None:
        self.server = new_server(connection) if beside is None else beside.server  # type: ignore[has-type]
        self.socket = Socket()
        self.connection = Connection(self.server)
        self.connection.connection_made(self.socket)
        self.feed(encode(Hello(17, 5)))

    def feed(self, data: bytes) -> None:
        """One read."""
        buffer = self.connection.get_buffer(-1)
        buffer[: len(data)] = data
        self.connection.buffer_updated(len(data))

    def fill(self) -> None:
        """Hold so much that nothing more is read."""
        self.connection.note_outstanding(SETTINGS.unacknowledged_bytes_max + 1)
        assert not self.socket.is_read

    def relieve(self) -> None:
        self.connection.note_outstanding(-SETTINGS.unacknowledged_bytes_max - 1)
        assert self.socket.is_read


def new_server(connection: ConnectionSettings) -> SegmentStoreServer:
    """Return a server that does not listen."""
    settings = SegmentStoreSettings(container_count=1, cache=SMALL_CACHE, container=QUIET, connection=connection)
    runtime = memory_runtime()
    server = SegmentStoreServer(memory_store(MemoryLogFactory(runtime), FaultyChunks(), runtime, settings))
    server.loop = asyncio.get_running_loop()
    return server


@pytest.mark.parametrize("comes", [0, 1])
def test_no_writer_is_reset_for_an_empty_receive_queue(monkeypatch: pytest.MonkeyPatch, comes: int) -> None:
    """The connection was read again and nothing was there. If something comes that fills the buffer, more may stand."""
    given_up: list[AppendProcessor] = []

    def reset_writers(appends: AppendProcessor) -> int:
        given_up.append(appends)
        return 0

    monkeypatch.setattr(AppendProcessor, "reset_writers", reset_writers)

    async def scenario() -> None:
        bench = Bench()
        bench.fill()
        await asyncio.sleep(1)
        bench.relieve()
        if comes:
            monkeypatch.setattr(type(bench.connection._receiver), "was_filled", True)
            bench.feed(FRAME)
        await asyncio.sleep(10)
        assert len(given_up) == comes
        assert bench.socket.is_read
        # The bound holds again from the next time on.
        bench.fill()
        await asyncio.sleep(10)
        assert len(given_up) == comes + 1

    in_virtual_time(scenario)


def test_time_for_which_we_do_not_read_is_not_taken_from_a_frame() -> None:
    """Its rest stood in the receive queue: the peer gets the whole time again, and no more than that."""

    async def scenario() -> None:
        bench = Bench()
        bench.feed(FRAME[:5])
        await asyncio.sleep(6)
        bench.fill()
        await asyncio.sleep(3.5)
        bench.relieve()
        await asyncio.sleep(9)
        assert not bench.socket.is_closed
        await asyncio.sleep(1.1)
        assert bench.socket.is_closed

    in_virtual_time(scenario)


def test_an_idle_connection_and_slow_but_moving_frames_stay() -> None:
    """The bound is for one frame: a connection each of whose reads ends inside another frame is healthy."""

    async def scenario() -> None:
        bench = Bench()
        bench.feed(FRAME[:4])
        for _ in range(8):
            await asyncio.sleep(2)
            bench.feed(FRAME[4:] + FRAME[:4])
        bench.feed(FRAME[4:])
        await asyncio.sleep(60)
        assert not bench.socket.is_closed

    in_virtual_time(scenario)


def test_an_append_block_whose_end_never_comes_is_bounded() -> None:
    """Whatever else comes meanwhile: the block keeps its part of the budget."""

    async def scenario() -> None:
        bench = Bench()
        bench.feed(OPEN_BLOCK)
        for _ in range(9):
            await asyncio.sleep(1)
            bench.feed(FRAME + FRAME[:3])
            bench.feed(FRAME[3:])
        assert not bench.socket.is_closed
        await asyncio.sleep(1.1)
        assert bench.socket.is_closed

    in_virtual_time(scenario)


def test_what_is_read_beyond_the_budget_is_bounded_in_each_delay() -> None:
    """Appends were given up and the connection is read on, but what comes are requests that fill memory, too.

    After as much as may have stood in the receive queue it is not read again until the next delay is over.
    """

    async def scenario() -> None:
        bench = Bench()
        bench.fill()
        await asyncio.sleep(SETTINGS.read_delay_s_max + 0.1)
        assert bench.socket.is_read
        piece = SETTINGS.receive_buffer_bytes // 4
        for _ in range(2):
            taken = 0
            while bench.socket.is_read:
                bench.connection._ingest.received_bytes += piece  # As if so long a request had come, and waited.
                bench.connection.note_outstanding(piece)
                taken += piece
                assert taken <= 3 * SETTINGS.receive_buffer_bytes
            assert taken >= 2 * SETTINGS.receive_buffer_bytes  # type: ignore[unreachable]
            await asyncio.sleep(SETTINGS.read_delay_s_max + 0.1)
            assert bench.socket.is_read

    in_virtual_time(scenario)


def test_requests_that_are_answered_do_not_stop_the_reading_beyond_the_budget() -> None:
    """Reads and small requests behind appends that are thrown away: nothing of them stays."""

    async def scenario() -> None:
        bench = Bench()
        bench.fill()
        await asyncio.sleep(SETTINGS.read_delay_s_max + 0.1)
        for _ in range(100):
            bench.connection._ingest.received_bytes += SETTINGS.receive_buffer_bytes
            bench.connection.note_outstanding(1000)
            bench.connection.note_outstanding(-1000)
            assert bench.socket.is_read

    in_virtual_time(scenario)


def test_a_connection_that_has_as_much_under_way_as_is_done_in_the_wait_is_not_read() -> None:
    """It continues when less is under way; also when nothing was done for a while: that waits for something else."""

    async def scenario() -> None:
        bench = Bench(replace(SETTINGS, ingest_window_bytes_min=10_000))
        bench.connection.note_outstanding(10_001)
        assert not bench.socket.is_read
        bench.connection.note_outstanding(-2000)
        assert not bench.socket.is_read
        bench.connection.note_outstanding(-501)
        assert bench.socket.is_read
        bench.connection.note_outstanding(5000)  # type: ignore[unreachable]
        assert not bench.socket.is_read
        await asyncio.sleep(5 * SETTINGS.ingest_wait_s)
        assert bench.socket.is_read
        bench.connection.note_outstanding(10_001)
        assert not bench.socket.is_read
        # Up to what one connection may fill, whatever it waits for.
        bench.connection.note_outstanding(SETTINGS.unacknowledged_bytes_max)
        await asyncio.sleep(5 * SETTINGS.ingest_wait_s)
        assert not bench.socket.is_read

    in_virtual_time(scenario)


def test_a_frame_longer_than_the_window_is_read_to_its_end() -> None:
    """Nothing else is under way, and the frame completes only if it is read. Earlier, a large event hung here."""

    async def scenario() -> None:
        bench = Bench(replace(SETTINGS, ingest_window_bytes_min=10_000))
        bench.connection._ingest.note_frames(4 * 1024 * 1024)
        assert bench.socket.is_read

    in_virtual_time(scenario)


def test_a_lost_connection_stops_the_timer_of_its_window() -> None:
    async def scenario() -> None:
        bench = Bench(replace(SETTINGS, ingest_window_bytes_min=10_000))
        bench.connection.note_outstanding(10_001)
        bench.connection.connection_lost(None)
        await asyncio.sleep(10)
        assert not bench.socket.is_read

    in_virtual_time(scenario)


def test_a_connection_that_is_read_on_takes_appends_again_when_its_own_are_done() -> None:
    """Its writers were sent away, and wait to be set up again: nothing else may come that would let them.

    The budget had room before that, but the window had none; and only whom the budget stops is inspected when it has.
    """

    async def scenario() -> None:
        bench = Bench()
        bench.fill()
        await asyncio.sleep(SETTINGS.read_delay_s_max + 0.1)
        assert bench.socket.is_read
        assert bench.connection._appends._is_draining
        bench.server.budget.forget(bench.connection._ingest)
        bench.connection.note_outstanding(-SETTINGS.unacknowledged_bytes_max - 1)
        assert not bench.connection._appends._is_draining

    in_virtual_time(scenario)


@pytest.mark.parametrize(("count", "read_on_max"), [(1, 1), (15, 15), (100, 41)])
def test_where_many_have_something_under_way_each_may_have_less(count: int, read_on_max: int) -> None:
    """Half a megabyte under way is little for one, and seconds of appends for a hundred that get done slowly.

    A connection with bytes under way counts as one of few while hardly any other has some.
    """

    async def scenario() -> None:
        first = Bench(ConnectionSettings())
        benches = [first, *(Bench(beside=first) for _ in range(count - 1))]
        for _ in range(8):
            for bench in benches:
                bench.connection.note_outstanding(100_000)
            await asyncio.sleep(0.1)
            for bench in benches:
                bench.connection.note_outstanding(-90_000)
                bench.connection.note_outstanding(-10_000)
        assert first.server.budget.busy_count == 0
        for bench in benches:
            bench.connection.note_outstanding(200_000)
        read_on = sum(bench.socket.is_read for bench in benches)
        assert min(count, 15) <= read_on <= read_on_max
        assert first.server.budget.busy_count == count
        for bench in benches:
            bench.connection.connection_lost(None)
        assert first.server.budget.busy_count == 0

    in_virtual_time(scenario)


def test_a_read_brings_no_more_than_the_window_has_room_for() -> None:
    """What the kernel holds of one of many connections may be several windows; but some appends are read at a time."""

    async def scenario() -> None:
        bench = Bench(ConnectionSettings())
        while (length := len(bench.connection.get_buffer(-1))) < 512 * 1024:
            bench.feed(FRAME * (length // len(FRAME)) + FRAME[: length % len(FRAME)])
            bench.feed(FRAME[length % len(FRAME) :] if length % len(FRAME) else FRAME)
        bench.connection.note_outstanding(400 * 1024)
        assert bench.socket.is_read
        assert len(bench.connection.get_buffer(-1)) == 512 * 1024
        bench.server.budget.busy_count += 127
        assert len(bench.connection.get_buffer(-1)) == 112 * 1024
        bench.connection.note_outstanding(100 * 1024)
        assert len(bench.connection.get_buffer(-1)) == WINDOW_BYTES_LEAST

    in_virtual_time(scenario)
