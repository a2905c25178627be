"""Routing keys of copied events. Events do not contain their keys: they are taken from a field of each event."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, cast

import msgspec

from penstock.model.errors import InvalidArgumentError

_BYTE_ORDER_MARKS = (b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff")


def why_no_json(data: bytes, error: Exception) -> str:
    """Return why `data` is not a JSON object with the wanted field, for users; `error` is the decoder's."""
    if not data.strip():
        return "it is blank"
    if data.startswith(_BYTE_ORDER_MARKS[0]):
        return "it starts with a byte order mark (the bytes EF BB BF), which JSON does not allow: remove it"
    if data.startswith(_BYTE_ORDER_MARKS[1:]):
        return "it starts with a byte order mark of UTF-16, and JSON is UTF-8: convert it"
    if isinstance(error, RecursionError):
        return "its JSON is nested too deeply"
    return str(error)


class _Keyed(Protocol):
    key: str | int


class EventKeys:
    """Takes the routing key of each event from a field of its JSON object: a text, or a whole number."""

    def __init__(self, field: str) -> None:
        self._field = field
        event = msgspec.defstruct("Event", [("key", str | int, msgspec.field(name=field))])
        self._decoder = cast("msgspec.json.Decoder[_Keyed]", msgspec.json.Decoder(event))

    def keys_of(self, events: Sequence[bytes], where: str) -> list[str]:
        """Return the keys. Raises `InvalidArgumentError` for the first event without a key, located by `where`."""
        keys: list[str] = []
        for event in events:
            try:
                keys.append(str(self._decoder.decode(event).key))
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
                raise InvalidArgumentError(
                    f"event {len(keys)} of {where} has no routing key in the field {self._field!r}: "
                    f"{why_no_json(event, error)}"
                ) from error
        return keys
