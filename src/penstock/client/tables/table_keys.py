"""Keys of key-value tables: conversion between the application's keys and the stored bytes of fixed length.

`Client.table` takes one of these. Keys are always ordered by their bytes.
"""

from __future__ import annotations

from typing import Generic, NamedTuple, Protocol, TypeVar

from penstock.model.errors import SerializationError
from penstock.model.tables import TableConfig

Key = TypeVar("Key")
Value = TypeVar("Value")

#: Fills up a text that is shorter than its part of a key. The lowest byte, so that keys have the order of the texts.
_PADDING = b"\0"


class Entry(NamedTuple, Generic[Key, Value]):
    """The entry of a key in a table.

    Attributes:
        version: of the last write of this key: 0 or more, grows with each write, and is never reused. Pass it to
            `Table.put` or `Table.remove` to change the entry only if it is still the one that was read.
    """

    key: Key
    value: Value
    version: int


class TableKeys(Protocol[Key]):
    """Converts keys to bytes and back, for tables of the shape `config`. Methods raise `SerializationError`."""

    def serialize(self, key: Key, config: TableConfig, /) -> bytes:
        """Return `key` as exactly `config.key_length` bytes."""

    def deserialize(self, data: bytes, config: TableConfig, /) -> Key:
        """Return the key with the bytes `data`."""

    def primary(self, part: bytes | str, config: TableConfig, /) -> bytes:
        """Return the first part of a key as exactly `config.primary_key_length` bytes."""


class BytesKeys:
    """Keys are the stored bytes: both parts concatenated, each of its full length."""

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
    """Keys are texts, stored in UTF-8 and padded with zero bytes. For tables without a second part.

    A text that ends in a zero character is rejected: it would be indistinguishable from the padding.
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
    """Keys are pairs of texts, ``(first, second)``, each stored in UTF-8 and padded with zero bytes.

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
        raise SerializationError(f"a key of this table is text, not {type(text).__name__}")
    try:
        data = text.encode() if isinstance(text, str) else text
    except UnicodeError as error:
        raise SerializationError(f"key {text!r} cannot be written in UTF-8: {error}") from error
    if data.endswith(_PADDING):
        raise SerializationError(f"key {text!r} ends in a zero character, which pads shorter keys")
    if len(data) > length:
        raise SerializationError(f"key {text!r} has {len(data)} bytes in UTF-8, the limit is {length}")
    return data.ljust(length, _PADDING)


def _text(data: bytes) -> str:
    try:
        return data.rstrip(_PADDING).decode()
    except UnicodeError as error:
        raise SerializationError(
            f"key {data!r} is not text in UTF-8: open the table with penstock.BytesKeys"
        ) from error
