"""Container metadata: all segments by id and name, and the snapshot that a checkpoint holds."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping

import msgspec

from penstock.model.errors import NoSuchSegmentError
from penstock.model.names import parent_segment_name
from penstock.segmentstore.container.segment import Segment, SegmentFlags
from penstock.segmentstore.later_format import LaterFormatError, check_version
from penstock.segmentstore.tier2.chunked_storage import StoredSegment

SNAPSHOT_VERSION = 2
#: Version 1 had neither of the last two fields of a segment: they have defaults.
_SNAPSHOT_VERSIONS = (1, SNAPSHOT_VERSION)
RECORD_VERSION = 1


class SegmentSnapshot(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One segment in a checkpoint: its accepted state, and its stored length.

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


class ContainerSegmentRecord(msgspec.Struct, frozen=True, array_like=True):
    """An inactive segment in the container's metadata table."""

    version: int
    segment: SegmentSnapshot


class ContainerSnapshot(msgspec.Struct, frozen=True, array_like=True):
    """A part of a container's metadata at one point of its log; fields of the container itself are in the first part.

    `merges` are merges that long-term storage had not finished: (target id, source id, offset in target).
    `pinned` are the storage records of system segments.
    """

    version: int
    container_id: int
    next_segment_id: int
    segments: list[SegmentSnapshot]
    merges: list[tuple[int, int, int]]
    pinned: dict[bytes, bytes]


class _SnapshotHead(msgspec.Struct, frozen=True, array_like=True):
    """A `ContainerSnapshot` whose segments and merges are not decoded."""

    version: int
    container_id: int
    next_segment_id: int
    segments: msgspec.Raw
    merges: msgspec.Raw
    pinned: dict[bytes, bytes]


class _VersionedArray(msgspec.Struct, frozen=True, array_like=True):
    version: int


#: Segments restored before yielding to the event loop.
_RESTORE_STEP = 256
#: Cost of encoding a segment, in attributes.
_SEGMENT_VALUES = 8

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(ContainerSnapshot)
_record_decoder = msgspec.msgpack.Decoder(ContainerSegmentRecord)

#: Decodes only the version of a snapshot or record, whose other fields may be those of a later version.
_head_decoder = msgspec.msgpack.Decoder(_SnapshotHead)
_version_decoder = msgspec.msgpack.Decoder(_VersionedArray)


def _check_later(data: bytes, known: int, what: str) -> None:
    """Raise `LaterFormatError` if `data` is an array that begins with a version above `known`."""
    try:
        version = _version_decoder.decode(data).version
    except msgspec.DecodeError:
        return
    if version > known:
        raise LaterFormatError(what, found=version, known=known)


def encode_record(segment: Segment) -> bytes:
    """Return the record of a segment that is about to leave memory."""
    return _encoder.encode(ContainerSegmentRecord(RECORD_VERSION, _snapshot_of(segment)))


def encode_adopted(segment_id: int, stored: StoredSegment, now_ms: int) -> bytes:
    """Return the record of a segment whose bytes were in long-term storage before this container had the segment."""
    segment = Segment(segment_id, stored.name, flags=SegmentFlags.NONE, key_length=0, created_ms=now_ms)
    segment.last_modified_ms = now_ms
    segment.start_offset = stored.start_offset
    segment.length = segment.storage_length = stored.length
    segment.is_sealed = segment.storage_sealed = stored.is_sealed
    return encode_record(segment)


def encode_ended(segment: Segment, length: int, stored: StoredSegment) -> bytes:
    """Return the record of a segment cut to `length`, its end in long-term storage."""
    snapshot = msgspec.structs.replace(
        _snapshot_of(segment),
        start_offset=min(max(segment.start_offset, stored.start_offset), length),
        length=length,
        is_sealed=segment.is_sealed or stored.is_sealed,
        storage_length=stored.length,
        storage_sealed=stored.is_sealed,
        has_record=True,
    )
    return _encoder.encode(ContainerSegmentRecord(RECORD_VERSION, snapshot))


