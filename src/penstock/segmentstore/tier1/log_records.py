"""The two small files beside a local log: its owner (`log.epoch`) and its start (`log.truncation`).

Both are replaced atomically (write a temporary file, sync, rename, sync the directory) and only under `log.lock`, so a
fenced owner cannot restore an older one. Owning the log means that the `log.epoch` file this incarnation wrote still
has a name (`DiskFile.is_linked`). That is why truncation is in a file of its own.

Before `log.epoch` is replaced, a mark is written into the old file. Its owner, which has that byte mapped, sees the
mark without a system call.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from penstock.model.checksum import crc32c
from penstock.model.errors import CorruptionError, InvalidArgumentError, LaterVersionError, StorageFullError
from penstock.runtime.disk import Disk, DiskFile, SharedByte, is_full_error
from penstock.segmentstore.tier1.frame_format import has_checksum, is_version_damaged
from penstock.segmentstore.tier1.log_owner import TOKEN_LENGTH

EPOCH_FILE = "log.epoch"
TRUNCATION_FILE = "log.truncation"
LOCK_FILE = "log.lock"
TEMPORARY_SUFFIX = ".tmp"
#: Files of one block, kept to become one of the two records when there is no room for a new one.
RESERVE_RECORD_PREFIX = "reserve-record-"

#: A claim writes this version, and a version that does not know it refuses the log before the claim. So it grows with
#: every change that an earlier version cannot read, in the log (this record, files and their frames, container frames,
#: kinds of operations, checkpoints) or in the data it refers to. See docs/formats.md, "Compatibility".
EPOCH_VERSION = 4
#: Before version 4 the record had neither the end of the log nor the id of the cluster.
_EPOCH_VERSION_WITHOUT_CLUSTER = 3
_TRUNCATION_VERSION = 1
_EPOCH = struct.Struct(">8sHHiQ16sQ48s")
_EPOCH_WITHOUT_CLUSTER = struct.Struct(">8sHHiQ16s")
_TRUNCATION = struct.Struct(">8sHHiQ")
_CRC = struct.Struct(">I")
_EPOCH_MAGIC = b"PNSTKEPO"
_TRUNCATION_MAGIC = b"PNSTKTRU"
#: Maximum bytes of a cluster's id in UTF-8.
CLUSTER_ID_LENGTH_MAX = 48
_ENABLED = 1
_RELEASED = 2
_SETTLED = 4
#: Offset of the owner's addition to its record: another sector, so that writing it cannot damage the record.
_LATER_OFFSET = 512
#: Offset of the mark that a replacement writes, not zero from then on; and of the byte with which the owner tests
#: whether it would see the mark.
_MARK_OFFSET = 1024
_TRIAL_OFFSET = 1025
_EPOCH_FILE_LENGTH = 1536


@dataclass(frozen=True, slots=True)
class EpochRecord:
    """Contents of `log.epoch`.

    Attributes:
        owner: token of the process that opened the log, see `LogOwner`.
        is_settled: no earlier incarnation can answer reads any more; false while this one waits for that.
        is_released: this incarnation has stopped answering; it was closed cleanly.
        closed_address: end of the log when it was last closed cleanly, see `log_address`; 0: never. It never decreases:
            a log that ends earlier has lost data.
        cluster_id: the cluster that the log belongs to; empty before the first claim by a version that records it.
    """

    container_id: int
    epoch: int
    is_enabled: bool
    owner: bytes = bytes(TOKEN_LENGTH)
    is_settled: bool = True
    is_released: bool = False
    closed_address: int = 0
    cluster_id: str = ""


@dataclass(frozen=True, slots=True)
class TruncationRecord:
    """Contents of `log.truncation`: frames at or before `address` are forgotten (0: none).

    It is first written when the log's first file is durable: once it exists, log files must exist.
    """

    container_id: int
    address: int


def read_epoch(disk: Disk, directory: str) -> EpochRecord | None:
    """Read `log.epoch`; None if there is none. Raises `CorruptionError`, `LaterVersionError`.

    The owner's later addition is used only if it is intact. A failed or interrupted write of it is ignored: then the
    next owner has to wait, and nothing else is lost.
    """
    path = f"{directory}/{EPOCH_FILE}"
    layouts = {EPOCH_VERSION: _EPOCH, _EPOCH_VERSION_WITHOUT_CLUSTER: _EPOCH_WITHOUT_CLUSTER}
    found = _read(disk, path, _EPOCH_MAGIC, layouts, length=_EPOCH_FILE_LENGTH)
    if found is None:
        return None
    layout, data = found
    first = _decode_epoch(data, layout)
    later = data[_LATER_OFFSET:]
    if len(later) < layout.size + _CRC.size or not later.startswith(_EPOCH_MAGIC):
        return first
    if crc32c(later[: layout.size], 0) != _CRC.unpack_from(later, layout.size)[0]:
        return first
    added = _decode_epoch(later, layout)
    return replace(
        first,
        is_settled=first.is_settled or added.is_settled,
        is_released=added.is_released,
        closed_address=max(first.closed_address, added.closed_address),
    )


def _decode_epoch(data: bytes, layout: struct.Struct) -> EpochRecord:
    _, _, flags, container_id, epoch, owner, *rest = layout.unpack_from(data)
    closed_address, cluster = rest if rest else (0, b"")
    return EpochRecord(
        container_id,
        epoch,
        bool(flags & _ENABLED),
        owner,
        bool(flags & _SETTLED),
        bool(flags & _RELEASED),
        closed_address,
        cluster.rstrip(b"\0").decode(),
    )


def write_epoch(disk: Disk, directory: str, record: EpochRecord) -> DiskFile:
    """Replace `log.epoch` durably; return it open, to check `is_linked`. The caller holds the lock.

    The present owner is fenced as soon as its file is marked, even if a later step fails.
    """
    body = _encode_epoch(record)
    content = (body + _CRC.pack(crc32c(body, 0))).ljust(_EPOCH_FILE_LENGTH, b"\0")
    return _replace(disk, directory, EPOCH_FILE, content, before_rename=lambda: _mark_replaced(disk, directory))


def _mark_replaced(disk: Disk, directory: str) -> None:
    path = f"{directory}/{EPOCH_FILE}"
    if not disk.exists(path):
        return
    file = disk.open(path)
    try:
        # Not synced: it is for running processes, which see memory. A process started later sees the replacement file.
        file.write(_MARK_OFFSET, [b"\1"])
    finally:
        file.close()


def share_mark(file: DiskFile) -> SharedByte | None:
    """Return the byte of `log.epoch` that becomes non-zero when the file is replaced; None if unsupported.

    It first tests, on another byte, whether writes to the file are visible in the mapping. None: only the file's name
    shows it.
    """
    trial = file.share(_TRIAL_OFFSET)
    if trial is None:
        return None
    try:
        file.write(_TRIAL_OFFSET, [b"\1"])
        is_seen = trial.value() == 1
    except (OSError, StorageFullError):
        is_seen = False
    finally:
        trial.close()
    return file.share(_MARK_OFFSET) if is_seen else None


def add_to_epoch(file: DiskFile, record: EpochRecord) -> None:
    """Write later changes durably into a separate sector, so the original record stays intact whatever happens.

    For the owner. Harmless if it has been fenced: its file has no name then.
    """
    body = _encode_epoch(record)
    file.write(_LATER_OFFSET, [body + _CRC.pack(crc32c(body, 0))])
    file.sync()


def _encode_epoch(record: EpochRecord) -> bytes:
    flags = _ENABLED * record.is_enabled | _SETTLED * record.is_settled | _RELEASED * record.is_released
    return _EPOCH.pack(
        _EPOCH_MAGIC,
        EPOCH_VERSION,
        flags,
        record.container_id,
        record.epoch,
        record.owner,
        record.closed_address,
        encode_cluster_id(record.cluster_id),
    )


def encode_cluster_id(cluster_id: str) -> bytes:
    """Return a cluster's id as encoded in a log's files. Raises `InvalidArgumentError` if it is too long."""
    encoded = cluster_id.encode()
    if len(encoded) > CLUSTER_ID_LENGTH_MAX:
        raise InvalidArgumentError(
            f"cluster id {cluster_id!r} has {len(encoded)} bytes, a log holds {CLUSTER_ID_LENGTH_MAX} at most"
        )
    return encoded


def read_truncation(disk: Disk, directory: str) -> TruncationRecord | None:
    """Read `log.truncation`; None if there is none. Raises `CorruptionError`."""
    path = f"{directory}/{TRUNCATION_FILE}"
    found = _read(disk, path, _TRUNCATION_MAGIC, {_TRUNCATION_VERSION: _TRUNCATION})
    if found is None:
        return None
    _, _, _, container_id, address = _TRUNCATION.unpack_from(found[1])
    return TruncationRecord(container_id, address)


def write_truncation(disk: Disk, directory: str, record: TruncationRecord) -> None:
    """Replace `log.truncation` durably. The caller holds the lock and owns the log."""
    body = _TRUNCATION.pack(_TRUNCATION_MAGIC, _TRUNCATION_VERSION, 0, record.container_id, record.address)
    _replace(disk, directory, TRUNCATION_FILE, body + _CRC.pack(crc32c(body, 0))).close()


def _read(
    disk: Disk, path: str, magic: bytes, layouts: Mapping[int, struct.Struct], *, length: int = 0
) -> tuple[struct.Struct, bytes] | None:
    """Read and check a record; return its layout and the file. None if there is no file.

    `layouts`: by version. `length`: the length of the file, if it holds more than the record.
    """
    if not disk.exists(path):
        return None
    longest = max(layout.size for layout in layouts.values())
    file = disk.open(path, writable=False)
    try:
        data = file.read(0, max(longest + _CRC.size, length) + 1)
    finally:
        file.close()
    if not data.startswith(magic):
        raise CorruptionError(path, 0, f"it begins with {data[:8]!r} instead of {magic!r}")
    version = int.from_bytes(data[8:10], "big")
    layout = layouts.get(version)
    if layout is None and not is_version_damaged(data, layouts):
        if version > max(layouts):
            raise LaterVersionError(path, found=version, known=max(layouts), oldest=min(layouts))
        raise CorruptionError(path, 8, f"format version {version} is older than {min(layouts)}, the oldest one read")
    if layout is None or not has_checksum(data, layout):
        raise CorruptionError(path, 0, f"checksum does not match, or the file of {len(data)} bytes is too short")
    expected = max(layout.size + _CRC.size, length)
    if len(data) != expected:
        raise CorruptionError(path, 0, f"expected {expected} bytes, found {len(data)}")
    return layout, data


def _replace(
    disk: Disk, directory: str, name: str, content: bytes, *, before_rename: Callable[[], None] = lambda: None
) -> DiskFile:
    temporary = f"{directory}/{name}{TEMPORARY_SUFFIX}"
    if disk.exists(temporary):
        # Left by a crash. A new inode keeps processes that still have the old one open away from ours.
        disk.remove(temporary)
    file = _write_draft(disk, directory, temporary, content)
    try:
        before_rename()
        disk.rename(temporary, f"{directory}/{name}")
        disk.sync_directory(directory)
    except BaseException:
        file.close()
        raise
    return file


def _write_draft(disk: Disk, directory: str, temporary: str, content: bytes) -> DiskFile:
    """Write `content` to a new file, synced; to a reserve file if there is no space for a new one."""
    try:
        file = disk.open(temporary, create=True, exclusive=True)
        try:
            file.write(0, [content])
            file.sync()
        except BaseException:
            file.close()
            raise
    except (StorageFullError, OSError) as error:
        if not is_full_error(error):
            raise
        if disk.exists(temporary):
            disk.remove(temporary)
        kept = [found for found in disk.list_directory(directory) if found.startswith(RESERVE_RECORD_PREFIX)]
        if not kept:
            raise
        # Its block is allocated, and no process has it open: a file is closed before it gets its reserve name.
        disk.rename(f"{directory}/{kept[0]}", temporary)
        file = disk.open(temporary)
        try:
            file.write(0, [content])
            file.truncate(len(content))
            file.sync()
        except BaseException:
            file.close()
            raise
    return file
