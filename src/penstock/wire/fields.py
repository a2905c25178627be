"""The kinds of fields of wire commands, as annotations.

A command is a dataclass with its fields in wire order; each field's annotation defines its encoding::

    request_id: I64
    segment: Text
    offset: I64 = -1        # a default means: may be missing at the end of the payload

All numbers are big endian. A kind writes to the end of a bytearray and reads from a payload at a position. A count is
never trusted: it is checked against the bytes available before anything is allocated.

Source: wire-protocol 1.3.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Any, NamedTuple, TypeVar

from penstock.model.errors import InvalidArgumentError, ProtocolError
from penstock.model.segments import Buffer
from penstock.wire.text import decode_text, encode_text

_I8 = struct.Struct(">b")
_I32 = struct.Struct(">i")
_I64 = struct.Struct(">q")
_U16 = struct.Struct(">H")
_KEY_HEAD = struct.Struct(">ii")
#: Between a key and a value: the version of the key, and both lengths of the value.
_VALUE_HEAD = struct.Struct(">qii")
_ATTRIBUTE_UPDATE = struct.Struct(">16sbqq")
_CHUNK_HEAD = struct.Struct(">qqq")

_KEY_LENGTH_MIN = 4 + 4 + 1 + 8
_VALUE_LENGTH_MIN = 4 + 4
UUID_LENGTH = 16

# The most elements that a list of a command may have. Decoding an element costs 0.5 to 2 us; each limit on a request
# keeps the decoding of one frame below 10 ms, and lies above what clients and controllers of Pravega send.
#: Sources of one batch merge. A controller sends 100 by default.
MERGE_SOURCES_MAX = 1000
#: Bytes of the names of these sources, together with their lengths.
MERGE_SOURCES_BYTES_MAX = 1024 * 1024
#: Bytes of those names that are not ASCII; Pravega's are all ASCII. Modified UTF-8 costs up to 0.25 us per byte.
MERGE_SOURCES_NON_ASCII_BYTES_MAX = 16 * 1024
#: Attribute updates of one merge. A controller sends a few.
ATTRIBUTE_UPDATES_MAX = 1000
#: Keys that one request changes in a table. Java clients send 256, controllers of Penstock 100.
TABLE_CHANGES_MAX = 4096
#: Keys of one read of a table, and keys or entries of one reply. Clients use up to 10 000. A reply of Pravega's server
#: may exceed the number in the request by the rest of a hash bucket.
TABLE_ITEMS_MAX = 12_000
#: Chunks in one reply. Only administration tools decode it.
STORAGE_CHUNKS_MAX = 128 * 1024

_Value = TypeVar("_Value")


@dataclass(frozen=True, slots=True)
class FieldKind:
    """The encoding of one field.

    `length_min` is the number of bytes that must remain of a payload for an optional field to count as present. `write`
    appends a value; `read` returns a value and the position after it, and raises `ProtocolError` or `struct.error`.
    Values have the type that the kind is annotated to, which is why they are `Any` here.
    """

    length_min: int
    write: Callable[[bytearray, Any], None]
    read: Callable[[memoryview, int], tuple[Any, int]]
    #: Limit on the elements of a list; None for a kind that is not a list.
    count_max: int | None = None


class TableKey(NamedTuple):
    """A key, never empty, with its actual version or the expected one (or `VERSION_ANY`, `VERSION_ABSENT`).

    A tuple because one request may have thousands of them.
    """

    key: bytes
    version: int


class TableKeyValue(NamedTuple):
    """A key, never empty, its version as in `TableKey`, and its value, which may be empty.

    A tuple because pages of scans have one per entry.
    """

    key: bytes
    version: int
    value: bytes


@dataclass(frozen=True, slots=True)
class AttributeUpdate:
    """A change of a segment attribute that goes with a merge.

    `update_type`: 0 must be absent, 1 replace, 2 replace if greater, 3 accumulate, 4 replace if it equals `old_value`.
    """

    attribute_id: bytes
    update_type: int
    new_value: int
    old_value: int


@dataclass(frozen=True, slots=True)
class MergedSegment:
    """A source of a batch merge and the target's length after it, in bytes."""

    source: str
    new_target_write_offset: int


@dataclass(frozen=True, slots=True)
class StorageChunk:
    """A chunk of a segment in long-term storage. Lengths in bytes, as the metadata and the storage have them."""

    length_in_metadata: int
    length_in_storage: int
    start_offset: int
    chunk_name: str
    exists_in_storage: bool


