"""Container metadata: all segments by id and name, and the snapshot that a checkpoint holds."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec

from penstock.model.errors import NoSuchSegmentError
from penstock.segmentstore.container.segment import Segment, SegmentFlags

SNAPSHOT_VERSION = 2
#: Version 1 had neither of the last two fields of a segment: they have defaults.
_SNAPSHOT_VERSIONS = (1, SNAPSHOT_VERSION)
RECORD_VERSION = 1


class SegmentSnapshot(msgspec.Struct, frozen=True, array_like=True):
    """One segment in a checkpoint: its accepted state, and how much of it long-term storage had.

    `attributes` are all of them, or with `has_attribute_index` those that the index may not have.
    """

    segment_id: int
    name: str
    flags: int
    key_length: int
    created_ms: int
    last_modified_ms: int
    scale_type: int
    target_rate: int
    rollover_bytes: int
    event_count: int
    start_offset: int
    length: int
    is_sealed: bool
    is_merged: bool
    is_deleted: bool
    storage_length: int
    storage_sealed: bool
    attributes: dict[bytes, int]
    has_record: bool = False
    has_attribute_index: bool = False


class SegmentRecord(msgspec.Struct, frozen=True, array_like=True):
    """An inactive segment in the container's metadata table."""

    version: int
    segment: SegmentSnapshot


class ContainerSnapshot(msgspec.Struct, frozen=True, array_like=True):
    """A container's whole metadata at one point of its log.

    `merges` are merges that long-term storage had not finished: (target id, source id, offset in target).
    `pinned` are the storage records of system segments.
    """

    version: int
    container_id: int
    next_segment_id: int
    segments: list[SegmentSnapshot]
    merges: list[tuple[int, int, int]]
    pinned: dict[bytes, bytes]


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(ContainerSnapshot)
_record_decoder = msgspec.msgpack.Decoder(SegmentRecord)


def encode_record(segment: Segment) -> bytes:
    """Return the record of a segment that is about to leave memory."""
    return _encoder.encode(SegmentRecord(RECORD_VERSION, _snapshot_of(segment)))


def decode_record(record: bytes) -> SegmentSnapshot:
    """Return what `encode_record` stored. Raises `ValueError` when the bytes are something else."""
    try:
        decoded = _record_decoder.decode(record)
    except msgspec.DecodeError as error:
        raise ValueError(f"not a segment record: {error}") from error
    if decoded.version != RECORD_VERSION:
        raise ValueError(f"segment record of version {decoded.version}, this program knows {RECORD_VERSION}")
    return decoded.segment


def _snapshot_of(segment: Segment) -> SegmentSnapshot:
    attributes = segment.attributes
    if segment.has_attribute_index:
        attributes = {attribute_id: attributes[attribute_id] for attribute_id in segment.dirty_attributes}
    return SegmentSnapshot(
        segment.id,
        segment.name,
        int(segment.flags),
        segment.key_length,
        segment.created_ms,
        segment.last_modified_ms,
        segment.scale_type,
        segment.target_rate,
        segment.rollover_bytes,
        segment.event_count,
        segment.start_offset,
        segment.length,
        segment.is_sealed,
        segment.is_merged,
        segment.is_deleted,
        segment.storage_length,
        segment.storage_sealed,
        attributes,
        segment.has_record,
        segment.has_attribute_index,
    )


def _segment_of(stored: SegmentSnapshot) -> Segment:
    segment = Segment(
        stored.segment_id,
        stored.name,
        flags=SegmentFlags(stored.flags),
        key_length=stored.key_length,
        created_ms=stored.created_ms,
    )
    segment.last_modified_ms = stored.last_modified_ms
    segment.scale_type = stored.scale_type
    segment.target_rate = stored.target_rate
    segment.rollover_bytes = stored.rollover_bytes
    segment.event_count = stored.event_count
    segment.start_offset = segment.durable_start_offset = stored.start_offset
    segment.length = segment.durable_length = stored.length
    segment.is_sealed = segment.durable_sealed = stored.is_sealed
    segment.is_merged = stored.is_merged
    segment.is_deleted = stored.is_deleted
    segment.storage_length = stored.storage_length
    segment.storage_sealed = stored.storage_sealed
    segment.attributes = dict(stored.attributes)
    segment.has_record = stored.has_record
    segment.has_attribute_index = stored.has_attribute_index
    if stored.has_attribute_index:
        segment.dirty_attributes = dict.fromkeys(stored.attributes)
    return segment


