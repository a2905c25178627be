"""Keys of key-value tables: between what an application calls them and the bytes of fixed length that are stored.

`Client.table` takes one of these. Keys are ordered by their bytes, whatever they are here.
"""

from __future__ import annotations

from typing import Generic, NamedTuple, Protocol, TypeVar

from penstock.model.errors import SerializationError
from penstock.model.tables import TableConfig

Key = TypeVar("Key")
Value = TypeVar("Value")

#: Behind a text that is shorter than its part of a key. The lowest byte, so that keys are in the order of the texts.
_PADDING = b"\0"


class Entry(NamedTuple, Generic[Key, Value]):
    """What a table holds under a key.

    Attributes:
        version: of the last write of this key: 0 or more, grows with each write, and never comes again. Hand it to
            `Table.put` or `Table.remove`, to change what was read and nothing newer.
    """

    key: Key
    value: Value
    version: int


class TableKeys(Protocol[Key]):
    """Makes the bytes of keys, and keys of bytes, for tables of the shape `config`. They raise `SerializationError`."""

    def serialize(self, key: Key, config: TableConfig, /) -> bytes:
        """Return `key` as exactly `config.key_length` bytes."""

    def deserialize(self, data: bytes, config: TableConfig, /) -> Key:
        """Return the key that `data` stands for."""

    def primary(self, part: bytes | str, config: TableConfig, /) -> bytes:
        """Return the first part of a key as exactly `config.primary_key_length` bytes."""


class BytesKeys:
    """Keys are the stored bytes: both parts, one behind the other, each of its full length."""

    def serialize(self, key: bytes, config: TableConfig, /) -> bytes:
        """See `TableKeys`."""
        if not isinstance(key, bytes | bytearray | memoryview):
            raise SerializationError(f"a key of this table is bytes, not {type(key).__name__}: see penstock.TextKeys")
        if len(key) != config.key_length:
            raise SerializationError(
                f"key {bytes(key)!r} has {len(key)} bytes, and every key of this table has {config.key_length}: "
                "penstock.TextKeys fills shorter ones up"
            )
        return bytes(key)

    def deserialize(self, data: bytes, config: TableConfig, /) -> bytes:
        """See `TableKeys`."""
        return data

    def primary(self, part: bytes | str, config: TableConfig, /) -> bytes:
        """See `TableKeys`."""
        data = part.encode() if isinstance(part, str) else part
        if len(data) != config.primary_key_length:
            raise SerializationError(
                f"{data!r} has {len(data)} bytes, and the first part of this table's keys has "
                f"{config.primary_key_length}"
            )
        return data


class TextKeys:
    """Keys are texts, stored in UTF-8 and filled up with zero bytes. For tables without a second part.

    A text that ends in a zero character is refused: it could not be told from the filling.
    """

    def serialize(self, key: str, config: TableConfig, /) -> bytes:
        """See `TableKeys`."""
        if config.secondary_key_length:
            raise SerializationError("keys of this table have two parts: see penstock.TextPairKeys")
        return _filled(key, config.primary_key_length)

    def deserialize(self, data: bytes, config: TableConfig, /) -> str:
        """See `TableKeys`."""
        return _text(data)

    def primary(self, part: bytes | str, config: TableConfig, /) -> bytes:
        """See `TableKeys`."""
        return _filled(part, config.primary_key_length)


class TextPairKeys:
    """Keys are pairs of texts, ``(first, second)``, each stored in UTF-8 and filled up with zero bytes.

    Keys with the same first text are stored together, in the order of the second.
    """

    def serialize(self, key: tuple[str, str], config: TableConfig, /) -> bytes:
        """See `TableKeys`."""
        if not isinstance(key, tuple) or len(key) != 2:
            raise SerializationError(f"a key of this table is a pair of texts, not {key!r}")
        return _filled(key[0], config.primary_key_length) + _filled(key[1], config.secondary_key_length)

    def deserialize(self, data: bytes, config: TableConfig, /) -> tuple[str, str]:
        """See `TableKeys`."""
        return _text(data[: config.primary_key_length]), _text(data[config.primary_key_length :])

    def primary(self, part: bytes | str, config: TableConfig, /) -> bytes:
        """See `TableKeys`."""
        return _filled(part, config.primary_key_length)


def _filled(text: str | bytes, length: int) -> bytes:
    if not isinstance(text, str | bytes):
        raise SerializationError(f"a key of this table is made of text, not of {type(text).__name__}")
    try:
        data = text.encode() if isinstance(text, str) else text
    except UnicodeError as error:
        raise SerializationError(f"key {text!r} cannot be written in UTF-8: {error}") from error
    if data.endswith(_PADDING):
        raise SerializationError(f"key {text!r} ends in a zero character, which stands behind shorter keys")
    if len(data) > length:
        raise SerializationError(f"key {text!r} has {len(data)} bytes in UTF-8, and there is room for {length}")
    return data.ljust(length, _PADDING)


def _text(data: bytes) -> str:
    try:
        return data.rstrip(_PADDING).decode()
    except UnicodeError as error:
        raise SerializationError(
            f"key {data!r} is not text in UTF-8: open the table with penstock.BytesKeys"
        ) from error
