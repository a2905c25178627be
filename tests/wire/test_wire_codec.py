"""The codec over its whole range: random commands, random bytes, truncations, and every named error."""

from __future__ import annotations

import dataclasses
import json
import random
import struct
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.model.errors import InvalidArgumentError, ProtocolError
from penstock.wire import fields
from penstock.wire.codec import FRAME_LENGTH_MAX, decode, encode, encode_parts
from penstock.wire.commands import (
    COMMANDS,
    OWN_COMMANDS,
    AppendBlock,
    AppendBlockEnd,
    AttributeUpdate,
    ConditionalAppend,
    ConditionalBlockEnd,
    CreateTableSegment,
    DataAppended,
    Event,
    KeepAlive,
    MergedSegment,
    NoSuchSegment,
    PartialEvent,
    ReadSegment,
    ReadTableKeys,
    SegmentAttributeUpdated,
    SegmentIsTruncated,
    SegmentRead,
    SetupAppend,
    StorageChunk,
    TableEntriesUpdated,
    TableKey,
    TableKeyValue,
    TableRead,
    UpdateTableEntries,
    WireCommand,
)
from penstock.wire.layout import LAYOUTS

WRITER = bytes(range(16))
CODEC = Path(__file__).parent.parent / "data" / "codec.jsonl"
#: Frames written by the codec of Pravega 0.13.
FRAMES = [bytes.fromhex(json.loads(line)["hex"]) for line in CODEC.read_text(encoding="utf-8").splitlines()]

i8 = st.integers(-(1 << 7), (1 << 7) - 1)
i32 = st.integers(-(1 << 31), (1 << 31) - 1)
i64 = st.integers(-(1 << 63), (1 << 63) - 1)
uuid = st.binary(min_size=16, max_size=16)
text = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
key = st.binary(min_size=1, max_size=20)
blob = st.binary(max_size=40)
table_key = st.builds(TableKey, key, i64)
table_entry = st.builds(TableKeyValue, key, i64, blob)


def several(element: st.SearchStrategy[object]) -> st.SearchStrategy[tuple[object, ...]]:
    return st.lists(element, max_size=4).map(tuple)


VALUES: list[tuple[object, st.SearchStrategy[object]]] = [
    (fields.I8, i8),
    (fields.I32, i32),
    (fields.I64, i64),
    (fields.Bool, st.booleans()),
    (fields.Uuid, uuid),
    (fields.Text, text),
    (fields.Bytes, blob),
    (fields.BytesAfterFilter, blob),
    (fields.Rest, blob),
    (fields.EventFrame, blob),
    (fields.BulkData, blob),
    (fields.BulkRest, blob),
    (fields.BulkParts, blob),
    (fields.Zeros, st.integers(0, 100)),
    (fields.TableVersions, several(i64)),
    (fields.SourceNames, several(text)),
    (fields.TableKeys, several(table_key)),
    (fields.ChangedKeys, several(table_key)),
    (fields.TableEntries, several(table_entry)),
    (fields.ChangedEntries, several(table_entry)),
    (fields.AttributeUpdates, several(st.builds(AttributeUpdate, uuid, i8, i64, i64))),
    (fields.MergedSegments, several(st.builds(MergedSegment, text, i64))),
    (fields.StorageChunks, several(st.builds(StorageChunk, i64, i64, i64, text, st.booleans()))),
]


def commands_of(command_type: type[WireCommand]) -> st.SearchStrategy[WireCommand]:
    hints = get_type_hints(command_type, include_extras=True)
    strategies = []
    for field in dataclasses.fields(command_type):
        (strategy,) = [strategy for kind, strategy in VALUES if kind == hints[field.name]]
        strategies.append(strategy)
    return st.builds(command_type, *strategies)


def payload_of(frame: bytes) -> memoryview:
    return memoryview(frame)[8:]


any_command = st.sampled_from((*COMMANDS, *OWN_COMMANDS)).flatmap(commands_of)


