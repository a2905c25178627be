"""A frame of any size with a list of the smallest elements costs a bounded number of decoded elements."""

from __future__ import annotations

import dataclasses
import struct
from typing import get_type_hints

import pytest

from penstock.model.errors import InvalidArgumentError, ProtocolError
from penstock.wire import fields
from penstock.wire.codec import FRAME_LENGTH_MAX, HEADER_LENGTH, decode, decode_request, encode
from penstock.wire.commands import (
    COMMANDS,
    OWN_COMMANDS,
    MergeSegmentsBatch,
    ReadTable,
    RemoveTableKeys,
    Reply,
    TableKey,
    TableKeyValue,
    UpdateTableEntries,
    WireCommand,
)

#: The smallest element of each kind of list, in bytes on the wire.
SMALLEST = {
    fields.TableVersions: bytes(8),
    fields.SourceNames: b"\0\0",
    fields.ChangedKeys: struct.pack(">ii1sq", 13, 1, b"k", 0),
    fields.TableKeys: struct.pack(">ii1sq", 13, 1, b"k", 0),
    fields.ChangedEntries: struct.pack(">ii1sqii", 13, 1, b"k", 0, 4, 0),
    fields.TableEntries: struct.pack(">ii1sqii", 13, 1, b"k", 0, 4, 0),
    fields.AttributeUpdates: bytes(16 + 1 + 8 + 8),
    fields.MergedSegments: bytes(2 + 8),
    fields.StorageChunks: bytes(24 + 2 + 1),
}
#: A limit on a request is at most this many elements: 10 ms at 0.8 us each.
REQUEST_ELEMENTS_MAX = 12_000


def kind_of(hint: object) -> fields.FieldKind:
    (kind,) = (item for item in getattr(hint, "__metadata__", ()) if isinstance(item, fields.FieldKind))
    return kind


def list_field(command_type: type[WireCommand]) -> tuple[str, fields.FieldKind] | None:
    """Return the field that is a list, found by its Python type: a kind without a limit must not escape."""
    hints = get_type_hints(command_type, include_extras=True)
    for field in dataclasses.fields(command_type):
        plain = str(get_type_hints(command_type)[field.name])
        if plain.startswith("collections.abc.Sequence["):
            return field.name, kind_of(hints[field.name])
    return None


WITH_LIST = [command for command in (*COMMANDS, *OWN_COMMANDS) if list_field(command)]


def smallest_element(kind: fields.FieldKind) -> bytes:
    (element,) = (data for hint, data in SMALLEST.items() if kind_of(hint) is kind)
    return element


def frame_of(command_type: type[WireCommand], count: int) -> bytes:
    """Return a payload with `count` smallest elements in its list and zeros in its other fields."""
    out = bytearray()
    hints = get_type_hints(command_type, include_extras=True)
    for field in dataclasses.fields(command_type):
        kind = kind_of(hints[field.name])
        if kind.count_max is not None:
            out += struct.pack(">i", count) + smallest_element(kind) * count
        else:
            out += bytes(kind.length_min)
    return bytes(out)


def test_every_command_with_a_list_is_found() -> None:
    assert {command.__name__ for command in WITH_LIST} == {
        "MergeSegments",
        "MergeSegmentsBatch",
        "ReadTable",
        "RemoveTableKeys",
        "SegmentsBatchMerged",
        "StorageChunksListed",
        "TableEntriesDeltaRead",
        "TableEntriesRead",
        "TableEntriesUpdated",
        "TableKeysRead",
        "TableRead",
        "UpdateTableEntries",
    }


