"""`AppendLoad`: writers that keep a fixed number of blocks under way, spread evenly over segments.

However many segments there are, the same bytes are under way in blocks of the same length: what differs is where they
go. One connection is one writer, as in Pravega's clients, with an id of its own for each segment.
"""

from __future__ import annotations

import asyncio
import os
import struct
import time
from collections import deque
from collections.abc import Mapping, Sequence

from _wire import UnexpectedReplyError, ask, connect
from penstock.model.errors import ConnectionLostError
from penstock.wire.commands import AppendBlockEnd, AppendSetup, DataAppended, SetupAppend, WireCommand
from penstock.wire.connection import WireConnection


def block_of(event_bytes: int, event_count: int) -> bytes:
    """Return so many framed events with random payloads, half of which would compress."""
    half = event_bytes // 2
    events = (os.urandom(half) + bytes(event_bytes - half) for _ in range(event_count))
    return b"".join(struct.pack(">ii", 0, event_bytes) + event for event in events)


class AppendWriter:
    """One connection's share of the load. Invariant: at most `window` blocks are not acknowledged."""

    def __init__(
        self,
        connection: WireConnection,
        number: int,
        segments: Sequence[str],
        block: bytes,
        event_count: int,
        window: int,
    ) -> None:
        self._connection = connection
        self._segments = segments
        self._block = block
        self._event_count = event_count
        self._window = window
        self._request_id = 0
        # New ones in each run: event numbers of a writer continue those of an earlier run on the same segment.
        self._ids = [os.urandom(16) for _ in segments]
        self._sent = [0] * len(segments)
        self._sent_at_s: deque[float] = deque()
        self._next = number * len(segments) // 10 % len(segments)
        self._in_flight = 0
        self._blocks_left = 0
        self._is_done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.acknowledged = 0
        self.latencies_s: list[float] = []

    async def set_up(self) -> None:
        """Set a writer up on each segment."""
        gate = asyncio.Semaphore(64)

        async def one(writer: bytes, segment: str) -> None:
            async with gate:
                await ask(self._connection, lambda id_: SetupAppend(id_, writer, segment, ""), AppendSetup)

        await asyncio.gather(*map(one, self._ids, self._segments))
        self._request_id = self._connection.next_request_id()
        self._connection.subscribe(self._request_id, self)

    async def run(self, block_count: int) -> None:
        """Write so many blocks and return when all of them are acknowledged, or after `stop`."""
        self._blocks_left = block_count
        self._pump()
        await self._is_done

    def offer(self, block_count: int) -> None:
        """Write so many blocks more, as soon as the window allows."""
        self._blocks_left += block_count
        self._pump()

    def stop(self) -> None:
        """Begin no more blocks."""
        self._blocks_left = 0
        self._end_if_done()

    def on_reply(self, reply: WireCommand) -> None:
        """See `ReplyHandler`."""
        if not isinstance(reply, DataAppended):
            self._fail(UnexpectedReplyError(f"an append was answered with {reply}"))
            return
        previous = max(0, reply.previous_event_number)
        count = (reply.event_number - previous) // self._event_count
        self._in_flight -= count
        self.acknowledged += count
        now_s = time.perf_counter()
        for _ in range(count):
            self.latencies_s.append(now_s - self._sent_at_s.popleft())
        self._pump()
        self._end_if_done()

    def on_connection_lost(self, error: ConnectionLostError) -> None:
        """See `ReplyHandler`."""
        self._fail(error)

    def on_writable(self) -> None:
        """See `ReplyHandler`."""
        self._pump()

    def _pump(self) -> None:
        connection = self._connection
        while self._blocks_left and self._in_flight < self._window and connection.is_writable:
            position = self._next
            self._next = (position + 1) % len(self._ids)
            self._sent[position] += self._event_count
            self._in_flight += 1
            self._blocks_left -= 1
            self._sent_at_s.append(time.perf_counter())
            block = self._block
            connection.send(
                AppendBlockEnd(
                    self._ids[position], len(block), block, self._event_count, self._sent[position], self._request_id
                )
            )

    def _end_if_done(self) -> None:
        if not self._blocks_left and not self._in_flight and not self._is_done.done():
            self._is_done.set_result(None)

    def _fail(self, error: Exception) -> None:
        if not self._is_done.done():
            self._is_done.set_exception(error)


class AppendLoad:
    """So many writers on so many segments, with `window` blocks under way in all."""

    def __init__(self, segments: Mapping[int, Sequence[str]], *, writers: int, block: bytes, event_count: int) -> None:
        """`segments`: by the port of the store that has them. Each writer has a connection to each."""
        self._writer_count = writers
        self._segments = segments
        self._block = block
        self._event_count = event_count
        self._writers: list[AppendWriter] = []
        self._connections: list[WireConnection] = []

    async def set_up(self, window: int) -> None:
        """Connect, and set all writers up."""
        share = max(1, window // self._writer_count // len(self._segments))
        for number in range(self._writer_count):
            for port, segments in self._segments.items():
                connection = await connect(port)
                self._connections.append(connection)
                writer = AppendWriter(connection, number, segments, self._block, self._event_count, share)
                self._writers.append(writer)
                await writer.set_up()

    @property
    def acknowledged(self) -> int:
        """Blocks acknowledged so far."""
        return sum(writer.acknowledged for writer in self._writers)

    @property
    def latencies_s(self) -> list[float]:
        """The time from the sending to the acknowledgement of each block, in seconds."""
        return [sample for writer in self._writers for sample in writer.latencies_s]

    async def run_for(self, seconds: float) -> tuple[int, float]:
        """Write at full speed; return blocks and seconds, a tenth of the time apart in which everything warms up."""
        running = asyncio.gather(*(writer.run(1 << 62) for writer in self._writers))
        await asyncio.wait((running,), timeout=seconds / 10)
        if running.done():
            running.result()
        blocks, begin_s = self.acknowledged, time.perf_counter()
        for writer in self._writers:
            writer.latencies_s.clear()
        await asyncio.wait((running,), timeout=seconds)
        blocks, took_s = self.acknowledged - blocks, time.perf_counter() - begin_s
        for writer in self._writers:
            writer.stop()
        await running
        return blocks, took_s

    async def offer_for(self, seconds: float, blocks_per_s: float) -> tuple[int, float]:
        """Offer blocks at a fixed rate instead; what the server does not take in time is left behind."""
        loop = asyncio.get_running_loop()
        begin_s = loop.time()
        warm_s = seconds / 10
        offered = 0
        counted: tuple[int, float] | None = None
        while (elapsed_s := loop.time() - begin_s) < seconds + warm_s:
            if counted is None and elapsed_s >= warm_s:
                counted = self.acknowledged, time.perf_counter()
                for writer in self._writers:
                    writer.latencies_s.clear()
            due = int(elapsed_s * blocks_per_s) - offered
            for number in range(due):
                self._writers[(offered + number) % len(self._writers)].offer(1)
            offered += due
            await asyncio.sleep(0.002)
        assert counted is not None
        result = self.acknowledged - counted[0], time.perf_counter() - counted[1]
        for writer in self._writers:
            writer.stop()
        return result

    async def run_blocks(self, count: int) -> float:
        """Write so many blocks; return the seconds until the last is acknowledged."""
        begin_s = time.perf_counter()
        share = -(-count // len(self._writers))
        await asyncio.gather(*(writer.run(share) for writer in self._writers))
        return time.perf_counter() - begin_s

    async def close(self) -> None:
        """Close the connections."""
        for connection in self._connections:
            await connection.close()
