"""Frames of the reference implementation decode to its fields and encode to its bytes.

Golden data: `tests/data/codec.jsonl` (written by the codec of Pravega 0.13), `tests/data/traffic.jsonl` (recorded
between Pravega 0.13, the Rust client and their servers), `tests/data/wire-vectors.jsonl` (
wire-protocol 9.1 and 9.2).
"""

from __future__ import annotations

import dataclasses
import json
import re
import struct
from pathlib import Path
from typing import Any

import pytest

from penstock.wire import commands
from penstock.wire.codec import decode, encode, encode_parts
from penstock.wire.commands import (
    COMMANDS,
    OWN_COMMANDS,
    AppendBlock,
    AppendBlockEnd,
    AttributeUpdate,
    ChunkLayoutTold,
    ChunkLeaseReturned,
    ConditionalBlockEnd,
    ContainerImagePart,
    CreateSegment,
    CreateTableSegment,
    DataAppended,
    GetChunkLayout,
    GetContainerImage,
    GetStatistics,
    Hello,
    LocateOffset,
    MergedSegment,
    MergeSegments,
    OffsetLocated,
    ReadTableEntries,
    ReturnChunkLease,
    SegmentRead,
    SetupAppend,
    StatisticsTold,
    StorageChunk,
    StreamSegmentInfo,
    TableEntriesDeltaRead,
    TableKey,
    TableKeyValue,
    TableRead,
    UpdateTableEntries,
    WireCommand,
)
from penstock.wire.layout import LAYOUTS

DATA = Path(__file__).parent.parent / "data"

Row = dict[str, Any]


def rows_of(name: str) -> list[Row]:
    return [json.loads(line) for line in (DATA / name).read_text(encoding="utf-8").splitlines()]


CODEC = rows_of("codec.jsonl")
TRAFFIC = rows_of("traffic.jsonl")
VECTORS = rows_of("wire-vectors.jsonl")

#: The reference's name of a field -> ours, where it is not the same in snake_case.
RENAMED = {
    "args": None,  # continuationToken, fromKey and toKey are fields of the command itself.
    "attributeUpdateType": "update_type",
    "delegationToken": "token",
    "event": None,  # An event's `data` is the command's own `data`.
    "highVersion": "high",
    "keyVersion": "version",
    "lowVersion": "low",
    "prefixFilter": "",  # Deprecated, always empty on the wire: no field.
    "segmentName": "segment",
    "serverStackTrace": "stack",
    "sourceSegmentIds": "sources",
    "suggestedEntryCount": "suggested_count",
    "suggestedKeyCount": "suggested_count",
    "tableEntries": "entries",
    "targetSegmentId": "target",
    "updatedVersions": "versions",
}
#: Names the reference shows for numbers on the wire.
ERROR_CODES = {
    "UNSPECIFIED": -1,
    "TOKEN_CHECK_FAILED": 0,
    "TOKEN_EXPIRED": 1,
    "ILLEGAL_ARGUMENT_EXCEPTION": 0,
}
CLASS_NAMES = {"FLUSHED_TO_STORAGE": "StorageFlushed"}
UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\Z")


def class_of(row: Row) -> type[WireCommand]:
    name = CLASS_NAMES.get(row["name"]) or "".join(word.capitalize() for word in row["name"].split("_"))
    command_type: type[WireCommand] = getattr(commands, name)
    assert issubclass(command_type, WireCommand)
    assert row["type"] == command_type.TYPE
    return command_type


def snake_case(name: str) -> str:
    return re.sub(r"(?=[A-Z])", "_", name).lower()


def value_of(value: Any) -> Any:
    """Translate a value of the golden file: hex, UUIDs, error names, and lists of our small values."""
    if isinstance(value, str):
        if value.startswith("0x"):
            return bytes.fromhex(value[2:])
        if UUID.match(value):
            return bytes.fromhex(value.replace("-", ""))
        return ERROR_CODES.get(value, value)
    if isinstance(value, dict) and "entries" in value:
        return tuple(
            TableKeyValue(value_of(k["data"]), k["keyVersion"], value_of(v["data"])) for k, v in value["entries"]
        )
    if isinstance(value, list):
        return tuple(element_of(element) for element in value)
    return value


def element_of(element: Any) -> Any:
    if not isinstance(element, dict):
        return value_of(element)
    if "keyVersion" in element:
        return TableKey(value_of(element["data"]), element["keyVersion"])
    fields = {RENAMED.get(name) or snake_case(name): value_of(value) for name, value in element.items()}
    return AttributeUpdate(**fields) if "update_type" in fields else StorageChunk(**fields)


