"""Open files and locks of a process on a `SimulatedDisk`. They end with the process."""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from typing import Protocol

from penstock.model.segments import Buffer
from penstock.runtime.disk import LockState
from penstock_simulation.simulated.disk_nodes import FileNode


class FileCalls(Protocol):
    """The interface between open files and their disk; see `SimulatedDisk`."""

    def check_handle(self, path: str, generation: int) -> None:
        """Raise `ProcessGoneError` when the handle's process was killed."""

    def write_file(self, path: str, node: FileNode, offset: int, data: bytes) -> None:
        """Write, as far as faults allow."""

    def read_file(self, path: str, node: FileNode, offset: int, length: int) -> bytes:
        """Read from the page cache."""

    def sync_file(self, path: str, node: FileNode, extent: tuple[int, int] | None = None) -> None:
        """Sync the file, or an extent of it (offset, length), to the medium."""

    def cut_file(self, path: str, node: FileNode, length: int) -> None:
        """Set the length."""


class SimulatedByte:
    """`SharedByte` of a `SimulatedDisk`."""

    def __init__(self, node: FileNode, offset: int) -> None:
        self._node = node
        self._offset = offset

    def value(self) -> int:
        """See `SharedByte.value`."""
        return self._node.live[self._offset]

    def close(self) -> None:
        """See `SharedByte.close`."""


class SimulatedFile:
    """`DiskFile` on a `SimulatedDisk`."""

    def __init__(self, disk: FileCalls, path: str, node: FileNode, generation: int, *, is_writable: bool) -> None:
        self._disk = disk
        self._path = path
        self._node = node
        self._generation = generation
        self._is_writable = is_writable
        self._is_closed = False

    @property
    def path(self) -> str:
        """See `DiskFile.path`."""
        return self._path

    def write(self, offset: int, buffers: Sequence[Buffer]) -> int:
        """See `DiskFile.write`."""
        self.check(offset, is_change=True)
        data = b"".join(buffers)
        self._disk.write_file(self._path, self._node, offset, data)
        return len(data)

    def write_synced(self, offset: int, buffers: Sequence[Buffer]) -> int:
        """See `DiskFile.write_synced`."""
        self.check(offset, is_change=True)
        data = b"".join(buffers)
        self._disk.write_file(self._path, self._node, offset, data)
        self._disk.sync_file(self._path, self._node, (offset, len(data)))
        return len(data)

    def read(self, offset: int, length: int) -> bytes:
        """See `DiskFile.read`."""
        self.check(offset)
        return self._disk.read_file(self._path, self._node, offset, length)

    def length(self) -> int:
        """See `DiskFile.length`."""
        self.check(0)
        return len(self._node.live)

    def sync(self) -> None:
        """See `DiskFile.sync`. Does not make the file's name durable."""
        self.check(0)
        self._disk.sync_file(self._path, self._node)

    def truncate(self, length: int) -> None:
        """See `DiskFile.truncate`."""
        self.check(length, is_change=True)
        self._disk.cut_file(self._path, self._node, length)

    def is_linked(self) -> bool:
        """See `DiskFile.is_linked`."""
        self.check(0)
        return self._node.link_count > 0

    def share(self, offset: int) -> SimulatedByte | None:
        """See `DiskFile.share`."""
        self.check(offset)
        return SimulatedByte(self._node, offset)

    def close(self) -> None:
        """See `DiskFile.close`. Allowed after the process was killed."""
        self._is_closed = True

    @property
    def node(self) -> FileNode:
        """The file itself, independent of its name."""
        return self._node

    def check(self, offset: int, *, is_change: bool = False) -> None:
        """Raise `OSError` unless the file is open (for writing, if required) and the offset is valid."""
        self._disk.check_handle(self._path, self._generation)
        if self._is_closed or (is_change and not self._is_writable):
            raise OSError(errno.EBADF, "file is closed or not open for writing", self._path)
        if offset < 0:
            raise OSError(errno.EINVAL, "offset or length is negative", self._path)


class SimulatedLock:
    """`DiskLock` on a `SimulatedDisk`. `check` returns its state."""

    def __init__(self, locks: dict[FileNode, None], node: FileNode, check: Callable[[], LockState]) -> None:
        self._locks = locks
        self._node = node
        self._check = check
        self._is_held = True

    def state(self) -> LockState:
        """See `DiskLock.state`."""
        return self._check()

    def release(self) -> None:
        """See `DiskLock.release`."""
        if self._is_held:
            self._is_held = False
            self._locks.pop(self._node, None)
