"""`ContainerImage`: a container's log from a checkpoint on at which it could be truncated, as one object in tier 2.

A new log that begins with these frames is equivalent to a log truncated there: it recovers to the container's state at
the time of the image. A store whose machine is lost can thus be rebuilt from long-term storage alone. Rationale, and
how the chunks that an image needs are retained: docs/recovery.md; byte format: docs/formats.md. A pure core.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from penstock.model.checksum import crc32c
from penstock.model.errors import CorruptionError, StorageError
from penstock.model.segments import Buffer
from penstock.segmentstore.later_format import version_error
from penstock.segmentstore.tier2.chunk_name import IMAGES_PREFIX

IMAGE_FORMAT_VERSION: Final = 1

_MAGIC: Final = b"PNSTKIMG"
_HEADER = struct.Struct(">8sHHiiQQqQI")
_CHECKSUM = struct.Struct(">I")
_FRAME = struct.Struct(">II")
_NAME = re.compile(re.escape(IMAGES_PREFIX) + r"container(\d{1,9})\.epoch([0-9a-f]{16})\.snapshot([0-9a-f]{16})\Z")


class PartialImageError(StorageError):
    """An image is shorter than its header says: its writer did not finish, and did not report success."""


class ImageTooLongError(StorageError):
    """More data was logged, or is unflushed, while an image was taken than an image may hold. Try again."""

    is_retriable = True


@dataclass(frozen=True, slots=True, order=True)
class ImageName:
    """Identifies an image. Later images compare greater: by epoch, then by number, which starts at 1 in each epoch."""

    container_id: int
    epoch: int
    number: int

    @property
    def name(self) -> str:
        """The name of the object."""
        return f"{image_prefix(self.container_id)}epoch{self.epoch:016x}.snapshot{self.number:016x}"

    @classmethod
    def parse(cls, name: str) -> ImageName | None:
        """Parse a result of `name`; None for anything else."""
        found = _NAME.match(name)
        return None if found is None else cls(int(found[1]), int(found[2], 16), int(found[3], 16))

    @classmethod
    def of(cls, data: bytes) -> ImageName:
        """Return the name in an image's header. The bytes are not verified; `ContainerImage.decode` does that."""
        if len(data) < _HEADER.size:
            raise PartialImageError(f"an image of {len(data)} bytes is incomplete")
        _, _, _, container_id, _, epoch, number, *_ = _HEADER.unpack_from(data)
        return cls(container_id, epoch, number)


def image_prefix(container_id: int) -> str:
    """Return the prefix of the names of all images of a container; no other names have it."""
    return f"{IMAGES_PREFIX}container{container_id}."


@dataclass(frozen=True, slots=True)
class ContainerImage:
    """An image: `frames` are frames of the log, the first of which begins with a checkpoint.

    `container_count`: containers in the whole store; it determines the placement of segments. `created_ms`: wall clock.
    `checksums`: checksums of the frames, if known.
    """

    name: ImageName
    container_count: int
    created_ms: int
    frames: Sequence[bytes]
    checksums: Sequence[int] = field(default=(), compare=False)

    def encode(self) -> list[Buffer]:
        """Return the object's bytes, as a list of buffers."""
        length = _HEADER.size + _CHECKSUM.size + sum(_FRAME.size + len(frame) for frame in self.frames)
        header = _HEADER.pack(
            _MAGIC,
            IMAGE_FORMAT_VERSION,
            0,
            self.name.container_id,
            self.container_count,
            self.name.epoch,
            self.name.number,
            self.created_ms,
            length,
            len(self.frames),
        )
        pieces: list[Buffer] = [header + _CHECKSUM.pack(crc32c(header, 0))]
        checksums = self.checksums or [crc32c(frame, 0) for frame in self.frames]
        for frame, checksum in zip(self.frames, checksums, strict=True):
            pieces += (_FRAME.pack(len(frame), checksum), frame)
        return pieces

    @classmethod
    def decode(cls, name: ImageName, data: bytes) -> ContainerImage:
        """Decode the result of `encode`.

        Raises `PartialImageError` if it is truncated, `LaterVersionError`, or `CorruptionError` for anything else.
        """
        start = _HEADER.size + _CHECKSUM.size
        if len(data) < start:
            raise PartialImageError(f"{name.name} has {len(data)} bytes: it is incomplete")
        if crc32c(data[: _HEADER.size], 0) != _CHECKSUM.unpack_from(data, _HEADER.size)[0]:
            raise CorruptionError(name.name, 0, "the checksum of its header does not match")
        magic, version, _, container_id, count, epoch, number, created_ms, length, frame_count = _HEADER.unpack_from(
            data
        )
        if magic != _MAGIC:
            raise CorruptionError(name.name, 0, f"it starts with {magic!r} instead of {_MAGIC!r}")
        if version != IMAGE_FORMAT_VERSION:
            raise version_error(name.name, version, (IMAGE_FORMAT_VERSION,))
        if ImageName(container_id, epoch, number) != name:
            raise CorruptionError(
                name.name, 0, f"its header says image {number} of container {container_id} in epoch {epoch}"
            )
        if len(data) < length:
            raise PartialImageError(f"{name.name} has {len(data)} of {length} bytes: it is incomplete")
        frames: list[bytes] = []
        for _ in range(frame_count):
            if start + _FRAME.size > len(data):
                raise CorruptionError(name.name, start, f"it has {len(frames)} of {frame_count} frames")
            frame_length, checksum = _FRAME.unpack_from(data, start)
            start += _FRAME.size
            frame = data[start : start + frame_length]
            if len(frame) != frame_length or crc32c(frame, 0) != checksum:
                raise CorruptionError(name.name, start, f"the checksum of frame {len(frames)} does not match")
            frames.append(frame)
            start += frame_length
        if start != length or len(data) != length:
            raise CorruptionError(
                name.name, start, f"it has {len(data)} bytes, its frames {start}, its header says {length}"
            )
        return cls(name, count, created_ms, frames)


class FrameRecorder:
    """Keeps copies of the frames passed to a log, from a checkpoint on, up to `bytes_max`."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._byte_count = 0
        #: For each frame: its index in the log, the number of the last record that ends in it or before, its bytes and
        #: its checksum. Checksumming all frames together at the end would take long.
        self._frames: list[tuple[int, int, bytes, int]] = []
        self._is_over = False

    def begin(self, frame_count: int) -> None:
        """Forget the first `frame_count` frames: the checkpoint begins with the next one."""
        self._frames = [frame for frame in self._frames if frame[0] >= frame_count]

    def add(self, place: int, parts: Iterable[Buffer], length: int, sequence_number: int) -> None:
        """Record a frame; `sequence_number` is that of the last record that ends in it or before."""
        if self._is_over:
            return
        self._byte_count += length
        if self._byte_count > self._bytes_max:
            self._is_over = True
            self._frames.clear()
            return
        frame = b"".join(parts)
        self._frames.append((place, sequence_number, frame, crc32c(frame, 0)))

    def frames(self, durable_number: int) -> tuple[list[bytes], list[int]]:
        """Return the frames whose records are durable, and their checksums.

        The last frame may end with the beginning of a record that is not durable.

        Raises `ImageTooLongError` if `bytes_max` was exceeded.
        """
        if self._is_over:
            raise ImageTooLongError(f"more than {self._bytes_max} bytes were logged while an image was taken")
        found = [(frame, checksum) for _, number, frame, checksum in self._frames if number <= durable_number]
        return [frame for frame, _ in found], [checksum for _, checksum in found]