def arguments_of(fields: Row) -> Row:
    """Translate the reference's fields to the arguments of our command."""
    arguments: Row = {}
    for name, value in fields.items():
        ours = RENAMED.get(name, snake_case(name))
        if ours is None:
            arguments |= arguments_of(value)
        elif ours:
            arguments[ours] = value_of(value)
    if "new_target_write_offset" in arguments and "sources" in arguments:
        # The reference keeps two lists; on the wire, and with us, they are pairs.
        pairs = zip(arguments.pop("sources"), arguments.pop("new_target_write_offset"), strict=True)
        arguments["merged"] = tuple(MergedSegment(*pair) for pair in pairs)
    return arguments


def frame_of(row: Row) -> bytes:
    return bytes.fromhex(row["hex"])


def decode_frame(frame: bytes) -> WireCommand:
    type_code, length = struct.unpack_from(">ii", frame)
    assert length == len(frame) - 8
    return decode(type_code, memoryview(frame)[8:])


def row_id(row: Row) -> str:
    return f"{row['name']}"


@pytest.mark.parametrize("row", CODEC, ids=row_id)
def test_reference_frame_decodes_to_its_fields(row: Row) -> None:
    fields: Row = row.get("decodes_to") or row["fields"]
    expected = class_of(row)(**arguments_of(fields))
    assert decode_frame(frame_of(row)) == expected


@pytest.mark.parametrize("row", CODEC, ids=row_id)
def test_fields_encode_to_the_reference_frame(row: Row) -> None:
    # An append block's data is not part of its frame for the reference codec, hence `decodes_to`.
    fields: Row = row["decodes_to"] if row["name"] == "APPEND_BLOCK" else row["fields"]
    command = class_of(row)(**arguments_of(fields))
    assert encode(command) == frame_of(row)
    assert b"".join(encode_parts(command)) == frame_of(row)


def test_reference_covers_every_command_but_these() -> None:
    covered = {row["type"] for row in CODEC}
    missing = {command.__name__ for command in COMMANDS if command.TYPE not in covered}
    # Padding has no fields, 41 and 42 are newer than the reference, 72 and 73 older.
    assert missing == {"Padding", "LocateOffset", "OffsetLocated", "MergeTableSegments", "SealTableSegment"}


def test_type_codes_are_unique_and_every_command_is_public() -> None:
    assert len({command.TYPE for command in COMMANDS}) == len(COMMANDS) == 72
    assert {command.__name__ for command in (*COMMANDS, *OWN_COMMANDS)} <= set(commands.__all__)
    assert all(hasattr(commands, name) for name in commands.__all__)


@pytest.mark.parametrize("name", sorted({row["name"] for row in TRAFFIC}))
def test_recorded_frames_round_trip_byte_for_byte(name: str) -> None:
    """Both through the codec and through the declared layout, which for hot commands are two pieces of code."""
    for row in TRAFFIC:
        if row["name"] != name:
            continue
        frame = frame_of(row)
        command = decode_frame(frame)
        assert type(command) is class_of(row)
        assert encode(command) == frame
        assert b"".join(encode_parts(command)) == frame
        assert LAYOUTS[row["type"]].encode(command) == frame
        assert LAYOUTS[row["type"]].decode(memoryview(frame)[8:]) == command


# Requests that Rust sends without their last fields (wire-protocol 1.4): encoding gives the longer, current form.
SHORT_FORMS = {("9.1", 40), ("9.1", 47), ("9.1", 56), ("9.2", 17), ("9.2", 30)}


@pytest.mark.parametrize("row", VECTORS, ids=lambda row: f"{row['section']}-{row['number']}")
def test_specification_vectors_round_trip(row: Row) -> None:
    frame = frame_of(row)
    command = decode_frame(frame)
    assert type(command).__name__ in row["title"] or row["section"] == "9.2"
    encoded = encode(command)
    if (row["section"], row["number"]) in SHORT_FORMS:
        assert len(encoded) > len(frame)
        assert decode_frame(encoded) == command
    else:
        assert encoded == frame