@given(any_command)
def test_every_command_round_trips(command: WireCommand) -> None:
    frame = encode(command)
    assert struct.unpack_from(">ii", frame) == (command.TYPE, len(frame) - 8)
    decoded = decode(command.TYPE, payload_of(frame))
    assert decoded == command
    assert encode(decoded) == frame
    assert b"".join(encode_parts(command)) == frame
    assert LAYOUTS[command.TYPE].encode(command) == frame


@given(any_command, blob)
def test_bytes_after_the_last_field_are_skipped(command: WireCommand, junk: bytes) -> None:
    """Except in commands that reach to the end of the frame by definition."""
    if isinstance(command, AppendBlock | PartialEvent) or type(command).__name__ == "Padding":
        return
    assert decode(command.TYPE, encode(command)[8:] + junk) == command


@given(st.sampled_from([command.TYPE for command in (*COMMANDS, *OWN_COMMANDS)]), st.binary(max_size=200))
def test_arbitrary_bytes_raise_nothing_but_protocol_errors(type_code: int, payload: bytes) -> None:
    try:
        decoded = decode(type_code, payload)
    except ProtocolError:
        return
    # What was accepted has a meaning: it can be said again, and means the same.
    assert decode(type_code, encode(decoded)[8:]) == decoded


@given(any_command, st.data())
def test_one_changed_byte_raises_nothing_but_a_protocol_error(command: WireCommand, data: st.DataObject) -> None:
    payload = bytearray(encode(command)[8:])
    if not payload:
        return
    payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    try:
        decoded = decode(command.TYPE, bytes(payload))
    except ProtocolError:
        return
    assert LAYOUTS[command.TYPE].decode(memoryview(bytes(payload))) == decoded


@pytest.mark.parametrize("frame", FRAMES, ids=lambda frame: frame[:4].hex())
def test_truncated_payload_raises_or_gives_the_short_form(frame: bytes) -> None:
    """Cut at every byte: an error, or the command with its first fields right and the rest at their defaults."""
    (type_code,) = struct.unpack_from(">i", frame)
    whole = decode(type_code, payload_of(frame))
    reaches_to_the_end = type_code in (AppendBlock.TYPE, PartialEvent.TYPE)
    for length in range(len(frame) - 8):
        try:
            short = decode(type_code, frame[8 : 8 + length])
        except ProtocolError:
            continue
        assert type(short) is type(whole)
        if reaches_to_the_end:
            continue
        is_missing = False
        for field in dataclasses.fields(short):
            was_read = getattr(short, field.name) == getattr(whole, field.name)
            is_missing = is_missing or not was_read
            assert not is_missing or getattr(short, field.name) == field.default


def test_append_without_request_id_takes_its_default() -> None:
    frame = encode(AppendBlockEnd(WRITER, 3, b"abc", 1, 7, 9))
    assert decode(4, frame[8:-8]) == AppendBlockEnd(WRITER, 3, b"abc", 1, 7, -1)
    assert decode(4, frame[8:-1]) == AppendBlockEnd(WRITER, 3, b"abc", 1, 7, -1)


