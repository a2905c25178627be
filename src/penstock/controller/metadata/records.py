"""The records of the control plane, one frozen dataclass each.

Their stored form is written down in ``docs/formats.md``; the codec is in
`penstock.controller.metadata.codec`. Fields may be added with a default; none may change its meaning. What a stream's
epochs leave behind is in `history_records`, the cuts that are recorded for retention in `retention_records`.

Source: controller internals specification, section 2.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum, IntEnum

import msgspec

from penstock.controller.metadata.packing import ColumnReader, PackedRecord, float64s, int32s, int64s
from penstock.model.names import SegmentId
from penstock.model.policies import StreamConfig

#: Epoch of an empty `EpochTransition` or `CommittingTransactions`.
EPOCH_NONE = -(1 << 31)
#: Epochs per history chunk.
HISTORY_CHUNK_EPOCHS = 1000
#: The history time index: epochs per leaf, a multiple of those of a chunk, and leaves per root. 32 and 64 KB.
INDEX_LEAF_EPOCHS = 4000
INDEX_ROOT_LEAVES = 8000
#: A shard of sealed sizes has segments of so many numbers, created in so many epochs: duplicates of an epoch repeat its
#: numbers, for ever if need be. That is 16 000 segments at most.
SIZE_SHARD_NUMBERS = 1000
SIZE_SHARD_EPOCHS = 16
#: Recorded stream cuts whose times and sizes are in one chunk: 16 KB.
RETENTION_CHUNK_CUTS = 1000

#: epoch, reference epoch, created_ms, splits, merges, number of segments
_EPOCH_HEADER = struct.Struct(">iiqqqI")
#: active epoch, started_ms, number of segments to seal and of those created
_TRANSITION_HEADER = struct.Struct(">iqII")
#: size_till_bytes, is_updating, segments of the cut, segments of the previous one
_TRUNCATION_HEADER = struct.Struct(">qBII")


class StreamState(Enum):
    """State of a stream, and the lock that keeps its workflows apart."""

    CREATING = "creating"
    ACTIVE = "active"
    UPDATING = "updating"
    SCALING = "scaling"
    TRUNCATING = "truncating"
    COMMITTING_TXN = "committing_txn"
    SEALING = "sealing"
    SEALED = "sealed"


#: What each state may become; every state may also be written again as it is.
STATE_TRANSITIONS: dict[StreamState, tuple[StreamState, ...]] = {
    StreamState.CREATING: (StreamState.ACTIVE,),
    StreamState.ACTIVE: (
        StreamState.SCALING,
        StreamState.TRUNCATING,
        StreamState.COMMITTING_TXN,
        StreamState.UPDATING,
        StreamState.SEALING,
        StreamState.SEALED,
    ),
    StreamState.SCALING: (StreamState.ACTIVE,),
    StreamState.TRUNCATING: (StreamState.ACTIVE,),
    StreamState.COMMITTING_TXN: (StreamState.ACTIVE,),
    StreamState.UPDATING: (StreamState.ACTIVE,),
    # Back, as long as nothing is sealed: a transaction was prepared meanwhile.
    StreamState.SEALING: (StreamState.SEALED, StreamState.ACTIVE),
    StreamState.SEALED: (),
}


class TransactionStatus(IntEnum):
    """Status of a transaction; the numbers are those of the wire (TxnState)."""

    UNKNOWN = 0
    OPEN = 1
    COMMITTING = 2
    COMMITTED = 3
    ABORTING = 4
    ABORTED = 5


@dataclass(frozen=True, slots=True)
class ScopeRecord:
    """A scope. `id` (a UUID) is part of the names of its tables.

    `is_deleting`: it is being deleted with all that it holds, and takes nothing new.
    """

    id: str
    is_deleting: bool = False


@dataclass(frozen=True, slots=True)
class StreamEntry:
    """A stream in its scope's listing. `id` (a UUID) is part of the names of its tables."""

    id: str


@dataclass(frozen=True, slots=True)
class LastSegment:
    """Highest segment number that a deleted stream of this name has used."""

    number: int


@dataclass(frozen=True, slots=True)
class TagChunk:
    """Streams that carry one tag and hash to one chunk, sorted."""

    streams: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CreationTime:
    """When the stream was created: the mark of one life of its name."""

    created_ms: int


@dataclass(frozen=True, slots=True)
class ConfigurationRecord:
    """A stream's configuration. `removed_tags` are still to be taken out of the tag index while `is_updating`."""

    scope: str
    stream: str
    configuration: StreamConfig
    is_updating: bool = False
    removed_tags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class StateRecord:
    """The stream's state."""

    state: StreamState


