"""Watermarks: a stream's position when its writers had noted a time. The stored format is Pravega's.

The watermarks of stream ``scope/stream`` are events of one segment, that of ``scope/_MARK<stream>``. Byte tables are in
``docs/formats.md``; for the meaning and computation of watermarks see ``docs/watermarks.md``.

Source: controller-internals 15.2; Pravega, ``io.pravega.shared.watermarks.Watermark``.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from penstock.model.errors import CorruptionError, InvalidArgumentError

#: Format of the content (always 0), version, number of revisions, number of the revision, bytes of the revision.
_HEADER = struct.Struct(">BBBBi")
_TIMES = struct.Struct(">qq")
#: Segment id, start and end of its keys.
_KEYS = struct.Struct(">qdd")
_OFFSET = struct.Struct(">q")
_INT32 = struct.Struct(">I")
_INT16 = struct.Struct(">H")

_COUNT_MAX_1 = 0x7F
_COUNT_MAX_2 = 0x3FFF
_COUNT_MAX_4 = 0x3FFF_FFFF


@dataclass(frozen=True, slots=True)
class MarkedSegment:
    """A segment of a watermark's stream cut: its keys `[key_start, key_end)`, and the offset in bytes."""

    segment_id: int
    key_start: float
    key_end: float
    offset: int


@dataclass(frozen=True, slots=True)
class Watermark:
    """All events that writers noted as of `lower_bound` or before lie before the cut.

    Attributes:
        lower_bound: the least of the times that writers had noted, in their unit.
        upper_bound: the greatest of them.
        segments: the cut, which covers the key space once, by id.
    """

    lower_bound: int
    upper_bound: int
    segments: tuple[MarkedSegment, ...]

    @property
    def positions(self) -> dict[int, int]:
        """The cut as segment -> offset in bytes."""
        return {segment.segment_id: segment.offset for segment in self.segments}

    def encode(self) -> bytes:
        """Return the stored bytes, without the header of an event."""
        parts = [_TIMES.pack(self.lower_bound, self.upper_bound), _encode_count(len(self.segments))]
        for segment in self.segments:
            keys = _KEYS.pack(segment.segment_id, segment.key_start, segment.key_end)
            parts += (_HEADER.pack(0, 0, 1, 0, len(keys)), keys, _OFFSET.pack(segment.offset))
        body = b"".join(parts)
        return _HEADER.pack(0, 0, 1, 0, len(body)) + body

    @classmethod
    def decode(cls, data: bytes, *, segment: str, offset: int) -> Watermark:
        """Parse a watermark; additions of later revisions after it are ignored.

        Raises `CorruptionError`, which names `offset` and `segment` as its place.
        """
        try:
            return cls._decode(data)
        except (struct.error, IndexError, ValueError) as error:
            raise CorruptionError(segment, offset, f"{len(data)} bytes are not a watermark: {error}") from error

    @classmethod
    def _decode(cls, data: bytes) -> Watermark:
        at, end = _revision(data, 0)
        body = data[at:end]
        lower_bound, upper_bound = _TIMES.unpack_from(body)
        count, at = _decode_count(body, _TIMES.size)
        segments = []
        for _ in range(count):
            keys_at, keys_end = _revision(body, at)
            segment_id, key_start, key_end = _KEYS.unpack_from(body[keys_at:keys_end])
            (offset,) = _OFFSET.unpack_from(body, keys_end)
            if not (segment_id >= 0 and 0.0 <= key_start < key_end <= 1.0):
                raise ValueError(f"segment {segment_id} with keys from {key_start} to {key_end}")
            segments.append(MarkedSegment(segment_id, key_start, key_end, offset))
            at = keys_end + _OFFSET.size
        if not segments or upper_bound < lower_bound:
            raise ValueError(f"{len(segments)} segments, times from {lower_bound} to {upper_bound}")
        segments.sort(key=lambda segment: segment.segment_id)
        return cls(lower_bound, upper_bound, tuple(segments))


def _revision(data: bytes, at: int) -> tuple[int, int]:
    """Return start and end of the first revision in the data at `at`."""
    format_version, version, revisions, revision, length = _HEADER.unpack_from(data, at)
    if (format_version, version, revision) != (0, 0, 0) or revisions < 1:
        raise ValueError(f"format {format_version}, version {version}, {revisions} revisions from {revision}")
    start = at + _HEADER.size
    if not 0 <= length <= len(data) - start:
        raise ValueError(f"{length} bytes expected, {len(data) - start} found")
    return start, start + length


def _encode_count(count: int) -> bytes:
    """Encode a count in one, two or four bytes; its first bits select the length."""
    if count <= _COUNT_MAX_1:
        return bytes([count])
    if count <= _COUNT_MAX_2:
        return _INT16.pack(count | 0x8000)
    if count <= _COUNT_MAX_4:
        return _INT32.pack(count | 0xC000_0000)
    raise InvalidArgumentError(f"a watermark of {count} segments cannot be stored")


def _decode_count(data: bytes, at: int) -> tuple[int, int]:
    """Return a count, and the offset after it."""
    first = data[at]
    if first <= _COUNT_MAX_1:
        return first, at + 1
    if first < 0xC0:
        return _INT16.unpack_from(data, at)[0] & _COUNT_MAX_2, at + 2
    return _INT32.unpack_from(data, at)[0] & _COUNT_MAX_4, at + 4
