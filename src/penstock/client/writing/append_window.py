"""`AppendWindow`: assigns the events of one segment to blocks, and decides which blocks are sent again. No I/O.

Events collect in an open block. It is sent when nothing is in flight, or when it has enough bytes for a further block
on the wire; a full one waits its turn. While acknowledgements take long, fewer bytes are enough: otherwise each event
would wait for the acknowledgement of those before it, and then as long for its own.

Event numbers count the events of this writer in this segment from 1; a block carries the number of its last event.
Blocks are stored whole or not at all, keep their numbers permanently and are acknowledged in order. After a reconnect,
the server's last stored number therefore determines exactly which blocks to send again.

Not thread-safe: the writer's lock guards it.

Source: wire-protocol 3.2, 3.3, 3.6.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import cast

from penstock.client.writing.ack import AckState
from penstock.client.writing.in_flight_limit import InFlightLimit
from penstock.model.errors import ProtocolError
from penstock.model.events import EVENT_HEADER_LENGTH, EVENT_LENGTH_MAX, frame_events, framed_length_at, split_events
from penstock.model.segments import NO_VALUE, Buffer

#: A block that has been in flight for this long shows that acknowledgements take long: the log is in a bucket.
SLOW_ACKNOWLEDGEMENT_S = 0.02
#: The open block then follows with this share of the writer's unacknowledged bytes, so that all its segments together
#: send about so many blocks during one wait ...
_SLOW_BLOCK_SHARE = 64
#: ... but not with fewer bytes than this, which cost a server about as much as the block itself.
SLOW_BLOCK_BYTES_MIN = 4096


@dataclass(frozen=True, slots=True)
class WindowLimits:
    """See the settings of the same names in `ClientSettings`."""

    block_bytes_max: int
    pipelined_block_bytes_min: int
    in_flight_block_count_max: int
    in_flight_bytes_max: int
    slow_in_flight_bytes_max: int = 0


class Block:
    """Events that are sent together. `last_number` is 0 until the block has been sent once.

    `data` are the framed bytes once the block is closed; before that the events are in `events`. `key_parts` and then
    `keys` hold the routing key of each event, needed if the segment is sealed and the events must be moved to its
    successors. A part may be an object that computes its keys only then.
    """

    __slots__ = (
        "ack",
        "data",
        "event_count",
        "events",
        "is_large",
        "key_parts",
        "keys",
        "last_number",
        "sent_s",
        "size_bytes",
    )

    def __init__(self, ack: AckState) -> None:
        self.ack: AckState = ack
        self.events: list[Buffer] = []
        self.key_parts: list[Sequence[str | None] | Callable[[], Sequence[str]]] = []
        #: A tuple once the block is closed, with the same read access.
        self.keys: list[str | None] = []
        self.data: Buffer | None = None
        self.event_count: int = 0
        #: Framed length.
        self.size_bytes: int = 0
        self.last_number: int = 0
        #: The loop's time when it was sent last.
        self.sent_s: float = 0.0
        self.is_large: bool = False

    def framed(self) -> Buffer:
        """Return the events with their headers. After the first call the block takes no more events."""
        if self.data is None:
            self.data = frame_events(self.events)
            self.events = []
            # Python's collector does not track a tuple of text; it traverses a list of it again and again, and half a
            # million keys may be in flight.
            self.keys = cast("list[str | None]", tuple(self.keys))
        return self.data

    def cut(self, bytes_max: int, event_count_max: int) -> tuple[Sequence[Buffer], list[str | None]]:
        """Remove the first events, with their keys: up to both limits (framed bytes and events), but at least one."""
        events: list[Buffer] = []
        size_bytes = 0
        data = None if self.data is None else memoryview(self.data)
        for index in range(min(event_count_max, self.event_count)):
            if data is None:
                framed_bytes = len(self.events[index]) + EVENT_HEADER_LENGTH
            else:
                framed_bytes = framed_length_at(data, size_bytes) or 0
            if events and size_bytes + framed_bytes > bytes_max:
                break
            if data is None:
                events.append(self.events[index])
            else:
                events.append(bytes(data[size_bytes + EVENT_HEADER_LENGTH : size_bytes + framed_bytes]))
            size_bytes += framed_bytes
        if data is None:
            del self.events[: len(events)]
        else:
            self.data = data[size_bytes:]
        if self.key_parts:
            parts = (part() if callable(part) else part for part in self.key_parts)
            self.keys = [*chain.from_iterable(parts), *self.keys]
            self.key_parts = []
        keys = list(self.keys[: len(events)])
        self.keys = self.keys[len(events) :]
        self.event_count -= len(events)
        self.size_bytes -= size_bytes
        return events, keys

    def payloads(self) -> Sequence[Buffer]:
        """Return the events again, without headers."""
        if self.data is None:
            return self.events
        return split_events(self.data)[0]


class AppendWindow:
    """The blocks of one segment, from the first event in an open block to the acknowledgement.

    `unacknowledged_bytes` returns those of all segments of the writer; without it, what is in flight here counts.
    """

    __slots__ = (
        "_ack_factory",
        "_limits",
        "_slow_limit",
        "_unacknowledged_bytes",
        "in_flight",
        "in_flight_bytes",
        "last_number",
        "open",
        "ready",
    )

    def __init__(
        self,
        limits: WindowLimits,
        ack_factory: Callable[[], AckState],
        *,
        unacknowledged_bytes: Callable[[], int] | None = None,
    ) -> None:
        self._limits = limits
        self._unacknowledged_bytes = unacknowledged_bytes or (lambda: self.in_flight_bytes)
        #: Above the other two limits while the store acknowledges slowly.
        self._slow_limit = InFlightLimit(limits.slow_in_flight_bytes_max)
        self._ack_factory = ack_factory
        #: The block that takes events, or None. The blocks' order is: `in_flight`, `ready`, `open`.
        self.open: Block | None = None
        #: Closed blocks to send, the oldest first. Blocks sent earlier over a lost connection have their numbers.
        self.ready: deque[Block] = deque()
        #: Sent and not acknowledged.
        self.in_flight: deque[Block] = deque()
        self.in_flight_bytes: int = 0
        #: Number of the last event ever sent.
        self.last_number: int = 0

    @property
    def is_empty(self) -> bool:
        """True when every event is acknowledged."""
        return self.open is None and not self.ready and not self.in_flight

    def oldest(self) -> Block | None:
        """Return the oldest block that is not acknowledged, or None."""
        if self.in_flight or self.ready:
            return (self.in_flight or self.ready)[0]
        return self.open

    def drop_oldest(self) -> None:
        """Remove the oldest block, whose events have been moved to other segments."""
        if self.in_flight:
            self.in_flight.popleft()
        elif self.ready:
            self.ready.popleft()
        else:
            self.open = None

    def pending(self) -> list[Block]:
        """Return all blocks that are not acknowledged, oldest first."""
        return [*self.in_flight, *self.ready, *([self.open] if self.open is not None else [])]

    def add(self, event: Buffer, key: str | None, size_bytes: int) -> AckState:
        """Take one event, `size_bytes` long with its header; return the ack of its block."""
        block = self.open
        if block is None or block.size_bytes + size_bytes > self._limits.block_bytes_max:
            block = self._roll(size_bytes)
        block.events.append(event)
        block.keys.append(key)
        block.event_count += 1
        block.size_bytes += size_bytes
        return block.ack

    def add_many(self, events: Sequence[Buffer], keys: Sequence[str | None], size_bytes: int) -> AckState:
        """Take events of `size_bytes` in all, with headers; return the ack of their block.

        They stay together, so the caller keeps their size near `block_bytes_max`; ordinary events only.
        """
        block = self.open
        if block is None or block.size_bytes + size_bytes > self._limits.block_bytes_max:
            block = self._roll(0)
        block.events.extend(events)
        block.keys.extend(keys)
        block.event_count += len(events)
        block.size_bytes += size_bytes
        return block.ack

    def add_keyed(self, events: Sequence[Buffer], find_keys: Callable[[], Sequence[str]], size_bytes: int) -> AckState:
        """As `add_many`, with a function that computes the keys of the events: they are rarely needed."""
        ack = self.add_many(events, (), size_bytes)
        block = self.open
        assert block is not None, "events were put into it"
        if block.keys:
            block.key_parts.append(block.keys)
            block.keys = []
        block.key_parts.append(find_keys)
        return ack

    def add_framed(self, data: Buffer, event_count: int, keys: Sequence[str | None]) -> AckState:
        """Take events that are framed already, as a separate block; `keys` has one entry per event."""
        self.close_open()
        block = Block(self._ack_factory())
        block.data = data
        block.keys = cast("list[str | None]", tuple(keys))
        block.event_count = event_count
        block.size_bytes = len(data)
        self.ready.append(block)
        return block.ack

    def close_open(self) -> None:
        """Close and frame the open block: waiting data is then one buffer, not thousands of objects."""
        if self.open is not None:
            self.open.framed()
            self.ready.append(self.open)
            self.open = None

    def next_to_send(self, now_s: float) -> Block | None:
        """Return the block to send now, numbered and counted as in flight, or None to wait for an acknowledgement.

        `now_s`: the loop's time.

        A large event is sent alone: nothing else is in flight with it.
        """
        block = self.ready[0] if self.ready else self.open
        if block is None:
            return None
        if self.in_flight and (
            block.is_large
            or self.in_flight[-1].is_large
            or not self._has_room(block)
            or self._must_probe(now_s)
            or (block is self.open and not self._is_enough(block.size_bytes, now_s))
        ):
            return None
        if block is self.open:
            self.open = None
        else:
            self.ready.popleft()
        if not block.last_number:
            self.last_number += block.event_count
            block.last_number = self.last_number
        block.sent_s = now_s
        self._slow_limit.sent(block.size_bytes, now_s, in_flight_bytes=self.in_flight_bytes)
        self.in_flight.append(block)
        self.in_flight_bytes += block.size_bytes
        return block

    def _is_enough(self, size_bytes: int, now_s: float) -> bool:
        """Whether the open block is sent after others in flight with this size."""
        bytes_min = self._limits.pipelined_block_bytes_min
        if size_bytes >= bytes_min:
            return True
        if size_bytes < SLOW_BLOCK_BYTES_MIN or now_s - self.in_flight[0].sent_s < SLOW_ACKNOWLEDGEMENT_S:
            return False
        return size_bytes * _SLOW_BLOCK_SHARE >= self._unacknowledged_bytes()

    def _has_room(self, block: Block) -> bool:
        limits = self._limits
        in_flight_bytes = self.in_flight_bytes + block.size_bytes
        # Many small blocks may be in flight: together not more than a full one.
        is_small = block.size_bytes < limits.pipelined_block_bytes_min and in_flight_bytes <= limits.block_bytes_max
        is_usual = is_small or len(self.in_flight) < limits.in_flight_block_count_max
        return (is_usual and in_flight_bytes <= limits.in_flight_bytes_max) or (
            in_flight_bytes <= self._slow_limit.limit_bytes
        )

    def _must_probe(self, now_s: float) -> bool:
        limits = self._limits
        usual_bytes = min(limits.in_flight_block_count_max * limits.block_bytes_max, limits.in_flight_bytes_max)
        return self._slow_limit.limit_bytes > usual_bytes and self._slow_limit.must_probe(now_s)

    def acknowledge(self, event_number: int, now_s: float) -> list[Block]:
        """Remove and return the blocks in flight up to `event_number`. Raises `ProtocolError` if it cannot be.

        `now_s`: the loop's time.
        """
        in_flight_bytes = self.in_flight_bytes
        done: list[Block] = []
        while self.in_flight and self.in_flight[0].last_number <= event_number:
            block = self.in_flight.popleft()
            self.in_flight_bytes -= block.size_bytes
            done.append(block)
        if not done or done[-1].last_number != event_number:
            raise ProtocolError(
                f"event number {event_number} was acknowledged, which does not end a block in flight "
                f"(last sent {self.last_number})"
            )
        self._slow_limit.acknowledged(
            in_flight_bytes - self.in_flight_bytes, now_s, in_flight_bytes=self.in_flight_bytes
        )
        return done

    def reconnect(self, last_event_number: int) -> list[Block]:
        """Apply the server's last stored number on a new connection; return the blocks that it shows to be stored.

        All other blocks in flight go back to the front of `ready`, in order and with their numbers. Raises
        `ProtocolError` if the number is not the end of a block: another writer uses this writer id.
        """
        stored: list[Block] = []
        known_ends = {block.last_number for block in self.in_flight}
        first_unsure = self.in_flight[0].last_number - self.in_flight[0].event_count if self.in_flight else None
        floor = self.last_number if first_unsure is None else first_unsure
        # Blocks that were numbered earlier and put back into `ready` may be stored too.
        for block in self.ready:
            if block.last_number:
                known_ends.add(block.last_number)
                floor = min(floor, block.last_number - block.event_count)
        if last_event_number != NO_VALUE and last_event_number > floor and last_event_number not in known_ends:
            raise ProtocolError(
                f"the segment store has event number {last_event_number} of this writer, which it never sent as the "
                f"end of a block (last sent {self.last_number})"
            )
        if last_event_number < floor and not (last_event_number == NO_VALUE and floor == 0):
            raise ProtocolError(
                f"the segment store has lost events: its last number of this writer is {last_event_number}, "
                f"but {floor} was acknowledged"
            )
        while self.in_flight:
            self.ready.appendleft(self.in_flight.pop())
        self.in_flight_bytes = 0
        self._slow_limit.reset()
        while self.ready and self.ready[0].last_number and self.ready[0].last_number <= last_event_number:
            stored.append(self.ready.popleft())
        return stored

    def settle_unnumbered(self, block: Block) -> None:
        """Remove a large event that was stored without its number: the number can be used again."""
        assert list(self.in_flight) == [block], "a large event travels alone"
        self.in_flight.clear()
        self.in_flight_bytes = 0
        self.last_number = block.last_number - block.event_count

    def take_all(self) -> list[Block]:
        """Remove and return all unacknowledged blocks, oldest first."""
        blocks = self.pending()
        self.open = None
        self.ready.clear()
        self.in_flight.clear()
        self.in_flight_bytes = 0
        return blocks

    def _roll(self, size_bytes: int) -> Block:
        self.close_open()
        block = Block(self._ack_factory())
        if size_bytes > EVENT_LENGTH_MAX + EVENT_HEADER_LENGTH:
            # The caller adds the event before any other step.
            block.is_large = True
            self.ready.append(block)
        else:
            self.open = block
        return block