class SegmentRecord(msgspec.Struct, frozen=True, gc=False):
    """A segment within an epoch; keys in `[key_start, key_end)` go to it."""

    number: int
    creation_epoch: int
    created_ms: int
    key_start: float
    key_end: float

    @property
    def id(self) -> SegmentId:
        """The 64-bit segment id."""
        return SegmentId((self.creation_epoch << 32) | self.number)  # As `segment_id`: this is called very often.

    def overlaps(self, other: SegmentRecord) -> bool:
        """Say whether some key goes to both."""
        return self.key_start < other.key_end and other.key_start < self.key_end


def pack_segments(segments: Sequence[SegmentRecord]) -> bytes:
    """Return five columns: numbers, creation epochs, creation times, starts and ends of key ranges."""
    return b"".join(
        (
            int32s([segment.number for segment in segments]),
            int32s([segment.creation_epoch for segment in segments]),
            int64s([segment.created_ms for segment in segments]),
            float64s([segment.key_start for segment in segments]),
            float64s([segment.key_end for segment in segments]),
        )
    )


def unpack_segments(reader: ColumnReader, count: int) -> tuple[SegmentRecord, ...]:
    """Read what `pack_segments` wrote."""
    numbers, epochs, times = reader.int32s(count), reader.int32s(count), reader.int64s(count)
    return tuple(map(SegmentRecord, numbers, epochs, times, reader.float64s(count), reader.float64s(count)))


@dataclass(frozen=True, slots=True)
class EpochRecord(PackedRecord):
    """The segments of one epoch, sorted by key; they tile [0, 1). Never changes once written.

    `reference_epoch` is the epoch itself, or for a duplicate the first of its kind. `splits` and `merges` count since
    epoch 0.
    """

    kind_number = 1

    epoch: int
    reference_epoch: int
    segments: tuple[SegmentRecord, ...]
    created_ms: int
    splits: int = 0
    merges: int = 0

    def segment(self, segment: int) -> SegmentRecord | None:
        """Return the segment with this id."""
        return next((found for found in self.segments if found.id == segment), None)

    def packed(self) -> bytes:
        """See `PackedRecord.packed`."""
        counts = self.created_ms, self.splits, self.merges, len(self.segments)
        return _EPOCH_HEADER.pack(self.epoch, self.reference_epoch, *counts) + pack_segments(self.segments)

    @classmethod
    def unpacked(cls, payload: bytes) -> EpochRecord:
        """See `PackedRecord.unpacked`."""
        reader = ColumnReader(payload)
        epoch, reference_epoch, created_ms, splits, merges, count = reader.header(_EPOCH_HEADER)
        segments = unpack_segments(reader, count)
        reader.end()
        return cls(epoch, reference_epoch, segments, created_ms, splits, merges)


@dataclass(frozen=True, slots=True)
class SealedEpoch:
    """The first epoch in which a segment is no longer active. Written before the segment is sealed."""

    epoch: int


@dataclass(frozen=True, slots=True)
class TruncationRecord(PackedRecord):
    """Where the stream begins. `span` maps each segment of the cut to the last epoch that contains it.

    `size_till_bytes` is what the stream has held before the cut over its life. While `is_updating`, segments are being
    deleted from where the stream began before, the segments and epochs of `previous_span`, to the cut; an empty one is
    the beginning of all.
    """

    kind_number = 5

    stream_cut: dict[int, int] = field(default_factory=dict)
    span: dict[int, int] = field(default_factory=dict)
    previous_span: dict[int, int] = field(default_factory=dict)
    size_till_bytes: int = 0
    is_updating: bool = False

    def packed(self) -> bytes:
        """See `PackedRecord.packed`."""
        counts = self.size_till_bytes, self.is_updating, len(self.stream_cut), len(self.previous_span)
        return b"".join(
            (
                _TRUNCATION_HEADER.pack(*counts),
                int64s(self.stream_cut),
                int64s(self.stream_cut.values()),
                int32s([self.span[segment] for segment in self.stream_cut]),
                int64s(self.previous_span),
                int32s(self.previous_span.values()),
            )
        )

    @classmethod
    def unpacked(cls, payload: bytes) -> TruncationRecord:
        """See `PackedRecord.unpacked`."""
        reader = ColumnReader(payload)
        size_till_bytes, is_updating, count, previous_count = reader.header(_TRUNCATION_HEADER)
        segments = reader.int64s(count)
        stream_cut = dict(zip(segments, reader.int64s(count), strict=True))
        span = dict(zip(segments, reader.int32s(count), strict=True))
        previous = reader.int64s(previous_count)
        previous_span = dict(zip(previous, reader.int32s(previous_count), strict=True))
        reader.end()
        return cls(stream_cut, span, previous_span, size_till_bytes, bool(is_updating))


