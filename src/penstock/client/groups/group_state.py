"""`GroupState`: the stored form of a reader group's shared record. The steps on it are in `reader_group_state`."""

from __future__ import annotations

import msgspec

from penstock.client.groups.group_checkpoint import CheckpointState
from penstock.model.errors import InvalidArgumentError, LaterVersionError
from penstock.model.policies import GroupRetention

FORMAT_VERSION = 4
#: Without `revision`; readers' heartbeats were in the record alone.
_VERSION_WITHOUT_HEARTBEATS = 3


class HeldSegment(msgspec.Struct, frozen=True):
    """A segment held by a reader: the position to resume from, in bytes, and the number of its assignment."""

    offset: int
    turn: int


class ReaderState(msgspec.Struct, frozen=True):
    """One reader: its incarnation, a counter that is its heartbeat, and its positions in its segments.

    `incarnation` is a new random value at each start of the reader: an older one detects that it was replaced.
    `handed_out`: end of the returned events that do not count as read yet (segment -> offset).
    """

    incarnation: str
    heartbeat: int = 0
    segments: dict[str, HeldSegment] = msgspec.field(default_factory=dict)
    handed_out: dict[str, int] = msgspec.field(default_factory=dict)


class WaitingState(msgspec.Struct, frozen=True):
    """A segment that cannot be read yet: its unread predecessors, and the read ones with their end offsets."""

    unread: list[str]
    read: dict[str, int]


class Redelivery(msgspec.Struct, frozen=True):
    """Events before `until` (bytes) may have been returned `count` times before, by readers that failed."""

    until: int
    count: int


class GroupState(msgspec.Struct, frozen=True):
    """The whole record. Segments are full names, offsets are bytes; `unassigned` maps segments to their positions.

    `group_id`, `generation`: the controller's, see `RegisteredGroup`; `holds_data` and `is_manual` are its `retention`
    (for a group that waits for its first stream, it is stored only here). `reset_id`: the last `reset`, so that none is
    applied twice. `next_turn`: the number of the next assignment of a segment. `reader_timeout_s`,
    `processing_time_max_s`: the group's, see `ClientSettings`.

    `patterns`: new streams that match one are read, too. `ends`: the end offsets in the segments of the cuts that the
    group ends at; `ended`: those of them that were read so far, with their end offsets. `checkpoint`: see
    `CheckpointState`. `revision`: one higher with each change of the record; 0: of an earlier release.
    """

    streams: list[str]
    unassigned: dict[str, int]
    readers: dict[str, ReaderState] = msgspec.field(default_factory=dict)
    waiting: dict[str, WaitingState] = msgspec.field(default_factory=dict)
    redeliveries: dict[str, Redelivery] = msgspec.field(default_factory=dict)
    group_id: str = ""
    generation: int = 0
    holds_data: bool = False
    reset_id: str = ""
    next_turn: int = 1
    reader_timeout_s: float = 30.0
    processing_time_max_s: float = 300.0
    patterns: list[str] = msgspec.field(default_factory=list)
    ends: dict[str, int] = msgspec.field(default_factory=dict)
    ended: dict[str, int] = msgspec.field(default_factory=dict)
    is_manual: bool = False
    checkpoint: CheckpointState = CheckpointState()
    revision: int = 0
    version: int = FORMAT_VERSION

    def encode(self) -> bytes:
        """Return the record as stored: JSON."""
        return msgspec.json.encode(self)

    @classmethod
    def decode(cls, data: bytes) -> GroupState:
        """Parse a record. Raises `LaterVersionError`; `InvalidArgumentError` for earlier versions and invalid data."""
        try:
            version = msgspec.json.decode(data, type=_Versioned).version
            if version > FORMAT_VERSION:
                raise LaterVersionError(
                    "the reader group's state", found=version, known=FORMAT_VERSION, oldest=_VERSION_WITHOUT_HEARTBEATS
                )
            if version == _VERSION_WITHOUT_HEARTBEATS:
                return msgspec.structs.replace(msgspec.json.decode(data, type=cls), version=FORMAT_VERSION)
            if version != FORMAT_VERSION:
                raise InvalidArgumentError(
                    f"the reader group's state has version {version}, this release reads {FORMAT_VERSION}: delete the "
                    "group and create it again"
                )
            return msgspec.json.decode(data, type=cls)
        except msgspec.DecodeError as error:
            raise InvalidArgumentError(f"the reader group's state cannot be read: {error}") from error

    @property
    def retention(self) -> GroupRetention:
        """Whether the group subscribes to its streams, and how it releases data."""
        if not self.holds_data:
            return GroupRetention.NONE
        return GroupRetention.MANUAL if self.is_manual else GroupRetention.AUTOMATIC

    @property
    def segment_count(self) -> int:
        """Segments that can be read now, assigned or not."""
        return len(self.unassigned) + sum(len(reader.segments) for reader in self.readers.values())

    @property
    def is_finished(self) -> bool:
        """True when every stream is read to the group's end in it, or is sealed and read to its end.

        Never true for a group with patterns: another stream may be created.
        """
        # Not `segment_count`: the first reader that holds a segment is enough, and readers ask at each poll.
        if self.unassigned or self.patterns or any(reader.segments for reader in self.readers.values()):
            return False
        # Segments that wait for one in which the group ends are never read.
        return all(any(other in self.ended for other in waiting.unread) for waiting in self.waiting.values())


class _Versioned(msgspec.Struct, frozen=True):
    version: int
