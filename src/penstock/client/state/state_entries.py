"""Entries of a state synchronizer: a whole state, or some updates. Bytes as Pravega's Java client has them.

::

    int32 big-endian 1, then the state
    int32 big-endian 2, then for each update: int32 big-endian length in bytes, the update

Source: Pravega UpdateOrInitSerializer.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from penstock.model.errors import SerializationError

_NUMBER = struct.Struct(">i")
_STATE, _UPDATES = 1, 2


@dataclass(frozen=True, slots=True)
class StateEntry:
    """The content of one entry: `state`, or else `updates`, as bytes."""

    state: bytes | None
    updates: tuple[bytes, ...] = ()


class StateEntrySerializer:
    """Serializes and deserializes entries."""

    def serialize(self, value: StateEntry, /) -> bytes:
        """See `Serializer`."""
        if value.state is not None:
            return _NUMBER.pack(_STATE) + value.state
        parts = [_NUMBER.pack(_UPDATES)]
        for update in value.updates:
            parts += [_NUMBER.pack(len(update)), update]
        return b"".join(parts)

    def deserialize(self, data: bytes, /) -> StateEntry:
        """See `Serializer`."""
        if len(data) < _NUMBER.size:
            raise SerializationError(f"an entry of a shared state has {len(data)} bytes, too few for its kind")
        (kind,) = _NUMBER.unpack_from(data)
        if kind == _STATE:
            return StateEntry(data[_NUMBER.size :])
        if kind != _UPDATES:
            raise SerializationError(f"an entry of a shared state is of the unknown kind {kind}")
        updates = []
        at = _NUMBER.size
        while at < len(data):
            (length,) = _NUMBER.unpack_from(data, at) if len(data) - at >= _NUMBER.size else (-1,)
            end = at + _NUMBER.size + length
            if length < 0 or end > len(data):
                raise SerializationError(f"an entry of a shared state is truncated at byte {at} of {len(data)}")
            updates.append(data[at + _NUMBER.size : end])
            at = end
        return StateEntry(None, tuple(updates))
