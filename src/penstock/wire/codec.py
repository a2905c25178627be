"""Encoding of commands as frames, and decoding.

A frame is an i32 type code, an i32 payload length and the payload, all big endian. Commands are declared in
`penstock.wire.commands`; `penstock.wire.layout` encodes and decodes any of them by its declaration, and
`penstock.wire.straight` has fast paths for the few frequent ones.

Encoding always writes every field; decoding accepts the shorter forms of older and of Rust clients and skips bytes
after the last known field.

Source: wire-protocol 1.2 to 1.4.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from penstock.model.errors import InvalidArgumentError, ProtocolError
from penstock.model.segments import Buffer
from penstock.wire import straight
from penstock.wire.commands import (
    COMMANDS,
    OWN_COMMANDS,
    AppendBlock,
    AppendBlockEnd,
    ConditionalBlockEnd,
    DataAppended,
    ReadSegment,
    Reply,
    SegmentRead,
    SetupAppend,
    WireCommand,
)
from penstock.wire.layout import LAYOUTS

#: Largest whole frame, header included, in bytes. Java's server applies it to frames, its client to payloads.
FRAME_LENGTH_MAX = 0x00FFFFFF
#: Bytes before the payload: type code and length.
HEADER_LENGTH = 8

# Encoders take exactly the class of their key, which the type of a dict cannot express: hence Any.
_PARTS_ENCODERS: dict[type[WireCommand], Callable[[Any], list[Buffer]]] = {
    AppendBlock: straight.encode_append_block_parts,
    AppendBlockEnd: straight.encode_append_block_end_parts,
    ConditionalBlockEnd: straight.encode_conditional_block_end_parts,
    SegmentRead: straight.encode_segment_read_parts,
}
_ENCODERS: dict[type[WireCommand], Callable[[Any], bytes]] = {
    DataAppended: straight.encode_data_appended,
    ReadSegment: straight.encode_read_segment,
    SetupAppend: straight.encode_setup_append,
}
_DECODERS: dict[int, Callable[[memoryview], WireCommand]] = {
    **{type_code: layout.decode for type_code, layout in LAYOUTS.items()},
    AppendBlock.TYPE: straight.decode_append_block,
    AppendBlockEnd.TYPE: straight.decode_append_block_end,
    ConditionalBlockEnd.TYPE: straight.decode_conditional_block_end,
    DataAppended.TYPE: straight.decode_data_appended,
    ReadSegment.TYPE: straight.decode_read_segment,
    SegmentRead.TYPE: straight.decode_segment_read,
    SetupAppend.TYPE: straight.decode_setup_append,
}
_REPLY_NAMES = {command.TYPE: command.__name__ for command in (*COMMANDS, *OWN_COMMANDS) if issubclass(command, Reply)}


def encode(command: WireCommand) -> bytes:
    """Encode `command` as one whole frame. Bulk data are copied once; see `encode_parts`.

    Raises:
        InvalidArgumentError: a number out of its range, text or an id of the wrong length, an empty table key, or a
            frame longer than `FRAME_LENGTH_MAX`.
    """
    encoder = _ENCODERS.get(type(command))
    if encoder is None:
        if type(command) in _PARTS_ENCODERS:
            return b"".join(encode_parts(command))
        layout = LAYOUTS.get(command.TYPE)
        if layout is None:
            raise InvalidArgumentError(f"{type(command).__name__} (type {command.TYPE}) is no command of the protocol")
        encoder = layout.encode
    try:
        frame = encoder(command)
    except struct.error as cause:
        raise InvalidArgumentError(f"cannot encode {type(command).__name__}: {cause}") from cause
    if len(frame) > FRAME_LENGTH_MAX:
        raise _too_long(command, len(frame))
    return frame


def encode_parts(command: WireCommand) -> list[Buffer]:
    """Encode `command` as buffers that make up one frame, for `writelines` or a vectored write.

    The data of `AppendBlock`, `AppendBlockEnd`, `ConditionalBlockEnd` and `SegmentRead` are among the buffers, not
    copied: they must not change until they are sent. A memoryview among them must be of bytes. Other commands give
    one buffer.

    Raises:
        InvalidArgumentError: as `encode`.
    """
    encoder = _PARTS_ENCODERS.get(type(command))
    if encoder is None:
        return [encode(command)]
    try:
        parts = encoder(command)
    except struct.error as cause:
        raise InvalidArgumentError(f"cannot encode {type(command).__name__}: {cause}") from cause
    length = sum(map(len, parts))
    if length > FRAME_LENGTH_MAX:
        raise _too_long(command, length)
    return parts


def decode(type_code: int, payload: memoryview | bytes) -> WireCommand:
    """Decode the payload of a frame of `type_code`.

    The `data` of the four bulk commands are memoryviews into `payload`, valid as long as it is; all else is
    copied. They compare equal to any buffer of the same bytes.

    Raises:
        ProtocolError: unknown type, too few bytes for a field that may not be missing, a negative count or length or
            one that the payload can't hold, a list with more elements than its command may have, text that is not
            UTF-8, or an empty table key.
    """
    decoder = _DECODERS.get(type_code)
    if decoder is None:
        raise ProtocolError(
            f"unknown command type {type_code} with {len(payload)} bytes of payload; "
            "the peer does not speak this protocol or is newer than wire version 17"
        )
    return decoder(payload if type(payload) is memoryview else memoryview(payload))


def decode_request(type_code: int, payload: memoryview | bytes) -> WireCommand:
    """Decode the payload of a frame that a client sent. See `decode`.

    Raises:
        ProtocolError: as `decode`, or a type that only servers send. The payload of such a frame is not read: the lists
            of replies may be longer than those of requests.
    """
    if type_code in _REPLY_NAMES:
        raise ProtocolError(
            f"{_REPLY_NAMES[type_code]} of {len(payload)} bytes is a reply; clients may only send requests"
        )
    return decode(type_code, payload)


def _too_long(command: WireCommand, length: int) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"{type(command).__name__} makes a frame of {length} bytes, peers accept {FRAME_LENGTH_MAX}; send less at once"
    )