def check_uuid(value: bytes) -> bytes:
    """Return `value`. Raises `InvalidArgumentError` unless it has 16 bytes: `struct` would pad or cut it silently."""
    if len(value) != UUID_LENGTH:
        raise InvalidArgumentError(f"an id has {UUID_LENGTH} bytes, got {len(value)}: {value[:20].hex()}")
    return value


def data_length(data: Buffer | Sequence[Buffer]) -> int:
    """Return the number of bytes in one buffer or in a sequence of buffers."""
    if isinstance(data, bytes | bytearray | memoryview):
        return len(data)
    return sum(map(len, data))


def data_joined(data: Buffer | Sequence[Buffer]) -> Buffer:
    """Return `data` as one buffer: itself if it is one, else the parts joined (a copy if there are several)."""
    if isinstance(data, bytes | bytearray | memoryview):
        return data
    return data[0] if len(data) == 1 else b"".join(data)


def _fixed(layout: struct.Struct) -> FieldKind:
    def write(out: bytearray, value: object) -> None:
        out += layout.pack(value)

    def read(payload: memoryview, position: int) -> tuple[Any, int]:
        return layout.unpack_from(payload, position)[0], position + layout.size

    return FieldKind(layout.size, write, read)


def _read_bool(payload: memoryview, position: int) -> tuple[bool, int]:
    # Any byte but zero is true, as in Java.
    return _I8.unpack_from(payload, position)[0] != 0, position + 1


def _write_bool(out: bytearray, value: bool) -> None:
    out.append(1 if value else 0)


def _write_uuid(out: bytearray, value: bytes) -> None:
    out += check_uuid(value)


def _read_uuid(payload: memoryview, position: int) -> tuple[bytes, int]:
    return bytes(_slice(payload, position, UUID_LENGTH)), position + UUID_LENGTH


def _slice(payload: memoryview, start: int, length: int) -> memoryview:
    """Return `length` bytes from `start`, or raise where a plain slice would silently return fewer."""
    if length < 0:
        raise ProtocolError(f"negative length {length}")
    if length > len(payload) - start:
        raise ProtocolError(f"needs {length} bytes, {max(len(payload) - start, 0)} remain")
    return payload[start : start + length]


def write_text(out: bytearray, value: str) -> None:
    """Append `value` with its byte count (u16)."""
    encoded = encode_text(value)
    out += _U16.pack(len(encoded))
    out += encoded


def read_text(payload: memoryview, position: int) -> tuple[str, int]:
    """Read text with its byte count (u16)."""
    (length,) = _U16.unpack_from(payload, position)
    start = position + 2
    return decode_text(_slice(payload, start, length)), start + length


def _write_bytes(out: bytearray, value: Buffer) -> None:
    out += _I32.pack(len(value))
    out += value


def _read_view(payload: memoryview, position: int) -> tuple[memoryview, int]:
    (length,) = _I32.unpack_from(payload, position)
    start = position + 4
    return _slice(payload, start, length), start + length


def _read_bytes(payload: memoryview, position: int) -> tuple[bytes, int]:
    value, following = _read_view(payload, position)
    return bytes(value), following


def _write_bulk(out: bytearray, value: Buffer | Sequence[Buffer]) -> None:
    _write_bytes(out, data_joined(value))


def _write_rest(out: bytearray, value: Buffer) -> None:
    out += value


def _read_rest_view(payload: memoryview, position: int) -> tuple[memoryview, int]:
    return payload[position:], len(payload)


def _read_rest(payload: memoryview, position: int) -> tuple[bytes, int]:
    return bytes(payload[position:]), len(payload)


def _write_zeros(out: bytearray, length: int) -> None:
    out += bytes(length)


def _read_zeros(payload: memoryview, position: int) -> tuple[int, int]:
    return len(payload) - position, len(payload)


def _write_event(out: bytearray, value: Buffer) -> None:
    out += _KEY_HEAD.pack(0, len(value))
    out += value


def _read_event(payload: memoryview, position: int) -> tuple[bytes, int]:
    type_code, length = _KEY_HEAD.unpack_from(payload, position)
    if type_code != 0:
        raise ProtocolError(f"expected an event (type 0), found type {type_code}")
    start = position + 8
    return bytes(_slice(payload, start, length)), start + length


