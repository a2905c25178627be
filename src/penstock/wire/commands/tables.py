"""Commands on table segments.

Versions are -2**63 for "any" and -1 for "must be absent". Keys are never empty.

Source: wire-protocol 2.5, 6.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from penstock.wire.commands.base import Reply, Request
from penstock.wire.fields import (
    I32,
    I64,
    Bool,
    Bytes,
    BytesAfterFilter,
    ChangedEntries,
    ChangedKeys,
    TableEntries,
    TableKeys,
    TableVersions,
    Text,
)


@dataclass(frozen=True, slots=True, eq=False)
class CreateTableSegment(Request):
    """Create a table segment; `key_length` 0 makes a hash table."""

    TYPE: ClassVar[int] = 70

    request_id: I64
    segment: Text
    token: Text = field(repr=False)
    sorted_deprecated: Bool = False
    key_length: I32 = 0
    rollover_size_bytes: I64 = 0


@dataclass(frozen=True, slots=True, eq=False)
class DeleteTableSegment(Request):
    """Delete a table segment, only if it is empty when `must_be_empty`."""

    TYPE: ClassVar[int] = 71

    request_id: I64
    segment: Text
    must_be_empty: Bool
    token: Text = field(repr=False)


@dataclass(frozen=True, slots=True, eq=False)
class GetTableSegmentInfo(Request):
    """Request the size of a table segment."""

    TYPE: ClassVar[int] = 68

    request_id: I64
    segment: Text
    token: Text = field(repr=False)


@dataclass(frozen=True, slots=True, eq=False)
class TableSegmentInfo(Reply):
    """Return the size of a table segment: bytes in [`start_offset`, `length`) and live keys."""

    TYPE: ClassVar[int] = 69

    request_id: I64
    segment: Text
    start_offset: I64
    length: I64
    entry_count: I64
    key_length: I32


@dataclass(frozen=True, slots=True, eq=False)
class MergeTableSegments(Request):
    """Merge table segments: removed in 0.10, never sent. Answered as unsupported."""

    TYPE: ClassVar[int] = 72

    request_id: I64
    target: Text
    source: Text
    token: Text = field(repr=False)


@dataclass(frozen=True, slots=True, eq=False)
class SealTableSegment(Request):
    """Seal a table segment: removed in 0.10, never sent. Answered as unsupported."""

    TYPE: ClassVar[int] = 73

    request_id: I64
    segment: Text
    token: Text = field(repr=False)


@dataclass(frozen=True, slots=True, eq=False)
class UpdateTableEntries(Request):
    """Write all entries or none; `table_segment_offset` >= 0 requires that length of the table."""

    TYPE: ClassVar[int] = 74

    request_id: I64
    segment: Text
    token: Text = field(repr=False)
    entries: ChangedEntries
    table_segment_offset: I64 = -1


@dataclass(frozen=True, slots=True, eq=False)
class TableEntriesUpdated(Reply):
    """Return the new versions, in the order of the entries."""

    TYPE: ClassVar[int] = 75

    request_id: I64
    versions: TableVersions


@dataclass(frozen=True, slots=True, eq=False)
class RemoveTableKeys(Request):
    """Remove all keys or none; `table_segment_offset` >= 0 requires that length of the table."""

    TYPE: ClassVar[int] = 76

    request_id: I64
    segment: Text
    token: Text = field(repr=False)
    keys: ChangedKeys
    table_segment_offset: I64 = -1


@dataclass(frozen=True, slots=True, eq=False)
class TableKeysRemoved(Reply):
    """Confirm a removal."""

    TYPE: ClassVar[int] = 77

    request_id: I64
    segment: Text


@dataclass(frozen=True, slots=True, eq=False)
class ReadTable(Request):
    """Read the entries of some keys. The keys' versions are ignored."""

    TYPE: ClassVar[int] = 78

    request_id: I64
    segment: Text
    token: Text = field(repr=False)
    keys: TableKeys


@dataclass(frozen=True, slots=True, eq=False)
class TableRead(Reply):
    """Answer with one entry per key, in order; a missing key has version -1 and an empty value."""

    TYPE: ClassVar[int] = 79

    request_id: I64
    segment: Text
    entries: TableEntries


@dataclass(frozen=True, slots=True, eq=False)
class ReadTableKeys(Request):
    """Iterate over keys, about `suggested_count` at a time."""

    TYPE: ClassVar[int] = 83

    request_id: I64
    segment: Text
    token: Text = field(repr=False)
    suggested_count: I32
    continuation_token: Bytes = b""
    from_key: BytesAfterFilter = b""
    to_key: Bytes = b""


@dataclass(frozen=True, slots=True, eq=False)
class TableKeysRead(Reply):
    """Return keys and the state of the iteration. No keys: the end."""

    TYPE: ClassVar[int] = 84

    request_id: I64
    segment: Text
    keys: TableKeys
    continuation_token: Bytes


@dataclass(frozen=True, slots=True, eq=False)
class ReadTableEntries(Request):
    """Iterate over entries, about `suggested_count` at a time."""

    TYPE: ClassVar[int] = 85

    request_id: I64
    segment: Text
    token: Text = field(repr=False)
    suggested_count: I32
    continuation_token: Bytes = b""
    from_key: BytesAfterFilter = b""
    to_key: Bytes = b""


@dataclass(frozen=True, slots=True, eq=False)
class TableEntriesRead(Reply):
    """Return entries and the state of the iteration. No entries: the end."""

    TYPE: ClassVar[int] = 86

    request_id: I64
    segment: Text
    entries: TableEntries
    continuation_token: Bytes


@dataclass(frozen=True, slots=True, eq=False)
class ReadTableEntriesDelta(Request):
    """Read what was written since byte `from_position` of the table."""

    TYPE: ClassVar[int] = 88

    request_id: I64
    segment: Text
    token: Text = field(repr=False)
    from_position: I64
    suggested_count: I32


@dataclass(frozen=True, slots=True, eq=False)
class TableEntriesDeltaRead(Reply):
    """Answer a delta read. `should_clear`: rebuild from nothing; `reached_end`: there are no more yet."""

    TYPE: ClassVar[int] = 87

    request_id: I64
    segment: Text
    entries: TableEntries
    should_clear: Bool
    reached_end: Bool
    last_position: I64
