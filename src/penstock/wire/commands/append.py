"""Append commands.

A writer id is 16 bytes: the most significant half of the UUID first. Event numbers grow strictly per writer and
segment.

Source: wire-protocol 2.2, 3.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from penstock.model.segments import Buffer
from penstock.wire.commands.base import Reply, Request, WireCommand
from penstock.wire.fields import I32, I64, BulkData, BulkParts, BulkRest, EventFrame, Text, Uuid, data_joined


@dataclass(frozen=True, slots=True, eq=False)
class SetupAppend(Request):
    """Set up a writer of a segment on this connection; answered by `AppendSetup`."""

    TYPE: ClassVar[int] = 1

    request_id: I64
    writer_id: Uuid
    segment: Text
    token: Text = field(repr=False)


@dataclass(frozen=True, slots=True, eq=False)
class AppendSetup(Reply):
    """Return the last event number stored for a writer; -2**63 if it is new."""

    TYPE: ClassVar[int] = 2

    request_id: I64
    segment: Text
    writer_id: Uuid
    last_event_number: I64


@dataclass(frozen=True, slots=True, eq=False)
class AppendBlock(WireCommand):
    """Carry the whole events of an append (Java clients); the `AppendBlockEnd` that follows is acknowledged.

    The reference codec leaves `data` out of the frame and sends them after it. Here they are part of the frame, as
    they are on the wire.
    """

    TYPE: ClassVar[int] = 3

    writer_id: Uuid
    data: BulkRest


@dataclass(frozen=True, slots=True, eq=False)
class AppendBlockEnd(Request):
    """Close an append of `num_events` events, the last of which has number `last_event_number`.

    After an `AppendBlock` the first `size_of_whole_events` bytes are in there and `data` is the rest; alone (Rust
    clients) it holds everything and the size is not used.
    """

    TYPE: ClassVar[int] = 4

    writer_id: Uuid
    size_of_whole_events: I32
    data: BulkParts
    num_events: I32
    last_event_number: I64
    request_id: I64 = -1

    @property
    def buffer(self) -> Buffer:
        """`data` as one buffer. Copies only if `data` is several buffers, which decoded data never are."""
        return data_joined(self.data)


@dataclass(frozen=True, slots=True, eq=False)
class ConditionalAppend(Request):
    """Append one event if the segment is `expected_offset` bytes long. `data` is its payload, without header."""

    TYPE: ClassVar[int] = 5

    writer_id: Uuid
    event_number: I64
    expected_offset: I64
    data: EventFrame
    request_id: I64 = -1


@dataclass(frozen=True, slots=True, eq=False)
class ConditionalBlockEnd(Request):
    """Append `data` as they are (no header is added) if the segment is `expected_offset` bytes long."""

    TYPE: ClassVar[int] = 89

    writer_id: Uuid
    event_number: I64
    expected_offset: I64
    data: BulkData
    request_id: I64


@dataclass(frozen=True, slots=True, eq=False)
class DataAppended(Reply):
    """Acknowledge all events after `previous_event_number` up to and including `event_number`.

    `previous_event_number` is the last one acknowledged before (-2**63 for a new writer) and must be exact: Java
    clients check it. `current_segment_write_offset` is the segment's length after the append, in bytes.
    """

    TYPE: ClassVar[int] = 7

    writer_id: Uuid
    event_number: I64
    previous_event_number: I64 = -1
    request_id: I64 = -1
    current_segment_write_offset: I64 = -1


@dataclass(frozen=True, slots=True, eq=False)
class ConditionalCheckFailed(Reply):
    """Refuse a conditional append: the segment has another length."""

    TYPE: ClassVar[int] = 8

    writer_id: Uuid
    event_number: I64
    request_id: I64 = -1


@dataclass(frozen=True, slots=True, eq=False)
class CreateTransientSegment(Request):
    """Create a segment for a large event; the `SegmentCreated` reply carries its generated name."""

    TYPE: ClassVar[int] = 40

    request_id: I64
    writer_id: Uuid
    parent_segment: Text
    token: Text = field(repr=False)
