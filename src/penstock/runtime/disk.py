"""`Disk`: files and directories behind one narrow interface, which a simulated disk implements, too.

All calls block; run them through `Runtime.work`. Durability contract, which the simulated disk enforces:

- `write` is durable after a later `sync` of the same file returned; a crash before may drop, keep or tear it.
- `write_synced` is durable when it returns; a crash before may drop, keep or tear it. It does not sync other writes.
- `create`, `rename`, `link` and `remove` are durable after `sync_directory` of the parent directory.
- `sync` that raises leaves the unsynced bytes in an unknown state: the caller must not retry and call it success.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from penstock.model.errors import DataDirectoryInUseError, StorageFullError
from penstock.model.segments import Buffer

_IOV_MAX = 1024
#: Write and sync in one call (Linux 4.7). None where the system does not support it.
_SYNCED_WRITE: int | None = getattr(os, "RWF_DSYNC", None)
#: Errors by which kernels and file systems refuse unknown flags of a write.
_REFUSED_FLAGS = (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)

#: Attempts of `LocalDisk.lock` when the file is removed or replaced while it is being locked.
_LOCK_ATTEMPTS_MAX = 10

#: A directory in the root of each ext2, ext3 and ext4 volume, for files recovered by `fsck`. Only root can list it.
LOST_AND_FOUND = "lost+found"


def is_full_error(error: BaseException) -> bool:
    """Return whether a disk call failed because the disk or a quota is full."""
    return isinstance(error, StorageFullError) or (
        isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
    )


def write_error(error: OSError, length: int, path: str) -> BaseException:
    """Return the error to raise for an error that occurred while `length` bytes were written."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        full = StorageFullError(f"no space left while writing {length} bytes to {path}")
        full.__cause__ = error
        return full
    return error