WRITER = bytes.fromhex("00112233445566778899aabbccddeeff")
MIN = -(1 << 63)
SEGMENT = "scope/stream/0.#epoch.0"
TABLE = "scope/table_kvtable/0.#epoch.0"
#: Fields stated in the titles of the vectors of wire-protocol 9.1, written out for those with a trap in them.
STATED: dict[int, WireCommand] = {
    1: Hello(16, 5),
    4: CreateSegment(1, SEGMENT, target_rate=100, scale_type=2, token="", rollover_size_bytes=0),
    7: SetupAppend(2, WRITER, SEGMENT, ""),
    9: AppendBlockEnd(WRITER, 13, bytes.fromhex("0000000000000005") + b"hello", 1, 1, 2),
    12: AppendBlock(WRITER, bytes.fromhex("000000000000000568656c6c6ffffffffe0000000700000000000000")),
    15: DataAppended(WRITER, 1, MIN, request_id=2, current_segment_write_offset=13),
    17: ConditionalBlockEnd(WRITER, 2, 24, b"abc", 4),
    24: SegmentRead(SEGMENT, 13, at_tail=True, end_of_segment=False, data=b"hello", request_id=6),
    28: StreamSegmentInfo(7, SEGMENT, True, False, False, 1700000000000, 18, 0),
    48: UpdateTableEntries(19, TABLE, "", (TableKeyValue(b"k1", -1, b"v1"),)),
    51: TableRead(20, TABLE, (TableKeyValue(b"k1", 0, b"v1"), TableKeyValue(b"k2", -1, b""))),
    56: ReadTableEntries(22, TABLE, "", 10),
    59: TableEntriesDeltaRead(23, TABLE, (TableKeyValue(b"k1", 0, b"v1"),), False, True, 21),
}


@pytest.mark.parametrize("number", STATED)
def test_computed_vector_has_the_stated_fields(number: int) -> None:
    (row,) = [row for row in VECTORS if (row["section"], row["number"]) == ("9.1", number)]
    assert decode_frame(frame_of(row)) == STATED[number]


def test_wire_17_commands_are_in_the_vectors() -> None:
    types = {type(decode_frame(frame_of(row))) for row in VECTORS}
    assert {LocateOffset, OffsetLocated} <= types


def test_short_rust_requests_take_the_defaults() -> None:
    """Captured from PyPI `pravega` 0.3.8, wire-protocol 9.2 numbers 17 and 30."""
    captured = {row["number"]: decode_frame(frame_of(row)) for row in VECTORS if row["section"] == "9.2"}
    table, merge = captured[17], captured[30]
    assert isinstance(table, CreateTableSegment)
    assert isinstance(merge, MergeSegments)
    assert (table.sorted_deprecated, table.key_length, table.rollover_size_bytes) == (False, 0, 0)
    assert merge.attribute_updates == ()


def test_own_commands_are_far_from_the_types_that_pravega_has_or_may_take() -> None:
    """Its types fit into a byte or two; the bytes of ours are golden: older and newer releases talk to each other."""
    theirs = {command.TYPE for command in COMMANDS}
    assert max(map(abs, theirs)) < 1 << 15
    assert [command.TYPE for command in OWN_COMMANDS] == list(range(0x50530001, 0x50530009))
    assert encode(GetStatistics(7, "", b"{}")).hex() == "505300010000001000000000000000070000000000027b7d"
    assert encode(StatisticsTold(7, b"{}")).hex() == "505300020000000e0000000000000007000000027b7d"
    assert encode(GetChunkLayout(7, "a", "", b"{}")).hex() == ("505300030000001300000000000000070001610000000000027b7d")
    assert encode(ChunkLayoutTold(7, b"{}")).hex() == "505300040000000e0000000000000007000000027b7d"
    assert encode(ReturnChunkLease(7, "a", "", 3, 5)).hex() == (
        "505300050000001d0000000000000007000161000000000000000000030000000000000005"
    )
    assert encode(ChunkLeaseReturned(7)).hex() == "50530006000000080000000000000007"
    assert encode(GetContainerImage(3, "", 7)).hex() == "505300070000000e0000000300000000000000000007"
    assert (
        encode(ContainerImagePart(7, "id", 9, 5, b"part")).hex() == "5053000800000024"
        "0000000000000007"
        "00026964"
        "0000000000000009"
        "0000000000000005"
        "0000000470617274"
    )


def test_defaults_stand_only_at_the_end() -> None:
    """A default means "may be missing at the end", so none may be followed by a field without one."""
    for command in COMMANDS:
        defaults = [field.default is not dataclasses.MISSING for field in dataclasses.fields(command) if field.init]
        assert defaults == sorted(defaults), command.__name__


def test_tokens_stay_out_of_representations() -> None:
    assert "secret" not in repr(SetupAppend(1, WRITER, SEGMENT, token="secret"))
