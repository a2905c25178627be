"""The records of a scope's contents other than streams: reader groups and key-value tables.

One record holds the whole state of a group or a table, so that every change is one versioned write. Stored like those
in `penstock.controller.metadata.records`.

Source: controller-internals 10 and 17; controller-api 3.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from penstock.controller.metadata.records import SegmentRecord
from penstock.model.errors import InvalidArgumentError
from penstock.model.key_ranges import initial_ranges
from penstock.model.policies import GroupRetention
from penstock.model.segments import TABLE_KEY_LENGTH_MAX


class ChildState(Enum):
    """State of a reader group or a key-value table."""

    CREATING = "creating"
    ACTIVE = "active"
    DELETING = "deleting"


@dataclass(frozen=True, slots=True)
class GroupCut:
    """Where a group begins or ends in a stream. Empty `positions`: at the stream's own beginning, or no end."""

    scope: str
    stream: str
    positions: dict[int, int] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The stream's scoped name."""
        return f"{self.scope}/{self.stream}"


@dataclass(frozen=True, slots=True)
class ReaderGroupConfig:
    """The configuration of a reader group.

    Attributes:
        starts: one cut per stream of the group; at least one.
        ends: cuts that the group reads up to.
        retention: whether the group subscribes to its streams. The controller treats `MANUAL` and `AUTOMATIC` alike:
            the client decides which positions it publishes.
        refresh_ms: how often readers poll for changes of the group.
        checkpoint_interval_ms: time between automatic checkpoints; -1 = none.
        checkpoints_outstanding_max: maximum number of concurrent checkpoints.
        rollover_bytes: largest chunk of the group's own stream; 0 = the default for such streams.
    """

    starts: tuple[GroupCut, ...]
    ends: tuple[GroupCut, ...] = ()
    retention: GroupRetention = GroupRetention.NONE
    refresh_ms: int = 3000
    checkpoint_interval_ms: int = 30_000
    checkpoints_outstanding_max: int = 3
    rollover_bytes: int = 0

    def checked(self) -> ReaderGroupConfig:
        """Return this configuration, or raise `InvalidArgumentError` if it is inconsistent."""
        if not self.starts:
            raise InvalidArgumentError("a reader group needs a stream to read")
        if self.checkpoints_outstanding_max < 1:
            raise InvalidArgumentError(f"{self.checkpoints_outstanding_max} outstanding checkpoints: allow 1 or more")
        if self.rollover_bytes < 0:
            raise InvalidArgumentError(f"rollover size of {self.rollover_bytes} bytes: use 0 (default) or more")
        starts = {cut.name: cut.positions for cut in self.starts}
        for cut in (*self.starts, *self.ends):
            if not cut.scope or not cut.stream:
                raise InvalidArgumentError(f"scope {cut.scope!r}, stream {cut.stream!r}: neither may be empty")
        for end in self.ends:
            start = starts.get(end.name)
            if start and end.positions and _is_before(end.positions, start):
                raise InvalidArgumentError(f"the end of the group in {end.name} is before its start")
        return self

    @property
    def subscriptions(self) -> tuple[GroupCut, ...]:
        """The starts of the streams that the group subscribes to: all of them or none."""
        return () if self.retention is GroupRetention.NONE else self.starts


def _is_before(end: dict[int, int], start: dict[int, int]) -> bool:
    """Say whether an end lies before a start, as far as that follows from the cuts alone."""
    if any(segment in end and end[segment] < offset for segment, offset in start.items()):
        return True
    # A position later in the stream never consists of older segments alone.
    return max(end) < max((segment for segment, offset in start.items() if offset >= 0), default=0)


@dataclass(frozen=True, slots=True)
class ReaderGroupRecord:
    """A reader group. `id` (a UUID) identifies the incarnation of its name.

    During an update `next_config` is the new configuration, with the next generation number, and `leaving` are the
    scoped names of streams that the group will no longer subscribe to.
    """

    id: str
    state: ChildState
    created_ms: int
    config: ReaderGroupConfig
    generation: int = 0
    next_config: ReaderGroupConfig | None = None
    leaving: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class KeyValueTableConfig:
    """The layout of a key-value table; it never changes. Keys have `primary_key_bytes` + `secondary_key_bytes`."""

    partitions: int
    primary_key_bytes: int
    secondary_key_bytes: int = 0
    rollover_bytes: int = 0

    @property
    def key_bytes(self) -> int:
        """Length of every key in the table's segments."""
        return self.primary_key_bytes + self.secondary_key_bytes

    def checked(self) -> KeyValueTableConfig:
        """Return this configuration, or raise `InvalidArgumentError`."""
        if self.partitions < 1:
            raise InvalidArgumentError(f"{self.partitions} partitions: a table needs 1 or more")
        if self.primary_key_bytes < 1 or self.secondary_key_bytes < 0 or self.key_bytes > TABLE_KEY_LENGTH_MAX:
            raise InvalidArgumentError(
                f"keys of {self.primary_key_bytes} and {self.secondary_key_bytes} bytes: the first part needs 1 or "
                f"more, the second 0 or more, both together at most {TABLE_KEY_LENGTH_MAX}"
            )
        if self.rollover_bytes < 0:
            raise InvalidArgumentError(f"rollover size of {self.rollover_bytes} bytes: use 0 (default) or more")
        return self


@dataclass(frozen=True, slots=True)
class KeyValueTableRecord:
    """A key-value table. `id` (a UUID) identifies the incarnation of its name."""

    id: str
    state: ChildState
    created_ms: int
    config: KeyValueTableConfig

    def segments(self) -> tuple[SegmentRecord, ...]:
        """Return the table's segments by key. Tables never scale, so they follow from the number of partitions."""
        return tuple(
            SegmentRecord(number, 0, self.created_ms, keys.start, keys.end)
            for number, keys in enumerate(initial_ranges(self.config.partitions))
        )