def decode_record(record: bytes) -> SegmentSnapshot:
    """Decode the result of `encode_record`.

    Raises `ValueError` for invalid bytes, `LaterFormatError` for a record of a later version.
    """
    try:
        decoded = _record_decoder.decode(record)
    except msgspec.DecodeError as error:
        _check_later(record, RECORD_VERSION, "segment record version")
        raise ValueError(f"not a segment record: {error}") from error
    check_version(decoded.version, (RECORD_VERSION,), "segment record version")
    return decoded.segment


def decode_snapshot(snapshot: bytes, container_id: int) -> ContainerSnapshot:
    """Decode a part of a container's checkpoint.

    Raises `ValueError` for invalid bytes, `LaterFormatError` for a later version.
    """
    try:
        decoded = _decoder.decode(snapshot)
    except msgspec.DecodeError as error:
        _check_later(snapshot, SNAPSHOT_VERSION, "checkpoint version")
        raise ValueError(f"not a metadata snapshot: {error}") from error
    check_version(decoded.version, _SNAPSHOT_VERSIONS, "checkpoint version")
    if decoded.container_id != container_id:
        raise ValueError(f"snapshot of container {decoded.container_id}, expected container {container_id}")
    return decoded


def pinned_in_snapshot(snapshot: bytes) -> Mapping[bytes, bytes]:
    """Return the pinned records of a part of a checkpoint, without its segments. Raises as `decode_snapshot`."""
    try:
        head = _head_decoder.decode(snapshot)
    except msgspec.DecodeError as error:
        _check_later(snapshot, SNAPSHOT_VERSION, "checkpoint version")
        raise ValueError(f"not a metadata snapshot: {error}") from error
    check_version(head.version, _SNAPSHOT_VERSIONS, "checkpoint version")
    return head.pinned


def encode_snapshot(snapshot: ContainerSnapshot) -> bytes:
    """Return the bytes of a part of a checkpoint."""
    return _encoder.encode(snapshot)


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


class MetadataSnapshot:
    """The accepted state of a container at one moment, encoded in parts while the state continues to change.

    A segment is encoded as of the cut: `keep` must be called before a segment is changed. The stored length of a
    segment may be newer than the cut; it remains true from then on.
    """

    __slots__ = ("_container_id", "_kept", "_left", "_merges", "_next_segment_id", "_order", "_pinned")

    def __init__(self, metadata: ContainerMetadata) -> None:
        self._container_id = metadata.container_id
        self._next_segment_id = metadata.next_segment_id
        self._merges = [(target, source, offset) for source, (target, offset) in metadata.merges.items()]
        self._pinned = dict(metadata.pinned)
        #: Segments not yet encoded: those still unchanged, and snapshots of those changed since.
        self._left = dict(metadata.by_id)
        self._order = iter(list(self._left.values()))
        self._kept: deque[SegmentSnapshot] = deque()

    @property
    def is_done(self) -> bool:
        """Whether all parts were returned."""
        return not self._left and not self._kept

    def keep(self, segment: Segment) -> None:
        """Save the segment's state before it changes."""
        if self._left.get(segment.id) is segment:
            del self._left[segment.id]
            stored = _snapshot_of(segment)
            if stored.attributes is segment.attributes:
                stored = msgspec.structs.replace(stored, attributes=dict(segment.attributes))
            self._kept.append(stored)

    def next_part(self, values_max: int) -> bytes:
        """Return the next part's bytes: about `values_max` segments and attributes. The first has all other fields."""
        segments: list[SegmentSnapshot] = []
        count = 0
        kept, left = self._kept, self._left
        while count < values_max and (kept or left):
            if kept:
                stored = kept.popleft()
            else:
                segment = next(self._order)
                if left.pop(segment.id, None) is None:
                    continue
                stored = _snapshot_of(segment)
            segments.append(stored)
            count += _SEGMENT_VALUES + len(stored.attributes)
        merges, self._merges = self._merges, []
        pinned, self._pinned = self._pinned, {}
        return _encoder.encode(
            ContainerSnapshot(SNAPSHOT_VERSION, self._container_id, self._next_segment_id, segments, merges, pinned)
        )


