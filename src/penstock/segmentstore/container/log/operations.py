"""Operations: the records of a container's log, and their byte format.

A record is a header (type u8, sequence number u64) and a body. Appends, which are nearly all of the log, have a
fixed binary body; the rare kinds are msgpack arrays. All integers are big endian. Numbers of retired kinds stay
unused. The byte table is in docs/formats.md.

Source: segment-store 2.1.
"""

from __future__ import annotations

import struct
from typing import ClassVar, get_args

import msgspec

from penstock.model.segments import NO_VALUE, Buffer
from penstock.segmentstore.later_format import LaterFormatError

#: First byte of every frame's payload.
FORMAT_VERSION = 1

RECORD_HEADER = struct.Struct(">BQ")
#: segment id, offset, time ms, event count, event number, writer id; data follow to the end of the record.
APPEND_BODY = struct.Struct(">QqqiQ16s")
APPEND_HEADER = struct.Struct(">BQQqqiQ16s")
APPEND_TYPE = 1
NO_WRITER = bytes(16)
_U64 = 0xFFFFFFFFFFFFFFFF


# Excluded from garbage collection: it is never part of a reference cycle, and a replay creates millions.
class Append(msgspec.Struct, frozen=True, gc=False):
    """Bytes appended to a segment at `offset`; `event_number` becomes the last one of `writer_id`."""

    TYPE: ClassVar[int] = APPEND_TYPE

    segment_id: int
    offset: int
    time_ms: int
    event_count: int
    event_number: int
    writer_id: bytes
    data: Buffer


class Create(msgspec.Struct, frozen=True, array_like=True):
    """A new segment. `flags` are `SegmentFlags`."""

    TYPE: ClassVar[int] = 4

    segment_id: int
    name: str
    flags: int
    key_length: int
    scale_type: int
    target_rate: int
    rollover_bytes: int
    time_ms: int


class Seal(msgspec.Struct, frozen=True, array_like=True):
    """Ends appends to a segment; `length` is its final length."""

    TYPE: ClassVar[int] = 2

    segment_id: int
    length: int
    time_ms: int


class Merge(msgspec.Struct, frozen=True, array_like=True):
    """The whole of a sealed source becomes the target's bytes from `offset`; the target's attributes change too."""

    TYPE: ClassVar[int] = 3

    target_id: int
    source_id: int
    offset: int
    length: int
    event_count: int
    time_ms: int
    attributes: dict[bytes, int] = {}


class UpdateAttributes(msgspec.Struct, frozen=True, array_like=True):
    """New attribute values; `NO_VALUE` removes one."""

    TYPE: ClassVar[int] = 6

    segment_id: int
    values: dict[bytes, int]


class Truncate(msgspec.Struct, frozen=True, array_like=True):
    """Truncates the bytes before `offset`."""

    TYPE: ClassVar[int] = 7

    segment_id: int
    offset: int
    time_ms: int


class TruncateMany(msgspec.Struct, frozen=True, array_like=True):
    """`Truncate` of many segments; each segment is truncated at the offset with the same index."""

    TYPE: ClassVar[int] = 20

    segment_ids: list[int]
    offsets: list[int]
    time_ms: int


class Checkpoint(msgspec.Struct, frozen=True, array_like=True):
    """A part of the container's metadata as of the position of part 0 in the log (`container.metadata`).

    `number` is the sequence number of part 0. Parts of one checkpoint are in order, possibly with other operations
    between them, and are valid once the last part is present.
    """

    TYPE: ClassVar[int] = 19

    number: int
    part: int
    is_last: bool
    snapshot: bytes


class Delete(msgspec.Struct, frozen=True, array_like=True):
    """The segment no longer exists for clients; its storage is not freed yet."""

    TYPE: ClassVar[int] = 10

    segment_id: int


class Forget(msgspec.Struct, frozen=True, array_like=True):
    """Storage holds nothing of a deleted or merged segment any more; its state is discarded."""

    TYPE: ClassVar[int] = 11

    segment_id: int


class UpdatePolicy(msgspec.Struct, frozen=True, array_like=True):
    """New scaling policy of a segment."""

    TYPE: ClassVar[int] = 12

    segment_id: int
    scale_type: int
    target_rate: int


class UpdatePinned(msgspec.Struct, frozen=True, array_like=True):
    """Storage records of system segments, which cannot be kept in the tables that they describe. None removes a key."""

    TYPE: ClassVar[int] = 13

    values: dict[bytes, bytes | None]


