"""`ContainerImage`: a container's log from a checkpoint on at which it could be cut, as an object in long-term storage.

A new log that begins with these frames is a log that was cut there: it recovers to the container as it was when the
image was taken. So a store whose machine is gone is built anew from long-term storage alone. Why it is so, and what
keeps chunks from going that an image needs: docs/recovery.md; the bytes: docs/formats.md. A pure core.
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
    """An image is shorter than it says: its writer did not get to its end, and told nobody that it had."""


class ImageTooLongError(StorageError):
    """More was logged while an image was taken, or waits for long-term storage, than an image may have. Try again."""

    is_retriable = True


@dataclass(frozen=True, slots=True, order=True)
class ImageName:
    """Which image it is. Later ones are greater: those of later epochs, and of one epoch by their number from 1."""

    container_id: int
    epoch: int
    number: int

    @property
    def name(self) -> str:
        """The name of the object."""
        return f"{image_prefix(self.container_id)}epoch{self.epoch:016x}.snapshot{self.number:016x}"

    @classmethod
    def parse(cls, name: str) -> ImageName | None:
        """Read `name` back; None for anything else."""
        found = _NAME.match(name)
        return None if found is None else cls(int(found[1]), int(found[2], 16), int(found[3], 16))

    @classmethod
    def of(cls, data: bytes) -> ImageName:
        """Return what an image's bytes say that it is. They are not checked: `ContainerImage.decode` does."""
        if len(data) < _HEADER.size:
            raise PartialImageError(f"an image of {len(data)} bytes was not written to its end")
        _, _, _, container_id, _, epoch, number, *_ = _HEADER.unpack_from(data)
        return cls(container_id, epoch, number)


def image_prefix(container_id: int) -> str:
    """Return what the names of all images of a container begin with, and of no other."""
    return f"{IMAGES_PREFIX}container{container_id}."


@dataclass(frozen=True, slots=True)
class ContainerImage:
    """An image: `frames` are those of the log, the first of which begins with a checkpoint.

    `container_count`: of the whole store, which decides where segments are. `created_ms`: wall clock. `checksums`: of
    the frames, if they are known.
    """

    name: ImageName
    container_count: int
    created_ms: int
    frames: Sequence[bytes]
    checksums: Sequence[int] = field(default=(), compare=False)

    def encode(self) -> list[Buffer]:
        """Return the object's bytes, in pieces."""
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
        """Read what `encode` made.

        Raises `PartialImageError` when it is cut, `LaterVersionError`, `CorruptionError` for all else.
        """
        start = _HEADER.size + _CHECKSUM.size
        if len(data) < start:
            raise PartialImageError(f"{name.name} has {len(data)} bytes: it was not written to its end")
        if crc32c(data[: _HEADER.size], 0) != _CHECKSUM.unpack_from(data, _HEADER.size)[0]:
            raise CorruptionError(name.name, 0, "the checksum of its header does not match")
        magic, version, _, container_id, count, epoch, number, created_ms, length, frame_count = _HEADER.unpack_from(
            data
        )
        if magic != _MAGIC:
            raise CorruptionError(name.name, 0, f"it begins with {magic!r} instead of {_MAGIC!r}")
        if version != IMAGE_FORMAT_VERSION:
            raise version_error(name.name, version, (IMAGE_FORMAT_VERSION,))
        if ImageName(container_id, epoch, number) != name:
            raise CorruptionError(
                name.name, 0, f"it is image {number} of container {container_id} in epoch {epoch}, by what it says"
            )
        if len(data) < length:
            raise PartialImageError(f"{name.name} has {len(data)} of {length} bytes: it was not written to its end")
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
            raise CorruptionError(name.name, start, f"it has {len(data)} bytes, its frames {start}, it says {length}")
        return cls(name, count, created_ms, frames)


class FrameRecorder:
    """Keeps a copy of the frames that a log is given, from a checkpoint on; `bytes_max` of them at most."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._byte_count = 0
        #: Frames, each with its place among all of them, the number of the last record that ends in it or before, and
        #: its checksum: of all of them together, later, it would take long.
        self._frames: list[tuple[int, int, bytes, int]] = []
        self._is_over = False

    def begin(self, frame_count: int) -> None:
        """Forget the first `frame_count` of all frames: the checkpoint begins the next."""
        self._frames = [frame for frame in self._frames if frame[0] >= frame_count]

    def add(self, place: int, parts: Iterable[Buffer], length: int, sequence_number: int) -> None:
        """Take the frame at a place, which ends with the record of that number, or in the midst of the next."""
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

        The last may end with the beginning of a record that is not.

        Raises `ImageTooLongError` if there were too many bytes.
        """
        if self._is_over:
            raise ImageTooLongError(f"more than {self._bytes_max} bytes were logged while an image was taken")
        found = [(frame, checksum) for _, number, frame, checksum in self._frames if number <= durable_number]
        return [frame for frame, _ in found], [checksum for _, checksum in found]
