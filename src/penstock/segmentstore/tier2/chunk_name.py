"""Names of chunks: which are allowed, and how new ones are created.

A chunk of segment `s`, created by epoch `e` for offset `o`, is called ``s.E-e-O-o.<uuid>``. The name is unique even if
one offset is tried twice. It is informational and used by the sweep for orphans, but nothing else depends on it: after
a merge chunks keep the name of the segment they were written for. The UUID begins with the mark of the container that
created the chunk, so that no other container takes it for its own orphan (`orphans`). Source: PDP-34;
segment-store 8.4.
"""

from __future__ import annotations

import random
import re
import uuid
from collections.abc import Sequence
from dataclasses import dataclass

from penstock.model.errors import InvalidArgumentError, InvalidNameError
from penstock.model.names import STORAGE_NAME_PREFIX

#: Maximum bytes of a whole name in UTF-8, and of one part between slashes (the limit of common file systems).
CHUNK_NAME_LENGTH_MAX = 2048
CHUNK_NAME_PART_LENGTH_MAX = 255

#: Maximum length that `new_chunk_name` adds to a segment's name: epoch and offset of 64 bits, and a UUID.
CHUNK_SUFFIX_BYTES_MAX = len(".E-") + 20 + len("-O-") + 19 + len(".") + 36

#: Reserved prefix of the storage's own objects; chunk names must not begin with it.
RESERVED_NAME_PREFIX = STORAGE_NAME_PREFIX

#: Prefix of all images of containers; no segment's chunk has it.
IMAGES_PREFIX = "_system/containers/_sysjournal."

#: Length of a container's mark.
CHUNK_MARK_BYTES = 6

_CREATED_NAME = re.compile(r"(?s)(.+)\.E-(\d+)-O-(\d+)\.([0-9a-f]{8})-([0-9a-f]{4})(?:-[0-9a-f]{4}){2}-[0-9a-f]{12}\Z")


@dataclass(frozen=True, slots=True)
class ChunkOrigin:
    """The origin of a chunk as given by its name: segment, epoch, offset and container.

    `mark`: of the container, `CHUNK_MARK_BYTES` long.
    """

    segment: str
    epoch: int
    offset: int
    mark: bytes


def check_chunk_name(name: str) -> str:
    """Return `name` if it may name a chunk on every storage, else raise `InvalidArgumentError`."""
    try:
        encoded = name.encode()
    except UnicodeEncodeError as error:
        raise InvalidArgumentError(f"chunk name {name!r} is not valid Unicode text") from error
    if not encoded or len(encoded) > CHUNK_NAME_LENGTH_MAX or b"\0" in encoded:
        raise InvalidArgumentError(f"chunk name {name!r}: use 1 to {CHUNK_NAME_LENGTH_MAX} bytes without NUL")
    if name.startswith(RESERVED_NAME_PREFIX):
        raise InvalidArgumentError(f"chunk name {name!r}: names that begin with {RESERVED_NAME_PREFIX!r} are reserved")
    for part in encoded.split(b"/"):
        if part in (b"", b".", b"..") or len(part) > CHUNK_NAME_PART_LENGTH_MAX:
            raise InvalidArgumentError(
                f"chunk name {name!r}: use a relative path whose parts have 1 to {CHUNK_NAME_PART_LENGTH_MAX} bytes"
                " and are neither '.' nor '..'"
            )
    return name


def check_segment_name(segment: str, *, derived_bytes_max: int, name_part_bytes_max: int) -> None:
    """Raise `InvalidNameError` unless all chunks of `segment`, and of segments derived from it, can be created.

    `derived_bytes_max`: maximum bytes that the names of derived segments add to its own. `name_part_bytes_max`: see
    `ChunkStorage.name_part_bytes_max`.
    """
    if segment.startswith(RESERVED_NAME_PREFIX):
        raise InvalidNameError(
            f"segment name {segment!r}: names that begin with {RESERVED_NAME_PREFIX!r} are reserved for long-term "
            "storage itself; choose another name"
        )
    *folders, last = (len(part.encode()) for part in segment.split("/"))
    last_max = name_part_bytes_max - derived_bytes_max - CHUNK_SUFFIX_BYTES_MAX
    if last > last_max:
        raise InvalidNameError(
            f"segment name {segment!r}: its last part has {last} bytes, {last_max} are possible: the names of files in "
            f"long-term storage begin with it and have {name_part_bytes_max} bytes at most; choose a shorter name"
        )
    if folders and max(folders) > name_part_bytes_max:
        raise InvalidNameError(
            f"segment name {segment!r}: a part of it has {max(folders)} bytes, {name_part_bytes_max} are possible in "
            "long-term storage; choose a shorter name"
        )


def check_range(name: str, offset: int, length: int = 0) -> None:
    """Raise `InvalidArgumentError` when `offset` or `length` of a request on chunk `name` is negative."""
    if offset < 0 or length < 0:
        raise InvalidArgumentError(f"chunk {name}: offset {offset} and length {length} must not be negative")


def check_concat(target: str, target_length: int, sources: Sequence[tuple[str, int]]) -> None:
    """Raise `InvalidArgumentError` for a `ChunkStorage.concat` that can never succeed."""
    seen = {check_chunk_name(target)}
    check_range(target, 0, target_length)
    if not sources:
        raise InvalidArgumentError(f"chunk {target}: there is nothing to concatenate to it")
    for name, length in sources:
        check_range(check_chunk_name(name), 0, length)
        if name in seen:
            raise InvalidArgumentError(f"chunk {name} occurs twice in one concatenation")
        seen.add(name)


def new_chunk_name(segment: str, *, epoch: int, offset: int, rng: random.Random, mark: bytes = b"") -> str:
    """Return a new name for a chunk that `epoch` creates for `segment` at segment offset `offset`.

    `mark`: of the container, `CHUNK_MARK_BYTES` long; a chunk without one is never taken for an orphan.
    """
    unique = uuid.UUID(bytes=mark + rng.randbytes(16 - len(mark)), version=4)
    return f"{segment}.E-{epoch}-O-{offset}.{unique}"


def chunk_origin(name: str) -> ChunkOrigin | None:
    """Decode a name created by `new_chunk_name`; None for any other name."""
    found = _CREATED_NAME.match(name)
    if found is None:
        return None
    return ChunkOrigin(found[1], int(found[2]), int(found[3]), bytes.fromhex(found[4] + found[5]))