def test_missing_optional_fields_take_their_defaults() -> None:
    appended = encode(DataAppended(WRITER, 1, 2, 3, 4))[8:]
    assert decode(7, appended[:24]) == DataAppended(WRITER, 1, -1, -1, -1)
    assert decode(7, appended[:40]) == DataAppended(WRITER, 1, 2, 3, -1)
    read = encode(ReadSegment("s", 1, 2, "t", 3))[8:]
    assert decode(9, read[:-8]) == ReadSegment("s", 1, 2, "t", -1)
    answer = encode(SegmentRead("s", 1, True, True, b"d", 3))[8:]
    assert decode(10, answer[:-8]) == SegmentRead("s", 1, True, True, b"d", -1)
    missing = encode(NoSuchSegment(1, "s"))[8:]
    assert decode(53, missing[:11]) == NoSuchSegment(1, "s", "", -1)
    truncated = encode(SegmentIsTruncated(1, "s", 5, "", 6))[8:]
    assert decode(56, truncated[:19]) == SegmentIsTruncated(1, "s", 5, "", -1)
    table = encode(CreateTableSegment(1, "s", "t", True, 3, 4))[8:]
    assert decode(70, table[:14]) == CreateTableSegment(1, "s", "t")
    assert decode(70, table[:15]) == CreateTableSegment(1, "s", "t", True)
    keys = encode(ReadTableKeys(1, "s", "t", 5, b"token", b"from", b"to"))[8:]
    assert decode(83, keys[:18]) == ReadTableKeys(1, "s", "t", 5)
    assert decode(83, keys[:27]) == ReadTableKeys(1, "s", "t", 5, b"token")
    assert decode(83, keys[:31]) == ReadTableKeys(1, "s", "t", 5, b"token")
    assert decode(83, keys[:39]) == ReadTableKeys(1, "s", "t", 5, b"token", b"from")


def test_prefix_filter_is_skipped() -> None:
    """Java's deprecated filter between token and keys, here not empty as some old client might send it."""
    head = struct.pack(">qH1sH1si", 1, 1, b"s", 1, b"t", 5)
    payload = head + b"\0\0\0\1T" + b"\0\0\0\2fi" + b"\0\0\0\1F" + b"\0\0\0\1E"
    assert decode(83, payload) == ReadTableKeys(1, "s", "t", 5, b"T", b"F", b"E")


def test_bulk_data_are_slices_of_the_payload() -> None:
    for command in (
        AppendBlock(WRITER, b"data"),
        AppendBlockEnd(WRITER, 4, b"data", 1, 1, 1),
        ConditionalBlockEnd(WRITER, 1, 0, b"data", 1),
        SegmentRead("s", 0, False, False, b"data", 1),
    ):
        payload = bytearray(encode(command)[8:])
        decoded = decode(command.TYPE, memoryview(payload))
        assert isinstance(decoded, type(command))
        assert isinstance(decoded.data, memoryview)
        assert bytes(decoded.data) == b"data"
        payload[payload.index(b"data")] = ord("D")
        assert bytes(decoded.data) == b"Data"


def test_other_bytes_are_copies() -> None:
    payload = bytearray(encode(TableRead(1, "s", (TableKeyValue(b"key", 1, b"value"),)))[8:])
    decoded = decode(TableRead.TYPE, memoryview(payload))
    payload[:] = bytes(len(payload))
    assert decoded == TableRead(1, "s", (TableKeyValue(b"key", 1, b"value"),))


def test_parts_hold_the_data_uncopied_and_in_order() -> None:
    first, second = bytearray(b"first"), memoryview(b"second")
    for command in (
        SegmentRead("s", 0, False, False, [first, second], 1),
        AppendBlockEnd(WRITER, 11, [first, second], 1, 1, 1),
    ):
        parts = encode_parts(command)
        assert parts[1] is first
        assert parts[2] is second
        whole = dataclasses.replace(command, data=b"firstsecond")
        assert b"".join(parts) == encode(command) == encode(whole) == LAYOUTS[command.TYPE].encode(command)
        assert command.buffer == b"firstsecond"
        assert whole.buffer is whole.data
    assert encode_parts(AppendBlock(WRITER, first))[1] is first
    assert encode_parts(ConditionalBlockEnd(WRITER, 1, 0, first, 1))[1] is first
    nothing = encode_parts(SegmentRead("s", 0, True, False, [], 1))
    assert b"".join(nothing) == encode(SegmentRead("s", 0, True, False, b"", 1))
    assert encode_parts(KeepAlive()) == [encode(KeepAlive())]


def test_payload_of_an_event_frame_is_the_event_as_stored() -> None:
    assert encode(Event(b"hello"))[8:] == bytes.fromhex("0000000000000005") + b"hello"