class ContainerMetadata:
    """The segments of one container.

    Invariant: `by_name` has every active segment that is neither deleted nor merged; `by_id` also has those that
    long-term storage still holds something of.
    """

    def __init__(self, container_id: int, make_segment: Callable[[Segment], None]) -> None:
        self.container_id = container_id
        self.by_id: dict[int, Segment] = {}
        self.by_name: dict[str, Segment] = {}
        self.next_segment_id: int = 1
        #: Merges that long-term storage has not done yet: source id -> (target id, offset in target).
        self.merges: dict[int, tuple[int, int]] = {}
        #: Storage records of system segments.
        self.pinned: dict[bytes, bytes] = {}
        self.system_count: int = 0
        #: Transient segments that are neither deleted nor merged, by the name of their parent and their id.
        self.transients: dict[str, dict[int, Segment]] = {}
        self.transient_count: int = 0
        self._make_segment = make_segment

    @property
    def active_count(self) -> int:
        """Number of user segments in memory, without system segments."""
        return len(self.by_name) - self.system_count

    def get(self, name: str) -> Segment:
        """Return a live segment. Raises `NoSuchSegmentError`."""
        segment = self.by_name.get(name)
        if segment is None:
            raise NoSuchSegmentError(name)
        return segment

    def add(self, segment: Segment) -> None:
        """Add a segment and create its read index."""
        self._make_segment(segment)
        self.by_id[segment.id] = segment
        if not (segment.is_deleted or segment.is_merged):
            self.by_name[segment.name] = segment
            self.system_count += segment.is_system
            if segment.is_transient:
                self.transients.setdefault(parent_segment_name(segment.name), {})[segment.id] = segment
                self.transient_count += 1
        self.next_segment_id = max(self.next_segment_id, segment.id + 1)

    def unname(self, segment: Segment) -> None:
        """Remove the name of a deleted or merged segment."""
        if self.by_name.get(segment.name) is segment:
            del self.by_name[segment.name]
            self.system_count -= segment.is_system
            if segment.is_transient:
                parent = parent_segment_name(segment.name)
                del self.transients[parent][segment.id]
                if not self.transients[parent]:
                    del self.transients[parent]
                self.transient_count -= 1

    def activate(self, record: bytes) -> Segment:
        """Restore an inactive segment. Raises `ValueError` if `record` is invalid."""
        segment = _segment_of(decode_record(record))
        segment.has_record = True
        self.add(segment)
        return segment

    def forget(self, segment_id: int) -> None:
        """Drop a segment that neither the log nor storage needs any more."""
        segment = self.by_id.pop(segment_id, None)
        self.merges.pop(segment_id, None)
        if segment is not None:
            self.unname(segment)

    def gone_segments(self) -> Iterator[Segment]:
        """Yield deleted and merged segments that storage may still hold something of."""
        return (segment for segment in self.by_id.values() if segment.is_deleted or segment.is_merged)

    def cut(self) -> MetadataSnapshot:
        """Return the current accepted state, to be encoded in parts while it changes."""
        return MetadataSnapshot(self)

    def snapshot(self) -> bytes:
        """Return the bytes of the accepted state as one part of a checkpoint."""
        return self.cut().next_part(1 << 62)

    def refresh_storage(self, snapshot: bytes) -> None:
        """Take the stored length of each segment from a later checkpoint. Raises `ValueError` as `restore`."""
        for stored in self._decode(snapshot).segments:
            segment = self.by_id.get(stored.segment_id)
            if segment is not None:
                before = segment.storage_length
                segment.storage_length = max(before, min(stored.storage_length, segment.length))
                segment.index.stored(before)

    def _decode(self, snapshot: bytes) -> ContainerSnapshot:
        return decode_snapshot(snapshot, self.container_id)

    def restore(self, *parts: bytes) -> Iterator[None]:
        """Replace the state by a checkpoint's parts, in steps at which the caller may yield to the event loop.

        Raises `ValueError` if they belong to another container.
        """
        decoded = self._decode(parts[0])
        self.by_id.clear()
        self.by_name.clear()
        self.next_segment_id = decoded.next_segment_id
        self.pinned = dict(decoded.pinned)
        self.merges = {source: (target, offset) for target, source, offset in decoded.merges}
        self.system_count = self.transient_count = 0
        self.transients.clear()
        for part in parts:
            for number, stored in enumerate(self._decode(part).segments):
                self.add(_segment_of(stored))
                if number % _RESTORE_STEP == _RESTORE_STEP - 1:
                    yield
            yield
