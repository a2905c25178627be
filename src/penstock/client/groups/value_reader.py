"""`ValueReader`: a `Reader` that deserializes events to values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Generic, NamedTuple

from penstock.client.common.serializers import Serializer, Value
from penstock.client.common.value_handle import ValueHandle
from penstock.client.groups.reader import BATCH_BYTES_MAX, Reader, chunk_in_hand, next_chunk
from penstock.client.reading.event import Event, EventBatch, EventChunk
from penstock.client.streams.time_windows import TimeWindow
from penstock.model.errors import CorruptionError, UndecodableEventError
from penstock.model.names import segment_name, split_scoped_name


class ValueEvent(NamedTuple, Generic[Value]):
    """One event as a value, and its place; see `Event` for the fields."""

    value: Value
    segment_id: int
    offset: int
    stream: str
    position: int
    redelivery_count: int = 0


@dataclass(frozen=True, slots=True)
class ValueBatch(Generic[Value]):
    """Values of consecutive events of one segment; see `EventBatch` for the fields."""

    stream: str
    segment_id: int
    values: list[Value]
    offsets: list[int]
    redelivery_count: int = 0

    @property
    def position(self) -> int:
        """Byte in the segment where the event after these starts."""
        return self.offsets[-1]

    def __len__(self) -> int:
        return len(self.values)


class ValueReader(ValueHandle[Reader], Generic[Value]):
    """Reads values; otherwise as `Reader`. Made by `ReaderGroup.reader` with a serializer.

    An event that the serializer cannot decode raises `UndecodableEventError`, which contains its place. It remains the
    next event, unread, until the application reads it as bytes with ``events.read()``; so no event is skipped silently.

    Attributes:
        events: the reader of the bytes, for operations that this class does not offer.
        serializer: deserializes the bytes.
    """

    def __init__(self, events: Reader, serializer: Serializer[Value]) -> None:
        super().__init__(events)
        self.serializer = serializer

    @property
    def name(self) -> str:
        """The reader's name in its group."""
        return self.events.name

    @property
    def is_finished(self) -> bool:
        """True when the group has read everything; see `Reader.is_finished`."""
        return self.events.is_finished

    async def read(self, timeout_s: float | None = None) -> ValueEvent[Value] | None:
        """Return the next event as a value; see `Reader.read`. Raises `UndecodableEventError`."""
        chunk = chunk_in_hand(self.events) or await next_chunk(self.events, timeout_s)
        return None if chunk is None else take_value(chunk, self.serializer.deserialize)

    async def read_batch(
        self, max_bytes: int = BATCH_BYTES_MAX, timeout_s: float | None = None
    ) -> ValueBatch[Value] | None:
        """Return the next values of one segment, up to one that cannot be decoded; see `Reader.read_batch`.

        Raises `UndecodableEventError` if the first one cannot be decoded.
        """
        chunk = chunk_in_hand(self.events) or await next_chunk(self.events, timeout_s)
        return None if chunk is None else take_values(chunk, self.serializer.deserialize, max_bytes)

    def __aiter__(self) -> ValueReader[Value]:
        return self

    async def __anext__(self) -> ValueEvent[Value]:
        event = await self.read()
        if event is None:
            raise StopAsyncIteration
        return event

    async def store_positions(self) -> None:
        """Store this reader's positions now; see `Reader.store_positions`."""
        await self.events.store_positions()

    async def time_window(self, stream: str) -> TimeWindow:
        """Return the bounds of the group's time in a stream; see `Reader.time_window`."""
        return await self.events.time_window(stream)

    def position(self) -> dict[str, int]:
        """Return the end of the events returned so far (segment -> offset), for `commit` and `seek`."""
        return self.events.position()

    async def commit(self, at: ValueEvent[Value] | ValueBatch[Value] | Mapping[str, int] | None = None) -> None:
        """Mark events as done; see `Reader.commit`."""
        await self.events.commit({_segment_of(at): at.position} if isinstance(at, ValueEvent | ValueBatch) else at)

    async def seek(self, at: ValueEvent[Value] | Mapping[str, int]) -> None:
        """Continue from `at` again; see `Reader.seek`."""
        await self.events.seek({_segment_of(at): at.offset} if isinstance(at, ValueEvent) else at)

    async def skip(self, damage: CorruptionError) -> int:
        """Skip the bytes of a segment that are not events; see `Reader.skip`."""
        return await self.events.skip(damage)

    async def close(self, timeout_s: float | None = None, *, is_done: bool | None = None) -> None:
        """Store positions, leave the group and stop; see `Reader.close`."""
        await self.events.close(timeout_s, is_done=is_done)

    async def __aenter__(self) -> ValueReader[Value]:
        await self.events.__aenter__()
        return self


def take_value(chunk: EventChunk, deserialize: Callable[[bytes], Value]) -> ValueEvent[Value]:
    """Return the next event of a chunk as a value. An event that cannot be decoded stays the next one."""
    (value,) = _decoded(chunk, [chunk.events[chunk.following]], deserialize)
    event: Event = chunk.hand_out()
    return ValueEvent(value, *event[1:])


def take_values(chunk: EventChunk, deserialize: Callable[[bytes], Value], bytes_max: int) -> ValueBatch[Value]:
    """Return the next events of a chunk as values, up to one that cannot be decoded."""
    start = chunk.following
    batch: EventBatch = chunk.hand_out_many(bytes_max)
    # Until the number of decodable events is known.
    chunk.following = start
    values = _decoded(chunk, batch.events, deserialize)
    chunk.following = start + len(values)
    return ValueBatch(batch.stream, batch.segment_id, values, batch.offsets[: len(values) + 1], batch.redelivery_count)


def _decoded(chunk: EventChunk, events: list[bytes], deserialize: Callable[[bytes], Value]) -> list[Value]:
    """Return the values of the chunk's next events, up to one that cannot be decoded; raises if that is the first."""
    # Reading more marks the events returned before as done, whatever the outcome.
    chunk.unfinished = chunk.following
    values: list[Value] = []
    try:
        for data in events:
            values.append(deserialize(data))
    except Exception as error:  # An application's serializer may raise anything.
        if not values:
            at = chunk.following
            raise UndecodableEventError(
                stream=chunk.stream,
                segment_id=chunk.segment_id,
                offset=chunk.offsets[at],
                position=chunk.offsets[at + 1],
                data=chunk.events[at],
                reason=str(error) or repr(error),
            ) from error
    return values


def _segment_of(at: ValueEvent[Value] | ValueBatch[Value]) -> str:
    return segment_name(*split_scoped_name(at.stream), at.segment_id)
