"""`ExactlyOnceWriter`: one writer of one segment that follows the rules of the wire protocol, and nothing else.

It keeps what was not acknowledged, and after a lost connection asks what the server has (SetupAppend) and sends the
rest again with the original numbers: wire-protocol 3.2 and 8.
"""

from __future__ import annotations

import asyncio
import random
import struct
from collections import deque

from penstock.wire.codec import decode, encode
from penstock.wire.commands import AppendBlockEnd, AppendSetup, DataAppended, Hello, SetupAppend, WireCommand

NO_EVENT = -(1 << 63)
KEY_COUNT = 5


def encode_event(payload: bytes) -> bytes:
    """Return an event as a segment stores it."""
    return struct.pack(">ii", 0, len(payload)) + payload


def decode_events(data: bytes) -> list[bytes]:
    """Return the payloads of a whole segment."""
    events = []
    position = 0
    while position < len(data):
        kind, length = struct.unpack_from(">ii", data, position)
        assert kind == 0
        assert position + 8 + length <= len(data)
        events.append(data[position + 8 : position + 8 + length])
        position += 8 + length
    return events


class ExactlyOnceWriter:
    """Writes events ``<key> <number in key> <padding>`` as fast as they are acknowledged.

    Attributes:
        segment: full name; it must exist.
        sent: numbers sent so far; event `n` (from 1) has key `n % KEY_COUNT`.
        acknowledged: the highest number that the server has said to be durable.
    """

    def __init__(self, segment: str, seed: int) -> None:
        self.segment = segment
        self.sent = 0
        self.acknowledged = 0
        #: Set at every acknowledgement.
        self.progress = asyncio.Event()
        self._random = random.Random(seed)
        self._writer_id = self._random.randbytes(16)
        # (last number, number of events, bytes) of blocks that are not acknowledged.
        self._pending: deque[tuple[int, int, bytes]] = deque()

    def _new_block(self) -> tuple[int, int, bytes]:
        count = self._random.randint(1, 20)
        parts = []
        for _ in range(count):
            self.sent += 1
            padding = b"." * self._random.choice((0, 10, 100, 1000, 20_000))
            parts.append(encode_event(b"%d %d " % (self.sent % KEY_COUNT, self.sent // KEY_COUNT) + padding))
        return self.sent, count, b"".join(parts)

    async def run(self, port: int, *, is_last: bool = False, in_flight_max: int = 16) -> None:
        """Write until the connection is lost; with `is_last` only what is pending, until all is acknowledged.

        Raises `AssertionError` for an answer that breaks a promise.
        """
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            writer.write(encode(Hello(16, 5)) + encode(SetupAppend(1, self._writer_id, self.segment, "")))
            assert isinstance(await _receive(reader), Hello)
            setup = await _receive(reader)
            assert isinstance(setup, AppendSetup), setup
            stored = 0 if setup.last_event_number == NO_EVENT else setup.last_event_number
            # The promise: acknowledged events are still there.
            assert self.acknowledged <= stored <= self.sent, (self.acknowledged, stored, self.sent)
            while self._pending and self._pending[0][0] <= stored:
                self._pending.popleft()
            # Blocks are stored whole or not at all.
            assert not self._pending or self._pending[0][0] - self._pending[0][1] == stored
            self.acknowledged = previous = stored
            unsent = deque(self._pending)
            in_flight = 0
            while not is_last or self._pending:
                while in_flight < in_flight_max and (unsent or not is_last):
                    if not unsent:
                        self._pending.append(self._new_block())
                    block = unsent.popleft() if unsent else self._pending[-1]
                    last, count, data = block
                    writer.write(encode(AppendBlockEnd(self._writer_id, len(data), data, count, last, 1)))
                    in_flight += 1
                reply = await _receive(reader)
                assert isinstance(reply, DataAppended), reply
                assert max(reply.previous_event_number, 0) == previous
                assert previous < reply.event_number <= self.sent
                while self._pending and self._pending[0][0] <= reply.event_number:
                    self._pending.popleft()
                    in_flight -= 1
                self.acknowledged = previous = reply.event_number
                self.progress.set()
        finally:
            writer.transport.abort()

    def assert_complete(self, events: list[bytes]) -> None:
        """Check the segment's content: every event once, in order."""
        expected = [b"%d %d" % (number % KEY_COUNT, number // KEY_COUNT) for number in range(1, self.sent + 1)]
        assert [event.rsplit(b" ", 1)[0] for event in events] == expected


async def _receive(reader: asyncio.StreamReader) -> WireCommand:
    type_code, length = struct.unpack(">ii", await reader.readexactly(8))
    return decode(type_code, await reader.readexactly(length))
