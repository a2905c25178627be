"""The blocking `ValueReader`. Generated from `penstock.client.groups.value_reader`: do not edit.

`python -m penstock_tools.generate_sync` regenerates it; see ``docs/sync-client.md``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Generic

from penstock.client.common.serializers import Value
from penstock.client.groups import value_reader as aio
from penstock.client.groups.reader import BATCH_BYTES_MAX, chunk_in_hand, next_chunk
from penstock.client.groups.value_reader import ValueBatch, ValueEvent, take_value, take_values
from penstock.client.streams.time_windows import TimeWindow
from penstock.client.sync.handle import PlainHandle
from penstock.client.sync.reader import Reader
from penstock.model.errors import CorruptionError
from penstock.runtime.portal import Portal


class ValueReader(PlainHandle[aio.ValueReader[Value]], Generic[Value]):
    """Reads values; otherwise as `Reader`. Made by `ReaderGroup.reader` with a serializer.

    An event that the serializer cannot decode raises `UndecodableEventError`, which contains its place. It remains the
    next event, unread, until the application reads it as bytes with ``events.read()``; so no event is skipped silently.

    Attributes:
        events: the reader of the bytes, for operations that this class does not offer.
        serializer: deserializes the bytes.
    """

    def __init__(self, client: object, portal: Portal, part: aio.ValueReader[Value]) -> None:
        super().__init__(client, portal, part)
        #: The reader of the bytes.
        self.events: Reader = Reader(client, portal, part.events)
        self._deserialize = part.serializer.deserialize

    @property
    def name(self) -> str:
        """The reader's name in its group."""
        return self._part.name

    @property
    def is_finished(self) -> bool:
        """True when the group has read everything; see `Reader.is_finished`."""
        return self._part.is_finished

    def read(self, timeout_s: float | None = None) -> ValueEvent[Value] | None:
        """Return the next event as a value; see `Reader.read`. Raises `UndecodableEventError`."""
        reader = self._part.events
        chunk = chunk_in_hand(reader) or self._portal.call(next_chunk(reader, timeout_s))
        return None if chunk is None else take_value(chunk, self._deserialize)

    def read_batch(self, max_bytes: int = BATCH_BYTES_MAX, timeout_s: float | None = None) -> ValueBatch[Value] | None:
        """Return the next values of one segment, up to one that cannot be decoded; see `Reader.read_batch`.

        Raises `UndecodableEventError` if the first one cannot be decoded.
        """
        reader = self._part.events
        chunk = chunk_in_hand(reader) or self._portal.call(next_chunk(reader, timeout_s))
        return None if chunk is None else take_values(chunk, self._deserialize, max_bytes)

    def __iter__(self) -> Iterator[ValueEvent[Value]]:
        while (event := self.read()) is not None:
            yield event

    def store_positions(self) -> None:
        """Store this reader's positions now; see `Reader.store_positions`."""
        self._portal.call(self._part.store_positions())

    def time_window(self, stream: str) -> TimeWindow:
        """Return the bounds of the group's time in a stream; see `Reader.time_window`."""
        return self._portal.call(self._part.time_window(stream))

    def position(self) -> dict[str, int]:
        """Return the end of the events returned so far (segment -> offset), for `commit` and `seek`."""
        return self._portal.call_soon(lambda: self._part.position())

    def commit(self, at: ValueEvent[Value] | ValueBatch[Value] | Mapping[str, int] | None = None) -> None:
        """Mark events as done; see `Reader.commit`."""
        self._portal.call(self._part.commit(at))

    def seek(self, at: ValueEvent[Value] | Mapping[str, int]) -> None:
        """Continue from `at` again; see `Reader.seek`."""
        self._portal.call(self._part.seek(at))

    def skip(self, damage: CorruptionError) -> int:
        """Skip the bytes of a segment that are not events; see `Reader.skip`."""
        return self._portal.call(self._part.skip(damage))

    def close(self, timeout_s: float | None = None, *, is_done: bool | None = None) -> None:
        """Store positions, leave the group and stop; see `Reader.close`."""
        self.events.close(timeout_s, is_done=is_done)