@dataclass(frozen=True, slots=True)
class EpochTransition(PackedRecord):
    """A scale in progress, from `active_epoch` to the next; empty when `active_epoch` is `EPOCH_NONE`."""

    kind_number = 2

    active_epoch: int = EPOCH_NONE
    started_ms: int = 0
    to_seal: tuple[int, ...] = ()
    created: tuple[SegmentRecord, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether no scale is in progress."""
        return self.active_epoch == EPOCH_NONE

    def packed(self) -> bytes:
        """See `PackedRecord.packed`."""
        header = _TRANSITION_HEADER.pack(self.active_epoch, self.started_ms, len(self.to_seal), len(self.created))
        return header + int64s(self.to_seal) + pack_segments(self.created)

    @classmethod
    def unpacked(cls, payload: bytes) -> EpochTransition:
        """See `PackedRecord.unpacked`."""
        reader = ColumnReader(payload)
        active_epoch, started_ms, sealed_count, created_count = reader.header(_TRANSITION_HEADER)
        to_seal = tuple(reader.int64s(sealed_count))
        created = unpack_segments(reader, created_count)
        reader.end()
        return cls(active_epoch, started_ms, to_seal, created)


@dataclass(frozen=True, slots=True)
class CommittingTransactions:
    """The transactions being merged, in merge order (as text); empty when `epoch` is `EPOCH_NONE`.

    `active_epoch` is set while the commit rolls over to new epochs.
    """

    epoch: int = EPOCH_NONE
    transactions: tuple[str, ...] = ()
    active_epoch: int | None = None

    @property
    def is_empty(self) -> bool:
        """Whether no commit is in progress."""
        return self.epoch == EPOCH_NONE


@dataclass(frozen=True, slots=True)
class SubscriberSet:
    """Scoped names of the reader groups that hold the stream's head."""

    subscribers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Subscriber:
    """A subscriber's published position; an empty cut means that it has published none."""

    generation: int
    stream_cut: dict[int, int]
    updated_ms: int


@dataclass(frozen=True, slots=True)
class WriterMark:
    """The time that a writer noted last, in its own unit, and its position then. `is_alive`: it has not left."""

    timestamp: int
    position: dict[int, int]
    is_alive: bool = True


@dataclass(frozen=True, slots=True)
class ListedLife:
    """A stream that a cycle goes over; `id` is that of its life."""

    id: str


@dataclass(frozen=True, slots=True)
class EpochWithTransactions:
    """Marks an epoch that has a table of transactions."""

    epoch: int


class AbortReason(Enum):
    """Why a transaction was aborted."""

    #: It was not, or that was not recorded.
    NONE = "none"
    REQUESTED = "requested"
    LEASE_ENDED = "lease_ended"
    STREAM_SEALED = "stream_sealed"


@dataclass(frozen=True, slots=True)
class ActiveTransaction:
    """A transaction that is not completed, or has just been committed and is about to be.

    Times are milliseconds of the wall clock; `lease_ms` is the lease last asked for. From COMMITTING on `commit_order`
    is its position among the stream's commits. `prepared_ms` is when it was prepared first, -1 if it was not: its
    segments are sealed then, and `lease_expiry_ms` and `execution_expiry_ms` are where its limit ends. From ABORTING
    on `abort_reason` says why.
    """

    created_ms: int
    lease_ms: int
    lease_expiry_ms: int
    execution_expiry_ms: int
    status: TransactionStatus = TransactionStatus.OPEN
    writer_id: str = ""
    commit_time_ms: int = -(1 << 63)
    commit_order: int = -1
    commit_offsets: dict[int, int] = field(default_factory=dict)
    prepared_ms: int = -1
    abort_reason: AbortReason = AbortReason.NONE

    @property
    def is_prepared(self) -> bool:
        """Whether it was prepared: somebody decides it by its id before its limit ends."""
        return self.prepared_ms >= 0


@dataclass(frozen=True, slots=True)
class CompletedTransaction:
    """How a transaction ended: COMMITTED or ABORTED, and then why."""

    completed_ms: int
    status: TransactionStatus
    abort_reason: AbortReason = AbortReason.NONE


@dataclass(frozen=True, slots=True)
class CompletedBatch:
    """Marks a batch table of completed transactions.

    `begun_ms` is when it became the newest, by the wall clock of the controller that began it, or found it later than
    its own clock; -1 in batches of earlier releases, whose numbers are that time divided by the TTL.
    """

    number: int
    begun_ms: int = -1


@dataclass(frozen=True, slots=True)
class CommitCounter:
    """The next position in the stream's commit order."""

    next_position: int


@dataclass(frozen=True, slots=True)
class CommitPosition:
    """A position in the commit order, taken by a transaction (as text)."""

    transaction: str


@dataclass(frozen=True, slots=True)
class TransactionCounter:
    """The first transaction number that no controller has reserved."""

    next_number: int


@dataclass(frozen=True, slots=True)
class TransactionIndexEntry:
    """Marks a transaction that controller `host` looks after."""

    host: str
    created_ms: int


@dataclass(frozen=True, slots=True)
class ScaleOrder:
    """Segments of epoch `active_epoch` to be sealed, by id, and the key ranges (start, end) of those that replace them.
    """

    active_epoch: int
    to_seal: tuple[int, ...]
    ranges: tuple[tuple[float, float], ...]
