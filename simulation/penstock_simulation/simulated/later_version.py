"""Files of a log as a later version of Penstock leaves them."""

from __future__ import annotations

import random
import struct
from collections.abc import Mapping

from penstock.model.checksum import crc32c
from penstock.model.errors import StorageError
from penstock.model.segments import Buffer
from penstock.segmentstore.tier1.frame_format import (
    BLOCK_LENGTH,
    FRAME_HEADER_LENGTH,
    FrameHeader,
    FrameKind,
    encode_frame,
)
from penstock.segmentstore.tier1.log_records import EPOCH_FILE
from penstock.segmentstore.tier1.log_recovery import recover
from penstock_simulation.simulated.disk import SimulatedDisk
from penstock_simulation.simulated.disk_faults import NO_FAULTS

#: Length of the part of `log.epoch` that its checksum covers; its version is at bytes 8 and 9.
_EPOCH_RECORD_LENGTH = 96
#: Place of the kind of a frame in its header, and of its checksum, which covers the bytes before it and the payload.
_KIND_AT = 12
_CHECKSUM_AT = 44
_LATER_KIND = max(FrameKind) + 1


def written_by_later_version(files: Mapping[str, bytes], container_id: int) -> dict[str, bytes]:
    """Return the files of a log after a later version has written to it.

    It has claimed an even container's log, and added a frame of a new kind to that of an odd one without a claim.
    """
    changed = _with_frame(files, container_id) if container_id % 2 else None
    return changed or {**files, EPOCH_FILE: _claimed(files[EPOCH_FILE])}


def _claimed(record: bytes) -> bytes:
    version = int.from_bytes(record[8:10], "big") + 1
    body = record[:8] + version.to_bytes(2, "big") + record[10:_EPOCH_RECORD_LENGTH]
    return body + struct.pack(">I", crc32c(body, 0)) + record[_EPOCH_RECORD_LENGTH + 4 :]


def _with_frame(files: Mapping[str, bytes], container_id: int) -> dict[str, bytes] | None:
    """Add a frame of a later version behind the last one; None if the log has no place for it."""
    disk = SimulatedDisk(random.Random(0), NO_FAULTS)
    disk.become({f"log/{name}": content for name, content in files.items()})
    try:
        found = recover(disk, "log", container_id, 0, must_exist=True)
    except StorageError:
        return None  # Its first files were truncated.
    tail = found.files[-1]
    data = files[tail.name]
    if tail.end + BLOCK_LENGTH > len(data):
        return None
    header = FrameHeader(
        FrameKind.DATA, True, False, 9, tail.end, tail.header.epoch, found.next_sequence, found.unsynced_offset
    )
    out: list[Buffer] = []
    payload = b"something"
    encode_frame(tail.header.salt, header, [payload], out)
    head = bytearray(out[0])[:FRAME_HEADER_LENGTH]
    head[_KIND_AT] = _LATER_KIND
    head[_CHECKSUM_AT:] = struct.pack(">I", crc32c(payload, crc32c(bytes(head[:_CHECKSUM_AT]), 0)))
    block = (bytes(head) + payload).ljust(BLOCK_LENGTH, b"\0")
    return {**files, tail.name: data[: tail.end] + block + data[tail.end + BLOCK_LENGTH :]}
