"""`DisabledReason`: why a local log was disabled, in a small file beside the log (`log.disabled`).

`log.epoch` alone decides whether a log is disabled. This file only gives administrators the reason. It is written
before the log is disabled, so a disabled log without it was disabled by an earlier version, or on a full disk. It
applies only to the epoch that it names; a file left by an earlier version does not apply to later epochs. Format:
docs/formats.md.
"""

from __future__ import annotations

import json
import tomllib
from dataclasses import dataclass

from penstock.model.checksum import crc32c
from penstock.runtime.disk import Disk
from penstock.segmentstore.tier1.log_records import TEMPORARY_SUFFIX

REASON_FILE = "log.disabled"
FORMAT_VERSION = 1
_LENGTH_MAX = 64 * 1024
_TEXT_LENGTH_MAX = 8 * 1024


@dataclass(frozen=True, slots=True)
class DisabledReason:
    """Why the log of a container was disabled in an epoch. `is_corrupt`: the log was found damaged."""

    container_id: int
    epoch: int
    is_corrupt: bool
    text: str

    @property
    def advice(self) -> str:
        """Return the administrator's next step, as a sentence."""
        if self.is_corrupt:
            return (
                f"Stop the server and run `penstock log salvage {self.container_id}`, or put the log's files back from "
                f"a copy and run `penstock log enable {self.container_id}`"
            )
        return f"After removing the cause, stop the server and run `penstock log enable {self.container_id}`"

    def encode(self) -> bytes:
        """Return the content of the file."""
        text = json.dumps(self.text[:_TEXT_LENGTH_MAX], ensure_ascii=False).replace("\x7f", "\\u007f")
        body = (
            "# Written by Penstock when it disabled this log.\n"
            f"format_version = {FORMAT_VERSION}\n"
            f"container_id = {self.container_id}\n"
            f"epoch = {self.epoch}\n"
            f"is_corrupt = {str(self.is_corrupt).lower()}\n"
            f"reason = {text}\n"
        ).encode()
        return body + b'crc32c = "%08x"\n' % crc32c(body, 0)


def read_reason(disk: Disk, directory: str, epoch: int) -> DisabledReason | None:
    """Return why the log was disabled in `epoch`; None if there is no readable record for it. Blocks."""
    path = f"{directory}/{REASON_FILE}"
    if not disk.exists(path):
        return None
    file = disk.open(path, writable=False)
    try:
        data = file.read(0, _LENGTH_MAX)
    finally:
        file.close()
    body, mark, checksum = data.rpartition(b"crc32c = ")
    if not mark or checksum.strip() != b'"%08x"' % crc32c(body, 0):
        return None
    fields = tomllib.loads(body.decode())
    if fields["format_version"] != FORMAT_VERSION or fields["epoch"] != epoch:
        return None
    return DisabledReason(fields["container_id"], epoch, fields["is_corrupt"], fields["reason"])


def write_reason(disk: Disk, directory: str, reason: DisabledReason) -> None:
    """Replace the file durably. The caller holds the log's lock. Raises `StorageFullError`, `OSError`."""
    path = f"{directory}/{REASON_FILE}"
    file = disk.open(path + TEMPORARY_SUFFIX, create=True)
    try:
        file.truncate(0)
        file.write(0, [reason.encode()])
        file.sync()
    finally:
        file.close()
    disk.rename(path + TEMPORARY_SUFFIX, path)
    disk.sync_directory(directory)


def remove_reason(disk: Disk, directory: str) -> None:
    """Remove the file; fine if it is not there."""
    try:
        disk.remove(f"{directory}/{REASON_FILE}")
    except FileNotFoundError:
        return
    disk.sync_directory(directory)