@pytest.mark.parametrize("command_type", WITH_LIST, ids=lambda command: command.__name__)
@pytest.mark.parametrize("is_damaged", [False, True], ids=["valid", "damaged"])
def test_a_full_frame_of_the_smallest_elements_is_refused_before_an_element_is_decoded(
    command_type: type[WireCommand], is_damaged: bool
) -> None:
    """A decoder that read an element of the damaged list first would name the damage and not the count."""
    found = list_field(command_type)
    assert found is not None
    name, kind = found
    assert kind.count_max is not None, f"{command_type.__name__}.{name} has no limit"
    element = smallest_element(kind)
    count = (FRAME_LENGTH_MAX - HEADER_LENGTH - len(frame_of(command_type, 0))) // len(element)
    payload = frame_of(command_type, count)
    if is_damaged:
        payload = payload.replace(element * count, b"\xff" * (len(element) * count))
    with pytest.raises(ProtocolError, match=rf"{name} at byte \d+: {count} elements, at most {kind.count_max} are"):
        decode(command_type.TYPE, payload)


@pytest.mark.parametrize("command_type", WITH_LIST, ids=lambda command: command.__name__)
def test_a_list_as_long_as_its_limit_is_decoded_and_one_element_more_is_not(command_type: type[WireCommand]) -> None:
    found = list_field(command_type)
    assert found is not None
    name, kind = found
    assert kind.count_max is not None
    decoded = decode(command_type.TYPE, frame_of(command_type, kind.count_max))
    assert len(getattr(decoded, name)) == kind.count_max
    with pytest.raises(ProtocolError, match="send fewer at once"):
        decode(command_type.TYPE, frame_of(command_type, kind.count_max + 1))


@pytest.mark.parametrize("command_type", WITH_LIST, ids=lambda command: command.__name__)
def test_a_server_decodes_only_requests_and_those_have_low_limits(command_type: type[WireCommand]) -> None:
    found = list_field(command_type)
    assert found is not None
    payload = frame_of(command_type, 1)
    if issubclass(command_type, Reply):
        with pytest.raises(ProtocolError, match=f"{command_type.__name__} of {len(payload)} bytes is a reply"):
            decode_request(command_type.TYPE, payload)
    else:
        assert decode_request(command_type.TYPE, payload) == decode(command_type.TYPE, payload)
        assert found[1].count_max is not None
        assert found[1].count_max <= REQUEST_ELEMENTS_MAX


def test_the_names_of_one_merge_have_limits_in_bytes_too() -> None:
    def payload(name: bytes, count: int) -> bytes:
        names = (struct.pack(">H", len(name)) + name) * count
        return struct.pack(">qHi", 1, 0, count) + names + b"\0\0"

    def sources(data: bytes) -> int:
        command = decode(MergeSegmentsBatch.TYPE, data)
        assert isinstance(command, MergeSegmentsBatch)
        return len(command.sources)

    assert sources(payload(b"n" * 1000, 1000)) == 1000
    with pytest.raises(ProtocolError, match="more than 1048576 bytes"):
        decode(MergeSegmentsBatch.TYPE, payload(b"n" * 65535, 200))
    pair = b"\xed\xa0\xbd\xed\xb8\x80"
    assert sources(payload(pair, 1000)) == 1000
    with pytest.raises(ProtocolError, match="not ASCII have more than 16384 bytes"):
        decode(MergeSegmentsBatch.TYPE, payload(pair * 100, 100))


@pytest.mark.parametrize(
    "command",
    [
        MergeSegmentsBatch(1, "t", ("s",) * (fields.MERGE_SOURCES_MAX + 1), ""),
        RemoveTableKeys(1, "t", "", (TableKey(b"k", 1),) * (fields.TABLE_CHANGES_MAX + 1)),
        UpdateTableEntries(1, "t", "", (TableKeyValue(b"k", 1, b""),) * (fields.TABLE_CHANGES_MAX + 1)),
        ReadTable(1, "t", "", (TableKey(b"k", 1),) * (fields.TABLE_ITEMS_MAX + 1)),
    ],
    ids=lambda command: type(command).__name__,
)
def test_a_list_beyond_its_limit_is_not_sent(command: WireCommand) -> None:
    with pytest.raises(InvalidArgumentError, match="send fewer at once"):
        encode(command)
