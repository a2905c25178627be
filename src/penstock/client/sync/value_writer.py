"""The blocking `ValueWriter`. Generated from `penstock.client.writing.value_writer`: do not edit.

`python -m penstock_tools.generate_sync` regenerates it; see ``docs/sync-client.md``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic

from penstock.client.common.serializers import Value
from penstock.client.sync.ack import Ack
from penstock.client.sync.event_writer import EventWriter
from penstock.client.sync.handle import PlainHandle
from penstock.client.writing import value_writer as aio
from penstock.client.writing.ack import OnDelivery
from penstock.model.times import NotedTime
from penstock.runtime.portal import Portal


class ValueWriter(PlainHandle[aio.ValueWriter[Value]], Generic[Value]):
    """Writes values; otherwise as `EventWriter`. Made by `Client.event_writer` with a serializer.

    A value that cannot be serialized raises `SerializationError`, and is not written.

    Attributes:
        events: the writer of the bytes, for operations that this class does not offer.
        serializer: serializes the values.
    """

    def __init__(self, client: object, portal: Portal, part: aio.ValueWriter[Value]) -> None:
        super().__init__(client, portal, part)
        #: The writer of the bytes.
        self.events: EventWriter = EventWriter(client, portal, part.events)
        self._serialize = part.serializer.serialize

    def write(
        self,
        value: Value,
        routing_key: str | None = None,
        *,
        timeout_s: float | None = None,
        on_delivery: OnDelivery | None = None,
    ) -> Ack:
        """Write a value; see `EventWriter.write`."""
        event = self._serialize(value)
        return self.events.write(event, routing_key, timeout_s=timeout_s, on_delivery=on_delivery)

    def write_many(
        self,
        values: Sequence[Value],
        routing_keys: str | Sequence[str] | None = None,
        *,
        timeout_s: float | None = None,
    ) -> None:
        """Write many values; see `EventWriter.write_many`. Values before one that fails may be written.

        `WriteTimeoutError` reports how many were taken if not all were taken within `timeout_s`.
        """
        self.events.write_many(list(map(self._serialize, values)), routing_keys, timeout_s=timeout_s)

    def flush(self, timeout_s: float | None = None) -> None:
        """Wait until everything written so far is durable; see `EventWriter.flush`."""
        self._portal.call(self._part.flush(timeout_s))

    def note_time(self, time: NotedTime) -> None:
        """Note that everything written so far is of `time` or before; see `EventWriter.note_time`."""
        self._portal.call(self._part.note_time(time))
