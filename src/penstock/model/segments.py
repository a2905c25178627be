"""`Segments`: the requests of the controller and the clients to a segment store.

Implementations: the segment store itself (direct calls in one process), `penstock.client.transport.wire_segments`
(the wire protocol over TCP) and an in-memory one for tests. Every implementation passes the same conformance suite.

Unless stated otherwise, a call returns after its effect is durable, and raises the errors of `penstock.model.errors`:
`NoSuchSegmentError` for a missing segment, `ContainerNotFoundError` if another store owns it, `OutcomeUnknownError` if
the reply was lost. If a call is cancelled, its effect is unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, Protocol
from uuid import UUID

from penstock.model.errors import PenstockError

Buffer = bytes | bytearray | memoryview

#: "No value": an absent attribute, a writer without events, an unconditional table update.
NO_VALUE = -(1 << 63)
#: Table key versions: no condition, and "the key must be absent".
VERSION_ANY = NO_VALUE
VERSION_ABSENT = -1
#: The attribute with the mark of a stream of revisions: Java's ``SegmentAttribute.RevisionStreamClientMark``.
MARK_ATTRIBUTE = UUID("7df9a874-246c-c9d6-9397-cdd19ead68c5").bytes

TABLE_KEY_LENGTH_MAX = 8192
TABLE_VALUE_LENGTH_MAX = 1024 * 1024 - 8192
#: Maximum keys of one request to read a table. The limit is lower if their entries do not fit into one reply.
TABLE_READ_KEY_COUNT_MAX = 10_000
#: This many entries of maximum length fit into one reply. Pravega's Java client never requests more.
TABLE_READ_KEY_COUNT_SURE = 15
#: Largest reply to one read, as Pravega's server limits it.
READ_LENGTH_MAX = 2 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class SegmentInfo:
    """A segment's state. Offsets are bytes from the segment's first byte ever; truncation does not change them."""

    name: str
    start_offset: int
    length: int
    is_sealed: bool
    last_modified_ms: int
    is_table: bool = False


@dataclass(frozen=True, slots=True)
class SegmentData:
    """The result of a read: `data` starts at `offset`.

    `is_at_tail`: the data reach the current end of an unsealed segment. `is_end_of_segment`: the segment is sealed and
    nothing follows.
    """

    offset: int
    data: Sequence[Buffer]
    is_at_tail: bool
    is_end_of_segment: bool

    def joined(self) -> bytes:
        """Return the data as one `bytes` (one copy)."""
        return b"".join(self.data)


@dataclass(frozen=True, slots=True)
class TableUpdate:
    """Put `value` under `key`. `version`: `VERSION_ANY`, `VERSION_ABSENT`, or the exact current version."""

    key: bytes
    value: bytes
    version: int = VERSION_ANY


@dataclass(frozen=True, slots=True)
class TableRemoval:
    """Remove `key`. `version` as in `TableUpdate`; with `VERSION_ANY` a missing key is no error."""

    key: bytes
    version: int = VERSION_ANY


class TableEntry(NamedTuple):
    """A key, its value and the version of its last write (>= 0, growing over the table's life).

    A tuple, because scans create one per entry.
    """

    key: bytes
    value: bytes
    version: int


#: Creates a `TableEntry` of key, value and version in a quarter of the time, for whole pages.
table_entry_of: Callable[[tuple[bytes, bytes, int]], TableEntry] = partial(tuple.__new__, TableEntry)


@dataclass(frozen=True, slots=True)
class TablePage:
    """A page of an iteration. An empty page ends it; otherwise continue from `token`."""

    entries: Sequence[TableEntry]
    token: bytes


@dataclass(frozen=True, slots=True)
class TableKeyPage:
    """A page of keys with their versions. An empty page ends the iteration; otherwise continue from `token`."""

    keys: Sequence[tuple[bytes, int]]
    token: bytes


@dataclass(frozen=True, slots=True)
class TableDelta:
    """Changes of a table since a position.

    `last_position`: where the next delta read continues. `should_clear`: the requested position is older than the
    retained changes, rebuild from scratch. `reached_end`: there are no more changes yet.
    """

    entries: Sequence[TableEntry]
    should_clear: bool
    reached_end: bool
    last_position: int


@dataclass(frozen=True, slots=True)
class TableInfo:
    """Size of a table segment: bytes in `[start_offset, length)`, `entry_count` live keys."""

    name: str
    start_offset: int
    length: int
    entry_count: int
    key_length: int


class Segments(Protocol):
    """Requests on segments and table segments, addressed by full segment name."""

    async def create_segment(
        self, segment: str, *, scale_type: int = 0, target_rate: int = 0, rollover_bytes: int = 0
    ) -> None:
        """Create an empty segment. Raises `SegmentExistsError`."""

    async def delete_segment(self, segment: str) -> None:
        """Delete a segment and its data. Raises `NoSuchSegmentError`."""

    async def seal_segment(self, segment: str) -> None:
        """Seal a segment: it takes no more appends. Raises `SegmentSealedError` if it is sealed already."""

    async def truncate_segment(self, segment: str, offset: int) -> None:
        """Delete the bytes before `offset`. Raises `SegmentTruncatedError` unless start <= offset <= length."""

    async def update_policy(self, segment: str, *, scale_type: int, target_rate: int) -> None:
        """Store the scaling policy that the segment's load is compared with."""

    async def segment_info(self, segment: str) -> SegmentInfo:
        """Return the durable state of a segment."""

    async def segment_infos(self, segments: Sequence[str]) -> Sequence[SegmentInfo | PenstockError]:
        """Return the state of each segment, or its error, in the order of the names.

        One call for very many names: the number of concurrent requests is bounded. Each name is requested once; the
        caller may repeat the call for names whose error `is_retriable` (see `retriable_names`).
        """

    async def delete_segments(self, segments: Sequence[str]) -> Sequence[PenstockError | None]:
        """Delete each segment; return None or its error, in the order of the names. As `segment_infos`."""

    async def truncate_segments(self, offsets: Sequence[tuple[str, int]]) -> Sequence[PenstockError | None]:
        """Truncate each of these segments at its offset; return None or its error, in order. As `segment_infos`."""

    async def locate_offset(self, segment: str, offset: int, *, before: bool = False) -> int:
        """Return a boundary between appends near `offset`: the first known one at or after it, or the segment's length.

        With `before`, the last known one at or before it, or the start offset. Boundaries are recorded about once in a
        MiB, best effort: without any the result is only coarser. Raises `SegmentTruncatedError` before the start.
        """

    async def merge_segments(self, target: str, sources: Sequence[str]) -> Sequence[int]:
        """Append each source whole to `target`, in order, and delete it; return the target's length after each.

        A source that is missing or already merged counts as merged: the target's current length is returned.
        """

    async def append(self, segment: str, data: Buffer, *, expected_offset: int | None = None) -> int:
        """Append `data` without a writer's identity; return the new length in bytes.

        Raises `BadOffsetError` if `expected_offset` is given and is not the current length.
        """

    async def read(self, segment: str, offset: int, length: int, *, wait: bool = False) -> SegmentData:
        """Read up to `length` bytes from `offset`; fewer at the tail or at a boundary of the cache.

        At the tail of an unsealed segment: an empty result, or with `wait` the data that arrive next. Raises
        `SegmentTruncatedError` before the start offset. Over the wire raises `PositionBeyondEndError` beyond the end
        with `wait`, unless a position there existed on the same connection.
        """

    async def get_attribute(self, segment: str, attribute_id: bytes) -> int:
        """Return the value under a 16-byte id, or `NO_VALUE`."""

    async def update_attribute(self, segment: str, attribute_id: bytes, *, value: int, expected: int) -> bool:
        """Compare-and-set an attribute (`NO_VALUE` = absent); return whether it matched."""

    async def create_table(self, segment: str, *, key_length: int = 0, rollover_bytes: int = 0) -> None:
        """Create a table segment; `key_length` 0 = hash table. Raises `SegmentExistsError`."""

    async def delete_table(self, segment: str, *, must_be_empty: bool = False) -> None:
        """Delete a table segment. Raises `TableNotEmptyError`, `NoSuchSegmentError`."""

    async def table_info(self, segment: str) -> TableInfo:
        """Return a table's size."""

    async def table_put(
        self, segment: str, updates: Sequence[TableUpdate], *, expected_offset: int = -1
    ) -> Sequence[int]:
        """Write all updates or none; return the new versions in order.

        Raises `TableKeyMissingError` / `TableKeyVersionError` if a condition fails; with `expected_offset` >= 0 also
        `BadOffsetError` unless that is the table's length.
        """

    async def table_remove(self, segment: str, removals: Sequence[TableRemoval], *, expected_offset: int = -1) -> None:
        """Remove all keys or none; conditions as in `table_put`."""

    async def table_get(self, segment: str, keys: Sequence[bytes]) -> Sequence[TableEntry | None]:
        """Return the entry of each key, in order, None where the key is absent."""

    async def table_entries(
        self, segment: str, *, limit: int, token: bytes = b"", first: bytes = b"", last: bytes | None = None
    ) -> TablePage:
        """Return a page of at most `limit` live entries. Entries that exist throughout are seen exactly once.

        Hash tables continue after `token`. Fixed-key tables are in ascending order of keys and take a range instead,
        `first` and `last` included: the next page begins at the successor of the last key; their token is empty. Raises
        `InvalidArgumentError` for a range of a hash table or a token of a fixed-key table.
        """

    async def table_keys(
        self, segment: str, *, limit: int, token: bytes = b"", first: bytes = b"", last: bytes | None = None
    ) -> TableKeyPage:
        """Return a page of keys, as `table_entries` does, without reading values."""

    async def table_delta(self, segment: str, *, position: int, limit: int) -> TableDelta:
        """Return the entries written since byte `position` of the table's log, last write per key."""


def retriable_names(names: Sequence[str], results: Sequence[object]) -> list[str]:
    """Return those of `names` whose result of a bulk call is a transient error: only these need a retry."""
    return [
        name
        for name, result in zip(names, results, strict=True)
        if isinstance(result, PenstockError) and result.is_retriable
    ]


def next_fixed_key(key: bytes) -> bytes | None:
    """Return the smallest key of the same length that follows `key`, None after the last one."""
    number = int.from_bytes(key, "big") + 1
    return None if number >> (8 * len(key)) else number.to_bytes(len(key), "big")
