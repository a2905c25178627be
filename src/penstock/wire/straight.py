"""Straight-line encoders and decoders of the most frequent commands.

They do the same as `penstock.wire.layout` does from the declarations, several times faster, and are tested against it.
Each decoder handles only the complete and well-formed form. Anything else (a missing optional field, a length that
does not fit) is left to the declared layout, which fills in the default or raises the error.

Source: wire-protocol 2.2 and 2.3.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from penstock.model.segments import Buffer
from penstock.wire.commands import (
    AppendBlock,
    AppendBlockEnd,
    ConditionalBlockEnd,
    DataAppended,
    ReadSegment,
    SegmentRead,
    SetupAppend,
    WireCommand,
)
from penstock.wire.fields import check_uuid, data_length
from penstock.wire.layout import LAYOUTS
from penstock.wire.text import encode_text

_UUID_LENGTH = 16

_U16 = struct.Struct(">H")
_I64 = struct.Struct(">q")
_APPEND_BLOCK = struct.Struct(">ii16s")
_BLOCK_END_HEAD = struct.Struct(">16sii")
_BLOCK_END_TAIL = struct.Struct(">iqq")
_BLOCK_END_START = struct.Struct(">ii16sii")
_CONDITIONAL_HEAD = struct.Struct(">16sqqi")
_CONDITIONAL_START = struct.Struct(">ii16sqqi")
_DATA_APPENDED = struct.Struct(">16sqqqq")
_DATA_APPENDED_FRAME = struct.Struct(">ii16sqqqq")
_DATA_APPENDED_TYPE, _DATA_APPENDED_LENGTH = DataAppended.TYPE, _DATA_APPENDED.size
_SETUP_HEAD = struct.Struct(">q16sH")
_READ_TAIL_HEAD = struct.Struct(">qiH")
_SEGMENT_READ_MIDDLE = struct.Struct(">qbbi")
_TYPED_TEXT = struct.Struct(">iiH")
_SETUP_FRAME_HEAD = struct.Struct(">iiq16sH")


def decode_append_block(payload: memoryview) -> WireCommand:
    """Decode an `AppendBlock`; `data` is a slice of `payload`."""
    if len(payload) < _UUID_LENGTH:
        return LAYOUTS[AppendBlock.TYPE].decode(payload)
    return AppendBlock(payload[:16].tobytes(), payload[16:])


def decode_append_block_end(payload: memoryview) -> WireCommand:
    """Decode an `AppendBlockEnd`; `data` is a slice of `payload`."""
    total = len(payload)
    if total >= 44:
        writer_id, whole, length = _BLOCK_END_HEAD.unpack_from(payload)
        if 0 <= length <= total - 44:
            end = 24 + length
            event_count, last_event_number, request_id = _BLOCK_END_TAIL.unpack_from(payload, end)
            return AppendBlockEnd(writer_id, whole, payload[24:end], event_count, last_event_number, request_id)
    return LAYOUTS[AppendBlockEnd.TYPE].decode(payload)


def decode_conditional_block_end(payload: memoryview) -> WireCommand:
    """Decode a `ConditionalBlockEnd`; `data` is a slice of `payload`."""
    total = len(payload)
    if total >= 44:
        writer_id, event_number, expected_offset, length = _CONDITIONAL_HEAD.unpack_from(payload)
        if 0 <= length <= total - 44:
            end = 36 + length
            (request_id,) = _I64.unpack_from(payload, end)
            return ConditionalBlockEnd(writer_id, event_number, expected_offset, payload[36:end], request_id)
    return LAYOUTS[ConditionalBlockEnd.TYPE].decode(payload)


def decode_data_appended(payload: memoryview) -> WireCommand:
    """Decode a `DataAppended`."""
    if len(payload) >= _DATA_APPENDED.size:
        return DataAppended(*_DATA_APPENDED.unpack_from(payload))
    return LAYOUTS[DataAppended.TYPE].decode(payload)


def decode_setup_append(payload: memoryview) -> WireCommand:
    """Decode a `SetupAppend`."""
    total = len(payload)
    if total >= 28:
        request_id, writer_id, segment_length = _SETUP_HEAD.unpack_from(payload)
        end = 26 + segment_length
        if end + 2 <= total:
            (token_length,) = _U16.unpack_from(payload, end)
            token_end = end + 2 + token_length
            if token_end <= total:
                segment = _plain_text(payload[26:end])
                token = _plain_text(payload[end + 2 : token_end])
                if segment is not None and token is not None:
                    return SetupAppend(request_id, writer_id, segment, token)
    return LAYOUTS[SetupAppend.TYPE].decode(payload)


def decode_read_segment(payload: memoryview) -> WireCommand:
    """Decode a `ReadSegment`."""
    total = len(payload)
    if total >= 2:
        end = 2 + _U16.unpack_from(payload)[0]
        if end + 22 <= total:
            offset, suggested_length, token_length = _READ_TAIL_HEAD.unpack_from(payload, end)
            token_start = end + 14
            token_end = token_start + token_length
            if token_end + 8 <= total:
                segment = _plain_text(payload[2:end])
                token = _plain_text(payload[token_start:token_end])
                if segment is not None and token is not None:
                    (request_id,) = _I64.unpack_from(payload, token_end)
                    return ReadSegment(segment, offset, suggested_length, token, request_id)
    return LAYOUTS[ReadSegment.TYPE].decode(payload)


def decode_segment_read(payload: memoryview) -> WireCommand:
    """Decode a `SegmentRead`; `data` is a slice of `payload`."""
    total = len(payload)
    if total >= 2:
        end = 2 + _U16.unpack_from(payload)[0]
        if end + 22 <= total:
            offset, at_tail, end_of_segment, length = _SEGMENT_READ_MIDDLE.unpack_from(payload, end)
            start = end + 14
            stop = start + length
            if 0 <= length <= total - 8 - start:
                segment = _plain_text(payload[2:end])
                if segment is not None:
                    (request_id,) = _I64.unpack_from(payload, stop)
                    return SegmentRead(
                        segment, offset, at_tail != 0, end_of_segment != 0, payload[start:stop], request_id
                    )
    return LAYOUTS[SegmentRead.TYPE].decode(payload)


def _plain_text(encoded: memoryview) -> str | None:
    """Decode UTF-8, or return None where the slow path has to decode it."""
    try:
        return str(encoded, "utf-8")
    except UnicodeDecodeError:
        return None


def encode_append_block_parts(command: AppendBlock) -> list[Buffer]:
    """Encode an `AppendBlock` as buffers; the data are not copied."""
    data = command.data
    return [_APPEND_BLOCK.pack(AppendBlock.TYPE, 16 + len(data), check_uuid(command.writer_id)), data]


def encode_append_block_end_parts(command: AppendBlockEnd) -> list[Buffer]:
    """Encode an `AppendBlockEnd` as buffers; the data are not copied."""
    length = data_length(command.data)
    head = _BLOCK_END_START.pack(
        AppendBlockEnd.TYPE, 44 + length, check_uuid(command.writer_id), command.size_of_whole_events, length
    )
    tail = _BLOCK_END_TAIL.pack(command.num_events, command.last_event_number, command.request_id)
    return _between(head, command.data, tail)


def encode_conditional_block_end_parts(command: ConditionalBlockEnd) -> list[Buffer]:
    """Encode a `ConditionalBlockEnd` as buffers; the data are not copied."""
    data = command.data
    head = _CONDITIONAL_START.pack(
        ConditionalBlockEnd.TYPE,
        44 + len(data),
        check_uuid(command.writer_id),
        command.event_number,
        command.expected_offset,
        len(data),
    )
    return [head, data, _I64.pack(command.request_id)]


def encode_segment_read_parts(command: SegmentRead) -> list[Buffer]:
    """Encode a `SegmentRead` as buffers; the data are not copied."""
    segment = encode_text(command.segment)
    length = data_length(command.data)
    head = (
        _TYPED_TEXT.pack(SegmentRead.TYPE, 24 + len(segment) + length, len(segment))
        + segment
        + _SEGMENT_READ_MIDDLE.pack(
            command.offset, 1 if command.at_tail else 0, 1 if command.end_of_segment else 0, length
        )
    )
    return _between(head, command.data, _I64.pack(command.request_id))


def encode_data_appended(command: DataAppended) -> bytes:
    """Encode a `DataAppended` frame."""
    return data_appended_frame(
        check_uuid(command.writer_id),
        command.event_number,
        command.previous_event_number,
        command.request_id,
        command.current_segment_write_offset,
    )


def data_appended_frame(
    writer_id: bytes, event_number: int, previous_event_number: int, request_id: int, write_offset: int
) -> bytes:
    """Return a `DataAppended` frame without creating a command: a server sends one for each of very many appends.

    `writer_id` has 16 bytes, numbers are in their range: they come from a decoded command, or are byte counts.
    """
    return _DATA_APPENDED_FRAME.pack(
        _DATA_APPENDED_TYPE,
        _DATA_APPENDED_LENGTH,
        writer_id,
        event_number,
        previous_event_number,
        request_id,
        write_offset,
    )


def encode_setup_append(command: SetupAppend) -> bytes:
    """Encode a `SetupAppend` frame."""
    segment = encode_text(command.segment)
    token = encode_text(command.token)
    head = _SETUP_FRAME_HEAD.pack(
        SetupAppend.TYPE,
        28 + len(segment) + len(token),
        command.request_id,
        check_uuid(command.writer_id),
        len(segment),
    )
    return b"".join((head, segment, _U16.pack(len(token)), token))


def encode_read_segment(command: ReadSegment) -> bytes:
    """Encode a `ReadSegment` frame."""
    segment = encode_text(command.segment)
    token = encode_text(command.token)
    return b"".join(
        (
            _TYPED_TEXT.pack(ReadSegment.TYPE, 24 + len(segment) + len(token), len(segment)),
            segment,
            _READ_TAIL_HEAD.pack(command.offset, command.suggested_length, len(token)),
            token,
            _I64.pack(command.request_id),
        )
    )


def _between(head: bytes, data: Buffer | Sequence[Buffer], tail: bytes) -> list[Buffer]:
    if isinstance(data, bytes | bytearray | memoryview):
        return [head, data, tail]
    return [head, *data, tail]