class ContainerMetadata:
    """The segments of one container.

    Invariant: `by_name` leads to every active segment that is neither deleted nor merged; `by_id` also to those that
    long-term storage still holds something of.
    """

    def __init__(self, container_id: int, make_segment: Callable[[Segment], None]) -> None:
        self.container_id = container_id
        self.by_id: dict[int, Segment] = {}
        self.by_name: dict[str, Segment] = {}
        self.next_segment_id = 1
        #: Merges that long-term storage has not done yet: source id -> (target id, offset in target).
        self.merges: dict[int, tuple[int, int]] = {}
        #: Storage records of system segments.
        self.pinned: dict[bytes, bytes] = {}
        self.system_count = 0
        self._make_segment = make_segment

    @property
    def active_count(self) -> int:
        """Segments in memory that callers can name, the container's own apart."""
        return len(self.by_name) - self.system_count

    def get(self, name: str) -> Segment:
        """Return a live segment. Raises `NoSuchSegmentError`."""
        segment = self.by_name.get(name)
        if segment is None:
            raise NoSuchSegmentError(name)
        return segment

    def add(self, segment: Segment) -> None:
        """Add a segment and give it its read index."""
        self._make_segment(segment)
        self.by_id[segment.id] = segment
        if not (segment.is_deleted or segment.is_merged):
            self.by_name[segment.name] = segment
            self.system_count += segment.is_system
        self.next_segment_id = max(self.next_segment_id, segment.id + 1)

    def unname(self, segment: Segment) -> None:
        """Take a deleted or merged segment's name away."""
        if self.by_name.get(segment.name) is segment:
            del self.by_name[segment.name]
            self.system_count -= segment.is_system

    def activate(self, record: bytes) -> Segment:
        """Bring an inactive segment back. Raises `ValueError` when `record` is not one."""
        segment = _segment_of(decode_record(record))
        segment.has_record = True
        self.add(segment)
        return segment

    def forget(self, segment_id: int) -> None:
        """Drop a segment that neither the log nor storage needs."""
        segment = self.by_id.pop(segment_id, None)
        self.merges.pop(segment_id, None)
        if segment is not None:
            self.unname(segment)

    def gone_segments(self) -> Iterator[Segment]:
        """Yield deleted and merged segments that storage may still hold something of."""
        return (segment for segment in self.by_id.values() if segment.is_deleted or segment.is_merged)

    def snapshot(self) -> bytes:
        """Return the bytes of the accepted state, for a checkpoint."""
        return _encoder.encode(
            ContainerSnapshot(
                SNAPSHOT_VERSION,
                self.container_id,
                self.next_segment_id,
                [_snapshot_of(segment) for segment in self.by_id.values()],
                [(target, source, offset) for source, (target, offset) in self.merges.items()],
                self.pinned,
            )
        )

    def refresh_storage(self, snapshot: bytes) -> None:
        """Take from a later checkpoint how much storage had of each segment. Raises `ValueError` as `restore`."""
        for stored in self._decode(snapshot).segments:
            segment = self.by_id.get(stored.segment_id)
            if segment is not None:
                before = segment.storage_length
                segment.storage_length = max(before, min(stored.storage_length, segment.length))
                segment.index.stored(before)

    def _decode(self, snapshot: bytes) -> ContainerSnapshot:
        try:
            decoded = _decoder.decode(snapshot)
        except msgspec.DecodeError as error:
            raise ValueError(f"not a metadata snapshot: {error}") from error
        if decoded.version not in _SNAPSHOT_VERSIONS or decoded.container_id != self.container_id:
            raise ValueError(
                f"snapshot of version {decoded.version}, container {decoded.container_id}; "
                f"expected version {SNAPSHOT_VERSION}, container {self.container_id}"
            )
        return decoded

    def restore(self, snapshot: bytes) -> None:
        """Replace everything by a checkpoint's snapshot. Raises `ValueError` when it is not one of this container."""
        decoded = self._decode(snapshot)
        self.by_id.clear()
        self.by_name.clear()
        self.next_segment_id = decoded.next_segment_id
        self.pinned = dict(decoded.pinned)
        self.merges = {source: (target, offset) for target, source, offset in decoded.merges}
        self.system_count = 0
        for stored in decoded.segments:
            self.add(_segment_of(stored))
