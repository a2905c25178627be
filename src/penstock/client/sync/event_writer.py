"""The blocking `EventWriter`. Generated from `penstock.client.writing.event_writer`: do not edit.

`python -m penstock_tools.generate_sync` regenerates it; see ``docs/sync-client.md``.
"""

from __future__ import annotations

from typing import cast

from penstock.client.sync.ack import Ack
from penstock.client.sync.handle import Handle
from penstock.client.writing import event_writer as aio
from penstock.client.writing.ack import OnDelivery
from penstock.client.writing.event_runs import Events, RoutingKeys
from penstock.client.writing.event_writer import is_full, put_of, wait_for_space
from penstock.model.times import NotedTime
from penstock.runtime.portal import Portal


class EventWriter(Handle[aio.EventWriter]):
    """Writes events to a stream or a transaction. Made by `Client.event_writer`; use it as a context manager.

    Leaving the context closes the writer, and closing flushes: all accepted events are stored, or their acks and
    `close` report that they may not be. Every ack is settled in any case.
    """

    def __init__(self, client: object, portal: Portal, part: aio.EventWriter) -> None:
        super().__init__(client, portal, part)
        self._put = put_of(part)

    @property
    def unacknowledged_bytes(self) -> int:
        """Bytes written, headers included, that are not durable yet."""
        return self._part.unacknowledged_bytes

    @property
    def unacknowledged_event_count(self) -> int:
        """Events written that are not durable yet. Counted on access; in any thread."""
        return self._part.unacknowledged_event_count

    @property
    def acknowledged_event_count(self) -> int:
        """Events written that are durable. After a failure: those known to be durable."""
        return self._part.acknowledged_event_count

    def write(
        self,
        event: bytes,
        routing_key: str | None = None,
        *,
        timeout_s: float | None = None,
        on_delivery: OnDelivery | None = None,
    ) -> Ack:
        """Take an event and return its `Ack`; waits only while `max_unacknowledged_bytes` are used up.

        The event is sent at once, or in the next block if one is in flight. Events with the
        same `routing_key` are stored in the order written; an event without a key goes to any segment.

        Args:
            timeout_s: how long to wait for space; None: without limit.
            on_delivery: called in the client's own thread once the event is durable (with None) or has failed.

        If it raises or is cancelled, the event was not taken.

        Raises:
            StreamSealedError: the stream is sealed.
            PenstockError: an earlier event could not be written; the writer takes no more.
            EventTooLargeError: the event is larger than `large_event_bytes_max`.
            WriteTimeoutError: no space became free within `timeout_s`.
        """
        writer = self._part
        if is_full(writer):
            self._portal.call(wait_for_space(writer, timeout_s))
        # Its acks were made for this front end.
        return cast(Ack, self._put(event, routing_key, on_delivery))

    def write_many(self, events: Events, routing_keys: RoutingKeys = None, *, timeout_s: float | None = None) -> None:
        """Write `events` in order, waiting whenever `max_unacknowledged_bytes` are used up. Durable after `flush`.

        `events` are payloads, or a pyarrow (large) binary or string array without nulls; `routing_keys` one key for
        all, or one per event. Without keys the events go to the segments in turn, a block at a time. The call yields to
        other tasks every few thousand events.

        If it raises or is cancelled, a prefix of the events may have been taken. `WriteTimeoutError` reports how many
        were, if not all were taken within `timeout_s`.
        """
        self._portal.call(self._part.write_many(events, routing_keys, timeout_s=timeout_s))

    def flush(self, timeout_s: float | None = None) -> None:
        """Wait until everything written so far is durable. Raises the error of the first event that is not.

        Raises `TimeoutError` if that takes longer than `timeout_s`: the events are still in flight.
        """
        self._portal.call(self._part.flush(timeout_s))

    def note_time(self, time: NotedTime) -> None:
        """Note that all events written so far are of `time` or before; returns when they are durable and it is noted.

        Times are numbers in a unit of the application's choice, or moments, which count in milliseconds since the
        epoch. See `Reader.time_window`. Raises `InvalidArgumentError` for a time before the last one.
        """
        self._portal.call(self._part.note_time(time))