class Deactivate(msgspec.Struct, frozen=True, array_like=True):
    """Segments that leave memory; their records are in the container's metadata table. See docs/segments.md."""

    TYPE: ClassVar[int] = 14

    segment_ids: list[int]


class Activate(msgspec.Struct, frozen=True, array_like=True):
    """A segment returns to memory. `record` is its record in the container's metadata table."""

    TYPE: ClassVar[int] = 15

    record: bytes


class SpillAttributes(msgspec.Struct, frozen=True, array_like=True):
    """A segment's attributes are in its attribute index from here on, except those changed later."""

    TYPE: ClassVar[int] = 16

    segment_id: int


class CarriedBytes(msgspec.Struct, frozen=True, array_like=True):
    """Bytes of a segment, logged again so that the log can be truncated before them. See docs/log-length.md."""

    TYPE: ClassVar[int] = 17

    segment_id: int
    offset: int
    data: bytes


class CarriedMerge(msgspec.Struct, frozen=True, array_like=True):
    """A merge not yet done in long-term storage, logged again; `offset` is the source's position in the target."""

    TYPE: ClassVar[int] = 18

    target_id: int
    source_id: int
    offset: int


NonAppendOperation = (
    Create
    | Seal
    | Merge
    | UpdateAttributes
    | Truncate
    | TruncateMany
    | Checkpoint
    | Delete
    | Forget
    | UpdatePolicy
    | UpdatePinned
    | Deactivate
    | Activate
    | SpillAttributes
    | CarriedBytes
    | CarriedMerge
)
Operation = Append | NonAppendOperation

_RARE: dict[int, type[NonAppendOperation]] = {kind.TYPE: kind for kind in get_args(NonAppendOperation)}
_encode = msgspec.msgpack.Encoder().encode
_decoders = {number: msgspec.msgpack.Decoder(kind) for number, kind in _RARE.items()}

#: Kinds above this belong to a later version. A new kind needs a new `EPOCH_VERSION` (tier1/log_records.py).
TYPE_MAX = max(APPEND_TYPE, *_RARE)


def check_kind(kind: int) -> None:
    """Raise `LaterFormatError` for a kind of record that a later version has added."""
    if kind > TYPE_MAX:
        raise LaterFormatError("operation type", found=kind, known=TYPE_MAX)


def encode_append_header(
    sequence_number: int,
    segment_id: int,
    offset: int,
    time_ms: int,
    event_count: int,
    event_number: int,
    writer_id: bytes,
) -> bytes:
    """Return the bytes of an append record up to its data."""
    return APPEND_HEADER.pack(
        APPEND_TYPE, sequence_number, segment_id, offset, time_ms, event_count, event_number & _U64, writer_id
    )


def encode_operation(sequence_number: int, operation: NonAppendOperation) -> bytes:
    """Return the whole record of an operation that is not an append."""
    return RECORD_HEADER.pack(operation.TYPE, sequence_number) + _encode(operation)


def decode_operation(record: Buffer) -> tuple[int, Operation]:
    """Return a record's sequence number and operation.

    Raises `ValueError` if the bytes are not a record, `LaterFormatError` for a kind added by a later version.

    The data of an append is a view of `record`.
    """
    try:
        kind, sequence_number = RECORD_HEADER.unpack_from(record)
        body = memoryview(record)[RECORD_HEADER.size :]
        if kind == APPEND_TYPE:
            segment_id, offset, time_ms, event_count, event_number, writer_id = APPEND_BODY.unpack_from(body)
            if event_number >= 1 << 63:
                event_number -= 1 << 64
            return sequence_number, Append(
                segment_id, offset, time_ms, event_count, event_number, writer_id, body[APPEND_BODY.size :]
            )
        decoder = _decoders.get(kind)
        if decoder is None:
            check_kind(kind)
            raise ValueError(f"operation type {kind} is retired")
        return sequence_number, decoder.decode(body)
    except (struct.error, msgspec.DecodeError) as error:
        raise ValueError(f"not an operation record: {error}") from error


__all__ = [
    "FORMAT_VERSION",
    "NO_VALUE",
    "NO_WRITER",
    "TYPE_MAX",
    "Activate",
    "Append",
    "CarriedBytes",
    "CarriedMerge",
    "Checkpoint",
    "Create",
    "Deactivate",
    "Delete",
    "Forget",
    "Merge",
    "NonAppendOperation",
    "Operation",
    "Seal",
    "SpillAttributes",
    "Truncate",
    "UpdateAttributes",
    "UpdatePinned",
    "UpdatePolicy",
    "check_kind",
    "decode_operation",
    "encode_append_header",
    "encode_operation",
]