def _write_after_filter(out: bytearray, value: bytes) -> None:
    out += b"\0\0\0\0"  # The prefix filter: deprecated, written empty, ignored by servers.
    _write_bytes(out, value)


def _read_after_filter(payload: memoryview, position: int) -> tuple[bytes, int]:
    _, following = _read_view(payload, position)
    if len(payload) - following < 4:
        return b"", following
    return _read_bytes(payload, following)


def _empty_key() -> InvalidArgumentError:
    return InvalidArgumentError("a table key is empty; clients disagree on how that is encoded, so it can't be sent")


def _write_key(out: bytearray, entry: TableKey | TableKeyValue) -> None:
    key = entry.key
    length = len(key)
    if not length:
        raise _empty_key()
    out += _KEY_HEAD.pack(length + 12, length)
    out += key
    out += _I64.pack(entry.version)


def _read_key_parts(payload: memoryview, position: int) -> tuple[bytes, int, int]:
    declared, length = _KEY_HEAD.unpack_from(payload, position)
    if length == 0:
        raise ProtocolError("a table key is empty, which clients encode in two ways that can't be told apart")
    if declared != length + 12:
        raise ProtocolError(f"a table key of {length} bytes declares {declared} bytes, expected {length + 12}")
    start = position + 8
    end = start + length
    key = bytes(_slice(payload, start, length))
    return key, _I64.unpack_from(payload, end)[0], end + 8


def _read_key(payload: memoryview, position: int) -> tuple[TableKey, int]:
    key, version, following = _read_key_parts(payload, position)
    return TableKey(key, version), following


def _write_entry(out: bytearray, entry: TableKeyValue) -> None:
    key, value = entry.key, entry.value
    key_length, length = len(key), len(value)
    if not key_length:
        raise _empty_key()
    out += _KEY_HEAD.pack(key_length + 12, key_length)
    out += key
    out += _VALUE_HEAD.pack(entry.version, length + 4, length)
    out += value


def _read_entry(payload: memoryview, position: int) -> tuple[TableKeyValue, int]:
    key, version, following = _read_key_parts(payload, position)
    declared, length = _KEY_HEAD.unpack_from(payload, following)
    start = following + 8
    value = bytes(_slice(payload, start, length))
    if declared != length + 4:
        raise ProtocolError(f"a table value of {length} bytes declares {declared} bytes, expected {length + 4}")
    return TableKeyValue(key, version, value), start + length


@lru_cache(maxsize=64)
def _entry_head(key_length: int) -> struct.Struct:
    """Return the layout of an entry up to its value, for one length of keys: most tables have keys of one length.

    Two lengths, the key, its version, two lengths.
    """
    return struct.Struct(f">ii{key_length}sqii")


def _write_entries(out: bytearray, entries: Sequence[TableKeyValue]) -> None:
    """Write entries, as repeated calls of `_write_entry` do."""
    key_length = 0
    pack: Callable[..., bytes] = _KEY_HEAD.pack
    for entry in entries:
        key, value = entry.key, entry.value
        if len(key) != key_length:
            key_length = len(key)
            if not key_length:
                raise _empty_key()
            pack = _entry_head(key_length).pack
        length = len(value)
        out += pack(key_length + 12, key_length, key, entry.version, length + 4, length)
        out += value


def _read_keys(payload: memoryview, position: int, count: int) -> tuple[list[TableKey], int]:
    """Read `count` keys, as `count` calls of `_read_key` do.

    An invalid key is passed to `_read_key`, which raises the error.
    """
    data = payload.tobytes()
    room = len(data) - _I64.size
    read_head, read_version = _KEY_HEAD.unpack_from, _I64.unpack_from
    make: Callable[[type[TableKey], tuple[bytes, int]], TableKey] = tuple.__new__
    keys: list[TableKey] = []
    for _ in range(count):
        declared, length = read_head(data, position)
        start = position + 8
        end = start + length
        if length <= 0 or declared != length + 12 or end > room:
            checked, position = _read_key(payload, position)
            keys.append(checked)
            continue
        keys.append(make(TableKey, (data[start:end], read_version(data, end)[0])))
        position = end + 8
    return keys, position


