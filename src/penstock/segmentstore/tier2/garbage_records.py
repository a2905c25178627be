"""`GarbageTask` and `LayoutLease`: records of chunks to delete, and of leases that delay this.

They are in the table of the storage records, before those of all segments: their keys begin with a zero byte, which
names do not contain. They are ordered by the container epoch and a number that the epoch assigns to each, so the order
of the keys is that of creation, independent of clocks. Bytes: ``docs/formats.md``; rationale: ``docs/garbage.md``.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from penstock.model.checksum import crc32c
from penstock.model.errors import CorruptionError, InvalidArgumentError
from penstock.segmentstore.later_format import version_error
from penstock.segmentstore.tier2.adoption_records import ADOPTED_PREFIX, AdoptionMark

#: Key prefixes of each kind.
TASK_PREFIX: Final = b"\0garbage\0"
GIVEN_UP_PREFIX: Final = b"\0given-up\0"
LEASE_PREFIX: Final = b"\0lease\0"
#: Greater than all keys of these records, and less than all keys of segments.
SEGMENTS_FIRST: Final = b"\1"

_FORMAT_VERSION: Final = 1
_KIND_TASK: Final = 16
_KIND_LEASE: Final = 17

_PLACE = struct.Struct(">QQ")
_TASK = struct.Struct(">BBqII")
_LEASE = struct.Struct(">BBqqI")
_NAME_LENGTH = struct.Struct(">H")
_CHECKSUM = struct.Struct(">I")


@dataclass(frozen=True, slots=True, order=True)
class CreationOrder:
    """A position in the order of creation: container `epoch`, and the `number` that it assigned."""

    epoch: int
    number: int

    def key(self, prefix: bytes) -> bytes:
        """Return the key of a record of the kind with this `prefix`."""
        return prefix + _PLACE.pack(self.epoch, self.number)


@dataclass(frozen=True, slots=True)
class GarbageTask:
    """Chunks to which no record has referred since the commit that added this task.

    Attributes:
        place: position in the order of creation.
        made_ms: wall clock of its creation, milliseconds; informational.
        attempts: how often their deletion was tried and refused.
        names: the names of the chunks.
    """

    place: CreationOrder
    made_ms: int
    attempts: int
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LayoutLease:
    """Its holder may read the layout recorded when it was granted; chunks unlinked later are not deleted.

    Attributes:
        place: position in the order of creation: tasks after it are held back.
        made_ms: wall clock of its creation, milliseconds; informational.
        duration_ms: how long it lasts, from its creation, or from the start of the owner that loaded it.
        holder: name of the holder, informational.
    """

    place: CreationOrder
    made_ms: int
    duration_ms: int
    holder: str


def encode_task(task: GarbageTask) -> bytes:
    """Return a task's stored bytes. Raises `InvalidArgumentError` for a name beyond 65535 bytes."""
    head = _TASK.pack(_FORMAT_VERSION, _KIND_TASK, task.made_ms, task.attempts, len(task.names))
    return _closed(head, task.names)


def encode_lease(lease: LayoutLease) -> bytes:
    """Return a lease's stored bytes. Raises `InvalidArgumentError` as `encode_task`."""
    head = _LEASE.pack(_FORMAT_VERSION, _KIND_LEASE, lease.made_ms, lease.duration_ms, 1)
    return _closed(head, [lease.holder])


def decode_task(key: bytes, data: bytes) -> GarbageTask:
    """Decode a task, given up or not. Raises `CorruptionError`."""
    place, (made_ms, attempts, count), names = _opened(key, data, _TASK, _KIND_TASK)
    if len(names) != count or not all(names):
        raise CorruptionError(_describe(key), _TASK.size, f"{len(names)} names found, {count} were written")
    return GarbageTask(place, made_ms, attempts, tuple(names))


def decode_lease(key: bytes, data: bytes) -> LayoutLease:
    """Decode a lease. Raises `CorruptionError`."""
    place, (made_ms, duration_ms, count), names = _opened(key, data, _LEASE, _KIND_LEASE)
    if len(names) != count or count != 1 or duration_ms < 0:
        raise CorruptionError(_describe(key), _LEASE.size, "its fields do not match the record")
    return LayoutLease(place, made_ms, duration_ms, names[0])


def check_garbage(key: bytes, data: bytes) -> None:
    """Raise `CorruptionError` unless the entry under `key`, which begins with a zero byte, is one of these records.

    Also accepts the mark of an adoption, which is stored among them.
    """
    if key.startswith((TASK_PREFIX, GIVEN_UP_PREFIX)):
        decode_task(key, data)
    elif key.startswith(LEASE_PREFIX):
        decode_lease(key, data)
    elif key.startswith(ADOPTED_PREFIX):
        AdoptionMark.decode(key, data)
    else:
        raise CorruptionError(_describe(key), 0, "records of this kind are unknown")


def _closed(head: bytes, names: Sequence[str]) -> bytes:
    parts = [head]
    for name in names:
        encoded = name.encode()
        if len(encoded) > 0xFFFF:
            raise InvalidArgumentError(f"name of {len(encoded)} bytes is too long for a record")
        parts += (_NAME_LENGTH.pack(len(encoded)), encoded)
    body = b"".join(parts)
    return body + _CHECKSUM.pack(crc32c(body, 0))


def _opened(
    key: bytes, data: bytes, head: struct.Struct, kind: int
) -> tuple[CreationOrder, tuple[int, int, int], list[str]]:
    where = _describe(key)
    if len(data) < head.size + _CHECKSUM.size:
        raise CorruptionError(where, 0, f"{len(data)} bytes are too short for a record")
    body = bytes(data[: -_CHECKSUM.size])
    (stored,) = _CHECKSUM.unpack_from(data, len(body))
    if crc32c(body, 0) != stored:
        raise CorruptionError(where, 0, f"checksum is {crc32c(body, 0):08x}, stored {stored:08x}")
    version, found_kind, first, second, count = head.unpack_from(body)
    if version != _FORMAT_VERSION:
        raise version_error(where, version, (_FORMAT_VERSION,))
    if found_kind != kind:
        raise CorruptionError(where, 1, f"record kind {found_kind} belongs under another key, here is {kind}")
    names: list[str] = []
    position = head.size
    try:
        while position < len(body):
            (length,) = _NAME_LENGTH.unpack_from(body, position)
            position += _NAME_LENGTH.size + length
            if position > len(body):
                raise ValueError(f"a name of {length} bytes is truncated")
            names.append(body[position - length : position].decode())
        place = CreationOrder(*_PLACE.unpack(key[-_PLACE.size :]))
    except (struct.error, ValueError) as error:
        raise CorruptionError(where, head.size, f"fields do not match the record ({error})") from error
    return place, (first, second, count), names


def _describe(key: bytes) -> str:
    kind = key[1:].split(b"\0", 1)[0].decode(errors="replace")
    return f"storage {kind} record {key[-_PLACE.size :].hex()}"
