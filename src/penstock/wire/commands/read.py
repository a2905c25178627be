"""Commands that read segments, their state and their attributes.


Source: wire-protocol 2.3.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from penstock.model.segments import Buffer
from penstock.wire.commands.base import Reply, Request
from penstock.wire.fields import I32, I64, Bool, BulkParts, Text, Uuid, data_joined


@dataclass(frozen=True, slots=True, eq=False)
class ReadSegment(Request):
    """Read up to `suggested_length` bytes from `offset`; at the tail the answer waits for data."""

    TYPE: ClassVar[int] = 9

    segment: Text
    offset: I64
    suggested_length: I32
    token: Text = field(repr=False)
    request_id: I64 = -1


@dataclass(frozen=True, slots=True, eq=False)
class SegmentRead(Reply):
    """Answer a read with the bytes from `offset`. `end_of_segment`: it is sealed and nothing follows."""

    TYPE: ClassVar[int] = 10

    segment: Text
    offset: I64
    at_tail: Bool
    end_of_segment: Bool
    data: BulkParts
    request_id: I64 = -1

    @property
    def buffer(self) -> Buffer:
        """`data` as one buffer. Copies only if `data` is several buffers, which decoded data never are."""
        return data_joined(self.data)


@dataclass(frozen=True, slots=True, eq=False)
class GetStreamSegmentInfo(Request):
    """Request the state of a segment."""

    TYPE: ClassVar[int] = 11

    request_id: I64
    segment: Text
    token: Text = field(repr=False)


@dataclass(frozen=True, slots=True, eq=False)
class StreamSegmentInfo(Reply):
    """Return the state of a segment. Offsets in bytes; `last_modified` in ms since the epoch."""

    TYPE: ClassVar[int] = 12

    request_id: I64
    segment: Text
    exists: Bool
    is_sealed: Bool
    is_deleted: Bool
    last_modified: I64
    write_offset: I64
    start_offset: I64 = 0


@dataclass(frozen=True, slots=True, eq=False)
class GetSegmentAttribute(Request):
    """Request the attribute with a 16-byte id."""

    TYPE: ClassVar[int] = 34

    request_id: I64
    segment: Text
    attribute_id: Uuid
    token: Text = field(repr=False)


@dataclass(frozen=True, slots=True, eq=False)
class SegmentAttribute(Reply):
    """Return the value of an attribute; -2**63 if there is none."""

    TYPE: ClassVar[int] = 35

    request_id: I64
    value: I64


@dataclass(frozen=True, slots=True, eq=False)
class UpdateSegmentAttribute(Request):
    """Set an attribute if it has `expected_value` (-2**63: if there is none)."""

    TYPE: ClassVar[int] = 36

    request_id: I64
    segment: Text
    attribute_id: Uuid
    new_value: I64
    expected_value: I64
    token: Text = field(repr=False)


@dataclass(frozen=True, slots=True, eq=False)
class SegmentAttributeUpdated(Reply):
    """Return whether the attribute was set; also the answer to a merge whose attribute condition failed."""

    TYPE: ClassVar[int] = 37

    request_id: I64
    success: Bool


@dataclass(frozen=True, slots=True, eq=False)
class LocateOffset(Request):
    """Request the event boundary at or before `target_offset` (wire version 17 and up)."""

    TYPE: ClassVar[int] = 41

    request_id: I64
    segment: Text
    target_offset: I64
    token: Text = field(repr=False)


@dataclass(frozen=True, slots=True, eq=False)
class OffsetLocated(Reply):
    """Return the requested event boundary (wire version 17 and up)."""

    TYPE: ClassVar[int] = 42

    request_id: I64
    segment: Text
    offset: I64