@dataclass(frozen=True, slots=True)
class DiskSpace:
    """Space on a file system, in bytes: available to this user, and total."""

    free_bytes: int
    total_bytes: int

    def is_below(self, mark_bytes: int, share_percent_max: int) -> bool:
        """Return whether less is free than the smaller of `mark_bytes` and the given share of the total."""
        return self.free_bytes < min(mark_bytes, self.total_bytes * share_percent_max // 100)


class SharedByte(Protocol):
    """One byte of a file, shared by all processes of this machine. Reading it costs no system call."""

    def value(self) -> int:
        """Return the byte as last written by any process, as soon as that write has returned."""

    def close(self) -> None:
        """Release the mapping."""


class DiskFile(Protocol):
    """An open file. Offsets and lengths are bytes."""

    @property
    def path(self) -> str:
        """The path it was opened by."""

    def write(self, offset: int, buffers: Sequence[Buffer]) -> int:
        """Write all buffers one after another at `offset`, return the byte count.

        Raises `StorageFullError`, `OSError`; some of the bytes may have been written.
        """

    def write_synced(self, offset: int, buffers: Sequence[Buffer]) -> int:
        """Write as `write` does, and return when these bytes, and the file length that covers them, are durable.

        Raises what `write` and `sync` raise; the error does not show which of the two failed.
        """

    def read(self, offset: int, length: int) -> bytes:
        """Read up to `length` bytes; fewer only at the end of the file."""

    def length(self) -> int:
        """Return the file's length."""

    def sync(self) -> None:
        """Make the data written so far durable (fdatasync: data, and the length if it changed)."""

    def truncate(self, length: int) -> None:
        """Truncate the file, or extend it with zeros."""

    def is_linked(self) -> bool:
        """Return whether a name still leads to this file (False after it was removed or replaced)."""

    def share(self, offset: int) -> SharedByte | None:
        """Return the byte at `offset`, which must exist until it is closed; None where the file cannot be mapped."""

    def close(self) -> None:
        """Close the file, without a sync."""


class LockState(Enum):
    """Whether the path by which a lock was taken still leads to the locked file."""

    IN_PLACE = "the path leads to the locked file"
    FILE_GONE = "the directory is the same, but the file was removed or replaced: another process can lock the path"
    DIRECTORY_GONE = "the directory of the path was removed, renamed, replaced or unmounted"


class DiskLock(Protocol):
    """An exclusive lock held by this process."""

    def state(self) -> LockState:
        """Return whether the path still leads to the locked file. Raises `OSError` if that cannot be determined."""

    def release(self) -> None:
        """Release the lock."""


class Disk(Protocol):
    """A file system."""

    def open(self, path: str, *, create: bool = False, exclusive: bool = False, writable: bool = True) -> DiskFile:
        """Open a file. `create`: create it if absent; with `exclusive` fail if present (`FileExistsError`)."""

    def make_directory(self, path: str) -> None:
        """Create a directory and its missing parents, durably; succeeds if it exists."""

    def list_directory(self, path: str) -> list[str]:
        """Return the names in a directory, sorted."""

    def exists(self, path: str) -> bool:
        """Return whether the path exists."""

    def rename(self, source: str, target: str) -> None:
        """Move a file atomically, replacing `target`."""

    def link(self, source: str, target: str) -> None:
        """Give a file a second name, atomically. Raises `FileExistsError` when `target` exists."""

    def remove(self, path: str) -> None:
        """Remove a file. Raises `FileNotFoundError`."""

    def remove_directory(self, path: str) -> None:
        """Remove an empty directory. Raises `OSError` when it is missing or not empty."""

    def sync_directory(self, path: str) -> None:
        """Make creations, renames and removals in a directory durable."""

    def lock(self, path: str) -> DiskLock:
        """Take an exclusive lock on a file (created if absent). Raises `DataDirectoryInUseError`.

        When it returns, the path leads to the locked file.
        """

    def space(self, path: str) -> DiskSpace:
        """Return the space on the file system of `path`, which must exist."""


class MappedByte:
    """`SharedByte` in a mapping of the file: writes of other processes go to the same page of memory."""

    def __init__(self, mapping: mmap.mmap, offset: int) -> None:
        self._mapping = mapping
        self._offset = offset

    def value(self) -> int:
        """See `SharedByte.value`."""
        return self._mapping[self._offset]

    def close(self) -> None:
        """See `SharedByte.close`."""
        self._mapping.close()


class LocalFile:
    """`DiskFile` on the operating system."""

    #: Whether write and sync in one call is supported, as far as known: False once it was refused in this process.
    knows_synced_writes: bool = _SYNCED_WRITE is not None

    def __init__(self, path: str, descriptor: int) -> None:
        self._path = path
        self._descriptor = descriptor

    @property
    def path(self) -> str:
        """See `DiskFile.path`."""
        return self._path

    @property
    def descriptor(self) -> int:
        """The file descriptor; negative when the file is closed."""
        return self._descriptor

    def write(self, offset: int, buffers: Sequence[Buffer]) -> int:
        """See `DiskFile.write`."""
        total = sum(map(len, buffers))
        done = 0
        pending: list[Buffer] = list(buffers)
        try:
            while done < total:
                count = os.pwritev(self._descriptor, pending[:_IOV_MAX], offset + done)
                done += count
                while pending and count >= len(pending[0]):
                    count -= len(pending.pop(0))
                if count:
                    pending[0] = memoryview(pending[0])[count:]
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise StorageFullError(f"no space left while writing {total} bytes to {self._path}") from error
            raise
        return total

    def write_synced(self, offset: int, buffers: Sequence[Buffer]) -> int:
        """See `DiskFile.write_synced`. One system call where the file system supports it, else two."""
        is_refused = False
        if LocalFile.knows_synced_writes and len(buffers) <= _IOV_MAX:
            assert _SYNCED_WRITE is not None
            total = sum(map(len, buffers))
            try:
                if os.pwritev(self._descriptor, buffers, offset, _SYNCED_WRITE) == total:
                    return total
                # A short write, as on a full disk: repeated below, and synced completely.
            except OSError as error:
                if error.errno in (errno.ENOSPC, errno.EDQUOT):
                    raise StorageFullError(f"no space left while writing {total} bytes to {self._path}") from error
                if error.errno not in _REFUSED_FLAGS:
                    raise
                is_refused = True
        count = self.write(offset, buffers)
        self.sync()
        if is_refused:
            # Without the flag it succeeded, so the flag is not supported.
            LocalFile.knows_synced_writes = False
        return count

    def read(self, offset: int, length: int) -> bytes:
        """See `DiskFile.read`."""
        data = os.pread(self._descriptor, length, offset)
        if len(data) == length or not data:
            return data
        parts = [data]
        got = len(data)
        while got < length:
            data = os.pread(self._descriptor, length - got, offset + got)
            if not data:
                break
            parts.append(data)
            got += len(data)
        return b"".join(parts)

    def length(self) -> int:
        """See `DiskFile.length`."""
        return os.fstat(self._descriptor).st_size

    def sync(self) -> None:
        """See `DiskFile.sync`."""
        os.fdatasync(self._descriptor)

    def truncate(self, length: int) -> None:
        """See `DiskFile.truncate`."""
        os.ftruncate(self._descriptor, length)

    def is_linked(self) -> bool:
        """See `DiskFile.is_linked`."""
        return os.fstat(self._descriptor).st_nlink > 0

    def share(self, offset: int) -> MappedByte | None:
        """See `DiskFile.share`. None on file systems without memory mapping, as some in user space."""
        try:
            mapping = mmap.mmap(self._descriptor, offset + 1, mmap.MAP_SHARED, mmap.PROT_READ)
        except (OSError, ValueError):
            return None
        return MappedByte(mapping, offset)

    def close(self) -> None:
        """See `DiskFile.close`."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


class LocalLock:
    """`DiskLock` on the operating system. Held until every process that has inherited `descriptor` has closed it.

    `descriptor` is of the file at `path`; this object owns it, unless the constructor raises `OSError`. The directory
    is kept open, too, so that its inode number is not reused.
    """

    def __init__(self, path: str, descriptor: int) -> None:
        self.descriptor: int = descriptor
        self._path = path
        self._directory = os.path.dirname(path) or "."
        # Kept, because `state` may run while another thread releases the lock.
        self._file_status = os.fstat(descriptor)
        self._directory_descriptor = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._directory_status = os.fstat(self._directory_descriptor)

    def state(self) -> LockState:
        """See `DiskLock.state`. Costs two `stat` calls."""
        try:
            directory_status = os.stat(self._directory)
        except (FileNotFoundError, NotADirectoryError):
            return LockState.DIRECTORY_GONE
        if not os.path.samestat(directory_status, self._directory_status):
            return LockState.DIRECTORY_GONE
        try:
            file_status = os.stat(self._path)
        except (FileNotFoundError, NotADirectoryError):
            return LockState.FILE_GONE
        return LockState.IN_PLACE if os.path.samestat(file_status, self._file_status) else LockState.FILE_GONE

    def release(self) -> None:
        """See `DiskLock.release`."""
        for descriptor in (self.descriptor, self._directory_descriptor):
            if descriptor >= 0:
                os.close(descriptor)
        self.descriptor = self._directory_descriptor = -1


class LocalDisk:
    """`Disk` on the operating system."""

    def open(self, path: str, *, create: bool = False, exclusive: bool = False, writable: bool = True) -> LocalFile:
        """See `Disk.open`."""
        flags = os.O_RDWR if writable else os.O_RDONLY
        if create:
            flags |= os.O_CREAT
        if exclusive:
            flags |= os.O_EXCL
        return LocalFile(path, os.open(path, flags | os.O_CLOEXEC, 0o640))

    def make_directory(self, path: str) -> None:
        """See `Disk.make_directory`."""
        if os.path.isdir(path):
            return
        parent = os.path.dirname(os.path.abspath(path))
        if parent != path:
            self.make_directory(parent)
        try:
            os.mkdir(path, 0o750)
        except FileExistsError:
            return
        self.sync_directory(parent)

    def list_directory(self, path: str) -> list[str]:
        """See `Disk.list_directory`. Omits ``lost+found``, which exists in the root of each fresh ext volume."""
        return sorted(name for name in os.listdir(path) if name != LOST_AND_FOUND)

    def exists(self, path: str) -> bool:
        """See `Disk.exists`."""
        return os.path.exists(path)

    def rename(self, source: str, target: str) -> None:
        """See `Disk.rename`."""
        os.replace(source, target)

    def link(self, source: str, target: str) -> None:
        """See `Disk.link`."""
        os.link(source, target)

    def remove(self, path: str) -> None:
        """See `Disk.remove`."""
        os.unlink(path)

    def remove_directory(self, path: str) -> None:
        """See `Disk.remove_directory`."""
        os.rmdir(path)

    def sync_directory(self, path: str) -> None:
        """See `Disk.sync_directory`."""
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def lock(self, path: str) -> LocalLock:
        """See `Disk.lock`."""
        for _ in range(_LOCK_ATTEMPTS_MAX):
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                lock = LocalLock(path, descriptor)
            except BlockingIOError as error:
                os.close(descriptor)
                raise DataDirectoryInUseError(
                    f"{path} is locked by another process: stop that server, or use another --data-dir"
                ) from error
            except BaseException:
                os.close(descriptor)
                raise
            try:
                if lock.state() is LockState.IN_PLACE:
                    return lock
            except BaseException:
                lock.release()
                raise
            # The file was removed or replaced after it was opened: another process can lock the one at the path now.
            lock.release()
        raise DataDirectoryInUseError(
            f"{path} was removed or replaced each of {_LOCK_ATTEMPTS_MAX} times while it was being locked: stop the "
            "program that does this, and try again"
        )

    def space(self, path: str) -> DiskSpace:
        """See `Disk.space`. Blocks reserved for root do not count as free."""
        status = os.statvfs(path)
        return DiskSpace(status.f_bavail * status.f_frsize, status.f_blocks * status.f_frsize)
