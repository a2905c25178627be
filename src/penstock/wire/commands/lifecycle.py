"""Commands that create, change, merge and delete segments.

`scale_type`: 0 none, 1 kB/s, 2 events/s; `target_rate` is in that unit.

Source: wire-protocol 2.4.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from penstock.wire.commands.base import Reply, Request
from penstock.wire.fields import I8, I32, I64, AttributeUpdates, MergedSegments, SourceNames, Text


@dataclass(frozen=True, slots=True, eq=False)
class CreateSegment(Request):
    """Create a segment. On the wire the rate comes before the type."""

    TYPE: ClassVar[int] = 20

    request_id: I64
    segment: Text
    target_rate: I32
    scale_type: I8
    token: Text = field(repr=False)
    rollover_size_bytes: I64 = 0


@dataclass(frozen=True, slots=True, eq=False)
class SegmentCreated(Reply):
    """Confirm that a segment, transient segment or table segment was created."""

    TYPE: ClassVar[int] = 21

    request_id: I64
    segment: Text


@dataclass(frozen=True, slots=True, eq=False)
class SealSegment(Request):
    """Allow no more appends to a segment."""

    TYPE: ClassVar[int] = 28

    request_id: I64
    segment: Text
    token: Text = field(repr=False)


@dataclass(frozen=True, slots=True, eq=False)
class SegmentSealed(Reply):
    """Confirm a seal."""

    TYPE: ClassVar[int] = 29

    request_id: I64
    segment: Text


@dataclass(frozen=True, slots=True, eq=False)
class DeleteSegment(Request):
    """Delete a segment."""

    TYPE: ClassVar[int] = 30

    request_id: I64
    segment: Text
    token: Text = field(repr=False)


@dataclass(frozen=True, slots=True, eq=False)
class SegmentDeleted(Reply):
    """Confirm that a segment or table segment was deleted."""

    TYPE: ClassVar[int] = 31

    request_id: I64
    segment: Text


@dataclass(frozen=True, slots=True, eq=False)
class UpdateSegmentPolicy(Request):
    """Change the target rate of a segment."""

    TYPE: ClassVar[int] = 32

    request_id: I64
    segment: Text
    target_rate: I32
    scale_type: I8
    token: Text = field(repr=False)


@dataclass(frozen=True, slots=True, eq=False)
class SegmentPolicyUpdated(Reply):
    """Confirm a change of policy."""

    TYPE: ClassVar[int] = 33

    request_id: I64
    segment: Text


@dataclass(frozen=True, slots=True, eq=False)
class TruncateSegment(Request):
    """Drop the bytes before `truncation_offset`."""

    TYPE: ClassVar[int] = 38

    request_id: I64
    segment: Text
    truncation_offset: I64
    token: Text = field(repr=False)


@dataclass(frozen=True, slots=True, eq=False)
class SegmentTruncated(Reply):
    """Confirm a truncation."""

    TYPE: ClassVar[int] = 39

    request_id: I64
    segment: Text


@dataclass(frozen=True, slots=True, eq=False)
class MergeSegments(Request):
    """Append `source` whole to `target` and delete it, if the attribute updates allow."""

    TYPE: ClassVar[int] = 58

    request_id: I64
    target: Text
    source: Text
    token: Text = field(repr=False)
    attribute_updates: AttributeUpdates = ()


@dataclass(frozen=True, slots=True, eq=False)
class SegmentsMerged(Reply):
    """Confirm a merge; the target is `new_target_write_offset` bytes long now."""

    TYPE: ClassVar[int] = 59

    request_id: I64
    target: Text
    source: Text
    new_target_write_offset: I64 = -1


@dataclass(frozen=True, slots=True, eq=False)
class MergeSegmentsBatch(Request):
    """Append each source whole to `target`, in order, and delete it (commit of transactions)."""

    TYPE: ClassVar[int] = 90

    request_id: I64
    target: Text
    sources: SourceNames
    token: Text = field(repr=False)


@dataclass(frozen=True, slots=True, eq=False)
class SegmentsBatchMerged(Reply):
    """Confirm a batch merge: each source with the target's length after it."""

    TYPE: ClassVar[int] = 91

    request_id: I64
    target: Text
    merged: MergedSegments