def test_any_byte_but_zero_is_true() -> None:
    assert decode(37, struct.pack(">qB", 1, 0x80)) == SegmentAttributeUpdated(1, True)
    answer = bytearray(encode(SegmentRead("s", 1, True, True, b"", 3))[8:])
    answer[11] = answer[12] = 0xFF
    assert decode(10, bytes(answer)) == SegmentRead("s", 1, True, True, b"", 3)


@pytest.mark.parametrize("type_code", [6, -7, -128, 1000, 0x47455420])
def test_unknown_type_is_a_protocol_error(type_code: int) -> None:
    with pytest.raises(ProtocolError, match=f"unknown command type {type_code}"):
        decode(type_code, b"")


@pytest.mark.parametrize("length", [-1, -(1 << 31), 21, (1 << 31) - 1])
def test_data_length_that_does_not_fit_is_a_protocol_error(length: int) -> None:
    bad = struct.pack(">i", length)
    with pytest.raises(ProtocolError, match="field data"):
        decode(4, WRITER + bytes(4) + bad + b"abc")
    with pytest.raises(ProtocolError):
        decode(4, WRITER + bytes(4) + bad + bytes(20))
    with pytest.raises(ProtocolError, match="field data"):
        decode(89, WRITER + bytes(16) + bad + b"abc")
    with pytest.raises(ProtocolError, match="field data"):
        decode(10, b"\0\1s" + bytes(10) + bad + b"abc")
    with pytest.raises(ProtocolError, match="field data"):
        decode(5, WRITER + bytes(16) + bytes(4) + bad + b"abc")


@pytest.mark.parametrize(
    ("count", "problem"), [(-1, "negative count"), (2, "do not fit"), ((1 << 31) - 1, "do not fit")]
)
def test_count_that_does_not_fit_is_a_protocol_error(count: int, problem: str) -> None:
    """Said before anything is allocated for the elements."""
    with pytest.raises(ProtocolError, match=problem):
        decode(TableEntriesUpdated.TYPE, struct.pack(">qiq", 1, count, 5))
    with pytest.raises(ProtocolError, match=problem):
        decode(TableRead.TYPE, struct.pack(">qHi", 1, 0, count) + bytes(40))


def test_empty_table_key_is_a_protocol_error() -> None:
    """Clients encode empty keys in two ways that can't be told apart."""
    for rest in (b"", bytes(8)):
        payload = struct.pack(">qHHi", 1, 0, 0, 1) + struct.pack(">ii", 12, 0) + rest + bytes(17)
        with pytest.raises(ProtocolError, match="key is empty"):
            decode(78, payload)


def test_table_lengths_that_disagree_are_a_protocol_error() -> None:
    good = encode(UpdateTableEntries(1, "", "", (TableKeyValue(b"k", 1, b"v"),)))[8:]
    key_at, value_at = 16, 16 + 17
    for position in (key_at, key_at + 4, value_at, value_at + 4):
        for wrong in (-1, 0, 2, 1 << 30):
            bad = bytearray(good)
            struct.pack_into(">i", bad, position, wrong)
            with pytest.raises(ProtocolError, match="field entries"):
                decode(74, bytes(bad))


def test_conditional_append_must_hold_an_event() -> None:
    payload = bytearray(encode(ConditionalAppend(WRITER, 1, 2, b"abc", 3))[8:])
    payload[35] = 1
    with pytest.raises(ProtocolError, match="found type 1"):
        decode(5, bytes(payload))


def test_undecodable_text_is_a_protocol_error() -> None:
    for tail in (b"\0\2\xff\xfe", b"\0\3\xed\xa0\x80"):
        with pytest.raises(ProtocolError, match="field segment"):
            decode(SetupAppend.TYPE, bytes(8) + WRITER + tail + b"\0\0")
        with pytest.raises(ProtocolError, match="field segment"):
            decode(ReadSegment.TYPE, tail + bytes(22))
        with pytest.raises(ProtocolError, match="field segment"):
            decode(SegmentRead.TYPE, tail + bytes(22))


