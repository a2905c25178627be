"""`ValueWriter`: an `EventWriter` for values that a serializer encodes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Sequence
from typing import Generic, Protocol

from penstock.client.common.serializers import Serializer, Value
from penstock.client.common.value_handle import ValueHandle
from penstock.client.writing.ack import Ack, OnDelivery
from penstock.client.writing.event_writer import EventWriter
from penstock.model.errors import InvalidArgumentError, WriteTimeoutError
from penstock.model.times import NotedTime

#: Values serialized before yielding to the event loop.
_SLICE_VALUE_COUNT = 512


class _WriteMany(Protocol):
    async def __call__(
        self, events: Sequence[bytes], routing_keys: str | Sequence[str] | None, *, timeout_s: float | None
    ) -> None: ...


async def write_values(
    write_many: _WriteMany,
    serialize: Callable[[Value], bytes],
    values: Sequence[Value],
    routing_keys: str | Sequence[str] | None,
    timeout_s: float | None,
) -> None:
    """Write values by the `write_many` of an `EventWriter` or a `Transaction`, a slice at a time."""
    if routing_keys is not None and not isinstance(routing_keys, str) and len(routing_keys) != len(values):
        raise InvalidArgumentError(f"{len(values)} values came with {len(routing_keys)} routing keys")
    loop = asyncio.get_running_loop()
    deadline_s = None if timeout_s is None else loop.time() + timeout_s
    for start in range(0, len(values), _SLICE_VALUE_COUNT):
        end = start + _SLICE_VALUE_COUNT
        keys = routing_keys if routing_keys is None or isinstance(routing_keys, str) else routing_keys[start:end]
        left_s = None if deadline_s is None else max(deadline_s - loop.time(), 0.0)
        try:
            await write_many(list(map(serialize, values[start:end])), keys, timeout_s=left_s)
        except WriteTimeoutError as error:
            error.taken_count += start
            raise
        await asyncio.sleep(0)


class ValueWriter(ValueHandle[EventWriter], Generic[Value]):
    """Writes values; otherwise as `EventWriter`. Made by `Client.event_writer` with a serializer.

    A value that cannot be serialized raises `SerializationError`, and is not written.

    Attributes:
        events: the writer of the bytes, for operations that this class does not offer.
        serializer: serializes the values.
    """

    def __init__(self, events: EventWriter, serializer: Serializer[Value]) -> None:
        super().__init__(events)
        self.serializer = serializer

    async def write(
        self,
        value: Value,
        routing_key: str | None = None,
        *,
        timeout_s: float | None = None,
        on_delivery: OnDelivery | None = None,
    ) -> Ack:
        """Write a value; see `EventWriter.write`."""
        event = self.serializer.serialize(value)
        return await self.events.write(event, routing_key, timeout_s=timeout_s, on_delivery=on_delivery)

    async def write_many(
        self,
        values: Sequence[Value],
        routing_keys: str | Sequence[str] | None = None,
        *,
        timeout_s: float | None = None,
    ) -> None:
        """Write many values; see `EventWriter.write_many`. Values before one that fails may be written.

        `WriteTimeoutError` reports how many were taken if not all were taken within `timeout_s`.
        """
        await write_values(self.events.write_many, self.serializer.serialize, values, routing_keys, timeout_s)

    async def flush(self, timeout_s: float | None = None) -> None:
        """Wait until everything written so far is durable; see `EventWriter.flush`."""
        await self.events.flush(timeout_s)

    async def note_time(self, time: NotedTime) -> None:
        """Note that everything written so far is of `time` or before; see `EventWriter.note_time`."""
        await self.events.note_time(time)

    async def close(self, timeout_s: float | None = None) -> None:
        """Flush and stop; see `EventWriter.close`."""
        await self.events.close(timeout_s)

    async def _start(self) -> ValueWriter[Value]:
        """Look up the segments. Raises `NoSuchStreamError`, `StreamSealedError`."""
        await self.events._start()
        return self

    def __await__(self) -> Generator[object, None, ValueWriter[Value]]:
        """Call `_start` unless it was called already."""
        return self.__aenter__().__await__()

    async def __aenter__(self) -> ValueWriter[Value]:
        await self.events.__aenter__()
        return self