def _read_entries(payload: memoryview, position: int, count: int) -> tuple[list[TableKeyValue], int]:
    """Read `count` entries, as `count` calls of `_read_entry` do. Table scans spend most of their time here.

    An invalid entry is passed to `_read_entry`, which raises the error.
    """
    data = payload.tobytes()
    whole = len(data)
    room = whole - _VALUE_HEAD.size
    read_head, read_value_head = _KEY_HEAD.unpack_from, _VALUE_HEAD.unpack_from
    make: Callable[[type[TableKeyValue], tuple[bytes, int, bytes]], TableKeyValue] = tuple.__new__
    entries: list[TableKeyValue] = []
    for _ in range(count):
        declared, length = read_head(data, position)
        start = position + 8
        end = start + length
        if length > 0 and declared == length + 12 and end <= room:
            version, value_declared, value_length = read_value_head(data, end)
            value_start = end + 16
            following = value_start + value_length
            if value_length >= 0 and value_declared == value_length + 4 and following <= whole:
                entries.append(make(TableKeyValue, (data[start:end], version, data[value_start:following])))
                position = following
                continue
        entry, position = _read_entry(payload, position)
        entries.append(entry)
    return entries, position


def _write_attribute_update(out: bytearray, update: AttributeUpdate) -> None:
    out += _ATTRIBUTE_UPDATE.pack(
        check_uuid(update.attribute_id), update.update_type, update.new_value, update.old_value
    )


def _read_attribute_update(payload: memoryview, position: int) -> tuple[AttributeUpdate, int]:
    return AttributeUpdate(*_ATTRIBUTE_UPDATE.unpack_from(payload, position)), position + _ATTRIBUTE_UPDATE.size


def _write_merged(out: bytearray, merged: MergedSegment) -> None:
    write_text(out, merged.source)
    out += _I64.pack(merged.new_target_write_offset)


def _read_merged(payload: memoryview, position: int) -> tuple[MergedSegment, int]:
    source, following = read_text(payload, position)
    return MergedSegment(source, _I64.unpack_from(payload, following)[0]), following + 8


def _write_chunk(out: bytearray, chunk: StorageChunk) -> None:
    out += _CHUNK_HEAD.pack(chunk.length_in_metadata, chunk.length_in_storage, chunk.start_offset)
    write_text(out, chunk.chunk_name)
    _write_bool(out, chunk.exists_in_storage)


def _read_chunk(payload: memoryview, position: int) -> tuple[StorageChunk, int]:
    in_metadata, in_storage, start_offset = _CHUNK_HEAD.unpack_from(payload, position)
    name, following = read_text(payload, position + _CHUNK_HEAD.size)
    exists, following = _read_bool(payload, following)
    return StorageChunk(in_metadata, in_storage, start_offset, name, exists), following


def _read_names(payload: memoryview, position: int, count: int) -> tuple[list[str], int]:
    """Read `count` names. Raises `ProtocolError` when they exceed one of the limits on their bytes."""
    names: list[str] = []
    begin, beyond_ascii = position, 0
    for _ in range(count):
        (length,) = _U16.unpack_from(payload, position)
        start = position + 2
        name = bytes(_slice(payload, start, length))
        position = start + length
        if position - begin > MERGE_SOURCES_BYTES_MAX:
            raise ProtocolError(f"the names have more than {MERGE_SOURCES_BYTES_MAX} bytes; send fewer at once")
        if not name.isascii():
            beyond_ascii += length
            if beyond_ascii > MERGE_SOURCES_NON_ASCII_BYTES_MAX:
                raise ProtocolError(
                    f"the names that are not ASCII have more than {MERGE_SOURCES_NON_ASCII_BYTES_MAX} bytes; "
                    "send fewer at once"
                )
        names.append(decode_text(name))
    return names, position


def _list_of(
    count_max: int,
    element_length_min: int,
    write_element: Callable[[bytearray, _Value], None],
    read_element: Callable[[memoryview, int], tuple[_Value, int]],
    read_elements: Callable[[memoryview, int, int], tuple[list[_Value], int]] | None = None,
    write_elements: Callable[[bytearray, Sequence[_Value]], None] | None = None,
) -> FieldKind:
    """Return the kind of an i32 count followed by as many elements, each of at least `element_length_min` bytes.

    A list of more than `count_max` elements is neither written nor read: the count is checked before any element is.
    `read_elements`, `write_elements`: faster functions for many elements at once, if available.
    """

    def write(out: bytearray, values: Sequence[_Value]) -> None:
        if len(values) > count_max:
            raise InvalidArgumentError(f"{len(values)} elements, at most {count_max} are allowed; send fewer at once")
        out += _I32.pack(len(values))
        if write_elements is not None:
            write_elements(out, values)
            return
        for value in values:
            write_element(out, value)

    def read(payload: memoryview, position: int) -> tuple[tuple[_Value, ...], int]:
        (count,) = _I32.unpack_from(payload, position)
        position += 4
        room = len(payload) - position
        if count < 0:
            raise ProtocolError(f"negative count {count}")
        if count * element_length_min > room:
            raise ProtocolError(
                f"{count} elements of at least {element_length_min} bytes do not fit into the {room} that remain"
            )
        if count > count_max:
            raise ProtocolError(f"{count} elements, at most {count_max} are allowed; send fewer at once")
        values: list[_Value] = []
        if read_elements is not None:
            values, position = read_elements(payload, position, count)
            return tuple(values), position
        for _ in range(count):
            value, position = read_element(payload, position)
            values.append(value)
        return tuple(values), position

    return FieldKind(4, write, read, count_max)


