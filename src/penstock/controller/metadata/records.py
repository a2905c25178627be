"""The records of the control plane, one frozen dataclass each.

Their stored form is specified in ``docs/formats.md``; the codec is in `penstock.controller.metadata.codec`. Fields may
be added with a default; no field may change its meaning. The history of a stream's epochs is in `history_records`, the
stream cuts recorded for retention are in `retention_records`.

Source: controller-internals 2.
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
#: The history time index: epochs per leaf, a multiple of those per chunk, and leaves per root. 32 and 64 KB.
INDEX_LEAF_EPOCHS = 4000
INDEX_ROOT_LEAVES = 8000
#: A shard of sealed sizes covers this many segment numbers and creation epochs, 16 000 segments at most: duplicates of
#: an epoch repeat its numbers, possibly forever.
SIZE_SHARD_NUMBERS = 1000
SIZE_SHARD_EPOCHS = 16
#: Recorded stream cuts per chunk of times and sizes: 16 KB.
RETENTION_CHUNK_CUTS = 1000

#: epoch, reference epoch, created_ms, splits, merges, number of segments
_EPOCH_HEADER = struct.Struct(">iiqqqI")
#: active epoch, started_ms, number of segments to seal and of those created
_TRANSITION_HEADER = struct.Struct(">iqII")
#: size_till_bytes, is_updating, segments of the cut, segments of the previous one
_TRUNCATION_HEADER = struct.Struct(">qBII")


class StreamState(Enum):
    """State of a stream, which also excludes concurrent workflows."""

    CREATING = "creating"
    ACTIVE = "active"
    UPDATING = "updating"
    SCALING = "scaling"
    TRUNCATING = "truncating"
    COMMITTING_TXN = "committing_txn"
    SEALING = "sealing"
    SEALED = "sealed"


#: Allowed successors of each state; every state may also be rewritten unchanged.
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
    # Back to ACTIVE, before any segment is sealed, if a transaction was prepared meanwhile.
    StreamState.SEALING: (StreamState.SEALED, StreamState.ACTIVE),
    StreamState.SEALED: (),
}


class TransactionStatus(IntEnum):
    """Status of a transaction; the numbers are those of the wire protocol (TxnState)."""

    UNKNOWN = 0
    OPEN = 1
    COMMITTING = 2
    COMMITTED = 3
    ABORTING = 4
    ABORTED = 5


@dataclass(frozen=True, slots=True)
class ScopeRecord:
    """A scope. `id` (a UUID) is part of the names of its tables.

    `is_deleting`: it is being deleted with its contents, and accepts nothing new.
    """

    id: str
    is_deleting: bool = False


@dataclass(frozen=True, slots=True)
class StreamEntry:
    """A stream in its scope's listing. `id` (a UUID) is part of the names of its tables."""

    id: str


@dataclass(frozen=True, slots=True)
class LastSegment:
    """Highest segment number used by a deleted stream of this name."""

    number: int


@dataclass(frozen=True, slots=True)
class TagChunk:
    """Streams that carry one tag and hash to one chunk, sorted."""

    streams: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CreationTime:
    """When the stream was created; identifies one incarnation of its name."""

    created_ms: int


@dataclass(frozen=True, slots=True)
class ConfigurationRecord:
    """A stream's configuration. While `is_updating`, `removed_tags` must still be removed from the tag index."""

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
    """A segment within an epoch; events with keys in `[key_start, key_end)` go to it."""

    number: int
    creation_epoch: int
    created_ms: int
    key_start: float
    key_end: float

    @property
    def id(self) -> SegmentId:
        """The 64-bit segment id."""
        return SegmentId((self.creation_epoch << 32) | self.number)  # Inlined `segment_id`: this is called very often.

    def overlaps(self, other: SegmentRecord) -> bool:
        """Say whether the segments share any key."""
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
    """Decode the result of `pack_segments`."""
    numbers, epochs, times = reader.int32s(count), reader.int32s(count), reader.int64s(count)
    return tuple(map(SegmentRecord, numbers, epochs, times, reader.float64s(count), reader.float64s(count)))


@dataclass(frozen=True, slots=True)
class EpochRecord(PackedRecord):
    """The segments of one epoch, sorted by key; they tile [0, 1). Never changes once written.

    `reference_epoch` is the epoch itself, or for a duplicate the original epoch. `splits` and `merges` are counts since
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
    """The start of the stream. `span` maps each segment of the cut to the last epoch that contains it.

    `size_till_bytes` is the total size of all data before the cut over the stream's life. While `is_updating`, segments
    between the previous start of the stream, given by the segments and epochs of `previous_span`, and the cut are being
    deleted; an empty `previous_span` means the original beginning.
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
    """Scoped names of the reader groups that hold back truncation by the stream's retention policy."""

    subscribers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Subscriber:
    """A subscriber's published position; an empty cut means that it has published none."""

    generation: int
    stream_cut: dict[int, int]
    updated_ms: int


@dataclass(frozen=True, slots=True)
class WriterMark:
    """The last time that a writer noted, in its own unit, and its position then. `is_alive`: it has not left."""

    timestamp: int
    position: dict[int, int]
    is_alive: bool = True


@dataclass(frozen=True, slots=True)
class ListedLife:
    """A stream that a cycle processes; `id` identifies its incarnation."""

    id: str


@dataclass(frozen=True, slots=True)
class EpochWithTransactions:
    """Marks an epoch that has a table of transactions."""

    epoch: int


class AbortReason(Enum):
    """Why a transaction was aborted."""

    #: It was not aborted, or the reason was not recorded.
    NONE = "none"
    REQUESTED = "requested"
    LEASE_ENDED = "lease_ended"
    STREAM_SEALED = "stream_sealed"


@dataclass(frozen=True, slots=True)
class ActiveTransaction:
    """A transaction that is not completed, or has just been committed and is about to be recorded as completed.

    Times are milliseconds of the wall clock; `lease_ms` is the last requested lease. From COMMITTING on `commit_order`
    is its position among the stream's commits. `prepared_ms` is when it was first prepared, or -1: its segments are
    sealed then, and `lease_expiry_ms` and `execution_expiry_ms` are the end of its limit. From ABORTING on
    `abort_reason` has the reason.
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
        """Whether it was prepared: a decision by its id is expected before its limit ends."""
        return self.prepared_ms >= 0


@dataclass(frozen=True, slots=True)
class CompletedTransaction:
    """How a transaction ended: COMMITTED, or ABORTED with the reason."""

    completed_ms: int
    status: TransactionStatus
    abort_reason: AbortReason = AbortReason.NONE


@dataclass(frozen=True, slots=True)
class CompletedBatch:
    """Marks a batch table of completed transactions.

    `begun_ms` is when it became the newest, by the wall clock of the controller that began it, or that corrected a time
    later than its own clock; -1 in batches of earlier releases, whose numbers are that time divided by the TTL.
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
    """Marks a transaction that is managed by controller `host`."""

    host: str
    created_ms: int


@dataclass(frozen=True, slots=True)
class ScaleOrder:
    """Ids of the segments of epoch `active_epoch` to seal, and the key ranges (start, end) of their replacements."""

    active_epoch: int
    to_seal: tuple[int, ...]
    ranges: tuple[tuple[float, float], ...]
