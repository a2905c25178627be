"""Routing keys of events that are copied: they are no part of events, and come from what is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, cast

import msgspec

from penstock.model.errors import InvalidArgumentError


class _Keyed(Protocol):
    key: str | int


class EventKeys:
    """Takes the routing key of each event from a field of the JSON object that it is: a text, or a whole number's."""

    def __init__(self, field: str) -> None:
        self._field = field
        event = msgspec.defstruct("Event", [("key", str | int, msgspec.field(name=field))])
        self._decoder = cast("msgspec.json.Decoder[_Keyed]", msgspec.json.Decoder(event))

    def keys_of(self, events: Sequence[bytes], where: str) -> list[str]:
        """Return the keys. Raises `InvalidArgumentError`, which says `where` the one is that has none."""
        keys: list[str] = []
        for event in events:
            try:
                keys.append(str(self._decoder.decode(event).key))
            except (msgspec.MsgspecError, UnicodeDecodeError) as error:
                raise InvalidArgumentError(
                    f"event {len(keys)} of {where} has no routing key in the field {self._field!r}: {error}"
                ) from error
        return keys