_I64_KIND = _fixed(_I64)

I8 = Annotated[int, _fixed(_I8)]
I32 = Annotated[int, _fixed(_I32)]
I64 = Annotated[int, _I64_KIND]
Bool = Annotated[bool, FieldKind(1, _write_bool, _read_bool)]
Uuid = Annotated[bytes, FieldKind(UUID_LENGTH, _write_uuid, _read_uuid)]
Text = Annotated[str, FieldKind(2, write_text, read_text)]
Bytes = Annotated[bytes, FieldKind(4, _write_bytes, _read_bytes)]
#: The bytes up to the end of the frame.
Rest = Annotated[bytes, FieldKind(0, _write_rest, _read_rest)]
#: A number of zero bytes up to the end of the frame.
Zeros = Annotated[int, FieldKind(0, _write_zeros, _read_zeros)]
#: An event with its 8-byte header (i32 type 0, i32 length); the value is the payload alone.
EventFrame = Annotated[bytes, FieldKind(8, _write_event, _read_event)]
#: Bytes that follow the deprecated prefix filter of an iterator, which is written empty and skipped.
BytesAfterFilter = Annotated[bytes, FieldKind(4, _write_after_filter, _read_after_filter)]

#: Bulk data are never copied: given as any buffer, read as a slice of the payload.
BulkData = Annotated[Buffer, FieldKind(4, _write_bytes, _read_view)]
BulkRest = Annotated[Buffer, FieldKind(0, _write_rest, _read_rest_view)]
BulkParts = Annotated[Buffer | Sequence[Buffer], FieldKind(4, _write_bulk, _read_view)]


def _keys_up_to(count_max: int) -> FieldKind:
    return _list_of(count_max, _KEY_LENGTH_MIN, _write_key, _read_key, _read_keys)


def _entries_up_to(count_max: int) -> FieldKind:
    length_min = _KEY_LENGTH_MIN + _VALUE_LENGTH_MIN
    return _list_of(count_max, length_min, _write_entry, _read_entry, _read_entries, _write_entries)


#: Versions of the keys that one request has changed.
TableVersions = Annotated[Sequence[int], _list_of(TABLE_CHANGES_MAX, 8, _I64_KIND.write, _I64_KIND.read)]
SourceNames = Annotated[Sequence[str], _list_of(MERGE_SOURCES_MAX, 2, write_text, read_text, _read_names)]
#: Keys or entries of a request that changes a table.
ChangedKeys = Annotated[Sequence[TableKey], _keys_up_to(TABLE_CHANGES_MAX)]
ChangedEntries = Annotated[Sequence[TableKeyValue], _entries_up_to(TABLE_CHANGES_MAX)]
#: Keys or entries of a read, or of its reply.
TableKeys = Annotated[Sequence[TableKey], _keys_up_to(TABLE_ITEMS_MAX)]
TableEntries = Annotated[Sequence[TableKeyValue], _entries_up_to(TABLE_ITEMS_MAX)]
AttributeUpdates = Annotated[
    Sequence[AttributeUpdate],
    _list_of(ATTRIBUTE_UPDATES_MAX, _ATTRIBUTE_UPDATE.size, _write_attribute_update, _read_attribute_update),
]
MergedSegments = Annotated[Sequence[MergedSegment], _list_of(MERGE_SOURCES_MAX, 2 + 8, _write_merged, _read_merged)]
StorageChunks = Annotated[
    Sequence[StorageChunk], _list_of(STORAGE_CHUNKS_MAX, _CHUNK_HEAD.size + 3, _write_chunk, _read_chunk)
]