@pytest.mark.parametrize(
    "command",
    [
        SetupAppend(1 << 63, WRITER, "s", ""),
        SetupAppend(1, b"short", "s", ""),
        SetupAppend(1, WRITER, "s" * 65536, ""),
        SetupAppend(1, WRITER, "\ud800", ""),
        DataAppended(WRITER + b"!", 1),
        DataAppended(WRITER, -(1 << 63) - 1),
        ReadSegment("s", 0, 1 << 31, ""),
        AppendBlock(b"", b""),
        AppendBlockEnd(WRITER, 1 << 31, b"", 1, 1),
        ConditionalBlockEnd(WRITER[:15], 1, 1, b"", 1),
        TableRead(1, "s", (TableKeyValue(b"", 1, b""),)),
        NoSuchSegment(1, "é" * 32768),
        UpdateTableEntries(1, "s", "", (TableKeyValue(b"k", 1 << 63, b""),)),
    ],
    ids=lambda command: type(command).__name__,
)
def test_value_without_encoding_is_the_callers_mistake(command: WireCommand) -> None:
    with pytest.raises(InvalidArgumentError):
        encode(command)
    with pytest.raises(InvalidArgumentError):
        encode_parts(command)


def test_frame_of_the_largest_size_is_sent_and_one_byte_more_is_not() -> None:
    data = bytes(FRAME_LENGTH_MAX - 8 - 16)
    assert sum(map(len, encode_parts(AppendBlock(WRITER, data)))) == FRAME_LENGTH_MAX
    with pytest.raises(InvalidArgumentError, match="send less"):
        encode_parts(AppendBlock(WRITER, data + b"!"))
    with pytest.raises(InvalidArgumentError, match="send less"):
        encode(PartialEvent(bytes(FRAME_LENGTH_MAX - 7)))


def test_something_else_is_not_encoded() -> None:
    class Stranger(WireCommand):
        TYPE = 12345

    with pytest.raises(InvalidArgumentError, match="no command"):
        encode(Stranger())


@pytest.mark.parametrize("key_lengths", [(1, 2, 3, 4, 5, 1), (3, 3, 3, 3, 3, 3), (2, 2, 5, 5, 2, 2)])
def test_entries_read_at_once_are_those_read_one_by_one_and_so_are_their_errors(key_lengths: tuple[int, ...]) -> None:
    """Pages of tables have a reader of their own: for whole pages, and for ones with any byte changed or cut off."""
    rng = random.Random(1)
    entries = [
        fields.TableKeyValue(rng.randbytes(length), n, rng.randbytes(n % 7)) for n, length in enumerate(key_lengths)
    ]
    out = bytearray()
    for entry in entries:
        fields._write_entry(out, entry)

    def one_by_one(payload: memoryview) -> tuple[list[fields.TableKeyValue], int]:
        found, position = [], 0
        for _ in entries:
            entry, position = fields._read_entry(payload, position)
            found.append(entry)
        return found, position

    def outcome(read: Callable[[], object]) -> object:
        try:
            return read()
        except (ProtocolError, struct.error) as error:
            return repr(error)

    assert one_by_one(memoryview(out)) == (entries, len(out))
    written_at_once = bytearray()
    fields._write_entries(written_at_once, entries)
    assert written_at_once == out
    variants = [bytes(out), *(bytes(out[:length]) for length in range(len(out)))]
    for at in range(len(out)):
        for value in (0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)):
            changed = bytearray(out)
            changed[at] = value
            variants.append(bytes(changed))
    for variant in variants:
        payload = memoryview(variant)
        expected = outcome(partial(one_by_one, payload))
        assert outcome(partial(fields._read_entries, payload, 0, len(entries))) == expected
